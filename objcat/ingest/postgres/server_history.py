"""Which server a position belongs to. A server that was restored, or that took over, may lack what was read from the one before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from objcat.ingest.postgres.visibility import lsn_number

_SWITCH = re.compile(rb"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HistoryName:
    """A server and its timeline: each end of a recovery, such as a promotion, begins another one.

    Args:
        system: the number that a cluster of databases and its standbys have in common.
        timeline: counts from 1.
    """

    system: str
    timeline: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text. Raises ValueError."""
        system, timeline = text.split("/")
        return cls(system, int(timeline))

    def __str__(self) -> str:
        return f"{self.system}/{self.timeline}"


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """The history of a server.

    Args:
        name: of it.
        end: up to where its log is written.
        switches: for each timeline before this one, where the server left it.
    """

    name: HistoryName
    end: int
    switches: Mapping[int, int]

    def why_not(self, position: int, before: HistoryName) -> str | None:
        """Why a position that was read in another history is not in this one; None when it is."""
        if before.system != self.name.system:
            return "the server is another one"
        left = self.end if before.timeline == self.name.timeline else self.switches.get(before.timeline)
        if left is None:
            return f"the server never was on the timeline {before.timeline}, which was followed"
        if position > left:
            return "the server lacks what was read already: it was restored from a backup, or a standby took over that had not received it"
        return None


def parse_switches(content: bytes) -> dict[int, int]:
    """The switches in a file of `TIMELINE_HISTORY`."""
    return {int(timeline): lsn_number(lsn.decode()) for timeline, lsn in _SWITCH.findall(content)}
