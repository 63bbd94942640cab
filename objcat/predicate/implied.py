"""Derives from an Arrow expression an implied filter that can be compared with the bounds of files.

Arrow does not expose the parts of an expression, but serializes them: as a record batch whose literals are columns, with the structure in
the schema's metadata, in prefix order. This module reads that. An unknown part implies nothing, so it prunes no file.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.errors import InvalidPredicate
from objcat.metadata.schema import TableSchema, arrow_type
from objcat.predicate.dialect import spark_sql
from objcat.predicate.parse import Predicate, parse_predicate

NODES_MAX = 10_000
"""Parts of an expression. A larger one implies nothing."""
MEMBERS_MAX = 1000
"""Values of an IN. A longer one implies nothing."""
_WHOLE_FLOAT_MAX = 2**53
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - whether it has a zone is the column's business

_COMPARISONS: dict[str, type[sql.Expression]] = {
    "equal": sql.EQ,
    "not_equal": sql.NEQ,
    "less": sql.LT,
    "less_equal": sql.LTE,
    "greater": sql.GT,
    "greater_equal": sql.GTE,
}
_MIRRORED: dict[str, str] = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


@dataclass(frozen=True, slots=True)
class Name:
    """A column. parts: more than one for a struct field."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A literal."""

    scalar: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments. options: None without any."""

    function: str
    arguments: tuple[Node, ...]
    options: dict[str, Any] | None = field(default=None, compare=False)


Node = Name | Value | Call


class _Unknown(Exception):
    """A part without an equivalent among filters."""


def tree_of(expression: pc.Expression) -> Node | None:
    """The parts of an expression. None if Arrow cannot serialize it, or in an unknown form."""
    try:
        (written,) = expression.__reduce__()[1]
        file = pa.ipc.open_file(written)
        pieces = _metadata(file.schema)
        if len(pieces) > NODES_MAX:
            return None
        values = file.get_batch(0)
        iterator = iter(pieces)
        key, text = next(iterator)
        found = _node(key, text, iterator, values)
    except (pa.ArrowException, StopIteration, _Unknown, RecursionError, ValueError, TypeError, struct.error):
        return None
    return found if next(iterator, None) is None else None


def names_in(node: Node) -> Iterator[str]:
    """The columns that a tree reads, with repetitions."""
    left = [node]
    while left:
        part = left.pop()
        if isinstance(part, Name):
            yield part.parts[0]
        elif isinstance(part, Call):
            left.extend(reversed(part.arguments))


def implied_by(expression: pc.Expression, schema: TableSchema, *, floating: bool = True) -> Predicate | None:
    """A filter that every row passes which passes the expression, over the same logical names. None if nothing is known.

    floating: whether comparisons with floating columns count. They do if NaN means what it means to Arrow: equal to nothing.
    """
    tree = tree_of(expression)
    return None if tree is None else implied_by_tree(tree, schema, floating=floating)


def implied_by_tree(tree: Node, schema: TableSchema, *, floating: bool = True) -> Predicate | None:
    """Like `implied_by`, for a parsed expression."""
    try:
        found = _BoundsTranslator(schema, floating=floating).necessary(tree)
        return None if found is None else parse_predicate(spark_sql(found), schema)
    except (InvalidPredicate, RecursionError):
        return None


# ---- reading Arrow's serialized form ------------------------------------------------------------------------------


def _node(key: str, text: str, rest: Iterator[tuple[str, str]], values: pa.RecordBatch) -> Node:
    match key:
        case "field_ref":
            return Name((text,))
        case "nested_field_ref":
            parts = [_node(*next(rest), rest, values) for _ in range(int(text))]
            return Name(tuple(name for part in parts if isinstance(part, Name) for name in part.parts))
        case "literal":
            return Value(values.column(int(text))[0])
        case "call":
            arguments: list[Node] = []
            options: dict[str, Any] | None = None
            while True:
                inner, said = next(rest)
                if inner == "end":
                    return Call(text, tuple(arguments), options)
                if inner == "options":
                    scalar = values.column(int(said))[0]
                    options = {name: scalar[name] for name in scalar}
                else:
                    arguments.append(_node(inner, said, rest, values))
    raise _Unknown(key)


class _Exported(ctypes.Structure):
    """The beginning of a schema in Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """All metadata of a schema in order. `schema.metadata` has one value per key."""
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = _Exported.from_address(pointer_of(capsule, b"arrow_schema")).metadata
    if at is None:
        return []

    def number() -> int:
        """The next number."""
        nonlocal at
        assert at is not None
        found: int = struct.unpack("=i", ctypes.string_at(at, 4))[0]
        at += 4
        return found

    def text() -> str:
        """The next text."""
        nonlocal at
        size = number()
        assert at is not None
        found = ctypes.string_at(at, size)
        at += size
        return found.decode()

    return [(text(), text()) for _ in range(number())]


