"""`KafkaSource`: topics of Kafka as a `ChangeSource`. Begin with `transactions`.

The position is the offset of every partition, in the commit with the rows. No consumer group is joined, and none is asked for offsets: a
message is written once, whatever the brokers remember of this reader.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fileio.env import Env
from objcat.ingest.config import IngestConfig
from objcat.ingest.kafka.cluster import KafkaCluster, TopicInfo
from objcat.ingest.kafka.compacted import STORED_SHARE
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.kafka.settings import KafkaSettings, kafka_settings
from objcat.ingest.kafka.topic_reader import TopicReader
from objcat.ingest.model import (
    Position,
    SchemaChanged,
    SourceReport,
    SourceTable,
    SourceTransaction,
)
from objcat.ingest.routes import Router
from objcat.ingest.stream_source import StreamSource
from objcat.lake.lake import Lake

logger = logging.getLogger("objcat")

_PLACE = re.compile(r"(.+)/(\d{1,9})@(\d{1,18})")
_ID = re.compile(r"(?=.*\d)[\w:.,-]+")
"""Ids of transactions: each connector of Debezium has its own form."""


def open_source(config: IngestConfig, router: Router, env: Env) -> KafkaSource:
    """Open Kafka. See `objcat.ingest.sources.open_source`."""
    return KafkaSource(config, kafka_settings(config), router, env)


def position_text(position: Position) -> str:
    """See `objcat.ingest.sources.position_text`: the last transaction or message."""
    return str(position["at"])


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:  # noqa: ARG001 - as all sources have it
    """See `objcat.ingest.sources.transaction_text`. A message has its place, and a transaction its id."""
    settings = kafka_settings(config)
    found = _PLACE.fullmatch(text)
    if found is None:
        if settings.transactions is None or not _ID.fullmatch(text):
            also = ", or the id of a transaction" if settings.transactions else ""
            raise ValueError(f"a message is topic/partition@offset{also}")
        return text
    topic, partition, offset = found[1], int(found[2]), int(found[3])
    if not (re.fullmatch(settings.topics, topic) and Router(config).follows(topic)):
        raise ValueError(f"the topic {topic!r} is not followed")
    if offset < KafkaPosition.of(position).next_offset(topic, partition):
        raise ValueError("that message is in the lake")
    return f"{topic}/{partition}@{offset}"


class KafkaSource(StreamSource):
    """See `ChangeSource`.

    Attributes:
        cluster: connections to the brokers.
    """

    reads_first = False
    knows_tables = True

    def __init__(self, config: IngestConfig, settings: KafkaSettings, router: Router, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._env = env
        self.cluster = KafkaCluster(config, settings)
        self._is_closed = False
        self._topics: dict[str, TopicInfo] = {}
        self._followed: frozenset[str] | None = None
        # A topic that was deleted, or whose table was set aside. One that brokers do not name for a moment is none of them.
        self._ended: frozenset[str] = frozenset()
        self._described: dict[str, SourceTable] = {}
        self._committed: KafkaPosition | None = None
        self._group: Any = None
        self._find_topics()

    def check_settings(self) -> None:
        """See `ChangeSource`. What is wrong shows when topics are asked for and read."""

    def describe_tables(self) -> Sequence[SourceTable]:
        """See `ChangeSource`. The schema of a topic is known from its first message on."""
        self._find_topics()
        return [self._described.get(name) or self._unknown(name) for name in self._topics if name != self._settings.transactions]

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. Messages have their schemas, so there is nothing to find here."""
        return None

    def begin(self, tables: Sequence[str]) -> Position:
        """See `ChangeSource`."""
        # Tables that were followed before are read again: from the oldest message, into empty tables.
        is_again = self._followed is not None
        self._followed = frozenset(tables)
        made = KafkaPosition(at="beginning", is_unsettled=True, truncate=sorted(tables) if is_again else [])
        read = self.read_topics()
        for name, info in read.items():
            made.topics[name] = TopicPosition(id=info.id)
        if self._settings.begin == "latest" and not is_again:
            for name, partitions in self.cluster.heads(read).items():
                made.topics[name].next |= partitions
                made.topics[name].has_gap = name != self._settings.transactions and any(partitions.values())
        return made.stored()

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:
        """See `ChangeSource`. A topic that joins is read from its oldest message on."""
        before = frozenset(filter(self._router.follows, self._topics)) if self._followed is None else self._followed
        self._followed = frozenset(tables)
        self._ended = (self._ended | before) - self._followed - {self._settings.transactions or ""}
        return []

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """See `ChangeSource`."""
        yield from self.reader().transactions(KafkaPosition.of(position), is_closed=lambda: self._is_closed)

    def reader(self) -> TopicReader:
        """A reader of the topics that are followed now."""
        return TopicReader(
            self._config,
            self._settings,
            self._router,
            self.cluster,
            self._env,
            read_topics=self.read_topics,
            describe=self.describe,
        )

    def is_reached(self, position: Position, target: Position) -> bool:
        """See `ChangeSource`."""
        at = KafkaPosition.of(position)
        wanted = {name: topic for name, topic in KafkaPosition.of(target).topics.items() if name not in self._ended}
        read_ms = {name: topic.read_ms for name, topic in wanted.items() if topic.read_ms is not None}
        # A run that finds nothing new in a compacted topic stores when that was.
        is_fresh = all(name in at.topics and (at.topics[name].read_ms or 0) >= wanted_ms for name, wanted_ms in read_ms.items())
        return is_fresh and at.has_passed({name: topic.next for name, topic in wanted.items()})

    def head(self) -> Position:
        """See `ChangeSource`."""
        made = KafkaPosition(at="head")
        heads = self.cluster.heads(self.read_topics())
        kept_ms = self.cluster.delete_retentions_ms(name for name in heads if name != self._settings.transactions)
        for name, partitions in heads.items():
            read_ms = None if name not in kept_ms else self._env.now_ms() - kept_ms[name] // STORED_SHARE
            made.topics[name] = TopicPosition(next=partitions, read_ms=read_ms)
        return made.stored()

    def confirm(self, position: Position) -> None:
        """See `ChangeSource`. The brokers keep messages by their own settings; a group is told on request, for those who watch it."""
        self._committed = KafkaPosition.of(position)
        if self._settings.commit_group:
            if self._group is None:
                self._group = self.cluster.consumer()
            self.cluster.commit_group(self._group, _offsets(position))

    def beat(self) -> None:
        """See `ChangeSource`. The brokers keep nothing for this reader."""

    def report(self) -> SourceReport:
        """See `ChangeSource`."""
        heads = self.cluster.heads(self.read_topics())
        head = KafkaPosition(at="head", topics={name: TopicPosition(next=partitions) for name, partitions in heads.items()})
        partitions = sum(len(one) for one in heads.values())
        state = f"{len(heads):,} topics with {partitions:,} partitions"
        behind = None
        if self._committed is not None:
            behind = sum(self._committed.behind(heads))
            state += f", {behind:,} messages behind"
        return SourceReport(head=head.stored(), behind_events=behind, state=state)

    def position_text(self, position: Position) -> str:
        """See `ChangeSource`."""
        return position_text(position)

    def close(self) -> None:
        """See `ChangeSource`. The stream ends by itself: its consumer belongs to one thread."""
        self._is_closed = True
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def read_again(self, position: Position, tables: Sequence[str]) -> Position:
        """See `ReplayedSource`."""
        made = KafkaPosition.of(position)
        for name in tables:
            known = made.topics.pop(name, None)
            if known is not None and known.joined:
                # The columns are there from the first row on, which is older than they are.
                made.topics[name] = TopicPosition(joined=known.joined)
        made.truncate = sorted({*made.truncate, *tables})
        made.is_unsettled, made.settle = True, {}
        return made.stored()

    # ---- helpers

    def _find_topics(self) -> None:
        self._topics = self.cluster.topics()

    def describe(self, table: SourceTable) -> None:
        """Know the schema of a topic, as its newest message has it."""
        known = self._described.get(table.name)
        if table.has_schema or known is None or not known.has_schema:
            self._described[table.name] = table

    def _unknown(self, topic: str) -> SourceTable:
        return SourceTable(name=topic, columns=(), key=self._router.key_of(topic), has_schema=False)

    def read_topics(self) -> dict[str, TopicInfo]:
        """The topics that are read now: those that are followed, and that of transactions."""
        followed = self._followed
        if followed is None:
            followed = frozenset(name for name in self._topics if self._router.follows(name))
        return {name: info for name, info in self._topics.items() if name in followed or name == self._settings.transactions}


def _offsets(position: Position) -> dict[str, dict[str, int]]:
    return {name: topic.next for name, topic in KafkaPosition.of(position).topics.items()}
