"""The Spark engine: DataFrames in and out. The only place that imports pyspark."""
