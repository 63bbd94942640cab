"""The Spark engine: DataFrames in and out. The only place that imports pyspark."""

from objcat.spark.configure import configure
from objcat.spark.foreach import foreach_batch
from objcat.spark.views import views

__all__ = ["configure", "foreach_batch", "views"]
