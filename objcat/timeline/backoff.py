"""Backoff: of the writers that want the next slot, whoever has waited longest asks for it first.

Nobody knows who else waits. But every entry says how long its writer has waited, in slots that others took above its base, so whoever reads
the entries that it lost to knows what is usual now, and how many turns it is early. That is advice: a slot is whoever's put takes it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from fileio.env import Env
from objcat.timeline.entry import Entry

RECENT_ENTRIES = 8


class SlotBackoff:
    """What one candidate knows of those that it has lost slots to. base: its own. pause_s_max: of one wait. For one thread."""

    def __init__(self, env: Env, base: int, *, pause_s_max: float) -> None:
        self._env = env
        self._base = base
        self._pause_s_max = pause_s_max
        self._began_s = env.monotonic_s()
        self._waited: deque[int] = deque(maxlen=RECENT_ENTRIES)

    def saw(self, entries: Iterable[Entry]) -> None:
        """Entries above the base, in order."""
        self._waited.extend(entry.slot - 1 - entry.base for entry in entries)

    def wait(self, lost_slot: int) -> int:
        """Let others go first who are likely to have waited longer. Returns how many slots they may have taken meanwhile.

        Whoever has waited as long as those who won lately does not pause, and nobody does at the first slot that is lost: it says nothing
        of who is there now. The pause is between a half and the whole of the turns that are left, at random, since all who are early would
        ask at once otherwise; a turn takes as long as slots have taken since the first try.
        """
        if not self._waited:
            return 0
        early = statistics.median(self._waited) - (lost_slot - self._base)
        if early <= 0:
            return 0
        turns = early * (1 + self._env.random()) / 2
        slot_s = (self._env.monotonic_s() - self._began_s) / (lost_slot - self._base)
        self._env.sleep(min(self._pause_s_max, turns * slot_s))
        return round(turns)
