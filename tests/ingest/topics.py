"""Topics of a broker, an ingest that follows them, and a lake: for tests of the Kafka source."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

import objcat
from objcat.ingest.config import IngestConfig, read_config
from objcat.ingest.handover import IngestState
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from objcat.lake.lake import Lake

CONFIG = """
[lake]
url = "{lake}"

[source]
name = "shop"
kind = "kafka"
brokers = "${{BROKER}}"
topics = '{prefix}\\..*'
{source}

[[route]]
tables = '{prefix}\\.(.*)'
to = 'shop.\\1'
{route}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
discover_s = 0.2
{run}
"""


class Topics:
    """Topics with a prefix of their own, and a lake.

    Args:
        broker: the bootstrap server.
        folder: for lake and configuration.
    """

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker = broker
        self.prefix = f"t{secrets.token_hex(4)}"
        self.folder = folder
        self.config_path = folder / "shop.toml"
        self.admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        self.producer = Producer({"bootstrap.servers": broker, "linger.ms": 0, "log_level": 0})
        self.configure()

    def configure(self, source: str = 'format = "json"', *, route: str = "", run: str = "", more: str = "") -> None:
        text = CONFIG.format(lake=self.folder / "lake", prefix=self.prefix, source=source, route=route, run=run)
        self.config_path.write_text(text + more)

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def create(self, topic: str, *, partitions: int = 1, **config: str) -> None:
        new = NewTopic(self.name(topic), partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
        for future in self.admin.create_topics([new]).values():
            future.result()

    def alter(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", self.name(topic), incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()

    def read_ms(self, topic: str) -> int:
        """Up to when the deletes of a compacted topic were read, as the last commit says."""
        stored = self.lake.source_position("shop", shared_log="shop")
        assert stored is not None
        return int(stored.state["position"]["topics"][self.name(topic)]["read_ms"])

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([self.name(topic)]).values():
            future.result()

    def add_partitions(self, topic: str, total: int) -> None:
        for future in self.admin.create_partitions([NewPartitions(self.name(topic), total)]).values():
            future.result()
        # A producer hears of new partitions after minutes.
        self.producer = Producer({"bootstrap.servers": self.broker, "linger.ms": 0, "log_level": 0})

    def expire(self, topic: str, before: int, *, partition: int = 0) -> None:
        """Let the broker forget the messages before an offset."""
        for future in self.admin.delete_records([TopicPartition(self.name(topic), partition, before)]).values():
            future.result()

    def put(self, topic: str, value: Any, *, key: Any = None, partition: int = 0, timestamp: int = 0) -> None:
        """Produce a message: bytes as they are, everything else as JSON."""
        self.producer.produce(self.name(topic), _raw(value), _raw(key), partition=partition, timestamp=timestamp or 1_700_000_000_000)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "BROKER": self.broker}

    def config(self) -> IngestConfig:
        return read_config(self.config_path, environment=self.environment)

    @property
    def lake(self) -> Lake:
        return objcat.connect(str(self.folder / "lake"))

    def ingest(self) -> Ingest:
        return Ingest(self.config(), self.lake, open_source)

    def once(self) -> IngestState:
        self.flush()
        return self.ingest().once()

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.lake.table(f"shop.{table}").scan().to_arrow().to_pylist()
        return sorted(found, key=str)

    def commit(self, offset: int) -> None:
        """Set the offset of the consumer group."""
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": "objcat-shop", "log_level": 0})
        try:
            consumer.commit(offsets=[TopicPartition(self.name("items"), 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def committed(self) -> dict[int, int]:
        """The offsets of the consumer group."""
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": "objcat-shop"})
        try:
            found = consumer.committed([TopicPartition(self.name("items"), 0)], timeout=10)
            return {one.partition: one.offset for one in found}
        finally:
            consumer.close()


def _raw(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
