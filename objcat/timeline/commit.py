"""The commit loop: one slot, claimed by put-if-absent, after every slot below it was read and judged."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from fileio.base import Conflict, Create, PutOutcome, Unknown, Written
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import CommitConflict, CommitUnknown, Contention, CorruptTable, Fenced
from objcat.timeline.conflicts import find_conflict
from objcat.timeline.entry import FORMAT_VERSION, Action, Entry, Footprint, Intent, Txn, encode_entry, intent_key, log_key
from objcat.timeline.log import Log

logger = logging.getLogger("objcat.timeline")

CLOCK_WARNING_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """Bounds of one commit.

    slots_max: slots lost to other writers before giving up. deadline_s: from the first try of a slot.
    """

    slots_max: int = 10_000
    deadline_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An operation that wants a slot.

    base_time_ms: the commit time of its base slot (0 without one). rollback_of: the transaction that a ROLLBACK fences.
    """

    txn: Txn
    action: Action
    base: int
    base_time_ms: int
    changes: Mapping[str, msgspec.Raw]
    footprint: Mapping[str, Footprint]
    metadata: Mapping[str, str] = field(default_factory=dict)
    rollback_of: Txn | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is durable at `entry.slot`.

    read: the entries of others between its base and its slot, in order. slots_lost: tries of a slot that others won.
    """

    entry: Entry
    read: tuple[Entry, ...]
    slots_lost: int


class Committer:
    """Commits to one log. Safe for many threads and processes: the store is the only referee."""

    def __init__(self, fileio: FileIO, policy: CommitPolicy | None = None) -> None:
        self._fileio = fileio
        self._log = Log(fileio)
        self._policy = policy or CommitPolicy()

    def announce(self, txn: Txn, action: Action, base: int, *, engine: str) -> Future[int]:
        """Put the intent of `txn`, overlapped with the caller's work.

        The future holds how far the store's clock is ahead of the local one, in ms: 0 where it has none, or where they agree to the
        second (which is how finely most stores tell the time).
        """
        env = self._fileio.env
        intent = Intent(format=FORMAT_VERSION, txn=txn, action=action, base=base, host=socket.gethostname(), engine=engine)
        body = msgspec.json.format(msgspec.json.encode(intent), indent=1)

        def put() -> int:
            match self._fileio.put(intent_key(txn), body, Create()):
                case Written(_, store_time_ms):
                    if store_time_ms is None and self._fileio.capabilities.store_clock:
                        # The answer was lost and the intent found by reading back: the store noted when it landed.
                        store_time_ms = self._fileio.head(intent_key(txn)).modified_ms
                    return 0 if store_time_ms is None else _skew_ms(store_time_ms, env.now_ms())
                case Conflict():
                    raise CorruptTable(f"the intent of {txn} exists already: two processes share one random state")
                case Unknown(cause):
                    raise cause

        return env.submit_io(put)

    def retract(self, txn: Txn) -> Future[None]:
        """Delete the intent of a settled txn, off the critical path. Failure is logged and harmless: a rollback finds the txn settled."""

        def delete() -> None:
            remove_files(self._fileio, [intent_key(txn)], why=txn)

        return self._fileio.env.submit_io(delete)

    def commit(self, candidate: Candidate, *, skew_ms: int = 0) -> Committed:
        """Claim a slot above the candidate's base.

        skew_ms: from `announce`; commit times follow the store's clock, whatever the local one says.
        Raises CommitConflict or Fenced (certain: nothing of it is visible), CommitUnknown (delete nothing), and storage errors that
        certainly had no effect.
        """
        env = self._fileio.env
        began_s = env.monotonic_s()
        read: list[Entry] = []
        slots_lost = 0
        previous_ms = candidate.base_time_ms
        while True:
            slot = candidate.base + 1 + len(read)
            entry = Entry(
                format=FORMAT_VERSION,
                slot=slot,
                action=candidate.action,
                txn=candidate.txn,
                base=candidate.base,
                committed_at_ms=max(previous_ms + 1, env.now_ms() + skew_ms),
                changes=dict(candidate.changes),
                footprint=dict(candidate.footprint),
                metadata=dict(candidate.metadata),
                rollback_of=candidate.rollback_of,
            )
            match self._put(entry):
                case Written():
                    return Committed(entry, tuple(read), slots_lost)
                case Unknown(cause):
                    raise CommitUnknown(
                        f"whether {candidate.txn} was committed at slot {slot} is not known ({cause}): nothing was deleted; "
                        "table.resolve(txn) settles it, before you write again",
                        candidate.txn,
                    ) from cause
                case Conflict():
                    slots_lost += 1
            for found in self._log.read_after(slot - 1):
                own = self._judge(candidate, found)
                if own is not None:
                    return Committed(own, tuple(read), slots_lost)
                read.append(found)
                previous_ms = found.committed_at_ms
            if slots_lost >= self._policy.slots_max or env.monotonic_s() - began_s > self._policy.deadline_s:
                raise Contention(
                    f"{candidate.txn} lost {slots_lost} slots in turn to other writers, the last one at slot {slot}: "
                    "write again, with fewer writers",
                    winner_slot=slot,
                )

    def _put(self, entry: Entry) -> PutOutcome:
        return self._fileio.put(log_key(entry.slot), encode_entry(entry), Create())

    def _judge(self, candidate: Candidate, found: Entry) -> Entry | None:
        """The entry that settles the candidate, when that is what was found; None when it may go on above it. Raises when it may not.

        A ROLLBACK is settled by whatever settles its target: the target's own commit, or another rollback of it.
        """
        if found.txn == candidate.txn:
            return found
        if candidate.rollback_of is not None and candidate.rollback_of in (found.txn, found.rollback_of):
            return found
        if found.rollback_of == candidate.txn:
            raise Fenced(f"{candidate.txn} was rolled back at slot {found.slot} by {found.txn}, which thought its writer dead: write again")
        overlap = find_conflict(candidate.action, candidate.footprint, found)
        if overlap is not None:
            homes = tuple(str(home) for home in overlap.homes)
            raise CommitConflict(
                f"{candidate.txn} conflicts with the {found.action} {found.txn} at slot {found.slot}: {overlap.rule}"
                f"{' (' + ', '.join(homes[:5]) + ')' if homes else ''}; read the table again and write again",
                winner_slot=found.slot,
                homes=homes,
            )
        return None


def remove_files(fileio: FileIO, keys: list[str], *, why: str) -> None:
    """Delete data files of a transaction that is certainly not and never will be committed. Best effort: what stays is garbage."""
    try:
        failed = [result for result in fileio.delete(keys) if result.error is not None]
    except FileIOError as error:
        logger.warning("files of %s could not be deleted: %s", why, error)
        return
    for result in failed:
        logger.warning("%s of %s could not be deleted: %s", result.key, why, result.error)


def _skew_ms(store_ms: int, local_ms: int) -> int:
    """How far the store's clock, which may tell whole seconds only, is ahead of the local one; 0 when the two may be equal."""
    ahead_ms = store_ms - local_ms
    if -1000 <= ahead_ms <= 0:
        return 0
    if abs(ahead_ms) > CLOCK_WARNING_MS:
        logger.warning("the local clock is %d s off the store's; commit times follow the store's: mend the local clock", -ahead_ms // 1000)
    return ahead_ms
