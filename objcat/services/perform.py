"""How every service runs: a plan from a view, tasks that write data, one slot; a service that loses yields, and plans again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from fileio.wrap import MetricsSnapshot
from objcat.errors import (
    AlreadyDone,
    CheckpointCollected,
    CommitUnknown,
    CorruptTable,
    ObjcatError,
    SharedTransaction,
    SnapshotExpired,
    SparkJobFailed,
)
from objcat.table import Tables
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
    LogState,
    Summary,
    Timeline,
    Txn,
    View,
    new_txn,
)
from objcat.timeline.commit import check_app, interrupted, remove_files
from objcat.version import writer_of

P = TypeVar("P")

LOST_FILE = (CorruptTable, SparkJobFailed)
"""What the loss of a file that is read ends in, by whoever reads it: readers of Spark's own have their own words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a service wants to commit to one table. files: data files that it wrote and names. features: as of `Candidate`."""

    footprint: Footprint
    changes: msgspec.Raw | None = None
    apps: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)
    files: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Generic[P]):
    """One service on one table: `plan` decides, `run` works, and neither claims anything.

    plan: what there is to do as of a view, None for nothing; it writes nothing, and raises what refuses the service for good. run: does the
    work of a plan under a transaction. plan_txn: of the plan, when it was left for whoever executes it first. narrow: what is left of a
    proposal when others took these homes, None when it has to be planned anew. app: when it must count once, however often it is tried.
    """

    action: Action
    table: str
    plan: Callable[[View[Tables]], P | None]
    run: Callable[[P, Txn], Proposal]
    plan_txn: Txn | None = None
    narrow: Callable[[Proposal, frozenset[Home]], Proposal | None] = lambda _proposal, _taken: None
    app: AppVersion | None = None


@dataclass(frozen=True, slots=True)
class Done(Generic[P]):
    """A service that has its slot. log: as of that slot. slots_lost: slots that others took first. attempts: plans that were run."""

    entry: Entry
    plan: P
    proposal: Proposal
    log: LogState
    slots_lost: int = 0
    attempts: int = 1


def perform(timeline: Timeline[Tables], service: Service[P], view: View[Tables], *, replans: bool = True) -> Done[P] | None:
    """Plan, run and commit; None when there is nothing to do. Safe beside every writer and every other service.

    view: where to begin. replans: whether another plan than that of `view` will do; else the first conflict is raised.
    Raises CommitConflict (also after as many plans as the policy of commits allows attempts), AlreadyDone, Fenced, Contention and storage
    errors: nothing is visible, and own files are removed. Raises CommitUnknown (nothing was deleted), and what `service.plan` raises.
    """
    env = timeline.fileio.env
    committer = Committer(timeline.fileio)
    began_s, pause_s = env.monotonic_s(), 0.0
    for attempt in range(1, committer.policy.attempts_max + 1):
        again = replans and attempt < committer.policy.attempts_max
        check_app(service.app, [service.table], view.log)
        try:
            plan = service.plan(view)
        except CheckpointCollected:
            # The view stands on a checkpoint that was collected meanwhile: the log has a newer one.
            if not again:
                raise
            view = timeline.open()
            continue
        except LOST_FILE as error:
            # A plan that reads rows may find their files cleaned, as its work may.
            expired = _expired(timeline.fileio, service.table, view)
            if expired is None:
                raise
            if not again:
                raise expired from error
            view = timeline.refresh(view)
            continue
        if plan is None:
            return None
        done = _once(timeline.fileio, committer, service, plan, view, again=again)
        if done is not None:
            return replace(done, attempts=attempt)
        if attempt > 1:
            pause_s = committer.pause(pause_s, took_s=(env.monotonic_s() - began_s) / attempt)
        view = timeline.refresh(view)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _once(fileio: FileIO, committer: Committer, service: Service[P], plan: P, view: View[Tables], *, again: bool) -> Done[P] | None:
    """One attempt; None when it was beaten, its traces are gone and another plan may do better."""
    txn = new_txn(fileio.env)
    began = fileio.metrics.snapshot()
    intent = committer.announce(txn, service.action, view.log, engine="service", plan_of=service.plan_txn)
    try:
        candidate, proposal = _prepare(service, plan, view, txn, began, fileio)
        skew_ms = intent.result()
    except SharedTransaction:
        committer.intents.silence(txn)
        raise
    except Exception as error:
        # No slot was asked for, so none can be ours.
        intent.exception()
        committer.discard(txn)
        if again and isinstance(error, SnapshotExpired):
            return None
        raise
    except BaseException:
        committer.intents.silence(txn)
        raise
    try:
        outcome, kept = _claim(committer, service, candidate, proposal, skew_ms=skew_ms)
    except (CommitUnknown, SharedTransaction):
        raise
    except (ObjcatError, FileIOError) as error:
        committer.discard(txn, plan=service.plan_txn if isinstance(error, AlreadyDone) else None)
        raise
    except Exception as error:
        committer.intents.leave(txn)
        raise interrupted(txn, error) from error
    except BaseException:
        # Nobody knows how far it came: whoever finds the intent settles it.
        committer.intents.silence(txn)
        raise
    if isinstance(outcome, Beaten):
        committer.discard(txn)
        if again:
            return None
        raise outcome.error()
    committer.retract(txn, plan=service.plan_txn)
    unnamed = sorted({*proposal.files} - {*kept.files})
    if unnamed:
        remove_files(fileio, unnamed, why=txn)
    return Done(outcome.entry, plan, kept, view.log.advance([*outcome.read, outcome.entry]), outcome.slots_lost)


def _prepare(
    service: Service[P], plan: P, view: View[Tables], txn: Txn, began: MetricsSnapshot, fileio: FileIO
) -> tuple[Candidate, Proposal]:
    """Do the work of a plan. Raises SnapshotExpired when its files were cleaned meanwhile."""
    try:
        proposal = service.run(plan, txn)
    except LOST_FILE as error:
        expired = _expired(fileio, service.table, view)
        if expired is None:
            raise
        raise expired from error
    candidate = Candidate(
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
    return candidate, proposal


def _expired(fileio: FileIO, table: str, view: View[Tables]) -> SnapshotExpired | None:
    """Why a file that a view names may be missing; None when nothing has cleaned it."""
    marks = view.log.advance(Log(fileio).read_after(view.slot)).marks(table)
    if marks.is_readable(view.slot):
        return None
    return SnapshotExpired(
        f"slot {view.slot} of {fileio.url} was cleaned while a service read it (the bound is {marks.bound} now): plan again"
    )


def _claim(
    committer: Committer, service: Service[P], candidate: Candidate, proposal: Proposal, *, skew_ms: int
) -> tuple[Committed | Beaten, Proposal]:
    """Claim a slot for a proposal, or for what is left of it after others took some of its homes. Committed.read goes back to its base."""
    read: list[Entry] = []
    while True:
        outcome = committer.try_commit(candidate, skew_ms=skew_ms)
        if isinstance(outcome, Committed):
            return Committed(outcome.entry, (*read, *outcome.read), outcome.slots_lost), proposal
        homes = [overlap.homes for _, overlap in outcome.overlaps]
        left = service.narrow(proposal, frozenset(home for some in homes for home in some)) if all(homes) else None
        if left is None:
            return outcome, proposal
        read.extend(outcome.read)
        proposal = left
        candidate = replace(
            candidate,
            base=candidate.base.advance(outcome.read),
            changes={} if left.changes is None else {service.table: left.changes},
            footprint={service.table: left.footprint},
            summary=left.summary,
            features=left.features,
        )
