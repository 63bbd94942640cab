"""Messages of Protobuf whose descriptors are in a registry: imports, places of messages, and what cannot be read."""

from __future__ import annotations

import base64
import importlib.util
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from devkit.schema_registry import SchemaRegistry
from objcat.errors import SourceUnfit
from objcat.ingest.kafka.connect_types import SchemaUnfit
from objcat.ingest.kafka.decoders import MessageDecoder
from objcat.ingest.kafka.message import Unreadable
from objcat.ingest.kafka.protobuf_registry import message_names
from tests.ingest.test_kafka_debezium import decoded
from tests.ingest.test_kafka_formats import at, change_of, opened

MONEY_FILE = importlib.import_module("google.type.money_pb2").DESCRIPTOR
INT64, STRING, MESSAGE = 3, 9, 11
OPTIONAL, REPEATED = 1, 3


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry(user="me:secret") as made:
        yield made


def file_of(name: str, package: str, messages: Mapping[str, Mapping[str, str]], imports: Sequence[str] = ()) -> Any:
    """A file with messages. Their fields are `int`, `string`, `map`, or the full name of a message."""
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for title, fields in messages.items():
        message = made.message_type.add(name=title)
        for number, (field, kind) in enumerate(fields.items(), 1):
            known = {"int": INT64, "string": STRING}.get(kind, MESSAGE)
            of = None if known != MESSAGE else f".{kind}"
            label = OPTIONAL
            if kind == "map":
                label, of = REPEATED, f".{package}.{title}.{field.title()}Entry"
                entry = message.nested_type.add(name=f"{field.title()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=OPTIONAL, type=STRING)
                entry.field.add(name="value", number=2, label=OPTIONAL, type=INT64)
            message.field.add(name=field, number=number, label=label, type=known, type_name=of)
    return made


def register(registry: SchemaRegistry, subject: str, file: Any, references: Sequence[tuple[str, str, int]] = ()) -> int:
    text = base64.b64encode(file.SerializeToString()).decode()
    return registry.register(subject, text, kind="PROTOBUF", references=references)


def classes(*files: Any) -> Any:
    """By a full name, the class of a message of these files."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def framed(number: int, places: bytes, message: Any) -> bytes:
    return struct.pack(">bI", 0, number) + places + bytes(message.SerializeToString())


def source(registry: SchemaRegistry, **topic: Any) -> dict[str, Any]:
    return {"format": "protobuf", **at(registry), **({"topic": [{"topics": "items", **topic}]} if topic else {})}


def opened_at(registry: SchemaRegistry, **topic: Any) -> MessageDecoder:
    return opened(source(registry, **topic), "items", ["id"])


FIRST, SECOND = b"\x00", b"\x02\x02"
"""Places: the short form of the first message, and the second one as a count and a number."""
MONEY = file_of("money.proto", "shop.types", {"Money": {"cents": "int"}})
ORDER = file_of(
    "order.proto",
    "shop",
    {"Order": {"id": "int", "sum": "shop.types.Money", "at": "google.protobuf.Timestamp"}, "Line": {"id": "int", "sku": "string"}},
    ["shop/money.proto", "google/protobuf/timestamp.proto"],
)


def test_a_schema_that_imports_others(registry: SchemaRegistry) -> None:
    register(registry, "money", MONEY)
    number = register(registry, "items-value", ORDER, [("shop/money.proto", "money", 1)])
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    money = descriptor_pb2.FileDescriptorProto.FromString(MONEY.SerializeToString())
    money.name = "shop/money.proto"
    order = classes(stamp, money, ORDER)("shop.Order")
    made = opened_at(registry)
    sent = order(id=5, sum={"cents": 7})
    sent.at.seconds = 1_700_000_000
    (change, _) = [change_of(made, None, framed(number, FIRST, sent)) for _ in range(2)]
    assert change.key == (5,) and str(decoded(change)["at"]) == "2023-11-14 22:13:20+00:00" and decoded(change)["sum"] == {"cents": 7}
    assert registry.requests == [f"GET /schemas/ids/{number}", "GET /subjects/money/versions/1"]
    with pytest.raises(Unreadable, match=r"no shop\.Order"):
        change_of(made, None, struct.pack(">bI", 0, number) + FIRST + b"\xff\xff")
    with pytest.raises(Unreadable, match=r"no message at the place \[7\]"):
        change_of(made, None, struct.pack(">bI", 0, number) + b"\x02\x0e")


def test_a_message_at_another_place(registry: SchemaRegistry) -> None:
    register(registry, "money", MONEY)
    number = register(registry, "items-value", ORDER, [("shop/money.proto", "money", 1)])
    line = classes(file_of("line.proto", "shop", {"Line": {"id": "int", "sku": "string"}}))("shop.Line")
    raw = framed(number, SECOND, line(id=1, sku="a"))
    assert decoded(change_of(opened_at(registry, message="shop.Line"), None, raw)) == {"id": 1, "sku": "a"}
    assert decoded(change_of(opened_at(registry), None, raw)) == {"id": 1, "sku": "a"}
    with pytest.raises(Unreadable, match=r"it is a shop\.Line, and .* wants shop\.Order"):
        change_of(opened_at(registry, message="shop.Order"), None, raw)


def test_keys_of_messages(registry: SchemaRegistry) -> None:
    key = file_of("key.proto", "shop", {"Key": {"id": "int"}})
    number = register(registry, "items-key", key)
    made = opened_at(registry, key_format="protobuf")
    one = change_of(made, framed(number, FIRST, classes(key)("shop.Key")(id=9)), None)
    assert one.key == (9,) and one.row is None


def test_what_registries_know_by_themselves(registry: SchemaRegistry) -> None:
    fields = {"id": "int", "price": "google.type.Money"}
    file = file_of("price.proto", "shop", {"Price": fields}, ["google/type/money.proto", "confluent/meta.proto"])
    number = register(registry, "items-value", file)
    price = classes(*map(_copied, (MONEY_FILE,)), file_of("price.proto", "shop", {"Price": fields}, ["google/type/money.proto"]))
    change = change_of(opened_at(registry), None, framed(number, FIRST, price("shop.Price")(id=1, price={"units": 3})))
    assert decoded(change)["price"] == {"currency_code": "", "units": 3, "nanos": 0}
    lost = register(registry, "lost", file_of("lost.proto", "shop", {"Lost": {"id": "int"}}, ["acme/none.proto"]))
    with pytest.raises(Unreadable, match=r"imports acme/none\.proto, which is neither among its references nor known here.*protoc"):
        change_of(opened_at(registry), None, framed(lost, FIRST, price("shop.Price")()))


def test_a_place_that_may_be_two_messages(registry: SchemaRegistry) -> None:
    """A client for Python counts the entries of maps, and one for Java does not."""
    file = file_of("nested.proto", "shop", {"Out": {"counts": "map", "id": "int"}})
    for name in ("A", "B"):
        file.message_type[0].nested_type.add(name=name).field.add(name="id", number=1, label=OPTIONAL, type=INT64)
    assert message_names(file, (0,)) == ["shop.Out"] and message_names(file, (0, 1)) == ["shop.Out.A", "shop.Out.B"]
    assert message_names(file, (0, 0)) == ["shop.Out.A"] and message_names(file, (0, 2)) == ["shop.Out.B"]
    assert message_names(file, (0, 3)) == message_names(file, (-1,)) == []
    number = register(registry, "items-value", file)
    raw = framed(number, b"\x04\x00\x02", classes(file)("shop.Out.A")(id=3))
    with pytest.raises(Unreadable, match=r"is shop\.Out\.A or shop\.Out\.B.*message = "):
        change_of(opened_at(registry), None, raw)
    assert decoded(change_of(opened_at(registry, message="shop.Out.A"), None, raw)) == {"id": 3}


def test_schemas_that_cannot_be_used(registry: SchemaRegistry) -> None:
    text = registry.register("text", 'syntax = "proto3"; message Item { int64 id = 1; }', kind="PROTOBUF")
    with pytest.raises(SourceUnfit, match=r"came as text.*Nothing was left out.*protoc --descriptor_set_out=FILE"):
        change_of(opened_at(registry), None, struct.pack(">bI", 0, text) + FIRST)
    itself = register(registry, "itself", file_of("node.proto", "shop", {"Node": {"id": "int", "next": "shop.Node"}}))
    with pytest.raises(SchemaUnfit, match="contains itself"):
        change_of(opened_at(registry), None, struct.pack(">bI", 0, itself) + FIRST)
    unknown = register(registry, "unknown", file_of("odd.proto", "shop", {"Odd": {"id": "int", "one": "shop.Missing"}}))
    with pytest.raises(Unreadable, match="do not fit together"):
        change_of(opened_at(registry), None, struct.pack(">bI", 0, unknown) + FIRST)
    avro = registry.register("avro", '"string"')
    with pytest.raises(Unreadable, match="one of AVRO, not of PROTOBUF"):
        change_of(opened_at(registry), None, struct.pack(">bI", 0, avro) + FIRST)
    broken = registry.register("broken", base64.b64encode(b"\xff\xff\xff").decode(), kind="PROTOBUF")
    with pytest.raises(Unreadable, match="is no descriptor"):
        change_of(opened_at(registry), None, struct.pack(">bI", 0, broken) + FIRST)


def _copied(descriptor: Any) -> Any:
    made = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(made)
    return made


@pytest.fixture
def confluent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Confluent's package of serializers. It imports a library for OAuth, which no test uses, and which need not be there."""
    if importlib.util.find_spec("authlib") is None:
        for name in ("authlib", "authlib.integrations", "authlib.integrations.httpx_client"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for name in ("OAuth2Client", "AsyncOAuth2Client"):
            monkeypatch.setattr(sys.modules["authlib.integrations.httpx_client"], name, object, raising=False)
    importlib.import_module("confluent_kafka.schema_registry.protobuf")
    return importlib.import_module("confluent_kafka.schema_registry")


def written_by_confluent(confluent: Any, registry: SchemaRegistry, *messages: Any) -> list[bytes]:
    """Messages as Confluent's producer writes them. It registers their schemas, with those that they import."""
    context = SerializationContext("items", MessageField.VALUE)
    made = []
    with confluent.SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": "me:secret"}) as client:
        for message in messages:
            serializer = confluent.protobuf.ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
            made.append(serializer(message, context))
    return made


def test_messages_of_confluents_serializer(registry: SchemaRegistry, confluent: Any) -> None:
    money = descriptor_pb2.FileDescriptorProto.FromString(MONEY.SerializeToString())
    money.name = "shop/money.proto"
    of = classes(_copied(timestamp_pb2.DESCRIPTOR), money, ORDER)
    sent = of("shop.Order")(id=5, sum={"cents": 7}), of("shop.Line")(id=6, sku="a")
    order, line = written_by_confluent(confluent, registry, *sent)
    assert (order[5:6], line[5:7]) == (FIRST, SECOND)
    made = opened_at(registry)
    assert decoded(change_of(made, None, order)) == {"id": 5, "sum": {"cents": 7}, "at": None}
    assert decoded(change_of(made, None, line)) == {"id": 6, "sku": "a"}
