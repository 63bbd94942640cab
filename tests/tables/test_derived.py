"""Tables that follow another one by its changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.common.validation import KeyScope, TableType
from objcat.errors import CommitConflict, InvalidInput, StreamRewound
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("more", pa.string())])


def rows(table: objcat.Table) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("net", [True, False])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_derived_table_is_its_source_once(kind: TableType, net: bool) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("derived"), env=FakeEnv(3)))
    source = lake.create_table("s", SCHEMA, key=["id"])
    derived = lake.create_table("d", pa.schema([SCHEMA.field("id"), SCHEMA.field("v")]), key=["id"], table_type=kind)
    assert derived.app_version("job") is None

    def follow() -> Any:
        reached = derived.app_version("job")
        return derived.apply_changes(source.changes(since=-1 if reached is None else reached, net=net), app_id="job")

    assert follow() is None
    source.insert([{"id": i, "v": i, "more": "x"} for i in range(6)])
    first = source.changes(since=-1, net=net)
    once, again = (derived.apply_changes(first, app_id="job") for _ in range(2))
    assert once is not None and once.slot == 1 and derived.app_version("job") == 1
    assert again is not None and again.already_applied and derived.refresh().slot == 1
    source.upsert([{"id": 1, "v": 10, "more": "y"}])
    source.upsert([{"id": 1, "v": 11, "more": "y"}, {"id": 9, "v": 9, "more": "y"}])
    source.delete([{"id": 2}])
    late = source.changes(since=3, net=net)
    with pytest.raises(InvalidInput, match=r"changes\(since=1"):
        derived.apply_changes(late, app_id="job")
    follow()
    assert rows(derived) == rows(source) == {0: 0, 1: 11, 3: 3, 4: 4, 5: 5, 9: 9}
    # Changes that overlap those that are there are written once more, to the same end, unless they are net.
    source.delete("id = 0")
    overlapping = source.changes(since=1, net=net)
    if net:
        with pytest.raises(CommitConflict, match="builds on version 1, but slot 2 applied version 4"):
            derived.apply_changes(overlapping, app_id="job")
        follow()
    else:
        derived.apply_changes(overlapping, app_id="job")
    assert rows(derived) == rows(source) and derived.app_version("job") == 5
    assert follow() is None
    with pytest.raises(InvalidInput, match=r"a feed without deletes.*Pass what source\.changes"):
        derived.apply_changes(source.incremental(since=1), app_id="job")
    with pytest.raises(InvalidInput, match="changes"):
        derived.apply_changes([{"id": 1}], app_id="job")  # type: ignore[arg-type]


def pair(place: FileIO, **settings: Any) -> tuple[objcat.Table, objcat.Table]:
    lake = objcat.Lake(place)
    source = lake.create_table("s", SCHEMA, key=["id"])
    source.insert([{"id": i, "v": i, "more": "x"} for i in range(3)])
    derived = lake.create_table("d", SCHEMA, key=["id"], **settings)
    derived.apply_changes(source.changes(since=-1, net=True), app_id="job")
    return source, derived


PAIR = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False), ("v", pa.int64())])


@pytest.mark.parametrize("net", [True, False])
@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.SimpleIndex()], ids=str)
@pytest.mark.parametrize("scope", ["table", "partition"])
@pytest.mark.parametrize("way", [([], ["city"]), (["city"], []), (["truncate(id, 2)"], ["truncate(city, 1)", "id"])], ids=str)
def test_no_row_is_lost_that_one_commit_takes_to_another_partition(
    net: bool, index: Any, scope: KeyScope, way: tuple[list[str], list[str]]
) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("moved"), env=FakeEnv(3)))
    key = ["id", "city"] if scope == "table" else ["id"]
    source = lake.create_table("s", PAIR, key=key, partition_by=way[0], key_scope=scope, index=index)
    derived = lake.create_table("d", PAIR, key=["id", "city"])

    def follow() -> None:
        reached = derived.app_version("job")
        derived.apply_changes(source.changes(since=-1 if reached is None else reached, net=net), app_id="job")
        assert sorted(map(str, derived.scan().to_arrow().to_pylist())) == sorted(map(str, source.scan().to_arrow().to_pylist()))

    source.insert([{"id": i, "city": city, "v": i} for i, city in enumerate(("Rome", "Oslo", "Lima"))])
    follow()
    source.alter.set_partitioning(way[1])
    replaced = source.overwrite([{"id": i, "city": city, "v": 10 + i} for i, city in enumerate(("Rome", "Oslo", "Cork"))]).slot
    told = sorted((row["_change_type"], row["city"]) for row in source.changes(since=replaced - 1, net=net).to_arrow().to_pylist())
    if scope == "table":
        updates = [(change, city) for change in ("update_after", "update_before") for city in ("Oslo", "Rome")]
        assert told == [("delete", "Lima"), ("insert", "Cork"), *updates]
    follow()
    source.restore(to=1)
    follow()


@pytest.mark.parametrize("net", [True, False])
def test_two_that_derive_write_no_key_that_came_and_went(net: bool) -> None:
    backend = RacingBackend("race")
    source, derived = pair(FileIO(backend, env=FakeEnv(3)))
    other = objcat.Lake(FileIO(backend, env=FakeEnv(4))).table("d")
    source.upsert([{"id": 1, "v": 100, "more": "x"}, {"id": 9, "v": 9, "more": "x"}])
    some = source.changes(since=1, net=net)
    source.upsert([{"id": 1, "v": 1, "more": "x"}])
    source.delete([{"id": 9}])
    all_of_them = source.changes(since=1, net=net)
    backend.races = [lambda: other.apply_changes(some, app_id="job")]
    if net:
        with pytest.raises(CommitConflict, match="builds on version 1, but slot 2 applied version 2"):
            derived.apply_changes(all_of_them, app_id="job")
        assert derived.apply_changes(source.changes(since=2, net=net), app_id="job") is not None
    else:
        derived.apply_changes(all_of_them, app_id="job")
    assert rows(derived) == rows(source) == {0: 0, 1: 1, 2: 2} and derived.app_version("job") == 4


@pytest.mark.parametrize("net", [True, False])
def test_after_a_restore_a_table_follows_on_from_what_it_was(net: bool) -> None:
    source, derived = pair(FileIO(MemoryBackend("derived"), env=FakeEnv(3)))
    source.upsert([{"id": 7, "v": 7, "more": "x"}])
    derived.apply_changes(source.changes(since=1, net=True), app_id="job")
    derived.restore(to=1)
    assert derived.app_version("job") == 1 and 7 not in rows(derived)
    derived.apply_changes(source.changes(since=1, net=net), app_id="job")
    assert rows(derived) == rows(source) and derived.app_version("job") == 2


def test_a_column_that_is_renamed_on_one_side_is_not_emptied() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("renamed"), env=FakeEnv(5)))
    source = lake.create_table("s", SCHEMA, key=["id"])
    derived = lake.create_table("d", SCHEMA, key=["id"])
    source.insert([{"id": i, "v": i, "more": "x"} for i in range(3)])
    derived.apply_changes(source.changes(since=-1, net=True), app_id="job")
    source.alter.apply([objcat.RenameColumn("v", "w")])
    source.upsert([{"id": 1, "w": 10, "more": "y"}])
    slot = derived.refresh().slot
    with pytest.raises(InvalidInput, match="lacks, 'w', and lack columns of it, 'v'\\. Nothing was written\\. If one was renamed"):
        derived.apply_changes(source.changes(since=1, net=True), app_id="job")
    assert derived.refresh().slot == slot
    derived.alter.apply([objcat.RenameColumn("v", "w")])
    derived.apply_changes(source.changes(since=1, net=True), app_id="job")
    assert {row["id"]: row["w"] for row in derived.scan().to_arrow().to_pylist()} == {0: 0, 1: 10, 2: 2}
    # Whoever names the columns means it.
    derived.alter.apply([objcat.AddColumn("own", "string")])
    source.upsert([{"id": 2, "w": 20, "more": "z"}])
    derived.apply_changes(source.changes(since=3, columns=["id", "w"], net=True), app_id="job")
    assert {row["id"]: row["w"] for row in derived.scan().to_arrow().to_pylist()} == {0: 0, 1: 10, 2: 20}


def test_what_is_added_up_is_added_once() -> None:
    backend = RacingBackend("race")
    table = objcat.Lake(FileIO(backend, env=FakeEnv(5))).create_table(
        "t", pa.schema([pa.field("id", pa.int64()), ("n", pa.int64())]), key=["id"]
    )
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")

    def add(of: objcat.Table, n: int, since: int, version: int) -> Any:
        merge = of.merge([{"id": 1, "n": n}]).when_matched_update({"n": "target.n + source.n"}).when_not_matched_insert()
        return merge.execute(app=objcat.AppVersion(app="sum", version=version, since=since))

    add(table, 10, -1, 3)
    backend.races = [lambda: add(other, 1, 3, 4)]
    with pytest.raises(CommitConflict, match="builds on version 3, but slot 2 applied version 4"):
        add(table, 3, 3, 6)
    assert add(table, 1, 3, 4).already_applied
    add(table, 2, 4, 6)
    assert [row["n"] for row in table.scan().to_arrow().to_pylist()] == [13]
    assert not list(table._context.fileio.list_keys("intents/"))
    # After a restore, what builds on just the restored version leaves no gap.
    table.restore(to=1)
    with pytest.raises(StreamRewound):
        table.upsert([{"id": 1, "n": 0}], app=objcat.AppVersion(app="sum", version=9))
    add(table, 100, 3, 9)
    assert [row["n"] for row in table.scan().to_arrow().to_pylist()] == [110]
