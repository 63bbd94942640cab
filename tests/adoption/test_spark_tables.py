"""What only Spark writes of Iceberg and Delta: position deletes, deletion vectors, column mapping, type widening, old specs.

Spark runs in its own environment, with the jars of both formats. Its own answer is what objcat must read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput
from objcat.inspection.doctor import examine
from tests.adoption.foreign import plain
from tests.effort import ALL
from tests.engines.process import EngineProcess
from tests.engines.readers.serve import Request

COLUMNS = """id BIGINT NOT NULL, city STRING, fare FLOAT, small INT, price DECIMAL(9, 2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
    raw BINARY, place STRUCT<town: STRING, zip: INT>, tags ARRAY<STRING>, counts MAP<STRING, INT>"""
ROWS = """SELECT id, IF(id % 5 = 0, NULL, element_at(array('Oslo', 'Zürich', 'a/b c=%', '東京'), CAST(id % 4 + 1 AS INT))),
    CAST(id / 4 AS FLOAT), CAST(IF(id % 6 = 0, NULL, id) AS INT), CAST(id / 100 AS DECIMAL(9, 2)),
    date_add(DATE'1969-12-30', CAST(id AS INT)), timestamp_micros(id * 3600000001),
    CAST(timestamp_micros(id * 61000001) AS TIMESTAMP_NTZ), CAST(CAST(id AS STRING) AS BINARY),
    IF(id % 3 = 0, NULL, named_struct('town', CAST(id AS STRING), 'zip', CAST(id AS INT))), array(CAST(id AS STRING), NULL),
    map('k', CAST(id AS INT)) FROM range({0}, {1}, 1, 2)"""
"""Rows of two files."""
TRANSFORMS = "months(day), truncate(city, 1), bucket(3, id)"
NAMES = ("id", "city", "fare", "small", "price", "day", "at", "local", "raw", "place", "tags", "counts")


@pytest.fixture(scope="module")
def spark() -> Iterator[EngineProcess]:
    with EngineProcess("spark") as engine:
        yield engine


@pytest.fixture
def lake(spark: EngineProcess) -> objcat.Lake:
    return objcat.connect(spark.folder)


def run(spark: EngineProcess, *statements: str) -> None:
    assert not any(";" in statement for statement in statements)
    spark.read(Request("delta", "", "write", 0, "", ";".join(statements)))


def rows_of(spark: EngineProcess, table_format: str, place: Path) -> list[dict[str, Any]]:
    return plain(spark.read(Request(table_format, str(place), "newest", 0, "")))


def is_written_on(lake: objcat.Lake, name: str, expected: list[dict[str, Any]]) -> None:
    """The rows are as expected, and stay so through an upsert, a delete, a compaction, a clustering and time travel."""
    table = lake.table(name)
    assert plain(table.scan().to_arrow()) == expected
    adopted = table.snapshot.slot
    schema = table.scan().to_arrow().schema
    changed = [expected[1] | {"fare": 77.0}, expected[-1] | {"id": 10_000}]
    table.upsert(pa.Table.from_pylist(changed, schema=schema))
    table.delete(pa.table({"id": [expected[0]["id"]]}))
    now = [changed[0], *expected[2:], changed[1]]
    assert plain(table.scan().to_arrow()) == now
    assert plain(table.scan(where="id >= 10 and id < 20").to_arrow()) == [row for row in now if 10 <= row["id"] < 20]
    table.maintenance.compact()
    assert plain(table.scan().to_arrow()) == now
    table.maintenance.cluster(["fare"])
    assert plain(table.scan().to_arrow()) == now
    assert plain(table.scan(as_of=adopted).to_arrow()) == expected
    assert examine(table._context.timeline, deep=True).healthy


def iceberg(spark: EngineProcess, name: str, version: int, *, partitioned: str = "") -> Path:
    modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))
    properties = f"'format-version'='{version}', {modes}"
    run(
        spark,
        f"CREATE TABLE local.db.{name} ({COLUMNS}) USING iceberg {partitioned} TBLPROPERTIES ({properties})",
        f"INSERT INTO local.db.{name} {ROWS.format(1, 41)}",
    )
    return spark.folder / "iceberg" / "db" / name


@pytest.mark.parametrize(
    ("version", "partitioned"),
    [
        (2, ""),
        (3, "PARTITIONED BY (city)"),
        (2, f"PARTITIONED BY ({TRANSFORMS})"),
        pytest.param(3, "", marks=ALL),
        pytest.param(2, "PARTITIONED BY (city)", marks=ALL),
        pytest.param(3, f"PARTITIONED BY ({TRANSFORMS})", marks=ALL),
    ],
)
def test_rows_that_iceberg_deletes_by_position(spark: EngineProcess, lake: objcat.Lake, version: int, partitioned: str) -> None:
    name = f"d{version}_{len(partitioned)}"
    place = iceberg(spark, name, version, partitioned=partitioned)
    run(
        spark,
        f"DELETE FROM local.db.{name} WHERE id % 7 = 0",
        f"UPDATE local.db.{name} SET fare = -1 WHERE id IN (3, 30)",
        f"INSERT INTO local.db.{name} {ROWS.format(41, 61)}",
        f"DELETE FROM local.db.{name} WHERE id IN (8, 50)",
    )
    result = lake.adopt_iceberg(place, name, key=["id"])
    assert result.format == f"Iceberg v{version}"
    assert set(result.files_rewritten) == {"rows of it are deleted"}
    assert result.files_named > 0 or not partitioned
    assert bool(result.left_out) == ("bucket" in partitioned)
    is_written_on(lake, name, rows_of(spark, "iceberg", place))


def test_a_schema_and_specs_of_iceberg_that_changed(spark: EngineProcess, lake: objcat.Lake) -> None:
    place = iceberg(spark, "evolved", 2)
    run(
        spark,
        "ALTER TABLE local.db.evolved ALTER COLUMN small TYPE BIGINT",
        "ALTER TABLE local.db.evolved ALTER COLUMN price TYPE DECIMAL(12, 2)",
        "ALTER TABLE local.db.evolved ALTER COLUMN fare TYPE DOUBLE",
        "ALTER TABLE local.db.evolved RENAME COLUMN raw TO bytes_7",
        "ALTER TABLE local.db.evolved DROP COLUMN local",
        "ALTER TABLE local.db.evolved ADD COLUMN local STRING AFTER id",
        "ALTER TABLE local.db.evolved ADD COLUMN place.more DOUBLE",
        "ALTER TABLE local.db.evolved ADD PARTITION FIELD days(at)",
        "INSERT INTO local.db.evolved SELECT id, 'new', city, fare, small, price, day, at, raw, named_struct('town', 'x', 'zip', 1, "
        f"'more', 2.0D), tags, counts FROM ({ROWS.format(41, 61)}) AS t({', '.join(NAMES)})",
        "DELETE FROM local.db.evolved WHERE id = 45",
    )
    result = lake.adopt_iceberg(place, "evolved", key=["id"])
    assert result.left_out == ("at_day: day",)
    assert lake.table("evolved").partitioning == []
    is_written_on(lake, "evolved", rows_of(spark, "iceberg", place))


def test_version_1_and_a_field_that_was_removed(spark: EngineProcess, lake: objcat.Lake) -> None:
    run(
        spark,
        f"CREATE TABLE local.db.v1 ({COLUMNS}) USING iceberg PARTITIONED BY (city, years(day)) TBLPROPERTIES ('format-version'='1')",
        f"INSERT INTO local.db.v1 {ROWS.format(1, 21)}",
        "ALTER TABLE local.db.v1 DROP PARTITION FIELD city",
        f"INSERT INTO local.db.v1 {ROWS.format(21, 31)}",
        "DELETE FROM local.db.v1 WHERE id = 4",
    )
    place = spark.folder / "iceberg" / "db" / "v1"
    result = lake.adopt_iceberg(place, "v1", key=["id"])
    assert (result.format, result.files_rewritten) == ("Iceberg v1", {})
    assert lake.table("v1").partitioning == ["year(day)"]
    is_written_on(lake, "v1", rows_of(spark, "iceberg", place))


def test_vectors_that_a_rollback_took_back_delete_nothing(spark: EngineProcess, lake: objcat.Lake) -> None:
    place = iceberg(spark, "back", 3)
    run(
        spark,
        "DELETE FROM local.db.back WHERE id IN (2, 30)",
        "ALTER TABLE local.db.back CREATE TAG first",
        "DELETE FROM local.db.back WHERE id IN (5, 31)",
        "CALL local.system.set_current_snapshot(table => 'db.back', ref => 'first')",
        "DELETE FROM local.db.back WHERE id = 9",
    )
    lake.adopt_iceberg(place, "back", key=["id"])
    found = rows_of(spark, "iceberg", place)
    assert {5, 31} <= {row["id"] for row in found}
    is_written_on(lake, "back", found)


def test_equality_deletes_are_refused_until_they_are_applied(spark: EngineProcess, lake: objcat.Lake) -> None:
    """Flink writes them. The error names what to call, which is done here."""
    place = iceberg(spark, "equal", 2)
    spark.read(Request("iceberg", "local.db.equal", "delete_equal", 0, "", "id = 5"))
    found = rows_of(spark, "iceberg", place)
    assert 5 not in {row["id"] for row in found} and len(found) == 39
    with pytest.raises(InvalidInput, match=r"equality deletes, such as .*rewrite_data_files") as refused:
        lake.adopt_iceberg(place, "equal", key=["id"])
    assert "equal" not in lake.tables()
    call = str(refused.value).partition("first: ")[2].rstrip(".").replace("'...'", "'db.equal'").replace("CALL system", "CALL local.system")
    run(spark, call)
    assert lake.adopt_iceberg(place, "equal", key=["id"]).rows == 39
    is_written_on(lake, "equal", found)


def test_a_table_of_version_2_that_became_version_3(spark: EngineProcess, lake: objcat.Lake) -> None:
    """It has position files of before and vectors of after, for different data files."""
    place = iceberg(spark, "upgraded", 2)
    run(
        spark,
        "DELETE FROM local.db.upgraded WHERE id IN (3, 4)",
        f"INSERT INTO local.db.upgraded {ROWS.format(41, 61)}",
        "ALTER TABLE local.db.upgraded SET TBLPROPERTIES ('format-version'='3')",
        "DELETE FROM local.db.upgraded WHERE id IN (45, 46)",
        f"INSERT INTO local.db.upgraded {ROWS.format(61, 71)}",
    )
    result = lake.adopt_iceberg(place, "upgraded", key=["id"])
    assert (result.format, set(result.files_rewritten)) == ("Iceberg v3", {"rows of it are deleted"})
    assert result.files_named + result.files_rewritten["rows of it are deleted"] == 6 and result.files_named >= 2
    is_written_on(lake, "upgraded", rows_of(spark, "iceberg", place))


def delta(spark: EngineProcess, name: str, *properties: str, partitioned: str = "PARTITIONED BY (city)") -> Path:
    place = spark.folder / "delta" / name
    listed = ", ".join([f"'delta.{one}'" if "=" not in one else "'delta.{}'='{}'".format(*one.split("=")) for one in properties])
    run(
        spark,
        f"CREATE TABLE delta.`{place}` ({COLUMNS}) USING delta {partitioned} TBLPROPERTIES ({listed})",
        f"INSERT INTO delta.`{place}` {ROWS.format(1, 41)}",
    )
    return place


@pytest.mark.parametrize("partitioned", ["", pytest.param("PARTITIONED BY (city)", marks=ALL), "PARTITIONED BY (day, city)"])
def test_rows_that_delta_deletes_by_vectors(spark: EngineProcess, lake: objcat.Lake, partitioned: str) -> None:
    name = f"vectors{len(partitioned)}"
    place = delta(spark, name, "enableDeletionVectors=true", partitioned=partitioned)
    run(
        spark,
        f"DELETE FROM delta.`{place}` WHERE id % 7 = 0",
        f"UPDATE delta.`{place}` SET fare = -1 WHERE id IN (3, 30)",
        f"INSERT INTO delta.`{place}` {ROWS.format(41, 61)}",
        f"DELETE FROM delta.`{place}` WHERE id IN (8, 50)",
    )
    result = lake.adopt_delta(place, name, key=["id"])
    # With a row in each file, a file whose row is deleted is gone.
    assert set(result.files_rewritten) <= {"rows of it are deleted"}
    assert bool(result.files_rewritten) == ("day" not in partitioned)
    assert result.files_named > 0
    is_written_on(lake, name, rows_of(spark, "delta", place))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_that_delta_maps(spark: EngineProcess, lake: objcat.Lake, mode: str) -> None:
    place = delta(spark, f"mapped_{mode}", f"columnMapping.mode={mode}", "enableDeletionVectors=true")
    run(
        spark,
        f"ALTER TABLE delta.`{place}` RENAME COLUMN city TO town",
        f"ALTER TABLE delta.`{place}` RENAME COLUMN raw TO bytes",
        f"ALTER TABLE delta.`{place}` DROP COLUMN local",
        f"ALTER TABLE delta.`{place}` ADD COLUMN (local STRING, place.more DOUBLE)",
        f"ALTER TABLE delta.`{place}` RENAME COLUMN place.town TO place_town",
        f"INSERT INTO delta.`{place}` (id, town, local) VALUES (100, 'Bern', 'x'), (101, NULL, NULL)",
        f"DELETE FROM delta.`{place}` WHERE id IN (2, 100)",
    )
    lake.adopt_delta(place, f"mapped_{mode}", key=["id"])
    table = lake.table(f"mapped_{mode}")
    assert table.partitioning == ["town"]
    is_written_on(lake, f"mapped_{mode}", rows_of(spark, "delta", place))


def test_types_that_delta_widened(spark: EngineProcess, lake: objcat.Lake) -> None:
    place = delta(spark, "wider", "enableTypeWidening=true")
    run(
        spark,
        f"ALTER TABLE delta.`{place}` ALTER COLUMN small TYPE BIGINT",
        f"ALTER TABLE delta.`{place}` ALTER COLUMN fare TYPE DOUBLE",
        f"ALTER TABLE delta.`{place}` ALTER COLUMN price TYPE DECIMAL(14, 4)",
        f"ALTER TABLE delta.`{place}` ALTER COLUMN day TYPE TIMESTAMP_NTZ",
        f"INSERT INTO delta.`{place}` (id, city, small, price) VALUES (100, 'Bern', 5000000000, 1.2345)",
    )
    lake.adopt_delta(place, "wider", key=["id"])
    table = lake.table("wider")
    assert table.scan(where="day < '1970-01-02'").count() == 2
    assert table.scan(where="small > 4000000000 or price = 1.2345").count() == 1
    is_written_on(lake, "wider", rows_of(spark, "delta", place))


def test_checkpoints_of_delta_and_everything_at_once(spark: EngineProcess, lake: objcat.Lake) -> None:
    """A checkpoint in parts, mapped columns, wider types and deletion vectors in one table, after an OPTIMIZE.

    deltalake reads no deletion vectors of a table with wider types, so that feature is dropped first, as the error says.
    """
    properties = (
        "checkpointPolicy=v2",
        "checkpointInterval=3",
        "columnMapping.mode=name",
        "enableDeletionVectors=true",
        "enableTypeWidening=true",
    )
    place = delta(spark, "all_at_once", *properties)
    run(
        spark,
        f"ALTER TABLE delta.`{place}` RENAME COLUMN raw TO bytes",
        f"ALTER TABLE delta.`{place}` ALTER COLUMN small TYPE BIGINT",
        f"DELETE FROM delta.`{place}` WHERE id IN (2, 9)",
        f"INSERT INTO delta.`{place}` (id, city, small) VALUES (100, 'Bern', 5000000000), (101, 'Bern', NULL)",
        f"OPTIMIZE delta.`{place}` WHERE city = 'Bern'",
        f"DELETE FROM delta.`{place}` WHERE id IN (11, 101)",
        f"UPDATE delta.`{place}` SET fare = -1 WHERE id = 3",
    )
    assert list((place / "_delta_log").glob("*.checkpoint.*"))
    with pytest.raises(InvalidInput, match=r"deletion vectors of .*TypeWidening.*DROP FEATURE typeWidening"):
        lake.adopt_delta(place, "all_at_once", key=["id"])
    run(spark, f"ALTER TABLE delta.`{place}` DROP FEATURE typeWidening")
    lake.adopt_delta(place, "all_at_once", key=["id"])
    assert lake.table("all_at_once").scan(where="small > 4000000000").count() == 1
    is_written_on(lake, "all_at_once", rows_of(spark, "delta", place))


def test_a_feature_of_delta_that_objcat_lacks_is_refused(spark: EngineProcess, lake: objcat.Lake) -> None:
    place = spark.folder / "delta" / "variant"
    run(spark, f"CREATE TABLE delta.`{place}` (id BIGINT, v VARIANT) USING delta")
    with pytest.raises(InvalidInput, match=r"variantType|type variant"):
        lake.adopt_delta(place, "variant", key=None)
