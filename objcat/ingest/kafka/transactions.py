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
from objcat.ingest.kafka.batches import MessageTimes, SchemaNotes
from objcat.ingest.kafka.debezium import transaction_id
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.pending import EventPart, MergedChanges, PartitionProgress, PendingEvents, Place, TransactionEnd, sequence_number
from objcat.ingest.kafka.position import KafkaPosition
from objcat.ingest.kafka.readers import ValueReader
from objcat.ingest.model import Change, RowChange, SchemaChanged, SourceTable, SourceTransaction
from objcat.ingest.spooled_changes import SpooledChanges

logger = logging.getLogger("objcat")


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
        self._heads = heads
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
        self._topics_of: dict[str, set[str]] = {}
        # A snapshot whose last row was not seen may be going on.
        self._snapshot_at_s = env.monotonic_s() if position.snapshot.is_open else None

    # ---- what is read

    def follow(self, places: Collection[Place]) -> None:
        """See `MessageAssembler`."""
        for place in places:
            self._partition(place)
        for place in self._partitions.keys() - set(places):
            # A topic that is gone is waited for no longer.
            for name in list(self._partitions[place].open):
                self._take_loose(name, place)
            del self._partitions[place]
            self._ends.pop(place, None)

    def take(self, message: KafkaMessage, changes: Sequence[MessageChange]) -> None:
        """See `MessageAssembler`."""
        place = (message.topic, message.partition)
        self._times.take(message)
        partition = self._partition(place)
        partition.next = max(partition.next, message.offset + 1)
        partition.at_end_since_s = None
        self._has_moved = True
        if message.topic == self._topic:
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
        if known.next < offset:
            known.next = offset
            self._has_moved = True
            self._advance(place, None)

    def _take_end(self, place: Place, message: KafkaMessage) -> None:
        if message.value is None:
            return
        _, value = self._reader.read(message.value)
        if not isinstance(value, Mapping) or "status" not in value or "id" not in value:
            raise Unreadable("it is not a message of Debezium's transaction metadata")
        if value["status"] != "END":
            return
        text = str(value["id"])
        collections: dict[str, int] = {}
        for one in value.get("data_collections") or ():
            collections[str(one["data_collection"])] = int(one["event_count"])
        committed = value.get("ts_ms")
        numbered = sequence_number(text)
        end = TransactionEnd(
            transaction_id(text),
            text,
            (message.timestamp_ms or 0, 0 if numbered is None else numbered[1]),
            message.offset,
            collections,
            committed if isinstance(committed, int) else message.timestamp_ms,
            self._env.monotonic_s(),
        )
        self._ends[place].append(end)
        self._ending[end.id] += 1

    def _take_change(self, place: Place, message: KafkaMessage, change: MessageChange) -> None:
        self._note_snapshot(message, change)
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
        for collection in change.collections:
            self._topics_of.setdefault(collection, set()).add(message.topic)
        pending.read_at_s = self._env.monotonic_s()
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

    def _note_snapshot(self, message: KafkaMessage, change: MessageChange) -> None:
        if not change.is_snapshot:
            return
        at_ms = message.timestamp_ms or 0
        snapshot = self._position.snapshot
        if change.ends_snapshot:
            snapshot.ended_at_ms = max(snapshot.ended_at_ms, at_ms)
        # Rows of other partitions may be read after the last one. They were written before it.
        snapshot.is_open = at_ms > snapshot.ended_at_ms
        self._snapshot_at_s = self._env.monotonic_s() if snapshot.is_open else None

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
            yield self._made([], None, is_consistent=True if self._is_idle() and self._is_settled() else None)
        elif self._position.is_unsettled and self._is_idle() and self._is_settled():
            yield self._made([], None, is_consistent=True)

    def wanted(self) -> frozenset[Place] | None:
        """See `MessageAssembler`. Above the limit of memory, those alone that the oldest transaction waits for."""
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
        self._ending[end.id] -= 1
        names = self._needed(end)
        first = {place: part.first for name in reversed(names) for place, part in self._pending[name].parts.items()}
        changes = self._orphans_before(first, names)
        count, size_bytes = len(changes), 0
        tables: dict[str, list[SourceTable]] = {}
        streams: dict[Place, list[Iterator[tuple[int, Any]]]] = {}
        for name in names:
            pending = self._pending[name]
            size_bytes += pending.memory_bytes
            for topic, found in pending.tables.items():
                tables.setdefault(topic, []).extend(found)
            for place, part in pending.parts.items():
                count += part.changes.count
                streams.setdefault(place, []).append(zip(part.orders, part.changes, strict=True))
            self._forget(name)
        self._advance_end()
        is_newest = self._note_order(end.text)
        was_applied = self._applied.pop(end.id, None) is not None
        if not is_whole or changes or was_applied:
            self._position.is_unsettled = True
            self._position.settle = {}
        if not is_whole:
            said = "They were compacted, or filtered before the topic."
            logger.warning("The transaction %s came without events of %s. %s", end.text, ", ".join(missing), said)
        self._position.at = end.text
        notes = self._notes.begin([change.change for change in changes], tables)
        made = MergedChanges(changes, [chain(*one) for one in streams.values()], notes)
        is_consistent = is_newest and is_whole and self._is_settled()
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
        self._position.at = self._loose_at
        self._position.is_unsettled = True
        self._position.settle = {}
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

    def _orphans_before(self, first: Mapping[Place, int], names: Sequence[str]) -> list[MessageChange]:
        """What comes before a transaction in its partitions: its end is gone, or the connector sends transactions again.

        Events of a partition are handed over in their order, whatever the order of the ends is: so the last one of a key counts.

        Args:
            first: the first offset of the transaction by partition.
            names: of its events.
        """
        changes: list[MessageChange] = []
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
                changes += self._take_part(name, place)
        return changes

    def _collect_loose(self) -> None:
        """Take messages of no transaction that are the first ones of their partitions now."""
        for place, partition in self._partitions.items():
            while partition.open:
                name = next(iter(partition.open))
                if self._pending[name].id is not None:
                    break
                self._take_loose(name, place)

    def _release_orphans(self) -> None:
        """Take events whose end does not come: all was silent for long."""
        if any(self._ends.values()) or not self._pending:
            return
        now_s = self._env.monotonic_s()
        since_s = [self._partitions[place].at_end_since_s for place in self._ends]
        if any(since is None or now_s - since < self._wait_s for since in since_s):
            return
        for place, partition in self._partitions.items():
            for name in list(partition.open):
                if now_s - self._pending[name].read_at_s < self._wait_s:
                    break
                said = "came, and its end did not. They are written without it."
                logger.warning("Events of the transaction %s %s", self._pending[name].id, said)
                self._take_loose(name, place)

    def _take_loose(self, name: str, place: Place) -> None:
        self._loose_at = name.strip("\0").split("\0")[0]
        self._loose += self._take_part(name, place)

    def _take_part(self, name: str, place: Place) -> list[MessageChange]:
        """The changes of a transaction in one partition. They are no longer open."""
        part = self._pending[name].parts.pop(place)
        changes: list[Any] = list(part.changes)
        self._bytes -= part.changes.memory_bytes
        if not self._pending[name].parts:
            self._unname(name)
        del self._partitions[place].open[name]
        self._advance(place, None)
        return changes

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

    def _note_order(self, text: str) -> bool:
        """Whether no later transaction was handed over before. Otherwise the connector sends it again."""
        found = sequence_number(text)
        if found is None:
            return True
        name, number = found
        newest = self._position.newest.get(name, -1)
        self._position.newest[name] = max(newest, number)
        return number >= newest

    def _is_idle(self) -> bool:
        """Whether everything that can be read was handed over."""
        return (
            not any(self._ends.values())
            and not self._pending
            and bool(self._partitions)
            and all(partition.at_end_since_s is not None for partition in self._partitions.values())
        )

    def _is_settled(self) -> bool:
        """Whether slots are consistent: what was applied outside of transactions is followed by all that was there by then."""
        position = self._position
        if not position.is_unsettled:
            return True
        if self._snapshot_at_s is not None and self._env.monotonic_s() - self._snapshot_at_s < self._wait_s:
            return False
        if not position.settle:
            position.settle = self._heads()
        if not position.has_passed(position.settle):
            return False
        position.is_unsettled, position.settle = False, {}
        return True
