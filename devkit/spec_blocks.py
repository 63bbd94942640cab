"""The table of `spec/tables/` whose slots hold several calls on one table: blocks of transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import objcat
from devkit.spec_tables import Maker

LINES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("what", pa.string()),
        ("amount", pa.int32()),
        pa.field("version", pa.int64(), nullable=False),
    ]
)


def lines(numbers: Iterable[int], *, version: int, what: str = "line") -> list[dict[str, Any]]:
    """Some rows."""
    return [{"id": number, "what": what, "amount": number * 10, "version": version} for number in numbers]


def blocks(maker: Maker) -> None:
    """Truncations, replaced ranges, deletes by a filter, partial rows and changes of columns, several in one slot, in four tables."""
    settings: dict[str, Any] = {"key": ["id"], "index": objcat.BucketIndex(2), "shared_log": "blocks"}
    maker.table("lines", LINES, **settings)
    maker.table("ordered", LINES, ordering="version", **settings)
    maker.table("rewritten", LINES, table_type="copy_on_write", **settings)
    maker.table("plain", LINES, key=None, shared_log="blocks")
    lake = maker.lake
    maker.tick()
    with lake.transaction() as tx:
        for name in ("lines", "ordered", "rewritten", "plain"):
            tx[name].insert(lines(range(10), version=5))
    maker.tick()
    with lake.transaction() as tx:
        for name in ("lines", "ordered", "rewritten"):
            tx[name].upsert(lines((3, 20), version=7, what="in the block"))
            tx[name].delete_where("id >= 7 AND amount < 100")
            tx[name].upsert_partial([{"id": 3, "amount": -3, "version": 8}, {"id": 21, "what": "new", "version": 8}])
        tx["plain"].insert(lines((30, 31), version=1))
        tx["plain"].delete_where("id IN (2, 31)")
    maker.tick()
    with lake.transaction() as tx:
        for name in ("lines", "ordered", "rewritten", "plain"):
            tx[name].replace_range(lines((4, 5), version=1, what="replaced"), where="id BETWEEN 3 AND 9")
    maker.tick()
    lake.table("ordered").upsert(lines((4, 6), version=2, what="late and let in"))
    maker.tick()
    with lake.transaction() as tx:
        tx["lines"].alter.add_column("paid", "boolean")
        tx["lines"].upsert([{"id": 1, "what": "paid", "amount": 1, "version": 9, "paid": True}])
        tx["lines"].alter.rename_column("what", "said")
        tx["lines"].delete_where("said = 'replaced'")
    maker.tick()
    with lake.transaction() as tx:
        for name in ("ordered", "rewritten", "plain"):
            tx[name].truncate()
            tx[name].insert(lines((1, 2), version=1, what="after all"))
        tx["ordered"].upsert_partial([{"id": 2, "amount": 0, "version": 2}])
        tx["rewritten"].delete_where("id = 1")
        tx["lines"].delete([{"id": 0}])
    maker.tick()
    lake.table("ordered").maintenance.compact()
    maker.tick()
    with lake.transaction() as tx:
        tx["ordered"].delete_where("id = 1")
        tx["ordered"].upsert(lines((1,), version=1, what="again"))
        tx["lines"].truncate()
