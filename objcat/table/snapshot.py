"""The fold of a table's log: immutable, picklable, and all that a plan needs.

`FileGroup` is the live file group of one home: a base file and the log rows that were committed after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from objcat.errors import CorruptTable, TableClosed
from objcat.table.spec import TableSpec
from objcat.timeline import Action, Entry, Home, LogState, Txn


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file with the rows of one home, sorted by key, each key once. path is relative to the table."""

    path: str
    bytes: int
    rows: int
    home: Home


class LogRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows `start` to `end` (excluded) of a log object, which are those of one home."""

    home: Home
    start: int
    end: int


class LogObject(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of operations on the rows of many homes, sorted by (home, key). path is relative to the table.

    row_group_rows: rows of every row group but the last, so that a row range names its row groups.
    """

    path: str
    bytes: int
    rows: int
    row_group_rows: int
    homes: tuple[LogRows, ...]


class TableDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one entry changes in one table. spec: only at creation. logs: in the order in which their rows count."""

    spec: TableSpec | None = None
    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogObject, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The rows of one log object that belong to one file group. slot: of the commit that wrote it."""

    slot: int
    object: LogObject
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FileGroup:
    """The live file group of a home. txn and slot are of the commit that wrote the base file. logs are in commit order."""

    home: Home
    base: BaseFile | None = None
    base_slot: int = -1
    base_txn: Txn | None = None
    logs: tuple[LogSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table as of one slot. log: the log up to that slot."""

    spec: TableSpec
    log: LogState
    groups: Mapping[Home, FileGroup] = field(default_factory=dict)

    @property
    def slot(self) -> int:
        """The newest slot folded."""
        return self.log.slot

    @property
    def committed_at_ms(self) -> int:
        """Its commit time, ms since 1970 UTC."""
        return self.log.committed_at_ms

    def advance(self, entries: Iterable[Entry]) -> Snapshot:
        """The snapshot after further entries, which must follow its slot without a gap."""
        groups = dict(self.groups)
        log = self.log
        for entry in entries:
            log = log.advance([entry])
            _fold(self.spec, groups, entry)
        return replace(self, log=log, groups=groups)


def snapshot_of(entries: Iterable[Entry], *, where: str) -> Snapshot:
    """The fold of a whole log from slot 0. Raises CorruptTable when slot 0 does not create a table, TableClosed when it was dropped."""
    iterator = iter(entries)
    first = next(iterator, None)
    if first is None or first.action is not Action.CREATE or len(first.changes) != 1:
        raise CorruptTable(f"slot 0 of {where} does not create a table: is this the prefix of an objcat table?")
    ((_, raw),) = first.changes.items()
    spec = decode_delta(raw).spec
    if spec is None:
        raise CorruptTable(f"slot 0 of {where} creates a table without a spec: restore that object from a backup of the bucket")
    return Snapshot(spec, LogState().advance([first])).advance(iterator)


def encode_delta(delta: TableDelta) -> msgspec.Raw:
    """The bytes of a delta inside an entry. Raises CorruptTable for one that could not be read again: a slot is for ever."""
    raw = msgspec.Raw(msgspec.json.encode(delta))
    decode_delta(raw)
    return raw


def decode_delta(raw: msgspec.Raw) -> TableDelta:
    """A delta from an entry. Raises CorruptTable."""
    try:
        return msgspec.json.decode(raw, type=TableDelta)
    except msgspec.DecodeError as error:
        raise CorruptTable(f"a log entry holds a change that this objcat cannot read: {error}") from error


def _fold(spec: TableSpec, groups: dict[Home, FileGroup], entry: Entry) -> None:
    if entry.action is Action.CLOSE and spec.table in entry.changes:
        raise TableClosed(f"table {spec.table} was dropped at slot {entry.slot}")
    raw = entry.changes.get(spec.table)
    if raw is None:
        return
    delta = decode_delta(raw)
    for base in delta.bases:
        if base.home in groups:
            raise CorruptTable(f"slot {entry.slot} writes a second base file for {base.home}: that commit broke the protocol")
        groups[base.home] = FileGroup(base.home, base, entry.slot, entry.txn)
    for log in delta.logs:
        for rows in log.homes:
            group = groups.get(rows.home) or FileGroup(rows.home)
            groups[rows.home] = replace(group, logs=(*group.logs, LogSlice(entry.slot, log, rows.start, rows.end)))
