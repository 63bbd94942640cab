"""What sides are compared with: rows after batches in both orders; and that two tables which differ in anything have two digests."""

from __future__ import annotations

import duckdb
import pytest

from benchmarks.data import Data, connection, make_data
from benchmarks.truth import Truth, state
from benchmarks.works import EVENT_TIMES, KEYS, comparable, digest_query

SOURCES = ["orders", "lineitem"]


@pytest.fixture(scope="module")
def data() -> Data:
    return make_data(0.001, lambda _: None)


@pytest.fixture
def duck() -> duckdb.DuckDBPyConnection:
    return connection()


def rows(duck: duckdb.DuckDBPyConnection, sql: str) -> dict[tuple, tuple]:
    relation = duck.sql(sql)
    keys = [relation.columns.index(name) for source in SOURCES for name in KEYS[source] if name in relation.columns]
    return {tuple(row[key] for key in keys): row for row in relation.fetchall()}


@pytest.mark.parametrize("source", SOURCES)
def test_batches_have_their_share_of_updates_and_new_keys(duck, data, source):
    base = rows(duck, f"from '{data.source(source)}'")
    one, ten = (rows(duck, f"from '{data.batch(source, name)}'") for name in ("one", "ten"))
    assert set(one) <= set(ten)
    assert 0.07 < len(ten) / len(base) < 0.13
    assert 0.8 < len(ten.keys() & base.keys()) / len(ten) < 0.97
    assert all(ten[key] != base[key] for key in ten.keys() & base.keys())


def test_small_batches_share_no_key(duck, data):
    keys = [key for number in range(16) for key in rows(duck, f"from '{data.small(number)}'")]
    assert len(keys) == len(set(keys)) == 1600


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("event_time", [False, True])
def test_the_rows_after_batches_are_those_of_a_fold(duck, data, source, event_time):
    ordering = EVENT_TIMES[source] if event_time else None
    columns = duck.sql(f"from '{data.source(source)}'").columns
    at = columns.index(EVENT_TIMES[source])
    expected = rows(duck, f"from '{data.source(source)}'")
    outcomes = set()
    for name in ("one", "ten"):
        for key, row in rows(duck, f"from '{data.batch(source, name)}'").items():
            old = expected.get(key)
            outcomes.add(None if old is None else (row[at] > old[at]) - (row[at] < old[at]))
            if old is None or not event_time or row[at] >= old[at]:
                expected[key] = row
    found = duck.sql(state(data.source(source), source, [data.batch(source, name) for name in ("one", "ten")], ordering)).fetchall()
    assert sorted(found) == sorted(expected.values())
    assert outcomes == {None, -1, 0, 1}, "the batches have rows that win, tie and lose"


def exchanged(column: str) -> str:
    """Two rows have each other's value."""
    values = " ".join(f"when {one} then (select {column} from held where o_orderkey = {other})" for one, other in ((7, 32), (32, 7)))
    return f"select * replace (case o_orderkey {values} else {column} end as {column}) from held"


DIFFERENCES = {
    "a row is missing": "from held where o_orderkey <> 7",
    "a row is there twice": "from held union all from held where o_orderkey = 7",
    "an update is lost": "select * replace (case o_orderkey when 7 then o_totalprice + 1 else o_totalprice end as o_totalprice) from held",
    "two rows have exchanged their texts": exchanged("o_comment"),
    "two rows have exchanged their amounts": exchanged("o_totalprice"),
    "a value is null": "select * replace (case o_orderkey when 7 then null else o_shippriority end as o_shippriority) from held",
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_digest_tells_that(duck, data, difference):
    duck.execute(f"create view held as from '{data.source('orders')}'")
    what = ", ".join(digest_query("orders", "duckdb").aggregates)

    def digest(sql: str) -> list[list[str | None]]:
        return comparable(duck.execute(f"select {what} from ({sql})").fetchall())

    right = Truth(data).digest("orders", [], None)
    assert digest("from held order by o_comment") == right
    assert digest(DIFFERENCES[difference]) != right
