"""Bugs of what a process knows of a log, planted as in `bugs.py`."""

from __future__ import annotations

from typing import Any

import pytest

import objcat.timeline.commit
import objcat.timeline.process_log
from fileio.contract import PutOutcome
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Entry
from objcat.timeline.log_state import LogState
from objcat.timeline.process_log import BaseCheck, KnownEntries, ProcessLog
from tests.mutations.bugs import bug


@bug("what the process knows is not judged", "P9", "two handles of inserts, insert: 1 fault")
def _not_judged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.process_log, "only_adds", lambda _: True)
    patch.setattr(objcat.timeline.process_log, "only_appends", lambda _: True)


@bug(
    "what the process wants to commit is known before it is committed, and nobody looks at the newest slot",
    "P1",
    "two handles: 2 faults, 1 crash",
)
def _known_too_early(patch: pytest.MonkeyPatch) -> None:
    put, entry_of = Committer._put, objcat.timeline.commit._entry_of
    states: list[LogState] = []

    def entry_above(candidate: Any, state: LogState, *rest: Any, **named: Any) -> Entry:
        states.append(state)
        return entry_of(candidate, state, *rest, **named)

    def wrong(self: Committer, entry: Entry) -> PutOutcome:
        self._shared.extend(states[-1], [entry])
        return put(self, entry)

    def unchecked(self: BaseCheck, base: LogState) -> None:
        self.generation = self._shared.newest(base)[2]

    patch.setattr(objcat.timeline.commit, "_entry_of", entry_above)
    patch.setattr(Committer, "_put", wrong)
    patch.setattr(BaseCheck, "run", unchecked)


@bug("a known entry above the base is left out of what was read", "P9", "two handles that count, write: 1 fault at the log")
def _left_out(patch: pytest.MonkeyPatch) -> None:
    known_after = ProcessLog.known_after

    def wrong(*args: object) -> KnownEntries | None:
        known = known_after(*args)  # type: ignore[arg-type]
        return None if known is None else KnownEntries((), (), known.state)

    patch.setattr(ProcessLog, "known_after", wrong)
