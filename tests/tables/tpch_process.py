"""Works on a table of TPC-H, each in a process of its own: `python -m tests.tables.tpch_process URL FILE KEY WORK`.

FILE: Parquet, as tpchgen-cli writes it. KEY: columns, with commas between them. Prints one number: the peak of the resident memory of the
process in bytes, of all that it did.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import objcat
from tests.tables.memory_process import peak_bytes

BUCKETS = 16
EVERY = 100


def plain(schema: pa.Schema) -> pa.Schema:
    """With text in place of views of it, which Arrow cannot filter."""
    return pa.schema([field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in schema])


def batches(path: str, *, every: int = 1) -> pa.RecordBatchReader:
    """The rows as a stream, of every so many keys."""
    with pq.ParquetFile(path) as file:
        schema, count = plain(file.schema_arrow), file.num_row_groups

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(count):
            # A reader keeps what it has read.
            with pq.ParquetFile(path) as file:
                group = file.read_row_group(number).cast(schema)
            if every > 1:
                keys = group.column(0)
                group = group.filter(pc.equal(keys, pc.multiply(pc.divide(keys, every), every)))
            yield from group.to_batches(max_chunksize=65_536)

    return pa.RecordBatchReader.from_batches(schema, rows())


def main() -> None:
    url, path, key, work = sys.argv[1:]
    lake = objcat.connect(url)
    names = key.split(",")
    with pq.ParquetFile(path) as file:
        schema, count = plain(file.schema_arrow), file.metadata.num_rows
    match work:
        case "load":
            index = objcat.BucketIndex(BUCKETS, columns=(names[0],))
            lake.create_table("t", schema, key=names, index=index).bulk_insert(batches(path))
        case "upsert":
            lake.table("t").upsert(batches(path, every=EVERY))
        case "scan":
            assert sum(batch.num_rows for batch in lake.table("t").scan().to_batches()) == count
        case "compact":
            assert lake.table("t").maintenance.compact() is not None
    print(peak_bytes())


if __name__ == "__main__":
    main()
