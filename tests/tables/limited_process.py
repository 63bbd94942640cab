"""Works on a table under a limit of the address space: `python -m tests.tables.limited_process URL WORK BYTES`.

BYTES: how much more the process may take than it has when the work begins. Prints one line: how the work ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import duckdb  # noqa: F401 - loaded before the limit
import numpy as np
import pandas as pd  # noqa: F401 - as well
import polars as pl  # noqa: F401 - as well
import pyarrow as pa
import pyarrow.compute as pc

import objcat
from fileio.errors import FileIOError
from objcat import cli
from objcat.errors import ObjcatError
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ

ROWS = 300_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("v", pa.int64())])
NEW = -1
"""The value of the rows that the work writes."""


def rows(count: int, value: int, *, after: int = 0) -> pa.Table:
    keys = pa.array(np.arange(after, after + count))
    return pa.table([keys, pc.utf8_lpad(keys.cast(pa.string()), 100, "x"), pa.array(np.full(count, value))], schema=SCHEMA)


def make(url: str) -> None:
    lake = objcat.connect(url)
    lake.create_table("small", SCHEMA, key=["id"], index=objcat.BucketIndex(4)).upsert(rows(1000, 0))
    for name in (MERGE_ON_READ, COPY_ON_WRITE):
        table = lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(4), table_type=name)
        table.insert(rows(ROWS, 0))
        if name == MERGE_ON_READ:
            table.upsert(rows(ROWS // 4, 1))


def works(url: str, name: str, batch: pa.Table) -> dict[str, Callable[[], Any]]:
    lake = objcat.connect(url)
    table = lake.table(name)
    return {
        "upsert": lambda: table.upsert(batch),
        "insert": lambda: table.insert(batch),
        "bulk_insert": lambda: table.bulk_insert(batch),
        "scan": lambda: table.scan().to_arrow(),
        "batches": lambda: list(table.scan().to_batches()),
        "polars": lambda: table.scan().to_polars(),
        "pandas": lambda: table.scan().to_pandas(),
        "changes": lambda: table.changes(since=0).to_arrow(),
        "greatest": lambda: table.scan().max("text"),
        "query": lambda: command("query", url, f"SELECT text, sum(v) FROM {name} GROUP BY text ORDER BY text"),
        "export": lambda: command("export", f"{url}/{name}", f"{url}.{name}.parquet", "--overwrite"),
        "merge": lambda: table.merge(batch).when_matched_update().when_not_matched_insert().execute(),
        "update": lambda: table.update({"v": str(NEW)}, where="id % 2 = 0"),
        "delete": lambda: table.delete("v % 2 = 0 and text like '%1%'"),
        "compact": table.maintenance.compact,
        "sql": lambda: lake.sql(f"SELECT a.text, b.v FROM {name} a JOIN {name} b ON a.id = b.id ORDER BY a.text DESC"),
    }


def command(*arguments: str) -> None:
    """Run a command of the command line. One that fails ends this process."""
    sys.argv = ["objcat", *arguments, "--json"]
    with contextlib.suppress(SystemExit), open(os.devnull, "w") as out, contextlib.redirect_stdout(out):
        cli.main()


def taken_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    url, name, work, more = sys.argv[1:]
    # Threads and libraries are there when the limit comes, as in a process that has worked for a while.
    works(url, "small", rows(100, NEW))[work]()
    batch = rows(2 * ROWS if work in ("upsert", "insert", "bulk_insert", "merge") else 100, NEW, after=ROWS // 2)
    run = works(url, name, batch)[work]
    limit = taken_bytes() + int(more)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        run()
    except (ObjcatError, FileIOError) as error:
        ended = type(error).__name__
        said = str(error)
    else:
        ended, said = "done", ""
    print(ended, said, flush=True)
    # What libraries do at the end of a process, some of them do not survive under the limit.
    os._exit(0)


if __name__ == "__main__":
    main()
