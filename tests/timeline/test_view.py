"""Opening a log, looking at it as of an earlier slot or time, with checkpoints, without, and with wrong advice."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CorruptTable, InvalidInput, UnsupportedFormat
from objcat.timeline.checkpoint import HINT_KEY, Hint, encode_root, read_hint, read_root, root_key, void_root
from objcat.timeline.entry import Action, Footprint, log_key
from objcat.timeline.log_state import LogState
from tests.timeline.toy import TABLE, assert_same, bare_hint, commit, grow, open_toy, rows_at, rows_of


def store(name: str) -> FileIO:
    return FileIO(MemoryBackend(name), env=FakeEnv(7))


@pytest.mark.parametrize("commits", [0, 1, 15, 16, 17, 31, 32, 33, 34, 64, 65, 100])
def test_what_is_opened_from_a_checkpoint_is_what_the_whole_log_says(commits: int) -> None:
    fileio = store(f"equal-{commits}")
    timeline = open_toy(fileio)
    view = grow(timeline, commits)
    opened = timeline.open()
    assert rows_of(fileio, opened.state) == rows_at(commits - 1)
    assert opened.log == LogState().advance(timeline.log.read_after(-1))
    assert_same(timeline, [view, opened, timeline.refresh(opened), pickle.loads(pickle.dumps(opened))])
    assert opened.outcomes.recent[-1:] == view.outcomes.recent[-1:]
    assert opened.slot - opened.checkpoint <= 32


@pytest.mark.parametrize("published", [True, False])
def test_every_earlier_slot_and_time_can_be_looked_at(published: bool) -> None:
    fileio = store(f"at-{published}")
    timeline = open_toy(fileio)
    view = grow(timeline, 80, publish=published)
    assert (view.checkpoint >= 48) is published
    times = [entry.committed_at_ms for entry in timeline.log.read_after(-1)]
    for slot in range(80):
        seen = timeline.at(slot)
        assert (seen.slot, seen.log.committed_at_ms) == (slot, times[slot])
        assert rows_of(fileio, seen.state) == rows_at(slot)
        assert timeline.at_time(times[slot]).slot == slot
    assert timeline.at_time(times[-1] + 10**9).slot == 79
    for slot in (-1, 80, 1000):
        with pytest.raises(InvalidInput, match="has no slot"):
            timeline.at(slot)
    with pytest.raises(InvalidInput, match="no commit at or before"):
        timeline.at_time(times[0] - 1)
    with pytest.raises(InvalidInput, match="no commit at or before"):
        open_toy(store("at-nothing")).at_time(5)


def test_marks_outcomes_and_features_survive_in_a_root() -> None:
    fileio = store("marks")
    timeline = open_toy(fileio)
    view = grow(timeline, 3)
    apps = {TABLE: {"stream": 4}}
    extra: list[dict[str, Any]] = [
        {"apps": apps},
        {"action": Action.CLEAN, "footprint": {TABLE: Footprint(bound=2)}},
        {"action": Action.SAVEPOINT, "footprint": {TABLE: Footprint(saves=3)}},
        {"action": Action.CLOSE, "footprint": {"u": Footprint()}},
    ]
    for fields in extra:
        view = timeline.advance(view, [commit(fileio, view.log, **fields)])
    view = grow(timeline, 40, view=view)
    opened = timeline.open()
    assert opened.checkpoint > 0
    assert opened.log == view.log == LogState().advance(timeline.log.read_after(-1))
    assert opened.log.marks(TABLE).saved == {3}
    assert opened.log.marks(TABLE).apps["stream"].version == 4
    assert opened.log.marks("u").closed_at == 6


def test_a_restore_brings_back_a_state_that_stands_on_an_older_root() -> None:
    fileio = store("restore")
    timeline = open_toy(fileio)
    view = grow(timeline, 70)
    entry = commit(fileio, view.log, action=Action.RESTORE, changes={}, footprint={TABLE: Footprint(restores=40)})
    view = timeline.advance(view, [entry])
    assert rows_of(fileio, view.state) == rows_at(40)
    assert_same(timeline, [view, timeline.open()])
    view = grow(timeline, 40, view=view)
    assert view.checkpoint > 71
    assert_same(timeline, [view, timeline.open()])


# ---- advice


WRONG = {
    "missing": None,
    "stale": Hint(slot=33, checkpoint=16),
    "garbage": b"\xff\x00",
    "no hint": b"[]",
    "nonsense": Hint(slot=1, checkpoint=48),
    "negative": Hint(slot=-5, checkpoint=-16),
    "far ahead": Hint(slot=10**15, checkpoint=10**15 - 10**15 % 16),
    "slot ahead": Hint(slot=10**15, checkpoint=112),
    "no root there": Hint(slot=100, checkpoint=96),
    "nothing there at all": Hint(slot=500, checkpoint=496),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_advice_changes_nothing_but_the_price(wrong: str) -> None:
    fileio = store(f"hint-{wrong}")
    timeline = open_toy(fileio)
    view = grow(timeline, 125)
    hint = WRONG[wrong]
    fileio.delete([HINT_KEY])
    if hint is not None:
        fileio.put(HINT_KEY, hint if isinstance(hint, bytes) else msgspec.json.encode(hint), Overwrite())
    assert_same(timeline, [view, timeline.open()])
    assert timeline.open().checkpoint == view.checkpoint == 112
    # The next checkpoint mends it.
    view = grow(timeline, 32, view=view)
    mended, _ = read_hint(fileio)
    assert mended is not None and mended.checkpoint == view.checkpoint


def test_a_hint_never_goes_back() -> None:
    fileio = store("forward")
    timeline, slow = open_toy(fileio), open_toy(fileio)
    old = grow(timeline, 33, publish=False)
    grow(timeline, 60, view=old)
    before, _ = read_hint(fileio)
    slow.publish(old)
    assert read_hint(fileio)[0] == before
    assert read_root(fileio, 32) is not None


def test_a_hint_to_a_void_root_is_passed_over() -> None:
    fileio = store("void")
    timeline = open_toy(fileio)
    view = grow(timeline, 100)
    assert view.checkpoint == 80
    bare_hint(fileio)
    fileio.put(root_key(80), encode_root(void_root(80, older=48)), Overwrite())
    opened = timeline.open()
    assert opened.checkpoint == 48
    assert_same(timeline, [view, opened, timeline.at(99)])
    for slot in (16, 32, 48, 64, 80, 96):
        fileio.put(root_key(slot), encode_root(void_root(slot, older=-1)), Overwrite())
    assert timeline.open().checkpoint == -1
    assert_same(timeline, [timeline.open(), timeline.at(99)])


def test_a_root_of_a_newer_client_is_refused_with_the_version_that_it_needs() -> None:
    fileio = store("newer")
    timeline = open_toy(fileio)
    grow(timeline, 40)
    bare_hint(fileio)
    fileio.put(root_key(16), b'{"format": 99, "min_client": "7.1", "slot": 16}', Overwrite())
    with pytest.raises(UnsupportedFormat, match=r"objcat 7\.1"):
        timeline.open()
    fileio.put(root_key(16), b'{"format": 1, "features": {"quantum": "9.0"}, "slot": 16}', Overwrite())
    with pytest.raises(UnsupportedFormat, match=r"'quantum'.*objcat 9\.0"):
        timeline.open()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"garbage", b'{"format": 1, "slot": 16}', b'{"format": 1, "slot": 17, "older": 0, "void": true}']
)
def test_a_damaged_root_is_named_and_passed_over(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    fileio = store("damaged")
    timeline = open_toy(fileio)
    grow(timeline, 40)
    bare_hint(fileio)
    fileio.put(root_key(16), data, Overwrite())
    with caplog.at_level("WARNING", logger="objcat.timeline"):
        opened = open_toy(fileio).open()
    assert (opened.slot, opened.checkpoint) == (39, -1)
    assert rows_of(fileio, opened.state) == rows_at(39)
    (said,) = [record.message for record in caplog.records]
    assert root_key(16) in said and "passed over" in said


def test_a_root_ahead_of_the_log_is_corruption() -> None:
    fileio = store("ahead")
    timeline = open_toy(fileio)
    view = grow(timeline, 48)
    assert view.checkpoint == 16
    view = grow(timeline, 1, view=view)
    assert view.checkpoint == 48
    fileio.delete([log_key(48)])
    with pytest.raises(CorruptTable, match="one backup"):
        timeline.open()
    grow(timeline, 1, publish=False, view=timeline.at(47))
    with pytest.raises(CorruptTable, match="one backup"):
        timeline.open()
