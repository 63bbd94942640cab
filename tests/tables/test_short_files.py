"""Data files that are not what was committed: cut, grown, replaced, or cut on the way by something that says so of no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from objcat.datafile.open_files import WHOLE_BYTES_MAX
from objcat.errors import CorruptTable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
ROWS = {"small": 100, "large": 300_000}


class Cutting(MemoryBackend):
    """Answers of data files are cut to half as often as `cuts` says, and the size that they tell of the object with them."""

    cuts = 0
    reads = 0

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        result = super().get(key, byte_range, if_none_match)
        if "/data/" not in key or isinstance(result, NotModified):
            return result
        self.reads += 1
        if self.cuts == 0:
            return result
        self.cuts -= 1
        return replace(result, data=result.data[: len(result.data) // 2], meta=replace(result.meta, size=result.meta.size // 2))


def written(backend: MemoryBackend, size: str) -> objcat.Table:
    """A table with one base file, which is read in one request when it is small and in pieces when it is large."""
    table = objcat.Lake(FileIO(backend, policy=RetryPolicy(attempts_max=2))).create_table(
        "t", SCHEMA, key=["id"], index=objcat.BucketIndex(1), table_type="copy_on_write"
    )
    count = ROWS[size]
    table.insert(pa.table({"id": np.arange(count), "v": np.random.default_rng(1).random(count)}, schema=SCHEMA))
    return table


def spoil(table: objcat.Table, change: Callable[[bytes], bytes]) -> tuple[str, int, int]:
    """Replace the one data file: its path, its size before, and now."""
    (path,) = table._context.fileio.list_keys("data/")
    data = table._context.fileio.read(path)
    table._context.fileio.put(path, change(data))
    return path, len(data), len(change(data))


@pytest.mark.parametrize("size", ROWS)
@pytest.mark.parametrize(
    "change",
    [lambda data: data[: len(data) // 2], lambda data: data[:-1], lambda _: b"", lambda data: data + b"PAR1"],
    ids=["half", "last byte", "empty", "longer"],
)
def test_a_file_of_another_size_is_named_with_both_sizes(size: str, change: Callable[[bytes], bytes]) -> None:
    table = written(MemoryBackend("lake"), size)
    path, before, after = spoil(table, change)
    assert (before > WHOLE_BYTES_MAX) == (size == "large")
    asked: list[Callable[[], object]] = [
        lambda: table.scan().to_arrow(),
        lambda: table.scan(where="id = 7").to_arrow(),
        lambda: table.upsert(pa.table({"id": [7], "v": [0.5]}, schema=SCHEMA)),
    ]
    for ask in asked:
        with pytest.raises(CorruptTable) as raised:
            ask()
        text = str(raised.value)
        assert path in text and str(before) in text and str(after) in text and "backup" in text
    assert table.refresh().slot == 1, "nothing was committed above a file that cannot be read"


@pytest.mark.parametrize("size", ROWS)
def test_a_page_in_the_place_of_a_file_is_named(size: str) -> None:
    table = written(MemoryBackend("lake"), size)
    path, _, _ = spoil(table, lambda data: b"<html>".ljust(len(data)))
    with pytest.raises(CorruptTable, match="not a Parquet file") as raised:
        table.scan().to_arrow()
    assert path in str(raised.value)


def test_an_answer_that_is_cut_once_on_the_way_is_asked_for_once_more() -> None:
    backend = Cutting("lake")
    table = written(backend, "small")
    assert table.scan().to_arrow().num_rows == ROWS["small"]
    assert backend.reads == 1
    backend.cuts = 1
    assert table.scan().to_arrow().num_rows == ROWS["small"]
    assert (backend.cuts, backend.reads) == (0, 3)
    backend.cuts = 100
    with pytest.raises(CorruptTable, match="cuts or changes answers"):
        table.scan().to_arrow()
