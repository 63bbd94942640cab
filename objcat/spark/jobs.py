"""What Spark is told beside the jobs that a write begins."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from pyspark import __version__
from pyspark.sql import SparkSession

from fileio.env import default_env
from objcat.spark.worker_task import reset_py4j_connection, translate_spark_errors

CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
"""Settings with which Spark sees that rows which it shuffles anew, as an executor was lost, are not those of before."""
ARE_DEFAULTS = tuple(map(int, __version__.split(".")[:2])) >= (4, 3)
"""Whether Spark has them by itself."""

_lock = threading.Lock()
_under_way: Counter[int] = Counter()
"""Writes that have given a session `CHECKSUMS`, by its JVM's hash."""


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Jobs that this thread begins in the block are described by `text` in Spark's UI, its history and its progress bar, compute no row
    anew unlooked at (see `checked`), end with the block, and fail as `translate_spark_errors` says.

    The thread's job group and tags stay, so that its user can cancel these jobs as any other. Spark Connect has no descriptions.
    """
    with translate_spark_errors(spark, text), ExitStack() as told:
        if hasattr(spark, "_jvm"):
            told.enter_context(ended(spark))
            told.enter_context(local_properties(spark, {"spark.job.description": text}))
            told.enter_context(checked(spark))
        yield


@contextmanager
def ended(spark: SparkSession) -> Iterator[None]:
    """Jobs that this thread begins in the block are cancelled where it is left before they have ended: by Ctrl-C, or by what a signal's
    handler raises. They would go on, and write files, for nobody.

    PySpark's own handler of Ctrl-C cannot cancel a job that is waited for: it asks over the connection that waits; see
    `reset_py4j_connection`. Not on Connect."""
    context, tag = spark.sparkContext, f"objcat-{default_env().new_id()}"
    context.addJobTag(tag)
    try:
        yield
    except BaseException:
        reset_py4j_connection(spark)
        with suppress(Exception):
            context.cancelJobsWithTag(tag)
        raise
    finally:
        # As in `local_properties`.
        with suppress(Exception):
            context.removeJobTag(tag)


@contextmanager
def checked(spark: SparkSession) -> Iterator[None]:
    """Spark ends a job, or does all of it again, where it computes rows anew for some tasks and others come than those that it has lost.

    A row that went to a task that had ended would else be lost, or there twice. Spark 4.3 does so by itself. Before it the session has
    `CHECKSUMS` while blocks are under way, and again none thereafter; one that says either of them itself is left alone. Not on Connect.
    """
    if ARE_DEFAULTS:
        yield
        return
    session: int = spark._jsparkSession.hashCode()
    with _lock:
        # Planned on the driver, a shuffle asks the session, and no property of a thread.
        is_ours = bool(_under_way[session]) or all(spark.conf.get(name, None) is None for name in CHECKSUMS)
        if is_ours and not _under_way[session]:
            for name in CHECKSUMS:
                spark.conf.set(name, "true")
        _under_way[session] += is_ours
    try:
        yield
    finally:
        reset_py4j_connection(spark)
        with _lock:
            _under_way[session] -= is_ours
            if not _under_way[session]:
                del _under_way[session]
                # As in `local_properties`.
                with suppress(Exception):
                    for name in CHECKSUMS if is_ours else ():
                        spark.conf.unset(name)


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
        reset_py4j_connection(spark)
        # A context that was stopped in the block keeps nothing, and its error must not hide the block's.
        with suppress(Exception):
            for name, own in before.items():
                context.setLocalProperty(name, own)  # type: ignore[arg-type]
