"""The lateness horizon: rows whose event time lies too far before the commit time of their own slot count for nothing.

That is decided row by row, from what the log says of the slot that wrote it. So whoever folds it decides the same, whenever that is; and a
delete that is older than the horizon of a slot keeps nothing out any more that comes after it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from objcat.metadata.table_spec import TableSpec

DAY_MS = 86_400_000


def drop_late_rows(rows: pa.Table, spec: TableSpec, committed_at_ms: int) -> pa.Table:
    """The rows that do not come too late for a slot; those without an ordering value never do.

    rows: with the ordering column, under its physical name. committed_at_ms: of the slot; 0 where rows are not measured.
    """
    bound = horizon(spec, committed_at_ms)
    if bound is None:
        return rows
    assert spec.ordering_column is not None
    values = rows.column(spec.ordering_column.physical)
    late = pc.fill_null(pc.less(values, bound), False)
    return rows.filter(pc.invert(late)) if pc.any(late).as_py() else rows


def horizon(spec: TableSpec, committed_at_ms: int) -> pa.Scalar | None:
    """The smallest ordering value that is not late in a slot, in the type of the column; None where nothing is.

    A day counts from its first moment on, in UTC, and so does a time without a zone.
    """
    if spec.lateness_ms is None or not committed_at_ms:
        return None
    assert spec.ordering_column is not None
    bound_ms = committed_at_ms - spec.lateness_ms
    if spec.ordering_column.type == "date":
        return pa.scalar(-(-bound_ms // DAY_MS), pa.int32()).cast(pa.date32())
    zone = "UTC" if spec.ordering_column.type == "timestamp" else None
    return pa.scalar(bound_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz=zone))
