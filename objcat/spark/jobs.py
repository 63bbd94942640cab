"""Settings, descriptions and cancellation of the Spark jobs that a write runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession

from fileio.env import default_env
from objcat.spark.versions import CHECKSUMS_ARE_DEFAULTS, HAS_CHECKSUMS
from objcat.spark.worker_task import reset_py4j_connection, translate_spark_errors

CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
"""Settings by which Spark notices that rows recomputed after a lost executor differ from the previous ones."""

_lock = threading.Lock()
_under_way: Counter[int] = Counter()
"""Writes that set `CHECKSUMS` in a session, by its JVM's hash."""


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of this thread by `text`, in Spark's UI, history and progress bar, while the block runs.

    The jobs never recompute a row unchecked (see `checked`), end with the block, and fail as `translate_spark_errors` says. The thread's
    job group and tags stay, so that its user can cancel these jobs like any other. Spark Connect has no descriptions.
    """
    with translate_spark_errors(spark, text), ExitStack() as told:
        if hasattr(spark, "_jvm"):
            told.enter_context(ended(spark))
            told.enter_context(local_properties(spark, {"spark.job.description": text}))
            told.enter_context(checked(spark))
        yield


@contextmanager
def ended(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs of this thread when the block is left before they end: by Ctrl-C, or by an error of a signal handler.

    They would go on and write files for nobody. PySpark's own handler of Ctrl-C cannot cancel a job that is waited for, because it asks
    over the waiting connection; see `reset_py4j_connection`. Not on Connect.
    """
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
    """Have Spark end or fully repeat a job that recomputes rows for some tasks and gets other rows than those it lost.

    Otherwise a row that went to an ended task would be lost, or there twice. Spark 4.3 does so by default. In 4.1 and 4.2, the session has
    `CHECKSUMS` while blocks are under way, and not afterwards. A session that sets either of them itself is left alone. Not on Connect.
    Versions before 4.1 cannot tell.
    """
    if CHECKSUMS_ARE_DEFAULTS or not HAS_CHECKSUMS:
        yield
        return
    session: int = spark._jsparkSession.hashCode()
    with _lock:
        # Planned on the driver, a shuffle asks the session and no thread property.
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
    """Give the jobs of this thread these properties while the block runs; its own are restored after it, however it ends.

    A SQL setting applies to them where the session does not set it. Not on Spark Connect. Never raises by itself.
    """
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in values}
    for name, value in values.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        reset_py4j_connection(spark)
        # A context stopped in the block has no properties, and its error must not hide the block's.
        with suppress(Exception):
            for name, own in before.items():
                context.setLocalProperty(name, own)  # type: ignore[arg-type]
