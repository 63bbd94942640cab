"""What slots change in a mirror adds up to the rows of a scan, at every slot, for each kind of table."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.errors import Unsupported
from objcat.mirror.mirror import TableMirrors
from tests.effort import few
from tests.mirror.plain_mirror import PlainMirror, in_order, rows_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.int64()),
    ]
)
SEEDS = few(range(6), 1, integration=3)
NOW_S = 1_790_000_000
KINDS: dict[str, dict[str, Any]] = {
    "merge-on-read": {"index": objcat.BucketIndex(3)},
    "by event time": {"index": objcat.BucketIndex(3), "ordering": "at"},
    "by several columns": {"index": objcat.BucketIndex(3), "ordering": ["day", "at"]},
    "with lateness": {"index": objcat.BucketIndex(2), "ordering": "at", "allowed_lateness": timedelta(hours=1)},
    "copy-on-write": {"index": objcat.BucketIndex(2), "table_type": "copy_on_write"},
    "partitioned": {"index": objcat.BucketIndex(2), "partition_by": ["day"], "key": ["id", "day"]},
    "simple index": {"index": objcat.SimpleIndex()},
    "bloom index": {"index": objcat.BloomIndex(), "ordering": "at"},
    "memory index": {"index": objcat.MemoryIndex()},
    "record index": {"index": objcat.RecordIndex()},
    "keys that move": {"index": objcat.SimpleIndex(), "partition_by": ["day"], "key_scope": "table"},
    "without a key": {"key": None},
}
OFTEN = ("merge-on-read", "by event time", "copy-on-write", "keys that move", "without a key")
"""The kinds that are tried for every change. The others are tried before a merge."""


@pytest.fixture(autouse=True)
def few_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a table of some file groups is read in several parts."""
    monkeypatch.setattr("objcat.mirror.whole_table.GROUPS_AT_ONCE", 2)


def rows(draw: random.Random, count: int) -> pa.Table:
    at = [(NOW_S + draw.randrange(-100, 100)) * 1_000_000 for _ in range(count)]
    return pa.table(
        {
            "id": [draw.randrange(60) for _ in range(count)],
            "day": [draw.choice(["Zürich", "a/b c", "x"]) for _ in range(count)],
            "at": pa.array(at, pa.timestamp("us", tz="UTC")),
            "value": [draw.randrange(1000) for _ in range(count)],
        },
        schema=SCHEMA,
    )


def distinct(table: objcat.Table, batch: pa.Table) -> pa.Table:
    """The batch with each key once, as some writes want it."""
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in batch.to_pylist():
        seen[tuple(row[name] for name in table.key or [])] = row
    return pa.Table.from_pylist(list(seen.values()), schema=batch.schema) if table.key else batch


def steps(table: objcat.Table, draw: random.Random) -> dict[str, Callable[[], object]]:
    """What may happen to a table."""
    value = draw.randrange(1000)
    day = draw.choice(["Zürich", "a/b c", "x"])
    any_of: dict[str, Callable[[], object]] = {
        "insert": lambda: table.insert(distinct(table, rows(draw, draw.randrange(1, 8)))),
        "delete where": lambda: table.delete(f"value < {value // 4}"),
        "update": lambda: table.update({"value": "value + 1"}, where=f"value > {value}"),
        "compact": table.maintenance.compact,
        "restore": lambda: table.restore(to=draw.randint(table.refresh().slot // 2, table.refresh().slot)),
        "property": lambda: table.set_properties({"note": str(value)}),
        "empty": lambda: table.delete("value < 0"),
        "savepoint": table.maintenance.savepoint,
        "add column": lambda: table.alter.add_column(f"more_{value}", pa.int32()),
        "overwrite": lambda: (
            table.insert_overwrite(distinct(table, rows(draw, 5)))
            if table.partitioning
            else table.overwrite(distinct(table, rows(draw, 5)))
        ),
        "delete partition": lambda: table.delete_partition(f"day = '{day}'") if table.partitioning else None,
    }
    if not table.key:
        return any_of
    return any_of | {
        "upsert": lambda: table.upsert(rows(draw, draw.randrange(1, 25))),
        "upsert again": lambda: table.upsert(rows(draw, draw.randrange(1, 10))),
        "small upsert": lambda: table.upsert(rows(draw, 1)),
        "delete": lambda: table.delete(distinct(table, rows(draw, 3)).select([*(table.key or [])])),
        "compact some": lambda: compact_some(table, draw),
        "compact below new rows": lambda: compact_with_rows_on_top(table, draw),
        "split": lambda: split(table, draw),
        "cluster": lambda: table.maintenance.cluster(["value"]),
    }


def compact_some(table: objcat.Table, draw: random.Random) -> object:
    groups = table.snapshot.file_groups(table._context.manifests)
    return table.maintenance.compact(file_groups=[draw.choice(groups).group_id]) if groups else None


def compact_with_rows_on_top(table: objcat.Table, draw: random.Random) -> object:
    """Log rows that are committed between plan and commit of a compaction stay on top of its base files."""
    if table.maintenance.schedule_compaction() is None:
        return None
    table.upsert(rows(draw, 10))
    return table.maintenance.execute_scheduled()


def split(table: objcat.Table, draw: random.Random) -> object:
    """Doubles the buckets of a partition, a few times at most."""
    groups = table.snapshot.file_groups(table._context.manifests)
    if not isinstance(table.index, objcat.BucketIndex) or not groups:
        return None
    group_id = draw.choice(groups).group_id
    if group_id.bucket_count > 6:
        return None
    return table.maintenance.split_buckets(partition=group_id.partition, count=2 * group_id.bucket_count)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> PlainMirror:
    plain = PlainMirror()
    monkeypatch.setattr("objcat.mirror.mirror.formats_of", lambda properties, folder: (plain,))
    # As if every slot had this mirror in its properties.
    monkeypatch.setattr("objcat.mirror.mirror.mirrors_of", lambda properties: (plain.format,))
    return plain


def mirrored(table: objcat.Table) -> TableMirrors:
    context = table._context
    return TableMirrors(context.timeline, context.id, context.name, context.manifests)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.tier("integration")) for kind in KINDS])
def test_every_slot_of_a_mirror_has_the_rows_of_a_scan(tmp_path: Path, mirrors: PlainMirror, kind: str, seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    lake = objcat.connect(tmp_path)
    table = lake.create_table("shop.orders", SCHEMA, **{"key": ["id"], **KINDS[kind]})
    follower = mirrored(table)
    follower.catch_up()
    done: dict[str, int] = {}
    for _ in range(28):
        possible = steps(table, draw)
        name = draw.choice(["upsert", "upsert again", *possible] if table.key else list(possible))
        before = table.refresh().slot
        try:
            possible[name]()
        except (objcat.errors.InvalidInput, Unsupported):
            continue
        if table.refresh().slot > before:
            done[name] = done.get(name, 0) + 1
        if draw.random() < 0.4:
            follower.catch_up()
    reports = follower.catch_up()
    assert reports[0].lag == 0 and reports[0].slot == table.refresh().slot
    assert sum(done.values()) > 10, done
    for slot in range(table.snapshot.slot + 1):
        assert in_order(rows_of(table, mirrors.states[slot])) == in_order(table.scan(as_of=slot).to_arrow()), (slot, done)
    again = PlainMirror()
    again.write(follower.state_at(table._context.view))
    newest, whole = mirrors.states[table.snapshot.slot], again.states[table.snapshot.slot]
    assert (whole.rows, whole.masked) == (newest.rows, newest.masked)
    assert newest.rows.keys() == table.snapshot.live(table._context.manifests).paths()
