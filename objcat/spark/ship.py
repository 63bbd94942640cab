"""Functions for Python workers that say in one sentence when objcat is not there; and what jobs fail for, in the words of objcat."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from objcat.errors import InvalidBatch, MissingOnWorkers
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
def in_one_sentence() -> Iterator[None]:
    """Raises MissingOnWorkers and InvalidBatch, with what a worker has said, where a job of the block fails for that: objcat is not there,
    or a batch that was computed again gave other rows."""
    try:
        yield
    except PySparkException as error:
        if COMPUTED_AGAIN in str(error):
            raise InvalidBatch(COMPUTED_AGAIN) from error
        said = re.search(r"objcat is missing on the Spark worker .*", str(error))
        if said is None:
            raise
        raise MissingOnWorkers(said.group().rstrip("\\n'\"")) from error
