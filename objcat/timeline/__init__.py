"""The commit protocol: slots, instants, entries, conflicts. Knows `fileio`, and nothing of tables, Parquet or Spark.

A thing happened when, and only when, its log slot exists. `docs/protocol.md` is the specification.
"""

from objcat.timeline.commit import Beaten, Candidate, CommitPolicy, Committed, Committer
from objcat.timeline.entry import FORMAT_VERSION, Action, Entry, Footprint, Home, Summary, Txn, new_txn, parse_txn
from objcat.timeline.log import Log
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt, resolve
from objcat.timeline.state import AppVersion, LogState, TableMarks

__all__ = [
    "FORMAT_VERSION",
    "Action",
    "AppVersion",
    "Beaten",
    "Candidate",
    "CommitPolicy",
    "Committed",
    "CommittedAt",
    "Committer",
    "Entry",
    "Footprint",
    "Home",
    "Log",
    "LogState",
    "Resolution",
    "RolledBackAt",
    "Summary",
    "TableMarks",
    "Txn",
    "new_txn",
    "parse_txn",
    "resolve",
]
