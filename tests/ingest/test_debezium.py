"""Genuine envelopes of Debezium's connector for PostgreSQL, in JSON and Avro, beside the direct route: three lakes of one source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from devkit.kafka import KafkaBroker, KafkaConnect
from devkit.schema_registry import SchemaRegistry
from tests.effort import ALL, effort
from tests.ingest import debezium_load
from tests.ingest.debezium_route import DebeziumRoute
from tests.ingest.killing import killed_run
from tests.ingest.shop import Shop

LONG = "repeat(md5('x'), 200)"
"""A text that PostgreSQL stores apart (TOAST), so an update that leaves it does not send it."""


@pytest.fixture
def routes(
    shop: Shop, broker: KafkaBroker, connect: KafkaConnect, registry: SchemaRegistry, tmp_path: Path
) -> Iterator[list[DebeziumRoute]]:
    """The two ways through the broker. Their connectors begin with `begin`."""
    made = [DebeziumRoute(shop, connect, broker, tmp_path), DebeziumRoute(shop, connect, broker, tmp_path, registry=registry)]
    yield made
    for route in made:
        route.close()


def assert_equal(routes: list[DebeziumRoute], *tables: str) -> None:
    """Bring each lake up to the source, and compare every row."""
    for route in routes:
        route.once()
        found = [difference for table in tables for difference in route.differences(table)]
        assert found == [], route.form


def test_what_happens_to_rows(shop: Shop, routes: list[DebeziumRoute]) -> None:
    shop.sql("create table notes(id bigint primary key, title text, body text); alter table notes alter body set storage external")
    shop.sql("create table items(id int primary key, n numeric(8, 2))")
    shop.sql(f"insert into notes select i, 't', {LONG} || i from generate_series(1, 12) i")
    for route in routes:
        route.begin()
    # Debezium makes a topic when a row comes: an empty table has none.
    assert_equal(routes, "notes")
    # Inserts, updates, deletes with tombstones, and a key that comes again.
    shop.sql("insert into items select i, i * 1.5 from generate_series(1, 20) i; update items set n = -n where id % 3 = 0")
    shop.sql("delete from items where id % 4 = 0; insert into items values (4, 4)")
    # What was not sent, also of rows whose key changed.
    shop.sql("update notes set title = 'u' where id = 1")
    shop.sql("update notes set id = 20 where id = 2")
    shop.transaction("update notes set id = 30 where id = 3", "update notes set id = 31, title = 'v' where id = 30")
    shop.transaction("update notes set body = 'short' where id = 4", "update notes set id = 40 where id = 4")
    shop.transaction(
        "delete from notes where id = 5", f"insert into notes values (5, 'again', {LONG})", "update notes set title = 'w' where id = 5"
    )
    assert_equal(routes, "notes", "items")
    # A column joins, and rows of both schemas are in one batch.
    shop.sql("insert into items values (50, 1); alter table items add column more text; insert into items values (51, 2, 'm')")
    shop.sql("update items set more = 'x' where id = 1")
    assert_equal(routes, "items")
    shop.transaction("truncate items", "insert into items values (7, 7, 'after')")
    shop.sql("update items set n = 8 where id = 7")
    assert_equal(routes, "notes", "items")
    assert all(len(route.rows("items")) == 1 for route in routes)


VALUES = (
    "{id}, -3, 9007199254740993, -1.500, 123456789012345678901234567890.5, 1.5, 0.1, true, '2024-02-29', '2024-02-29 12:34:56.123456', "
    "'2024-02-29 12:34:56.123456+02', '12:00', '1 day 02:00', E'a,\"b\\n\\tü\\\\.', '', 'ab', '\\x00ff', "
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{{\"a\": [1, null]}}', '{{\"b\":1}}', '{{1,NULL,-3}}', "
    "'{{\"a b\",NULL,\"NULL\"}}', 'bad', 1.25, '10.0.0.1', '[1,5)', '{{1.50,NULL}}'"
)
KINDS = """create table kinds(id int primary key, a smallint, b bigint, c numeric(12, 3), d numeric, e real, f double precision, g boolean,
h date, i timestamp, j timestamptz, k time, l interval, m text, n varchar(5), o char(4), p bytea, q uuid, r jsonb, s json, t int[],
u text[], v mood, w cents, x inet, y int4range, z numeric(6, 2)[])"""
OTHERWISE = {"l": ("int64", 26 * 3600 * 10**6)}
"""Columns that Debezium sends otherwise than the direct route has them. An interval is microseconds there, and text here."""


def test_every_type_is_what_the_direct_route_has(shop: Shop, routes: list[DebeziumRoute]) -> None:
    shop.sql("create type mood as enum ('good', 'bad'); create domain cents as numeric(10, 2) check (value >= 0)")
    shop.sql(KINDS)
    shop.sql(f"insert into kinds values ({VALUES.format(id=1)}); insert into kinds(id) values (2)")
    for route in routes:
        route.begin()
        route.settle()
    shop.sql(f"insert into kinds values ({VALUES.format(id=3)}); insert into kinds(id) values (4)")
    shop.once()
    direct = shop.lake.table("shop.kinds").scan().to_arrow().sort_by("id")
    for route in routes:
        route.once()
        found = route.lake.table("shop.kinds").scan().to_arrow().sort_by("id")
        assert types(found) == {**types(direct), **{name: kind for name, (kind, _) in OTHERWISE.items()}}, route.form
        for name in direct.column_names:
            value = OTHERWISE[name][1] if name in OTHERWISE else None
            wanted = [value, None, value, None] if name in OTHERWISE else direct[name].to_pylist()
            assert found[name].to_pylist() == wanted, (route.form, name)


def types(table: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema}


KILLS = effort(5, with_all=25)


@pytest.mark.parametrize("form", ["json", pytest.param("avro", marks=ALL)])
@pytest.mark.timeout(1200)
def test_transactions_stay_whole_while_the_ingest_is_killed(
    shop: Shop, broker: KafkaBroker, connect: KafkaConnect, registry: SchemaRegistry, tmp_path: Path, form: str
) -> None:
    """By `provide.transaction.metadata`: the sum over two topics is constant at every consistent slot."""
    route = DebeziumRoute(shop, connect, broker, tmp_path, registry=registry if form == "avro" else None)
    found = killed_run(route, debezium_load, tmp_path, 7, kills=KILLS)
    print(f"{form}: {found.said()}")
    assert found.problems == []
    assert len(found.kills) == KILLS and found.after_commits(in_snapshot=False) >= KILLS // 3, found.said()
    assert found.slots >= KILLS // 2 and found.transactions > KILLS * 10, found.said()
