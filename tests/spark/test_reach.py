"""`lake.sql(text, spark)`: the text reaches the tables of the lake, and neither files, the environment nor commands of the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from fileio import FileIOError
from objcat.errors import InvalidPredicate, InvalidSql, ObjcatError
from tests.tables.test_foreign_paths import leads_out

BEYOND = (
    *("SELECT * FROM text.`{file}`", "SELECT * FROM csv.`{file}`", "SELECT * FROM parquet.`{file}`", "SELECT * FROM `{file}`"),
    *("SELECT * FROM identifier('text.`{file}`')", "SELECT TRANSFORM(id) USING 'cat {file}' AS (x) FROM trips", "SELECT ${{env:PATH}}"),
    *("SELECT reflect('java.lang.System', 'getenv', 'PATH')", "SELECT java_method('java.lang.System', 'getenv', 'PATH')"),
    *("SELECT `reflect`('java.lang.System', 'getenv', 'PATH')", "SELECT try_reflect('java.lang.System', 'getenv', 'PATH')"),
    *(
        "SELECT system.builtin.reflect('java.lang.System', 'getenv', 'PATH')",
        "SELECT 1 AS `${{env:PATH}}`",
        "SELECT * FROM view_of_session",
    ),
    *("ADD JAR '{file}'", "ADD FILE '{file}'", "SET spark.app.name = x", "CREATE FUNCTION f AS 'x' USING JAR '{file}'", "LIST JARS"),
    *("CREATE TABLE x USING csv OPTIONS (path '{file}')", "CREATE TABLE x USING csv LOCATION '{file}'", "EXECUTE IMMEDIATE 'SELECT 1'"),
    *("INSERT OVERWRITE DIRECTORY '{file}' SELECT 1", "SELECT :x", "CREATE TEMPORARY VIEW v AS SELECT 1", "REFRESH '{file}'"),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    lake = objcat.connect(tmp_path_factory.mktemp("lake"))
    lake.create_table("trips", pa.schema([("id", pa.int64()), ("city", pa.string())]), key=["id"]).upsert([{"id": 1, "city": "Rome"}])
    return lake


@pytest.mark.parametrize("text", BEYOND)
def test_text_reaches_the_tables_and_nothing_else(spark: SparkSession, lake: objcat.Lake, tmp_path: Path, text: str) -> None:
    file = tmp_path / "secret"
    file.write_text("hush")
    spark.range(1).createOrReplaceTempView("view_of_session")
    with pytest.raises(ObjcatError):
        lake.sql(text.format(file=file), spark).collect()
    assert lake.tables() == ["trips"] and file.read_text() == "hush"


def test_a_variable_in_text_is_text(spark: SparkSession, lake: objcat.Lake) -> None:
    (row,) = lake.sql("SELECT '${env:PATH}' AS a, concat('it''s ', \"${system:user.name}\") AS b, city FROM trips", spark).collect()
    assert tuple(row) == ("${env:PATH}", "it's ${system:user.name}", "Rome")
    assert os.environ["PATH"] not in str(row)
    assert [tuple(row) for row in lake.sql("SELECT '`_objcat_0`' AS a, '{_objcat_0}' AS b FROM trips", spark).collect()] == [
        ("`_objcat_0`", "{_objcat_0}")
    ]


def test_expressions_do_not_reach_it_either(spark: SparkSession, lake: objcat.Lake) -> None:
    table = lake.table("trips")
    for value in ("reflect('java.lang.System', 'getenv', 'PATH')", "java_method('java.lang.System', 'getenv', 'PATH')"):
        with pytest.raises(InvalidPredicate, match="beyond"):
            table.update({"city": value}, spark=spark)
        with pytest.raises(InvalidPredicate):
            table.delete(f"city = {value}", spark=spark)
        with pytest.raises((InvalidPredicate, InvalidSql)):
            lake.sql(f"MERGE INTO trips t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET city = {value}", spark)


def test_what_calls_java_by_name_is_known(spark: SparkSession) -> None:
    """Every function of this Spark which does so is refused."""
    from objcat.predicate.sql_reach import CALLS

    found = set()
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        told = " ".join(row[0] for row in spark.sql(f"DESCRIBE FUNCTION `{name}`").collect())
        if "Reflect" in told:
            found.add(name)
    assert found and found <= CALLS


@pytest.mark.parametrize("kind", ["logs", "bases"])
def test_a_path_of_an_entry_stays_below_its_log(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Who may write to the bucket may name any file; Spark is not told to read it."""
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("trips", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(1))
    (table.insert if kind == "bases" else table.upsert)([{"id": 1}])
    outside = leads_out(table, tmp_path)
    assert outside.exists()
    with pytest.raises((ObjcatError, FileIOError)):
        lake.table("trips").scan().to_spark(spark).collect()
    with pytest.raises((ObjcatError, FileIOError)):
        lake.sql("SELECT * FROM trips", spark).collect()
