"""`MessageBatches`: messages as batches, where transactions of the source are not known. Each commit then has whole messages alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from objcat.ingest.kafka.message import KafkaMessage, MessageChange
from objcat.ingest.kafka.position import KafkaPosition
from objcat.ingest.model import BadRecord, Change, RowChange, SchemaChanged, SourceTable, SourceTransaction


class MessageAssembler(Protocol):
    """Makes transactions of the messages of all partitions. For one thread."""

    def follow(self, places: Collection[tuple[str, int]]) -> None:
        """Topics and partitions that are read from now on, all of them."""

    def take(self, message: KafkaMessage, changes: Sequence[MessageChange]) -> None:
        """The next message of a partition, with the changes that it says."""

    def reach_end(self, topic: str, partition: int, offset: int) -> None:
        """A partition has no more messages now. `offset`: of the next one, behind marks of transactions that no reader sees."""

    def next_offset(self, topic: str, partition: int) -> int:
        """The offset of the next message that is wanted: those before it were taken, whether they are handed over or not."""

    def finished(self) -> Iterator[SourceTransaction]:
        """What can be committed by now, with positions behind it."""

    def wanted(self) -> frozenset[tuple[str, int]] | None:
        """The partitions of which messages are wanted; None: all."""


class SchemaNotes:
    """Adds to the changes of rows what schema they have, whenever it is another than that of the row before.

    Args:
        describe: is told of each schema, before its rows are handed over.
        latest: by topic: the schema of the row before.
    """

    def __init__(self, describe: Callable[[SourceTable], None], latest: Mapping[str, SourceTable | None] | None = None) -> None:
        self._describe = describe
        self._latest = dict(latest or {})

    def with_schemas(self, changes: Iterable[MessageChange]) -> Iterator[Change]:
        """The changes, each after its schema."""
        for one in changes:
            change = one.change
            if isinstance(change, RowChange) and self._latest.get(change.table.name) is not change.table:
                self._note(change.table)
                yield SchemaChanged(table=change.table, defaults=one.defaults)
            yield change

    def begin(self, before: Sequence[Change], tables: Mapping[str, Sequence[SourceTable]]) -> SchemaNotes:
        """Notes for changes that are read later, in another thread. These notes go on as if they had been read.

        Args:
            before: the first ones of these changes.
            tables: schemas of the others, by topic.
        """
        made = SchemaNotes(lambda _table: None, self._latest)
        seen: dict[str, list[SourceTable]] = {name: list(found) for name, found in tables.items()}
        for change in before:
            if isinstance(change, RowChange):
                seen.setdefault(change.table.name, []).insert(0, change.table)
        for name, found in seen.items():
            for table in found:
                self._note(table)
            if any(table is not found[0] for table in found):
                self._latest[name] = None  # Which of them is the last one shows when they are read.
        return made

    def _note(self, table: SourceTable) -> None:
        self._latest[table.name] = table
        self._describe(table)


class MessageTimes:
    """How old what was read is: the time of the newest message, or where some partitions are behind, of the one that is most behind."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], int] = {}
        self._at_end: set[tuple[str, int]] = set()

    def take(self, message: KafkaMessage) -> None:
        """A message was read."""
        place = (message.topic, message.partition)
        if message.timestamp_ms is not None:
            self._newest[place] = message.timestamp_ms
        self._at_end.discard(place)

    def reach_end(self, topic: str, partition: int) -> None:
        """A partition has no more messages now."""
        self._at_end.add((topic, partition))

    def read_until_ms(self) -> int | None:
        """The time up to which all partitions were read."""
        behind = [time for place, time in self._newest.items() if place not in self._at_end]
        return min(behind) if behind else max(self._newest.values(), default=None)


class MessageBatches:
    """See `MessageAssembler`.

    Args:
        position: where the topics are read from. It is changed.
        notes: adds schemas.
    """

    def __init__(self, position: KafkaPosition, notes: SchemaNotes) -> None:
        self._position = position
        self._notes = notes
        self._changes: list[MessageChange] = []
        self._messages = 0
        self._size_bytes = 0
        self._has_moved = False
        self._times = MessageTimes()

    def follow(self, places: Collection[tuple[str, int]]) -> None:
        """See `MessageAssembler`."""

    def next_offset(self, topic: str, partition: int) -> int:
        """See `MessageAssembler`."""
        return self._position.next_offset(topic, partition)

    def take(self, message: KafkaMessage, changes: Sequence[MessageChange]) -> None:
        """See `MessageAssembler`."""
        self._changes += changes
        self._messages += 1
        self._size_bytes += message.size_bytes
        self._has_moved = True
        self._times.take(message)
        self._position.at = place_text(message.place, self._messages)
        self._position.advance(message.topic, message.partition, message.offset + 1, message.epoch)

    def reach_end(self, topic: str, partition: int, offset: int) -> None:
        """See `MessageAssembler`."""
        self._times.reach_end(topic, partition)
        if self._position.next_offset(topic, partition) < offset:
            self._position.advance(topic, partition, offset)
            self._position.forget_epoch(topic, partition)
            self._has_moved = True

    def finished(self) -> Iterator[SourceTransaction]:
        """See `MessageAssembler`."""
        if not self._has_moved:
            return
        # A schema is described before its rows are handed over, so the list is made here.
        changes = list(self._notes.with_schemas(self._changes))
        size_bytes = self._size_bytes
        self._changes, self._messages, self._size_bytes, self._has_moved = [], 0, 0, False
        yield SourceTransaction(
            position=self._position.stored(),
            changes=changes,
            count=sum(not isinstance(change, SchemaChanged) for change in changes),
            size_bytes=size_bytes,
            committed_at_ms=self._times.read_until_ms(),
            is_consistent=False,
        )

    def wanted(self) -> frozenset[tuple[str, int]] | None:
        """See `MessageAssembler`."""
        return None


def place_text(place: str, count: int) -> str:
    """Where the last of some messages is. A request to leave out that one is none to leave out those before it."""
    return place if count <= 1 else f"{place} and {count - 1} before it"


def bad_message(message: KafkaMessage, why: str) -> MessageChange:
    """A message that cannot be read, for the dead letters."""
    payload = message.value if message.value is not None else message.key
    bad = BadRecord(table=message.topic, payload=payload or b"", error=why, position=message.place)
    return MessageChange(change=bad, committed_at_ms=message.timestamp_ms)
