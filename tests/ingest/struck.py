"""`StruckShop`: a shop whose lake is in memory, behind a network that fails on purpose; and the scripts of such networks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import objcat
from devkit.databases import PostgresServer
from fileio.check.probe import SCRATCH_PREFIX
from fileio.env import default_env
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import APPLICABLE, Fault, FaultyBackend, Hit, Request
from fileio.write_outcomes import RetryPolicy
from objcat.errors import TableNotFound
from objcat.ingest.runner import Ingest
from objcat.ingest.sources import open_source
from tests.ingest.shop import Shop


def is_slot(request: Request) -> bool:
    """Whether a request writes a slot of a log."""
    return request.kind == "put" and "/log/" in f"/{request.key}" and request.key.endswith(".json")


class StruckShop(Shop):
    """See the module. Every change of a row is a row of its own in the lake (`deletes = "history"`), so one that comes twice is seen.

    Args:
        server: the server.
        folder: for the configuration.
    """

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.memory = MemoryBackend("struck")
        self.script: Any = Calm()
        self.backend: FaultyBackend | None = None
        super().__init__(server, folder)
        self.history()

    def history(self, run: str = "away_s = 120") -> None:
        """Configure it."""
        self.configure(route='deletes = "history"', run=run, chunk_rows=4)

    @property
    def lake(self) -> objcat.Lake:
        """The lake over a network without faults."""
        return objcat.Lake(FileIO(self.memory))

    def ingest(self, opener: Any = open_source, env: Any = None) -> Ingest:
        """An ingest over the network that fails."""
        self.backend = FaultyBackend(self.memory, self.script)
        policy = RetryPolicy(attempts_max=3, backoff_ms_first=1, backoff_ms_max=4)
        return Ingest(self.config(), objcat.Lake(FileIO(self.backend, policy=policy)), opener, env=env or default_env())

    def rows_or_none(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table that may not be there yet."""
        try:
            return self.rows(table)
        except TableNotFound:
            return []

    def differences_of_history(self) -> list[str]:
        """What differs between the source and the last change of each key in the lake."""
        here = {row: value for _, row, value in self.changes()}
        there = {row["id"]: row["n"] for row in self.source_rows("items")}
        return [
            f"{one}: {there.get(one)} at the source, {here.get(one)} in the lake" for one in there | here if there.get(one) != here.get(one)
        ]

    def changes(self, table: str = "items") -> list[tuple[str, int, int]]:
        """Every change that the lake has: operation, key and value, in the order of the source, those of the snapshot first."""
        rows = sorted(self.rows(table), key=lambda row: (row["_op"] != "read", row["_source_pos"], row["_source_seq"], row["id"]))
        return [(row["_op"], row["id"], row["n"]) for row in rows]


class Calm:
    """A network that works."""

    def choose(self, request: Request) -> Hit | None:
        return None


class EveryAnswerLost:
    """The answer to every put of a slot is lost. With `then`, so many reads after it fail too."""

    def __init__(self, then: int = 0) -> None:
        self.lost = 0
        self._then = then
        self._left = 0

    def choose(self, request: Request) -> Hit | None:
        if is_slot(request):
            self.lost += 1
            # Tables are there by now. Each try to make one would write its first slots again.
            self._left = self._then if int(request.key.rpartition("/")[2].removesuffix(".json")) > 3 else 0
            return Hit(Fault.AFTER)
        if self._left and request.kind in ("get", "head", "list"):
            self._left -= 1
            return Hit(Fault.BEFORE)
        return None


class OnSlots:
    """One fault at the n-th put of a slot."""

    def __init__(self, fault: Fault, nth: int) -> None:
        self.seen = 0
        self.hits = 0
        self._fault = fault
        self._nth = nth

    def choose(self, request: Request) -> Hit | None:
        if not is_slot(request):
            return None
        self.seen += 1
        if self.seen != self._nth:
            return None
        self.hits += 1
        return Hit(self._fault)


class LateSlots:
    """Every second put of a slot is not answered, and lands some requests later."""

    def __init__(self, delay: int) -> None:
        self.late = 0
        self._seen = 0
        self._delay = delay

    def choose(self, request: Request) -> Hit | None:
        if not is_slot(request):
            return None
        self._seen += 1
        if self._seen % 2:
            return None
        self.late += 1
        return Hit(Fault.LATER, delay=self._delay)


class Storm:
    """A tenth of all requests is hit, at random."""

    FAULTS = frozenset({Fault.BEFORE, Fault.AFTER, Fault.LATER, Fault.TWICE, Fault.THROTTLE})

    def __init__(self, seed: int, rate: float = 0.1) -> None:
        self.hits = 0
        self._random = random.Random(seed)
        self._rate = rate

    def choose(self, request: Request) -> Hit | None:
        if SCRATCH_PREFIX in request.key:
            return None  # A store that seems unfit is refused, which is another test.
        possible = sorted(self.FAULTS & APPLICABLE[request.kind], key=lambda fault: fault.value)
        if not possible or self._random.random() >= self._rate:
            return None
        self.hits += 1
        return Hit(self._random.choice(possible), delay=self._random.randrange(1, 8))


class Switch:
    """A network that somebody turns off, or makes slow."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.is_away = False
        self.refused = 0
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def choose(self, request: Request) -> Hit | None:
        if self._pause_s:
            time.sleep(self._pause_s)
        if not self.is_away:
            return None
        with self._lock:
            self.refused += 1
        return Hit(Fault.BEFORE)


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Wait for something. Raises AssertionError with `what` when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def duplicates(changes: Collection[Any]) -> list[Any]:
    """What is there more than once."""
    seen, twice = set[Any](), list[Any]()
    for one in changes:
        if one in seen:
            twice.append(one)
        seen.add(one)
    return twice
