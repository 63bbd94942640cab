"""What a statement in the binlog does to tables: `read_statement`. The binlog has changes of rows as rows, and all else as statements.

A statement that is not understood counts as one that changed every row of the tables it may name: they are read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlglot
from sqlglot import exp

from objcat.ingest.mysql.types import INTEGERS, MysqlType

TableName: TypeAlias = tuple[str, str]
"""Database and table."""

_COMMENT = re.compile(r"\s*(?:/\*(?!M?!).*?\*/|#[^\n]*\n|--\s[^\n]*\n)", re.DOTALL)
_SILENT = re.compile(
    r"(?:begin|start\s+transaction|commit|rollback|savepoint|release\s+savepoint|xa|set|grant|revoke|flush|analyze|optimize|repair|check|"
    r"(?:create|alter|drop|rename)\s+(?:or\s+replace\s+)?(?:(?:definer|algorithm|sql\s+security|aggregate)\b.*?\s)?"
    r"(?:user|role|database|schema|view|procedure|function|trigger|event|server|sequence|package)|"
    r"(?:create|drop)\s+(?:or\s+replace\s+)?(?:online\s+|offline\s+)?(?:unique\s+|fulltext\s+|spatial\s+)?index|"
    r"(?:create|drop)\s+(?:or\s+replace\s+)?temporary\s+table)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that change no row and no column of a table."""
