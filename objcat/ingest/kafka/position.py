"""`KafkaPosition`: how far each partition was read, and of which topic, as a commit stores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from objcat.ingest.model import Position

AT, TOPICS = "at", "topics"
BEGINNING = -2
"""An offset that means the oldest message there is."""


class TopicPosition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One topic.

    Args:
        id: of the topic, empty where the brokers have none.
        next: by partition: the offset of the next message.
        epochs: by partition: the epoch of the leader that wrote the last message which was read. A log that was cut back shows by it.
        has_gap: whether messages were left out on request, so that its table lacks rows.
        collections: names that Debezium counts its events by.
        joined: by column that has a default: when the oldest row was committed that has it, in ms since 1970.
        deleted: by partition whose last message was a delete of Debezium: which one. The tombstone after it says nothing.
        read_ms: of a compacted topic: all that was deleted until then was read, in ms since 1970; None where that is not known.
    """

    id: str = ""
    next: dict[str, int] = msgspec.field(default_factory=dict)
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    has_gap: bool = False
    collections: list[str] = msgspec.field(default_factory=list)
    joined: dict[str, int] = msgspec.field(default_factory=dict)
    deleted: dict[str, str] = msgspec.field(default_factory=dict)
    read_ms: int | None = None


class SnapshotProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of snapshots of the source.

    Args:
        newest_at_ms: the time of the newest record of one that has a last row.
        ended_at_ms: the time of that last row, or of a transaction, which comes after it.
        is_incremental: whether rows came of one that has no last row.
    """

    newest_at_ms: int = -1
    ended_at_ms: int = -1
    is_incremental: bool = False

    @property
    def lacks_last(self) -> bool:
        """Whether a last row is to come. Rows of other partitions may be read after it: they were written before it."""
        return self.newest_at_ms > self.ended_at_ms

    @property
    def is_open(self) -> bool:
        """Whether a snapshot may be going on."""
        return self.lacks_last or self.is_incremental


class KafkaPosition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A position.

    Args:
        at: the last transaction or message, for people.
        topics: by name.
        newest: by the name of a sequence of transactions: the number of its newest one.
        is_unsettled: whether changes outside of transactions were applied, so that slots are not consistent.
        lacks_transactions: whether the connector did not say to which transactions its changes belong.
        settle: offsets that have to be passed before slots are consistent again: by topic and partition.
        snapshot: of the source.
        truncate: topics whose tables are emptied before anything is read.
    """

    at: str
    topics: dict[str, TopicPosition] = msgspec.field(default_factory=dict)
    newest: dict[str, int] = msgspec.field(default_factory=dict)
    is_unsettled: bool = False
    lacks_transactions: bool = False
    settle: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    snapshot: SnapshotProgress = msgspec.field(default_factory=SnapshotProgress)
    truncate: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, position: Position) -> KafkaPosition:
        """A position from what a commit stored."""
        return msgspec.convert(dict(position), cls)

    def stored(self) -> dict[str, Any]:
        """What a commit stores."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    def next_offset(self, topic: str, partition: int) -> int:
        """The offset of the next message of a partition, BEGINNING for one that was never read."""
        known = self.topics.get(topic)
        return BEGINNING if known is None else known.next.get(str(partition), BEGINNING)

    def advance(self, topic: str, partition: int, offset: int, epoch: int | None = None) -> None:
        """A partition was read up to an offset."""
        known = self.topics.setdefault(topic, TopicPosition())
        known.next[str(partition)] = offset
        if epoch is not None and epoch >= 0:
            known.epochs[str(partition)] = epoch

    def forget_epoch(self, topic: str, partition: int) -> None:
        """A partition was read beyond its last message: of which epoch that is, no message says."""
        known = self.topics.get(topic)
        if known is not None:
            known.epochs.pop(str(partition), None)

    def has_passed(self, target: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether it has come to all offsets of a target."""
        return not any(True for _ in self.behind(target))

    def behind(self, target: Mapping[str, Mapping[str, int]]) -> Iterable[int]:
        """How many offsets each partition is behind a target. Partitions that are not behind are left out."""
        for topic, offsets in target.items():
            known = self.topics.get(topic)
            for partition, offset in offsets.items():
                at = 0 if known is None else known.next.get(partition, 0)
                if at < offset:
                    yield offset - at
