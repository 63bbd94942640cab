"""Rows that name different columns become one row per key for a merge, with what its columns get.

Such rows are written as if each came alone, in order: a column that a row lacks stays as it is. In a table with an ordering column, a row
older than the existing one does nothing, and the existing one is not known before the table is read. So a key may have several *steps*:
rows that count, or do not, together. The merge decides step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.datafile.batch_checks import fitted_column, keyed, ordered
from objcat.dml.default_terms import default_term
from objcat.dml.ordering_terms import are_less
from objcat.dml.program import Clause, ClauseAction, Tree, When
from objcat.errors import InvalidBatch
from objcat.metadata.table_spec import TableSpec

NOTHING = -1
"""In place of a row number: there is none."""


def is_ragged(data: Any) -> bool:
    """Whether the rows of a batch name different columns."""
    are_rows = isinstance(data, list) and all(isinstance(row, dict) for row in data)
    return are_rows and any(row.keys() != data[0].keys() for row in data)


@dataclass(slots=True)
class _MergeStep:
    """Rows of one key that count together. `rank`: of their ordering value; None where they give none, and always count. `values`: for each
    column the number of the last row that gives it."""

    rank: int | None
    values: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of a batch with each key once, and the clauses of the merge that writes them."""

    rows: pa.Table
    clauses: tuple[Clause, ...]


def merge_by_key(said: Sequence[Mapping[str, Any]], rows: pa.Table, spec: TableSpec, former: Collection[str]) -> MergedRows:
    """The rows of `said`, reduced to one for each key.

    Args:
        rows: the same rows as a table, where missing values are null.
        former: the partitions of previous partition specs that have a file group.

    Raises:
        InvalidBatch, NullKey: as for a write of each row.
    """
    names = rows.column_names
    _check_located(said, spec)
    columns = {name: fitted_column(rows.column(name), spec.table_schema.column(name)) for name in names}
    keys = _keys(rows, spec, former)
    ranks = _ranks(said, rows, spec)
    steps: dict[tuple[int, ...], list[_MergeStep]] = {}
    for number, row in enumerate(said):
        _add(steps.setdefault(keys[number], []), _MergeStep(ranks[number], dict.fromkeys(row, number)))
    every = list(steps.values())
    firsts = [next(iter(chain[0].values.values())) for chain in every]
    found: dict[str, pa.ChunkedArray] = {name: columns[name].take(pa.array(firsts)) for name in _located(spec)}
    depth = max(map(len, every))
    for place in range(depth):
        here = [chain[place] if place < len(chain) else None for chain in every]
        if spec.ordering is not None:
            found[_here(place)] = pa.chunked_array([pa.array([step is not None for step in here])])
        for name in names:
            numbers = np.array([NOTHING if step is None else step.values.get(name, NOTHING) for step in here])
            found[_given(place, name)] = pa.chunked_array([pa.array(numbers != NOTHING)])
            found[_value(place, name)] = columns[name].take(pa.array(numbers, mask=numbers == NOTHING))
    return MergedRows(pa.table(found), _clauses(spec, names, depth))


def _add(chain: list[_MergeStep], step: _MergeStep) -> None:
    """Add a row after those of its key."""
    if step.rank is not None:
        newest = max((earlier.rank for earlier in chain if earlier.rank is not None), default=step.rank)
        if step.rank < newest:
            # Either that one counts, or the existing row is newer than both.
            return
        while chain and chain[-1].rank is not None and chain[-1].rank < step.rank and chain[-1].values.keys() <= step.values.keys():
            # Where it counts, so does this one, which gives all its columns.
            chain.pop()
    if chain and chain[-1].rank == step.rank:
        chain[-1].values.update(step.values)
    else:
        chain.append(step)


def _check_located(said: Sequence[Mapping[str, Any]], spec: TableSpec) -> None:
    for name in _located(spec):
        for number, row in enumerate(said):
            if name not in row:
                raise InvalidBatch(
                    f"Row {number} of the batch lacks the column {name!r}, by which rows of the table are found. Nothing was written. "
                    "Give it in each row."
                )


def _located(spec: TableSpec) -> list[str]:
    group_ids = [] if spec.is_global else spec.partition_columns
    return list(dict.fromkeys(column.name for column in (*spec.key_columns, *group_ids)))


