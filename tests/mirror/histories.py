"""What the attempts to break mirrors have in common: rows of what a mirror holds, by other people's readers, beside those of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

import objcat
from objcat.maintenance.auto_mirror import AutoMirror
from objcat.mirror.delta.features import NEEDS_CHECKPOINT
from objcat.mirror.formats import PREFIXES

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("value", pa.int64())])
MIRRORS = {"mirrors": "iceberg,delta"}
Rows = list[dict[str, Any]]


def make_table(lake: objcat.Lake, name: str = "shop.people", **properties: str) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties={**MIRRORS, **properties})


def people(*ids: int, value: int = 0) -> Rows:
    return [{"id": one, "name": f"person number {one}", "value": value} for one in ids]


def folder(table: objcat.Table) -> Path:
    return Path(table.url.removeprefix("file://"))


def by_iceberg(where: Path, slot: int) -> Rows:
    return StaticTable.from_metadata(f"{where}/metadata/v{slot + 1}.metadata.json").scan().to_arrow().sort_by("id").to_pylist()


def by_delta(where: Path, slot: int) -> Rows:
    read = QueryBuilder().register("t", DeltaTable(str(where), version=slot)).execute("SELECT * FROM t ORDER BY id")
    return pa.table(read).to_pylist()


def slots_of(where: Path) -> dict[str, list[int]]:
    """All slots that have an object that readers begin with, by format."""
    return {
        "iceberg": sorted(int(path.name[1:].partition(".")[0]) - 1 for path in where.glob("metadata/v*.metadata.json")),
        "delta": sorted(int(path.name.partition(".")[0]) for path in where.glob("_delta_log/*.json")),
    }


def is_restart(commit: bytes) -> bool:
    """Whether a commit of a Delta mirror holds everything."""
    info = json.loads(commit.split(b"\n", 1)[0])["commitInfo"]
    return bool(info.get("objcat.since", 0) == info["objcat.slot"])


def has_beginning(version: int, commits: Collection[int], checkpoints: Collection[int], restarts: Collection[int]) -> bool:
    """Whether readers of Delta can get to a version: from a checkpoint, or from the first version, without a gap.

    restarts: versions that hold everything. Above version 0 readers may need the checkpoint of such a one.
    """
    while version in commits and version not in checkpoints and version > 0:
        if version in restarts:
            return False
        version -= 1
    return version in checkpoints or (version == 0 and version in commits)


READERS: dict[str, Callable[[Path, int], Rows]] = {"iceberg": by_iceberg, "delta": by_delta}


def rows_at(table: objcat.Table, slot: int) -> Rows:
    return table.scan(as_of=slot).to_arrow().sort_by("id").to_pylist()


def is_refused(where: Path, slot: int) -> bool:
    """Whether Delta's readers refuse a version, since it is a restart upon none, and its checkpoint is not there yet."""
    commit = where / f"_delta_log/{slot:020d}.json"
    try:
        return NEEDS_CHECKPOINT in commit.read_text() and not commit.with_suffix(".checkpoint.parquet").exists()
    except FileNotFoundError:
        return False


def check_each(table: objcat.Table) -> dict[str, list[int]]:
    """Whatever a reader can begin with reads exactly its slot, if the table can still be read there. Returns these slots.

    Of a long history the newest slots are read, and some of the others.
    """
    where, seen = folder(table), slots_of(folder(table))
    bound = table.refresh().log.marks(table.id).bound
    for name, slots in seen.items():
        for slot in [*slots[-10:], *slots[: -10 : len(slots) // 20 + 1]]:
            if slot >= bound and not (name == "delta" and is_refused(where, slot)):
                assert READERS[name](where, slot) == rows_at(table, slot), f"{name} at slot {slot}"
    return seen


def check_caught_up(table: objcat.Table) -> None:
    """The mirrors reach the newest slot, and everything in them is right."""
    reports = table.maintenance.mirror()
    slot = table.refresh().slot
    assert all(report.slot == slot and not report.held for report in reports)
    seen = check_each(table)
    assert all(slot in seen[report.format] for report in reports)


@contextmanager
def mirrors_by_hand() -> Iterator[None]:
    """Nothing follows a commit in the background."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoMirror, "after", lambda *_: None)
        yield


def objects_of_mirrors(where: Path) -> set[str]:
    folders = [prefix for prefixes in PREFIXES.values() for prefix in prefixes]
    return {str(path.relative_to(where)) for prefix in folders for path in where.glob(f"{prefix}*") if path.is_file()}
