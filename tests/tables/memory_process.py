"""Works on a table with one large file group, and prints how much memory that took: `python -m tests.tables.memory_process URL WORK`.

Prints one number: by how many bytes the peak of the resident memory grew while the work was done.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import objcat
from objcat.common.validation import TableType
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ

ROWS = 5_000_000
STEP = 500_000
TEXT_BYTES = 112
ARROW_BYTES = ROWS * (TEXT_BYTES + 8 + 8 + 4)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("v", pa.int64())])


def rows(*, every: int, value: int) -> pa.Table:
    """Of every so many ids one."""
    parts = []
    for begin in range(0, ROWS, STEP):
        keys = pa.array(np.arange(begin, begin + STEP, every))
        text = pc.utf8_lpad(keys.cast(pa.string()), TEXT_BYTES, "x")
        parts.append(pa.table([keys, text, pa.array(np.full(len(keys), value))], schema=SCHEMA))
    return pa.concat_tables(parts)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    url, work = sys.argv[1:]
    lake = objcat.connect(url)
    if work.startswith("make "):
        kind: TableType = COPY_ON_WRITE if work.endswith(COPY_ON_WRITE) else MERGE_ON_READ
        table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1), table_type=kind)
        table.insert(rows(every=1, value=0))
        print(0)
        return
    table = lake.table("t")
    batch = rows(every=20, value=1)
    before = peak_bytes()
    match work:
        case "scan":
            assert sum(batch.num_rows for batch in table.scan().to_batches()) == ROWS
        case "count":
            assert table.scan(where="v >= 0").count() == ROWS
        case "hold":
            assert table.scan().to_arrow().num_rows == ROWS
        case "upsert":
            table.upsert(batch)
        case "compact":
            table.maintenance.compact()
    print(peak_bytes() - before)


if __name__ == "__main__":
    main()
