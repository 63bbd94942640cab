"""The Spark format `objcat`: `spark.read.format("objcat").load(url)`, `df.write.format("objcat").mode("append").save(url)`, and SQL.

PySpark finds a module of this name itself, wherever objcat is installed. The format works on every cluster, in SQL and through Spark
Connect, but rows pass through Python. `Table.scan(...).to_spark(spark)` and `Table.upsert(df)` are faster. It needs Spark 4.
"""

from objcat.spark.versions import needs_python_sources

needs_python_sources()

from pyspark_objcat.source import DefaultSource  # noqa: E402 - a sentence where Spark is too old comes before what it lacks

__all__ = ["DefaultSource"]
