"""Which columns of a data file are worth a dictionary, by a sample of its first rows.

Parquet's writer begins a dictionary for each column of each row group, and gives it up when it is too large. What it has written until
then is read through a dictionary that saves nothing.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

SAMPLE_ROWS, SLICES = 2048, 2
"""Rows of the sample, and from how many places of the rows at hand they are."""
DISTINCT_SHARE = 0.95
"""Of a column with this share of distinct values in the sample. It has some 20,000 values or more, of which no dictionary is kept."""


def columns_with_dictionary(rows: pa.Table) -> bool | list[str]:
    """For Parquet's writer: the paths of columns that may have a dictionary, or True for all. rows: the first ones of a file."""
    if rows.num_rows < SAMPLE_ROWS:
        return True
    each, step = SAMPLE_ROWS // SLICES, rows.num_rows // SLICES
    without = {
        field.name
        for number, field in enumerate(rows.schema)
        if _is_counted(field.type)
        and pc.count_distinct(
            pa.chunked_array([chunk for at in range(SLICES) for chunk in rows.column(number).slice(at * step, each).chunks], field.type)
        ).as_py()
        >= DISTINCT_SHARE * SAMPLE_ROWS
    }
    return [path for path in leaf_paths(rows.schema) if path not in without] if without else True


def leaf_paths(schema: pa.Schema) -> list[str]:
    """The paths of the columns that Parquet stores, those within nested columns among them."""
    if not any(pt.is_nested(field.type) for field in schema):
        return list(schema.names)
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, store_schema=False)
    known = pq.ParquetFile(sink).schema
    return [known.column(number).path for number in range(len(known.names))]


def _is_counted(data_type: pa.DataType) -> bool:
    return not pt.is_nested(data_type) and not pt.is_boolean(data_type) and not pt.is_null(data_type)
