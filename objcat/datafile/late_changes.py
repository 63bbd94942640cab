"""What a watermark leaves out of a batch, and which deletes it lets a compaction forget."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from objcat.datafile.batch_checks import ordered
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.watermark import Watermark, watermark_value


def without_late_changes(batch: pa.Table, spec: TableSpec) -> pa.Table:
    """The rows and deletes of a batch that are not below the watermark of the table. A delete without an ordering value always counts.

    Raises InvalidBatch and NullKey for ordering values that do not fit.
    """
    column = spec.ordering_column
    if not isinstance(spec.watermark, Watermark) or column is None:
        return batch
    values = ordered(batch, spec)
    if values is None:
        return batch
    late = pc.less(values.column(column.physical), watermark_value(spec.watermark, column))
    return batch.filter(pc.invert(late)) if pc.any(late).as_py() else batch


def without_forgotten(deletes: pa.Table, spec: TableSpec) -> pa.Table:
    """The deletes that may still reject a row. deletes: with an ordering value, under physical names."""
    column = spec.ordering_column
    if not isinstance(spec.watermark, Watermark) or column is None or not deletes.num_rows:
        return deletes
    return deletes.filter(pc.greater_equal(deletes.column(column.physical), watermark_value(spec.watermark, column)))
