"""A batch that Spark computes once and keeps while it is written, or that comes to this process, where it is small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, BinaryType, StringType

from objcat.spark.names import quoted

ROWS_MAX, BYTES_MAX = 128 * 1024, 64 * 1024**2
"""Of a batch that comes to this process."""
_PLAIN_BYTES = 16
"""Of a value that has no length, at most."""


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A batch that Spark keeps, with columns by number. names: of its columns."""

    rows: DataFrame
    names: tuple[str, ...]

    def brought(self, schema: pa.Schema) -> pa.Table | None:
        """All rows, where they are few; else None, as when there is none. schema: of the batch. Computes the batch."""
        if not 0 < self._bytes() <= BYTES_MAX:
            return None
        # In Spark's own types, times would be in the zone of its session.
        by_number = pa.schema([field.with_name(str(number)) for number, field in enumerate(schema)])
        return self.rows.toArrow().cast(by_number).rename_columns(list(self.names))

    def _bytes(self) -> int:
        """About how many the rows take in Arrow; more than may come where there are too many rows."""
        lengths = [_length(self.rows, str(number)) for number in range(len(self.names))]
        found = self.rows.agg(F.count(F.lit(1)), *(F.sum(length) for length in lengths)).collect()[0]
        return BYTES_MAX + 1 if found[0] > ROWS_MAX else sum(length or 0 for length in found[1:])


def _length(rows: DataFrame, name: str) -> Column:
    kind, column = rows.schema[name].dataType, F.col(quoted(name))
    if isinstance(kind, (StringType, BinaryType)):
        return F.octet_length(column) + _PLAIN_BYTES
    return F.lit(_PLAIN_BYTES) if isinstance(kind, AtomicType) else F.octet_length(column.cast("string"))


@contextmanager
def kept_frame(data: DataFrame) -> Iterator[KeptFrame]:
    """Until the end of the block, at the latest."""
    names = tuple(data.columns)
    rows = data.toDF(*map(str, range(len(names)))).persist()
    try:
        yield KeptFrame(rows, names)
    finally:
        rows.unpersist()
