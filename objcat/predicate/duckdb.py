"""Translates SQL that was read as Spark's to DuckDB text with the same meaning.

sqlglot does the translation, but maps some functions by name only: the day of the week counts from 1 in Spark and from 0 in DuckDB. A
filter with another meaning would delete other rows, so those functions are written out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import ErrorLevel
from sqlglot import expressions as sql
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import UnsupportedError

from objcat.errors import InvalidSql
from objcat.predicate.dialect import with_separator

_OWN: Any = DuckDB.Generator
_UNITS = {"MM": "MONTH", "MON": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}
_DAYS = ("DOW", "DAYOFWEEK")
_SECONDS = ("SECOND", "SECONDS", "SEC", "SECS", "S")


def duckdb_text(tree: Any, *, identify: bool = False) -> str:
    """The DuckDB text of a tree. identify: quote every name. Raises InvalidSql for what DuckDB cannot express."""
    try:
        return str(tree.sql(dialect=_DuckText, identify=identify, unsupported_level=ErrorLevel.RAISE))
    except UnsupportedError as error:
        raise InvalidSql(
            f"A part of the SQL is not known without Spark ({error}). Write it in another way, or pass it to a Spark session."
        ) from error


def strict_casts(tree: Any) -> Any:
    """A copy in which an invalid cast fails, as in the SQL standard. try_cast gives null instead."""
    tree = sql.Paren(this=tree.copy())
    for node in list(tree.find_all(sql.TryCast)):
        if not node.args.get("safe"):
            node.replace(sql.Cast(this=node.this, to=node.args["to"]))
    return tree.this


def _as_before(generator: Any, node: Any) -> str:
    known = _OWN.TRANSFORMS.get(type(node))
    return str(known(generator, node) if known else getattr(_OWN, f"{node.key}_sql")(generator, node))


def _like(generator: Any, node: Any) -> str:
    """A backslash escapes the wildcard after it, unless another escape is set."""
    pattern, text = node.expression, _as_before(generator, node)
    is_plain = isinstance(pattern, (sql.Any, sql.All)) or (isinstance(pattern, sql.Literal) and "\\" not in pattern.name)
    return text if is_plain or isinstance(node.parent, sql.Escape) else f"{text} ESCAPE '\\'"


def _day_of_week(generator: Any, node: Any) -> str:
    """From Sunday, 1."""
    return f"({_as_before(generator, node)} + 1)"


def _part(unit: str, of: str) -> str | None:
    if unit.upper() in _DAYS:
        return f"(DAYOFWEEK({of}) + 1)"
    if unit.upper() in _SECONDS:
        return f"CAST(EXTRACT(MICROSECONDS FROM {of}) / 1000000 AS DECIMAL(8, 6))"
    return None


def _extract(generator: Any, node: Any) -> str:
    return _part(node.name, generator.sql(node, "expression")) or _as_before(generator, node)


def _by_name(generator: Any, node: Any) -> str:
    """Functions that sqlglot does not know."""
    name, given = node.name.lower(), node.expressions
    found = None
    if name in ("date_part", "datepart") and len(given) == 2 and given[0].is_string:
        found = _part(given[0].name, generator.sql(given[1]))
    elif name == "weekday" and len(given) == 1:
        found = f"(ISODOW({generator.sql(given[0])}) - 1)"
    return found or _as_before(generator, node)


def _substring(generator: Any, node: Any) -> str:
    """Spark treats position 0 as 1."""
    start = node.args.get("start")
    if start is None or (start.is_int and start.name != "0"):
        return _as_before(generator, node)
    said = generator.sql(start)
    node = node.copy()
    node.set("start", sql.Literal.number(1) if said == "0" else _raw(f"CASE WHEN {said} = 0 THEN 1 ELSE {said} END"))
    return _as_before(generator, node)


def _end(generator: Any, node: Any) -> str:
    """For a negative length Spark takes nothing, DuckDB all but the last ones."""
    size = node.expression
    if isinstance(size, sql.Literal):
        return _as_before(generator, node)
    said = generator.sql(size)
    node = node.copy()
    node.set("expression", _raw(f"CASE WHEN {said} < 0 THEN 0 ELSE {said} END"))
    return _as_before(generator, node)


def _regexp_replace(generator: Any, node: Any) -> str:
    """A group is $1 in Spark and \\1 in DuckDB. A backslash escapes the next character."""
    by = node.args.get("replacement")
    if not isinstance(by, sql.Literal) or not re.search(r"[$\\]", by.name):
        return _as_before(generator, node)
    said = re.sub(r"\\(.)|\$(\d)", lambda found: f"\\{found[2]}" if found[2] else found[1].replace("\\", "\\\\"), by.name, flags=re.DOTALL)
    node = node.copy()
    node.set("replacement", sql.Literal.string(said))
    return _as_before(generator, node)


def _sides(generator: Any, node: Any) -> tuple[str, str]:
    return generator.sql(node, "this"), generator.sql(node, "expression")


def _array_contains(generator: Any, node: Any) -> str:
    many, one = _sides(generator, node)
    return (
        f"CASE WHEN {many} IS NULL OR {one} IS NULL THEN NULL WHEN LIST_CONTAINS({many}, {one}) THEN TRUE "
        f"WHEN LIST_COUNT({many}) < LENGTH({many}) THEN NULL ELSE FALSE END"
    )


def _array_position(generator: Any, node: Any) -> str:
    many, one = _sides(generator, node)
    return f"CASE WHEN {many} IS NULL OR {one} IS NULL THEN NULL ELSE COALESCE(LIST_POSITION({many}, {one}), 0) END"


def _array_remove(generator: Any, node: Any) -> str:
    many, one = _sides(generator, node)
    return f"CASE WHEN {one} IS NULL THEN NULL ELSE LIST_FILTER({many}, LAMBDA _u : _u IS DISTINCT FROM {one}) END"


def _array_distinct(generator: Any, node: Any) -> str:
    many = generator.sql(node, "this")
    return f"LIST_FILTER({many}, LAMBDA _u, _i : LIST_POSITION({many}, _u) = _i)"


def _array_except(generator: Any, node: Any) -> str:
    many, others = _sides(generator, node)
    return (
        f"CASE WHEN {many} IS NULL OR {others} IS NULL THEN NULL "
        f"ELSE LIST_FILTER({many}, LAMBDA _u, _i : LIST_POSITION({many}, _u) = _i AND LIST_POSITION({others}, _u) IS NULL) END"
    )


def _floored(micros: int) -> Callable[[Any, Any], str]:
    """Round down, before 1970 too."""

    def text(generator: Any, node: Any) -> str:
        """The DuckDB text."""
        at = f"EPOCH_US({generator.sql(node, 'this')})"
        return f"(({at} - ((({at} % {micros}) + {micros}) % {micros})) // {micros})"

    return text


def _whole_units(generator: Any, node: Any) -> str:
    """Whole units between two moments, not how often the clock or calendar passed to the next one."""
    unit = node.args.get("unit")
    if unit is None:
        return _as_before(generator, node)
    until, since = (_moment(generator, side) for side in (node.this, node.expression))
    return f"DATESUB('{unit.name.lower()}', {since}, {until})"


def _moment(generator: Any, side: Any) -> str:
    side = side.this if isinstance(side, sql.TsOrDsToDate) else side
    text = generator.sql(side)
    return f"CAST({text} AS TIMESTAMP)" if side.is_string else text


def _truncated(generator: Any, node: Any) -> str:
    unit = node.args["unit"]
    if not isinstance(unit, (sql.Literal, sql.Var)):
        return _as_before(generator, node)
    said = sql.Literal.string(_UNITS.get(unit.name.upper(), unit.name.upper()))
    return str(generator.func("DATE_TRUNC", said, node.this))


def _date(text: Callable[[Any, Any], str]) -> Callable[[Any, Any], str]:
    return lambda generator, node: f"CAST({text(generator, node)} AS DATE)"


def _raw(text: str) -> Any:
    return sql.Var(this=text)


_MEANT: Mapping[Any, Callable[[Any, Any], str]] = {
    sql.Like: _like,
    sql.ILike: _like,
    sql.DayOfWeek: _day_of_week,
    sql.Extract: _extract,
    sql.Anonymous: _by_name,
    sql.Substring: _substring,
    sql.Left: _end,
    sql.Right: _end,
    sql.RegexpReplace: _regexp_replace,
    sql.ArrayContains: _array_contains,
    sql.ArrayPosition: _array_position,
    sql.ArrayRemove: _array_remove,
    sql.ArrayDistinct: _array_distinct,
    sql.ArrayExcept: _array_except,
    sql.GroupConcat: lambda generator, node: _as_before(generator, with_separator(node)),
    sql.IsNan: lambda generator, node: f"COALESCE({_as_before(generator, node)}, FALSE)",
    sql.Format: lambda generator, node: generator.func("PRINTF", node.this, *node.expressions),
    # Interpolated between two values, over the whole population.
    sql.Quantile: lambda generator, node: generator.func("QUANTILE_CONT", node.this, node.args["quantile"]),
    sql.Kurtosis: lambda generator, node: generator.func("KURTOSIS_POP", node.this),
    sql.UnixSeconds: _floored(1_000_000),
    sql.UnixMillis: _floored(1_000),
    sql.DateDiff: _whole_units,
    sql.TimestampDiff: _whole_units,
    sql.TsOrDsAdd: _date(_as_before),
    sql.AddMonths: _date(_as_before),
    sql.DateTrunc: _date(_truncated),
    sql.TimestampTrunc: _truncated,
    # sqlglot reads only from_utc_timestamp and to_utc_timestamp as these.
    sql.AtTimeZone: lambda generator, node: f"{generator.sql(node, 'this')} AT TIME ZONE 'UTC' AT TIME ZONE {generator.sql(node, 'zone')}",
    sql.FromTimeZone: lambda generator, node: (
        f"{generator.sql(node, 'this')} AT TIME ZONE {generator.sql(node, 'zone')} AT TIME ZONE 'UTC'"
    ),
}


class _DuckText(DuckDB):
    class Generator(DuckDB.Generator):  # type: ignore[valid-type,misc]  # sqlglot tells types of it at run time only
        TRANSFORMS = {**_OWN.TRANSFORMS, **_MEANT}  # noqa: RUF012 - as its base has it
