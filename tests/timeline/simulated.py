"""Writers in simulated time: each request takes as long as it is said to, real ones wait for nothing, and a run is a function of its seed.

Every writer and every call that it hands on is a thread, of which one runs at a time: whoever waits lets the one go on whose time is next.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast

from fileio.contract import Buffer, ByteRange, DeleteResult, GetResult, ListPage, NotModified, ObjectMeta, PutMode, PutOutcome, Version
from fileio.env import MEMORY_BYTES, Env
from fileio.memory import MemoryBackend

T = TypeVar("T")
R = TypeVar("R")

EPOCH_MS = 1_800_000_000_000


class Simulation:
    """A clock that goes on when all wait, and an `Env` on it. For one run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_s = 0.0
        self._number = 0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, writers: Iterable[Callable[[], None]]) -> None:
        """Run all of them to their end, from now on. Raises what one of them raised."""
        for writer in writers:
            self._begin(writer)
        self._next()
        self._over.wait()
        if self._errors:
            raise self._errors[0]

    # ---- Env

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._now_s * 1000)

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        turn = self._queue(seconds)
        self._next()
        turn.wait()

    def random(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        future = _Later[R](self)

        def call() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - for whoever asks for the result
                future.set_exception(error)
            for turn in future.waiting:
                self._requeue(turn)

        self._begin(call)
        return future

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        return self.submit_io(function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return iter([function(item) for item in items])

    def idle_wait(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def urgent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give_way(self) -> None:
        """Whoever has the turn has it alone."""

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        """Nothing comes again: no writer here lives long enough."""
        return lambda: None

    def process(self) -> Env:
        """The world of one process: writers with different ones share nothing but stores."""
        return cast("Env", _Process(self))

    # ---- whose turn it is

    def _begin(self, function: Callable[[], None]) -> None:
        turn = self._queue(0)

        def run() -> None:
            turn.wait()
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - for `run`
                self._errors.append(error)
            self._next()

        threading.Thread(target=run, daemon=True).start()

    def _queue(self, seconds: float) -> threading.Event:
        turn = threading.Event()
        self._requeue(turn, seconds)
        return turn

    def _requeue(self, turn: threading.Event, seconds: float = 0) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (self._now_s + seconds, self._number, turn))

    def _next(self) -> None:
        if not self._waiting:
            self._over.set()
            return
        self._now_s, _, turn = heapq.heappop(self._waiting)
        turn.set()


class _Process:
    """The simulation under another identity."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)


class _Later(Future[R]):
    """What a call will answer; whoever asks for it lets others go on."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.waiting: list[threading.Event] = []
        self._simulation = simulation

    def result(self, timeout: float | None = None) -> R:
        if not self.done():
            turn = threading.Event()
            self.waiting.append(turn)
            self._simulation._next()
            turn.wait()
        return super().result(timeout)


class SlowBackend(MemoryBackend):
    """A memory store that is far away: a request has its effect at half of its time, which varies by a quarter. latency_s: 0 for whoever is
    outside of the simulation."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        super().__init__(name)
        self.latency_s = 0.0
        self._simulation = simulation

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        return self._there(lambda: super(SlowBackend, self).get(key, byte_range, if_none_match))

    def head(self, key: str) -> ObjectMeta:
        return self._there(lambda: super(SlowBackend, self).head(key))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        return self._there(lambda: super(SlowBackend, self).put(key, data, mode, metadata))

    def _there(self, call: Callable[[], T]) -> T:
        self._travel()
        try:
            return call()
        finally:
            self._travel()

    def _travel(self) -> None:
        if self.latency_s:
            self._simulation.sleep(self.latency_s / 2 * (0.75 + self._simulation.random() / 2))


class Overlapped(Simulation):
    """Requests of one call run beside one another."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        futures = [self.submit_io(partial(function, item)) for item in items]
        return iter([future.result() for future in futures])


class FarBackend(SlowBackend):
    """Listings and deletes take their time too. counts: of requests."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__("far", simulation)
        self.counts: Counter[str] = Counter()

    def _there(self, call: Callable[[], T]) -> T:
        self.counts["requests"] += self.latency_s > 0
        return super()._there(call)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        return self._there(lambda: MemoryBackend.list_page(self, prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        return self._there(lambda: MemoryBackend.delete_batch(self, keys))
