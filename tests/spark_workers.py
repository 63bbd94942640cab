"""The daemon from which the Python workers of the tests' Spark session are forked: PySpark's own, with what they all import.

A worker lives for a minute or less. Without this each one takes more than a second to import the same modules.
"""

from __future__ import annotations

import contextlib

from pyspark import daemon

with contextlib.suppress(ImportError):  # Some tests have workers without our libraries.
    import pandas as pd  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import objcat.spark.engine  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
