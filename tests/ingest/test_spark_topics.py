"""Topics are read by executors of Spark, in turns with the single process: rows, dead letters and positions are the same."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.kafka import KafkaBroker, KafkaConnect
from devkit.paths import ROOT
from devkit.schema_registry import SchemaRegistry
from objcat.errors import IngestStopped, InvalidInput
from objcat.ingest.requests import add_request
from objcat.ingest.spark_topics import ingest_topics
from tests.conftest import check_needed
from tests.effort import effort
from tests.ingest import topic_load
from tests.ingest.debezium_route import DebeziumRoute
from tests.ingest.killing import KilledRun
from tests.ingest.shop import Shop
from tests.ingest.spark_reader import SparkReader
from tests.ingest.test_debezium import KINDS, LONG, VALUES
from tests.ingest.topic_killing import ROUTES, SOURCE, compare_topics
from tests.ingest.topic_shop import AvroTopic, TopicRecord, TopicShop, json_source

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkReader]:
    """A Spark that the tests of this file share."""
    check_needed("spark-kafka")
    with SparkReader(tmp_path_factory.mktemp("spark") / "log") as started:
        yield started


def beside(shop: Any, folder: Path, name: str) -> Any:
    """The same topics into a lake of its own, by offsets alone."""
    made = copy.copy(shop)
    made.lake_path, made.config_path = folder / f"lake_{name}", folder / f"{name}.toml"
    text = shop.config_path.read_text().replace(f'url = "{shop.lake_path}"', f'url = "{made.lake_path}"')
    made.config_path.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("transactions = ")))
    return made


def offsets(shop: Any) -> dict[str, Any]:
    """The offsets of the last commit."""
    stored = shop.lake.source_position("shop", shared_log="shop")
    return {name: topic["next"] for name, topic in stored.state["position"]["topics"].items()}


def table(shop: Any, name: str) -> Any:
    """A table of the lake, with its types."""
    return shop.lake.table(f"shop.{name}").scan().to_arrow().sort_by("id")


def assert_same(spark: Any, local: Any, *names: str) -> None:
    """Both lakes have the same tables."""
    for name in names:
        here, there = table(spark, name), table(local, name)
        assert here.schema.equals(there.schema), (name, here.schema, there.schema)
        assert here.to_pylist() == there.to_pylist(), name
    assert offsets(spark) == offsets(local)


@pytest.mark.parametrize("form", ["json", "avro"])
def test_envelopes_of_debezium(
    shop: Shop, broker: KafkaBroker, connect: KafkaConnect, registry: SchemaRegistry, reader: SparkReader, tmp_path: Path, form: str
) -> None:
    shop.sql("create type mood as enum ('good', 'bad'); create domain cents as numeric(10, 2) check (value >= 0)")
    shop.sql(KINDS)
    shop.sql(f"insert into kinds values ({VALUES.format(id=1)}); insert into kinds(id) values (2)")
    shop.sql("create table notes(id bigint primary key, title text, body text); alter table notes alter body set storage external")
    shop.sql("create table items(id int primary key, n numeric(8, 2))")
    shop.sql(f"insert into notes select i, 't', {LONG} || i from generate_series(1, 12) i")
    route = DebeziumRoute(shop, connect, broker, tmp_path, registry=registry if form == "avro" else None)
    spark, local = beside(route, tmp_path, "spark"), beside(route, tmp_path, "local")

    def assert_equal(*names: str) -> None:
        route.settle()
        assert reader.read(spark)["dead"] == 0
        local.ingest().once()
        assert_same(spark, local, "notes", "kinds")
        # What older rows have in a column that joined is compared with the source: one process reads partitions in any order.
        assert [one for name in names for one in spark.differences(name)] == []

    try:
        route.begin()
        route.settle()
        assert_equal("notes")
        shop.sql("insert into items select i, i * 1.5 from generate_series(1, 20) i; update items set n = -n where id % 3 = 0")
        shop.sql("delete from items where id % 4 = 0; insert into items values (4, 4); update items set id = 30 where id = 5")
        shop.sql("update notes set title = 'u' where id < 4; delete from notes where id = 7")
        shop.transaction("update notes set body = 'short' where id = 4", "update notes set title = 'v' where id = 4")
        shop.sql(f"insert into kinds values ({VALUES.format(id=3)}); insert into kinds(id) values (4); delete from kinds where id = 2")
        # A column joins, and rows of both schemas are in one batch.
        shop.sql("insert into items values (50, 1); alter table items add column more text default 'm'; insert into items values (51, 2)")
        shop.sql("update items set more = 'x' where id = 1")
        assert_equal("notes", "items")
        # The single process goes on where Spark has stopped, and the other way round.
        shop.sql("update items set n = 7 where id < 9; insert into items values (60, 1, 'l'); alter table items drop column n")
        route.settle()
        spark.ingest().once()
        shop.sql("update items set more = 'y' where id in (2, 60); delete from notes where id = 8; update notes set id = 40 where id = 4")
        route.settle()
        local.ingest().once()
        assert reader.read(spark, messages_max=4)["commits"] >= 2
        assert_same(spark, local, "notes", "kinds")
        assert spark.differences("items") == []
        assert reader.read(spark) == {"slot": None, "commits": 0, "messages": 0, "dead": 0}
        shop.sql("truncate items")
        route.settle()
        assert "which rows came before it is not known" in reader.refused(spark)
        with pytest.raises(IngestStopped, match="which rows came before it is not known"):
            local.ingest().once()
    finally:
        route.close()


SOURCES = """
format = "json"
[source.registry]
url = "{registry}"
[[source.topic]]
topics = '.*\\.events'
key_format = "none"
columns = {{n = "int64", text = "string"}}
record_columns = ["partition", "offset", "timestamp"]
[[source.topic]]
topics = '.*\\.avro'
format = "avro"
key_format = "text"
[[source.topic]]
topics = '.*'
columns = {{id = "int64", n = "int64", text = "string"}}
"""
KEPT = """
[[route]]
tables = '{prefix}\\.events'
to = 'shop.events'
[[route]]
tables = '{prefix}\\.soft'
to = 'shop.soft'
key = ["id"]
deletes = "soft"
lineage = true
[[route]]
tables = '{prefix}\\.history'
to = 'shop.history'
key = ["id"]
deletes = "history"
[[route]]
tables = '{prefix}\\.(.*)'
to = 'shop.\\1'
key = ["id"]
mask = {{text = "hash"}}
mask_secret = "${{MASK_SECRET}}"
"""
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
    ],
}
NAMES = ("items", "avro", "soft", "history", "events")


def fill(topics: TopicShop, values: AvroTopic, drawn: random.Random, count: int) -> None:
    """Write records of every kind to all topics: changes, tombstones, bad ones, and transactions that are given up."""
    for at in range(count):
        number = drawn.randrange(40)
        row = {"id": number, "n": at, "text": f"é{at}"}
        gone = drawn.random() < 0.15
        for name in ("items", "soft", "history"):
            topics.write(name, TopicRecord(str(number), None if gone else row))
        topics.write("avro", TopicRecord(str(number), None if gone else values.encode(row)))
        topics.write("events", TopicRecord(None, {"n": at, "text": "x"}, at % 3))
    producer = topics.transactional()
    producer.begin_transaction()
    topics.write("items", TopicRecord("1", {"id": 1, "n": -1, "text": "given up"}), producer=producer)
    producer.abort_transaction()


def without_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the number of the change in its batch: that of Spark is one of the task."""
    return sorted(({name: value for name, value in row.items() if name != "_source_seq"} for row in rows), key=repr)


