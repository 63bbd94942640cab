"""Bugs of refreshes of derived tables, each a plausible mistake of whoever changes them next."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from objcat.derived.state import RefreshState
from objcat.errors import ObjcatError, PositionConflict, WriterFenced
from tests.mutations.bugs import bug
from tests.mutations.bugs_positions import plant_position_of_the_log

refreshing: Any = import_module("objcat.derived.refresh")
reading: Any = import_module("objcat.derived.source_rows")


def _moved(state: RefreshState, slots: Any) -> RefreshState:
    """A state with other slots. slots: by name of a source."""
    sources = {name: msgspec.structs.replace(source, slot=slots(name, source)) for name, source in state.sources.items()}
    return msgspec.structs.replace(state, sources=sources)


@bug("a refresh that does not write the slots of its sources", "P5", "refresh, refresh")
def _slots_are_not_written(patch: pytest.MonkeyPatch) -> None:
    new_position = refreshing.new_position

    def same_slots(table: Any, state: RefreshState, stored: Any) -> Any:
        return new_position(table, state if stored is None else msgspec.convert(dict(stored.state), RefreshState), stored)

    patch.setattr(refreshing, "new_position", same_slots)


@bug("a refresh that names slots which came while it computed", "P5", "refresh, write")
def _slots_that_a_conflict_overtook(patch: pytest.MonkeyPatch) -> None:
    new_position = refreshing.new_position

    def newest_slots(table: Any, state: RefreshState, stored: Any) -> Any:
        newest = table.refresh().slot
        return new_position(table, _moved(state, lambda *_: newest), stored)

    patch.setattr(refreshing, "new_position", newest_slots)


@bug("a refresh that reads newer rows than the slots that it names", "P5", "refresh, write")
def _rows_are_the_newest(patch: pytest.MonkeyPatch) -> None:
    changes = reading.SourceRows.changes

    def until_the_newest(self: Any) -> Any:
        self.after = self.source.table.refresh().slot
        return changes(self)

    patch.setattr(reading.SourceRows, "changes", until_the_newest)


@bug("a refresh that goes on from the slot of the last refresh, not from those that it shows", "P3", "refresh twice, write")
def _changes_since_the_commit(patch: pytest.MonkeyPatch) -> None:
    read_state = refreshing.read_state

    def since_the_commit(table: Any) -> Any:
        known = read_state(table)
        if known is None:
            return None
        stored, state = known
        return stored, _moved(state, lambda *_: stored.slot)

    patch.setattr(refreshing, "read_state", since_the_commit)


@bug("a refresh that adds to the rows of its first look at the table", "P5", "refresh twice, write")
def _rows_of_the_first_look(patch: pytest.MonkeyPatch) -> None:
    known = refreshing.DerivedRows

    def of_the_first_look(table: Any, scans: Any, slot: int, *rest: Any) -> Any:
        slot = table._context.__dict__.setdefault("first_look", slot)
        return known(table, scans, slot, *rest)

    patch.setattr(refreshing, "DerivedRows", of_the_first_look)


@bug("a refresh that commits what it computed after another was faster", "P5", "refresh, refresh, write")
def _beaten_and_committed(patch: pytest.MonkeyPatch) -> None:
    plant_position_of_the_log(patch)


def _claimed(patch: pytest.MonkeyPatch, error: type[ObjcatError]) -> None:
    """Let a refresh that fails so say that its rows are there."""
    commit = refreshing._commit

    def claim(table: Any, *rest: Any) -> Any:
        try:
            return commit(table, *rest)
        except error:
            return SimpleNamespace(slot=table.refresh().slot)

    patch.setattr(refreshing, "_commit", claim)


@bug("a refresh that another one was faster than, and that says it is done", "P3", "refresh, refresh, write")
def _beaten_and_done(patch: pytest.MonkeyPatch) -> None:
    _claimed(patch, PositionConflict)


@bug("a refresh that was rolled back, and that says it is done", "P3", "refresh, rollback, write: 1 crash at the log")
def _rolled_back_and_done(patch: pytest.MonkeyPatch) -> None:
    _claimed(patch, WriterFenced)
