"""A batch that Spark computes once and caches while it is written, or that is collected to the driver when small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, BinaryType, StringType

from fileio.env import default_env
from objcat.spark.native.column_names import quoted
from objcat.spark.versions import to_arrow
from objcat.spark.worker_task import reset_py4j_connection

ROWS_MAX, BYTES_MAX = 512 * 1024, 64 * 1024**2
"""Limits of a batch that is collected to the driver."""
_PLAIN_BYTES = 16
"""Bytes of a value at most, without the text that it holds."""


@dataclass(frozen=True, slots=True)
class CachedFrame:
    """A batch that Spark caches, with columns by number. `names`: of its columns."""

    rows: DataFrame
    names: tuple[str, ...]

    def collected(self, schema: pa.Schema) -> pa.Table | None:
        """All rows, when there are few but some; else None. `schema`: of the batch. Computes the batch."""
        if not 0 < self._bytes() <= BYTES_MAX:
            return None
        # In Spark's own types, times would be in the zone of the session.
        by_number = pa.schema([field.with_name(str(number)) for number, field in enumerate(schema)])
        return to_arrow(self.rows).cast(by_number).rename_columns(list(self.names))

    def _bytes(self) -> int:
        """About how many bytes the rows take in Arrow; an upper guess where there are too many rows."""
        kinds = {field.name: field.dataType for field in self.rows.schema}
        texts = [quoted(name) for name, kind in kinds.items() if isinstance(kind, (StringType, BinaryType))]
        nested = [quoted(name) for name, kind in kinds.items() if not isinstance(kind, AtomicType)]
        count, *lengths = self.rows.agg(F.count(F.lit(1)), *(F.sum(F.octet_length(name)) for name in texts)).collect()[0]
        if count > ROWS_MAX:
            return BYTES_MAX + 1
        if nested:
            # Only for few rows: it makes text of every value.
            lengths += self.rows.agg(*(F.sum(F.octet_length(F.col(name).cast("string"))) for name in nested)).collect()[0]
        held: int = sum(filter(None, lengths))
        return int(count) * len(kinds) * _PLAIN_BYTES + held


@contextmanager
def cached_frame(data: DataFrame) -> Iterator[CachedFrame]:
    """Cache a frame, until the end of the block at the latest."""
    names = tuple(data.columns)
    rows = persist_unshared(data.toDF(*map(str, range(len(names)))))
    try:
        yield CachedFrame(rows, names)
    finally:
        unpersist_quietly(rows)


@contextmanager
def kept_unless_it_fails(frame: DataFrame) -> Iterator[None]:
    """Release a cached frame when the block fails, before its later owner has it."""
    try:
        yield
    except BaseException:
        unpersist_quietly(frame)
        raise


def unpersist_quietly(frame: DataFrame) -> None:
    """Release a cached frame. Never raises: the cache of an ended session is gone anyway, and the cause must stay visible."""
    reset_py4j_connection(frame.sparkSession)
    with suppress(Exception):
        frame.unpersist()


def persist_unshared(frame: DataFrame) -> DataFrame:
    """A frame that Spark caches for this caller alone, until it is unpersisted.

    Spark shares one cache among frames with equal plans and releases it for all at once, also for other threads and earlier users. This
    frame equals no other.
    """
    return frame.where(F.lit(default_env().new_id()).isNotNull()).persist()
