"""Upserts of frames into tables with the record index: Spark reads the file groups that it names, and its tasks write it with the rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import objcat
from objcat.common.validation import TableType
from objcat.errors import CorruptTable
from objcat.inspection.doctor import examine

pytestmark = pytest.mark.usefixtures("by_jobs")

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), pa.field("v", pa.int64())])
FRAME = "id long, part string, v long"
Rows = dict[int, tuple[str, int]]


def create(place: Path, kind: TableType) -> objcat.Table:
    return objcat.connect(str(place)).create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition_by=["part"],
        table_type=kind,
        index=objcat.RecordIndex(4),
        properties={"target_file_bytes": "1024"},
    )


def rows(table: objcat.Table) -> Rows:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings
    return {row["id"]: (row["part"], row["v"]) for row in found}


@pytest.mark.parametrize(
    ("kind", "keys_max"), [("merge_on_read", 1000), pytest.param("copy_on_write", 1, marks=pytest.mark.tier("all"), id="not asked")]
)
def test_rows_of_frames_are_found_by_both_engines(
    spark: SparkSession, tmp_path: Path, kind: TableType, keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a frame with more keys than that, the index is not asked.
    monkeypatch.setattr("objcat.spark.index_lookup.PROBED_KEYS_MAX", keys_max)
    table = create(tmp_path, kind)
    table.insert(spark.range(40).selectExpr("id", "'x' as part", "0L as v"))
    expected: Rows = dict.fromkeys(range(40), ("x", 0))
    assert rows(table) == expected
    table.upsert([{"id": key, "part": "x", "v": 1} for key in (3, 41)])
    # Some stay, one is new, and two move.
    table.upsert(spark.createDataFrame([(3, "x", 2), (41, "x", 2), (42, "y", 2), (5, "y", 2), (6, "z", 2)], FRAME))
    expected |= {3: ("x", 2), 41: ("x", 2), 42: ("y", 2), 5: ("y", 2), 6: ("z", 2)}
    assert rows(table) == expected
    table.delete(spark.createDataFrame([(5,), (7,)], "id long"))
    table.upsert([{"id": key, "part": "x", "v": 3} for key in (5, 6)])
    del expected[7]
    assert rows(table) == expected | {5: ("x", 3), 6: ("x", 3)}


@pytest.mark.tier("all")
def test_only_file_groups_are_read_that_the_index_names(spark: SparkSession, tmp_path: Path) -> None:
    table = objcat.connect(str(tmp_path)).create_table(
        "t", SCHEMA, key=["id"], index=objcat.RecordIndex(4), properties={"target_file_bytes": "1024"}
    )
    # Every file holds keys between all others.
    for part in range(3):
        table.insert([{"id": key, "part": "x", "v": 0} for key in range(part, 60, 3)])
    group_ids = {key: group_id for group_id, keys in keys_by_group(table).items() for key in keys}
    needed = {group_ids[7], group_ids[8]}
    hidden = {
        group.base.path: table._context.fileio.read(group.base.path)
        for group in table.snapshot.file_groups(table._context.manifests)
        if group.base is not None and str(group.group_id) not in needed
    }
    assert len(hidden) >= 3
    table._context.fileio.delete(hidden)
    other = next(key for key, group_id in group_ids.items() if group_id not in needed)
    table.upsert(spark.createDataFrame([(7, "x", 1), (8, "x", 1), (100, "x", 1)], FRAME))
    with pytest.raises(CorruptTable, match="is missing in"):
        table.upsert(spark.createDataFrame([(other, "x", 2)], FRAME))
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    for path, data in hidden.items():
        table._context.fileio.put(path, data)
    assert rows(table) == {**dict.fromkeys(range(60), ("x", 0)), 7: ("x", 1), 8: ("x", 1), 100: ("x", 1)}


def keys_by_group(table: objcat.Table) -> dict[str, list[int]]:
    """Of every file group, by its file group as text, the keys."""
    found: dict[str, list[int]] = {}
    by_file = {
        group.base.path: str(group.group_id) for group in table.refresh().file_groups(table._context.manifests) if group.base is not None
    }
    for row in table.scan(columns=["id", "_file"]).to_arrow().to_pylist():
        found.setdefault(by_file[row["_file"]], []).append(row["id"])
    return found
