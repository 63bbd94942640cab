"""The Spark engine: DataFrames in and out. The only place that imports pyspark."""

from objcat.spark.configure import configure

__all__ = ["configure"]
