"""The hint carries the newest root and the entries above it: what that saves, and that nothing in it is ever believed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fileio.contract import Buffer, Overwrite, PutMode, PutOutcome
from fileio.env import IDLE_WAITS_MAX, SystemEnv
from fileio.errors import PermissionDenied
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import Contention, CorruptTable
from objcat.timeline.checkpoint import HINT_KEY, NULL, Hint, decode_carried, read_hint, read_root
from objcat.timeline.checkpoint_expiry import collect_checkpoints, fence
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Footprint, log_key
from objcat.timeline.hints import CARRIED_BYTES_MAX, HINT_SLOTS, PAUSE_S, Hints, forget_carried
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from tests.timeline.toy import TABLE, Toy, ToyReducer, assert_same, clone, commit, digested, grow, open_toy, rows_at, rows_of


def store(name: str, seed: int = 7) -> FileIO:
    return FileIO(MemoryBackend(name), env=FakeEnv(seed))


def hint_at(fileio: FileIO) -> Hint:
    hint, _ = read_hint(fileio)
    assert hint is not None
    return hint


def gets_of(fileio: FileIO, work: Callable[[], object]) -> int:
    before = fileio.metrics.snapshot()
    work()
    spent = (fileio.metrics.snapshot() - before).requests
    assert set(spent) <= {"get"}
    return spent.get("get", 0)


def test_a_log_of_any_length_is_opened_by_its_hint_and_a_few_slots() -> None:
    fileio = store("lengths")
    timeline = open_toy(fileio)
    view = timeline.open()
    for length in range(1, 150):
        view = grow(timeline, 1, view=view)
        opened: list[LogView[Toy]] = []
        asked = gets_of(fileio, lambda opened=opened: opened.append(timeline.open()))  # type: ignore[misc]
        assert (opened[0].slot, opened[0].checkpoint) == (length - 1, view.checkpoint)
        assert opened[0].slot - (hint_at(fileio).slot if length > HINT_SLOTS else -1) <= HINT_SLOTS
        # The hint, its own slot and the next five: two of them are absent.
        assert asked <= 1 + 1 + HINT_SLOTS + 1, length
        assert rows_of(fileio, opened[0].state) == rows_at(length - 1)
    assert_same(timeline, [view, timeline.open()])


def test_what_a_hint_carries_is_what_the_log_says() -> None:
    fileio = store("carries")
    timeline = open_toy(fileio)
    view = grow(timeline, 100)
    hint = hint_at(fileio)
    carried = decode_carried(hint)
    found = read_root(fileio, view.checkpoint)
    assert carried is not None and found is not None
    said = (found.root, timeline.log.read_after(view.checkpoint, until=99))
    own, its = (msgspec.json.decode(msgspec.json.encode(one)) for one in (carried, said))
    assert hint.slot == 99 and own == its


def test_without_checkpoints_a_hint_carries_the_log_from_its_beginning() -> None:
    class NoCheckpoints(MemoryBackend):
        def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
            if key.startswith("checkpoints/"):
                raise PermissionDenied(f"{key} cannot be written")
            return super().put(key, data, mode, metadata)

    fileio = FileIO(NoCheckpoints("denied"), env=FakeEnv(7))
    timeline = open_toy(fileio)
    grow(timeline, 100)
    assert (hint_at(fileio).slot, hint_at(fileio).checkpoint) == (99, -1)
    opened: list[LogView[Toy]] = []
    assert gets_of(fileio, lambda: opened.append(timeline.open())) == 3 + HINT_SLOTS
    assert (opened[0].slot, opened[0].checkpoint) == (99, -1)
    assert_same(timeline, opened)


def test_a_hint_with_too_much_in_it_says_only_where_the_log_is() -> None:
    fileio = store("large")
    timeline = open_toy(fileio)
    view = grow(timeline, 40)
    big = msgspec.Raw(msgspec.json.encode({"k" + "x" * 60_000: 1}))
    for _ in range(8):
        view = timeline.advance(view, [commit(fileio, view.log, changes={TABLE: big})])
        timeline.after_commit(view, lambda _: None)
    hint = hint_at(fileio)
    assert (hint.slot, hint.carried) == (47, NULL)
    assert len(fileio.read(HINT_KEY)) < CARRIED_BYTES_MAX
    assert timeline.open().slot == 47


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no entries": lambda hint: hint["carried"].update(entries=[]),
    "an entry is missing": lambda hint: hint["carried"]["entries"].pop(),
    "entries in another order": lambda hint: hint["carried"]["entries"].reverse(),
    "another value in an entry": lambda hint: hint["carried"]["entries"][-1].update(committed_at_ms=5),
    "another slot": lambda hint: hint.update(slot=hint["slot"] - 1),
    "another checkpoint": lambda hint: hint.update(checkpoint=64),
    "no root": lambda hint: hint["carried"].pop("root"),
    "a void root": lambda hint: hint["carried"].update(root={"format": 1, "slot": 80, "older": -1, "void": True}),
    "a root of a later format": lambda hint: hint["carried"]["root"].update(format=99),
    "a text": lambda hint: hint.update(carried="a text"),
    "a number": lambda hint: hint.update(carried=7),
}


@pytest.mark.parametrize("digest", ["of what was written", "none", "its own"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_hint_that_carries_something_else_changes_no_answer(wrong: str, digest: str) -> None:
    """With a digest of its own, as another writer may put it, the parts themselves are compared with the log."""
    fileio = store(f"wrong-{wrong}-{digest}")
    timeline = open_toy(fileio)
    view = grow(timeline, 100)
    hint = msgspec.json.decode(fileio.read(HINT_KEY))
    if digest == "none":
        del hint["carried"]["digest"]
    WRONG[wrong](hint)
    if digest == "its own" and isinstance(hint["carried"], dict):
        hint["carried"] = digested(hint["carried"])
    fileio.put(HINT_KEY, msgspec.json.encode(hint), Overwrite())
    fresh = open_toy(fileio)
    assert_same(fresh, [view, fresh.open()])
    assert view.checkpoint == 80 and fresh.open().checkpoint in (64, 80)


def test_a_flipped_byte_of_a_hint_changes_no_answer() -> None:
    fileio = store("flipped")
    timeline = open_toy(fileio)
    view = grow(timeline, 37)
    data = fileio.read(HINT_KEY)
    for at in range(0, len(data), 7):
        fileio.put(HINT_KEY, data[:at] + bytes([data[at] ^ (1 << at % 7)]) + data[at + 1 :], Overwrite())
        opened = open_toy(fileio).open()
        assert (opened.log, rows_of(fileio, opened.state)) == (view.log, rows_at(36)), at


def test_entries_without_a_digest_are_not_used() -> None:
    """Their values could be others: only the last one is compared with its slot."""
    fileio = store("bare entries")
    timeline = open_toy(fileio)
    view = grow(timeline, 39)
    hint = msgspec.json.decode(fileio.read(HINT_KEY))
    del hint["carried"]["digest"]
    hint["carried"]["entries"][0]["changes"] = {TABLE: {"stray": 1}}
    fileio.put(HINT_KEY, msgspec.json.encode(hint), Overwrite())
    fresh = open_toy(fileio)
    opened = fresh.open()
    assert "stray" not in rows_of(fileio, opened.state)
    assert_same(fresh, [view, opened])


def test_a_slot_that_was_deleted_right_above_a_hint_is_told_wherever_it_is() -> None:
    fileio = store("holes above")
    grow(open_toy(fileio), 8)
    hint = fileio.read(HINT_KEY)
    assert hint_at(fileio).slot == 7
    grow(open_toy(fileio), 7, view=open_toy(fileio).open())
    fileio.put(HINT_KEY, hint, Overwrite())
    for hole in range(8, 14):
        body = fileio.read(log_key(hole))
        fileio.delete([log_key(hole)])
        with pytest.raises(CorruptTable, match=log_key(hole)):
            open_toy(fileio).open()
        fileio.put(log_key(hole), body)


def test_a_root_of_another_log_is_joined_with_no_entries_of_this_one() -> None:
    """A process knows a log that was deleted by hand. Another one is there now, whose checkpoint has the same slot."""
    fileio, hints = store("replaced"), Hints()
    assert grow(Timeline(fileio, ToyReducer(), hints), 40).checkpoint == 16
    fileio.delete(list(fileio.list_keys("")))
    other = open_toy(fileio)
    commit(fileio, LogState(), changes={TABLE: msgspec.Raw(b'{"stray": 1}')})
    view = other.publish(grow(other, 22, view=other.open(), publish=False))
    assert view.checkpoint == 16
    fileio.delete([HINT_KEY])
    hints._newest = (None, None, False)
    Timeline(fileio, ToyReducer(), hints).publish_hint(view)
    assert hint_at(fileio).carried != NULL
    fresh = open_toy(fileio)
    opened = fresh.open()
    assert rows_of(fileio, opened.state)["stray"] == 1
    assert_same(fresh, [view, opened])


def test_a_hint_of_another_log_is_found_out_by_its_slot() -> None:
    """Two copies of a bucket that went different ways: each hint ends with an entry that the other log does not have."""
    fileio = store("one way")
    timeline = open_toy(fileio)
    grow(timeline, 90)
    other = clone(fileio, "other way", seed=99)
    mine, theirs = grow(timeline, 8), grow(open_toy(other), 8)
    assert mine.log != theirs.log and mine.slot == theirs.slot
    fileio.put(HINT_KEY, other.read(HINT_KEY), Overwrite())
    fresh = open_toy(fileio)
    assert fresh.open().outcomes.recent[-1].txn == mine.outcomes.recent[-1].txn
    assert_same(fresh, [mine, fresh.open()])


@pytest.mark.parametrize("behind", [1, 3, 4, 5, 9, 30, 64, 300])
def test_a_stale_hint_is_read_on_from(behind: int) -> None:
    fileio = store(f"stale-{behind}")
    timeline = open_toy(fileio)
    view = grow(timeline, 100)
    stale = fileio.read(HINT_KEY)
    view = grow(timeline, behind, view=view)
    fileio.put(HINT_KEY, stale, Overwrite())
    fresh = open_toy(fileio)
    assert_same(fresh, [view, fresh.open()])


def test_a_hint_goes_forward_by_checkpoint_and_then_by_slot() -> None:
    fileio = store("forward")
    slow, quick = open_toy(fileio), open_toy(fileio)
    old = grow(slow, 38)
    late = slow.advance(old, [commit(fileio, old.log)])
    grow(quick, 20, view=late)
    newest = hint_at(fileio)
    assert (newest.slot, newest.checkpoint) == (55, 48) and late.checkpoint == 16
    slow.after_commit(late, lambda _: None)
    slow.publish(late)
    assert hint_at(fileio) == newest
    slow._hint(late)
    assert hint_at(fileio) == newest, "it was compared with what the store has"


def test_of_many_writers_one_puts_a_hint_for_each_few_slots() -> None:
    class Counting(MemoryBackend):
        puts = 0

        def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
            self.puts += key == HINT_KEY
            return super().put(key, data, mode, metadata)

    backend = Counting("many")
    writers = [open_toy(FileIO(backend, env=FakeEnv(seed))) for seed in range(1, 6)]
    views = [writer.open() for writer in writers]
    for turn in range(100):
        number = turn % len(writers)
        writer, view = writers[number], writers[number].refresh(views[number])
        views[number] = writer.advance(view, [commit(writer.fileio, view.log)])
        writer._publishing.until_s = 10.0**9  # so that only hints are counted
        writer.after_commit(views[number], lambda _: None)
    assert backend.puts == 25
    assert hint_at(writers[0].fileio).slot == 99


def test_a_warm_writer_reads_nothing_for_its_hints_and_puts_one_a_second_at_most() -> None:
    fileio = store("warm")
    timeline = open_toy(fileio)
    view = grow(timeline, 40)
    env = fileio.env
    assert isinstance(env, FakeEnv)
    for _ in range(8):
        env.advance(PAUSE_S)
        before, slept = fileio.metrics.snapshot(), len(env.sleeps_s)
        view = grow(timeline, 1, view=view)
        spent = (fileio.metrics.snapshot() - before).requests
        is_due = view.slot % HINT_SLOTS == HINT_SLOTS - 1
        assert spent == {"put_create": 1, **({"put_update": 1} if is_due else {})}
        assert env.sleeps_s[slept:] in ([], [0.0])
    grow(timeline, 8, view=view)
    assert max(env.sleeps_s) <= PAUSE_S


def test_after_an_erasure_no_writer_puts_back_what_was_below() -> None:
    fileio = store("erased")
    timeline, stalled = open_toy(fileio), open_toy(fileio)
    old = grow(stalled, 38)
    view = grow(timeline, 30)
    bound = view.checkpoint
    assert bound == 48 and old.checkpoint == 16
    view = timeline.advance(view, [commit(fileio, view.log, footprint={TABLE: Footprint(root_bound=bound)})])
    # A hint of somebody who knows nothing of it carries entries below the bound.
    fileio.delete([HINT_KEY])
    open_toy(fileio)._hint(old)
    assert hint_at(fileio).checkpoint == 16
    forget_carried(fileio, slot=view.slot, checkpoint=bound)
    assert (hint_at(fileio).slot, hint_at(fileio).checkpoint, hint_at(fileio).carried) == (view.slot, bound, NULL)
    fresh = open_toy(fileio)
    for writer in (stalled, fresh):
        writer._hint(old)
        assert hint_at(fileio).carried == NULL
    # Who has read the erasure and still stands below it carries nothing either.
    behind = stalled.advance(old, stalled.log.read_after(old.slot))
    assert (behind.slot, behind.checkpoint) == (view.slot, 16)
    on = stalled.advance(behind, [commit(fileio, behind.log)])
    stalled._hint(on)
    assert hint_at(fileio).carried == NULL
    assert_same(fresh, [on, fresh.open()])
    # Who stands on the new checkpoint does, and what it carries is above.
    grown = grow(fresh, 6)
    assert grown.checkpoint >= bound and hint_at(fileio).carried != NULL
    forget_carried(fileio, slot=view.slot, checkpoint=bound)
    assert hint_at(fileio).carried != NULL
    carried = decode_carried(hint_at(fileio))
    assert carried is not None and min(entry.slot for entry in carried[1]) > bound


def test_without_a_checkpoint_an_erasure_fences_the_hint_by_its_slot() -> None:
    fileio = store("young")
    timeline, stalled = open_toy(fileio), open_toy(fileio)
    old = grow(stalled, 8)
    view = timeline.open()
    view = timeline.advance(view, [commit(fileio, view.log, footprint={TABLE: Footprint(root_bound=8)})])
    forget_carried(fileio, slot=view.slot, checkpoint=-1)
    for writer, known in ((stalled, old), (open_toy(fileio), old), (timeline, view)):
        writer._hint(known)
        assert hint_at(fileio).carried == NULL
    assert_same(timeline, [view, open_toy(fileio).open()])


def test_an_erasure_gives_up_when_others_put_hints_all_the_time() -> None:
    class Busy(MemoryBackend):
        def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
            if key == HINT_KEY:
                super().put(key, b"{}", Overwrite(), {})
            return super().put(key, data, mode, metadata)

    with pytest.raises(Contention, match="Erase again"):
        forget_carried(FileIO(Busy("busy"), env=FakeEnv(1)), slot=5, checkpoint=-1)


def test_a_hint_that_others_replaced_is_looked_at_before_it_is_replaced_again() -> None:
    fileio = store("shared")
    first = Timeline(fileio, ToyReducer(), Hints())
    view = grow(first, 8)
    second = open_toy(fileio)
    newer = grow(second, 5)
    assert hint_at(fileio).slot == 11
    first._hint(first.advance(view, first.log.read_after(view.slot)))
    assert (hint_at(fileio).slot, newer.slot) == (11, 12), "one slot more needs no hint"
    first._hint(grow(first, 3))
    assert hint_at(fileio).slot == 15


def test_a_hint_whose_root_was_collected_is_not_followed() -> None:
    fileio = store("collected")
    timeline = open_toy(fileio)
    grow(timeline, 100)
    stale = fileio.read(HINT_KEY)
    view = grow(timeline, 100)
    collect_checkpoints(timeline, Committer(fileio), keep=1)
    assert hint_at(fileio).checkpoint == view.checkpoint
    opened: list[LogView[Toy]] = []
    assert gets_of(fileio, lambda: opened.append(open_toy(fileio).open())) == 3 + HINT_SLOTS
    fileio.put(HINT_KEY, stale, Overwrite())
    opened.append(open_toy(fileio).open())
    assert {one.checkpoint for one in opened} == {view.checkpoint}
    assert_same(timeline, opened)


def test_who_lacks_a_feature_of_writers_carries_nothing() -> None:
    """It may have passed over fields of the root and the entries, and would leave them out."""
    fileio = store("newer writers")
    timeline = open_toy(fileio)
    view = grow(timeline, 40)
    view = grow(timeline, 4, publish=False, view=view)
    open_toy(fileio).publish_hint(replace(view, log=replace(view.log, writer_features={"a later one": "99.0"})))
    assert (hint_at(fileio).slot, hint_at(fileio).carried) == (43, NULL)
    fresh = open_toy(fileio)
    assert_same(fresh, [view, fresh.open()])
    grow(fresh, 4, view=view)
    assert (hint_at(fileio).slot, hint_at(fileio).carried == NULL) == (47, False)


def test_hints_of_older_writers_are_read_and_older_readers_pass_over_what_is_new() -> None:
    """As `{slot, checkpoint, nonce}` was read and written before a hint carried anything: unknown fields are ignored."""
    fileio = store("older")
    timeline = open_toy(fileio)
    view = grow(timeline, 40)
    old = msgspec.defstruct("Old", [("slot", int), ("checkpoint", int), ("nonce", str, "")], omit_defaults=True)
    seen = msgspec.json.decode(fileio.read(HINT_KEY), type=old)
    assert msgspec.structs.astuple(seen)[:2] == (39, view.checkpoint)
    fileio.put(HINT_KEY, msgspec.json.encode(seen), Overwrite())
    fresh = open_toy(fileio)
    assert hint_at(fileio).carried == NULL
    assert_same(fresh, [view, fresh.open()])
    assert_same(fresh, [grow(fresh, 4, view=view), open_toy(fileio).open()])
    assert hint_at(fileio).carried != NULL


def test_a_hint_that_is_ahead_and_restores_a_slot_which_the_log_does_not_have_is_passed_over() -> None:
    """A copy of a bucket whose hint was copied last: what it carries cannot be replayed on this log."""
    fileio = store("restores")
    timeline = open_toy(fileio)
    view = grow(timeline, 75)
    copied = clone(fileio, "copied", seed=99)
    ahead = grow(timeline, 17, view=view)
    ahead = timeline.advance(ahead, [commit(fileio, ahead.log, changes={}, footprint={TABLE: Footprint(restores=ahead.slot - 3)})])
    grow(timeline, 3, view=ahead)
    assert hint_at(fileio).slot > 92 and hint_at(fileio).carried != NULL
    copied.put(HINT_KEY, fileio.read(HINT_KEY), Overwrite())
    fresh = open_toy(copied)
    assert_same(fresh, [view, fresh.open()])


def test_the_root_of_another_log_is_carried_to_nobody() -> None:
    """A hint that is ahead of its log names a root at a slot where this log gets another one, which another thread publishes."""
    fileio = store("with another root")
    timeline = open_toy(fileio)
    view = grow(timeline, 70)
    copied = clone(fileio, "without", seed=99)
    ahead = timeline.advance(view, [commit(fileio, view.log, changes={TABLE: msgspec.Raw(b'{"stray": 1}')})])
    timeline.publish(grow(timeline, 24, view=ahead))
    assert hint_at(fileio).checkpoint == 80 and hint_at(fileio).carried != NULL
    copied.put(HINT_KEY, fileio.read(HINT_KEY), Overwrite())
    reader, writer = open_toy(copied), open_toy(copied)
    seen = reader.open()
    assert seen.slot == 69
    published = writer.publish(grow(writer, 15, view=writer.open()))
    seen = reader.adopt_checkpoint(reader.refresh(seen), published)
    assert (seen.slot, seen.checkpoint) == (84, 80)
    seen = grow(reader, 20, publish=False, view=seen)
    reader.publish_hint(seen)
    assert (hint_at(copied).slot, hint_at(copied).checkpoint) == (104, 80) and hint_at(copied).carried != NULL
    fresh = open_toy(copied)
    opened = fresh.open()
    assert "stray" not in rows_of(copied, opened.state)
    assert_same(fresh, [seen, opened])


def test_an_erasure_without_a_checkpoint_fences_the_hint_of_a_slow_publisher() -> None:
    """The erasure found no root, and has made the one void that comes meanwhile. Its publisher knows nothing of that."""
    fileio = store("slow")
    timeline, slow = open_toy(fileio), open_toy(fileio)
    published = slow._publish(grow(slow, 34, publish=False))
    view = timeline.open()
    view = timeline.advance(view, [commit(fileio, view.log, footprint={TABLE: Footprint(root_bound=34)})])
    assert fence(fileio, view.log, lambda _: set()) == (32,)
    forget_carried(fileio, slot=view.slot, checkpoint=-1)
    slow._hint(published)
    assert (hint_at(fileio).slot, hint_at(fileio).checkpoint, hint_at(fileio).carried) == (34, 32, NULL)
    fresh = open_toy(fileio)
    assert_same(fresh, [view, fresh.open()])
    # From the next checkpoint on it is a hint again, which a second erasure leaves.
    grown = grow(fresh, 40)
    assert hint_at(fileio).checkpoint == grown.checkpoint > 34 and hint_at(fileio).carried != NULL
    forget_carried(fileio, slot=view.slot, checkpoint=-1)
    assert hint_at(fileio).carried != NULL


def test_hints_that_wait_leave_threads_for_others() -> None:
    class Patient(SystemEnv):
        may_go = threading.Event()

        def sleep(self, seconds: float) -> None:
            if 0 < seconds <= PAUSE_S:
                self.may_go.wait(60)

    env = Patient(io_parallelism=IDLE_WAITS_MAX + 1)
    busy = []
    try:
        for number in range(IDLE_WAITS_MAX + 4):
            timeline = open_toy(FileIO(MemoryBackend(f"busy-{number}"), env=env))
            timeline._hints._put_s = env.monotonic_s()
            busy.append((timeline, grow(timeline, HINT_SLOTS)))
        assert env.submit_io(lambda: "at once").result(timeout=20) == "at once"
    finally:
        env.may_go.set()
    for timeline, view in busy:
        timeline._hints._put_s = None
        grow(timeline, 2 * HINT_SLOTS, view=view)


def test_a_hint_that_cannot_be_put_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class Denying(MemoryBackend):
        denies = False

        def get(self, key: str, *arguments: Any, **named: Any) -> Any:
            if self.denies and key == HINT_KEY:
                raise PermissionDenied(f"{key} cannot be read")
            return super().get(key, *arguments, **named)

    backend = Denying("denied")
    fileio = FileIO(backend, env=FakeEnv(7))
    view = grow(open_toy(fileio), 100)
    backend.denies = True
    open_toy(fileio).publish_hint(view)
    assert "The hint of" in caplog.text and "cannot be read" in caplog.text
