"""The messages of PostgreSQL's output plugin `pgoutput`, protocol version 1, as values.

Source: PostgreSQL 15 documentation, "Logical Replication Message Formats". Values of columns are text, as the server writes them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970: where PostgreSQL's timestamps begin."""

_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_COLUMN = struct.Struct(">Ii")
_TRUNCATE = struct.Struct(">IB")
_NULL, _UNCHANGED, _TEXT = b"nut"
_KEY, _OLD, _NEW = b"KON"


class MalformedMessage(ValueError):
    """A message that is not of this protocol."""


@dataclass(frozen=True, slots=True)
class BeginMessage:
    """A transaction begins. final_lsn: of its commit record."""

    final_lsn: int
    committed_at_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """It ends. end_lsn: the first byte after its commit record."""

    end_lsn: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in a message. is_key: whether it belongs to the replica identity."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The columns of a table, from here on. identity: d default, n nothing, f full, i index."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TupleData:
    """Values of a row by the place of the column. unsent: places whose value did not change and was not sent."""

    values: list[str | None]
    unsent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowMessage:
    """An insert (I), update (U) or delete (D).

    Args:
        kind: I, U or D.
        oid: of the table.
        old: the old row. Of it only the key columns mean anything when `is_key`: the others are null there.
        is_key: whether `old` has the key alone.
        new: the new row, None for a delete.
    """

    kind: str
    oid: int
    old: TupleData | None
    is_key: bool
    new: TupleData | None


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """Tables were emptied."""

    oids: tuple[int, ...]


PgMessage: TypeAlias = BeginMessage | CommitMessage | RelationMessage | RowMessage | TruncateMessage


def parse_message(data: bytes) -> PgMessage | None:
    """A message as a value; None for kinds that say nothing about rows (origins, types, logical messages).

    Raises MalformedMessage.
    """
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedMessage(f"A message of pgoutput that begins with {data[:20]!r} cannot be read ({error}).") from error


def _parse(data: bytes) -> PgMessage | None:
    match data[:1]:
        case b"I" | b"U" | b"D":
            return _row(data)
        case b"B":
            final_lsn, at_us, xid = _BEGIN.unpack_from(data, 1)
            return BeginMessage(final_lsn, (at_us + EPOCH_US) // 1000, xid)
        case b"C":
            _, _, end_lsn, at_us = _COMMIT.unpack_from(data, 1)
            return CommitMessage(end_lsn, (at_us + EPOCH_US) // 1000)
        case b"R":
            return _relation(data)
        case b"T":
            count, _ = _TRUNCATE.unpack_from(data, 1)
            return TruncateMessage(tuple(_UINT32.unpack_from(data, 6 + 4 * place)[0] for place in range(count)))
        case b"O" | b"Y" | b"M":
            return None
    raise MalformedMessage(f"The kind {data[:1]!r} is not known.")


def _row(data: bytes) -> RowMessage:
    kind = chr(data[0])
    oid = _UINT32.unpack_from(data, 1)[0]
    at = 5
    old: TupleData | None = None
    is_key = False
    if data[at] in (_KEY, _OLD):
        is_key = data[at] == _KEY
        old, at = parse_tuple(data, at + 1)
    if kind == "D":
        if old is None:
            raise MalformedMessage("A delete has no old row.")
        return RowMessage(kind, oid, old, is_key, None)
    if data[at] != _NEW:
        raise MalformedMessage(f"A new row begins with {data[at]}.")
    new, _ = parse_tuple(data, at + 1)
    return RowMessage(kind, oid, old, is_key, new)


def parse_tuple(data: bytes, at: int) -> tuple[TupleData, int]:
    """The values of a tuple that begins at a place, and where it ends. Raises MalformedMessage, IndexError, ValueError, struct.error."""
    count = _INT16.unpack_from(data, at)[0]
    at += 2
    values: list[str | None] = []
    unsent: tuple[int, ...] = ()
    for place in range(count):
        kind = data[at]
        if kind == _TEXT:
            size = _UINT32.unpack_from(data, at + 1)[0]
            end = at + 5 + size
            if end > len(data):
                raise MalformedMessage("A value goes beyond the end.")
            values.append(data[at + 5 : end].decode())
            at = end
            continue
        if kind == _UNCHANGED:
            unsent += (place,)
        elif kind != _NULL:
            raise MalformedMessage(f"A value has the kind {kind}.")
        values.append(None)
        at += 1
    return TupleData(values, unsent), at


def _relation(data: bytes) -> RelationMessage:
    oid = _UINT32.unpack_from(data, 1)[0]
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    count = _INT16.unpack_from(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        column, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, modifier, is_key))
    return RelationMessage(oid, schema, name, identity, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
