"""What executors of Spark make of messages: `decode_messages` gives a row for each change, by the decoders that a single process uses.

A row says where its message is, which key it changes, and the change itself as bytes. So rows can be moved by their keys between executors
without being decoded again. Schemas, truncations and bad records are rows too.
"""

from __future__ import annotations

import enum
import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from fileio.env import default_env
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.batches import bad_message
from objcat.ingest.kafka.decoders import UNREADABLE, DecoderFactory, MessageDecoder
from objcat.ingest.kafka.message import KafkaMessage, MessageChange
from objcat.ingest.kafka.position import TopicPosition
from objcat.ingest.kafka.settings import kafka_settings
from objcat.ingest.model import BadRecord, ChangeKind, ChangeStamp, RowChange, SourceTable, TableTruncated
from objcat.ingest.routes import Router

ROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("at_ms", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("committed_ms", pa.int64()),
        pa.field("data", pa.binary()),
    ]
)
"""The columns of the rows.

part: the number of the change in its message. at_ms: the newest time of the messages of the partition up to this one: by it, and then by
partition and offset, changes of a key are in an order that keeps that of each partition. kind: a `ChangeKind`, or a `Note`.
schema: by which `schema_of` knows it. key: the values of the key as JSON. data: see `changed_row`.
"""


class Note(enum.StrEnum):
    """What a row says that is no change of a row. Its data: a `FoundSchema`, a `BadRecord`, a truncated table, a text, or nothing."""

    SCHEMA = "schema"
    BAD = "bad"
    TRUNCATE = "truncate"
    MOVED = "moved"
    """A row whose key changed, and of which values were not sent."""
    DELETED = "deleted"
    """The last delete of a partition, see `TopicPosition`."""


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema of rows. defaults: values by column, what older rows have there."""

    table: SourceTable
    defaults: Mapping[str, Any]


def decode_messages(
    config: IngestConfig, deleted: Mapping[str, Mapping[str, str]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: messages as rows of `ROW_SCHEMA`.

    Args:
        config: of the ingest.
        deleted: by topic, see `TopicPosition`.
        batches: columns topic, partition, offset, key, value, at_ms and headers. Messages of a partition are in order.

    Raises:
        SourceAway: the registry does not answer.
        SourceUnfit: it refuses this client.
    """
    decoding = _Decoding(config, deleted)
    for batch in batches:
        yield decoding.rows(batch)
    yield decoding.last_deletes()


def changed_row(table: SourceTable, kind: str, data: bytes, stamp: ChangeStamp) -> RowChange:
    """The change that a row says. stamp: of its message."""
    key, values, unsent = pickle.loads(data)  # noqa: S301 - our own executors wrote it
    row = values if values is None or isinstance(values, dict) else dict(zip([one.name for one in table.columns], values, strict=True))
    return RowChange(table, ChangeKind(kind), key, row, unsent, stamp=stamp)


