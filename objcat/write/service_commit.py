"""Runs a table service: plan from a snapshot, write files, claim one slot. A service that conflicts plans again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import msgspec

from fileio.store import FileIO
from fileio.wrappers import MetricsSnapshot
from objcat.errors import CheckpointCollected, CorruptTable, SnapshotExpired, SparkJobFailed
from objcat.metadata.consistency import check_own
from objcat.metadata.files import decode_delta
from objcat.metadata.table_state import Tables
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.commit import Committer
from objcat.timeline.commit_errors import contended, outcome_unknown_after
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Summary, Txn, new_txn
from objcat.timeline.log import Log
from objcat.timeline.log_state import AppVersion, LogState, check_app_version
from objcat.timeline.log_view import LogView, Timeline
from objcat.version import writer_of

P = TypeVar("P")

LOST_FILE = (CorruptTable, SparkJobFailed)
"""The errors that a missing data file causes. Spark's own readers report it as SparkJobFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceResult:
    """What a service wants to commit to one table.

    files: data files that it wrote and names. features: see `CommitAttempt`.
    """

    footprint: Footprint
    changes: msgspec.Raw | None = None
    apps: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)
    files: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Generic[P]):
    """One service on one table. `plan` decides, `run` works. Neither claims a slot.

    Args:
        plan: what to do as of a view, or None. It writes nothing. It raises what refuses the service for good.
        run: does the work of a plan under a transaction.
        plan_txn: the id of a stored plan. The first process to execute it commits it.
        narrow: what remains of a proposal after others took these file groups. None: plan again.
        renew: the proposal for a later view, if the written files are right there too. Then the service neither works nor pauses between
            two
            slots. None: plan again.
        app: application version, if the service must count once.
    """

    action: Action
    table: str
    plan: Callable[[LogView[Tables]], P | None]
    run: Callable[[P, Txn], ServiceResult]
    plan_txn: Txn | None = None
    narrow: Callable[[ServiceResult, frozenset[FileGroupId]], ServiceResult | None] = lambda _proposal, _taken: None
    renew: Callable[[ServiceResult, LogView[Tables], LogView[Tables]], ServiceResult | None] | None = None
    app: AppVersion | None = None


@dataclass(frozen=True, slots=True)
class ServiceCommit(Generic[P]):
    """A service that has its slot.

    log: as of that slot. slots_lost: slots that others took first. attempts: number of plans that ran.
    """

    entry: Entry
    plan: P
    proposal: ServiceResult
    log: LogState
    slots_lost: int = 0
    attempts: int = 1


def run_service(timeline: Timeline[Tables], service: Service[P], view: LogView[Tables], *, replans: bool = True) -> ServiceCommit[P] | None:
    """Plan, run and commit. None if there is nothing to do. Safe next to every writer and service.

    Args:
        view: where to begin.
        replans: whether a plan from a later view is allowed. If not, the first conflict is raised.

    Raises:
        CommitConflict: also after as many plans as the commit policy allows attempts. Nothing is visible, and own files are removed. The
            same
            holds for AlreadyDone, WriterFenced, Contention and storage errors.
        CommitUnknown: nothing was deleted.
        Exception: what `service.plan` raises.
    """
    env = timeline.fileio.env
    committer = Committer(timeline.fileio)
    if timeline.turns.stand_back(view.slot) and replans:
        view = timeline.refresh(view)
    began_s, pause_s = env.monotonic_s(), 0.0
    for attempt in range(1, committer.policy.attempts_max + 1):
        again = replans and attempt < committer.policy.attempts_max
        check_app_version(service.app, [service.table], view.log)
        try:
            plan = _planned(timeline, service, view)
            if plan is None:
                return None
            done = _once(timeline, committer, service, plan, view, again=again)
        except CheckpointCollected as error:
            # Nothing was claimed. The checkpoint of the view was collected or is damaged. The log has another one.
            if attempt == committer.policy.attempts_max:
                raise
            timeline.pass_over(error)
            view = timeline.open() if replans else timeline.at(view.slot)
            continue
        except _Expired as expired:
            if not again:
                raise expired.error from expired.__cause__
            view = timeline.refresh(view)
            continue
        if done is not None:
            return replace(done, attempts=attempt)
        if attempt > 1:
            pause_s = committer.pause(pause_s, took_s=(env.monotonic_s() - began_s) / attempt)
        view = timeline.refresh(view)
    raise AssertionError("unreachable: the last attempt returns or raises")


