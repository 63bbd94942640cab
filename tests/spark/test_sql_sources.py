"""CREATE TABLE over files by `spark.sql`: it is the table that the call in Python makes, or it is refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

import objcat
import objcat.spark
from tests.spark.sessions import ESCAPES_SHOWN, HAS_CONSTRAINTS


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """An empty lake, which the session knows as `lake`, and files in `in` beside it."""
    for day in (1, 2):
        (tmp_path / f"in/day={day}/web").mkdir(parents=True)
        (tmp_path / f"in/day={day}/web/a.json").write_text(f'{{"id": {day}, "user": {{"name": "u"}}, "note": "x"}}\n')
        (tmp_path / f"in/day={day}/web/a.log").write_text(f"{day} WARN\nno line\n")
    lake = objcat.connect(tmp_path / "lake")
    found = objcat.spark.views(spark, lake)
    yield lake
    found.close()


def test_it_is_the_table_of_the_call_in_python(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    given = f"{tmp_path}/in/**/*.json"
    create = f"""
        lake.logs.app USING objcat COMMENT 'logs' TBLPROPERTIES (
            'source' = '{given}', 'source.format' = 'json', 'source.path_columns' = 'day int',
            'source.precompute' = 'id, user.name', 'source.on_missing' = 'drop', 'note.by' = 'ana'
        )"""
    spark.sql(f"CREATE TABLE {create}")
    source = objcat.Files(given, format="json", path_columns={"day": "int"}, precompute=["id", "user.name"], on_missing="drop")
    same = lake.create_table("same", source=source, properties={"comment": "logs", "note.by": "ana"})
    made = lake.table("logs.app")
    assert (made.spec.in_place, made.schema, made.partitioning) == (same.spec.in_place, same.schema, same.partitioning)
    assert made.properties == same.properties and made.key is None
    lake.sql("CALL refresh_files('logs.app')", spark)
    assert [row.id for row in spark.sql("SELECT id, day FROM lake.logs.app WHERE day = 2").collect()] == [2]
    slot = lake.table("logs.app").snapshot.slot
    with pytest.raises(AnalysisException, match="already exists"):
        spark.sql(f"CREATE TABLE {create}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {create}")
    assert lake.table("logs.app").snapshot.slot == slot
    # What is shown creates it again.
    text = spark.sql("SHOW CREATE TABLE lake.logs.app").collect()[0].createtab_stmt
    spark.sql(text.replace("lake.logs.app", "lake.b.app"))
    again = lake.table("b.app")
    assert (again.spec.in_place, again.schema, again.properties) == (made.spec.in_place, made.schema, made.properties)


def test_columns_of_lines_are_declared(spark: SparkSession, lake: objcat.Lake, tmp_path: Path) -> None:
    """A raw literal keeps the backslashes of an expression. A column of the path has its declared type."""
    spark.sql(rf"""
        CREATE TABLE lake.lines (n BIGINT, level STRING, day INT, host STRING) TBLPROPERTIES (
            'source' = '{tmp_path}/in/day=*/{{host}}/*.log, {tmp_path}/none/{{host}}/*.log', 'source.format' = 'text',
            'source.line' = r'(?P<n>\d+) (?P<level>\w+)', 'source.bad_rows' = 'permit', 'source.path_columns' = 'day'
        )""")
    made = lake.table("lines")
    assert made.refresh_files().bad_rows == 2
    assert made.schema.field("day").type == pa.int32() and made.partitioning == ["day", "host"]
    found = sorted(made.scan().to_arrow().to_pylist(), key=str)
    assert found == [{"n": n, "level": "WARN", "day": n, "host": "web"} for n in (1, 2)]
    text = spark.sql("SHOW CREATE TABLE lake.lines").collect()[0].createtab_stmt
    if not ESCAPES_SHOWN:
        text = text.replace("'source.line' = '", "'source.line' = r'")
    spark.sql(text.replace("lake.lines", "lake.again"))
    assert lake.table("again").spec.in_place == made.spec.in_place


JSON = "'source' = 'IN/**/*.json', 'source.format' = 'json'"


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("CREATE TABLE lake.t TBLPROPERTIES ('source' = 'IN/**/*.json')", "needs the property 'source.format'"),
        (f"CREATE TABLE lake.t TBLPROPERTIES ({JSON}, 'source.formt' = 'x')", "Known are source, source.format, source.path_columns"),
        ("CREATE TABLE lake.t TBLPROPERTIES ('source' = 'IN/*', 'source.format' = 'jsn')", "format='jsn' is not known"),
        ("CREATE TABLE lake.t TBLPROPERTIES ('source' = 'IN/', 'source.format' = 'json')", "names a folder"),
        ("CREATE TABLE lake.t TBLPROPERTIES ('source' = 's3://b/*.json', 'source.format' = 'json')", "they are in the same kind of store"),
        ("CREATE TABLE lake.t TBLPROPERTIES ('source' = 'IN/none/*', 'source.format' = 'json')", "There is no file at"),
        (f"CREATE TABLE lake.t (id INT) PARTITIONED BY (id) TBLPROPERTIES ({JSON})", "Leave out PARTITIONED BY, and name columns of the"),
        (f"CREATE TABLE lake.t (id INT) CLUSTERED BY (id) INTO 2 BUCKETS TBLPROPERTIES ({JSON})", "An index does not fit a table over"),
        (f"CREATE TABLE lake.t (id INT) TBLPROPERTIES ({JSON}, 'key' = 'id')", "A PRIMARY KEY does not fit a table over files"),
        (f"CREATE TABLE lake.t (id INT) TBLPROPERTIES ({JSON}, 'ordering' = 'id')", "The property ordering does not fit a table over"),
        (f"CREATE TABLE lake.t (id INT DEFAULT 3) TBLPROPERTIES ({JSON})", "A DEFAULT does not fit a table over files"),
        (f"CREATE TABLE lake.t TBLPROPERTIES ({JSON}) AS SELECT 1 AS id", "names a source and a query"),
        (f"CREATE OR REPLACE TABLE lake.there TBLPROPERTIES ({JSON})", "a REPLACE does not change which files"),
        ("ALTER TABLE lake.there SET TBLPROPERTIES ('source.line' = 'x')", "The files of a table are said when it is created"),
        ("CREATE TABLE lake.t (id INT) USING json OPTIONS (path 'IN')", "USING json is not supported|no LOCATION"),
        *(
            [(f"CREATE TABLE lake.t (id INT, PRIMARY KEY (id)) TBLPROPERTIES ({JSON})", "A PRIMARY KEY does not")]
            if HAS_CONSTRAINTS
            else []
        ),
    ],
)
def test_what_does_not_fit_is_refused(spark: SparkSession, lake: objcat.Lake, tmp_path: Path, statement: str, sentence: str) -> None:
    table = lake.create_table("there", pa.schema([("id", pa.int64())]), key=None)
    with pytest.raises(PySparkException, match=sentence) as raised:
        spark.sql(statement.replace("IN/", f"{tmp_path}/in/").replace("'IN'", f"'{tmp_path}/in'"))
    assert isinstance(raised.value, IllegalArgumentException) or "Nothing was" in str(raised.value)
    assert lake.tables() == ["there"] and table.refresh().slot == 0
