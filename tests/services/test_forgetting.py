"""Nothing of an erased person is left in the bucket: under every kind, index and history, all of it is searched, decoded too."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import pytest

import objcat
import objcat.timeline.side_objects
from fileio.memory import MemoryBackend
from objcat.common.validation import TableType
from objcat.inspection.doctor import examine
from tests.effort import few
from tests.services.people import HER, OLDER, SCHEMA, die_with, lake_on, leaks, other

KINDS: tuple[TableType, ...] = ("merge_on_read", "copy_on_write")
INDEXES: dict[str, Any] = {
    "bucket": objcat.BucketIndex(2),
    "simple": objcat.SimpleIndex(),
    "bloom": objcat.BloomIndex(),
    "memory": objcat.MemoryIndex(),
    "record": objcat.RecordIndex(2),
    "without_key": None,
}
PARTITIONS = {"whole": [], "by mail": ["mail"], "by birth": ["born"]}


def made(
    backend: MemoryBackend,
    *,
    kind: TableType = "merge_on_read",
    index: str = "bucket",
    ordering: str | None = None,
    partition_by: str = "whole",
) -> objcat.Table:
    """An empty table of people."""
    without_key = index == "without_key"
    settings: dict[str, Any] = {"key": None} if without_key else {"key": ["ssn"], "index": INDEXES[index], "ordering": ordering}
    fields = PARTITIONS[partition_by]
    if fields:
        settings["partition_by"] = fields
        if not without_key:
            settings["key_scope"] = "partition"
    return lake_on(backend, 1).create_table("people", SCHEMA, table_type=kind, **settings)


def write(table: objcat.Table, rows: list[dict[str, Any]], **said: Any) -> None:
    (table.upsert if table.spec.has_key else table.insert)(rows, **said)


def lived(table: objcat.Table) -> None:
    """A short history in which she comes and changes, a commit of her own each time."""
    write(table, [other(i) for i in range(10)])
    write(table, [OLDER], metadata={"who": "Ada Q. Lovelace"})
    write(table, [other(10)])
    if not table.spec.has_key and table.spec.partition_columns:
        table.delete("ssn = '123-45-6789'")
    elif not table.spec.has_key:
        table.update({"name": f"'{HER['name']}'", "mail": f"'{HER['mail']}'", "salary": "98765.25"}, where="ssn = '123-45-6789'")
    write(table, [HER])
    write(table, [other(11)])


def check_gone(backend: MemoryBackend, *, rows: int) -> None:
    table = lake_on(backend, 50).table("people")
    assert leaks(backend) == []
    assert table.scan(where="ssn = '123-45-6789'").count() == 0
    assert table.scan().count() == rows
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings
    assert set(table._context.fileio.list_keys("data/")) >= set(table.inspect.files().column("path").to_pylist())
    assert lake_on(backend, 51).table("people").scan().count() == rows


SETTINGS = [
    (kind, index, ordering, partition_by)
    for kind, index, ordering, partition_by in itertools.product(KINDS, INDEXES, (None, "seen"), PARTITIONS)
    if not (index == "without_key" and ordering is not None)
]
SETTINGS.sort(key=lambda setting: zlib.crc32(repr(setting).encode()))


@pytest.mark.parametrize("setting", few(SETTINGS, 8))
def test_nothing_is_left_whatever_the_table_is(setting: tuple[TableType, str, str | None, str]) -> None:
    kind, index, ordering, partition_by = setting
    backend = MemoryBackend("kinds")
    table = made(backend, kind=kind, index=index, ordering=ordering, partition_by=partition_by)
    lived(table)
    assert len(leaks(backend)) > 10, "the search finds her"
    done = table.erase("ssn = '123-45-6789'", older_than_s=0)
    assert done.found == 0
    check_gone(backend, rows=12)
    write(table, [other(20)])
    assert table.scan().count() == 13


def none(_table: objcat.Table, _backend: MemoryBackend) -> None:
    pass


def checkpoints(table: objcat.Table, _backend: MemoryBackend) -> None:
    for i in range(40):
        write(table, [other(100 + i % 5)])
    table._context.timeline.publish(table._context.timeline.open())


def archive(table: objcat.Table, backend: MemoryBackend) -> None:
    checkpoints(table, backend)
    assert table.maintenance.archive(keep_slots=1).tombstones > 10


def compacted(table: objcat.Table, _backend: MemoryBackend) -> None:
    table.maintenance.compact()


def split(table: objcat.Table, _backend: MemoryBackend) -> None:
    for partition in sorted(table.refresh().live_partitions(table._context.manifests)):
        table.maintenance.split_buckets(partition=partition)
    write(table, [other(100)])


def deleted_before(table: objcat.Table, _backend: MemoryBackend) -> None:
    table.delete("ssn = '123-45-6789'")
    table.maintenance.compact()
    write(table, [other(100)])


def deleted_and_back(table: objcat.Table, backend: MemoryBackend) -> None:
    deleted_before(table, backend)
    write(table, [{**HER, "seen": 9}])


def died(_table: objcat.Table, backend: MemoryBackend) -> None:
    if _table.spec.has_key:
        die_with(backend, [{**HER, "name": "Ada Q. Lovelace of the dead"}])


def altered(table: objcat.Table, _backend: MemoryBackend) -> None:
    table.alter.rename_column("mail", "address")
    table.alter.drop_column("name")
    table.alter.add_column("note", "string")
    table.maintenance.compact()


def restored(table: objcat.Table, _backend: MemoryBackend) -> None:
    slot = table.snapshot.slot
    write(table, [other(100)])
    table.restore(to=slot)
    write(table, [other(100)])


def saved_by_others(table: objcat.Table, _backend: MemoryBackend) -> None:
    table.maintenance.savepoint(slot=0)


HISTORIES: dict[str, Callable[[objcat.Table, MemoryBackend], None]] = {
    step.__name__: step
    for step in (none, checkpoints, archive, compacted, split, deleted_before, deleted_and_back, died, altered, restored, saved_by_others)
}


@pytest.mark.parametrize("ordering", few([None, "seen"], 1))
@pytest.mark.parametrize("kind", few(KINDS, 1))
@pytest.mark.parametrize("history", HISTORIES)
def test_nothing_is_left_whatever_has_happened(history: str, kind: TableType, ordering: str | None) -> None:
    backend = MemoryBackend("histories")
    table = made(backend, kind=kind, ordering=ordering)
    lived(table)
    HISTORIES[history](table, backend)
    before = table.scan(where="ssn <> '123-45-6789'").count()
    done = table.erase([{"ssn": "123-45-6789"}], older_than_s=0)
    assert done.found == 0
    check_gone(backend, rows=before)


@pytest.mark.parametrize("second", few(sorted(HISTORIES), 2))
@pytest.mark.parametrize("first", few(["archive", "deleted_before", "split", "restored"], 1))
@pytest.mark.parametrize("turn", few(range(6), 1))
def test_nothing_is_left_after_two_things_that_have_happened(first: str, second: str, turn: int) -> None:
    kind, index, ordering, partition_by = SETTINGS[(zlib.crc32(f"{first} {second}".encode()) + turn * 11) % len(SETTINGS)]
    if "split" in (first, second) and index != "bucket":
        pytest.skip("splits are of buckets")
    if "altered" in (first, second) and partition_by == "by mail" and index == "without_key":
        pytest.skip("renamed columns of partitions are asked by others")
    backend = MemoryBackend("two")
    table = made(backend, kind=kind, index=index, ordering=ordering, partition_by=partition_by)
    lived(table)
    for step in (first, second):
        HISTORIES[step](table, backend)
    before = table.scan(where="ssn <> '123-45-6789'").count()
    assert table.erase("ssn = '123-45-6789'", older_than_s=0).found == 0
    check_gone(backend, rows=before)


@pytest.mark.parametrize("index", few(["simple", "record", "bucket"], 1))
def test_side_objects_go(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objcat.timeline.side_objects, "INLINE_BYTES_MAX", 400)
    monkeypatch.setattr(objcat.timeline.side_objects, "INLINE_DIGESTS_MAX", 0)
    backend = MemoryBackend("sides")
    table = made(backend, index=index)
    lived(table)
    assert any("changes.json-" in key for key in table._context.fileio.list_keys("data/"))
    assert table.erase("ssn = '123-45-6789'", older_than_s=0).found == 0
    check_gone(backend, rows=12)


def test_erasing_twice_leaves_nothing_either() -> None:
    backend = MemoryBackend("twice")
    table = made(backend, partition_by="by mail")
    lived(table)
    table.erase("ssn = '000-00003'", older_than_s=0)
    assert table.erase("ssn = '123-45-6789'", older_than_s=0).found == 0
    check_gone(backend, rows=11)
    assert table.erase("ssn = '123-45-6789'", older_than_s=0).deleted is None
    check_gone(backend, rows=11)
