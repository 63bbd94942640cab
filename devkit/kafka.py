"""Apache Kafka and Kafka Connect for tests: a broker and a worker on loopback, from the jars that `requirements/kafka.jars` pins."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from devkit import toolchain
from devkit.databases import DatabaseServer
from devkit.environments import has_artifacts, listed_artifacts, locked_artifacts
from devkit.schema_registry import SchemaRegistry
from devkit.servers import HOST, READY_S_MAX, ServerError, free_ports

JARS = "kafka"
AVRO_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"
"""It writes Confluent's wire format. Confluent's own converter is not on Maven Central."""
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")


def is_installed() -> bool:
    """Whether all jars are in the cache."""
    return has_artifacts(listed_artifacts(JARS))


def install_kafka() -> list[Path]:
    """The jars. Downloads what is missing. Raises InstallError or ToolchainError."""
    return locked_artifacts(listed_artifacts(JARS))


class JavaServer(DatabaseServer):
    """A server of these jars. It runs as we do: its jars are in our cache, where others may not read.

    Args:
        name: for people.
        settings: of the server, next to those that tests need.

    Attributes:
        heap_mb: of its Java.
        java_options: of its Java. Those of tests start fast and compile little.
    """

    heap_mb: ClassVar[int]
    java_options: ClassVar[Sequence[str]] = _JAVA_OPTIONS

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self._classpath = os.pathsep.join(map(str, install_kafka()))
        self._java = toolchain.java_home() / "bin" / "java"
        super().__init__(name, ("root",), settings)

    def _java_command(self, main: str, *arguments: str | Path) -> list[str | Path]:
        heap = f"-Xmx{self.heap_mb}m"
        return [self._java, heap, *self.java_options, *_LOG_OPTIONS, "-cp", self._classpath, main, *arguments]

    def _write_properties(self, fixed: Mapping[str, str]) -> Path:
        path = self._folder.path / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in {**fixed, **self._settings}.items()))
        return path


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Listeners of a broker that encrypt: for everybody, for clients with a certificate, and for a user with a password, by SCRAM or PLAIN.

    Args:
        certificate: a file in PEM with the key and the certificate of the broker. It signs those of clients too.
        user, password: who may connect.
    """

    certificate: Path
    user: str
    password: str

    def properties(self) -> dict[str, str]:
        """What a broker needs for it, next to the addresses."""
        modules = "org.apache.kafka.common.security"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate),
            "ssl.client.auth": "none",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": str(self.certificate.with_name("ca.pem")),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{modules}.plain.PlainLoginModule required user_{self.user}="{self.password}";'
            ),
        }


class KafkaBroker(JavaServer):
    """One node of Kafka that is broker and controller (KRaft). A context manager.

    Topics are made by those who want them: a client that names a topic makes none.

    Args:
        security: of listeners next to the plain one.
        settings: of the server, with `_` for `.`, next to those that tests need.
    """

    heap_mb = 320

    def __init__(self, *, security: KafkaSecurity | None = None, **settings: str) -> None:
        super().__init__("Kafka", {name.replace("_", "."): value for name, value in settings.items()})
        self._security = security
        (self._controller_port,) = free_ports(1)
        self._secure_ports: Mapping[str, int] = {}
        if security is not None:
            self._secure_ports = dict(zip(("SSL", "MUTUAL", "SASL_SSL"), free_ports(3), strict=True))

    def secure_connection(self, protocol: str) -> str:
        """The bootstrap server of the listener `SSL`, `MUTUAL` (SSL with a certificate of the client) or `SASL_SSL`."""
        return f"{HOST}:{self._secure_ports[protocol]}"

    def connection(self, database: str = "") -> str:  # noqa: ARG002 - it has no databases
        """The bootstrap server."""
        return f"{HOST}:{self.port}"

    def _properties(self, port: int) -> Path:
        listeners = ",".join(f"{name}://{HOST}:{at}" for name, at in {"PLAINTEXT": port, **self._secure_ports}.items())
        return self._write_properties(
            {
                **({} if self._security is None else self._security.properties()),
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
                "controller.listener.names": "CONTROLLER",
                "listeners": f"{listeners},CONTROLLER://{HOST}:{self._controller_port}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,SASL_SSL:SASL_SSL",
                "log.dirs": str(self._folder.path / "data"),
                "auto.create.topics.enable": "false",
                "num.partitions": "1",
                "offsets.topic.replication.factor": "1",
                # Records of tests are of another year.
                "log.retention.ms": "-1",
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "transaction.state.log.num.partitions": "1",
                "group.initial.rebalance.delay.ms": "0",
                "num.network.threads": "2",
                "num.io.threads": "2",
                "background.threads": "2",
                "log.cleaner.dedupe.buffer.size": "8388608",
                "file.delete.delay.ms": "1000",
                # A broker that is started again waits until the time of its last one is over.
                "broker.heartbeat.interval.ms": "500",
                "broker.session.timeout.ms": "3000",
            }
        )

    def _initialize(self) -> None:
        # A format says which version the metadata has. Ports are not part of it.
        properties = self._properties(self._controller_port + 1)
        users: list[str] = []
        if self._security is not None:
            users = ["--add-scram", f"SCRAM-SHA-512=[name={self._security.user},password={self._security.password}]"]
        self._run(self._java_command("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", properties, *users))

    def _command(self, port: int) -> list[str | Path]:
        if not self.port:
            (self._controller_port,) = free_ports(1)
        return self._java_command("kafka.Kafka", self._properties(port))

    def _answers(self, port: int) -> bool:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            from confluent_kafka.admin import AdminClient

            client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
            with suppress(Exception):  # not ready yet
                return bool(client.list_topics(timeout=5).brokers)
        return False


