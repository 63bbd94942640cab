"""Functions for Python workers that report a missing objcat clearly, and Spark's job failures as errors of objcat."""

from __future__ import annotations

import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from shutil import which
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import fileio.errors
import objcat.errors
from fileio.env import SystemEnv
from fileio.errors import FileIOError
from fileio.store import FileIO, StoreDescription
from objcat.dml.computed_write import SAID_TWICE
from objcat.errors import CorruptTable, InvalidBatch, MissingOnWorkers, ObjcatError, SparkJobFailed, SparkJobLost
from objcat.spark.versions import is_cancelled
from objcat.write.index_lookup import COMPUTED_AGAIN

WORKER_BYTES = 256 * 1024**2
"""Bytes of rows that a worker holds: there is one for every core, next to a JVM."""

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def spark_task(function: Callable[..., Iterator[pa.RecordBatch]], *args: Any) -> BatchFunction:
    """A function for `mapInArrow` that calls `function(*args, batches)` on a worker.

    `function` must be of a module, not nested. The worker imports it only when it runs. So a worker without objcat, or with a version that
    lacks the function, says so itself, instead of a page of Spark's stack. Raises RuntimeError on the worker.
    """
    payload = pickle.dumps((function, args))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # This function is pickled whole, so it must not use anything of this module.
        import pickle as pickles
        import socket
        import sys

        try:
            work, arguments = pickles.loads(payload)  # noqa: S301 - our own driver wrote it
        except (ImportError, AttributeError) as error:
            raise RuntimeError(
                f"objcat is missing on the Spark worker {socket.gethostname()}, or has another version ({error}). Install the "
                f"driver's version of objcat in {sys.executable} there, or ship it with spark.submit.pyFiles."
            ) from None
        yield from work(*arguments, batches)

    return run


def nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the rows as they are."""
    yield from batches


_asked: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()
"""Sessions whose workers have run a function of ours, and the Python that they ran."""


def check_workers(spark: SparkSession) -> None:
    """Have a worker run a function of ours, where its Python may differ from the driver's; once for a session.

    Call it before handing out a frame whose rows come from Python workers, because its actions raise Spark's own errors. Raises
    MissingOnWorkers, SparkJobLost.
    """
    command = str(spark.sparkContext.pythonExec) if hasattr(spark, "_jvm") else "that of the server"
    if which(command) == sys.executable or _asked.get(spark) == command:
        return
    with translate_spark_errors(spark, "objcat: look for objcat on the workers"):
        spark.range(1).mapInArrow(spark_task(nothing), "id long").collect()
    _asked[spark] = command


@cache
def _worker_env() -> SystemEnv:
    return SystemEnv(memory_bytes=WORKER_BYTES)


def opened(store: StoreDescription) -> FileIO:
    """The store, on a worker: one of many processes of its machine. Raises as `StoreDescription.open`."""
    return store.open(env=_worker_env())


@contextmanager
def translate_spark_errors(spark: SparkSession, what: str) -> Iterator[None]:
    """Raise Spark's errors in the block as errors of objcat, with Spark's error as the cause.

    An error of a task of ours is raised as it is. InvalidBatch: a recomputed batch gave other rows, columns cannot be told apart, or the
    source of a merge has two rows of one key.
    MissingOnWorkers: objcat is not on a worker. SparkJobLost: Spark did not let a job end. SparkJobFailed: anything else, such as a user's
    expression. `what`: of the job, for people.
    """
    try:
        yield
    except (ObjcatError, FileIOError):
        raise
    except Exception as error:
        said = _in_our_words(error, spark, what)
        if said is None:
            raise
        raise said from error


_TWICE = re.compile(re.escape(SAID_TWICE).replace(re.escape("{}"), ".*?"), re.DOTALL)


def _in_our_words(error: Exception, spark: SparkSession, what: str) -> ObjcatError | FileIOError | None:
    """The error to raise in place of one of Spark's; None for an error that is not Spark's."""
    text = _text_of(error)
    if COMPUTED_AGAIN in text or gave_others(error):
        return InvalidBatch(COMPUTED_AGAIN)
    twice = _TWICE.search(text)
    if twice is not None:
        return InvalidBatch(twice.group())
    missing = re.search(r"objcat is missing on the Spark worker .*", text)
    if missing is not None:
        return MissingOnWorkers(missing.group().rstrip("\\n'\""))
    other = other_python(text)
    if other is not None:
        return MissingOnWorkers(
            f"The Python of the Spark workers cannot run objcat ({what}): {other}. Nothing was written. Have workers run the "
            f"driver's Python, {sys.executable}, by PYSPARK_PYTHON in the environment before the session starts (or activate "
            "the virtual environment), or install objcat in theirs."
        )
    if "[AMBIGUOUS_REFERENCE]" in text:
        # In these jobs, users name nothing but the columns of their frames.
        return InvalidBatch(
            "Columns of the frame differ only in upper and lower case, which Spark takes for one column. Nothing was "
            "written. Rename one, or set spark.sql.caseSensitive to true."
        )
    damaged = _damaged(text)
    if damaged is not None:
        return damaged
    lost = _lost(error, spark, text)
    if lost is not None:
        return SparkJobLost(f"Spark did not finish a job ({what}): {lost}. Nothing of it is visible. Write again when Spark runs.")
    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    reason = _reason(text)
    return _of_a_task(reason) or SparkJobFailed(
        f"Spark failed at a job ({what}): {reason}. Nothing of it is visible. Correct the frame or the expression, and write again."
    )


def other_python(text: str) -> str | None:
    """Why the Python of the workers cannot run objcat, by Spark's text; None where it can."""
    absent = re.search(rf"ModuleNotFoundError: No module named '({'|'.join(_NEEDED)})[.']", text)
    if absent is not None:
        return f"it has no {absent[1]}"
    version = re.search(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)", text)
    if version is not None:
        return f"it is Python {version[1]}, and the driver's is {version[2]}"
    command = re.search(r'Cannot run program "([^"]+)"', text)
    return None if command is None else f"the command {command[1]} cannot be run there"


