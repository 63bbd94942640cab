"""Tables as Spark's catalogs declare, show and alter them, and as `Lake.create_table` and `Table.alter` take them."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from objcat.common.validation import SHOWN_CHARACTERS_MAX, span_ms
from objcat.dml.default_terms import value_term
from objcat.errors import InvalidSql
from objcat.metadata.column_defaults import is_said
from objcat.metadata.created_settings import check_alterable
from objcat.metadata.files_text import SOURCE, SOURCE_STAYS, files_of_properties, is_of_source, properties_of_files
from objcat.metadata.in_place import Files, key_pattern, split_pattern
from objcat.metadata.index_text import INDEXES, index_of_text
from objcat.metadata.schema import nullable_schema
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
from objcat.metadata.table_spec import BucketIndex, Index, RecordIndex
from objcat.predicate.dialect import spark_sql
from objcat.spark.native.relation import spark_schema
from objcat.spark.versions import arrow_schema, to_arrow

SETTINGS = ("key", "ordering", "allowed_lateness", "key_scope", "table_type", "index", "shared_log")
"""Table properties that are settings of `Lake.create_table`, and are not stored as properties."""
_PREFIX = "objcat."
"""May come before the name of a setting. `table_type` needs it in SQL, where Spark reserves the plain name."""
_TIMES = ("hour", "day", "month", "year")
_CURRENT, _EXISTS = "CURRENT_DEFAULT", "EXISTS_DEFAULT"
"""Where Spark keeps the default of a column, as SQL: for writes, and for rows that are older than the column."""


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A table as a command declares it. `settings`: those of `Lake.create_table` that it names, and the key.

    schema: None for a table over files that declares no columns.
    """

    schema: pa.Schema | None
    settings: Mapping[str, Any]

    def check_same(self, table: Any, *, types: bool) -> None:
        """Raises InvalidSql where the table has other columns or settings: a table that is replaced keeps its own.

        types: also where columns have other types. Rows that are written say themselves whether they fit.
        """
        if SOURCE in self.settings:
            raise InvalidSql(
                f"The table {table.name!r} is there, and a REPLACE does not change which files a table is over. Nothing was done. DROP the "
                "table and create it, or create one of another name."
            )
        own, wanted = ({one.name: one.dataType.simpleString() for one in spark_schema(schema)} for schema in (table.schema, self.schema))
        if own != wanted if types else own.keys() != wanted.keys():
            had, asked = (", ".join(f"{name} {kind}" for name, kind in columns.items()) for columns in (own, wanted))
            self._refuse(table, f"the columns {had}, not {asked}")
        for name, said in self.settings.items():
            if name == "properties":
                if any(table.properties.get(one) != value for one, value in said.items()):
                    self._refuse(table, f"the properties {table.properties}")
            elif name not in ("defaults", "shared_log") and said is not None:
                has = _setting(table, name)
                if has != said:
                    self._refuse(table, f"{name}={has!r}, not {said!r}")

    def _refuse(self, table: Any, why: str) -> None:
        raise InvalidSql(
            f"The table {table.name!r} has {why}. Nothing was done. A REPLACE keeps the table with its history and replaces its rows. "
            "Change columns and properties by ALTER TABLE first, or DROP the table and create it."
        )


def _setting(table: Any, name: str) -> Any:
    """A setting of a table as `declared` gives it."""
    found = table.partitioning if name == "partition_by" else getattr(table, name)
    return [found] if name == "ordering" and isinstance(found, str) else found


@dataclass(frozen=True, slots=True)
class PropertyChanges:
    """Properties to set, and names to remove."""

    set: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


# ---- declared


