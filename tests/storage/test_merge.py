"""The vectorised merge equals a literal replay over a dict, for every mix of operations."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("o", pa.int64()), ("v", pa.int64()), (OP_COLUMN, pa.int8())])


def replay(rows: list[dict[str, Any]], *, ordered: bool) -> dict[tuple[int, str], dict[str, Any]]:
    """Section 6 read literally, one row after the other."""
    state: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["k"], row["s"])
        below = state.get(key)
        if not ordered or row["o"] is None or below is None or below["o"] is None or row["o"] >= below["o"]:
            state[key] = row
    return state


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def row(k: int, o: int | None, v: int, op: int, s: str = "a") -> dict[str, Any]:
    return {"k": k, "s": s, "o": o, "v": v, OP_COLUMN: op}


operations = st.builds(
    lambda k, s, o, v, delete: row(k, o if delete else (o or 0), v, OP_DELETE if delete else OP_UPSERT, s),
    k=st.integers(0, 3),
    s=st.sampled_from(["", "a", "é"]),
    o=st.one_of(st.none(), st.integers(0, 4)),
    v=st.integers(0, 1_000_000),
    delete=st.booleans(),
)


@given(st.lists(operations, max_size=40))
def test_merge_by_ordering_is_the_replay(rows: list[dict[str, Any]]) -> None:
    expected = [r for _, r in sorted(replay(rows, ordered=True).items(), key=lambda item: (item[0][0], item[0][1].encode()))]
    assert merge(table(rows), key=["k", "s"], ordering=["o"], keep_deletes=True).to_pylist() == expected
    visible = [{n: x for n, x in r.items() if n != OP_COLUMN} for r in expected if r[OP_COLUMN] == OP_UPSERT]
    assert merge(table(rows), key=["k", "s"], ordering=["o"]).to_pylist() == visible


@given(st.lists(operations, max_size=40))
def test_merge_by_commit_order_is_the_replay(rows: list[dict[str, Any]]) -> None:
    expected = [r for _, r in sorted(replay(rows, ordered=False).items(), key=lambda item: (item[0][0], item[0][1].encode()))]
    assert merge(table(rows), key=["k", "s"], ordering=[], keep_deletes=True).to_pylist() == expected


@given(st.lists(operations, min_size=1, max_size=30), st.integers(0, 29))
def test_folding_a_batch_first_changes_nothing(rows: list[dict[str, Any]], cut: int) -> None:
    """A batch is replayed when it is written: the whole must not notice, but for a barrier that hides in the batch (which writes refuse to
    mix)."""
    rows = [r if r["o"] is not None else {**r, "o": 0} for r in rows]
    before, batch = rows[:cut], rows[cut:]
    replayed = merge(table(batch), key=["k", "s"], ordering=["o"], keep_deletes=True).to_pylist()
    assert merge(table(before + replayed), key=["k", "s"], ordering=["o"]) == merge(table(rows), key=["k", "s"], ordering=["o"])


OF_SEVERAL = st.tuples(
    st.integers(0, 1), st.integers(0, 1), st.sampled_from(["", "a", "é", "z"]), st.sampled_from([-0.0, 0.0, 1.5, math.inf]), st.booleans()
)
SEVERAL = pa.schema(
    [("k", pa.int64()), ("o", pa.int64()), ("p", pa.string()), ("q", pa.float64()), ("v", pa.int64()), (OP_COLUMN, pa.int8())]
)


@given(st.lists(st.tuples(OF_SEVERAL, st.sampled_from(["", "", "opq", "pq", "q"])), max_size=40))
def test_merge_by_several_columns_is_the_replay(given_rows: list[tuple[tuple[int, int, str, float, bool], str]]) -> None:
    """A delete with a null in any of the columns is a barrier."""
    rows = []
    for v, ((k, o, p, q, delete), nulls) in enumerate(given_rows):
        found: dict[str, Any] = {"k": k, "o": o, "p": p, "q": q, "v": v, OP_COLUMN: OP_DELETE if delete else OP_UPSERT}
        rows.append(found | (dict.fromkeys(nulls) if delete else {}))
    state: dict[int, tuple[Any, dict[str, Any]]] = {}
    for found in rows:
        values = [found["o"], found["p"], found["q"]]
        rank = None if None in values else (found["o"], found["p"].encode(), found["q"])
        below = state.get(found["k"])
        if rank is None or below is None or below[0] is None or rank >= below[0]:
            state[found["k"]] = (rank, found)
    expected = [found for _, (_, found) in sorted(state.items())]
    merged = merge(pa.Table.from_pylist(rows, SEVERAL), key=["k"], ordering=["o", "p", "q"], keep_deletes=True)
    assert merged.to_pylist() == expected


def test_a_barrier_removes_a_newer_row_and_an_older_late_row_comes_back_after_it() -> None:
    rows = [row(1, 9, 1, OP_UPSERT), row(1, None, 0, OP_DELETE), row(1, 2, 3, OP_UPSERT)]
    assert merge(table(rows[:2]), key=["k"], ordering=["o"]).num_rows == 0
    assert merge(table(rows), key=["k"], ordering=["o"]).column("v").to_pylist() == [3]


def test_a_tombstone_keeps_an_older_late_row_out() -> None:
    rows = [row(1, 3, 1, OP_UPSERT), row(1, 5, 0, OP_DELETE), row(1, 4, 2, OP_UPSERT)]
    assert merge(table(rows), key=["k"], ordering=["o"]).num_rows == 0
    assert merge(table([*rows, row(1, 5, 7, OP_UPSERT)]), key=["k"], ordering=["o"]).column("v").to_pylist() == [7]


@pytest.mark.parametrize(
    ("key_type", "values"),
    [
        (pa.float64(), [1.5, float("nan"), 0.0]),
        (pa.decimal128(20, 3), [Decimal("1.500"), Decimal("-2.000"), Decimal("0.000")]),
        (pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 1)]),
        (pa.timestamp("us"), [dt.datetime(1969, 12, 31), dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 1)]),
        (pa.binary(), [b"", b"\x00", b"\xff"]),
        (pa.bool_(), [True, False]),
    ],
)
def test_keys_of_every_plain_type_meet_their_equals(key_type: pa.DataType, values: list[Any]) -> None:
    count = len(values)
    op = pa.array([OP_UPSERT] * 2 * count, pa.int8())
    rows = pa.table({"k": pa.array([*values, *values], key_type), "v": list(range(2 * count)), OP_COLUMN: op})
    merged = merge(rows, key=["k"], ordering=[])
    assert sorted(merged.column("v").to_pylist()) == list(range(count, 2 * count))


def test_no_rows_merge_to_no_rows() -> None:
    assert merge(table([]), key=["k"], ordering=["o"]).column_names == ["k", "s", "o", "v"]


@pytest.mark.parametrize("later", [OP_UPSERT, OP_DELETE])
def test_nan_is_greater_than_every_number(later: int) -> None:
    """No writer of ours lets one in, as the value of an upsert or of a delete; readers agree on what it means when another one does."""
    rows = pa.table(
        {"k": [1, 1, 1], "o": [5.0, math.nan, math.inf], "v": [1, 2, 3], OP_COLUMN: pa.array([OP_UPSERT, OP_DELETE, later], pa.int8())}
    )
    assert merge(rows, key=["k"], ordering=["o"]).num_rows == 0
    assert merge(rows.slice(0, 1), key=["k"], ordering=["o"]).num_rows == 1
    revived = pa.table({"k": [1], "o": [math.nan], "v": [4], OP_COLUMN: pa.array([OP_UPSERT], pa.int8())})
    assert merge(pa.concat_tables([rows, revived]), key=["k"], ordering=["o"]).column("v").to_pylist() == [4]
