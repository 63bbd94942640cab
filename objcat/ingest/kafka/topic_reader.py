"""`TopicReader`: reads the partitions of all topics, decodes their messages, and notices what would be missed in silence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fileio.env import Env
from objcat.errors import IngestStopped, PositionGone
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.batches import MessageAssembler, MessageBatches, SchemaNotes, bad_message
from objcat.ingest.kafka.cluster import KafkaCluster, TopicInfo
from objcat.ingest.kafka.compacted import CompactedTopics
from objcat.ingest.kafka.decoders import UNREADABLE, DecoderFactory, MessageDecoder
from objcat.ingest.kafka.message import KafkaMessage, MessageChange, Unreadable
from objcat.ingest.kafka.position import BEGINNING, KafkaPosition, TopicPosition
from objcat.ingest.kafka.settings import KafkaSettings
from objcat.ingest.kafka.transactions import TransactionAssembler
from objcat.ingest.model import SourceTable, SourceTransaction, TableTruncated
from objcat.ingest.routes import Router

logger = logging.getLogger("objcat")

BATCH_MESSAGES = 2_000
"""So many messages are decoded, and checked to be of the same topics, at once."""
WAIT_S = 0.05
OFFSET_BEGINNING = -2


class TopicReader:
    """Reads the topics of one stream. For one thread.

    Args:
        config, settings, router, cluster: of the ingest.
        env: the clock.
        read_topics: gives the topics that are to be read now.
        describe: is told of each schema of rows.
    """

    def __init__(
        self,
        config: IngestConfig,
        settings: KafkaSettings,
        router: Router,
        cluster: KafkaCluster,
        env: Env,
        *,
        read_topics: Callable[[], Mapping[str, TopicInfo]],
        describe: Callable[[SourceTable], None],
    ) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._cluster = cluster
        self._env = env
        self._read_topics = read_topics
        self._notes = SchemaNotes(describe)
        self._factory = DecoderFactory(config, settings, env)
        self._decoders: dict[str, MessageDecoder] = {}
        self._assigned: set[tuple[str, int]] = set()
        self._paused: set[tuple[str, int]] = set()
        self._followed_at_s = 0.0
        self._compacted = CompactedTopics(cluster, env)
        self._known: Callable[[str], TopicPosition] = lambda _topic: TopicPosition()

    def transactions(self, position: KafkaPosition, *, is_closed: Callable[[], bool]) -> Iterator[SourceTransaction]:
        """The stream after a position, see `ChangeSource.transactions`."""
        self._known = lambda topic: position.topics.setdefault(topic, TopicPosition())
        if position.truncate:
            yield self.truncation(position)
        assembler = self._assembler(position)
        consumer = self._cluster.consumer()
        try:
            self._follow(consumer, position, assembler)
            while not is_closed():
                self._read(consumer, position, assembler)
                has_to_be_stored = self._compacted.update(position)
                yield from assembler.finished()
                if has_to_be_stored:
                    yield SourceTransaction(position=position.stored(), is_consistent=None)
                self._pause(consumer, assembler)
                if self._env.monotonic_s() - self._followed_at_s >= min(self._config.run.discover_s, 30.0) or self._has_joined():
                    self._follow(consumer, position, assembler)
        finally:
            consumer.close()

    # ---- messages

    def _read(self, consumer: Any, position: KafkaPosition, assembler: MessageAssembler) -> None:
        """Read and decode some messages."""
        with self._cluster.errors("reading messages"):
            found = consumer.consume(1 if self._config.is_careful else BATCH_MESSAGES, WAIT_S)
        if not found:
            self._cluster.check_error()
            return
        self.check_ids({message.topic() for message in found}, position)
        for message in found:
            error = message.error()
            if error is not None:
                self._take_error(consumer, message, error, position, assembler)
            else:
                self._take(_message(message), assembler)

    def _take(self, message: KafkaMessage, assembler: MessageAssembler) -> None:
        if (message.topic, message.partition) not in self._assigned:
            return
        self._compacted.take(message)
        try:
            changes = tuple(self._decode(message))
        except UNREADABLE as error:
            changes = (bad_message(message, f"{message.place}: {error}"),)
        if any(isinstance(change.change, TableTruncated) for change in changes):
            changes = self._truncations(message, changes)
        try:
            assembler.take(message, changes)
        except Unreadable as error:
            raise IngestStopped(
                f"The topic {message.topic!r} of transactions has a message at {message.place} that cannot be read: {error}. Nothing was "
                "left out. Correct `transactions` in [source], or leave it out."
            ) from error

    def _truncations(self, message: KafkaMessage, changes: tuple[MessageChange, ...]) -> tuple[MessageChange, ...]:
        """Truncations as the settings want them. Raises IngestStopped where their order is not known."""
        if self._settings.truncates == "ignore":
            return tuple(change for change in changes if not isinstance(change.change, TableTruncated))
        others = [place for place in self._assigned if place[0] == message.topic]
        # An event may name its transaction without a topic that says where that ends.
        has_order = self._settings.transactions is not None and all(change.transaction is not None for change in changes)
        if not has_order and len(others) > 1:
            raise IngestStopped(
                f"The topic {message.topic!r} has a truncation at {message.place}, and {len(others)} partitions, so which rows "
                "came before it is not known. It was not applied. Let Debezium write transaction metadata, and name its topic by "
                "`transactions` in [source]. "
                'Or set truncates = "ignore".'
            )
        return changes

    def _decode(self, message: KafkaMessage) -> Iterator[MessageChange]:
        if message.topic == self._settings.transactions:
            return
        decoder = self._decoders.get(message.topic)
        if decoder is None:
            key, known = self._router.key_of(message.topic), self._known(message.topic)
            decoder = self._decoders[message.topic] = self._factory.open(message.topic, key, known)
        yield from decoder.decode(message)

    def _take_error(self, consumer: Any, message: Any, error: Any, position: KafkaPosition, assembler: MessageAssembler) -> None:
        topic, partition = message.topic(), message.partition()
        if self._cluster.is_code(error, "_PARTITION_EOF"):
            assembler.reach_end(topic, partition, message.offset())
            self._compacted.reach_end(topic, partition, message.offset())
        elif self._cluster.is_truncation(error):
            raise self._gone(topic, partition, "was cut back behind what was read of it, and written again")
        elif self._cluster.is_code(error, "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            # Messages that were taken may wait to be handed over, so the position says less than what was read.
            self.check_offsets({(topic, partition): assembler.next_offset(topic, partition)}, position, assembler)
            # The offset is there after all, or messages were left out on request.
            self._seek(consumer, topic, partition, assembler.next_offset(topic, partition))
        elif self._cluster.is_unknown(error):
            # The topic was deleted. Its table is set aside, and a topic with its name and another id is noticed.
            self._followed_at_s = 0.0
        elif not self._cluster.is_code(error, "_ALL_BROKERS_DOWN", "_TRANSPORT") or error.fatal():
            raise self._cluster.failure(error, f"reading {topic}/{partition}")

    def _seek(self, consumer: Any, topic: str, partition: int, offset: int) -> None:
        """Read a partition from an offset on. After an error of its offset it is stopped, so that a seek alone is refused."""
        kafka = self._cluster.kafka
        with self._cluster.errors("choosing partitions"):
            consumer.incremental_unassign([kafka.TopicPartition(topic, partition)])
            consumer.incremental_assign([kafka.TopicPartition(topic, partition, offset)])
        self._paused.discard((topic, partition))

    # ---- partitions

    def _has_joined(self) -> bool:
        return any((name, number) not in self._assigned for name, info in self._read_topics().items() for number in info.partitions)

    def _follow(self, consumer: Any, position: KafkaPosition, assembler: MessageAssembler) -> None:
        """Read the partitions that there are now, from where the position says."""
        topics = self._read_topics()
        self.check_ids(set(topics), position)
        wanted = {(name, number) for name, info in topics.items() for number in info.partitions}
        joined, left = wanted - self._assigned, self._assigned - wanted
        self.check_offsets({one: position.next_offset(*one) for one in joined}, position, assembler)
        self.check_deletes({one for one in joined if one[0] != self._settings.transactions}, position, assembler)
        self._compacted.leave(left)
        kafka = self._cluster.kafka
        with self._cluster.errors("choosing partitions"):
            if left:
                consumer.incremental_unassign([kafka.TopicPartition(*one) for one in left])
            if joined:
                consumer.incremental_assign([self._start(position, *one) for one in sorted(joined)])
        self._assigned = wanted
        assembler.follow(wanted)
        self._paused -= left
        self._followed_at_s = self._env.monotonic_s()

    def _start(self, position: KafkaPosition, topic: str, partition: int) -> Any:
        known = position.topics.get(topic)
        offset = position.next_offset(topic, partition)
        start = self._cluster.kafka.TopicPartition(topic, partition, OFFSET_BEGINNING if offset == BEGINNING else offset)
        epoch = -1 if known is None else known.epochs.get(str(partition), -1)
        if offset != BEGINNING and epoch >= 0:
            # By it the client notices a log that was cut back and written again.
            return self._cluster.kafka.TopicPartition(topic, partition, offset, leader_epoch=epoch)
        return start

    def _pause(self, consumer: Any, assembler: MessageAssembler) -> None:
        """Stop reading partitions that are ahead of the others, and go on with those that are needed."""
        wanted = assembler.wanted()
        paused = set() if wanted is None else self._assigned - wanted
        if paused == self._paused:
            return
        kafka = self._cluster.kafka
        with self._cluster.errors("choosing partitions"):
            stop, go = paused - self._paused, (self._paused - paused) & self._assigned
            if stop:
                consumer.pause([kafka.TopicPartition(*one) for one in stop])
            if go:
                consumer.resume([kafka.TopicPartition(*one) for one in go])
        self._paused = paused

    # ---- what is gone

    def check_ids(self, topics: set[str], position: KafkaPosition) -> None:
        """Check that topics are those that were read before. A topic that was deleted and made again has another id.

        It is asked after messages were read, so that all of them are of the topics that are known.
        """
        for name, found in self._cluster.topic_ids(sorted(topics)).items():
            known = position.topics.setdefault(name, TopicPosition(id=found))
            if known.id and found and known.id != found:
                raise PositionGone(
                    f"The topic {name!r} of {self._config.name!r} was deleted and made again since it was read. What the deleted one had "
                    f"is in the lake, and of the new one nothing was read. Run {self._again(name)} from its beginning. Then start the "
                    "ingest again."
                )
            known.id = known.id or found

    def check_offsets(self, offsets: Mapping[tuple[str, int], int], position: KafkaPosition, assembler: MessageAssembler) -> None:
        """Check that what follows the offsets of partitions is still there. Raises PositionGone."""
        known = {one for one, offset in offsets.items() if offset != BEGINNING}
        oldest = self._cluster.offsets(known, newest=False)
        newest = self._cluster.offsets(known, newest=True, committed=False)
        for topic, partition in sorted(known):
            at = offsets[topic, partition]
            first, end = oldest.get((topic, partition)), newest.get((topic, partition))
            if first is None or end is None or first <= at <= end:
                continue
            if at > end:
                said = f"has messages up to {end:,}, and was read up to {at:,}: it was made again, or brokers lost messages"
            else:
                said = f"no longer has the messages from {at:,} to {first - 1:,}: they expired before they were read"
            if at > end or not self._settings.unsafe_skip_expired:
                raise self._gone(topic, partition, said)
            message = KafkaMessage(topic, partition, first - 1, None, None)
            position.topics[topic].has_gap = topic != self._settings.transactions
            self._followed_at_s = 0.0  # The assembler is told.
            why = f"the partition {partition} of the topic {topic!r} {said}. They are left out, as unsafe_skip_expired says."
            logger.warning("%s: %s", self._config.name, why)
            assembler.take(message, (bad_message(message, why),))
            position.forget_epoch(topic, partition)

    def check_deletes(self, joined: set[tuple[str, int]], position: KafkaPosition, assembler: MessageAssembler) -> None:
        """Check that deletes which came while nobody read are still there. Raises PositionGone."""
        for missed in self._compacted.follow(joined, position):
            topic, partition = missed.topic, missed.partition
            if not self._settings.unsafe_skip_expired:
                raise PositionGone(
                    f"The partition {partition} of the topic {topic!r} {missed.said}. Nothing was left out in the lake so far. Run "
                    f"{self._again(topic)} from its beginning. If rows may stay that were deleted, set unsafe_skip_expired = true in "
                    "[source]. Then start the ingest again. To be away for longer, raise delete.retention.ms of the topic."
                )
            message = KafkaMessage(topic, partition, missed.at - 1, None, None)
            position.topics[topic].has_gap = True
            why = f"the partition {partition} of the topic {topic!r} {missed.said}. It is read on, as unsafe_skip_expired says."
            logger.warning("%s: %s", self._config.name, why)
            assembler.take(message, (bad_message(message, why),))

    def _gone(self, topic: str, partition: int, said: str) -> PositionGone:
        return PositionGone(
            f"The partition {partition} of the topic {topic!r} {said}. Nothing was left out in the lake. If the topic has a message for "
            f"each row (a compacted topic, or a new snapshot of its connector), run {self._again(topic)} from its beginning. "
            "If expired messages may be missing, set unsafe_skip_expired = true in [source]. Then start the ingest again."
        )

    # ---- helpers

    def _again(self, topic: str) -> str:
        """The command that reads a topic again. That of transactions has no table of its own."""
        command = f"objcat ingest resnapshot {self._config.path}"
        if topic == self._settings.transactions:
            return f"`{command} --all`, which empties the tables and reads every topic"
        return f"`{command} {topic}`, which empties its table and reads the topic"

    def truncation(self, position: KafkaPosition) -> SourceTransaction:
        """Empty the tables whose topics are read again."""
        tables = [SourceTable(name=name, columns=(), key=self._router.key_of(name), has_schema=False) for name in position.truncate]
        position.truncate = []
        changes = [TableTruncated(table=table) for table in tables]
        return SourceTransaction(position=position.stored(), changes=changes, count=len(changes), is_consistent=False)

    def _assembler(self, position: KafkaPosition) -> MessageAssembler:
        topic = self._settings.transactions
        if topic is None:
            return MessageBatches(position, self._notes)
        return TransactionAssembler(
            position,
            topic,
            self._factory.transactions(),
            self._notes,
            heads=lambda: self._cluster.heads(self._read_topics()),
            bytes_max=self._config.run.transaction_bytes,
            wait_s=self._settings.transaction_wait_s,
            env=self._env,
        )


def _message(found: Any) -> KafkaMessage:
    kind, timestamp = found.timestamp()
    return KafkaMessage(
        found.topic(),
        found.partition(),
        found.offset(),
        found.key(),
        found.value(),
        timestamp if kind and timestamp >= 0 else None,
        tuple(found.headers() or ()),
        found.leader_epoch(),
    )
