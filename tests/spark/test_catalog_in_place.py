"""`spark.sql` on tables in place: columns, fields and filters of a query reach what reads the files.

What Spark gets from Python workers is counted, and sources that are gone show which are opened.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
import objcat.spark
from tests.effort import effort, seeds

USER = pa.struct([("name", pa.string()), ("age", pa.int32())])
SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("day_of", pa.date32()),
        ("share", pa.float64()),
        ("payload", pa.struct([("status", pa.int64()), ("user", USER), ("tags", pa.list_(pa.string()))])),
        ("note", pa.string()),
    ]
)
FLAT = pa.schema([field for field in SCHEMA if field.name != "payload"])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def events(begin: int, end: int) -> pa.Table:
    """Rows with nulls in every column but the first, and NaN."""

    def row(n: int) -> dict[str, Any]:
        user = None if n % 5 == 1 else {"name": f"u{n % 4}", "age": n}
        payload = None if n % 7 == 3 else {"status": None if n % 11 == 5 else n, "user": user, "tags": ["a"] * (n % 3)}
        share = [n / 4, float("nan"), None, -0.0][n % 4]
        at = NOON + dt.timedelta(hours=n)
        return {
            "user_id": n,
            "ts": None if n % 13 == 2 else at,
            "day_of": at.date(),
            "share": share,
            "payload": payload,
            "note": None if n % 6 == 0 else f"it's \\n{n % 3}" + "x" * 200,
        }

    return pa.Table.from_pylist([row(n) for n in range(begin, end)], SCHEMA)


def put(path: Path, rows: pa.Table) -> None:
    """A file with some rows, in the format of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".parquet":
            pq.write_table(rows, path, row_group_size=16)
        case ".json":
            path.write_text("".join(json.dumps(row, default=_json) + "\n" for row in rows.to_pylist()).replace("NaN", '"NaN"'))
        case ".csv":
            found = rows.select(FLAT.names).to_pylist()
            lines = (",".join("" if value is None else _json(value) for value in row.values()) for row in found)
            path.write_text("\n".join([",".join(FLAT.names), *lines]))


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else str(value)


