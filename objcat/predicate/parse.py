"""Filters as SQL text: parsed once with sqlglot (Spark's dialect) and checked against the columns of a table.

`parse_predicate` makes a `Predicate`. Its methods give the filter in each form: an Arrow expression for rows, conditions over file bounds
to prune files, and Spark SQL text. Scans, deletes and erasures call this module, for filters of users.
A filter that a scan cannot evaluate exactly is refused with InvalidPredicate, so no row passes by approximation.
`arrow_expression` holds the same for Arrow expressions.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from objcat.common.validation import is_unicode, shown
from objcat.errors import InvalidPredicate
from objcat.metadata.column_parts import FieldPath, field_at
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import TableSchema
from objcat.predicate.arrow import Translator, column_path, terms_of
from objcat.predicate.bounds import Bounds
from objcat.predicate.dialect import SparkText
from objcat.predicate.in_lists import gathered
from objcat.predicate.spark import spark_text

KEPT_MAX = 16
"""Filters that are cached parsed and translated, since a scan uses them several times."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked filter. Picklable.

    text: as the user wrote it. columns: the logical names that it reads.
    """

    text: str
    columns: tuple[str, ...]
    schema: TableSchema

    def to_arrow(self) -> pc.Expression:
        """The filter over a table with logical column names."""
        return _arrow_of(self)

    def to_pruning(self, *, only: Collection[str] | None = None) -> Pruning:
        """A condition over the bounds of files: true if a row may pass. only: columns whose bounds count. Others are unknown."""
        return _pruning_of(self, None if only is None else frozenset(only))

    def to_failing(self) -> Pruning:
        """A condition over the bounds of files: true if a row may fail."""
        with _bounded(self.text):
            return Pruning(Bounds(self.text, self.schema).failing(parsed(self.text)), self.ids())

    def fixed(self) -> dict[str, list[Any]]:
        """Columns in which a passing row has one of a few values, by `=` or IN, with those values in the column's type."""
        found: dict[str, list[Any]] = {}
        with _bounded(self.text):
            translator = Translator(self.text, self.schema)
            for term in terms_of(parsed(self.text)):
                match term:
                    case sql.EQ() if isinstance(term.this, sql.Column) and not isinstance(term.expression, sql.Column):
                        column, literals = term.this, [term.expression]
                    case sql.EQ() if isinstance(term.expression, sql.Column) and not isinstance(term.this, sql.Column):
                        column, literals = term.expression, [term.this]
                    case sql.In() if isinstance(term.this, sql.Column):
                        column, literals = term.this, list(term.expressions)
                    case _:
                        continue
                name, *inner = translator.path_of(column)
                if not inner:
                    found.setdefault(name, translator.equal(literals, column))
        return found

    def ids(self, only: Collection[str] | None = None) -> tuple[int, ...]:
        """Ids of the columns that it reads, or of some of them, and of the fields of structs that it names in these."""
        columns = tuple(self.schema.column(name).id for name in self.columns if only is None or name in only)
        fields = (path for path in self.paths() if len(path) > 1 and (only is None or path[0] in only))
        return (*columns, *(field_at(self.schema, path).id for path in fields))

    def paths(self) -> tuple[FieldPath, ...]:
        """The columns and fields that it reads, each once."""
        return _paths_of(self)

    def to_spark_sql(self) -> str:
        """Spark SQL text, see `spark_text`."""
        with _bounded(self.text):
            return spark_text(_parse(self.text), Translator(self.text, self.schema))


def parse_predicate(text: str, schema: TableSchema) -> Predicate:
    """A predicate from the text of a WHERE clause, e.g. `fare > 10 and city in ('Rome', 'Oslo')`.

    Known: columns and struct fields (`place.lat`), literals, comparisons, AND, OR, NOT, IN, BETWEEN, IS [NOT] NULL, DATE and TIMESTAMP
    literals, parentheses.

    Raises:
        InvalidPredicate: names what does not parse, or the nearest column.
    """
    _check_text(text)
    with _bounded(text):
        tree = parsed(text)
    names = dict.fromkeys(column_path(text, column, schema)[0] for column in tree.find_all(sql.Column))
    predicate = Predicate(text, tuple(names), schema)
    try:
        empty_rows(schema).filter(predicate.to_arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidPredicate(f"The filter {shown(text)} compares what cannot be compared ({reason}). Cast one of them.") from error
    return predicate


@functools.lru_cache(maxsize=KEPT_MAX)
def empty_rows(schema: TableSchema) -> pa.Table:
    """An empty table with the logical names. Arrow checks filters by applying them."""
    return schema.to_arrow().empty_table()


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidPredicate(f"The filter is {shown(text)}, which is not text. Write it as after WHERE in SQL.")
    if not is_unicode(text):
        raise InvalidPredicate(f"The filter {shown(text)} is not valid Unicode. Mend that text.")


@contextlib.contextmanager
def _bounded(text: str) -> Iterator[None]:
    """Context that raises InvalidPredicate for a filter nested deeper than Python's stack. Chains of AND and OR may be long."""
    try:
        yield
    except RecursionError:
        raise InvalidPredicate(
            f"The filter {shown(text)} is nested too deeply. Write it with fewer parentheses, and `x in (...)` for many values of a column."
        ) from None


def _parse(text: str) -> Any:
    try:
        return sqlglot.parse_one(text, dialect=SparkText, into=sql.Condition)
    except SqlglotError as error:
        at = next((found["col"] for found in getattr(error, "errors", ()) if found.get("col")), None)
        place = "" if at is None else f" (at character {at})"
        raise InvalidPredicate(f"The filter {shown(text)} does not parse{place}. Write it as after WHERE in SQL.") from error


@functools.lru_cache(maxsize=KEPT_MAX)
def parsed(text: str) -> Any:
    """The tree of a filter, with long chains as IN. Shared: nobody may change it."""
    return gathered(_parse(text))


@functools.lru_cache(maxsize=KEPT_MAX)
def _paths_of(predicate: Predicate) -> tuple[FieldPath, ...]:
    columns = parsed(predicate.text).find_all(sql.Column)
    return tuple(dict.fromkeys(column_path(predicate.text, column, predicate.schema) for column in columns))


@functools.lru_cache(maxsize=KEPT_MAX)
def _arrow_of(predicate: Predicate) -> pc.Expression:
    with _bounded(predicate.text):
        return Translator(predicate.text, predicate.schema).boolean(parsed(predicate.text))


@functools.lru_cache(maxsize=KEPT_MAX)
def _pruning_of(predicate: Predicate, only: frozenset[str] | None) -> Pruning:
    with _bounded(predicate.text):
        may = Bounds(predicate.text, predicate.schema, only).possible(parsed(predicate.text)).true
    return Pruning(may, predicate.ids(only))
