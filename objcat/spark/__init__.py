"""The Spark engine: DataFrames in and out. The only place that imports pyspark. Raises MissingDependency where it is not installed."""

from fileio.optional import library

library("pyspark", needed_by="objcat.spark needs", extra="spark")

from objcat.spark.native.format import native_format  # noqa: E402
from objcat.spark.settings import configure  # noqa: E402 - a sentence where PySpark is missing comes before what needs it
from objcat.spark.stream_sink import foreach_batch  # noqa: E402
from objcat.spark.views import views  # noqa: E402

__all__ = ["configure", "foreach_batch", "native_format", "views"]


def __dir__() -> list[str]:
    return __all__
