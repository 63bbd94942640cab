"""What a filter of a DataFrame leaves out: files of which no row can pass, and never another."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from fileio.testing.env import FakeEnv
from objcat.metadata import manifest_levels
from tests.spark.plans import files_read, rows_and_files, rows_decoded
from tests.spark.scripts import comparable

NAN = float("nan")
LONG = "z" * 70
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("g", pa.int32()),
        ("tiny", pa.int8()),
        ("d", pa.decimal128(20, 2)),
        ("s", pa.string()),
        ("long text", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("flag", pa.bool_()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("some", pa.int32()),
        ("none", pa.int32()),
        ("bin", pa.binary()),
        ("place", pa.struct([("x", pa.float64()), ("n", pa.int32())])),
    ]
)


def row(g: int, i: int) -> dict[str, object]:
    """Of file `g`, the `i`th of three."""
    day = dt.date(2026, 1, 1) + dt.timedelta(days=g)
    time = dt.datetime(2026, 1, 1, g, i)
    return {
        "id": g * 10 + i,
        "g": g,
        "tiny": g * 10 + i,
        "d": Decimal(g * 10 + i) / 4,
        "s": f"k{g}{i}",
        "long text": f"{LONG}{g}",
        "day": day,
        "at": time.replace(tzinfo=dt.UTC),
        "local": time,
        "flag": g >= 5,
        "x": NAN if (g, i) == (2, 1) else -0.0 if g == 0 else float(g),
        "y": NAN if (g, i) == (4, 0) else float(g),
        "some": None if g < 3 or (g < 6 and i == 0) else g,
        "none": None,
        "bin": bytes([g]),
        "place": {"x": NAN if i else -0.0, "n": g},
    }


ROWS = pa.Table.from_pylist([row(g, i) for g in range(10) for i in range(3)], schema=SCHEMA)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> objcat.Table:
    made = objcat.connect(tmp_path_factory.mktemp("lake")).create_table(
        "t", SCHEMA, key=["id"], partition_by=["g"], key_scope="partition", index=objcat.BucketIndex(1)
    )
    made.insert(ROWS)
    return made


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> DataFrame:
    """The same rows without anything to prune by."""
    return spark.createDataFrame(ROWS)


@pytest.fixture(scope="module")
def passing(plain: DataFrame) -> dict[str, list[int]]:
    """By filter, the ids of the rows that pass it."""
    rows = plain.select("id", *(F.expr(where).alias(f"f{number}") for number, (where, _) in enumerate(FILTERS))).collect()
    return {where: sorted(row["id"] for row in rows if row[f"f{number}"]) for number, (where, _) in enumerate(FILTERS)}


FILTERS = [
    ("id = 23", 0),
    ("id = 21", 1),
    ("21 = id", 1),
    ("id <=> 21", 1),
    ("id > 72", 2),
    ("72 < id", 2),
    ("id >= 72", 3),
    ("id < 10", 1),
    ("id <= 10", 2),
    ("10 >= id", 2),
    ("not (id < 72)", 3),
    ("not (id >= 20 and id < 70)", 5),
    ("id between 12 and 20", 2),
    ("id in (1, 42, 99)", 2),
    ("id in (1, null)", 1),
    ("id not in (1, 2)", 10),
    ("id = 1 or s = 'k91' or flag is null", 2),
    ("id = 1 and s = 'k91'", 0),
    ("id + 1 = 22", 10),
    ("cast(tiny as bigint) = 21L", 1),
    ("cast(tiny as int) > 92", 0),
    ("cast(id as string) = '21'", 10),
    ("tiny = 21", 1),
    ("d = 5.25", 1),
    ("d > 22.5", 1),
    ("d < 0.251", 1),
    ("s = 'k31'", 1),
    ("s > 'k9'", 1),
    ("s < 'k0'", 0),
    ("s like 'k3%'", 1),
    ("s like '%31'", 10),
    ("s = ''", 0),
    (f"`long text` = '{LONG}3'", 10),
    (f"`long text` < '{LONG[:64]}'", 0),
    (f"`long text` > '{LONG}'", 10),
    ("day = date'2026-01-03'", 1),
    ("day > date'2026-01-09'", 1),
    ("at >= timestamp_ltz'2026-01-01 08:00:00Z'", 2),
    ("at = timestamp_ltz'2026-01-01 08:01:00Z'", 1),
    ("local < timestamp_ntz'2026-01-01 01:00:00'", 1),
    ("flag", 5),
    ("not flag", 5),
    ("flag = true", 5),
    ("flag <> true", 5),
    ("x = 3", 1),
    ("x = 0.0", 1),
    ("x = -0.0", 1),
    ("x < 1", 1),
    ("x <= 1", 2),
    ("x > 8", 10),
    ("x >= 9", 10),
    ("x <> 3", 10),
    ("not (x < 1)", 10),
    ("not (x > 1)", 2),
    ("x = double('NaN')", 10),
    ("x < double('NaN')", 10),
    ("x in (3, 4)", 2),
    ("x in (3, double('NaN'))", 10),
    ("isnan(x)", 10),
    ("y > 100", 10),
    ("y = float(4)", 1),
    ("cast(y as double) < 1", 1),
    ("some is null", 6),
    ("some is not null", 7),
    ("some = 8", 1),
    ("some <=> null", 6),
    ("not (some <=> null)", 7),
    ("not (some <=> 4)", 10),
    ("(some > 8) is null", 6),
    ("not (some = 8)", 6),
    ("none = 1", 0),
    ("none is null", 10),
    ("none in (1, 2)", 0),
    ("bin = X'03'", 10),
    ("place.n = 3", 10),
    ("place.x = 0.0", 10),
    ("place.x > 1", 10),
    ("g = 3", 1),
    ("g = 3 and id = 42", 0),
    ("true", 10),
    ("false", 0),
]


def ids_of(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.parametrize(("where", "files"), FILTERS, ids=[where.replace(LONG, "z..") for where, _ in FILTERS])
def test_a_filter_leaves_out_files_and_no_row(
    spark: SparkSession, table: objcat.Table, passing: dict[str, list[int]], where: str, files: int
) -> None:
    rows, read = rows_and_files(table.scan().to_spark(spark).where(where).select("id"))
    assert sorted(row["id"] for row in rows) == passing[where]
    assert read == files


def test_long_lists_leave_files_out_too(spark: SparkSession, table: objcat.Table, plain: DataFrame) -> None:
    scan = table.scan()
    for column, members, files in [
        ("id", [5, 21, 23, *range(100, 130)], 1),
        ("s", ["k21", "k92", *(f"m{i}" for i in range(30))], 2),
        ("x", [3.0, *(i + 0.5 for i in range(20, 40))], 1),
        ("x", [3.0, NAN, *(i + 0.5 for i in range(20, 40))], 10),
        ("day", [dt.date(2026, 1, 3), *(dt.date(2027, 1, i) for i in range(1, 25))], 1),
    ]:
        frame = scan.to_spark(spark).where(F.col(column).isin(members))
        assert ids_of(frame) == ids_of(plain.where(F.col(column).isin(members)))
        assert files_read(frame) == files, column


@pytest.mark.parametrize("number", ["18446744073709551616", "9223372036854775807.5", "1" + "0" * 45])
def test_no_null_passes_a_comparison_with_a_number_beyond_all_integers(spark: SparkSession, table: objcat.Table, number: str) -> None:
    for where in (f"some <= {number}", f"-{number} < none or id = 3", f"some between -{number} and {number}", f"some in ({number}, 1)"):
        scan = table.scan(where=where, columns=["id"])
        assert ids_of(scan.to_spark(spark)) == sorted(scan.to_arrow().column("id").to_pylist()), where


@pytest.mark.parametrize(
    "number", ["0.1000000000000000055511151231257827021181583404541015625", "3." + "0" * 60, "-1" + "0" * 45, "1e-400"]
)
def test_a_floating_column_is_compared_with_a_number_of_any_length(spark: SparkSession, table: objcat.Table, number: str) -> None:
    for where in (f"x > {number}", f"not ({number} < x)", f"x = {number} or id = 3", f"x in ({number}, 1.5)", f"x between {number} and 9"):
        scan = table.scan(where=where, columns=["id"])
        assert ids_of(scan.to_spark(spark)) == sorted(scan.to_arrow().column("id").to_pylist()), where


@pytest.mark.parametrize(
    "number",
    [
        "1" + "0" * 45,
        "-" + "9" * 39,
        "0." + "0" * 40 + "1",
        "1.1" + "0" * 41,
        "-0." + "9" * 39,
        "0.00000000010000000000000000001",
        "9999999999999999999999999999.50000000000000",
        "1." + "0" * 39 + "1e0",
        "1e-50",
    ],
)
def test_an_exact_column_is_compared_with_a_number_of_any_length(spark: SparkSession, tmp_path: Path, number: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("wide", pa.decimal128(38, 10)), ("narrow", pa.decimal128(5, 2))])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    values = [("9999999999999999999999999999.5", "1.10"), ("0.0000000001", "-999.99"), (None, None), ("-1", "0.00"), ("0", "1.00")]
    rows = [{"wide": wide and Decimal(wide), "narrow": narrow and Decimal(narrow)} for wide, narrow in values]
    table.insert([{"id": id_, **row} for id_, row in zip((0, 1, 2, -1, 9 * 10**18), rows, strict=True)])
    for column in ("wide", "narrow", "id"):
        for template in ("{} > {}", "not ({1} < {0})", "{} <> {} or id = 2", "{} in ({}, 1)", "{} not in ({})", "{} between -1 and {}"):
            scan = table.scan(where=template.format(column, number), columns=["id"])
            assert ids_of(scan.to_spark(spark)) == sorted(scan.to_arrow().column("id").to_pylist()), template.format(column, number)


@pytest.mark.parametrize("term", ["wide < 1" + "0" * 45, "wide > -0." + "9" * 39, "id < 0.00000000010000000000000000001"])
def test_an_update_on_spark_goes_by_a_number_of_any_length(spark: SparkSession, tmp_path: Path, term: str) -> None:
    """What a scan can filter by is its filter: said as a part of the program, Spark would round such a number or refuse it."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("wide", pa.decimal128(38, 10)), ("n", pa.int64())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(1))
    values = ["9999999999999999999999999999.5", "0.0000000001", None, "-1", "0"]
    table.insert([{"id": id_, "wide": wide and Decimal(wide), "n": 0} for id_, wide in zip((0, 1, 2, -1, 9), values, strict=True)])
    expected = set(table.scan(where=term, columns=["id"]).to_arrow()["id"].to_pylist())
    assert 0 < len(expected) < 5
    done = table.update({"n": "n + 1"}, where=f"{term} AND n % 7 = 0", spark=spark)
    assert done is not None and done.updated == len(expected)
    assert set(table.scan(where="n = 1").to_arrow()["id"].to_pylist()) == expected


