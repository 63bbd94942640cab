"""What both sides of objcat share."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

import objcat
from benchmarks.peers.base import BenchTable
from benchmarks.works import BUCKETS, NotAvailable, Query
from objcat.storage.files import COMPRESSION

ABOUT = {"objcat": "this tree", "layout": f"Bucket({BUCKETS}), sorted by key", "codec": COMPRESSION}
_TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "date": pa.date32(), "decimal(15,2)": pa.decimal128(15, 2)}


def create_table(table: BenchTable, directory: Path) -> Path:
    layout = table.layout
    required = {*layout.key, layout.ordering}
    schema = pa.schema([pa.field(name, _TYPES[kind], nullable=name not in required) for name, kind in layout.columns.items()])
    lake = objcat.connect(directory / "lake")
    made = lake.create_table(
        table.name,
        schema,
        key=list(layout.key),
        ordering=layout.ordering,
        kind=layout.kind,
        index=objcat.Bucket(BUCKETS, layout.bucket_columns),
    )
    table.state["table"] = made
    return Path(unquote(urlsplit(made.fileio.url).path))


def bulk_load(table: Any, data: Any) -> str:
    """What was called: `bulk_insert` where there is one."""
    name = "bulk_insert" if hasattr(table, "bulk_insert") else "insert"
    getattr(table, name)(data)
    return name


def last_commit(table: BenchTable, query: Query) -> Any:
    """What the newest slot changed, in its new state; the columns of a query."""
    handle: Any = table.state["table"]
    incremental = getattr(handle, "incremental", None)
    if incremental is None:
        raise NotAvailable("objcat has no incremental read yet")
    return incremental(since=handle.refresh().slot - 1, columns=query.columns)
