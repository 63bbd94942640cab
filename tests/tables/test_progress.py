"""The bar that long work draws on a terminal, and what it tells whoever asks."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from objcat.common import progress
from objcat.common.validation import TableType
from objcat.engine import spooled_batch
from objcat.metadata.table_spec import Index


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as stderr; not by a fixture, since pytest sets stderr anew before each test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


def long_work(place: Path) -> None:
    """An import and a compaction."""
    (place / "from").mkdir()
    for part in range(3):
        pq.write_table(pa.table({"id": range(part * 10, part * 10 + 10)}), place / "from" / f"{part}.parquet")
    lake = objcat.connect(place / "lake")
    lake.import_parquet(place / "from", "t", key=["id"], index=objcat.BucketIndex(2))
    table = lake.table("t")
    table.upsert([{"id": key} for key in range(50)])
    assert table.maintenance.compact() is not None


def test_long_work_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    long_work(tmp_path)
    drawn = terminal.getvalue()
    assert "objcat: import into t" in drawn
    assert "objcat: compact" in drawn
    assert "100%" in drawn


def test_short_work_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 10**6)
    long_work(tmp_path)
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    long_work(tmp_path)
    assert capfd.readouterr() == ("", "")


def told_of(work: Callable[[], object]) -> dict[str, list[objcat.Progress]]:
    """What is told of some work, by what it is."""
    told: dict[str, list[objcat.Progress]] = {}
    with objcat.report_progress(lambda at: told.setdefault(at.what, []).append(at)):
        work()
    for steps in told.values():
        done = [at.done for at in steps]
        assert done == sorted(done) and done[0] == 0
        assert len({(at.total, at.unit) for at in steps}) == 1
    return told


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", [objcat.BucketIndex(4), objcat.SimpleIndex()], ids=str)
def test_writes_and_services_tell_whoever_asks(tmp_path: Path, kind: TableType, index: Index) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], table_type=kind, index=index)
    batch = pa.table({"id": range(10_000), "text": ["x"] * 10_000})
    told = told_of(lambda: table.insert(batch))
    last = told["objcat: insert"][-1]
    assert (last.done, last.total, last.unit) == (20_000, 20_000, "rows")
    assert len(told["objcat: insert"]) >= 3
    told = told_of(lambda: table.upsert(batch))
    last = told["objcat: upsert"][-1]
    assert last.done == last.total and last.unit == "rows"
    if kind == "merge_on_read":
        last = told_of(table.maintenance.compact)["objcat: compact"][-1]
        assert last.done == last.total == len(table.inspect.files()) and last.unit == "file groups"
    last = told_of(lambda: table.maintenance.clean(keep_slots=1))["objcat: delete files"][-1]
    assert last.done == last.total and last.total > 0 and last.unit == "files"


def test_a_stream_that_waits_on_disk_tells_how_many_rows_were_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled_batch, "SPOOL_BYTES_MAX", 1000)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"])
    batches = [pa.record_batch({"id": list(range(at, at + 100))}, schema=schema) for at in range(0, 1000, 100)]
    told = told_of(lambda: table.upsert(pa.RecordBatchReader.from_batches(schema, batches)))
    last = told["objcat: take rows"][-1]
    assert (last.done, last.total) == (1000, None)
    assert told["objcat: upsert"][-1].done == 1000


def test_who_is_told_has_the_terminal_to_himself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    told = told_of(lambda: long_work(tmp_path))
    assert terminal.getvalue() == ""
    assert {"objcat: import into t", "objcat: compact"} <= set(told)


def test_of_work_that_is_part_of_other_work_the_whole_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    long_work(tmp_path)
    drawn = terminal.getvalue()
    assert "objcat: import into t" in drawn and "objcat: upsert" in drawn
    assert "objcat: insert" not in drawn


def test_an_error_of_who_is_told_disturbs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_at: objcat.Progress) -> None:
        raise RuntimeError("no")

    with objcat.report_progress(fail):
        long_work(tmp_path)
    assert objcat.connect(tmp_path / "lake").table("t").scan().count() == 50
    assert "The progress listener failed for 'objcat: compact'" in caplog.text


def test_work_that_failed_leaves_nothing_behind_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    table = objcat.create_table_at(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
    with pytest.raises(objcat.errors.NullKey) as failed:
        table.insert(pa.table({"id": pa.array([1, None])}))
    table.upsert([{"id": 1}])
    assert "objcat: upsert" in terminal.getvalue()
    del failed


def test_an_erasure_tells_how_far_it_is(tmp_path: Path) -> None:
    table = objcat.create_table_at(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]), key=["id"])
    table.insert([{"id": number, "name": f"person {number}"} for number in range(4)])
    last = told_of(lambda: table.erase("id = 3"))["objcat: erase"][-1]
    assert last.done == last.total and last.unit == "steps"
