"""TPC-H tables after a script of upserts and deletes, on both kinds: sums equal those that DuckDB computes on the source files."""

from __future__ import annotations

import subprocess
import sysconfig
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import objcat
from objcat.common.validation import TableType

SCALE = "0.01"

# What the script does, said once for each side.
CHANGED = "SELECT * REPLACE (l_quantity + 1 AS l_quantity, 'N' AS l_returnflag) FROM source WHERE l_orderkey % 10 = 3"
ADDED = "SELECT * REPLACE (l_orderkey + 10000000 AS l_orderkey) FROM source WHERE l_orderkey % 25 = 1"
DROPPED = "SELECT l_orderkey, l_linenumber FROM source WHERE l_orderkey % 7 = 2"
GONE_WHERE = "l_shipmode = 'AIR' AND l_quantity < 20"

EXPECTED = f"""
    WITH changed AS (
        SELECT * FROM source WHERE l_orderkey % 10 <> 3
        UNION ALL {CHANGED}
        UNION ALL {ADDED}
    )
    SELECT * FROM changed ANTI JOIN ({DROPPED}) USING (l_orderkey, l_linenumber) WHERE NOT ({GONE_WHERE})
"""
SUMS = """
    SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)),
        sum(l_orderkey), min(l_shipdate), max(l_commitdate), count(*), count(DISTINCT l_comment)
    FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tpch")
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    command = [str(program), "parquet", "-s", SCALE, "--tables=lineitem", f"--output-dir={place}"]
    subprocess.run(command, check=True, capture_output=True)
    return place / "lineitem.parquet"


def plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(str(value.normalize()) if isinstance(value, Decimal) else str(value) for value in row) for row in rows]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_sums_equal_those_of_the_source_files(spark: SparkSession, tmp_path: Path, source: Path, kind: TableType) -> None:
    db = duckdb.connect()
    db.execute("SET TimeZone = 'UTC'")
    db.execute(f"CREATE VIEW source AS SELECT * FROM read_parquet('{source}')")
    frame = spark.read.parquet(str(source))
    lake = objcat.connect(tmp_path)
    key = ["l_orderkey", "l_linenumber"]
    table = lake.create_table("lineitem", frame.limit(0).toArrow().schema, key=key, table_type=kind, index=objcat.BucketIndex(4))
    table.bulk_insert(frame)
    changed = {"l_quantity": (frame.l_quantity + 1).cast(frame.schema["l_quantity"].dataType), "l_returnflag": F.lit("N")}
    table.upsert(frame.where("l_orderkey % 10 = 3").withColumns(changed))
    table.upsert(db.sql(ADDED).to_arrow_table())
    table.maintenance.compact()
    table.delete(db.sql(DROPPED).to_arrow_table())
    result = table.delete(GONE_WHERE)
    assert result is not None
    db.execute(f"CREATE TABLE lineitem AS {EXPECTED}")
    expected = plain(db.sql(SUMS).fetchall())
    found = spark.sql(SUMS.replace("lineitem", "{lineitem}"), lineitem=table.scan().to_spark(spark)).collect()
    assert plain([tuple(row) for row in found]) == expected
    other = duckdb.connect()
    other.register("lineitem", table.scan().to_arrow())
    assert plain(other.sql(SUMS).fetchall()) == expected
    assert len(expected) >= 4
