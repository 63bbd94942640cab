"""What the one source of time and threads promises: calls that come again and again, and what they cost when they are stopped in time."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from fileio.env import SystemEnv, default_env
from tests.fileio.test_fork import in_child


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_what_repeats_is_called_until_it_is_stopped() -> None:
    called = threading.Semaphore(0)
    stop = default_env().repeat(called.release, 0.001)
    for _ in range(3):
        assert called.acquire(timeout=60)
    stop()


def test_the_first_call_may_come_earlier_or_later_than_the_others() -> None:
    order: list[str] = []
    done = threading.Event()

    def late() -> None:
        order.append("late")
        done.set()

    env = SystemEnv()
    stops = [
        env.repeat(late, 3600, first_s=0.05),
        env.repeat(lambda: order.append("early"), 3600, first_s=0),
        env.repeat(lambda: order.append("never"), 0.01, first_s=3600),
    ]
    assert done.wait(60)
    for stop in stops:
        stop()
    assert order == ["early", "late"]


def test_a_call_that_takes_long_does_not_hold_up_the_others() -> None:
    env = SystemEnv()
    begun, held, called = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert held.wait(60)

    stops = [env.repeat(hold, 3600, first_s=0), env.repeat(called.set, 3600, first_s=0.01)]
    assert begun.wait(60) and called.wait(60)
    held.set()
    for stop in stops:
        stop()


def test_what_is_stopped_before_its_first_call_has_no_thread_and_is_not_called() -> None:
    env = SystemEnv()
    called: list[int] = []
    in_time = []
    before = names_of_threads().count("objcat-repeat")
    for number in range(100):
        begun = time.monotonic()
        env.repeat(partial(called.append, number), 3600, first_s=0.1)()
        # This thread may be held up for longer than that.
        if time.monotonic() - begun < 0.1:
            in_time.append(number)
    after = threading.Event()
    stop = env.repeat(after.set, 3600, first_s=0.2)
    assert after.wait(60)
    stop()
    assert in_time and not set(called) & set(in_time)
    assert names_of_threads().count("objcat-alarm") == 1
    assert names_of_threads().count("objcat-repeat") <= before + 1


def test_a_forked_process_has_none_and_begins_its_own() -> None:
    env = SystemEnv()
    parents = env.repeat(lambda: None, 0.01, first_s=3600)

    def act() -> None:
        assert "objcat-alarm" not in names_of_threads()
        called = threading.Event()
        env.repeat(called.set, 3600, first_s=0)
        assert called.wait(60)

    assert in_child(act) == 0
    parents()


def test_what_nobody_waits_for_goes_on_when_something_urgent_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileio.env.GIVE_WAY_S_MAX", 60.0)
    env = SystemEnv()
    env.give_way()
    with env.urgent():  # goes on all the time, as where many threads write
        waiting = threading.Thread(target=env.give_way)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        for _ in range(10_000):
            with env.urgent():
                pass
            waiting.join(0.01)
            if not waiting.is_alive():
                break
        assert not waiting.is_alive()


def test_giving_way_ends_in_any_case() -> None:
    env = SystemEnv()
    with env.urgent():
        env.give_way()


def test_small_steps_are_not_as_many_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileio.env.GIVE_WAY_S_MAX", 3600.0)
    monkeypatch.setattr("fileio.env.STEP_S_MIN", 3600.0)
    env = SystemEnv()

    def two_steps() -> None:
        env.give_way()
        with env.urgent():
            env.give_way()  # the second has only just begun

    working = threading.Thread(target=two_steps, daemon=True)
    working.start()
    working.join(60)
    assert not working.is_alive()


def test_a_forked_process_gives_way_to_nothing_of_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileio.env.GIVE_WAY_S_MAX", 3600.0)
    env = SystemEnv()
    with env.urgent():
        assert in_child(env.give_way) == 0
