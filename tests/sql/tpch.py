"""The script of TPC-H merges where it is run: the files, what DuckDB makes of them by itself, and the tables of a lake."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

import objcat
from objcat.common.validation import TableType
from tests.sql.tpch_script import KEYS, QUERIES, SCALE, STATEMENTS, plain
from tests.tables.tpch_process import batches

Answers = list[list[list[str]]]


def generate(directory: Path) -> Path:
    """The files of the source, and the directory that they are in."""
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    command = [str(program), "parquet", "-s", SCALE, f"--tables={','.join(KEYS)}", f"--output-dir={directory}"]
    subprocess.run(command, check=True, capture_output=True)
    return directory


def expected(files: Path) -> Answers:
    """What DuckDB answers after the script, run on tables of its own."""
    with duckdb.connect() as db:
        for name in KEYS:
            db.execute(f"CREATE TABLE {name} AS FROM '{files / name}.parquet'")
        for statement in STATEMENTS:
            db.execute(statement)
        return [plain(db.sql(query).fetchall()) for query in QUERIES]


def load(lake: objcat.Lake, files: Path, kind: TableType) -> None:
    """The tables of the script, with the rows of the source."""
    for name, key in KEYS.items():
        path = str(files / f"{name}.parquet")
        with pq.ParquetFile(path):
            stream = batches(path)
        lake.create_table(name, stream.schema, key=key, table_type=kind, index=objcat.BucketIndex(4)).bulk_insert(stream)


def run(lake: objcat.Lake, spark: Any = None) -> Answers:
    """Run the script, and ask."""
    for statement in STATEMENTS:
        told = lake.sql(statement, spark)
        assert told.collect()[0]["rows"] if spark is not None else told["rows"][0].as_py(), f"nothing changed: {statement}"
    found = []
    for query in QUERIES:
        answer = lake.sql(query, spark)
        found.append(plain(answer.collect() if spark is not None else (row.values() for row in answer.to_pylist())))
    return found
