"""The backend under the conformance suite, and a table with several writers, on a real HDFS. `HDFS_PORT` is the port of its NameNode."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from objcat_hdfs import HdfsBackend, HdfsOptions

import objcat
from fileio import Create, Overwrite, PreconditionFailed, PutMode, Update, Written, describe_store
from fileio.env import default_env
from fileio.testing.conformance import *  # noqa: F403 - the tests of the suite
from fileio.testing.conformance import Place, Subject, described, race, written

OPTIONS = {"port": int(os.environ["HDFS_PORT"])}


@pytest.fixture(scope="session")
def subject() -> Subject:
    return described("hdfs", describe_store("hdfs://127.0.0.1/conformance", OPTIONS), clients=6, increments=3)


class Cut:
    """A client that loses the answer of its first rename to a path with some text, before or after HDFS did it."""

    def __init__(self, client: Any, *, to: str, landed: bool) -> None:
        self._client, self._to, self._landed, self.cuts = client, to, landed, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, source: str, target: str) -> None:
        cut = self._to in target and self.cuts
        if not cut or self._landed:
            self._client.rename(source, target)
        if cut:
            self.cuts -= 1
            raise RuntimeError("the connection was lost")


def backend_of(place: Place) -> tuple[HdfsBackend, str]:
    """A backend of the whole file system, and a key of its own."""
    return HdfsBackend("127.0.0.1", HdfsOptions(port=OPTIONS["port"])), f"conformance/{place.prefix}/key"


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("mode", ["create", "update", "overwrite"])
def test_a_lost_answer_of_a_rename_is_never_taken_for_a_refusal(place: Place, mode: str, landed: bool) -> None:
    backend, key = backend_of(place)
    base = None if mode == "create" else written(backend.put(key, b"old", Create(), {})).version
    modes: dict[str, PutMode] = {"create": Create(), "overwrite": Overwrite()}
    if base is not None:
        modes["update"] = Update(base)
    backend._client = Cut(backend._client, to="/p-" if base else "key~", landed=landed)
    outcome = backend.put(key, b"new", modes[mode], {})
    assert backend._client.cuts == 0
    assert isinstance(outcome, Written) == landed and not isinstance(outcome, PreconditionFailed)
    fresh, _ = backend_of(place)
    there = [meta.key for meta in fresh.list_page(key, None, None, None, 10).objects]
    assert there == ([key] if landed or base else [])
    if there:
        assert fresh.get(key, None, None).data == (b"new" if landed else b"old")  # type: ignore[union-attr]


def test_a_late_update_never_lands(place: Place) -> None:
    """The draft of a paused writer meets an object that was replaced, or deleted and created again."""
    backend, key = backend_of(place)
    first = written(backend.put(key, b"1", Create(), {})).version
    second = written(backend.put(key, b"2", Update(first), {})).version
    assert backend.put(key, b"late", Update(first), {}) == PreconditionFailed(second)
    path = f"/{key}~"
    with pytest.raises(FileNotFoundError):
        backend._client.rename(f"{path}/p-{first}", f"{path}/p-late-0-0")
    backend.delete_batch([key])
    third = written(backend.put(key, b"3", Create(), {})).version
    with pytest.raises(FileNotFoundError):
        backend._client.rename(f"{path}/p-{second}", f"{path}/p-late-0-0")
    assert backend.head(key).version == third


def test_what_a_dead_writer_leaves_is_no_object(place: Place) -> None:
    backend, key = backend_of(place)
    upload = backend.start_upload(key, Create(), {})
    upload.put_part(1, b"half")
    assert backend.list_page(key.rpartition("/")[0], None, None, None, 10).objects == []
    assert isinstance(backend.put(key, b"whole", Create(), {}), Written)
    assert isinstance(upload.complete(), PreconditionFailed)
    assert backend.get(key, None, None).data == b"whole"  # type: ignore[union-attr]


def test_two_writers_of_one_table_lose_nothing() -> None:
    url = f"hdfs://127.0.0.1/lake-{default_env().new_id()}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    lake = objcat.connect(url, OPTIONS)
    lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))

    def write(writer: int) -> None:
        table = objcat.connect(url, OPTIONS).table("t")
        for number in range(4):
            table.upsert([{"id": 1000 * writer + number, "n": number}, {"id": -1, "n": writer}])

    race(2, write)
    table = objcat.connect(url, OPTIONS).table("t")
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == {-1, *range(4), *range(1000, 1004)}
    assert table.snapshot.slot == 8
    assert table.maintenance.compact() is not None and table.scan().count() == 9
    table.delete([{"id": -1}])
    assert table.erase(keys=[{"id": 3}]) is not None
    assert objcat.connect(url, OPTIONS).table("t").scan().count() == 7
    assert all(objcat.connect(url, OPTIONS).sql("CALL doctor()").column("healthy").to_pylist())


WRITER = """
import sys, objcat
table = objcat.connect(sys.argv[1], {"port": sys.argv[2]}).table("t")
for number in range(10_000):
    table.upsert([{"id": number, "n": number}])
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_confirmed() -> None:
    url = f"hdfs://127.0.0.1/lake-{default_env().new_id()}"
    lake = objcat.connect(url, OPTIONS)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(2))
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, url, str(OPTIONS["port"])], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(3)]
        writer.kill()
        confirmed += map(int, writer.communicate()[0].split())
        table.refresh()
        assert set(confirmed) <= {row["id"] for row in table.scan().to_arrow().to_pylist()}
    table.upsert([{"id": -1, "n": 0}])
    assert table.scan(where="id = -1").count() == 1
    reports = objcat.connect(url, OPTIONS).sql("CALL doctor(deep => true)").to_pylist()
    assert [report["findings"] for report in reports if not report["healthy"]] == []
