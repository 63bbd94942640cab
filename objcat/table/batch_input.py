"""A user's batch of any kind: which engine writes it, and whether it fits, before a write is announced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fileio.store import FileIO
from objcat.common.validation import instance, name_list, nearest_name, one_of, session, shown
from objcat.datafile.batch_checks import check_named_once
from objcat.engine.local import LocalEngine, is_untyped, to_arrow_batch
from objcat.engine.parted_rows import BucketParts
from objcat.errors import InvalidInput
from objcat.maintenance.workers import Workers
from objcat.metadata.derived import check_not_derived
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema import TableSchema, columns_from_arrow, nullable_schema
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import parse_predicate
from objcat.tasks.model import Operation, WriteLayout
from objcat.write.table_writer import WriteBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def schema_of_batch(data: Any, like: TableSchema | None = None) -> tuple[Any, pa.Schema]:
    """A batch of any kind, in a form that can be read again, and its columns.

    Columns of a Spark frame are nullable: their null flags come from its own inference. `like`: see `to_arrow_batch`. Raises InvalidBatch.
    """
    rows = to_arrow_batch(data, like)
    if rows is not None:
        check_named_once(rows.schema)
        return rows, rows.schema
    from objcat.spark.engine import schema_of_frame

    return data, nullable_schema(schema_of_frame(data))


def schema_given(schema: Any) -> pa.Schema:
    """The columns of a new table, from an Arrow or Spark schema. Raises InvalidInput."""
    if type(schema).__module__ == "pyspark.sql.types" and hasattr(schema, "fields"):
        from objcat.spark.engine import schema_of_struct

        return schema_of_struct(schema)
    such_as = "an Arrow schema, pa.schema([('id', pa.int64()), ...]), or that of a Spark DataFrame, df.schema"
    return instance(schema, pa.Schema, what="schema", such_as=such_as)


def parse_layout(sort: str | Sequence[str], spec: TableSpec) -> WriteLayout:
    """How a bulk insert lays out rows. Raises InvalidInput for a column that cannot be sorted by."""
    if isinstance(sort, str):
        return WriteLayout(by_partition=one_of(sort, ("none", "partition"), what="sort") == "partition")
    names = name_list(sort, what="sort")
    if spec.has_key:
        raise InvalidInput("sort= names columns, but rows of a table with a key are sorted by bucket and key. Leave sort= out.")
    for name in names:
        if name not in spec.table_schema.names:
            raise InvalidInput(f"sort= names {shown(name)}, which is not a column: {nearest_name(name, spec.table_schema.names)}")
        if not isinstance(spec.table_schema.column(name).type, str):
            raise InvalidInput(f"sort= names the nested column {shown(name)}. Sort by columns that hold one plain value.")
    return WriteLayout(columns=tuple(dict.fromkeys(names)))


def prepare_batch(
    fileio: FileIO,
    data: Any,
    spec: TableSpec,
    operation: Operation,
    schema_mode: str | None = None,
    delete_when: str | None = None,
    *,
    table: str | None = None,
    newest: Callable[[], TableSpec] | None = None,
) -> WriteBatch:
    """A batch with the engine that writes it: this process for rows in memory, Spark for a DataFrame.

    Args:
        schema_mode: what it may do to the schema; None: as the table's property says.
        delete_when: see `Table.upsert`.
        table: its name in messages; its id when None.
        newest: reads the newest spec, which a batch may fit although it does not fit `spec`.

    Raises:
        InvalidBatch, InvalidSchema, InvalidPredicate: see `objcat.errors`.
    """
    spec.check_own_files(f"{operation} rows")
    check_not_derived(spec, f"{operation} rows")
    mode = spec.schema_mode if schema_mode is None else SchemaMode(one_of(schema_mode, SchemaMode, what="schema_mode"))
    if not spec.has_key and operation in (Operation.UPSERT, Operation.DELETE):
        raise InvalidInput(
            f"The table has no key, so nothing says which rows to {operation}. Nothing was written. Insert rows into it, or "
            "create a table with a key."
        )
    rows = to_arrow_batch(data, spec.table_schema, parts=BucketParts.of(spec, operation))
    if rows is not None:
        engine: Any = LocalEngine(fileio)
    else:
        from objcat.spark.engine import SparkEngine

        rows, engine = data, SparkEngine(fileio.describe(), table=table or spec.table)
    deletes = None if delete_when is None else parse_predicate(delete_when, columns_from_arrow(engine.schema(rows)))
    change = WriteBatch(engine, rows, operation, mode, deletes)
    try:
        engine.check(rows, change.widened_spec(spec), operation, deletes)
    except InvalidInput:
        newer = spec if newest is None else newest()
        if newer.table_schema == spec.table_schema:
            raise
        if is_untyped(data):
            # Under its current name a column may hold maps.
            change = dataclasses.replace(change, data=to_arrow_batch(data, newer.table_schema))
        engine.check(change.data, change.widened_spec(newer), operation, deletes)
    return change


def session_of(data: Any) -> SparkSession | None:
    """The session of a batch that Spark writes; None for a batch of this process."""
    # Only a Spark frame has no rows for `to_arrow_batch`.
    found: SparkSession | None = getattr(data, "sparkSession", None)
    return found


def workers_on(spark: SparkSession, fileio: FileIO, *, table: str) -> Workers:
    """The executors of a session, for services. `table`: its name in messages. Raises Unsupported for a store that they cannot open."""
    from objcat.spark.services import SparkWorkers

    return SparkWorkers(session(spark), fileio.describe(), table=table)
