"""Every line of `docs/reference/spark-sql-statements.md`: what the page says works is run, and what it says does not is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import objcat
import objcat.spark
from devkit.paths import ROOT
from objcat.spark import versions
from tests.spark.sessions import session

PAGE = ROOT / "docs" / "reference" / "spark-sql-statements.md"
Try = str | Callable[[SparkSession, DataFrame, Path], object]
"""A statement, or what a program calls with a session, a frame of rows and a folder."""


def stream(mode: str) -> Try:
    def run(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
        rows.write.json(str(folder / "in"))
        read = spark.readStream.schema(rows.schema).json(str(folder / "in"))
        if mode == "append":
            writing, name = read.writeStream, "lake.a.t"
        else:
            spark.sql("CREATE TABLE lake.a.counts (city STRING, n BIGINT) TBLPROPERTIES ('key' = 'city')")
            writing, name = read.groupBy("city").agg(F.count("*").alias("n")).writeStream.outputMode(mode), "lake.a.counts"
        query = writing.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).toTable(name)
        query.awaitTermination()

    return run


def dynamic(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    with session(spark, spark__sql__sources__partitionOverwriteMode="dynamic"):
        spark.sql("INSERT OVERWRITE lake.a.t VALUES (9, 'Rome', 1.0)")


def over_files(spark: SparkSession, rows: DataFrame, folder: Path) -> None:
    (folder / "in.json").write_text('{"id": 1}\n')
    spark.sql(f"CREATE TABLE lake.a.u USING objcat TBLPROPERTIES ('source' = '{folder}/*.json', 'source.format' = 'json')")


MERGE = "INTO lake.a.t t USING lake.a.s s ON t.id = s.id AND t.city = s.city WHEN"
STARS = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
TRIES: dict[str, Try] = {
    "`INSERT INTO ... VALUES`": "INSERT INTO lake.a.t VALUES (9, 'Rome', 1.0)",
    "`INSERT INTO ... BY NAME`": "INSERT INTO lake.a.t BY NAME SELECT 'Rome' AS city, 9L AS id, 1.0D AS fare",
    "`INSERT INTO ... (columns)`, some of them": "INSERT INTO lake.a.t (city, id) VALUES ('Rome', 9)",
    "`INSERT OVERWRITE`, static": "INSERT OVERWRITE lake.a.t VALUES (9, 'Rome', 1.0)",
    "`INSERT OVERWRITE`, dynamic": dynamic,
    "`INSERT OVERWRITE ... PARTITION`": "INSERT OVERWRITE lake.a.t PARTITION (city = 'Rome') VALUES (9, 1.0)",
    "`INSERT INTO ... REPLACE WHERE`": "INSERT INTO lake.a.t REPLACE WHERE city = 'Rome' SELECT 9L, 'Rome', 1.0D",
    "`UPDATE`": "UPDATE lake.a.t SET fare = fare + 1 WHERE city = 'Rome'",
    "`UPDATE` with a subquery": "UPDATE lake.a.t SET fare = 1 WHERE id IN (SELECT id FROM lake.a.s)",
    "`DELETE`": "DELETE FROM lake.a.t WHERE city = 'Rome'",
    "`DELETE` with a subquery": "DELETE FROM lake.a.t WHERE id IN (SELECT id FROM lake.a.s)",
    "`MERGE`: update, delete, insert": f"MERGE {MERGE} MATCHED AND t.id = 1 THEN DELETE {STARS}",
    "`MERGE`: `NOT MATCHED BY SOURCE`": f"MERGE {MERGE} NOT MATCHED BY SOURCE THEN DELETE",
    "`MERGE WITH SCHEMA EVOLUTION`": f"MERGE WITH SCHEMA EVOLUTION {MERGE} MATCHED AND t.id = 1 THEN DELETE {STARS}",
    "`TRUNCATE TABLE`": "TRUNCATE TABLE lake.a.t",
    "`TRUNCATE TABLE ... PARTITION`": "TRUNCATE TABLE lake.a.t PARTITION (city = 'Rome')",
    "`df.writeTo(t).append()`": lambda _, rows, __: rows.writeTo("lake.a.t").append(),
    "`df.writeTo(t).overwrite(condition)`": lambda _, rows, __: (
        rows.where("city = 'Rome'").writeTo("lake.a.t").overwrite(F.col("city") == "Rome")
    ),
    "`df.writeTo(t).overwritePartitions()`": lambda _, rows, __: rows.writeTo("lake.a.t").overwritePartitions(),
    "`df.mergeInto(t, on)`": lambda _, rows, __: (
        rows.alias("s")
        .mergeInto("lake.a.t", F.expr("t.id = s.id AND t.city = s.city"))
        .whenMatched()
        .updateAll()
        .whenNotMatched()
        .insertAll()
        .merge()
    ),
    "`df.write.insertInto(t)`": lambda _, rows, __: rows.write.insertInto("lake.a.t"),
    "`df.write.saveAsTable(t)`": lambda _, rows, __: rows.write.mode("append").saveAsTable("lake.a.t"),
    "`stream.writeStream.toTable(t)`, append": stream("append"),
    "`stream.writeStream.toTable(t)`, update": stream("update"),
    "`stream.writeStream.toTable(t)`, complete": stream("complete"),
    "`CREATE TABLE`": "CREATE TABLE lake.a.u (id INT, at DATE) USING objcat PARTITIONED BY (months(at)) TBLPROPERTIES ('key' = 'id, at')",
    "`CREATE TABLE ... PRIMARY KEY`": "CREATE TABLE lake.a.u (id INT, PRIMARY KEY (id))",
    "`CREATE TABLE ... ('source' = ...)`": over_files,
    "`CREATE TABLE ... CHECK`": "CREATE TABLE lake.a.u (id INT, CHECK (id > 0))",
    "`CREATE TABLE ... LOCATION`": "CREATE TABLE lake.a.u (id INT) LOCATION '/tmp/none'",
    "`CREATE TABLE ... AS SELECT`": "CREATE TABLE lake.a.u AS SELECT 1 AS id",
    "`CREATE TABLE ... LIKE`": "CREATE TABLE lake.a.u LIKE lake.a.t",
    "`REPLACE TABLE ... AS SELECT`": "CREATE OR REPLACE TABLE lake.a.t AS SELECT id, city, fare FROM lake.a.s",
    "`df.writeTo(t).create()`": lambda _, rows, __: rows.writeTo("lake.a.u").create(),
    "`df.writeTo(t).createOrReplace()`": lambda _, rows, __: rows.writeTo("lake.a.t").createOrReplace(),
    "`ALTER TABLE ... ADD COLUMNS`": "ALTER TABLE lake.a.t ADD COLUMNS (more INT)",
    "`ALTER TABLE ... RENAME COLUMN`": "ALTER TABLE lake.a.t RENAME COLUMN fare TO price",
    "`ALTER TABLE ... DROP COLUMN`": "ALTER TABLE lake.a.t DROP COLUMN fare",
    "`ALTER TABLE ... ALTER COLUMN TYPE`": "ALTER TABLE lake.a.s0 ALTER COLUMN small TYPE BIGINT",
    "`ALTER TABLE ... ALTER COLUMN FIRST`": "ALTER TABLE lake.a.t ALTER COLUMN fare FIRST",
    "`ALTER TABLE ... ALTER COLUMN DROP NOT NULL`": "ALTER TABLE lake.a.s0 ALTER COLUMN small DROP NOT NULL",
    "`ALTER TABLE ... ALTER COLUMN SET DEFAULT`": "ALTER TABLE lake.a.t ALTER COLUMN fare SET DEFAULT 1.5",
    "`ALTER TABLE ... ALTER COLUMN COMMENT`": "ALTER TABLE lake.a.t ALTER COLUMN fare COMMENT 'x'",
    "`ALTER TABLE ... SET TBLPROPERTIES`": "ALTER TABLE lake.a.t SET TBLPROPERTIES ('notes.by' = 'ana')",
    "`ALTER TABLE ... RENAME TO`": "ALTER TABLE lake.a.t RENAME TO u",
    "`ALTER TABLE ... ADD CONSTRAINT`": "ALTER TABLE lake.a.t ADD CONSTRAINT c CHECK (fare > 0)",
    "`ALTER TABLE ... DROP PARTITION`": "ALTER TABLE lake.a.t DROP PARTITION (city = 'Rome')",
    "`COMMENT ON TABLE`": "COMMENT ON TABLE lake.a.t IS 'trips'",
    "`DROP TABLE`": "DROP TABLE lake.a.t",
    "`DROP TABLE ... PURGE`": "DROP TABLE lake.a.t PURGE",
    "`CREATE VIEW` in the catalog": "CREATE VIEW lake.a.v AS SELECT 1 AS one",
    "`CREATE NAMESPACE`": "CREATE NAMESPACE lake.b",
    "`ANALYZE TABLE`": "ANALYZE TABLE lake.a.t COMPUTE STATISTICS",
    "`SELECT ... VERSION AS OF`": "SELECT * FROM lake.a.t VERSION AS OF 1",
    "`SELECT ... TIMESTAMP AS OF`": "SELECT * FROM lake.a.t TIMESTAMP AS OF current_timestamp()",
    "`SELECT ... FROM t.history`": "SELECT snapshot_id FROM lake.a.t.history",
    "`SELECT ... FROM t.snapshots`": "SELECT snapshot_id FROM lake.a.t.snapshots",
    "`SELECT ... FROM t.files`": "SELECT file_path FROM lake.a.t.files",
    "`SELECT ... FROM t.partitions`": "SELECT partition FROM lake.a.t.partitions",
    "`SHOW PARTITIONS`": "SHOW PARTITIONS lake.a.t",
    "`SHOW TABLES`": "SHOW TABLES IN lake.a",
    "`SHOW CREATE TABLE`": "SHOW CREATE TABLE lake.a.t",
    "`SHOW TBLPROPERTIES`": "SHOW TBLPROPERTIES lake.a.t",
    "`DESCRIBE TABLE EXTENDED`": "DESCRIBE TABLE EXTENDED lake.a.t",
    "`CALL`": "CALL lake.compact(table => 'a.t')",
    "`CALL create_derived`": "CALL lake.create_derived('a.u', 'SELECT id, fare FROM a.t WHERE city = \\'Rome\\'', key => array('id'))",
}
OF_SPARK = {"`CREATE TABLE ... LIKE`", "`CREATE VIEW` in the catalog", "`ANALYZE TABLE`"}
"""What is refused by a sentence of Spark's."""
UNKNOWN = {"`CREATE TABLE ... CHECK`", "`ALTER TABLE ... ADD CONSTRAINT`"} if versions.VERSION < (4, 1) else set()
"""What the parser of this version does not know, of what is refused."""


