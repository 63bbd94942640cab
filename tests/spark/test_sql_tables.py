"""Tables, namespaces and services of a lake by `spark.sql`: what is created, shown, altered, replaced and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.spark import versions
from tests.spark.sessions import CASTS_DEFAULTS, FILLS_COLUMNS, HAS_CALL, HAS_CONSTRAINTS, SHOWS_PROCEDURES


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """An empty lake, which the session knows as `lake`."""
    lake = objcat.connect(tmp_path)
    found = objcat.spark.views(spark, lake)
    yield lake
    found.close()


def test_a_table_is_created_with_all_that_it_can_have(spark: SparkSession, lake: objcat.Lake) -> None:
    typed = "" if CASTS_DEFAULTS else "TIMESTAMP "
    constraint, setting = (", PRIMARY KEY (id, city)", "") if HAS_CONSTRAINTS else ("", "'key' = 'id, city', ")
    spark.sql(f"""
        CREATE TABLE lake.city.trips (
            id BIGINT NOT NULL, city STRING, at TIMESTAMP, note STRING DEFAULT 'none', seen TIMESTAMP DEFAULT {typed}'2026-01-01 10:00:00',
            place STRUCT<lat: DOUBLE, tags: ARRAY<STRING>>{constraint}
        ) USING objcat PARTITIONED BY (city, months(at)) CLUSTERED BY (id) INTO 3 BUCKETS COMMENT 'rides'
        TBLPROPERTIES ({setting}'ordering' = 'at', 'key_scope' = 'partition', 'allowed_lateness' = '7 days', 'notes.by' = 'ana')
    """)
    made = lake.table("city.trips")
    assert (made.key, made.ordering, made.key_scope) == (["id", "city"], "at", "partition")
    assert (made.partitioning, made.index) == (["city", "month(at)"], objcat.BucketIndex(3, ("id",)))
    assert made.allowed_lateness is not None and made.allowed_lateness.days == 7
    assert made.properties == {"comment": "rides", "notes.by": "ana"}
    assert made.schema.field("at").type == pa.timestamp("us", tz="UTC") and not made.schema.field("city").nullable
    given, rest = ("(id, city, at) ", "") if FILLS_COLUMNS else ("", ", DEFAULT, DEFAULT, NULL")
    spark.sql(f"INSERT INTO lake.city.trips {given}VALUES (1, 'Rome', TIMESTAMP '2026-02-01 00:00:00'{rest})")
    (row,) = spark.table("lake.city.trips").collect()
    assert (row.note, str(row.seen), row.place) == ("none", "2026-01-01 10:00:00", None)


def test_what_is_shown_creates_the_same_table(spark: SparkSession, lake: objcat.Lake) -> None:
    for number, (columns, more) in enumerate(
        (
            (
                "(id INT, at DATE, city STRING)",
                "PARTITIONED BY (city, days(at)) TBLPROPERTIES ('key' = 'id', 'index' = 'record(8)', 'ordering' = 'at')",
            ),
            ("(id INT)", "TBLPROPERTIES ('key' = 'id', 'objcat.table_type' = 'copy_on_write', 'index' = 'bloom')"),
            ("(id INT, price DECIMAL(10, 2))", "PARTITIONED BY (truncate(10, id))"),
            ("(id INT, other INT)", "CLUSTERED BY (other) INTO 3 BUCKETS TBLPROPERTIES ('key' = 'id, other')"),
        )
    ):
        spark.sql(f"CREATE TABLE lake.a.t{number} {columns} {more}")
        text = spark.sql(f"SHOW CREATE TABLE lake.a.t{number}").collect()[0].createtab_stmt
        spark.sql(text.replace(f"lake.a.t{number}", f"lake.b.t{number}"))
        first, second = (lake.table(f"{name}.t{number}") for name in ("a", "b"))
        for name in ("key", "ordering", "partitioning", "index", "table_type", "key_scope", "properties"):
            assert getattr(first, name) == getattr(second, name), (number, name)
        assert first.schema == second.schema
    shown = {row.key: row.value for row in spark.sql("SHOW TBLPROPERTIES lake.a.t0").collect()}
    assert shown["key"] == "id" and shown["index"] == "record(8)" and shown["ordering"] == "at"
    told = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED lake.a.t0").collect()}
    assert told["Part 0"] == "city" and told["Part 1"] == "days(at)" and told["Provider"] == "objcat"


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("(id INT, c VARCHAR(5))", r"varchar\(5\) limits the length of values"),
        ("(id INT) USING csv", "USING csv is not supported"),
        ("(id INT) LOCATION '/tmp/x'", "no LOCATION of its own"),
        ("(id INT) USING objcat OPTIONS (a = 'b')", "OPTIONS .* not supported"),
        ("(id INT) PARTITIONED BY (nonsense(id))", "The partition transform nonsense is not supported"),
        ("(id INT) TBLPROPERTIES ('key' = 'nope')", "no column 'nope'"),
        ("(id INT) TBLPROPERTIES ('key' = 'id', 'index' = 'blom')", "The index 'blom' is not known: did you mean 'bloom'"),
        ("(id INT) TBLPROPERTIES ('key' = 'id', 'objcat.key' = 'id')", "The property key is given twice"),
        *([("(id INT, CHECK (id > 0))", "CHECK")] if HAS_CONSTRAINTS else []),
        ("(id INT COMMENT 'x')", "The column 'id' has a COMMENT"),
    ],
)
def test_a_table_that_cannot_be_is_refused(spark: SparkSession, lake: objcat.Lake, statement: str, sentence: str) -> None:
    with pytest.raises(IllegalArgumentException, match=sentence):
        spark.sql(f"CREATE TABLE lake.a.t {statement}")
    assert lake.tables() == []


def test_a_table_is_created_from_a_query_or_not_at_all(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE TABLE lake.a.t TBLPROPERTIES ('key' = 'id') AS SELECT id, id * 2 AS twice FROM range(4)")
    made = lake.table("a.t")
    assert made.key == ["id"] and made.scan().count() == 4 and made.snapshot.slot == 1
    with pytest.raises(AnalysisException, match="already exists"):
        spark.sql("CREATE TABLE lake.a.t AS SELECT 1 AS id")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.a.t AS SELECT 1 AS id")
    assert made.refresh().slot == 1
    with pytest.raises(PySparkException, match="broken row"):
        spark.sql("CREATE TABLE lake.a.broken AS SELECT id, raise_error('broken row') AS x FROM range(2)")
    with pytest.raises(IllegalArgumentException, match="null"):
        spark.sql("CREATE TABLE lake.a.broken TBLPROPERTIES ('key' = 'id') AS SELECT CAST(NULL AS INT) AS id")
    spark.sql("CREATE TABLE lake.a.empty AS SELECT id FROM range(0)")
    assert lake.tables() == ["a.empty", "a.t"] and lake.table("a.empty").schema.names == ["id"]


def test_a_replaced_table_keeps_its_history(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE OR REPLACE TABLE lake.a.t TBLPROPERTIES ('key' = 'id') AS SELECT 1 AS id, 'x' AS c")
    before = lake.table("a.t")
    spark.sql("CREATE OR REPLACE TABLE lake.a.t AS SELECT 2 AS id, 'y' AS c")
    after = lake.table("a.t")
    assert after.id == before.id and after.key == ["id"] and after.snapshot.slot == before.snapshot.slot + 1
    assert [row.id for row in spark.sql("SELECT id FROM lake.a.t VERSION AS OF 1").collect()] == [1]
    spark.sql("REPLACE TABLE lake.a.t (id INT, c STRING)")
    assert lake.table("a.t").scan().count() == 0
    slot = lake.table("a.t").snapshot.slot
    for statement, sentence in (
        ("AS SELECT 2 AS id, 'y' AS d", "columns id int, c string, not id int, d string"),
        ("(id BIGINT, c STRING)", "columns id int, c string, not id bigint, c string"),
        ("TBLPROPERTIES ('key' = 'c') AS SELECT 2 AS id, 'y' AS c", "key="),
        ("PARTITIONED BY (c) AS SELECT 2 AS id, 'y' AS c", "partition_by="),
        ("TBLPROPERTIES ('notes.by' = 'ana') AS SELECT 2 AS id, 'y' AS c", "properties"),
    ):
        with pytest.raises(IllegalArgumentException, match=sentence):
            spark.sql(f"CREATE OR REPLACE TABLE lake.a.t {statement}")
    with pytest.raises(AnalysisException):
        spark.sql("REPLACE TABLE lake.a.none AS SELECT 1 AS id")
    assert lake.table("a.t").snapshot.slot == slot and lake.tables() == ["a.t"]


def test_columns_and_properties_are_altered(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE TABLE lake.a.t (id BIGINT NOT NULL, fare INT NOT NULL, s STRUCT<a: INT>) TBLPROPERTIES ('key' = 'id')")
    spark.sql("INSERT INTO lake.a.t VALUES (1, 5, named_struct('a', 1))")
    wider, other = ("BIGINT", "INT") if versions.READS_WIDENED else ("INT", "STRING")
    for change in (
        "ADD COLUMNS (tip DOUBLE, note STRING DEFAULT 'none' AFTER fare)",
        "ADD COLUMN s.b STRING",
        "RENAME COLUMN tip TO gift",
        f"ALTER COLUMN fare TYPE {wider}",
        "ALTER COLUMN fare DROP NOT NULL",
        "ALTER COLUMN gift FIRST",
        "ALTER COLUMN gift SET DEFAULT 1.5",
        "ALTER COLUMN note DROP DEFAULT",
        "SET TBLPROPERTIES ('notes.by' = 'ana', 'notes.of' = 'trips')",
        "UNSET TBLPROPERTIES ('notes.of')",
    ):
        spark.sql(f"ALTER TABLE lake.a.t {change}")
    spark.sql(f"INSERT INTO lake.a.t {'(id) VALUES (2)' if FILLS_COLUMNS else 'VALUES (DEFAULT, 2, DEFAULT, DEFAULT, NULL)'}")
    found = [tuple(row) for row in spark.sql("SELECT gift, id, fare, note, s.b FROM lake.a.t ORDER BY id").collect()]
    assert found == [(None, 1, 5, "none", None), (1.5, 2, None, None, None)]
    assert lake.table("a.t").properties == {"notes.by": "ana"}
    spark.sql("ALTER TABLE lake.a.t DROP COLUMN note")
    spark.sql("COMMENT ON TABLE lake.a.t IS 'rides'")
    slot = lake.table("a.t").snapshot.slot
    constrained = "A table has no constraints but PRIMARY KEY and NOT NULL of CREATE TABLE" if HAS_CONSTRAINTS else "PARSE_SYNTAX_ERROR"
    for change, sentence in (
        ("ALTER COLUMN fare COMMENT 'x'", "cannot do UpdateColumnComment on fare. Nothing was done"),
        ("ADD COLUMN more INT COMMENT 'x'", "The column 'more' has a COMMENT, which tables do not keep. Nothing was done"),
        ("SET LOCATION '/tmp/x'", "has no LOCATION"),
        ("ADD CONSTRAINT positive CHECK (fare > 0)", constrained),
        ("ADD CONSTRAINT one PRIMARY KEY (id)", constrained),
        ("DROP CONSTRAINT one", constrained),
        ("DROP COLUMN id", "key"),
        (f"ALTER COLUMN fare TYPE {other}", "fare"),
        ("SET TBLPROPERTIES ('target_file_bytes' = 'many')", "target_file_bytes"),
        ("SET TBLPROPERTIES ('key' = 'fare')", "gets its key when it is created"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.sql(f"ALTER TABLE lake.a.t {change}")
    assert lake.table("a.t").snapshot.slot == slot and lake.table("a.t").properties["comment"] == "rides"
    assert spark.table("lake.a.t").columns == ["gift", "id", "fare", "s"]


def test_names_come_and_go(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE NAMESPACE lake.a.b")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.a.b")
    spark.sql("ALTER NAMESPACE lake.a.b SET PROPERTIES ('by' = 'ana')")
    assert lake.namespaces.properties("a.b") == {"by": "ana"}
    spark.sql("CREATE TABLE lake.a.b.t (id INT)")
    spark.sql("ALTER TABLE lake.a.b.t RENAME TO u")
    spark.sql("ALTER TABLE lake.a.b.u RENAME TO a.v")
    assert lake.tables() == ["a.v"]
    with pytest.raises(PySparkException, match="NamespaceNotEmpty: "):
        spark.sql("DROP NAMESPACE lake.a CASCADE")
    with pytest.raises(IllegalArgumentException, match="PURGE is not supported"):
        spark.sql("DROP TABLE lake.a.v PURGE")
    spark.sql("DROP TABLE lake.a.v")
    spark.sql("DROP TABLE IF EXISTS lake.a.v")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("DROP TABLE lake.a.v")
    for name in ("a.b", "a"):
        spark.sql(f"DROP NAMESPACE lake.{name}")
    assert lake.tables() == [] and lake.namespaces.list() == []
    spark.sql("CREATE NAMESPACE lake.n")
    with pytest.raises(AnalysisException, match="SCHEMA_ALREADY_EXISTS"):
        spark.sql("CREATE NAMESPACE lake.n")


@pytest.mark.skipif(not HAS_CALL, reason="Spark has CALL since version 4.0")
def test_services_are_called(spark: SparkSession, lake: objcat.Lake) -> None:
    spark.sql("CREATE TABLE lake.a.t (id INT) TBLPROPERTIES ('key' = 'id')")
    spark.sql("INSERT INTO lake.a.t VALUES (1)")
    (saved,) = spark.sql("CALL lake.savepoint(table => 'a.t', name => 'it''s one')").collect()
    assert saved.saved == 1 and lake.table("a.t").snapshot.slot == 2
    assert {row.slot for row in spark.sql("CALL lake.system.compact('a.t', log_count_min => 1)").collect()} <= {3}
    assert {row.table for row in spark.sql("CALL lake.maintain()").collect()} == {"a.t"}
    if SHOWS_PROCEDURES:
        names = {row.procedure_name for row in spark.sql("SHOW PROCEDURES IN lake").collect()}
        assert {"compact", "clean", "savepoint", "doctor"} <= names
    for call, sentence in (
        ("nonsense(table => 'a.t')", "There is no service 'nonsense'"),
        ("compact(tabel => 'a.t')", "needs to know of which table"),
        ("compact(table => 'a.t', nope => 1)", "compact has no argument 'nope'"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.sql(f"CALL lake.{call}")
