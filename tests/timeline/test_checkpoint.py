"""Checkpoints are published beside commits and collected beside everybody; whatever is interrupted, the log opens with the same state."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from fileio.contract import Create
from fileio.errors import FileIOError, Unavailable
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CheckpointCollected, InvalidInput
from objcat.timeline.checkpoint import Root, VoidRoot, folder_of, put_root, read_hint, read_root, root_key, void_root
from objcat.timeline.checkpoint_expiry import CollectedCheckpoints, collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from tests.timeline.toy import TABLE, Toy, ToyReducer, assert_same, clone, commit, grow, open_toy, rows_at, rows_of


def store(name: str, commits: int, *, publish: bool = True, seed: int = 7) -> tuple[FileIO, LogView[Toy]]:
    fileio = FileIO(MemoryBackend(name), env=FakeEnv(seed))
    return fileio, grow(open_toy(fileio), commits, publish=publish)


def through(backend: FaultyBackend, seed: int = 900) -> Timeline[Toy]:
    """Somebody else on the same store, behind faults."""
    return open_toy(FileIO(backend, env=FakeEnv(seed), policy=RetryPolicy(attempts_max=2)))


def valid_roots(fileio: FileIO) -> dict[int, Root]:
    roots = {}
    for key in fileio.list_keys("checkpoints/"):
        if key.endswith("/root.json"):
            slot = int(key.split("/")[1])
            found = read_root(fileio, slot)
            assert found is not None
            if isinstance(found.root, Root):
                roots[slot] = found.root
    return roots


def assert_sound(timeline: Timeline[Toy]) -> None:
    """Every root that is not void says what the log says; the log opens, and reads the same at every slot, with and without roots."""
    fileio = timeline.fileio
    logs, states = [LogState()], [Toy()]
    for entry in timeline.log.read_after(-1):
        logs.append(logs[-1].advance([entry]))
        states.append(timeline.reducer.advance(states[-1], entry, lambda slot: states[slot + 1]))
    opened = timeline.open()
    assert opened.log == logs[-1]
    assert rows_of(fileio, opened.state) == states[-1].overlay
    for slot, root in valid_roots(fileio).items():
        assert root.log == logs[slot + 1]
        assert rows_of(fileio, timeline.reducer.load(root.payload)) == states[slot + 1].overlay
    for slot in range(0, opened.slot + 1, 29):
        assert rows_of(fileio, timeline.at(slot).state) == states[slot + 1].overlay


def garbage(timeline: Timeline[Toy]) -> set[str]:
    """Objects of checkpoints that no root names."""
    named = {path for root in valid_roots(timeline.fileio).values() for path in timeline.reducer.objects(root.payload)}
    named |= {segment.path for root in valid_roots(timeline.fileio).values() for segment in root.segments}
    return {key for key in timeline.fileio.list_keys("checkpoints/") if not key.endswith("/root.json")} - named


# ---- publishing


def test_the_view_that_comes_back_stands_on_the_root() -> None:
    fileio, view = store("stands", 40, publish=False)
    timeline = open_toy(fileio)
    published = timeline.publish(view)
    assert (published.slot, published.checkpoint) == (39, 32)
    assert len(published.tail) == 7
    assert all(int(key[1:]) is not None and value >= 32 for key, value in published.state.overlay.items())
    assert_same(timeline, [view, published, timeline.open()])
    assert timeline.publish(published) == published
    assert (read_hint(fileio)[0] or pytest.fail("no hint")).checkpoint == 32
    assert_sound(timeline)


def test_nothing_but_a_hint_is_published_of_a_young_log() -> None:
    fileio, view = store("young", 15)
    timeline = open_toy(fileio)
    assert timeline.publish(view) == view
    assert list(fileio.list_keys("checkpoints/")) == []
    hint, _ = read_hint(fileio)
    assert hint is not None and (hint.slot, hint.checkpoint) == (11, -1)


def test_a_checkpoint_names_the_objects_of_the_one_before_again() -> None:
    fileio, view = store("again", 33)
    timeline = open_toy(fileio)
    first = timeline.open().state.shards
    assert first == view.state.shards != ()
    view = grow(timeline, 32, view=view)
    assert view.state.shards[: len(first)] == first
    assert len(view.state.shards) == len(first) + 1
    assert_sound(timeline)


def test_whoever_has_followed_the_log_from_its_beginning_reads_none_of_it_for_the_first_checkpoint() -> None:
    plain, view = store("followed", 40, publish=False)
    asked: list[Request] = []
    published = through(FaultyBackend(plain._bare, before=asked.append)).publish(view)
    assert (view.checkpoint, published.checkpoint) == (-1, 32)
    assert [request.key for request in asked if request.kind == "put"] and not [r.key for r in asked if r.key.startswith("log/")]
    assert_sound(open_toy(plain))


def test_a_slot_that_somebody_else_has_published_is_loaded() -> None:
    fileio, view = store("loaded", 40, publish=False)
    first, second = open_toy(fileio), open_toy(fileio)
    published = first.publish(view)
    before = fileio.metrics.snapshot()
    assert second.publish(view).state == published.state
    assert not set((fileio.metrics.snapshot() - before).requests) & {"put", "delete"}
    assert garbage(first) == set()


def test_whoever_loses_the_race_for_a_root_takes_the_winners_and_leaves_nothing() -> None:
    plain, view = store("race", 40, publish=False)
    winner = open_toy(plain)

    def faster(request: Request) -> None:
        if request.kind == "put" and request.key == root_key(32):
            winner.publish(view)

    loser = through(FaultyBackend(plain._bare, before=faster))
    published = loser.publish(view)
    assert published.checkpoint == 32
    assert published.state == winner.open().state
    assert garbage(winner) == set()
    assert_sound(winner)


def test_a_view_that_has_grown_meanwhile_moves_to_the_new_checkpoint() -> None:
    fileio, view = store("grown", 40, publish=False)
    timeline = open_toy(fileio)
    published = timeline.publish(view)
    for more in (0, 1, 20, 150):
        grown = grow(timeline, more, view=timeline.refresh(view), publish=False)
        before = fileio.metrics.snapshot()
        rebased = timeline.adopt_checkpoint(grown, published)
        assert ((fileio.metrics.snapshot() - before).request_count == 0) is (more < 90)
        assert rebased.checkpoint == 32
        assert_same(timeline, [grown, rebased])
    assert timeline.adopt_checkpoint(published, view) == published
    assert timeline.adopt_checkpoint(view, timeline.open()) == view


class _Broken(ToyReducer):
    def save(self, fileio: FileIO, state: Toy, folder: str) -> tuple[msgspec.Raw, Toy]:
        raise OSError("not today")


def test_a_checkpoint_that_cannot_be_made_is_no_error_and_not_tried_at_every_commit(caplog: pytest.LogCaptureFixture) -> None:
    fileio = FileIO(MemoryBackend("broken"), env=FakeEnv(1))
    with caplog.at_level(logging.WARNING):
        view = grow(Timeline(fileio, _Broken()), 100)
    assert (view.slot, view.checkpoint) == (99, -1)
    assert 4 <= len([record for record in caplog.records if "no checkpoint of" in record.message]) <= 6
    assert_same(open_toy(fileio), [view, open_toy(fileio).open()])


def test_a_root_whose_answer_is_lost_for_good_is_not_stood_on() -> None:
    plain, view = store("unknown", 40, publish=False)
    lost = FaultyBackend(plain._bare, [Rule(fault=Fault.LATER, kinds=frozenset({"put"}), key=lambda k: k == root_key(32), times=99)])
    timeline = through(lost)
    with pytest.raises(Unavailable):
        timeline.publish(view)
    assert not plain.exists(root_key(32))
    lost.release()
    assert plain.exists(root_key(32))
    assert_sound(open_toy(plain))
    assert open_toy(plain).publish(view).checkpoint == 32


def test_interrupted_anywhere_publishing_leaves_a_log_that_opens_the_same() -> None:
    grown, view = store("count", 320)
    view = grow(open_toy(grown), 12, view=view, publish=False)
    counting = FaultyBackend(clone(grown, "counted", seed=8)._bare)
    assert through(counting).publish(view).checkpoint > view.checkpoint
    requests = counting.asked.total()
    assert requests >= 5
    for number in range(1, requests + 1):
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            plain = clone(grown, f"crash-{number}-{fault.value}", seed=1000 + number)
            faulty = FaultyBackend(plain._bare, [Rule(fault=fault, nth=number)])
            with suppress(Crash):
                through(faulty).publish(view)
            timeline = open_toy(plain)
            assert faulty.fired.total() == 1
            assert_same(timeline, [view, timeline.open()])
            assert_same(timeline, [view, timeline.publish(view)])
            assert_same(timeline, [grow(timeline, 20, view=view), timeline.open()])


# ---- collection


def collect(store: FileIO | Timeline[Toy], keep: int) -> CollectedCheckpoints:
    timeline = open_toy(store) if isinstance(store, FileIO) else store
    return collect_checkpoints(timeline, Committer(timeline.fileio), keep=keep)


def test_old_checkpoints_go_and_every_slot_can_still_be_looked_at() -> None:
    fileio, view = store("collect", 400)
    timeline = open_toy(fileio)
    old, before = timeline.at(200), sorted(valid_roots(fileio))
    done = collect(fileio, 3)
    assert (done.slot, done.bound) == (400, before[-3])
    assert list(done.voided) == before[:-3]
    assert sorted(valid_roots(fileio)) == before[-3:]
    assert done.objects > 0 and garbage(timeline) == set()
    assert_sound(timeline)
    with pytest.raises(CheckpointCollected, match="open again"):
        rows_of(fileio, old.state)
    assert rows_of(fileio, timeline.at(200).state) == rows_at(200)
    view = grow(timeline, 100, view=timeline.refresh(view))
    assert_sound(timeline)
    assert collect(fileio, 2).slot is not None
    assert garbage(timeline) == set()
    assert_sound(timeline)
    assert_same(timeline, [timeline.refresh(timeline.open()), timeline.open()])


def test_a_slot_far_below_the_bound_is_found_over_void_roots_by_few_looks() -> None:
    fileio, view = store("far", 600)
    timeline = open_toy(fileio)
    collect(fileio, 1)
    before = fileio.metrics.snapshot()
    assert timeline.at(570).checkpoint == -1
    assert (fileio.metrics.snapshot() - before).requests["get"] <= 571 + 8
    assert timeline.refresh(view).slot == 600


def test_with_nothing_to_collect_no_slot_is_taken() -> None:
    fileio, _ = store("nothing", 100)
    timeline = open_toy(fileio)
    assert collect(fileio, 50).slot is None
    assert collect(fileio, 1).slot == 100
    assert collect(fileio, 1).slot is None
    assert timeline.open().slot == 100
    with pytest.raises(InvalidInput, match="keep=0"):
        collect(fileio, 0)
    empty = FileIO(MemoryBackend("empty"))
    assert collect(empty, 1).slot is None


def test_a_savepoint_keeps_the_checkpoint_below_its_slot_until_it_is_released() -> None:
    fileio, view = store("saved", 100)
    timeline = open_toy(fileio)
    view = timeline.advance(view, [commit(fileio, view.log, action=Action.SAVEPOINT, footprint={TABLE: Footprint(saves=55)}, changes={})])
    view = grow(timeline, 200, view=view)
    collect(fileio, 1)
    assert timeline.at(55).checkpoint == 48
    assert_sound(timeline)
    view = grow(timeline, 60, view=timeline.refresh(view))
    collect(fileio, 1)
    assert timeline.at(55).checkpoint == 48
    view = timeline.open()
    view = timeline.advance(view, [commit(fileio, view.log, action=Action.CLEAN, footprint={TABLE: Footprint(releases=55)}, changes={})])
    grow(timeline, 60, view=view)
    collect(fileio, 1)
    assert timeline.at(55).checkpoint == -1
    assert len(valid_roots(fileio)) == 1
    assert garbage(timeline) == set()
    assert_sound(timeline)


def test_a_slow_publisher_below_the_clean_is_fenced_by_a_void_root() -> None:
    """The root must not come after the objects that it names were collected."""
    plain, view = store("slow", 100)
    timeline = open_toy(plain)
    behind = grow(timeline, 30, view=view, publish=False)
    assert behind.milestone is not None and behind.milestone.slot == 128

    def meanwhile(request: Request) -> None:
        if request.kind == "put" and request.key == root_key(128) and not plain.exists(root_key(128)):
            now = grow(open_toy(plain), 80, view=behind, publish=False)
            open_toy(plain).publish(now)
            assert collect(plain, 1).bound == 208

    slow = through(FaultyBackend(plain._bare, before=meanwhile))
    assert slow.publish(behind) == behind
    found = read_root(plain, 128)
    assert found is not None and isinstance(found.root, VoidRoot)
    assert garbage(timeline) == set()
    assert_sound(timeline)


def test_a_publisher_above_the_clean_stands_on_nothing_that_is_collected() -> None:
    plain, view = store("above", 100)
    timeline = open_toy(plain)
    assert view.checkpoint == 80
    other = grow(timeline, 40, view=view)
    assert other.checkpoint == 112
    collect(plain, 1)
    old = grow(timeline, 40, view=timeline.refresh(view), publish=False)
    assert old.checkpoint == 80
    with pytest.raises(CheckpointCollected):
        rows_of(plain, old.state)
    published = timeline.publish(old)
    assert published.checkpoint == 176
    assert_sound(timeline)
    assert_same(timeline, [published, timeline.open()])


def test_what_a_dead_publisher_left_is_swept() -> None:
    plain, view = store("orphans", 100)
    view = grow(open_toy(plain), 30, view=view, publish=False)
    crash = FaultyBackend(
        plain._bare, [Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: key.endswith("root.json"))]
    )
    with pytest.raises(Crash):
        through(crash).publish(view)
    timeline = open_toy(plain)
    assert garbage(timeline)
    grow(timeline, 1, view=view)
    collect(plain, 1)
    assert garbage(timeline) == set()
    assert_sound(timeline)


@pytest.mark.parametrize("slot", [55, 40, 95])
@pytest.mark.parametrize("saved", [True, False])
def test_a_state_that_was_restored_outlives_the_checkpoint_that_it_came_from(slot: int, saved: bool) -> None:
    fileio, view = store(f"back-{slot}-{saved}", 100)
    timeline = open_toy(fileio)
    if saved:
        fields: dict[str, Any] = {"action": Action.SAVEPOINT, "footprint": {TABLE: Footprint(saves=slot)}, "changes": {}}
        view = timeline.advance(view, [commit(fileio, view.log, **fields)])
    view = grow(timeline, 100, view=view)
    collect(fileio, 1)
    view = timeline.refresh(timeline.open())
    restore: dict[str, Any] = {"action": Action.RESTORE, "footprint": {TABLE: Footprint(restores=slot)}, "changes": {}}
    view = timeline.advance(view, [commit(fileio, view.log, **restore)])
    rows = rows_of(fileio, view.state)
    assert rows == rows_at(slot)
    if saved:
        view = timeline.advance(view, [commit(fileio, view.log, action=Action.CLEAN, footprint={TABLE: Footprint(releases=slot)})])
    collect(fileio, 1)
    for _ in range(3):
        view = grow(timeline, 50, view=timeline.refresh(view))
        assert_sound(timeline)
        collect(fileio, 1)
        assert_sound(timeline)
    assert garbage(timeline) == set()


def test_a_state_that_is_restored_while_its_checkpoint_is_collected_does_not_stand_on_it() -> None:
    plain, view = store("while", 200)
    timeline = open_toy(plain)
    done: list[bool] = []

    def meanwhile(request: Request) -> None:
        """After the collector has claimed its slot, and before the first root becomes void."""
        if request.kind == "put" and request.key == root_key(16) and not done:
            done.append(True)
            now = timeline.refresh(view)
            fields: dict[str, Any] = {"action": Action.RESTORE, "footprint": {TABLE: Footprint(restores=30)}, "changes": {}}
            now = timeline.advance(now, [commit(plain, now.log, **fields)])
            timeline.publish(grow(timeline, 30, view=now, publish=False))

    collect(through(FaultyBackend(plain._bare, before=meanwhile)), 1)
    assert done
    assert_sound(timeline)


def test_a_collector_that_was_overtaken_deletes_nothing() -> None:
    """What it would call garbage may be named by a root that the later one keeps."""
    plain, view = store("overtaken", 145)
    timeline = open_toy(plain)
    done: list[bool] = []

    def meanwhile(request: Request) -> None:
        """Between the last void root of the collector and its look at what roots name."""
        found = read_root(plain, 112)
        if not done and request.kind == "get" and found is not None and isinstance(found.root, VoidRoot):
            done.append(True)
            now = grow(timeline, 40, view=timeline.refresh(view))
            assert now.checkpoint == 176 and now.state.shards[0].startswith(folder_of(112))
            collect(plain, 1)

    collect(through(FaultyBackend(plain._bare, before=meanwhile)), 1)
    assert done
    assert_sound(timeline)


def test_interrupted_anywhere_a_collection_leaves_a_log_that_opens_the_same() -> None:
    grown, view = store("collect-count", 100)
    counting = FaultyBackend(clone(grown, "collect-counted", seed=8)._bare)
    collect(through(counting), 2)
    requests = counting.asked.total()
    assert requests > 25
    for number in range(1, requests + 1):
        fault = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)[number % 2]
        plain = clone(grown, f"collect-crash-{number}", seed=1000 + number)
        faulty = FaultyBackend(plain._bare, [Rule(fault=fault, nth=number)])
        with suppress(Crash):
            collect(through(faulty), 2)
        timeline = open_toy(plain)
        assert faulty.fired.total() == 1
        assert_sound(timeline)
        grow(timeline, 40, view=timeline.refresh(view))
        collect(plain, 1)
        assert len(valid_roots(plain)) == 1
        assert garbage(timeline) == set()
        assert_sound(timeline)


@pytest.mark.parametrize("nth", range(1, 60, 4))
def test_collectors_publishers_and_writers_beside_each_other(nth: int) -> None:
    plain, view = store(f"beside-{nth}", 150)
    timeline = open_toy(plain)
    stale = grow(timeline, 10, view=view, publish=False)

    def others(request: Request) -> None:
        if request.number == nth:
            now = grow(open_toy(plain), 50, view=timeline.open())
            timeline.publish(stale)
            collect(plain, 1)
            timeline.publish(grow(timeline, 20, view=timeline.refresh(now), publish=False))

    with suppress(FileIOError):
        collect(through(FaultyBackend(plain._bare, before=others)), 2)
    timeline.publish(stale)
    assert_sound(timeline)
    grow(timeline, 60, view=timeline.open())
    assert_sound(timeline)
    collect(plain, 1)
    assert garbage(timeline) == set()
    assert_sound(timeline)


def test_a_void_root_is_never_published_over() -> None:
    fileio, view = store("void", 40, publish=False)
    put_root(fileio, void_root(32, older=-1), Create())
    timeline = open_toy(fileio)
    assert timeline.publish(view) == view
    view = grow(timeline, 40, view=view)
    assert view.checkpoint == 48
    assert_sound(timeline)


def test_a_root_is_readable_json() -> None:
    fileio, _ = store("json", 40)
    said = json.loads(fileio.read(root_key(16)))
    assert (said["format"], said["slot"], said["log"]["slot"], len(said["outcomes"])) == (1, 16, 16, 17)
