"""`IngestLag`: how old the lake's newest change is, whether or not a commit waits for its bucket at the moment."""

from __future__ import annotations

import threading

from fileio.env import Env

GRACE_S = 1.0
"""A run counts as behind when it has not come to where the source was so long ago: even an idle source moves a little."""


class IngestLag:
    """What is known of the lag. One thread tells, others ask.

    Times of changes are by the clock of the source, and so is the lag: the clock of this machine may differ.

    Args:
        env: the clocks.
        fresh_s: as long as that an answer of the source counts. A run that asks no more waits for something, and the lag grows meanwhile.
    """

    def __init__(self, env: Env, *, fresh_s: float) -> None:
        self._env = env
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._newest_ms: int | None = None
        self._offset_ms = 0
        self._asked_s: float | None = None
        self._reached_s: float | None = None

    def committed(self, newest_ms: int | None) -> None:
        """A commit is durable. newest_ms: when the source committed the newest change in it; None when that is not known."""
        with self._lock:
            if newest_ms is not None:
                self._newest_ms = newest_ms

    def asked(self, clock_ms: int | None) -> None:
        """The source was asked where it is. clock_ms: its clock; None when it does not say."""
        with self._lock:
            self._asked_s = self._env.monotonic_s()
            if clock_ms is not None:
                self._offset_ms = clock_ms - self._env.now_ms()

    def reached(self) -> None:
        """The lake has all that the source had when it was asked last."""
        with self._lock:
            self._reached_s = self._asked_s

    @property
    def offset_s(self) -> float:
        """How far the clock of the source is ahead of the one of this machine."""
        with self._lock:
            return self._offset_ms / 1000

    def seconds(self) -> float | None:
        """The lag; 0 at the head of the source; None while nothing is known."""
        with self._lock:
            now_s = self._env.monotonic_s()
            since_s = None if self._reached_s is None else now_s - self._reached_s
            is_behind = self._asked_s != self._reached_s and self._asked_s is not None and now_s - self._asked_s > GRACE_S
            if since_s is not None and not is_behind:
                return 0.0 if since_s <= self._fresh_s else since_s
            age_s = None if self._newest_ms is None else max(0, self._env.now_ms() + self._offset_ms - self._newest_ms) / 1000
            # Neither is too small: all from before either moment is in the lake.
            return min((one for one in (since_s, age_s) if one is not None), default=None)
