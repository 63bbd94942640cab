"""`DebeziumRoute`: a database of PostgreSQL through Debezium's connector and a broker into a lake, beside the direct route of `Shop`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient

from devkit.kafka import KafkaBroker, KafkaConnect, converters
from devkit.schema_registry import SchemaRegistry
from devkit.servers import HOST
from objcat.ingest.handover import IngestState
from tests.ingest.shop import Shop

SETTLED_S_MAX = 60.0
CONFIG = """
[lake]
url = "{lake}"

[source]
name = "shop"
kind = "kafka"
brokers = "${{BROKER}}"
topics = '{prefix}\\.public\\..*'
format = "debezium-{form}"
transactions = "{prefix}.transaction"
{source}

[[route]]
tables = "{prefix}\\\\.public\\\\.(.*)"
to = "shop.\\\\1"
{route}

[profile.database]
batch_s = 0.05
index = "bucket(2)"
properties = {{}}

[run]
chunk_rows = {chunk_rows}
discover_s = 0.2
beat_s = 0.5
{run}
"""


class DebeziumRoute(Shop):
    """The database of a shop, followed by a connector into topics, and from there into a lake of its own.

    Args:
        shop: the database.
        connect: the worker that runs the connector.
        broker: where its topics are.
        registry: Avro by this one; None: JSON with schemas.
        folder: for lake and configuration.
        settings: of the connector, next to those that tests need.
    """

    has_snapshots = False

    def __init__(
        self,
        shop: Shop,
        connect: KafkaConnect,
        broker: KafkaBroker,
        folder: Path,
        *,
        registry: SchemaRegistry | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.__dict__.update(shop.__dict__)
        self.form = "json" if registry is None else "avro"
        self.prefix = f"{self.form}_{secrets.token_hex(3)}"
        self.lake_path = folder / f"lake_{self.form}"
        self.config_path = folder / f"{self.form}.toml"
        self._connect, self._broker, self._registry = connect, broker, registry
        self._slot = f"debezium_{self.prefix}"
        self._settings = settings or {}
        self.admin = AdminClient({"bootstrap.servers": broker.connection(), "log_level": 0})
        self.configure()

    def begin(self) -> None:
        """Let the connector read the tables that there are, and follow them."""
        self._connect.add(self.prefix, self._connector())

    @property
    def environment(self) -> dict[str, str]:
        """What the configuration reads from the environment."""
        return {"BROKER": self._broker.connection(), "MASK_SECRET": "keyed"}

    def configure(self, *, route: str = "", run: str = "", chunk_rows: int = 3, more: str = "") -> None:
        """Write the configuration."""
        source = "" if self._registry is None else f'[source.registry]\nurl = "{self._registry.url}"'
        text = CONFIG.format(
            lake=self.lake_path, prefix=self.prefix, form=self.form, source=source, route=route, run=run, chunk_rows=chunk_rows
        )
        self.config_path.write_text(text + more)

    def source_name(self, table: str) -> str:
        """The name of a topic."""
        return f"{self.prefix}.public.{table}"

    def once(self, **options: object) -> IngestState:
        """Wait for the connector, and bring the lake up to the source."""
        self.settle()
        return self.ingest(**options).once()  # type: ignore[arg-type]

    def settle(self) -> None:
        """Wait until the topics have all that was committed so far.

        The connector confirms a position to the server when the broker has all records before it.
        """
        (position,) = self.sql("select pg_logical_emit_message(true, 'objcat', 'settle')")[0]
        end = time.monotonic() + SETTLED_S_MAX
        asked = "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s"
        while time.monotonic() < end:
            if self.sql(asked, position, self._slot) == [(True,)]:
                return
            self._connect.is_running(self.prefix)
            time.sleep(0.02)
        raise AssertionError(f"the connector of {self.prefix} did not come as far as {position}")

    def close(self) -> None:
        """Stop the connector, and drop its slot and its topics."""
        self._connect.remove(self.prefix)
        for _ in range(200):
            if self.sql("select count(*) from pg_replication_slots where slot_name = %s and active", self._slot) == [(0,)]:
                break
            time.sleep(0.05)
        self.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", self._slot)
        topics = [name for name in self.admin.list_topics(timeout=10).topics if self.prefix in name]
        for future in (self.admin.delete_topics(topics) if topics else {}).values():
            future.result()

    def _connector(self) -> dict[str, str]:
        fixed = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": HOST,
            "database.port": str(self.server.port),
            "database.user": "objcat",
            "database.password": "none",
            "database.dbname": self.name,
            "topic.prefix": self.prefix,
            "slot.name": self._slot,
            "publication.name": self._slot,
            "publication.autocreate.mode": "all_tables",
            "schema.include.list": "public",
            "skipped.operations": "none",
            "provide.transaction.metadata": "true",
            "topic.creation.default.partitions": "2",
            "topic.creation.default.replication.factor": "1",
            "heartbeat.interval.ms": "100",
            "poll.interval.ms": "20",
        }
        return {**fixed, **converters(self._registry), **self._settings}