def lines() -> dict[str, str]:
    """What the page says of each statement, in the column of objcat."""
    found = re.findall(r"^\| (.*?) \| (yes|no)\b[^|]* \|[^|]*\|[^|]*\|$", PAGE.read_text().partition("## Older versions")[0], re.MULTILINE)
    return dict(found)


def lacking() -> set[str]:
    """What the page says that this version of Spark lacks."""
    part = PAGE.read_text().partition("## Older versions")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.*?) \| (yes|no) \| (yes|no) \|[^|]*\|$", part, re.MULTILINE)
    column = {"3.5": 1, "4.0": 2}.get(versions.said(versions.VERSION))
    return set() if column is None else {line[0] for line in found if line[column] == "no"}


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[objcat.Lake]:
    """A table `a.t` with rows, and others to take rows from, in a lake that the session knows as `lake`."""
    lake = objcat.connect(tmp_path / "lake")
    found = objcat.spark.views(spark, lake)
    spark.sql("CREATE TABLE lake.a.t (id BIGINT, city STRING, fare DOUBLE) PARTITIONED BY (city) TBLPROPERTIES ('key' = 'id, city')")
    lake.table("a.t").insert([{"id": i, "city": ("Rome", "Oslo")[i % 2], "fare": 1.0} for i in range(6)])
    spark.sql("CREATE TABLE lake.a.s AS SELECT 2L AS id, 'Rome' AS city, 3.0D AS fare, 'more' AS note")
    spark.sql("CREATE TABLE lake.a.s0 (id BIGINT, city STRING, fare DOUBLE, small INT NOT NULL)")
    yield lake
    found.close()