# ---- as a filter --------------------------------------------------------------------------------------------------


class _BoundsTranslator:
    def __init__(self, schema: TableSchema, *, floating: bool) -> None:
        self._types = {column.name: arrow_type(column.type) for column in schema.columns}
        self._floating = floating

    def necessary(self, node: Node) -> sql.Expression | None:
        """A filter that is true whenever the node is. None if nothing is known."""
        if isinstance(node, Call) and node.function in ("and", "and_kleene"):
            parts = [part for part in map(self.necessary, node.arguments) if part is not None]
            return None if not parts else _joined(sql.And, parts)
        if isinstance(node, Call) and node.function in ("or", "or_kleene"):
            either = [self.necessary(argument) for argument in node.arguments]
            return None if None in either else _joined(sql.Or, [part for part in either if part is not None])
        try:
            return self.exact(node)
        except _Unknown:
            return None

    def exact(self, node: Node) -> sql.Expression:
        """A filter that is true, false and null whenever the node is."""
        match node:
            case Name((name,)) if pa.types.is_boolean(self._type(name)):
                return _column(name)
            case Value(scalar) if pa.types.is_boolean(scalar.type) and scalar.is_valid:
                return sql.Boolean(this=scalar.as_py())
            case Call("and_kleene" | "or_kleene" as function, arguments):
                return _joined(sql.And if function == "and_kleene" else sql.Or, [self.exact(argument) for argument in arguments])
            case Call("invert", (inner,)):
                return sql.Not(this=sql.Paren(this=self.exact(inner)))
            case Call("is_valid", (Name((name,)),)):
                return sql.Not(this=sql.Paren(this=self._is_null(name)))
            case Call("is_null", (Name((name,)),), options) if options is not None and not options["nan_is_null"].as_py():
                return self._is_null(name)
            case Call("is_in", (Name((name,)),), options) if options is not None:
                return self._is_in(name, options)
            case Call("if_else", (Call("is_valid", (Name((name,)),)), Call("is_in", (Name((same,)),), options), Value(other))):
                # The form of DuckDB's IN, for which null is neither in a list nor outside.
                if name == same and not other.is_valid and options is not None:
                    return self._in(name, [value for value in _members(options) if value.is_valid])
            case Call(function, (Name((name,)), Value(scalar))) if function in _COMPARISONS:
                return _COMPARISONS[function](this=_column(name), expression=self._literal(name, scalar))
            case Call(function, (Value(scalar), Name((name,)))) if function in _COMPARISONS:
                kind = _COMPARISONS[_MIRRORED.get(function, function)]
                return kind(this=_column(name), expression=self._literal(name, scalar))
        raise _Unknown(node)

    def _type(self, name: str) -> pa.DataType:
        if name not in self._types:
            raise _Unknown(name)
        return self._types[name]

    def _is_null(self, name: str) -> sql.Expression:
        self._type(name)
        return sql.Is(this=_column(name), expression=sql.Null())

    def _is_in(self, name: str, options: dict[str, Any]) -> sql.Expression:
        """Arrow's own IN, which is never null: null is a value like others."""
        if options["null_matching_behavior"].as_py() != 0:
            raise _Unknown(name)
        members = _members(options)
        present = self._in(name, [value for value in members if value.is_valid])
        if len(members) > sum(value.is_valid for value in members):
            return _joined(sql.Or, [self._is_null(name), present])
        return _joined(sql.And, [sql.Not(this=sql.Paren(this=self._is_null(name))), present])

    def _in(self, name: str, members: Sequence[pa.Scalar]) -> sql.Expression:
        if not members or len(members) > MEMBERS_MAX:
            raise _Unknown(name)
        return sql.In(this=_column(name), expressions=[self._literal(name, value) for value in members])

    def _literal(self, name: str, scalar: pa.Scalar) -> sql.Expression:
        """A value as text that has the same meaning next to the column."""
        column, given = self._type(name), scalar.type
        if not scalar.is_valid or (pa.types.is_floating(column) and not self._floating):
            raise _Unknown(name)
        is_whole = pa.types.is_integer(given)
        if (pa.types.is_integer(column) or pa.types.is_decimal(column)) and is_whole:
            return _number(str(scalar.as_py()))
        if pa.types.is_decimal(column) and pa.types.is_decimal(given):
            return _number(format(scalar.as_py(), "f"))
        if pa.types.is_floating(column) and (pa.types.is_floating(given) or is_whole):
            value = scalar.as_py()
            if math.isfinite(value) and not (is_whole and abs(value) > _WHOLE_FLOAT_MAX):
                return _number(format(float(value), ".17g"))
        if pa.types.is_string(column) and (pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given)):
            return sql.Literal.string(scalar.as_py())
        if pa.types.is_boolean(column) and pa.types.is_boolean(given):
            return sql.Boolean(this=scalar.as_py())
        if pa.types.is_date32(column) and pa.types.is_date32(given):
            return sql.Literal.string(scalar.as_py().isoformat())
        if pa.types.is_timestamp(column) and pa.types.is_timestamp(given) and (column.tz is None) == (given.tz is None):
            return sql.Literal.string(_moment(scalar, column))
        raise _Unknown(name)


