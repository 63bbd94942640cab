"""Tables that follow the drawn one by its changes, and have to hold what it held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import objcat
from objcat.metadata.table_spec import MemoryIndexSpec
from tests.combinations.comparisons import equal, rows_in
from tests.combinations.filters import quoted
from tests.combinations.model import State, rows_of
from tests.combinations.tables import HASHED, LOCATED, DrawnTable
from tests.combinations.values import Column, arrow_schema

APP = "follows"


def follow(table: DrawnTable) -> None:
    """A copy of a slot, or nothing before the first, and then what has changed up to another one, in some calls."""
    rng = table.rng
    # Rows that are known by their partition, too, are other ones to whoever has not seen all partitionings.
    if not table.key or (table.parted and table.repartitioned):
        return
    first, until = sorted(rng.choice(table.readable()) for _ in range(2))
    is_whole = table.other is None and table.created == 0 and table.bound == 0 and rng.random() < 0.3
    states = table.states[0 if is_whole else first : until + 1]
    columns = _followed(table, [state for state in states if state is not None])
    if None in states or not columns:
        return
    follower = _created(table, columns)
    if is_whole:
        first = -1
    table.tell(
        "follow from", first, "to", until, "into", follower.spec.table_type, follower.spec.index, [column.name for column in columns]
    )
    if first >= 0 and table.at(first).rows:
        follower.upsert(table.batch(table.at(first).values, columns))
    ends = {until, *(rng.randint(first + 1, until) for _ in range(rng.randrange(3)) if first < until)}
    for end in sorted(ends):
        applied = follower.app_version(APP)
        reached = first if applied is None else applied
        net = rng.random() < 0.5
        since = reached if net or rng.random() < 0.6 else rng.randint(first, reached)
        table.tell("- the changes since", since, "up to", end, "net" if net else "")
        feed = table.table.changes(since=since, until=end, net=net)
        # Spark reads net changes only, and what a handle remembers of keys it does not know.
        by_spark = net and not isinstance(follower.spec.index, MemoryIndexSpec)
        done = follower.apply_changes(feed, app_id=APP, spark=table.spark() if by_spark else None)
        if done is not None:
            assert follower.app_version(APP) == end
            again = follower.apply_changes(table.table.changes(since=since, until=end), app_id=APP)
            assert again is not None
            assert (again.already_applied, again.slot) == (True, done.slot)
        state = State(tuple(columns), table.at(end).rows, {})
        equal(f"the rows of what follows up to {end}", rows_in(table.read(follower.scan()), columns), rows_of(state, columns))


def _followed(table: DrawnTable, states: Sequence[State]) -> list[Column]:
    """The columns of a table that follows: what has one name throughout, and one type but where that became wider; some left out. None of
    them where a column is missing by which a row is known."""
    kept = []
    narrows = any(slot for slot, _ in table.restores)
    for column in states[-1].columns:
        all_of = [next((one for one in state.columns if one.uid == column.uid), None) for state in states]
        is_named = all(one is not None and one.name == column.name for one in all_of)
        is_same = all(one is not None and one.type == column.type for one in all_of)
        if is_named and (is_same or (column.is_plain and not narrows)):
            kept.append(column)
    needed = {*table.key, *(table.parts if table.parted else ())}
    known = {column.uid for column in kept if column.name == table.names.get(column.uid)}
    if not needed <= known:
        return []
    return [replace(one, nullable=one.uid not in table.key) for one in kept if one.uid in needed or table.rng.random() < 0.8]


def _created(table: DrawnTable, columns: Sequence[Column]) -> objcat.Table:
    rng = table.rng
    index: Any = rng.choice([*HASHED, *LOCATED])
    keys = [column for column in columns if column.uid in table.key]
    by = [quoted(rng.choice(keys).name)] if rng.random() < 0.3 else []
    return table.lake.create_table(
        table.name_beside(),
        arrow_schema(columns),
        key=[column.name for column in keys],
        key_scope="partition" if table.parted else "table",
        partition_by=table.partition_by if table.parted else by,
        table_type=rng.choice(["merge_on_read", "copy_on_write"]),
        index=index,
    )
