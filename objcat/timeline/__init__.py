"""The commit protocol: slots, instants, entries, conflicts. Knows `fileio`, and nothing of tables, Parquet or Spark.

A thing happened when, and only when, its log slot exists. `docs/spec/protocol.md` is the specification.
"""
