"""Functions for Python workers that say in one sentence when objcat is not there; and what jobs fail for, in the words of objcat."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from fileio.errors import FileIOError
from objcat.errors import InvalidBatch, MissingOnWorkers, ObjcatError, SparkJobLost
from objcat.placing import COMPUTED_AGAIN

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def shipped(function: Callable[..., Iterator[pa.RecordBatch]], *args: Any) -> BatchFunction:
    """What `mapInArrow` takes: calls `function(*args, batches)` on a worker.

    function: of a module, not a nested one. The worker imports it only when it runs, so that a worker without objcat, or with one of
    another version that lacks the function, says so, and not Spark with a page of its own stack. Raises RuntimeError on the worker.
    """
    payload = pickle.dumps((function, args))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # This function travels whole, and so must not touch anything of this module.
        import pickle as pickles
        import socket
        import sys

        try:
            work, arguments = pickles.loads(payload)  # noqa: S301 - our own driver wrote it
        except (ModuleNotFoundError, AttributeError) as error:
            raise RuntimeError(
                f"objcat is missing on the Spark worker {socket.gethostname()}, or is of another version ({error}): install the driver's "
                f"version of objcat in {sys.executable} there, or ship it with spark.submit.pyFiles"
            ) from None
        yield from work(*arguments, batches)

    return run


@contextmanager
def in_one_sentence(spark: SparkSession, what: str) -> Iterator[None]:
    """Raises MissingOnWorkers, InvalidBatch and SparkJobLost, where the block fails for that: objcat is not on a worker, a batch that was
    computed again gave other rows or columns cannot be told apart, or Spark did not let a job end. What an expression of a user's raises
    stays Spark's.

    what: for people.
    """
    try:
        yield
    except (ObjcatError, FileIOError):
        raise
    except Exception as error:
        text = str(error)
        if COMPUTED_AGAIN in text or gave_others(error):
            raise InvalidBatch(COMPUTED_AGAIN) from error
        said = re.search(r"objcat is missing on the Spark worker .*", text)
        if said is not None:
            raise MissingOnWorkers(said.group().rstrip("\\n'\"")) from error
        if "[AMBIGUOUS_REFERENCE]" in text:
            # Of what is asked here, users name nothing but the columns of their frames.
            raise InvalidBatch(
                "columns of the frame differ in upper and lower case alone, which Spark takes for one column: rename one, or set "
                "spark.sql.caseSensitive to true; nothing was written"
            ) from error
        lost = _lost(spark, text)
        if lost is None:
            raise
        raise SparkJobLost(
            f"Spark did not come to the end of what it was asked for ({what}), as {lost}: nothing of it is visible, so write again when "
            "Spark runs"
        ) from error


def gave_others(error: Exception) -> bool:
    """Whether Spark ended a job since tasks of it would see other rows than those that had ended."""
    return "with indeterminate output was failed and retried" in str(error)


def _lost(spark: SparkSession, text: str) -> str | None:
    """What Spark lost, or was made to give up, when it raised an error; None for all else."""
    # It says so in many ways, by the moment: it is asked.
    if _is_stopped(spark):
        return "its session was stopped, or its JVM has ended"
    return next((why for said, why in _LOST.items() if said in text), None)


_LOST = {
    "[SPARK_JOB_CANCELLED]": "a job was cancelled",
    "ExecutorLostFailure": "it lost executors, time and again",
    "has failed the maximum allowable number of times": "it lost what it had shuffled, time and again",
}
"""What Spark says of a job that it does not let end, and what that means."""


def _is_stopped(spark: SparkSession) -> bool:
    if not hasattr(spark, "_jvm"):
        return False
    try:
        context: Any = spark.sparkContext._jsc
        return bool(context.sc().isStopped())
    except Exception:  # noqa: BLE001 - whatever a JVM that is not there answers
        return True
