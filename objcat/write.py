"""Writes: announce, run the tasks, commit one slot; where another commit touched the same homes first, these homes are done again.

A redo keeps the transaction, and the files of all homes that nobody else touched: only what was read or placed too early is written anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from fileio.wrap import MetricsSnapshot
from objcat.errors import AlreadyApplied, CommitUnknown, CorruptTable, InvalidBatch, TableNotFound
from objcat.table import Manifests, Snapshot, TableDelta, Tables
from objcat.table.files import encode_delta
from objcat.table.snapshot import snapshot_of
from objcat.tasks import Operation, WriteResult, WriteTask
from objcat.timeline import (
    Action,
    AppVersion,
    Beaten,
    Candidate,
    Committed,
    Committer,
    Entry,
    Footprint,
    Home,
    Log,
    Summary,
    Timeline,
    Txn,
    View,
    new_txn,
)
from objcat.timeline.commit import check_app, remove_files
from objcat.timeline.entry import data_prefix
from objcat.version import VERSION

logger = logging.getLogger("objcat")

D_contra = TypeVar("D_contra", contravariant=True)
D = TypeVar("D")


class Engine(Protocol[D_contra]):
    """What runs the tasks of a write over one kind of batch."""

    @property
    def name(self) -> str:
        """Its name, and its version where it has one of its own."""

    def write(self, data: D_contra, task: WriteTask) -> WriteResult:
        """Run the task over the whole batch, perhaps in pieces; the files in the order in which their rows count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A durable commit.

    slot, txn: of the commit. committed_at_ms: ms since 1970 UTC. rows: written, after folding repeated keys. inserted, updated, deleted:
    rows of the table; None where a write that reads nothing cannot know, but what `insert` places counts as inserted. files, bytes: of
    data. attempts: 1 unless other commits forced a redo of some buckets. slots_lost: slots that other writers took first. requests: sent
    by this process through this handle during the operation, by kind; those of Spark's executors are not among them.
    already_applied: nothing was written, since the table has this version of the application (or a later one) since `slot`; txn and
    committed_at_ms are of that commit.
    """

    slot: int
    txn: Txn
    committed_at_ms: int
    rows: int
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    files: int
    bytes: int
    attempts: int
    slots_lost: int
    requests: Mapping[str, int]
    already_applied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOperation(Generic[D]):
    """One write of a batch through an engine. table: its id. app: when the write must count once, however often it is tried."""

    timeline: Timeline[Tables]
    table: str
    manifests: Manifests
    committer: Committer
    engine: Engine[D]
    data: D
    operation: Operation
    metadata: Mapping[str, str] = field(default_factory=dict)
    app: AppVersion | None = None

    @property
    def fileio(self) -> FileIO:
        return self.timeline.fileio

    def run(self, view: View[Tables]) -> tuple[CommitResult, Sequence[Entry]]:
        """Write and commit from `view`; redo what other commits forestall, within the bounds of the committer's policy.

        Returns the result and all entries that followed `view`, up to the commit's own. Raises InvalidBatch and NullKey (nothing was
        written), CommitConflict and Fenced (nothing is visible), CommitUnknown, storage errors.
        """
        began = self.fileio.metrics.snapshot()
        try:
            check_app(self.app, [self.table], view.log)
            attempt = _Attempt(self, view, began)
            committed = attempt.run()
        except AlreadyApplied as applied:
            return self._applied(applied.winner_slot, began), ()
        entry, written = committed.entry, attempt.written
        did = summary_of(written, self.operation)
        result = CommitResult(
            slot=entry.slot,
            txn=entry.txn,
            committed_at_ms=entry.committed_at_ms,
            rows=did.rows,
            inserted=did.inserted,
            updated=did.updated,
            deleted=did.deleted,
            files=did.files,
            bytes=did.bytes,
            attempts=attempt.number,
            slots_lost=attempt.slots_lost + committed.slots_lost,
            requests=(self.fileio.metrics.snapshot() - began).requests,
        )
        return result, [*attempt.read, *committed.read, entry]

    def _applied(self, slot: int, began: MetricsSnapshot) -> CommitResult:
        earlier = Log(self.fileio).read_slot(slot)
        if earlier is None:
            raise CorruptTable(f"slot {slot} of {self.fileio.url} is gone although later slots exist: open the table again")
        requests = (self.fileio.metrics.snapshot() - began).requests
        return CommitResult(
            slot=slot,
            txn=earlier.txn,
            committed_at_ms=earlier.committed_at_ms,
            rows=0,
            inserted=0,
            updated=0,
            deleted=0,
            files=0,
            bytes=0,
            attempts=0,
            slots_lost=0,
            requests=requests,
            already_applied=True,
        )


class _Attempt(Generic[D]):
    """One transaction of a write, and how often it had to be tried.

    written: the files that the commit names. superseded: files that an earlier try wrote and the commit does not name. read: entries of
    others that were folded between tries.
    """

    def __init__(self, operation: WriteOperation[D], view: View[Tables], began: MetricsSnapshot) -> None:
        self._of = operation
        self._fileio = operation.fileio
        self._committer = operation.committer
        self._view = view
        self._began = began
        self.txn = new_txn(self._fileio.env)
        self.number = 1
        self.slots_lost = 0
        self.written = WriteResult()
        self.superseded: list[str] = []
        self.read: list[Entry] = []

    def run(self) -> Committed:
        """Raises as `WriteOperation.run`; whatever it raises but CommitUnknown, nothing of the transaction is left."""
        action = self._action()
        intent = self._committer.announce(self.txn, action, self._view.slot, engine=self._of.engine.name)
        base = self._fileio.env.submit_io(partial(Log(self._fileio).read_slot, self._view.slot))
        try:
            committed = self._run(intent, base)
        except CommitUnknown:
            raise
        except Exception:
            # Whatever went wrong, a full memory or a failed job of Spark's too: either no slot was asked for, or all that were are others'.
            intent.exception()
            self._clean_up()
            raise
        if self.superseded:
            self._fileio.env.submit_io(partial(remove_files, self._fileio, self.superseded, why=self.txn))
        self._committer.retract(self.txn)
        return committed

    def _run(self, intent: Future[int], base: Future[Entry | None]) -> Committed:
        env = self._fileio.env
        began_s = env.monotonic_s()
        self.written = self._write(only=None)
        _check_still_there(self._fileio, self._snapshot(), base.result())
        policy = self._committer.policy
        pause_s = 0.0
        while True:
            outcome = self._committer.try_commit(self._candidate(), skew_ms=intent.result())
            if isinstance(outcome, Committed):
                return outcome
            homes = self._forestalled(outcome)
            if not homes or self.number >= policy.attempts_max or env.monotonic_s() - began_s > policy.deadline_s:
                raise outcome.error(attempts=self.number)
            if self.number > 1:
                pause_s = self._committer.pause(pause_s, took_s=(env.monotonic_s() - began_s) / self.number)
            self.slots_lost += outcome.slots_lost
            self.read += outcome.read
            self._view = self._of.timeline.advance(self._view, outcome.read)
            self.number += 1
            self._redo(homes)

    def _action(self) -> Action:
        return Action.COMMIT if self._snapshot().spec.rewrites else Action.DELTA_COMMIT

    def _snapshot(self) -> Snapshot:
        return snapshot_of(self._view, self._of.table, where=self._fileio.url)

    def _write(self, *, only: Collection[Home] | None) -> WriteResult:
        """Run the engine over the batch, or over its rows of some homes."""
        snapshot = self._snapshot()
        spec, operation = snapshot.spec, self._of.operation
        live = snapshot.file_groups(self._of.manifests) if spec.rewrites or operation is Operation.INSERT else []
        task = WriteTask(
            spec,
            self.txn,
            operation,
            live_buckets=frozenset(group.home.bucket for group in live),
            groups={group.home.bucket: group for group in live if only is None or group.home in only} if spec.rewrites else {},
            only=None if only is None else frozenset(home.bucket for home in only),
        )
        written = self._of.engine.write(self._of.data, task)
        if written.rows == 0:
            raise InvalidBatch(f"the batch to {operation} is empty: give it rows, or skip the call; nothing was written")
        homes = [base.home for base in written.bases]
        rewritten = [home.home for home in written.rewritten]
        if len(set(homes)) < len(homes) or len(set(rewritten)) < len(rewritten):
            raise InvalidBatch(
                "rows of one bucket were written by two tasks, which hashed a key column of another type than the table's: "
                "cast the key columns to the types of the table; nothing was written"
            )
        return written

    def _redo(self, homes: Collection[Home]) -> None:
        """Write the rows of these homes again, as of the view; what was written for the others stays."""
        before = self.written
        again = self._write(only=homes)
        if _rows_by_home(again) != {home: rows for home, rows in _rows_by_home(before).items() if home in homes}:
            raise InvalidBatch(
                "the batch gave other rows when it was computed again to redo some buckets that another commit had touched: cache or "
                "checkpoint the frame before you write it; nothing was written"
            )
        kept = _without(before, homes)
        self.written = msgspec.structs.replace(kept + again, rows=before.rows)
        named = set(_paths(self.written))
        self.superseded += [path for path in _paths(before) if path not in named]

    def _forestalled(self, beaten: Beaten) -> frozenset[Home]:
        """The homes to redo; none when that would not help."""
        own = self._footprint()
        mine = {*own.creates, *own.appends, *own.replaces, *own.reads}
        redo: set[Home] = set()
        for found, overlap in beaten.overlaps:
            homes = mine.intersection(overlap.homes)
            if overlap.table != self._of.table or not homes or found.footprint[overlap.table].splits:
                return frozenset()
            redo |= homes
        return frozenset(redo)

    def _footprint(self) -> Footprint:
        written = self.written
        appends = {rows.home for log in written.logs for rows in log.homes}
        bases = [base.home for base in written.bases]
        if not self._snapshot().spec.rewrites:
            return Footprint(creates=tuple(bases), appends=tuple(sorted(appends)))
        live = {group.home for group in self._snapshot().file_groups(self._of.manifests, homes=frozenset(bases))}
        return Footprint(
            creates=tuple(home for home in bases if home not in live),
            replaces=tuple(home for home in bases if home in live),
            appends=tuple(sorted(appends.difference(bases))),
            reads=tuple(sorted(home.home for home in written.rewritten if not home.changed)),
        )

    def _candidate(self) -> Candidate:
        written, table = self.written, self._of.table
        snapshot = self._snapshot()
        delta = TableDelta(bases=written.bases, logs=written.logs, as_of=snapshot.slot if snapshot.spec.rewrites else None)
        return Candidate(
            txn=self.txn,
            action=self._action(),
            base=snapshot.log,
            changes={table: encode_delta(delta)},
            footprint={table: self._footprint()},
            writer=writer_of(self._of.engine.name),
            app=self._of.app,
            summary=msgspec.structs.replace(summary_of(written, self._of.operation), attempts=self.number, slots_lost=self.slots_lost),
            began=self._began,
            metadata=self._of.metadata,
        )

    def _clean_up(self) -> None:
        """Remove what a transaction left that is certainly not committed. Files of tasks that failed are known by their prefix only."""
        try:
            keys = list(self._fileio.list_keys(data_prefix(self.txn)))
        except FileIOError:
            keys = []
        if keys:
            remove_files(self._fileio, keys, why=self.txn)
        self._committer.retract(self.txn).result()


def writer_of(engine: str) -> str:
    """Who writes, as entries say it: the client's version and the engine."""
    return f"objcat {VERSION}, {engine}"


