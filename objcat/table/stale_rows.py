"""Finds stale rows before Spark plans a scan: log rows whose ordering value is below that of an earlier row of their key.

Without them the later row of each key wins, so Spark needs to compare keys only. Few rows are in doubt where most changes come in order:
those below the greatest ordering value of an earlier file of their file group. Only these are looked up in earlier files, by the rules of
`objcat.datafile.merge`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.store import FileIO
from objcat.datafile.in_place_rows import POSITION
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.log_reader import LogReader
from objcat.datafile.merge import OP_COLUMN, OP_UPSERT, has_order, key_runs, may_meet
from objcat.datafile.ordering_bounds import are_not_below
from objcat.datafile.parquet import picked_row_groups
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.ordering import OrderingBounds
from objcat.metadata.table_spec import TableSpec
from objcat.planning.event_time import BoundsOf, greatest_of, is_in_order
from objcat.tasks.key_lookup import KeySpan, ranges_of
from objcat.tasks.scan import bare, numbered, own_rows

DOUBTFUL_MAX = 20_000
"""Log rows that are looked up in earlier files. Where more are in doubt, Spark compares them."""
LOG_ROWS_MAX, BASE_ROWS_MAX = 4_000_000, 8_000_000
"""Rows of which the driver reads key and ordering columns. Of more, Spark does it."""
STALE_MAX = 10_000
"""Row numbers that a query names."""
_BYTES_OF_ROW = 8

StaleRows = Mapping[str, Sequence[int]]
"""By the path of a log object, the numbers of its stale rows, from 0."""


def stale_rows(fileio: FileIO, manifests: Manifests, spec: TableSpec, groups: Sequence[FileGroup], bounds_of: BoundsOf) -> StaleRows | None:
    """The stale rows of some file groups. The answer is kept in `manifests`, since files never change.

    Args:
        spec: with an ordering column.
        groups: with log rows; no file is adopted or in place.
        bounds_of: of the ordering values of each file.

    Returns:
        None where it is not known: bounds are missing, or too much would have to be read here.

    Raises:
        CorruptTable: a file is not what was committed. And storage errors.
    """
    # Since a split, a base file has rows of groups without log rows too.
    groups = [group for group in groups if group.logs and not is_in_order(group, bounds_of)]
    if not all(_is_known(group, bounds_of) for group in groups):
        return None
    name = _name_of(spec, groups)
    known: tuple[StaleRows | None] | None = manifests.of_files.get(name)
    if known is None:
        known = (_found(fileio, spec, groups, bounds_of),)
        size = sum(len(path) + _BYTES_OF_ROW * len(rows) for path, rows in (known[0] or {}).items())
        manifests.of_files.put(name, known, len(name) + size)
    return known[0]


def _is_known(group: FileGroup, bounds_of: BoundsOf) -> bool:
    """Whether the bounds of all files of a file group are known, and no base row lacks an ordering value."""
    base = None if group.base is None else bounds_of(group.base.path)
    return (group.base is None or (base is not None and not base.has_nulls)) and all(bounds_of(part.object.path) for part in group.logs)


def _name_of(spec: TableSpec, groups: Sequence[FileGroup]) -> str:
    """A name for what these file groups hold, and how their rows are compared."""
    said = hashlib.sha256(repr([(column.physical, column.type) for column in spec.ordering_columns]).encode())
    said.update(repr(spec.lateness_ms).encode())
    for group in groups:
        logs = [(part.object.path, part.start, part.end, part.slot, part.committed_at_ms, str(part.group_id)) for part in group.logs]
        said.update(repr((str(group.group_id), None if group.base is None else group.base.path, group.as_of, logs)).encode())
    return f"stale rows {said.hexdigest()}"


def _found(fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], bounds_of: BoundsOf) -> StaleRows | None:
    if sum(part.rows for group in groups for part in group.logs) > LOG_ROWS_MAX:
        return None
    columns = list(dict.fromkeys([*(column.physical for column in spec.key_columns), *spec.ordering_physical]))
    logs = LogReader(fileio, columns, spec.table_schema)
    found: dict[str, list[int]] = {}
    doubtful = base_rows = count = 0
    try:
        logs.load(groups)
        for group in groups:
            rows = _GroupRows.of(fileio, spec, group, logs, columns)
            keys = rows.in_doubt(bounds_of)
            logs.done(group)
            if not keys.num_rows:
                continue
            doubtful += keys.num_rows
            base_rows += 0 if group.base is None else group.base.rows
            if doubtful > DOUBTFUL_MAX or base_rows > BASE_ROWS_MAX:
                return None
            for path, numbers in rows.stale(keys).items():
                found.setdefault(path, []).extend(numbers)
                count += len(numbers)
            if count > STALE_MAX:
                return None
    finally:
        logs.close()
    return {path: tuple(sorted(numbers)) for path, numbers in found.items()}


@dataclass(frozen=True, slots=True)
class _GroupRows:
    """The log rows of a file group that has some, in the order in which they count: key, ordering value, operation and number."""

    fileio: FileIO
    spec: TableSpec
    group: FileGroup
    columns: Sequence[str]
    parts: Sequence[pa.Table]

    @classmethod
    def of(cls, fileio: FileIO, spec: TableSpec, group: FileGroup, logs: LogReader, columns: Sequence[str]) -> _GroupRows:
        parts = []
        for part in group.logs:
            rows = own_rows(numbered(bare(logs.rows(part)), part.start), spec, group, part.group_id)
            parts.append(drop_late_rows(rows, spec, part.committed_at_ms))
        return cls(fileio, spec, group, columns, parts)

    def in_doubt(self, bounds_of: BoundsOf) -> pa.Table:
        """The log rows that may be stale: below the greatest value of an earlier file. bounds_of: all are known."""
        ordering = self.spec.ordering_columns
        base = None if self.group.base is None else bounds_of(self.group.base.path)
        before: list[OrderingBounds] = []
        found = []
        for part, rows in zip(self.group.logs, self.parts, strict=True):
            # A compaction leaves no row of a key whose delete it retains.
            with_base = base is not None and part.slot > self.group.as_of
            limit = greatest_of([*before, base] if with_base and base is not None else before)
            if limit is not None:
                ordered = has_order(rows, self.spec.ordering_physical)
                found.append(rows.filter(pc.and_(ordered, pc.invert(are_not_below(rows, ordering, limit)))))
            own = bounds_of(part.object.path)
            assert own is not None
            before.append(own)
        return pa.concat_tables(found) if found else self.parts[0].slice(0, 0)

    def stale(self, keys: pa.Table) -> dict[str, list[int]]:
        """By path, the numbers of the log rows that are stale. keys: of all that may be."""
        names = [column.physical for column in self.spec.key_columns]
        tables = [*self._of_base(keys, names), *(rows.filter(may_meet(rows, keys, names)) for rows in self.parts)]
        paths = [*[""] * (len(tables) - len(self.parts)), *(part.object.path for part in self.group.logs)]
        together = pa.concat_tables(tables)
        is_stale = _are_stale(together, names, self.spec.ordering_physical)
        found: dict[str, list[int]] = {}
        begin = 0
        for path, rows in zip(paths, tables, strict=True):
            numbers = np.asarray(rows.column(POSITION).to_numpy())[is_stale[begin : begin + rows.num_rows]]
            begin += rows.num_rows
            if path and len(numbers):
                found.setdefault(path, []).extend(numbers.tolist())
        return found

    def _of_base(self, keys: pa.Table, names: Sequence[str]) -> list[pa.Table]:
        """The base rows that may have one of some keys."""
        base = self.group.base
        if base is None:
            return []
        pruning = KeySpan(keys.num_rows, frozenset(), ranges_of(self.spec.key_columns, keys)).pruning

        def wanted(footer: pq.FileMetaData, schema: pa.Schema) -> Sequence[int]:
            every = range(footer.num_row_groups)
            return every if pruning is None else row_groups_that_may_match(footer, schema, pruning, self.spec)

        found = []
        for first, rows in picked_row_groups(self.fileio, base, self.columns, self.spec.table_schema, wanted):
            own = own_rows(numbered(bare(rows), first), self.spec, self.group, base.group_id)
            meeting = own.filter(may_meet(own, keys, names))
            op = pa.array(np.full(meeting.num_rows, OP_UPSERT, np.int8))
            found.append(meeting.append_column(pa.field(OP_COLUMN, pa.int8()), op).select(keys.column_names))
        return found


def _are_stale(rows: pa.Table, key: Sequence[str], ordering: Sequence[str]) -> npt.NDArray[np.bool_]:
    """For each row, whether an earlier row of its key has a greater ordering value, with no barrier between them.

    rows: in the order in which they count. A row without an ordering value is a barrier.
    """
    found = np.zeros(rows.num_rows, np.bool_)
    if not rows.num_rows:
        return found
    order, last_of_key = key_runs(rows, key)
    is_barrier = ~np.asarray(has_order(rows, ordering).to_numpy(), dtype=bool)
    ranks = np.zeros(rows.num_rows, np.int64)
    ranks[~is_barrier] = 1 + _ranks(rows.filter(pa.array(~is_barrier)), ordering)
    begins = np.zeros(rows.num_rows, np.int64)
    begins[np.concatenate(([0], last_of_key[:-1] + 1))] = 1
    begins |= is_barrier[order]
    # The rows since the last barrier of a key, as one ascending number, so that the greatest before a row is never of another key.
    placed = np.cumsum(begins) * (rows.num_rows + 2) + ranks[order]
    found[order] = placed < np.maximum.accumulate(placed)
    return found


def _ranks(rows: pa.Table, ordering: Sequence[str]) -> npt.NDArray[np.int64]:
    """Whole numbers that compare as the ordering values of some rows, none of which is null."""
    ranks = np.zeros(rows.num_rows, np.int64)
    if rows.num_rows:
        order, last = key_runs(rows, ordering)
        ranks[order] = np.repeat(np.arange(len(last)), np.diff(np.concatenate(([-1], last))))
    return ranks
