"""Finds the slot and commit time of each row, by the transaction that it names.

Serves the hidden columns `_commit_slot` and `_commit_time`, incremental reads and change feeds. To give a scan these columns:

    txns = txns_of(fileio, groups)              # of rows in file groups, or from rows that were read
    found = commits.find(view.outcomes, txns)   # `Table._commits_of(txns)` does this on a handle, and opens the table again if necessary
    rows = with_commits(rows, found)            # rows with `_objcat_txn`; appends `_commit_slot` and `_commit_time`
    points = commits_table(found)               # or: a small table to join with, `_objcat_txn`, `_commit_slot`, `_commit_time`
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from fileio.env import on_fork
from fileio.store import FileIO
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.parquet import txn_of_path, txns_of_base
from objcat.errors import CorruptTable
from objcat.metadata.files import FileGroup
from objcat.tasks.change_columns import COMMIT_FIELDS, COMMIT_SLOT, COMMIT_TIME
from objcat.tasks.changes import dated
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import Txn
from objcat.timeline.txn_outcomes import TxnOutcomes

__all__ = ["COMMIT_FIELDS", "COMMIT_SLOT", "COMMIT_TIME", "CommitInfo", "Commits", "commits_table", "txns_of", "with_commits"]

KEPT_MAX = 200_000
"""Commits that one handle caches. The longest known are dropped first."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Where a transaction is in the log. committed_at_ms: milliseconds since 1970 UTC."""

    slot: int
    committed_at_ms: int


class Commits:
    """Finds the slot and commit time of transactions, and caches them, since they never change. Thread-safe."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._kept: dict[Txn, CommitInfo] = {}
        self._lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with a new lock in a forked process."""
        self._lock = threading.Lock()

    def find(self, outcomes: TxnOutcomes, txns: Collection[Txn]) -> Mapping[Txn, CommitInfo]:
        """Slot and commit time of every transaction.

        Costs no request for cached transactions and the newest hundreds of commits. Otherwise it costs about one request for each segment
        of older
        outcomes, in parallel, for any number of transactions. A log of n slots has O(log n) segments, and one more for every 65,536 slots.
        Never
        reads the log itself, so archived slots cost the same.

        Args:
            outcomes: of a view (`View.outcomes`) that includes their commits.

        Raises:
            CheckpointCollected: open the table again.
            CorruptTable: no slot commits a transaction.
            FileIOError: the store failed.
        """
        wanted = set(txns)
        with self._lock:
            known = {txn: self._kept[txn] for txn in wanted if txn in self._kept}
        missing = wanted - known.keys()
        if missing:
            read = outcomes.find_all(self._fileio, missing)
            new = {txn: CommitInfo(found.slot, found.committed_at_ms) for txn, found in read.items() if found.committed}
            if len(new) < len(missing):
                first = min(missing - new.keys())
                raise CorruptTable(
                    f"A row in {self._fileio.url} says that transaction {first} wrote it, but no slot up to the newest commits that "
                    "transaction. Run `objcat doctor` to see what the log holds."
                )
            known |= new
            self._keep(new)
        return known

    def between(self, outcomes: TxnOutcomes, after: int, until: int) -> Mapping[Txn, CommitInfo]:
        """Every transaction committed after slot `after`, up to and including `until`. Costs and raises as `find`."""
        read = outcomes.between(self._fileio, after, until)
        return {outcome.txn: CommitInfo(outcome.slot, outcome.committed_at_ms) for outcome in read if outcome.committed}

    def _keep(self, new: Mapping[Txn, CommitInfo]) -> None:
        with self._lock:
            self._kept.update(new)
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]


def txns_of(fileio: FileIO, groups: Iterable[FileGroup]) -> frozenset[Txn]:
    """The transactions of the rows in some file groups, from log objects and base files.

    Of a base file it reads the footer, and the hidden column only if there are several: a few bytes for thousands of rows.
    """
    listed = list(groups)
    bases = {group.base.path: group.base for group in listed if group.base is not None}
    found = {txn_of_path(rows.object.path) for group in listed for rows in group.logs}
    for txns in run_all(fileio.env, lambda base: txns_of_base(fileio, base), bases.values()):
        found |= txns
    return frozenset(found)


def commits_table(found: Mapping[Txn, CommitInfo]) -> pa.Table:
    """A small table to join with: `_objcat_txn`, `_commit_slot`, `_commit_time`."""
    listed = sorted(found.items())
    columns = [
        pa.array([txn for txn, _ in listed], pa.string()),
        pa.array([point.slot for _, point in listed], COMMIT_FIELDS[0].type),
        pa.array([point.committed_at_ms * 1000 for _, point in listed], pa.int64()).cast(COMMIT_FIELDS[1].type),
    ]
    return pa.table(columns, schema=pa.schema([pa.field(TXN_COLUMN, pa.string()), *COMMIT_FIELDS]))


def with_commits(rows: pa.Table, found: Mapping[Txn, CommitInfo]) -> pa.Table:
    """Rows that have `_objcat_txn`, with `_commit_slot` and `_commit_time` as last columns. Null if `found` lacks the transaction."""
    return dated(rows, commits_table(found))
