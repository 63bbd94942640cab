"""What differs by the version of Spark: our Java as each compiles it, values through Arrow, casts, and what an older one lacks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

import objcat
import objcat.spark
from fileio.errors import MissingDependency
from objcat.errors import SparkTooOld
from objcat.spark import versions
from objcat.spark.native.janino import compiled

JAVA = {
    "ObjcatFileIndex": ("Relations", None),
    "ObjcatBits": ("Rules", None),
    "ObjcatOrder": ("Rules", 8),
    "ObjcatCatalog": ("Catalogs", 8),
}
ROWS = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int32()),
        "s": pa.array(["a", "é", None]),
        "b": pa.array([b"\x00", None, b""], pa.binary()),
        "d": pa.array([Decimal("1.20"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(1582, 1, 1), None, dt.date(2024, 2, 29)]),
        "at": pa.array([dt.datetime(1900, 1, 1, 12), None, dt.datetime(2024, 1, 1, 0, 0, 0, 1)], pa.timestamp("us", "UTC")),
        "ms": pa.array([dt.datetime(1900, 1, 1, 12), None, dt.datetime(2024, 1, 1, 0, 0, 0, 1000)], pa.timestamp("ms", "UTC")),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "m": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "o": pa.array([{"x": 1.5}, None, {"x": None}], pa.struct([("x", pa.float64())])),
    }
)


def source(name: str) -> str:
    return resources.files("objcat.spark.native").joinpath(f"{name}.java").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", JAVA)
def test_this_version_compiles_our_java(spark: SparkSession, name: str) -> None:
    made, target = JAVA[name]
    assert compiled(spark, name, made, target=target) is not None


def test_every_text_of_the_table_is_in_its_source() -> None:
    names = ["ObjcatFileIndex", "ObjcatBits", "ObjcatOrder", "ObjcatCatalog", "ObjcatFormat"]
    for one in versions.JAVA_TEXTS:
        in_these = [name for name in names if one.source in (None, name) and one.newer in source(name)]
        assert in_these, f"{one.newer!r} is in no source any more"
        assert one.source is None or in_these == [one.source]
        assert one.until is None or one.until in source(in_these[0]).partition(one.newer)[2]


def test_an_older_version_gets_its_own_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = source("ObjcatBits")
    monkeypatch.setattr(versions, "VERSION", (4, 3))
    assert versions.java_source("ObjcatBits", text) == text
    monkeypatch.setattr(versions, "VERSION", (3, 5))
    older = versions.java_source("ObjcatBits", text)
    assert "sql.classic." not in older and "immutable.Seq" not in older and "sql.SparkSession" in older


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_arrow_goes_there_and_back(spark: SparkSession, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    for rows in (ROWS, ROWS.slice(0, 0)):
        frame = versions.from_arrow(session, rows)
        found = versions.to_arrow(frame)
        assert found.cast(versions.arrow_schema(frame.schema)).to_pylist() == rows.to_pylist()


def test_a_cast_that_fails_is_null(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "true")
    frame = session.createDataFrame([("1",), ("x",), (str(2**40),)], "`a.b` string")
    text = F.col("`a.b`")
    again = versions.try_cast(versions.try_cast(text, "bigint") * F.lit(2), IntegerType())
    found = frame.select(
        versions.try_cast(text, "int"), again, F.transform(F.array(text), lambda one: versions.try_cast(one, "int"))
    ).collect()
    assert [tuple(row) for row in found] == [(1, 2, [1]), (None, None, [None]), (None, None, [None])]


def test_what_is_newer_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkTooOld, match=r"^Moons needs Spark 99.1 or newer, and this is Spark \d.*\. Look up\.$"):
        versions.needs((99, 1), "Moons", "Look up.")
    versions.needs(versions.OLDEST, "Moons", "Look up.")
    monkeypatch.setattr(versions, "VERSION", (3, 4))
    with pytest.raises(MissingDependency, match=r"objcat.spark needs PySpark 3.5 or newer"):
        versions.check_supported()


@pytest.mark.skipif(versions.HAS_PYTHON_SOURCES, reason="Spark has data sources in Python since version 4.0")
def test_the_format_names_the_version_that_has_it(spark: SparkSession) -> None:
    said = r'format\("objcat"\) needs Spark 4.0 or newer, and this is Spark 3\.5\.\d+\. Read with scan\(\)'
    with pytest.raises(SparkTooOld, match=said):
        objcat.spark.native_format(spark)
    with pytest.raises(SparkTooOld, match=said):
        __import__("pyspark_objcat")


def test_a_catalog_needs_a_spark_that_tells_writes_from_reads(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.has_class(spark, versions.TARGETS) and not versions.has_class(spark, f"{versions.TARGETS}s")
    monkeypatch.setattr(versions, "TARGETS", f"{versions.TARGETS}s")
    monkeypatch.setattr(versions, "VERSION", (3, 5))
    with pytest.raises(SparkTooOld, match=r"A lake as a catalog needs Spark 3\.5\.3 or newer, and this is Spark .*lake.sql"):
        objcat.spark.views(spark, objcat.connect(tmp_path))


@pytest.mark.skipif(versions.READS_WIDENED, reason="Spark reads columns of narrower types since version 4.0")
def test_a_column_that_was_widened_is_an_error_and_no_other_values(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("id", pa.int64()), ("n", pa.int32())]), key=["id"])
    table.insert([{"id": 1, "n": 2}])
    table.alter.widen_column("n", "bigint")
    assert [row.id for row in table.scan(columns=["id"]).to_spark(spark).collect()] == [1]
    with pytest.raises(Exception, match=r"SchemaColumnConvertNotSupportedException: column: \[n"):
        table.scan().to_spark(spark).collect()
    assert table.scan().to_arrow()["n"].to_pylist() == [2]
