"""Names and values that mean something to Spark's SQL, or to those who make text of them, mean themselves."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.errors import InvalidSql
from tests.sql.test_hostile_names import NAMES, said, text

COLUMNS = [name for what, name in NAMES.items() if what != "star"]
ROW = {"id": 1, **{name: name for name in COLUMNS}, "inner": dict.fromkeys(COLUMNS, 7)}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    lake = objcat.connect(tmp_path_factory.mktemp("lake"))
    inner = pa.struct([(name, pa.int64()) for name in COLUMNS])
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in COLUMNS), ("inner", inner)])
    table = lake.create_table("trips", schema, key=["id"], index=objcat.BucketIndex(1))
    table.insert([ROW, {"id": 2, **dict.fromkeys(COLUMNS), "inner": None}])
    table.upsert([ROW])
    return lake


def test_rows_are_read_and_written_by_spark(spark: SparkSession, lake: objcat.Lake) -> None:
    table = lake.table("trips")
    (row,) = table.scan(where="id = 1").to_spark(spark).collect()
    assert row.asDict(recursive=True) == ROW
    table.upsert(table.scan(where="id = 1").to_spark(spark))
    (row,) = lake.sql("SELECT * FROM trips WHERE id = 1", spark).collect()
    assert row.asDict(recursive=True) == ROW
    assert table.scan(where="id = 1").to_arrow().to_pylist() == [ROW]


@pytest.mark.parametrize("name", COLUMNS, ids=[what for what, name in NAMES.items() if name in COLUMNS])
def test_names_and_values_mean_themselves(spark: SparkSession, lake: objcat.Lake, name: str) -> None:
    table = lake.table("trips")
    if "${" in name:
        # Spark would put a variable there. Rows with such a column are read by other filters.
        with pytest.raises(InvalidSql, match="variable"):
            table.scan(where=f"{said(name)} = 'x'").to_spark(spark)
        (row,) = table.scan(where="id = 1", columns=["id", name]).to_spark(spark).collect()
        assert row.asDict() == {"id": 1, name: name}
        with pytest.raises(InvalidSql, match="variable"):
            lake.sql(f"SELECT t.{said(name)} AS x FROM trips t", spark)
        assert [tuple(row) for row in lake.sql(f"SELECT {text(name)} AS y", spark).collect()] == [(name,)]
        return
    found = table.scan(where=f"{said(name)} = {text(name)} AND `inner`.{said(name)} = 7", columns=["id", name]).to_spark(spark).collect()
    assert [row.asDict() for row in found] == [{"id": 1, name: name}]
    query = f"SELECT t.{said(name)} AS x, {text(name)} AS y FROM trips t WHERE t.{said(name)} = {text(name)}"
    assert [tuple(row) for row in lake.sql(query, spark).collect()] == [(name, name)]


def test_an_update_by_spark_keeps_every_column(spark: SparkSession, lake: objcat.Lake) -> None:
    table = lake.table("trips")
    before = table.snapshot.slot
    for name in (NAMES["variable"], NAMES["backslash"], NAMES["brace"]):
        table.update({name: f"concat({said(name)}, {text(name)})"}, where="id = 1", spark=spark)
    expected = {**ROW, **{name: name + name for name in (NAMES["variable"], NAMES["backslash"], NAMES["brace"])}}
    assert table.scan(where="id = 1").to_arrow().to_pylist() == [expected]
    table.restore(to=before)
