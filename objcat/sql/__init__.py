"""SQL over a lake: a statement is parsed by sqlglot (Spark's dialect) and done by the operations that users have in Python.

A query runs in DuckDB, or in Spark; `runner.Runner` is what a statement needs of either. Nothing is written but through `Table` and `Lake`.
Entry: `statements`.
"""
