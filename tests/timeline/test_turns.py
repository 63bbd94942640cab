"""Who gets the next slot where several writers want it: counted in slots, in simulated time, with the real commit loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fileio.contract import Create, require_written
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.timeline.attempt import CommitAttempt, Committed
from objcat.timeline.backoff import SlotBackoff
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from tests.timeline.simulated import Simulation, SlowBackend
from tests.timeline.toy import TABLE, commit

LATENCY_S = 0.02
PREPARING_S = 0.01


def committed(fileio: FileIO, base: LogState, group_id: int) -> Committed:
    """One write as a handle makes it: data and a look at the base beside one another, then the slot."""
    committer, txn = Committer(fileio), new_txn(fileio.env)
    skew_ms = committer.announce_if_slow(txn, Action.DELTA_COMMIT, base, engine="test")
    look = fileio.env.submit_io(lambda: Log(fileio).read_slot(base.slot))
    fileio.env.sleep(PREPARING_S)
    require_written(fileio.put(f"data/{txn}", b"rows", Create()), txn)
    assert look.result() is not None
    own = CommitAttempt(
        txn=txn,
        action=Action.DELTA_COMMIT,
        base=base,
        changes={TABLE: msgspec.Raw(b"{}")},
        footprint={TABLE: Footprint(appends=(FileGroupId("", group_id, 64),))},
    )
    done = committer.try_commit(own, skew_ms=skew_ms())
    assert isinstance(done, Committed)
    return done


def contended(seed: int, *, writers: int, commits: int) -> tuple[list[int], float]:
    """So many writers in closed loops: how many slots passed each commit by, in order of the slots, and requests for each commit."""
    simulation = Simulation(seed)
    backend = SlowBackend("contended", simulation)
    here = FileIO(backend, env=FakeEnv())
    begun = LogState().advance([commit(here, LogState())])
    done: list[Committed] = []

    def writer(number: int, fileio: FileIO) -> Callable[[], None]:
        def write() -> None:
            log = begun
            for _ in range(commits):
                done.append(committed(fileio, log, number))
                log = log.advance([*done[-1].read, done[-1].entry])

        return write

    handles = [FileIO(backend, env=simulation.process()) for _ in range(writers)]
    backend.latency_s = LATENCY_S
    simulation.run([writer(number, fileio) for number, fileio in enumerate(handles)])
    backend.latency_s = 0
    done.sort(key=lambda one: one.entry.slot)
    assert [one.entry for one in done] == Log(here).read_after(0)
    return [len(one.read) for one in done], sum(fileio.metrics.snapshot().request_count for fileio in handles) / len(done)


def test_a_run_in_simulated_time_is_a_function_of_its_seed() -> None:
    assert contended(1, writers=4, commits=4) == contended(1, writers=4, commits=4)
    assert contended(1, writers=4, commits=4) != contended(2, writers=4, commits=4)


@pytest.mark.parametrize(("writers", "commits", "passed_max", "requests_max"), [(2, 16, 6, 6.5), (8, 8, 28, 16.5)])
def test_few_slots_pass_a_waiting_writer_by(writers: int, commits: int, passed_max: int, requests_max: float) -> None:
    """Of a hundred commits all but one, over four seeds. With pauses that grew with every slot that was lost it was 14 and 45 slots here;
    all in turn would be 1 and 7."""
    runs = [contended(seed, writers=writers, commits=commits) for seed in range(4)]
    passed = sorted(slots for each, _ in runs for slots in each)
    assert passed[len(passed) * 99 // 100] <= passed_max
    assert sum(requests for _, requests in runs) / len(runs) <= requests_max


def waited(*slots: int) -> list[Entry]:
    """Entries, from slot 1 on, of writers that so many slots had passed by."""
    return [
        Entry(format=1, slot=slot, action=Action.DELTA_COMMIT, txn=new_txn(FakeEnv(slot)), base=slot - 1 - each, committed_at_ms=slot)
        for slot, each in enumerate(slots, 1)
    ]


def test_the_first_slot_that_is_lost_says_nothing() -> None:
    env = FakeEnv()
    assert SlotBackoff(env, 0, pause_s_max=2).wait(1) == 0
    assert env.sleeps_s == []


def test_whoever_is_early_lets_so_many_go_first_and_whoever_has_waited_as_long_does_not() -> None:
    env = FakeEnv()
    turns = SlotBackoff(env, 0, pause_s_max=2)
    turns.saw(waited(8, 8, 90))
    env.advance(0.4)
    assert 2 <= turns.wait(4) <= 4
    assert len(env.sleeps_s) == 1
    assert 0.2 <= env.sleeps_s[0] <= 0.4  # Two to four turns of what four slots took.
    assert turns.wait(8) == 0
    assert len(env.sleeps_s) == 1


def test_no_pause_is_longer_than_the_policy_has_it() -> None:
    env = FakeEnv()
    turns = SlotBackoff(env, 0, pause_s_max=2)
    turns.saw(waited(50, 50, 50))
    env.advance(100)
    turns.wait(4)
    assert env.sleeps_s == [2]


def test_a_writer_far_behind_that_is_alone_pauses_never_and_reads_in_windows() -> None:
    env = FakeEnv()
    fileio = FileIO(MemoryBackend("behind"), env=env)
    begun = log = LogState().advance([commit(fileio, LogState())])
    for _ in range(40):
        log = log.advance([commit(fileio, log)])
    before = fileio.metrics.snapshot()
    assert commit(fileio, begun).slot == 41
    assert env.sleeps_s == []
    # The slot that is lost is read back whole; then windows of 2, 4, 8, 16 and 32 slots; then the head is claimed.
    assert (fileio.metrics.snapshot() - before).requests == {"put_create": 2, "get": 1 + 2 + 4 + 8 + 16 + 32}
