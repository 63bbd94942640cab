"""Avro, Protobuf and plain JSON of messages, their schemas in a registry or a file, and what a configuration may say."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP_FILE
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS_FILE

from devkit.schema_registry import RegistryFault, SchemaRegistry
from fileio.errors import InvalidConfig
from fileio.testing.env import FakeEnv
from objcat.errors import SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.declared_types import TypeUnknown, parse_type
from objcat.ingest.kafka.decoders import DecoderFactory, MessageDecoder
from objcat.ingest.kafka.message import KafkaMessage, Unreadable
from objcat.ingest.kafka.protobuf_reader import ProtobufReader
from objcat.ingest.kafka.settings import kafka_settings
from objcat.ingest.model import ChangeKind, RowChange
from tests.fileio.certificates import self_signed
from tests.ingest.test_kafka_debezium import decoded

ROW = {
    "type": "record",
    "name": "Value",
    "namespace": "pg.public.items",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "small", "type": ["null", {"type": "int", "connect.type": "int16"}], "default": None},
        {
            "name": "price",
            "type": [
                "null",
                {
                    "type": "bytes",
                    "scale": 2,
                    "precision": 9,
                    "connect.version": 1,
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
                    "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "logicalType": "decimal",
                },
            ],
            "default": None,
        },
        {
            "name": "at",
            "type": ["null", {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}],
            "default": None,
        },
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}], "default": None},
        {"name": "size", "type": {"type": "string", "connect.default": "M"}, "default": "M"},
    ],
    "connect.name": "pg.public.items.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "pg.public.items",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
KEY = {"type": "record", "name": "Key", "namespace": "pg.public.items", "fields": [{"name": "id", "type": "int"}]}


def config(source: Mapping[str, Any], *, route: Mapping[str, Any] | None = None) -> IngestConfig:
    found = {
        "lake": {"url": "memory://x"},
        "source": {"name": "shop", "kind": "kafka", "brokers": "b:9092", "topics": ".*", **source},
        "route": [{"tables": "(.*)", "to": "shop.x", **(route or {})}],
    }
    return parse_config(found, path="shop.toml", environment={})


def opened(source: Mapping[str, Any], topic: str, key: Sequence[str] = (), env: FakeEnv | None = None) -> MessageDecoder:
    made = config(source)
    return DecoderFactory(made, kafka_settings(made), env or FakeEnv()).open(topic, key)


def avro(schema: Any, value: Any, number: int | None) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return (b"" if number is None else struct.pack(">bI", 0, number)) + buffer.getvalue()


def change_of(decoder: MessageDecoder, key: bytes | None, value: bytes | None, *, offset: int = 0) -> RowChange:
    (one,) = decoder.decode(KafkaMessage("items", 0, offset, key, value, 1_700_000_000_000))
    assert isinstance(one.change, RowChange)
    return one.change


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry(user="me:secret") as made:
        yield made


def at(registry: SchemaRegistry) -> dict[str, Any]:
    return {"registry": {"url": registry.url, "user": "me", "password": "secret", "away_s": 2.0}}


def test_debezium_in_avro(registry: SchemaRegistry) -> None:
    value, key = registry.register("items-value", json.dumps(ENVELOPE)), registry.register("items-key", json.dumps(KEY))
    made = opened({"format": "debezium-avro", **at(registry)}, "items")
    row = {"id": 1, "small": -2, "price": Decimal("-12.50"), "at": 1_700_000_000_000_001, "tags": ["a", None], "size": "L"}
    envelope = {"before": None, "after": row, "op": "c"}
    change = change_of(made, avro(KEY, {"id": 1}, key), avro(ENVELOPE, envelope, value))
    assert change.key == (1,) and change.table.key == ("id",)
    assert decoded(change) == {**row, "at": dt.datetime(2023, 11, 14, 22, 13, 20, 1)}
    assert [str(column.type) for column in change.table.columns] == [
        "int32", "int16", "decimal128(9, 2)", "timestamp[us]", "list<item: string>", "string",
    ]  # fmt: skip
    (one,) = made.decode(KafkaMessage("items", 0, 1, avro(KEY, {"id": 1}, key), avro(ENVELOPE, envelope, value)))
    assert one.defaults == {"size": "M"} and registry.requests == ["GET /schemas/ids/1", "GET /schemas/ids/2"]
    change = change_of(made, avro(KEY, {"id": 1}, key), avro(ENVELOPE, {"before": None, "after": None, "op": "d"}, value), offset=2)
    assert (change.kind, change.key) == (ChangeKind.DELETE, (1,))


def test_schemas_that_refer_to_others(registry: SchemaRegistry) -> None:
    registry.register(
        "money", json.dumps({"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]})
    )
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "sum", "type": "shop.Money"}],
    }
    number = registry.register("orders", json.dumps(order), references=[("shop.Money", "money", 1)])
    made = opened({"format": "avro", **at(registry)}, "orders", ["id"])
    whole = json.loads(json.dumps(order).replace('"shop.Money"', json.dumps(json.loads(registry.content.ids[1].schema))))
    change = change_of(made, None, avro(whole, {"id": 5, "sum": {"cents": 7}}, number))
    assert decoded(change) == {"id": 5, "sum": {"cents": 7}} and change.kind is ChangeKind.UPDATE


def test_a_registry_that_is_away_is_asked_again_and_then_stops(registry: SchemaRegistry) -> None:
    number = registry.register("items-value", json.dumps(KEY))
    env = FakeEnv()
    made = opened({"format": "avro", **at(registry)}, "items", ["id"], env)
    for fault in (RegistryFault.AWAY, RegistryFault.BUSY):
        registry.fault = fault
        with pytest.raises(SourceAway, match="schema registry of 'shop' is away"):
            change_of(made, None, avro(KEY, {"id": 1}, number))
        assert env.sleeps_s
    registry.fault = None
    assert change_of(made, None, avro(KEY, {"id": 1}, number)).key == (1,)
    # What is known needs no registry.
    registry.fault = RegistryFault.AWAY
    assert change_of(made, None, avro(KEY, {"id": 2}, number)).key == (2,)


def test_a_registry_that_refuses_and_a_schema_that_is_not_there(registry: SchemaRegistry) -> None:
    made = opened({"format": "avro", "registry": {"url": registry.url, "user": "me", "password": "wrong"}}, "items", ["id"])
    with pytest.raises(SourceUnfit, match="refused /schemas/ids/9") as refused:
        change_of(made, None, avro(KEY, {"id": 1}, 9))
    assert "wrong" not in str(refused.value)
    made = opened({"format": "avro", **at(registry)}, "items", ["id"])
    with pytest.raises(Unreadable, match="schema 9 is not in the registry"):
        change_of(made, None, avro(KEY, {"id": 1}, 9))


def test_a_registry_by_tls(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    context, _ = (self_signed(tmp_path / name / "ca.pem") for name in ("own", "other"))
    with SchemaRegistry(tls=context) as registry:
        number = registry.register("items-value", json.dumps(KEY))
        source = {"format": "avro", "registry": {"url": registry.url, "tls_ca": str(tmp_path / "own" / "ca.pem")}}
        assert change_of(opened(source, "items", ["id"]), None, avro(KEY, {"id": 1}, number)).key == (1,)
        source["registry"] = {"url": registry.url, "tls_ca": str(tmp_path / "other" / "ca.pem")}
        env = FakeEnv()
        with pytest.raises(SourceUnfit, match=r"certificate of the schema registry of 'shop' was refused.*Set tls_ca"):
            change_of(opened(source, "items", ["id"], env), None, avro(KEY, {"id": 1}, number))
        assert not env.sleeps_s


@pytest.mark.parametrize(("raw", "said"), [(b"\x00\x00", "2 bytes"), (b"\x01\x00\x00\x00\x01x", "byte 1")])
def test_bytes_that_no_serializer_wrote(registry: SchemaRegistry, raw: bytes, said: str) -> None:
    registry.register("items-value", json.dumps(KEY))
    made = opened({"format": "avro", **at(registry)}, "items", ["id"])
    with pytest.raises(Unreadable, match=said):
        change_of(made, None, raw)
    for broken in (struct.pack(">bI", 0, 1), avro(KEY, {"id": 1}, 1) + b"more"):
        with pytest.raises(Unreadable):
            change_of(made, None, broken)


def test_avro_by_a_file(tmp_path: Path) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "any", "type": ["null", "long", "string"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ]
    schema = {"type": "record", "name": "Event", "fields": fields}
    (tmp_path / "event.avsc").write_text(json.dumps(schema))
    made = opened({"format": "avro", "topic": [{"topics": "items", "schema": str(tmp_path / "event.avsc")}]}, "items", ["id"])
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 5000, dt.UTC)
    uid = "5f0d6f0e-0000-0000-0000-000000000001"
    row = {
        "id": 1, "when": moment, "day": moment.date(), "clock": dt.time(1, 2, 3), "local": moment.replace(tzinfo=None),
        "uid": uid, "kind": "B", "raw": b"abcd", "any": "x", "counts": {"a": 1},
    }  # fmt: skip
    assert decoded(change_of(made, None, avro(schema, row, None))) == {**row, "clock": "01:02:03", "any": '"x"', "counts": [("a", 1)]}
    # A key that is text deletes the row of that number.
    deleted = opened(
        {"format": "avro", "topic": [{"topics": "items", "schema": str(tmp_path / "event.avsc"), "key_format": "text"}]}, "items", ["id"]
    )
    change = change_of(deleted, b"17", None)
    assert (change.kind, change.key) == (ChangeKind.DELETE, (17,))
    unknown = opened({"format": "avro", "topic": [{"topics": "items", "schema": str(tmp_path / "event.avsc")}]}, "items", ["id"])
    with pytest.raises(Unreadable, match="give key_schema"):
        change_of(unknown, b"17", None)


def test_a_schema_that_contains_itself_is_refused(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]}]}
    (tmp_path / "node.avsc").write_text(json.dumps(schema))
    made = opened({"format": "avro", "topic": [{"topics": "items", "schema": str(tmp_path / "node.avsc")}]}, "items", ["id"])
    with pytest.raises(SchemaUnfit, match="contains itself"):
        change_of(made, None, avro(schema, {"id": 1, "next": None}, None))


# ---- Protobuf


def descriptors(tmp_path: Path, *, is_recursive: bool = False) -> tuple[str, Any]:
    """A file with the descriptors of `shop.Order`, and its class."""
    made = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    made.dependency.extend([TIMESTAMP_FILE.name, WRAPPERS_FILE.name])
    kind = made.enum_type.add(name="Kind")
    kind.value.add(name="SMALL", number=0)
    kind.value.add(name="LARGE", number=1)
    line = made.message_type.add(name="Line")
    line.field.add(name="sku", number=1, label=1, type=9)
    order = made.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=5)
    order.oneof_decl.add(name="pay")
    order.oneof_decl.add(name="_note")
    order.field.add(name="id", number=1, label=1, type=3)
    order.field.add(name="big", number=2, label=1, type=4)
    order.field.add(name="kind", number=3, label=1, type=14, type_name=".shop.Kind")
    order.field.add(name="lines", number=4, label=3, type=11, type_name=".shop.Line")
    order.field.add(name="counts", number=5, label=3, type=11, type_name=".shop.Order.CountsEntry")
    order.field.add(name="card", number=6, label=1, type=9, oneof_index=0)
    order.field.add(name="cash", number=7, label=1, type=1, oneof_index=0)
    order.field.add(name="note", number=8, label=1, type=9, oneof_index=1, proto3_optional=True)
    order.field.add(name="at", number=9, label=1, type=11, type_name=".google.protobuf.Timestamp")
    order.field.add(name="rate", number=10, label=1, type=11, type_name=".google.protobuf.DoubleValue")
    order.field.add(name="raw", number=11, label=1, type=12)
    if is_recursive:
        order.field.add(name="parent", number=12, label=1, type=11, type_name=".shop.Order")
    files = descriptor_pb2.FileDescriptorSet()
    for one in (TIMESTAMP_FILE, WRAPPERS_FILE):
        one.CopyToProto(files.file.add())
    files.file.append(made)
    path = tmp_path / "order.desc"
    path.write_bytes(files.SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return str(path), message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_by_descriptors(tmp_path: Path) -> None:
    path, order = descriptors(tmp_path)
    made = opened({"format": "protobuf", "topic": [{"topics": "items", "descriptor": path, "message": "shop.Order"}]}, "items", ["id"])
    sent = order(id=7, big=2**64 - 1, kind=1, lines=[{"sku": "a"}], counts={"x": 2}, card="visa", raw=b"\x00")
    sent.at.FromNanoseconds(1_700_000_000_123_456_789)
    sent.rate.value = 0.5
    change = change_of(made, None, sent.SerializeToString())
    assert change.key == (7,) and decoded(change) == {
        "id": 7, "big": Decimal(2**64 - 1), "kind": "LARGE", "lines": [{"sku": "a"}], "counts": [("x", 2)], "card": "visa", "cash": None,
        "note": None, "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, dt.UTC), "rate": 0.5, "raw": b"\x00",
    }  # fmt: skip
    empty = decoded(change_of(made, None, order(id=1).SerializeToString()))
    assert empty["kind"] == "SMALL" and empty["at"] is None and empty["lines"] == [] and empty["raw"] == b""
    with pytest.raises(Unreadable, match=r"no shop\.Order"):
        change_of(made, None, b"\xff\xff\xff")


def test_protobuf_with_the_place_of_its_message(tmp_path: Path) -> None:
    path, order = descriptors(tmp_path)
    reader = ProtobufReader(path, "shop.Order", is_framed=True)
    for place in (b"\x00", b"\x02\x02", b"\x04\x02\x00"):
        _, value = reader.read(struct.pack(">bI", 0, 3) + place + order(id=4).SerializeToString())
        assert value["id"] == 4
    with pytest.raises(Unreadable, match="ends within"):
        reader.read(struct.pack(">bI", 0, 3) + b"\x80")


def test_descriptors_that_do_not_fit(tmp_path: Path) -> None:
    path, _ = descriptors(tmp_path, is_recursive=True)
    with pytest.raises(InvalidConfig, match="contains itself"):
        ProtobufReader(path, "shop.Order", is_framed=False)
    with pytest.raises(InvalidConfig, match=r"no message 'shop\.Other'"):
        ProtobufReader(path, "shop.Other", is_framed=False)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        ProtobufReader(str(tmp_path / "none"), "shop.Order", is_framed=False)


# ---- plain JSON


def plain(columns: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {"format": "json", "topic": [{"topics": ".*", "columns": dict(columns), **more}]}


def test_json_by_declared_columns() -> None:
    columns = {
        "id": "int64", "price": "decimal(9,2)", "at": "timestamp", "ms": "timestamp_ms", "day": "date", "ok": "boolean", "doc": "json",
        "tags": "list<string>", "place": "struct<x: float64, y: float64>", "sizes": "map<string, int32>",
    }  # fmt: skip
    made = opened(plain(columns), "items", ["id"])
    raw = (
        b'{"id": 1, "price": 12.30, "at": "2024-02-29T12:00:00.5+01:00", "ms": 1700000000001, "day": "2024-02-29", "ok": true, '
        b'"doc": {"a": 1.10, "b": [null]}, "tags": ["x"], "place": {"x": 1, "y": 2.5}, "sizes": {"s": 3}, "unknown": 1}'
    )
    assert decoded(change_of(made, None, raw)) == {
        "id": 1, "price": Decimal("12.30"), "at": dt.datetime(2024, 2, 29, 11, 0, 0, 500000, dt.UTC),
        "ms": dt.datetime(2023, 11, 14, 22, 13, 20, 1000, dt.UTC), "day": dt.date(2024, 2, 29), "ok": True,
        "doc": '{"a":1.10,"b":[null]}', "tags": ["x"], "place": {"x": 1.0, "y": 2.5}, "sizes": [("s", 3)],
    }  # fmt: skip
    texts = decoded(change_of(made, None, b'{"id": 2, "price": "0.05"}'))
    assert texts["price"] == Decimal("0.05")


def test_json_with_a_schema_and_rows_that_are_gone() -> None:
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "id"}, {"type": "string", "field": "__deleted", "optional": True}]}
    made = opened({"format": "json", "topic": [{"topics": ".*", "delete_field": "__deleted"}]}, "items", ["id"])
    for gone, kind in (("false", ChangeKind.UPDATE), ("true", ChangeKind.DELETE)):
        raw = json.dumps({"schema": schema, "payload": {"id": 3, "__deleted": gone}}).encode()
        change = change_of(made, None, raw)
        assert (change.kind, change.key) == (kind, (3,)) and [column.name for column in change.table.columns] == ["id"]
    # A message may have fields of these names without being Connect's.
    made = opened(plain({"payload": "int64"}), "items")
    assert decoded(change_of(made, None, b'{"payload": 5, "id": 1}')) == {"payload": 5}


def test_keys_of_messages_are_columns_where_the_values_lack_them() -> None:
    made = opened(plain({"id": "int64", "n": "int64"}), "items", ["id"])
    assert change_of(made, b'{"id": 4}', b'{"n": 1}').key == (4,) and change_of(made, b"5", b'{"n": 1}').key == (5,)
    with pytest.raises(Unreadable, match="'id' has no value"):
        change_of(made, None, b'{"n": 1}')
    with pytest.raises(Unreadable, match="route names no key"):
        change_of(opened(plain({"id": "int64"}), "items"), b"5", None)


@pytest.mark.parametrize("value", ["12.50", 12.5, "12.5", "1.25E1"])
def test_keys_that_are_equal_are_one(value: Any) -> None:
    made = opened(plain({"id": "decimal(9,2)"}), "items", ["id"])
    assert change_of(made, None, json.dumps({"id": value}).encode()).key == ("=12.5",)
    moment = opened(plain({"id": "timestamp"}), "items", ["id"])
    assert (
        change_of(moment, None, b'{"id": "2024-01-01T01:00:00+01:00"}').key
        == change_of(moment, None, b'{"id": "2024-01-01T00:00:00Z"}').key
    )


def test_declared_types() -> None:
    assert parse_type("list<struct<id: int64, at: timestamp>>").arrow == pa.list_(
        pa.struct([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])
    )
    for text in ("int", "decimal(40,2)", "decimal(5,6)", "list<int64", "struct<>", "map<string>", "", "int64 x", "a-b"):
        with pytest.raises(TypeUnknown, match="not known"):
            parse_type(text)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"format": "debezium-avro"}, r"there is no \[source.registry\]"),
        ({"format": "avro"}, "has no schema"),
        ({"format": "protobuf"}, "has no descriptor"),
        ({"format": "protobuf", "topic": [{"topics": "x", "descriptor": "x.desc"}]}, "has no message"),
        ({"format": "json", "topic": [{"topics": "x", "key_format": "protobuf"}]}, "keys of Protobuf"),
        ({"format": "json", "topic": [{"topics": "x", "key_format": "protobuf", "descriptor": "x.desc"}]}, "no key_message"),
        ({"format": "json", "topic": [{"topics": "x", "key_format": "avro"}]}, "neither key_schema"),
        ({"topics": "("}, "not a regular expression"),
        ({"options": {"enable.auto.commit": True}}, "is set by objcat"),
        ({"topic": [{"topics": "x", "columns": {"id": "int"}}]}, "the column 'id' has the type 'int'"),
        ({"topic": [{"topics": "x", "colums": {}}]}, "colums"),
        ({"format": "xml"}, "xml|Invalid enum"),
        ({"numeric_scale": 50}, "numeric_scale"),
        ({"registry": {"url": "ftp://x"}, "format": "debezium-avro"}, "is not like https"),
        ({"registry": {"url": "https://x", "tls_ca": "/none.pem"}, "format": "debezium-avro"}, "cannot be used"),
    ],
)
def test_configurations_that_do_not_fit(source: Mapping[str, Any], said: str) -> None:
    made = config(source)
    with pytest.raises(InvalidConfig, match=said):
        DecoderFactory(made, kafka_settings(made), FakeEnv())
