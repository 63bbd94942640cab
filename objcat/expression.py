"""Filters as Arrow expressions: applied exactly to rows, after checks that they fit the table."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fileio.config import nearest
from objcat.errors import InvalidPredicate
from objcat.table import Pruning
from objcat.table.schema import TableSchema


@dataclass(frozen=True, slots=True)
class ArrowFilter:
    """A checked filter. expression: over the logical column names. columns: those that it reads. Picklable.

    Arrow does not tell what an expression compares, so no file is left out because of it.
    """

    expression: pc.Expression
    columns: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        return " ".join(str(self.expression).split())

    def to_arrow(self) -> pc.Expression:
        """Over a table with the logical column names."""
        return self.expression

    def to_pruning(self, *, only: Collection[str] | None = None) -> Pruning | None:  # noqa: ARG002 - the other kind of filter has bounds
        return None

    def to_failing(self) -> Pruning | None:
        return None

    def fixed(self) -> dict[str, list[object]]:
        """No column is known to be fixed."""
        return {}


def check_expression(expression: pc.Expression, schema: TableSchema) -> ArrowFilter:
    """A filter from a `pyarrow.compute.Expression` over logical column names.

    Raises InvalidPredicate when it names a column that is not there, names columns by number, is of another type than boolean, or compares
    what cannot be compared.
    """
    try:
        pickle.dumps(expression)
    except pa.ArrowNotImplementedError as error:
        raise InvalidPredicate(f"the filter {_shown(expression)} names a column by its number: name it, pc.field('...')") from error
    empty = schema.to_arrow().empty_table()
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        raise InvalidPredicate(_reason(expression, str(error).splitlines()[0], schema)) from error
    return ArrowFilter(expression, tuple(name for name in schema.names if not _fits(empty.drop_columns([name]), expression)))


def _fits(rows: pa.Table, expression: pc.Expression) -> bool:
    try:
        rows.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return False
    return True


def _reason(expression: pc.Expression, reason: str, schema: TableSchema) -> str:
    marker = "No match for FieldRef.Name("
    if marker in reason:
        name = reason.partition(marker)[2].partition(") in ")[0]
        return f"the filter {_shown(expression)} names {name!r}, which is not a column: {nearest(name, schema.names)}"
    return f"the filter {_shown(expression)} does not fit the table ({reason}): compare columns with values of their types"


def _shown(expression: pc.Expression) -> str:
    text = " ".join(str(expression).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
