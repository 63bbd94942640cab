"""Threads of one process take turns at the slots of a log, and what one has read serves the next."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import objcat.timeline.process_log
from fileio.env import SystemEnv
from fileio.memory import MemoryBackend
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.store_identity import identity_of
from fileio.testing.env import FakeEnv
from objcat.common.thread_queue import OVERDUE_TURNS_MAX, ThreadQueue
from objcat.errors import CheckpointCollected, Contention, TableNotFound, WriterFenced
from objcat.timeline import intents
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy, Committed, Conflicted
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.conflicts import find_conflicts
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, SchemaChange, Txn, new_txn
from objcat.timeline.log import Log, with_changes
from objcat.timeline.log_state import LogState
from objcat.timeline.process_log import ENTRIES_MAX, BaseCheck, only_adds, only_appends, process_log
from objcat.timeline.rollback import resolve
from objcat.timeline.side_objects import INLINE_BYTES_MAX
from tests.timeline.toy import TABLE, commit, open_toy


def attempt(base: LogState, txn: Txn, **fields: Any) -> CommitAttempt:
    """An upsert of one file group. fields: in place of its own."""
    wanted: dict[str, Any] = {
        "action": Action.DELTA_COMMIT,
        "changes": {TABLE: msgspec.Raw(b"{}")},
        "footprint": {TABLE: Footprint(appends=(FileGroupId("", 0, 4),))},
    } | fields
    return CommitAttempt(txn=txn, base=base, **wanted)


def committed(fileio: FileIO, base: LogState, *, txn: Txn | None = None, **fields: Any) -> Committed | Conflicted:
    """One operation as a handle makes it, from a base that may be old: the check of the base, then the slot."""
    txn = txn or new_txn(fileio.env)
    session = CommitSession(Committer(fileio), txn)
    session.announce_if_slow(Action.DELTA_COMMIT, base, engine="test")
    session.check.run(base)
    with session:
        return session.try_commit(attempt(base, txn, **fields), skew_ms=0)


@pytest.fixture
def log() -> tuple[FileIO, LogState]:
    """A log with one slot."""
    fileio = FileIO(MemoryBackend("threads"), env=FakeEnv(1))
    return fileio, LogState().advance([commit(fileio, LogState())])


def run_threads(functions: Iterable[Callable[[], object]]) -> None:
    """Run all at once, to their ends. Raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - for the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- the queue