class _Expired(Exception):
    """Files of the view of a plan were cleaned."""

    def __init__(self, error: SnapshotExpired) -> None:
        super().__init__(str(error))
        self.error = error


def _planned(timeline: Timeline[Tables], service: Service[P], view: LogView[Tables]) -> P | None:
    """The plan of a service. Raises _Expired if a file that the plan reads was cleaned."""
    try:
        return service.plan(view)
    except LOST_FILE as error:
        expired = _expired(timeline.fileio, service.table, view)
        if expired is None:
            raise
        raise _Expired(expired) from error


def _once(
    timeline: Timeline[Tables], committer: Committer, service: Service[P], plan: P, view: LogView[Tables], *, again: bool
) -> ServiceCommit[P] | None:
    """One attempt. None if it conflicted, its files are removed and another plan may succeed."""
    fileio = timeline.fileio
    txn = new_txn(fileio.env)
    began = fileio.metrics.snapshot()
    session = CommitSession(committer, txn, plan=service.plan_txn)
    skew_ms = session.announce(service.action, view.log, engine="service")
    try:
        with session:
            candidate, proposal = _prepare(service, plan, view, txn, began, fileio)
            claim = _Claim(timeline, session, service, view, candidate, proposal)
            outcome = claim.run(skew_ms=skew_ms())
    except SnapshotExpired:
        if again:
            return None
        raise
    if isinstance(outcome, Conflicted):
        if again:
            return None
        raise outcome.error()
    try:
        return ServiceCommit(outcome.entry, plan, claim.proposal, view.log.advance([*outcome.read, outcome.entry]), outcome.slots_lost)
    except MemoryError as error:
        raise outcome_unknown_after(txn, error) from error


def _prepare(
    service: Service[P], plan: P, view: LogView[Tables], txn: Txn, began: MetricsSnapshot, fileio: FileIO
) -> tuple[CommitAttempt, ServiceResult]:
    """Do the work of a plan. Raises SnapshotExpired if its files were cleaned."""
    try:
        proposal = service.run(plan, txn)
    except LOST_FILE as error:
        expired = _expired(fileio, service.table, view)
        if expired is None:
            raise
        raise expired from error
    candidate = CommitAttempt(
        txn=txn,
        action=service.action,
        base=view.log,
        changes={} if proposal.changes is None else {service.table: proposal.changes},
        footprint={service.table: proposal.footprint},
        writer=writer_of("service"),
        app=service.app,
        apps={service.table: dict(proposal.apps)} if proposal.apps else {},
        plan=service.plan_txn,
        summary=proposal.summary,
        began=began,
        metadata=proposal.metadata,
        features=proposal.features,
    )
    _check(candidate)
    return candidate, proposal


def _check(candidate: CommitAttempt) -> None:
    """Check a candidate against its own delta. Raises as `check_own`."""
    for table, changes in candidate.changes.items():
        check_own(decode_delta(changes), candidate, table)


def _expired(fileio: FileIO, table: str, view: LogView[Tables]) -> SnapshotExpired | None:
    """The reason if a file of a view was cleaned, else None."""
    marks = view.log.advance(Log(fileio).read_after(view.slot)).marks(table)
    if marks.is_readable(view.slot):
        return None
    return SnapshotExpired(
        f"Slot {view.slot} of {fileio.url} was cleaned while a service read it (the retention floor is now {marks.bound}). Plan the "
        "service again."
    )


