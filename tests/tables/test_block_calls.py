"""Blocks of a transaction: the calls on a table have the effect of commits of their own, one after another, for every kind of table.

The model is twofold: a dict of rows where no column orders them, and a twin of each table to which every call is a commit of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.inspection.doctor import examine
from tests.effort import effort, few

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("value", pa.int32()),
        pa.field("text", pa.string()),
    ]
)
DAYS = ("mo", "tu", "we")
KINDS: dict[str, dict[str, Any]] = {
    "merge-on-read": {"index": objcat.BucketIndex(2)},
    "copy-on-write": {"index": objcat.BucketIndex(2), "table_type": "copy_on_write"},
    "record index": {"index": objcat.RecordIndex()},
    "without a key": {"key": None},
    "by event time": {"index": objcat.BucketIndex(2), "ordering": "at"},
    "partitioned": {"index": objcat.BucketIndex(2), "partition_by": ["day"], "key": ["id", "day"]},
    "keys that move": {"index": objcat.SimpleIndex(), "partition_by": ["day"], "key_scope": "table"},
    "keys of partitions": {"index": objcat.BucketIndex(2), "partition_by": ["day"], "key_scope": "partition"},
    "simple index": {"index": objcat.SimpleIndex()},
    "bloom index": {"index": objcat.BloomIndex()},
    "memory index": {"index": objcat.MemoryIndex()},
    "copy-on-write, record index": {"index": objcat.RecordIndex(), "table_type": "copy_on_write"},
    "copy-on-write, by event time": {"index": objcat.BucketIndex(2), "ordering": "at", "table_type": "copy_on_write"},
    "copy-on-write, without a key": {"key": None, "table_type": "copy_on_write"},
    "copy-on-write, keys that move": {
        "index": objcat.BloomIndex(),
        "partition_by": ["day"],
        "key_scope": "table",
        "table_type": "copy_on_write",
    },
    "record index, by event time": {"index": objcat.RecordIndex(), "ordering": "at"},
    "keys that move, by event time": {"index": objcat.SimpleIndex(), "partition_by": ["day"], "key_scope": "table", "ordering": "at"},
    "with lateness": {"index": objcat.BucketIndex(2), "ordering": "at", "allowed_lateness": timedelta(days=3650)},
}
Row = dict[str, Any]


@dataclass
class Side:
    """One table of the transaction, its twin, and a dict of its rows."""

    lake: objcat.Lake
    name: str
    settings: Mapping[str, Any]
    columns: list[str] = field(default_factory=lambda: SCHEMA.names)
    types: dict[str, pa.DataType] = field(default_factory=lambda: {f.name: f.type for f in SCHEMA})
    model: dict[Any, Row] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        settings = {"key": ["id"], **self.settings}
        self.table = self.lake.create_table(self.name, SCHEMA, shared_log="pair", **settings)
        self.twin = self.lake.create_table(f"{self.name}_twin", SCHEMA, **settings)

    @property
    def has_key(self) -> bool:
        return bool(self.table.key)

    @property
    def is_modelled(self) -> bool:
        return "ordering" not in self.settings

    def identity(self, row: Row) -> Any:
        if not self.has_key:
            self.number += 1
            return self.number
        scoped = self.settings.get("key_scope") == "partition"
        return tuple(row[name] for name in (*(self.table.key or ()), *(["day"] if scoped else [])))

    def put(self, rows: list[Row]) -> None:
        for row in rows:
            self.model[self.identity(row)] = {name: row.get(name) for name in self.columns}

    def drop(self, passes: Callable[[Row], bool]) -> None:
        for key in [key for key, row in self.model.items() if passes(row)]:
            del self.model[key]

    def batch(self, rows: list[Row]) -> pa.Table:
        names = [name for name in self.columns if name in rows[0]]
        return pa.table({name: pa.array([row[name] for row in rows], self.types[name]) for name in names})


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(sorted(row.items())))


def draw_rows(side: Side, draw: random.Random, *, distinct: bool = False, low: int = 0, high: int = 11) -> list[Row]:
    found: dict[Any, Row] = {}
    for number in range(draw.randint(1, 5)):
        row: Row = {"id": draw.randint(low, high), "day": draw.choice(DAYS), "at": draw.randint(0, 20) * 1_000_000 + 1_790_000_000_000_000}
        for name in side.columns:
            if name not in row:
                row[name] = draw.randint(0, 9) if pa.types.is_integer(side.types[name]) else draw.choice("abc")
        found[side.identity(row) if distinct and side.has_key else number] = row
    return list(found.values())


def do_call(side: Side, into: Any, draw: random.Random, name: str) -> None:
    """One call: in the block (`into`), on the twin, and on the model."""
    twin, keyed = side.twin, side.has_key
    low = draw.randint(0, 11)
    high = draw.randint(low, 11)
    where, inside = f"id BETWEEN {low} AND {high}", lambda row: low <= row["id"] <= high
    if draw.random() < 0.3:
        where, inside = f"day = '{DAYS[low % 3]}'", lambda row: row["day"] == DAYS[low % 3]
    if name in ("upsert", "insert"):
        rows = draw_rows(side, draw, distinct=name == "insert")
        name = name if keyed else "insert"
        getattr(into, name)(side.batch(rows))
        getattr(twin, name)(side.batch(rows))
        side.put(rows)
    elif name == "delete" and keyed:
        rows = draw_rows(side, draw)
        names = [one for one in ("id", "day", "at") if one != "at" or draw.random() < 0.5]
        keys = side.batch(rows).select(names)
        into.delete(keys)
        twin.delete(keys)
        for row in rows:
            side.model.pop(side.identity(row), None)
    elif name == "delete_where":
        into.delete_where(where)
        twin.delete(where)
        side.drop(inside)
    elif name == "truncate":
        into.truncate()
        clear(twin, side)
        side.model.clear()
    elif name == "replace_range" and "allowed_lateness" not in side.settings:
        rows = [row for row in draw_rows(side, draw, low=low, high=high) if inside(row)]
        batch = side.batch(rows) if rows else []
        into.replace_range(batch, where=where)
        gone = [*twin.scan(where=where).to_arrow().to_pylist(), *rows]
        if keyed and gone:
            twin.delete(pa.Table.from_pylist([{"id": row["id"], "day": row["day"]} for row in gone]))
        elif gone:
            twin.delete(where)
        if rows:
            twin.upsert(batch) if keyed else twin.insert(batch)
        side.drop(inside)
        side.put(rows)
    elif name == "upsert_partial" and keyed and "allowed_lateness" not in side.settings:
        partial(side, into, draw)
    elif name == "alter":
        alter(side, into, draw)


def clear(twin: objcat.Table, side: Side) -> None:
    """Every row and every hidden delete of the twin goes."""
    row = {"id": 99, "day": "mo", "at": 1_790_000_000_000_000} | dict.fromkeys(set(side.columns) - {"id", "day", "at"})
    twin.overwrite(side.batch([row]))
    twin.delete(side.batch([row]).select(["id", "day"])) if side.has_key else twin.delete("id = 99")


def partial(side: Side, into: Any, draw: random.Random) -> None:
    free = [name for name in side.columns if name not in ("id", "day", "at")]
    chosen = ["id", "day", "at", *draw.sample(free, draw.randint(0, len(free)))]
    rows = [{name: row[name] for name in chosen} for row in draw_rows(side, draw, distinct=True)]
    into.upsert_partial(side.batch(rows))
    side.twin.upsert_partial(side.batch(rows))
    for row in rows:
        known = side.model.get(side.identity(row), dict.fromkeys(side.columns))
        side.model[side.identity(row)] = known | row


def alter(side: Side, into: Any, draw: random.Random) -> None:
    extra = [name for name in side.columns if name.startswith("x")]
    kinds = ["add", *(["drop", "rename"] if extra else []), *(["widen"] if side.types["value"] == pa.int32() else [])]
    kind = draw.choice(kinds)
    change: Any
    if kind == "add":
        name = next(f"x{n}" for n in range(9) if f"x{n}" not in side.columns)
        change = objcat.AddColumn(name, pa.int64())
        side.columns, side.types[name] = [*side.columns, name], pa.int64()
        side.model = {key: row | {name: None} for key, row in side.model.items()}
    elif kind == "drop":
        change = objcat.DropColumn(extra[0])
        side.columns = [name for name in side.columns if name != extra[0]]
        side.model = {key: {name: row[name] for name in side.columns} for key, row in side.model.items()}
    elif kind == "rename":
        name = next(f"x{n}" for n in range(9) if f"x{n}" not in side.columns)
        change = objcat.RenameColumn(extra[0], name)
        side.columns, side.types[name] = [name if one == extra[0] else one for one in side.columns], side.types[extra[0]]
        side.model = {key: {name if one == extra[0] else one: row[one] for one in row} for key, row in side.model.items()}
    else:
        change = objcat.WidenColumn("value", pa.int64())
        side.types["value"] = pa.int64()
    into.alter.apply([change])
    side.twin.alter.apply([change])


CALLS = ["upsert", "upsert", "insert", "delete", "delete_where", "truncate", "replace_range", "replace_range", "upsert_partial", "alter"]


def by_id(table: objcat.Table) -> list[dict[int, Any]]:
    """The rows of a table by the ids of its columns, which no change of columns gives to others."""
    ids = {column.name: column.id for column in table.snapshot.spec.table_schema.columns}
    return [{ids[name]: value for name, value in row.items()} for row in table.scan().to_arrow().to_pylist()]


def check(side: Side, before: list[dict[int, Any]], since: int) -> None:
    found = side.table.scan().to_arrow().to_pylist()
    assert in_order(found) == in_order(side.twin.scan().to_arrow().to_pylist()), "as commits of their own"
    if side.is_modelled:
        shown = pa.Table.from_pylist(list(side.model.values()), schema=side.table.schema).to_pylist()
        assert in_order(found) == in_order(shown), "as the model"
    names = {column.id: column.name for column in side.table.snapshot.spec.table_schema.columns}
    was = [{name: row.get(column_id) for column_id, name in names.items()} for row in before]
    keys: dict[Any, list[str]] = {}
    for row in side.table.changes(since=since, net=side.has_key).to_arrow().to_pylist():
        kind, values = row["_change_type"], {name: row[name] for name in names.values()}
        keys.setdefault(side.identity(row), []).append(kind)
        if kind in ("delete", "update_before"):
            was.remove(values)
        else:
            was.append(values)
    assert in_order(was) == in_order(found), "the changes of the slot lead from one state to the other"
    assert all(len(kinds) == 1 or kinds == ["update_before", "update_after"] for kinds in keys.values()), "each key changes once"
    newer = {str(sorted(row.items())) for row in side.table.incremental(since=since, columns=list(names.values())).to_arrow().to_pylist()}
    gone = [str(sorted({name: row.get(column_id) for column_id, name in names.items()}.items())) for row in before]
    assert newer <= {str(sorted(row.items())) for row in found}
    assert {str(sorted(row.items())) for row in found} - newer <= set(gone), "an incremental read has every new row"


def run_blocks(kind: str, draw: random.Random, *, begin: Callable[[Side], object] = lambda _: None, count: int = 3) -> list[Side]:
    """Random blocks over two tables of a kind. begin: is given each table when it is new."""
    lake = objcat.Lake(FileIO(MemoryBackend("blocks"), env=FakeEnv(draw.randint(0, 1 << 20))))
    sides = [Side(lake, name, KINDS[kind]) for name in ("a", "b")]
    for side in sides:
        begin(side)
    for _ in range(count):
        befores = [by_id(side.table) for side in sides]
        since = sides[0].table.refresh().slot
        with lake.transaction() as tx:
            for _ in range(draw.randint(1, 6)):
                side = draw.choice(sides)
                do_call(side, tx[side.name], draw, draw.choice(CALLS))
        assert tx.result is None or tx.result.slot == since + 1
        for side, before in zip(sides, befores, strict=True):
            side.table.refresh()
            check(side, before, since)
    for side in sides:
        assert examine(side.table._context.timeline, deep=True).healthy
    return sides


@pytest.mark.parametrize("kind", few(KINDS, 2, integration=len(KINDS)))
def test_a_block_is_its_calls_as_commits_one_after_another(kind: str) -> None:
    @settings(max_examples=effort(5, with_all=120), deadline=None)
    @given(st.randoms(use_true_random=False))
    def blocks(draw: random.Random) -> None:
        run_blocks(kind, draw)

    blocks()
