"""What a load without Spark leaves on the store: every row once, in the file of its bucket, by key, with the bounds of its values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.env import MEMORY_BYTES
from objcat.datafile.bucket_hash import bucket_of
from objcat.engine import spooled_batch
from objcat.metadata.files import decode_delta
from objcat.tasks import external_sort

BUCKETS, ROWS = 4, 20_000
SCHEMA = pa.schema(
    [
        pa.field("order", pa.int64(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        pa.field("price", pa.decimal128(15, 2)),
        pa.field("day", pa.date32()),
        pa.field("comment", pa.string()),
    ]
)


def source() -> pa.Table:
    dice = np.random.default_rng(3)
    return pa.table(
        [
            pa.array(np.arange(ROWS) // 3),
            pa.array((np.arange(ROWS) % 3).astype(np.int32)),
            pa.array([Decimal(number) / 100 for number in dice.integers(-10_000, 10_000, ROWS).tolist()], pa.decimal128(15, 2)),
            pa.array(dice.integers(0, 20_000, ROWS).astype(np.int32)).cast(pa.date32()),
            pa.array([None if number % 11 == 0 else f"comment {number % 977}" for number in range(ROWS)]),
        ],
        schema=SCHEMA,
    )


def shuffled(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.random.default_rng(5).permutation(rows.num_rows)))


ORDERS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "by key": lambda rows: rows,
    "shuffled": shuffled,
    "two streams": lambda rows: pa.concat_tables([rows.filter(pc.equal(rows["line"], 1)), rows.filter(pc.not_equal(rows["line"], 1))]),
}


@pytest.mark.parametrize("memory", ["in memory", "on disk"])
@pytest.mark.parametrize("order", ORDERS)
def test_files_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, memory: str) -> None:
    if memory == "on disk":
        monkeypatch.setattr(external_sort, "RUN_SHARE", MEMORY_BYTES // 200_000)
        monkeypatch.setattr(spooled_batch, "SPOOL_BYTES_MAX", 100_000)
    rows = source()
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["order", "line"], index=objcat.BucketIndex(BUCKETS, ("order",)))
    given = ORDERS[order](rows)
    table.bulk_insert(pa.RecordBatchReader.from_batches(SCHEMA, iter(given.to_batches(max_chunksize=1000))))
    snapshot, context = table._context.snapshot, table._context
    deltas = [decode_delta(entry.changes[table.id]) for entry in table.inspect.history() if table.id in entry.changes]
    bases = [base for delta in deltas for base in delta.bases]
    assert len(bases) == BUCKETS and not any(delta.logs for delta in deltas)
    seen = []
    for base in bases:
        with context.fileio.open_read(base.path) as stream, pq.ParquetFile(stream, page_checksum_verification=True) as file:
            stored = file.read()
        names = [column.physical for column in snapshot.spec.table_schema.columns]
        found = stored.select(names).rename_columns(SCHEMA.names)
        by_key = found.sort_by([("order", "ascending"), ("line", "ascending")])
        assert found.equals(by_key)
        assert set(bucket_of([found["order"]], BUCKETS).tolist()) == {base.group_id.bucket}
        for column in snapshot.spec.table_schema.columns:
            lower, upper, nulls = base.bounds[column.id]
            values = found.column(column.name)
            limits = pc.min_max(values.cast(pa.int32()) if pa.types.is_date32(values.type) else values).as_py()
            as_said = str if pa.types.is_decimal(values.type) else lambda value: value
            assert (lower, upper, nulls) == (as_said(limits["min"]), as_said(limits["max"]), values.null_count), column.name
        seen.append(found)
    together = pa.concat_tables(seen).cast(SCHEMA).sort_by([("order", "ascending"), ("line", "ascending")])
    assert together.equals(rows)
