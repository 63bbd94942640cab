"""The broker, Kafka Connect and the schema registry of tests, by themselves: Debezium's records as they are in topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.kafka import KafkaBroker, KafkaConnect
from devkit.schema_registry import SchemaRegistry
from tests.ingest.debezium_route import DebeziumRoute
from tests.ingest.shop import Shop
from tests.ingest.topic_shop import TopicShop


@pytest.fixture
def routes(
    shop: Shop, broker: KafkaBroker, connect: KafkaConnect, registry: SchemaRegistry, tmp_path: Path
) -> Iterator[tuple[DebeziumRoute, DebeziumRoute]]:
    """One that writes JSON, and one that writes Avro."""
    made = DebeziumRoute(shop, connect, broker, tmp_path), DebeziumRoute(shop, connect, broker, tmp_path, registry=registry)
    yield made
    for route in made:
        route.close()


def test_records_of_debezium_are_in_the_topics(
    shop: Shop, routes: tuple[DebeziumRoute, DebeziumRoute], broker: KafkaBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    shop.sql("create table items(id bigint primary key, name text); insert into items values (1, 'a')")
    for route in routes:
        route.begin()
        route.settle()
    shop.sql("update items set name = 'é'; delete from items; truncate items")
    for route in routes:
        route.settle()
    in_json, in_avro = (list(TopicShop(broker, tmp_path, route.prefix).messages("public.items")) for route in routes)
    payloads = [json.loads(message.value() or "null") for message in in_json]
    operations = [payload["payload"]["op"] if payload else None for payload in payloads]
    assert sorted(operations, key=str) == sorted(["r", "u", "d", None, "t"], key=str)
    assert next(payload for payload in payloads if payload and payload["payload"]["op"] == "u")["payload"]["after"] == {
        "id": 1,
        "name": "é",
    }
    # A zero byte, the id of a schema in four bytes, and the value.
    values = [message.value() or b"" for message in in_avro]
    ids = {int.from_bytes(value[1:5], "big") for value in values if value[:1] == b"\0"}
    assert len(values) == len(in_json) and ids and ids <= set(registry.content.ids)
    assert all("Envelope" in registry.content.ids[number].schema for number in ids)


def test_what_is_given_up_is_not_committed(topics: TopicShop) -> None:
    topics.make("items", partitions=2)
    producer = topics.transactional()
    for number, is_given_up in enumerate([False, True]):
        producer.begin_transaction()
        topics.put("items", [{"id": number, "n": 1}], partition=1, producer=producer)
        producer.abort_transaction() if is_given_up else producer.commit_transaction()
    assert topics.source_rows("items") == [{"id": 0, "n": 1}]
    # Each transaction has a mark behind its record.
    assert topics.end_offset("items", 1) == 4
    topics.remove("items")
    topics.make("items")
    assert topics.end_offset("items") == 0
