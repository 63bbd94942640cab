"""`TransactionAssembler`: transactions of the source, whole, by the topic of Debezium's transaction metadata.

Debezium writes the end of each transaction to a topic of its own, with how many events it has in which tables, and to each event the
transaction that it belongs to. So a transaction is handed over when its end and all its events were read, in the order of the ends.

The position of a partition is the first event that was not handed over. In each partition, events come in the order of the transactions, so
that this says all. After a failure a connector sends events again: then a transaction may be handed over twice, whole. Such slots, and
those with changes that belong to no transaction, such as rows of a snapshot, are not called consistent.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from fileio.env import Env
from objcat.ingest.kafka.batches import MessageTimes, SchemaNotes, place_text
from objcat.ingest.kafka.consistency import SourceMoments
from objcat.ingest.kafka.message import KafkaMessage, MessageChange
from objcat.ingest.kafka.pending import (
    EventPart,
    MergedChanges,
    PartitionProgress,
    PendingEvents,
    Place,
    TransactionEnd,
    read_end,
    spill_largest,
)
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.kafka.readers import ValueReader
from objcat.ingest.model import Change, RowChange, SchemaChanged, SourceTable, SourceTransaction
from objcat.ingest.spooled_changes import SpooledChanges

logger = logging.getLogger("objcat")

NEVER_MS = 2**62


class TransactionAssembler:
    """See `MessageAssembler`.

    Args:
        position: where the topics are read from. It is changed.
        topic: of the transactions.
        reader: of its values.
        notes: adds schemas.
        heads: asks the brokers where the next messages of all topics will be.
        bytes_max: about as much memory as events that wait may take.
        wait_s: how long missing events are waited for while all is silent.
        env: the clock.
    """

    def __init__(
        self,
        position: KafkaPosition,
        topic: str,
        reader: ValueReader,
        notes: SchemaNotes,
        *,
        heads: Callable[[], dict[str, dict[str, int]]],
        bytes_max: int,
        wait_s: float,
        env: Env,
    ) -> None:
        self._position = position
        self._topic = topic
        self._reader = reader
        self._notes = notes
        self._moments = SourceMoments(position, heads, wait_s=wait_s, env=env)
        self._bytes_max = bytes_max
        self._wait_s = wait_s
        self._env = env
        self._times = MessageTimes()
        self._partitions: dict[Place, PartitionProgress] = {}
        self._pending: dict[str, PendingEvents] = {}
        self._ends: dict[Place, deque[TransactionEnd]] = {}
        self._ending: Counter[str] = Counter()
        self._sent: dict[str, list[str]] = {}
        self._applied: dict[str, dict[Place, Counter[str]]] = {}
        self._serial = 0
        self._loose: list[MessageChange] = []
        self._loose_bytes = 0
        self._loose_at = ""
        self._bytes = 0
        self._has_moved = False
        self._ended_at_ms = -1
        self._topics_of: dict[str, set[str]] = {}
        for name, known in position.topics.items():
            for collection in known.collections:
                self._topics_of.setdefault(collection, set()).add(name)

    # ---- what is read

    def next_offset(self, topic: str, partition: int) -> int:
        """See `MessageAssembler`."""
        return self._partition((topic, partition)).next

    def follow(self, places: Collection[Place]) -> None:
        """See `MessageAssembler`."""
        self._moments.follow(frozenset(places))
        for place in places:
            self._partition(place)
        for place in self._partitions.keys() - set(places):
            # A topic that is gone is waited for no longer.
            for name in list(self._partitions[place].open):
                self._take_loose(name, place)
            del self._partitions[place]
            for end in self._ends.pop(place, ()):
                self._count_end(end, -1)

    def take(self, message: KafkaMessage, changes: Sequence[MessageChange]) -> None:
        """See `MessageAssembler`."""
        place = (message.topic, message.partition)
        self._times.take(message)
        partition = self._partition(place)
        partition.next = max(partition.next, message.offset + 1)
        partition.at_end_since_s = None
        self._has_moved = True
        if message.topic == self._topic:
            # What is said of a message here is that messages expired.
            self._loose += changes
            self._loose_at = message.place
            self._take_end(place, message)
        else:
            for change in changes:
                self._take_change(place, message, change)
        self._advance(place, message.epoch)

    def reach_end(self, topic: str, partition: int, offset: int) -> None:
        """See `MessageAssembler`."""
        place = (topic, partition)
        self._times.reach_end(topic, partition)
        known = self._partition(place)
        if known.at_end_since_s is None:
            known.at_end_since_s = self._env.monotonic_s()
        if known.next < offset or self._position.next_offset(*place) < 0:
            # Also of a partition that is empty: what expires in it before it is read is missed then.
            known.next = max(known.next, offset)
            self._position.forget_epoch(topic, partition)
            self._has_moved = True
            self._advance(place, None)

    def _take_end(self, place: Place, message: KafkaMessage) -> None:
        if message.value is None:
            return
        _, value = self._reader.read(message.value)
        end = read_end(value, message, self._env.monotonic_s())
        if end is None:
            return
        self._moments.take_end(end)
        self._ends[place].append(end)
        self._count_end(end, 1)

    def _count_end(self, end: TransactionEnd, number: int) -> None:
        self._ending[end.id] += number
        if not self._ending[end.id]:
            del self._ending[end.id]

    def _learn(self, topic: str, collections: Sequence[str]) -> None:
        """Know which tables a topic has, also after a restart where its name does not say so."""
        for collection in collections:
            known = self._topics_of.setdefault(collection, set())
            if topic in known:
                continue
            known.add(topic)
            if not any(topic.endswith(f".{one}") for one in collections):
                self._position.topics.setdefault(topic, TopicPosition()).collections.append(collection)

    def _take_change(self, place: Place, message: KafkaMessage, change: MessageChange) -> None:
        self._moments.take(message, change)
        self._learn(message.topic, change.collections)
        partition = self._partition(place)
        name = change.transaction
        if name is None and not partition.open:
            self._loose.append(change)
            self._loose_bytes += message.size_bytes
            self._loose_at = message.place
            return
        # A message of no transaction keeps its place in its partition: those before it are handed over first.
        name = self._name(name, place, change.total_order) if name is not None else f"\0{message.place}"
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = PendingEvents(change.transaction, self._env.monotonic_s())
        part = pending.parts.get(place)
        if part is None:
            part = pending.parts[place] = EventPart(message.offset, SpooledChanges(self._bytes_max))
            partition.open[name] = message.offset
        part.newest = change.total_order
        held = part.changes.memory_bytes
        part.changes.add(change, message.size_bytes)  # type: ignore[arg-type] # it keeps whatever can be pickled
        self._bytes += part.changes.memory_bytes - held
        part.orders.append(change.total_order)
        part.counts.update(change.collections)
        pending.read_at_s = self._env.monotonic_s()
        pending.newest_ms = max(pending.newest_ms, NEVER_MS if message.timestamp_ms is None else message.timestamp_ms)
        if isinstance(change.change, RowChange):
            tables = pending.tables.setdefault(message.topic, [])
            if not tables or tables[-1] is not change.change.table:
                tables.append(change.change.table)

    def _name(self, identifier: str, place: Place, order: int) -> str:
        """Under which name an event waits. One that comes again, before the first is handed over, has another."""
        names = self._sent.setdefault(identifier, [])
        at = 0
        for number, name in enumerate(names):
            part = self._pending[name].parts.get(place)
            if part is not None:
                at = number + 1 if order and order <= part.newest else number
        if at == len(names):
            self._serial += 1
            names.append(f"{identifier}\0{self._serial}")
        return names[at]

    # ---- what is handed over

    def finished(self) -> Iterator[SourceTransaction]:
        """See `MessageAssembler`."""
        while (end := self._next_end()) is not None:
            is_whole = not self._missing(end)
            if not is_whole and not self._is_overdue(end):
                break
            yield from self._flush_loose()
            yield self._release(end, is_whole=is_whole)
        self._release_orphans()
        yield from self._flush_loose()
        if self._has_moved:
            self._has_moved = False
            yield self._made([], None, is_consistent=True if self._is_idle() and self._moments.is_settled() else None)
        elif self._position.is_unsettled and self._is_idle() and self._moments.is_settled():
            yield self._made([], None, is_consistent=True)

    def wanted(self) -> frozenset[Place] | None:
        """See `MessageAssembler`. Above the limit of memory, those alone that the oldest transaction waits for."""
        if self._bytes > self._bytes_max:
            self._bytes -= spill_largest(self._pending.values(), bytes_max=self._bytes_max, wanted=self._bytes - self._bytes_max // 2)
        if self._bytes <= self._bytes_max:
            return None
        found = {place for place, ends in self._ends.items() if not ends}
        end = self._next_end()
        if end is not None:
            found |= {place for collection in self._missing(end) for place in self._places_of(collection)}
        return frozenset(found)

    def _release(self, end: TransactionEnd, *, is_whole: bool) -> SourceTransaction:
        """Hand over a transaction, after what comes before it in its partitions."""
        self._has_moved = False
        missing = self._missing(end)
        for ends in self._ends.values():
            if ends and ends[0] is end:
                ends.popleft()
        self._count_end(end, -1)
        self._ended_at_ms = max(self._ended_at_ms, end.number[0])
        names = self._needed(end)
        first = {place: part.first for name in reversed(names) for place, part in self._pending[name].parts.items()}
        changes, size_bytes = self._orphans_before(first, names)
        count = len(changes)
        tables: dict[str, list[SourceTable]] = {}
        streams: dict[Place, list[Iterator[tuple[int, Any]]]] = {}
        for name in names:
            pending = self._pending[name]
            size_bytes += pending.size_bytes
            for topic, found in pending.tables.items():
                tables.setdefault(topic, []).extend(found)
            for place, part in pending.parts.items():
                count += part.changes.count
                streams.setdefault(place, []).append(zip(part.orders, part.changes, strict=True))
            self._forget(name)
        self._advance_end()
        is_newest = self._moments.note_order(end.text)
        was_applied = self._applied.pop(end.id, None) is not None
        if not is_whole or changes or was_applied:
            self._moments.unsettle()
        if is_whole:
            self._moments.note_whole()
        else:
            said = "They were compacted, or filtered before the topic."
            logger.warning("The transaction %s came without events of %s. %s", end.text, ", ".join(missing), said)
        self._position.at = end.text
        notes = self._notes.begin([change.change for change in changes], tables)
        made = MergedChanges(changes, [chain(*one) for one in streams.values()], notes)
        is_consistent = is_newest and is_whole and self._moments.is_settled()
        return SourceTransaction(
            position=self._position.stored(),
            mark=end.text,
            changes=made,
            count=count,
            size_bytes=size_bytes,
            committed_at_ms=end.committed_at_ms,
            is_consistent=is_consistent,
        )

    def _flush_loose(self) -> Iterator[SourceTransaction]:
        """Hand over messages of no transaction."""
        self._collect_loose()
        if not self._loose:
            return
        changes, size_bytes = self._loose, self._loose_bytes
        self._has_moved = False
        self._loose, self._loose_bytes = [], 0
        self._position.at = place_text(self._loose_at, len(changes))
        self._moments.unsettle()
        yield self._made(changes, self._times.read_until_ms(), size_bytes=size_bytes, is_consistent=False)

    def _made(
        self, changes: Sequence[MessageChange], committed_at_ms: int | None, *, size_bytes: int = 0, is_consistent: bool | None
    ) -> SourceTransaction:
        noted: list[Change] = list(self._notes.with_schemas(changes))
        return SourceTransaction(
            position=self._position.stored(),
            changes=noted,
            count=sum(not isinstance(change, SchemaChanged) for change in noted),
            size_bytes=size_bytes,
            committed_at_ms=committed_at_ms,
            is_consistent=is_consistent,
        )

    # ---- whether a transaction is whole

    def _next_end(self) -> TransactionEnd | None:
        """The first end that was not handed over; None while one of a partition that has more messages may come before it."""
        if any(not ends and self._partitions[place].at_end_since_s is None for place, ends in self._ends.items()):
            return None
        return min((ends[0] for ends in self._ends.values() if ends), key=attrgetter("number"), default=None)

    def _missing(self, end: TransactionEnd) -> list[str]:
        """The tables of which events are missing. Those that no topic has are not followed."""
        return self._missing_in(end, self._sent.get(end.id, ()))

    def _missing_in(self, end: TransactionEnd, names: Sequence[str]) -> list[str]:
        # What a connector sends again in a partition begins with what it had sent.
        counts = dict(self._applied.get(end.id, {}))
        for name in names:
            for place, part in self._pending[name].parts.items():
                counts[place] = counts.get(place, Counter()) | part.counts
        found: Counter[str] = sum(counts.values(), Counter())
        return [name for name, number in end.collections.items() if found[name] < number and self._places_of(name)]

    def _needed(self, end: TransactionEnd) -> list[str]:
        """The names of the events that make a transaction whole: the first ones, and of those that came again no more than that."""
        names = self._sent.get(end.id, [])
        for number in range(1, len(names)):
            if not self._missing_in(end, names[:number]):
                return names[:number]
        return list(names)

    def _is_ending(self, name: str) -> bool:
        """Whether the end of events that wait was read."""
        identifier = self._pending[name].id
        return identifier is not None and self._sent[identifier].index(name) < self._ending[identifier]

    def _places_of(self, collection: str) -> list[Place]:
        """The partitions that have the events of a table: by what was read, and by Debezium's names of topics."""
        learned = self._topics_of.get(collection, ())
        suffix = f".{collection}"
        return [place for place in self._partitions if place[0] in learned or place[0].endswith(suffix)]

    def _is_overdue(self, end: TransactionEnd) -> bool:
        """Whether the events that are missing will not come: their partitions have later ones, or were silent for long."""
        return all(self._has_no_more(place, end) for name in self._missing(end) for place in self._places_of(name))

    def _has_no_more(self, place: Place, end: TransactionEnd) -> bool:
        partition = self._partitions[place]
        if any(self._pending[name].id != end.id and self._is_ending(name) for name in partition.open):
            return True
        now_s = self._env.monotonic_s()
        since_s = partition.at_end_since_s
        return since_s is not None and now_s - max(since_s, end.read_at_s) >= self._wait_s

    # ---- changes of no transaction, and of those whose end is not there

    def _orphans_before(self, first: Mapping[Place, int], names: Sequence[str]) -> tuple[list[MessageChange], int]:
        """What comes before a transaction in its partitions: its end is gone, or the connector sends transactions again.

        Events of a partition are handed over in their order, whatever the order of the ends is: so the last one of a key counts.

        Args:
            first: the first offset of the transaction by partition.
            names: of its events.

        Returns:
            Its changes, and about how many bytes they take.
        """
        changes: list[MessageChange] = []
        size_bytes = 0
        for place, offset in first.items():
            for name, other in list(self._partitions[place].open.items()):
                if other >= offset:
                    break
                if name in names:
                    continue
                if self._is_ending(name):
                    # Its own end will not wait for what is handed over now.
                    counted = self._applied.setdefault(str(self._pending[name].id), {})
                    counted[place] = counted.get(place, Counter()) | self._pending[name].parts[place].counts
                found, found_bytes = self._take_part(name, place)
                changes += found
                size_bytes += found_bytes
        return changes, size_bytes

    def _collect_loose(self) -> None:
        """Take messages of no transaction that are the first ones of their partitions now."""
        for place, partition in self._partitions.items():
            while partition.open:
                name = next(iter(partition.open))
                if self._pending[name].id is not None:
                    break
                self._take_loose(name, place)

    def _release_orphans(self) -> None:
        """Take events whose end does not come: the end of a much later transaction was read, or all was silent for long."""
        if not self._pending:
            return
        now_s = self._env.monotonic_s()
        since_s = [self._partitions[place].at_end_since_s for place in self._ends]
        is_silent = not any(self._ends.values()) and all(since is not None and now_s - since >= self._wait_s for since in since_s)
        end = self._next_end()
        passed_ms = max(self._ended_at_ms, -1 if end is None else end.number[0]) - self._wait_s * 1000
        taken: dict[str, None] = {}
        for place, partition in self._partitions.items():
            while partition.open:
                name = next(iter(partition.open))
                pending = self._pending[name]
                is_late = is_silent and now_s - pending.read_at_s >= self._wait_s
                if not is_late and (pending.newest_ms >= passed_ms or self._is_ending(name)):
                    break
                taken[str(pending.id)] = None
                self._take_loose(name, place)
        if taken:
            said = "came, and their ends did not. They are written without them."
            logger.warning("Events of %d transactions, the first one %s, %s", len(taken), next(iter(taken)), said)

    def _take_loose(self, name: str, place: Place) -> None:
        self._loose_at = name.strip("\0").split("\0")[0]
        changes, size_bytes = self._take_part(name, place)
        self._loose += changes
        self._loose_bytes += size_bytes

    def _take_part(self, name: str, place: Place) -> tuple[list[MessageChange], int]:
        """The changes of a transaction in one partition, and about how many bytes they take. They are no longer open."""
        part = self._pending[name].parts.pop(place)
        changes: list[Any] = list(part.changes)
        self._bytes -= part.changes.memory_bytes
        if not self._pending[name].parts:
            self._unname(name)
        del self._partitions[place].open[name]
        self._advance(place, None)
        return changes, part.changes.size_bytes

    def _forget(self, name: str) -> None:
        pending = self._unname(name)
        self._bytes -= pending.memory_bytes
        for place in pending.parts:
            del self._partitions[place].open[name]
            self._advance(place, None)

    def _unname(self, name: str) -> PendingEvents:
        pending = self._pending.pop(name)
        if pending.id is not None:
            self._sent[pending.id].remove(name)
            if not self._sent[pending.id]:
                del self._sent[pending.id]
        return pending

    # ---- positions

    def _partition(self, place: Place) -> PartitionProgress:
        known = self._partitions.get(place)
        if known is None:
            known = self._partitions[place] = PartitionProgress(max(0, self._position.next_offset(*place)))
            if place[0] == self._topic:
                self._ends[place] = deque()
        return known

    def _advance(self, place: Place, epoch: int | None) -> None:
        """The position of a partition is its first event that was not handed over."""
        partition = self._partitions[place]
        if place[0] == self._topic:
            self._advance_end()
            return
        self._position.advance(*place, next(iter(partition.open.values()), partition.next), epoch)

    def _advance_end(self) -> None:
        for place, ends in self._ends.items():
            self._position.advance(*place, ends[0].offset if ends else self._partitions[place].next)

    def _is_idle(self) -> bool:
        """Whether everything that can be read was handed over."""
        return (
            not any(self._ends.values())
            and not self._pending
            and bool(self._partitions)
            and all(partition.at_end_since_s is not None for partition in self._partitions.values())
        )
