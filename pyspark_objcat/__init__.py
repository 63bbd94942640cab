"""The format `objcat` of Spark: `spark.read.format("objcat").load(url)`, `df.write.format("objcat").mode("append").save(url)`, and SQL.

PySpark finds a module of this name by itself, wherever objcat is installed. The format is for reach: it works on every cluster, in SQL and
through Spark Connect, with rows passing through Python. `Table.scan(...).to_spark(spark)` and `Table.upsert(df)` are for speed.
"""

from pyspark_objcat.source import DefaultSource

__all__ = ["DefaultSource"]
