"""Blocks with more rows than memory: they wait on local disk, and nothing of them stays there."""

# ruff: noqa: PT012  (a transaction is a block, and fails where it ends)

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import StoreFull
from fileio.env import SystemEnv
from objcat.errors import InvalidBatch
from tests.effort import INTEGRATION
from tests.tables.spool_process import ROW_BYTES, SCHEMA, STEP, batches

COMMAND = [sys.executable, "-m", "tests.tables.spool_process"]


def create(url: Path, **settings: Any) -> objcat.Lake:
    """A lake whose blocks hold 16 kB in memory."""
    lake = objcat.connect(url, env=SystemEnv(memory_bytes=64 * 1024))
    lake.create_table("t", SCHEMA, **{"key": ["id"], "index": objcat.BucketIndex(2), "shared_log": "shop", **settings})
    return lake


def some(*keys: int, v: int = 0) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(["x" * 100] * len(keys)), pa.array([v] * len(keys))], schema=SCHEMA)


def kinds(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """The same rows as streams of several kinds."""
    folder.mkdir(exist_ok=True)

    def dataset(rows: pa.Table) -> ds.Dataset:
        pq.write_table(rows, folder / "rows.parquet", row_group_size=100)
        return ds.dataset(folder / "rows.parquet")

    return {
        "reader": lambda rows: pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=100)),
        "generator": lambda rows: (batch for batch in rows.to_batches(max_chunksize=100)),
        "tables": lambda rows: [rows.slice(0, 300), rows.slice(300)],
        "dataset": dataset,
        "scanner": lambda rows: dataset(rows).scanner(batch_size=100),
    }


@pytest.mark.parametrize("kind", ["reader", "generator", "tables", "dataset", "scanner"])
@pytest.mark.parametrize("settings", [{}, {"table_type": "copy_on_write"}, {"index": objcat.RecordIndex()}, {"key": None, "index": None}])
def test_streams_of_any_kind_are_written_as_one_batch(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    settings = {name: value for name, value in settings.items() if name != "index" or value is not None}
    lake = create(tmp_path / "lake", **({"index": None} if "key" in settings else {}) | settings)
    rows = pa.Table.from_batches([some(*range(1000))])
    with lake.transaction() as tx:
        tx["t"].insert(kinds(tmp_path / "rows")[kind](rows))
    table = lake.table("t")
    assert table.scan().to_arrow().sort_by("id") == rows
    if table.key:
        with lake.transaction() as tx:
            tx["t"].delete(kinds(tmp_path / "rows")[kind](rows.slice(0, 900)))
            tx["t"].upsert_partial(kinds(tmp_path / "rows")[kind](rows.slice(900).select(["id"])))
            tx["t"].replace_range(kinds(tmp_path / "rows")[kind](rows.slice(950)), where="id BETWEEN 910 AND 2000")
        assert table.scan().to_arrow().sort_by("id") == pa.concat_tables([rows.slice(900, 10), rows.slice(950)])


def test_many_calls_share_one_limit_and_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = create(tmp_path)
    files: list[Any] = []
    real = tempfile.TemporaryFile

    def counted(**options: Any) -> Any:
        files.append(real(**options))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", counted)
    with lake.transaction() as tx:
        for number in range(500):
            tx["t"].upsert(some(number % 50, number, v=number))
        tx["t"].delete(some(3))
        tx["t"].upsert(some(*range(100, 300), v=-1))
    assert len(files) == 1
    found = {row["id"]: row["v"] for row in lake.table("t").scan().to_arrow().to_pylist()}
    last = {key: max(number for number in range(500) if key in (number % 50, number)) for key in range(500)}
    assert found == {key: number for key, number in last.items() if key != 3} | dict.fromkeys(range(100, 300), -1)
    entry = lake.table("t").inspect.history()[-1]
    assert tx.result is not None and tx.result.files == 3, "adjacent calls of one kind are one batch"
    assert entry.slot == tx.result.slot


def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    lake = create(tmp_path)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from [some(*range(500)), some(*range(500, 900))]
        raise ConnectionError("the source went away")

    def changing() -> Iterator[pa.RecordBatch]:
        yield some(*range(500))
        yield some(1).select(["id"])

    with pytest.raises(ConnectionError), lake.transaction() as tx:
        tx["t"].upsert(failing())
    with pytest.raises(InvalidBatch, match="Batch 1 of the iterable does not have the columns"), lake.transaction() as tx:
        tx["t"].upsert(changing())
    with pytest.raises(InvalidBatch, match="gives a int first"), lake.transaction() as tx:
        tx["t"].upsert(iter([1, 2]))
    with pytest.raises(InvalidBatch, match="empty"), lake.transaction() as tx:
        tx["t"].upsert(iter([]))
    assert lake.table("t").refresh().slot == 0 and not list(tmp_path.glob("**/data/**/*.parquet"))


def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = create(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b"))  # noqa: SIM115 - the spool closes it
    with pytest.raises(StoreFull, match="name another directory in TMPDIR"), lake.transaction() as tx:
        tx["t"].upsert(some(1))
        tx["t"].upsert(some(*range(1000)))
    monkeypatch.undo()
    assert lake.table("t").refresh().slot == 0
    with lake.transaction() as tx:
        tx["t"].upsert(some(*range(1000)))
    assert lake.table("t").scan().count() == 1000


@INTEGRATION
@pytest.mark.parametrize("how", ["stream", "calls", "partial"])
def test_memory_is_bounded_with_five_times_the_limit(tmp_path: Path, how: str) -> None:
    limit = 128 * 1024**2
    count = 5 * limit // ROW_BYTES // STEP * STEP
    run = subprocess.run([*COMMAND, str(tmp_path), how, str(limit), str(count)], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 1.5 * limit, f"{int(run.stdout) / 1024**2:.0f} MB"
    assert objcat.connect(tmp_path).table("large").scan().count() == count


@INTEGRATION
def test_a_killed_process_leaves_nothing_on_disk(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    command = [*COMMAND, str(tmp_path / "lake"), "die", str(1024**2), "200000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(spool)}) as process:
        assert process.stdout is not None and process.stdout.readline() == "spooled\n"
        process.kill()
    assert list(spool.iterdir()) == []
    assert objcat.connect(tmp_path / "lake").table("large").scan().count() == 1000
    assert sum(batch.num_rows for batch in batches(1000)) == 1000
