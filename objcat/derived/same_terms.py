"""`check_same_in_spark`: of which queries it is known that Spark and DuckDB give the same values. It reads no row.

A list of what is the same can be tested, term by term. A list of what differs would never be whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.schema import MappingSchema

from objcat.derived.query import DerivedQuery
from objcat.errors import InvalidSql

_T = sql.DataType.Type
_WHOLE, _DECIMAL, _DOUBLE, _FLOAT, _TEXT, _NULL = "whole", "decimal", "double", "float", "text", "null"
_KINDS: Mapping[Any, str] = {
    **dict.fromkeys((_T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT), _WHOLE),
    **dict.fromkeys((_T.CHAR, _T.VARCHAR, _T.TEXT), _TEXT),
    **dict.fromkeys((_T.TIMESTAMPTZ, _T.TIMESTAMPLTZ), "zoned time"),
    **dict.fromkeys((_T.TIMESTAMP, _T.TIMESTAMPNTZ), "time"),
    _T.DECIMAL: _DECIMAL,
    _T.DOUBLE: _DOUBLE,
    _T.FLOAT: _FLOAT,
    _T.BOOLEAN: "boolean",
    _T.DATE: "date",
    _T.BINARY: "bytes",
    _T.NULL: _NULL,
}
"""Classes of types within which values are compared and mixed alike."""
_NUMBERS = (_WHOLE, _DECIMAL, _DOUBLE)
_CASTS: Mapping[str, tuple[str, ...]] = {
    _WHOLE: (_WHOLE, _DECIMAL, _DOUBLE, _TEXT),
    _DECIMAL: (_DECIMAL,),
    _FLOAT: (_FLOAT, _DOUBLE),
    _DOUBLE: (_DOUBLE,),
    _TEXT: (_TEXT,),
    "boolean": ("boolean",),
    "date": ("date", "zoned time", "time"),
    "zoned time": ("zoned time", "date"),
    "time": ("time", "date"),
    _NULL: tuple(_KINDS.values()),
}
"""Casts that are the same, by the class of what is cast."""
_LITERALS = {
    "date": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "time": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"),
    "zoned time": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?"),
}
_UNITS = frozenset(("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"))
_IS_LITERAL = "objcat_literal"


def check_same_in_spark(query: DerivedQuery) -> None:
    """Raises InvalidSql for a term or a type that may have another value in Spark than in this process. The message names it."""
    schema: dict[str, dict[str, str]] = {}
    for source in query.sources:
        columns = schema.setdefault(source.place, {})
        for name in source.columns:
            kind = _spark_type(source.schema.field(name).type)
            if kind is None:
                raise _refused(f"the column {name!r} of {source.name!r} has the type {source.schema.field(name).type}")
            columns[name] = kind
    tree = query.tree.transform(_typed_literal)
    known = MappingSchema({name: dict(columns) for name, columns in schema.items()}, dialect="spark", normalize=False)
    try:
        tree = annotate_types(tree, schema=known, dialect="spark")
    except SqlglotError as error:
        raise _refused(f"the types of its terms are not known ({error})") from error
    for node in tree.walk(prune=lambda node: node.meta.get(_IS_LITERAL, False)):
        rule = _RULES.get(type(node))
        if not node.meta.get(_IS_LITERAL) and (rule is None or not rule(node)):
            raise _refused(f"{_shown(node)} may have another value there")


def _refused(why: str) -> InvalidSql:
    return InvalidSql(
        f"Spark cannot compute this derived table, because {why}. Nothing was done. Leave out spark=, and this process computes it."
    )


def _typed_literal(node: sql.Expr) -> sql.Expr:
    """A decimal literal with its type, which sqlglot takes for a double, and a mark that it is a literal."""
    if not isinstance(node, sql.Literal) or node.is_string or "e" in node.name.lower():
        return node
    if "." in node.name:
        before, _, after = node.name.partition(".")
        digits = max(len(before.lstrip("0")) + len(after), 1)
        node = sql.cast(node.copy(), sql.DataType.build(f"DECIMAL({digits}, {len(after)})", dialect="spark"))
    node.meta[_IS_LITERAL] = True
    return node


def _spark_type(kind: pa.DataType) -> str | None:
    """The type of a column in Spark's words; None for one that is not compared alike, or has parts."""
    plain = {
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.large_string(): "STRING",
        pa.bool_(): "BOOLEAN",
        pa.date32(): "DATE",
        pa.binary(): "BINARY",
        pa.large_binary(): "BINARY",
    }
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is not None else "TIMESTAMP_NTZ"
    return plain.get(kind)


# ---- what is the same


def _kind(node: sql.Expr | None) -> str | None:
    """The class of a term's type; None for one that is not known."""
    if isinstance(node, sql.Distinct):
        return _kind(node.expressions[0]) if len(node.expressions) == 1 else None
    if isinstance(node, sql.Null):
        return _NULL
    if isinstance(node, (sql.Date, sql.TsOrDsToDate)):
        return "date"
    if isinstance(node, (sql.TimestampTrunc, sql.DateTrunc)):
        return _kind(node.this)
    if node is None or node.type is None:
        return None
    return _KINDS.get(node.type.this)


