"""Tables with more files than memory should hold, and logs with many versions: rows are the same, and what is read stays little."""

from __future__ import annotations

import random
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest

from fileio.memory import MemoryBackend
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.mirror.delta import checkpoints, restarts, state
from objcat.mirror.model import CorruptMirror, MirroredFile
from tests.effort import ALL, INTEGRATION, seeds
from tests.mirror.delta.synthetic import History, described, positions, read_by_deltalake


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every few versions, of many row groups, that are never kept as a whole."""
    monkeypatch.setattr(state, "WHOLE_ROWS_MAX", 0)
    monkeypatch.setattr(state, "VERSIONS_MIN", 3)
    for module in (checkpoints, restarts):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 4)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", seeds(1, integration=5, with_all=30))
def test_files_that_are_looked_up_in_checkpoints_are_the_same(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(state, "KNOWN_BYTES", rng.choice([0, 3000, 1 << 20]))
    table = History(open_store(tmp_path.as_uri()))
    one = table.mirror()
    one.write(table.begin())
    for number in range(40):
        if rng.random() < 0.3:
            one = table.mirror()
        one.write(table.add(*(table.drawn_file(rng) for _ in range(6))) if number % 5 == 0 else table.draw(rng))
        assert one.live_files() == {path: len(stored.live) for path, stored in table.files.items()}
    masked = {path: stored.masked for path, stored in table.files.items() if stored.masked}
    assert {path: set(rows.tolist()) for path, rows in table.mirror().masked(list(table.every)).items()} == masked
    assert max(pq.ParquetFile(path).num_row_groups for path in tmp_path.glob("_delta_log/*.checkpoint.parquet")) > 3
    for slot in range(0, 41, 4):
        assert read_by_deltalake(table.url, slot) == table.rows_at[slot]
    assert read_by_deltalake(table.url) == table.rows_at[40]


@pytest.mark.usefixtures("small_limits")
def test_a_file_that_a_large_mirror_does_not_name_is_refused() -> None:
    table = History(FileIO(MemoryBackend("missing"), env=FakeEnv(1)))
    one = table.mirror()
    one.write(table.begin())
    stored = [table.file([{"id": number}]) for number in range(40)]
    one.write(table.add(*stored))
    for _ in range(4):
        one.write(table.nothing())
    with pytest.raises(CorruptMirror, match="does not name data/zzz"):
        one.write(table.change(removed=("data/zzz",)))
    with pytest.raises(CorruptMirror, match="names already"):
        one.write(table.change(added=(stored[7].file,)))


def large_file(number: int, *, masked: bool) -> MirroredFile:
    path = f"data/20261125T{number // 64:09d}Z-{number * 7919:016x}/{number:08d}_{number % 65536:05d}.parquet"
    rows = positions(1, 2, 3) if masked else positions()
    return MirroredFile(path=path, bytes=10**8 + number, rows=10**6, bounds={1: (number, number + 10**6, 0), 2: ("a", "w", 3)}, masked=rows)


@pytest.mark.parametrize("count", [30_000, pytest.param(1_000_000, marks=ALL)])
def test_a_commit_of_a_large_table_reads_little_of_it(tmp_path: Path, count: int) -> None:
    table = History(open_store(tmp_path.as_uri()))
    files = [large_file(number, masked=number % 10 == 0) for number in range(count)]
    first = table.mirror()
    first.write(table.change(slot=5, restarts=True, added=files))
    table.slot = 5
    size = (tmp_path / "_delta_log/00000000000000000005.checkpoint.parquet").stat().st_size
    one = table.mirror()
    before = table.fileio.metrics.snapshot()
    newest = one.newest()
    asked = table.fileio.metrics.snapshot() - before
    assert newest is not None and newest.slot == 5
    # The hint, the listing, the first line of the commit, the footer and the settings of the checkpoint.
    assert asked.request_count <= 6 and asked.bytes_read < 300_000 + size // 20, asked
    for number, masks in enumerate((0, 1, 1)):
        new = large_file(count + number, masked=False)
        before = table.fileio.metrics.snapshot()
        change = table.change(added=(new,), masked=tuple(large_file(1000 * at + number, masked=True) for at in range(masks)))
        one.write(change)
        table.slot = change.slot
        asked = table.fileio.metrics.snapshot() - before
        assert asked.bytes_read < 700_000 and asked.requests.get("get", 0) <= 3, asked
    assert len(one.live_files()) == count + 3
    assert deltalake.DeltaTable(table.url).version() == 8


@pytest.mark.reason("it writes 10,000 versions")
@pytest.mark.parametrize("versions", [100, pytest.param(10_000, marks=INTEGRATION)])
def test_a_log_of_many_versions_is_opened_from_its_last_checkpoint(tmp_path: Path, versions: int) -> None:
    table = History(open_store(tmp_path.as_uri()))
    one = table.mirror()
    one.write(table.begin())
    stored = [table.file([{"id": number * 100 + row} for row in range(100)]) for number in range(50)]
    one.write(table.add(*stored))
    rng = random.Random(1)
    change = table.change()
    while table.slot < versions:
        rows = {rng.randrange(90)} if table.slot % 8 == 0 else set()
        masked = rng.choice(stored)
        change = table.change(masked=(described(masked, rows),) if rows else ())
        one.write(change)
        masked.masked |= rows
        table.slot = change.slot
    table.note(change)
    assert read_by_deltalake(table.url) == table.rows_at[versions]
    last = max(int(path.name[:20]) for path in tmp_path.glob("_delta_log/*.checkpoint.parquet"))
    assert versions - last <= state.VERSIONS_MIN + 1
    # All versions before it may be gone: readers begin there.
    for commit in tmp_path.glob("_delta_log/*.json"):
        if int(commit.name[:20]) < last:
            commit.unlink()
    assert read_by_deltalake(table.url) == table.rows_at[versions]
    newest = table.mirror().newest()
    assert newest is not None and newest.slot == versions
