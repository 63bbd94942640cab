"""What Spark shows of the jobs that a write begins: in its UI, its history and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Jobs that this thread begins in the block are described by `text`; the thread's own description is back after it, however it ends.

    The thread's job group and tags stay, so that its user can cancel these jobs as any other. Does nothing on Spark Connect, which has no
    descriptions. Never raises by itself.
    """
    if not hasattr(spark, "_jvm"):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        # A context that was stopped in the block keeps nothing, and its error must not hide the block's.
        with suppress(Exception):
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