def summary_of(written: WriteResult, operation: Operation) -> Summary:
    """What was written, and what became of rows of the table: exact where they were read, else not known. Rows of an insert are declared
    to be new."""
    sizes = [base.bytes for base in written.bases] + [log.bytes for log in written.logs]
    homes = written.rewritten
    blind = written.rows if operation is Operation.INSERT else None
    return Summary(
        rows=written.rows,
        inserted=sum(home.inserted for home in homes) if homes else blind,
        updated=sum(home.updated for home in homes) if homes else None,
        deleted=sum(home.deleted for home in homes) if homes else None,
        files=len(sizes),
        bytes=sum(sizes),
    )


def _rows_by_home(written: WriteResult) -> Mapping[Home, int]:
    """Rows of the batch by home, after folding repeated keys."""
    if written.rewritten:
        return {home.home: home.rows for home in written.rewritten}
    rows = Counter({base.home: base.rows for base in written.bases})
    for log in written.logs:
        rows.update({part.home: part.end - part.start for part in log.homes})
    return rows


def _without(written: WriteResult, homes: Collection[Home]) -> WriteResult:
    """What was written for other homes. Objects that hold rows of several homes are kept, and named for what is left."""
    logs = [msgspec.structs.replace(log, homes=tuple(rows for rows in log.homes if rows.home not in homes)) for log in written.logs]
    return WriteResult(
        bases=tuple(base for base in written.bases if base.home not in homes),
        logs=tuple(log for log in logs if log.homes),
        rewritten=tuple(home for home in written.rewritten if home.home not in homes),
    )


def _paths(written: WriteResult) -> list[str]:
    return [*(base.path for base in written.bases), *(log.path for log in written.logs)]


def _check_still_there(fileio: FileIO, snapshot: Snapshot, base: Entry | None) -> None:
    """Refuse to write above a log that somebody deleted, or replaced by another table's, since the snapshot was taken.

    Deleting objects by hand is outside of the protocol: this finds it unless it happens in the moment between this look and the commit.
    """
    if base is None or base.committed_at_ms != snapshot.committed_at_ms:
        raise TableNotFound(
            f"slot {snapshot.slot} of the table at {fileio.url} is gone or another one: it was deleted by hand under this handle; "
            "open the table again; nothing was written"
        )
