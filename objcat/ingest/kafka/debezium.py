"""`DebeziumDecoder`: envelopes of Debezium as changes of rows.

The envelope is documented at https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.position import TopicPosition
from objcat.ingest.kafka.readers import ValueReader
from objcat.ingest.kafka.settings import RecordColumn
from objcat.ingest.kafka.shapes import JoinedColumns, TableShape, make_shape, with_records
from objcat.ingest.model import BadRecord, ChangeKind, ChangeStamp, KeyValues, RowChange, SourceTable, TableTruncated

CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = "c", "u", "d", "r", "t", "m"
OLD_KEY = "__debezium.oldkey"
"""The header of a row under a new key: the key that it had."""
_POSTGRES_ID = re.compile(r"(\d+):(\d+)")
_SCHEMA_CHANGE = {"ddl", "tableChanges", "historyRecord"}


class DebeziumDecoder:
    """Decodes the messages of one topic. For one thread.

    Args:
        topic: its name.
        values, keys: readers of values and keys.
        key: the key columns that the route names; empty: those of the messages' keys.
        records: columns of the message itself.
        placeholder: what stands for values that were not sent.
        is_whole: whether transactions are applied whole, and so in their order over all partitions.
        known: what the position says of the messages of the topic. It is added to.
    """

    def __init__(
        self,
        topic: str,
        values: ValueReader,
        keys: ValueReader,
        *,
        key: Sequence[str],
        records: Sequence[RecordColumn],
        placeholder: str,
        is_whole: bool = False,
        known: TopicPosition | None = None,
    ) -> None:
        self._topic = topic
        self._values = values
        self._keys = keys
        self._key = tuple(key)
        self._records = tuple(records)
        self._placeholder = placeholder
        self._is_whole = is_whole
        known = TopicPosition() if known is None else known
        self._joined = JoinedColumns(known.joined)
        self._last_deletes = known.deleted
        self._shapes: dict[tuple[Hashable, tuple[str, ...]], TableShape] = {}
        self._by_schema: dict[str, TableShape] = {}
        self._latest: TableShape | None = None
        self._gone: dict[int, KeyValues] = {}

    def decode(self, message: KafkaMessage) -> Sequence[MessageChange]:
        """The changes that a message says: none, one, or one and a note about it. Raises Unreadable, SourceAway."""
        # What a position keeps of a key is gone with the next message: a digest of it may be tried out.
        deleted = self._last_deletes.pop(str(message.partition), None)
        if message.value is None:
            return self._tombstone(message, deleted)
        identity, payload = self._values.read(message.value)
        if not isinstance(payload, Mapping) or "op" not in payload:
            return self._other(payload)
        operation = payload["op"]
        if operation == MESSAGE:
            return ()
        source = payload.get("source") or {}
        block = payload.get("transaction") or {}
        identifier = block.get("id")
        committed = source.get("ts_ms")
        stamp = ChangeStamp(committed if isinstance(committed, int) else message.timestamp_ms, message.place)
        change, note, shape = self._change(message, identity, payload, stamp)
        snapshot = str(source.get("snapshot") or "false").lower()
        made = MessageChange(
            change=change,
            transaction=None if identifier is None else transaction_id(str(identifier)),
            total_order=int(block.get("total_order") or 0),
            collections=_collections(source),
            committed_at_ms=stamp.committed_at_ms,
            is_snapshot=operation == READ or snapshot != "false",
            ends_snapshot=snapshot == "last",
            is_incremental=snapshot == "incremental",
            defaults=shape.defaults,
        )
        if note is None:
            return (made,)
        bad = BadRecord(table=self._topic, payload=message.value, error=note, position=message.place)
        return (made, MessageChange(change=bad, committed_at_ms=made.committed_at_ms))

    def _other(self, payload: Any) -> Sequence[MessageChange]:
        """A message without an operation: of schema changes, transactions and heartbeats, which say nothing of rows."""
        names = set(payload) if isinstance(payload, Mapping) else set()
        if names & _SCHEMA_CHANGE or {"status", "event_count"} <= names or names == {"ts_ms"}:
            return ()
        raise Unreadable("it is no envelope of Debezium: it has no op")

    def _change(
        self, message: KafkaMessage, identity: Hashable, payload: Mapping[str, Any], stamp: ChangeStamp
    ) -> tuple[RowChange | TableTruncated, str | None, TableShape]:
        """The change of an envelope, what is wrong with it although it is applied, and its shape."""
        operation = payload["op"]
        key_identity, key = self._read_key(message)
        shape = self._shape(identity, key_identity, key)
        if operation == TRUNCATE:
            return TableTruncated(table=shape.table), None, shape
        before, after = payload.get("before"), payload.get("after")
        # A delete has the schema of its time too, and so have the tombstones after it.
        shape = self._latest = self._joined.shape_of(shape, stamp.committed_at_ms)
        if operation == DELETE:
            values = key if key is not None and not self._key else before
            if shape.key and not isinstance(values, Mapping):
                raise Unreadable("it is a delete without a key and without the row before it")
            row = before if not shape.key and isinstance(before, Mapping) else None
            gone = shape.key_of(values or {})
            self._gone[message.partition] = gone
            self._last_deletes[str(message.partition)] = _delete_text(message.offset, message.key)
            return RowChange(shape.table, ChangeKind.DELETE, gone, row, stamp=stamp), None, shape
        if operation not in (CREATE, UPDATE, READ):
            raise Unreadable(f"its op is {operation!r}, which is not known")
        if not isinstance(after, Mapping):
            raise Unreadable(f"it has the op {operation!r} and no row after it")
        return (*self._row(message, shape, payload, stamp), shape)

    def _row(
        self, message: KafkaMessage, shape: TableShape, payload: Mapping[str, Any], stamp: ChangeStamp
    ) -> tuple[RowChange, str | None]:
        operation, before = payload["op"], payload.get("before")
        row: Mapping[str, Any] = payload["after"]
        key = shape.key_of(row)
        unsent = shape.unsent_of(row) if shape.unsent else ()
        if unsent:
            row = {name: value for name, value in row.items() if name not in unsent}
        row = with_records(row, self._records, message)
        old_key = None
        if operation == UPDATE and self._key and isinstance(before, Mapping):
            old_key = shape.key_of(before)
        elif unsent and operation == CREATE:
            old_key = self._old_key(message, shape)
            if not (self._is_whole and payload.get("transaction")) and self._gone.get(message.partition) != old_key:
                # The delete of the old key is in another partition. Another row may have that key by now.
                old_key = None
        note = None
        if unsent and operation != UPDATE and old_key is None:
            note = f"{', '.join(unsent)} of this row was not sent with its new key, and is null in the lake"
            unsent, row = (), {**row, **dict.fromkeys(unsent)}
        kind = ChangeKind.INSERT if operation in (CREATE, READ) and old_key is None else ChangeKind.UPDATE
        return RowChange(shape.table, kind, key, row, unsent, old_key if old_key != key else None, stamp), note

    def _old_key(self, message: KafkaMessage, shape: TableShape) -> KeyValues | None:
        """The key that a row had, of the header that Debezium adds; None where it cannot be read."""
        for name, raw in message.headers:
            if name == OLD_KEY and raw is not None:
                try:
                    found = msgspec.json.decode(raw)
                    found = found.get("payload", found) if isinstance(found, Mapping) else None
                    return shape.key_of(found) if isinstance(found, Mapping) else None
                except (msgspec.DecodeError, Unreadable):
                    return None
        return None

    def _tombstone(self, message: KafkaMessage, deleted: str | None) -> Sequence[MessageChange]:
        """A message without a value: its key is gone. Next to the delete before it, it says nothing; a compaction may leave it alone."""
        if deleted == _delete_text(message.offset - 1, message.key):
            return ()  # Also where a run has ended between the two.
        key_identity, found = self._read_key(message)
        if found is None:
            raise Unreadable("it has neither a key nor a value")
        shape = self._latest
        if shape is None or tuple(name for name, _ in shape.key) != (self._key or tuple(found)):
            shape = self._key_shape(key_identity)
        stamp = ChangeStamp(message.timestamp_ms, message.place)
        change = RowChange(shape.table, ChangeKind.DELETE, shape.key_of(found), None, stamp=stamp)
        return (MessageChange(change=change, committed_at_ms=message.timestamp_ms),)

    # ---- schemas

    def _read_key(self, message: KafkaMessage) -> tuple[Hashable, Mapping[str, Any] | None]:
        if message.key is None:
            return None, None
        identity, value = self._keys.read(message.key)
        if value is None:
            return None, None
        if not isinstance(value, Mapping):
            if len(self._key) == 1:
                return identity, {self._key[0]: value}
            raise Unreadable("its key is no struct. Name the key column in the route")
        return identity, value

    def _shape(self, identity: Hashable, key_identity: Hashable, key: Mapping[str, Any] | None) -> TableShape:
        names = self._key or tuple(key or ())
        known = self._shapes.get((identity, names))
        if known is None:
            fields = self._values.fields(identity, "after")
            if not names and self._latest is not None and key_identity is None:
                # An event of a truncation has no key.
                names = tuple(name for name, _ in self._latest.key)
            known = make_shape(self._topic, fields, names, self._records, placeholder=self._placeholder)
            # Schemas that differ in nothing that matters here are one.
            known = self._by_schema.setdefault(repr((fields, names)), known)
            self._shapes[identity, names] = known
        self._latest = known
        return known

    def _key_shape(self, identity: Hashable) -> TableShape:
        """What is known of a table of which no row was read yet: its key."""
        try:
            fields = self._keys.fields(identity)
        except SchemaUnfit:
            fields = []
        names = self._key or tuple(field.name for field in fields)
        fields = [field for field in fields if field.name in names]
        shape = make_shape(self._topic, fields, names, (), placeholder=None)
        table = SourceTable(name=self._topic, columns=shape.table.columns, key=shape.table.key, has_schema=False)
        made = TableShape(table=table, key=shape.key, unsent=(), defaults={})
        return self._by_schema.setdefault(repr((fields, names, "key")), made)


def transaction_id(text: str) -> str:
    """What all events of a transaction have in common. PostgreSQL's are the transaction, a colon, and the position of each event."""
    found = _POSTGRES_ID.fullmatch(text)
    return found[1] if found else text


def _delete_text(offset: int, key: bytes | None) -> str:
    """An event that deletes a row, as a position has it."""
    return f"{offset}:{hashlib.sha256(key or b'').hexdigest()[:16]}"


def _collections(source: Mapping[str, Any]) -> tuple[str, ...]:
    """The names by which Debezium may count the events of a table: with its schema, its database, or both."""
    table = source.get("table") or source.get("collection")
    if not table:
        return ()
    schema, database = source.get("schema"), source.get("db")
    found = [f"{schema}.{table}"] if schema else []
    if database:
        found.append(f"{database}.{table}")
        if schema:
            found.append(f"{database}.{schema}.{table}")
    return tuple(found)
