"""`ChangeBatch`: changes of many tables, combined to one write for each key.

The last change of a key counts. What the source did not send (unchanged TOAST values of PostgreSQL) stays as it was, so such rows are
written as some of their columns. A row whose key changed is a delete and an insert; what was not sent then comes from the old row.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from objcat.engine.spooled_batch import Rows
from objcat.ingest.decoding import RowWrite, decode_rows
from objcat.ingest.model import BadRecord, ChangeKind, ChangeStamp, KeyValues, Row, RowChange, SourceTable
from objcat.ingest.routes import HISTORY, RoutedTable

FindRow: TypeAlias = Callable[[RoutedTable, SourceTable, KeyValues, KeyValues, Sequence[str]], Row]
"""Finds values of a row before the batch: of a table and its schema, the old key, the new key, and the columns. The runner looks into the
lake, and then at the source. A value may be a `DecodedValue`. Columns that are nowhere are left out."""


class WriteAction(enum.StrEnum):
    """What a write does to a table."""

    TRUNCATE = "truncate"
    REPLACE_RANGE = "replace_range"
    DELETE = "delete"
    UPSERT = "upsert"
    UPSERT_PARTIAL = "upsert_partial"
    APPEND = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """One step of a commit.

    Args:
        routed: the table.
        action: what to do.
        rows: the rows, or keys; None for a truncation.
        where: of a replaced range: the rows that are replaced.
    """

    routed: RoutedTable
    action: WriteAction
    rows: Rows | None = None
    where: pc.Expression | None = None


class _LastRow(msgspec.Struct, frozen=True, gc=False):
    """The last change of a key. row: None: the key alone is known, of a delete. unsent: columns that are to stay as they are."""

    table: SourceTable
    kind: ChangeKind
    row: Row | None
    unsent: tuple[str, ...]
    stamp: ChangeStamp
    sequence: int


@dataclass(slots=True)
class _TableChanges:
    routed: RoutedTable
    is_truncated: bool = False
    last: dict[KeyValues, _LastRow] = field(default_factory=dict)
    appended: list[tuple[SourceTable, RowWrite]] = field(default_factory=list)


class ChangeBatch:
    """Collects changes until they are drained. For one thread.

    Args:
        find_row: finds what was not sent of a row whose key changed.

    Attributes:
        count: changes since the last drain.
        nulled: values of drained rows that no type of the lake holds, and that became null.
    """

    def __init__(self, find_row: FindRow) -> None:
        self._find_row = find_row
        self._tables: dict[str, _TableChanges] = {}
        self._null_columns: dict[int, tuple[SourceTable, tuple[pa.Field, ...]]] = {}
        self._sequence = 0
        self.count = 0
        self.nulled = 0

    def set_null_columns(self, table: SourceTable, columns: Sequence[pa.Field]) -> None:
        """Columns of the lake that rows of this schema no longer have: they are written as null."""
        self._null_columns[id(table)] = (table, tuple(columns))

    def truncate(self, routed: RoutedTable) -> None:
        """All rows of a table are gone. Changes before count for nothing, except where every change is kept."""
        self.count += 1
        changes = self._of(routed)
        if routed.route.deletes != HISTORY:
            changes.is_truncated = True
            changes.last.clear()
            changes.appended.clear()

    def is_truncated(self, routed: RoutedTable) -> bool:
        """Whether the batch truncates a table."""
        changes = self._tables.get(routed.name)
        return changes is not None and changes.is_truncated

    def holds(self, routed: RoutedTable) -> bool:
        """Whether the batch has changes of a table."""
        return routed.name in self._tables

    def append_mark(self, routed: RoutedTable, table: SourceTable, kind: str, stamp: ChangeStamp) -> None:
        """Append a row without values to a history, such as of a truncation."""
        self._sequence += 1
        self._of(routed).appended.append((table, RowWrite((None,) * len(table.key), {}, kind, stamp, self._sequence)))

    def add(self, routed: RoutedTable, change: RowChange, stamp: ChangeStamp, *, moves_from: bool = True, puts: bool = True) -> None:
        """Add a change of a row.

        Args:
            routed: where it goes.
            change: the change.
            stamp: of its transaction.
            moves_from: whether its old key, if it changed, is deleted.
            puts: whether the row under its key is written.
        """
        self.count += 1
        self._sequence += 2
        sequence = self._sequence
        changes = self._of(routed)
        if routed.appends:
            if change.old_key is not None and change.old_key != change.key:
                changes.appended.append((change.table, RowWrite(change.old_key, {}, ChangeKind.DELETE, stamp, sequence - 1)))
            changes.appended.append((change.table, RowWrite(change.key, change.row or {}, change.kind, stamp, sequence)))
            return
        before = changes.last.get(change.key)
        row, unsent = change.row, change.unsent
        if change.old_key is not None and change.old_key != change.key:
            old = changes.last.get(change.old_key)
            if unsent and puts:
                row = self._completed(changes, change, old)
            unsent = ()
            if moves_from:
                changes.last[change.old_key] = _LastRow(
                    change.table, ChangeKind.DELETE, None if old is None else old.row, (), stamp, sequence - 1
                )
        elif unsent and before is not None and before.row is not None:
            # Columns that an earlier change of the batch has are known; the others are still those of the lake.
            row = {**{name: before.row[name] for name in unsent if name in before.row}, **(row or {})}
            unsent = tuple(name for name in unsent if name not in row)
        elif change.kind is ChangeKind.DELETE and row is None and before is not None:
            row, unsent = before.row, before.unsent
        if puts:
            changes.last[change.key] = _LastRow(change.table, change.kind, row, unsent, stamp, sequence)

    def drain(self) -> tuple[list[TableWrite], list[BadRecord]]:
        """The writes of everything so far, and the records that could not be decoded. The batch is empty after it."""
        writes: list[TableWrite] = []
        bad: list[BadRecord] = []
        for changes in self._tables.values():
            if changes.is_truncated:
                writes.append(TableWrite(routed=changes.routed, action=WriteAction.TRUNCATE))
            for action, table, columns, rows in _groups(changes):
                made, unfit, nulled = decode_rows(changes.routed, table, columns, rows)
                self.nulled += nulled
                bad += unfit
                if action is WriteAction.DELETE:
                    made = made.select(list(table.key))
                elif action is WriteAction.UPSERT:
                    made = self._with_nulls(made, table)
                if made.num_rows:
                    writes.append(TableWrite(routed=changes.routed, action=action, rows=made))
        self._tables = {}
        self.count = 0
        return writes, bad

    def _of(self, routed: RoutedTable) -> _TableChanges:
        changes = self._tables.get(routed.name)
        if changes is None:
            changes = self._tables[routed.name] = _TableChanges(routed)
        changes.routed = routed  # Its key may have become known meanwhile.
        return changes

    def _completed(self, changes: _TableChanges, change: RowChange, old: _LastRow | None) -> Row:
        """A row whose key changed, with what was not sent."""
        known: dict[str, Any] = {}
        if old is not None and old.row is not None:
            known = {name: old.row[name] for name in change.unsent if name in old.row}
        missing = [name for name in change.unsent if name not in known]
        if missing:
            assert change.old_key is not None
            known |= self._find_row(changes.routed, change.table, change.old_key, change.key, missing)
        return {**known, **(change.row or {})}

    def _with_nulls(self, rows: pa.Table, table: SourceTable) -> pa.Table:
        for column in self._null_columns.get(id(table), (table, ()))[1]:
            if column.name not in rows.column_names:
                rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
        return rows


_Group: TypeAlias = tuple[WriteAction, SourceTable, Sequence[str], list[RowWrite]]


def _groups(changes: _TableChanges) -> Iterable[_Group]:
    """Rows of one action, one schema and the same columns each: rows of another schema lack other columns."""
    made: dict[tuple[WriteAction, int, tuple[str, ...]], _Group] = {}

    def add(action: WriteAction, table: SourceTable, columns: Sequence[str], row: RowWrite) -> list[RowWrite]:
        rows = made.setdefault((action, id(table), tuple(columns)), (action, table, columns, []))[3]
        rows.append(row)
        return rows

    names: dict[int, tuple[str, ...]] = {}
    for table, row in changes.appended:
        columns = names.setdefault(id(table), tuple(column.name for column in table.columns))
        add(WriteAction.APPEND, table, columns, row)
    is_soft = changes.routed.is_soft
    whole: SourceTable | None = None
    upserts: list[RowWrite] = []
    for key, last in changes.last.items():
        row = RowWrite(key, last.row or {}, last.kind, last.stamp, last.sequence)
        if last.kind is not ChangeKind.DELETE and not last.unsent and last.table is whole:
            # Nearly all rows are of this kind.
            upserts.append(row)
            continue
        columns = names.setdefault(id(last.table), tuple(column.name for column in last.table.columns))
        if last.kind is ChangeKind.DELETE and not is_soft:
            add(WriteAction.DELETE, last.table, last.table.key, row)
        elif last.kind is ChangeKind.DELETE and last.row is None:
            add(WriteAction.UPSERT_PARTIAL, last.table, last.table.key, row)
        elif last.unsent:
            add(WriteAction.UPSERT_PARTIAL, last.table, tuple(name for name in columns if name not in last.unsent), row)
        else:
            upserts = add(WriteAction.UPSERT, last.table, columns, row)
            whole = last.table
    return made.values()
