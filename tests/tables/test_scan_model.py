"""Scans against a dict: whatever was written, in either kind of table, in row groups of a few rows, with log rows held or streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.datafile import log_reader, parquet
from objcat.tasks import row_order
from objcat.tasks import scan as scan_tasks
from tests.effort import effort

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("v", pa.int64()),
        ("version", pa.int64()),
    ]
)
Model = dict[tuple[int, str], dict[str, Any]]

keys = st.tuples(st.integers(0, 30), st.sampled_from("ab"))
batches = st.lists(st.tuples(keys, st.integers(0, 50) | st.none(), st.integers(0, 4)), min_size=1, max_size=25)
OPERATIONS = ["upsert", "upsert", "insert", "delete", "compact", "split", "cluster", "zorder"]
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), batches), min_size=1, max_size=7)
FILTERS: list[tuple[Any, Callable[[dict[str, Any]], bool]]] = [
    (None, lambda row: True),
    ("k between 10 and 12", lambda row: 10 <= row["k"] <= 12),
    ("k = 5 and name = 'a'", lambda row: row["k"] == 5 and row["name"] == "a"),
    ("k in (1, 2, 30) and v > 20", lambda row: row["k"] in (1, 2, 30) and row["v"] is not None and row["v"] > 20),
    ("v > 25 or k < 3", lambda row: (row["v"] is not None and row["v"] > 25) or row["k"] < 3),
    ("not (v > 25)", lambda row: row["v"] is not None and not row["v"] > 25),
    ("v is null", lambda row: row["v"] is None),
    (pc.field("v") == 7, lambda row: row["v"] == 7),
]


@pytest.fixture(params=["held", "streamed"])
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few rows; log rows of a group from memory, or all of them streamed; what is sorted anew, too."""
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "LOG_ROW_GROUP_ROWS", 3)
    if request.param == "streamed":
        monkeypatch.setattr(scan_tasks, "GROUP_LOGS_BYTES_MAX", -1)
        monkeypatch.setattr(log_reader, "HELD_BYTES_MAX", 0)
        monkeypatch.setattr(row_order, "SORTED_BYTES_MAX", 1)


@pytest.mark.parametrize("ordering", [None, "version"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@given(steps=steps)
@settings(max_examples=effort(4, with_all=12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scans_are_what_a_dict_says(
    few_rows: None, kind: TableType, ordering: str | None, steps: list[tuple[str, list[tuple[tuple[int, str], int | None, int]]]]
) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", SCHEMA, key=["k", "name"], ordering=ordering, table_type=kind, index=objcat.BucketIndex(2))
    model: Model = {}
    for operation, batch in steps:
        if operation == "compact":
            table.maintenance.compact()
        elif operation == "cluster":
            table.maintenance.cluster(by=["v", "name"])
        elif operation == "zorder":
            table.maintenance.cluster(by=["version", "v"], zorder=True)
        elif operation == "split":
            table.maintenance.split_buckets(count=4)
        elif operation == "delete":
            table.delete([{"k": k, "name": name} for (k, name), _, _ in batch])
            for key, _, _ in batch:
                model.pop(key, None)
        else:
            rows = [{"k": k, "name": name, "v": v, "version": version} for (k, name), v, version in batch]
            getattr(table, operation)(rows)
            _apply(model, rows, ordering)
    for where, passes in FILTERS:
        expected = sorted(((row["k"], row["name"], row["v"]) for row in model.values() if passes(row)), key=str)
        scan = table.scan(where=where, columns=["k", "name", "v"])
        found = sorted(((row["k"], row["name"], row["v"]) for row in scan.to_arrow().to_pylist()), key=str)
        assert found == expected, where
        assert scan.count() == len(expected), where
        values = [v for _, _, v in expected if v is not None]
        assert (scan.min("v"), scan.max("v")) == ((min(values), max(values)) if values else (None, None)), where
        assert table.scan(where=where, columns=["v"], limit=3).to_arrow().num_rows == min(3, len(expected)), where


def _apply(model: Model, rows: list[dict[str, Any]], ordering: str | None) -> None:
    for row in rows:
        key = (row["k"], row["name"])
        there = model.get(key)
        if ordering is None or there is None or row[ordering] >= there[ordering]:
            model[key] = row
