"""SQL over a lake. A statement is parsed by sqlglot (Spark's dialect) and run by the operations that Python users call.

A query runs in DuckDB or in Spark; `runner.Runner` is what a statement needs of either. Writes go only through `Table` and `Lake`. Entry:
`statements.py`.
"""
