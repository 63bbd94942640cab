"""Decoders by the settings of a topic: `open_decoder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fileio.env import Env
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.debezium import DebeziumDecoder
from objcat.ingest.kafka.declared_types import parse_fields
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.plain import PlainDecoder
from objcat.ingest.kafka.position import TopicPosition
from objcat.ingest.kafka.readers import AvroReader, JsonReader, TextReader, ValueReader
from objcat.ingest.kafka.registry import RegistryClient
from objcat.ingest.kafka.settings import KafkaSettings, KeyFormat, TopicSettings, framing_of
from objcat.ingest.kafka.values import ValueField
from objcat.sourcefiles.values import UNFIT

UNREADABLE = (Unreadable, SchemaUnfit, AttributeError, LookupError, RecursionError, *UNFIT)
"""What a decoder raises for a message that cannot be read. It goes to the dead letters, and the others go on."""
_KEY_FORMATS: Mapping[str, KeyFormat] = {"json": "json", "avro": "avro", "protobuf": "protobuf"}
"""The format of keys where the settings name none: that of the values."""


class MessageDecoder(Protocol):
    """Decodes the messages of one topic."""

    def decode(self, message: KafkaMessage) -> Sequence[MessageChange]:
        """The changes that a message says. Raises Unreadable, SourceAway."""


class DecoderFactory:
    """Opens decoders.

    Args:
        config, settings: of the ingest.
        env: the clock.
    """

    def __init__(self, config: IngestConfig, settings: KafkaSettings, env: Env) -> None:
        self._settings = settings
        self._registry = None if settings.registry is None else RegistryClient(config, settings.registry, env)

    def open(self, topic: str, key: Sequence[str], known: TopicPosition | None = None) -> MessageDecoder:
        """The decoder of a topic. Raises InvalidConfig, MissingDependency.

        Args:
            topic: its name.
            key: the key columns that its route names.
            known: what its position says of its messages. It is changed.
        """
        settings = self._settings.topic_settings(topic)
        known = TopicPosition() if known is None else known
        if settings.format in ("debezium-json", "debezium-avro"):
            is_json = settings.format == "debezium-json"
            values = self._json(settings) if is_json else self._avro(None)
            keys = self._keys(settings, settings.key_format or ("json" if is_json else "avro"))
            return DebeziumDecoder(
                topic,
                values,
                keys,
                key=key,
                records=settings.record_columns,
                placeholder=self._settings.unavailable_value,
                is_whole=self._settings.transactions is not None,
                known=known,
            )
        key_format: KeyFormat = settings.key_format or _KEY_FORMATS[settings.format or "json"]
        return PlainDecoder(
            topic,
            self._values(settings),
            None if key_format == "none" else self._keys(settings, key_format),
            key=key,
            records=settings.record_columns,
            delete_field=settings.delete_field,
            joined=known.joined,
        )

    def transactions(self) -> ValueReader:
        """The reader of the topic of transactions. It has the format of the other topics."""
        return self._avro(None) if self._settings.format == "debezium-avro" else JsonReader([], numeric_scale=None)

    def _values(self, settings: TopicSettings) -> ValueReader:
        if settings.format == "json":
            return self._json(settings)
        if settings.format == "avro":
            return self._avro(settings.schema if framing_of(self._settings, settings) == "plain" else None)
        return self._protobuf(settings, settings.message)

    def _keys(self, settings: TopicSettings, kind: KeyFormat) -> ValueReader:
        if kind == "json":
            return JsonReader(parse_fields(settings.columns, numeric_scale=self._settings.numeric_scale), numeric_scale=self._scale)
        if kind == "avro":
            return self._avro(settings.key_schema)
        if kind == "protobuf" and (settings.key_message or (settings.key_format and settings.descriptor is None)):
            return self._protobuf(settings, settings.key_message)
        return TextReader()

    def _json(self, settings: TopicSettings) -> JsonReader:
        declared: list[ValueField] | None = None
        if settings.columns:
            declared = parse_fields(settings.columns, numeric_scale=self._scale)
        return JsonReader(declared, numeric_scale=self._scale)

    def _avro(self, schema: str | None) -> AvroReader:
        return AvroReader(self._registry, schema, numeric_scale=self._scale)

    def _protobuf(self, settings: TopicSettings, message: str | None) -> ValueReader:
        from objcat.ingest.kafka.protobuf_reader import ProtobufReader
        from objcat.ingest.kafka.protobuf_registry import RegistryProtobufReader

        if settings.descriptor is None:
            assert self._registry is not None, "the settings are checked"
            return RegistryProtobufReader(self._registry, message)
        assert message is not None, "the settings are checked"
        return ProtobufReader(settings.descriptor, message, is_framed=framing_of(self._settings, settings) == "registry")

    @property
    def _scale(self) -> int | None:
        return self._settings.numeric_scale
