"""Reads adopted files: Parquet files that another tool wrote, as if objcat had written them.

`AdoptedParquet` stands where the readers of `objcat.datafile.parquet` use a `pyarrow.parquet.ParquetFile`. It gives columns their physical
names, adds the columns that are the same in every row, and the transaction of the rows. Types are widened by the reader, as for old files.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from objcat.datafile.casting import nulls
from objcat.metadata.files import Adoption, Value
from objcat.metadata.schema import FIELD_ID_KEY, Column, arrow_type

TEXTS = (pt.is_string, pt.is_large_string, pt.is_string_view)
BYTES = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
INT96_UNIT = "us"
"""Unit in which old timestamps of 12 bytes are read. Nanoseconds would not hold years after 2262."""


def same_values(value: Value, data_type: pa.DataType, length: int) -> pa.ChunkedArray:
    """A column with the value of an `Adoption` in every row."""
    if value is None:
        return nulls(length, data_type)
    plain = pa.array([_READ.get(_kind(data_type), _same)(value)], data_type)
    return pa.chunked_array([plain.take(pa.array([0] * length, pa.int64()))])


def json_value(value: pa.Scalar) -> Value:
    """A value as an `Adoption` holds it."""
    if not value.is_valid:
        return None
    data_type = value.type
    if pt.is_date(data_type):
        return int(value.cast(pa.int32()).as_py())
    if pt.is_timestamp(data_type):
        return int(value.cast(pa.int64()).as_py())
    found = value.as_py()
    if isinstance(found, bytes):
        return found.hex()
    if isinstance(found, float) and (found != found or found in (float("inf"), float("-inf"))):  # noqa: PLR0124 - of NaN
        return repr(found)
    return found if isinstance(found, (bool, int, float, str)) else str(found)


class AdoptedParquet:
    """A Parquet file of another tool under the names of the table. For one thread.

    Args:
        file: the opened file.
        adopted: what it lacks.
        columns: of the table, under which it is read. No other can be read.
        txn_column: the name of the column with the transaction.
    """

    def __init__(self, file: pq.ParquetFile, adopted: Adoption, columns: Sequence[Column], *, txn_column: str) -> None:
        self._file = file
        self._adopted = adopted
        self._txn_column = txn_column
        self._names = {column.physical: adopted.names.get(column.id, column.physical) for column in columns}
        self._values = {column.physical: column for column in columns if column.id in adopted.values}
        self._stored = {self._names[column.physical]: column for column in columns if column.id not in adopted.values}
        self._held = frozenset(file.schema_arrow.names)

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer."""
        return self._file.metadata

    @property
    def num_row_groups(self) -> int:
        """The number of row groups."""
        return int(self._file.num_row_groups)

    @property
    def schema_arrow(self) -> pa.Schema:
        """The columns of the file, in its order. Those whose statistics compare as those of the table have its field ids, no others."""
        return with_ids(self._file.schema, self._file.schema_arrow, self._stored)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Columns of all rows, by physical name, and `_objcat_txn`. Columns that the file lacks are missing."""
        return self._named(columns, lambda names: self._file.read(columns=names))

    def read_row_group(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The same of one row group."""
        return self._named(columns, lambda names: self._file.read_row_group(number, columns=names))

    def read_row_groups(self, numbers: Sequence[int], columns: Sequence[str], **tuning: Any) -> pa.Table:
        """The same of some row groups."""
        return self._named(columns, lambda names: self._file.read_row_groups(list(numbers), columns=names, **tuning))

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.__exit__(kind, error, trace)

    def _named(self, columns: Sequence[str], read: Callable[[list[str]], pa.Table]) -> pa.Table:
        in_file = {name: self._names[name] for name in columns if name in self._names and name not in self._values}
        found = read([name for name in in_file.values() if name in self._held])
        made: dict[str, pa.ChunkedArray] = {}
        for name in columns:
            if name == self._txn_column:
                made[name] = same_values(self._adopted.txn, pa.string(), found.num_rows)
            elif name in self._values:
                column = self._values[name]
                made[name] = same_values(self._adopted.values[column.id], arrow_type(column.type, physical=True), found.num_rows)
            elif in_file.get(name) in self._held:
                made[name] = found.column(in_file[name])
        # Without a column, Arrow would forget how many rows there are.
        return pa.table(made) if made else found


def old_times(schema: pq.ParquetSchema) -> frozenset[str]:
    """The paths of columns that hold timestamps of 12 bytes, which have no unit and no statistics."""
    columns = [schema.column(at) for at in range(len(schema.names))]
    return frozenset(column.path for column in columns if column.physical_type == "INT96")


def with_ids(schema: pq.ParquetSchema, fields: pa.Schema, columns: Mapping[str, Column]) -> pa.Schema:
    """The columns of a file with the field ids of a table, where statistics of the file compare like values of the table.

    Args:
        schema: of the file.
        fields: the same in Arrow. They keep their order.
        columns: of the table, by name in the file.
    """
    old = old_times(schema)
    found = []
    for field in fields:
        column = columns.get(field.name)
        is_known = column is not None and isinstance(column.type, str) and field.name not in old
        metadata = {FIELD_ID_KEY: str(column.id).encode()} if is_known and column is not None and _compares(field.type, column) else None
        found.append(pa.field(field.name, _canonical(field.type), field.nullable, metadata))
    return pa.schema(found)


def _canonical(data_type: pa.DataType) -> pa.DataType:
    """The type that bounds are read by: large texts, views and fixed sizes are stored alike."""
    if any(matches(data_type) for matches in TEXTS):
        return pa.string()
    return pa.binary() if any(matches(data_type) for matches in BYTES) else data_type


def _compares(data_type: pa.DataType, column: Column) -> bool:
    """Whether statistics of a column in a file are values as bounds of the table's column have them.

    Dates of a column that is a timestamp now are not, nor times in another unit than microseconds.
    """
    kind = str(column.type).partition("(")[0]
    if pt.is_timestamp(data_type):
        return bool(data_type.unit == "us") and kind in ("timestamp", "timestamp_ntz")
    if pt.is_signed_integer(data_type):
        return kind in ("tinyint", "smallint", "int", "bigint", "double", "decimal")
    if pt.is_floating(data_type):
        return kind in ("float", "double") and not pt.is_float16(data_type)
    if pt.is_decimal(data_type):
        return kind == "decimal"
    alike = {"boolean": (pt.is_boolean,), "date": (pt.is_date32,), "string": TEXTS, "binary": BYTES}
    return any(matches(data_type) for matches in alike.get(kind, ()))


def _kind(data_type: pa.DataType) -> str:
    if pt.is_decimal(data_type):
        return "decimal"
    if pt.is_binary(data_type):
        return "binary"
    return "float" if pt.is_floating(data_type) else ""


def _same(value: Any) -> Any:
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {
    "decimal": lambda value: decimal.Decimal(str(value)),
    "binary": bytes.fromhex,
    "float": float,
}
