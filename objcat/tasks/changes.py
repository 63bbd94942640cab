"""Incremental reads and change feeds: rows that commits of a slot range wrote, and the changes they made.

Both read file group by file group.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.bucket_hash import bucket_of
from objcat.datafile.casting import cast_rows, logical, named
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.log_reader import EXPANSION, LogReader
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, has_order, key_runs, merge
from objcat.datafile.parquet import base_pieces, constant, pieces_of_txns, txn_of_path
from objcat.errors import InvalidInput
from objcat.metadata.files import FileGroup, LogSlice
from objcat.metadata.manifest import Pruning
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.change_columns import (
    CHANGE_FIELDS,
    CHANGE_TYPE,
    CHANGES,
    COMMIT_FIELDS,
    COMMIT_SLOT,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
)
from objcat.tasks.merged_rows import current_rows
from objcat.tasks.model import Filter
from objcat.tasks.row_differences import ChangeStep, net_changes, physical_columns, row_difference, unpaired_rows
from objcat.tasks.scan import bare, own_rows, read_logs, rows_of_slice
from objcat.timeline.entry import FileGroupId

TOGETHER_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of log rows that are merged at once, about."""


def dated(rows: pa.Table, commits: pa.Table) -> pa.Table:
    """Rows that have `_objcat_txn`, with `_commit_slot` and `_commit_time` as last columns. Null if `commits` lacks the transaction.

    commits: `_objcat_txn`, `_commit_slot`, `_commit_time`, one row per transaction.
    """
    where = pc.index_in(rows.column(TXN_COLUMN), value_set=commits.column(TXN_COLUMN).combine_chunks())
    for field in COMMIT_FIELDS:
        rows = rows.append_column(field, commits.column(field.name).take(where))
    return rows


# ---- incremental -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IncrementTask:
    """Read the latest rows of some file groups that commits after slot `since` wrote.

    Args:
        commits: those of the range, as for `dated`.
        newest: an upper bound of the ordering values in base files, where known.
        columns: logical names, hidden ones among them.
        where: selects the rows for which it is true.
    """

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    since: int
    commits: pa.Table
    newest: Mapping[str, Any]
    columns: tuple[str, ...]
    where: Filter | None


def increments(fileio: FileIO, task: IncrementTask) -> Iterator[pa.Table]:
    """The changed rows of a task's file groups, under logical names.

    Reads what was written in the range. If an ordering column decides and the range has log rows, it also reads keys and ordering values
    of
    older rows in those file groups that could win: a late row that lost changed nothing. Holds a row group, or log rows of some file
    groups,
    about `TOGETHER_BYTES_MAX`.
    """
    needed = _needed(task.spec, {*task.columns, *(task.where.columns if task.where else ())})
    for groups in _together(task.groups, alone=task.spec.is_located):
        aged = [(group, *by_age(group, task.since)) for group in groups]
        for group, _, new in aged:
            if not new:
                yield from (_logical(rows, task) for rows in _written(fileio, task, group, needed))
        layered = [(group, old, new) for group, old, new in aged if new]
        if layered:
            yield _logical(_layered(fileio, task, layered, needed), task)


_Aged = tuple[FileGroup, tuple[LogSlice, ...], tuple[LogSlice, ...]]
"""A file group with its log rows before the range, and those in the range."""


