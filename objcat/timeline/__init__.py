"""The commit protocol: slots, instants, entries, conflicts. Knows `fileio`, and nothing of tables, Parquet or Spark.

A thing happened when, and only when, its log slot exists. `docs/protocol.md` is the specification.
"""

from objcat.timeline.commit import Beaten, Candidate, CommitPolicy, Committed, Committer
from objcat.timeline.entry import FORMAT_VERSION, Action, Entry, Footprint, Home, Summary, Txn, new_txn, parse_txn
from objcat.timeline.log import Log
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt, resolve
from objcat.timeline.state import AppVersion, LogState, TableMarks
from objcat.timeline.view import Fold, Timeline, View, reopening

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
    "Fold",
    "Footprint",
    "Home",
    "Log",
    "LogState",
    "Resolution",
    "RolledBackAt",
    "Summary",
    "TableMarks",
    "Timeline",
    "Txn",
    "View",
    "new_txn",
    "parse_txn",
    "reopening",
    "resolve",
]
