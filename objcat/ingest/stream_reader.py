"""`StreamReader`: a thread that reads the stream of a source into a queue which is bounded by bytes."""

from __future__ import annotations

import threading
from collections import deque

from fileio.env import Env
from objcat.ingest.model import ChangeSource, Position, SourceTransaction

ONE_CALL_S = 3600.0
ITEM_BYTES = 200
"""What a transaction without changes counts."""


class StreamReader:
    """Reads transactions ahead of those that are written. While the queue is full, it waits, and the source keeps the rest.

    Args:
        source: the source.
        position: where to begin.
        bytes_max: a transaction is added as long as the queue has fewer bytes, so one may exceed it.
        env: gives the thread.
    """

    def __init__(self, source: ChangeSource, position: Position, *, bytes_max: int, env: Env) -> None:
        self._source = source
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._queue: deque[tuple[SourceTransaction, int]] = deque()
        self._bytes = 0
        self._changes = 0
        self._is_stopped = False
        self._has_ended = False
        self._error: BaseException | None = None
        # A repetition has a thread of its own, which ends with the process. It does its work the first time.
        self._stop_thread = env.repeat(lambda: self._read(position), every_s=ONE_CALL_S, first_s=0.0)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def queued_changes(self) -> int:
        """Changes that wait."""
        return self._changes

    def take(self, timeout_s: float) -> SourceTransaction | None:
        """The next transaction; None when none came in time. Raises what the source raised, once all before it was taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._has_ended, timeout=timeout_s)
            if self._queue:
                transaction, size = self._queue.popleft()
                self._bytes -= size
                self._changes -= transaction.count
                self._changed.notify_all()
                return transaction
            if self._error is not None:
                raise self._error
            return None

    def stop(self) -> None:
        """End the thread. What waits is dropped. The caller closes the source, which may be what the thread waits for."""
        self._stop_thread()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread. Returns whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_ended, timeout=timeout_s)

    def _read(self, position: Position) -> None:
        if self._has_ended:
            return
        try:
            for transaction in self._source.transactions(position):
                size = max(ITEM_BYTES, transaction.size_bytes)
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < self._bytes_max or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._queue.append((transaction, size))
                    self._bytes += size
                    self._changes += transaction.count
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the thread that takes meets it
            self._error = error
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
