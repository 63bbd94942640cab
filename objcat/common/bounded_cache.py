"""An LRU cache for immutable objects, limited in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from fileio.env import on_fork

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by the path that they were read from. Safe for many threads.

    bytes_max: of all values. The least recently used go first.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked process."""
        self._lock = threading.Lock()

    def get(self, path: str) -> V | None:
        """The cached value of a path; None if there is none."""
        with self._lock:
            found = self._values.get(path)
            if found is None:
                return None
            self._values.move_to_end(path)
            return found[0]

    def put(self, path: str, value: V, size: int) -> None:
        """Cache a value that takes `size` bytes."""
        with self._lock:
            self._bytes += size - self._values.pop(path, (value, 0))[1]
            self._values[path] = (value, size)
            while self._bytes > self._bytes_max:
                _, (_, dropped) = self._values.popitem(last=False)
                self._bytes -= dropped
