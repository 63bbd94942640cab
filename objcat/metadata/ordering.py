"""Ordering columns decide which row of a key wins: the greater value of the first one, of equal ones that of the second, and so on.

Here are their checks when a table is created. `TableSpec.ordering_columns` are those of a table. The first one alone decides which rows
are late, and which deletes can be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fileio.options import nearest
from objcat.common.validation import name_list, shown, text
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.schema import Column, TableSchema

Ordering: TypeAlias = str | Sequence[str]
"""The name of the ordering column, or the names of several in order."""
ORDERING_FEATURE = {"ordering_columns": "0.1.0"}
"""What a reader must understand once a table has several ordering columns: another one would let the wrong row win."""
WITHOUT_ORDER = ("binary", "boolean")
"""Plain types of columns that are no ordering columns."""
TIMES = ("timestamp", "timestamp_ntz", "date")
"""Types of ordering columns that a lateness can be measured by."""


Values: TypeAlias = tuple[Any, ...]
"""Values of the first ordering columns, which compare as tuples: whole numbers, days, microseconds, unscaled decimals, bytes of text."""


@dataclass(frozen=True, slots=True)
class OrderingBounds:
    """Between which ordering values the rows of a file lie.

    Args:
        least: No row has lesser values. None: no row has an ordering value.
        greatest: No row has greater values. None like `least`.
        is_whole: Whether the values are of all ordering columns. Else of the first ones, and rows may differ where these are equal.
        has_nulls: Whether an ordering column has nulls.
    """

    least: Values | None
    greatest: Values | None
    is_whole: bool
    has_nulls: bool

    def follow(self, others: OrderingBounds) -> bool:
        """Whether no row with an ordering value has a lesser one than a row of another file, so that it wins as a later row."""
        if self.least is None or others.greatest is None:
            return True
        count = min(len(self.least), len(others.greatest))
        mine, theirs = self.least[:count], others.greatest[:count]
        return bool(mine > theirs or (mine == theirs and self.is_whole and others.is_whole))


def ordering_of(schema: TableSchema, ordering: Ordering | None) -> list[Column]:
    """The ordering columns that a user asks for, in order. Raises InvalidInput and InvalidSchema."""
    names = [] if ordering is None else _names(ordering)
    columns = [named(schema, name) for name in names]
    for column in columns:
        if not isinstance(column.type, str) or column.type in WITHOUT_ORDER:
            raise InvalidSchema(
                f"The ordering column {column.name!r} has the type {column.type}. Use a number, a date, a timestamp or a string."
            )
    return columns


def _names(ordering: Ordering) -> list[str]:
    if isinstance(ordering, str) or not isinstance(ordering, Sequence):
        return [text(ordering, what="ordering")]
    names = name_list(ordering, what="ordering")
    if not names:
        raise InvalidInput("ordering names no column. Give ordering='column' or ordering=['column', ...], or leave it out.")
    if len(set(names)) < len(names):
        raise InvalidInput(f"The ordering {shown(names)} names a column twice. Name each once.")
    return names


def check_lateness(ordering: Sequence[Column]) -> None:
    """Check that a lateness can be measured by the first ordering column. Raises InvalidInput."""
    if not ordering:
        raise InvalidInput(
            "allowed_lateness measures the ordering column, but the table has none. Give ordering='column', or leave allowed_lateness out."
        )
    first = ordering[0]
    if first.type not in TIMES:
        raise InvalidInput(
            f"allowed_lateness measures times, but the ordering column {first.name!r} is {first.type}. Order by a timestamp or a date."
        )


def named(schema: TableSchema, name: str) -> Column:
    """The column of a name. Raises InvalidInput."""
    try:
        return schema.column(name)
    except KeyError:
        raise InvalidInput(f"The schema has no column {name!r} ({nearest(name, schema.names)}).") from None
