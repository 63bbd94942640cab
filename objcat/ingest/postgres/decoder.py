"""`TransactionDecoder`: messages of pgoutput become whole transactions of a source."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from objcat.errors import IngestStopped
from objcat.ingest.model import BadRecord, ChangeKind, Position, RowChange, SchemaChanged, SourceTable, SourceTransaction, TableTruncated
from objcat.ingest.postgres.catalog import PostgresCatalog
from objcat.ingest.postgres.packed import PgRow, key_of
from objcat.ingest.postgres.pgoutput import (
    BeginMessage,
    CommitMessage,
    RelationMessage,
    RowMessage,
    TruncateMessage,
    TupleData,
    parse_message,
)
from objcat.ingest.spooled_changes import SpooledChanges

ROW_BYTES = 400
"""About what the objects of a row take, next to its text."""
PACKED_BYTES = 300
"""The same of a row that stays in its message."""
_KINDS = {"I": ChangeKind.INSERT, "U": ChangeKind.UPDATE, "D": ChangeKind.DELETE}
_ROW_KINDS = {letter.encode(): kind for letter, kind in _KINDS.items()}
_KEY = ord("K")
_FIRSTS = {ChangeKind.INSERT: b"N", ChangeKind.UPDATE: b"N", ChangeKind.DELETE: b"KO"}
"""What may come first in a message that is not parsed: a new row, or the old one of a delete, its key alone or all of it."""
_UINT32 = struct.Struct(">I")
_TUPLE_AT = 6
"""Where the first tuple of a row message begins."""


@dataclass(frozen=True, slots=True)
class DecodedTransaction:
    """A whole transaction. end_lsn: where the next one begins at the earliest."""

    begin: BeginMessage
    end_lsn: int
    changes: SpooledChanges

    def transaction(self, position: Position) -> SourceTransaction:
        """As the runner takes it. position: behind it."""
        return SourceTransaction(
            position=position,
            # One without changes changed nothing that a snapshot could lack.
            mark=self.begin.xid if self.changes.count else None,
            changes=self.changes,
            count=self.changes.count,
            size_bytes=self.changes.size_bytes,
            committed_at_ms=self.begin.committed_at_ms,
        )


@dataclass(frozen=True, slots=True)
class _PublishedTable:
    """A table of the stream. names: of its columns, in order. places: of the key columns. is_packed: whether these ascend, as `key_of` has
    them."""

    table: SourceTable
    names: tuple[str, ...]
    places: tuple[int, ...]
    is_packed: bool


class TransactionDecoder:
    """Takes messages in order. For one thread.

    Args:
        catalog: by a connection of its own.
        follows: whether a table is followed, by name. Rows of others are left out.
        bytes_max: a larger transaction waits on disk.
    """

    def __init__(self, catalog: PostgresCatalog, follows: Callable[[str], bool], *, bytes_max: int) -> None:
        self._catalog = catalog
        self._follows = follows
        self._bytes_max = bytes_max
        self._relations: dict[int, _PublishedTable | None] = {}
        self._begin: BeginMessage | None = None
        self._changes = SpooledChanges(bytes_max)

    @property
    def is_inside(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._begin is not None

    def take_row(self, payload: bytes) -> bool:
        """Take a message if it is a row of which the key is all that has to be read now. Returns whether it was; otherwise `take` it.

        Raises IngestStopped, MalformedMessage.
        """
        kind = _ROW_KINDS.get(payload[:1])
        if kind is None or len(payload) <= _TUPLE_AT:
            return False
        relation = self._relation(_UINT32.unpack_from(payload, 1)[0])
        if relation is None:
            return True
        first = payload[_TUPLE_AT - 1]
        if not relation.is_packed or first not in _FIRSTS[kind]:
            return False
        # A value that was not sent has this letter.
        is_whole = kind is not ChangeKind.INSERT and b"u" in payload
        key = key_of(payload, _TUPLE_AT, relation.places, len(relation.names), is_whole=is_whole)
        if key is None:
            return False
        row: Any = None if first == _KEY else PgRow(relation.table, payload, _TUPLE_AT)
        self._changes.add(RowChange(relation.table, kind, key, row), len(payload) + PACKED_BYTES)
        return True

    def take(self, payload: bytes) -> DecodedTransaction | None:
        """The next message. Returns a transaction when it ends. Raises IngestStopped, MalformedMessage."""
        message = parse_message(payload)
        match message:
            case RowMessage():
                self._take_row(message, payload)
            case BeginMessage():
                self._begin = message
                self._changes = SpooledChanges(self._bytes_max)
            case CommitMessage():
                assert self._begin is not None
                done = DecodedTransaction(self._begin, message.end_lsn, self._changes)
                self._begin = None
                return done
            case RelationMessage():
                self._take_relation(message)
            case TruncateMessage():
                for oid in message.oids:
                    relation = self._relation(oid)
                    if relation is not None:
                        self._changes.add(TableTruncated(table=relation.table), ROW_BYTES)
        return None

    def _take_relation(self, message: RelationMessage) -> None:
        name = f"{message.schema}.{message.name}"
        if not self._follows(name):
            self._relations[message.oid] = None
            return
        table = self._catalog.relation(message)
        names = tuple(column.name for column in table.columns)
        before = self._relations.get(message.oid)
        if before is not None and before.table == table:
            return
        places = tuple(names.index(one) for one in table.key)
        self._relations[message.oid] = _PublishedTable(table, names, places, bool(places) and list(places) == sorted(places))
        self._changes.add(SchemaChanged(table=table), ROW_BYTES)

    def _relation(self, oid: int) -> _PublishedTable | None:
        try:
            return self._relations[oid]
        except KeyError:
            raise IngestStopped(f"The stream has a row of the table {oid}, which it did not describe. Nothing of it was written.") from None

    def _take_row(self, message: RowMessage, payload: bytes) -> None:
        relation = self._relation(message.oid)
        if relation is None:
            return
        size = len(payload) + ROW_BYTES
        if (message.new is not None and len(message.new.values) != len(relation.names)) or (
            message.old is not None and len(message.old.values) != len(relation.names)
        ):
            self._changes.add(BadRecord(table=relation.table.name, payload=payload, error="the row has another number of columns"), size)
            return
        change = self._changed(relation, message)
        self._changes.add(change, size)

    def _changed(self, relation: _PublishedTable, message: RowMessage) -> RowChange:
        names, places = relation.names, relation.places
        old = message.old
        if message.new is None:
            assert old is not None
            # The row of a key has nulls in all other columns, which are no values.
            row = None if message.is_key else dict(zip(names, old.values, strict=True))
            return RowChange(relation.table, ChangeKind.DELETE, _key(old, places), row)
        new = message.new
        row = dict(zip(names, new.values, strict=True))
        unsent: tuple[str, ...] = ()
        if new.unsent:
            # What did not change is in the old row: all of it, or the key alone when that is stored apart.
            known = () if old is None else places if message.is_key else range(len(names))
            for place in new.unsent:
                if old is not None and place in known:
                    row[names[place]] = new.values[place] = old.values[place]
                else:
                    del row[names[place]]
                    unsent += (names[place],)
        key = _key(new, places)
        old_key = None if old is None else _key(old, places)
        return RowChange(relation.table, _KINDS[message.kind], key, row, unsent, old_key if old_key != key else None)


def _key(data: TupleData, places: tuple[int, ...]) -> tuple[Any, ...]:
    values = data.values
    return tuple(values[place] for place in places)
