"""What a handle says of its table: by names, in the words of `create_table`, so that another one can be made like it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("odd, (name)", pa.string()),
    ]
)
DEFAULTS: dict[str, Any] = {
    "key": ["id"],
    "ordering": None,
    "index": objcat.BucketIndex(16),
    "table_type": "merge_on_read",
    "partitioning": [],
    "key_scope": "table",
    "allowed_lateness": None,
    "properties": {},
}
TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no key": {"key": None, "index": None},
    "ordered and late": {
        "key": ["city", "id"],
        "ordering": "at",
        "allowed_lateness": dt.timedelta(days=7),
        "index": objcat.BucketIndex(4, ("id",)),
    },
    "partitioned": {"partitioning": ["city", "day(at)", "truncate(odd, (name), 2)", "odd, (name)"], "key_scope": "partition"},
    "copy-on-write": {"table_type": "copy_on_write", "index": objcat.SimpleIndex(), "properties": {"owner": "ana"}},
    "bloom": {"index": objcat.BloomIndex()},
    "memory": {"index": objcat.MemoryIndex()},
    "record": {"index": objcat.RecordIndex(4)},
}


def described(table: objcat.Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in DEFAULTS}


def created(place: Path, name: str, said: dict[str, Any]) -> objcat.Table:
    arguments = {{"partitioning": "partition_by"}.get(what, what): value for what, value in said.items()}
    return objcat.connect(place).create_table(name, SCHEMA, **arguments)


@pytest.mark.parametrize("name", TABLES)
def test_a_handle_says_what_its_table_was_made_of(tmp_path: Path, name: str) -> None:
    said = {**DEFAULTS, **TABLES[name]}
    table = created(tmp_path, "n.t", said)
    assert described(table) == said
    # And another one can be made of that.
    assert described(created(tmp_path, "n.u", described(table))) == said
    assert table.schema.names == SCHEMA.names


def test_names_are_those_of_now(tmp_path: Path) -> None:
    table = created(
        tmp_path,
        "n.t",
        {
            **DEFAULTS,
            "key": ["id", "city"],
            "ordering": "at",
            "index": objcat.BucketIndex(2),
            "partitioning": ["day(at)"],
            "key_scope": "partition",
        },
    )
    table.alter.rename_column("id", "number")
    table.alter.rename_column("at", "when")
    table.alter.set_partitioning(["month(when)", "city"])
    assert (table.key, table.ordering, table.partitioning) == (["number", "city"], "when", ["month(when)", "city"])


def test_the_count_of_buckets_is_that_of_now(tmp_path: Path) -> None:
    table = created(tmp_path, "n.t", {**DEFAULTS, "index": objcat.BucketIndex(2)})
    table.maintenance.split_buckets(count=8)
    assert table.index == objcat.BucketIndex(8)


def test_where_it_is_and_without_a_request(tmp_path: Path) -> None:
    table = created(tmp_path, "n.t", DEFAULTS)
    before = table._context.fileio.metrics.snapshot()
    assert table.url == table._context.fileio.url and table.url.startswith("file:")
    described(table)
    assert table._context.fileio.metrics.snapshot() == before
    with pytest.raises(AttributeError):
        table.key = ["city"]  # type: ignore[misc]
