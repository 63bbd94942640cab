"""A message of Protobuf for tests: its text, its descriptor, and its bytes as they are in topics."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = """\
syntax = "proto3";
package shop;

enum Mood { UNKNOWN = 0; GOOD = 1; BAD = 2; }

message Place { double x = 1; float y = 2; }

message Item {
  int64 id = 1;
  string name = 2;
  optional int32 n = 3;
  Mood mood = 4;
  repeated string tags = 5;
  map<string, int64> counts = 6;
  Place place = 7;
  oneof price { int64 cents = 8; string text = 9; }
  bytes raw = 10;
  bool ok = 11;
  uint64 big = 12;
}
"""
_KINDS = descriptor_pb2.FieldDescriptorProto


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What `protoc --descriptor_set_out` makes of `PROTO`."""
    file = descriptor_pb2.FileDescriptorProto(name="item.proto", package="shop", syntax="proto3")
    mood = file.enum_type.add(name="Mood")
    for number, name in enumerate(("UNKNOWN", "GOOD", "BAD")):
        mood.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    _field(place, "x", 1, _KINDS.TYPE_DOUBLE)
    _field(place, "y", 2, _KINDS.TYPE_FLOAT)
    item = file.message_type.add(name="Item")
    _field(item, "id", 1, _KINDS.TYPE_INT64)
    _field(item, "name", 2, _KINDS.TYPE_STRING)
    _field(item, "n", 3, _KINDS.TYPE_INT32).proto3_optional = True
    _field(item, "mood", 4, _KINDS.TYPE_ENUM, of=".shop.Mood")
    _field(item, "tags", 5, _KINDS.TYPE_STRING, is_list=True)
    entry = item.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, _KINDS.TYPE_STRING)
    _field(entry, "value", 2, _KINDS.TYPE_INT64)
    _field(item, "counts", 6, _KINDS.TYPE_MESSAGE, of=".shop.Item.CountsEntry", is_list=True)
    _field(item, "place", 7, _KINDS.TYPE_MESSAGE, of=".shop.Place")
    for name, number, kind in (("cents", 8, _KINDS.TYPE_INT64), ("text", 9, _KINDS.TYPE_STRING)):
        _field(item, name, number, kind).oneof_index = 0
    _field(item, "raw", 10, _KINDS.TYPE_BYTES)
    _field(item, "ok", 11, _KINDS.TYPE_BOOL)
    _field(item, "big", 12, _KINDS.TYPE_UINT64)
    item.oneof_decl.add(name="price")
    # A field that may be left out is alone in a oneof of its own, after all others.
    item.oneof_decl.add(name="_n")
    item.field[2].oneof_index = 1
    return descriptor_pb2.FileDescriptorSet(file=[file])


def encode(values: dict[str, Any], schema_id: int | None = None) -> bytes:
    """The bytes of an item; with the id of a schema, in Confluent's wire format, as the second message of its file."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Item"))()
    for name, value in values.items():
        if isinstance(value, dict):
            target = getattr(made, name)
            target.update(value) if name == "counts" else target.MergeFrom(type(target)(**value))
        elif isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    body: bytes = made.SerializeToString()
    if schema_id is None:
        return body
    # One index, of the second message, as numbers of variable length in zigzag: 1 is 0x02.
    return struct.pack(">bI", 0, schema_id) + b"\x02\x02" + body


def _field(message: Any, name: str, number: int, kind: Any, *, of: str | None = None, is_list: bool = False) -> Any:
    label = _KINDS.LABEL_REPEATED if is_list else _KINDS.LABEL_OPTIONAL
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=of, json_name=name)