def test_plain_topics(topics: TopicShop, registry: SchemaRegistry, reader: SparkReader, tmp_path: Path) -> None:
    values = AvroTopic(registry, "rows", AVRO)
    topics.configure(
        source=SOURCES.format(registry=registry.url), routes=KEPT.format(prefix="{prefix}"), more="\n[dead_letters]\nrecords_max = 10\n"
    )
    for name in NAMES:
        topics.make(name, partitions=3)
    local, drawn = beside(topics, tmp_path, "local"), random.Random(7)
    for turn in range(2):
        fill(topics, values, drawn, 40)
        topics.write("items", TopicRecord("99", b"{no JSON", 0), TopicRecord("99", {"id": 99, "n": 2**70, "text": "too large"}, 1))
        topics.write("avro", TopicRecord("99", b"\0\0\0\0\x63x", 2))
        found = reader.read(topics, messages_max=1_000_000 if turn else 50)
        assert found["dead"] == 3 and (found["commits"] == 1 if turn else found["commits"] > 3)
        local.ingest().once()
        for name in NAMES:
            assert without_numbers(topics.rows(name)) == without_numbers(local.rows(name)), name
        assert offsets(topics) == offsets(local)
    dead = [sorted((row["table"], row["position"], row["payload"], row["error"]) for row in one.dead()) for one in (topics, local)]
    assert dead[0] == dead[1] and len(dead[0]) == 6
    # More bad ones than are allowed: nothing of the batch is written.
    before = offsets(topics)
    topics.write("items", *(TopicRecord("1", b"{", 0) for _ in range(11)), TopicRecord("8", {"id": 8, "n": 8, "text": "good"}))
    assert "11 of 12 records" in reader.refused(topics) and offsets(topics) == before


def test_the_newest_row_of_a_key_counts_across_partitions(topics: TopicShop, reader: SparkReader) -> None:
    """A topic got more partitions, so its keys went to others. In each partition the order is that of the offsets, whatever times say."""
    topics.make("items", partitions=1)
    topics.put("items", [{"id": number, "n": 1, "text": "old"} for number in range(20)], partition=0)
    topics.add_partitions("items", 3)
    topics.put("items", [{"id": number, "n": 2, "text": "new"} for number in range(20)], partition=2)
    topics.write("items", TopicRecord("3", None, 2), TopicRecord("4", {"id": 4, "n": 3, "text": "newer"}, 2))
    assert reader.read(topics)["messages"] == 42
    assert {row["id"]: row["n"] for row in topics.rows("items")} == {number: 2 for number in range(20) if number not in (3, 4)} | {4: 3}


