"""Topics of a real broker into a lake: what producers, retention, transactions and registries do to those who read."""

from __future__ import annotations

import datetime as dt
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from devkit.schema_registry import RegistryFault, SchemaRegistry
from fileio.env import default_env
from objcat.errors import IngestStopped, PositionGone, SourceAway, TooManyBadRecords
from objcat.ingest.sink import LakeSink
from objcat.ingest.sources import open_source
from tests.ingest.protobuf_topic import PROTO, descriptors, encode
from tests.ingest.topic_shop import AvroTopic, TopicRecord, TopicShop, json_source


def rows_by_id(topics: TopicShop, name: str) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in topics.rows(name)}


def test_the_last_value_of_a_key_counts(topics: TopicShop) -> None:
    topics.make("items", partitions=3)
    topics.put("items", [{"id": number, "n": 1, "text": "é"} for number in range(30)])
    topics.once()
    assert topics.differences("items") == [] and len(topics.rows("items")) == 30
    topics.put("items", [{"id": number, "n": 2, "text": None} for number in range(10)])
    topics.write("items", TopicRecord("3", None), TopicRecord("29", None))
    topics.put("items", [{"id": 3, "n": 3, "text": "again"}])
    topics.once()
    assert topics.differences("items") == [] and len(topics.rows("items")) == 29


def test_columns_that_are_declared_later(topics: TopicShop) -> None:
    topics.make("items", partitions=2)
    topics.put("items", [{"id": 1, "n": 1}])
    topics.once()
    topics.configure(source=json_source(more="string", price="decimal(10,2)"))
    topics.put("items", [{"id": 2, "n": 2, "more": "x", "price": "1.50"}, {"id": 3, "n": None, "unknown": 1}])
    topics.once()
    found = rows_by_id(topics, "items")
    assert found[1]["more"] is None and found[2]["price"] == Decimal("1.50") and found[3]["n"] is None and "unknown" not in found[3]


def test_what_a_producer_gave_up_is_in_no_table(topics: TopicShop) -> None:
    """The topic ends with records that are given up and with marks: neither is waited for."""
    topics.make("items", partitions=2)
    producer = topics.transactional()
    for number, is_given_up in enumerate([False, True, False, True]):
        producer.begin_transaction()
        for partition in (0, 1):
            topics.put("items", [{"id": partition, "n": number}], partition=partition, producer=producer)
        producer.abort_transaction() if is_given_up else producer.commit_transaction()
    topics.once()
    assert {row["id"]: row["n"] for row in topics.rows("items")} == {0: 2, 1: 2}
    topics.once()
    assert topics.differences("items") == []


def test_a_transaction_that_is_open_is_not_read_yet(topics: TopicShop) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1}])
    producer = topics.transactional()
    producer.begin_transaction()
    topics.put("items", [{"id": 2, "n": 2}], producer=producer)
    topics.put("items", [{"id": 3, "n": 3}])
    topics.once()
    assert sorted(rows_by_id(topics, "items")) == [1]
    producer.commit_transaction()
    topics.once()
    assert sorted(rows_by_id(topics, "items")) == [1, 2, 3]


def test_records_that_expired_before_they_were_read(topics: TopicShop) -> None:
    topics.make("items", partitions=2)
    topics.put("items", [{"id": number, "n": 0} for number in range(10)], partition=0)
    topics.once()
    topics.put("items", [{"id": number, "n": 1} for number in range(10)], partition=0)
    topics.expire("items", 0, 15)
    with pytest.raises(PositionGone, match=r"resnapshot|skip"):
        topics.once()
    assert {row["n"] for row in topics.rows("items")} == {0}


def test_records_that_expired_after_they_were_read(topics: TopicShop) -> None:
    topics.make("items")
    topics.put("items", [{"id": number, "n": 0} for number in range(10)])
    topics.once()
    topics.expire("items", 0, 10)
    topics.put("items", [{"id": 1, "n": 1}])
    topics.once()
    assert rows_by_id(topics, "items")[1]["n"] == 1 and len(topics.rows("items")) == 10


@pytest.mark.parametrize("records", [3, 10, 25])
def test_a_topic_that_was_deleted_and_made_again(topics: TopicShop, records: int) -> None:
    """Its offsets begin again, and may have passed those that were stored."""
    topics.make("items")
    topics.put("items", [{"id": number, "n": 0} for number in range(10)])
    topics.once()
    topics.remove("items")
    topics.make("items")
    topics.put("items", [{"id": number, "n": 1} for number in range(records)])
    with pytest.raises(PositionGone):
        topics.once()
    assert {row["n"] for row in topics.rows("items")} == {0}


def test_a_partition_that_joins(topics: TopicShop) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1}])
    topics.once()
    topics.add_partitions("items", 3)
    topics.put("items", [{"id": 2, "n": 1}], partition=2)
    topics.once()
    assert sorted(rows_by_id(topics, "items")) == [1, 2]


