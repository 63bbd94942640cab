"""Counts round trips: how many requests of some work come one after the other, however many are sent at once.

The work runs on a store where every request takes one unit of simulated time and nothing else takes any. So the time at the end is the
length of the longest chain of requests that waited for each other. Real stores can be behind it too: nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fileio.contract import (
    Backend,
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
    Upload,
    Version,
)
from fileio.env import MEMORY_BYTES
from fileio.store import FileIO
from tests.timeline.simulated import Simulation

T = TypeVar("T")
R = TypeVar("R")


class ParallelSimulation(Simulation):
    """A simulation whose tasks run beside each other, as in a process with many threads."""

    @property
    def parallelism(self) -> int:
        return 16

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        futures = [self.submit_io(lambda item=item: function(item)) for item in items]  # type: ignore[misc]
        return iter([future.result() for future in futures])


@dataclass(frozen=True, slots=True)
class Request:
    """A request, and when it was sent: after how many round trips."""

    kind: str
    key: str
    after: int


@dataclass(slots=True)
class Trips:
    """What some work sent. depth: how many of its requests came one after the other."""

    depth: int = 0
    requests: list[Request] = field(default_factory=list)

    @property
    def gets(self) -> int:
        return sum(request.kind == "get" for request in self.requests)

    def __str__(self) -> str:
        lines = [f"{request.after + 1}: {request.kind} {request.key}" for request in sorted(self.requests, key=lambda one: one.after)]
        return "\n".join([f"{len(self.requests)} requests in {self.depth} round trips", *lines])


def counted_trips(store: Backend, work: Callable[[FileIO], object]) -> Trips:
    """What `work` sends to a store that it gets as a new `FileIO`, as in a process that has just begun. Raises what it raises."""
    simulation = ParallelSimulation(1)
    trips = Trips()
    far = _FarBackend(store, simulation, trips)

    def run() -> None:
        work(FileIO(far, env=simulation))
        trips.depth = round(simulation.monotonic_s())

    simulation.run([run])
    return trips


class _FarBackend(Backend):
    """A store of which every request takes a second, and is noted."""

    def __init__(self, inner: Backend, simulation: Simulation, trips: Trips) -> None:
        self._inner = inner
        self._simulation = simulation
        self._trips = trips

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        return self._there("get", key, lambda: self._inner.get(key, byte_range, if_none_match))

    def head(self, key: str) -> ObjectMeta:
        return self._there("head", key, lambda: self._inner.head(key))

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        return self._there("put", key, lambda: self._inner.put(key, data, mode, metadata))

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        return self._there("append", key, lambda: self._inner.append(key, data, offset))

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        return self._there("upload_start", key, lambda: self._inner.start_upload(key, mode, metadata))

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        return self._there("list", prefix, lambda: self._inner.list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        return self._there("delete", ", ".join(keys), lambda: self._inner.delete_batch(keys))

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        return self._there("copy", source, lambda: self._inner.copy(source, target, mode, metadata))

    def close(self) -> None:
        self._inner.close()

    def _there(self, kind: str, key: str, call: Callable[[], T]) -> T:
        self._trips.requests.append(Request(kind, key, round(self._simulation.monotonic_s())))
        self._simulation.sleep(1)
        return call()
