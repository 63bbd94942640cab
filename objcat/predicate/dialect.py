"""Reads SQL text as Spark does, and writes it as Spark SQL with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import ErrorLevel
from sqlglot import expressions as sql
from sqlglot.dialects.spark import Spark
from sqlglot.errors import UnsupportedError

from objcat.errors import InvalidSql

_Said = Callable[[Any, Any], str]


def spark_sql(tree: Any) -> str:
    """The Spark SQL text of a tree. Raises InvalidSql if a part would lose its meaning."""
    try:
        return str(tree.sql(dialect=SparkText, unsupported_level=ErrorLevel.RAISE))
    except UnsupportedError as error:
        raise InvalidSql(f"A part of the query has no equivalent in Spark SQL ({error}). Write it in another way.") from error


def told_to_spark(tree: Any) -> str:
    """Like `spark_sql`, for a session of a user, whose settings must not change the meaning of text.

    Spark replaces `${name}` by a variable, mostly empty, also within text. It reads a backslash in text as
    `spark.sql.parser.escapedStringLiterals` says. Raises InvalidSql for a name with a variable in it.
    """
    _check_names(tree)
    return spark_sql(tree.transform(_spelled_out))


def without_variables(tree: Any) -> Any:
    """A copy whose text Spark reads unchanged.

    `${env:HOME}` would become the driver's variable anywhere in a query, and what looks like a table of ours would become one. Raises
    InvalidSql for a name with such text, because a name cannot be written in another way.
    """
    _check_names(tree)
    return tree.transform(lambda node: _in_bytes(node) if _is_text(node) and _PUT_IN.search(node.name) else node)


def _check_names(tree: Any) -> None:
    for name in tree.find_all(sql.Identifier):
        if "${" in name.name:
            raise InvalidSql(f"The name {name.name!r} is a variable in Spark. Use another name in SQL, or rename the column.")


def _spelled_out(node: Any) -> Any:
    return _in_bytes(node) if _is_text(node) and (not node.name.isprintable() or _CHANGED.search(node.name)) else node


def _is_text(node: Any) -> bool:
    """Whether it is a text literal. The part after ESCAPE is not an expression."""
    said = isinstance(node, sql.RawString) or (isinstance(node, sql.Literal) and node.is_string)
    return said and not isinstance(node.parent, sql.Escape)


def _in_bytes(node: Any) -> Any:
    return sql.Cast(this=sql.HexString(this=node.name.encode().hex()), to=sql.DataType.build("STRING", dialect="spark"))


_CHANGED = re.compile(r"['\\]|\$\{")
_PUT_IN = re.compile(r"\$\{|`_objcat_")


def _instr(given: Sequence[Any]) -> Any:
    """INSTR with a start or an occurrence stays as it is. LOCATE has no occurrence, and counts no start from the end."""
    known: Any = Spark.Parser.FUNCTIONS["INSTR"]
    return known(given) if len(given) == 2 else sql.Anonymous(this="INSTR", expressions=list(given))


def _named(name: str, *arguments: str) -> _Said:
    """A function with its arguments, without missing ones."""
    return lambda generator, node: str(generator.func(name, *(node.args.get(argument) for argument in arguments)))


def _joined_text(generator: Any, node: Any) -> str:
    return str(Spark.Generator.TRANSFORMS[sql.GroupConcat](generator, with_separator(node)))


def with_separator(node: sql.GroupConcat) -> sql.GroupConcat:
    """A copy with an explicit empty separator where none is written. sqlglot would put a comma."""
    said = node.copy()
    if said.args.get("separator") is None:
        said.set("separator", sql.Literal.string(""))
    return said


# sqlglot drops the format of to_char, the count of max_by and parse_json, and adds a comma to listagg.
_KEPT: dict[type[Any], _Said] = {
    sql.ToChar: _named("TO_CHAR", "this", "format"),
    sql.ParseJSON: lambda generator, node: str(generator.func("TRY_PARSE_JSON" if node.args.get("safe") else "PARSE_JSON", node.this)),
    sql.ArgMax: _named("MAX_BY", "this", "expression", "count"),
    sql.ArgMin: _named("MIN_BY", "this", "expression", "count"),
    sql.GroupConcat: _joined_text,
    sql.PercentileCont: _named("PERCENTILE_CONT", "this"),
    sql.PercentileDisc: _named("PERCENTILE_DISC", "this"),
    sql.WithinGroup: lambda generator, node: str(generator.withingroup_sql(node)),
}


class SparkText(Spark):
    """Spark's dialect, with doubled quotes in text, as in the SQL standard and Spark from 4.0 on.

    sqlglot follows older versions, and turns 'O''Brien' into OBrien.
    """

    class Tokenizer(Spark.Tokenizer):
        """As Spark's."""

        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - as its base has it

    class Parser(Spark.Parser):  # type: ignore[valid-type,misc]  # sqlglot tells types of it at run time only
        """As Spark's."""

        FUNCTIONS = {**Spark.Parser.FUNCTIONS, "INSTR": _instr}  # noqa: RUF012 - as its base has it

    class Generator(Spark.Generator):  # type: ignore[valid-type,misc]  # the same
        """As Spark's, without loss."""

        TRANSFORMS = {**Spark.Generator.TRANSFORMS, **_KEPT}  # noqa: RUF012 - as its base has it
        TYPE_MAPPING = {**Spark.Generator.TYPE_MAPPING, sql.DataType.Type.TIME: "TIME"}  # noqa: RUF012 - the same


# In an octal escape Spark takes the following digits as a part of the number.
SparkText.ESCAPED_SEQUENCES = {**SparkText.ESCAPED_SEQUENCES, "\0": "\\u0000"}
