"""Relations that Spark scans itself: Parquet files of a table, listed and pruned by a small index in Java.

The index, `ObjcatFileIndex.java`, is compiled by the Janino that Spark ships, once for each JVM. It gets everything about the files in one
call. A relation is declared over the physical names of columns, which never change, and read under a private session, which overrules
settings of the user's session that would change the meaning of a file, for these files only.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from fileio.store import StoreDescription
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS, LOG_ROW_GROUP_ROWS
from objcat.metadata.column_defaults import is_said
from objcat.metadata.files import OUTER
from objcat.metadata.schema import Column, to_arrow_physical
from objcat.metadata.type_widening import child_fields
from objcat.spark import versions
from objcat.spark.native.query import Query

_CONNECTORS = {"s3": "s3a", "gs": "gs"}
_AZURE = re.compile(r"^az://([^/]+)(.*)$")

OPTIONS: Mapping[str, str] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}
"""Options of every relation, against session settings that would lose rows or shift dates before 1582."""
SETTINGS: Mapping[str, str] = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.defaultColumn.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    "spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": "parquet",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.recordLevelFilter.enabled": "false",
}
"""Settings of the private session. Reading by field id gives wrong rows when a column is renamed and a filter is pushed down by name."""

EXISTS_DEFAULT = "EXISTS_DEFAULT"
"""Where Spark looks in the metadata of a field for the value of a column that a file lacks."""
DEFAULTS: Mapping[str, str] = {"spark.sql.files.openCostInBytes": str(1024**2)}
"""Settings of the private session where the user's has none: Spark's own 4 MiB would give most of a small log object to one task."""
WHOLE_BYTES_MAX = 16 * 1024**2
"""Bytes of files that are one row group by their rows; wide ones may be several."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A column with the same value in every row of a file. `type`: of Spark, one of `long`, `integer`, `string`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Relation:
    """What Spark gets about some files.

    Attributes:
        name: shown in its plans.
        files: one row for each, with `path` (below the root), `bytes`, `rows`, `bucket`, `bucket_count` (0: unknown), `lower_<id>`,
            `upper_<id>`, `nulls_<id>` (see `metadata.manifest_rows`) and a column for each constant.
        hidden: columns of the files that are not the table's.
        hashed: the columns that choose the bucket.
        buckets: the count under which all files were written, when Spark may rely on it, else 0.
        key_span: of base rows, the least and greatest number that their key can be in a join, where one bit for each is little.
        base_rows: that log rows are merged with, where there are enough for a set of hashes before a join.
        log_rows: of log objects. For these three see `ObjcatBits.java`.
        sorted: columns by which the rows of each bucket ascend, because each is one file; empty where that is not sure. See
            `ObjcatOrder.java`.
        is_outer: whether the paths lead to the lake, as those of adopted files.
    """

    name: str
    files: pa.Table
    columns: tuple[Column, ...]
    nullable: bool = False
    hidden: tuple[pa.Field, ...] = ()
    constants: tuple[Constant, ...] = ()
    hashed: tuple[Column, ...] = ()
    buckets: int = 0
    key_span: tuple[int, int] | None = None
    base_rows: int = 0
    log_rows: int = 0
    sorted: tuple[Column, ...] = ()
    is_outer: bool = False


@dataclass(frozen=True, slots=True)
class NativeRoot:
    """Where Spark finds files: URLs for the Hadoop of a session.

    Attributes:
        table: of the log's prefix.
        lake: of the lake's prefix, for adopted files; None where there can be none.
    """

    table: str
    lake: str | None = None


def is_outer(path: str) -> bool:
    """Whether a path leads to the lake, and not into the folder of the table."""
    return path.startswith(f"{OUTER}/")


def internal(column: Column) -> str:
    """The name of a column inside our plans. User's names, which may be anything, are applied at the end."""
    return f"c{column.id}"


def native_root(spark: SparkSession, store: StoreDescription) -> NativeRoot | None:
    """The store's URLs for this session's Hadoop; None when it cannot read the scheme, or there is no JVM handle (Spark Connect).

    A scheme counts as readable when its connector is on the class path. Whether it is configured is up to the session.
    """
    if not hasattr(spark, "_jvm"):
        return None
    table = _hadoop_url(store.url, store.options)
    if table is None:
        return None
    scheme = table.partition(":")[0]
    if scheme != "file":
        try:
            jvm = spark._jvm
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsc.hadoopConfiguration())  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - Py4J raises one class for every Java error, a missing connector among them
            return None
    return NativeRoot(table, None if store.outer_url is None else _hadoop_url(store.outer_url, store.options))


