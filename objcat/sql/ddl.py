"""CREATE, ALTER, DROP and UNDROP, for tables and namespaces."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.errors import InvalidSql, NamespaceNotFound, TableExists, TableNotFound
from objcat.metadata.created_settings import check_alterable
from objcat.metadata.files_text import is_of_source
from objcat.metadata.schema_evolution import (
    AddColumn,
    ColumnChange,
    DropColumn,
    DropDefault,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SetDefault,
    WidenColumn,
)
from objcat.metadata.table_spec import BucketIndex
from objcat.predicate.dialect import spark_sql
from objcat.sql.context import Context
from objcat.sql.dml import drop_partition
from objcat.sql.names import arrow_of, column_path, field_of, literal, table_name
from objcat.sql.qualified_names import TARGET, check_parts
from objcat.table.table import Table

NAMESPACES = ("NAMESPACE", "SCHEMA", "DATABASE")
SETTINGS = ("key", "ordering", "allowed_lateness", "key_scope", "table_type")
"""Table properties that are settings of `Lake.create_table`, and are not stored as properties."""


CREATES = "CREATE TABLE [IF NOT EXISTS] t (columns, PRIMARY KEY (...)) [...], or [...] AS [WITH ...] SELECT ..."
CLAUSES = "Supported are USING objcat, PARTITIONED BY, CLUSTERED BY (...) INTO n BUCKETS, PRIMARY KEY, COMMENT and TBLPROPERTIES"
DROPS = "DROP TABLE t, and CALL purge_table(...) to delete its files"


def create(context: Context, tree: sql.Create) -> Any:
    """CREATE TABLE with columns or AS SELECT; CREATE NAMESPACE."""
    if tree.args.get("replace"):
        raise InvalidSql(
            "CREATE OR REPLACE is not supported, because a replaced table loses its history. DROP the table, or INSERT OVERWRITE it."
        )
    check_parts(tree, "this kind expression exists properties replace", CREATES)
    if tree.kind in NAMESPACES:
        check_parts(tree, "this kind exists", "CREATE NAMESPACE [IF NOT EXISTS] n")
        name = table_name(tree.this)
        if not (tree.args.get("exists") and _has_namespace(context, name)):
            context.lake.namespaces.create(name)
        return context.done()
    if tree.kind != "TABLE":
        raise InvalidSql(f"CREATE {tree.kind} is not supported. Use CREATE TABLE or CREATE NAMESPACE.")
    name = table_name(tree.this)
    if tree.args.get("exists"):
        try:
            context.lake.table(name)
        except TableNotFound:
            pass
        else:
            return context.done()
    query = tree.expression
    declared = _Declared(context, tree)
    try:
        if query is None:
            context.lake.create_table(name, declared.schema(), **declared.settings)
            return context.done()
        if declared.fields:
            raise InvalidSql(f"CREATE TABLE {name} AS SELECT takes its columns from the query. Leave out the column list.")  # noqa: S608 - a sentence
        rows = context.runner.batch(context.query(query))
        result = context.write(lambda rows: context.lake.write(rows, name, if_exists="error", **declared.settings), rows)
    except TableExists:
        if tree.args.get("exists"):
            # Another writer created it first.
            return context.done()
        raise
    return context.committed(result)


class _Declared:
    """What CREATE TABLE declares."""

    def __init__(self, context: Context, tree: sql.Create) -> None:
        self.fields: list[pa.Field] = []
        self._context = context
        self._defaults: dict[str, Any] = {}
        self.settings: dict[str, Any] = {"key": None}
        for item in tree.this.expressions if isinstance(tree.this, sql.Schema) else ():
            self._item(item)
        self._properties: dict[str, str] = {}
        found = tree.args.get("properties")
        for item in [] if found is None else found.expressions:
            self._property(item)
        if any(map(is_of_source, self._properties)):
            raise InvalidSql(
                "No statement of lake.sql creates a table over files, since it reads no files but those of the lake's tables. Nothing was "
                "done. Call lake.create_table(name, source=objcat.Files(...)), or run `objcat create-in-place`, or this statement in "
                "spark.sql on a catalog."
            )
        for name in SETTINGS:
            if name in self._properties:
                value = self._properties.pop(name)
                self.settings[name] = [part.strip() for part in value.split(",")] if name in ("key", "ordering") else value
        if self._properties:
            self.settings["properties"] = self._properties
        if self._defaults:
            self.settings["defaults"] = self._defaults

    def schema(self) -> pa.Schema:
        if not self.fields:
            raise InvalidSql("CREATE TABLE names no columns. Write (id BIGINT, ..., PRIMARY KEY (id)), or AS SELECT.")
        key = set(self.settings["key"] or ())
        return pa.schema([field.with_nullable(False) if field.name in key else field for field in self.fields])

    def _item(self, item: sql.Expr) -> None:
        if isinstance(item, sql.PrimaryKey):
            self.settings["key"] = [column.name for column in item.expressions]
        elif isinstance(item, sql.ColumnDef):
            field = field_of(item, has_default=True)
            self.fields.append(field)
            default = _said_default(self._context, item, field)
            if default is not None:
                self._defaults[field.name] = default
            if any(
                isinstance(constraint.args["kind"], sql.PrimaryKeyColumnConstraint) for constraint in item.args.get("constraints") or ()
            ):
                self.settings["key"] = [item.name]
        else:
            raise InvalidSql(f"CREATE TABLE does not know {item.sql('spark')!r}. Write columns and PRIMARY KEY (...).")

    def _property(self, item: sql.Expr) -> None:
        match item:
            case sql.FileFormatProperty():
                if item.this.name.lower() != "objcat":
                    raise InvalidSql(f"USING {item.this.name} is not supported. Leave it out, or write USING objcat.")
            case sql.PartitionedByProperty():
                self.settings["partition_by"] = [_partition(part) for part in item.this.expressions]
            case sql.ClusteredByProperty():
                check_parts(item, "expressions buckets", "CLUSTERED BY (columns) INTO n BUCKETS")
                columns = tuple(column.name for column in item.expressions)
                self.settings["index"] = BucketIndex(int(item.args["buckets"].name), columns)
            case sql.PrimaryKey():
                self.settings["key"] = [column.name for column in item.expressions]
            case sql.SchemaCommentProperty():
                self._properties["comment"] = item.this.name
            case sql.Property() if type(item) is sql.Property:
                self._properties[item.this.name] = item.args["value"].name
            case _:
                raise InvalidSql(f"CREATE TABLE does not know {item.sql('spark')!r}. Leave it out. {CLAUSES}.")


def _partition(part: sql.Expr) -> str:
    """A partition transform as `Lake.create_table` takes it. Spark writes days(at), others day(at)."""
    if isinstance(part, sql.ColumnDef):
        raise InvalidSql(
            f"PARTITIONED BY ({part.sql('spark')}) declares a column. Declare it with the others, and write only its name here."
        )
    if isinstance(part, sql.PartitionByTruncate):
        return f"truncate({part.this.name}, {part.expression.name})"
    text = spark_sql(part)
    found = re.fullmatch(r"(hour|day|month|year)s?\((.+)\)", text, re.IGNORECASE)
    if found:
        return f"{found[1].lower()}({found[2].strip('`')})"
    found = re.fullmatch(r"trunc(?:ate)?\((.+?), *(.+?)\)", text, re.IGNORECASE)
    if found:
        width, column = sorted((found[1], found[2]), key=lambda word: not word.isdecimal())
        return f"truncate({column.strip('`')}, {width})"
    return part.name or text


def _has_namespace(context: Context, name: str) -> bool:
    try:
        context.lake.namespaces.properties(name)
    except NamespaceNotFound:
        return False
    return True


def drop(context: Context, tree: sql.Drop) -> Any:
    """DROP TABLE, DROP NAMESPACE."""
    kind = tree.args["kind"]
    check_parts(tree, "tables kind exists cascade restrict", DROPS)
    for node in tree.args["tables"]:
        name = table_name(node)
        try:
            if kind in NAMESPACES:
                context.lake.namespaces.drop(name)
            elif kind == "TABLE":
                context.lake.drop_table(name)
            else:
                raise InvalidSql(f"DROP {kind} is not supported. Use DROP TABLE or DROP NAMESPACE.")
        except (TableNotFound, NamespaceNotFound):
            if not tree.args.get("exists"):
                raise
    return context.done()


def alter(context: Context, tree: sql.Alter) -> Any:
    """ALTER TABLE: columns, name, properties, DROP PARTITION."""
    check_parts(tree, "this kind actions exists", f"ALTER TABLE: {ALTERS}")
    check_parts(tree.this, TARGET, f"ALTER TABLE: {ALTERS}")
    if tree.args["kind"] != "TABLE":
        raise InvalidSql(f"ALTER {tree.args['kind']} is not supported. Use ALTER TABLE.")
    name = table_name(tree.this)
    if isinstance(tree.args["actions"][0], sql.DropPartition):
        return drop_partition(context, context.lake.table(name), tree.args["actions"][0])
    changes: list[ColumnChange] = []
    for action in tree.args["actions"]:
        match action:
            case sql.AlterRename():
                context.lake.rename_table(name, _renamed(name, action.this))
            case sql.AlterSet():
                check_parts(action, "expressions", f"ALTER TABLE: {ALTERS}")
                found = [item for properties in action.expressions for item in properties.expressions]
                check_alterable(item.this.name for item in found)
                context.lake.table(name).set_properties({item.this.name: item.args["value"].name for item in found})
            case _:
                changes += _changes(context, action)
    if changes:
        table = context.lake.table(name)
        types = {field.name: field.type for field in table.schema}
        table.alter.apply([_typed_default(context, change, types) for change in changes])
    return context.done()


def _renamed(name: str, node: sql.Expr) -> str:
    """The new name. RENAME TO a name without a namespace stays in its namespace, as everywhere in SQL."""
    new = table_name(node)
    return new if "." in new or "." not in name else f"{name.rpartition('.')[0]}.{new}"


def _changes(context: Context, action: sql.Expr) -> list[ColumnChange]:
    match action:
        case sql.Schema():
            return [_added(context, column) for column in action.expressions]
        case sql.ColumnDef():
            return [_added(context, action)]
        case sql.Drop() if action.args["kind"] == "COLUMN":
            named = [part for node in action.args["tables"] for part in (node.expressions if isinstance(node, sql.Schema) else [node])]
            return [DropColumn(column_path(_column(node))) for node in named]
        case sql.RenameColumn():
            return [RenameColumn(column_path(action.this), action.args["to"].name)]
        case sql.AlterColumn() if action.args.get("dtype"):
            check_parts(action, "this dtype", f"ALTER TABLE: {ALTERS}")
            return [WidenColumn(column_path(action.this), arrow_of(action.args["dtype"]))]
        case sql.AlterColumn() if action.args.get("allow_null") and action.args.get("drop"):
            check_parts(action, "this allow_null drop", f"ALTER TABLE: {ALTERS}")
            return [DropNotNull(column_path(action.this))]
        case sql.AlterColumn() if action.args.get("default") is not None:
            check_parts(action, "this default", f"ALTER TABLE: {ALTERS}")
            return [SetDefault(column_path(action.this), action.args["default"])]
        case sql.AlterColumn() if action.args.get("drop"):
            check_parts(action, "this drop", f"ALTER TABLE: {ALTERS}")
            return [DropDefault(column_path(action.this))]
    raise InvalidSql(f"ALTER TABLE does not know {action.sql('spark')!r}. Supported are {ALTERS}.")


ALTERS = (
    "ADD COLUMN [DEFAULT v], DROP COLUMN, RENAME COLUMN a TO b, ALTER COLUMN a TYPE t, ALTER COLUMN a DROP NOT NULL, ALTER COLUMN a "
    "SET DEFAULT v, ALTER COLUMN a DROP DEFAULT, ALTER COLUMN a AFTER b, ALTER COLUMN a FIRST, RENAME TO, SET TBLPROPERTIES, UNSET "
    "TBLPROPERTIES and DROP PARTITION"
)


def _added(context: Context, column: sql.ColumnDef) -> AddColumn:
    field = field_of(column, has_default=True)
    default = _said_default(context, column, field)
    if not field.nullable and default is None:
        raise InvalidSql(f"ADD COLUMN {field.name} NOT NULL has no value for existing rows. Leave out NOT NULL, or write a DEFAULT.")
    position = column.args.get("position")
    after = None if position is None or position.this is None else position.this.name
    first = position is not None and position.args["position"].lower() == "first"
    return AddColumn(column_path(column.this), field.type, after=after, first=first, default=default, nullable=field.nullable)


def _said_default(context: Context, column: sql.ColumnDef, field: pa.Field) -> Any:
    """The default that a column is declared with. None: there is none. Raises InvalidSql."""
    kinds = [constraint.args["kind"] for constraint in column.args.get("constraints") or ()]
    said = [kind.this for kind in kinds if isinstance(kind, sql.DefaultColumnConstraint)]
    return _default(context, said[0], field.type, field.name) if said else None


def _typed_default(context: Context, change: ColumnChange, types: Mapping[str, pa.DataType]) -> ColumnChange:
    """The change with its default as a value of the column."""
    if not isinstance(change, SetDefault):
        return change
    name = change.path.strip("`").replace("``", "`")
    if name not in types:
        # The change of the table names what is wrong.
        return SetDefault(change.path, change.default.name)
    return SetDefault(change.path, _default(context, change.default, types[name], name))


def _default(context: Context, node: sql.Expr, data_type: pa.DataType, name: str) -> Any:
    """The value of a literal, for a column of a type. Raises InvalidSql."""
    bare = node.this if isinstance(node, (sql.Cast, sql.TryCast)) and isinstance(node.this, sql.Literal) else node
    try:
        if pa.types.is_timestamp(data_type) and data_type.tz is not None and bare.is_string:
            found = context.runner.moment(bare) or dt.datetime.fromisoformat(bare.name)
            return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
        if pa.types.is_timestamp(data_type) and bare.is_string:
            return dt.datetime.fromisoformat(bare.name)
        if pa.types.is_date(data_type) and bare.is_string:
            return dt.date.fromisoformat(bare.name)
        if isinstance(node, sql.HexString):
            return bytes.fromhex(node.name)
        if pa.types.is_decimal(data_type) and node.is_number:
            return decimal.Decimal(spark_sql(node))
        return literal(node)
    except (ValueError, ArithmeticError) as error:
        raise InvalidSql(f"The default of {name!r} is {node.sql('spark')}, which is no {data_type}. Nothing was changed.") from error


def _column(node: sql.Expr) -> sql.Expr:
    """The column that DROP COLUMN a.b names; it is parsed as a table."""
    if isinstance(node, sql.Table):
        parts = [part.copy() for part in node.parts]
        return sql.Column(this=parts[-1], table=parts[-2] if len(parts) > 1 else None, db=parts[-3] if len(parts) > 2 else None)
    return node


def alter_by_text(table: Table, action: str) -> bool:
    """Run an ALTER that the parser leaves as text; False when it is none of them.

    ALTER COLUMN ... AFTER, FIRST, TYPE and DROP NOT NULL of a nested field, UNSET TBLPROPERTIES.
    """
    quoted = r"((?:`[^`]+`|[\w.])+)"
    found = re.fullmatch(rf"(?:alter|change)\s+(?:column\s+)?{quoted}\s+(?:(first)|after\s+{quoted})", action, re.IGNORECASE)
    if found:
        table.alter.apply([MoveColumn(found[1], first=bool(found[2]), after=None if found[2] else found[3].strip("`"))])
        return True
    found = re.fullmatch(rf"alter\s+(?:column\s+)?{quoted}\s+type\s+(.+)", action, re.IGNORECASE)
    if found:
        table.alter.apply([WidenColumn(found[1], arrow_of(sql.DataType.build(found[2], dialect="spark")))])
        return True
    found = re.fullmatch(rf"(?:alter|change)\s+(?:column\s+)?{quoted}\s+drop\s+not\s+null", action, re.IGNORECASE)
    if found:
        table.alter.apply([DropNotNull(found[1])])
        return True
    found = re.fullmatch(r"unset\s+tblproperties\s*\((.+)\)", action, re.IGNORECASE | re.DOTALL)
    if found:
        table.set_properties(unset=[part.strip().strip("'\"") for part in found[1].split(",")])
        return True
    return False


def undrop(context: Context, text: str) -> Any:
    """UNDROP TABLE name."""
    words = text.split()
    if len(words) != 2 or words[0].upper() != "TABLE":
        raise InvalidSql("UNDROP needs the name of a table. Write UNDROP TABLE name.")
    context.lake.undrop_table(words[1].replace("`", ""))
    return context.done()
