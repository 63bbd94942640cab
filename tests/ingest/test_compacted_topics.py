"""Compacted topics over time: when deletes may be gone, and how often the position says that they were read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fileio.testing.env import FakeEnv
from objcat.errors import PositionGone
from objcat.ingest.kafka.compacted import CompactedTopics, MissedDeletes
from objcat.ingest.kafka.message import KafkaMessage
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.kafka.topic_reader import TopicReader
from objcat.ingest.spark_topics import _Reading

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


def spark_reads(world: World, *, messages_max: int = 100, skips: bool = False) -> list[int]:
    """What one call of `ingest_topics` does with positions. Returns how many notes of missed deletes each commit has."""
    cluster: Any = SimpleNamespace(
        delete_retentions_ms=lambda topics: {name: world.kept[name] for name in topics if name in world.kept},
        offsets=lambda places, *, newest, committed=True: {place: world.ends[place] if newest else 0 for place in places},
        topic_ids=lambda topics: dict.fromkeys(topics, "x"),
        heads=lambda topics: {"items": {str(number): world.ends["items", number] for number in (0, 1)}},
    )
    config: Any = SimpleNamespace(name="shop", path="shop.toml")
    settings: Any = SimpleNamespace(registry=None, transactions=None, unsafe_skip_expired=skips)
    nothing: Any = None
    read = TopicReader(config, settings, nothing, cluster, world.env, read_topics=dict, describe=lambda _: None)
    tables: Any = SimpleNamespace(state=SimpleNamespace(position=world.position.stored()), has_changed=False, check_restored=lambda: None)
    source: Any = SimpleNamespace(cluster=cluster, describe=None, reader=lambda: read, read_topics=dict)
    notes: list[int] = []

    class Commits(_Reading):
        def _take_requests(self) -> None:
            pass

        def _read(self, reader: TopicReader, batch: Any) -> None:
            notes.append(len(batch.expired))
            tables.state.position = batch.position.stored()
            world.position = batch.position

    Commits(config, settings, nothing, nothing, source, nothing, tables, {}, world.env).run(messages_max)
    return notes


def test_spark_notices_deletes_that_a_compaction_may_have_removed() -> None:
    world = World()
    world.write(ITEMS, 5)
    assert spark_reads(world) == [0] and world.read_ms == world.env.now_ms()
    began_ms = world.env.now_ms()
    world.env.advance(HOUR_S)
    assert spark_reads(world) == [] and world.read_ms == began_ms, "it is stored now and then"
    world.env.advance(2 * HOUR_S)
    assert spark_reads(world) == [0] and world.read_ms == world.env.now_ms()
    world.env.advance(25 * HOUR_S)
    assert world.begin() == [] and spark_reads(world) == [0], "nothing was written"
    world.env.advance(25 * HOUR_S)
    world.write(OTHER, 4)
    assert len(world.begin()) == 1, "a single process notices what Spark stored"
    with pytest.raises(PositionGone, match=r"forgets deletes after 24\.00 hours.*25\.00 hours ago"):
        spark_reads(world)
    assert spark_reads(world, skips=True, messages_max=2) == [1, 0] and world.read_ms == world.env.now_ms()
    assert spark_reads(world) == []
