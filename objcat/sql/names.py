"""Names and types in the text of a statement, converted to the table's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot import parse_one
from sqlglot.errors import SqlglotError

from objcat.common.validation import shown
from objcat.errors import InvalidSql

_TYPES = sql.DataType.Type

_PLAIN = {
    _TYPES.BOOLEAN: pa.bool_(),
    _TYPES.TINYINT: pa.int8(),
    _TYPES.SMALLINT: pa.int16(),
    _TYPES.INT: pa.int32(),
    _TYPES.BIGINT: pa.int64(),
    _TYPES.FLOAT: pa.float32(),
    _TYPES.DOUBLE: pa.float64(),
    _TYPES.TEXT: pa.string(),
    _TYPES.VARCHAR: pa.string(),
    _TYPES.CHAR: pa.string(),
    _TYPES.BINARY: pa.binary(),
    _TYPES.DATE: pa.date32(),
    _TYPES.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    _TYPES.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    _TYPES.TIMESTAMPLTZ: pa.timestamp("us", tz="UTC"),
    _TYPES.TIMESTAMPNTZ: pa.timestamp("us"),
}


def table_name(node: sql.Expr | None) -> str:
    """The name of a table or namespace, with its qualifiers. Raises InvalidSql."""
    if isinstance(node, sql.Schema):
        node = node.this
    if not isinstance(node, sql.Table):
        raise InvalidSql(f"{('' if node is None else node.sql('spark'))!r} is no name of a table. Write name, or namespace.name.")
    return ".".join(part.name for part in node.parts)


def column_parts(column: sql.Column) -> tuple[sql.Expr, list[sql.Expr]]:
    """The whole path that begins with a column, and its parts. Tables, columns and struct fields look alike to the parser."""
    whole: sql.Expr = column
    parts = list(column.parts)
    while isinstance(whole.parent, sql.Dot) and whole.parent.this is whole and isinstance(whole.parent.expression, sql.Identifier):
        whole = whole.parent
        parts.append(whole.expression)
    return whole, parts


def column_of(parts: Sequence[sql.Expr]) -> sql.Expr:
    """The path of some parts, as the parser writes it."""
    count = min(len(parts), 4)
    before = reversed([part.copy() for part in parts[:count]])
    found: sql.Expr = sql.Column(**dict(zip(("this", "table", "db", "catalog"), before, strict=False)))
    for part in parts[count:]:
        found = sql.Dot(this=found, expression=part.copy())
    return found


def parts_of_table(parts: Sequence[sql.Expr], table: sql.Table) -> int:
    """How many of the first parts of a path name a table, by its place in FROM; 0 for none. At least one part is left over."""
    names = [table.alias] if table.alias else [part.name for part in table.parts]
    said = [part.name.lower() for part in parts]
    for begin in range(len(names)):
        qualifier = [name.lower() for name in names[begin:]]
        if len(qualifier) < len(said) and said[: len(qualifier)] == qualifier:
            return len(qualifier)
    return 0


def shorten(column: sql.Column, tables: Iterable[sql.Table]) -> None:
    """Where a path begins with the name of one of these tables, leave only the last part of that name."""
    whole, parts = column_parts(column)
    count = max((parts_of_table(parts, table) for table in tables), default=0)
    if count > 1:
        whole.replace(column_of(parts[count - 1 :]))


def column_path(node: sql.Expr) -> str:
    """The path of a column as `Table.alter` takes it."""
    if isinstance(node, sql.Column):
        parts = [part.name for part in node.parts]
    elif isinstance(node, sql.Dot):
        return f"{column_path(node.this)}.{column_path(node.expression)}"
    else:
        parts = [node.name]
    return ".".join(f"`{part}`" if "." in part or "`" in part else part for part in parts)


TYPES = (
    "Use tinyint, smallint, int, bigint, float, double, decimal(p, s), boolean, string, binary, date, timestamp, "
    "timestamp_ntz, array<...>, map<..., ...> or struct<...>."
)


def arrow_of(data_type: sql.DataType) -> pa.DataType:
    """The Arrow type of a SQL type. Raises InvalidSql."""
    kind, inner = data_type.this, data_type.expressions
    if kind in _PLAIN:
        if inner:
            # Spark refuses longer values, and pads a CHAR.
            raise InvalidSql(f"The type {data_type.sql()} limits the length of values, which tables do not check. Leave out the number.")
        return _PLAIN[kind]
    if kind is _TYPES.DECIMAL:
        digits = [int(parameter.this.name) for parameter in inner] or [10]
        if digits[0] not in range(1, 39):
            raise InvalidSql(f"The type {data_type.sql()} has {digits[0]} digits. Give a decimal 1 to 38 digits.")
        return pa.decimal128(digits[0], digits[1] if len(digits) > 1 else 0)
    if kind is _TYPES.ARRAY and len(inner) == 1:
        return pa.list_(pa.field("element", arrow_of(inner[0])))
    if kind is _TYPES.MAP and len(inner) == 2:
        return pa.map_(arrow_of(inner[0]), arrow_of(inner[1]))
    if kind is _TYPES.STRUCT:
        return pa.struct([field_of(field) for field in inner])
    raise InvalidSql(f"The type {data_type.sql()} is not supported. {TYPES}")


def field_of(column: sql.ColumnDef, *, has_default: bool = False) -> pa.Field:
    """A column as a table is declared with it. Raises InvalidSql for checks and generated values.

    has_default: whether it may have a default, which is left out here. Raises InvalidSql for one otherwise.
    """
    nullable = True
    for constraint in column.args.get("constraints") or ():
        match constraint.args["kind"]:
            case sql.NotNullColumnConstraint():
                nullable = bool(constraint.args["kind"].args.get("allow_null"))
            case sql.PrimaryKeyColumnConstraint():
                nullable = False
            case sql.CommentColumnConstraint():
                pass
            case sql.DefaultColumnConstraint() if has_default:
                pass
            case other:
                raise InvalidSql(f"The column {column.name!r} has {other.sql('spark')!r}, which tables do not support. Leave it out.")
    if column.args.get("kind") is None:
        raise InvalidSql(f"The column {column.name!r} has no type. Write one, for example {column.name} BIGINT.")
    return pa.field(column.name, arrow_of(column.args["kind"]), nullable)


def columns_of_text(text: str, *, what: str) -> tuple[pa.Schema, dict[str, str]]:
    """Columns such as `id BIGINT, name STRING`, and their types in SQL by name. Raises InvalidSql."""
    refused = f"{what}={shown(text)} is no list of columns. Write names and types, such as 'id BIGINT, name STRING'."
    try:
        found = parse_one(f"CREATE TABLE t ({text})", dialect="spark")
    except SqlglotError as error:
        raise InvalidSql(refused) from error
    columns = found.this.expressions if isinstance(found, sql.Create) and isinstance(found.this, sql.Schema) else []
    if not columns or not all(isinstance(one, sql.ColumnDef) for one in columns) or any(found.args.get(one) for one in _BESIDES):
        raise InvalidSql(refused)
    return pa.schema([field_of(one) for one in columns]), {one.name: one.args["kind"].sql("spark") for one in columns}


_BESIDES = ("properties", "expression", "exists", "replace")


def literal(node: sql.Expr) -> object:
    """A literal value: a number, text, true, false, null, or a list or map of them. Raises InvalidSql."""
    match node:
        case sql.Literal():
            if node.is_string:
                return node.name
            return int(node.name) if node.is_int else float(node.name)
        case sql.Neg():
            value = literal(node.this)
            if isinstance(value, (int, float)):
                return -value
        case sql.Boolean():
            return bool(node.this)
        case sql.Null():
            return None
        case sql.Array() | sql.Tuple():
            return [literal(item) for item in node.expressions]
        case sql.VarMap():
            keys, values = literal(node.args["keys"]), literal(node.args["values"])
            if isinstance(keys, list) and isinstance(values, list) and len(keys) == len(values):
                return dict(zip(keys, values, strict=True))
        case sql.Paren():
            return literal(node.this)
    raise InvalidSql(f"{node.sql('spark')!r} is not a plain value. Write a number, text, true, false, null, array(...) or map(...).")
