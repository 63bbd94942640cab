"""Debezium, Kafka and Spark into Hudi, on the changes that `objcat ingest` follows: the pipeline in whose place it stands.

PostgreSQL's log goes through Debezium's connector in a worker of Kafka Connect, as Avro with a registry of schemas, into a topic. Spark's
Structured Streaming brings that into a merge-on-read table of Hudi on local disk, as Hudi Streamer would: the bundle with Hudi Streamer
could not be had, see `NOT_MEASURED` in `benchmarks.ingest_peers`. A cycle is a backlog on its whole way: the connector is paused
while the changes are made, and goes on; then Spark takes the topic's new records in one commit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.ingest_sources import PostgresBench, tree_cpu_s
from benchmarks.ingest_works import STREAM_ROWS, LakeDiffers, stream_sample
from benchmarks.install import worker_environment
from benchmarks.measured import RunFailed, Took
from benchmarks.peers import SIDES
from devkit import environments
from devkit.environments import Artifact
from devkit.kafka import KafkaBroker, KafkaConnect, converters
from devkit.paths import ROOT
from devkit.schema_registry import SchemaRegistry
from devkit.servers import HOST

HUDI = "Debezium, Kafka, Spark and Hudi, postgres"
MODULES = (
    Artifact("org.apache.spark:spark-avro_2.12:3.5.9", "9dda7512c1052bcd3774cbe247572cd481d4481eb8a90b7c4865b23a12bbecf8"),
    Artifact("org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7", "184f8bd4a3cd22299c49090d88b894f81fd7546b4ee64879519a0d76a685dbb8"),
    Artifact(
        "org.apache.spark:spark-token-provider-kafka-0-10_2.12:3.5.7", "9701914db5c6d09628b58d2d2c1ccd2c9ea28f32f83dd6cb21f98b8237531ff4"
    ),
    Artifact("org.apache.kafka:kafka-clients:3.4.1", "9d0a9058c8ede79db6e54ae378ed16fe8d1bead2894635a4aa6aa0b7981668c6"),
    Artifact("org.apache.commons:commons-pool2:2.11.1", "ea0505ee7515e58b1ac0e686e4d1a5d9f7d808e251a61bc371aa0595b9963f83"),
)
"""Of Spark, beside Hudi's bundle that the other suites pin. No module for Kafka of 3.5.9 was found."""
CORES = 2
MEMORY = "3g"
BUCKETS = 4
"""As many as a table of `objcat ingest` has by default."""
PARTITIONS = 2
NAME = "bench"
TOPIC, MARKS = f"{NAME}.public.orders", f"{NAME}.public.marks"
SETTLED_S, SETTLED_S_MAX = 0.3, 600.0
_KAFKA_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""Those of Kafka's own start scripts, as are the heaps."""


class BenchBroker(KafkaBroker):
    """A broker as Kafka's start script runs it."""

    heap_mb = 1024
    java_options = _KAFKA_OPTIONS


class BenchConnect(KafkaConnect):
    """A worker of Kafka Connect as Kafka's start script runs it."""

    heap_mb = 2048
    java_options = _KAFKA_OPTIONS


class StreamingProcess:
    """Spark in Hudi's own environment and process. A context manager.

    Args:
        folder: for its table, its checkpoint and its output.
        broker: where the topic is.
        registry: where its schemas are.
    """

    def __init__(self, folder: Path, broker: KafkaBroker, registry: SchemaRegistry) -> None:
        side = SIDES["hudi"]
        assert side.lock is not None
        python = environments.locked_environment(side.lock)
        jars = environments.locked_artifacts([*side.jars, *MODULES])
        folder.mkdir(parents=True)
        self._log = folder / "output.txt"
        newest = f"{registry.url}/subjects/{TOPIC}-value/versions/latest"
        settings = {"memory": MEMORY, "cores": str(CORES), "buckets": str(BUCKETS), "jars": ",".join(map(str, jars))}
        told = (folder, broker.connection(), TOPIC, newest, json.dumps(settings))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.peers.ingest_hudi", *map(str, told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker_environment(python) | {"PYTHONPATH": str(ROOT)},
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of its process, whose child is Java."""
        return self._process.pid

    def ask(self, what: str) -> dict[str, Any]:
        """The answer to a request. Raises RunFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # It ended, which the missing answer says.
        said: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "its process ended"}
        if not said["ok"]:
            raise RunFailed(f"Spark failed at {what}: {said['error']}\n{self._log.read_text(errors='replace')[-2500:]}")
        return said