_EXECUTABLE = re.compile(r"/\*M?!\d*(.*?)\*/", re.DOTALL)
"""A comment that servers of a version and newer ones run, as dumps have them."""
_SET_STATEMENT = re.compile(r"set\s+statement\s.*?\sfor\s+", re.IGNORECASE | re.DOTALL)
"""Settings of MariaDB for the one statement that follows."""
_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_QUALIFIED = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_RENAME = re.compile(r"rename\s+tables?\s+(?:if\s+exists\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_RENAMED = re.compile(rf"\bto\s+({_QUALIFIED})", re.IGNORECASE)
_CREATE = re.compile(
    rf"create\s+(?:or\s+replace\s+)?table\s+(?:if\s+not\s+exists\s+)?({_QUALIFIED})", re.IGNORECASE
)  # fmt: skip
_DROP = re.compile(r"drop\s+tables?\b", re.IGNORECASE)
_ALTER = re.compile(
    rf"alter\s+(?:online\s+|ignore\s+)*table\s+(?:if\s+exists\s+)?({_QUALIFIED})\s*(?:wait\s+\d+|nowait)?\s+(.*)", re.IGNORECASE | re.DOTALL
)
_RENAMED_BY_ALTER = re.compile(rf"\brename\s+(?:to\s+|as\s+|=\s*)({_QUALIFIED})", re.IGNORECASE)
_TRUNCATE = re.compile(rf"truncate\s+(?:table\s+)?({_QUALIFIED})", re.IGNORECASE)
_HARMLESS_ALTER = re.compile(
    r"(?:convert\s+to\s+character\s+set\s+\w+(?:\s+collate\s+\w+)?|force|(?:dis|en)able\s+keys|partition\s+by\b.*|"
    r"(?:re)?organize\s+partition\b.*|add\s+partition\b.*|remove\s+partitioning|coalesce\s+partition\b.*|rebuild\s+partition\b.*|"
    r"analyze\s+partition\b.*|optimize\s+partition\b.*|rename\s+(?:index|key)\s+[^,\s]+\s+to\s+[^,\s]+)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column that joined.

    Args:
        default: the literal that rows which were there read, as SQL has it; None: null.
        kind: its type, None when the statement alone does not tell it.
    """

    default: str | None = None
    kind: MysqlType | None = None


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """An ALTER TABLE.

    Args:
        name: of the table.
        joined: columns that joined, by name.
        modified: columns whose definition changed.
        is_plain: whether rows can have changed in no other way.
    """

    name: TableName
    joined: Mapping[str, JoinedColumn] = field(default_factory=dict)
    modified: tuple[str, ...] = ()
    is_plain: bool = True


@dataclass(frozen=True, slots=True)
class StatementEffect:
    """What a statement does.

    Args:
        truncated: tables that it emptied.
        altered: tables that it altered.
        replaced: tables that are others than before, or whose rows changed in ways that no row tells.
        is_unknown: whether it may have changed rows of any table of its database.
    """

    truncated: tuple[TableName, ...] = ()
    altered: tuple[AlteredTable, ...] = ()
    replaced: tuple[TableName, ...] = ()
    is_unknown: bool = False


NOTHING = StatementEffect()


def read_statement(text: str, database: str) -> StatementEffect:
    """What a statement does.

    Args:
        text: of the statement.
        database: the one that names without a database are in.
    """
    text = _without_comments(text)
    if not text or _SILENT.match(text) or _DROP.match(text):
        # A table that is gone has no rows to follow. One that is made again is seen when it is.
        return NOTHING
    if found := _TRUNCATE.match(text):
        return StatementEffect(truncated=(_name(found[1], database),))
    if found := _RENAME.match(text):
        return StatementEffect(replaced=tuple(_name(one, database) for one in _RENAMED.findall(found[1])))
    if found := _CREATE.match(text):
        return StatementEffect(replaced=(_name(found[1], database),))
    if found := _ALTER.match(text):
        return _altered(text, _name(found[1], database), found[2], database)
    try:
        tables = {_table_name(one, database) for one in sqlglot.parse_one(text, dialect="mysql").find_all(exp.Table)}
    except sqlglot.errors.SqlglotError:
        return StatementEffect(is_unknown=True)
    return StatementEffect(replaced=tuple(sorted(tables))) if tables else StatementEffect(is_unknown=True)


def _altered(text: str, name: TableName, rest: str, database: str) -> StatementEffect:
    if _HARMLESS_ALTER.fullmatch(rest):
        return NOTHING
    not_understood = StatementEffect(replaced=(name, *(_name(one, database) for one in _RENAMED_BY_ALTER.findall(rest))))
    try:
        parsed = sqlglot.parse_one(text, dialect="mysql", error_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError:
        return not_understood
    if not isinstance(parsed, exp.Alter):
        return not_understood
    joined: dict[str, JoinedColumn] = {}
    modified: list[str] = []
    is_plain = True
    replaced: list[TableName] = []
    for action in parsed.args.get("actions") or []:
        match action:
            case exp.ColumnDef():
                default = _default(action)
                is_plain &= default is not _NOT_CONSTANT
                joined[action.name] = JoinedColumn(None if default is _NOT_CONSTANT else default, _type(action.kind))
            case exp.ModifyColumn():
                modified.append(action.this.name)
                is_plain &= action.args.get("rename_from") is None or action.args["rename_from"].name == action.this.name
            case exp.Drop() | exp.AlterColumn():
                pass
            case exp.AddConstraint():
                # Another key makes other rows equal.
                is_plain &= action.find(exp.PrimaryKey) is None
            case exp.AlterRename():
                replaced.append(_table_name(action.this, database))
            case _:
                is_plain = False
    table = AlteredTable(name, joined, tuple(modified), is_plain)
    return StatementEffect(altered=(table,), replaced=tuple(replaced))


_NOT_CONSTANT: Any = object()
_OWN_VALUES = (exp.ComputedColumnConstraint, exp.AutoIncrementColumnConstraint, exp.PrimaryKeyColumnConstraint)
"""What gives each row a value of its own, or another key."""
_TYPES: Mapping[Any, MysqlType] = {
    **{exp.DType[name.upper()]: MysqlType(name=name) for name in INTEGERS},
    **{exp.DType[f"U{name.upper()}"]: MysqlType(name=name, unsigned=True) for name in INTEGERS},
    exp.DType.BOOLEAN: MysqlType(name="tinyint"),
    exp.DType.DOUBLE: MysqlType(name="double"),
    exp.DType.DATE: MysqlType(name="date"),
    exp.DType.TEXT: MysqlType(name="text"),
    exp.DType.MEDIUMTEXT: MysqlType(name="text"),
    exp.DType.LONGTEXT: MysqlType(name="text"),
    exp.DType.CHAR: MysqlType(name="char"),
    exp.DType.VARCHAR: MysqlType(name="varchar"),
}
"""Types that a statement tells by their name alone, as far as the lake tells them apart."""
_DECIMAL_DIGITS = 10
"""Digits of a decimal for which none are given."""


def _type(kind: exp.DataType | None) -> MysqlType | None:
    if kind is None:
        return None
    if kind.this is exp.DType.DECIMAL:
        numbers = [int(one.name) for one in kind.expressions]
        precision, scale = [*numbers, *(_DECIMAL_DIGITS, 0)[len(numbers) :]]
        return MysqlType(name="decimal", precision=precision, scale=scale)
    return _TYPES.get(kind.this)


def _default(column: exp.ColumnDef) -> Any:
    """The default of a column that joined, as a literal of SQL; None: null. _NOT_CONSTANT: rows may have anything."""
    kinds = [one.args.get("kind") for one in column.args.get("constraints") or []]
    if any(isinstance(kind, _OWN_VALUES) for kind in kinds):
        return _NOT_CONSTANT
    is_required = any(isinstance(kind, exp.NotNullColumnConstraint) and not kind.args.get("allow_null") for kind in kinds)
    default = next((kind.this for kind in kinds if isinstance(kind, exp.DefaultColumnConstraint)), None)
    if default is None or isinstance(default, exp.Null):
        # A required column without a default has a zero of its type, and a timestamp may have the time of the statement.
        is_timestamp = column.kind is not None and column.kind.is_type("timestamp", "timestamptz", "timestampltz")
        return _NOT_CONSTANT if is_required or is_timestamp else None
    number = default.this if isinstance(default, exp.Neg) else default
    if isinstance(number, (exp.Literal, exp.Boolean)):
        return default.sql(dialect="mysql")
    return _NOT_CONSTANT


def _without_comments(text: str) -> str:
    text = _EXECUTABLE.sub(r" \1 ", text)
    while found := _COMMENT.match(text):
        text = text[found.end() :]
    text = text.strip().rstrip(";").rstrip()
    return _SET_STATEMENT.sub("", text, count=1) if _SET_STATEMENT.match(text) else text


def _name(text: str, database: str) -> TableName:
    parts = [_unquoted(one) for one in re.findall(_NAME, text)]
    return (parts[0], parts[1]) if len(parts) == 2 else (database, parts[0])


def _unquoted(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def _table_name(table: Any, database: str) -> TableName:
    return (table.db or database, table.name)
