"""The commit protocol: slots, instants, entries, conflicts, checkpoints.

It knows `fileio`, and nothing of tables, Parquet or Spark. A commit happened if, and only if, its log slot exists. `docs/spec/protocol.md`
is the specification. Begin with `commit_session`, then `commit`.
"""