def test_a_topic_is_read_again_and_expired_messages_stop_it(topics: TopicShop, reader: SparkReader) -> None:
    topics.make("items", partitions=2)
    topics.put("items", [{"id": number, "n": 1, "text": "a"} for number in range(10)])
    reader.read(topics)
    before = topics.rows("items")
    add_request(topics.lake, topics.config(), "resnapshot", topics.topic("items"))
    topics.put("items", [{"id": 3, "n": 2, "text": "b"}])
    assert reader.read(topics)["messages"] == 11
    assert sorted(row["n"] for row in topics.rows("items")) == [1] * 9 + [2] and len(before) == 10
    topics.put("items", [{"id": 4, "n": 3, "text": "c"}] * 5, partition=0)
    topics.expire("items", 0, topics.end_offset("items") - 2)
    assert "expired before they were read" in reader.refused(topics)
    topics.configure(source=f"unsafe_skip_expired = true\n{json_source()}")
    assert reader.read(topics)["dead"] == 1
    topics.remove("items")
    topics.make("items")
    assert "deleted and made again" in reader.refused(topics)


def test_what_one_process_alone_does_is_refused(topics: TopicShop) -> None:
    nothing: Any = None
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1, "text": "a"}])
    topics.once()
    add_request(topics.lake, topics.config(), "skip", f"{topics.topic('items')}/0@7")
    with pytest.raises(InvalidInput, match=r"items/0@7.*objcat ingest once"):
        ingest_topics(topics.config(), topics.lake, nothing)
    topics.configure(source=f'transactions = "x"\n{json_source()}')
    with pytest.raises(InvalidInput, match=r"stay whole.*objcat ingest run"):
        ingest_topics(topics.config(), topics.lake, nothing)
    topics.configure(source=f'{json_source()}\n[source.options]\n"security.protocol" = "SSL"')
    with pytest.raises(InvalidInput, match="kafka_options"):
        ingest_topics(topics.config(), topics.lake, nothing)


KILLS = effort(3, with_all=25)


@pytest.mark.timeout(1800)
def test_a_driver_that_is_killed(topics: TopicShop, tmp_path: Path) -> None:
    """At any moment, while records come and are given up. Afterwards every committed record is there once."""
    check_needed("spark-kafka")
    drawn, found = random.Random(7), KilledRun()
    for name, partitions in topic_load.PARTITIONS.items():
        topics.make(name, partitions=partitions)
    topics.configure(source=SOURCE, routes=ROUTES)
    stop = tmp_path / "stop"
    command = [sys.executable, "-m", topic_load.__name__, topics.source_url, "7", str(stop), "0.05"]
    writers = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    before = -1
    try:
        for _ in range(KILLS):
            with SparkReader(tmp_path / "log") as killed:
                killed.order(topics, messages_max=200)
                wanted, end = drawn.choice([1, 1, 2, 3]), time.monotonic() + 180
                while (version := version_of(topics)) - before < wanted and killed.is_running and time.monotonic() < end:
                    time.sleep(0.05)
                time.sleep(drawn.uniform(0, 1.5))
                killed.kill()
            version = version_of(topics)
            found.kills.append((version - before, False))
            before = version
    finally:
        stop.touch()
        said, _ = writers.communicate(timeout=60)
    found.transactions = int(said)
    with SparkReader(tmp_path / "log") as last:
        last.read(topics)
    compare_topics(topics, found)
    print(found.said())
    assert found.problems == []
    assert found.after_commits(in_snapshot=False) >= KILLS // 2 and found.transactions > KILLS * 10, found.said()


def version_of(topics: TopicShop) -> int:
    """The version of the position in the lake, -1 before the first."""
    stored = topics.lake.source_position("shop", shared_log="shop")
    return -1 if stored is None else stored.version


def test_two_readers_at_once(topics: TopicShop, reader: SparkReader) -> None:
    """The single process and Spark read the same topics at the same time: one of them is refused, and no record is there twice."""
    topics.make("events", partitions=2)
    topics.configure(source='format = "json"\n[[source.topic]]\ntopics = ".*"\nkey_format = "none"\ncolumns = {n = "int64"}', routes=ROUTES)
    for turn in range(2):
        topics.write("events", *(TopicRecord(None, {"n": turn * 1000 + number}) for number in range(1000)))
        reader.order(topics, messages_max=200)
        refused = []
        for _ in range(20):
            try:
                topics.once()
            except Exception as error:  # noqa: BLE001 - which of the two is refused is open
                refused.append(str(error))
        answer = reader.answer()
        refused += [answer["error"]] if "error" in answer else []
        assert all("Another process reads" in one for one in refused), refused
        topics.once()
        assert sorted(row["n"] for row in topics.rows("events")) == list(range((turn + 1) * 1000))