def test_a_partition_and_a_topic_that_join_while_it_runs(topics: TopicShop) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1}])
    topics.once()
    made = topics.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        topics.add_partitions("items", 2)
        topics.make("more")
        topics.put("items", [{"id": 2, "n": 1}], partition=1)
        topics.put("more", [{"id": 3, "n": 1}])
        end = time.monotonic() + 30
        while time.monotonic() < end and runner.is_alive():
            if "shop.more" in topics.lake.tables() and len(topics.rows("more")) == 1 and len(topics.rows("items")) == 2:
                break
            time.sleep(0.05)
    finally:
        made.stop()
        runner.join(30)
    assert topics.differences("items") == [] and topics.differences("more") == []


def test_two_readers_at_once(topics: TopicShop) -> None:
    """The position decides: one goes on, and the other one stops without a trace."""
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 0}])
    topics.once()
    topics.put("items", [{"id": 1, "n": 1}])
    other: list[int] = []

    def opened(config: Any, router: Any, env: Any) -> Any:
        source = open_source(config, router, env)
        head = source.head

        def other_first() -> Any:
            if not other:
                other.append(1)
                sink = LakeSink(topics.lake, config, "shop.ingest_dead", env)
                state = sink.load()
                assert state is not None
                sink.commit([], state, [], {})
            return head()

        source.head = other_first  # type: ignore[method-assign]
        return source

    with pytest.raises(IngestStopped, match="Another process reads the source"):
        topics.once(opener=opened)
    topics.once()
    assert topics.differences("items") == []


def test_records_that_are_no_rows_go_to_the_dead_letters(topics: TopicShop) -> None:
    topics.make("items")
    topics.put("items", [{"id": 1, "n": 1}])
    topics.write("items", TopicRecord("2", b"\x00\xff{"), TopicRecord("3", b"[1]"), TopicRecord(None, b'{"n": 4}'))
    topics.put("items", [{"id": 5, "n": 5}])
    assert topics.once().dead == 3
    assert sorted(rows_by_id(topics, "items")) == [1, 5]
    letters = {letter["payload"]: letter for letter in topics.dead()}
    assert {b"\x00\xff{", b"[1]", b'{"n": 4}'} == set(letters)
    assert all(letter["error"] and letter["table"] == topics.topic("items") for letter in letters.values())
    topics.write("items", *(TopicRecord(str(number), b"?") for number in range(20)))
    with pytest.raises(TooManyBadRecords, match="records_max"):
        topics.once()


