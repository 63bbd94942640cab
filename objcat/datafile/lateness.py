"""The lateness horizon: rows whose event time is too far before the commit time of their slot do not count.

This is decided row by row, from the log entry of the slot that wrote it, so every reader decides the same at any time. A delete that is
older than the horizon of a slot no longer rejects rows that come after it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from objcat.datafile.merge import has_order
from objcat.metadata.table_spec import TableSpec

DAY_MS = 86_400_000


def drop_late_rows(rows: pa.Table, spec: TableSpec, committed_at_ms: int) -> pa.Table:
    """The rows that are not too late for a slot by the first ordering column. Rows without an ordering value are never late.

    rows: with the ordering columns, under physical names. committed_at_ms: of the slot, or 0 if rows are not checked.
    """
    bound = horizon(spec, committed_at_ms)
    if bound is None:
        return rows
    assert spec.ordering_column is not None
    values = rows.column(spec.ordering_column.physical)
    late = pc.fill_null(pc.less(values, bound), False)
    if spec.ordering_more:
        # A barrier may have the first value where that locates the row.
        late = pc.and_(late, has_order(rows, spec.ordering_physical))
    return rows.filter(pc.invert(late)) if pc.any(late).as_py() else rows


def horizon(spec: TableSpec, committed_at_ms: int) -> pa.Scalar | None:
    """The smallest ordering value that is not late in a slot, in the column's type. None if nothing is late.

    A day counts from its first moment in UTC, and a time without a zone is read as UTC.
    """
    if spec.lateness_ms is None or not committed_at_ms:
        return None
    assert spec.ordering_column is not None
    bound_ms = committed_at_ms - spec.lateness_ms
    if spec.ordering_column.type == "date":
        return pa.scalar(-(-bound_ms // DAY_MS), pa.int32()).cast(pa.date32())
    zone = "UTC" if spec.ordering_column.type == "timestamp" else None
    return pa.scalar(bound_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz=zone))
