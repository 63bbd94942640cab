"""Writers that starve ask for a turn, and others stand back: what is asked when, who waits for how long, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.timeline.checkpoint import HINT_KEY, NULL, TAIL_SLOTS_MAX, Hint, TurnRequest, decode_carried, read_hint
from objcat.timeline.entry import Action, Entry, new_txn
from objcat.timeline.hints import HINT_SLOTS, TURN_REQUESTS_MAX, forget_carried, put_turn_request
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.turns import REQUEST_SLOTS_MAX, WAIT_S_MAX, WAIT_S_MIN, TurnSeeker
from tests.timeline.toy import Toy, commit, grow, open_toy

LONG = 40
STARVING = new_txn(FakeEnv(99))


class Beside(FakeEnv):
    """Each pause gives another writer the time to do something."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.meanwhile()


def asked_for(name: str, *, wait_ms: int = 4_000) -> tuple[Beside, FileIO, Timeline[Toy], LogView[Toy]]:
    """A writer that has opened a log in which another one asks for a turn."""
    env = Beside(3)
    fileio = FileIO(MemoryBackend(name), env=env)
    view = grow(open_toy(fileio), LONG)
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot, wait_ms=wait_ms))
    timeline = open_toy(fileio)
    opened = timeline.open()
    env.sleeps_s.clear()
    return env, fileio, timeline, opened


def turns(fileio: FileIO) -> list[tuple[str, int, int]]:
    hint, _ = read_hint(fileio)
    assert hint is not None
    return [(one.txn, one.slot, one.wait_ms) for one in hint.turns]


def nonce_of(fileio: FileIO) -> str:
    hint, _ = read_hint(fileio)
    assert hint is not None
    return hint.nonce


def taken(first: int, *waited: int) -> list[Entry]:
    """Entries from a slot on, whose writers so many slots had passed by."""
    env = FakeEnv(first)
    return [
        Entry(format=1, slot=slot, action=Action.DELTA_COMMIT, txn=new_txn(env), base=slot - 1 - each, committed_at_ms=slot)
        for slot, each in enumerate(waited, first)
    ]


# ---- who asks


@pytest.mark.parametrize(("winners", "asks_after"), [(0, 8), (1, 16), (7, 64)])
def test_a_writer_asks_when_far_more_slots_pass_it_by_than_pass_the_winners(winners: int, asks_after: int) -> None:
    env = FakeEnv(3)
    fileio = FileIO(MemoryBackend("asks"), env=env)
    grow(open_toy(fileio), LONG)
    seeker = TurnSeeker(fileio, STARVING)
    seeker.lost(taken(100, *[winners] * 90))  # What came while it worked says nothing.
    for number in range(1, asks_after):
        env.advance(3.0)
        seeker.lost(taken(190 + number, winners))
        assert turns(fileio) == []
    env.advance(3.0)
    seeker.lost(taken(500, winners))
    assert turns(fileio) == [(STARVING, 500, 12_000)], "four tries of three seconds"
    for number in range(1, 16):
        seeker.lost(taken(500 + number, winners))
    assert turns(fileio) == [(STARVING, 500, 12_000)]
    seeker.lost(taken(600, winners))
    assert [slot for _, slot, _ in turns(fileio)] == [600], "it asks again, in place of the first time"


@pytest.mark.parametrize(("try_s", "wait_s"), [(0.01, WAIT_S_MIN), (60.0, WAIT_S_MAX)])
def test_nobody_asks_for_a_moment_or_for_ever(try_s: float, wait_s: float) -> None:
    env = FakeEnv(3)
    fileio = FileIO(MemoryBackend("limits"), env=env)
    grow(open_toy(fileio), LONG)
    seeker = TurnSeeker(fileio, STARVING)
    for number in range(9):
        seeker.lost(taken(100 + number, 0))
        env.advance(try_s)
    assert [wait_ms for _, _, wait_ms in turns(fileio)] == [wait_s * 1000]


def test_a_young_log_has_no_hint_to_ask_in() -> None:
    fileio = FileIO(MemoryBackend("young"), env=FakeEnv(3))
    grow(open_toy(fileio), HINT_SLOTS - 1)
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=2, wait_ms=5_000))
    assert not fileio.exists(HINT_KEY)


def test_the_hint_holds_the_newest_requests() -> None:
    fileio = FileIO(MemoryBackend("many"), env=FakeEnv(3))
    grow(open_toy(fileio), LONG)
    for number in range(TURN_REQUESTS_MAX + 3):
        put_turn_request(fileio, TurnRequest(txn=new_txn(FakeEnv(number)), slot=number, wait_ms=1))
    assert [slot for _, slot, _ in turns(fileio)] == list(range(3, TURN_REQUESTS_MAX + 3))


def test_a_request_leaves_what_the_hint_carries_and_an_erasure_leaves_the_request() -> None:
    fileio = FileIO(MemoryBackend("both"), env=FakeEnv(3))
    view = grow(open_toy(fileio), LONG)
    before, _ = read_hint(fileio)
    assert before is not None
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot, wait_ms=5_000))
    after, _ = read_hint(fileio)
    assert after is not None and decode_carried(after) == decode_carried(before) is not None
    forget_carried(fileio, slot=view.slot, checkpoint=-1)
    assert read_hint(fileio)[0] == Hint(slot=view.slot, checkpoint=32, nonce=nonce_of(fileio), turns=after.turns)


