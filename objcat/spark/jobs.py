"""What Spark is told beside the jobs that a write begins, by properties of the thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Jobs that this thread begins in the block are described by `text` in Spark's UI, its history and its progress bar.

    The thread's job group and tags stay, so that its user can cancel these jobs as any other. Does nothing on Spark Connect, which has no
    descriptions.
    """
    if not hasattr(spark, "_jvm"):
        yield
        return
    with local_properties(spark, {"spark.job.description": text}):
        yield


@contextmanager
def local_properties(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Jobs that this thread begins in the block have these properties; the thread's own are back after it, however it ends.

    A setting of SQL holds for them where the session does not have it. Not on Spark Connect. Never raises by itself.
    """
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in values}
    for name, value in values.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        # A context that was stopped in the block keeps nothing, and its error must not hide the block's.
        with suppress(Exception):
            for name, own in before.items():
                context.setLocalProperty(name, own)  # type: ignore[arg-type]
