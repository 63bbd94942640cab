"""All operations in any order beside a dict, by the local engine."""

from __future__ import annotations

from hypothesis import settings

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from tests.effort import effort
from tests.tables.machine import LOCATED, TableMachine


class LocalMachine(TableMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lake = objcat.Lake(FileIO(MemoryBackend("machine"), env=FakeEnv(3)))


class LocatedMachine(LocalMachine):
    indexes = (*LOCATED, objcat.Memory(), objcat.Record(2))


class MovingMachine(LocatedMachine):
    moving = True


TestLocalMachine = LocalMachine.TestCase
TestLocalMachine.settings = settings(max_examples=effort(8, with_all=20), stateful_step_count=10, deadline=None)

TestLocatedMachine = LocatedMachine.TestCase
TestLocatedMachine.settings = settings(max_examples=effort(8, with_all=25), stateful_step_count=10, deadline=None)

TestMovingMachine = MovingMachine.TestCase
TestMovingMachine.settings = settings(max_examples=effort(8, with_all=25), stateful_step_count=10, deadline=None)
