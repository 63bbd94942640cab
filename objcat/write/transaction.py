"""Runs a write as one transaction: index lookup, data files, and the commit of one slot.

`WriteOperation` writes one batch to one table. `commit_write` writes any number of batches to one or more tables of one log, and
`commit_parts` whatever a block does to them.
All write the data files first and then claim a slot. Nothing is visible before the slot is claimed, and all of it is visible after.
If another commit takes the slot and touched the same file groups, only these are written again, under the same transaction id.
Files of the other file groups are committed as they are.
A failure other than CommitUnknown and SharedTransaction leaves nothing behind.
`Table`, `Transaction` and the services for row-level DML call this module. `TableWriter` writes the files,
`objcat.timeline.commit` claims the slot. Begin with `commit_write`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import msgspec

from fileio.store import FileIO
from fileio.wrappers import MetricsSnapshot
from objcat.errors import AlreadyApplied, CommitConflict, CorruptTable
from objcat.metadata.consistency import check_own
from objcat.metadata.derived import check_not_derived, refresh_source
from objcat.metadata.files import encode_delta, features_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import GROUP_COMMIT, SchemaMode
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.predicate.parse import Predicate
from objcat.tasks.model import Operation, WriteLayout
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.commit import Committer
from objcat.timeline.commit_errors import fenced_by, outcome_unknown_after
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Summary, Txn, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import AppVersion, check_app_version
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.position import PositionWrite, SourcePosition, check_position, write_position
from objcat.version import writer_of
from objcat.write.bucket_size_warning import BucketSizeWarning
from objcat.write.engine import Engine
from objcat.write.table_part import TablePart
from objcat.write.table_writer import TableWriter, WriteBatch

logger = logging.getLogger("objcat")

BEGINNINGS_MAX = 5
"""How often a write starts from a new snapshot when a CLEAN deletes the files that it reads."""

D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A durable commit.

    Attributes:
        slot: the slot of the commit.
        txn: its transaction id.
        committed_at_ms: commit time, in milliseconds since 1970 UTC.
        rows: rows written, after repeated keys are merged.
        inserted: new rows of the table. None if a write that reads nothing cannot know. Rows that `insert` writes count as inserted.
        updated: changed rows of the table, or None as above.
        deleted: deleted rows of the table, or None as above.
        files: number of data files.
        bytes: bytes of data files.
        attempts: 1 unless conflicts made the write repeat some file groups.
        slots_lost: slots that other writers took first.
        requests: requests by kind, sent by this process through this handle during the operation. Requests of Spark executors do not
            count.
        already_applied: the table already has this version of the application, or a later one, since `slot`. Nothing was written. txn and
            committed_at_ms are those of that commit.
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
    """One write of a batch through an engine.

    table: its id. schema_mode: what the batch may change in the schema. app: application version, if the write must count once.
    advice: is shown the file groups that the write reads.
    """

    timeline: Timeline[Tables]
    table: str
    manifests: Manifests
    committer: Committer
    engine: Engine[D]
    data: D
    operation: Operation
    schema_mode: SchemaMode = SchemaMode.STRICT
    delete_when: Predicate | None = None
    layout: WriteLayout | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    app: AppVersion | None = None
    advice: BucketSizeWarning | None = None

    @property
    def fileio(self) -> FileIO:
        """The store of the table."""
        return self.timeline.fileio

    def run(self, view: LogView[Tables]) -> tuple[CommitResult, Sequence[Entry]]:
        """Write and commit from `view`. Rewrites conflicting file groups, within the limits of the committer's policy.

        Returns:
            The result, and all entries after `view` up to and including the commit.

        Raises:
            InvalidBatch, NullKey: nothing was written.
            CommitConflict, WriterFenced: nothing is visible.
            CommitUnknown: the commit may have landed.
            FileIOError: the store failed.
        """
        change = WriteBatch(self.engine, self.data, self.operation, self.schema_mode, self.delete_when, self.layout)
        part = TableWriter(self.fileio, self.manifests, self.table, [change], advice=self.advice)
        return commit_write(self.timeline, self.committer, [part], view, metadata=self.metadata, app=self.app)


def commit_write(
    timeline: Timeline[Tables],
    committer: Committer,
    parts: Sequence[TableWriter],
    view: LogView[Tables],
    *,
    metadata: Mapping[str, str],
    app: AppVersion | None = None,
    txn: Txn | None = None,
) -> tuple[CommitResult, Sequence[Entry]]:
    """Write batches to tables of one log and commit them in one slot. See `commit_parts`."""
    result, followed = commit_parts(timeline, committer, parts, view, metadata=metadata, app=app, txn=txn)
    assert result is not None, "a batch is committed whatever it changes"
    return result, followed


def commit_parts(  # noqa: PLR0913 - one for each part of a commit
    timeline: Timeline[Tables],
    committer: Committer,
    parts: Sequence[TablePart],
    view: LogView[Tables],
    *,
    metadata: Mapping[str, str],
    app: AppVersion | None = None,
    position: SourcePosition | None = None,
    reads: Mapping[str, Footprint] | None = None,
    txn: Txn | None = None,
) -> tuple[CommitResult | None, Sequence[Entry]]:
    """Write the files of one transaction and commit them in one slot. Rewrites conflicting file groups.

    Returns and raises as `WriteOperation.run`; no result when no part changes anything, and there is no application version or
    position to record. Rows that the caller has computed from data that changed meanwhile cannot be rewritten here.

    Args:
        parts: one writer per table. All tables share one log. With a position there may be none.
        position: of a source, committed with the rows.
        reads: by table id, what the transaction read and its outcome depends on. None: nothing.
        txn: the id under which files were written before. None: a new one.
    """
    fileio = timeline.fileio
    began = fileio.metrics.snapshot()
    passed = timeline.turns.stand_back(view.slot)
    if reads is None and txn is None:
        view = timeline.advance(view, passed)
    else:
        passed = []  # What was computed from this view stays upon it, so the loop judges these entries.
    beginnings = 0
    while True:
        beginnings += 1
        attempt = _WriteTransaction(
            timeline, committer, parts, view, began, metadata=metadata, app=app, position=position, reads=reads, txn=txn
        )
        try:
            check_app_version(app, [part.table for part in parts], view.log)
            check_position(position, view.log.sources)
            _check_derived(parts, view, position)
            with fileio.env.urgent():
                committed = attempt.run()
        except AlreadyApplied as applied:
            return already_applied_result(fileio, applied.winner_slot, began), ()
        except CorruptTable as error:
            newer = attempt.cleaned(error)
            if reads is not None or txn is not None or beginnings == BEGINNINGS_MAX:
                raise attempt.overtaken(newer) from error
            passed += [*attempt.read, *newer]
            view = timeline.advance(attempt.view, newer)
        else:
            if committed is None:
                return None, (*passed, *attempt.read)
            try:
                followed = [*passed, *attempt.read, *committed.read, committed.entry]
                slots_lost = attempt.slots_lost + committed.slots_lost
                sent = fileio.metrics.snapshot() - began
                return result_of(
                    committed.entry, attempt.txn, attempt.summary(), attempts=attempt.number, slots_lost=slots_lost, sent=sent
                ), followed
            except MemoryError as error:
                raise outcome_unknown_after(attempt.txn, error) from error


def _check_derived(parts: Sequence[TablePart], view: LogView[Tables], position: SourcePosition | None) -> None:
    """Refuse rows for a derived table in a commit that is no refresh of it. Raises InvalidInput."""
    source = None if position is None else position.source
    for part in parts:
        found = view.state.get(part.table)
        if found is not None and source != refresh_source(part.table):
            check_not_derived(found.spec, "take rows")


def result_of(entry: Entry, txn: Txn, did: Summary, *, attempts: int, slots_lost: int, sent: MetricsSnapshot) -> CommitResult:
    """The result of a commit for the caller. did: exact counts, whatever the entry retains."""
    return CommitResult(
        slot=entry.slot,
        txn=txn,
        committed_at_ms=entry.committed_at_ms,
        rows=did.rows,
        inserted=did.inserted,
        updated=did.updated,
        deleted=did.deleted,
        files=did.files,
        bytes=did.bytes,
        attempts=attempts,
        slots_lost=slots_lost,
        requests=sent.requests,
    )


def already_applied_result(fileio: FileIO, slot: int, began: MetricsSnapshot) -> CommitResult:
    """The result for the caller if the table has the application version since `slot`."""
    earlier = Log(fileio).read_known(slot)
    requests = (fileio.metrics.snapshot() - began).requests
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


class _WriteTransaction:
    """One transaction of a write, over all its attempts.

    view: where the last attempt started. read: entries of others, replayed between attempts.
    """

    def __init__(  # noqa: PLR0913 - one for each part of a transaction
        self,
        timeline: Timeline[Tables],
        committer: Committer,
        parts: Sequence[TablePart],
        view: LogView[Tables],
        began: MetricsSnapshot,
        *,
        metadata: Mapping[str, str],
        app: AppVersion | None,
        position: SourcePosition | None,
        reads: Mapping[str, Footprint] | None,
        txn: Txn | None,
    ) -> None:
        self._timeline = timeline
        self._fileio = timeline.fileio
        self._committer = committer
        self._parts = {part.table: part for part in parts}
        for part in parts:
            part.begin()
        self.view = view
        self._began = began
        self._metadata = metadata
        self._app = app
        self._asked = position
        self._position: PositionWrite | None = None
        self._reads = reads
        self.txn = new_txn(self._fileio.env) if txn is None else txn
        self.number = 1
        self.slots_lost = 0
        self.read: list[Entry] = []

    @property
    def _engines(self) -> str:
        return ", ".join(dict.fromkeys(name for part in self._parts.values() for name in part.engines)) or "local"

    def run(self) -> Committed | None:
        """Returns None when nothing changes. Raises as `commit_parts`.

        After an error other than CommitUnknown and SharedTransaction nothing of the transaction is left.
        """
        session = CommitSession(self._committer, self.txn)
        skew_ms = session.announce_if_slow(self._action(), self.view.log, engine=self._engines)
        base = self._fileio.env.submit_io(partial(session.check.run, self.view.log))
        with session:
            return self._run(session, skew_ms, base)

    def summary(self) -> Summary:
        """Counts over all tables. A count that is unknown for one table is unknown for all."""
        found = [part.summary() for part in self._parts.values()]
        return Summary(
            rows=sum(summary.rows for summary in found),
            inserted=_sum([summary.inserted for summary in found]),
            updated=_sum([summary.updated for summary in found]),
            deleted=_sum([summary.deleted for summary in found]),
            files=sum(summary.files for summary in found),
            bytes=sum(summary.bytes for summary in found),
            attempts=self.number,
            slots_lost=self.slots_lost,
        )

    def cleaned(self, error: CorruptTable) -> Sequence[Entry]:
        """The entries after the view, if they cleaned files of the view.

        Raises `error` if they did not. Raises WriterFenced if they cleaned the transaction's own files, which a write may read.
        """
        newer = Log(self._fileio).read_after(self.view.slot)
        for entry in newer:
            if entry.rollback_of == self.txn:
                raise fenced_by(entry) from error
        log = self.view.log.advance(newer)
        if all(log.marks(table).is_readable(self.view.slot) for table in self._parts):
            raise error
        return newer

    def overtaken(self, newer: Sequence[Entry]) -> CommitConflict:
        """The error after the files that the transaction reads were cleaned again and again."""
        slot = self.view.slot
        cleans = [entry.slot for entry in newer for touched in entry.footprint.values() if (touched.bound or 0) > slot]
        return CommitConflict(
            f"Transaction {self.txn} reads slot {slot} of {self._fileio.url}, and the CLEAN at slot {cleans[0]} deleted files of that "
            "slot. Nothing of it is visible. Read the table again, and write again. Retain more slots when you clean.",
            winner_slot=cleans[0],
        )

    def _run(self, session: CommitSession, skew_ms: Callable[[], int], base: Future[None]) -> Committed | None:
        env = self._fileio.env
        began_s = env.monotonic_s()
        for table, part in self._parts.items():
            part.write(self._snapshot(table), self.txn)
        if self._asked is not None:
            self._position = write_position(self._fileio, self.txn, self._asked)
        base.result()
        policy = self._committer.policy
        pause_s = 0.0
        while True:
            candidate = self._candidate()
            if not candidate.changes and self._app is None and self._asked is None:
                return None  # Only a batch, which was given to be written, commits without a change.
            session.superseded[:] = [path for part in self._parts.values() for path in part.superseded]
            outcome = session.try_commit(candidate, skew_ms=skew_ms())
            if isinstance(outcome, Committed):
                return outcome
            group_ids = self._conflicting_groups(outcome)
            is_over = self.number >= policy.attempts_max or self.slots_lost >= policy.slots_max
            if not group_ids or is_over or env.monotonic_s() - began_s > policy.deadline_s:
                raise outcome.error(attempts=self.number)
            if self.number > 1:
                pause_s = self._committer.pause(pause_s, took_s=(env.monotonic_s() - began_s) / self.number)
                outcome = self._committer.recheck_conflicts(candidate, outcome)
                group_ids = self._conflicting_groups(outcome)
                if not group_ids:
                    raise outcome.error(attempts=self.number)
            rewritten_whole = {
                overlap.table for found, overlap in outcome.overlaps if overlap.table and _moves_rows(found.footprint[overlap.table])
            }
            # The file group of such a row depends on the partitions that others replaced meanwhile.
            rewritten_whole |= {table for table in group_ids if self._snapshot(table).spec.former and self._snapshot(table).spec.has_key}
            self.slots_lost += outcome.slots_lost
            self.read += outcome.read
            self.view = self._timeline.advance(self.view, outcome.read)
            self.number += self._repeat(group_ids, outcome, rewritten_whole)

    def _repeat(self, group_ids: Mapping[str, Collection[FileGroupId]], outcome: Conflicted, rewritten_whole: Collection[str]) -> bool:
        """Make the files right for the newest state, by table. Returns whether any work was repeated.

        rewritten_whole: tables in which file groups do not say what is in conflict.
        """
        repeated = False
        for table, redone in group_ids.items():
            part = self._parts[table]
            if table in rewritten_whole and not part.is_whole:
                part.write(self._snapshot(table), self.txn)
                repeated = True
            else:
                met = [(found, overlap) for found, overlap in outcome.overlaps if overlap.table == table]
                repeated |= part.rewrite(self._snapshot(table), self.txn, redone, met)
        return repeated

    def _action(self) -> Action:
        rewrites = all(self._snapshot(table).spec.rewrites for table in self._parts)
        return Action.COMMIT if rewrites else Action.DELTA_COMMIT

    def _snapshot(self, table: str) -> Snapshot:
        return snapshot_of(self.view, table, where=self._fileio.url)

    def _footprint(self, table: str) -> Footprint:
        return self._parts[table].footprint(self._snapshot(table), computed=self._reads is not None)

    def _conflicting_groups(self, conflicted: Conflicted) -> Mapping[str, Collection[FileGroupId]]:
        """The conflicting file groups to rewrite, by table. Empty if a rewrite cannot help."""
        if self._reads is not None:
            return {}
        own = {table: self._footprint(table) for table, part in self._parts.items() if not part.is_whole}
        touched = {table: {*mine.creates, *mine.appends, *mine.replaces, *mine.reads} for table, mine in own.items()}
        redo: dict[str, set[FileGroupId]] = {}
        for found, overlap in conflicted.overlaps:
            if overlap.table not in self._parts:
                return {}
            if self._parts[overlap.table].is_whole:
                if found.action is Action.CLOSE or found.footprint[overlap.table].restores is not None:
                    return {}
                redo.setdefault(overlap.table, set())
                continue
            group_ids = touched[overlap.table].intersection(overlap.group_ids)
            if found.footprint[overlap.table].schema is not None and not overlap.group_ids:
                group_ids = touched[overlap.table]
            if not group_ids:
                return {}
            redo.setdefault(overlap.table, set()).update(group_ids)
        return redo

    def _candidate(self) -> CommitAttempt:
        footprint = {table: self._footprint(table) for table in self._parts}
        for table, read in (self._reads or {}).items():
            own = footprint.get(table, Footprint())
            read_partitions = tuple(sorted({*own.read_partitions, *read.read_partitions}))
            footprint[table] = msgspec.structs.replace(own, read_partitions=read_partitions)
        deltas = {table: part.delta(self._snapshot(table)) for table, part in self._parts.items()}
        # A part that changes nothing is only in the footprint, with what it has read.
        deltas = {table: delta for table, delta in deltas.items() if not self._parts[table].is_whole or delta.changes_state}
        candidate = CommitAttempt(
            txn=self.txn,
            action=self._action(),
            base=self.view.log,
            changes={table: encode_delta(delta) for table, delta in deltas.items()},
            footprint=footprint,
            writer=writer_of(self._engines),
            app=self._app,
            position=self._position,
            summary=self.summary(),
            began=self._began,
            metadata=self._metadata,
            features={name: since for delta in deltas.values() for name, since in features_of(delta).items()},
            shares_slot=all(self._snapshot(table).spec.properties.get(GROUP_COMMIT) == "on" for table in deltas),
        )
        for table, delta in deltas.items():
            check_own(delta, candidate, table)
        return candidate


def _moves_rows(footprint: Footprint) -> bool:
    """Whether an entry moves or changes rows that were written before: a split, or another schema."""
    return bool(footprint.splits) or footprint.schema is not None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
