"""Which transactions a snapshot of PostgreSQL has seen, and positions in its log.

A chunk and the stream are put in order by visibility and not by positions in the log: a commit may be in the log, and in the stream, before
snapshots see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_EPOCH = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class VisibleTransactions:
    """A snapshot as `pg_current_snapshot()` writes it: `xmin:xmax:xip,...`, in numbers of 64 bits.

    Args:
        xmin: all below have ended.
        xmax: none from here on had begun.
        running: those between that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the server's text. Raises ValueError."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def has_seen(self, xid: int) -> bool:
        """Whether a committed transaction is visible. `xid`: in 32 bits, as the stream has it."""
        distance = (self.xmax - xid) % _EPOCH
        full = self.xmax - distance if distance < _HALF else self.xmax + (_EPOCH - distance)
        return full < self.xmin or (full < self.xmax and full not in self.running)


def lsn_number(text: str) -> int:
    """A position in the log as a number. Raises ValueError."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    """A position in the log as the server writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
