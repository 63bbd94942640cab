"""`KafkaSettings`: what `[source]` has for Kafka, next to name and kind."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, TypeVar

import msgspec

from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.declared_types import TypeUnknown, parse_fields

S = TypeVar("S", bound=msgspec.Struct)
Format: TypeAlias = Literal["debezium-json", "debezium-avro", "json", "avro", "protobuf"]
KeyFormat: TypeAlias = Literal["none", "text", "json", "avro", "protobuf"]
Framing: TypeAlias = Literal["registry", "plain"]
RecordColumn: TypeAlias = Literal["topic", "partition", "offset", "timestamp", "key"]

_OURS = {
    "bootstrap.servers": "brokers",
    "group.id": "group",
    "enable.auto.commit": None,
    "auto.offset.reset": None,
    "isolation.level": None,
    "enable.partition.eof": None,
    "enable.auto.offset.store": None,
}
"""Settings of librdkafka on which the position rests, with the setting here that has their place."""


class RegistrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[source.registry]`: a schema registry with the interface of Confluent's.

    Args:
        url: such as `https://registry.internal:8081`. It may have a path.
        user, password: for basic authentication.
        tls_ca: a file with the certificates that the registry's is checked by; those of the system when it is left out.
        tls_certificate, tls_key: files with a certificate of this client and its key.
        timeout_s: of one request.
        away_s: how long a registry that does not answer is asked again, before the run stops.
    """

    url: str
    user: str = ""
    password: str = ""
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    timeout_s: float = 10.0
    away_s: float = 60.0

    def __repr__(self) -> str:
        return "RegistrySettings(...)"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[source.topic]]`: topics with settings of their own. The first one that matches a topic counts.

    Args:
        topics: a regular expression for the whole name.
        format: of the values.
        key_format: of the keys of messages: `text` and `none` next to the formats. It is needed for messages without a value, which are
            deletes. `json`, `avro` or `protobuf`, as the values, when it is left out.
        framing: "registry": five bytes before each value name its schema in the registry; "plain": the schema is `schema` or `descriptor`.
        columns: of JSON without a schema: types by name.
        schema: a file with an Avro schema (`.avsc`), for "plain".
        key_schema: the same for the keys.
        descriptor: a file with a set of descriptors, as `protoc --descriptor_set_out --include_imports` writes it.
        message: the full name of the message, such as `shop.v1.Order`. With schemas in a registry: of the messages that are read, others go
            to the dead letters; each message has the type that it says when it is left out.
        key_message: the same for the keys.
        delete_field: a field that says whether the row is gone, such as `__deleted`. It is not written.
        record_columns: what of a message becomes a column too: `_topic`, `_partition`, `_offset`, `_timestamp`, `_key`.
    """

    topics: str
    format: Format | None = None
    key_format: KeyFormat | None = None
    framing: Framing | None = None
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    schema: str | None = None
    key_schema: str | None = None
    descriptor: str | None = None
    message: str | None = None
    key_message: str | None = None
    delete_field: str | None = None
    record_columns: tuple[RecordColumn, ...] = ()


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of Kafka.

    Args:
        brokers: hosts and ports to begin with, separated by commas.
        topics: a regular expression for the whole names of the topics that are read.
        format: of the values, where no `[[source.topic]]` says otherwise.
        transactions: the topic of Debezium's `provide.transaction.metadata`, such as `shop.transaction`. With it, transactions of the
            database stay whole across topics.
        transaction_wait_s: how long events of a transaction are waited for, while all topics are silent.
        begin: where an ingest begins that has no position: at the "earliest" message, or at the "latest".
        options: settings of librdkafka, such as `security.protocol`.
        registry: a schema registry.
        topic: topics with settings of their own.
        numeric_scale: of decimals whose values have a scale each; they are text when it is left out.
        unavailable_value: Debezium's `unavailable.value.placeholder`.
        truncates: "follow", or "ignore" events of a truncation.
        group: the consumer group of the connection; a name from that of the source when it is left out.
        commit_group: whether offsets are committed to the group too, for monitoring. They are never read.
        unsafe_skip_expired: go on at the oldest message where those before are gone. They are missing in the lake.
        connect_s: seconds to wait for an answer of the brokers.
    """

    brokers: str
    topics: str
    format: Format = "debezium-json"
    transactions: str | None = None
    transaction_wait_s: float = 30.0
    begin: Literal["earliest", "latest"] = "earliest"
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    registry: RegistrySettings | None = None
    topic: tuple[TopicSettings, ...] = ()
    numeric_scale: int | None = None
    unavailable_value: str = "__debezium_unavailable_value"
    truncates: Literal["follow", "ignore"] = "follow"
    group: str | None = None
    commit_group: bool = False
    unsafe_skip_expired: bool = False
    connect_s: float = 10.0

    def __repr__(self) -> str:
        return f"KafkaSettings(topics={self.topics!r}, format={self.format!r})"

    def topic_settings(self, topic: str) -> TopicSettings:
        """The settings of a topic, with the format filled in."""
        for one in self.topic:
            if re.fullmatch(one.topics, topic):
                return one if one.format is not None else msgspec.structs.replace(one, format=self.format)
        return TopicSettings(topics=re.escape(topic), format=self.format)


def kafka_settings(config: IngestConfig) -> KafkaSettings:
    """The settings, checked. Raises InvalidConfig."""
    found = _with_places(config.settings(KafkaSettings), config)
    where = f"[source] in {config.path}"
    for text in (found.topics, *(one.topics for one in found.topic)):
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidConfig(f"{where}: topics is not a regular expression ({error}). Correct it.") from None
    for option in found.options:
        if option in _OURS:
            instead = f" Use {_OURS[option]}." if _OURS[option] else ""
            raise InvalidConfig(f"{where}: the option {option!r} is set by objcat, since the position rests on it. Leave it out.{instead}")
    if found.numeric_scale is not None and not 0 <= found.numeric_scale <= 37:
        raise InvalidConfig(f"{where}: numeric_scale has to be from 0 to 37. Correct it.")
    if not 0 < found.connect_s <= 600 or not 0 <= found.transaction_wait_s <= 86_400:
        raise InvalidConfig(f"{where}: connect_s has to be from 0 to 600, and transaction_wait_s from 0 to 86,400. Correct it.")
    for one in found.topic or (TopicSettings(topics=found.topics),):
        _check_topic(found, one if one.format is not None else msgspec.structs.replace(one, format=found.format), where)
    return found


def _with_places(found: KafkaSettings, config: IngestConfig) -> KafkaSettings:
    """The settings with the files that they name, which count from the file of the configuration."""

    def placed(settings: S, *names: str) -> S:
        given = {name: value for name in names if (value := getattr(settings, name)) is not None}
        return msgspec.structs.replace(settings, **{name: config.place(value) for name, value in given.items()})

    registry = found.registry and placed(found.registry, "tls_ca", "tls_certificate", "tls_key")
    topics = tuple(placed(one, "schema", "key_schema", "descriptor") for one in found.topic)
    return msgspec.structs.replace(found, registry=registry, topic=topics)


def framing_of(settings: KafkaSettings, topic: TopicSettings) -> Framing:
    """Whether the values of a topic name their schemas."""
    if topic.framing is not None:
        return topic.framing
    return "registry" if settings.registry is not None and not (topic.schema or topic.descriptor) else "plain"


def _check_topic(settings: KafkaSettings, topic: TopicSettings, where: str) -> None:
    said = f"[[source.topic]] {topic.topics!r} of {where}"
    try:
        parse_fields(topic.columns, numeric_scale=settings.numeric_scale)
    except TypeUnknown as error:
        raise InvalidConfig(f"{said}: {error}. Correct it.") from None
    if topic.columns and topic.format not in ("json", "debezium-json"):
        raise InvalidConfig(f"{said} has columns, and its format {topic.format!r} has a schema. Leave one out.")
    needs_registry = topic.format == "debezium-avro" or (topic.format in ("avro", "protobuf") and framing_of(settings, topic) == "registry")
    if needs_registry and settings.registry is None and not (topic.format == "protobuf" and topic.descriptor):
        raise InvalidConfig(f"{said} has schemas in a registry, and there is no [source.registry]. Add it, or give the schema in a file.")
    if topic.format == "avro" and framing_of(settings, topic) == "plain" and topic.schema is None:
        raise InvalidConfig(f'{said} has no schema. Give a file, schema = "order.avsc", or add [source.registry].')
    if topic.key_format == "protobuf" and topic.descriptor is None and settings.registry is None:
        raise InvalidConfig(f"{said} has keys of Protobuf, and neither a descriptor nor [source.registry]. Add one of them.")
    if topic.key_format == "protobuf" and topic.descriptor is not None and topic.key_message is None:
        # As text, such a key would be that of another row.
        raise InvalidConfig(
            f'{said} has keys of Protobuf, and no key_message. Give its full name, such as key_message = "shop.v1.OrderKey".'
        )
    if topic.key_format == "avro" and topic.key_schema is None and settings.registry is None:
        raise InvalidConfig(f"{said} has keys of Avro, and neither key_schema nor [source.registry]. Add one of them.")
    if topic.format != "protobuf":
        return
    if topic.descriptor is None and framing_of(settings, topic) == "plain":
        raise InvalidConfig(
            f'{said} has no descriptor. Write one by protoc --descriptor_set_out=FILE --include_imports, and give descriptor = "FILE". '
            "Or add [source.registry], where the descriptors are."
        )
    if topic.descriptor is not None and topic.message is None:
        raise InvalidConfig(f'{said} has no message. Give its full name, such as message = "shop.v1.Order".')
