"""The merge of `docs/spec/reading.md`: replays the rows of each key, for all keys of a file group. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

OP_COLUMN = "_objcat_op"
OP_UPSERT = 0
OP_DELETE = 1


def merge(rows: pa.Table, *, key: Sequence[str], ordering: Sequence[str], keep_deletes: bool = False) -> pa.Table:
    """The winning row of every key, sorted by key.

    A delete with a null among its ordering values is a barrier: it discards every earlier row of its key, whatever their values.

    Args:
        rows: in the order in which they count (base rows, then log rows by slot and position), with the operation in `_objcat_op`.
        ordering: the columns whose greater values win, compared in order. Ties go to the later position. Empty: the later row wins.
        keep_deletes: return winning deletes too, to merge a batch. Else only existing rows, without `_objcat_op`.
    """
    if rows.num_rows == 0:
        return rows if keep_deletes else rows.drop_columns([OP_COLUMN])
    won = winners(rows, key=key, ordering=ordering)
    if not keep_deletes:
        won = won[_numpy(rows.column(OP_COLUMN))[won] != OP_DELETE]
    result = rows.take(pa.array(won))
    return result if keep_deletes else result.drop_columns([OP_COLUMN])


def winners(rows: pa.Table, *, key: Sequence[str], ordering: Sequence[str]) -> npt.NDArray[np.int64]:
    """The positions of the rows that `merge` returns with `keep_deletes`, by key."""
    if ascends(rows, key):
        # The rows of most loads and files. Each is the only one of its key.
        return np.arange(rows.num_rows)
    order = _order(rows, key=key, ordering=ordering)
    last_of_key = _last_of_runs(rows, order, key)
    if not ordering:
        return order[last_of_key]
    op = _numpy(rows.column(OP_COLUMN))[order]
    return order[_winners_by_ordering(rows, order, last_of_key, op, ordering)]


def ascends(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether every row has a greater key than the one before. False where one of several keys is null or NaN."""
    return _ascends(rows.slice(0, _SAMPLE_ROWS), key) and (rows.num_rows <= _SAMPLE_ROWS or _ascends(rows, key))


_SAMPLE_ROWS = 1024
"""Rows that are compared first. Few of an unsorted batch are in order."""


def _ascends(rows: pa.Table, key: Sequence[str]) -> bool:
    if rows.num_rows < 2:
        return True
    above: Any = None
    for name in reversed(key):
        values = rows.column(name)
        here, following = values.slice(0, len(values) - 1), values.slice(1)
        greater = pc.greater(following, here)
        above = greater if above is None else pc.or_(greater, pc.and_(pc.equal(following, here), above))
    return bool(pc.all(above, skip_nulls=False).as_py())


def overlay(base: pa.Table, logs: pa.Table, *, key: Sequence[str], ordering: Sequence[str]) -> list[pa.Table]:
    """The rows that `merge` of both would return, unordered. Base rows that no log row can concern are not sorted.

    base: rows without `_objcat_op`, each key once. logs: with it, and otherwise the same columns.
    """
    if not base.num_rows:
        return [merge(logs, key=key, ordering=ordering)]
    touched = may_meet(base, logs, key)
    meeting = base.filter(touched)
    meeting = meeting.append_column(logs.schema.field(OP_COLUMN), pa.array(np.full(meeting.num_rows, OP_UPSERT, dtype=np.int8)))
    merged = merge(pa.concat_tables([meeting, logs.select(meeting.column_names)]), key=key, ordering=ordering)
    return [base.filter(pc.invert(touched)), merged]


def may_meet(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    """For every row, whether one of the others may have its key.

    False only if a key column holds a value that none of them has. All rows of one key get the same answer.
    """
    meets: Any = pa.array(np.full(rows.num_rows, True))
    for name in key:
        values = others.column(name)
        # Arrow's lookup distinguishes 0.0 from -0.0 and NaNs from each other. Here they are equal.
        if not pa.types.is_floating(values.type):
            meets = pc.and_(meets, pc.is_in(rows.column(name), value_set=values.combine_chunks()))
    return meets


def has_order(rows: pa.Table, ordering: Sequence[str]) -> pa.ChunkedArray:
    """For every row, whether it has an ordering value, so no null in any of the ordering columns, of which there is one at least."""
    first, *more = ordering
    there = rows.column(first).is_valid()
    for name in more:
        there = pc.and_(there, rows.column(name).is_valid())
    return there


def key_runs(rows: pa.Table, key: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions of rows (at least one) sorted by key, stable, and the index there of the last row of every key."""
    order = _order(rows, key=key, ordering=())
    return order, _last_of_runs(rows, order, key)


def _order(rows: pa.Table, *, key: Sequence[str], ordering: Sequence[str]) -> npt.NDArray[np.int64]:
    """A stable sort by key, then ordering values, so that position decides last."""
    columns = {f"k{i}": rows.column(name) for i, name in enumerate(key)}
    columns |= {f"o{i}": rows.column(name) for i, name in enumerate(ordering)}
    by = pa.table(columns)
    return np.asarray(pc.sort_indices(by, sort_keys=[(name, "ascending") for name in columns])).astype(np.int64)


def _last_of_runs(rows: pa.Table, order: npt.NDArray[np.int64], key: Sequence[str]) -> npt.NDArray[np.int64]:
    """Positions in `order` of the last row of every key."""
    differs = np.zeros(len(order), dtype=bool)
    differs[-1] = True
    indices = pa.array(order)
    for name in key:
        values = rows.column(name).take(indices).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        here, following = values.slice(0, len(values) - 1), values.slice(1)
        unequal = pc.not_equal(here, following)
        if pa.types.is_floating(values.type):
            unequal = pc.and_not(unequal, pc.and_(pc.is_nan(here), pc.is_nan(following)))
        differs[:-1] |= np.asarray(unequal.to_numpy(zero_copy_only=False), dtype=bool)
    return np.flatnonzero(differs)


def _winners_by_ordering(
    rows: pa.Table, order: npt.NDArray[np.int64], last_of_key: npt.NDArray[np.int64], op: npt.NDArray[np.int8], ordering: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Positions in `order` of the winners: for each key the last row that is newer than its last barrier.

    If nothing came after a barrier, the barrier itself is returned, and as a delete it ends the key.
    """
    barrier = (op == OP_DELETE) & ~np.asarray(has_order(rows, ordering).to_numpy(), dtype=bool)[order]
    if not barrier.any():
        return last_of_key
    first_of_key = np.concatenate(([0], last_of_key[:-1] + 1))
    barrier_at = np.maximum.reduceat(np.where(barrier, order, -1), first_of_key)
    lengths = last_of_key - first_of_key + 1
    counts = order >= np.repeat(barrier_at, lengths)
    positions = np.arange(len(order))
    newest = np.maximum.reduceat(np.where(counts & ~barrier, positions, -1), first_of_key)
    of_barrier = np.maximum.reduceat(np.where(counts & barrier, positions, -1), first_of_key)
    winners: npt.NDArray[np.int64] = np.where(newest >= 0, newest, of_barrier)
    return winners


def _numpy(values: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    return np.asarray(values.to_numpy())
