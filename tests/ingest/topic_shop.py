"""`TopicShop`: topics of a broker, what a test writes to them, the configuration of their ingest, and the comparison of both sides."""

from __future__ import annotations

import io
import json
import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from devkit.kafka import KafkaBroker
from devkit.schema_registry import SchemaRegistry
from tests.ingest.shop import Shop

ANSWER_S_MAX = 30.0
READER, READER_PASSWORD = "reader", "password-of-the-reader"
"""Who may use the listener of the broker that asks for a password."""
CONFIG = """
[lake]
url = "{lake}"

[source]
name = "shop"
kind = "kafka"
brokers = "${{BROKER}}"
topics = '{prefix}\\..*'
{source}

{routes}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
discover_s = 0.2
beat_s = 0.5
{run}
"""
ROUTE = """
[[route]]
tables = "{prefix}\\\\.(.*)"
to = "shop.\\\\1"
key = ["id"]
"""


COLUMNS = {"id": "int64", "n": "int64", "text": "string"}


def json_source(**columns: str) -> str:
    """The settings for topics of JSON with these columns next to those that all have."""
    listed = ", ".join(f'{name} = "{kind}"' for name, kind in {**COLUMNS, **columns}.items())
    return f'format = "json"\n[[source.topic]]\ntopics = ".*"\ncolumns = {{{listed}}}'


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record to write. value: an object for JSON, bytes as they are, None for a tombstone."""

    key: Any
    value: Any
    partition: int = -1


class TopicShop(Shop):
    """Topics whose names begin with one of its own, on a shared broker.

    Args:
        broker: the broker.
        folder: for lake and configuration.
        prefix: of the topics; a new one when None.
    """

    has_snapshots = False

    def __init__(self, broker: KafkaBroker, folder: Path, prefix: str | None = None) -> None:
        self.broker = broker
        self.prefix = prefix or f"t{secrets.token_hex(4)}"
        self.lake_path = folder / "lake"
        self.config_path = folder / "ingest.toml"
        self.admin = AdminClient({"bootstrap.servers": broker.connection(), "log_level": 0})
        self._producer = self._new_producer()
        self.configure()

    @property
    def environment(self) -> dict[str, str]:
        """What the configuration reads from the environment."""
        return {"BROKER": self.broker.connection(), "MASK_SECRET": "keyed"}

    @property
    def source_url(self) -> str:
        """Where the load connects."""
        return f"{self.broker.connection()}/{self.prefix}"

    def configure(
        self,
        *,
        route: str = "",
        run: str = "",
        chunk_rows: int = 3,
        more: str = "",
        source: str | None = None,
        routes: str | None = None,
    ) -> None:
        """Write the configuration. `source`: further settings of the source. `routes`: in place of the one with the key `id`."""
        made = ROUTE.format(prefix=self.prefix) + route if routes is None else routes.replace("{prefix}", self.prefix)
        self.config_path.write_text(
            CONFIG.format(lake=self.lake_path, source=json_source() if source is None else source, routes=made, run=run, prefix=self.prefix)
            + more
        )

    def topic(self, name: str) -> str:
        """The whole name of a topic."""
        return f"{self.prefix}.{name}"

    def source_name(self, table: str) -> str:
        """The name that a table has at the source."""
        return self.topic(table)

    def make(self, name: str, *, partitions: int = 1, **config: str) -> None:
        """Make a topic. `config`: with `_` for `.`."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._done(self.admin.create_topics([NewTopic(self.topic(name), partitions, 1, config=settings)]))
        self._wait_for_partitions(name, partitions)

    def remove(self, name: str) -> None:
        """Delete a topic. It may be made again after that."""
        self._done(self.admin.delete_topics([self.topic(name)]))
        self._wait_for_partitions(name, 0)

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions."""
        self._done(self.admin.create_partitions([NewPartitions(self.topic(name), total)]))
        self._wait_for_partitions(name, total)
        # The producer would learn of them within minutes.
        self._producer = self._new_producer()

    def expire(self, name: str, partition: int, offset: int) -> None:
        """Let a partition lose its records before an offset, as its retention does."""
        self._done(self.admin.delete_records([TopicPartition(self.topic(name), partition, offset)]))

    def end_offset(self, name: str, partition: int = 0) -> int:
        """The offset of the next record of a partition."""
        consumer = self._consumer()
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.topic(name), partition), ANSWER_S_MAX)[1])
        finally:
            consumer.close()

    def write(self, name: str, *records: TopicRecord, producer: Producer | None = None) -> None:
        """Write records, and wait until the broker has them."""
        target = producer or self._producer
        for record in records:
            target.produce(self.topic(name), raw(record.value), raw(record.key), record.partition, on_delivery=_delivered)
        assert target.flush(ANSWER_S_MAX) == 0

    def put(self, name: str, rows: Iterable[Mapping[str, Any]], *, partition: int = -1, producer: Producer | None = None) -> None:
        """Write rows as JSON under their `id`."""
        self.write(name, *(TopicRecord(str(row["id"]), row, partition) for row in rows), producer=producer)

    def transactional(self) -> Producer:
        """A producer that writes in transactions."""
        made = Producer(
            {"bootstrap.servers": self.broker.connection(), "transactional.id": secrets.token_hex(6), "linger.ms": 0, "log_level": 0}
        )
        made.init_transactions(ANSWER_S_MAX)
        return made

    def source_rows(self, table: str) -> list[dict[str, Any]]:
        """The last value of each key of a topic of JSON, as a reader sees it who knows nothing of ours."""
        last: dict[bytes, dict[str, Any] | None] = {}
        for message in self.messages(table):
            value = message.value()
            last[message.key() or b""] = None if value is None else json.loads(value)
        return [row for row in last.values() if row is not None]

    def messages(self, table: str) -> Iterator[Message]:
        """All committed records of a topic, in the order of each partition."""
        consumer = self._consumer()
        try:
            name = self.topic(table)
            partitions = list(consumer.list_topics(name, timeout=ANSWER_S_MAX).topics[name].partitions)
            consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in partitions])
            ended = set[int]()
            while len(ended) < len(partitions):
                for message in consumer.consume(1000, 1.0):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition() or 0)
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()

    def dead(self) -> list[dict[str, Any]]:
        """The dead letters."""
        found: list[dict[str, Any]] = self.lake.table("shop.ingest_dead").scan().to_arrow().to_pylist()
        return found

    def close(self) -> None:
        """Delete the topics."""
        names = [name for name in self.admin.list_topics(timeout=ANSWER_S_MAX).topics if name.startswith(f"{self.prefix}.")]
        if names:
            self._done(self.admin.delete_topics(names))

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.broker.connection(),
                "group.id": secrets.token_hex(6),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )

    def _wait_for_partitions(self, name: str, count: int) -> None:
        """Wait until the broker tells of so many partitions that have a leader: it answers before it does."""
        end = time.monotonic() + ANSWER_S_MAX
        while time.monotonic() < end:
            found = self.admin.list_topics(timeout=ANSWER_S_MAX).topics.get(self.topic(name))
            leaders = 0 if found is None else sum(1 for one in found.partitions.values() if one.leader >= 0)
            if leaders == count and (found is None) is (count == 0):
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.topic(name)} does not come to {count} partitions")

    def _new_producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.broker.connection(), "linger.ms": 0, "log_level": 0})

    def _done(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(ANSWER_S_MAX)


class AvroTopic:
    """Writes values of one Avro schema in Confluent's wire format.

    Args:
        registry: where the schema is registered.
        subject: as which.
        schema: the schema.
    """

    def __init__(self, registry: SchemaRegistry, subject: str, schema: Mapping[str, Any]) -> None:
        self.id = registry.register(subject, json.dumps(schema))
        self._schema = fastavro.parse_schema(dict(schema))

    def encode(self, value: Any) -> bytes:
        """A value: a zero byte, the id of the schema in four bytes, and the value."""
        made = io.BytesIO()
        fastavro.schemaless_writer(made, self._schema, value)
        return struct.pack(">bI", 0, self.id) + made.getvalue()


def raw(value: Any) -> bytes | None:
    """The bytes of a key or a value."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _delivered(error: Any, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)
