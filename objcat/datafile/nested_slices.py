"""Copies record batches that some consumers of Arrow's stream interface would read wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

ROWS_MAX = 32 * 1024
"""Rows of a copied batch. Arrow's scanners cut longer ones again."""


def compact_nested_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, without an offset into columns with a struct inside a struct. Those are copied.

    A slice of a column is the column and an offset. DuckDB ignores the offset below the outer struct, in a column, list or map: up to 1.4
    it
    reads values of other rows, and 2.0 refuses the batch.
    """
    for batch in batches:
        nested = {number for number, field in enumerate(batch.schema) if _nests(field.type)}
        if not nested:
            yield batch
            continue
        for start in range(0, batch.num_rows, ROWS_MAX):
            part = batch.slice(start, ROWS_MAX)
            every = pa.array(range(part.num_rows), pa.int32())
            columns = [column.take(every) if number in nested else column for number, column in enumerate(part.columns)]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _nests(data_type: pa.DataType) -> bool:
    """Whether a struct contains a struct."""
    below = [data_type.field(number).type for number in range(data_type.num_fields)]
    return any(_nests(inner) or (pt.is_struct(data_type) and pt.is_struct(inner)) for inner in below)