def schema_of(table: SourceTable, defaults: Mapping[str, Any]) -> str:
    """A short text that is the same in every process for the same schema."""
    columns = [(one.name, str(one.type), one.nullable, repr(getattr(one.decode, "keywords", None))) for one in table.columns]
    said = repr((table.name, columns, table.key, table.has_schema, sorted(defaults.items(), key=repr)))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class _Decoding:
    """The decoders of a task, and the columns of the rows of a batch."""

    def __init__(self, config: IngestConfig, deleted: Mapping[str, Mapping[str, str]]) -> None:
        self._settings = kafka_settings(config)
        self._before = deleted
        self._known = {topic: TopicPosition(deleted=dict(texts)) for topic, texts in deleted.items()}
        self._router = Router(config)
        self._factory = DecoderFactory(config, self._settings, default_env())
        self._decoders: dict[str, MessageDecoder] = {}
        self._times: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._schemas: dict[int, tuple[SourceTable, str]] = {}
        self._columns: list[list[Any]] = []

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the messages of a batch."""
        self._columns = [[] for _ in ROW_SCHEMA]
        names = ("topic", "partition", "offset", "key", "value", "at_ms", "headers")
        for topic, partition, offset, key, value, at_ms, headers in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            found = () if headers is None else tuple((one["key"], one["value"]) for one in headers)
            self._take(KafkaMessage(topic, partition, offset, key, value, at_ms, found))
        return self._batch()

    def last_deletes(self) -> pa.RecordBatch:
        """Rows of what positions have of deletes, for the partitions of which that has changed."""
        self._columns = [[] for _ in ROW_SCHEMA]
        for (topic, partition), offset in self._offsets.items():
            text = self._known[topic].deleted.get(str(partition))
            if text != self._before.get(topic, {}).get(str(partition)):
                self._add(KafkaMessage(topic, partition, offset, None, None), -1, Note.DELETED, None, None, None, pickle.dumps(text, 5))
        return self._batch()

    def _batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(self._columns, ROW_SCHEMA, strict=True)], schema=ROW_SCHEMA
        )

    def _take(self, message: KafkaMessage) -> None:
        place = (message.topic, message.partition)
        before = self._offsets.get(place, -1)
        if message.offset <= before:
            raise RuntimeError(f"Spark gave the message {message.place} after {before}, so the order of its partition is not known")
        self._offsets[place] = message.offset
        self._times[place] = max(self._times.get(place, 0), message.timestamp_ms or 0)
        decoder = self._decoders.get(message.topic)
        if decoder is None:
            known = self._known.setdefault(message.topic, TopicPosition())
            decoder = self._decoders[message.topic] = self._factory.open(message.topic, self._router.key_of(message.topic), known)
        try:
            changes = tuple(decoder.decode(message))
        except UNREADABLE as error:
            changes = (bad_message(message, f"{message.place}: {error}"),)
        part = 0
        for one in changes:
            for kind, schema, key, committed_ms, data in self._said(message, one):
                self._add(message, part, kind, schema, key, committed_ms, data)
                part += 1

    def _said(self, message: KafkaMessage, one: MessageChange) -> Iterator[tuple[str, str | None, bytes | None, int | None, bytes | None]]:
        """The rows of a change."""
        change = one.change
        if isinstance(change, BadRecord):
            yield Note.BAD, None, None, one.committed_at_ms, pickle.dumps(change, 5)
            return
        table = change.table
        if isinstance(change, TableTruncated):
            # Its message has no key, so its schema may have none. It counts for no row.
            if self._settings.truncates == "follow":
                yield Note.TRUNCATE, None, None, one.committed_at_ms, pickle.dumps(table, 5)
            return
        known = self._schemas.get(id(table))
        if known is None:
            known = self._schemas[id(table)] = (table, schema_of(table, one.defaults))
            # Which columns join after a row, all partitions together say.
            found = FoundSchema(replace(table, joins_later=()), dict(one.defaults))
            yield Note.SCHEMA, known[1], None, one.committed_at_ms, pickle.dumps(found, 5)
        schema = known[1]
        committed_ms = message.timestamp_ms if change.stamp is None else change.stamp.committed_at_ms
        if change.old_key is not None and change.old_key != change.key:
            if change.unsent:
                yield Note.MOVED, schema, None, committed_ms, None
            yield ChangeKind.DELETE, schema, _encoded(change.old_key), committed_ms, pickle.dumps((change.old_key, None, ()), 5)
        yield change.kind, schema, _encoded(change.key), committed_ms, pickle.dumps((change.key, _values(change), change.unsent), 5)

    def _add(self, message: KafkaMessage, part: int, kind: str, *rest: Any) -> None:
        at_ms = self._times[message.topic, message.partition]
        row = (message.topic, message.partition, message.offset, part, at_ms, str(kind), *rest)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


def _values(change: RowChange) -> Any:
    """The values of a row: without their names where the schema has all of them."""
    row = change.row
    if row is not None and len(row) == len(change.table.columns) and all(one.name in row for one in change.table.columns):
        return tuple(row[one.name] for one in change.table.columns)
    return None if row is None else dict(row)


def _encoded(key: Any) -> bytes:
    return msgspec.json.encode(key)