def _is_literal(node: sql.Expr) -> bool:
    """Whether it is a number in the text."""
    node = node.unnest()
    return bool(node.meta.get(_IS_LITERAL)) or (isinstance(node, sql.Neg) and _is_literal(node.this))


def _alike(*nodes: sql.Expr | None) -> bool:
    """Whether terms are of one class, or numbers that both engines bring to one type alike."""
    kinds = {_kind(node) for node in nodes if node is not None and not _is_literal(node)} - {_NULL}
    if None in kinds:
        return False
    if any(_is_literal(node) for node in nodes if node is not None):
        return kinds <= {_WHOLE, _DECIMAL} or kinds <= {_WHOLE, _DOUBLE}
    return len(kinds) <= 1 or kinds <= {_WHOLE, _DECIMAL} or kinds <= {_WHOLE, _DOUBLE}


def _numbers(*nodes: sql.Expr | None) -> bool:
    return _alike(*nodes) and all(_kind(node) in (*_NUMBERS, _NULL) for node in nodes)


def _is_text(*nodes: sql.Expr | None) -> bool:
    return all(_kind(node) in (_TEXT, _NULL) for node in nodes)


def _whole_literal(node: sql.Expr | None) -> int | None:
    if not isinstance(node, sql.Literal) or node.is_string or not node.name.isdigit():
        return None
    return int(node.name)


def _always(_: sql.Expr) -> bool:
    return True


def _two_alike(node: sql.Expr) -> bool:
    return _alike(node.this, node.expression)


def _two_numbers(node: sql.Expr) -> bool:
    return _numbers(node.this, node.expression)


def _is_in(node: sql.In) -> bool:
    inner = node.args.get("query")
    if inner is not None:
        selects = inner.unnest().selects
        return len(selects) == 1 and _alike(node.this, selects[0])
    return not node.args.get("unnest") and _alike(node.this, *node.expressions)


def _case(node: sql.Case) -> bool:
    if node.this is not None and not _alike(node.this, *(one.this for one in node.args["ifs"])):
        return False
    return _alike(*(one.args["true"] for one in node.args["ifs"]), node.args.get("default"))


def _division(node: sql.Div) -> bool:
    """A quotient of doubles or whole numbers, which is never by zero. A decimal one is a decimal in Spark."""
    kinds = {_kind(node.this), _kind(node.expression)}
    return kinds <= {_WHOLE, _DOUBLE, _NULL} and _alike(node.this, node.expression) and _is_not_zero(node.expression, node)


def _is_not_zero(divisor: sql.Expr, node: sql.Expr) -> bool:
    divisor = divisor.unnest()
    said = divisor.this if isinstance(divisor, sql.Cast) and _is_literal(divisor) else divisor
    if isinstance(said, sql.Literal) and not said.is_string:
        return any(digit not in "0." for digit in said.name.lower().partition("e")[0])
    if isinstance(divisor, sql.Count):
        # Of no rows there is no group, unless all rows are one.
        select = node.find_ancestor(sql.Select)
        return isinstance(divisor.this, sql.Star) and select is not None and select.args.get("group") is not None
    is_zero = divisor.expression if isinstance(divisor, sql.Nullif) else None
    return _whole_literal(is_zero) == 0


def _remainder(node: sql.Mod | sql.IntDiv) -> bool:
    return _kind(node.this) == _WHOLE and _whole_literal(node.expression) not in (None, 0)


def _cast(node: sql.Cast | sql.TryCast) -> bool:
    if node.args.get("safe") or node.args.get("format") or node.args.get("action"):
        return False
    wanted = _KINDS.get(node.to.this, "")
    if isinstance(node.this, sql.Literal) and node.this.is_string:
        return wanted == _TEXT or (wanted in _LITERALS and _LITERALS[wanted].fullmatch(node.this.name) is not None)
    return wanted in _CASTS.get(_kind(node.this) or "", ()) and not (wanted == _TEXT and node.to.expressions)


def _date(node: sql.Date | sql.TsOrDsToDate) -> bool:
    more = [one for name, one in node.args.items() if name != "this" and isinstance(one, (sql.Expr, list)) and one]
    return not more and _kind(node.this) in ("date", "time", "zoned time")


def _like(node: sql.Like) -> bool:
    pattern = node.expression
    return _is_text(node.this) and isinstance(pattern, sql.Literal) and pattern.is_string and "\\" not in pattern.name


def _substring(node: sql.Substring) -> bool:
    start, size = node.args.get("start"), node.args.get("length")
    return _is_text(node.this) and (_whole_literal(start) or 0) >= 1 and (size is None or _whole_literal(size) is not None)


def _trim(node: sql.Trim) -> bool:
    return _is_text(node.this) and not any(value for name, value in node.args.items() if name != "this")


