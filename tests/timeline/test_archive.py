"""Archived slots read as before, for readers, writers that were stalled, and whoever asks for an outcome; interrupted or not."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CheckpointCollected, CorruptTable, InvalidInput, WriterFenced
from objcat.timeline.archive import Archived, archive, unnamed_history
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.checkpoint import HINT_KEY
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, FileGroupId, Footprint, decode_entry, encode_entry, log_key, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.rollback import CommittedAt, RolledBackAt, resolve
from objcat.timeline.side_objects import INLINE_BYTES_MAX
from tests.timeline.toy import TABLE, assert_same, clone, commit, grow, open_toy, rows_at, rows_of

NOW: dict[str, Any] = {"metadata": {"who": "me"}, "apps": {TABLE: {"stream": 1}}}


def store(name: str, *, commits: int = 60) -> FileIO:
    fileio = FileIO(MemoryBackend(name), env=FakeEnv(7))
    timeline = open_toy(fileio)
    view = timeline.open()
    view = timeline.advance(view, [commit(fileio, view.log, **NOW)])
    grow(timeline, commits - 1, view=view)
    return fileio


def tombstones(fileio: FileIO, slots: int) -> list[int]:
    stubs = [Log(fileio).read_stub(slot) for slot in range(slots)]
    return [stub.slot for stub in stubs if stub is not None and stub.history is not None]


def test_an_archived_log_reads_as_before_in_every_way() -> None:
    fileio = store("whole", commits=300)
    timeline = open_toy(fileio)
    before, view = timeline.log.read_after(-1), timeline.open()
    done = archive(timeline, keep_slots=20)
    assert done == Archived(0, 272, tombstones=272, files=done.files)
    assert len(done.files) == 2
    assert tombstones(fileio, 300) == list(range(272))
    assert timeline.log.read_after(-1) == before
    assert [timeline.log.read_slot(slot) for slot in range(300)] == before
    assert_same(timeline, [view, timeline.open()])
    for slot in (0, 1, 15, 16, 17, 100, 255, 256, 271, 272, 273, 299):
        assert rows_of(fileio, timeline.at(slot).state) == rows_at(slot)
        assert timeline.at_time(before[slot].committed_at_ms).slot == slot
    fileio.delete([HINT_KEY])
    assert_same(timeline, [view, timeline.open()])
    grow(timeline, 1)


def test_a_tombstone_keeps_what_decides_and_is_small() -> None:
    fileio = store("small", commits=30)
    timeline = open_toy(fileio)
    dead, plan = new_txn(fileio.env), new_txn(fileio.env)
    resolve(fileio, dead)
    view = timeline.open()
    large = {TABLE: msgspec.Raw(b'{"x": ' + b" " * INLINE_BYTES_MAX + b"1}")}
    commit(
        fileio,
        view.log,
        changes=large,
        metadata={"why": "x" * 5000},
        plan=plan,
        footprint={TABLE: Footprint(appends=(FileGroupId("", 0, 1),))},
    )
    grow(timeline, 60)
    whole = timeline.log.read_after(-1)
    assert whole[31].side is not None and whole[30].rollback_of == dead
    archive(timeline, keep_slots=1)
    for slot in (0, 30, 31):
        stub = timeline.log.read_stub(slot)
        assert stub is not None and stub.history is not None
        for name in ("slot", "action", "txn", "base", "committed_at_ms", "rollback_of", "plan", "apps", "features", "writer_features"):
            assert getattr(stub, name) == getattr(whole[slot], name)
        assert fileio.head(log_key(slot)).size < 1000
    assert timeline.log.read_after(-1) == whole


def test_history_can_be_read_by_anything_that_reads_parquet() -> None:
    fileio = store("parquet")
    done = archive(open_toy(fileio), keep_slots=30)
    rows = pq.read_table(io.BytesIO(fileio.read(done.files[0]))).to_pylist()
    entries = Log(fileio).read_after(-1, until=done.end_slot - 1)
    assert [(row["slot"], row["txn"], row["action"]) for row in rows] == [(e.slot, e.txn, e.action) for e in entries]
    assert msgspec.json.decode(rows[0]["entry"])["metadata"] == {"who": "me"}


def test_reading_a_whole_archived_log_takes_one_get_a_file_and_not_one_a_slot() -> None:
    fileio = store("cheap", commits=300)
    timeline = open_toy(fileio)
    archive(timeline, keep_slots=20)
    before = fileio.metrics.snapshot()
    assert len(timeline.log.read_after(-1)) == 300
    assert (fileio.metrics.snapshot() - before).requests["get"] < 100


def test_what_is_not_below_a_checkpoint_is_not_archived() -> None:
    fileio = FileIO(MemoryBackend("young"), env=FakeEnv(1))
    timeline = open_toy(fileio)
    assert archive(timeline, keep_slots=1) == Archived(0, 0)
    grow(timeline, 100, publish=False)
    assert archive(timeline, keep_slots=1) == Archived(0, 0)
    assert archive(open_toy(store("keep")), keep_slots=60) == Archived(0, 0)
    with pytest.raises(InvalidInput, match="keep_slots=0"):
        archive(timeline, keep_slots=0)


def test_a_checkpoint_that_is_collected_while_it_is_read_back_is_passed_over() -> None:
    backend = MemoryBackend("passed")
    fileio = FileIO(backend, env=FakeEnv(7))
    timeline = open_toy(fileio)
    grow(timeline, 60)
    looked: list[str] = []

    def collect(request: Request) -> None:
        if "checkpoints/" in request.key and not request.key.endswith("root.json") and not looked:
            looked.append(request.key)
            grow(timeline, 40)
            timeline.publish(timeline.open())
            collect_checkpoints(timeline, Committer(fileio), keep=1)

    late = open_toy(FileIO(FaultyBackend(backend, before=collect), env=FakeEnv(8)))
    assert archive(late, keep_slots=1).end_slot > 60
    assert looked


def test_nothing_is_archived_below_a_checkpoint_that_lacks_an_object() -> None:
    fileio = store("lacks")
    timeline = open_toy(fileio)
    view = timeline.open()
    fileio.delete([view.state.shards[0]])
    with pytest.raises(CorruptTable, match="nothing below it was archived"):
        archive(timeline, keep_slots=1)
    assert tombstones(fileio, 60) == []
    with pytest.raises(CheckpointCollected):
        rows_of(fileio, view.state)


def test_a_tombstone_without_its_history_is_named() -> None:
    fileio = store("lost")
    timeline = open_toy(fileio)
    done = archive(timeline, keep_slots=1)
    data = fileio.read(done.files[0])
    fileio.put(done.files[0], data[:-10], Overwrite())
    with pytest.raises(CorruptTable, match=r"history/.*parquet"):
        timeline.log.read_slot(3)
    fileio.delete(list(done.files))
    with pytest.raises(CorruptTable, match=r"history/.*parquet"):
        timeline.log.read_after(-1)
    assert timeline.open().slot == 59


# ---- writers that were stalled


def stalled(fileio: FileIO, base: int, **fields: Any) -> CommitAttempt:
    log = LogState().advance(Log(fileio).read_after(-1, until=base))
    group_id = FileGroupId("", 0, 1)
    footprint, changes = {TABLE: Footprint(appends=(group_id,))}, {TABLE: msgspec.Raw(b"{}")}
    wanted: dict[str, Any] = {"action": Action.DELTA_COMMIT, "footprint": footprint, "changes": changes, **fields}
    return CommitAttempt(txn=new_txn(fileio.env), base=log, **wanted)


def test_a_stalled_writer_judges_archived_entries_by_their_history() -> None:
    fileio = store("judges", commits=5)
    timeline = open_toy(fileio)
    creates = {TABLE: Footprint(creates=(FileGroupId("", 0, 1),))}
    late, blind = stalled(fileio, 4, footprint=creates), stalled(fileio, 4)
    view = timeline.open()
    commit(fileio, view.log, footprint=creates)
    grow(timeline, 60)
    archive(timeline, keep_slots=1)
    assert 5 in tombstones(fileio, 60)
    beaten = Committer(fileio).try_commit(late)
    assert isinstance(beaten, Conflicted)
    assert beaten.overlaps[0][0].slot == 5
    assert len(beaten.read) == 61
    assert isinstance(Committer(fileio).try_commit(blind), Committed)


def test_a_writer_whose_answer_was_lost_meets_the_tombstone_of_its_own_commit() -> None:
    plain = store("own", commits=40)
    timeline = open_toy(plain)

    def meanwhile(request: Request) -> None:
        """Between the first try, which landed, and the second, the log grows and is archived."""
        if request.kind == "put" and request.key == log_key(40) and plain.exists(log_key(40)):
            grow(timeline, 60)
            archive(timeline, keep_slots=1)

    rules = [Rule(fault=Fault.AFTER, kinds=frozenset({"put"}), key=lambda key: key == log_key(40))]
    fileio = FileIO(FaultyBackend(plain._bare, rules, before=meanwhile), env=FakeEnv(99), policy=RetryPolicy(attempts_max=3))
    own = replace(stalled(plain, 39), txn=new_txn(fileio.env))
    committed = Committer(fileio).commit(own)
    assert 40 in tombstones(plain, 41)
    assert (committed.entry.slot, committed.entry.txn) == (40, own.txn)
    assert committed.entry.footprint == own.footprint
    assert [entry.txn for entry in Log(plain).read_after(-1)].count(own.txn) == 1


def test_a_zombie_meets_the_tombstone_of_its_rollback() -> None:
    fileio = store("zombie", commits=40)
    timeline = open_toy(fileio)
    own = stalled(fileio, 39)
    assert resolve(fileio, own.txn) == RolledBackAt(40, files=0)
    grow(timeline, 60)
    archive(timeline, keep_slots=1)
    assert 40 in tombstones(fileio, 41)
    with pytest.raises(WriterFenced, match="slot 40"):
        Committer(fileio).commit(own)


def test_outcomes_of_archived_transactions_are_still_known() -> None:
    fileio = store("known", commits=40)
    timeline = open_toy(fileio)
    dead = new_txn(fileio.env)
    resolve(fileio, dead)
    old = timeline.at(3)
    grow(timeline, 60)
    committed = [entry.txn for entry in timeline.log.read_after(-1)]
    archive(timeline, keep_slots=1)
    for view in (None, old):
        assert resolve(fileio, committed[7], view=view) == CommittedAt(7)
        assert resolve(fileio, dead, view=view) == RolledBackAt(40, files=0)
    assert timeline.open().slot == len(committed) - 1


# ---- interrupted, and not alone


def test_interrupted_anywhere_it_reads_as_before_and_goes_on() -> None:
    grown = store("count", commits=70)
    counting = FaultyBackend(clone(grown, "counted", seed=8)._bare)
    archive(open_toy(FileIO(counting, env=FakeEnv(1))), keep_slots=5)
    requests = sum(counting.asked.values())
    assert requests > 100
    for number in range(1, requests + 1, 3):
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            plain = clone(grown, f"crash-{number}-{fault.value}", seed=1000 + number)
            timeline = open_toy(plain)
            whole, view = timeline.log.read_after(-1), timeline.open()
            faulty = FaultyBackend(plain._bare, [Rule(fault=fault, nth=number)])
            with suppress(Crash):
                archive(open_toy(FileIO(faulty, env=FakeEnv(1))), keep_slots=5)
            assert faulty.fired.total() == 1
            assert timeline.log.read_after(-1) == whole
            assert_same(timeline, [view, timeline.open()])
            archive(timeline, keep_slots=5)
            assert tombstones(plain, 70) == list(range(48))
            assert timeline.log.read_after(-1) == whole


def named_files(fileio: FileIO, slots: int) -> set[str]:
    stubs = [Log(fileio).read_stub(slot) for slot in range(slots)]
    return {stub.history.file.path for stub in stubs if stub is not None and stub.history is not None}


def history_files(fileio: FileIO) -> list[str]:
    return list(fileio.list_keys("history/"))


def test_a_history_file_of_an_archiver_that_died_goes_with_the_next_archiving() -> None:
    grown = store("orphan", commits=70)
    left = 0
    for nth in range(1, 24):
        plain = clone(grown, f"orphan-{nth}", seed=1000 + nth)
        rule = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: "log/" in key, nth=nth)
        with suppress(Crash):
            archive(open_toy(FileIO(FaultyBackend(plain._bare, [rule]), env=FakeEnv(2))), keep_slots=50)
        before = history_files(plain)
        assert len(before) == 1 and unnamed_history(plain, before) == []
        whole = open_toy(plain).log.read_after(-1)
        archive(open_toy(plain), keep_slots=5)
        named = named_files(plain, 48)
        assert named == set(history_files(plain))
        assert open_toy(plain).log.read_after(-1) == whole
        left += len({*before} - named)
    assert left, "nobody died before the first tombstone"


def test_a_history_file_that_an_archiver_may_yet_name_stays() -> None:
    """One that is slow, and not dead, as far as anybody knows."""
    plain = store("slow", commits=70)
    rule = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: "log/" in key)
    with suppress(Crash):
        archive(open_toy(FileIO(FaultyBackend(plain._bare, [rule]), env=FakeEnv(2))), keep_slots=5)
    (slow,) = history_files(plain)
    archive(open_toy(plain), keep_slots=50)
    assert len(history_files(plain)) == 2 and slow not in named_files(plain, 70)
    archive(open_toy(plain), keep_slots=5)
    assert named_files(plain, 70) == set(history_files(plain))


def test_an_archiver_whose_file_is_taken_away_before_it_has_read_it_back_was_forestalled() -> None:
    plain = store("taken", commits=70)
    whole = open_toy(plain).log.read_after(-1)
    taken: list[str] = []

    def others(request: Request) -> None:
        if request.kind == "get" and "history/" in request.key and not taken:
            taken.append(request.key)
            archive(open_toy(plain), keep_slots=5)

    done = archive(open_toy(FileIO(FaultyBackend(plain._bare, before=others), env=FakeEnv(2))), keep_slots=50)
    assert taken and not {*taken} & {*history_files(plain)}
    assert (done.tombstones, done.files) == (0, ())
    assert open_toy(plain).log.read_after(-1) == whole
    assert named_files(plain, 48) == set(history_files(plain))


@pytest.mark.parametrize("nth", [1, 30, 60, 80, 84, 86, 90, 110])
def test_archivers_beside_each_other_and_beside_writers(nth: int) -> None:
    plain = store(f"two-{nth}", commits=70)
    timeline = open_toy(plain)
    whole = timeline.log.read_after(-1)

    def other(request: Request) -> None:
        if request.number == nth:
            archive(timeline, keep_slots=6)
            grow(timeline, 3)

    faulty = FaultyBackend(plain._bare, before=other)
    archive(open_toy(FileIO(faulty, env=FakeEnv(50))), keep_slots=5)
    assert timeline.log.read_after(-1)[:70] == whole
    assert tombstones(plain, 70) == list(range(48))
    assert named_files(plain, 48) == set(history_files(plain))


def test_a_slot_that_somebody_else_changed_is_reported() -> None:
    plain = store("changed", commits=70)

    def vandal(request: Request) -> None:
        if request.kind == "put" and request.key == log_key(9):
            body = plain.read(log_key(9))
            plain.put(log_key(9), encode_entry(msgspec.structs.replace(decode_entry(body, key=log_key(9)), base=7)), Overwrite())

    with pytest.raises(CorruptTable, match="something else than an archiver"):
        archive(open_toy(FileIO(FaultyBackend(plain._bare, before=vandal), env=FakeEnv(1))), keep_slots=5)


def test_archiving_keeps_the_number_of_objects() -> None:
    """What the pages say of the number of objects."""
    fileio = store("objects", commits=300)

    def objects(prefix: str) -> list[int]:
        return [found.size for page in fileio.list(prefix) for found in page.objects]

    before = objects("log/")
    archive(open_toy(fileio), keep_slots=10)
    after = objects("log/")
    assert len(after) == len(before) == 300
    assert max(after) < 1000
    assert len(objects("history/")) == 2
