"""Outcomes of all transactions of a log, found by txn without reading the log.

The newest outcomes are in memory, or in a checkpoint's root. Older ones are in segments: immutable objects of lines of one width, sorted by
txn, searched by bisection over ranges. An outcome has slot and commit time too, so a reader of a row's transaction knows when it was
committed. Eight segments of one size are merged into one of the next. So a log of n slots has O(log n) small segments, and each outcome is
written O(log n) times. A segment of about `MERGED_MAX` outcomes is not merged again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from fileio.contract import Create, GetResult, Range, require_written
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CheckpointUnreadable
from objcat.timeline.entry import Count, Entry, Txn
from objcat.timeline.error_location import says_where

INLINE_MAX = 128
"""Outcomes that a root holds before they become a segment."""
MERGE_COUNT = 8
"""Segments of one size that are merged into one."""
MERGED_MAX = 65_536
"""Segments with this many outcomes are not merged again, so that publishing a checkpoint stays short."""
BLOCK_RECORDS = 1024
"""Lines that one request reads in a search. Each such block has a digest of its own."""
BLOCK_DIGITS = 16
SEARCHES_MAX = 4
"""For more transactions than this, a segment is read whole instead of searched."""


class TxnOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of `txn`: committed in this slot, or fenced by the ROLLBACK there. committed_at_ms: of the slot."""

    txn: Txn
    slot: int
    committed: bool
    committed_at_ms: int


class OutcomeSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcomes in an object of their own.

    Args:
        width: Bytes of each of its `count` lines.
        level: How often they were merged.
        blocks: The first 16 digits of the SHA-256 of each `BLOCK_RECORDS` lines, to check a part that is read. Empty in segments of older
            versions.
    """

    path: str
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    width: Annotated[int, msgspec.Meta(ge=1, lt=2**16)]
    level: Annotated[int, msgspec.Meta(ge=0, lt=64)]
    first_txn: Txn
    last_txn: Txn
    first_slot: Count
    last_slot: Count
    blocks: tuple[str, ...] = ()


def outcomes_of(entry: Entry) -> Iterable[TxnOutcome]:
    """The outcomes that an entry decides: those that it commits, and in a ROLLBACK that of the fenced transaction."""
    for txn in entry.txns:
        yield TxnOutcome(txn, entry.slot, committed=True, committed_at_ms=entry.committed_at_ms)
    if entry.rollback_of is not None:
        yield TxnOutcome(entry.rollback_of, entry.slot, committed=False, committed_at_ms=entry.committed_at_ms)


@dataclass(frozen=True, slots=True)
class TxnOutcomes:
    """The outcomes of all transactions of slots 0 to N. Immutable and picklable.

    recent: in slot order, those that no segment holds.
    """

    segments: tuple[OutcomeSegment, ...] = ()
    recent: tuple[TxnOutcome, ...] = ()

    def advance(self, entries: Iterable[Entry]) -> TxnOutcomes:
        """The outcomes including those of the following entries."""
        new = [outcome for entry in entries for outcome in outcomes_of(entry)]
        return TxnOutcomes(self.segments, (*self.recent, *new)) if new else self

    @says_where
    def find(self, fileio: FileIO, txn: Txn) -> TxnOutcome | None:
        """What became of `txn`. None when no slot up to N decides it. Sends no request for a recent one. Raises CheckpointCollected."""
        found = next((outcome for outcome in self.recent if outcome.txn == txn), None)
        for segment in reversed(self.segments):
            if found is None and segment.first_txn <= txn <= segment.last_txn:
                found = _search(fileio, segment, txn)
        return found

    @says_where
    def find_all(self, fileio: FileIO, txns: Collection[Txn]) -> Mapping[Txn, TxnOutcome]:
        """The outcomes of many transactions. Those that no slot up to N decides are left out.

        Sends no request for recent ones. Else a GET for each segment that may hold some, in parallel, or O(log n) for each of a few. Raises
        CheckpointCollected.
        """
        wanted = set(txns)
        found = {outcome.txn: outcome for outcome in self.recent if outcome.txn in wanted}
        wanted -= found.keys()

        def look(segment: OutcomeSegment) -> list[TxnOutcome]:
            inside = [txn for txn in wanted if segment.first_txn <= txn <= segment.last_txn]
            if len(inside) > SEARCHES_MAX or (inside and segment.count <= BLOCK_RECORDS):
                return [outcome for outcome in _read(fileio, segment) if outcome.txn in wanted]
            searched = [_search(fileio, segment, txn) for txn in inside]
            return [outcome for outcome in searched if outcome is not None]

        if wanted:
            found |= {outcome.txn: outcome for part in map_io(fileio.env, look, self.segments) for outcome in part}
        return found

    @says_where
    def between(self, fileio: FileIO, after: int, until: int) -> list[TxnOutcome]:
        """The outcomes that slots above `after` up to `until` decide, unordered.

        Sends no request when they are all recent; else a GET for each segment that holds some. Raises CheckpointCollected.
        """
        segments = [segment for segment in self.segments if segment.first_slot <= until and segment.last_slot > after]
        parts = [*map_io(fileio.env, lambda segment: _read(fileio, segment), segments), self.recent]
        return [outcome for part in parts for outcome in part if after < outcome.slot <= until]

    def spilled(self, fileio: FileIO, folder: str) -> TxnOutcomes:
        """The same outcomes with few enough of them inline for a root. Writes segments below `folder`, if any."""
        if len(self.recent) < INLINE_MAX:
            return self
        segments = [*self.segments, _write(fileio, folder, self.recent, level=0)]
        while len(run := _last_run(segments)) >= MERGE_COUNT and sum(segment.count for segment in run) <= MERGED_MAX:
            merged = [outcome for segment in run for outcome in _read(fileio, segment)]
            segments[-len(run) :] = [_write(fileio, folder, merged, level=run[0].level + 1)]
        return TxnOutcomes(tuple(segments))


def _last_run(segments: Sequence[OutcomeSegment]) -> list[OutcomeSegment]:
    """The newest segments that share one level, in order."""
    begin = len(segments)
    while begin > 0 and segments[begin - 1].level == segments[-1].level:
        begin -= 1
    return list(segments[begin:])


def _write(fileio: FileIO, folder: str, outcomes: Sequence[TxnOutcome], *, level: int) -> OutcomeSegment:
    ordered = sorted(outcomes, key=lambda outcome: (outcome.txn, outcome.slot, outcome.committed))
    lines = [f"{o.txn} {o.slot:020d} {'committed' if o.committed else 'fenced'} {o.committed_at_ms}" for o in ordered]
    width = max(map(len, lines)) + 1
    path = f"{folder}outcomes-{fileio.env.new_id()}.txt"
    data = "".join(f"{line:<{width - 1}}\n" for line in lines).encode()
    require_written(fileio.put(path, data, Create()), path)
    slots = [outcome.slot for outcome in ordered]
    return OutcomeSegment(
        path=path,
        count=len(ordered),
        width=width,
        level=level,
        first_txn=ordered[0].txn,
        last_txn=ordered[-1].txn,
        first_slot=min(slots),
        last_slot=max(slots),
        blocks=_blocks(data, width),
    )


def _blocks(data: bytes, width: int) -> tuple[str, ...]:
    """The digests of the blocks of some lines."""
    size = BLOCK_RECORDS * width
    return tuple(hashlib.sha256(data[at : at + size]).hexdigest()[:BLOCK_DIGITS] for at in range(0, len(data), size))


def _read(fileio: FileIO, segment: OutcomeSegment, begin: int = 0, end: int | None = None) -> list[TxnOutcome]:
    """Lines `begin` to `end` (exclusive) of a segment: one GET. begin: the beginning of a block."""
    end = segment.count if end is None else end
    try:
        result = fileio.get(segment.path, byte_range=Range(begin * segment.width, end * segment.width))
    except NotFound as error:
        raise CheckpointCollected(f"{segment.path} was deleted with its checkpoint. Open the table again.", path=segment.path) from error
    assert isinstance(result, GetResult)
    first = begin // BLOCK_RECORDS
    blocks = _blocks(result.data, segment.width)
    if segment.blocks and blocks != segment.blocks[first : first + len(blocks)]:
        raise _unreadable(segment, "its bytes do not match the digest in its root")
    try:
        rows = [line.split() for line in result.data.decode().splitlines()]
        found = [TxnOutcome(Txn(txn), int(slot), kind == "committed", int(at_ms)) for txn, slot, kind, at_ms in rows]
    except ValueError as error:
        raise _unreadable(segment, "it does not hold outcomes of transactions") from error
    if len(found) != end - begin:
        raise _unreadable(segment, "lines are missing")
    return found


def _unreadable(segment: OutcomeSegment, why: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"{segment.path} is not what the checkpoint that names it wrote: {why}. Open the table again.", path=segment.path
    )


def _search(fileio: FileIO, segment: OutcomeSegment, txn: Txn) -> TxnOutcome | None:
    """The outcome of one txn in a segment, by bisection over blocks: O(log n) GETs, one for a small segment."""
    low, high = 0, segment.count
    while low < high:
        # A read begins where a block with a digest begins.
        middle = max(low, (low + high - BLOCK_RECORDS) // 2 // BLOCK_RECORDS * BLOCK_RECORDS)
        block = _read(fileio, segment, middle, min(high, middle + BLOCK_RECORDS))
        if txn < block[0].txn:
            high = middle
        elif txn > block[-1].txn:
            low = middle + len(block)
        else:
            return next((outcome for outcome in block if outcome.txn == txn), None)
    return None
