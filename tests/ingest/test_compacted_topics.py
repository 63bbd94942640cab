"""Compacted topics over time: when deletes may be gone, and how often the position says that they were read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fileio.testing.env import FakeEnv
from objcat.ingest.kafka.compacted import CompactedTopics, MissedDeletes
from objcat.ingest.kafka.message import KafkaMessage
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition

HOUR_S = 3600
KEPT_MS = 24 * HOUR_S * 1000
ITEMS, OTHER = ("items", 0), ("items", 1)


class World:
    """Two partitions of a topic, and a reader that ends and begins."""

    def __init__(self, *, kept_ms: int | None = KEPT_MS) -> None:
        self.env = FakeEnv()
        self.ends = {ITEMS: 0, OTHER: 0}
        self.position = KafkaPosition(at="beginning", topics={"items": TopicPosition(id="x")})
        self.kept = {} if kept_ms is None else {"items": kept_ms}
        self.begin()

    def begin(self) -> list[MissedDeletes]:
        """Another process. Returns what it misses."""
        cluster: Any = SimpleNamespace(
            delete_retentions_ms=lambda topics: {name: self.kept[name] for name in topics if name in self.kept},
            offsets=lambda places, *, newest, committed: {place: self.ends[place] for place in places},
        )
        self.reader = CompactedTopics(cluster, self.env)
        return list(self.reader.follow({ITEMS, OTHER}, self.position))

    def write(self, place: tuple[str, int], count: int = 1) -> None:
        self.ends[place] += count

    def read(self, place: tuple[str, int], *, is_handed_over: bool = True) -> None:
        """Read a partition to its end."""
        for offset in range(max(0, self.position.next_offset(*place)), self.ends[place]):
            self.reader.take(KafkaMessage(*place, offset, b"k", b"v", self.env.now_ms() - 10_000))
        self.reader.reach_end(*place, self.ends[place])
        if is_handed_over:
            self.position.advance(*place, self.ends[place])

    def read_all(self) -> bool:
        """Read both. Returns whether the position has to be stored although nothing else came."""
        self.read(ITEMS)
        self.read(OTHER)
        return self.reader.update(self.position)

    @property
    def read_ms(self) -> int | None:
        return self.position.topics["items"].read_ms


def test_a_pause_that_is_longer_than_deletes_are_kept_is_noticed_where_the_topic_moved_on() -> None:
    world = World()
    world.write(ITEMS, 5)
    assert world.read_all() and world.read_ms == world.env.now_ms()
    world.env.advance(23 * HOUR_S)
    world.write(ITEMS)
    assert world.begin() == [], "deletes are still there"
    world.read_all()
    world.env.advance(25 * HOUR_S)
    assert world.begin() == [], "nothing was written"
    world.write(OTHER)
    (missed,) = world.begin()
    assert (missed.topic, missed.partition, missed.at) == ("items", 1, 0)
    assert "24.00 hours" in missed.said and "25.00 hours ago" in missed.said
    world.read_all()
    assert world.begin() == [], "it was read on, on request"


def test_a_partition_that_is_behind_says_how_far_all_are() -> None:
    world = World()
    world.write(ITEMS)
    world.write(OTHER)
    world.read_all()
    began_ms = world.env.now_ms()
    world.write(OTHER, 3)
    world.env.advance(HOUR_S)
    world.read(ITEMS)
    world.read(OTHER, is_handed_over=False)
    world.reader.update(world.position)
    assert world.read_ms == began_ms, "what waits to be handed over is read again after a restart"
    world.position.advance(*OTHER, world.ends[OTHER])
    world.env.advance(2)
    world.reader.update(world.position)
    assert world.read_ms == world.env.now_ms()


def test_a_reader_that_is_always_behind_goes_by_the_times_of_messages() -> None:
    world = World()
    world.write(ITEMS, 4)
    world.read_all()
    for _ in range(5):
        world.env.advance(20 * HOUR_S)
        world.write(ITEMS, 2)
        world.reader.take(KafkaMessage(*ITEMS, world.ends[ITEMS] - 2, b"k", None, world.env.now_ms() - HOUR_S * 1000))
        world.position.advance(*ITEMS, world.ends[ITEMS] - 1)
        world.read(OTHER)
        world.reader.update(world.position)
        assert world.read_ms == world.env.now_ms() - HOUR_S * 1000 and world.begin() == []


def test_a_calm_topic_is_stored_now_and_then() -> None:
    world = World()
    world.write(ITEMS)
    world.read_all()
    stored = 0
    for _ in range(48):
        world.env.advance(HOUR_S / 2)
        stored += world.reader.update(world.position)
    assert 8 <= stored <= 10, "a tenth of the time that deletes are kept"


def test_a_topic_that_is_not_compacted_has_no_such_time() -> None:
    world = World(kept_ms=None)
    world.write(ITEMS)
    assert not world.read_all() and world.read_ms is None
    world.env.advance(1000 * HOUR_S)
    world.write(ITEMS)
    assert world.begin() == []
