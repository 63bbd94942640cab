"""A store in memory that charges simulated time: each request takes a latency and the time of its bytes, and real ones wait for nothing.

`OverlappedEnv` runs everything in the calling thread. What a real process does in other threads has a clock of its own, which begins where
it was submitted; whoever waits for it goes on when it has ended. So requests that would overlap are counted once, and a run is a function
of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from fileio.contract import (
    Buffer,
    ByteRange,
    Capabilities,
    DeleteResult,
    GetResult,
    ListPage,
    NotModified,
    ObjectMeta,
    PutMode,
    PutOutcome,
    Version,
)
from fileio.env import done_at_once
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv

T = TypeVar("T")
R = TypeVar("R")

LATENCY_S = 0.02
BYTES_PER_S = 100e6
"""Of one connection."""
TASKS_AT_ONCE, CALLS_AT_ONCE = 16, 32
"""Threads of `SystemEnv` for tasks, and for calls to stores."""
CAPABILITIES = Capabilities(content_versions=True)
"""As S3 has them."""
_seeds = count(1)


class _Threads:
    """When each of some threads is free again. A call within one of them runs there at once."""

    def __init__(self, number: int) -> None:
        self.free_s = [0.0] * number
        self.inside = False


class OverlappedEnv(FakeEnv):
    """A clock that goes on with requests and pauses, and back to where a call began that runs beside."""

    def __init__(self) -> None:
        super().__init__(next(_seeds))
        self._tasks, self._calls = _Threads(TASKS_AT_ONCE), _Threads(CALLS_AT_ONCE)

    @property
    def parallelism(self) -> int:
        """As of `SystemEnv`."""
        return TASKS_AT_ONCE

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:  # noqa: ARG002 - the process does not end
        """A task, with its own clock."""
        return self._beside(self._tasks, function)

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        """A call, with its own clock."""
        return self._beside(self._calls, function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Tasks, each with its own clock."""
        futures = [self._beside(self._tasks, lambda item=item: function(item)) for item in items]  # type: ignore[misc]
        return (future.result() for future in futures)

    def rest(self) -> None:
        """Go on until all that runs beside has ended."""
        self._elapsed_s = max(self._elapsed_s, *self._tasks.free_s, *self._calls.free_s)

    def _beside(self, threads: _Threads, function: Callable[[], R]) -> Future[R]:
        if threads.inside:
            return done_at_once(function)
        began_s = self._elapsed_s
        lane = min(range(len(threads.free_s)), key=threads.free_s.__getitem__)
        self._elapsed_s = max(began_s, threads.free_s[lane])
        threads.inside = True
        future = _Beside[R](self)
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - for whoever asks for the result
            future.set_exception(error)
        finally:
            threads.inside = False
            future.ended_s = threads.free_s[lane] = self._elapsed_s
            self._elapsed_s = began_s
        return future


class _Beside(Future[R]):
    """What a call beside has answered; whoever asks for it goes on when it has ended."""

    def __init__(self, env: OverlappedEnv) -> None:
        super().__init__()
        self.ended_s = 0.0
        self._env = env

    def result(self, timeout: float | None = None) -> R:
        self._env._elapsed_s = max(self._env._elapsed_s, self.ended_s)
        return super().result(timeout)


@dataclass(slots=True)
class Charges:
    """What was asked: the times of each request, in the order in which they were sent, and bytes."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0

    def in_sequence(self, until_s: float) -> int:
        """The most requests of which each began after the one before had ended, up to a time: round trips that nothing hides."""
        number, free_s = 0, -1.0
        for began_s, ended_s in sorted(self.spans, key=lambda span: span[1]):
            if ended_s > until_s + 1e-9:
                break
            if began_s >= free_s - 1e-9:
                number, free_s = number + 1, ended_s
        return number


class SimulatedBackend(MemoryBackend):
    """The memory store, far away. One for all handles of a run.

    Attributes:
        charges: What was asked; None: requests take no time and are not counted, for the making of a state.
    """

    def __init__(self, name: str = "simulated") -> None:
        self.clock = OverlappedEnv()
        super().__init__(name, capabilities=CAPABILITIES, content_versions=True, env=self.clock)
        self.charges: Charges | None = None

    def opened(self) -> FileIO:
        """The store for another process, whose clock is the one that goes on."""
        self.clock = self._env = OverlappedEnv()
        return FileIO(self, env=self.clock)

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Charged with the bytes read."""
        return self._charged("GET", lambda: super(SimulatedBackend, self).get(key, byte_range, if_none_match))

    def head(self, key: str) -> ObjectMeta:
        """Charged."""
        return self._charged("HEAD", lambda: super(SimulatedBackend, self).head(key))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Charged with the bytes written."""
        return self._charged("PUT", lambda: super(SimulatedBackend, self).put(key, data, mode, metadata), written=len(data))

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Charged, a page each."""
        return self._charged("LIST", lambda: super(SimulatedBackend, self).list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Charged once for the batch."""
        return self._charged("DELETE", lambda: super(SimulatedBackend, self).delete_batch(keys))

    def _charged(self, kind: str, call: Callable[[], T], *, written: int = 0) -> T:
        charges = self.charges
        if charges is None:
            return call()
        began_s, read = self.clock.monotonic_s(), 0
        try:
            result = call()
            read = len(result.data) if isinstance(result, GetResult) else 0
            return result
        finally:
            self.clock.advance(LATENCY_S + (read + written) / BYTES_PER_S)
            charges.spans.append((began_s, self.clock.monotonic_s()))
            charges.kinds[kind] = charges.kinds.get(kind, 0) + 1
            charges.bytes_read += read
            charges.bytes_written += written