def _part(node: sql.Expr) -> bool:
    unit = node.name.upper() if isinstance(node, sql.Extract) else type(node).__name__.upper()
    of = node.expression if isinstance(node, sql.Extract) else node.this
    of = of.this if isinstance(of, sql.TsOrDsToDate) else of
    kind = _kind(of)
    return kind in ("time", "zoned time", "date") and unit in (
        ("YEAR", "MONTH", "DAY") if kind == "date" else ("YEAR", "MONTH", "DAY", "HOUR")
    )


def _truncated(node: sql.TimestampTrunc) -> bool:
    unit = node.args.get("unit")
    return isinstance(unit, (sql.Literal, sql.Var)) and unit.name.upper() in _UNITS and _kind(node.this) in ("time", "zoned time")


def _sum(node: sql.Sum) -> bool:
    return _kind(node.this) in (*_NUMBERS, _FLOAT)


def _mean(node: sql.Avg) -> bool:
    """A mean of doubles. DuckDB divides exact sums with more digits than a double has."""
    return _kind(node.this) == _DOUBLE


def _extreme(node: sql.Expr) -> bool:
    return not node.expressions and _kind(node.this) not in (None, _NULL)


def _set_operation(node: sql.SetOperation) -> bool:
    sides: list[list[sql.Expr]] = [inner.selects for side in (node.left, node.right) if isinstance(inner := side.unnest(), sql.Query)]
    return not node.args.get("by_name") and len(sides) == 2 and len(sides[0]) == len(sides[1]) and all(map(_alike, *sides))


def _only(*names: str) -> Callable[[sql.Expr], bool]:
    """Whether a node has these parts and no others."""
    return lambda node: not any(value for name, value in node.args.items() if name not in names)


def _count(node: sql.Count) -> bool:
    several = node.this.expressions if isinstance(node.this, sql.Distinct) else [node.this]
    return not node.expressions and len(several) == 1


_RULES: Mapping[type[sql.Expr], Callable[..., bool]] = {
    **dict.fromkeys((sql.Select, sql.From, sql.Where, sql.Having, sql.TableAlias, sql.Alias, sql.Star), _always),
    **dict.fromkeys((sql.CTE, sql.Subquery, sql.Exists, sql.Identifier, sql.Paren, sql.Null, sql.Boolean), _always),
    **dict.fromkeys((sql.DataType, sql.DataTypeParam, sql.Var, sql.Literal, sql.And, sql.Or, sql.Not, sql.Is, sql.Distinct), _always),
    **dict.fromkeys((sql.Window, sql.Order, sql.Ordered, sql.Rank, sql.DenseRank, sql.RowNumber, sql.Filter), _always),
    **dict.fromkeys((sql.EQ, sql.NEQ, sql.GT, sql.GTE, sql.LT, sql.LTE, sql.NullSafeEQ, sql.NullSafeNEQ, sql.Nullif), _two_alike),
    **dict.fromkeys((sql.Add, sql.Sub, sql.Mul), _two_numbers),
    **dict.fromkeys((sql.Union, sql.Except, sql.Intersect), _set_operation),
    **dict.fromkeys((sql.Neg, sql.Abs), lambda node: _kind(node.this) in _NUMBERS),
    **dict.fromkeys((sql.Coalesce, sql.Greatest, sql.Least), lambda node: _alike(node.this, *node.expressions)),
    **dict.fromkeys((sql.Cast, sql.TryCast), _cast),
    **dict.fromkeys((sql.Mod, sql.IntDiv), _remainder),
    **dict.fromkeys((sql.Date, sql.TsOrDsToDate), _date),
    **dict.fromkeys((sql.Extract, sql.Year, sql.Month, sql.Day, sql.Hour), _part),
    **dict.fromkeys((sql.Min, sql.Max), _extreme),
    sql.Column: lambda node: _kind(node) is not None,
    sql.Table: _only("this", "alias"),
    sql.Join: _only("this", "side", "kind", "on"),
    sql.Group: _only("expressions"),
    sql.With: _only("expressions"),
    sql.Count: _count,
    sql.In: _is_in,
    sql.Between: lambda node: _alike(node.this, node.args["low"], node.args["high"]),
    sql.Case: _case,
    sql.If: lambda node: isinstance(node.parent, sql.Case) or _alike(node.args["true"], node.args.get("false")),
    sql.Div: _division,
    sql.Like: _like,
    sql.DPipe: lambda node: _is_text(node.this, node.expression),
    sql.Concat: lambda node: _is_text(*node.expressions),
    sql.Substring: _substring,
    sql.Trim: _trim,
    sql.Length: lambda node: _is_text(node.this),
    sql.TimestampTrunc: _truncated,
    sql.Sum: _sum,
    sql.Avg: _mean,
}
"""What is the same, and on which conditions."""


def _shown(node: sql.Expr) -> str:
    text = node.sql("spark").strip()
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
