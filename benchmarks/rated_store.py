"""A simulated store with the rate limits that stores publish: what exceeds them is answered with 503, like a busy store would.

The limits are those that pages about the stores gave in 2026, all of them at once. The vendors' own pages were not read:

- S3: at least 3,500 PUT, COPY, POST and DELETE and 5,500 GET and HEAD a second for each partitioned prefix. Here all tables are one
  prefix, as in a new bucket.
- Google Cloud Storage: about one write a second to the same object name.
- Azure: 20,000 requests a second for each account.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fileio.contract import (
    Buffer,
    ByteRange,
    Create,
    DeleteResult,
    GetResult,
    ListPage,
    NotModified,
    ObjectMeta,
    OutcomeUnknown,
    PutMode,
    PutOutcome,
    Version,
)
from fileio.errors import Unavailable
from tests.timeline.simulated import Simulation, SlowBackend

T = TypeVar("T")

GET, HEAD, PUT, DELETE, LIST = "GET", "HEAD", "PUT", "DELETE", "LIST"
READS = (GET, HEAD, LIST)


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests a second."""

    prefix_writes: int = 3_500
    prefix_reads: int = 5_500
    object_writes: int = 1
    account: int = 20_000


class RatedBackend(SlowBackend):
    """A memory store that is far away and busy.

    Attributes:
        requests: By kind, those that were refused included.
        refused: By the limit that was exceeded.
        is_counting: Whether requests are counted and limits hold; not while a state is made or checked.
    """

    def __init__(self, simulation: Simulation, limits: Limits) -> None:
        super().__init__("rated", simulation)
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.is_counting = False
        self._limits = limits
        self._second = -1
        self._sent: Counter[str] = Counter()
        self._written_s: defaultdict[str, float] = defaultdict(lambda: -1e9)

    def admit(self, kind: str, key: str = "", *, replaces: bool = False, number: int = 1) -> None:
        """Count requests. replaces: whether they write an object that may be there. Raises Unavailable when that is one too many."""
        if not self.is_counting:
            return
        self.requests[kind] += number
        now_s = self._simulation.monotonic_s()
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._sent.clear()
        which = "prefix_reads" if kind in READS else "prefix_writes"
        limit = ""
        if self._sent[which] + number > getattr(self._limits, which):
            limit = which
        elif self._sent["account"] + number > self._limits.account:
            limit = "account"
        elif replaces and now_s - self._written_s[key] < 1 / self._limits.object_writes:
            limit = "object_writes"
        if limit:
            self.refused[limit] += number
            raise Unavailable(f"503 SlowDown: {kind} {key} exceeds {limit}")
        self._sent[which] += number
        self._sent["account"] += number
        if replaces:
            self._written_s[key] = now_s

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """Limited as a read."""
        self.admit(GET, key)
        return super().get(key, byte_range, if_none_match)

    def head(self, key: str) -> ObjectMeta:
        """Limited as a read."""
        self.admit(HEAD, key)
        return super().head(key)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """Limited as a write, and as one of its object unless it creates that. A 503 says nothing of its effect, by the contract."""
        try:
            self.admit(PUT, key, replaces=not isinstance(mode, Create))
        except Unavailable as error:
            return OutcomeUnknown(error)
        return super().put(key, data, mode, metadata)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """Limited as a read."""
        return self._sent_for(LIST, lambda: super(RatedBackend, self).list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """Limited as one write for the batch."""
        return self._sent_for(DELETE, lambda: super(RatedBackend, self).delete_batch(keys))

    def _sent_for(self, kind: str, call: Callable[[], T]) -> T:
        self.admit(kind)
        return self._there(call)