def test_an_equal_key_is_looked_up_in_its_bucket(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int32())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["a", "b"], index=objcat.BucketIndex(8))
    table.insert(pa.table({"a": list(range(400)), "b": [str(i % 2) for i in range(400)], "v": [1] * 400}, schema=schema))
    frame = table.scan().to_spark(spark)
    assert files_read(frame.where("a = 7 and b = '1'")) == 1
    assert files_read(frame.where("b in ('1', '0') and a = 7")) <= 2
    assert files_read(frame.where("a = 7")) > 2
    assert frame.where("a = 7 and b = '1'").count() == 1
    # After a split, of a file that both halves share as well.
    table.maintenance.split_buckets()
    halved = table.scan().to_spark(spark).where("a = 7 and b = '1'")
    assert files_read(halved) == 1
    assert halved.count() == 1


def test_metadata_is_not_taken_for_columns(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("file_name", pa.string()), ("_metadata", pa.int64()), ("row_index", pa.int64())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))
    rows = [{"id": i, "file_name": f"f{i}", "_metadata": i, "row_index": -i} for i in range(2000)]
    table.insert(pa.Table.from_pylist(rows, schema=schema))
    table.upsert(pa.Table.from_pylist([{**row, "_metadata": -1} for row in rows], schema=schema))
    # Of one file group only, so that its log rows are a part of an object.
    table.maintenance.compact(file_groups=sorted(table.snapshot.live_group_ids(table._context.manifests))[:1])
    scan = table.scan(where="_metadata = -1 and row_index <= 0 and file_name > 'f'")
    assert comparable(scan.to_spark(spark).toArrow()) == comparable(scan.to_arrow())
    assert scan.to_arrow().num_rows == 2000


