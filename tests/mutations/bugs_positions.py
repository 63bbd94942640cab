"""Bugs of positions of sources, each a plausible mistake of whoever changes them next."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from objcat.timeline.entry import Entry
from tests.mutations.bugs import bug

committing: Any = import_module("objcat.timeline.commit")
sweeping: Any = import_module("objcat.timeline.dead_writers")
cleaning: Any = import_module("objcat.maintenance.clean")


@bug("a position compared with the base only", "P5", "source, source")
def _position_at_the_base(patch: pytest.MonkeyPatch) -> None:
    """`objcat.write.transaction` still compares it before the data is written."""
    patch.setattr(committing, "check_position", lambda own, known: None)


@bug("a position that counts on from whatever the log has", "P5", "source, source")
def _position_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """The second reader writes what the first one wrote, as the next version."""
    plant_position_of_the_log(patch)


def plant_position_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """Let whoever was beaten commit as if it had begun from the newest position."""
    entry_of = committing._entry_of

    def renumbered(candidate: Any, state: Any, *rest: Any, **named: Any) -> Any:
        position = candidate.position
        if position is not None:
            known = state.sources.get(position.asked.source)
            change = committing.msgspec.structs.replace(position.change, version=-1 if known is None else known.version)
            change = committing.msgspec.structs.replace(change, version=change.version + 1)
            candidate = committing.replace(candidate, position=committing.replace(position, change=change))
        return entry_of(candidate, state, *rest, **named)

    patch.setattr(committing, "check_position", lambda own, known: None)
    patch.setattr(committing, "_entry_of", renumbered)


@bug("the state of a position taken for garbage", "P8", "source, sweep, large states")
def _state_is_garbage(patch: pytest.MonkeyPatch) -> None:
    def without_states(entry: Entry) -> Any:
        return () if entry.side is None else (entry.side,)

    patch.setattr(sweeping, "sides_of", without_states)


@bug("a clean that takes the newest state of a position", "P8", "source, clean, large states: 1 fault")
def _newest_state_is_cleaned(patch: pytest.MonkeyPatch) -> None:
    def every_state(timeline: Any, view: Any, *_: Any) -> frozenset[str]:
        return frozenset(progress.side.path for progress in view.log.sources.values() if progress.side is not None)

    patch.setattr(cleaning, "superseded_states", every_state)
