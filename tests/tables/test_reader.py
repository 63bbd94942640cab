"""`TableReader`, the half of `Table` that only reads: it sends requests that read, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.table.reader import TableReader
from objcat.table.table import Table

READS = {"get", "head", "list"}
CALLS: dict[str, Callable[[TableReader], Any]] = {
    "refresh": lambda table: table.refresh(),
    "app_version": lambda table: table.app_version("job"),
    "applied": lambda table: table.applied("job"),
    "scan": lambda table: table.scan(where="n > 1").to_arrow(),
    "incremental": lambda table: table.incremental(since=0).to_arrow(),
    "changes": lambda table: table.changes(since=0, net=True).to_arrow(),
    "inspect": lambda table: (table.inspect.history(), table.inspect.files(), table.inspect.stats(), table.inspect.partitions()),
    "_repr_html_": lambda table: table._repr_html_(),
}
MEMBERS = [name for name in vars(TableReader) if not name.startswith("_")]


@pytest.mark.parametrize("name", [*MEMBERS, "_repr_html_"])
def test_a_member_only_reads(name: str) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())]), key=["k"])
    table.upsert([{"k": 1, "n": 1}, {"k": 2, "n": 2}], app=objcat.AppVersion(app="job", version=7))
    table.delete([{"k": 1}])
    reader = TableReader(lake.table("t")._context)
    before = reader._context.fileio.metrics.snapshot()
    if isinstance(vars(TableReader)[name], property) and name not in CALLS:
        getattr(reader, name)
    else:
        CALLS[name](reader)
    sent = (reader._context.fileio.metrics.snapshot() - before).requests
    assert set(sent) <= READS
    assert sent or name not in CALLS, "it was to ask the store"


def test_a_handle_is_shown_by_its_own_class() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", pa.schema([("n", pa.int64())]), key=None)
    assert repr(table) == f"Table('t' at {table.url!r}, slot 0)"
    assert repr(TableReader(table._context)) == "TableReader" + repr(table).removeprefix("Table")
    assert {"scan", "schema", "upsert", "maintenance"} <= set(dir(table))
    assert not {"upsert", "delete", "maintenance", "alter"} & set(dir(TableReader(table._context)))
    assert issubclass(Table, TableReader)