def _hadoop_url(url: str, options: Mapping[str, Any]) -> str | None:
    """A URL as Hadoop has it. None for a scheme that it does not have."""
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        return url
    if scheme in _CONNECTORS:
        return f"{_CONNECTORS[scheme]}:{rest}"
    if scheme == "az" and options.get("account") and not options.get("endpoint"):
        return _AZURE.sub(rf"abfss://\1@{options['account']}.dfs.core.windows.net\2", url)
    return None


def related(root: NativeRoot, relation: Relation, *, row_index: str | None = None) -> Query:
    """The rows of files: the table's columns under `internal` names, the hidden columns, the constants.

    `root`: of `native_root`. `row_index`: the name of a further column, the number of the row in its file.
    """
    columns = plain(to_arrow_physical(relation.columns, nullable=relation.nullable))
    fields = [*columns, *relation.hidden]
    names = [internal(column) for column in relation.columns] + [field.name for field in relation.hidden]
    if any(is_said(column.initial_default) for column in relation.columns):
        # Spark's reader of single rows fills in defaults rightly only where the columns that a file lacks are the last ones. A file has the
        # columns up to some id.
        places = sorted(range(len(columns)), key=lambda place: relation.columns[place].id)
        order = [*range(len(columns), len(fields)), *places]
        fields, names = [fields[place] for place in order], [names[place] for place in order]
    physical = pa.schema(fields)
    names += [constant.name for constant in relation.constants]
    said = {
        "op": "relation",
        "name": relation.name,
        "schema": _with_defaults(spark_schema(physical), relation.columns).json(),
        "constants": json.dumps({"type": "struct", "fields": [_constant_field(constant) for constant in relation.constants]}),
        "hashed": [column.physical for column in relation.hashed],
        "buckets": relation.buckets,
        "columns": names,
        "row_index": row_index,
        "options": {**OPTIONS, **_own_options(relation)},
        "defaults": dict(DEFAULTS),
        "settings": dict(SETTINGS),
    }
    has_bits = relation.key_span is not None or relation.base_rows > 0
    return Query(said, files=_encoded(root, relation), has_bits=has_bits, is_sorted=bool(relation.sorted))


def _with_defaults(schema: StructType, columns: Sequence[Column]) -> StructType:
    """The schema of files with the defaults of columns that a file may lack, which Spark's Parquet reader fills in.

    Such columns are nullable here: that reader takes no file that lacks a required one.
    """
    defaults = {column.physical: text for column in columns if (text := default_text(column)) is not None}
    fields = [
        StructField(field.name, field.dataType, True, {EXISTS_DEFAULT: defaults[field.name]}) if field.name in defaults else field
        for field in schema.fields
    ]
    return StructType(fields)


def fills_absent(columns: Sequence[Column]) -> bool:
    """Whether Spark's own Parquet reader gives the right values of columns and fields that files lack.

    It does not for bytes with a default. Before version 4.1, a struct is null for it where a file has none of its fields.
    """
    if any(column.type == "binary" and is_said(column.initial_default) for column in columns):
        return False
    return versions.TELLS_EMPTY_STRUCTS or not any(map(_may_be_empty, columns))


def _may_be_empty(column: Column) -> bool:
    """Whether a column has a struct of which Spark may read only fields that old files lack.

    A field that joined later has its id in its name in files. Spark may read it alone where that is its name in the table too: a column
    with other names is cast, and so it is read whole.
    """
    fields = child_fields(column)
    joined = [field for field in fields if field.physical.endswith(f"_{field.id}")]
    is_empty = bool(fields) and (len(joined) == len(fields) or any(field.name == field.physical for field in joined))
    return is_empty or any(map(_may_be_empty, fields))


