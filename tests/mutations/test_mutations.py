"""Each planted bug is found by a cell of the explorer, as a breach of the property that it must break."""

from __future__ import annotations

import pytest

import tests.mutations.bugs_blocks
import tests.mutations.bugs_derived
import tests.mutations.bugs_groups
import tests.mutations.bugs_mirrors
import tests.mutations.bugs_ordering
import tests.mutations.bugs_positions
import tests.mutations.bugs_process
import tests.mutations.bugs_services
import tests.mutations.bugs_tables
from objcat.metadata import consistency, replay
from objcat.timeline import entry, log_view
from tests.explorer.cells import cell_named
from tests.explorer.run import Explorer, beginning, world_of
from tests.explorer.story import tell
from tests.mutations.bugs import BUGS, Bug
from tests.mutations.conftest import found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell_named(name) for name in bug.cells]
    for cell in cells:
        with world_of(cell):
            beginning(cell.profile, cell.prelude, cell.settings)  # made by the code as it should be
    bug.plant(monkeypatch)
    # Nobody writes or reads an entry that contradicts itself. That is the first line of defence; here the second one is asked for.
    for module in (consistency, replay):
        monkeypatch.setattr(module, "check_delta", lambda *_: None)
    monkeypatch.setattr(entry, "check_entry", lambda *_, **__: None)
    explorer = Explorer()
    for cell in cells:
        example = explorer.explore(cell).counterexample
        if example is not None:
            break
    else:
        pytest.fail(f"nobody notices: {bug.name}")
    found.append(f"{bug.name}: {example.broken.split(':')[0]} in {len(example.steps)} steps of {cell.name!r}")
    assert example.broken.startswith(bug.broken + ":"), f"{bug.name} breaks something else:\n{tell(example)}"


def test_a_hint_that_is_ahead_of_its_log_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that nobody compares with the log is: a part of what `bugs_tables` plants."""
    monkeypatch.setattr(log_view, "hint_of", tests.mutations.bugs_tables.hint_ahead)
    example = Explorer().explore(cell_named("checkpoint, write and read")).counterexample
    assert example is None, tell(example)


def test_there_are_enough_bugs_and_each_has_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
