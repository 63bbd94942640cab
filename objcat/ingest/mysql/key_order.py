"""Keys in SQL: how they are compared, and how a key that was read before is written into a query."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from objcat.ingest.model import KeyOrder, KeyValues
from objcat.ingest.mysql.types import BYTES, INTEGERS, TEXTS, MysqlType

_BY_TEXT = {"enum", "set", "uuid", "inet4", "inet6", "time"}
"""Types that the server orders by something else than their text, which the lake has."""


def key_term(expression: str, kind: MysqlType, order: KeyOrder) -> str:
    """A key column as it is compared."""
    if kind.name in _BY_TEXT:
        return f"cast(convert({expression} using utf8mb4) as binary)"
    if order is KeyOrder.BYTES and kind.name in TEXTS:
        return f"cast(convert({expression} using utf8mb4) as binary)"
    if order is KeyOrder.BYTES and kind.name == "decimal" and not pa.types.is_decimal(kind.arrow):
        return f"cast(cast({expression} as char) as binary)"
    return expression


def key_literal(kind: MysqlType) -> str:
    """The placeholder of a key value in a query, with the type that the column has."""
    if kind.name == "decimal":
        return f"cast(%s as decimal({kind.precision},{kind.scale}))"
    if kind.name == "date":
        return "cast(%s as date)"
    if kind.name in ("datetime", "timestamp"):
        return f"cast(%s as datetime({kind.fraction}))"
    if kind.name in TEXTS - {"enum", "set"} and kind.charset:
        return f"convert(%s using {kind.charset}) collate {kind.collation}"
    return "%s"


def key_argument(kind: MysqlType, value: Any) -> Any:
    """The argument of a key value, from its JSON form."""
    if kind.name in BYTES:
        return bytes.fromhex(value)
    if kind.name == "bit":
        return int(value, 2)
    return value


def key_arguments(kinds: Sequence[MysqlType], key: KeyValues) -> list[Any]:
    """The arguments of a key."""
    return [key_argument(kind, value) for kind, value in zip(kinds, key, strict=True)]


def greater_than(left: Sequence[str], right: Sequence[str]) -> str:
    """A condition that one key is above another. `right` appears more than once: `repeated` gives its arguments.

    A comparison of rows would say the same, and the server would read the whole table for it.
    """
    choices = []
    for place, term in enumerate(left):
        equal = [f"{one} = {other}" for one, other in zip(left[:place], right[:place], strict=True)]
        choices.append(" and ".join([*equal, f"{term} > {right[place]}"]))
    return f"{left[0]} >= {right[0]} and ({' or '.join(f'({one})' for one in choices)})"


def repeated(arguments: Sequence[Any]) -> list[Any]:
    """The arguments of the right side of `greater_than`."""
    made = [arguments[0]]
    for place in range(len(arguments)):
        made += arguments[: place + 1]
    return made


def compares_here(kind: MysqlType, order: KeyOrder) -> bool:
    """Whether Python compares the JSON values of keys as the server compares the values."""
    return kind.name in INTEGERS or kind.name in BYTES or (order is KeyOrder.BYTES and kind.name in TEXTS)


def place_here(kinds: Sequence[MysqlType], keys: Sequence[KeyValues], bounds: Sequence[KeyValues]) -> list[int]:
    """For each key, how many of the ascending bounds are less than it."""
    ascending = [_comparable(kinds, bound) for bound in bounds]
    return [bisect_left(ascending, _comparable(kinds, key)) for key in keys]


def _comparable(kinds: Sequence[MysqlType], key: KeyValues) -> tuple[Any, ...]:
    return tuple(value.encode() if kind.name in TEXTS else value for kind, value in zip(kinds, key, strict=True))