def test_what_is_known_is_asked_only_of_files_that_are_read(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_levels, "SHARD_ITEMS", 8)
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    # With this clock checkpoints are written at once.
    lake = objcat.connect(tmp_path, env=FakeEnv(3))
    written = lake.create_table("t", schema, key=["id"], partition_by=["city"], key_scope="partition", index=objcat.BucketIndex(1))
    written.upsert([{"id": i, "city": f"city {i}"} for i in range(100)])
    for _ in range(40):
        written.upsert([{"id": 0, "city": "city 0"}])
    table = objcat.connect(tmp_path).table("t")
    assert len(table.snapshot.table.manifest) >= 5
    before = table._context.fileio.metrics.snapshot().requests.get("get", 0)
    rows = table.scan(where="city = 'city 50'").to_spark(spark)
    # The last one verifies the footer of the file that is read.
    assert table._context.fileio.metrics.snapshot().requests["get"] - before <= 3
    assert [tuple(row) for row in rows.collect()] == [(50, "city 50")]
    assert table.scan().to_spark(spark).where("city = 'city 51'").count() == 1


PAGED = 70_000
"""Rows of one row group, of pages of 20,000 rows each."""


def paged_rows() -> pa.Table:
    epoch = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": range(PAGED),
            "name": pa.array([None if i % 3 == 0 or i < 25_000 else f"n{i:06d}" for i in range(PAGED)]),
            "price": pa.array([Decimal(i) / 4 for i in range(PAGED)], pa.decimal128(15, 2)),
            "at": pa.array([epoch + dt.timedelta(seconds=i) for i in range(PAGED)], pa.timestamp("us", tz="UTC")),
            "x": pa.array([float("nan") if i % 20_000 == 7 else -0.0 if i % 2 else float(i) for i in range(PAGED)]),
        },
        schema=pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("name", pa.string()),
                ("price", pa.decimal128(15, 2)),
                ("at", pa.timestamp("us", tz="UTC")),
                ("x", pa.float64()),
            ]
        ),
    )


def test_of_a_row_group_only_the_pages_are_decoded_that_a_filter_can_mean(spark: SparkSession, tmp_path: Path) -> None:
    rows = paged_rows()
    table = objcat.connect(tmp_path).create_table("t", rows.schema, key=["id"], index=objcat.BucketIndex(1))
    table.insert(rows)
    for where, decoded_max in [
        ("id = 41000", 20_000),
        ("id in (7, 69999)", 40_000),
        ("id between 19990 and 20010", 40_000),
        ("name = 'n041000'", 20_000),
        ("price >= 17499.00", 20_000),
        ("at < timestamp '2024-01-01 00:00:10+00:00'", 20_000),
        ("name is null and id > 60000", 40_000),
        ("x = 0.0 and id < 100", 20_000),
        ("x = 60000.0", PAGED),
    ]:
        scan = table.scan(where=where, columns=["id", "name"])
        frame = scan.to_spark(spark)
        assert rows_decoded(frame) <= decoded_max, where
        assert sorted(row["id"] for row in frame.collect()) == sorted(scan.to_arrow()["id"].to_pylist()), where
        assert frame.count() > 0, where