def _keys(rows: pa.Table, spec: TableSpec, former: Collection[str]) -> list[tuple[int, ...]]:
    """For each row, numbers that identify its key and partition."""
    found = keyed(rows, spec)
    codes = [_codes(found.column(column.physical)) for column in spec.key_columns]
    if spec.partition_columns and not spec.is_global:
        codes.append(spec.partition_of(found, former).codes.tolist())
    return list(zip(*codes, strict=True))


def _codes(values: pa.ChunkedArray) -> list[int]:
    codes: list[int] = values.combine_chunks().dictionary_encode().indices.to_pylist()
    return codes


def _free_ordering(spec: TableSpec) -> list[str]:
    """The ordering columns that a row may lack: those by which rows are found are in every row."""
    return [column.name for column in spec.ordering_columns if column.name not in _located(spec)]


def _ranks(said: Sequence[Mapping[str, Any]], rows: pa.Table, spec: TableSpec) -> list[int | None]:
    """For each row, the rank of its ordering values among all; None where it gives none. Raises InvalidBatch where it gives only some."""
    names = [column.name for column in spec.ordering_columns]
    ranks: list[int | None] = [None] * len(said)
    numbers = []
    for number, row in enumerate(said):
        lacking = [name for name in names if name not in row]
        if lacking and any(name in row for name in _free_ordering(spec)):
            raise InvalidBatch(
                f"Row {number} of the batch lacks the ordering column {lacking[0]!r} and has another one. Nothing was written. Give all of "
                f"{names}, which are compared in order, or none of them."
            )
        if names and not lacking:
            numbers.append(number)
    values = ordered(rows.take(pa.array(numbers, pa.int64())), spec) if numbers else None
    if values is not None:
        of_columns = [pc.rank(column, tiebreaker="dense").to_numpy() for column in values.columns]
        found = np.unique(np.stack(of_columns, axis=1), axis=0, return_inverse=True)[1]
        for number, rank in zip(numbers, found.reshape(-1).tolist(), strict=True):
            ranks[number] = rank
    return ranks


# ---- what the merge does with a row of them


def _here(place: int) -> str:
    return f"_objcat_{place}_here"


def _given(place: int, name: str) -> str:
    return f"_objcat_{place}_given_{name}"


def _value(place: int, name: str) -> str:
    return f"_objcat_{place}_value_{name}"


def _source(name: str) -> Tree:
    return sql.column(name, table="source", quoted=True)


def _target(name: str) -> Tree:
    return sql.column(name, table="target", quoted=True)


def _clauses(spec: TableSpec, names: Sequence[str], depth: int) -> tuple[Clause, ...]:
    keys = {column.name for column in spec.key_columns}
    ordering = [column.name for column in spec.ordering_columns]
    measured = ordering if all(name in names for name in ordering) else []
    told = next(iter([*_free_ordering(spec), *ordering]), "")

    def counts(place: int) -> Tree:
        """Whether a step counts against the existing row."""
        if not measured:
            return sql.true()
        late = are_less([_source(_value(place, name)) for name in measured], [_target(name) for name in measured])
        return sql.Not(this=sql.paren(sql.and_(_source(_given(place, told)), late)))

    def last(name: str, otherwise: Tree, condition: Callable[[int], Tree]) -> Tree:
        case = sql.Case()
        for place in reversed(range(depth)):
            case = case.when(sql.and_(_source(_given(place, name)), condition(place)), _source(_value(place, name)))
        return case.else_(otherwise)

    own = [name for name in names if name not in keys]
    updates = {name: last(name, _target(name), counts) for name in own}
    absent = {column.name: default_term(column) or sql.null() for column in spec.table_schema.columns}
    inserts = {name: _source(name) for name in keys} | {name: last(name, absent[name], lambda _: sql.true()) for name in own}
    where = None if not ordering else sql.or_(*(sql.and_(_source(_here(place)), counts(place)) for place in range(depth)))
    matched = [Clause(When.MATCHED, ClauseAction.UPDATE, where, updates)] if updates else []
    return (*matched, Clause(When.NOT_MATCHED, ClauseAction.INSERT, None, inserts))
