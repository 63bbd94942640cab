"""What an assembler of transactions holds: their ends, the events that wait, and how far each partition was read."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from objcat.ingest.kafka.batches import SchemaNotes
from objcat.ingest.kafka.debezium import transaction_id
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.model import Change, SourceTable
from objcat.ingest.spooled_changes import SpooledChanges

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""
SPILL_BYTES_MIN = 1024 * 1024
"""Events of a transaction that take less memory do not go to disk alone."""
_SEQUENCES: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[str, int]]]] = (
    (re.compile(r"\d+:(\d+)"), lambda found: ("lsn", int(found[1]))),
    (re.compile(r"([0-9a-fA-F-]{36}):(\d+)"), lambda found: (found[1], int(found[2]))),
    (re.compile(r"(\d+-\d+)-(\d+)"), lambda found: (found[1].split("-")[0], int(found[2]))),
)
"""Ids of PostgreSQL, MySQL and MariaDB, with the name of their sequence and their number in it."""


@dataclass(slots=True)
class TransactionEnd:
    """The end of a transaction.

    Args:
        id: as its events have it.
        text: as the end has it.
        number: by which it is ordered among ends of other partitions: the time of its record, and that of its sequence.
        offset: in its partition.
        collections: how many events each has.
        committed_at_ms: when the source committed it.
        read_at_s: when it was read.
    """

    id: str
    text: str
    number: tuple[int, int]
    offset: int
    collections: dict[str, int]
    committed_at_ms: int | None
    read_at_s: float


@dataclass(slots=True)
class EventPart:
    """The events of a transaction in one partition, in order. counts: by the names of their tables."""

    first: int
    changes: SpooledChanges
    orders: array[int] = field(default_factory=lambda: array("q"))
    counts: Counter[str] = field(default_factory=Counter)
    newest: int = -1


@dataclass(slots=True)
class PendingEvents:
    """The events of a transaction that were read. A connector that failed sends them again: those are others of these.

    Args:
        id: of the transaction; None for one message that belongs to none.
        read_at_s: when the newest one was read.
        newest_ms: the time of the newest record.
    """

    id: str | None
    read_at_s: float
    newest_ms: int = -1
    parts: dict[Place, EventPart] = field(default_factory=dict)
    tables: dict[str, list[SourceTable]] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int:
        """Bytes that are in memory and not on disk, about."""
        return sum(part.changes.memory_bytes for part in self.parts.values())

    @property
    def size_bytes(self) -> int:
        """About how many bytes they take, in memory or on disk."""
        return sum(part.changes.size_bytes for part in self.parts.values())


@dataclass(slots=True)
class PartitionProgress:
    """What was read of a partition. next: the next offset. open: the transactions that are not handed over, with their first offsets."""

    next: int
    open: dict[str, int] = field(default_factory=dict)
    at_end_since_s: float | None = None


class MergedChanges:
    """The changes of a transaction: those before it, and its own in the order of its events. They are read once."""

    def __init__(self, before: Sequence[MessageChange], streams: Sequence[Iterator[tuple[int, Any]]], notes: SchemaNotes) -> None:
        self._before = before
        self._streams = streams
        self._notes = notes

    def __iter__(self) -> Iterator[Change]:
        return self._notes.with_schemas(self._all())

    def _all(self) -> Iterator[MessageChange]:
        yield from self._before
        for _, change in heapq.merge(*self._streams, key=itemgetter(0)):
            yield change


def sequence_number(text: str) -> tuple[str, int] | None:
    """The name of the sequence of a transaction's id, and its number in it; None for an id without a number."""
    for pattern, read in _SEQUENCES:
        if found := pattern.fullmatch(text):
            return read(found)
    return None


def read_end(value: Any, message: KafkaMessage, now_s: float) -> TransactionEnd | None:
    """The end of a transaction, of a message of Debezium's transaction metadata; None for a begin. Raises Unreadable."""
    try:
        if value["status"] != "END":
            return None
        text = str(value["id"])
        collections = {str(one["data_collection"]): int(one["event_count"]) for one in value.get("data_collections") or ()}
        committed = value.get("ts_ms")
    except (TypeError, KeyError, ValueError, AttributeError):
        raise Unreadable("it is not a message of Debezium's transaction metadata") from None
    numbered = sequence_number(text)
    return TransactionEnd(
        id=transaction_id(text),
        text=text,
        number=(message.timestamp_ms or 0, 0 if numbered is None else numbered[1]),
        offset=message.offset,
        collections=collections,
        committed_at_ms=committed if isinstance(committed, int) else message.timestamp_ms,
        read_at_s=now_s,
    )


def spill_largest(pending: Iterable[PendingEvents], *, bytes_max: int, wanted: int) -> int:
    """Put the events of large transactions on disk. Returns how many bytes of memory that gave.

    Args:
        pending: the events that wait.
        bytes_max: about as much memory as they may take.
        wanted: so many bytes are to be free.
    """
    least, freed = max(SPILL_BYTES_MIN, bytes_max // 16), 0
    parts = [part.changes for one in pending for part in one.parts.values()]
    for changes in sorted(parts, key=attrgetter("memory_bytes"), reverse=True):
        if changes.memory_bytes < least or freed >= wanted:
            break
        freed += changes.memory_bytes
        changes.spill()
    return freed