def default_text(column: Column) -> str | None:
    """The value of rows that are older than a column, as a literal of Spark that no session setting changes. None for null."""
    value = column.initial_default
    if not is_said(value):
        return None
    text = str(value)
    match column.type:
        case "string":
            return f"CAST(X'{text.encode().hex()}' AS STRING)"
        case "binary":
            return f"X'{text}'"
        case "date":
            return f"DATE '{text}'"
        case "timestamp":
            return f"TIMESTAMP_LTZ '{text}'"
        case "timestamp_ntz":
            return f"TIMESTAMP_NTZ '{text}'"
    return text if isinstance(value, bool) else f"CAST('{text}' AS {column.type})"


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema."""
    return from_arrow_schema(plain(schema), prefer_timestamp_ntz=True)


def plain(schema: pa.Schema) -> pa.Schema:
    """Without metadata, and nullable inside nested columns, because a file may be older than a field."""
    return pa.schema([pa.field(field.name, _plain_type(field.type), field.nullable) for field in schema])


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    if pt.is_struct(data_type):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in data_type])
    if pt.is_map(data_type):
        return pa.map_(_plain_type(data_type.key_type), _plain_type(data_type.item_type))
    if pt.is_list(data_type):
        return pa.list_(pa.field("element", _plain_type(data_type.value_type)))
    return data_type


def _own_options(relation: Relation) -> Mapping[str, str]:
    """Options for our Java code."""
    said: dict[str, int | str] = {"objcat.log.rows": relation.log_rows} if relation.log_rows else {}
    rows_max = LOG_ROW_GROUP_ROWS if relation.log_rows else BASE_ROW_GROUP_ROWS
    files = relation.files
    if files.num_rows and pc.max(files.column("rows")).as_py() <= rows_max and pc.max(files.column("bytes")).as_py() <= WHOLE_BYTES_MAX:
        said["objcat.whole"] = 1
    if relation.key_span is not None or relation.base_rows:
        said["objcat.base.rows"] = relation.base_rows
    if relation.key_span is not None:
        said |= {"objcat.key.low": relation.key_span[0], "objcat.key.high": relation.key_span[1]}
    if relation.sorted:
        said["objcat.sorted"] = json.dumps([column.physical for column in relation.sorted])
    return {name: str(value) for name, value in said.items()}


def _constant_field(constant: Constant) -> dict[str, Any]:
    return {"name": constant.name, "type": constant.type, "nullable": False, "metadata": {}}


# ---- the index in the JVM ----------------------------------------------------------------------------------------


def _encoded(root: NativeRoot, relation: Relation) -> bytes:
    """The files as the index reads them: a deflated Arrow stream.

    Hadoop takes paths as they are, while our root is percent-encoded.
    """
    files = relation.files
    paths = files.column("path").cast(pa.string())
    folder = root.table
    if relation.is_outer:
        assert root.lake is not None, "a table with adopted files is opened from its lake on"
        folder, paths = root.lake, pc.utf8_slice_codeunits(paths, len(OUTER) + 1)
    columns: dict[str, pa.Array] = {
        "path": pc.binary_join_element_wise(unquote(folder).rstrip("/"), paths, "/"),
        **{name: files.column(name).cast(pa.int64()) for name in ("bytes", "rows", "bucket", "bucket_count")},
    }
    for constant in relation.constants:
        columns[f"constant:{constant.name}"] = files.column(constant.name).cast(pa.string() if constant.type == "string" else pa.int64())
    fields = [pa.field(name, values.type) for name, values in columns.items()]
    for column in relation.columns:
        names = [f"{kind}_{column.id}" for kind in ("lower", "upper", "nulls")]
        bounds = [_comparable(files.column(name)) for name in names] if all(name in files.column_names for name in names) else [None]
        if any(values is None for values in bounds):
            continue
        metadata = {"kind": "decimal"} if pt.is_decimal(files.column(names[0]).type) else None
        for kind, values in zip(("lower", "upper", "nulls"), bounds, strict=True):
            assert values is not None
            columns[f"{kind}:{column.physical}"] = values
            fields.append(pa.field(f"{kind}:{column.physical}", values.type, metadata=metadata))
    table = pa.table(list(columns.values()), schema=pa.schema(fields)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return zlib.compress(sink.getvalue(), level=1)


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Bounds as integers, doubles or text; None for a type that is not pruned by."""
    data_type = values.type
    if pt.is_integer(data_type) or pt.is_boolean(data_type) or pt.is_timestamp(data_type):
        return values.cast(pa.int64())
    if pt.is_date(data_type):
        return values.cast(pa.int32()).cast(pa.int64())
    if pt.is_floating(data_type):
        return values.cast(pa.float64())
    return values.cast(pa.string()) if pt.is_string(data_type) or pt.is_decimal(data_type) else None


def with_bounds(files: pa.Table, bounds: pa.Table | None) -> pa.Table:
    """Files with their known bounds, by path. `bounds`: of `Snapshot.bounds`; its `rows` replace those of the files."""
    if bounds is None:
        return files
    at = pc.index_in(files.column("path"), value_set=bounds.column("base_path").combine_chunks())
    found = bounds.take(at)
    known = [name for name in bounds.column_names if name.partition("_")[0] in ("lower", "upper", "nulls")]
    files = files.set_column(files.column_names.index("rows"), "rows", pc.coalesce(found.column("rows"), files.column("rows")))
    for name in known:
        files = files.append_column(name, found.column(name))
    return files
