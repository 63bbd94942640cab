"""What a handle that writes keeps does not follow the number of its commits, nor the rows of one write."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.tasks.model import Operation, WriteTask
from objcat.tasks.write_log_rows import write_rows
from objcat.timeline import process_log
from objcat.timeline.entry import new_txn
from tests.effort import effort

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
SHARED_ENTRIES = 20
LOG_BYTES, ROWS = 4 * 1024**2, 15_000
KEPT_BYTES_MAX = 2_000
"""A commit. Of objects of Python: an entry that is kept whole, with what it was decoded to, is several times as much."""


def test_a_writer_keeps_next_to_nothing_of_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The entries that threads share are a cache of a fixed size, which this test would not fill.
    monkeypatch.setattr(process_log, "ENTRIES_MAX", SHARED_ENTRIES)
    table = objcat.connect(str(tmp_path)).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    commits = effort(30, with_all=700)

    def held_after(slots: int) -> int:
        """Write so often, compacting now and then. Returns the bytes that are held afterwards."""
        for number in range(slots):
            table.upsert([{"id": number % 7, "value": "x"}])
            if number % 25 == 24:
                table.maintenance.compact()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        held_after(2 * commits)  # Caches have their sizes, and a checkpoint was published.
        # Background work holds something for a while: at one of three times it holds the least. What is kept is there at all of them.
        begun, ended = (min(held_after(commits) for _ in range(3)) for _ in range(2))
    finally:
        tracemalloc.stop()
    kept = (ended - begun) / (3 * commits)
    assert kept < KEPT_BYTES_MAX, f"{kept:.0f} bytes of each commit are kept"


def test_a_long_write_holds_the_rows_of_one_log_file() -> None:
    fileio = FileIO(MemoryBackend("long"))
    table = objcat.create_table_at(fileio, SCHEMA, key=["id"], properties={"target_log_bytes": str(LOG_BYTES)})
    task = WriteTask(table.spec, new_txn(fileio.env), Operation.UPSERT)
    held: list[int] = []
    begun = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        """Each is a part of a log file, and nobody else holds it."""
        for number in range(60):
            held.append(pa.total_allocated_bytes() - begun)
            yield _batch(number * ROWS, (number + 1) * ROWS)

    written = write_rows(fileio, task, "long", batches())
    assert len(written.logs) >= 3
    assert max(held) < 1.2 * LOG_BYTES, held


def _batch(first: int, end: int) -> pa.RecordBatch:
    ids = pa.array(range(first, end), pa.int64())
    return pa.record_batch([ids, ids.cast(pa.string())], schema=SCHEMA)
