"""Upserts of frames into tables whose index is of another package: the driver asks it, and executors read only what it names."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from tests.plugins.test_indexes import SharedIndex

pytestmark = pytest.mark.usefixtures("by_jobs")

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), pa.field("v", pa.int64())])


def rows(table: objcat.Table) -> dict[int, tuple[str, int]]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: (row["part"], row["v"]) for row in found}


@pytest.mark.parametrize("keys_max", [1000, 1], ids=["asked", "too many keys to ask"])
def test_rows_of_frames_are_found(spark: SparkSession, tmp_path: Path, keys_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("memory", "tests.plugins.test_indexes:SharedIndex", "objcat.indexes")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points.select(group=group))
    monkeypatch.setattr(SharedIndex, "held", {})
    monkeypatch.setattr("objcat.spark.index_lookup.PROBED_KEYS_MAX", keys_max)
    table = objcat.connect(str(tmp_path)).create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition_by=["part"],
        index=objcat.SimpleIndex(),
        properties={"target_file_bytes": "1024", "index_plugin": "memory"},
    )
    table.insert(spark.range(40).selectExpr("id", "'x' as part", "0L as v"))
    expected = dict.fromkeys(range(40), ("x", 0))
    # Some stay, one is new, and two move.
    table.upsert(spark.createDataFrame([(3, "x", 2), (41, "x", 2), (42, "y", 2), (5, "y", 2), (6, "z", 2)], "id long, part string, v long"))
    expected |= {3: ("x", 2), 41: ("x", 2), 42: ("y", 2), 5: ("y", 2), 6: ("z", 2)}
    assert rows(table) == expected
    assert bool(SharedIndex.held) == (keys_max > 1)
    table.upsert(spark.createDataFrame([(5, "y", 3), (7, "x", 3), (43, "z", 3)], "id long, part string, v long"))
    assert rows(table) == expected | {5: ("y", 3), 7: ("x", 3), 43: ("z", 3)}
