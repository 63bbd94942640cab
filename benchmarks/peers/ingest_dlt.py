"""dlt as a side of `./dev bench ingest`: its source for SQL databases, merged into a table of Delta on local disk.

It asks for rows whose `version` is greater than the last one, so it sees no deletes and no order of changes. dlt's source that reads
the log of PostgreSQL (pg_replication) is in no package registry. `python -m benchmarks.peers.ingest_dlt load|check URL FOLDER`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

PIPELINE = "bench"
CHUNK_ROWS = 50_000


def load(url: str, folder: Path) -> None:
    """Bring the lake up to date: all rows the first time, those that changed later."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"
    os.environ["DLT_DATA_DIR"] = str(folder / "dlt")
    dlt: Any = importlib.import_module("dlt")
    sql_table: Any = importlib.import_module("dlt.sources.sql_database").sql_table
    orders = sql_table(
        credentials=url, table="orders", backend="pyarrow", chunk_size=CHUNK_ROWS, incremental=dlt.sources.incremental("version")
    )
    orders.apply_hints(primary_key="id", write_disposition={"disposition": "merge", "strategy": "upsert"}, table_format="delta")
    pipeline = dlt.pipeline(
        pipeline_name=PIPELINE,
        pipelines_dir=str(folder / "pipelines"),
        destination=dlt.destinations.filesystem(bucket_url=(folder / "lake").as_uri()),
        dataset_name="shop",
    )
    pipeline.run(orders).raise_on_failed_jobs()


def check(url: str, folder: Path) -> None:
    """Compare the rows of the source with those of the lake. Prints how many rows the lake has that the source has no longer."""
    import psycopg2

    delta_table: Any = importlib.import_module("deltalake").DeltaTable

    names = ["id", "customer", "status", "total", "comment", "version"]
    with psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql")) as connection, connection.cursor() as cursor:
        cursor.execute(f"select {', '.join(names)} from orders")
        there = {row[0]: row for row in cursor.fetchall()}
    found = delta_table(str(folder / "lake" / "shop" / "orders")).to_pyarrow_table(columns=names)
    here = {row["id"]: tuple(row[name] for name in names) for row in found.to_pylist()}
    wrong = [key for key, row in there.items() if here.get(key) != row]
    if wrong or len(here) != found.num_rows:
        raise SystemExit(f"{len(wrong)} rows of the source are not in the lake as they are, such as {wrong[:1]}; {found.num_rows} rows")
    print(len(here) - len(there))


def main() -> None:
    """Do what the command line says."""
    what, url, folder = sys.argv[1:]
    {"load": load, "check": check}[what](url, Path(folder))


if __name__ == "__main__":
    main()