def _together(groups: Sequence[FileGroup], *, alone: bool) -> Iterator[list[FileGroup]]:
    """File groups that are merged at once: of one partition, with a limited number of log rows.

    A key is in one file group only. alone: each file group by itself, since the log row that deletes a key may lie in another file group
    than
    a later row of it.
    """
    held: list[FileGroup] = []
    size = 0
    for group in groups:
        bytes_of_group = EXPANSION * sum(part.object.bytes * part.rows // max(1, part.object.rows) for part in group.logs)
        is_other = alone or held[0].group_id.partition != group.group_id.partition if held else False
        if held and (is_other or size + bytes_of_group > TOGETHER_BYTES_MAX):
            yield held
            held, size = [], 0
        held.append(group)
        size += bytes_of_group
    if held:
        yield held


def by_age(group: FileGroup, since: int) -> tuple[tuple[LogSlice, ...], tuple[LogSlice, ...]]:
    """The log rows of a file group before the range, and in the range.

    Deletes that a compaction retained count as before: the compaction changed no row.
    """
    new = tuple(rows for rows in group.logs if rows.named_at > since and rows.slot > group.as_of)
    return tuple(rows for rows in group.logs if rows not in new), new


def _layered(fileio: FileIO, task: IncrementTask, aged: Sequence[_Aged], needed: Sequence[str]) -> pa.Table:
    """The merged rows of file groups that have log rows in the range."""
    spec = task.spec
    pairs = [(group, part) for group, _, new in aged for part in new]
    on_top = [_marked(rows, txn_of_path(part.object.path)) for part, rows in _log_rows(fileio, spec, pairs, needed)]
    written = [_upserted(rows) for group, _, _ in aged for rows in _written(fileio, task, group, needed)]
    older = [] if spec.ordering is None else _older(fileio, task, aged, pa.concat_tables(map(bare, on_top)))
    return _merged(pa.concat_tables([bare(part) for part in (*older, *written, *on_top)], promote_options="default"), spec)


def _log_rows(
    fileio: FileIO, spec: TableSpec, pairs: Sequence[tuple[FileGroup, LogSlice]], columns: Sequence[str]
) -> Iterator[tuple[LogSlice, pa.Table]]:
    """The log rows of some file groups in the order in which they count. Adjacent rows of one object form one slice."""
    joined: list[tuple[FileGroup, LogSlice]] = []
    for group, part in sorted(pairs, key=lambda pair: (pair[1].slot, pair[1].named_at, pair[1].number, pair[1].object.path, pair[1].start)):
        last_group, last = joined[-1] if joined else (group, None)
        is_next = last is not None and (last.slot, last.object.path, last.end) == (part.slot, part.object.path, part.start)
        if last is not None and is_next and not group.is_shared(part.group_id) and not last_group.is_shared(last.group_id):
            joined[-1] = (last_group, msgspec.structs.replace(last, end=part.end))
        else:
            joined.append((group, part))
    logs = LogReader(fileio, columns, spec.table_schema)
    logs.load([replace(group, logs=(part,)) for group, part in joined])
    for group, part in joined:
        yield part, rows_of_slice(logs.rows(part), spec, group, part)


def _written(fileio: FileIO, task: IncrementTask, group: FileGroup, needed: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of the base file if the range wrote it, else none."""
    base = group.base
    if base is not None and group.base_slot > task.since:
        txns = task.commits.column(TXN_COLUMN).combine_chunks()
        for rows in pieces_of_txns(fileio, base, needed, txns, task.spec):
            yield own_rows(rows, task.spec, group, base.group_id)


def _older(fileio: FileIO, task: IncrementTask, aged: Sequence[_Aged], new: pa.Table) -> list[pa.Table]:
    """Keys and ordering values of rows that could win against new ones, and barriers, in the order in which they count."""
    spec = task.spec
    first, *more = spec.ordering_columns
    least = pc.min(new.column(first.physical))
    if not least.is_valid:
        return []  # Only barriers. Nothing wins against them.
    columns = _needed(spec, ())
    upper = pc.field(f"upper_{first.id}")
    # Of rows that are equal in the first ordering column, the next ones decide.
    reaches = operator.ge if more else operator.gt
    where = Pruning(upper.is_null() | reaches(upper, least), (first.id,))
    parts = []
    for group, _, _ in aged:
        newest = None if group.base is None else task.newest.get(group.base.path)
        if group.base is not None and (newest is None or reaches(newest, least.as_py())):
            pieces = base_pieces(fileio, group.base, columns, where=where, spec=spec)
            parts += [_upserted(own_rows(rows, spec, group, group.base.group_id)) for rows in pieces]
    pairs = [(group, part) for group, old, _ in aged for part in old]
    parts += [rows for _, rows in _log_rows(fileio, spec, pairs, columns)]
    return [_marked(part.filter(_may_win(part, spec, least)), "") for part in parts]


def _may_win(rows: pa.Table, spec: TableSpec, least: pa.Scalar) -> pa.ChunkedArray:
    """Whether rows could win against others whose first ordering value is `least` or greater.

    Barriers are among them, because rows that they discarded do not win either.
    """
    first, *more = spec.ordering_physical
    if not more:
        return pc.fill_null(pc.greater(rows.column(first), least), True)
    return pc.or_(pc.greater_equal(pc.fill_null(rows.column(first), least), least), pc.invert(has_order(rows, spec.ordering_physical)))


def _upserted(rows: pa.Table) -> pa.Table:
    return rows.append_column(OP_COLUMN, pa.array(np.full(rows.num_rows, OP_UPSERT, dtype=np.int8)))


def _marked(rows: pa.Table, txn: str) -> pa.Table:
    return rows.append_column(TXN_COLUMN, constant(txn, rows.num_rows))


def _needed(spec: TableSpec, names: set[str] | tuple[()]) -> list[str]:
    """Physical names of these logical columns and of the merge columns, in table order."""
    wanted = {column.physical for column in (*spec.key_columns, *spec.bucket_columns)}
    wanted |= set(spec.ordering_physical)
    return [column.physical for column in spec.table_schema.columns if column.physical in wanted or column.name in names]


def _merged(rows: pa.Table, spec: TableSpec, *, keep_deletes: bool = False) -> pa.Table:
    if not spec.has_key:
        return rows
    key = [column.physical for column in spec.key_columns]
    return merge(rows, key=key, ordering=spec.ordering_physical, keep_deletes=keep_deletes)


def _logical(rows: pa.Table, task: IncrementTask | ChangeTask) -> pa.Table:
    """Rows as selected. An increment includes only rows that a commit of the range wrote."""
    if isinstance(task, IncrementTask):
        rows = dated(rows, task.commits)
        rows = rows.filter(pc.is_valid(rows.column(COMMIT_SLOT)))
    rows = logical(rows, task.spec.table_schema)
    if task.where is not None:
        rows = rows.filter(task.where.to_arrow())
    return named(rows, increment_schema(task.spec, task.columns))


def read_changed(fileio: FileIO, task: IncrementTask | ChangeTask) -> Iterator[pa.Table]:
    """The rows of a task of either kind. Raises InvalidInput if no type of a column holds all values of the changes."""
    if isinstance(task, IncrementTask):
        yield from increments(fileio, task)
        return
    try:
        yield changes_of(fileio, task)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"A RESTORE returned a column to an earlier type, which was then widened to another one ({str(error).splitlines()[0]}). No "
            "type holds both. Read the changes up to the slot of that RESTORE and those after it separately. inspect.history() shows "
            "the slot."
        ) from error


def increment_schema(spec: TableSpec, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of an increment with these columns."""
    schema = spec.table_schema.to_arrow()
    hidden = {field.name: field for field in COMMIT_FIELDS}
    return pa.schema([hidden.get(name) or schema.field(name) for name in columns])


# ---- changes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowChanges:
    """A class of file groups: one partition, and the buckets that are equal modulo a number.

    The number divides every bucket count in the range, so a key stays in its class through splits. before: the file groups of the class
    before
    the range. steps: of the commits that touch the class, in slot order.
    """

    partition: str
    before: tuple[FileGroup, ...]
    steps: tuple[ChangeStep, ...]


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Read the changes of some classes of file groups: one class, or all between which a key may have moved.

    Args:
        spec: with column types that hold the values of all states.
        columns: logical names, in order.
        net: one change per key, instead of every commit's.
        latest: of the net changes only existing rows, as `increments` yields them under this spec.
        where: selects those rows for which it is true.
        moved: whether rows without a key may have moved between file groups, by a clustering or by a RESTORE to before one.
        met: whether a key may leave one class for another, because the index has no hash buckets or the partition spec changed.
    """

    spec: TableSpec
    classes: tuple[RowChanges, ...]
    columns: tuple[str, ...]
    net: bool
    latest: TableSpec | None = None
    where: Filter | None = None
    moved: bool = False
    met: bool = False


def bytes_of(task: ChangeTask) -> int:
    """About how many Arrow bytes a task reads."""
    steps = [step for changed in task.classes for step in changed.steps]
    groups = [group for changed in task.classes for group in changed.before] + [group for step in steps for group in step.groups]
    logs = [rows for step in steps for rows in step.added] + [rows for group in groups for rows in group.logs]
    read = sum(group.base.bytes for group in groups if group.base is not None)
    return EXPANSION * (read + sum(rows.object.bytes * rows.rows // max(1, rows.object.rows) for rows in logs))


def changes_of(fileio: FileIO, task: ChangeTask) -> pa.Table:
    """The changes of a task: `_change_type`, `_commit_slot`, `_commit_time` and the columns.

    Sorted by slot, then key, with the old state of a row first. Reads the rows before the range, and each file of the range once. Of the
    rows
    before, only keys with log rows in the range stay in memory, unless the range wrote base files there. Holds the rows of one class,
    twice,
    and all changes.
    """
    spec = task.spec
    changes = pa.concat_tables([_changes_of_class(fileio, spec, one) for one in task.classes])
    if task.met:
        changes = _met(changes, spec)
    if task.moved:
        # A row that one slot moves unchanged to another file group has not changed.
        same = changes.select([*physical_columns(spec), TXN_COLUMN, COMMIT_SLOT])
        gone = pc.equal(changes.column(CHANGE_TYPE), DELETE)
        changes = changes.filter(pa.array(unpaired_rows(same, ~np.asarray(gone.to_numpy()))))
    if task.net or task.latest is not None:
        changes = net_changes(changes, spec)
    if task.latest is not None:
        there = changes.filter(pc.is_in(changes.column(CHANGE_TYPE), value_set=pa.array([INSERT, UPDATE_AFTER])))
        wanted = pa.schema([*task.latest.table_schema.to_arrow_physical(), *COMMIT_FIELDS])
        return _logical(cast_rows(there, wanted), replace(task, spec=task.latest))
    return named(logical(changes, spec.table_schema), change_schema(spec, task.columns))


def _changes_of_class(fileio: FileIO, spec: TableSpec, changed: RowChanges) -> pa.Table:
    read = read_logs(fileio, [carrier_of(step) for step in changed.steps if step.added], physical_columns(spec), spec.table_schema)
    wanted = None if any(step.replaces for step in changed.steps) else _ChangedKeys(spec, list(read.values()))
    state = _concat(spec, [rows for group in changed.before for rows in _before(fileio, spec, group, wanted)])
    found = []
    for step in changed.steps:
        after = _replaced(fileio, state, step, spec)
        if step.added:
            parts = [drop_late_rows(read[rows.object.path, rows.start], spec, rows.committed_at_ms) for rows in step.added]
            marked = [_marked(part, txn_of_path(rows.object.path)) for part, rows in zip(parts, step.added, strict=True)]
            after = _lasting(_merged(_concat(spec, [after, *marked]), spec, keep_deletes=True), spec)
        found.append(row_difference(state, after, step, spec))
        state = after
    return pa.concat_tables(found) if found else row_difference(state, state, ChangeStep(0, 0), spec)


def _before(fileio: FileIO, spec: TableSpec, group: FileGroup, wanted: _ChangedKeys | None) -> Iterator[pa.Table]:
    """The rows of a file group before the range. wanted: which are needed; None for all."""
    if wanted is None:
        yield current_rows(fileio, spec, group)
        return
    if group.base is None or group.logs:
        yield wanted.of(current_rows(fileio, spec, group))
        return
    for rows in base_pieces(fileio, group.base, [*physical_columns(spec), TXN_COLUMN], spec=spec):
        yield _upserted(wanted.of(own_rows(rows, spec, group, group.base.group_id)))


def _met(changes: pa.Table, spec: TableSpec) -> pa.Table:
    """The changes of several classes, by slot and key. A row that moves to another class in one commit is an update, or no change."""
    key = [column.physical for column in spec.key_columns]
    changes = changes.sort_by([(pc.field(name), "ascending") for name in (COMMIT_SLOT, *key)] + [(CHANGE_TYPE, "descending")])
    if not changes.num_rows:
        return changes
    _, last = key_runs(changes, [COMMIT_SLOT, *key])
    first = np.concatenate(([0], last[:-1] + 1))
    kinds = np.asarray(pc.index_in(changes.column(CHANGE_TYPE), value_set=pa.array(CHANGES)).to_numpy()).copy()
    # An insert sorts before a delete, but the delete is the earlier state of the row.
    moved = (kinds[first] == CHANGES.index(INSERT)) & (kinds[last] == CHANGES.index(DELETE))
    came, went = first[moved], last[moved]
    txns = changes.column(TXN_COLUMN)
    same = np.asarray(pc.equal(txns.take(pa.array(came)), txns.take(pa.array(went))).to_numpy(zero_copy_only=False), dtype=np.bool_)
    kinds[came], kinds[went] = CHANGES.index(UPDATE_AFTER), CHANGES.index(UPDATE_BEFORE)
    order = np.arange(len(kinds))
    order[came], order[went] = went, came
    kept = np.ones(len(kinds), np.bool_)
    kept[came[same]] = kept[went[same]] = False
    told = changes.set_column(changes.column_names.index(CHANGE_TYPE), CHANGE_FIELDS[0], pa.array(CHANGES).take(pa.array(kinds)))
    return told.take(pa.array(order[kept]))


def change_schema(spec: TableSpec, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of changes with these columns. Those of an old state are as nullable as the table's."""
    schema = spec.table_schema.to_arrow()
    return pa.schema([*CHANGE_FIELDS, *(schema.field(name) for name in columns)])


def carrier_of(step: ChangeStep) -> FileGroup:
    """The log rows of a step in the form that readers take."""
    return FileGroup(step.added[0].group_id, logs=step.added)


def _concat(spec: TableSpec, tables: Sequence[pa.Table]) -> pa.Table:
    names = [*physical_columns(spec), OP_COLUMN, TXN_COLUMN]
    schema = pa.schema(
        [*((f.name, f.type) for f in spec.table_schema.to_arrow_physical()), (OP_COLUMN, pa.int8()), (TXN_COLUMN, pa.string())]
    )
    return pa.concat_tables([schema.empty_table(), *(bare(table.select(names)).cast(schema) for table in tables)])


class _ChangedKeys:
    """Selects rows whose key is among those of some tables, and perhaps a few more."""

    def __init__(self, spec: TableSpec, keys: Sequence[pa.Table]) -> None:
        self._values = {}
        for column in spec.key_columns:
            values = pa.chunked_array(
                [chunk for table in keys for chunk in table.column(column.physical).chunks],
                spec.table_schema.to_arrow_physical(only=[column.physical]).field(0).type,
            )
            # Arrow's lookup distinguishes 0.0 from -0.0 and NaNs from each other, but as keys they are equal.
            if not pa.types.is_floating(values.type):
                self._values[column.physical] = values.combine_chunks()

    def of(self, rows: pa.Table) -> pa.Table:
        """The selected rows."""
        for name, values in self._values.items():
            rows = rows.filter(pc.is_in(rows.column(name), value_set=values))
        return rows


def _lasting(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Rows without deletes that have had their effect: no later row is compared with those."""
    kept = pc.not_equal(rows.column(OP_COLUMN), OP_DELETE)
    if spec.ordering is not None:
        kept = pc.or_(kept, has_order(rows, spec.ordering_physical))
    return rows if pc.all(kept).as_py() else rows.filter(kept)


def _replaced(fileio: FileIO, state: pa.Table, step: ChangeStep, spec: TableSpec) -> pa.Table:
    """The state after the base files and removed file groups of a step."""
    if not step.replaces:
        return state
    kept = state.slice(0, 0)
    if not step.whole and spec.has_key and not spec.is_located:
        # Without hash buckets a class is one file group.
        kept = _without(state, [group.group_id for group in step.groups], spec)
    return _concat(spec, [kept, *(current_rows(fileio, spec, group) for group in step.groups)])


def _without(state: pa.Table, group_ids: Sequence[FileGroupId], spec: TableSpec) -> pa.Table:
    """The rows outside some file groups, which have one bucket count."""
    (count,) = {group_id.bucket_count for group_id in group_ids}
    buckets = bucket_of([state.column(column.physical) for column in spec.bucket_columns], count)
    return state.filter(pa.array(~np.isin(buckets, [group_id.bucket for group_id in group_ids])))