def test_a_writer_that_never_loses_learns_of_it_with_its_next_hint() -> None:
    fileio = FileIO(MemoryBackend("hinted"), env=FakeEnv(3))
    timeline = open_toy(fileio)
    view = grow(timeline, LONG)
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot, wait_ms=5_000))
    for _ in range(HINT_SLOTS):
        view = grow(timeline, 1, view=view)
    hint, _ = read_hint(fileio)
    assert hint is not None and hint.slot == view.slot and hint.carried != NULL
    assert set(timeline.turns._noticed) == {STARVING} and len(turns(fileio)) == 1


# ---- who stands back


def test_without_a_request_nothing_is_sent_and_the_hint_is_as_ever() -> None:
    fileio = FileIO(MemoryBackend("nobody"), env=FakeEnv(3))
    grow(open_toy(fileio), LONG)
    timeline = open_toy(fileio)
    view = timeline.open()
    before = fileio.metrics.snapshot()
    assert timeline.turns.stand_back(view.slot) == []
    assert (fileio.metrics.snapshot() - before).request_count == 0
    assert set(msgspec.json.decode(fileio.read(HINT_KEY))) == {"slot", "checkpoint", "nonce", "carried"}


def test_a_writer_waits_until_the_other_one_has_its_slot() -> None:
    env, fileio, timeline, view = asked_for("waits")

    def win() -> None:
        if len(env.sleeps_s) == 3:
            log = view.log.advance([commit(fileio, view.log)])
            commit(fileio, log, txn=STARVING)

    env.meanwhile = win
    entries = timeline.turns.stand_back(view.slot)
    assert [entry.slot for entry in entries] == [view.slot + 1, view.slot + 2] and entries[-1].txn == STARVING
    assert len(env.sleeps_s) == 3 and sum(env.sleeps_s) < 1
    assert timeline.turns.stand_back(view.slot) == [] and len(env.sleeps_s) == 3


def test_a_writer_waits_for_a_rolled_back_one_no_longer() -> None:
    env, fileio, timeline, view = asked_for("fenced")
    env.meanwhile = lambda: commit(fileio, view.log, action=Action.ROLLBACK, rollback_of=STARVING, changes={}, footprint={})
    assert len(timeline.turns.stand_back(view.slot)) == 1 and len(env.sleeps_s) == 1


def test_nobody_waits_longer_than_asked_nor_twice_for_one_request() -> None:
    env, fileio, timeline, view = asked_for("dead")
    began_s = env.monotonic_s()
    assert timeline.turns.stand_back(view.slot) == []
    assert env.monotonic_s() - began_s == pytest.approx(4.0)
    timeline.open()
    assert timeline.turns.stand_back(view.slot) == [] and env.monotonic_s() - began_s == pytest.approx(4.0)
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot + 20, wait_ms=10**9))
    timeline.open()
    timeline.turns.stand_back(view.slot)
    assert env.monotonic_s() - began_s == pytest.approx(4.0 + WAIT_S_MAX), "it lives, and asks again"


@pytest.mark.parametrize("away", [-REQUEST_SLOTS_MAX, REQUEST_SLOTS_MAX, 10**9])
def test_a_request_of_long_ago_or_of_no_slot_yet_delays_nobody(away: int) -> None:
    env = Beside(3)
    fileio = FileIO(MemoryBackend("past"), env=env)
    view = grow(open_toy(fileio), REQUEST_SLOTS_MAX + 8)
    env.sleeps_s.clear()
    for distance in (away, 1 - REQUEST_SLOTS_MAX):
        put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot + distance, wait_ms=5_000))
        late = open_toy(fileio)
        late.turns.stand_back(late.open().slot)
        assert sum(env.sleeps_s) == pytest.approx(0.0 if distance == away else 5.0)


def test_nobody_waits_for_one_that_has_its_slot() -> None:
    env, fileio, _, view = asked_for("settled")
    commit(fileio, view.log, txn=STARVING)
    late = open_toy(fileio)
    opened = late.open()
    assert late.turns.stand_back(opened.slot) == [] and env.sleeps_s == []


def test_a_writer_that_never_loses_learns_of_it_with_its_next_checkpoint_and_settled_requests_go() -> None:
    env = Beside(3)
    fileio = FileIO(MemoryBackend("published"), env=env)
    timeline = open_toy(fileio)
    view = grow(timeline, LONG)
    put_turn_request(fileio, TurnRequest(txn=STARVING, slot=view.slot, wait_ms=5_000))
    for _ in range(TAIL_SLOTS_MAX):
        view = grow(timeline, 1, view=view)
        if timeline.turns._noticed:
            break
    else:
        pytest.fail("nobody looks into the hint")
    assert len(turns(fileio)) == 1, "others are to learn of it too"
    env.meanwhile = lambda: commit(fileio, view.log, txn=STARVING)
    view = timeline.advance(view, timeline.turns.stand_back(view.slot))
    env.meanwhile = lambda: None
    grow(timeline, 2 * TAIL_SLOTS_MAX, view=view)
    assert turns(fileio) == []
