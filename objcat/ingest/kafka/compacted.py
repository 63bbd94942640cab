"""`CompactedTopics`: notices where a compaction may have removed deletes that were not read.

A compacted topic keeps the mark of a deleted key for `delete.retention.ms` only. Who reads later than that finds neither the row nor the
mark, and keeps the row. So the position has, for each compacted topic, the time up to which all that was deleted there was read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from fileio.env import Env
from objcat.ingest.kafka.cluster import KafkaCluster
from objcat.ingest.kafka.message import KafkaMessage
from objcat.ingest.kafka.position import BEGINNING, KafkaPosition

STORED_SHARE = 10
"""A topic in which nothing happens is stored again after this part of its `delete.retention.ms`."""
UPDATE_S = 1.0


@dataclass(frozen=True, slots=True)
class MissedDeletes:
    """A partition of which deletes may be gone: those that came in the last `passed_ms`, behind the offset `at`."""

    topic: str
    partition: int
    at: int
    passed_ms: int
    keeps_ms: int

    @property
    def said(self) -> str:
        """What that means, as the end of a sentence."""
        passed_h, kept_h = ((time / 3_600_000) for time in (self.passed_ms, self.keeps_ms))
        return (
            f"is compacted, and forgets deletes after {kept_h:,.2f} hours (delete.retention.ms). It was last read to its end "
            f"{passed_h:,.2f} hours ago, so deletes that came since may be gone"
        )


class CompactedTopics:
    """Which topics are compacted, and how far their deletes were read. For one thread.

    Args:
        cluster: is asked for the settings of topics.
        env: the clock.
    """

    def __init__(self, cluster: KafkaCluster, env: Env) -> None:
        self._cluster = cluster
        self._env = env
        self._keeps_ms: dict[str, int] = {}
        self._read_ms: dict[tuple[str, int], int] = {}
        self._at_end: dict[tuple[str, int], int] = {}
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        self._told_ms: dict[str, int] = {}
        self._updated_s = -math.inf

    def follow(self, places: Collection[tuple[str, int]], position: KafkaPosition) -> Iterator[MissedDeletes]:
        """Partitions are read from now on, from where the position says. Raises SourceAway, SourceUnfit.

        Yields:
            Those of which deletes may be gone.
        """
        self._keeps_ms |= self._cluster.delete_retentions_ms({topic for topic, _ in places})
        mine = sorted(place for place in places if place[0] in self._keeps_ms)
        known = [place for place in mine if position.next_offset(*place) != BEGINNING]
        ends = self._cluster.offsets(known, newest=True, committed=False) if known else {}
        now_ms = self._env.now_ms()
        for topic, partition in mine:
            stored, keeps_ms = position.topics.get(topic), self._keeps_ms[topic]
            read_ms = None if stored is None else stored.read_ms
            at = position.next_offset(topic, partition)
            if at == BEGINNING or read_ms is None:
                # What is deleted from now on is read in time, or noticed.
                self._read_ms[topic, partition] = now_ms
                continue
            self._read_ms[topic, partition] = read_ms
            if now_ms - read_ms > keeps_ms and at < ends.get((topic, partition), at):
                yield MissedDeletes(topic, partition, at, now_ms - read_ms, keeps_ms)
                self._read_ms[topic, partition] = now_ms

    def take(self, message: KafkaMessage) -> None:
        """A message was read."""
        place = (message.topic, message.partition)
        if place in self._read_ms:
            self._at_end.pop(place, None)
            if message.timestamp_ms is not None:
                self._newest[place] = (message.offset + 1, message.timestamp_ms)

    def reach_end(self, topic: str, partition: int, offset: int) -> None:
        """A partition has no more messages now."""
        if (topic, partition) in self._read_ms:
            self._at_end[topic, partition] = offset
            self._updated_s = -math.inf

    def leave(self, places: Iterable[tuple[str, int]]) -> None:
        """Partitions are read no longer."""
        for place in places:
            for held in (self._read_ms, self._at_end, self._newest):
                held.pop(place, None)

    def update(self, position: KafkaPosition) -> bool:
        """Let the position say how far deletes were read. Returns whether that has to be stored, also where nothing else has changed."""
        now_s, now_ms = self._env.monotonic_s(), self._env.now_ms()
        if not self._read_ms or now_s - self._updated_s < UPDATE_S:
            return False
        self._updated_s = now_s
        oldest: dict[str, int] = {}
        for place in self._read_ms:
            self._read_ms[place] = max(self._read_ms[place], self._passed_ms(place, position, now_ms))
            oldest[place[0]] = min(oldest.get(place[0], now_ms), self._read_ms[place])
        has_to_be_stored = False
        for topic, read_ms in oldest.items():
            stored = position.topics.get(topic)
            if stored is None:
                continue
            told_ms = self._told_ms.setdefault(topic, stored.read_ms or 0)
            stored.read_ms = read_ms
            if read_ms - told_ms > self._keeps_ms[topic] // STORED_SHARE:
                self._told_ms[topic] = read_ms
                has_to_be_stored = True
        return has_to_be_stored

    def _passed_ms(self, place: tuple[str, int], position: KafkaPosition, now_ms: int) -> int:
        """Up to when everything before the position of a partition says what was deleted. Messages that wait do not count."""
        at = position.next_offset(*place)
        if (end := self._at_end.get(place)) is not None and at >= end:
            return now_ms
        newest = self._newest.get(place)
        return min(newest[1], now_ms) if newest is not None and at >= newest[0] else 0
