"""Queries without Spark: right answers, whatever of them is handed on to the scans of their tables."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidSql, SnapshotExpired, TableNotFound
from objcat.sql.pushdown import Need, needs_of

CITIES = ("Rome", "Oslo", None)
TRIPS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("Fare", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
    ]
)
CITY = pa.schema([pa.field("name", pa.string(), nullable=False), ("country", pa.string())])


def trips() -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = [
        {
            "id": i,
            "city": CITIES[i % 3],
            "Fare": math.nan if i % 7 == 0 else i / 2,
            "at": start + dt.timedelta(hours=i),
            "day": (start + dt.timedelta(hours=i)).date(),
            "price": i,
        }
        for i in range(100)
    ]
    return pa.Table.from_pylist(rows, schema=TRIPS)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    lake = objcat.connect(tmp_path_factory.mktemp("lake"))
    made = lake.create_table("shop.trips", TRIPS, key=["id"], index=objcat.BucketIndex(4))
    made.insert(trips().slice(0, 60))
    made.upsert(trips().slice(50))
    lake.create_table("city", CITY, key=["name"]).insert([{"name": "Rome", "country": "I"}, {"name": "Paris", "country": "F"}])
    return lake


QUERIES = [
    "SELECT count(*) FROM shop.trips",
    "SELECT * FROM shop.trips WHERE id = 7",
    "SELECT id, Fare FROM shop.trips t WHERE t.id BETWEEN 3 AND 9 AND t.city = 'Rome'",
    "SELECT ID FROM shop.trips WHERE FARE > 40",
    "SELECT id FROM shop.trips WHERE isnan(Fare) OR city IS NULL",
    "SELECT shop.trips.id FROM shop.trips WHERE shop.trips.id < 5",
    "SELECT city, sum(price) AS total, max(at) AS last FROM shop.trips WHERE day >= DATE '2026-01-02' GROUP BY city",
    "SELECT t.id, c.country FROM shop.trips t JOIN city c ON t.city = c.name WHERE c.country = 'I' AND t.id < 20",
    # A filter on the side that an outer join fills must not go below the join.
    "SELECT t.id, c.country FROM shop.trips t LEFT JOIN city c ON t.city = c.name WHERE c.country IS NULL",
    "SELECT t.id, c.country FROM shop.trips t LEFT JOIN city c ON t.city = c.name WHERE t.id > 90 AND c.name IS NULL",
    "SELECT t.id, c.name FROM shop.trips t RIGHT JOIN city c ON t.city = c.name WHERE t.id IS NULL",
    "SELECT t.id, c.name FROM shop.trips t FULL JOIN city c ON t.city = c.name WHERE t.city IS NULL AND c.name <> 'x'",
    "SELECT t.id FROM shop.trips t LEFT ANTI JOIN city c ON t.city = c.name WHERE t.id < 50",
    "SELECT t.id FROM shop.trips t LEFT SEMI JOIN city c ON t.city = c.name WHERE t.id < 50",
    "WITH r AS (SELECT * FROM shop.trips WHERE city = 'Rome') SELECT count(*) FROM r a JOIN r b ON a.id = b.id",
    "WITH city AS (SELECT id FROM shop.trips) SELECT count(*) FROM city",
    "SELECT id FROM shop.trips o WHERE EXISTS (SELECT 1 FROM city c WHERE c.name = o.city) AND id < 9",
    "SELECT id FROM shop.trips WHERE city IN (SELECT name FROM city WHERE country = 'I') ORDER BY id LIMIT 3",
    "SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) AS n FROM shop.trips WHERE city = 'Oslo'",
    "SELECT id FROM shop.trips WHERE id < 3 UNION ALL SELECT id FROM shop.trips WHERE id > 97",
    "SELECT x.n FROM (SELECT count(id) AS n, city FROM shop.trips GROUP BY city) x WHERE x.city = 'Rome'",
    "SELECT id FROM shop.trips WHERE id = '7'",
    "SELECT id FROM shop.trips WHERE at < '2026-01-01 05:00:00'",
    "SELECT * EXCEPT (price) FROM shop.trips WHERE id = 7",
    "SELECT t.id FROM shop.trips t LEFT SEMI JOIN city name ON t.city = name.name WHERE t.id < 50",
    "SELECT 1 AS one",
]


def answer(rows: pa.Table) -> list[tuple[str, ...]]:
    """Rows in an order, values as text: NaN equals itself."""
    return sorted(tuple(str(value) for value in row.values()) for row in rows.to_pylist())


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_is_that_of_the_whole_rows(lake: objcat.Lake, query: str) -> None:
    import sqlglot

    plain = duckdb.connect()
    plain.sql("CREATE SCHEMA shop")
    source = {"shop.trips": trips(), "city": lake.table("city").scan().to_arrow()}
    for name, rows in source.items():
        plain.register("given", rows)
        plain.sql(f"CREATE TABLE {name} AS SELECT * FROM given")
    expected = plain.sql(sqlglot.transpile(query, read="spark", write="duckdb", identify=True)[0]).to_arrow_table()
    found = lake.sql(query)
    assert isinstance(found, pa.Table) and found.column_names == expected.column_names
    if "LIMIT" not in query:
        assert answer(found) == answer(expected)
    else:
        assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id FROM t WHERE city = 'Rome' AND id > 3", Need(["id", "city"], "(`city` = 'Rome') AND (`id` > 3)")),
        ("SELECT count(*) FROM t", Need([], None)),
        ("SELECT * FROM t WHERE id = 1", Need(["id", "city", "Fare"], "(`id` = 1)")),
        ("SELECT fare FROM t WHERE fare > 1", Need(["Fare"], None)),
        ("SELECT id FROM t WHERE lower(city) = 'rome'", Need(["id", "city"], None)),
        ("SELECT id FROM t WHERE id = 1 OR city = 'x'", Need(["id", "city"], "(`id` = 1 OR `city` = 'x')")),
        ("SELECT t.id FROM t LEFT JOIN u ON t.id = u.id WHERE t.id > 1 AND u.id > 2", Need(["id"], "(`id` > 1)")),
        ("SELECT t.id FROM u LEFT JOIN t ON t.id = u.id WHERE t.id > 1 AND u.id > 2", Need(["id"], None)),
        ("SELECT t.id FROM t RIGHT JOIN u ON t.id = u.id WHERE t.id > 1", Need(["id"], None)),
        ("SELECT t.id FROM t, u WHERE t.id > 1 AND t.id = u.id", Need(["id"], "(`id` > 1)")),
        ("SELECT id FROM t WHERE id > 1e18", Need(["id"], None)),
        ("SELECT nonsense FROM t WHERE id > 1", Need(None, None)),
    ],
)
def test_what_a_scan_is_asked_for(query: str, expected: Need) -> None:
    import sqlglot

    schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("Fare", pa.float64())])
    tree = sqlglot.parse_one(query, dialect="spark")
    assert isinstance(tree, sqlglot.exp.Query)
    found = needs_of(tree, {"t": schema, "u": pa.schema([("id", pa.int64())])})["t"]
    assert found == expected


def test_a_query_reads_no_files_but_those_that_its_filter_leaves(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("trips", TRIPS, key=["id"], index=objcat.BucketIndex(4))
    table.insert(trips())
    kept = {group.base.path for group in table.scan(where="id = 7").plan.groups if group.base is not None}
    for path in tmp_path.glob("tables/*/data/**/*.parquet"):
        if not any(str(path).endswith(name) for name in kept):
            path.unlink()
    assert len(kept) == 1
    assert lake.sql("SELECT t.city FROM trips t WHERE t.id = 7").to_pylist() == [{"city": "Oslo"}]
    with pytest.raises(objcat.errors.CorruptTable):
        lake.sql("SELECT city FROM trips")


def test_the_past_is_read_by_slot_and_by_time(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]), key=["id"])
    first = table.insert([{"id": 1, "v": 1}])
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    joined = "SELECT a.v, b.v AS w FROM t VERSION AS OF 1 a FULL JOIN t b ON a.id = b.id ORDER BY w, a.v NULLS LAST"
    assert lake.sql(joined).to_pylist() == [{"v": 1, "w": 2}, {"v": None, "w": 2}]
    when = dt.datetime.fromtimestamp(first.committed_at_ms / 1000, dt.UTC).isoformat()
    assert lake.sql(f"SELECT v FROM t TIMESTAMP AS OF '{when}'").to_pylist() == [{"v": 1}]
    with pytest.raises(InvalidInput, match="no slot 9"):
        lake.sql("SELECT * FROM t VERSION AS OF 9")
    for said in ("'x'", "1.5"):
        with pytest.raises(InvalidSql, match="is no slot\\. Write a whole number"):
            lake.sql(f"SELECT * FROM t VERSION AS OF {said}")
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    with pytest.raises(SnapshotExpired):
        lake.sql("SELECT * FROM t VERSION AS OF 1")


def test_the_past_has_the_columns_that_it_had(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.int64()), ("gone", pa.string())])
    table = lake.create_table("t", schema, key=["id"])
    row = {"id": 1, "v": 10, "w": 100, "gone": "g"}
    first = table.insert([row])
    swap = [objcat.RenameColumn("v", "x"), objcat.RenameColumn("w", "v"), objcat.RenameColumn("x", "w")]
    table.alter.apply([objcat.RenameColumn("id", "number"), *swap, objcat.DropColumn("gone"), objcat.AddColumn("more", "string")])
    when = dt.datetime.fromtimestamp(first.committed_at_ms / 1000, dt.UTC).isoformat()
    for past in ("VERSION AS OF 1", f"TIMESTAMP AS OF '{when}'"):
        assert lake.sql(f"SELECT * FROM t {past}").to_pylist() == [row]
        assert lake.sql(f"SELECT count(*) AS n FROM t {past}").to_pylist() == [{"n": 1}]
        assert lake.sql(f"SELECT gone, v FROM t {past} WHERE v = 10 AND id = 1").to_pylist() == [{"gone": "g", "v": 10}]
        joined = f"SELECT a.gone, a.v, b.v AS now, b.more FROM t b JOIN t {past} a ON a.id = b.number"
        assert lake.sql(joined).to_pylist() == [{"gone": "g", "v": 10, "now": 100, "more": None}]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("SELECT nonsense FROM city", InvalidSql, "nonsense"),
        ("SELECT * FROM citi", TableNotFound, "city"),
        ("SELECT * FROM", InvalidSql, "does not parse"),
        ("", InvalidInput, "sql is empty"),
        ("SELECT 1; SELECT 2", InvalidSql, "Run one statement at a time"),
        ("EXPLAIN SELECT 1", InvalidSql, "is not a supported statement"),
        ("VACUUM city", InvalidSql, "is not a supported statement"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, InvalidSql, "deep"),
        (7, InvalidInput, "sql"),
    ],
)
def test_what_does_not_work_is_one_sentence(lake: objcat.Lake, text: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        lake.sql(text)


def test_an_error_of_a_scan_comes_out_as_it_is(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
    table.insert([{"id": 1}])
    for path in tmp_path.glob("tables/*/data/**/*.parquet"):
        path.unlink()
    with pytest.raises(objcat.errors.CorruptTable):
        lake.sql("SELECT * FROM t")


def test_a_scan_is_a_source_for_whatever_reads_arrow(lake: objcat.Lake) -> None:
    import polars as pl

    scan = lake.table("shop.trips").scan(where="id < 10", columns=["id", "city"])
    assert pa.table(scan).num_rows == pl.DataFrame(scan).height == 10
    connection = duckdb.connect()
    connection.register("chosen", scan)
    twice = connection.sql("SELECT count(*) FROM chosen a JOIN chosen b ON a.id = b.id").fetchall()
    assert twice == [(10,)] and next(itertools.chain(connection.sql("SELECT max(id) FROM chosen").fetchall())) == (9,)