def declared(told: Mapping[str, Any], spark: SparkSession) -> DeclaredTable:
    """A table that CREATE TABLE, writeTo or saveAsTable declares. Raises InvalidInput."""
    struct = StructType.fromJson(json.loads(told["schema"]))
    if limited := re.search(r'"((?:var)?char\(\d+\))"', told["schema"]):
        raise InvalidSql(f"The type {limited[1]} limits the length of values, which tables do not check. Nothing was done. Write STRING.")
    if told["constraints"]:
        raise InvalidSql(f"{told['constraints'][0]} is not supported. Nothing was done. Use PRIMARY KEY and NOT NULL.")
    given = _plain_properties(told["properties"], spark)
    settings: dict[str, Any] = {"key": told.get("key")}
    for name in SETTINGS:
        said = [given.pop(text) for text in (name, _PREFIX + name) if text in given]
        if len(said) > 1:
            raise InvalidSql(f"The property {name} is given twice, also as {_PREFIX}{name}. Nothing was done. Give it once.")
        if said:
            settings[name] = _setting_of(name, said[0])
    settings["key"] = settings["key"] or None
    for part in told["partitions"]:
        _add_partition(settings, part)
    source = {name: given.pop(name) for name in list(given) if is_of_source(name)}
    if given:
        settings["properties"] = given
    defaults = {one.name: _value(spark, one.metadata[_CURRENT], one.dataType.simpleString()) for one in struct if _CURRENT in one.metadata}
    if defaults:
        settings["defaults"] = defaults
    if source:
        files = files_of_properties(source, {one.name: one.dataType.simpleString() for one in struct})
        settings = {**_of_files(settings, files), SOURCE: files}
    key = settings.get("key") or ()
    schema = arrow_schema(StructType([StructField(one.name, one.dataType, one.nullable) for one in struct]))
    whole = pa.schema([one.with_nullable(False) if one.name in key else one for one in schema])
    return DeclaredTable(None if source and not whole.names else whole, settings)


