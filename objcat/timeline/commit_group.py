"""`CommitGroup`: how one attempt is committed together with others, by one of them.

A writer that loses slot after slot leaves a request. Of all who wait, the one whose request comes first in the listing commits for the
others: it reads their requests, judges each one as its own writer would, and claims one slot for all. The others look at the next slots.
The second one claims a slot itself when the first one does not for some time, and so on. All of that is advice: each claim is made by
somebody who has read every slot above the base of each transaction in it, so nobody is committed twice.

A request has a last slot. Until that was read, or a conflict was found, somebody may still commit the transaction, whatever its own writer
does. So until then its writer reports no failure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from fileio.contract import Create, GetResult
from fileio.env import map_io
from fileio.errors import FileIOError, NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.entry import Entry, Txn
from objcat.timeline.intents import remove_files
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.process_log import ProcessLog
from objcat.timeline.shared_slots import (
    FOLDER,
    SHARED_MAX,
    CommitRequest,
    decode_request,
    encode_request,
    may_commit,
    parse_request_key,
    request_key,
    request_of,
)

logger = logging.getLogger("objcat.timeline")

ASKS_AFTER_SLOTS = 2
"""Lost slots after which a writer leaves a request."""
REQUEST_SLOTS = 64
"""For so many slots is a request open."""
CLAIMS = 8
"""Slots that a writer asks for in a row, for all whose requests it has read, before it looks who asks now."""
LISTINGS_MAX = 3
"""Listings in a row of a writer that is first, while there are fewer requests than transactions in the last shared slot."""
LEADER_SLOTS = 4
"""So many more slots does it look at, at once, after it has lost one. Others may have taken them while it read requests."""
OLDER_SLOTS_MAX = 32
"""So far below its own base does a writer read, to judge the requests of others."""
WAIT_S_MIN = 0.005
"""The least time between two looks at the next slot."""
CYCLE_LISTINGS = 6
"""A writer that commits for others needs about as long as so many listings. The next one in line waits for so long."""


def delete_requests(fileio: FileIO, *, until: int | None = None) -> None:
    """Delete requests, whose writers then claim slots themselves. until: only those that no slot above it may commit. None: all."""
    keys = [key for key in fileio.list_keys(FOLDER) if until is None or ((name := parse_request_key(key)) is not None and name[0] <= until)]
    if keys:
        remove_files(fileio, keys, why="requests")


class CommitGroup:
    """The part that one attempt takes in group commits. For one thread. An attempt that shares no slot takes none."""

    def __init__(self, fileio: FileIO, shared: ProcessLog, candidate: CommitAttempt, *, is_inline: bool) -> None:
        """is_inline: whether the changes of the attempt are in its entry."""
        self._fileio = fileio
        self._shared = shared
        shares = candidate.shares_slot and is_inline
        self._own: CommitRequest | None = request_of(candidate, until=candidate.base.slot + REQUEST_SLOTS) if shares else None
        self._asked_until = self._judged_slot = -1
        self._claims_left = 0
        self.open_until = -1
        """The last slot that may commit the attempt for all that this writer knows. -1: nobody else can."""
        self._keys: list[str] = []
        """Of own requests."""
        self._others: Sequence[tuple[int, Txn]] = ()
        self._requests: dict[str, CommitRequest | None] = {}
        self._entries: dict[int, Entry] = {}

    # ---- within the process

    @contextmanager
    def offered(self) -> Iterator[None]:
        """A block that waits for this thread's turn. Meanwhile another thread of this process may commit the attempt."""
        if self._own is not None:
            self._shared.offers.put(self._own)
        try:
            yield
        finally:
            self.withdraw_offer()

    def withdraw_offer(self) -> None:
        """This thread's turn has come, or it stops waiting."""
        if self._own is not None and self._shared.offers.withdraw(self._own.txn):
            self.open_until = max(self.open_until, self._own.until)

    # ---- a request to other processes

    def judged(self, slot: int, read: Sequence[Entry]) -> None:
        """Note that every entry up to a slot was read, and that the attempt is in none of them. read: the newest ones."""
        self._judged_slot = slot
        sizes = [len(entry.txns) for entry in read if entry.also]
        if sizes:
            self._shared.offers.note_contention(slot, size=sizes[-1])

    @property
    def leads(self) -> bool:
        """Whether it is the attempt's turn to commit for others. Then it asks for slot after slot without looking around."""
        return self._claims_left > 0

    @property
    def is_open(self) -> bool:
        """Whether somebody else may still commit the attempt."""
        return self._judged_slot < self.open_until

    def is_due(self, state: LogState, slots_lost: int) -> bool:
        """Whether the attempt should ask, and look for others who do, before it claims a slot. state: the log as far as it was read."""
        if self._own is None or self.leads:
            return False
        if slots_lost >= ASKS_AFTER_SLOTS:
            self._shared.offers.note_contention(state.slot)
        return self._shared.offers.is_contended(state.slot)

    def await_turn(self, state: LogState) -> tuple[Entry, ...]:
        """Ask, and wait while others are first.

        Returns:
            Entries above the state. None of them: it is this attempt's turn to claim the next slot.
        """
        own = self._own
        assert own is not None, "only an attempt that shares its slot is due"
        self._claims_left = CLAIMS
        try:
            self._ask(own, state)
            rank, listing_s, before = 0, WAIT_S_MIN, -1
            for _ in range(LISTINGS_MAX):
                began_s = self._fileio.env.monotonic_s()
                names = self._listed(state)
                listing_s = max(WAIT_S_MIN, self._fileio.env.monotonic_s() - began_s)
                self._others = [name for name in names if name[1] != own.txn]
                if len(self._others) == len(names) and (entries := Log(self._fileio).read_after(state.slot)):
                    self._claims_left = 0
                    return tuple(entries)  # The writer that deleted the request has committed it.
                rank = sum(name < (self._asked_until, own.txn) for name in self._others)
                if rank > 0 or len(self._others) + 1 >= self._shared.offers.group_size or len(self._others) == before:
                    break
                before = len(self._others)  # Those who were committed with this process before are probably on their way.
            return self._wait(state, rank * CYCLE_LISTINGS * listing_s, listing_s)
        except FileIOError as error:
            logger.info("%s commits alone: %s", own.txn, error)
            self._others = ()
            return ()

    def _wait(self, state: LogState, waits_s: float, look_s: float) -> tuple[Entry, ...]:
        """Look at the next slot again and again. Returns its entry; none when the time is over."""
        waited_s, pause_s = 0.0, 2 * look_s
        while waited_s < waits_s:
            self._fileio.env.sleep(pause_s)
            waited_s += pause_s
            entries = Log(self._fileio).read_after(state.slot, until=state.slot + 1)
            if entries:
                self._claims_left = 0
                return tuple(entries)
            pause_s = look_s
        return ()

    def _ask(self, own: CommitRequest, state: LogState) -> None:
        if state.slot < self._asked_until:
            return
        request = msgspec.structs.replace(own, until=state.slot + REQUEST_SLOTS)
        self._keys.append(request.key)
        self._asked_until = request.until
        self.open_until = max(self.open_until, request.until)  # Before the put, whose outcome nobody needs to know.
        self._fileio.put(request.key, encode_request(request), Create())

    def _listed(self, state: LogState) -> list[tuple[int, Txn]]:
        """The open requests that no entry known here has settled, in their order."""
        entries = self._shared.entries_up_to(state)
        settled = {txn for entry in (*entries, *self._entries.values()) for txn in (*entry.txns, entry.rollback_of)}
        found, expired = [], []
        for key in self._fileio.list_keys(FOLDER):
            name = parse_request_key(key)
            if name is None:
                continue
            if name[0] <= state.slot:
                expired.append(key)
            elif name[1] not in settled:
                found.append(name)
        self._delete(expired)
        return sorted(found)

    # ---- committing for others

    def gather(self, state: LogState, read: Sequence[Entry]) -> list[CommitRequest]:
        """The requests that an entry above the state may commit, in their order.

        Args:
            state: The log up to which the attempt was judged.
            read: Every entry between the base of the attempt and the state.
        """
        own, slot = self._own, state.slot + 1
        if own is None:
            return []
        self._claims_left = max(0, self._claims_left - 1)
        requests = {request.txn: request for request in self._shared.offers.take(SHARED_MAX - 1) if request.txn != own.txn}
        if not requests and not self._others:
            return []
        self._entries |= {entry.slot: entry for entry in (*self._shared.entries_up_to(state), *read)}
        try:
            for request in self._fetched():
                requests.setdefault(request.txn, request)
            found = [
                request
                for request in sorted(requests.values(), key=lambda one: one.txn)
                if request.changes.keys() <= own.changes.keys()
                and (later := self._later(request.base, slot)) is not None
                and may_commit(request, later, slot=slot)
            ]
        except (FileIOError, CorruptTable) as error:
            logger.info("%s commits alone: %s", own.txn, error)
            return []
        return found[: SHARED_MAX - 1]

    def _fetched(self) -> list[CommitRequest]:
        names = self._others[: SHARED_MAX - 1]
        keys = [request_key(name[1], name[0]) for name in names]
        new = [key for key in keys if key not in self._requests]
        self._requests |= dict(zip(new, map_io(self._fileio.env, self._fetch, new), strict=True))
        return [request for key in keys if (request := self._requests[key]) is not None]

    def _fetch(self, key: str) -> CommitRequest | None:
        try:
            found = self._fileio.get(key)
        except NotFound:
            return None
        assert isinstance(found, GetResult)
        return decode_request(found.data, key=key)

    def _later(self, base: int, slot: int) -> list[Entry] | None:
        """Every entry above a base and below a slot. None when it is too old to be read."""
        wanted = range(base + 1, slot)
        missing = [number for number in wanted if number not in self._entries]
        if len(missing) > OLDER_SLOTS_MAX:
            return None
        if missing:
            read = Log(self._fileio).read_after(missing[0] - 1, until=missing[-1])
            self._entries |= {entry.slot: entry for entry in read}
        return [self._entries[number] for number in wanted]

    # ---- the end

    def end(self, entry: Entry | None, committed: Sequence[CommitRequest] = ()) -> None:
        """Note how the attempt ended, and delete requests that are settled. Best effort.

        Args:
            entry: The one that commits the attempt. None: it is in conflict.
            committed: The requests of others in the entry.
        """
        if self._own is None:
            return
        if entry is not None and entry.also:
            self._shared.offers.note_contention(entry.slot, size=len(entry.txns))
        if entry is not None and entry.txn != self._own.txn:
            return  # The writer of the entry deletes the request.
        asked = {name[1]: request_key(name[1], name[0]) for name in self._others}
        self._delete([*self._keys, *(asked[request.txn] for request in committed if request.txn in asked)])

    def _delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._fileio.env.submit_io(partial(remove_files, self._fileio, tuple(keys), why="requests"))