class DebeziumPipeline:
    """All of it, following the orders of a database. A context manager.

    Args:
        source: the database. It gets a table of marks, by which the end of a backlog is known.
        folder: for the table.

    Attributes:
        cpu_of: CPU seconds of the last cycle, by part.
        server_s: those of the database.
    """

    def __init__(self, source: PostgresBench, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._stack = ExitStack()
        self._marks = 0
        self.cpu_of: dict[str, float] = {}
        self.server_s = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._broker = started.enter_context(BenchBroker())
            registry = started.enter_context(SchemaRegistry())
            self._connect = started.enter_context(BenchConnect(self._broker, producer_linger_ms="5", offset_flush_interval_ms="60000"))
            self._consumer = Consumer({"bootstrap.servers": self._broker.connection(), "group.id": f"{NAME}-ends", "log_level": 0})
            started.callback(self._consumer.close)
            self._make_topics()
            self._source.run("create table marks(id bigint primary key)")
            self._connect.add(NAME, connector(self._source, registry))
            # A mark that the snapshot has says nothing about its end, so there is a second one.
            slots = f"select count(*) from pg_replication_slots where slot_name = '{NAME}'"
            self._wait_until(lambda: self._source.run(slots) == [(1,)])
            self._settle()
            self._settle()
            self._streaming = started.enter_context(StreamingProcess(self._folder, self._broker, registry))
            self._streaming.ask("sync")
            self._stack = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cycle(self, changes: int) -> Took:
        """Make so many changes, and take them. Says what the pipeline took, from the pause of the connector to the commit."""
        pids = {"Kafka Connect": self._connect.pid, "the broker": self._broker.pid, "Spark": self._streaming.pid}
        before = {name: tree_cpu_s(pid) for name, pid in pids.items()}
        self._connect.pause(NAME)
        if changes:
            self._source.change(changes)
        server_s, began_s = self._source.cpu_s(), time.perf_counter()
        self._connect.resume(NAME)
        self._settle()
        self._streaming.ask("sync")
        seconds = time.perf_counter() - began_s
        self.server_s = self._source.cpu_s() - server_s
        self.cpu_of = {name: tree_cpu_s(pid) - before[name] for name, pid in pids.items()}
        return Took(seconds, sum(self.cpu_of.values()), sum(map(tree_peak_bytes, pids.values())), "")

    def check(self) -> None:
        """Compare the rows of both sides. Raises LakeDiffers."""
        there, here = self._source.digest(), tuple(self._streaming.ask("digest")["digest"])
        if there != here:
            raise LakeDiffers(f"The source has {there}, and the table of Hudi {here}.")

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.connection(), "log_level": 0})
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(MARKS, 1, 1)])
        for future in made.values():
            future.result()

    def _settle(self) -> None:
        """Wait until the broker has all that was committed so far: a mark that was committed later, and no record of an order after it."""
        self._marks += 1
        self._source.run(f"insert into marks values ({self._marks})")
        self._wait_until(lambda: self._end_of(MARKS, 1) >= self._marks)
        # Another partition than that of the mark may be a request behind.
        ends = [-1]
        while ends[-1] != self._end_of(TOPIC, PARTITIONS):
            ends.append(self._end_of(TOPIC, PARTITIONS))
            time.sleep(SETTLED_S)

    def _end_of(self, topic: str, partitions: int) -> int:
        """How many records a topic has had."""
        return sum(self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)[1] for number in range(partitions))

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + SETTLED_S_MAX
        while not is_so():
            self._connect.is_running(NAME)
            if time.monotonic() > end_s:
                raise RunFailed(f"Debezium did not come as far as it should within {SETTLED_S_MAX:.0f} s.")
            time.sleep(0.1)


def connector(source: PostgresBench, registry: SchemaRegistry) -> dict[str, str]:
    """The configuration of the connector. What is not here is Debezium's default."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": HOST,
        "database.port": str(source.port),
        "database.user": "objcat",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": NAME,
        "slot.name": NAME,
        "publication.name": NAME,
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.orders,public.marks",
        # A second record of each deleted row, without a value, would be of no use here.
        "tombstones.on.delete": "false",
        **converters(registry),
    }


def tree_peak_bytes(pid: int) -> int:
    """The most resident memory that a process has held at once, and that each of its children has."""
    total = 0
    for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
        total += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return total


def measure_debezium(place: Path, *, changes: int, rounds: int, say: Callable[[str], None]) -> dict[str, float]:
    """A backlog of changes that the pipeline takes, as `measure_streams` measures it. A first one warms its Java, and does not count.

    Raises:
        InstallError: what it needs cannot be had.
        RunFailed: a part of it failed.
        LakeDiffers: its table lacks a row, or has one that the source has not.
    """
    samples = []
    with PostgresBench() as source:
        source.fill(STREAM_ROWS)
        say(f"stream, {HUDI}: starting it")
        with DebeziumPipeline(source, place / "debezium") as pipeline:
            pipeline.check()
            pipeline.cycle(changes)
            pipeline.check()
            for turn in range(rounds):
                idle = pipeline.cycle(0)
                say(f"stream, {HUDI}: making {changes:,} changes")
                took = pipeline.cycle(changes)
                pipeline.check()
                parts = {f"CPU seconds of {name}": spent for name, spent in pipeline.cpu_of.items()}
                samples.append({**stream_sample(took, idle, changes, pipeline.server_s), **parts})
                said = samples[-1]["changes for each CPU second"]
                say(f"stream, {HUDI}: round {turn + 1} of {rounds}, {said:,.0f} for each CPU second")
    return {"changes": float(changes), **{name: statistics.median(one[name] for one in samples) for name in samples[0]}}