def _damaged(text: str) -> CorruptTable | None:
    """The error for a data file whose pages differ from their checksums, by Spark's text; None otherwise."""
    path = re.search(r"data/\d{8}T\d{9}Z-[0-9a-f]{16}/[^\s'\"]+\.parquet", text)
    if path is None or "FAILED_READ_FILE" not in text or "checksum verification failed" not in text:
        return None
    return CorruptTable(
        f"{path[0]} is not what was committed: Spark found a page that differs from its checksum. The object was damaged, "
        "or something on the way to the store changes answers. Run `objcat doctor --deep`, and restore the object from a "
        "backup if it reports it too."
    )


_NEEDED = ("pyarrow", "pyspark", "objcat", "fileio", "msgspec", "numpy", "sqlglot")
"""What our functions import on a worker, and Spark before them."""


def _reason(text: str) -> str:
    """Spark's error in one line, without stacks: the last line of a Python traceback, or the sentence with a condition."""
    _, _, traced = text.rpartition("Traceback (most recent call last):")
    if traced != text:
        told = [line for line in traced.splitlines() if line and not line[0].isspace()]
        if told:
            return told[0]
    conditions = re.search(r"\[[A-Z][A-Z0-9_.]+\] .*", text)
    if conditions is not None:
        return conditions.group().rstrip(".")
    lines = [line.lstrip(": ") for line in text.splitlines() if line.strip() and not line.startswith("An error occurred while calling")]
    return lines[0] if lines else "no reason was given"


def _of_a_task(reason: str) -> ObjcatError | FileIOError | None:
    """The error that a task of ours raised, where it did not report it: as the class that callers of this process expect."""
    found = re.match(r"(objcat|fileio)\.errors\.(\w+): (.*)", reason)
    kind = None if found is None else getattr({"objcat": objcat.errors, "fileio": fileio.errors}[found[1]], found[2], None)
    if found is None or not isinstance(kind, type) or not issubclass(kind, (ObjcatError, FileIOError)):
        return None
    try:
        return kind(found[3])
    except TypeError:
        # Such an error takes more than its text.
        return None


def gave_others(error: Exception) -> bool:
    """Whether Spark ended a job because its tasks would see other rows than tasks that had ended."""
    return "with indeterminate output was failed and retried" in _text_of(error)


def _text_of(error: Exception) -> str:
    """The text of an error. A JVM error asks its JVM for it, which fails after its end."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def _lost(error: Exception, spark: SparkSession, text: str) -> str | None:
    """What Spark lost or gave up when it raised an error; None otherwise."""
    # Spark reports this in many ways, so the session is asked.
    if _is_stopped(spark):
        return "its session was stopped, or its JVM has ended"
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError) and "Trace:" not in text:
        # The JVM has not reported a failure.
        return "the call was broken off, by Ctrl-C perhaps"
    if is_cancelled(text):
        return "a job was cancelled"
    return next((why for said, why in _LOST.items() if said in text), None)


_LOST = {
    "ExecutorLostFailure": "it lost executors again and again",
    "has failed the maximum allowable number of times": "it lost its shuffled rows again and again",
    # Spark ends the Python workers of a cancelled job some seconds later, though another job may have them by then (SPARK-54217).
    "java.net.SocketException: Socket closed": "it ended a Python worker of the job",
}
"""What Spark says of a job that it does not let end, and what that means."""


def reset_py4j_connection(spark: SparkSession) -> None:
    """Give this thread a new connection to the JVM where a signal handler ended a waiting call, for example by SystemExit.

    Otherwise each later call would take the answer of the call before it. Never raises. Call it when cleaning up after an error, before
    calling the JVM. Py4J does so for KeyboardInterrupt and for every `Exception`; a generator that is closed waits for no answer.
    """
    ending = sys.exc_info()[1]
    if ending is None or isinstance(ending, (Exception, KeyboardInterrupt, GeneratorExit)):
        return
    # Signal handlers run there. A callback, in another thread, needs its own connection.
    if threading.current_thread() is not threading.main_thread():
        return
    with suppress(Exception):
        context: Any = spark.sparkContext
        connection = context._gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close()


def _is_stopped(spark: SparkSession) -> bool:
    if not hasattr(spark, "_jvm"):
        return False
    try:
        context: Any = spark.sparkContext._jsc
        return bool(context.sc().isStopped())
    except Exception:  # noqa: BLE001 - whatever a JVM that is not there answers
        return True