def test_threads_take_turns_in_the_order_in_which_they_asked() -> None:
    turns, order, asked = ThreadQueue(), list[int](), threading.Semaphore(0)
    waiting = turns._waiting

    def take(number: int) -> None:
        with turns.turn():
            order.append(number)

    with turns.turn():
        threads = []
        for number in range(8):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            while len(waiting) <= number:
                asked.acquire(timeout=0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_a_turn_that_ends_with_an_error_passes_on() -> None:
    turns = ThreadQueue()
    with pytest.raises(ZeroDivisionError), turns.turn():
        raise ZeroDivisionError
    unended = turns.turn()
    run_threads([unended.__enter__])
    assert turns._current is not None, "the next thread has the turn"


def test_others_have_their_turn_while_one_is_outside_of_its_own() -> None:
    turns, order = ThreadQueue(overdue_s=3600), list[str]()

    def other() -> None:
        with turns.turn():
            order.append("other")

    with turns.turn() as own:
        thread = threading.Thread(target=other)
        with turns.outside(own):
            thread.start()
            thread.join(20)
        order.append("own")
        late = threading.Thread(target=other)
        late.start()
        late.join(0.2)
        order.append("own again")
    late.join(20)
    assert order == ["other", "own", "own again", "other"]


def test_a_thread_within_its_own_turn_waits_for_nobody() -> None:
    turns = ThreadQueue(overdue_s=3600)
    with turns.turn():
        with turns.turn():
            pass
        assert turns._current is not None, "the outer turn goes on"
    assert turns._current is None


def test_a_turn_that_hangs_passes_on_and_its_late_end_ends_nobody_elses() -> None:
    turns, hangs, go, holds = ThreadQueue(overdue_s=0.01), threading.Event(), threading.Event(), list[str]()

    def hang() -> None:
        with turns.turn():
            hangs.set()
            go.wait()
        holds.append("hung")

    def follow() -> None:
        hangs.wait()
        with turns.turn():
            holds.append("followed")
            go.set()
            while "hung" not in holds:
                hangs.wait()
            assert turns._current is not None, "the late end ended the turn of another thread"

    run_threads([hang, follow])
    assert holds == ["followed", "hung"]
    assert turns._current is None


def test_whoever_has_seen_too_many_hanging_turns_goes_alone() -> None:
    """Where a store does not answer, nobody waits for all the others one after the other."""
    turns, go, begun = ThreadQueue(overdue_s=0.01), threading.Event(), threading.Semaphore(0)
    many = 4 * OVERDUE_TURNS_MAX

    def hang() -> None:
        with turns.turn():
            begun.release()
            go.wait()

    threads = [threading.Thread(target=hang) for _ in range(many)]
    for thread in threads:
        thread.start()
    for _ in range(many):
        begun.acquire()  # All are within their block, although none has ended.
    go.set()
    for thread in threads:
        thread.join()
    assert turns._current is None
    assert not turns._waiting


def test_a_forked_process_begins_with_an_empty_queue() -> None:
    turns = ThreadQueue(overdue_s=3600)
    with turns.turn():
        turns.after_fork()
        unended = turns.turn()
        run_threads([unended.__enter__])  # A thread of the child does not wait for the turn of the parent.
    assert turns._current is not None, "the end of a turn from before the fork ends no turn of the child"


class _Signalled(deque[Any]):
    """A queue of which the end of a turn is interrupted by a signal while it looks at it."""

    def __len__(self) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return 0


def test_a_signal_handler_that_commits_within_the_end_of_a_turn_does_not_hang() -> None:
    turns, handled = ThreadQueue(overdue_s=0.01), list[str]()
    turns._waiting = _Signalled()
    done = threading.Event()

    def handler(*_: object) -> None:
        if not handled:
            handled.append("began")
            with turns.turn():
                handled.append("had its turn")

    hanging = threading.Timer(20, lambda: None if done.is_set() else os._exit(1))  # It could not be interrupted.
    hanging.start()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with turns.turn():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
        done.set()
        hanging.cancel()
    assert handled == ["began", "had its turn"]


# ---- what a process knows


def test_an_old_base_of_the_same_process_loses_no_slot_and_reads_nothing(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    for slot in range(1, 40):
        before = fileio.metrics.snapshot()
        done = committed(fileio, base)
        assert isinstance(done, Committed)
        assert (done.entry.slot, done.slots_lost, [entry.slot for entry in done.read]) == (slot, 0, list(range(1, slot)))
        assert (fileio.metrics.snapshot() - before).requests == {"get": 1, "put_create": 1}
    assert held is process_log(fileio)
    assert [entry.slot for entry in Log(fileio).read_after(-1)] == list(range(40))


def test_what_another_process_took_is_read_once(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    other = FileIO(fileio._bare, env=FakeEnv(2))
    committed(fileio, base)
    foreign = base
    for _ in range(20):
        foreign = foreign.advance(Log(other).read_after(foreign.slot))
        commit(other, foreign)
    first, second = committed(fileio, base), committed(fileio, base)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert (first.entry.slot, first.slots_lost) == (22, 1)
    assert (second.entry.slot, second.slots_lost) == (23, 0)
    assert held is process_log(fileio)


def test_what_a_process_knows_is_judged(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    group = FileGroupId("", 0, 4)
    rewrite: dict[str, Any] = {"action": Action.COMMIT, "footprint": {TABLE: Footprint(replaces=(group,))}}
    assert isinstance(committed(fileio, base, **rewrite), Committed)
    before = fileio.metrics.snapshot()
    found = committed(fileio, base, **rewrite)
    assert isinstance(found, Conflicted)
    assert [entry.slot for entry, _ in found.overlaps] == [1]
    assert "put_create" not in (fileio.metrics.snapshot() - before).requests
    assert isinstance(committed(fileio, base), Committed)
    assert held is process_log(fileio)


def test_a_rollback_that_the_process_knows_fences(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    txn = new_txn(fileio.env)
    committed(fileio, base)
    resolve(fileio, txn)
    held.note(base, Log(fileio).read_after(base.slot))
    with pytest.raises(WriterFenced):
        committed(fileio, base, txn=txn)


def test_an_own_commit_that_the_process_knows_settles(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    first = committed(fileio, base)
    committed(fileio, base)
    assert isinstance(first, Committed)
    again = committed(fileio, base, txn=first.entry.txn)
    assert isinstance(again, Committed)
    assert again.entry.slot == first.entry.slot == 1
    assert len(Log(fileio).read_after(-1)) == 3
    assert held is process_log(fileio)


def test_without_a_check_of_the_base_the_log_is_read(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    committed(fileio, base)
    committed(fileio, base)
    done = Committer(fileio).commit(attempt(base, new_txn(fileio.env)))
    assert (done.entry.slot, done.slots_lost) == (3, 1)
    assert held is process_log(fileio)


@pytest.mark.parametrize("known", [3, ENTRIES_MAX - 1, 2 * ENTRIES_MAX + 3])
def test_a_base_older_than_what_is_kept_reads_the_log(log: tuple[FileIO, LogState], known: int) -> None:
    fileio, base = log
    held = process_log(fileio)
    head = base
    for _ in range(known):
        head = head.advance([commit(fileio, head)])
    done = committed(fileio, base)
    assert isinstance(done, Committed)
    assert (done.entry.slot, done.slots_lost) == (known + 1, 1 if known > 2 * ENTRIES_MAX else 0)
    assert len(held._known.entries) <= 2 * ENTRIES_MAX
    assert len(done.read) == known


def test_what_is_kept_is_bounded_in_bytes(log: tuple[FileIO, LogState], monkeypatch: pytest.MonkeyPatch) -> None:
    fileio, base = log
    held = process_log(fileio)
    large = msgspec.Raw(msgspec.json.encode({"k": "x" * 3000}))
    monkeypatch.setattr("objcat.timeline.process_log.BYTES_MAX", 20_000)
    head = base
    for _ in range(60):
        head = head.advance([commit(fileio, head, changes={TABLE: large})])
        assert held._known.bytes <= 40_000
    assert held._known.entries[-1].slot == head.slot and len(held._known.entries) >= 4


def test_who_may_lose_no_slot_asks_for_the_one_above_its_base(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    check = BaseCheck(fileio)
    commit(fileio, base)
    check.run(base)
    with pytest.raises(Contention):
        Committer(fileio, CommitRetryPolicy(slots_max=1)).try_commit(attempt(base, new_txn(fileio.env)), check=check)


# ---- a log that was changed by hand


def restored(fileio: FileIO, *, to: int) -> None:
    """Bring the log back to an earlier slot, as from a backup."""
    newest = max(entry.slot for entry in Log(fileio).read_after(-1))
    fileio.delete([f"log/{slot:020d}.json" for slot in range(to + 1, newest + 1)])


def test_a_log_that_was_restored_by_hand_gets_no_gap(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    for _ in range(5):
        committed(fileio, base)
    restored(fileio, to=0)
    done = committed(fileio, base)
    assert isinstance(done, Committed)
    assert (done.entry.slot, done.read) == (1, ())
    done = committed(fileio, base)
    assert isinstance(done, Committed)
    assert (done.entry.slot, done.slots_lost) == (2, 0)
    assert held is process_log(fileio)


def test_a_log_that_was_deleted_and_made_again_is_another_one(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    for _ in range(5):
        committed(fileio, base)
    fileio.delete([f"log/{slot:020d}.json" for slot in range(6)])
    fileio.env.sleep(1)
    again = LogState().advance([commit(fileio, LogState())])
    with pytest.raises(TableNotFound):
        committed(fileio, base)
    done = committed(fileio, again)
    assert isinstance(done, Committed)
    assert done.entry.slot == 1
    assert held is process_log(fileio)


def test_a_view_of_a_log_that_was_restored_by_hand_is_not_shared(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    timeline, other = open_toy(fileio), open_toy(fileio)
    old = timeline.open()
    for _ in range(3):
        committed(fileio, base)
    newest = timeline.views.catch_up(old, Log(fileio).read_after(0), timeline.advance)
    before = fileio.metrics.snapshot()
    assert other.refresh(old) is newest
    assert (fileio.metrics.snapshot() - before).requests == {"get": 2}
    restored(fileio, to=1)
    assert other.refresh(old).slot == 1


def test_a_log_that_was_restored_by_hand_and_went_on_is_judged_as_it_is(log: tuple[FileIO, LogState]) -> None:
    """A reader of this process meets the newer log, which is longer than what the process knew of the older one."""
    fileio, base = log
    held = process_log(fileio)
    for _ in range(3):
        committed(fileio, base)
    restored(fileio, to=0)
    other = FileIO(fileio._bare, env=FakeEnv(2))
    other.env.sleep(1)
    foreign = base
    for _ in range(5):
        foreign = foreign.advance([commit(other, foreign)])
    now = Log(fileio).read_after(base.slot)
    held.note(base, now)
    done = committed(fileio, base)
    assert isinstance(done, Committed)
    assert [entry.txn for entry in done.read] == [entry.txn for entry in now]


def test_what_maintenance_has_looked_at_is_forgotten_with_the_log(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    committed(fileio, base)
    held.looked[TABLE] = 1_000
    restored(fileio, to=0)
    committed(fileio, base)
    assert not held.looked


# ---- interruptions and memory


def test_a_thread_that_is_interrupted_while_it_notes_its_commit_hides_nothing(
    log: tuple[FileIO, LogState], monkeypatch: pytest.MonkeyPatch
) -> None:
    fileio, base = log
    held = process_log(fileio)

    def interrupted(_: Entry) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(objcat.timeline.process_log, "only_adds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            committed(fileio, base, action=Action.COMMIT, footprint={TABLE: Footprint(overwrites=("",))})
    assert isinstance(committed(fileio, base), Conflicted), "the overwrite is in the log, and appends conflict with it"
    assert held is process_log(fileio)


def test_changes_that_are_in_objects_are_not_kept_in_memory(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    large = {TABLE: msgspec.Raw(b'{"key":"' + b"x" * INLINE_BYTES_MAX + b'"}')}
    first, second = committed(fileio, base, changes=large), committed(fileio, base)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert first.entry.changes == large
    assert [dict(entry.changes) for entry in second.read] == [{}]
    assert with_changes(fileio, second.read)[0].changes == large
    assert held is process_log(fileio)


# ---- damaged checkpoints


def test_views_on_a_damaged_checkpoint_are_not_taken_from_a_thread_that_offers_them_again(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    mine, other = open_toy(fileio), open_toy(fileio)
    head = base
    for _ in range(3):
        head = head.advance([commit(fileio, head)])
    old = replace(mine.open(), checkpoint=2)
    stands = replace(old, checkpoint=3)
    held = process_log(fileio)
    held.extend(head, [])

    def busy() -> None:
        nonlocal stands
        stands = other.advance(stands, [commit(fileio, stands.log)])
        other.views.offer(stands)

    busy()
    assert mine.refresh(old).checkpoint == 3
    for _ in range(2):
        mine.pass_over(CheckpointCollected("damaged", path=f"checkpoints/{stands.slot}"))
        busy()
        found = mine.refresh(old)
        assert (found.slot, found.checkpoint) == (stands.slot, 2)
    assert held is process_log(fileio)


# ---- which process log


def test_instances_of_one_store_and_process_share_and_others_do_not() -> None:
    backend, env = MemoryBackend("one"), FakeEnv()
    fileio = FileIO(backend, env=env)
    held = process_log(fileio.child("t"))
    assert process_log(FileIO(backend, env=env).child("t")) is held
    for other in (fileio, fileio.child("u"), FileIO(MemoryBackend("one"), env=env).child("t"), FileIO(backend, env=FakeEnv()).child("t")):
        assert process_log(other) is not held


def test_one_url_leads_to_several_stores_as_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    one, same = open_store("memory://lake"), open_store("memory://lake")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    other = open_store("memory://lake")
    assert identity_of(one) == identity_of(same)
    assert identity_of(one.child("t")) == identity_of(same.child("t"))
    assert identity_of(one.child("t")) != identity_of(other.child("t"))


def test_a_forked_process_knows_nothing(log: tuple[FileIO, LogState]) -> None:
    fileio, base = log
    held = process_log(fileio)
    committed(fileio, base)
    held.after_fork()
    objcat.timeline.process_log._registry.after_fork()
    assert process_log(fileio) is held, "handles from before the fork and after it belong together"
    done = committed(fileio, base)
    assert isinstance(done, Committed)
    assert (done.entry.slot, done.slots_lost) == (2, 1)


# ---- who need not be judged

GROUPS = st.lists(st.builds(FileGroupId, st.sampled_from(["", "a"]), st.integers(0, 1), st.just(2)), max_size=2).map(tuple)
FOOTPRINTS = st.builds(
    Footprint,
    appends=GROUPS,
    **{name: st.one_of(st.just(()), GROUPS) for name in ("creates", "replaces", "retires", "rmw", "reads")},
    overwrites=st.sampled_from([(), (), ("",), ("a",)]),
    read_partitions=st.sampled_from([(), (), ("",)]),
    splits=st.sampled_from([{}, {}, {"a": 4}]),
    schema=st.sampled_from([None, None, SchemaChange(needs_data=True)]),
    restores=st.sampled_from([None, None, 0]),
)
ACTIONS = st.sampled_from([Action.DELTA_COMMIT, Action.COMMIT, Action.COMPACTION, Action.CLOSE, Action.RESTORE])


@given(GROUPS, ACTIONS, FOOTPRINTS, ACTIONS)
def test_what_only_adds_conflicts_with_nothing_that_only_appends(
    own: tuple[FileGroupId, ...], action: Action, footprint: Footprint, later: Action
) -> None:
    mine = attempt(LogState(), Txn("20261121T033800756Z-54015a233f04e16b"), action=action, footprint={TABLE: Footprint(appends=own)})
    entry = Entry(format=1, slot=1, action=later, txn=mine.txn, base=0, committed_at_ms=1, footprint={TABLE: footprint})
    if only_appends(mine) and only_adds(entry):
        assert not find_conflicts(mine.action, mine.footprint, entry, lambda _: None)


# ---- threads


@pytest.mark.parametrize("kind", ["one store", "stores of their own"])
def test_many_threads_lose_no_slot_and_send_two_requests_a_commit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread that waits long for its turn leaves an intent, which would be one more request on a slow machine.
    monkeypatch.setattr(intents, "ANNOUNCED_AFTER_S", 600.0)
    env, backend = SystemEnv(), MemoryBackend("many")
    fileio = FileIO(backend, env=env)
    base = LogState().advance([commit(fileio, LogState())])
    held = process_log(fileio)
    handles = [fileio if kind == "one store" else FileIO(backend, env=env) for _ in range(32)]
    before = {id(each): each.metrics.snapshot() for each in handles}
    done: list[Committed] = []

    def write(own: FileIO) -> Callable[[], None]:
        def loop() -> None:
            log = base
            for _ in range(8):
                one = committed(own, log)
                assert isinstance(one, Committed)
                log = log.advance([*one.read, one.entry])
                done.append(one)

        return loop

    run_threads(write(own) for own in handles)
    assert sorted(one.entry.slot for one in done) == list(range(1, 257))
    assert {one.slots_lost for one in done} == {0}
    sent = [(each.metrics.snapshot() - before[id(each)]).requests for each in {id(each): each for each in handles}.values()]
    assert {kind: sum(requests.get(kind, 0) for requests in sent) for kind in ("get", "put_create")} == {"get": 256, "put_create": 256}
    assert sum(sum(requests.values()) for requests in sent) == 512
    assert held is process_log(fileio)
    assert [entry.slot for entry in Log(fileio).read_after(-1)] == list(range(257))
