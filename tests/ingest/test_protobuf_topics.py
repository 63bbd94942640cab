"""Topics of Protobuf by a registry, from a broker, as Confluent's producer writes them."""

from __future__ import annotations

from typing import Any

from devkit.schema_registry import SchemaRegistry
from tests.ingest.test_kafka_protobuf import classes, confluent, file_of, written_by_confluent
from tests.ingest.topic_shop import TopicRecord, TopicShop

__all__ = ["confluent"]


def test_a_topic_of_confluents_producer(topics: TopicShop, confluent: Any) -> None:
    item = file_of("item.proto", "shop", {"Item": {"id": "int", "text": "string", "counts": "map"}})
    wider = file_of("item.proto", "shop", {"Item": {"id": "int", "text": "string", "counts": "map", "n": "int"}})
    with SchemaRegistry(user="me:secret") as registry:
        settings = f'format = "protobuf"\n[source.registry]\nurl = "{registry.url}"\nuser = "me"\npassword = "secret"\n'
        topics.configure(source=settings)
        topics.make("items")
        first = classes(item)("shop.Item")
        raws = written_by_confluent(confluent, registry, first(id=1, text="a", counts={"x": 1}), first(id=2, text="b"))
        topics.write("items", *(TopicRecord(b"%d" % number, raw) for number, raw in enumerate(raws, 1)))
        topics.once()
        second = classes(wider)("shop.Item")
        raws = written_by_confluent(confluent, registry, second(id=2, text="c", n=4))
        topics.write("items", TopicRecord(b"2", raws[0]), TopicRecord(b"1", None))
        topics.once()
    assert topics.rows("items") == [{"id": 2, "text": "c", "counts": [], "n": 4}]