def test_the_page_has_every_statement() -> None:
    assert list(lines()) == list(TRIES)
    assert lacking() <= set(TRIES)


@pytest.mark.parametrize("label", TRIES)
def test_a_statement_works_or_is_refused(spark: SparkSession, lake: objcat.Lake, tmp_path: Path, label: str) -> None:
    one, slot = TRIES[label], lake.table("a.t").snapshot.slot
    rows = spark.createDataFrame([(2, "Rome", 3.0), (9, "Bari", 4.0)], "id long, city string, fare double")

    def run() -> Any:
        return spark.sql(one).collect() if isinstance(one, str) else one(spark, rows, tmp_path)

    if label in lacking():
        with pytest.raises((ParseException, AnalysisException, AttributeError)):
            run()
        assert lake.table("a.t").snapshot.slot == slot and "a.u" not in lake.tables()
        return
    if lines()[label] == "yes":
        run()
        return
    with pytest.raises(PySparkException) as caught:
        run()
    if label not in OF_SPARK | UNKNOWN:
        assert not isinstance(caught.value, ParseException), "the statement itself is wrong"
        assert isinstance(caught.value, IllegalArgumentException) or "Nothing was" in str(caught.value), caught.value
    assert "Traceback" not in str(caught.value) and "JVM stacktrace" not in str(caught.value)
    assert lake.table("a.t").snapshot.slot == slot and "a.u" not in lake.tables()
