"""What mirrors do: they follow the log, begin again as after an erasure, and delete what no slot needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from objcat.maintenance.clean import clean
from objcat.metadata.manifest import Manifests
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import TableMirrors
from objcat.timeline.log_view import LogView, Timeline
from tests.explorer.actors import Participant
from tests.explorer.roles import TABLE_NAME, open_warm, warm_view


def open_mirrors(me: Participant) -> tuple[Timeline[Tables], TableMirrors, LogView[Tables]]:
    """The log of the table, its mirrors, of which nothing is known yet, and the newest view."""
    timeline, table = open_warm(me)
    return timeline, TableMirrors(timeline, table, TABLE_NAME, Manifests(me.fileio)), timeline.refresh(warm_view(me))


@dataclass(frozen=True, slots=True)
class Mirror:
    """Mirrors every slot that is not mirrored yet. rounds: so often, by one process that remembers what it has done."""

    rounds: int = 1

    def __call__(self, me: Participant) -> None:
        timeline, mirrors, view = open_mirrors(me)
        for number in range(self.rounds):
            view = timeline.refresh(view) if number else view
            mirrors.catch_up(view)


@dataclass(frozen=True, slots=True)
class StartOver:
    """Expires all slots but the newest, makes the mirrors again and forgets what was before, as an erasure does."""

    def __call__(self, me: Participant) -> None:
        timeline, mirrors, view = open_mirrors(me)
        clean(timeline, *view.state, keep_slots=1, view=view, waits_for_mirrors=False)
        mirrors.start_over(timeline.refresh(view))
