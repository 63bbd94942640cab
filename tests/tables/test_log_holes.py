"""A slot that was deleted by hand below later ones: nobody reads a shorter table, and nobody writes into the hole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CorruptTable
from objcat.inspection.doctor import examine
from objcat.timeline.checkpoint import HINT_KEY, NULL, read_hint
from objcat.timeline.entry import log_key
from objcat.timeline.log import LOOK_BEYOND_S
from tests.cli.commands import run
from tests.effort import few

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
PUBLISHED = 16
"""The slot of the checkpoint, where there is one."""


def without_carried(store: FileIO) -> None:
    """Make the hint carry nothing: it needs no slot below its own, and so hides a hole there, harmlessly."""
    hint, _ = read_hint(store)
    if hint is None or hint.checkpoint < 0:
        store.delete([HINT_KEY])
    else:
        store.put(HINT_KEY, msgspec.json.encode(msgspec.structs.replace(hint, carried=NULL)))


def grown(commits: int, *, publish: bool = False) -> FileIO:
    store = FileIO(MemoryBackend("holes", env=FakeEnv(0)), env=FakeEnv(1))
    table = objcat.create_table_at(store, SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    for number in range(commits):
        table.upsert([{"id": number, "v": number}])
        if publish and table.refresh().slot == PUBLISHED + 4:
            table._context.timeline.publish(table._context.view)
    return store


def opened(store: FileIO, env: FakeEnv | None = None) -> objcat.Table:
    """As another process opens it."""
    return objcat.table_at(FileIO(store._bare, env=env or FakeEnv(2)))


def said(slot: int) -> str:
    return rf"{log_key(slot)} is missing although later slots exist\. Restore that object from a backup of the bucket\."


@pytest.mark.parametrize("log", few([(14, False), (33, True), (30, False), (47, True)], 2, integration=4))
def test_whoever_opens_is_told_which_slot_is_missing(log: tuple[int, bool]) -> None:
    """Each slot above the checkpoint and below the newest one, wherever it is in the requests of a reader."""
    newest, publish = log
    store = grown(newest, publish=publish)
    without_carried(store)
    for hole in range(PUBLISHED + 1 if publish else 0, newest):
        body = store.read(log_key(hole))
        store.delete([log_key(hole)])
        with pytest.raises(CorruptTable, match=said(hole)):
            opened(store).scan().count()
        with pytest.raises(CorruptTable, match=said(hole)):
            opened(store).upsert([{"id": 1, "v": -1}])
        assert not store.exists(log_key(hole)) and not store.exists(log_key(newest + 1))
        store.put(log_key(hole), body)
    assert opened(store).scan().count() == newest


def test_with_a_hint_whoever_opens_reads_the_whole_table_or_is_told() -> None:
    newest = 14
    store = grown(newest)
    told = []
    for hole in range(newest):
        body = store.read(log_key(hole))
        store.delete([log_key(hole)])
        try:
            assert opened(store).scan().count() == newest
            other = FileIO(MemoryBackend("copy", env=FakeEnv(0)), env=FakeEnv(1))
            for key in store.list_keys():
                other.put(key, store.read(key))
            assert opened(other).upsert([{"id": 1, "v": -1}]).slot == newest + 1
        except CorruptTable as error:
            told.append((hole, str(error)))
        store.put(log_key(hole), body)
    assert all(log_key(hole) in error for hole, error in told)
    assert {12, 13} <= {hole for hole, _ in told}, "the slots that no hint has yet"


@pytest.mark.parametrize("newest", few([9, 30], 1, integration=1))
def test_the_doctor_names_it_and_calls_no_file_of_later_slots_a_leftover(newest: int) -> None:
    store = grown(newest)
    for hole in range(1, newest):
        body = store.read(log_key(hole))
        timeline = opened(store)._context.timeline
        store.delete([log_key(hole)])
        report = examine(timeline)
        (finding,) = report.findings
        assert (finding.invariant, finding.subject) == ("P1", log_key(hole))
        assert "is missing" in finding.says and "backup" in finding.remedy
        store.put(log_key(hole), body)
    assert examine(opened(store)._context.timeline).healthy


@pytest.mark.parametrize("ahead", [2, 5])
def test_a_handle_from_before_is_told_when_it_has_not_heard_of_the_log_for_a_while(ahead: int) -> None:
    store, env = grown(9), FakeEnv(2)
    table = opened(store, env)
    other = opened(store, FakeEnv(3))
    for number in range(ahead):
        other.upsert([{"id": 100 + number, "v": 0}])
    without_carried(store)
    store.delete([log_key(10)])
    env.advance(2 * LOOK_BEYOND_S)
    with pytest.raises(CorruptTable, match=said(10)):
        table.refresh()
    for write in (lambda: table.upsert([{"id": 1, "v": -1}]), table.maintenance.compact):
        with pytest.raises(CorruptTable, match=said(10)):
            write()
    assert not store.exists(log_key(10))


def test_the_end_of_a_log_is_looked_at_once_in_a_while() -> None:
    env = FakeEnv(2)
    table = opened(grown(9), env)
    asked = []
    for _ in range(3):
        before = table._context.fileio.metrics.snapshot()
        table.refresh()
        table.refresh()
        asked.append((table._context.fileio.metrics.snapshot() - before).requests)
        env.advance(LOOK_BEYOND_S)
    assert asked == [{"get": 2}, {"get": 2, "head": 1}, {"get": 2, "head": 1}]


def test_commands_say_it(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"])
    for number in range(5):
        table.upsert([{"id": number, "v": number}])
    (store,) = [path.parent for path in tmp_path.glob("tables/*/log")]
    (store / log_key(2)).unlink()
    (store / HINT_KEY).unlink()
    for arguments in (["query", str(tmp_path), "SELECT count(*) FROM t"], ["compact", f"{tmp_path}/t"], ["clean", f"{tmp_path}/t"]):
        done = run(*arguments)
        assert done.returncode == 2 and log_key(2) in done.stderr and "backup" in done.stderr
    examined = run("doctor", str(tmp_path), columns=200)
    assert examined.returncode == 1 and log_key(2) in examined.stdout and "backup" in examined.stdout
