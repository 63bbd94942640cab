"""Which rows of a source a refresh takes for changed, and how much it reads to know them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.lake.lake import Lake
from objcat.timeline.entry import log_key

PAIRS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
NOTES = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("note", pa.string())])


class CountingBackend(MemoryBackend):
    """Counts the bytes of data files that are read, and how often each slot is."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.slots: Counter[str] = Counter()

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """As any backend."""
        found = super().get(key, byte_range, if_none_match)
        self.slots[key] += "/log/" in key
        if "/data/" in key and isinstance(found, GetResult):
            self.read += len(found.data)
        return found


def rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    return sorted(lake.table(name).scan().to_arrow().to_pylist(), key=str)


def wanted(lake: Lake, query: str) -> list[dict[str, Any]]:
    return sorted(lake.sql(query).to_pylist(), key=str)


@pytest.fixture
def lake() -> Lake:
    return objcat.Lake(FileIO(MemoryBackend()))


@pytest.mark.parametrize("aggregate", [False, True])
def test_keys_of_several_columns_are_told_apart(lake: Lake, aggregate: bool) -> None:
    """Rows that share one column of a changed key with another changed key did not change."""
    source = lake.create_table("pairs", PAIRS, key=["a", "b"])
    source.upsert([{"a": a, "b": b, "v": a} for a in range(6) for b in "xyz"])
    query = "SELECT a, b, v FROM pairs" if not aggregate else "SELECT v, count(*) AS n, sum(a) AS s, count(a) AS m FROM pairs GROUP BY v"
    lake.create_derived("copy", query, key=["v"] if aggregate else ["a", "b"])
    source.upsert([{"a": 1, "b": "x", "v": 50}, {"a": 2, "b": "y", "v": 60}])
    source.delete([{"a": 3, "b": "z"}])
    assert lake.refresh_derived("copy").way == ("groups" if aggregate else "rows")
    assert rows(lake, "copy") == wanted(lake, query)


@pytest.mark.parametrize("merged", [False, True])
def test_a_late_row_changes_nothing(lake: Lake, merged: bool) -> None:
    """Of a source with an ordering column the last row of a log is not always the newest."""
    source = lake.create_table("notes", NOTES, key=["id"], ordering="v")
    source.upsert([{"id": number, "v": 10, "note": f"n{number}"} for number in range(8)])
    if merged:
        source.maintenance.compact()
    lake.create_derived("copy", "SELECT id, v, note FROM notes", key=["id"])
    source.upsert([{"id": 1, "v": 5, "note": "late"}, {"id": 2, "v": 20, "note": "newer"}])
    source.upsert([{"id": 2, "v": 15, "note": "late too"}])
    assert lake.refresh_derived("copy").upserted == 1
    assert rows(lake, "copy") == wanted(lake, "SELECT id, v, note FROM notes")


@pytest.mark.parametrize("settings", [{}, {"index": objcat.SimpleIndex()}, {"partition_by": ["truncate(id, 4)"]}], ids=str)
def test_the_last_of_many_commits_counts(lake: Lake, settings: dict[str, Any]) -> None:
    """A key that changes, goes and comes back; others that only come and go; a column that joins with a default meanwhile."""
    source = lake.create_table("notes", NOTES, key=["id"], **settings)
    source.upsert([{"id": number, "v": number, "note": "first"} for number in range(12)])
    query = "SELECT id, v, note FROM notes"
    lake.create_derived("copy", query, key=["id"])
    source.upsert([{"id": 1, "v": 100, "note": "second"}, {"id": 30, "v": 1, "note": "short"}])
    source.delete([{"id": 1}, {"id": 30}, {"id": 2}])
    source.alter.add_column("more", pa.int64(), default=7)
    source.upsert_partial([{"id": 3, "note": "part"}])
    source.maintenance.compact()
    source.alter.rename_column("note", "said")
    source.alter.rename_column("said", "note")
    source.upsert([{"id": 1, "v": 101, "note": "third", "more": None}, {"id": 4, "v": 4, "note": None, "more": 1}])
    assert lake.refresh_derived("copy").why is None
    assert rows(lake, "copy") == wanted(lake, query)
    lake.create_derived("sums", "SELECT more, count(*) AS n FROM notes WHERE more IS NOT NULL GROUP BY more", key=["more"])
    source.upsert([{"id": 5, "v": 5, "note": "x", "more": 1}])
    lake.refresh_derived("sums")
    assert rows(lake, "sums") == wanted(lake, "SELECT more, count(*) AS n FROM notes WHERE more IS NOT NULL GROUP BY more")


def test_scattered_changes_read_each_file_once() -> None:
    """The newest rows are in log rows, so base files are read for the former ones alone, and columns that no query names are not."""
    backend = CountingBackend()
    lake = objcat.Lake(FileIO(backend))
    drawn = random.Random(1)
    source = lake.create_table("notes", NOTES, key=["id"], index=objcat.BucketIndex(2))
    source.bulk_insert([{"id": number, "v": drawn.getrandbits(62), "note": f"{drawn.getrandbits(200):x}"} for number in range(20_000)])
    lake.create_derived("copy", "SELECT id, v FROM notes", key=["id"], index=objcat.BucketIndex(1))
    source.upsert([{"id": drawn.randrange(20_000), "v": 1, "note": "x"} for _ in range(300)])
    backend.read = 0
    source.scan(columns=["id", "v"]).to_arrow()
    scanned, backend.read = backend.read, 0
    result = objcat.Lake(lake.fileio).refresh_derived("copy")
    assert result.way == "rows" and result.upserted > 250
    assert scanned > 150_000
    assert backend.read < 1.5 * scanned
    assert rows(lake, "copy") == wanted(lake, "SELECT id, v FROM notes")


@pytest.mark.parametrize(
    "query", ["SELECT id, v FROM notes", "SELECT v % 3 AS m, count(*) AS n, max(id) AS most FROM notes WHERE v >= 0 GROUP BY 1"]
)
def test_a_refresh_reads_the_log_once(query: str) -> None:
    """The slots up to the last refresh are read once, whatever is scanned as of it."""
    backend = CountingBackend()
    lake = objcat.Lake(FileIO(backend))
    source = lake.create_table("notes", NOTES, key=["id"])
    for number in range(20):
        source.upsert([{"id": number, "v": number, "note": "x"}])
    lake.create_derived("copy", query, key=["id" if "GROUP" not in query else "m"])
    source.upsert([{"id": 3, "v": 31, "note": "x"}])
    other = objcat.Lake(lake.fileio)
    backend.slots.clear()
    assert other.refresh_derived("copy").upserted
    prefix = source._context.fileio.url.removeprefix(lake.fileio.url).strip("/")
    asked = [backend.slots[f"{prefix}/{log_key(slot)}"] for slot in range(18)]
    assert sum(asked) > 5 and max(asked) <= 2, asked
    assert rows(lake, "copy") == sorted(lake.sql(query).cast(lake.table("copy").schema).to_pylist(), key=str)
