"""The fold of the tables of one log: immutable, picklable, and all that a plan needs.

`FileGroup` is the live file group of one home: a base file and the log rows that were committed after it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from fileio.store import FileIO
from objcat.errors import CorruptTable, TableClosed, TableNotFound
from objcat.table.files import BaseFile, LogObject, TableDelta, decode_delta
from objcat.table.spec import TableSpec
from objcat.timeline import Action, Entry, Home, LogState, Txn, View


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The rows of one log object that belong to one file group.

    slot: of the commit whose rows they count as: the one that wrote them; for deletes that a compaction kept, the slot that it is as of.
    """

    slot: int
    object: LogObject
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FileGroup:
    """The live file group of a home.

    txn and slot are of the commit that wrote the base file; as_of: the slot up to which it holds the rows of the home. logs are in the
    order in which their rows count: deletes that the compaction kept, then what was committed after `as_of`.
    """

    home: Home
    base: BaseFile | None = None
    base_slot: int = -1
    base_txn: Txn | None = None
    as_of: int = -1
    logs: tuple[LogSlice, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the rows of the base file are all there are: deletes that a compaction kept matter only to rows that come later."""
        return self.base is not None and all(rows.slot <= self.as_of for rows in self.logs)


@dataclass(frozen=True, slots=True)
class TableState:
    """One table as of one slot. bucket_counts: of partitions that were split, as they are now."""

    spec: TableSpec
    groups: Mapping[Home, FileGroup] = field(default_factory=dict)
    bucket_counts: Mapping[str, int] = field(default_factory=dict)


Tables: TypeAlias = Mapping[str, TableState]
"""The tables of one log, by id."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table as of one slot. log: the log up to that slot."""

    log: LogState
    table: TableState

    @property
    def spec(self) -> TableSpec:
        return self.table.spec

    @property
    def slot(self) -> int:
        """The newest slot folded."""
        return self.log.slot

    @property
    def committed_at_ms(self) -> int:
        """Its commit time, ms since 1970 UTC."""
        return self.log.committed_at_ms

    def file_groups(self, manifests: Manifests, *, homes: Container[Home] | None = None) -> list[FileGroup]:
        """The live file groups, sorted by home. homes: only these."""
        return [self.table.groups[home] for home in sorted(self.table.groups) if homes is None or home in homes]


class Manifests:
    """Reads the manifests that snapshots stand on, and keeps them: they never change. Safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio


def snapshot_of(view: View[Tables], table: str | None = None, *, where: str) -> Snapshot:
    """One table of a view; the only one when `table` is None.

    where: its URL, for the error. Raises TableNotFound when the log does not begin, CorruptTable when it holds no such table, TableClosed
    when it was dropped.
    """
    if view.slot < 0:
        raise TableNotFound(f"there is no table at {where}: create it")
    if table is None and len(view.state) == 1:
        (table,) = view.state
    if table is None or table not in view.state:
        raise CorruptTable(f"the log of {where} does not hold the table {table or 'of that name'}: is this the prefix of an objcat table?")
    closed_at = view.log.marks(table).closed_at
    if closed_at is not None:
        raise TableClosed(f"table {table} at {where} was dropped at slot {closed_at}")
    return Snapshot(view.log, view.state[table])


class TablesFold:
    """What entries mean to tables: the `Fold` of their log."""

    def begin(self) -> Tables:
        return {}

    def advance(self, state: Tables, entry: Entry, at: Callable[[int], Tables]) -> Tables:
        """The tables after one more entry. Raises CorruptTable for one that breaks the protocol."""
        changed = dict(state)
        for table, footprint in entry.footprint.items():
            if footprint.restores is not None:
                changed[table] = _restored(at(footprint.restores)[table], changed.get(table))
        for table, raw in entry.changes.items():
            delta = decode_delta(raw)
            known = changed.get(table)
            if known is None:
                if delta.spec is None or entry.action is not Action.CREATE:
                    raise CorruptTable(f"slot {entry.slot} changes table {table}, which no slot before it creates")
                known = TableState(delta.spec)
            changed[table] = _fold(known, delta, entry)
        return changed

    def save(self, fileio: FileIO, state: Tables, folder: str) -> tuple[msgspec.Raw, Tables]:
        raise NotImplementedError

    def load(self, payload: msgspec.Raw) -> Tables:
        raise NotImplementedError

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        raise NotImplementedError


def _fold(state: TableState, delta: TableDelta, entry: Entry) -> TableState:
    groups = dict(state.groups)
    for home in delta.retires:
        groups.pop(home, None)
    for base in delta.bases:
        before = groups.get(base.home, FileGroup(base.home))
        as_of = -1 if delta.as_of is None else delta.as_of
        if before.base is not None and as_of < before.base_slot:
            raise CorruptTable(f"slot {entry.slot} writes a base file for {base.home} without the rows of slot {before.base_slot}")
        kept = tuple(rows for rows in before.logs if rows.slot > as_of)
        groups[base.home] = FileGroup(base.home, base, entry.slot, entry.txn, as_of, kept)
    for log in delta.logs:
        for rows in log.homes:
            group = groups.get(rows.home) or FileGroup(rows.home)
            if delta.as_of is None:
                logs = (*group.logs, LogSlice(entry.slot, log, rows.start, rows.end))
            else:
                older = sum(1 for kept in group.logs if kept.slot <= delta.as_of)
                logs = (*group.logs[:older], LogSlice(delta.as_of, log, rows.start, rows.end), *group.logs[older:])
            groups[rows.home] = replace(group, logs=logs)
    return TableState(delta.spec or state.spec, groups, {**state.bucket_counts, **delta.splits})


def _restored(state: TableState, now: TableState | None) -> TableState:
    """A former state, but column ids that were given since then are not given again."""
    if now is None:
        return state
    schema = state.spec.table_schema
    last_id = max(schema.last_id, now.spec.table_schema.last_id)
    if last_id == schema.last_id:
        return state
    spec = msgspec.structs.replace(state.spec, table_schema=msgspec.structs.replace(schema, last_id=last_id))
    return replace(state, spec=spec)
