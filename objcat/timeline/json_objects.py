"""JSON objects of the log: encoded with a digest, decoded with precise errors. An error names object, field and next step.

Objects that nothing names with a hash (entries, roots, intents, plans) carry the digest of their own bytes. An optional field may also be
null, from a writer that writes every field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from objcat.errors import CorruptTable

T = TypeVar("T")

RESTORE = "Restore that object from a backup of the bucket."
"""The next step of a CorruptTable."""
DIGEST_CHARACTERS = 64
_ZEROS = b"0" * DIGEST_CHARACTERS
_NAME = b',\n "digest": "'
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError)
"""What a decoder raises for bytes that are not what it expects."""


def encode_object(value: msgspec.Struct) -> bytes:
    """A JSON object over several lines. Its last field is the digest of its own bytes."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=1)
    blank = data[:-2] + _NAME + _ZEROS + b'"\n}'
    begin = len(data) - 2 + len(_NAME)
    return blank[:begin] + hashlib.sha256(blank).hexdigest().encode() + blank[begin + DIGEST_CHARACTERS :]


class _Digested(msgspec.Struct):
    """The digest field of an object of any kind."""

    digest: str | None = ""


_DIGESTED = msgspec.json.Decoder(_Digested)


def check_own_digest(data: bytes, *, key: str) -> None:
    """`check_digest` by the digest that the object itself states. data: a JSON object."""
    check_digest(data, decode_json(data, _DIGESTED, where=key, what="a JSON object").digest, key=key)


def check_digest(data: bytes, said: str | None, *, key: str) -> None:
    """Check that the bytes of an object have the stated digest. Raises CorruptTable.

    Args:
        said: The stated digest. None or empty in objects of older versions, which have none.
    """
    if not said:
        return
    raw = said.encode()
    if len(raw) == DIGEST_CHARACTERS and data.count(raw) == 1 and hashlib.sha256(data.replace(raw, _ZEROS)).hexdigest() == said:
        return
    raise CorruptTable(f"{key} is not what was written: its bytes do not match its field `digest`. {RESTORE}")


def decode_json(data: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], *, where: str, what: str, remedy: str = RESTORE) -> T:
    """Decode JSON. Raises CorruptTable.

    Args:
        where: The object, for the error.
        what: What it should hold, for the error.
        remedy: The next step, for the error.
    """
    try:
        return decoder.decode(data)
    except NOT_JSON as error:
        first = error
    try:
        # A null in an optional field means the same as its absence.
        return decoder.decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(data), inspect.type_info(decoder.type))))
    except (*NOT_JSON, TypeError, msgspec.EncodeError):
        found = "it is nested too deeply" if isinstance(first, RecursionError) else str(first)
        raise CorruptTable(f"{where} is not {what} ({found}). {remedy}") from first


def _without_nulls(value: Any, expected: inspect.Type) -> Any:
    """The value without optional fields that are null although their type has no null."""
    match expected:
        case inspect.StructType() if isinstance(value, list):
            return [_without_nulls(item, field.type) for item, field in zip(value, expected.fields, strict=False)] + value[
                len(expected.fields) :
            ]
        case inspect.StructType() | inspect.DataclassType() if isinstance(value, dict):
            fields = {field.encode_name: field for field in expected.fields}
            return {
                name: _without_nulls(item, fields[name].type) if name in fields else item
                for name, item in value.items()
                if item is not None or name not in fields or fields[name].required or _takes_null(fields[name].type)
            }
        case inspect.DictType() if isinstance(value, dict):
            return {name: _without_nulls(item, expected.value_type) for name, item in value.items()}
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType() if isinstance(value, list):
            return [_without_nulls(item, expected.item_type) for item in value]
        case inspect.TupleType() if isinstance(value, list):
            pairs = zip(value, expected.item_types, strict=False)
            return [_without_nulls(item, kind) for item, kind in pairs] + value[len(expected.item_types) :]
        case inspect.UnionType() if isinstance(value, dict | list):
            return _without_nulls(value, _member(value, expected.types))
    return value


def _member(value: Any, types: Sequence[inspect.Type]) -> inspect.Type:
    """The type of a union that a value has."""
    structs = [kind for kind in types if isinstance(kind, inspect.StructType)]
    if isinstance(value, dict):
        for kind in structs:
            if kind.tag_field is not None and value.get(kind.tag_field) == kind.tag:
                return kind
    return next((kind for kind in (*structs, *types) if not isinstance(kind, inspect.NoneType)), inspect.AnyType())


def _takes_null(expected: inspect.Type) -> bool:
    if isinstance(expected, inspect.UnionType):
        return any(_takes_null(kind) for kind in expected.types)
    return isinstance(expected, inspect.NoneType | inspect.AnyType | inspect.RawType)
