"""What a table tells, by every way to read it, beside what it has to hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from objcat.inspection.doctor import examine
from tests.combinations.filters import OPERATORS, Filter, compare, for_duckdb
from tests.combinations.model import Change, State, changed_rows, changes_between, rows_of
from tests.combinations.tables import DrawnTable
from tests.combinations.values import FLOATING, Column, arrow_schema, in_order, row_of, shown


def equal(what: str, found: Iterable[Any], expected: Iterable[Any]) -> None:
    """The same, in any order."""
    left, right = Counter(found), Counter(expected)
    assert left == right, f"{what}: too many {list((left - right).items())[:6]}, missing {list((right - left).items())[:6]}"


def rows_in(read: pa.Table, columns: Sequence[Column]) -> list[Any]:
    return [shown(row, columns) for row in read.to_pylist()]


def compare_after_a_step(table: DrawnTable) -> None:
    """The newest rows, and at times each of the others."""
    rng = table.rng
    assert table.table.refresh().slot == table.newest
    compare_rows(table, table.newest)
    if rng.random() < 0.5:
        compare_rows(table, rng.choice(table.readable()))
    for probability, comparison in COMPARISONS:
        if rng.random() < probability:
            comparison(table)


def compare_at_the_end(table: DrawnTable) -> None:
    for slot in table.readable():
        compare_rows(table, slot)
    for (_, comparison), _ in itertools.product(COMPARISONS, range(3)):
        comparison(table)
    report = examine(table.table._context.timeline, deep=True)
    assert report.healthy, f"the doctor finds {report.findings}"


def compare_rows(table: DrawnTable, slot: int) -> None:
    state, scan = table.at(slot), table.table.scan(as_of=slot)
    assert scan.schema.equals(arrow_schema(state.columns)), f"the schema at {slot} is {scan.schema}"
    equal(f"the rows at {slot}", rows_in(table.read(scan), state.columns), rows_of(state, state.columns))


def compare_commits(table: DrawnTable) -> None:
    columns = table.columns
    read = table.read(table.table.scan(columns=[*(column.name for column in columns), "_commit_slot"]))
    found = zip(rows_in(read, columns), read.column("_commit_slot").to_pylist(), strict=True)
    slots = [row.slot for row in table.state.rows.values()]
    equal("the rows with their commits", found, zip(rows_of(table.state, columns), slots, strict=True))


def compare_a_filter(table: DrawnTable) -> None:
    """Rows, their number, some of them, extremes; and the same filter as others ask it."""
    rng = table.rng
    slot = rng.choice(table.readable()) if rng.random() < 0.3 else None
    state = table.state if slot is None else table.at(slot)
    found = table.filter(state)
    where = found.sql if found.sql is not None and (found.expression is None or rng.random() < 0.7) else found.expression
    if where is None:
        return
    columns = rng.sample(state.columns, rng.randint(1, len(state.columns)))
    names = [column.name for column in columns]
    passed = State(state.columns, {ident: row for ident, row in state.rows.items() if found(row.values)}, {})
    expected, what = rows_of(passed, columns), f"the rows at {slot} where {where}"
    scan = table.table.scan(where=where, columns=names, as_of=slot)
    equal(what, rows_in(table.read(scan), columns), expected)
    assert scan.count() == len(expected), what
    most = rng.randint(0, len(expected) + 2)
    limited = table.table.scan(where=where, columns=names, as_of=slot, limit=most)
    some = rows_in(table.read(limited), columns)
    assert len(some) == limited.count() == min(most, len(expected)), f"{what}, {most} of them"
    assert not Counter(some) - Counter(expected), f"{what}, {most} of them"
    for column in state.columns:
        if column.is_plain and rng.random() < 0.5:
            asked = rng.random() < 0.5
            _compare_extremes(table, column, where if asked else None, passed if asked else state, slot)
    if found.expression is not None:
        dataset = table.table.scan(as_of=slot).to_dataset()
        equal(f"{what}, of a dataset", rows_in(dataset.to_table(columns=names, filter=found.expression), columns), expected)
        assert dataset.count_rows(filter=found.expression) == len(expected), what
    if rng.random() < 0.25:
        _compare_in_duckdb(table, found, state, columns, expected, slot)
    if rng.random() < 0.3:
        _compare_in_polars(table, state, slot)


def _compare_extremes(table: DrawnTable, column: Column, where: Any, state: State, slot: int | None) -> None:
    scan = table.table.scan(where=where, as_of=slot)
    found = [value for values in state.values if (value := values.get(column.uid)) is not None and value == value]  # noqa: PLR0124 - NaN
    expected = (min(found, key=in_order), max(found, key=in_order)) if found else (None, None)
    assert (scan.min(column.name), scan.max(column.name)) == expected, f"extremes of {column.name} at {slot} where {where}"


def _compare_in_duckdb(
    table: DrawnTable, found: Filter, state: State, columns: Sequence[Column], expected: list[Any], slot: int | None
) -> None:
    """Filters of columns that DuckDB compares as we do, with literals of its own."""
    asked = [column for column in state.columns if column.name in found.names]
    if found.sql is None or any(column.type in FLOATING or str(column.type).startswith("decimal") for column in asked):
        return
    text = for_duckdb(found.sql)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        relation = table.table.scan(as_of=slot).to_duckdb(connection)
        selected = ", ".join(f'"{column.name}"' for column in columns)
        equal(f"DuckDB's rows at {slot} where {text}", rows_in(relation.filter(text).project(selected).to_arrow_table(), columns), expected)


def _compare_in_polars(table: DrawnTable, state: State, slot: int | None) -> None:
    kinds = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date")
    pairs = [
        (column, values[column.uid]) for column in state.columns if column.type in kinds for values in state.values if column.uid in values
    ]
    pairs = [(column, value) for column, value in pairs if value is not None]
    if not pairs:
        return
    column, value = table.rng.choice(pairs)
    sign = "=" if isinstance(value, bool) else table.rng.choice(list(OPERATORS))
    lazy = table.table.scan(as_of=slot).to_polars_lazy().filter(OPERATORS[sign](pl.col(column.name), pl.lit(value)))
    expected = [values[column.uid] for values in state.values if compare(sign, values.get(column.uid), value)]
    what = f"rows of polars at {slot} where {column.name} {sign} {value!r}"
    equal(what, lazy.select(column.name).collect().to_series().to_list(), expected)


def compare_changes(table: DrawnTable) -> None:
    """Of a range: every change, and the net ones."""
    rng = table.rng
    least = max(table.bound, table.created - 1)
    until = table.newest if rng.random() < 0.6 else rng.randint(max(least, table.created), table.newest)
    since = rng.randint(least, until)
    states = table.states[since : until + 1] if since >= table.created else [None, *table.states[table.created : until + 1]]
    if None in states[1:] or (since >= table.created and states[0] is None):
        return
    columns = _told(table, [state for state in states if state is not None], since, until)
    if not columns:
        return
    names, keyed = [column.name for column in columns], bool(table.key)
    expected: list[Change] = []
    last: dict[Any, int] = {}
    first = until + 1 - len(states)
    for slot, (before, after) in enumerate(itertools.pairwise(states), first + 1):
        assert after is not None
        expected += changes_between(before, after, columns, slot, keyed=keyed)
        last |= {ident: slot for ident, _, _ in changed_rows(before, after)}
    feed = table.table.changes(since=since, until=until, columns=names)
    equal(f"changes {since}..{until}", _changes_in(table.read(feed), columns), expected)
    net = []
    end = table.at(until)
    for ident, one, other in changed_rows(states[0], end):
        alone = State(end.columns, {} if other is None else {ident: other}, {})
        before = State(end.columns, {} if one is None else {ident: one}, {})
        net += list(changes_between(before, alone, columns, last.get(ident, 0) if keyed else 0, keyed=keyed))
    told = _changes_in(table.read(table.table.changes(since=since, until=until, columns=names, net=True)), columns)
    equal(f"net changes {since}..{until}", told if keyed else [(kind, 0, row) for kind, _, row in told], net)


def _told(table: DrawnTable, states: Sequence[State], since: int, until: int) -> list[Column]:
    """The columns of changes that mean the same throughout a range. A RESTORE in it may take some away and bring them again, and fields of
    nested ones, of which what was told in between is not ours to say."""
    columns = list(table.at(until).columns)
    if not any(since < slot <= until for slot, _ in table.restores):
        return columns
    always = set[int].intersection(*({column.uid for column in state.columns} for state in states))
    return [column for column in columns if column.uid in always and column.is_plain]


def _changes_in(read: pa.Table, columns: Sequence[Column]) -> list[Change]:
    return [(row["_change_type"], row["_commit_slot"], shown(row, columns)) for row in read.to_pylist()]


def compare_increments(table: DrawnTable) -> None:
    """Rows that came after a slot, as they are at another one."""
    rng = table.rng
    until = table.newest if rng.random() < 0.6 else rng.choice(table.readable())
    since = rng.randint(-1 if table.other is None else table.created - 1, until)
    back = any(since < slot <= until and to < since for slot, to in table.restores)
    if (back or table.other is not None) and max(since, 0) < table.bound:
        return
    if back and None in table.states[max(since, table.created) : until + 1]:
        return
    state = table.at(until)
    columns = state.columns
    found = table.filter(state) if rng.random() < 0.4 else None
    where = None if found is None else found.sql
    if found is not None and where is not None:
        state = State(columns, {ident: row for ident, row in state.rows.items() if found(row.values)}, {})
    names = [*(column.name for column in columns), "_commit_slot"]
    read = table.read(table.table.incremental(since=since, until=until, where=where, columns=names))
    rows, what = rows_in(read, columns), f"rows since {since} at {until} where {where}"
    if back:
        # What a RESTORE restored is new to whoever has seen a later state.
        before = table.at(since) if since >= table.created else None
        equal(what, rows, [shown(row_of(row.values, columns), columns) for _, _, row in changed_rows(before, state) if row is not None])
    else:
        new = [(shown(row_of(row.values, columns), columns), row.slot) for row in state.rows.values() if row.slot > since]
        equal(what, zip(rows, read.column("_commit_slot").to_pylist(), strict=True), new)


COMPARISONS = [(0.3, compare_commits), (0.7, compare_a_filter), (0.5, compare_changes), (0.4, compare_increments)]
"""With how probable each is after a step."""
