"""Byte ranges: joined into fewer requests, and compared with what a store answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fileio.contract import ByteRange, Range, Suffix
from fileio.errors import Unavailable


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The requests that fetch some ranges.

    Args:
        wanted: The half-open ranges that the caller wants.
        requests: The half-open ranges to fetch, ascending and disjoint.
    """

    wanted: Sequence[tuple[int, int]]
    requests: Sequence[tuple[int, int]]

    def assemble(self, fetched: Sequence[bytes]) -> list[bytes]:
        """The bytes of every wanted range, from the bytes of every request. A short answer ends at the end of the object."""
        return [self._slice(start, end, fetched) for start, end in self.wanted]

    def _slice(self, start: int, end: int, fetched: Sequence[bytes]) -> bytes:
        pieces = [
            data[max(0, start - low) : max(0, end - low)]
            for (low, high), data in zip(self.requests, fetched, strict=True)
            if low < end and start < high
        ]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def coalesce(ranges: Sequence[tuple[int, int]], *, gap_bytes: int, request_bytes: int) -> RangePlan:
    """A plan that fetches half-open ranges in few requests.

    Args:
        ranges: The ranges, in bytes.
        gap_bytes: Ranges nearer to each other than this share a request.
        request_bytes: The largest request.

    Raises:
        ValueError: A start is negative, or an end is before its start.
    """
    for start, end in ranges:
        if start < 0 or end < start:
            raise ValueError(f"({start}, {end}) is not a byte range. It needs 0 <= start <= end.")
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start - merged[-1][1] <= gap_bytes:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    requests = [(low, min(low + request_bytes, end)) for start, end in merged for low in range(start, end, request_bytes)]
    return RangePlan(ranges, requests)


def bounds(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Where a range begins and ends within an object of `size` bytes. None is the whole object."""
    match byte_range:
        case None:
            return 0, size
        case Range(start, end):
            first = min(start, size)
            return first, max(first, size if end is None else min(end, size))
        case Suffix(length):
            return max(0, size - length), size


def size_told(name: str, content_range: str | None, asked: ByteRange | None, length: int) -> int:
    """The size of an object, by the `Content-Range` of a 206.

    A proxy that shortens or mixes up answers leaves the rest of them intact. So this checks that the answer holds all bytes of the request.

    Args:
        name: The object, for the message.
        content_range: The header; None when it is missing.
        asked: The range of the request.
        length: The number of bytes in the answer.

    Raises:
        Unavailable: The header is missing, or these are not the bytes that were asked for.
    """
    told = re.fullmatch(r"bytes (\d+)-(-?\d+)/(\d+)", content_range or "")
    if told is None:
        raise Unavailable(f"The answer about {name} holds a part of the object, but its Content-Range is {content_range!r}. Read it again.")
    first, last, size = map(int, told.groups())
    begin, end = bounds(asked, size)
    if last - first + 1 != length or (length and (first, last + 1) != (begin, end)) or (not length and begin < end):
        raise Unavailable(
            f"Bytes {begin} to {end} of {size} of {name} were asked for, but the answer holds {length} bytes and says {content_range!r}. "
            "Read it again. If the error persists, look for a proxy in between."
        )
    return size
