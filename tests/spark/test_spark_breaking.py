"""Attempts to lose, double or change a row on Spark: settings of the session, odd names, types, tasks that fail."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, SparkJobFailed
from objcat.spark import foreach_batch
from tests.spark.sessions import session

UTC = dt.UTC
FIELDS = [
    pa.field("id", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("double", pa.float64()),
    pa.field("float", pa.float32()),
    pa.field("decimal", pa.decimal128(38, 10)),
    pa.field("flag", pa.bool_()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("small", pa.int8()),
    pa.field("bytes", pa.binary()),
    pa.field("nested", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.struct([("q", pa.timestamp("us", tz="UTC"))])))])),
    pa.field("map", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2)))),
]
SCHEMA = pa.schema(FIELDS)
OLD = dt.datetime(1500, 1, 1, 12, tzinfo=UTC)
LEAP = dt.datetime(1960, 2, 29, tzinfo=UTC)
NEW = dt.datetime(2026, 1, 1, 12, tzinfo=UTC)
TEXT = "a\\b'c\n\"d🙂"
NESTED = {"x": 100, "l": [{"q": OLD}, None, {"q": None}]}
ROWS = [
    (
        1,
        "Rome",
        1.5,
        0.5,
        Decimal("1.5"),
        True,
        NEW.date(),
        NEW,
        NEW.replace(tzinfo=None),
        1,
        b"x",
        NESTED,
        [("a", [Decimal("1.00"), None])],
    ),
    (2, TEXT, math.nan, math.nan, Decimal("-0.01"), False, OLD.date(), OLD, OLD.replace(tzinfo=None), -1, b"", None, []),
    (3, *[None] * 12),
    (4, "", -0.0, -0.0, Decimal(0), None, LEAP.date(), LEAP, dt.datetime(1, 1, 1), None, b"\xff\x00", {"x": None, "l": None}, None),
]
BATCH = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS], schema=SCHEMA)
IDS = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.int64())])


def normal(table: pa.Table) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row.values())) for row in table.to_pylist())


def both(table: objcat.Table, spark: SparkSession, **scan: Any) -> list[tuple[str, ...]]:
    """The rows of a scan, asserted equal on both engines."""
    planned = table.scan(**scan)
    local = normal(planned.to_arrow())
    assert normal(planned.to_spark(spark).toArrow().cast(planned.schema)) == local
    return local


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.session.timeZone": "America/New_York"},
        {"spark.sql.ansi.enabled": "false", "spark.sql.caseSensitive": "true"},
        {"spark.sql.parquet.enableVectorizedReader": "false"},
        {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY", "spark.sql.parquet.int96RebaseModeInRead": "LEGACY"},
        {"spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION"},
        {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "1", "spark.sql.execution.arrow.useLargeVarTypes": "true"},
    ],
    ids=lambda settings: next(iter(settings)).removeprefix("spark.sql."),
)
def test_no_setting_of_the_session_changes_a_row(spark: SparkSession, tmp_path: Path, settings: dict[str, str]) -> None:
    lake = objcat.connect(tmp_path)
    plain = lake.create_table("plain", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    plain.insert(BATCH)
    logs = lake.create_table("logs", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    copy = lake.create_table("copy", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    with session(spark, **settings):
        logs.upsert(plain.scan().to_spark(spark))
        copy.insert(logs.scan().to_spark(spark))
        for table in (plain, logs, copy):
            assert both(table, spark) == normal(BATCH)
        for where in (
            "at = timestamp '2026-01-01 12:00:00'",
            "at > '2026-01-01 10:00:00'",
            "day < '1582-01-01'",
            "local = '2026-01-01 12:00:00'",
        ):
            assert len(both(plain, spark, where=where)) == len(both(logs, spark, where=where)) == 1


ODD_TEXTS = ["${x}", "a${hiveconf:x}", "it's", "a\\b", "a\nb", "\\n", "\0", '"', "🙂'"]


@pytest.mark.parametrize("escaped", ["false", "true"])
def test_text_that_spark_would_take_for_something_else_means_itself(spark: SparkSession, tmp_path: Path, escaped: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("id", pa.int64()), ("text", pa.string())]), key=["id"])
    texts = [*ODD_TEXTS, "", "a", "b", "its", "x"]
    said = ["'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for text in texts]
    with session(spark, spark__sql__parser__escapedStringLiterals=escaped):
        table.insert([{"id": number, "text": text} for number, text in enumerate(texts)])
        for text, literal in zip(texts, said, strict=True):
            assert both(table, spark, where=f"text = {literal}") == [(repr(texts.index(text)), repr(text))]
        every = " ".join(f"when {number} then concat('>', {literal})" for number, literal in enumerate(said))
        table.update({"text": f"case id {every} end"}, where=f"text in ({', '.join(said[: len(ODD_TEXTS)])}, 'x')", spark=spark)
        changed = {number for number, text in enumerate(texts) if text in (*ODD_TEXTS, "x")}
        became = [f">{text}" if number in changed else text for number, text in enumerate(texts)]
        assert table.scan().to_arrow().sort_by("id")["text"].to_pylist() == became
        assert table.delete(f"text in ({', '.join(said[: len(ODD_TEXTS)])})", spark=spark) is None
        deleted = table.delete(" or ".join(f"text = '>{literal[1:]}" for literal in said[: len(ODD_TEXTS)]), spark=spark)
        assert deleted is not None and deleted.deleted == len(ODD_TEXTS)
        assert table.scan().to_arrow().sort_by("id")["text"].to_pylist() == became[len(ODD_TEXTS) :]


@pytest.mark.parametrize("setting", ["spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"])
def test_a_damaged_file_is_an_error_whatever_the_session_says(spark: SparkSession, tmp_path: Path, setting: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", IDS, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "value": i} for i in range(20)])
    frame = table.scan().to_spark(spark)
    victim = next((tmp_path / "tables").glob("*/data/**/*.parquet"))
    victim.unlink() if "Missing" in setting else victim.write_bytes(b"PAR1 is not all there is to Parquet")
    with session(spark, **{setting: "true"}):
        with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):
            frame.collect()
        with pytest.raises((PySparkException, Py4JJavaError), match=r"FAILED_READ_FILE|PATH_NOT_FOUND"):
            table.scan().to_spark(spark).collect()


def test_columns_that_differ_in_case_alone_are_one_sentence_or_two_columns(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("p", pa.int64()), pa.field("v", pa.int64())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["p"], index=objcat.BucketIndex(2), table_type="copy_on_write")
    table.insert([{"p": 1, "v": 0}, {"p": 2, "v": 0}])
    frame = spark.createDataFrame([(2, 5), (3, 1)], "p long, P long")
    with pytest.raises(InvalidBatch, match="differ only in upper and lower case"):
        table.delete(frame)
    assert table.refresh().slot == 1
    with session(spark, **{"spark.sql.caseSensitive": "true"}):
        table.delete(frame)
    assert table.scan().to_arrow()["p"].to_pylist() == [1]


@pytest.mark.parametrize("folder", ["x[1] {a,b}*?", "p%20q#日本", "year=2020"])
def test_a_lake_may_lie_in_any_folder(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    table = objcat.connect(tmp_path / folder).create_table("t", IDS, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "value": i} for i in range(5)])
    assert len(both(table, spark)) == 5


@pytest.mark.parametrize(
    ("zone", "wanted", "key"),
    [
        ("America/New_York", pa.timestamp("us", tz="UTC"), "date_add(date'2026-01-01', cast(id as int))"),
        ("UTC", pa.timestamp("us", tz="UTC"), "id"),
        ("UTC", pa.int64(), "timestamp_seconds(id)"),
        ("UTC", pa.float64(), "cast(id * 0.1 as decimal(20,3))"),
        ("UTC", pa.decimal128(10, 2), "cast(id / 8 as double)"),
        ("UTC", pa.float64(), "cast(id * 0.1 as float)"),
        ("UTC", pa.decimal128(12, 2), "cast(id as int)"),
    ],
)
def test_keys_of_another_type_make_one_file_of_a_bucket_or_a_sentence(
    spark: SparkSession, tmp_path: Path, zone: str, wanted: pa.DataType, key: str
) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", pa.schema([("k", wanted), ("v", pa.int64())]), key=["k"], index=objcat.BucketIndex(4))
    with session(spark, spark__sql__session__timeZone=zone):
        try:
            table.insert(spark.range(100).selectExpr(f"{key} k", "id v"))
        except InvalidBatch:
            assert [key for key in table._context.fileio.list_keys() if key.startswith("data/")] == []
            return
    assert len(both(lake.table("t"), spark)) == 100


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [float("nan"), -0.0, 1.5, float("inf"), float("-inf")]),
    "float": (pa.float32(), [float("nan"), -0.0, 1.5]),
    "string": (pa.string(), ["", "a", "é", "日本", "a\x00b"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(1, 1, 2, tzinfo=UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    ),
    "boolean": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(38, 1), [Decimal("-1.5"), Decimal("12345678901234567890.5")]),
    "tinyint": (pa.int8(), [-1, 1]),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_type_is_the_same_key_on_both_engines(spark: SparkSession, tmp_path: Path, name: str) -> None:
    data_type, values = KEYS[name]
    schema = pa.schema([pa.field("k", data_type), pa.field("v", pa.int64())])
    rows = pa.table({"k": pa.array(values, data_type), "v": pa.array(range(len(values)), pa.int64())}, schema=schema)
    table = objcat.connect(tmp_path).create_table("t", schema, key=["k"], index=objcat.BucketIndex(3))
    table.insert(rows)
    frame = table.scan().to_spark(spark)
    table.upsert(frame)
    table.insert(frame)
    table.upsert(rows)
    assert len(both(table, spark)) == len(values)
    table.delete(frame.limit(1))
    assert len(both(table, spark)) == len(values) - 1
    table.delete(rows.select(["k"]))
    assert both(table, spark) == []


def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("told to fail")


FAILS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "overflow": (lambda rows: rows.selectExpr("id", "9223372036854775807 + id + 1 value"), r"\[ARITHMETIC_OVERFLOW\] "),
    "cast": (lambda rows: rows.selectExpr("id", "cast(concat('x', id) as bigint) value"), r"\[CAST_INVALID_INPUT\] The value 'x\d+' "),
    "function": (
        lambda rows: rows.select("id", F.udf(lambda number: number // 0, "long")("id").alias("value")),
        "ZeroDivisionError: integer division or modulo by zero",
    ),
    "batches": (lambda rows: rows.mapInArrow(fail, rows.schema), "RuntimeError: told to fail"),
}
FAILING: dict[str, Callable[[objcat.Table, DataFrame], Any]] = {
    "upsert": lambda table, rows: table.upsert(rows),
    "insert": lambda table, rows: table.insert(rows),
    "delete": lambda table, rows: table.delete(rows.selectExpr("value id")),
    "merge": lambda table, rows: table.merge(rows).when_matched_update().when_not_matched_insert().execute(),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "a batch of a stream": lambda table, rows: foreach_batch(table, app_id="failing")(rows, 0),
    "overwrite partitions": lambda table, rows: table.insert_overwrite(rows, where="value < 100"),
}
ON_ANY = [operation for operation in FAILING if operation != "overwrite partitions"]


@pytest.mark.parametrize(
    ("index", "operation", "what"),
    [
        *(("bucket", operation, "batches") for operation in ON_ANY),
        *(("bucket", "upsert", what) for what in FAILS if what != "batches"),
        *(("simple", operation, "function") for operation in ON_ANY),
        ("moves", "upsert", "cast"),
        ("moves", "overwrite partitions", "batches"),
    ],
)
def test_a_job_that_fails_is_one_sentence_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, index: str, operation: str, what: str, by_jobs: None
) -> None:
    settings: dict[str, Any] = {"index": objcat.BucketIndex(2) if index == "bucket" else objcat.SimpleIndex()}
    if index == "moves":
        settings |= {"partition_by": ["value"], "key_scope": "table"}
    table = objcat.connect(tmp_path).create_table("shop.orders", IDS, key=["id"], **settings)
    table.insert([{"id": i, "value": i} for i in range(5)])
    before, kept = set(table._context.fileio.list_keys()), spark.sparkContext._jsc.getPersistentRDDs().size()
    become, said = FAILS[what]
    rows = spark.range(0, 50, 1, 1).selectExpr("id", "id value")
    with pytest.raises(SparkJobFailed, match=rf"^Spark failed at a job \(objcat: .* shop\.orders\): {said}") as caught:
        FAILING[operation](table, become(rows))
    assert "\n" not in str(caught.value) and ". Nothing of it is visible. " in str(caught.value)
    assert isinstance(caught.value.__cause__, (PySparkException, Py4JJavaError))
    # The intent of what was inserted may have gone meanwhile.
    assert set(table._context.fileio.list_keys()) <= before
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_a_source_that_lost_a_file_and_an_update_that_overflows_are_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path / "lake").create_table("t", IDS, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "value": i} for i in range(5)])
    before = set(table._context.fileio.list_keys())
    spark.range(5).selectExpr("id", "id value").coalesce(1).write.parquet(str(tmp_path / "source"))
    source = spark.read.parquet(str(tmp_path / "source"))
    for file in (tmp_path / "source").glob("*.parquet"):
        file.unlink()
    with pytest.raises(SparkJobFailed, match=r"\(objcat: upsert t\): \[FAILED_READ_FILE.FILE_NOT_EXIST\] .*\. Nothing of it is visible\."):
        table.upsert(source)
    with pytest.raises(
        SparkJobFailed, match=r"\(objcat: compute the rows for t\): \[ARITHMETIC_OVERFLOW\] .*\. Nothing of it is visible\."
    ):
        table.update({"value": "9223372036854775807 + value"}, spark=spark)
    assert set(table._context.fileio.list_keys()) == before


READING: dict[str, Callable[[Any, SparkSession], Any]] = {
    "merge": lambda table, spark: (
        table.merge(spark.range(5, 15).selectExpr("id", "-1L value")).when_matched_update().when_not_matched_insert().execute()
    ),
    "update": lambda table, spark: table.update({"value": "-1"}, where="id >= 5 and id < 10", spark=spark),
    "delete": lambda table, spark: table.delete("id >= 5 and id < 10", spark=spark),
}


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("operation", READING)
def test_a_write_whose_rows_spark_reads_natively_is_done_again_when_they_are_cleaned(
    spark: SparkSession, tmp_path: Path, kind: TableType, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = objcat.connect(tmp_path).create_table("t", IDS, key=["id"], index=objcat.BucketIndex(2), table_type=kind)
    table.insert([{"id": i, "value": i} for i in range(10)])
    real = objcat.Scan.to_spark
    done: list[Any] = []

    def disturbed(self: objcat.Scan, session: SparkSession) -> Any:
        frame = real(self, session)
        if not done:
            other = objcat.connect(tmp_path).table("t")
            other.upsert([{"id": 0, "value": 100}, {"id": 1, "value": 100}, {"id": 2, "value": 100}])
            other.maintenance.compact()
            done.append(other.maintenance.clean(keep_slots=1))
        return frame

    monkeypatch.setattr(objcat.Scan, "to_spark", disturbed)
    result = READING[operation](table, spark)
    assert done[0].files and result.attempts == 2
    changed = {"merge": dict.fromkeys(range(5, 15), -1), "update": dict.fromkeys(range(5, 10), -1), "delete": {}}[operation]
    assert {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()} == {0: 100, 1: 100, 2: 100, 3: 3, 4: 4, **changed}


def test_the_last_of_equal_keys_counts_across_partitions(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    frame = spark.range(0, 600, 1, 5).selectExpr("id % 50 id", "id value")
    expected = {key: 550 + key for key in range(50)}
    for operation in ("upsert", "insert"):
        table = lake.create_table(operation, IDS, key=["id"], index=objcat.BucketIndex(4))
        getattr(table, operation)(frame)
        assert {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()} == expected
        assert len(both(table, spark)) == 50


def test_a_frame_stays_at_its_snapshot_while_writers_write(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", IDS, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "value": i} for i in range(20)])
    frame = table.scan().to_spark(spark)
    table.upsert([{"id": i, "value": -1} for i in range(30)])
    assert sorted(row["value"] for row in frame.collect()) == list(range(20))
    assert len(both(table, spark)) == 30


@pytest.mark.parametrize("data_type", [pa.int64(), pa.string()])
def test_a_column_of_the_name_that_sparks_reader_keeps_for_numbers_of_rows(
    spark: SparkSession, tmp_path: Path, data_type: pa.DataType
) -> None:
    name = "_tmp_metadata_row_index"
    schema = pa.schema([pa.field("id", pa.int64()), pa.field(name, data_type)])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))
    for rows in (range(100), range(10)):
        values = pa.array([i * 10 for i in rows]).cast(data_type)
        table.upsert(pa.table([pa.array(rows, pa.int64()), values], schema=schema))
    assert len(both(table, spark)) == 100
    assert len(both(table, spark, where="id = 3")) == 1


ODD_NAMES = ["a.b", ".a", "a", "a b", "`q`", '"d"', "🙂", "_metadata", "key", "element", "a.c", "É", "%s", "{x}", "#", "\n", ",;=()"]


def test_odd_column_names(spark: SparkSession, tmp_path: Path) -> None:
    nested = pa.field("s", pa.struct([("x.y", pa.int64()), ("`z`", pa.list_(pa.int64()))]))
    schema = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, pa.int64()) for name in ODD_NAMES), nested])
    table = objcat.connect(tmp_path).create_table(
        "t", schema, key=["id", "a.b", ".a", "`q`"], ordering="_metadata", index=objcat.BucketIndex(2)
    )
    row = {name: number for number, name in enumerate(ODD_NAMES)} | {"s": {"x.y": 5, "`z`": [1]}}
    table.insert(pa.Table.from_pylist([row | {"id": 1}, row | {"id": 2}], schema=schema))
    assert len(both(table, spark)) == 2
    table.insert(table.scan(where="id = 1").to_spark(spark))
    table.upsert(table.scan(where="id = 2").to_spark(spark))
    table.delete(table.scan(where="id = 2").to_spark(spark))
    assert len(both(table, spark)) == 1
    where = " and ".join(f"`{name.replace('`', '``')}` = {number}" for number, name in enumerate(ODD_NAMES))
    assert len(both(table, spark, where=where, columns=ODD_NAMES[::-1])) == 1
