"""Turns for writers that others would starve: a writer that loses slot after slot asks, and the others stand back until it has one.

Backoff (`objcat.timeline.backoff`) helps among writers that lose slots, since they read the entries of the others. A writer that wins every
slot reads nothing. Beside it a writer that needs longer for a try than the other one for a whole commit would lose for ever, however fair
both are. So it asks, in the hint: a client that opens the log reads that anyway, and so does a writer that finds the hint replaced when it
puts a newer one, or that has published a checkpoint, which is once in `checkpoint.TAIL_SLOTS_MAX` slots.

This is advice only: the store decides who gets a slot, and a writer that never looks does no harm but to the one that waits.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import ObjcatError
from objcat.timeline.backoff import RECENT_ENTRIES, slots_waited
from objcat.timeline.checkpoint import TurnRequest
from objcat.timeline.entry import Entry, Txn
from objcat.timeline.hints import put_turn_request
from objcat.timeline.log import Log
from objcat.timeline.txn_outcomes import TxnOutcomes

logger = logging.getLogger("objcat.timeline")

STARVED_FACTOR = 8
"""A writer asks when so many times more slots have passed it by as usually pass a winner by. Among equals that is beyond chance."""
ASKS_AGAIN_SLOTS = 16
WAITED_TRIES = 4
"""For so many tries of the one that asks do others wait: it finds the slots that were taken before, and then a free one."""
WAIT_S_MIN = 5.0
"""Seconds. Several busy writers look at different times, and must all stand back together."""
WAIT_S_MAX = 30.0
POLL_S_MIN = 0.05
POLL_S_MAX = 0.5
REQUEST_SLOTS_MAX = 64
"""A request so many slots away is one of the past: who still waits has asked again since. So a writer that died after it asked delays few
of the processes that come later.
"""


class TurnSeeker:
    """The tries of one transaction, which asks for a turn when it starves. For one thread.

    The slots up to the first one that it lost do not count, as they were taken while it worked.
    """

    def __init__(self, fileio: FileIO, txn: Txn) -> None:
        self._fileio = fileio
        self._txn = txn
        self._since_s: float | None = None
        self._tries = self._passed = self._asks_at = 0
        self._winners: deque[int] = deque(maxlen=RECENT_ENTRIES)
        self._asking: Future[None] | None = None

    def lost(self, read: Sequence[Entry]) -> None:
        """Note a lost slot, and ask in the background when it is time. read: the entries that the writer read then."""
        env = self._fileio.env
        self._winners.extend(slots_waited(read))
        if self._since_s is None:
            self._since_s = env.monotonic_s()
            return
        self._tries, self._passed = self._tries + 1, self._passed + len(read)
        usual = statistics.median(self._winners) if self._winners else 0
        if not read or self._passed < max(self._asks_at, STARVED_FACTOR * (usual + 1)):
            return
        if self._asking is not None and not self._asking.done():
            return
        self._asks_at = self._passed + ASKS_AGAIN_SLOTS
        try_s = (env.monotonic_s() - self._since_s) / self._tries
        wait_s = min(WAIT_S_MAX, max(WAIT_S_MIN, WAITED_TRIES * try_s))
        request = TurnRequest(txn=self._txn, slot=read[-1].slot, wait_ms=round(wait_s * 1000))
        self._asking = env.submit_io(partial(put_turn_request, self._fileio, request))


@dataclass(frozen=True, slots=True)
class _Noticed:
    """A request that this process knows of.

    known_slot: up to it the transaction has no slot. until_s: by the monotonic clock.
    """

    request: TurnRequest
    known_slot: int
    until_s: float


class Turns:
    """What the writers of one log in this process know of others that ask for a turn. Safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._noticed: dict[Txn, _Noticed] = {}
        self._lock = threading.Lock()

    def notice(self, requests: Sequence[TurnRequest], *, slot: int, outcomes: TxnOutcomes) -> tuple[TurnRequest, ...]:
        """Take note of the requests in a hint. Sends nothing.

        Args:
            slot: Of a view.
            outcomes: Of the same view.

        Returns:
            The requests that may still be open.
        """
        if not requests:
            return ()
        settled = {outcome.txn for outcome in outcomes.recent}
        still_open = tuple(one for one in requests if one.txn not in settled and abs(slot - one.slot) < REQUEST_SLOTS_MAX)
        now_s = self._fileio.env.monotonic_s()
        with self._lock:
            for one in still_open:
                known = self._noticed.get(one.txn)
                # One that was waited for in vain stays noted, so that nobody waits again before it asks again.
                if known is None or known.request.slot < one.slot:
                    until_s = now_s + min(WAIT_S_MAX, one.wait_ms / 1000)
                    self._noticed[one.txn] = _Noticed(one, slot, until_s)
            stale = [txn for txn, known in self._noticed.items() if slot - known.request.slot >= REQUEST_SLOTS_MAX]
            for txn in stale:
                del self._noticed[txn]
        return still_open

    def stand_back(self, slot: int) -> list[Entry]:
        """Wait until those who asked have their slots, or for as long as they asked for. Without a request it sends nothing.

        Call it before an operation begins, not while its transaction waits for a slot. It is advice: an error of the store ends it.

        Returns:
            The entries above `slot` that were read meanwhile.
        """
        env, log = self._fileio.env, Log(self._fileio)
        entries: list[Entry] = []
        read_to: int | None = None
        pause_s = POLL_S_MIN
        while waiting := self._waiting():
            if read_to is None:
                read_to = min(slot, *(one.known_slot for one in waiting))
            try:
                new = log.read_after(read_to)
            except (FileIOError, ObjcatError) as error:
                logger.info("%s: nobody waits for those who ask for a turn: %s", self._fileio.url, error)
                break
            read_to += len(new)
            entries += new
            self._settle(new)
            left_s = max((one.until_s for one in self._waiting()), default=0.0) - env.monotonic_s()
            if left_s > 0:
                env.sleep(min(pause_s, left_s))
                pause_s = min(POLL_S_MAX, 2 * pause_s)
        return [entry for entry in entries if entry.slot > slot]

    def _waiting(self) -> list[_Noticed]:
        if not self._noticed:
            return []
        now_s = self._fileio.env.monotonic_s()
        with self._lock:
            return [one for one in self._noticed.values() if one.until_s > now_s]

    def _settle(self, entries: Sequence[Entry]) -> None:
        """Wait no longer for those that have a slot, or never will."""
        ended = {txn for entry in entries for txn in (*entry.txns, entry.rollback_of) if txn is not None}
        with self._lock:
            for txn in ended & self._noticed.keys():
                self._noticed[txn] = replace(self._noticed[txn], until_s=0.0)