class KafkaConnect(JavaServer):
    """One worker of Kafka Connect with Debezium's connector for PostgreSQL. A context manager.

    Its connectors are set by its REST API, each with converters of its own. Where they are is in files, which last as long as it does.

    Args:
        broker: where its topics are.
        settings: of the worker, next to those that tests need.
    """

    heap_mb = 384

    def __init__(self, broker: KafkaBroker, **settings: str) -> None:
        super().__init__("Kafka Connect", {name.replace("_", "."): value for name, value in settings.items()})
        self._broker = broker

    def connection(self, database: str = "") -> str:  # noqa: ARG002 - it has no databases
        """The URL of its REST API."""
        return f"http://{HOST}:{self.port}"

    def add(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector, and wait until its task runs. Raises ServerError with what the worker says."""
        self._ask("PUT", f"/connectors/{name}/config", config)
        self._wait_for(name, "RUNNING")

    def pause(self, name: str) -> None:
        """Let a connector hand over nothing for now. It stays connected to its source. Raises ServerError."""
        self._ask("PUT", f"/connectors/{name}/pause")
        self._wait_for(name, "PAUSED")

    def resume(self, name: str) -> None:
        """Let a connector that was paused go on. Raises ServerError."""
        self._ask("PUT", f"/connectors/{name}/resume")
        self._wait_for(name, "RUNNING")

    def is_running(self, name: str) -> bool:
        """Whether the task of a connector runs. Raises ServerError when it failed."""
        return self._is("RUNNING", name)

    def _wait_for(self, name: str, state: str) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            if self._is(state, name):
                return
            time.sleep(0.05)
        raise ServerError(f"The connector {name} was not {state} within {READY_S_MAX} s. The end of the log: {self._folder.end_of_log()}")

    def _is(self, state: str, name: str) -> bool:
        try:
            tasks = self._ask("GET", f"/connectors/{name}/status")["tasks"]
        except urllib.error.HTTPError:
            return False  # It was made a moment ago.
        for task in tasks:
            if task["state"] == "FAILED":
                raise ServerError(f"The task of the connector {name} failed: {task.get('trace', '')[:2000]}")
        return bool(tasks) and all(task["state"] == state for task in tasks)

    def remove(self, name: str) -> None:
        """Stop a connector. Its place in the source is kept by the source."""
        with suppress(urllib.error.HTTPError):
            self._ask("DELETE", f"/connectors/{name}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.connection()}{path}", data, {"Content-Type": "application/json"} if data else {}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            if method != "PUT":
                raise
            raise ServerError(f"Kafka Connect refused {path}: {error.read().decode(errors='replace')[:2000]}") from error
        return json.loads(said) if said else None

    def _initialize(self) -> None:
        (self._folder.path / "plugins").mkdir(exist_ok=True)

    def _command(self, port: int) -> list[str | Path]:
        properties = self._write_properties(
            {
                "bootstrap.servers": self._broker.connection(),
                "listeners": f"http://{HOST}:{port}",
                "key.converter": JSON_CONVERTER,
                "value.converter": JSON_CONVERTER,
                "offset.storage.file.filename": str(self._folder.path / "offsets"),
                "offset.flush.interval.ms": "200",
                "plugin.discovery": "service_load",
                "plugin.path": str(self._folder.path / "plugins"),
                "producer.linger.ms": "0",
                "topic.creation.enable": "true",
            }
        )
        return self._java_command("org.apache.kafka.connect.cli.ConnectStandalone", properties)

    def _answers(self, port: int) -> bool:
        with suppress(OSError, http.client.HTTPException), urllib.request.urlopen(f"http://{HOST}:{port}/connectors", timeout=5) as answer:
            return bool(answer.status == 200)
        return False


class KafkaServers:
    """A broker, a worker of Kafka Connect and a schema registry, for people. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self.broker = started.enter_context(KafkaBroker())
            self.registry = started.enter_context(SchemaRegistry())
            self.connect = started.enter_context(KafkaConnect(self.broker))
            self._stack = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connection(self) -> str:
        """How to reach the three."""
        return f"bootstrap {self.broker.connection()}, Kafka Connect {self.connect.connection()}, schema registry {self.registry.url}"


def converters(registry: SchemaRegistry | None) -> dict[str, str]:
    """The settings of a connector that let it write Avro by a registry, or JSON with schemas without one."""
    found: dict[str, str] = {}
    for side in ("key.converter", "value.converter"):
        if registry is None:
            found |= {side: JSON_CONVERTER, f"{side}.schemas.enable": "true"}
        else:
            found |= {
                side: AVRO_CONVERTER,
                f"{side}.apicurio.registry.url": f"{registry.url}/apis/registry/v2",
                f"{side}.apicurio.registry.auto-register": "true",
                f"{side}.apicurio.registry.as-confluent": "true",
                f"{side}.apicurio.registry.use-id": "contentId",
                f"{side}.apicurio.registry.headers.enabled": "false",
            }
    return found


def _cluster_id() -> str:
    """16 bytes in the alphabet of base64 for URLs, as Kafka wants it. It may not begin with `-`, which the tool takes for an option."""
    while (made := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return made


KAFKA_SERVERS: Mapping[str, tuple[Callable[[], KafkaServers], str]] = {
    "kafka": (KafkaServers, "Kafka, Kafka Connect with Debezium for PostgreSQL, and a schema registry, for objcat ingest"),
}
"""By name: how to make one, and what it is for."""
