"""`format("objcat")` in a session that was told to read it natively: what is pushed down, and that no query gets the rows of another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import objcat
import objcat.spark
from objcat.errors import InvalidInput
from objcat.spark import versions
from tests.spark.plans import exchanges, files_read, rows_decoded, shuffled, text_of
from tests.spark.sessions import of_unions, session

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("v", pa.float64())])
ROWS = 2000


@pytest.fixture
def own(spark: SparkSession) -> SparkSession:
    """A session of its own, which reads the format natively."""
    made = spark.newSession()
    made.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    objcat.spark.native_format(made)
    objcat.spark.native_format(made)
    return made


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    made = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    made.insert(pa.table({"id": range(ROWS), "city": [f"c{i % 10}" for i in range(ROWS)], "v": [1.0] * ROWS}, schema=SCHEMA))
    return made


def loaded(spark: SparkSession, table: objcat.Table, **options: str) -> DataFrame:
    return spark.read.format("objcat").options(**options).load(place_of(table))


def place_of(table: objcat.Table) -> str:
    """Of its lake, and its name in there."""
    return f"{table._context.fileio.describe().url.partition('/tables/')[0]}/{table.name}"


def test_filters_and_columns_reach_the_files(own: SparkSession, table: objcat.Table) -> None:
    rows = loaded(own, table)
    one = rows.where("id = 7").select("v")
    text = text_of(one)
    assert "ReadSchema: struct<id:bigint,v:double>" in text and "EqualTo(id,7)" in text
    assert "(Python)" not in text and "BatchScan" not in text
    assert "ReadSchema: struct<v:double>" in text_of(rows.selectExpr("sum(v)"))
    with session(own, spark__sql__adaptive__enabled="false"):
        assert files_read(rows.where("id = 7").select("v")) == 1 and files_read(rows.where("id is null")) == 0
        assert files_read(rows.select("v")) == 4 and rows_decoded(rows.where("id = 7")) < ROWS / 2
        assert rows.where("id = 7").collect() == [(7, "c7", 1.0)]


def test_each_query_of_a_frame_has_its_own_filter(own: SparkSession, table: objcat.Table) -> None:
    """Also where Spark pushes filters into data sources in Python, and keeps them."""
    table.upsert([{"id": 7, "city": "new", "v": 2.0}])
    for pushes in ("false", "true"):
        with session(own, spark__sql__python__filterPushdown__enabled=pushes):
            rows = loaded(own, table)
            assert [row.v for row in rows.where("id = 7").collect()] == [2.0]
            assert rows.count() == ROWS and rows.where("id < 3").count() == 3
            both = rows.where("id < 10").join(rows.where("id > 5").select("id"), "id")
            assert sorted(row.id for row in both.collect()) == [6, 7, 8, 9]
            assert rows.where("id = 1").union(rows.where("id = 2")).select("id").collect() == [(1,), (2,)]


@of_unions
def test_an_aggregate_on_the_key_shuffles_log_rows_only(own: SparkSession, table: objcat.Table) -> None:
    table.upsert([{"id": 7, "city": "new", "v": 2.0}])
    grouped = loaded(own, table).groupBy("id").count()
    assert shuffled(grouped) == {"log"} and exchanges(grouped) == 1 and grouped.count() == ROWS


@pytest.mark.skipif(versions.VERSION < (4, 1), reason="Spark pushes filters into data sources in Python since version 4.1")
def test_spark_still_keeps_a_pushed_filter_for_other_queries(spark: SparkSession) -> None:
    """Why the format has no `pushFilters`. Once this fails on every version of Spark, it may have it."""
    from pyspark.sql.datasource import EqualTo

    class Reader(DataSourceReader):
        wanted: object = None

        def pushFilters(self, filters):  # noqa: N802
            self.wanted = next((one.value for one in filters if isinstance(one, EqualTo)), None)
            return filters

        def read(self, partition: InputPartition):
            yield from ((i,) for i in range(5) if self.wanted in (None, i))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "objcat_test_numbers"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Numbers)
    with session(spark, spark__sql__python__filterPushdown__enabled="true"):
        rows = spark.read.format("objcat_test_numbers").load()
        assert rows.count() == 5
        assert rows.where("id = 3").count() == 1
        assert rows.count() == 1


def test_sql_with_views_and_subqueries(own: SparkSession, table: objcat.Table) -> None:
    own.sql(f"CREATE TEMPORARY VIEW trips USING objcat OPTIONS (path '{place_of(table)}')")
    text = "SELECT count(*) FROM trips WHERE id IN (SELECT id + 1 FROM trips WHERE city = 'c3') AND v >= (SELECT min(v) FROM trips)"
    found = own.sql(text)
    assert found.collect() == [(ROWS // 10,)] and "(Python)" not in text_of(found)
    query = "SELECT a.city, count(*) FROM trips a JOIN trips b ON a.id = b.id WHERE a.id < 100 GROUP BY a.city HAVING count(*) > 9"
    assert own.sql(query).count() == 10
    own.catalog.dropTempView("trips")


def test_a_frame_stays_at_the_slot_of_its_first_action(own: SparkSession, table: objcat.Table) -> None:
    rows = loaded(own, table)
    table.upsert([{"id": ROWS, "city": "new", "v": 2.0}])
    assert rows.count() == ROWS + 1
    table.upsert([{"id": ROWS + 1, "city": "new", "v": 2.0}])
    assert rows.count() == rows.select("city").count() == ROWS + 1 and loaded(own, table).count() == ROWS + 2
    assert loaded(own, table, as_of=str(table.snapshot.slot - 2)).count() == ROWS
    kept = loaded(own, table, where="id >= 10", columns="v, id")
    assert kept.columns == ["v", "id"] and kept.where("id < 12").collect() == [(1.0, 10), (1.0, 11)]
    table.alter.apply([objcat.RenameColumn("city", "town")])
    again = loaded(own, table)
    table.alter.apply([objcat.RenameColumn("town", "city")])
    with pytest.raises(PySparkException, match="The column 'town' changed since the frame was made\\. Load it again"):
        again.collect()


def test_what_is_not_a_scan_stays_with_python(own: SparkSession, table: objcat.Table, tmp_path: Path) -> None:
    table.upsert([{"id": 7, "city": "new", "v": 2.0}])
    changed = loaded(own, table, mode="incremental", since=str(table.snapshot.slot - 1))
    assert [row.id for row in changed.where("v > 1").collect()] == [7] and "(Python)" in text_of(changed)
    narrower = own.read.format("objcat").schema("v double, id bigint").load(place_of(table))
    assert "(Python)" not in text_of(narrower) and narrower.where("id = 7").collect() == [(2.0, 7)]
    loaded(own, table).where("id < 5").write.parquet(f"{tmp_path}/copy")
    assert own.read.parquet(f"{tmp_path}/copy").count() == 5


def test_it_is_for_the_session_that_asked(spark: SparkSession, own: SparkSession, table: objcat.Table) -> None:
    assert loaded(own, table).count() == ROWS
    assert "(Python)" in text_of(loaded(spark, table)) and "(Python)" not in text_of(loaded(own, table))
    with pytest.raises(InvalidInput, match=r"spark is 3\. Give a session"):
        objcat.spark.native_format(3)  # type: ignore[arg-type]