def _moment(scalar: pa.Scalar, column: pa.DataType) -> str:
    try:
        micros = scalar.cast(pa.timestamp("us", scalar.type.tz)).cast(pa.int64()).as_py()
        text = (_EPOCH + dt.timedelta(microseconds=micros)).isoformat()
    except (pa.ArrowInvalid, OverflowError) as error:
        raise _Unknown(str(scalar)) from error
    return text if column.tz is None else f"{text}+00:00"


def _members(options: dict[str, Any]) -> list[pa.Scalar]:
    found = options["value_set"]
    values = found.values if isinstance(found, pa.ListScalar) else None
    if values is None:
        raise _Unknown("value_set")
    return list(values)


def _column(name: str) -> sql.Column:
    return sql.column(sql.to_identifier(name, quoted=True))


def _number(text: str) -> sql.Expression:
    return sql.Neg(this=sql.Literal.number(text[1:])) if text.startswith("-") else sql.Literal.number(text)


def _joined(kind: type[sql.And | sql.Or], parts: Sequence[sql.Expression]) -> sql.Expression:
    """Join pairwise, so that the tree is not deep."""
    wrapped: list[sql.Expression] = [sql.Paren(this=part) for part in parts] if len(parts) > 1 else list(parts)
    while len(wrapped) > 1:
        pairs = list(zip(wrapped[::2], wrapped[1::2], strict=False))
        wrapped = [*(sql.Paren(this=kind(this=left, expression=right)) for left, right in pairs), *wrapped[len(pairs) * 2 :]]
    return wrapped[0]
