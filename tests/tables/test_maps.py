"""Maps in rows that have no types: a list of dicts, and a pandas frame. The table says what is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidBatch

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("m", pa.map_(pa.string(), pa.float32())),
        ("inside", pa.struct([("n", pa.int32()), ("m", pa.map_(pa.int32(), pa.list_(pa.string())))])),
        ("many", pa.list_(pa.map_(pa.string(), pa.struct([("a", pa.int8())])))),
        ("v", pa.string()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "m": {"x": 1.5, "y": None},
        "inside": {"n": 1, "m": {7: ["a", None], 8: None}},
        "many": [{"k": {"a": 1}}, None, {}],
        "v": "a",
    },
    {"id": 2, "m": {}, "inside": {"n": None, "m": None}, "many": [], "v": None},
    {"id": 3, "m": None, "inside": None, "many": None, "v": "c"},
    {"id": 4, "m": {"z": 2.0}, "inside": {"n": 2, "m": {}}, "many": [{}], "v": "d"},
]


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    return objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))


def paired(value: Any, wanted: pa.DataType) -> Any:
    """As `to_pylist` gives it."""
    if value is None:
        return None
    if pa.types.is_map(wanted):
        return [(key, paired(one, wanted.item_type)) for key, one in value.items()]
    if pa.types.is_list(wanted):
        return [paired(one, wanted.value_type) for one in value]
    if pa.types.is_struct(wanted):
        return {field.name: paired(value[field.name], field.type) for field in wanted}
    return value


EXPECTED = [{field.name: paired(row[field.name], field.type) for field in SCHEMA} for row in ROWS]


def rows(table: objcat.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))


@pytest.mark.parametrize("given", [ROWS, EXPECTED], ids=["dicts", "pairs"])
@pytest.mark.parametrize("shape", [list, pd.DataFrame], ids=["list", "pandas"])
def test_they_are_dicts_or_pairs(table: objcat.Table, given: list[dict[str, Any]], shape: Callable[[Any], Any]) -> None:
    table.upsert(shape(given))
    assert rows(table) == EXPECTED
    for one in given:
        table.upsert(shape([one]))
    assert rows(table) == EXPECTED


def test_what_a_scan_gives_every_write_takes(tmp_path: Path, table: objcat.Table) -> None:
    table.upsert(ROWS)
    listed, frame = table.scan().to_arrow().to_pylist(), table.scan().to_pandas()
    lake = objcat.connect(tmp_path)
    writes: list[Callable[[Any], object]] = [
        table.upsert,
        table.insert,
        table.bulk_insert,
        table.overwrite,
        table.insert_overwrite,
        table.upsert_partial,
        lambda batch: lake.write(batch, "t", key=["id"]),
    ]
    for write in writes:
        for batch in (listed, frame):
            write(batch)
            assert rows(table) == EXPECTED
    with lake.transaction() as tx:
        tx["t"].upsert(listed)
    table.delete(listed[:1])
    assert table.erase(listed[1:2]).found == 0
    assert rows(table) == EXPECTED[2:]


def test_one_that_was_renamed_by_another_handle_is_found_by_its_new_name(tmp_path: Path, table: objcat.Table) -> None:
    objcat.connect(tmp_path).table("t").alter.rename_column("m", "tags")
    table.upsert([{"id": 1, "tags": {"x": 1.5}}])
    assert table.scan(columns=["tags"]).to_arrow().to_pylist() == [{"tags": [("x", 1.5)]}]


def test_a_stream_is_read_once_where_names_are_asked_for_again(tmp_path: Path, table: objcat.Table) -> None:
    objcat.connect(tmp_path).table("t").alter.rename_column("v", "w")
    given = pa.table({"id": [1], "w": ["a"]})
    table.upsert(pa.RecordBatchReader.from_batches(given.schema, iter(given.to_batches())))
    assert table.scan(columns=["id", "w"]).to_arrow().to_pylist() == [{"id": 1, "w": "a"}]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([("x", "text")], "'m' is map<string, string> in the batch and map"),
        ({5: 1.5}, "'m' is map<int64, double> in the batch and map"),
        ({None: 1.5}, "a key of a map is None"),
        ({"x": 0.1}, "does not cast without loss"),
        ({"x": 1.5, "y": "z"}, "tried to convert to double"),
        ("x", "'m' is string in the batch and map"),
        (["x"], "'m' is list<item: string> in the batch and map"),
    ],
)
def test_others_are_refused(table: objcat.Table, value: Any, says: str) -> None:
    for shape in (list, pd.DataFrame):
        with pytest.raises(InvalidBatch, match=says):
            table.upsert(shape([{"id": 1, "m": value}]))
    assert table.refresh().slot == 0
