"""Indexes of other packages: the example, the suite on an index in memory, what a lookup then reads, and what a broken index does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat import FoundKeys, KeyFile
from objcat.datafile.bucket_hash import key_digests
from objcat.errors import InvalidInput, PluginFailed
from objcat.testing.indexes import *  # noqa: F403 - the tests of the suite, here on an index in memory
from objcat.testing.indexes import IndexSubject
from objcat.write import index_lookup
from tests.plugins.examples import python, run_tests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
Digests = npt.NDArray[np.uint64]


class SharedIndex:
    """An index that all of a process share. `fault` of the class may answer instead."""

    held: ClassVar[dict[KeyFile, frozenset[int]]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()
    fault: ClassVar[Callable[[Digests, Sequence[KeyFile]], Any] | None] = None

    def __init__(self, options: Mapping[str, str]) -> None:
        if "wrong" in options:
            raise ValueError("an option is wrong")

    def find(self, digests: Digests, files: Sequence[KeyFile]) -> FoundKeys:
        """Keys by file."""
        if SharedIndex.fault is not None:
            return SharedIndex.fault(digests, files)
        with self.lock:
            held = [self.held.get(file) for file in files]
        pairs = [
            (at, number)
            for number, own in enumerate(held)
            if own is not None
            for at, digest in enumerate(digests.tolist())
            if digest in own
        ]
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return FoundKeys(found[:, 0], found[:, 1], [file for file, own in zip(files, held, strict=True) if own is None])

    def add(self, file: KeyFile, digests: Digests) -> None:
        """Remember a file."""
        assert digests.tolist() == sorted(set(digests.tolist())), "digests ascend"
        with self.lock:
            self.held[file] = frozenset(digests.tolist())

    def remove(self, paths: Iterable[str]) -> None:
        """Forget files."""
        gone = set(paths)
        with self.lock:
            for file in [file for file in self.held if file.path in gone]:
                del self.held[file]


class ReadingBackend(MemoryBackend):
    """Notes which data files are read."""

    def __init__(self) -> None:
        super().__init__("indexes")
        self.read: set[str] = set()

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Noted."""
        if "/data/" in key:
            self.read.add(key)
        return super().get(key, byte_range, if_none_match)

    def read_by(self, act: Callable[[], object]) -> int:
        """How many data files something reads."""
        self.read.clear()
        act()
        return len(self.read)


