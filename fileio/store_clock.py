"""The clock of a store, read from the times in its answers."""

from __future__ import annotations

from dataclasses import dataclass

from fileio.env import Env

CLOCK_READ_S_MAX = 1.0
"""A slower answer does not tell the time: it is not known when the store looked at its clock."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The store's clock and the local clock at one moment, in ms since 1970 UTC.

    Args:
        store_ms: The store's clock.
        local_ms: The local clock, at the moment between request and answer at which the two differ least.
        at_s: The moment of the answer, by `Env.monotonic_s`.
    """

    store_ms: int
    local_ms: int
    at_s: float


class StoreClock:
    """The newest reading of a store's clock. Safe for many threads."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._reading: ClockReading | None = None

    def note(self, store_ms: int | None, began_s: float) -> None:
        """Note the time in an answer to a request that began at `began_s`; None when the answer has no time."""
        if store_ms is None:
            return
        now_s, now_ms = self._env.monotonic_s(), self._env.now_ms()
        took_s = now_s - began_s
        if took_s <= CLOCK_READ_S_MAX:
            self._reading = ClockReading(store_ms, min(now_ms, max(store_ms, now_ms - int(took_s * 1000))), now_s)

    def since(self, since_s: float) -> ClockReading | None:
        """The newest reading, unless it is older than `since_s`."""
        reading = self._reading
        return None if reading is None or reading.at_s < since_s else reading