class InPlace:
    """A lake in a catalog of its own, and a table over files of one format."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str, precompute: tuple[str, ...] = ()) -> None:
        self.spark, self.folder, self.kind = spark, folder, kind
        self.catalog = f"c{secrets.token_hex(4)}"
        self.lake = objcat.connect(folder / "lake")
        self.schema = FLAT if kind == "csv" else SCHEMA
        source: Any = objcat.Files(f"{folder}/in/*.{kind}", format=kind, precompute=precompute)  # type: ignore[arg-type]
        self.table = self.lake.create_table("logs", self.schema, source=source)
        self.views = objcat.spark.views(spark, self.lake, catalog=self.catalog)

    def add(self, name: str, begin: int, end: int) -> None:
        put(self.folder / f"in/{name}.{self.kind}", events(begin, end))
        self.table.refresh_files()

    def gone(self, name: str) -> None:
        (self.folder / f"in/{name}.{self.kind}").unlink()

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text.replace("LOGS", f"{self.catalog}.logs"))


@pytest.fixture
def utc(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.unset("spark.sql.session.timeZone")


def received(frame: DataFrame) -> tuple[int, int]:
    """Rows and bytes that the workers of a frame that ran gave to Spark."""
    found: Any = frame._jdf.queryExecution().executedPlan()
    rows = size = 0
    waiting = [found]
    while waiting:
        plan = waiting.pop()
        name = plan.getClass().getSimpleName()
        if name == "AdaptiveSparkPlanExec":
            waiting.append(plan.executedPlan())
        elif name.endswith("QueryStageExec"):
            waiting.append(plan.plan())
        else:
            if name.endswith("MapInArrowExec"):
                rows += plan.metrics().apply("pythonNumRowsReceived").value()
                size += plan.metrics().apply("pythonDataReceived").value()
            children = plan.children()
            waiting += [children.apply(at) for at in range(children.size())]
    return rows, size


@pytest.mark.parametrize("kind", ["json", "parquet", "csv"])
def test_columns_and_filters_reach_the_workers(kind: str, utc: SparkSession, tmp_path: Path) -> None:
    """Without precomputed columns, bounds leave out files, and neither other rows nor other columns come to Spark."""
    place = InPlace(utc, tmp_path, kind)
    for number in range(3):
        place.add(f"f{number}", number * 100, number * 100 + 50)
    whole = place.sql("SELECT * FROM LOGS")
    assert len(whole.collect()) == 150
    rows, size = received(whole)
    assert rows == 150
    few = place.sql(f"SELECT user_id FROM LOGS WHERE ts > TIMESTAMP '{NOON + dt.timedelta(hours=215)}' AND user_id < 220")
    place.gone("f0")
    place.gone("f1")
    expected = [n for n in range(216, 220) if n % 13 != 2]
    assert sorted(row.user_id for row in few.collect()) == expected
    few_rows, few_bytes = received(few)
    assert few_rows == len(expected) and few_bytes < size / 20
    counted = place.sql("SELECT max(user_id) AS m FROM LOGS WHERE day_of = DATE '2026-01-10'")
    assert counted.collect()[0].m == 227, "files of other days are not opened"
    place.views.close()


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_queries_of_precomputed_columns_open_no_source(kind: str, utc: SparkSession, tmp_path: Path) -> None:
    place = InPlace(utc, tmp_path, kind, ("user_id", "ts", "payload.status"))
    for number in range(3):
        place.add(f"f{number}", number * 100, number * 100 + 50)
    cached = place.sql("SELECT user_id, note FROM LOGS WHERE payload.status = 7").cache()
    assert cached.count() == 1
    place.gone("f0")
    place.gone("f2")
    late = f"ts >= TIMESTAMP '{NOON + dt.timedelta(hours=140)}'"
    assert place.sql(f"SELECT USER_ID FROM LOGS WHERE {late}").count() == sum(n % 13 != 2 for n in [*range(140, 150), *range(200, 250)])
    found = place.sql("SELECT l.payload.status AS s, count(*) AS n FROM LOGS l WHERE payload.status BETWEEN 205 AND 207 GROUP BY 1")
    assert sorted(tuple(row) for row in found.collect()) == [(205, 1), (207, 1)]
    assert place.sql("SELECT count(*) AS n FROM LOGS").collect()[0].n == 150
    joined = place.sql("SELECT a.user_id FROM LOGS a LEFT JOIN LOGS b ON a.user_id = b.payload.status + 1 WHERE b.user_id IS NULL")
    assert joined.count() == 150 - sum(1 for n in range(250) if n % 100 < 49 and n % 7 != 3 and n % 11 != 5)
    one = place.sql("SELECT * FROM LOGS WHERE payload.status = 109")
    assert [row.user_id for row in one.collect()] == [109], "only the file with the match is opened"
    assert received(one)[0] == 1
    some = place.sql(
        "SELECT (SELECT max(payload.status) FROM LOGS) AS m, user_id FROM LOGS WHERE user_id IN (SELECT payload.status + 1 FROM LOGS)"
    )
    assert {row.m for row in some.collect()} == {249}
    assert cached.count() == 1
    cached.unpersist()
    place.views.close()


def test_promoted_and_masked_rows_are_read_beside(utc: SparkSession, tmp_path: Path) -> None:
    place = InPlace(utc, tmp_path, "json", ("user_id", "payload.status"))
    for number in range(3):
        place.add(f"f{number}", number * 100, number * 100 + 50)
    old = place.table.snapshot.slot
    place.table.maintenance.promote(where="user_id < 50")
    place.table.delete("user_id in (10, 110, 210)")
    for number in range(3):
        place.gone(f"f{number}")
    found = place.sql("SELECT user_id FROM LOGS WHERE payload.status % 100 BETWEEN 9 AND 11")
    assert sorted(row.user_id for row in found.collect()) == [n for n in (9, 11, 109, 111, 209, 211) if n % 7 != 3 and n % 11 != 5]
    past = place.sql(f"SELECT user_id FROM LOGS VERSION AS OF {old} WHERE user_id = 110")
    assert [row.user_id for row in past.collect()] == [110]
    place.views.close()


def test_a_session_without_the_catalog_reads_as_before(utc: SparkSession, tmp_path: Path) -> None:
    place = InPlace(utc, tmp_path, "json", ("user_id",))
    place.add("f0", 0, 50)
    place.views.close()
    frame = place.table.scan().to_spark(utc).where("user_id = 4").select("note")
    assert len(frame.collect()) == 1
    place.gone("f0")
    assert place.table.scan(columns=["user_id"]).to_spark(utc).count() == 50


TERMS = [
    "user_id {op} {n}",
    "ts {op} TIMESTAMP '2026-01-03 {h}:00:00'",
    "day_of {op} DATE '2026-01-0{d}'",
    "share {op} {n}.5",
    "share = double('NaN')",
    "share > 3",
    "payload.status {op} {n}",
    "payload.user.name = 'u{d}'",
    "payload.user.age + 1 {op} {n}",
    "payload IS NULL",
    "payload.user IS NOT NULL",
    "note LIKE '%1x%'",
    "note = concat('it''s ', '')",
    "payload.status <=> {n}",
    "payload.status IN ({n}, {d}, NULL)",
    "note IS NULL",
    "size(payload.tags) = {d}",
    "user_id = payload.user.age",
    "coalesce(payload.status, 0) {op} {n}",
]
OUTPUTS = [
    "user_id",
    "*",
    "payload.status, note",
    "payload.user, user_id",
    "payload.user.name AS n, payload",
    "count(*) AS c, max(payload.status) AS m",
    "upper(note) AS u, share",
    "get(payload.tags, 0) AS t",
    "struct(payload.status, payload.user.age) AS s",
]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("seed", seeds(1, with_all=10))
def test_random_queries_give_what_spark_gives(seed: int, zone: str, utc: SparkSession, tmp_path: Path) -> None:
    """The same text over the rows as a table of Spark's own is the model."""
    drawn = random.Random(f"{seed} {zone}")
    precompute = tuple(
        drawn.sample(["user_id", "ts", "day_of", "share", "payload.status", "payload.user.name", "note"], drawn.randrange(0, 5))
    )
    place = InPlace(utc, tmp_path, drawn.choice(["json", "parquet"]), precompute)
    for number in range(4):
        place.add(f"f{number}", number * 25, number * 25 + 25)
    every = events(0, 100)
    own = f"v{secrets.token_hex(4)}"
    utc.createDataFrame(every).createOrReplaceTempView(own)
    utc.conf.set("spark.sql.session.timeZone", zone)

    def filtered() -> str:
        terms = []
        for _ in range(drawn.randrange(1, 4)):
            term = drawn.choice(TERMS).format(
                op=drawn.choice(["=", "<", ">=", "<>"]), n=drawn.randrange(0, 100), h=drawn.randrange(10, 24), d=drawn.randrange(1, 4)
            )
            terms.append(f"NOT ({term})" if drawn.random() < 0.25 else f"({term})")
        return drawn.choice([" AND ", " OR "]).join(terms)

    for _ in range(effort(12, with_all=40)):
        text = f"SELECT {drawn.choice(OUTPUTS)} FROM LOGS WHERE {filtered()}"
        found, expected = place.sql(text), utc.sql(text.replace("LOGS", own))
        assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect())), (text, precompute, place.kind)
    utc.catalog.dropTempView(own)
    place.views.close()
