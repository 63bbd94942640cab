"""From the columns that files hold, under physical names, to those that users see.

A native relation is declared over physical names, which no two columns ever share, so that filters which Spark pushes down mean the right
column in a file of any age; what such a file lacks Spark takes for null, and a narrower type it reads as the wider one.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import StructType

from objcat.spark.names import quoted
from objcat.table.schema import TableSchema, arrow_type


def physical_relation(schema: TableSchema, *, only: Iterable[str] | None = None) -> StructType:
    """The columns of a relation over the table's files. only: the logical names of those that are needed, in the table's order.

    All may be null, also inside of each other: a file may be older than the column.
    """
    wanted = set(schema.names if only is None else only)
    columns = [column for column in schema.columns if column.name in wanted]
    return from_arrow_schema(
        pa.schema([pa.field(column.physical, _plain(arrow_type(column.type, physical=True))) for column in columns]),
        prefer_timestamp_ntz=True,
    )


def logical_projection(schema: TableSchema, names: Iterable[str] | None = None) -> list[SparkColumn]:
    """Expressions over `physical_relation` that give columns their logical names, nested ones too.

    names: logical names, in order; all when None. A column whose nested fields are called otherwise than in the files is cast, field by
    field by place: right, but then Spark reads it whole where only a field of it is wanted.
    """
    found = []
    for name in schema.names if names is None else names:
        column = schema.column(name)
        values = F.col(quoted(column.physical))
        files, users = (_plain(arrow_type(column.type, physical=physical)) for physical in (True, False))
        if not files.equals(users):
            values = values.cast(from_arrow_type(users, prefer_timestamp_ntz=True))
        found.append(values.alias(name))
    return found


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Without metadata, and with nulls allowed everywhere but in the keys of maps."""
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_plain(data_type.key_type), _plain(data_type.item_type))
    if pa.types.is_list(data_type):
        return pa.list_(pa.field("element", _plain(data_type.value_type)))
    return data_type
