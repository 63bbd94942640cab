"""Filters from Arrow expressions: checked against the table, applied exactly to rows. Files are pruned by what they imply."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.validation import nearest_name
from objcat.errors import InvalidPredicate
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import TableSchema
from objcat.predicate.implied import implied_by_tree, names_in, tree_of
from objcat.predicate.parse import Predicate, empty_rows, parse_predicate


@dataclass(frozen=True, slots=True)
class ArrowFilter:
    """A checked filter. Picklable.

    Args:
        expression: over the logical column names.
        columns: the columns that it reads.
        implied: a weaker filter that every passing row passes. It prunes files. None: nothing is known.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    implied: Predicate | None = None

    @property
    def text(self) -> str:
        """For people."""
        return " ".join(str(self.expression).split())

    def to_arrow(self) -> pc.Expression:
        """The expression over logical column names."""
        return self.expression

    def to_pruning(self, *, only: Collection[str] | None = None) -> Pruning | None:
        """See `Predicate.to_pruning`. None if nothing is known."""
        return None if self.implied is None else self.implied.to_pruning(only=only)

    def to_failing(self) -> Pruning | None:
        """None: the implied filter says nothing of rows that fail."""
        return None

    def fixed(self) -> dict[str, list[Any]]:
        """See `Predicate.fixed`."""
        return {} if self.implied is None else self.implied.fixed()


def check_expression(expression: pc.Expression, schema: TableSchema) -> ArrowFilter:
    """A filter from a `pyarrow.compute.Expression` over logical column names.

    Raises InvalidPredicate if it names an unknown column or a column by number, is not boolean, or compares what cannot be compared.
    """
    try:
        pickle.dumps(expression)
    except pa.ArrowNotImplementedError as error:
        raise InvalidPredicate(f"The filter {_shown(expression)} names a column by its number. Name it, pc.field('...').") from error
    empty = empty_rows(schema)
    try:
        empty.filter(expression)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        raise InvalidPredicate(_reason(expression, str(error).splitlines()[0], schema)) from error
    tree = tree_of(expression)
    if tree is None:
        # Arrow does not list the columns of an expression, but the expression fails without one of them.
        return ArrowFilter(expression, tuple(name for name in schema.names if not _fits(empty.drop_columns([name]), expression)))
    named = set(names_in(tree))
    return ArrowFilter(expression, tuple(name for name in schema.names if name in named), implied_by_tree(tree, schema))


def both(one: Predicate | ArrowFilter, other: Predicate | ArrowFilter, schema: TableSchema) -> Predicate | ArrowFilter:
    """The filter that passes rows which pass both of two checked filters."""
    if isinstance(one, Predicate) and isinstance(other, Predicate):
        return _and([one, other], schema)
    known = [each if isinstance(each, Predicate) else each.implied for each in (one, other)]
    implied = [predicate for predicate in known if predicate is not None]
    read = tuple(dict.fromkeys((*one.columns, *other.columns)))
    return ArrowFilter(one.to_arrow() & other.to_arrow(), read, _and(implied, schema) if implied else None)


def _and(predicates: Sequence[Predicate], schema: TableSchema) -> Predicate:
    # Parentheses close on a new line, because a text may end in a comment.
    texts = [f"({predicate.text}\n)" for predicate in predicates]
    return predicates[0] if len(predicates) == 1 else parse_predicate(" AND ".join(texts), schema)


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
        return f"The filter {_shown(expression)} names {name!r}, which is not a column: {nearest_name(name, schema.names)}"
    return f"The filter {_shown(expression)} does not fit the table ({reason}). Compare columns with values of their types."


def _shown(expression: pc.Expression) -> str:
    text = " ".join(str(expression).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
