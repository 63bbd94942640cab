"""Without its stale rows, each file group is in commit order: the later row of a key wins, and the rows are those of event-time order."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.merge import OP_COLUMN, OP_UPSERT, merge
from objcat.datafile.parquet import base_pieces, read_log
from objcat.errors import InvalidInput
from objcat.metadata.files import FileGroup
from objcat.table import verified_files
from objcat.table.stale_rows import StaleRows
from objcat.tasks.scan import bare, own_rows
from tests.effort import effort

DAY = dt.timedelta(days=1)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("at", pa.timestamp("us")), ("x", pa.float64()), ("v", pa.int64())])
KINDS: list[dict[str, Any]] = [
    {"ordering": "at"},
    {"ordering": ["at", "x"]},
    {"ordering": "at", "allowed_lateness": 2 * DAY},
    {"ordering": "at", "partition_by": ["truncate(k, 10)"]},
]


def plan_of(table: objcat.Table) -> Any:
    return table.scan().plan


def stale_of(table: objcat.Table) -> StaleRows:
    """What a scan on Spark leaves out."""
    return verified_files.verified(table._context.fileio, table._context.manifests, plan_of(table)).stale


def merged(table: objcat.Table, group: FileGroup, ordering: Sequence[str], without: StaleRows) -> list[dict[str, Any]]:
    """The rows of a file group."""
    fileio, spec = table._context.fileio, table.snapshot.spec
    names = [column.physical for column in spec.table_schema.columns]
    tables = []
    if group.base is not None:
        for rows in base_pieces(fileio, group.base, names, spec=spec):
            own = own_rows(bare(rows), spec, group, group.base.group_id)
            tables.append(own.append_column(OP_COLUMN, pa.array(np.full(own.num_rows, OP_UPSERT, np.int8))))
    for part in group.logs:
        (rows,) = read_log(fileio, part.object, [(part.start, part.end)], names, spec.table_schema)
        kept = [number not in without.get(part.object.path, ()) for number in range(part.start, part.end)]
        own = own_rows(bare(rows).filter(pa.array(kept)), spec, group, part.group_id)
        tables.append(drop_late_rows(own, spec, part.committed_at_ms))
    if not tables:
        return []
    together = pa.concat_tables([rows.select([*names, OP_COLUMN]) for rows in tables])
    found = merge(together, key=[column.physical for column in spec.key_columns], ordering=ordering)
    return sorted(found.to_pylist(), key=lambda row: row["k"])


def rows(clock: dt.datetime, keys: Iterable[int], draw: random.Random, back: int) -> pa.Table:
    def one(key: int) -> dict[str, Any]:
        x = draw.choice([0.0, -0.0, 1.5])
        return {"k": key, "at": clock - draw.randrange(back + 1) * DAY, "x": x, "v": draw.randrange(10**6)}

    return pa.Table.from_pylist([one(key) for key in keys], schema=SCHEMA)


@pytest.mark.parametrize("seed", range(effort(2, with_all=100)))
@pytest.mark.parametrize("kind", KINDS, ids=["one", "two", "lateness", "partitions"])
def test_the_rest_of_any_history_is_in_commit_order(kind: dict[str, Any], seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    env = FakeEnv(seed)
    lake = objcat.Lake(FileIO(MemoryBackend("stale", env=env), env=env))
    table = lake.create_table("t", SCHEMA, key=["k"], index=objcat.BucketIndex(2), **kind)
    now, clock, buckets, compared = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=env.now_ms()), 0, 2, 0
    for _ in range(12):
        clock += draw.randrange(2)
        keys = draw.sample(range(40), draw.randrange(1, 20))
        match draw.choice(["upsert"] * 5 + ["delete", "barrier", "compact", "split"]):
            case "compact":
                table.maintenance.compact()
            case "split":
                buckets = 2 * buckets if buckets < 8 else buckets
                with suppress(InvalidInput):  # It was split before.
                    table.maintenance.split_buckets(count=buckets)
            case "barrier":
                table.delete([{"k": key} for key in keys])
            case "delete":
                table.delete(rows(now + clock * DAY, keys, draw, 3).select(["k", *table.snapshot.spec.ordering_physical]))
            case _:
                table.upsert(rows(now + clock * DAY, keys, draw, draw.choice([0, 0, 3])))
        table.refresh()
        stale, plan = stale_of(table), plan_of(table)
        for group in plan.merged:
            expected = merged(table, group, table.snapshot.spec.ordering_physical, {})
            assert repr(merged(table, group, (), stale)) == repr(expected)
            compared += 1
    assert compared


def test_stale_rows_are_found_and_a_row_after_a_barrier_is_none() -> None:
    table = objcat.Lake(FileIO(MemoryBackend("stale"))).create_table("t", SCHEMA, key=["k"], index=objcat.BucketIndex(1), ordering="at")

    def at(day: int, *keys: int) -> list[dict[str, Any]]:
        return [{"k": key, "at": dt.datetime(2026, 1, day), "v": day} for key in keys]

    table.insert(at(10, *range(8)))
    table.refresh()
    assert stale_of(table) == {}
    table.upsert([*at(11, 0), *at(9, 1, 2), *at(10, 3)])
    table.delete([{"k": 4}])
    table.upsert([*at(5, 4), *at(10, 0), *at(12, 1)])
    table.refresh()
    found = stale_of(table)
    logs = plan_of(table).merged[0].logs
    assert [found.get(part.object.path, ()) for part in logs] == [(1, 2), (), (0,)]
    held = {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert held == {0: 11, 1: 12, 2: 10, 3: 10, 4: 5, 5: 10, 6: 10, 7: 10}
