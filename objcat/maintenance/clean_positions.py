"""Which stored states of positions a clean may delete: those that a newer version took the place of, below its bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise

from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Entry, SideObject
from objcat.timeline.log_view import LogView, Timeline


def superseded_states(
    timeline: Timeline[Tables], view: LogView[Tables], bound: int, unpinned: Collection[int], entries: Callable[[int], Sequence[Entry]]
) -> frozenset[str]:
    """The objects with states that no slot from the bound on has, nor a saved one.

    Positions are the log's, so the clean of any table removes them. What the greatest bound of all tables had passed before was removed
    then. The newest state of a source is never among them.

    Args:
        bound: of the clean.
        unpinned: slots whose savepoints were released, and which no clean has seen since.
        entries: those above a slot, up to the bound.
    """
    sources = view.log.sources
    if not sources:
        return frozenset()
    passed = max((marks.bound for marks in view.log.tables.values()), default=0)
    saved = sorted({slot for marks in view.log.tables.values() for slot in marks.saved})
    found: set[str] = set()
    if bound > passed:
        found |= set(_passed(timeline, passed, entries(passed), saved))
    for slot in unpinned:
        found |= set(_states_at(timeline, slot))
    if unpinned and found:
        found -= {path for slot in {bound, *saved} for path in _states_at(timeline, slot)}
    return frozenset(found - {progress.side.path for progress in sources.values() if progress.side is not None})


def _passed(timeline: Timeline[Tables], first: int, entries: Sequence[Entry], saved: Sequence[int]) -> Iterator[str]:
    """The states that were in force at or above a slot, and that a later version took the place of in the entries above it."""
    committed: dict[str, list[tuple[int, SideObject | None]]] = {}
    for entry in entries:
        for source, change in entry.positions.items():
            committed.setdefault(source, []).append((entry.slot, change.side))
    if not committed:
        return
    before = timeline.at(first).log.sources
    for source, versions in committed.items():
        if source in before:
            versions.insert(0, (before[source].slot, before[source].side))
        for (began, side), (ended, _) in pairwise(versions):
            if side is not None and not any(began <= slot < ended for slot in saved):
                yield side.path


def _states_at(timeline: Timeline[Tables], slot: int) -> Iterator[str]:
    """The objects with states as of a slot."""
    for progress in timeline.at(slot).log.sources.values():
        if progress.side is not None:
            yield progress.side.path
