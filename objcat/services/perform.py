"""How every service runs: a plan from a view, tasks that write data, one slot; a service that loses yields, and plans again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import msgspec

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import CheckpointCollected, CommitUnknown, CorruptTable, ObjcatError, SnapshotExpired
from objcat.table import Tables
from objcat.timeline import Action, Beaten, Candidate, Committed, Committer, Entry, Footprint, Home, Summary, Timeline, Txn, View, new_txn
from objcat.timeline.commit import remove_files
from objcat.timeline.entry import data_prefix

ATTEMPTS_MAX = 10

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a service wants to commit to one table. files: data files that it wrote and names."""

    footprint: Footprint
    changes: msgspec.Raw | None = None
    apps: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    plan: Txn | None = None
    summary: Summary = field(default_factory=Summary)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Generic[P]):
    """One service on one table: `plan` decides, `run` works, and neither claims anything.

    plan: what there is to do as of a view, None for nothing; it writes nothing, and raises what refuses the service for good. run: does the
    work of a plan under a transaction. narrow: what is left of a proposal when others took these homes, None when it has to be planned
    anew.
    """

    action: Action
    table: str
    plan: Callable[[View[Tables]], P | None]
    run: Callable[[P, Txn], Proposal]
    narrow: Callable[[Proposal, frozenset[Home]], Proposal | None] = lambda _proposal, _taken: None


@dataclass(frozen=True, slots=True)
class Done(Generic[P]):
    """A service that has its slot. view: the newest one known, its own slot included."""

    committed: Committed
    plan: P
    proposal: Proposal
    view: View[Tables]


def perform(timeline: Timeline[Tables], service: Service[P], view: View[Tables], *, replans: bool = True) -> Done[P] | None:
    """Plan, run and commit; None when there is nothing to do. Safe beside every writer and every other service.

    view: where to begin. replans: whether another plan than that of `view` will do; else the first conflict is raised.
    Raises CommitConflict (also after `ATTEMPTS_MAX` plans), AlreadyDone, Fenced, Contention and storage errors: nothing is visible, and own
    files are removed. Raises CommitUnknown (nothing was deleted), and what `service.plan` raises.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            plan = service.plan(view)
        except CheckpointCollected:
            # The view stands on a checkpoint that was collected meanwhile: the log has a newer one.
            if not replans or attempt == ATTEMPTS_MAX:
                raise
            view = timeline.open()
            continue
        if plan is None:
            return None
        outcome = _once(timeline, service, plan, view, again=replans and attempt < ATTEMPTS_MAX)
        if outcome is not None:
            return outcome
        view = timeline.refresh(view)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _once(timeline: Timeline[Tables], service: Service[P], plan: P, view: View[Tables], *, again: bool) -> Done[P] | None:
    """One attempt; None when it was beaten, its traces are gone and another plan may do better."""
    fileio = timeline.fileio
    committer = Committer(fileio)
    txn = new_txn(fileio.env)
    began = fileio.metrics.snapshot()
    intent = committer.announce(txn, service.action, view.slot, engine="service")
    try:
        try:
            proposal = service.run(plan, txn)
        except CorruptTable as error:
            _check_expired(timeline, service.table, view, error)
            raise
        candidate = Candidate(
            txn=txn,
            action=service.action,
            base=view.log,
            changes={} if proposal.changes is None else {service.table: proposal.changes},
            footprint={service.table: proposal.footprint},
            apps={service.table: dict(proposal.apps)} if proposal.apps else {},
            plan=proposal.plan,
            summary=proposal.summary,
            began=began,
            metadata=proposal.metadata,
        )
        skew_ms = intent.result()
    except SnapshotExpired:
        _clean_up(committer, fileio, txn, intent.exception)
        if again:
            return None
        raise
    except Exception:
        # No slot was asked for, so none can be ours.
        _clean_up(committer, fileio, txn, intent.exception)
        raise
    try:
        outcome, kept = _claim(committer, service, candidate, proposal, skew_ms=skew_ms)
    except CommitUnknown:
        raise
    except (ObjcatError, FileIOError):
        _clean_up(committer, fileio, txn, intent.exception)
        raise
    if isinstance(outcome, Beaten):
        _clean_up(committer, fileio, txn, intent.exception)
        if again:
            return None
        raise outcome.error()
    committer.retract(txn)
    unnamed = sorted({*proposal.files} - {*kept.files})
    if unnamed:
        remove_files(fileio, unnamed, why=txn)
    newest = timeline.advance(view, [*outcome.read, outcome.entry])
    return Done(outcome, plan, kept, newest)


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
        )


def _check_expired(timeline: Timeline[Tables], table: str, view: View[Tables], error: CorruptTable) -> None:
    """Raises SnapshotExpired when a file is missing because cleaning has passed the view that the plan was made from."""
    marks = timeline.refresh(view).log.marks(table)
    if not marks.is_readable(view.slot):
        raise SnapshotExpired(
            f"slot {view.slot} of {timeline.fileio.url} was cleaned while a service read it (the bound is {marks.bound} now): plan again"
        ) from error


def _clean_up(committer: Committer, fileio: FileIO, txn: Txn, wait: Callable[[], object]) -> None:
    """Remove what a transaction left that is certainly not committed, its intent last."""
    wait()
    try:
        keys = list(fileio.list_keys(data_prefix(txn)))
    except FileIOError:
        keys = []
    if keys:
        remove_files(fileio, keys, why=txn)
    committer.retract(txn).result()
