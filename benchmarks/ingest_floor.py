"""The floor of a snapshot: one process that reads a table of a database by one statement and writes it to one Parquet file.

It has no key, no transaction and no state, and it compresses as objcat does. `python -m benchmarks.ingest_floor KIND URL FILE`.
"""

from __future__ import annotations

import os
import sys
import threading
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv
from pymysql.cursors import SSCursor

from benchmarks.ingest_sources import COLUMNS, connect_mariadb
from benchmarks.works import CODEC

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("status", pa.string()),
        ("total", pa.decimal128(12, 2)),
        ("ordered_at", pa.timestamp("us")),
        ("comment", pa.string()),
        ("version", pa.int64()),
    ]
)
FETCHED_AT_ONCE = 50_000
BLOCK_BYTES = 4 * 1024 * 1024
_LISTED = ", ".join(COLUMNS)


def copy_postgres(url: str, target: str) -> int:
    """`COPY orders TO STDOUT`, read by Arrow's CSV reader. Returns the number of rows."""
    connection = psycopg2.connect(url)
    reading, writing = _pipe()
    failed: list[BaseException] = []

    def copy() -> None:
        try:
            with connection.cursor() as cursor, writing:
                cursor.copy_expert(f"copy (select {_LISTED} from orders) to stdout (format csv)", writing)
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            failed.append(error)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    rows = 0
    with reading, pq.ParquetWriter(target, SCHEMA, compression=CODEC) as writer:
        reader = csv.open_csv(
            reading,
            read_options=csv.ReadOptions(column_names=list(COLUMNS), block_size=BLOCK_BYTES, use_threads=False),
            convert_options=csv.ConvertOptions(column_types=SCHEMA, strings_can_be_null=True, quoted_strings_can_be_null=False),
        )
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    thread.join()
    if failed:
        raise failed[0]
    return rows


def select_mariadb(url: str, target: str) -> int:
    """`SELECT` by PyMySQL, whose rows become Arrow's. Returns the number of rows."""
    port = int(url.rstrip("/").rpartition(":")[2])
    connection = connect_mariadb(port, "bench")
    rows = 0
    with (
        connection.cursor(SSCursor) as cursor,
        pq.ParquetWriter(target, SCHEMA, compression=CODEC) as writer,
    ):
        cursor.execute(f"select {_LISTED} from orders")
        while found := cursor.fetchmany(FETCHED_AT_ONCE):
            columns: list[Any] = list(zip(*found, strict=True))
            assert isinstance(columns[3][0], Decimal)
            writer.write_table(
                pa.Table.from_arrays([pa.array(one, field.type) for one, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
            )
            rows += len(found)
    return rows


def _pipe() -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=1024 * 1024)


def main() -> None:
    """Copy the table of the command line."""
    kind, url, target = sys.argv[1:]
    print((copy_postgres if kind == "postgres" else select_mariadb)(url, target))


if __name__ == "__main__":
    main()
