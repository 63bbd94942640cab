"""Writes: announce, run the tasks, commit one slot; redo from a fresh snapshot where another commit took a home first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import CommitConflict, CommitUnknown, Contention, InvalidBatch, ObjcatError, TableNotFound
from objcat.table import Manifests, Snapshot, TableDelta
from objcat.table.files import encode_delta
from objcat.tasks import Operation, WriteResult, WriteTask
from objcat.timeline import Action, Candidate, Committed, Committer, Entry, Footprint, Home, Log, Txn, new_txn
from objcat.timeline.commit import remove_files
from objcat.timeline.entry import data_prefix

D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")

ATTEMPTS_MAX = 10


class Engine(Protocol[D_contra]):
    """What runs the tasks of a write over one kind of batch."""

    @property
    def name(self) -> str: ...

    def write(self, data: D_contra, task: WriteTask) -> WriteResult:
        """Run the task over the whole batch, perhaps in pieces; the files in the order in which their rows count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A durable commit.

    slot, txn: of the commit. committed_at_ms: ms since 1970 UTC. rows: written, after folding repeated keys. files, bytes: of data.
    attempts: 1 unless another commit forced a redo. slots_lost: slots that other writers took first. requests: sent by this process
    through this handle during the operation, by kind; those of Spark's executors are not among them.
    """

    slot: int
    txn: Txn
    committed_at_ms: int
    rows: int
    files: int
    bytes: int
    attempts: int
    slots_lost: int
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WriteOperation(Generic[D]):
    """One write of a batch through an engine."""

    fileio: FileIO
    manifests: Manifests
    committer: Committer
    engine: Engine[D]
    data: D
    operation: Operation
    metadata: Mapping[str, str]

    def run(self, first: Snapshot, refresh: Callable[[], Snapshot]) -> tuple[CommitResult, Committed]:
        """Write and commit from the snapshot `first`; after a conflict once more from `refresh()`, at most `ATTEMPTS_MAX` times in all.

        Raises InvalidBatch and NullKey (nothing was written), CommitConflict (nothing is visible), CommitUnknown, Fenced, storage errors.
        """
        before = self.fileio.metrics.snapshot()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            snapshot = first if attempt == 1 else refresh()
            txn = new_txn(self.fileio.env)
            try:
                written, committed = self._once(snapshot, txn)
            except CommitConflict as conflict:
                if attempt == ATTEMPTS_MAX or isinstance(conflict, Contention):
                    raise
                continue
            sizes = [base.bytes for base in written.bases] + [log.bytes for log in written.logs]
            result = CommitResult(
                slot=committed.entry.slot,
                txn=txn,
                committed_at_ms=committed.entry.committed_at_ms,
                rows=written.rows,
                files=len(sizes),
                bytes=sum(sizes),
                attempts=attempt,
                slots_lost=committed.slots_lost,
                requests=(self.fileio.metrics.snapshot() - before).requests,
            )
            return result, committed
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, snapshot: Snapshot, txn: Txn) -> tuple[WriteResult, Committed]:
        intent = self.committer.announce(txn, Action.DELTA_COMMIT, snapshot.slot, engine=self.engine.name)
        base = self.fileio.env.submit_io(lambda: Log(self.fileio).read_slot(snapshot.slot))
        try:
            written = self._write_files(snapshot, txn)
            _check_still_there(self.fileio, snapshot, base.result())
        except Exception:
            # Whatever went wrong, a full memory or a failed job of Spark's too: no slot was asked for, so none can be ours.
            intent.exception()
            self._clean_up(txn)
            raise
        try:
            committed = self.committer.commit(self._candidate(snapshot, txn, written), skew_ms=intent.result())
        except CommitUnknown:
            raise
        except (ObjcatError, FileIOError):
            intent.exception()
            self._clean_up(txn)
            raise
        self.committer.retract(txn)
        return written, committed

    def _write_files(self, snapshot: Snapshot, txn: Txn) -> WriteResult:
        live = frozenset(group.home.bucket for group in snapshot.file_groups(self.manifests))
        written = self.engine.write(self.data, WriteTask(snapshot.spec, txn, self.operation, live))
        if written.rows == 0:
            raise InvalidBatch(f"the batch to {self.operation} is empty: give it rows, or skip the call; nothing was written")
        homes = [base.home for base in written.bases]
        if len(set(homes)) < len(homes):
            raise InvalidBatch(
                "rows of one bucket were written by two tasks, which hashed a key column of another type than the table's: "
                "cast the key columns to the types of the table; nothing was written"
            )
        return written

    def _candidate(self, snapshot: Snapshot, txn: Txn, written: WriteResult) -> Candidate:
        table = snapshot.spec.table
        appends = dict.fromkeys(rows.home for log in written.logs for rows in log.homes)
        footprint = Footprint(creates=tuple(base.home for base in written.bases), appends=_sorted(appends))
        return Candidate(
            txn=txn,
            action=Action.DELTA_COMMIT,
            base=snapshot.log,
            changes={table: encode_delta(TableDelta(bases=written.bases, logs=written.logs))},
            footprint={table: footprint},
            metadata=self.metadata,
        )

    def _clean_up(self, txn: Txn) -> None:
        """Remove what a transaction left that is certainly not committed. Files of tasks that failed are known by their prefix only."""
        try:
            keys = list(self.fileio.list_keys(data_prefix(txn)))
        except FileIOError:
            keys = []
        if keys:
            remove_files(self.fileio, keys, why=txn)
        self.committer.retract(txn).result()


def _check_still_there(fileio: FileIO, snapshot: Snapshot, base: Entry | None) -> None:
    """Refuse to write above a log that somebody deleted, or replaced by another table's, since the snapshot was taken.

    Deleting objects by hand is outside of the protocol: this finds it unless it happens in the moment between this look and the commit.
    """
    if base is None or base.committed_at_ms != snapshot.committed_at_ms:
        raise TableNotFound(
            f"slot {snapshot.slot} of the table at {fileio.url} is gone or another one: it was deleted by hand under this handle; "
            "open the table again; nothing was written"
        )


def _sorted(homes: Mapping[Home, None]) -> tuple[Home, ...]:
    return tuple(sorted(homes))
