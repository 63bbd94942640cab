"""What the log costs, in requests: opening, refreshing, looking back, committing beside checkpoints, asking for outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from fileio.contract import Create
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.timeline.checkpoint import HINT_KEY, TAIL_SLOTS_MAX, Hint
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.hints import HINT_SLOTS
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.rollback import resolve
from tests.timeline.toy import Toy, commit, grow, open_toy

CONDITIONAL = ("put_create", "put_update")


@contextmanager
def counted(fileio: FileIO) -> Iterator[dict[str, int]]:
    """The requests of a block, by kind, and their sum as `all`."""
    asked: dict[str, int] = {}
    before = fileio.metrics.snapshot()
    yield asked
    spent = fileio.metrics.snapshot() - before
    asked.update(spent.requests, all=spent.request_count)
    assert "list" not in asked


def grown(name: str, commits: int, **options: Any) -> tuple[FileIO, Timeline[Toy], LogView[Toy]]:
    fileio = FileIO(MemoryBackend(name), env=FakeEnv(3))
    timeline = open_toy(fileio)
    return fileio, timeline, grow(timeline, commits, **options)


def test_a_cold_open_costs_four_requests_and_the_tail_at_every_length_of_the_log() -> None:
    fileio, timeline, view = grown("cold", 0)
    for length in range(1, 200):
        view = grow(timeline, 1, view=view)
        with counted(fileio) as asked:
            opened = timeline.open()
        assert opened.slot == length - 1
        tail = opened.slot - opened.checkpoint
        assert tail <= TAIL_SLOTS_MAX
        # Windows of an unknown tail ask for slots that are not there yet, but never past what a tail can hold.
        assert asked["all"] <= 4 + TAIL_SLOTS_MAX, (length, asked)
        assert set(asked) <= {"get", "all"}


def test_with_a_hint_that_carries_nothing_the_root_and_the_tail_come_at_once() -> None:
    """Such hints are those of older writers, and of tables with large entries."""
    fileio, timeline, view = grown("exact", 0)
    published = -1
    seen = set()
    for _ in range(300):
        view = grow(timeline, 1, view=view)
        if view.checkpoint == published:
            continue
        published = view.checkpoint
        bare = msgspec.json.encode(Hint(slot=view.slot, checkpoint=published))
        fileio.put(HINT_KEY, bare)
        tail = view.slot - published
        seen.add(tail)
        fresh = open_toy(fileio)
        with counted(fileio) as asked:
            fresh.open()
        # With nothing above the root, its own slot is read: it shows that the log reaches as far. Two absent slots show that it ends.
        assert asked["get"] == 4 + max(1, tail)
    assert seen == {0, 15}


def test_a_cold_open_with_a_fresh_hint_costs_seven_requests() -> None:
    fileio, timeline, view = grown("fresh", 0)
    for length in range(1, 100):
        view = grow(timeline, 1, view=view)
        with counted(fileio) as asked:
            opened = timeline.open()
        assert opened.slot == length - 1
        assert asked["all"] <= 3 + HINT_SLOTS


def test_a_young_log_without_a_hint_is_read_in_windows() -> None:
    for length in range(31):
        fileio, timeline, _ = grown(f"young-{length}", length)
        fileio.delete([HINT_KEY])
        with counted(fileio) as asked:
            timeline.open()
        assert asked["all"] <= 2 + max(HINT_SLOTS, 3 * length + 4)


def test_a_warm_refresh_is_one_get() -> None:
    for commits in (5, 100):
        fileio, timeline, view = grown(f"warm-{commits}", commits)
        with counted(fileio) as asked:
            assert timeline.refresh(view) is not None
        assert asked == {"get": 1, "all": 1}


def test_a_refresh_from_far_behind_takes_a_checkpoint_instead_of_every_entry() -> None:
    fileio, timeline, view = grown("behind", 10)
    newest = grow(timeline, 2000, view=view)
    with counted(fileio) as asked:
        refreshed = timeline.refresh(view)
    assert (refreshed.slot, refreshed.checkpoint) == (newest.slot, newest.checkpoint)
    assert asked["all"] <= 64 + 2 * 11 + 2 + TAIL_SLOTS_MAX + 1


@pytest.mark.parametrize("wrong", ["missing", "stale"])
def test_without_a_fresh_hint_opening_costs_a_logarithm_more(wrong: str) -> None:
    costs = {}
    for commits in (100, 1000, 4000):
        fileio, timeline, view = grown(f"{wrong}-{commits}", 40)
        old = fileio.read(HINT_KEY)
        view = grow(timeline, commits - 40, view=view)
        fileio.delete([HINT_KEY])
        if wrong == "stale":
            fileio.put(HINT_KEY, old, Create())
        with counted(fileio) as asked:
            opened = timeline.open()
        assert (opened.slot, opened.checkpoint) == (view.slot, view.checkpoint)
        costs[commits] = asked["all"]
        assert asked["all"] <= 3 + TAIL_SLOTS_MAX + TAIL_SLOTS_MAX + 1 + 2 * commits.bit_length() + 4
    assert costs[4000] - costs[100] <= 2 * 6 + TAIL_SLOTS_MAX


def test_opening_a_long_log_costs_what_a_short_one_costs() -> None:
    costs = {}
    for commits in (100, 1000, 4000):
        fileio, timeline, _ = grown(f"long-{commits}", commits)
        with counted(fileio) as asked:
            timeline.open()
        costs[commits] = asked["all"]
    assert max(costs.values()) <= 35


def test_looking_back_costs_a_root_or_two_and_a_tail_and_times_a_logarithm() -> None:
    fileio, timeline, view = grown("back", 1000)
    times = [entry.committed_at_ms for entry in timeline.log.read_after(-1)]
    for slot in range(0, 1000, 37):
        with counted(fileio) as asked:
            timeline.at(slot)
        assert asked["all"] <= 3 + 2 * TAIL_SLOTS_MAX
        with counted(fileio) as later:
            timeline.at_time(times[slot], view)
        assert later["all"] <= asked["all"] + 11
    collect_checkpoints(timeline, Committer(fileio), keep=3)
    with counted(fileio) as asked:
        timeline.at(990)
    assert asked["all"] <= 3 + 2 * TAIL_SLOTS_MAX


class _Later(FakeEnv):
    """While `beside` is a list, work in the background waits there until the test does it."""

    beside: list[Callable[[], Any]] | None = None

    def submit_io(self, function: Callable[[], Any]) -> Future[Any]:
        if self.beside is None:
            return super().submit_io(function)
        self.beside.append(function)
        return Future()


def test_a_warm_commit_is_one_conditional_write_and_checkpoints_come_beside_it() -> None:
    """The log's own part: the slot. What takes long, and whatever is planned by one process and executed by another, has an intent too."""
    env = _Later(3)
    fileio = FileIO(MemoryBackend("commits"), env=env)
    timeline = open_toy(fileio)
    view = grow(timeline, 40, publish=False)
    view = timeline.publish(view)
    published: list[LogView[Toy]] = []
    for _ in range(64):
        jobs: list[Callable[[], Any]] = []
        env.beside = jobs
        with counted(fileio) as asked:
            view = timeline.advance(view, [commit(fileio, view.log)])
            timeline.after_commit(view, published.append)
        assert asked == {"put_create": 1, "all": 1}
        env.beside = None
        for job in jobs:
            with counted(fileio) as spent:
                job()
            # A shard of the toy and the root, or with it a segment of outcomes; then the hint.
            assert sum(spent.get(kind, 0) for kind in CONDITIONAL) <= 5
            assert spent.get("get", 0) <= 6
        view = timeline.adopt_checkpoint(view, published[-1]) if published else view
    assert [one.checkpoint for one in published] == [64, 96]


def test_an_outcome_in_a_long_log_costs_a_look_at_the_head_and_a_bisection() -> None:
    fileio, timeline, view = grown("outcomes", 3000)
    txns = [entry.txn for entry in timeline.log.read_after(-1, window=32)]
    assert len(view.outcomes.segments) <= 24
    for slot in (0, 1, 500, 1500, 2900, 2999):
        before = fileio.metrics.snapshot()
        resolve(fileio, txns[slot], view=view)
        spent: Mapping[str, int] = (fileio.metrics.snapshot() - before).requests
        assert spent["get"] <= 6
        assert set(spent) <= {"get", "delete"}


def test_publishing_costs_the_same_whatever_the_length_of_the_log() -> None:
    fileio, timeline, view = grown("publishing", 0)
    most = 0
    kept = [view]

    def keep(standing: LogView[Toy]) -> None:
        kept[0] = timeline.adopt_checkpoint(kept[0], standing)

    for _ in range(2000):
        kept[0] = timeline.advance(kept[0], [commit(fileio, kept[0].log)])
        with counted(fileio) as asked:
            timeline.after_commit(kept[0], keep)
        most = max(most, asked["all"])
    assert kept[0].checkpoint > 1950
    assert most <= 24
