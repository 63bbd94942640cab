"""Byte ranges: coalesced into fewer requests, and held against what a store answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fileio.contract import ByteRange, Range, Suffix
from fileio.errors import Unavailable


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


def bounds(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Where the range begins and ends within an object of `size` bytes. None: the whole object."""
    match byte_range:
        case None:
            return 0, size
        case Range(start, end):
            first = min(start, size)
            return first, max(first, size if end is None else min(end, size))
        case Suffix(length):
            return max(0, size - length), size


def size_told(name: str, content_range: str | None, asked: ByteRange | None, length: int) -> int:
    """The size of the object, by the `Content-Range` of a 206 that carries `length` bytes.

    Raises Unavailable when there is no such header, and when these are not the bytes that were asked for, all of them: what shortens or
    mixes up answers on the way leaves everything else of them intact.
    """
    told = re.fullmatch(r"bytes (\d+)-(-?\d+)/(\d+)", content_range or "")
    if told is None:
        raise Unavailable(f"{name}: the answer holds a part of the object, but says {content_range!r} of which: read it again")
    first, last, size = map(int, told.groups())
    begin, end = bounds(asked, size)
    if last - first + 1 != length or (length and (first, last + 1) != (begin, end)) or (not length and begin < end):
        raise Unavailable(
            f"{name}: bytes {begin} to {end} of {size} were asked for, but the answer holds {length} bytes and says {content_range!r}: "
            "read it again, and look for a proxy on the way when it stays so"
        )
    return size
