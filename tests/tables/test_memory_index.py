"""Tables whose writers remember where keys live: never by hearsay, whatever others have done meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidInput
from objcat.metadata.files import FileGroup

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string(), nullable=False), pa.field("v", pa.int64())])
Rows = dict[int, int]

pytestmark = pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("memory")))


def create(lake: objcat.Lake, kind: TableType, *, bytes_max: int = 10**6) -> objcat.Table:
    return lake.create_table(
        "t",
        SCHEMA,
        key=["id"],
        partition_by=["part"],
        key_scope="partition",
        table_type=kind,
        index=objcat.MemoryIndex(),
        properties={"target_file_bytes": "1024", "memory_index_bytes": str(bytes_max)},
    )


def batch(*keys: int, v: int = 0) -> list[dict[str, object]]:
    return [{"id": key, "part": "xy"[key % 2], "v": v} for key in keys]


def rows(table: objcat.Table) -> Rows:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["v"] for row in found}


def hidden(table: objcat.Table, group: FileGroup) -> tuple[str, bytes]:
    assert group.base is not None
    return group.base.path, table._context.fileio.read(group.base.path)


def test_files_are_read_once(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    for at in range(0, 60, 10):
        table.insert(batch(*range(at, at + 10)))
    before = {group.base.path for group in table.refresh().file_groups(table._context.manifests) if group.base is not None}
    table.upsert(batch(0, 1, v=0))
    groups = [group for group in table.refresh().file_groups(table._context.manifests) if group.base is not None and not group.logs]
    kept = dict(hidden(table, group) for group in groups if group.base is not None and group.base.path in before)
    assert kept
    table._context.fileio.delete(kept)

    table.insert(batch(1000))
    for path, data in kept.items():
        table._context.fileio.put(path, data)
    assert rows(table) == {**dict.fromkeys(range(60), 0), 1000: 0}


@pytest.mark.parametrize(
    "others",
    [
        lambda table: table.insert(batch(3, v=1)),
        lambda table: table.delete(batch(1)),
        lambda table: table.maintenance.compact(),
        lambda table: (table.delete(batch(1)), table.maintenance.compact(), table.insert(batch(1, v=1))),
        lambda table: table.restore(to=1),
        lambda table: table.overwrite(batch(1, 3, v=1)),
        lambda table: table.delete_partition("part = 'y'"),
    ],
    ids=["insert", "delete", "compact", "come back", "restore", "overwrite", "delete_partition"],
)
def test_what_others_did_is_seen(lake: objcat.Lake, kind: TableType, others: Callable[[objcat.Table], object]) -> None:
    table, other = create(lake, kind), objcat.Lake(lake.fileio).table("t")
    table.insert(batch(1, 2))
    table.upsert(batch(1, 2, v=0))
    others(other)
    table.upsert(batch(1, 2, 3, 4, v=5))
    assert rows(table) == dict.fromkeys((1, 2, 3, 4), 5)
    other.upsert(batch(1, 2, 3, 4, v=6))
    table.insert(batch(3, 5, v=7))
    assert rows(table) == {1: 6, 2: 6, 3: 7, 4: 6, 5: 7}


def test_a_key_would_be_there_twice_if_the_map_were_stale(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = create(lake, kind), objcat.Lake(lake.fileio).table("t")
    table.insert(batch(1))
    table.upsert(batch(1))
    other.insert(batch(3, v=1))
    monkeypatch.setattr("objcat.tasks.key_cache.KeyMap._follow", lambda *_: True)
    table.upsert(batch(3, v=2))
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="a key is there twice"):
        rows(table)


def test_a_map_that_grows_too_large_is_done_without(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, bytes_max=12 * 20)
    for at in range(0, 60, 10):
        table.insert(batch(*range(at, at + 10)))
        table.upsert(batch(*range(0, at + 10, 3), v=at))
    found = rows(table)
    assert sorted(found) == list(range(60)) and all(found[key] == (50 if key % 3 == 0 else 0) for key in found)
    table.set_properties({"memory_index_bytes": str(10**6)})
    table.insert(batch(7, 60, v=9))
    assert rows(table) == {**found, 7: 9, 60: 9}
    with pytest.raises(InvalidInput, match="memory_index_bytes"):
        table.set_properties({"memory_index_bytes": "much"})


def test_a_map_is_made_anew_as_it_grows(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.tasks.key_cache.ADDED_MIN", 8)
    table = create(lake, kind)
    expected: Rows = {}
    for at in range(0, 80, 8):
        table.upsert(batch(*range(at, at + 8), *range(0, at, 5), v=at))
        expected |= dict.fromkeys([*range(at, at + 8), *range(0, at, 5)], at)
    assert rows(table) == expected
