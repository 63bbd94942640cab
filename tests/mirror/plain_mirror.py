"""A mirror in memory: what the changes of slots add up to, and the rows that a reader of it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from objcat.datafile.casting import logical
from objcat.datafile.parquet import as_of_schema
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.model import MirrorChange, MirroredSlot, Positions


@dataclass(slots=True)
class PlainState:
    """A table as a reader of a mirror sees it: files, each with its masked rows."""

    spec: TableSpec
    rows: dict[str, int] = field(default_factory=dict)
    masked: dict[str, frozenset[int]] = field(default_factory=dict)


class PlainMirror:
    """A `MirrorFormat` that only remembers. states: by slot."""

    format = "plain"
    has_every_slot = True

    def __init__(self) -> None:
        self.states: dict[int, PlainState] = {}
        self.changes: list[MirrorChange] = []

    def newest(self) -> MirroredSlot | None:
        return MirroredSlot(self.changes[-1].slot, self.changes[-1].txn) if self.changes else None

    def write(self, change: MirrorChange) -> None:
        before = PlainState(change.spec) if change.restarts else self.states[change.slot - 1]
        rows, masked = dict(before.rows), dict(before.masked)
        for path in change.removed:
            del rows[path], masked[path]
        for file in change.added:
            assert file.path not in rows, f"{file.path} is added twice"
            rows[file.path] = file.rows
            masked[file.path] = frozenset(file.masked.tolist())
        for file in change.masked:
            assert file.rows == rows[file.path]
            masked[file.path] |= frozenset(file.masked.tolist())
        assert all(not held or (min(held) >= 0 and max(held) < rows[path]) for path, held in masked.items())
        self.states[change.slot] = PlainState(change.spec, rows, masked)
        self.changes.append(change)

    def masked(self, paths: Sequence[str]) -> Mapping[str, Positions]:
        state = self.states[self.changes[-1].slot]
        return {path: np.array(sorted(state.masked[path]), np.int64) for path in paths if path in state.rows}

    def live_files(self) -> Mapping[str, int]:
        state = self.states[self.changes[-1].slot]
        return {path: rows - len(state.masked[path]) for path, rows in state.rows.items()}

    def expire(self, *, modified_before_ms: int) -> int:
        return 0

    def forget_before(self, slot: int) -> int:
        old = [one for one in self.states if one < slot]
        for one in old:
            del self.states[one]
        return len(old)


def rows_of(table: objcat.Table, state: PlainState) -> pa.Table:
    """The rows that a reader of the mirror gets, in no order."""
    schema = state.spec.table_schema
    names = [column.physical for column in schema.columns]
    parts = [schema.to_arrow().empty_table()]
    for path, masked in state.masked.items():
        with table._context.fileio.open_read(path) as stream:
            rows = pq.ParquetFile(stream).read()
        rows = rows.append_column("position", pa.array(np.arange(rows.num_rows)))
        rows = rows.filter(pa.array([position not in masked for position in range(rows.num_rows)], pa.bool_()))
        missing = [name for name in names if name not in rows.column_names]
        for name in missing:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
        parts.append(logical(as_of_schema(rows.select(names), names, schema), schema).cast(schema.to_arrow()))
    return pa.concat_tables(parts)


def in_order(rows: pa.Table) -> list[tuple[object, ...]]:
    """Rows as values that compare equal whatever their order."""
    return sorted(tuple(map(str, row.values())) for row in rows.to_pylist())
