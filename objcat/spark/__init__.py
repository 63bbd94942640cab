"""The Spark engine: DataFrames in and out. The only package that imports pyspark; raises MissingDependency where it is not installed.

`configure` prepares a session builder for a store, `foreach_batch` writes batches of a stream, `views` makes the tables of a lake visible
to `spark.sql`, and `native_format` lets a session read `format("objcat")` without Python workers.
Writes and scans need no import of this package: `Table` takes DataFrames, and `Scan.to_spark` returns them. Internally the entry is
`engine.py` for writes and `native/scan.py` for reads.
"""

from fileio.optional import library

library("pyspark", needed_by="objcat.spark needs", extra="spark")

from objcat.spark.versions import check_supported  # noqa: E402 - a sentence where PySpark is missing comes before what needs it

check_supported()

from objcat.spark.native.format import native_format  # noqa: E402
from objcat.spark.settings import configure  # noqa: E402
from objcat.spark.stream_sink import foreach_batch  # noqa: E402
from objcat.spark.views import views  # noqa: E402

__all__ = ["configure", "foreach_batch", "native_format", "views"]


def __dir__() -> list[str]:
    return __all__
