"""A lookup of a few file groups finds what a look at all of them finds, in whatever shards and bucket counts their rows are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.metadata.files import FileGroup
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.entry import FileGroupId

COLUMNS = {"id": pa.int64(), "day": pa.string(), "value": pa.int64()}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in COLUMNS.items()])


def grown(place: Path, draw: random.Random, **options: Any) -> objcat.Table:
    """A table with file groups of several bucket counts, in shards and in the entries after them."""
    table = objcat.create_table_at(str(place), SCHEMA, key=["id", "day"], **options)
    for _ in range(25):
        days = [draw.choice("abc") for _ in range(40)]
        rows = {"id": [draw.randrange(500) for _ in days], "day": days, "value": [draw.randrange(9) for _ in days]}
        table.upsert(pa.table(rows, schema=SCHEMA))
        if draw.random() < 0.2:
            one = draw.choice(table.snapshot.file_groups(table._context.manifests)).group_id
            if one.bucket_count < 20:
                table.maintenance.split_buckets(partition=one.partition, count=one.bucket_count * draw.choice([2, 4]))
        if draw.random() < 0.2:
            table.maintenance.compact()
        if draw.random() < 0.3:
            table._context.timeline.publish(table._context.view)
            table = objcat.table_at(str(place))
    return table


def in_common(groups: list[FileGroup], wanted: list[FileGroupId]) -> list[FileGroup]:
    """Those with keys in common with one of `wanted`. The greater of two bucket counts is a multiple of the other."""
    found = []
    for group in groups:
        for one in wanted:
            least = min(group.group_id.bucket_count, one.bucket_count)
            if group.group_id.partition == one.partition and (group.group_id.bucket - one.bucket) % least == 0:
                found.append(group)
                break
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("partition_by", [["day"], []])
def test_a_lookup_of_some_file_groups_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: list[str], seed: int) -> None:
    draw = random.Random(seed)
    table = grown(tmp_path, draw, index=objcat.BucketIndex(4), partition_by=partition_by)
    snapshot, manifests = table.snapshot, table._context.manifests
    assert snapshot.table.manifest and snapshot.table.overlay
    every = snapshot.file_groups(manifests)
    assert len({group.group_id.bucket_count for group in every} | {4}) > 1
    monkeypatch.setattr("objcat.metadata.snapshot.FILTERED_ROWS_MIN", -1)
    for _ in range(40):
        wanted = [group.group_id for group in draw.sample(every, draw.randint(1, 4))]
        wanted += [FileGroupId(one.partition, one.bucket % 4, 4) for one in wanted if draw.random() < 0.3]
        wanted += [FileGroupId("day=none" if partition_by else "none", 0, 4)] if draw.random() < 0.3 else []
        assert snapshot.file_groups(manifests, group_ids=wanted) == in_common(every, wanted)
        rows = snapshot.live(manifests, None, wanted)
        assert rows.rows.num_rows == len({*rows.members.row.tolist()}), "rows of other file groups were read"
    assert _loaded(snapshot, manifests, [every[0].group_id]) <= _loaded(snapshot, manifests, [group.group_id for group in every])
    assert snapshot.file_groups(manifests, group_ids=[]) == []


def _loaded(snapshot: Snapshot, manifests: Any, wanted: list[FileGroupId]) -> int:
    """How many rows of manifests a lookup groups."""
    return snapshot.live(manifests, (), wanted).rows.num_rows
