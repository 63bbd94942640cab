"""The lists are complete: every bug and every attack is planted, or has a plain test of its own, and those exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
import tests.mutations.bugs_services
import tests.mutations.bugs_tables  # noqa: F401 - registers its bugs
from fileio.contract import Create, PreconditionFailed
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.engine.local import LocalEngine
from objcat.tasks.model import Operation, WriteTask
from objcat.timeline.entry import new_txn
from tests.mutations.attacks import ATTACKS, NAMED_BUGS
from tests.mutations.bugs import BUGS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("attack", [*NAMED_BUGS, *ATTACKS])
def test_every_attack_is_found_by_something_that_exists(attack: str) -> None:
    planted = {bug.name for bug in BUGS}
    found_by = NAMED_BUGS.get(attack, ()) + ATTACKS.get(attack, ())
    assert found_by
    for name in found_by:
        path, _, function = name.partition("::")
        if function:
            assert function in functions_of(ROOT / path), f"{attack}: there is no test {name}"
        else:
            assert name in planted, f"{attack}: nobody plants {name!r}"


def test_the_lists_are_as_long_as_they_were_drawn_up() -> None:
    assert (len(NAMED_BUGS), len(ATTACKS)) == (21, 33)


def functions_of(path: Path) -> set[str]:
    """The names of all functions of a file of tests."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_a_zombie_task_attempt_cannot_overwrite_a_committed_file() -> None:
    """A task that runs twice, the second time after the commit, writes files of other names; and a name is never written twice."""
    fileio = FileIO(MemoryBackend("zombie"))
    table = objcat.create_table_at(fileio, pa.schema([pa.field("k", pa.int64(), nullable=False)]), key=["k"])
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int64())})
    for operation in (Operation.UPSERT, Operation.INSERT):
        task = WriteTask(table.spec, new_txn(fileio.env), operation)
        first, zombie = LocalEngine(fileio).write(rows, task), LocalEngine(fileio).write(rows, task)
        paths = [{*(base.path for base in result.bases), *(log.path for log in result.logs)} for result in (first, zombie)]
        assert paths[0] and paths[0].isdisjoint(paths[1])
        for path in paths[0]:
            assert isinstance(fileio.put(path, b"zombie", Create()), PreconditionFailed)
