"""All operations in any order beside a dict, by the local engine."""

from __future__ import annotations

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from tests.effort import effort, few
from tests.tables.machine import BUCKETS, LOCATED, ReplacingMachine, TableMachine

SEARCHES = 3
"""By default. Several short ones find more than a long one, which stays near to what it has tried."""


def new_lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("machine"), env=FakeEnv(3)))


class LocalReplacingMachine(ReplacingMachine):
    indexes = (*BUCKETS, *LOCATED, objcat.RecordIndex(2))

    def __init__(self) -> None:
        super().__init__()
        self.lake = new_lake()


def search_replacements(number: int, *, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> None:
    """One search, the same for a number whoever runs it: `tests/mutations/test_machine.py` says what the first ones find."""
    search = settings(max_examples=20, stateful_step_count=10, deadline=None, database=None, phases=phases)
    run_state_machine_as_test(seed(number)(LocalReplacingMachine), settings=search)


@pytest.mark.parametrize("number", few(range(10), SEARCHES))
def test_what_is_replaced_is_what_was_named(number: int) -> None:
    search_replacements(number)


class LocalMachine(TableMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lake = new_lake()


class LocatedMachine(LocalMachine):
    indexes = (*LOCATED, objcat.MemoryIndex(), objcat.RecordIndex(2))


class MovingMachine(LocatedMachine):
    moving = True


class WholeMachine(LocalMachine):
    indexes = (*BUCKETS, *LOCATED)
    whole = True


TestLocalMachine = LocalMachine.TestCase
TestLocalMachine.settings = settings(max_examples=effort(8, with_all=20), stateful_step_count=10, deadline=None)

TestLocatedMachine = LocatedMachine.TestCase
TestLocatedMachine.settings = settings(max_examples=effort(8, with_all=25), stateful_step_count=10, deadline=None)

TestMovingMachine = MovingMachine.TestCase
TestMovingMachine.settings = settings(max_examples=effort(8, with_all=25), stateful_step_count=10, deadline=None)

TestWholeMachine = WholeMachine.TestCase
TestWholeMachine.settings = settings(max_examples=effort(10, with_all=25), stateful_step_count=10, deadline=None)