@pytest.fixture(autouse=True)
def memory(entry_points: list[EntryPoint], monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    monkeypatch.setattr(SharedIndex, "held", {})
    monkeypatch.setattr(SharedIndex, "fault", None)
    entry_points.append(EntryPoint("memory", f"{__name__}:SharedIndex", "objcat.indexes"))
    return entry_points


@pytest.fixture
def subject() -> IndexSubject:
    return IndexSubject("memory")


@pytest.fixture
def backend() -> ReadingBackend:
    return ReadingBackend()


def table_in(backend: ReadingBackend, **properties: str) -> objcat.Table:
    table = objcat.Lake(FileIO(backend)).create_table(
        "t", SCHEMA, key=["id"], index=objcat.SimpleIndex(), properties={"target_file_bytes": "2048", "auto_clean": "false", **properties}
    )
    for at in range(0, 400, 100):
        table.insert(rows_of(range(at, at + 100), v=0))
    return table


def rows_of(ids: Iterable[int], *, v: int) -> list[dict[str, int]]:
    return [{"id": one, "v": v} for one in ids]


def rows(table: objcat.Table) -> dict[int, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["v"] for row in found}


def test_the_example_passes_the_suite(sqlite_index: Path, tmp_path: Path) -> None:
    assert run_tests("objcat-sqlite-index", sqlite_index, cwd=tmp_path) == 14, "the tests of the suite, three of them with four seeds"


def test_each_file_is_read_once(backend: ReadingBackend) -> None:
    table = table_in(backend, index_plugin="memory")
    table.upsert(rows_of(range(0, 400, 7), v=1))
    fresh = objcat.Lake(FileIO(backend)).table("t")
    # The rows of the upsert are in one log object.
    assert backend.read_by(lambda: fresh.upsert(rows_of(range(0, 400, 5), v=2))) == 1
    assert backend.read_by(lambda: fresh.upsert(rows_of([1000], v=3))) == 0, "bounds leave out all files"
    assert backend.read_by(lambda: fresh.upsert(rows_of(range(0, 400, 3), v=4))) <= 2
    assert rows(fresh) == {one: 4 if not one % 3 else 2 if not one % 5 else 1 if not one % 7 else 0 for one in range(400)} | {1000: 3}


def test_more_than_a_lookup_may_learn_is_read_and_learned_later(backend: ReadingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_lookup, "LEARNED_ROWS_MAX", 150)
    table = table_in(backend)
    table.set_properties({"index_plugin": "memory"})
    for number in range(1, 6):
        table.upsert(rows_of(range(0, 400, 50), v=number))
        assert rows(table) == {one: 0 if one % 50 else number for one in range(400)}
    bases = {group.base.path for group in table.snapshot.file_groups(table._context.manifests) if group.base is not None}
    held = {file.path.partition("/")[2] for file in SharedIndex.held}
    assert bases <= held, "after some writes the index knows all files"


def _keys_of_one_digest(number: int) -> tuple[int, int]:
    """Two keys of the same digest: the last step of its hash gives both differences the same bit, whatever the hash began with."""
    low, high = number * 7919 + 1, number * 104729 + 3
    first, second = (_unmixed(high) << 32) | _unmixed(low), (_unmixed(high ^ 1 << 31) << 32) | _unmixed(low ^ 1 << 18)
    return first - (first >> 63 << 64), second - (second >> 63 << 64)


def _unmixed(word: int) -> int:
    """What Murmur3 mixes into a word before it takes it."""
    turned = word * pow(0x1B873593, -1, 1 << 32) % (1 << 32)
    return (turned >> 15 | turned << 17) * pow(0xCC9E2D51, -1, 1 << 32) % (1 << 32)


def test_two_keys_of_one_digest_stay_two_rows(backend: ReadingBackend) -> None:
    table = table_in(backend)
    first, second = (list(keys) for keys in zip(*map(_keys_of_one_digest, range(100)), strict=True))
    assert key_digests([pa.array(first)]).tolist() == key_digests([pa.array(second)]).tolist()
    table.insert(rows_of(first, v=0))
    table.insert(rows_of(second, v=0))
    table.set_properties({"index_plugin": "memory"})
    for number, keys in enumerate((first, second, first), 1):
        table.upsert(rows_of(keys, v=number))
    assert rows(table) == dict.fromkeys(range(400), 0) | dict.fromkeys(second, 2) | dict.fromkeys(first, 3)


def _misses(digests: Digests, files: Sequence[KeyFile]) -> FoundKeys:
    raise OSError("no connection")


def _beyond(digests: Digests, files: Sequence[KeyFile]) -> FoundKeys:
    return FoundKeys(np.array([len(digests)]), np.array([0]), [])


def _fractions(digests: Digests, files: Sequence[KeyFile]) -> Any:
    return FoundKeys(np.array([0.5]), np.array([0]), [])


def _invented(digests: Digests, files: Sequence[KeyFile]) -> FoundKeys:
    return FoundKeys(np.array([], int), np.array([], int), [KeyFile("another")])


def _uneven(digests: Digests, files: Sequence[KeyFile]) -> FoundKeys:
    return FoundKeys(np.array([0, 0]), np.array([0]), [])


@pytest.mark.parametrize("fault", [_misses, _beyond, _fractions, _invented, _uneven])
def test_an_index_that_fails_is_told_of_and_the_files_are_read(
    backend: ReadingBackend, fault: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_in(backend, index_plugin="memory")
    monkeypatch.setattr(SharedIndex, "fault", staticmethod(fault))
    with caplog.at_level(logging.WARNING, logger="objcat"):
        table.upsert(rows_of(range(0, 800, 2), v=1))
    assert "keys are looked up in the files of the table. The index 'memory'" in caplog.text
    assert rows(table) == {one: one % 2 == 0 for one in range(400)} | dict.fromkeys(range(400, 800, 2), 1)


def test_a_process_without_the_package_writes_the_same(
    backend: ReadingBackend, entry_points: list[EntryPoint], caplog: pytest.LogCaptureFixture
) -> None:
    table = table_in(backend, index_plugin="memory")
    entry_points.clear()
    with caplog.at_level(logging.WARNING, logger="objcat"):
        table.upsert(rows_of(range(0, 800, 2), v=1))
    assert "No installed package offers the index 'memory'." in caplog.text
    assert rows(table) == {one: one % 2 == 0 for one in range(400)} | dict.fromkeys(range(400, 800, 2), 1)


def test_what_is_wrong_is_refused_when_it_is_said(backend: ReadingBackend) -> None:
    lake = objcat.Lake(FileIO(backend))
    for index in (objcat.BucketIndex(4), objcat.MemoryIndex(), objcat.RecordIndex(4)):
        with pytest.raises(InvalidInput, match=r"The property index_plugin is for tables with SimpleIndex or BloomIndex\."):
            lake.create_table("wrong", SCHEMA, key=["id"], index=index, properties={"index_plugin": "memory"})
    with pytest.raises(InvalidInput, match="is not the name of a plug-in"):
        lake.create_table("wrong", SCHEMA, key=["id"], index=objcat.SimpleIndex(), properties={"index_plugin": "/tmp/code.py"})
    table = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidInput, match=r"The property index_plugin is for tables with SimpleIndex or BloomIndex\."):
        table.set_properties({"index_plugin": "memory"})
    assert IndexSubject("memory", {"wrong": "1"}).properties() == {"index_plugin": "memory", "index_plugin.wrong": "1"}
    with pytest.raises(PluginFailed, match="The index 'memory' failed when it was opened, with ValueError: an option is wrong"):
        IndexSubject("memory", {"wrong": "1"}).open()


def test_the_keys_of_erased_rows_are_forgotten(backend: ReadingBackend) -> None:
    table = table_in(backend, index_plugin="memory")
    table.upsert(rows_of(range(100), v=1))
    before = set(SharedIndex.held)
    assert before
    table.erase([{"id": 7}])
    live = {group.base.path for group in table.refresh().file_groups(table._context.manifests) if group.base is not None}
    gone = {file for file in before if file.path.partition("/")[2] not in live}
    assert gone and not gone & set(SharedIndex.held)


PROCESS = """
import objcat
lake = objcat.connect("lake")
lake.table("t").upsert([{"id": n, "v": 2} for n in range(0, 600, 3)])
found = lake.table("t").scan().to_arrow().to_pylist()
print(len(found), len({row["id"] for row in found}))
"""


def test_processes_share_the_example(sqlite_index: Path, tmp_path: Path) -> None:
    table = objcat.connect(tmp_path / "lake").create_table(
        "t", SCHEMA, key=["id"], index=objcat.SimpleIndex(), properties={"index_plugin": "sqlite", "index_plugin.path": "keys.db"}
    )
    table.set_properties(unset=["index_plugin"])
    table.insert(rows_of(range(500), v=0))
    table.set_properties({"index_plugin": "sqlite"})
    for _ in range(2):
        done = python("-c", PROCESS, cwd=tmp_path, sites=[sqlite_index])
        assert (done.stdout, done.stderr) == ("533 533\n", "")
    assert (tmp_path / "keys.db").stat().st_size > 10_000
    assert rows(table) == {one: 0 if one % 3 else 2 for one in range(500)} | dict.fromkeys(range(501, 600, 3), 2)
