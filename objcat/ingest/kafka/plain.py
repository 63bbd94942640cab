"""`PlainDecoder`: messages that are rows, in JSON, Avro or Protobuf. A row of a known key replaces it; one without a value deletes it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.readers import DECLARED, ValueReader
from objcat.ingest.kafka.settings import RecordColumn
from objcat.ingest.kafka.shapes import JoinedColumns, TableShape, make_shape, with_records
from objcat.ingest.kafka.values import TEXT, ValueField
from objcat.ingest.model import ChangeKind, ChangeStamp, RowChange, SourceTable

_TRUE = (True, "true", "True", 1)


class PlainDecoder:
    """Decodes the messages of one topic. For one thread.

    Args:
        topic: its name.
        values: reads values.
        keys: reads keys; None: they are not read.
        key: the key columns that the route names; empty: rows are only added.
        records: columns of the message itself.
        delete_field: the field that says whether the row is gone.
        joined: see `JoinedColumns`. Messages have no other time than that of the record.
    """

    def __init__(
        self,
        topic: str,
        values: ValueReader,
        keys: ValueReader | None,
        *,
        key: Sequence[str],
        records: Sequence[RecordColumn],
        delete_field: str | None,
        joined: dict[str, int] | None = None,
    ) -> None:
        self._topic = topic
        self._values = values
        self._keys = keys
        self._key = tuple(key)
        self._records = tuple(records)
        self._value_key = tuple(name for name in key if name not in {f"_{record}" for record in records})
        self._delete_field = delete_field
        self._joined = JoinedColumns(joined)
        self._shapes: dict[Hashable, TableShape] = {}
        self._by_schema: dict[str, TableShape] = {}
        self._latest: TableShape | None = None

    def decode(self, message: KafkaMessage) -> Sequence[MessageChange]:
        """The change that a message says. Raises Unreadable, SourceAway."""
        if message.value is None:
            return (self._tombstone(message),)
        identity, value = self._values.read(message.value)
        if not isinstance(value, Mapping):
            raise Unreadable("it is no object with fields")
        shape = self._shapes.get(identity) or self._make_shape(identity, message)
        row: Mapping[str, Any] = value
        if any(name not in value for name in self._value_key):
            row = {**self._read_key(message), **value}
        row = with_records(row, self._records, message)
        key = shape.key_of(row)
        stamp = ChangeStamp(message.timestamp_ms, message.place)
        shape = self._latest = self._joined.shape_of(shape, message.timestamp_ms)
        if self._delete_field is not None and value.get(self._delete_field) in _TRUE:
            if not shape.key:
                raise Unreadable(f"its {self._delete_field!r} says that the row is gone, and the route names no key")
            return (self._made(message, shape, RowChange(shape.table, ChangeKind.DELETE, key, None, stamp=stamp)),)
        kind = ChangeKind.UPDATE if shape.key else ChangeKind.INSERT
        return (self._made(message, shape, RowChange(shape.table, kind, key, row, stamp=stamp)),)

    def _tombstone(self, message: KafkaMessage) -> MessageChange:
        if not self._key:
            raise Unreadable("it has no value, and the route names no key by which a row could be deleted")
        found = self._read_key(message)
        shape = self._latest or self._declared_shape(message) or self._key_shape(message)
        stamp = ChangeStamp(message.timestamp_ms, message.place)
        return self._made(message, shape, RowChange(shape.table, ChangeKind.DELETE, shape.key_of(found), None, stamp=stamp))

    def _made(self, message: KafkaMessage, shape: TableShape, change: RowChange) -> MessageChange:
        return MessageChange(change=change, committed_at_ms=message.timestamp_ms, defaults=shape.defaults)

    def _read_key(self, message: KafkaMessage) -> Mapping[str, Any]:
        """What the key of a message says of the key columns."""
        if message.key is None or self._keys is None:
            return {}
        _, value = self._keys.read(message.key)
        if isinstance(value, Mapping):
            return value
        if len(self._key) != 1:
            raise Unreadable(f"its key is one value, and the route names the key columns {', '.join(map(repr, self._key)) or 'not'}")
        return {self._key[0]: value}

    def _make_shape(self, identity: Hashable, message: KafkaMessage) -> TableShape:
        fields = [field for field in self._values.fields(identity) if field.name != self._delete_field]
        names = {field.name for field in fields}
        lacking = [name for name in self._value_key if name not in names]
        if lacking and message.key is not None and self._keys is not None:
            fields = [*(field for field in self._key_fields(message) if field.name in lacking), *fields]
        made = make_shape(self._topic, fields, self._key, self._records, placeholder=None)
        made = self._shapes[identity] = self._by_schema.setdefault(repr(fields), made)
        return made

    def _key_fields(self, message: KafkaMessage) -> list[ValueField]:
        """The fields of the key of a message."""
        assert self._keys is not None and message.key is not None
        identity, value = self._keys.read(message.key)
        if isinstance(value, Mapping):
            return self._keys.fields(identity)
        return [ValueField(name=self._key[0], type=self._keys.scalar(identity) or TEXT, nullable=False)]

    def _declared_shape(self, message: KafkaMessage) -> TableShape | None:
        """The schema that all values have, where the configuration says it."""
        try:
            return self._make_shape(DECLARED, message)
        except SchemaUnfit:
            return None

    def _key_shape(self, message: KafkaMessage) -> TableShape:
        """What is known of a table of which no row was read yet: its key."""
        try:
            fields = [field for field in self._key_fields(message) if field.name in self._key] if self._keys and message.key else []
        except SchemaUnfit:
            fields = []
        shape = make_shape(self._topic, fields, self._key, (), placeholder=None)
        table = SourceTable(name=self._topic, columns=shape.table.columns, key=shape.table.key, has_schema=False)
        return self._by_schema.setdefault(f"key {fields!r}", TableShape(table=table, key=shape.key, unsent=(), defaults={}))
