"""Coalescing of byte ranges: fewer requests for neighbours, several for what is large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RangePlan:
    """requests: half-open ranges to fetch, ascending and disjoint. assemble: from their bytes to the ranges that were asked for."""

    wanted: Sequence[tuple[int, int]]
    requests: Sequence[tuple[int, int]]

    def assemble(self, fetched: Sequence[bytes]) -> list[bytes]:
        """The bytes of every wanted range, in the order asked, from the bytes of every request. A short answer is the object's end."""
        return [self._slice(start, end, fetched) for start, end in self.wanted]

    def _slice(self, start: int, end: int, fetched: Sequence[bytes]) -> bytes:
        pieces = [
            data[max(0, start - low) : max(0, end - low)]
            for (low, high), data in zip(self.requests, fetched, strict=True)
            if low < end and start < high
        ]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def coalesce(ranges: Sequence[tuple[int, int]], *, gap_bytes: int, request_bytes: int) -> RangePlan:
    """A plan that fetches half-open `ranges`: neighbours closer than `gap_bytes` together, nothing larger than `request_bytes` at once.

    Raises ValueError for a negative start or an end before its start.
    """
    for start, end in ranges:
        if start < 0 or end < start:
            raise ValueError(f"({start}, {end}) is not a byte range: it needs 0 <= start <= end")
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start - merged[-1][1] <= gap_bytes:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    requests = [(low, min(low + request_bytes, end)) for start, end in merged for low in range(start, end, request_bytes)]
    return RangePlan(ranges, requests)