HURRIED_TRIES = 4
"""So many slots in a row are tried without a read of the log after them. A read in between finds a head that is far away."""
NEAR_SLOTS_MAX = 2
"""Slots that a read of the log found. After more of them the next slot is taken as well, so no try does without."""


class _Claim(Generic[P]):
    """Claims a slot for a proposal, or for what other commits leave of it. For one thread.

    proposal: what is claimed at present.
    """

    def __init__(
        self,
        timeline: Timeline[Tables],
        session: CommitSession,
        service: Service[P],
        view: LogView[Tables],
        candidate: CommitAttempt,
        proposal: ServiceResult,
    ) -> None:
        self._timeline, self._session, self._service = timeline, session, service
        self._view, self._candidate = view, candidate
        self._written = proposal.files
        self.proposal = proposal

    def run(self, *, skew_ms: int) -> Committed | Conflicted:
        """Claim a slot. `Committed.read` starts at the view of the plan. Raises as `Committer.try_commit`."""
        env, committer = self._timeline.fileio.env, self._session.committer
        policy = committer.policy
        began_s, lost, tries = env.monotonic_s(), 0, 0
        is_near = True
        read: list[Entry] = []
        spilled, spilled_before = committer.write_large_changes(self._candidate), list[str]()
        while True:
            hurries = self._service.renew is not None and is_near and tries % HURRIED_TRIES > 0
            self._session.superseded[:] = [*sorted({*self._written} - {*self.proposal.files}), *spilled_before]
            outcome = self._session.try_commit(self._candidate, skew_ms=skew_ms, changes=spilled, hurries=hurries)
            tries, lost = tries + 1, lost + outcome.slots_lost
            if isinstance(outcome, Committed):
                return Committed(outcome.entry, (*read, *outcome.read), lost)
            is_near = hurries or len(outcome.read) <= NEAR_SLOTS_MAX
            proposal = self._narrowed(outcome) or self._renewed(outcome)
            if proposal is None:
                return outcome
            if lost >= policy.slots_max or env.monotonic_s() - began_s > policy.deadline_s:
                raise contended(self._candidate.txn, slots_lost=lost, slot=outcome.read[-1].slot)
            read.extend(outcome.read)
            before = self._candidate
            self._move(proposal, outcome)
            if self._candidate.changes != before.changes:
                spilled_before += [] if spilled[1] is None else [spilled[1].path]
                spilled = committer.write_large_changes(self._candidate)

    def _narrowed(self, outcome: Conflicted) -> ServiceResult | None:
        group_ids = [overlap.group_ids for _, overlap in outcome.overlaps]
        if not all(group_ids):
            return None
        return self._service.narrow(self.proposal, frozenset(group_id for some in group_ids for group_id in some))

    def _renewed(self, outcome: Conflicted) -> ServiceResult | None:
        table = self._service.table
        if self._service.renew is None:
            return None
        if any(table in entry.footprint and entry.footprint[table].restores is not None for entry in outcome.read):
            return None
        before, self._view = self._view, self._timeline.advance(self._view, outcome.read)
        try:
            return self._service.renew(self.proposal, before, self._view)
        except (*LOST_FILE, CheckpointCollected):
            # The next plan finds out what became of them.
            return None

    def _move(self, proposal: ServiceResult, outcome: Conflicted) -> None:
        """Continue with another proposal after the entries that were read."""
        table, summary = self._service.table, proposal.summary
        self.proposal = proposal
        self._candidate = replace(
            self._candidate,
            base=self._candidate.base.advance(outcome.read),
            changes={} if proposal.changes is None else {table: proposal.changes},
            footprint={table: proposal.footprint},
            summary=msgspec.structs.replace(summary, slots_lost=self._lost(outcome)),
            features=proposal.features,
        )
        _check(self._candidate)

    def _lost(self, outcome: Conflicted) -> int:
        own = self._candidate.summary
        return outcome.slots_lost + (0 if own is None else own.slots_lost)
