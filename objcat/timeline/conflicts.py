"""Which later entries a candidate cannot share the log with: pure functions of footprints, as one table of rules.

This version holds the operations that exist: blind appends and first base files. Each operation that comes adds its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from objcat.timeline.entry import Action, Digests, Entry, Footprint, Home


@dataclass(frozen=True, slots=True)
class Overlap:
    """Why a candidate conflicts: the rule in words, the homes that both touched, the table.

    homes: empty when it is no question of homes; then only a new plan helps.
    """

    rule: str
    homes: tuple[Home, ...]
    table: str = ""


def _both_created(candidate: Footprint, later: Footprint) -> Iterable[Home]:
    """Both made a home live, and at least one of them by a base file: a home has at most one live file group."""
    yield from _common(candidate.creates, later.creates)
    yield from _common(candidate.creates, later.appends)


RULES: Mapping[str, Callable[[Footprint, Footprint], Iterable[Home]]] = {
    "both wrote the first rows of a home, one of them as a base file": _both_created,
}


def find_conflicts(
    action: Action, candidate: Mapping[str, Footprint], entry: Entry, digests_of: Callable[[Digests], frozenset[int] | None]
) -> Sequence[Overlap]:
    """Every rule that an entry committed after the candidate's base breaks; none when both may stand.

    digests_of: reads a set of digests, asked only when two such sets really race; None: the object that held them is gone.
    """
    found = []
    for table, footprint in candidate.items():
        later = entry.footprint.get(table)
        if later is None:
            continue
        if entry.action is Action.CLOSE:
            found.append(Overlap("the table was dropped", (), table))
        for rule, homes_of in RULES.items():
            homes = tuple(dict.fromkeys(homes_of(footprint, later)))
            if homes:
                found.append(Overlap(rule, homes, table))
    return found


def _common(mine: Iterable[Home], theirs: Iterable[Home]) -> Iterable[Home]:
    listed = list(theirs)
    return (home for home in mine if any(home.is_common(other) for other in listed))
