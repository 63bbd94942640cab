"""Checks of the rows of a manifest."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from objcat.metadata.manifest_rows import DIGESTS, SLICE, integers
from objcat.timeline.entry import BUCKETS_MAX


def check_rows(rows: pa.Table, *, rows_expected: int) -> None:
    """Check rows of a manifest, whole columns at once. Raises ValueError."""
    if rows.num_rows != rows_expected:
        raise ValueError(f"it has {rows.num_rows:,} rows, and {rows_expected:,} by its root")
    for name in ("partition", "bucket", "bucket_count", "slot", "as_of", "logs"):
        if rows.column(name).null_count:
            raise ValueError(f"the column {name} has nulls")
    bucket, count = integers(rows, "bucket"), integers(rows, "bucket_count")
    based = np.asarray(rows.column("base_path").is_valid().to_numpy(), dtype=np.bool_)
    if ((bucket < 0) | (bucket >= count) | (count > BUCKETS_MAX)).any():
        raise ValueError("a bucket is not below its bucket count")
    if (integers(rows, "as_of") < -1).any() or (integers(rows, "slot") < -1).any() or (based & (integers(rows, "slot") < 0)).any():
        raise ValueError("a row is of no slot")
    for name in ("base_bytes", "base_rows", "base_txn"):
        if rows.column(name).filter(pa.array(based)).null_count:
            raise ValueError(f"a base file has no {name}")
    slices = rows.column("logs").combine_chunks().values
    if not len(slices):
        return
    if slices.null_count or any(slices.field(field.name).null_count for field in SLICE if field.name not in DIGESTS):
        raise ValueError("a log slice has nulls")
    start, end, held, height = (np.asarray(slices.field(name).to_numpy(), np.int64) for name in ("start", "end", "rows", "row_group_rows"))
    if ((start < 0) | (start >= end) | (end > held) | (height < 1)).any():
        raise ValueError("a log slice has no rows, or rows beyond those of its file")
