"""Steps of several iterators beside one another, and items within bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fileio.env import SystemEnv
from objcat.tasks.parallel import interleave, run_all

WAIT_S = 30


@pytest.fixture
def env() -> SystemEnv:
    return SystemEnv(parallelism=4)


@pytest.mark.parametrize("at_once", [1, 2, 3, 10])
def test_everything_comes_by_turns_in_an_order_of_its_own(env: SystemEnv, at_once: int) -> None:
    lengths = [3, 0, 5, 1, 2]
    runs = [
        list(interleave(env, (iter([(i, n) for n in range(length)]) for i, length in enumerate(lengths)), at_once=at_once)) for _ in "ab"
    ]
    assert runs[0] == runs[1]
    assert sorted(runs[0]) == [(i, n) for i, length in enumerate(lengths) for n in range(length)]
    for i, length in enumerate(lengths):
        assert [n for one, n in runs[0] if one == i] == list(range(length))


def test_no_more_is_taken_ahead_than_one_step_of_each(env: SystemEnv) -> None:
    taken = [0] * 20
    steps = interleave(env, (count(taken, i) for i in range(20)), at_once=3)
    for _ in range(6):
        next(steps)
    steps.close()
    assert taken[:3] <= [3, 3, 3], taken
    assert sum(taken[3:]) == 0


def count(taken: list[int], number: int) -> Iterator[int]:
    while True:
        taken[number] += 1
        yield number


def test_iterators_work_at_the_same_time(env: SystemEnv) -> None:
    together = threading.Barrier(3)

    def meet(name: str) -> Iterator[str]:
        together.wait(WAIT_S)
        yield name

    assert list(interleave(env, (meet(name) for name in "abc"), at_once=3)) == ["a", "b", "c"]


def test_a_failure_comes_after_the_steps_under_way(env: SystemEnv) -> None:
    ended, failed = [], threading.Event()

    def fails() -> Iterator[int]:
        failed.set()
        raise ValueError("broken")
        yield 0

    def slow() -> Iterator[int]:
        assert failed.wait(WAIT_S)
        ended.append("slow")
        yield 1

    with pytest.raises(ValueError, match="broken"):
        list(interleave(env, iter([fails(), slow()]), at_once=2))
    assert ended in (["slow"], []), "it ended, or never began"
    before = list(ended)
    env.submit(lambda: None).result()
    assert ended == before


@pytest.mark.parametrize("at_once", [None, 1, 2, 8])
def test_items_within_bounds_keep_their_order_and_fail_together(env: SystemEnv, at_once: int | None) -> None:
    assert run_all(env, lambda n: n * n, range(20), at_once=at_once) == [n * n for n in range(20)]
    done: list[int] = []

    def work(number: int) -> None:
        if number == 3:
            raise ValueError("three")
        done.append(number)

    with pytest.raises(ValueError, match="three"):
        run_all(env, work, range(10), at_once=at_once)
    assert sorted(done) == [n for n in range(10) if n != 3]


def test_no_more_items_are_under_way_than_allowed(env: SystemEnv) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return number

    assert run_all(env, work, range(200), at_once=2) == list(range(200))
    assert most <= 2
