"""The commit loop: a writer claims one log slot by put-if-absent.

`Committer.try_commit` is the place to begin. It puts an entry at the next free slot. If another writer has that slot, it reads the entry
there, checks it for conflicts (`conflicts`), and goes on with the slot after it. Every slot between the base and the claimed slot was read
and checked before the claim.

It promises: a `Committed` result is durable. A `Conflicted` result, and every error but `CommitUnknown` and `SharedTransaction`, means that
nothing of the attempt is visible. An unknown outcome of a put is read back from the log before anything is reported.

`CommitSession` calls it for every writer: writes, table services, catalog changes, rollbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, PutOutcome, Written
from fileio.errors import FileIOError
from fileio.store import FileIO
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
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy, Committed, Conflicted
from objcat.timeline.backoff import SlotBackoff
from objcat.timeline.conflicts import Conflict, find_conflicts
from objcat.timeline.entry import (
    FORMAT_VERSION,
    POSITIONS,
    Action,
    Entry,
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
from objcat.timeline.log import LOOK_BEYOND_S, Log
from objcat.timeline.log_state import AppVersion, LogState
from objcat.timeline.position import check_position
from objcat.timeline.side_objects import StoredChanges, get_digests, write_large_changes
from objcat.timeline.turns import TurnSeeker


@dataclass(frozen=True, slots=True)
class _ConflictCheck:
    """The entries above a state, as checked for one attempt.

    Args:
        own: The entry that settles the attempt, if there is one.
        read: The entries before it.
    """

    own: Entry | None
    read: tuple[Entry, ...]
    overlaps: tuple[tuple[Entry, Conflict], ...]


class Committer:
    """Commits to one log. Safe for many threads and processes: only the store decides who has a slot."""

    def __init__(self, fileio: FileIO, policy: CommitRetryPolicy | None = None) -> None:
        self.fileio = fileio
        self._log = Log(fileio)
        self.intents = Intents(fileio)
        self.policy = policy or CommitRetryPolicy()

    def announce(self, txn: Txn, action: Action, base: LogState, *, engine: str, plan_of: Txn | None = None) -> Future[int]:
        """Begin an operation that wants a slot: put its intent. See `Intents.announce`.

        The returned future raises TableNotFound when the log of the base is gone. Then nothing was written.

        Args:
            base: The log as the operation knows it.

        Raises:
            UnsupportedFormat: Only newer clients may write this log. Nothing was written.
        """
        check_writable(base.writer_features, where=self.fileio.url)
        return self.intents.announce(txn, action, base.slot, engine=engine, plan_of=plan_of, first=partial(self._look_at_base, base))

    def announce_if_slow(self, txn: Txn, action: Action, base: LogState, *, engine: str) -> Callable[[], int]:
        """Begin a write. It puts an intent only when it is slow: see `Intents.announce_if_slow`.

        The files of a write tell that it existed, should it die early. Raises as `announce`.
        """
        check_writable(base.writer_features, where=self.fileio.url)
        return self.intents.announce_if_slow(txn, action, base.slot, engine=engine)

    def delete_intent(self, txn: Txn, *, plan: Txn | None = None) -> Future[None]:
        """See `Intents.delete_intent`."""
        return self.intents.delete_intent(txn, plan=plan)

    def discard(self, txn: Txn, *, plan: Txn | None = None) -> None:
        """Delete the files of a transaction that certainly is not committed, and its intent last.

        Best effort: what stays is garbage. Files of failed tasks are known by their prefix only.

        Args:
            plan: The plan of the transaction, if it is settled too.
        """
        try:
            self._discard(txn, plan)
        except Exception as error:
            if not is_full(error):
                raise
            # The rollback of dead writers removes them. It must not take this writer for alive.
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
        """`try_commit`, without repeated work. Raises CommitConflict instead of returning Conflicted."""
        outcome = self.try_commit(candidate, skew_ms=skew_ms)
        if isinstance(outcome, Conflicted):
            raise outcome.error()
        return outcome

    def try_commit(
        self,
        candidate: CommitAttempt,
        *,
        skew_ms: int = 0,
        changes: StoredChanges | None = None,
        hurries: bool = False,
        seeker: TurnSeeker | None = None,
    ) -> Committed | Conflicted:
        """Claim a slot above the base of the attempt.

        The commit time is the store's, whatever the local clock says, and at least 1 ms after the previous commit. A store without a clock
        cannot tell who is right, so the local clock is recorded. A clock that is behind records 1 ms after the previous commit. A clock
        that is ahead moves the times of all later commits with it, until the others catch up.

        Args:
            candidate: The attempt.
            skew_ms: How far the store's clock is ahead, from `announce`.
            changes: The changes as `write_large_changes` has stored them. None: they are stored here.
            hurries: After a lost slot, read that slot only and ask for the next one without a pause. For an attempt that others have
                overtaken before.
            seeker: Is told of lost slots over all tries of the transaction. None: nobody is asked for a turn.

        Returns:
            Committed, or Conflicted when a later entry conflicts.

        Raises:
            WriterFenced, AlreadyApplied, AlreadyDone, StreamRewound, PositionConflict, Contention, UnsupportedFormat: Nothing of it is
                visible, for certain.
            CommitUnknown, SharedTransaction: Delete nothing.
            FileIOError: A storage error that certainly had no effect.
        """
        try:
            return self._try_commit(candidate, changes, skew_ms=skew_ms, hurries=hurries, seeker=seeker)
        except CommitUnknown:
            self.intents.leave(candidate.txn)
            raise
        except BaseException as error:
            if isinstance(error, SharedTransaction) or not isinstance(error, Exception):
                self.intents.stop_heartbeat(candidate.txn)
            raise

    def write_large_changes(self, candidate: CommitAttempt) -> StoredChanges:
        """Store the changes where the entry will name them, once for several tries. Raises storage errors."""
        return write_large_changes(self.fileio, candidate.txn, candidate.changes)

    def _try_commit(
        self, candidate: CommitAttempt, spilled: StoredChanges | None, *, skew_ms: int, hurries: bool, seeker: TurnSeeker | None
    ) -> Committed | Conflicted:
        env = self.fileio.env
        check_writable({**candidate.base.writer_features, **candidate.writer_features}, where=self.fileio.url)
        _check_versions(candidate, candidate.base)
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
                            f"It is not known whether {candidate.txn} was committed at slot {entry.slot} ({cause}). Nothing was deleted. "
                            "Call table.resolve(txn) before you write again. It settles the outcome.",
                            candidate.txn,
                        ) from cause
                    if taken.txn == candidate.txn:
                        _check_is_ours(entry, taken)
                        return Committed(msgspec.structs.replace(entry, changes=dict(candidate.changes)), tuple(read), slots_lost)
                case PreconditionFailed(found=taken_by):
                    pass
            slots_lost += 1  # For certain: a slot never changes hands.
            # Pause before reading the log: a claim after a pause, from an older read, loses to every writer that does not pause.
            before = 0 if hurries else turns.wait(entry.slot)
            until = entry.slot if hurries else None
            later = self._judge(candidate, state, first=taken_by, expected=before, until=until)
            turns.saw(later.read)
            read += later.read
            state = state.advance(later.read)
            if later.own is not None:
                _check_is_ours(entry, later.own)
                return Committed(later.own, tuple(read), slots_lost)
            if seeker is not None:
                seeker.lost(later.read)
            if later.overlaps:
                return Conflicted(candidate.txn, later.overlaps, tuple(read), slots_lost)
            if slots_lost >= self.policy.slots_max or env.monotonic_s() - began_s > self.policy.deadline_s:
                raise contended(candidate.txn, slots_lost=slots_lost, slot=entry.slot)

    def recheck_conflicts(self, candidate: CommitAttempt, conflicted: Conflicted) -> Conflicted:
        """The conflicts of an attempt, with those of entries that came since. For a caller that waited before it repeats the work.

        Raises as `try_commit`.
        """
        later = self._judge(candidate, candidate.base.advance(conflicted.read))
        assert later.own is None, "every slot that was tried belongs to another transaction"
        return replace(conflicted, overlaps=(*conflicted.overlaps, *later.overlaps), read=(*conflicted.read, *later.read))

    def _judge(
        self, candidate: CommitAttempt, state: LogState, *, first: GetResult | None = None, expected: int = 0, until: int | None = None
    ) -> _ConflictCheck:
        """Check every entry above `state`. first, expected, until: see `Log.read_after`. Raises when the attempt must stop."""
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
        _check_versions(candidate, state)
        return _ConflictCheck(None, tuple(read), tuple(overlaps))

    def pause(self, before_s: float, *, took_s: float) -> float:
        """Let others go first: between half of a try's time and three times the previous pause, at random.

        The measure is the try itself, so that a slow store is not asked more often than it answers.

        Args:
            before_s: The previous pause, in seconds.
            took_s: How long the try took, in seconds.

        Returns:
            The pause, in seconds.
        """
        pause_s = min(self.policy.pause_s_max, took_s / 2 + self.fileio.env.random() * max(0.0, 3 * before_s - took_s / 2))
        self.fileio.env.sleep(pause_s)
        return pause_s

    def _summary(self, candidate: CommitAttempt, slots_lost: int) -> Summary | None:
        """What the entry says of the operation, including the put of the slot itself."""
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
        """Check that the log is still there. Raises as `check_log_unchanged`."""
        if base.slot >= 0:
            found = self._log.read_base(base.slot, is_old=is_old(base, self.fileio))
            check_log_unchanged(base, found, where=self.fileio.url)

    def _look_at(self, slot: int) -> Entry | None:
        """The entry of a slot, to see whose it is. None when it cannot be read now."""
        try:
            return self._log.read_stub(slot)
        except (FileIOError, CorruptTable):
            return None

    def _overlaps(self, candidate: CommitAttempt, found: Entry) -> Sequence[Conflict]:
        if candidate.action is Action.CREATE and candidate.base.slot < 0:
            return [Conflict("another table was created here first", ())]
        return find_conflicts(candidate.action, candidate.footprint, found, partial(get_digests, self.fileio))


def is_old(base: LogState, fileio: FileIO) -> bool:
    """Whether the last slot that a writer knows is so old that it looks for a later one before it asks for the next."""
    return fileio.env.now_ms() - base.committed_at_ms >= 1000 * LOOK_BEYOND_S


def check_log_unchanged(base: LogState, found: Entry | None, *, where: str) -> None:
    """Check that the log was not deleted or replaced by hand since it was read. No reader would come that far.

    Deleting objects by hand is outside of the protocol. This check finds it, unless it happens between this look and the commit.

    Args:
        base: The log as it was read.
        found: The entry that is in the slot of the base now.
        where: The URL of the log, for the error.

    Raises:
        TableNotFound: The slot is gone, or holds another entry.
    """
    if found is None or found.committed_at_ms != base.committed_at_ms:
        raise TableNotFound(
            f"Slot {base.slot} of the log at {where} is gone, or holds another entry. The log was deleted by hand or replaced. "
            "Nothing was written. Open the table again."
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
    position = candidate.position
    return Entry(
        format=FORMAT_VERSION,
        slot=state.slot + 1,
        action=candidate.action,
        txn=candidate.txn,
        base=candidate.base.slot,
        committed_at_ms=max(state.committed_at_ms + 1, now_ms),
        writer=candidate.writer,
        features=dict(candidate.features),
        writer_features={**candidate.writer_features, **(POSITIONS if position is not None else {})},
        changes=changes,
        side=side,
        footprint=dict(candidate.footprint),
        apps=apps,
        positions={} if position is None else {position.asked.source: position.change},
        plan=candidate.plan,
        rollback_of=candidate.rollback_of,
        summary=summary,
        metadata=dict(candidate.metadata),
    )


def _settled_by(candidate: CommitAttempt, found: Entry) -> Entry | None:
    """The found entry, if it settles the attempt. None if it does not concern it. Raises when the attempt must stop.

    A ROLLBACK is settled by whatever settles its target: the target's own commit, or another rollback of it.
    """
    if found.txn == candidate.txn:
        return found
    if candidate.rollback_of is not None and candidate.rollback_of in (found.txn, found.rollback_of):
        return found
    if found.rollback_of == candidate.txn:
        raise fenced_by(found)
    if candidate.plan is not None and found.rollback_of == candidate.plan:
        raise WriterFenced(
            f"The plan {candidate.plan} was rolled back at slot {found.slot} by {found.txn}. Nothing was written. Plan again."
        )
    if candidate.plan is not None and candidate.plan in (found.plan, found.txn):
        raise AlreadyDone(
            f"The plan {candidate.plan} was executed by {found.txn} at slot {found.slot}. The work is done; there is nothing to do.",
            winner_slot=found.slot,
        )
    return None


def outcome_unknown_after(txn: Txn, error: Exception) -> CommitUnknown:
    """The CommitUnknown after an error from outside, such as a signal handler or a full memory."""
    return CommitUnknown(
        f"It is not known whether {txn} was committed. It was interrupted while it claimed a slot ({type(error).__name__}: {error}). "
        "Nothing was deleted. Call table.resolve(txn) before you write again. It settles the outcome.",
        txn,
    )


def contended(txn: Txn, *, slots_lost: int, slot: int) -> Contention:
    """The Contention of a writer that gives up. slot: the last slot that it lost."""
    return Contention(
        f"{txn} gave up after it lost {slots_lost} slots to other writers, the last one slot {slot}. Nothing was written. "
        "Write again later, or with fewer writers.",
        winner_slot=slot,
    )


def fenced_by(rollback: Entry) -> WriterFenced:
    """The WriterFenced of a writer that finds its own rollback in the log."""
    return WriterFenced(
        f"{rollback.rollback_of} was rolled back at slot {rollback.slot} by {rollback.txn}, which took its writer for dead. "
        "Nothing was written. Write again."
    )


def _check_is_ours(own: Entry, found: Entry) -> None:
    """Check that the entry found under our txn does what ours does. Else two operations drew the same id.

    File names are unique, so operations that do the same are one operation, such as a commit that was sent twice. Raises SharedTransaction.
    """
    if found.txn != own.txn or found.history is not None or found.erased:
        return  # Another txn settles a ROLLBACK. A tombstone or an erased entry does not say what changed.
    if _did(decode_entry(encode_entry(own), key=log_key(own.slot))) != _did(found):
        raise SharedTransaction(
            f"Slot {found.slot} belongs to another operation with the same id, {own.txn}. Nothing of this operation is visible, and its "
            "files stay where they are. Write again, and find out why random numbers repeat on this machine."
        )


def _did(entry: Entry) -> object:
    """What the operation of an entry changed."""
    if entry.side is not None:
        return entry.action, entry.side.sha256, entry.positions
    return entry.action, entry.positions, {table: msgspec.json.decode(raw) for table, raw in entry.changes.items()} or entry.footprint


def _check_versions(candidate: CommitAttempt, state: LogState) -> None:
    """Check that the application and the reader of an attempt may commit after a state. Raises as the two checks."""
    check_app_version(candidate.app, candidate.footprint, state)
    check_position(None if candidate.position is None else candidate.position.asked, state.sources)


def check_app_version(own: AppVersion | None, tables: Iterable[str], state: LogState) -> None:
    """Check that the log, as far as it is known, lets the application write this version.

    Raises:
        AlreadyApplied: The version is in the table.
        StreamRewound: A RESTORE took back versions of the application.
        CommitConflict: The version builds on another version than the table has.
    """
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
                f"The RESTORE at slot {reached.rewound_at} took back what {own.app!r} had written after version {reached.version}. "
                f"Nothing was written. Start it again from version {reached.version + 1}, with resumed_after={reached.rewound_at}.",
                winner_slot=reached.rewound_at,
            )
        if reached.version >= own.version:
            raise AlreadyApplied(
                f"Version {own.version} of {own.app!r} is in table {table} already: slot {reached.slot} applied version {reached.version}. "
                "Nothing was written. Continue with the next version.",
                winner_slot=reached.slot,
            )
        if own.since is not None and not is_next:
            raise CommitConflict(
                f"Version {own.version} of {own.app!r} builds on version {own.since}, but slot {reached.slot} applied version "
                f"{reached.version} to table {table}. Nothing was written. Read what follows version {reached.version}, and write again.",
                winner_slot=reached.slot,
            )
