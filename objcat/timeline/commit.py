"""The commit loop: one slot, claimed by put-if-absent, after every slot below it was read and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, PutOutcome, Written
from fileio.errors import FileIOError
from fileio.store import FileIO
from fileio.wrappers import MetricsSnapshot
from objcat.common.memory_errors import is_full
from objcat.common.validation import instance
from objcat.errors import (
    AlreadyApplied,
    AlreadyDone,
    CommitConflict,
    CommitUnknown,
    Contention,
    CorruptTable,
    SharedTransaction,
    StreamRewound,
    TableNotFound,
    WriterFenced,
)
from objcat.timeline.backoff import SlotBackoff
from objcat.timeline.conflicts import Conflict, find_conflicts
from objcat.timeline.entry import (
    FORMAT_VERSION,
    Action,
    Entry,
    Footprint,
    SideObject,
    Summary,
    Txn,
    check_writable,
    data_prefix,
    decode_entry,
    encode_entry,
    log_key,
)
from objcat.timeline.intents import Intents, remove_files
from objcat.timeline.log import Log
from objcat.timeline.log_state import AppVersion, LogState
from objcat.timeline.side_objects import StoredChanges, get_digests, write_large_changes
from objcat.version import writer_of

__all__ = [
    "CommitAttempt",
    "CommitRetryPolicy",
    "Committed",
    "Committer",
    "Conflicted",
    "check_app_version",
    "check_log_unchanged",
    "fenced_by",
    "remove_files",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetryPolicy:
    """Bounds of one commit.

    slots_max: slots lost to other writers before giving up. deadline_s: from the first try of a slot. pause_s_max: between two tries.
    attempts_max: how often an operation may do its work, when others change what it has read; of those that can redo it.
    """

    slots_max: int = 10_000
    attempts_max: int = 100
    deadline_s: float = 300.0
    pause_s_max: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """An operation that wants a slot.

    base: the log as the operation knows it; all that it read, it read there. changes, footprint: by table id. app: applies to every table
    of the footprint. plan: the txn of the plan that it executes. rollback_of: the transaction that a ROLLBACK fences. summary: what it did,
    as far as it is known before the slot is. began: what the store had been asked when the operation began.
    """

    txn: Txn
    action: Action
    base: LogState
    changes: Mapping[str, msgspec.Raw]
    footprint: Mapping[str, Footprint]
    writer: str = writer_of("local")
    features: Mapping[str, str] = field(default_factory=dict)
    writer_features: Mapping[str, str] = field(default_factory=dict)
    app: AppVersion | None = None
    apps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plan: Txn | None = None
    rollback_of: Txn | None = None
    summary: Summary | None = None
    began: MetricsSnapshot | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is durable at `entry.slot`.

    read: the entries of others between its base and its slot, in order. slots_lost: tries of a slot that others won.
    """

    entry: Entry
    read: tuple[Entry, ...]
    slots_lost: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The candidate cannot stand above the log as it is now; nothing of it is visible, and nothing ever will be in this form.

    overlaps: every later entry that it conflicts with, and why. read: all entries above its base up to the head, judged every one: a
    candidate that redoes what overlaps may go on from there, under the same txn. slots_lost: as in `Committed`.
    """

    txn: Txn
    overlaps: tuple[tuple[Entry, Conflict], ...]
    read: tuple[Entry, ...]
    slots_lost: int

    def error(self, *, attempts: int = 1) -> CommitConflict:
        """What a caller is told who does not redo it, or has done so too often."""
        found, overlap = self.overlaps[0]
        group_ids = tuple(str(group_id) for group_id in overlap.group_ids)
        tried = f"; after {attempts} attempts," if attempts > 1 else ";"
        return CommitConflict(
            f"{self.txn} conflicts with the {found.action} {found.txn} at slot {found.slot}: {overlap.rule}"
            f"{' (' + ', '.join(group_ids[:5]) + ')' if group_ids else ''}{tried} read the table again and write again",
            winner_slot=found.slot,
            file_groups=group_ids,
        )


@dataclass(frozen=True, slots=True)
class _ConflictCheck:
    """Entries above a state, as a candidate sees them. own: the one that settles it, where there is one. read: those before it."""

    own: Entry | None
    read: tuple[Entry, ...]
    overlaps: tuple[tuple[Entry, Conflict], ...]


class Committer:
    """Commits to one log. Safe for many threads and processes: the store is the only referee."""

    def __init__(self, fileio: FileIO, policy: CommitRetryPolicy | None = None) -> None:
        self.fileio = fileio
        self._log = Log(fileio)
        self.intents = Intents(fileio)
        self.policy = policy or CommitRetryPolicy()

    def announce(self, txn: Txn, action: Action, base: LogState, *, engine: str, plan_of: Txn | None = None) -> Future[int]:
        """The first step of whatever wants a slot: see `Intents.announce`.

        base: the log as the operation knows it. Raises UnsupportedFormat, before anything is written, when it may only be written by newer
        clients. What is returned raises TableNotFound, and nothing is written, when the log of the base is not there any more.
        """
        check_writable(base.writer_features, where=self.fileio.url)
        return self.intents.announce(txn, action, base.slot, engine=engine, plan_of=plan_of, first=partial(self._look_at_base, base))

    def announce_if_slow(self, txn: Txn, action: Action, base: LogState, *, engine: str) -> Callable[[], int]:
        """The first step of a write, whose files tell of it where it dies young: see `Intents.announce_if_slow`. Raises as `announce`."""
        check_writable(base.writer_features, where=self.fileio.url)
        return self.intents.announce_if_slow(txn, action, base.slot, engine=engine)

    def delete_intent(self, txn: Txn, *, plan: Txn | None = None) -> Future[None]:
        """See `Intents.delete_intent`."""
        return self.intents.delete_intent(txn, plan=plan)

    def discard(self, txn: Txn, *, plan: Txn | None = None) -> None:
        """Remove all that a transaction has left which is certainly not committed, and never will be: its files, and its intent last.

        Best effort: what stays is garbage. Files of tasks that failed are known by their prefix only. plan: of it, when it is settled too.
        """
        try:
            self._discard(txn, plan)
        except Exception as error:
            if not is_full(error):
                raise
            # The sweep removes them, and must not think that the writer lives.
            self.intents.stop_heartbeat(txn)

    def _discard(self, txn: Txn, plan: Txn | None) -> None:
        try:
            keys = list(self.fileio.list_keys(data_prefix(txn)))
        except FileIOError:
            keys = []
        if keys:
            remove_files(self.fileio, keys, why=txn)
        self.delete_intent(txn, plan=plan).result()

    def commit(self, candidate: CommitAttempt, *, skew_ms: int = 0) -> Committed:
        """`try_commit`, for an operation that is not redone: raises CommitConflict where that returns Conflicted."""
        outcome = self.try_commit(candidate, skew_ms=skew_ms)
        if isinstance(outcome, Conflicted):
            raise outcome.error()
        return outcome

    def try_commit(
        self, candidate: CommitAttempt, *, skew_ms: int = 0, changes: StoredChanges | None = None, hurries: bool = False
    ) -> Committed | Conflicted:
        """Claim a slot above the candidate's base.

        changes: of the candidate, as `write_large_changes` has put them; they are put here when None. hurries: of a slot that is lost only
        that slot is read, and the next one is asked for at once, without a pause: for a candidate that others have passed by before.
        skew_ms: from `announce`. The time of a commit is the store's, whatever the local clock says, and at least 1 ms after the commit
        before it. A store without a clock cannot tell who is right: there the local clock is recorded. One that is behind is recorded as 1
        ms after the commit before; one that is ahead takes the times of all later commits along, until the others have caught up. Raises
        WriterFenced, AlreadyApplied, AlreadyDone, StreamRewound, Contention and UnsupportedFormat (certain: nothing of it is visible),
        CommitUnknown and SharedTransaction (delete nothing), and storage errors that certainly had no effect."""
        try:
            return self._try_commit(candidate, changes, skew_ms=skew_ms, hurries=hurries)
        except CommitUnknown:
            self.intents.leave(candidate.txn)
            raise
        except BaseException as error:
            if isinstance(error, SharedTransaction) or not isinstance(error, Exception):
                self.intents.stop_heartbeat(candidate.txn)
            raise

    def write_large_changes(self, candidate: CommitAttempt) -> StoredChanges:
        """Put the changes of a candidate where its entry will name them, for several tries with the same changes. Raises storage errors."""
        return write_large_changes(self.fileio, candidate.txn, candidate.changes)

    def _try_commit(
        self, candidate: CommitAttempt, spilled: StoredChanges | None, *, skew_ms: int, hurries: bool
    ) -> Committed | Conflicted:
        env = self.fileio.env
        check_writable({**candidate.base.writer_features, **candidate.writer_features}, where=self.fileio.url)
        check_app_version(candidate.app, candidate.footprint, candidate.base)
        changes, side = spilled or self.write_large_changes(candidate)
        began_s = env.monotonic_s()
        turns = SlotBackoff(env, candidate.base.slot, pause_s_max=self.policy.pause_s_max)
        state = candidate.base
        read: list[Entry] = []
        slots_lost = 0
        while True:
            entry = _entry_of(candidate, state, changes, side, self._summary(candidate, slots_lost), now_ms=env.now_ms() + skew_ms)
            taken_by: GetResult | None = None
            match self._put(entry):
                case Written():
                    return Committed(msgspec.structs.replace(entry, changes=dict(candidate.changes)), tuple(read), slots_lost)
                case OutcomeUnknown(cause):
                    taken = self._look_at(entry.slot)
                    if taken is None:
                        raise CommitUnknown(
                            f"whether {candidate.txn} was committed at slot {entry.slot} is not known ({cause}): nothing was deleted; "
                            "table.resolve(txn) settles it, before you write again",
                            candidate.txn,
                        ) from cause
                    if taken.txn == candidate.txn:
                        _check_is_ours(entry, taken)
                        return Committed(msgspec.structs.replace(entry, changes=dict(candidate.changes)), tuple(read), slots_lost)
                case PreconditionFailed(found=taken_by):
                    pass
            slots_lost += 1  # For certain: a slot never changes hands.
            # Others go first before the log is read: what is claimed after a pause, upon an older look, is lost to whoever does not pause.
            before = 0 if hurries else turns.wait(entry.slot)
            until = entry.slot if hurries else None
            later = self._judge(candidate, state, first=taken_by, expected=before, until=until)
            turns.saw(later.read)
            read += later.read
            state = state.advance(later.read)
            if later.own is not None:
                _check_is_ours(entry, later.own)
                return Committed(later.own, tuple(read), slots_lost)
            if later.overlaps:
                return Conflicted(candidate.txn, later.overlaps, tuple(read), slots_lost)
            if slots_lost >= self.policy.slots_max or env.monotonic_s() - began_s > self.policy.deadline_s:
                raise contended(candidate.txn, slots_lost=slots_lost, slot=entry.slot)

    def recheck_conflicts(self, candidate: CommitAttempt, beaten: Conflicted) -> Conflicted:
        """What the candidate cannot stand above, with what came since it was beaten: for whoever has waited before doing it again.

        Raises as `try_commit`.
        """
        later = self._judge(candidate, candidate.base.advance(beaten.read))
        assert later.own is None, "every slot that was tried is somebody else's"
        return replace(beaten, overlaps=(*beaten.overlaps, *later.overlaps), read=(*beaten.read, *later.read))

    def _judge(
        self, candidate: CommitAttempt, state: LogState, *, first: GetResult | None = None, expected: int = 0, until: int | None = None
    ) -> _ConflictCheck:
        """Judge every entry above `state`. first, expected, until: see `Log.read_after`. Raises when the candidate may not go on."""
        read: list[Entry] = []
        overlaps: list[tuple[Entry, Conflict]] = []
        for entry in self._log.read_after(state.slot, until=until, window=2, expected=expected, first=first):
            own = _settled_by(candidate, entry)
            if own is not None:
                return _ConflictCheck(own, tuple(read), tuple(overlaps))
            overlaps.extend((entry, overlap) for overlap in self._overlaps(candidate, entry))
            read.append(entry)
            state = state.advance([entry])
        check_writable(state.writer_features, where=self.fileio.url)
        check_app_version(candidate.app, candidate.footprint, state)
        return _ConflictCheck(None, tuple(read), tuple(overlaps))

    def pause(self, before_s: float, *, took_s: float) -> float:
        """Let others go first: between a part of what a try takes and thrice the pause before, at random.

        Returns the pause, in seconds. The measure is the try itself, so that a slow store is not asked more often than it answers.
        """
        pause_s = min(self.policy.pause_s_max, took_s / 2 + self.fileio.env.random() * max(0.0, 3 * before_s - took_s / 2))
        self.fileio.env.sleep(pause_s)
        return pause_s

    def _summary(self, candidate: CommitAttempt, slots_lost: int) -> Summary | None:
        """What the entry says of the operation, the put of the slot itself included."""
        if candidate.summary is None:
            return None
        requests: dict[str, int] = {}
        if candidate.began is not None:
            requests = dict((self.fileio.metrics.snapshot() - candidate.began).requests)
            requests["put_create"] = requests.get("put_create", 0) + 1
        return msgspec.structs.replace(candidate.summary, slots_lost=candidate.summary.slots_lost + slots_lost, requests=requests)

    def _put(self, entry: Entry) -> PutOutcome:
        return self.fileio.put(log_key(entry.slot), encode_entry(entry), Create(), want_found=True)

    def _look_at_base(self, base: LogState) -> None:
        """Raises as `check_log_unchanged`."""
        if base.slot >= 0:
            check_log_unchanged(base, self._log.read_stub(base.slot), where=self.fileio.url)

    def _look_at(self, slot: int) -> Entry | None:
        """The entry of a slot, as far as it says whose it is; None when that cannot be told now."""
        try:
            return self._log.read_stub(slot)
        except (FileIOError, CorruptTable):
            return None

    def _overlaps(self, candidate: CommitAttempt, found: Entry) -> Sequence[Conflict]:
        if candidate.action is Action.CREATE and candidate.base.slot < 0:
            return [Conflict("a table was created here first", ())]
        return find_conflicts(candidate.action, candidate.footprint, found, partial(get_digests, self.fileio))


def check_log_unchanged(base: LogState, found: Entry | None, *, where: str) -> None:
    """Refuse to write above a log that somebody deleted, or replaced by another one, since it was read: no reader would come that far.

    found: what is in the slot of the base now. Deleting objects by hand is outside of the protocol: this finds it unless it happens in the
    moment between this look and the commit. Raises TableNotFound.
    """
    if found is None or found.committed_at_ms != base.committed_at_ms:
        raise TableNotFound(
            f"slot {base.slot} of the log at {where} is gone or another one: it was deleted by hand under this handle; "
            "open it again; nothing was written"
        )


def _entry_of(
    candidate: CommitAttempt,
    state: LogState,
    changes: dict[str, msgspec.Raw],
    side: SideObject | None,
    summary: Summary | None,
    *,
    now_ms: int,
) -> Entry:
    """The entry that takes the slot above `state`."""
    apps = {table: dict(versions) for table, versions in candidate.apps.items()}
    if candidate.app is not None:
        apps |= {table: {candidate.app.app: candidate.app.version} for table in candidate.footprint}
    return Entry(
        format=FORMAT_VERSION,
        slot=state.slot + 1,
        action=candidate.action,
        txn=candidate.txn,
        base=candidate.base.slot,
        committed_at_ms=max(state.committed_at_ms + 1, now_ms),
        writer=candidate.writer,
        features=dict(candidate.features),
        writer_features=dict(candidate.writer_features),
        changes=changes,
        side=side,
        footprint=dict(candidate.footprint),
        apps=apps,
        plan=candidate.plan,
        rollback_of=candidate.rollback_of,
        summary=summary,
        metadata=dict(candidate.metadata),
    )


def _settled_by(candidate: CommitAttempt, found: Entry) -> Entry | None:
    """The entry that settles the candidate, when that is what was found; None when it does not concern it. Raises when it may not go on.

    A ROLLBACK is settled by whatever settles its target: the target's own commit, or another rollback of it.
    """
    if found.txn == candidate.txn:
        return found
    if candidate.rollback_of is not None and candidate.rollback_of in (found.txn, found.rollback_of):
        return found
    if found.rollback_of == candidate.txn:
        raise fenced_by(found)
    if candidate.plan is not None and found.rollback_of == candidate.plan:
        raise WriterFenced(f"the plan {candidate.plan} was rolled back at slot {found.slot} by {found.txn}: plan again")
    if candidate.plan is not None and candidate.plan in (found.plan, found.txn):
        raise AlreadyDone(f"the plan {candidate.plan} was executed by {found.txn} at slot {found.slot}", winner_slot=found.slot)
    return None


def outcome_unknown_after(txn: Txn, error: Exception) -> CommitUnknown:
    """What is said where something from outside ends a claim. Neither the store nor the log says this: it is a signal's handler, or a full
    memory."""
    return CommitUnknown(
        f"whether {txn} was committed is not known, as it was interrupted while it asked for a slot ({type(error).__name__}: {error}): "
        "nothing was deleted; table.resolve(txn) settles it, before you write again",
        txn,
    )


def contended(txn: Txn, *, slots_lost: int, slot: int) -> Contention:
    """What a writer is told that gives up. slot: the last one that it lost."""
    return Contention(
        f"{txn} lost {slots_lost} slots in turn to other writers, the last one at slot {slot}: write again, with fewer writers",
        winner_slot=slot,
    )


def fenced_by(rollback: Entry) -> WriterFenced:
    """What a writer is told that finds its own rollback in the log."""
    return WriterFenced(
        f"{rollback.rollback_of} was rolled back at slot {rollback.slot} by {rollback.txn}, which thought its writer dead: write again"
    )


def _check_is_ours(own: Entry, found: Entry) -> None:
    """Raises SharedTransaction when the entry that is found of our txn does something else than ours: two operations drew the same id.

    Files have names of their own, so operations that do the same are one: a committer that was asked twice, say.
    """
    if found.txn != own.txn or found.history is not None or found.erased:
        return  # Another txn settles a ROLLBACK. What stands in the place of an archived or an erased entry does not say what changed.
    if _did(decode_entry(encode_entry(own), key=log_key(own.slot))) != _did(found):
        raise SharedTransaction(
            f"slot {found.slot} is of another operation that has the id of this one, {own.txn}: nothing of this one is visible, and its "
            "files stay where they are; write again, and find out why random numbers repeat on this machine"
        )


def _did(entry: Entry) -> object:
    """What the operation of an entry changed."""
    if entry.side is not None:
        return entry.action, entry.side.sha256
    return entry.action, {table: msgspec.json.decode(raw) for table, raw in entry.changes.items()} or entry.footprint


def check_app_version(own: AppVersion | None, tables: Iterable[str], state: LogState) -> None:
    """Raises AlreadyApplied, StreamRewound or CommitConflict when the log, as far as it is known, says that the application must not write
    this."""
    if own is None:
        return
    instance(own, AppVersion, what="app", such_as="an objcat.AppVersion(app='...', version=...)")
    for table in tables:
        reached = state.marks(table).apps.get(own.app)
        if reached is None:
            continue
        is_next = own.since == reached.version
        if reached.rewound_at is not None and not is_next and (own.resumed_after or -1) < reached.rewound_at:
            raise StreamRewound(
                f"the RESTORE at slot {reached.rewound_at} took back what {own.app!r} had written after version {reached.version}: start "
                f"it again from version {reached.version + 1}, with resumed_after={reached.rewound_at}; nothing was written",
                winner_slot=reached.rewound_at,
            )
        if reached.version >= own.version:
            raise AlreadyApplied(
                f"version {own.version} of {own.app!r} is in table {table} already: slot {reached.slot} brought version {reached.version}",
                winner_slot=reached.slot,
            )
        if own.since is not None and not is_next:
            raise CommitConflict(
                f"version {own.version} of {own.app!r} builds on version {own.since}, and slot {reached.slot} brought version "
                f"{reached.version} to table {table}: read what comes after that, and write again; nothing was written",
                winner_slot=reached.slot,
            )
