"""Refreshes of derived tables on executors: the rows, the state and the errors of a refresh in this process."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.derived.query import resolve_query
from objcat.derived.same_terms import check_same_in_spark
from objcat.errors import InvalidBatch, InvalidInput, InvalidSql, NullKey
from objcat.lake.lake import Lake
from tests.derived.histories import DrawnQuery, Sources, check_equal, drawn_query
from tests.effort import effort, seeds
from tests.spark.sessions import HAS_CALL, session

QUERIES = effort(2, with_all=4)
ROUNDS = effort(1, with_all=5)


def drawn_for_spark(drawn: random.Random, lake: Lake) -> DrawnQuery:
    """A query that Spark computes."""
    while True:
        query = drawn_query(drawn)
        try:
            check_same_in_spark(resolve_query(query.text, lake))
        except InvalidSql:
            continue
        return query


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", seeds(0, integration=1, with_all=20))
def test_a_refresh_in_either_engine_gives_what_the_query_gives(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    lake = objcat.connect(tmp_path)
    sources = Sources(drawn, lake)
    queries = {}
    for number in range(QUERIES):
        name = f"derived.d{number}"
        queries[name] = drawn_for_spark(drawn, lake)
        lake.create_derived(name, queries[name].text, key=queries[name].key, spark=spark)
        check_equal(lake, name, queries[name], lake.refresh_derived(name))
    for _ in range(ROUNDS):
        for _ in range(drawn.randrange(1, 5)):
            sources.change()
        for name, query in queries.items():
            check_equal(lake, name, query, lake.refresh_derived(name, spark=drawn.choice([spark, spark, None])))
    for name, query in queries.items():
        lake.refresh_derived(name)
        # Either engine finds nothing to change in what the other one wrote.
        done = lake.refresh_derived(name, full=True, spark=spark)
        assert (done.upserted, done.deleted) == (0, 0), query


VALUES = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("big", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("exact", pa.decimal128(18, 4)),
        ("wide", pa.decimal128(30, 10)),
        ("single", pa.float32()),
        ("real", pa.float64()),
        ("said", pa.string()),
        ("other", pa.string()),
        ("yes", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local_at", pa.timestamp("us")),
        ("raw", pa.binary()),
        ('an "odd`.name', pa.int64()),
    ]
)
SAID = [None, "", "a", "B", "b ", " b", "é", "e\u0301", "\U0001f600x", "\U0001f44d\U0001f3fd", "z\u0000", "ß", "\uffee", "%_", "a%c", "abc"]
REALS = [None, 0.0, -0.0, 0.1, -2.5, 1e300, float("inf"), float("-inf"), float("nan"), 2.0**53, 1 / 3]
TIMES = [None, -1, 0, 1, 86_400_000_000 - 1, -86_400_000_001, 1_700_000_000_123_456, -62_135_596_800_000_000, 253_402_300_799_999_999]
BIG = 2**63 - 1
TERMS = """
    tiny + 1; small * 2; whole - 3; -whole; abs(whole); whole % 3; whole div 2; big % 7; big div 10; whole / 4;
    whole / 3.0e0; real / 3; whole * 1.5; price + 1; price * 2; price - exact; price * exact; exact + wide; -price;
    abs(exact); price * 0.125; price + whole; price * small; real + 1; real * 2; real - whole; -real; abs(real); real * 0.1;
    whole + real; CAST(single AS DOUBLE); single; real / nullif(whole, 0); said; said || '!' || other; concat(said, other);
    substring(said, 2); substring(said, 1, 2); substring(said, 3, 0); length(said); trim(said); said LIKE 'a%';
    said LIKE '_'; said LIKE '%b%'; said = other; said < other; said <=> other; greatest(said, other); least(said, other);
    coalesce(said, other, '?'); nullif(said, 'a'); said IN ('a', 'é', NULL); said BETWEEN 'a' AND 'c'; said || '''\\"';
    whole > small; whole = 1.0; price > 1; price = exact; exact < wide; real > 1; real = real; real < 0.5; real > whole;
    price > 0.015; single = single; real BETWEEN 0 AND 2; whole IN (1, 2, NULL); price IN (1, 2.50);
    greatest(whole, small, 2); least(price, exact); greatest(real, 0.5); coalesce(whole, 0); coalesce(price, exact);
    coalesce(whole, price, 0.5); coalesce(real, whole); nullif(whole, 1); nullif(price, 0.10); yes; NOT yes;
    yes AND whole > 1; yes OR whole > 1; yes = true; yes IS NULL; whole IS NOT NULL;
    CASE WHEN yes THEN 1 WHEN whole > 0 THEN 2 END; CASE said WHEN 'a' THEN 'x' WHEN 'é' THEN 'y' ELSE other END;
    CASE WHEN whole > 0 THEN price ELSE whole END; if(yes, whole, big); CAST(whole AS BIGINT); CAST(whole AS DECIMAL(20, 3));
    CAST(whole AS DOUBLE); CAST(big AS DOUBLE); CAST(whole AS STRING); CAST(big AS STRING); CAST(price AS DECIMAL(20, 4));
    CAST(price AS DECIMAL(10, 1)); CAST(exact AS DECIMAL(16, 2)); CAST(wide AS DECIMAL(24, 0)); CAST(NULL AS BIGINT); day;
    day = DATE '2024-02-29'; day > DATE '1969-12-31'; year(day); month(day); day(day); extract(MONTH FROM day);
    CAST(day AS TIMESTAMP); raw; at; CAST(at AS DATE); to_date(at); date(at); year(at); month(at); day(at); hour(at);
    extract(HOUR FROM at); at > TIMESTAMP '1970-01-01 00:00:00Z'; at = TIMESTAMP '2023-11-14 22:13:20.123456+00:00';
    at < TIMESTAMP '2023-11-14 22:13:20'; date_trunc('DAY', at); date_trunc('HOUR', at); date_trunc('MONTH', at);
    date_trunc('YEAR', at); date_trunc('SECOND', at); greatest(at, TIMESTAMP '2000-01-01 00:00:00Z');
    coalesce(day, DATE '2000-01-01'); local_at; CAST(local_at AS DATE); year(local_at); hour(local_at);
    date_trunc('DAY', local_at); local_at > TIMESTAMP_NTZ '1970-01-01 00:00:00'; raw = raw; `an "odd``.name` + 1;
    CASE WHEN `an "odd``.name` > 3 THEN '"' ELSE '`' END; real = 1e300; real > 5e-1
"""
AGGREGATES = """
    count(*); count(said); count(DISTINCT said); count(DISTINCT whole); sum(tiny); sum(small); sum(whole);
    sum(small * 2 + 1); sum(price); sum(exact); sum(wide); sum(price * exact); sum(DISTINCT whole); sum(coalesce(price, 0));
    min(whole); max(big); min(price); max(wide); min(said); max(said); min(other); max(other); min(day); max(day); min(at);
    max(at); min(local_at); max(local_at); min(yes); max(yes); min(real); max(real); min(single); max(single);
    sum(whole) / count(*); max(price) - min(price); min(raw); max(raw); count(CASE WHEN yes THEN 1 END);
    sum(CASE WHEN yes THEN whole ELSE 0 END); sum(whole) FILTER (WHERE yes); max(length(said)); min(real * 2);
    sum(small) - sum(tiny); coalesce(sum(whole), 0); sum(price) > 10; sum(price * 2); count(real); sum(big div 1000);
    count(DISTINCT real); count(DISTINCT price); max(`an "odd``.name`); avg(CAST(small AS DOUBLE))
"""


def listed(text: str) -> list[str]:
    return [" ".join(term.split()) for term in text.split(";") if term.strip()]


def some_values(count: int = 150) -> pa.Table:
    """Rows with values at which engines differ."""
    drawn = random.Random(3)
    rows = [
        {
            "id": number,
            "tiny": drawn.choice([None, 0, 1, -128, 126]),
            "small": drawn.choice([None, 0, 5, -16_384, 16_383]),
            "whole": drawn.choice([None, 0, 1, 2, -7, 7, 2**31 - 10, -(2**31) + 10]),
            "big": drawn.choice([None, 0, 1, -7, 2**53 + 1, BIG, -BIG]),
            "price": drawn.choice(
                [None, *(pa.scalar(text).cast(pa.decimal128(9, 2)).as_py() for text in ("0.00", "0.10", "-1.25", "2.55", "9999.99"))]
            ),
            "exact": drawn.choice(
                [None, *(pa.scalar(text).cast(pa.decimal128(18, 4)).as_py() for text in ("0", "2.5500", "-0.0050", "99999.0051"))]
            ),
            "wide": drawn.choice(
                [None, *(pa.scalar(text).cast(pa.decimal128(30, 10)).as_py() for text in ("0", "0.5", "-1.5", "123456789012.0000000001"))]
            ),
            "single": drawn.choice([None, 0.0, -0.0, 0.1, -1.5, float("nan"), float("inf")]),
            "real": drawn.choice(REALS),
            "said": drawn.choice(SAID),
            "other": drawn.choice(SAID),
            "yes": drawn.choice([None, True, False]),
            "day": drawn.choice([None, -1, 0, 19_782, -719_162, 2_932_896]),
            "at": drawn.choice(TIMES),
            "local_at": drawn.choice(TIMES),
            "raw": drawn.choice([None, b"", b"a", b"\xff\x00"]),
            'an "odd`.name': number,
        }
        for number in range(count)
    ]
    columns = {field.name: pa.array([row[field.name] for row in rows], _stored(field.type)).cast(field.type) for field in VALUES}
    return pa.table(columns, schema=VALUES)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Times are drawn as numbers, since Python has none of some years."""
    return pa.int64() if pa.types.is_timestamp(kind) else (pa.int32() if pa.types.is_date(kind) else kind)


def said_rows(lake: Lake, name: str) -> list[str]:
    """The rows of a table as text, times as numbers. As SQL compares them, 0.0 and -0.0 are one."""
    table = lake.table(name).scan().to_arrow().sort_by("id")
    columns = [column.cast(_stored(column.type)) if pa.types.is_temporal(column.type) else column for column in table.columns]
    plain = pa.table(columns, names=table.column_names).to_pylist()
    return [str({key: value + 0.0 if isinstance(value, float) else value for key, value in row.items()}) for row in plain]


@pytest.mark.parametrize("kind", ["terms", "aggregates"])
def test_each_term_has_one_meaning_in_both_engines(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", VALUES, key=["id"], index=objcat.BucketIndex(1)).upsert(some_values())
    terms = listed(TERMS if kind == "terms" else AGGREGATES)
    columns = ", ".join(f"{term} AS c{number}" for number, term in enumerate(terms))
    query = f"SELECT id, {columns} FROM t" if kind == "terms" else f"SELECT id % 7 AS id, {columns} FROM t GROUP BY id % 7"
    lake.create_derived("here", query, key=["id"])
    lake.create_derived("there", query, key=["id"], spark=spark)
    assert lake.table("here").schema == lake.table("there").schema
    assert said_rows(lake, "there") == said_rows(lake, "here")


QUERIES_OF_VALUES = [
    "SELECT id, rank() OVER (PARTITION BY said ORDER BY whole, id) AS place, row_number() OVER (ORDER BY real DESC, id) AS n FROM t",
    "SELECT id, count(*) OVER (PARTITION BY price) AS n, max(said) OVER (PARTITION BY yes) AS last FROM t",
    "SELECT t.id, o.id AS o, o.price, coalesce(o.said, '-') AS said FROM t LEFT JOIN t o ON t.id + 1 = o.id AND o.price > 1",
    "SELECT coalesce(t.id, -1) AS id, coalesce(o.id, -2) AS o FROM t FULL JOIN t o ON t.id = o.id + 140 AND t.said = o.said",
    "SELECT id, 'a' AS k FROM t UNION ALL SELECT id, 'b' AS k FROM t WHERE id NOT IN (SELECT id FROM t WHERE yes)",
    "SELECT said AS id FROM t WHERE said IS NOT NULL EXCEPT SELECT other FROM t WHERE id < 30",
    "SELECT id, (SELECT max(at) FROM t) AS newest FROM t WHERE EXISTS (SELECT 1 FROM t o WHERE o.id = t.id + 1 AND o.big > t.whole)",
    "WITH g AS (SELECT said, sum(whole) / count(*) AS m FROM t GROUP BY said) SELECT t.id, g.m FROM t JOIN g ON t.said = g.said",
    "SELECT DISTINCT coalesce(real, 0.5e0) AS id, yes IS NULL AS y FROM t",
]


def test_each_query_has_one_meaning_in_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", VALUES, key=["id"], index=objcat.BucketIndex(1)).upsert(some_values(60))
    keys = {4: ["id", "k"], 3: ["id", "o"], 8: ["id", "y"]}
    for number, query in enumerate(QUERIES_OF_VALUES):
        lake.create_derived(f"here{number}", query, key=keys.get(number, ["id"]))
        lake.create_derived(f"there{number}", query, key=keys.get(number, ["id"]), spark=spark)
        assert sorted(said_rows(lake, f"there{number}")) == sorted(said_rows(lake, f"here{number}")), query


REFUSED = """
    upper(said); lower(said); said ILIKE 'a'; said LIKE other; said LIKE 'a\\\\_'; substring(said, 0, 2);
    substring(said, -2); CAST(real AS INT); CAST(price AS INT); CAST(price AS STRING); CAST(real AS STRING);
    CAST(said AS INT); CAST(price AS DOUBLE); CAST(said AS DATE); try_cast(big AS INT); CAST('1 1 2024' AS DATE);
    whole / small; real / 0; whole % small; price / 2; price % 2; real + price; price = real; single = 0.1; single * 2;
    said = whole; said = day; day = at; at = local_at; round(price, 1); floor(real); ceil(price); exp(real);
    day + INTERVAL 1 DAY; date_add(day, 1); datediff(day, day); date_trunc('WEEK', at); date_format(at, 'y'); second(at);
    real > price; price > 1e0; greatest(real, price); coalesce(whole, said); CAST(at AS STRING); hash(id)
"""


@pytest.fixture(scope="module")
def values_lake() -> Lake:
    lake = Lake(FileIO(MemoryBackend()))
    lake.create_table("t", VALUES, key=["id"], index=objcat.BucketIndex(1))
    lake.create_table("nested", pa.schema([("id", pa.int64()), ("parts", pa.list_(pa.int64()))]), key=["id"])
    return lake


@pytest.mark.parametrize("term", [*listed(REFUSED), "avg(price)", "avg(whole)", "stddev(real)"])
def test_what_might_differ_is_refused_in_one_sentence(values_lake: Lake, term: str) -> None:
    query = f"SELECT id, {term} AS c FROM t GROUP BY id" if term.startswith(("avg", "stddev")) else f"SELECT id, {term} AS c FROM t"
    with pytest.raises(
        InvalidSql, match=r"Spark cannot compute this derived table, because .*\. Nothing was done\. Leave out spark="
    ) as error:
        check_same_in_spark(resolve_query(query, values_lake))
    assert len(str(error.value)) < 300


def test_a_column_with_parts_is_refused(values_lake: Lake) -> None:
    with pytest.raises(InvalidSql, match=r"'parts' of 'nested' has the type list"):
        check_same_in_spark(resolve_query("SELECT id, parts FROM nested", values_lake))


class OfConnect:
    """As a session of Spark Connect, which has no JVM in this process."""

    def createDataFrame(self) -> None:  # noqa: N802 - PySpark's name
        """What makes it a session."""


def test_spark_connect_is_refused(values_lake: Lake) -> None:
    with pytest.raises(InvalidInput, match=r"of Spark Connect.*Leave out spark="):
        values_lake.create_derived("copy", "SELECT id FROM t", key=["id"], spark=OfConnect())  # type: ignore[arg-type]
    assert "copy" not in values_lake.tables()


# ---- what a refresh promises


TRIPS = pa.schema([("id", pa.int64()), ("driver", pa.int64()), ("town", pa.string()), ("fare", pa.int64())])
DRIVERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDE = "SELECT t.id, t.town, t.fare, d.name FROM trips t LEFT JOIN drivers d ON t.driver = d.id"
TOWNS = "SELECT coalesce(town, '?') AS town, count(*) AS n, sum(fare) AS fares, count(fare) AS m, max(fare) AS most FROM trips GROUP BY 1"


def trip(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "driver": number % 5, "town": "abc"[number % 3], "fare": 10 * number, **more}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = objcat.connect(tmp_path / "lake")
    made.create_table("trips", TRIPS, key=["id"], index=objcat.BucketIndex(1)).upsert([trip(number) for number in range(20)])
    drivers = made.create_table("drivers", DRIVERS, key=["id"], index=objcat.BucketIndex(1))
    drivers.upsert([{"id": number, "name": f"d{number}"} for number in range(4)])
    return made


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    return sorted(lake.table(name).scan().to_arrow().to_pylist(), key=str)


def is_right(lake: Lake, name: str, query: str) -> bool:
    schema = lake.table(name).schema
    return rows(lake, name) == sorted(lake.sql(query).rename_columns(schema.names).cast(schema).to_pylist(), key=str)


def called(spark: SparkSession, lake: Lake, service: str) -> Any:
    """The row that a service gives, by `spark.sql` where that has CALL."""
    if not HAS_CALL:
        return lake.sql(f"CALL {service}", spark).collect()[0]
    views = objcat.spark.views(spark, lake, catalog="derived_lake")
    try:
        return spark.sql(f"CALL derived_lake.{service}").collect()[0]
    finally:
        views.close()


def test_a_call_runs_in_the_session_of_its_statement_if_asked(spark: SparkSession, lake: Lake) -> None:
    """By executors, with settings that are not those of the user, and nothing of it is left in the session."""
    lake.create_derived("wide", WIDE, key=["id"])
    lake.table("trips").upsert([trip(3, driver=1), trip(30)])
    cached = spark.sparkContext._jsc.getPersistentRDDs().size()
    with session(spark, spark__sql__session__timeZone="Asia/Tokyo", spark__sql__ansi__enabled="false"):
        told = called(spark, lake, "refresh_derived('wide', on_executors => true)")
        assert (spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.ansi.enabled")) == ("Asia/Tokyo", "false")
    assert (told.way, told.upserted, told.deleted, told.rows_read) == ("rows", 2, 0, None)
    assert is_right(lake, "wide", WIDE)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == cached
    assert [view.name for view in spark.catalog.listTables() if view.name.startswith("_objcat")] == []
    spark.sparkContext.setJobGroup("nothing to do", "nothing to do")
    try:
        assert lake.refresh_derived("wide", spark=spark).slot is None
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("nothing to do")) == 0
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_a_call_without_a_word_is_for_queries_that_spark_refuses_too(spark: SparkSession, lake: Lake) -> None:
    lake.create_derived("loud", "SELECT id, upper(town) AS town FROM trips", key=["id"])
    lake.table("trips").upsert([trip(41, town="q")])
    assert called(spark, lake, "refresh_derived('loud')").upserted == 1
    with pytest.raises(InvalidSql, match="Leave out spark="):
        lake.sql("CALL refresh_derived('loud', on_executors => true)", spark)
    with pytest.raises(InvalidSql, match="needs a session of Spark"):
        lake.sql("CALL refresh_derived('loud', on_executors => true)")


def test_a_refresh_of_groups_adds_what_changed(spark: SparkSession, lake: Lake) -> None:
    lake.create_derived("towns", TOWNS, key=["town"], spark=spark)
    assert is_right(lake, "towns", TOWNS)
    lake.table("trips").upsert([trip(40, town="z"), trip(3, fare=-1), trip(4, fare=None), trip(5, town=None)])
    # The greatest value of its group goes.
    lake.table("trips").delete([{"id": 19}])
    done = lake.refresh_derived("towns", spark=spark)
    assert (done.way, done.why) == ("groups", None)
    assert is_right(lake, "towns", TOWNS)
    # In this process the state of a refresh on Spark is as good as its own.
    lake.table("trips").delete("town = 'z'")
    assert (lake.refresh_derived("towns").way, is_right(lake, "towns", TOWNS)) == ("groups", True)


def test_errors_are_those_of_this_process(spark: SparkSession, lake: Lake) -> None:
    for query, key, kind in (
        ("SELECT town, id FROM trips", "town", InvalidBatch),
        ("SELECT d.name, t.id FROM trips t LEFT JOIN drivers d ON t.driver = d.id", "name", NullKey),
        ("SELECT id, CAST(fare * 1000000000 AS INT) AS big FROM trips", "id", InvalidSql),
    ):
        for running in (None, spark):
            with pytest.raises(kind, match="Nothing was written"):
                lake.create_derived("refused", query, key=[key], spark=running)
            assert "refused" not in lake.tables()
    with pytest.raises(InvalidInput, match="is not derived"):
        lake.refresh_derived("trips", spark=spark)
    with pytest.raises(InvalidInput, match="spark is 3"):
        lake.refresh_derived("trips", spark=3)  # type: ignore[arg-type]
    lake.create_derived("wide", WIDE, key=["id"])
    lake.table("drivers").upsert([{"id": 1, "name": "one"}])
    before = rows(lake, "wide")
    lake.create_table("pairs", DRIVERS, key=None).insert([{"id": 1, "name": "a"}])
    lake.create_derived("pairs_by_id", "SELECT id, name FROM pairs", key=["id"], spark=spark)
    lake.table("pairs").insert([{"id": 1, "name": "b"}])
    with pytest.raises(InvalidBatch, match=r"several rows of the key \{'id': 1\}"):
        lake.refresh_derived("pairs_by_id", spark=spark)
    assert rows(lake, "pairs_by_id") == [{"id": 1, "name": "a"}] and rows(lake, "wide") == before


def test_changes_that_were_cleaned_have_the_whole_query_computed(spark: SparkSession, lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    for number in range(4):
        lake.table("trips").upsert([trip(number, fare=number)])
        lake.table("trips").maintenance.compact()
    lake.table("trips").maintenance.clean(keep_commits=1)
    done = lake.refresh_derived("wide", spark=spark)
    assert done.way == "whole" and done.why is not None and "cleaned" in done.why
    assert is_right(lake, "wide", WIDE)


def test_two_refreshes_at_once_count_each_change_once(spark: SparkSession, lake: Lake) -> None:
    lake.create_derived("towns", TOWNS, key=["town"])
    url = lake.fileio.url
    failures: list[BaseException] = []

    def work(running: SparkSession | None) -> None:
        try:
            own = objcat.connect(url)
            for _ in range(2):
                own.refresh_derived("towns", spark=running)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failures.append(error)

    threads = [threading.Thread(target=work, args=(running,)) for running in (spark, spark, None)]
    for number, thread in enumerate(threads):
        lake.table("trips").upsert([trip(50 + number), trip(number, town="b")])
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    shown = {lag.source: lag.slot for lag in lake.derived_lag("towns")}
    assert rows(lake, "towns") == sorted(
        lake.sql(TOWNS.replace("FROM trips", f"FROM trips VERSION AS OF {shown['trips']}")).to_pylist(), key=str
    )
    lake.refresh_derived("towns", spark=spark)
    assert is_right(lake, "towns", TOWNS)
