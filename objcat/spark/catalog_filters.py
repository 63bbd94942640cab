"""The condition of an overwrite as Spark tells it to a source, as the text of a filter."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import expressions as sql

from objcat.errors import InvalidSql
from objcat.metadata.partitioning import IDENTITY
from objcat.predicate.dialect import spark_sql

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a moment in UTC, or a time without a zone
_COMPARED: Mapping[str, type[sql.Binary]] = {
    "=": sql.EQ,
    "<=>": sql.NullSafeEQ,
    "<>": sql.NEQ,
    "<": sql.LT,
    "<=": sql.LTE,
    ">": sql.GT,
    ">=": sql.GTE,
}


def filter_text(conditions: Sequence[Mapping[str, Any]]) -> str:
    """Conditions that all hold. Raises InvalidSql for one that no filter can express."""
    return spark_sql(sql.and_(*map(_term, conditions)) if conditions else sql.true())


def partitions_filter(table: Any, values: Sequence[Sequence[str | None]]) -> str:
    """The filter of whole partitions, each by the texts of its values, None for null. Raises InvalidSql where it has a transform."""
    fields = [(field, table.spec.table_schema.by_id(field.column)) for field in table.spec.partitioning.fields]
    if any(field.transform != IDENTITY for field, _ in fields):
        raise InvalidSql(
            f"The table {table.name!r} is partitioned by {', '.join(table.partitioning)}, so PARTITION (...) names no rows exactly. "
            "Nothing was done. Use DELETE with a condition on the columns."
        )
    partitions = []
    for one in values:
        terms = []
        for text, (_, column) in zip(one, fields, strict=True):
            name = sql.column(column.name, quoted=True)
            terms.append(
                sql.Is(this=name, expression=sql.Null()) if text is None else sql.EQ(this=name, expression=_typed(text, column.type))
            )
        partitions.append(sql.and_(*terms))
    return spark_sql(sql.or_(*partitions))


def _typed(text: str, kind: str) -> sql.Expr:
    if kind == "boolean":
        return sql.Boolean(this=text == "true")
    if kind in ("date", "timestamp", "timestamp_ntz"):
        return _cast(text, kind.upper())
    return sql.Literal.string(text) if kind == "string" else _operand({"type": kind, "value": text})


def _term(said: Mapping[str, Any]) -> sql.Expr:
    name, of = str(said.get("name")), said.get("of", ())
    if name in ("AND", "OR"):
        return (sql.and_ if name == "AND" else sql.or_)(*map(_term, of))
    if name == "NOT":
        return sql.not_(_term(of[0]))
    if name in ("ALWAYS_TRUE", "ALWAYS_FALSE"):
        return sql.true() if name == "ALWAYS_TRUE" else sql.false()
    if name in ("IS_NULL", "IS_NOT_NULL"):
        found = sql.Is(this=_operand(of[0]), expression=sql.Null())
        return found if name == "IS_NULL" else sql.not_(found)
    if name == "IN":
        return sql.In(this=_operand(of[0]), expressions=[_operand(one) for one in of[1:]])
    if name == "<=>" and "type" in of[1]:
        # A partition that a statement names.
        if of[1]["value"] is None:
            return sql.Is(this=_operand(of[0]), expression=sql.Null())
        return sql.EQ(this=_operand(of[0]), expression=_operand(of[1]))
    if name in _COMPARED:
        return _COMPARED[name](this=_operand(of[0]), expression=_operand(of[1]))
    raise _not_supported(name)


def _operand(said: Mapping[str, Any]) -> sql.Expr:
    if "column" in said:
        return (
            sql.column(said["column"][0], quoted=True)
            if len(said["column"]) == 1
            else sql.Dot.build([sql.to_identifier(part, quoted=True) for part in said["column"]])
        )
    if "type" not in said:
        raise _not_supported(str(said.get("name")))
    value, kind = said["value"], said["type"]
    if value is None:
        return sql.Null()
    match kind:
        case "boolean":
            return sql.Boolean(this=value == "true")
        case "date":
            return _cast((_EPOCH + dt.timedelta(days=int(value))).date().isoformat(), "DATE")
        case "timestamp" | "timestamp_ntz":
            at = (_EPOCH + dt.timedelta(microseconds=int(value))).isoformat(" ")
            return _cast(at + "Z" if kind == "timestamp" else at, "TIMESTAMP" if kind == "timestamp" else "TIMESTAMP_NTZ")
        case "string":
            return sql.Literal.string(value)
    if kind in ("tinyint", "smallint", "int", "bigint", "float", "double") or kind.startswith("decimal"):
        return sql.Neg(this=sql.Literal.number(value[1:])) if value.startswith("-") else sql.Literal.number(value)
    raise InvalidSql(f"An overwrite by a condition on {kind} is not supported. Nothing was written. Compare other columns.")


def _not_supported(name: str) -> InvalidSql:
    return InvalidSql(
        f"An overwrite by a condition with {name} is not supported. Nothing was written. Compare partition columns with values."
    )


def _cast(text: str, kind: str) -> sql.Expr:
    return sql.Cast(this=sql.Literal.string(text), to=sql.DataType.build(kind, dialect="spark"))
