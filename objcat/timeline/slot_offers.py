"""`SlotOffers`: transactions of the threads of one process that wait for a slot, for the thread whose turn it is to commit them too."""

from __future__ import annotations

import threading
from typing import Any

from fileio.env import on_fork
from objcat.timeline.entry import Txn

CONTENDED_SLOTS = 16
"""For so many slots after a slot was shared, or lost again, does a process take other writers for granted."""


class SlotOffers:
    """The requests of waiting threads, and whether other processes want slots too. Safe for many threads. Advice only."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Forget the threads, which a fork does not copy."""
        self._lock = threading.RLock()  # A signal handler may commit too.
        self._waiting: dict[Txn, Any] = {}
        self._taken: set[Txn] = set()
        self._contended_until = -1
        self.group_size = 1
        """Transactions of the last shared slot."""

    def put(self, request: Any) -> None:
        """Let another thread commit a `CommitRequest`, until `withdraw`."""
        with self._lock:
            self._waiting[request.txn] = request

    def take(self, count: int) -> list[Any]:
        """The oldest waiting requests. From now on they may be committed."""
        with self._lock:
            found = list(self._waiting.values())[:count]
            self._taken.update(request.txn for request in found)
            return found

    def withdraw(self, txn: Txn) -> bool:
        """Wait no longer. Returns whether another thread has taken the request, so that it may still be committed."""
        with self._lock:
            self._waiting.pop(txn, None)
            was_taken = txn in self._taken
            self._taken.discard(txn)
            return was_taken

    def is_contended(self, slot: int) -> bool:
        """Whether other processes probably want the slot above `slot` too."""
        return slot < self._contended_until

    def note_contention(self, slot: int, *, size: int = 1) -> None:
        """Note that other processes wanted slots, as of `slot`, and how many transactions shared the last one."""
        self._contended_until = slot + CONTENDED_SLOTS
        self.group_size = size
