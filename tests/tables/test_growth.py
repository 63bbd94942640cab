"""What an upsert costs as a table grows: counted, in tables of few file groups and of many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import objcat
from tests.effort import effort

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.int32()), pa.field("v", pa.int64())])
Kind = Literal["merge_on_read", "copy_on_write"]
FEW, MANY = 40, effort(800, with_all=40_000)
KEYS = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Of an upsert, by a handle that has just been opened. group_ids: that its entry says it touched."""

    gets: int
    puts: int
    lists: int
    read_bytes: int
    written_bytes: int
    group_ids: int


def cost(place: str, kind: Kind, groups: int, *, partitions: int = 1) -> Cost:
    """An upsert of so many keys, each of a file group of its own as far as there are as many."""
    lake = objcat.connect(place)
    name = f"of_{groups}"
    by = ["day"] if partitions > 1 else []
    table = lake.create_table(
        name, SCHEMA, key=["id"], table_type=kind, key_scope="partition", partition_by=by, index=objcat.BucketIndex(groups // partitions)
    )
    ids = range(8 * groups)
    table.insert(pa.table({"id": ids, "day": [i % partitions for i in ids], "v": [0] * len(ids)}, schema=SCHEMA))
    assert table.inspect.stats().groups > 0.9 * groups
    changed = [{"id": i * len(ids) // KEYS, "day": i * len(ids) // KEYS % partitions, "v": 1} for i in range(KEYS)]
    # A writer looks at the newest entry, which names every file that its commit wrote: so it is a small one, as mostly.
    table.upsert(changed[:1])
    table = lake.table(name)
    before = table._context.fileio.metrics.snapshot()
    done = table.upsert(changed)
    sent = table._context.fileio.metrics.snapshot() - before
    assert table.scan(where="v = 1").count() == KEYS and table.scan().count() == len(ids)
    footprint = table._context.timeline.log.read_known(done.slot).footprint[table.id]
    group_ids = len({*footprint.appends, *footprint.replaces, *footprint.creates})
    gets, puts, lists = (sum(count for what, count in sent.requests.items() if what.startswith(of)) for of in ("get", "put", "list"))
    return Cost(gets, puts, lists, sent.bytes_read, sent.bytes_written, group_ids)


@pytest.mark.parametrize("partitions", [1, 20])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_an_upsert_costs_the_same_in_a_table_of_many_file_groups(tmp_path: Path, kind: Kind, partitions: int) -> None:
    few, many = (cost(str(tmp_path), kind, groups, partitions=partitions) for groups in (FEW, MANY))
    more = many.group_ids - few.group_ids
    rewritten = more if kind == "copy_on_write" else 0
    assert few.group_ids <= many.group_ids <= KEYS
    assert (many.gets, many.lists) == (few.gets + rewritten, few.lists), (few, many)
    # A write that takes longer than a second is announced, by one PUT more.
    assert abs(many.puts - few.puts - rewritten) <= 1, (few, many)
    assert many.written_bytes - few.written_bytes < 2_000 + 2_000 * more, (few, many)
    assert many.read_bytes - few.read_bytes < 30_000 + 2_000 * more, (few, many)