def _of_files(settings: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """The settings that a table over files has besides. Raises InvalidSql for one that does not fit."""
    in_path = list(files.path_columns)
    for pattern in files.patterns:
        in_path += sorted(key_pattern(split_pattern(pattern)[1]).groupindex)
    in_path = list(dict.fromkeys(in_path))
    if settings.get("partition_by", in_path) != in_path:
        raise InvalidSql(
            f"A table over files is partitioned by the columns of their path, which are {', '.join(in_path) or 'none'}. Nothing was done. "
            "Leave out PARTITIONED BY, and name columns of the path in 'source.path_columns'."
        )
    words = {"key": "A PRIMARY KEY", "index": "An index", "defaults": "A DEFAULT"}
    for name, said in settings.items():
        if name not in ("properties", "shared_log", "partition_by") and said is not None:
            raise InvalidSql(
                f"{words.get(name, f'The property {name}')} does not fit a table over files, whose rows are those of the files. Nothing "
                "was done. Leave it out."
            )
    return {name: settings[name] for name in ("properties", "shared_log") if name in settings}


def check_comments(told: Mapping[str, Any]) -> None:
    """Raises InvalidSql where a statement gives a column a comment. Columns of rows may have some from elsewhere."""
    for one in StructType.fromJson(json.loads(told["schema"])):
        _check_comment(one.metadata.get("comment"), one.name)


def _check_comment(comment: str | None, column: str) -> None:
    if comment:
        raise InvalidSql(f"The column {column!r} has a COMMENT, which tables do not keep. Nothing was done. Comment on the table.")


def _plain_properties(properties: Mapping[str, str], spark: SparkSession) -> dict[str, str]:
    """The properties without those that Spark adds. Raises InvalidInput for one that a table cannot have."""
    found = dict(properties)
    # saveAsTable always names a provider, by default that of the session.
    provider = found.pop("provider", "objcat")
    if provider.lower() not in ("objcat", str(spark.conf.get("spark.sql.sources.default")).lower()):
        raise InvalidSql(f"USING {provider} is not supported in this catalog. Nothing was done. Leave it out, or write USING objcat.")
    for name in ("owner", "is_managed_location"):
        found.pop(name, None)
    if "location" in found or "external" in found:
        raise InvalidSql("A table of a lake has no LOCATION of its own. Nothing was done. Leave it out.")
    options = [name.removeprefix("option.") for name in found if name.startswith("option.")]
    if options:
        raise InvalidSql(f"OPTIONS ({', '.join(options)}) are not supported. Nothing was done. Write TBLPROPERTIES.")
    return found


def _setting_of(name: str, said: str) -> Any:
    """A setting by its text. Raises InvalidInput."""
    match name:
        case "key" | "ordering":
            return _names(said)
        case "index":
            return index_of_text(said)
        case "allowed_lateness":
            return dt.timedelta(milliseconds=span_ms(said, what=name))
    return said


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _add_partition(settings: dict[str, Any], part: Mapping[str, Any]) -> None:
    """A transform of PARTITIONED BY, or the buckets of CLUSTERED BY. Raises InvalidInput."""
    name, columns = part["name"].lower(), [".".join(one["column"]) for one in part["of"] if "column" in one]
    numbers = [int(one["value"]) for one in part["of"] if "value" in one]
    if name == "bucket" and len(numbers) == 1:
        if "index" in settings:
            raise InvalidSql("The index is given twice, by CLUSTERED BY and by TBLPROPERTIES. Nothing was done. Give it once.")
        settings["index"] = BucketIndex(numbers[0], tuple(columns))
        return
    simple = name.removesuffix("s")
    if name == "identity" and len(columns) == 1:
        text = columns[0]
    elif simple in _TIMES and len(columns) == 1:
        text = f"{simple}({columns[0]})"
    elif name in ("truncate", "trunc") and len(columns) == 1 and len(numbers) == 1:
        text = f"truncate({columns[0]}, {numbers[0]})"
    else:
        raise InvalidSql(
            f"The partition transform {part['name']} is not supported. Nothing was done. Use columns, hours, days, months, years, "
            "truncate(column, n), and CLUSTERED BY (columns) INTO n BUCKETS."
        )
    settings.setdefault("partition_by", []).append(text)


def _value(spark: SparkSession, text: str, kind: str) -> Any:
    """The value of a constant expression, as `SetDefault` takes it. Raises InvalidSql."""
    try:
        return to_arrow(spark.sql(f"SELECT CAST({text} AS {kind}) AS v"))["v"][0].as_py()
    except PySparkException as error:
        reason = str(error).splitlines()[0][:SHOWN_CHARACTERS_MAX]
        raise InvalidSql(f"The default {text} is no {kind} ({reason}). Nothing was done. Give a plain value.") from error


# ---- shown


def shown_schema(table: Any) -> StructType:
    """The columns of a table as Spark writes them, with defaults. All may be null: the write itself refuses nulls, in its own words."""
    struct = spark_schema(nullable_schema(table.schema))
    for column, shown in zip(table.spec.table_schema.columns, struct.fields, strict=True):
        for name, value in ((_CURRENT, column.write_default), (_EXISTS, column.write_default)):
            if is_said(value):
                shown.metadata[name] = spark_sql(value_term(value, column.type))
    return struct


def shown_partitions(table: Any) -> list[list[Any]]:
    """Partition columns and transforms, each with its name, its column and other arguments; and buckets of columns, with their count."""
    found: list[list[Any]] = []
    for text in table.partitioning:
        call = re.fullmatch(r"(\w+)\((.+?)(?:, (\d+))?\)", text) if text not in table.schema.names else None
        if call is None:
            found.append(["identity", text])
        else:
            found.append([f"{call[1]}s" if call[1] in _TIMES else call[1], call[2], *([int(call[3])] if call[3] else [])])
    if _has_columns(table.index):
        found.append(["bucket", table.index.count, *table.index.columns])
    return found


def shown_properties(table: Any) -> dict[str, str]:
    """The properties of a table and its settings, as CREATE TABLE takes them."""
    key, ordering, index = table.key, table.ordering, table.index
    found = {"provider": "objcat"}
    if table.spec.is_in_place:
        found |= properties_of_files(table.spec, {one.name: one.dataType.simpleString() for one in shown_schema(table)})
    else:
        found[f"{_PREFIX}table_type"] = table.table_type
    if key:
        found |= {"key": ", ".join(key), "key_scope": table.key_scope}
    if ordering:
        found["ordering"] = ", ".join([ordering] if isinstance(ordering, str) else ordering)
    if table.allowed_lateness is not None:
        found["allowed_lateness"] = f"{table.allowed_lateness.total_seconds():g} seconds"
    if index is not None and not _has_columns(index):
        found["index"] = next(name for name, kind in INDEXES.items() if isinstance(index, kind))
        if isinstance(index, (BucketIndex, RecordIndex)):
            found["index"] += f"({index.count if isinstance(index, BucketIndex) else index.buckets})"
    return {**table.properties, **found}


def _has_columns(index: Index | None) -> bool:
    """Whether an index is one that CLUSTERED BY says."""
    return isinstance(index, BucketIndex) and index.columns is not None


# ---- altered


def column_changes(told: Sequence[Mapping[str, Any]], table: Any, spark: SparkSession) -> list[ColumnChange]:
    """The changes of columns that ALTER TABLE tells. Raises InvalidInput."""
    return [_column_change(one, table, spark) for one in told if one["change"] not in ("SetProperty", "RemoveProperty")]


def property_changes(told: Sequence[Mapping[str, Any]]) -> PropertyChanges | None:
    """The changes of properties that ALTER TABLE tells; None for none. Raises InvalidSql for one that a table cannot have."""
    found = PropertyChanges()
    if any(is_of_source(one.get("name") or "") for one in told):
        raise InvalidSql(SOURCE_STAYS)
    check_alterable(one["name"] for one in told if one["change"] == "SetProperty")
    if any(one.get("name") in ("location", "external", "provider") for one in told):
        raise InvalidSql("A table of a lake has no LOCATION and no provider of its own. Nothing was done. Set other properties.")
    for one in told:
        if one["change"] == "SetProperty":
            found.set[one["name"]] = one["value"]
        elif one["change"] == "RemoveProperty":
            found.unset.append(one["name"])
    return found if found.set or found.unset else None


def _column_change(one: Mapping[str, Any], table: Any, spark: SparkSession) -> ColumnChange:
    path = ".".join(f"`{part}`" if "." in part or "`" in part else part for part in one.get("path", ()))
    match one["change"]:
        case "AddColumn":
            _check_comment(one.get("comment"), path)
            position = one.get("position")
            return AddColumn(
                path,
                _arrow_type(one["type"]),
                after=position or None,
                first=position == "",
                default=_value(spark, one["sql"], _simple(one["type"])) if "sql" in one else None,
                nullable=one["nullable"],
            )
        case "DeleteColumn":
            return DropColumn(path)
        case "RenameColumn":
            return RenameColumn(path, one["to"])
        case "UpdateColumnType":
            return WidenColumn(path, _arrow_type(one["type"]))
        case "UpdateColumnNullability" if one["nullable"]:
            return DropNotNull(path)
        case "UpdateColumnPosition":
            return MoveColumn(path, first=one["position"] == "", after=one["position"] or None)
        case "UpdateColumnDefaultValue":
            if not one.get("sql"):
                return DropDefault(path)
            known = {column.name: column.dataType.simpleString() for column in spark_schema(table.schema)}
            name = one["path"][0]
            return SetDefault(path, _value(spark, one["sql"], known[name]) if name in known and len(one["path"]) == 1 else one["sql"])
    raise InvalidSql(
        f"ALTER TABLE cannot do {one['change']} on {path or 'the table'}. Nothing was done. Supported are ADD, DROP and RENAME COLUMN, "
        "ALTER COLUMN TYPE, DROP NOT NULL, SET and DROP DEFAULT, FIRST and AFTER, RENAME TO, and SET and UNSET TBLPROPERTIES."
    )


def _struct(type_json: str) -> StructType:
    return StructType.fromJson(
        {"type": "struct", "fields": [{"name": "c", "type": json.loads(type_json), "nullable": True, "metadata": {}}]}
    )


def _simple(type_json: str) -> str:
    return _struct(type_json).fields[0].dataType.simpleString()


def _arrow_type(type_json: str) -> pa.DataType:
    if limited := re.search(r'"((?:var)?char\(\d+\))"', type_json):
        raise InvalidSql(f"The type {limited[1]} limits the length of values, which tables do not check. Nothing was done. Write STRING.")
    return arrow_schema(_struct(type_json)).field(0).type
