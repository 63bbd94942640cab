"""Keeps the hint of a log near its head, so that the log can be opened with few requests. `Hints` is what a process knows of it.

The hint is one object that is replaced. It carries what opening needs: the newest root that its writer knows, and every entry above it.
The writer of every fourth slot puts it, in the background. A reader trusts nothing in it: it asks for the slot that the hint names and for
the few after it, all at once.

A hint never goes back, by checkpoint first and slot second. So an erasure can fence it: after `forget_carried` no writer that knows only
what was there before puts one, and those that know of the erasure carry nothing from below it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Update, Version, Written
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import Contention
from objcat.timeline.checkpoint import (
    HINT_KEY,
    NULL,
    SPACING_SLOTS,
    Hint,
    Root,
    TurnRequest,
    encode_carried,
    floor_slot,
    read_hint,
    root_key,
)
from objcat.timeline.entry import Entry

logger = logging.getLogger("objcat.timeline")

HINT_SLOTS = 4
"""The log has at most about so many slots above its hint. A reader asks for them at once."""
PAUSE_S = 1.0
"""Seconds between two hints of one process: a store may refuse to write one key more often."""
CARRIED_BYTES_MAX = 256 * 1024
"""With more bytes, a hint says only where the log is. Most entries have 1 or 2 KiB."""
ATTEMPTS_MAX, ASKING_ATTEMPTS_MAX, FORGET_ATTEMPTS_MAX = 2, 3, 20
TURN_REQUESTS_MAX = 8
"""Requests for a turn that a hint holds: the newest ones."""

FoundHint: TypeAlias = "tuple[Hint | None, Version | None]"
"""A hint and the version of its object, as `read_hint` returns them."""


class Hints:
    """What a process knows of the hint of one log, shared by its handles on that log. Safe for many threads: all of it is advice.

    Args:
        every: Slots after which a writer puts a hint. 1 where commits are rare.
    """

    def __init__(self, *, every: int = HINT_SLOTS) -> None:
        self.every = every
        self._newest: tuple[Hint | None, Version | None, bool] = (None, None, False)
        self._put_s: float | None = None

    def saw(self, hint: Hint | None, version: Version | None) -> None:
        """Note what the store holds."""
        self._newest = (None if hint is None else msgspec.structs.replace(hint, carried=NULL), version, True)

    def is_due(self, slot: int) -> bool:
        """Whether the writer that has just committed `slot` should put a hint.

        Of many writers one is asked to for each few slots. The others do when nobody seems to have done it.
        """
        above = slot - self._slot()
        return above > 0 and (self._is_turn(slot) or above >= 2 * self.every)

    def pause_s(self, now_s: float) -> float:
        """Seconds to wait before the next hint. now_s: of `Env.monotonic_s`."""
        return 0.0 if self._put_s is None else max(0.0, self._put_s + PAUSE_S - now_s)

    def put(self, fileio: FileIO, hint: Hint, notice: Callable[[Sequence[TurnRequest]], tuple[TurnRequest, ...]]) -> None:
        """Put a hint, unless the store has one that is new enough. Best effort: another writer's is as good. Logged, never raises.

        Args:
            hint: its `nonce` is drawn here.
            notice: Is shown the requests for a turn of the hint in the store. Returns those that stay there.
        """
        self._put_s = fileio.env.monotonic_s()
        try:
            if hint.slot - self._slot() >= 2 * self.every:
                self._forget()  # Others may have put some since. A GET is cheaper than a refused PUT.
            for _ in range(ATTEMPTS_MAX):
                known, version, is_read = self._newest
                if not is_read:
                    self.saw(*read_hint(fileio))
                    known, version, _ = self._newest
                turns = () if known is None else notice(known.turns)
                if known is not None and self._is_enough(fileio, known, hint):
                    return
                new = msgspec.structs.replace(hint, nonce=fileio.env.new_id(), turns=turns)
                match fileio.put(HINT_KEY, msgspec.json.encode(new), Create() if version is None else Update(version)):
                    case Written(version=written):
                        self.saw(new, written)
                        return
                    case OutcomeUnknown():
                        self._forget()
                        return
                    case PreconditionFailed():
                        self._forget()
        except FileIOError as error:
            self._forget()
            logger.warning("The hint of %s could not be advanced to slot %d: %s", fileio.url, hint.slot, error)

    def _is_enough(self, fileio: FileIO, found: Hint, own: Hint) -> bool:
        """Whether a hint in the store makes another one needless. A later checkpoint counts only if it is there."""
        if found.checkpoint != own.checkpoint:
            return found.checkpoint > own.checkpoint and fileio.exists(root_key(found.checkpoint))
        return own.slot - found.slot < (1 if self._is_turn(own.slot) else self.every)

    def _is_turn(self, slot: int) -> bool:
        return slot % self.every == self.every - 1

    def _slot(self) -> int:
        hint = self._newest[0]
        return -1 if hint is None else hint.slot

    def _forget(self) -> None:
        hint, version, _ = self._newest
        self._newest = (hint, version, False)


def forget_carried(fileio: FileIO, *, slot: int, checkpoint: int) -> None:
    """Replace a hint that may carry what was written below a checkpoint. It stays away.

    Args:
        slot: Of an entry with a `root_bound`, which every writer above it has read. Each slot below it that may have a root has one, which
            may be void.
        checkpoint: A root at that bound, or -1 where there is none. A hint with a later one carries nothing from below.

    Raises:
        Contention: Others put hints as fast as they are replaced.
        FileIOError: It is not known whether it was replaced.
    """
    # A root below the slot may have been published before it became void. A hint of its publisher, who is slow, must not be the newer one.
    below = floor_slot(slot - 1)
    fence = checkpoint if checkpoint >= 0 else below if below >= SPACING_SLOTS else -1
    since = checkpoint if checkpoint >= 0 else slot
    for _ in range(FORGET_ATTEMPTS_MAX):
        found, version = read_hint(fileio)
        if found is not None and found.checkpoint >= since and fileio.exists(root_key(found.checkpoint)):
            return
        turns = () if found is None else found.turns
        bare = Hint(slot=slot, checkpoint=fence, nonce=fileio.env.new_id(), turns=turns)
        match fileio.put(HINT_KEY, msgspec.json.encode(bare), Create() if version is None else Update(version)):
            case Written():
                return
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                pass
    raise Contention(f"Others put {HINT_KEY} of {fileio.url} as fast as it is replaced. Erase again.", winner_slot=slot)


def put_turn_request(fileio: FileIO, request: TurnRequest) -> None:
    """Put a request for a turn into the hint, instead of an earlier one of the same transaction. Best effort.

    A log without a hint is young: its first hint is near.
    """
    try:
        for _ in range(ASKING_ATTEMPTS_MAX):
            found, version = read_hint(fileio)
            if found is None or version is None:
                return
            others = [one for one in found.turns if one.txn != request.txn]
            turns = (*others[1 - TURN_REQUESTS_MAX :], request)
            body = msgspec.json.encode(msgspec.structs.replace(found, nonce=fileio.env.new_id(), turns=turns))
            if not isinstance(fileio.put(HINT_KEY, body, Update(version)), PreconditionFailed):
                return
    except FileIOError as error:
        logger.info("%s could not ask for a turn: %s", request.txn, error)


def small(root: Root) -> Root | None:
    """A root, unless it is too large for a hint."""
    return root if len(root.payload) <= CARRIED_BYTES_MAX else None


def hint_of(root: Root | None, entries: Sequence[Entry] | None, *, slot: int, checkpoint: int) -> Hint | None:
    """The hint of a log at a slot. None when it would say nothing.

    Args:
        root: That of the checkpoint. None without one, and where it is too large.
        entries: All of them above the checkpoint up to the slot. None: not known.
    """
    is_known = entries is not None and (root is not None or checkpoint < 0)
    data = encode_carried(root, entries, slot=slot) if entries is not None and is_known else None
    if data is not None and len(data) > CARRIED_BYTES_MAX:
        data = None
    if data is None and checkpoint < 0:
        return None
    return Hint(slot=slot, checkpoint=checkpoint, nonce="", carried=NULL if data is None else msgspec.Raw(data))
