"""Functions for Python workers that say in one sentence when objcat is not there; and what jobs fail for, in the words of objcat."""

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
from fileio.registry import StoreDescription
from fileio.store import FileIO
from objcat.errors import CorruptTable, InvalidBatch, MissingOnWorkers, ObjcatError, SparkJobFailed, SparkJobLost
from objcat.write.index_lookup import COMPUTED_AGAIN

WORKER_BYTES = 256 * 1024**2
"""What work with rows holds on a worker: there is one for every core, beside a JVM."""

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def spark_task(function: Callable[..., Iterator[pa.RecordBatch]], *args: Any) -> BatchFunction:
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
        except (ImportError, AttributeError) as error:
            raise RuntimeError(
                f"objcat is missing on the Spark worker {socket.gethostname()}, or is of another version ({error}): install the driver's "
                f"version of objcat in {sys.executable} there, or ship it with spark.submit.pyFiles"
            ) from None
        yield from work(*arguments, batches)

    return run


def nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the rows as they are."""
    yield from batches


_asked: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()
"""Sessions whose workers have run a function of ours, and the Python that they ran."""


def check_workers(spark: SparkSession) -> None:
    """Have a worker of the session run a function of ours, where its Python may be another one than the driver's; once for a session.

    To be called before a frame is handed out whose rows Python workers give: what its actions raise is Spark's own. Raises
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
    """Raises what a task of ours has raised, InvalidBatch, MissingOnWorkers and SparkJobLost, where the block fails for that: a batch that
    was computed again gave other rows or columns cannot be told apart, objcat is not on a worker, or Spark did not let a job end. Raises
    SparkJobFailed for whatever else Spark says, such as of an expression of a user's. Spark's own error is the cause of all.

    what: for people.
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


def _in_our_words(error: Exception, spark: SparkSession, what: str) -> ObjcatError | FileIOError | None:
    """What is raised in the place of an error of Spark's; None for one that is not Spark's."""
    text = _text_of(error)
    if COMPUTED_AGAIN in text or gave_others(error):
        return InvalidBatch(COMPUTED_AGAIN)
    missing = re.search(r"objcat is missing on the Spark worker .*", text)
    if missing is not None:
        return MissingOnWorkers(missing.group().rstrip("\\n'\""))
    other = other_python(text)
    if other is not None:
        return MissingOnWorkers(
            f"the Python of the Spark workers is not fit for objcat ({what}), as {other}: have workers run the driver's, {sys.executable}, "
            "by PYSPARK_PYTHON in the environment before the session starts (or activate the virtual environment), or install objcat "
            "in theirs; nothing was written"
        )
    if "[AMBIGUOUS_REFERENCE]" in text:
        # Of what is asked here, users name nothing but the columns of their frames.
        return InvalidBatch(
            "columns of the frame differ in upper and lower case alone, which Spark takes for one column: rename one, or set "
            "spark.sql.caseSensitive to true; nothing was written"
        )
    damaged = _damaged(text)
    if damaged is not None:
        return damaged
    lost = _lost(error, spark, text)
    if lost is not None:
        return SparkJobLost(
            f"Spark did not come to the end of what it was asked for ({what}), as {lost}: nothing of it is visible, so write again when "
            "Spark runs"
        )
    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    reason = _reason(text)
    return _of_a_task(reason) or SparkJobFailed(f"Spark failed over what it was asked for ({what}): {reason}; nothing of it is visible")


def other_python(text: str) -> str | None:
    """Why the Python that workers run cannot run ours, in what Spark says; None where it can."""
    absent = re.search(rf"ModuleNotFoundError: No module named '({'|'.join(_NEEDED)})[.']", text)
    if absent is not None:
        return f"it has no {absent[1]}"
    version = re.search(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)", text)
    if version is not None:
        return f"it is Python {version[1]}, and the driver's is {version[2]}"
    command = re.search(r'Cannot run program "([^"]+)"', text)
    return None if command is None else f"the command {command[1]} cannot be run there"


def _damaged(text: str) -> CorruptTable | None:
    """What Spark says of a data file of ours whose pages are not what their checksums say; None for all else."""
    path = re.search(r"data/\d{8}T\d{9}Z-[0-9a-f]{16}/[^\s'\"]+\.parquet", text)
    if path is None or "FAILED_READ_FILE" not in text or "checksum verification failed" not in text:
        return None
    return CorruptTable(
        f"{path[0]} is not what was committed, Spark says: a page of it differs from its checksum. Either the object was damaged, or "
        "something on the way to the store changes answers: run `objcat doctor --deep`, and restore that object from a backup "
        "if it stays so"
    )


_NEEDED = ("pyarrow", "pyspark", "objcat", "fileio", "msgspec", "numpy", "sqlglot")
"""What our functions import on a worker, and Spark before them."""


def _reason(text: str) -> str:
    """What Spark says of an error in one line, without stacks: the last line of a Python traceback, or the sentence with a condition."""
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
    """The error that a task of ours has raised, where it did not tell it: of the kind that it has in this process: callers go by that."""
    found = re.match(r"(objcat|fileio)\.errors\.(\w+): (.*)", reason)
    kind = None if found is None else getattr({"objcat": objcat.errors, "fileio": fileio.errors}[found[1]], found[2], None)
    if found is None or not isinstance(kind, type) or not issubclass(kind, (ObjcatError, FileIOError)):
        return None
    try:
        return kind(found[3])
    except TypeError:
        # It is made of more than its sentence.
        return None


def gave_others(error: Exception) -> bool:
    """Whether Spark ended a job since tasks of it would see other rows than those that had ended."""
    return "with indeterminate output was failed and retried" in _text_of(error)


def _text_of(error: Exception) -> str:
    """What an error says. One of the JVM's asks it for its words, which fails when it has ended meanwhile."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def _lost(error: Exception, spark: SparkSession, text: str) -> str | None:
    """What Spark lost, or was made to give up, when it raised an error; None for all else."""
    # It says so in many ways, by the moment: it is asked.
    if _is_stopped(spark):
        return "its session was stopped, or its JVM has ended"
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError) and "Trace:" not in text:
        # The JVM has not said that anything failed.
        return "the call was broken off, by Ctrl-C perhaps"
    return next((why for said, why in _LOST.items() if said in text), None)


_LOST = {
    "[SPARK_JOB_CANCELLED]": "a job was cancelled",
    "ExecutorLostFailure": "it lost executors, time and again",
    "has failed the maximum allowable number of times": "it lost what it had shuffled, time and again",
}
"""What Spark says of a job that it does not let end, and what that means."""


def reset_py4j_connection(spark: SparkSession) -> None:
    """Have this thread call the JVM anew where a signal's handler has ended a call that waited for its answer, as by SystemExit: each call
    from then on would take the answer of the one before for its own. Never raises. To be called by whoever cleans up behind an error,
    before it calls the JVM. Py4J does so for KeyboardInterrupt, and for whatever is an `Exception`; a generator that is closed waits for
    no answer.
    """
    ending = sys.exc_info()[1]
    if ending is None or isinstance(ending, (Exception, KeyboardInterrupt, GeneratorExit)):
        return
    # Handlers of signals run there. A callback, in another thread, needs the connection that it came by.
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