ITEM = {
    "type": "record",
    "name": "item",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "mood", "type": {"type": "enum", "name": "mood", "symbols": ["GOOD", "BAD"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "place",
            "type": {"type": "record", "name": "place", "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "float"}]},
        },
        {"name": "raw", "type": "bytes"},
    ],
}
KEY = {"type": "record", "name": "item_key", "fields": [{"name": "id", "type": "long"}]}


def avro_item(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": "é" if number % 2 else None,
        "price": Decimal("1.50") * number,
        "at": dt.datetime(2024, 2, 29, 12, 34, 56, 123456, dt.UTC),
        "day": dt.date(2024, 2, 29),
        "mood": "BAD",
        "tags": ["a", "b"],
        "place": {"x": 0.5, "y": 1.5},
        "raw": b"\x00\xff",
    }


def test_avro_with_schemas_of_a_registry(topics: TopicShop, registry: SchemaRegistry) -> None:
    topics.configure(source=avro(registry))
    topics.make("items", partitions=2)
    subject = topics.topic("items")
    keys, values = AvroTopic(registry, f"{subject}-key", KEY), AvroTopic(registry, f"{subject}-value", ITEM)
    wider = AvroTopic(
        registry, f"{subject}-value", {**ITEM, "fields": [*ITEM["fields"], {"name": "n", "type": ["null", "int"], "default": None}]}
    )
    records = [TopicRecord(keys.encode({"id": number}), values.encode(avro_item(number))) for number in range(1, 7)]
    topics.write("items", *records, TopicRecord(keys.encode({"id": 6}), None))
    topics.once()
    found = rows_by_id(topics, "items")
    assert found == {number: avro_item(number) for number in range(1, 6)}
    # Both schemas in one batch, and the older one after the newer one.
    topics.write("items", TopicRecord(keys.encode({"id": 7}), wider.encode({**avro_item(7), "n": 5})))
    topics.write("items", TopicRecord(keys.encode({"id": 8}), values.encode(avro_item(8))))
    topics.once()
    found = rows_by_id(topics, "items")
    assert found[7] == {**avro_item(7), "n": 5} and found[8] == {**avro_item(8), "n": None} and found[1]["n"] is None


def test_a_registry_that_comes_back_is_waited_for(topics: TopicShop, registry: SchemaRegistry) -> None:
    topics.configure(source=avro(registry), run="away_s = 60")
    topics.make("items")
    values = AvroTopic(
        registry, f"{topics.topic('items')}-value", {"type": "record", "name": "item", "fields": [{"name": "id", "type": "long"}]}
    )
    for number, fault in enumerate((RegistryFault.AWAY, RegistryFault.BUSY)):
        topics.write("items", TopicRecord(str(number), values.encode({"id": number})))
        registry.fault = fault
        healer = threading.Thread(target=heal, args=(registry, len(registry.requests) + 2))
        healer.start()
        topics.once()
        healer.join()
        assert sorted(rows_by_id(topics, "items")) == list(range(number + 1))


def test_a_registry_that_stays_away_stops_the_run(topics: TopicShop, registry: SchemaRegistry) -> None:
    topics.configure(source=f"{avro(registry)}\naway_s = 0.2", run="away_s = 0.2")
    topics.make("items")
    values = AvroTopic(
        registry, f"{topics.topic('items')}-value", {"type": "record", "name": "item", "fields": [{"name": "id", "type": "long"}]}
    )
    topics.write("items", TopicRecord("1", values.encode({"id": 1})))
    registry.fault = RegistryFault.AWAY
    with pytest.raises(SourceAway, match="registry"):
        topics.once()
    registry.fault, registry.slow_s = RegistryFault.SLOW, 0.3
    topics.once()
    assert sorted(rows_by_id(topics, "items")) == [1]


def test_a_schema_that_the_registry_does_not_have(topics: TopicShop, registry: SchemaRegistry) -> None:
    """A record that names it cannot be read, now or later: it is a dead letter, with its bytes."""
    topics.configure(source=avro(registry))
    topics.make("items")
    values = AvroTopic(
        registry, f"{topics.topic('items')}-value", {"type": "record", "name": "item", "fields": [{"name": "id", "type": "long"}]}
    )
    unknown = b"\x00\x00\x00\x03\xe7" + values.encode({"id": 2})[5:]
    torn = values.encode({"id": 10**9})[:-2]
    topics.write("items", TopicRecord("1", values.encode({"id": 1})), TopicRecord("2", unknown), TopicRecord("3", torn))
    assert topics.once().dead == 2
    assert sorted(rows_by_id(topics, "items")) == [1] and {letter["payload"] for letter in topics.dead()} == {unknown, torn}


def heal(registry: SchemaRegistry, requests: int) -> None:
    """Take the fault away after so many requests."""
    end = time.monotonic() + 30
    while len(registry.requests) < requests and time.monotonic() < end:
        default_env().sleep(0.01)
    registry.fault = None


def avro(registry: SchemaRegistry) -> str:
    return f'format = "avro"\n[source.registry]\nurl = "{registry.url}"'


@pytest.mark.parametrize("by_registry", [False, True])
def test_protobuf(topics: TopicShop, registry: SchemaRegistry, tmp_path: Path, by_registry: bool) -> None:
    (tmp_path / "item.desc").write_bytes(descriptors().SerializeToString())
    source = f'format = "protobuf"\n[[source.topic]]\ntopics = ".*"\ndescriptor = "{tmp_path / "item.desc"}"\nmessage = "shop.Item"'
    number = None
    if by_registry:
        # The ids of the registry are in the records, and are passed over: the descriptor is the schema.
        source += '\nframing = "registry"'
        number = registry.register(f"{topics.topic('items')}-value", PROTO, kind="PROTOBUF")
    topics.configure(source=source)
    topics.make("items", partitions=2)
    full = {
        "id": 1,
        "name": "é",
        "n": 0,
        "mood": 2,
        "tags": ["a", "b"],
        "counts": {"x": 1},
        "place": {"x": 0.5, "y": 1.5},
        "cents": 7,
        "raw": b"\x00\xff",
        "ok": True,
        "big": 2**63 + 1,
    }
    topics.write("items", TopicRecord("1", encode(full, number)), TopicRecord("2", encode({"id": 2}, number)))
    topics.once()
    found = rows_by_id(topics, "items")
    assert found[1]["name"] == "é" and found[1]["n"] == 0 and found[2]["n"] is None and found[1]["mood"] == "BAD"
    assert found[1]["tags"] == ["a", "b"] and dict(found[1]["counts"]) == {"x": 1} and found[1]["place"] == {"x": 0.5, "y": 1.5}
    assert found[1]["cents"] == 7 and found[1]["text"] is None and found[1]["raw"] == b"\x00\xff" and found[1]["ok"] is True
    assert int(found[1]["big"]) == 2**63 + 1 and found[2]["name"] == "" and found[2]["place"] is None and found[2]["mood"] == "UNKNOWN"
    topics.write("items", TopicRecord("1", None), TopicRecord("3", b"\xff\xff"))
    assert topics.once().dead == 1
    assert sorted(rows_by_id(topics, "items")) == [2]
