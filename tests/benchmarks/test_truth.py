"""What sides are compared with: rows after batches in both orders; and that two tables which differ in anything have two digests."""

from __future__ import annotations

import duckdb
import pytest

from benchmarks.data import Data, connection, make_data
from benchmarks.truth import Commit, Truth, state
from benchmarks.works import CHANGE_TYPE, CHANGE_TYPES, COLUMNS, EVENT_TIMES, KEYS, Layout, Query, comparable, digest_query

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


def test_recent_batches_are_drawn_towards_the_newest_and_their_new_keys_are_greater(duck, data):
    base, recent = rows(duck, f"from '{data.source('orders')}'"), rows(duck, f"from '{data.batch('orders', 'recent')}'")
    middle = sorted(base)[len(base) // 2][0]
    updates = recent.keys() & base.keys()
    assert updates and sum(key > middle for (key,) in updates) > 0.9 * len(updates)
    assert recent.keys() - base.keys() and all(key > max(base) for key in recent.keys() - base.keys())


def test_keys_that_are_gone_are_mostly_there_and_bring_nothing_else(duck, data):
    base, gone = rows(duck, f"from '{data.source('orders')}'"), rows(duck, f"from '{data.batch('orders', 'gone')}'")
    assert all(len(row) == 1 for row in gone.values())
    assert gone.keys() & base.keys() and gone.keys() - base.keys()


COMMITS = (("delete", "gone"), ("upsert", "ten"), ("upsert", "recent"))


def replayed(duck, data: Data) -> tuple[dict[tuple, tuple], list[tuple[str, tuple]]]:
    """The rows after `COMMITS`, and all their changes, as plain Python has them."""
    held, changed = rows(duck, f"from '{data.source('orders')}'"), []
    for op, name in COMMITS:
        for key, row in rows(duck, f"from '{data.batch('orders', name)}'").items():
            old = held.pop(key, None)
            if op == "delete":
                changed += [("delete", old)] if old else []
                continue
            held[key] = row
            changed += [("update_before", old), ("update_after", row)] if old else [("insert", row)]
    return held, changed


def test_rows_and_changes_after_deletes_are_those_of_a_replay(duck, data):
    layout, commits = Layout("t", "orders"), [Commit(op, data.batch("orders", name)) for op, name in COMMITS]  # type: ignore[arg-type]
    held, changed = replayed(duck, data)
    assert sorted(duck.sql(state(data.source("orders"), layout, commits)).fetchall()) == sorted(held.values())
    at = list(COLUMNS["orders"]).index("o_totalprice")
    query = Query(("o_totalprice",), ("count(1)", "sum(o_totalprice)"))
    by_type = {kind: [row[at] for one, row in changed if one == kind] for kind in CHANGE_TYPES}
    expected = comparable([(kind, len(values), sum(values)) for kind, values in by_type.items()])
    assert all(by_type.values()), CHANGE_TYPE
    assert Truth(data).changes(layout, commits, back=3, query=query) == expected
    last_two = set().union(*(rows(duck, f"from '{commit.batch}'") for commit in commits[1:]))
    values = [row[at] for key, row in held.items() if key in last_two]
    assert Truth(data).incremental(layout, commits, back=2, query=query) == comparable([(len(values), sum(values))])


def test_a_table_without_a_key_has_every_row_that_was_appended(duck, data):
    commits = [Commit("append", data.batch("orders", "ten"))]
    found = duck.sql(state(data.source("orders"), Layout("t", "orders", keyed=False), commits)).fetchall()
    both = [*duck.sql(f"from '{data.source('orders')}'").fetchall(), *duck.sql(f"from '{data.batch('orders', 'ten')}'").fetchall()]
    assert sorted(found) == sorted(both)


def test_small_batches_share_no_key(duck, data):
    keys = [key for number in range(16) for key in rows(duck, f"from '{data.small(number)}'")]
    assert len(keys) == len(set(keys)) == 1600


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("event_time", [False, True])
def test_the_rows_after_batches_are_those_of_a_replay(duck, data, source, event_time):
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
    commits = [Commit("upsert", data.batch(source, name)) for name in ("one", "ten")]
    found = duck.sql(state(data.source(source), Layout("t", source, ordering=ordering), commits)).fetchall()
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

    right = Truth(data).digest(Layout("t", "orders"), [])
    assert digest("from held order by o_comment") == right
    assert digest(DIFFERENCES[difference]) != right
