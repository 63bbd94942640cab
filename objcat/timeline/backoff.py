"""Backoff between tries of a slot: the writer that has waited longest asks first.

No writer knows who else waits. But every entry shows how long its writer waited: the number of slots that others took above its base. A
writer that loses a slot reads these entries. So it knows what is usual now, and how many turns early it is. This is advice only: the store
decides who gets a slot.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator

from fileio.env import Env
from objcat.timeline.entry import Entry

RECENT_ENTRIES = 8


class SlotBackoff:
    """What one attempt knows of the writers that it lost slots to. For one thread.

    Args:
        base: The base slot of the attempt.
        pause_s_max: Longest single wait, in seconds.
    """

    def __init__(self, env: Env, base: int, *, pause_s_max: float) -> None:
        self._env = env
        self._base = base
        self._pause_s_max = pause_s_max
        self._began_s = env.monotonic_s()
        self._waited: deque[int] = deque(maxlen=RECENT_ENTRIES)

    def saw(self, entries: Iterable[Entry]) -> None:
        """Note the entries above the base, in order."""
        self._waited.extend(slots_waited(entries))

    def wait(self, lost_slot: int) -> int:
        """Wait for writers that have probably waited longer. Returns how many slots they may have taken meanwhile.

        A writer that has waited as long as the recent winners does not pause. Nobody pauses at the first lost slot, as it says nothing of
        the current writers. The pause is between half and all of the turns that are left, at random; else all early writers would ask at
        once. One turn lasts as long as one slot has taken on average since the first try.
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


def slots_waited(entries: Iterable[Entry]) -> Iterator[int]:
    """How many slots others took while the writer of each entry waited."""
    return (entry.slot - 1 - entry.base for entry in entries)
