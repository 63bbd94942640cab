"""Which later entries a candidate cannot share the log with: pure functions of footprints, as one table of rules.

This version holds the operations that exist: blind appends and first base files. Each operation that comes adds its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from objcat.timeline.entry import Action, Entry, Footprint, Home


@dataclass(frozen=True, slots=True)
class Overlap:
    """Why a candidate conflicts: the rule in words, and the homes that both touched."""

    rule: str
    homes: tuple[Home, ...]


def _both_created(candidate: Footprint, later: Footprint) -> Iterable[Home]:
    """Both made a home live, and at least one of them by a base file: a home has at most one live file group."""
    yield from _common(candidate.creates, later.creates)
    yield from _common(candidate.creates, later.appends)


RULES: Mapping[str, Callable[[Footprint, Footprint], Iterable[Home]]] = {
    "both wrote the first rows of a home, one of them as a base file": _both_created,
}


def find_conflict(action: Action, candidate: Mapping[str, Footprint], entry: Entry) -> Overlap | None:
    """The first rule that an entry committed after the candidate's base breaks; None when both may stand."""
    if action is Action.CREATE:
        return Overlap("a table was created here first", ())
    for table, footprint in candidate.items():
        if entry.action is Action.CLOSE and table in entry.changes:
            return Overlap("the table was dropped", ())
        later = entry.footprint.get(table)
        if later is None:
            continue
        for rule, homes_of in RULES.items():
            homes = tuple(dict.fromkeys(homes_of(footprint, later)))
            if homes:
                return Overlap(rule, homes)
    return None


def _common(mine: Iterable[Home], theirs: Iterable[Home]) -> Iterable[Home]:
    listed = list(theirs)
    return (home for home in mine if any(home.is_common(other) for other in listed))
