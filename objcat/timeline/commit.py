"""The commit loop: a writer claims one log slot by put-if-absent.

`Committer.try_commit` is the place to begin. It puts an entry at the next free slot. If another writer has that slot, it reads the entry
there, checks it for conflicts (`conflicts`), and goes on with the slot after it. Every slot between the base and the claimed slot was read
and checked before the claim.

It promises: a `Committed` result is durable. A `Conflicted` result, and every error but `CommitUnknown` and `SharedTransaction`, means that
nothing of the attempt is visible. An unknown outcome of a put is read back from the log before anything is reported.

`CommitSession` calls it for every writer: writes, table services, catalog changes, rollbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, PutOutcome, Written
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.common.memory_errors import is_full
from objcat.common.thread_queue import ThreadTurn
from objcat.errors import (
    AlreadyDone,
    CommitUnknown,
    CorruptTable,
    ObjcatError,
    SharedTransaction,
    WriterFenced,
)
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy, Committed, Conflicted
from objcat.timeline.backoff import SlotBackoff
from objcat.timeline.commit_errors import contended, fenced_by, outcome_open, unread_after_put
from objcat.timeline.commit_group import LEADER_SLOTS, CommitGroup
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
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState, check_app_version
from objcat.timeline.position import check_position
from objcat.timeline.process_log import BaseCheck, KnownEntries, process_log
from objcat.timeline.shared_slots import holds, with_requests
from objcat.timeline.side_objects import StoredChanges, get_digests, write_large_changes
from objcat.timeline.turns import TurnSeeker


@dataclass(frozen=True, slots=True)
class _ConflictCheck:
    """The entries above a state, as checked for one attempt.

    Args:
        own: The entry that settles the attempt, if there is one.
        read: The entries before it.
        state: The log after these.
    """

    own: Entry | None
    read: tuple[Entry, ...]
    overlaps: tuple[tuple[Entry, Conflict], ...]
    state: LogState


@dataclass(frozen=True, slots=True)
class _SlotClaim:
    """An attempt that is being made. stored: its changes. began_s: by the monotonic clock. skew_ms, hurries: see `try_commit`."""

    candidate: CommitAttempt
    stored: StoredChanges
    began_s: float
    skew_ms: int
    hurries: bool


class Committer:
    """Commits to one log. Safe for many threads and processes: only the store decides who has a slot."""

    def __init__(self, fileio: FileIO, policy: CommitRetryPolicy | None = None) -> None:
        self.fileio = fileio
        self._log = Log(fileio)
        self.intents = Intents(fileio)
        self.policy = policy or CommitRetryPolicy()
        self._shared = process_log(fileio)

    def announce(
        self, txn: Txn, action: Action, base: LogState, *, engine: str, plan_of: Txn | None = None, check: BaseCheck | None = None
    ) -> Future[int]:
        """Begin an operation that wants a slot: put its intent. See `Intents.announce`.

        The returned future raises TableNotFound when the log of the base is gone. Then nothing was written.

        Args:
            base: The log as the operation knows it.
            check: Looks at the base. None: a check of its own.

        Raises:
            UnsupportedFormat: Only newer clients may write this log. Nothing was written.
        """
        check_writable(base.writer_features, where=self.fileio.url)
        first = partial((check or BaseCheck(self.fileio)).run, base)
        return self.intents.announce(txn, action, base.slot, engine=engine, plan_of=plan_of, first=first)

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
        check: BaseCheck | None = None,
    ) -> Committed | Conflicted:
        """Claim a slot above the base of the attempt.

        Threads of one process that claim slots of one log take turns, see `objcat.timeline.process_log`.

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
            check: The check of the base of the operation. With it, entries that this process knows are not read again.

        Returns:
            Committed, or Conflicted when a later entry conflicts.

        Raises:
            WriterFenced, AlreadyApplied, AlreadyDone, StreamRewound, PositionConflict, Contention, UnsupportedFormat: Nothing of it is
                visible, for certain.
            CommitUnknown, SharedTransaction: Delete nothing.
            FileIOError: A storage error that certainly had no effect.
        """
        group: CommitGroup | None = None
        try:
            check_writable({**candidate.base.writer_features, **candidate.writer_features}, where=self.fileio.url)
            _check_versions(candidate, candidate.base)
            stored = changes or self.write_large_changes(candidate)
            group = CommitGroup(self.fileio, self._shared, candidate, is_inline=stored[1] is None)
            claim = _SlotClaim(candidate, stored, self.fileio.env.monotonic_s(), skew_ms, hurries)
            with group.offered(), self._shared.turns.turn() as turn:
                group.withdraw_offer()
                return self._claim(claim, group, turn, seeker=seeker, check=check)
        except (CommitUnknown, WriterFenced) as error:
            if isinstance(error, CommitUnknown):
                self.intents.leave(candidate.txn)
            raise
        except (ObjcatError, FileIOError) as error:
            if isinstance(error, SharedTransaction):
                self.intents.stop_heartbeat(candidate.txn)
            elif group is not None and group.is_open:
                self.intents.leave(candidate.txn)
                raise outcome_open(candidate.txn, error, until=group.open_until) from error
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                self.intents.stop_heartbeat(candidate.txn)
            raise

    def write_large_changes(self, candidate: CommitAttempt) -> StoredChanges:
        """Store the changes where the entry will name them, once for several tries. Raises storage errors."""
        return write_large_changes(self.fileio, candidate.txn, candidate.changes)

    def _claim(
        self, claim: _SlotClaim, group: CommitGroup, turn: ThreadTurn, *, seeker: TurnSeeker | None, check: BaseCheck | None
    ) -> Committed | Conflicted:
        env, candidate = self.fileio.env, claim.candidate
        backoff = SlotBackoff(env, candidate.base.slot, pause_s_max=self.policy.pause_s_max)
        read: list[Entry] = []
        slots_lost, lost_slot = 0, -1
        later = self._judge_known(candidate, check)
        while True:
            read += later.read
            state = later.state
            if later.own is not None:
                _check_is_ours(self._entry(claim, state, slots_lost), later.own)
                group.end(later.own)
                return Committed(later.own, tuple(read), slots_lost)
            group.judged(state.slot, later.read)
            if later.overlaps:
                group.end(None)
                return Conflicted(candidate.txn, later.overlaps, tuple(read), slots_lost)
            if self._gives_up(claim, slots_lost) and not group.is_open:
                raise contended(candidate.txn, slots_lost=slots_lost, slot=lost_slot)
            if group.is_due(state, slots_lost):
                with self._shared.turns.outside(turn):  # Other threads need not wait with this one.
                    above = group.await_turn(state)
                if above:
                    later = self._judged(candidate, KnownEntries(above, above, state.advance(above)))
                    self._shared.extend(state, later.read)
                    continue
            others = group.gather(state, read)
            entry = with_requests(self._entry(claim, state, slots_lost), others)
            is_own, taken_by = self._try_put(entry, candidate)
            if is_own:
                own = entry if others else msgspec.structs.replace(entry, changes=dict(candidate.changes))
                self._shared.extend(state, [own])
                group.end(own, others)
                return Committed(own, tuple(read), slots_lost)
            slots_lost += 1  # For certain: a slot never changes hands.
            lost_slot = entry.slot
            before = 0
            if group.leads:
                before = LEADER_SLOTS
            elif not claim.hurries and not group.is_due(state, slots_lost):
                # Pause before reading the log: a claim after a pause, from an older read, loses to every writer that does not pause.
                with self._shared.turns.outside(turn):
                    before = backoff.wait(entry.slot)
            later = self._judge(candidate, state, first=taken_by, expected=before, until=entry.slot if claim.hurries else None)
            backoff.saw(later.read)
            self._shared.extend(state, later.read)
            if seeker is not None and later.own is None:
                seeker.lost(later.read)

    def _entry(self, claim: _SlotClaim, state: LogState, slots_lost: int) -> Entry:
        """The entry of an attempt that takes the slot above `state` now."""
        summary = self._summary(claim.candidate, slots_lost)
        return _entry_of(claim.candidate, state, *claim.stored, summary, now_ms=self.fileio.env.now_ms() + claim.skew_ms)

    def _gives_up(self, claim: _SlotClaim, slots_lost: int) -> bool:
        """Whether an attempt has lost too many slots, or for too long."""
        policy = self.policy
        return slots_lost >= policy.slots_max or (slots_lost > 0 and self.fileio.env.monotonic_s() - claim.began_s > policy.deadline_s)

    def _try_put(self, entry: Entry, candidate: CommitAttempt) -> tuple[bool, GetResult | None]:
        """Put an entry in its slot. Returns whether the slot is the attempt's; else what holds it, if that is known already.

        Raises CommitUnknown when nobody can say.
        """
        match self._put(entry):
            case Written():
                return True, None
            case OutcomeUnknown(cause):
                taken = self._look_at(entry.slot)
                if taken is None:
                    raise unread_after_put(candidate.txn, entry.slot, cause) from cause
                if taken.txn == candidate.txn:
                    _check_is_ours(entry, taken)
                    return True, None
                return False, None
            case PreconditionFailed(found=taken_by):
                return False, taken_by

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
        entries = self._log.read_after(state.slot, until=until, window=2, expected=expected, first=first)
        return self._judged(candidate, KnownEntries(tuple(entries), tuple(entries), state.advance(entries)))

    def _judge_known(self, candidate: CommitAttempt, check: BaseCheck | None) -> _ConflictCheck:
        """Check the entries above the base that this process knows already. Sends no request for them."""
        # Who gives up after one slot wants the one right above its base, and no later one.
        generation = None if check is None or self.policy.slots_max <= 1 else check.generation
        known = self._shared.known_after(candidate, generation)
        return _ConflictCheck(None, (), (), candidate.base) if known is None else self._judged(candidate, known)

    def _judged(self, candidate: CommitAttempt, known: KnownEntries) -> _ConflictCheck:
        overlaps: list[tuple[Entry, Conflict]] = []
        for entry in known.to_judge:
            own = _settled_by(candidate, entry)
            if own is not None:
                read = tuple(found for found in known.entries if found.slot < own.slot)
                return _ConflictCheck(own, read, tuple(overlaps), known.state)
            overlaps.extend((entry, overlap) for overlap in self._overlaps(candidate, entry))
        check_writable(known.state.writer_features, where=self.fileio.url)
        _check_versions(candidate, known.state)
        return _ConflictCheck(None, known.entries, tuple(overlaps), known.state)

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
    if candidate.txn in found.txns:
        return found
    if candidate.rollback_of is not None and candidate.rollback_of in (*found.txns, found.rollback_of):
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


def _check_is_ours(own: Entry, found: Entry) -> None:
    """Check that the entry found under our txn does what ours does. Else two operations drew the same id.

    File names are unique, so operations that do the same are one operation, such as a commit that was sent twice. Raises SharedTransaction.
    """
    if own.txn not in found.txns or found.history is not None or found.erased:
        return  # Another txn settles a ROLLBACK. A tombstone or an erased entry does not say what changed.
    if found.also and holds(found, own.changes):
        return
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
