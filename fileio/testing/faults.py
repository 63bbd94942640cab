"""A backend that fails on purpose, the same way on every run.

`FaultyBackend` sits below the settling of `FileIO`, where the network is. What goes wrong, and when, is a script: `Rules` for a chosen
request, `RandomFaults` for a seeded storm. What was asked and what fired is counted by call site (kind of request, class of key), so that
a test can insist that every fault fired everywhere it can.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, Protocol, TypeVar

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
    OutcomeUnknown,
    Overwrite,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Upload,
    Version,
    Written,
)
from fileio.errors import FileIOError, NotFound, Throttled, Unavailable

R = TypeVar("R")


class Fault(Enum):
    """What may go wrong with one request."""

    BEFORE = "before"
    """No effect and no answer: a write is `OutcomeUnknown`, everything else raises Unavailable."""
    AFTER = "after"
    """The effect takes place, the answer is lost."""
    LATER = "later"
    """No answer now; the effect takes place at `FaultyBackend.release`, or after `delay` more requests."""
    TWICE = "twice"
    """Somebody on the way repeats the request: the effect is asked for twice, the second answer comes back (one's own failed condition)."""
    THROTTLE = "throttle"
    """Refused before any effect: raises Throttled."""
    PARTIAL = "partial"
    """A batch of deletes does every second key; the others answer Throttled."""
    WRONG_VERSION = "wrong version"
    """The answer names a version that the object does not have."""
    STALE = "stale"
    """A read answers with the state before the present one (NotFound when there was none)."""
    MISSING = "missing"
    """A read answers NotFound although the object is there."""
    IGNORE_CONDITION = "ignore condition"
    """A store that lies: the write takes place whatever its condition says."""
    CRASH_BEFORE = "crash before"
    """The actor stops (raises Crash) before the effect."""
    CRASH_AFTER = "crash after"
    """The actor stops (raises Crash) after the effect."""


class Crash(BaseException):
    """The process of the actor ends here. Not an `Exception`, so that no handler of the code under test survives it."""


Kind = Literal["get", "head", "put", "append", "copy", "list", "delete", "upload_start", "upload_part", "upload_complete", "upload_abort"]

_ALWAYS = frozenset({Fault.BEFORE, Fault.THROTTLE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER})
_EFFECT = _ALWAYS | {Fault.AFTER, Fault.TWICE}
_WRITE = _EFFECT | {Fault.LATER, Fault.WRONG_VERSION}
_READ = _ALWAYS | {Fault.WRONG_VERSION, Fault.STALE, Fault.MISSING}

APPLICABLE: Mapping[Kind, frozenset[Fault]] = {
    "get": _READ,
    "head": _READ,
    "put": _WRITE | {Fault.IGNORE_CONDITION},
    "append": _WRITE,
    "copy": _WRITE | {Fault.IGNORE_CONDITION},
    "list": _ALWAYS,
    "delete": _EFFECT | {Fault.LATER, Fault.PARTIAL},
    "upload_start": (_EFFECT - {Fault.TWICE}) | {Fault.IGNORE_CONDITION},
    "upload_part": _EFFECT,
    "upload_complete": _WRITE,
    "upload_abort": _EFFECT,
}
"""Which faults a kind of request can suffer."""


# ---- scripts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the store. number: from 1, over all kinds and keys. key: of the first key for a batch, the prefix for a listing."""

    number: int
    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class Hit:
    """What a script decides. delay: for LATER, after how many more requests the effect takes place (None: at `release`)."""

    fault: Fault
    delay: int | None = None


class Script(Protocol):
    """Decides what happens to each request; called once a request, in order, under a lock."""

    def choose(self, request: Request) -> Hit | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One planned fault.

    kinds: of request (None: any that can suffer it). key: which keys (None: all). nth: the first matching request that it hits, from 1.
    times: how many in a row. delay: see `Hit`.
    """

    fault: Fault
    kinds: frozenset[Kind] | None = None
    key: Callable[[str], bool] | None = None
    nth: int = 1
    times: int = 1
    delay: int | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds or ():
            if self.fault not in APPLICABLE[kind]:
                raise ValueError(f"a request of kind {kind!r} cannot suffer {self.fault.value!r}")

    def matches(self, request: Request) -> bool:
        kinds = self.kinds if self.kinds is not None else {kind for kind, faults in APPLICABLE.items() if self.fault in faults}
        return request.kind in kinds and (self.key is None or self.key(request.key))


class Rules:
    """A script of planned faults. Every rule counts its own matching requests; where two would hit the same one, the first rule does."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules = list(rules)
        self._seen = [0] * len(self._rules)

    def choose(self, request: Request) -> Hit | None:
        hit: Hit | None = None
        for index, rule in enumerate(self._rules):
            if rule.matches(request):
                self._seen[index] += 1
                if hit is None and rule.nth <= self._seen[index] < rule.nth + rule.times:
                    hit = Hit(rule.fault, rule.delay)
        return hit


class RandomFaults:
    """A storm of faults from a seed.

    rate: the probability that a request is hit. faults: which ones may come. faults_max: after that many the network is calm.
    """

    def __init__(self, *, seed: int, rate: float, faults: Iterable[Fault], faults_max: int | None = None) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._faults = sorted(set(faults), key=lambda fault: fault.value)
        self._left = faults_max

    def choose(self, request: Request) -> Hit | None:
        possible = [fault for fault in self._faults if fault in APPLICABLE[request.kind]]
        if self._left == 0 or not possible or self._random.random() >= self._rate:
            return None
        if self._left is not None:
            self._left -= 1
        return Hit(self._random.choice(possible), delay=self._random.randrange(1, 6))


# ---- the backend -------------------------------------------------------------------------------------------------


def default_key_class(key: str) -> str:
    """The key with its numbers and identifiers replaced by `#`: keys of one class are written by the same code."""
    return re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", key)


class FaultyBackend(Backend):
    """Another backend, seen through a network that follows `script`. Safe for many threads; deterministic when used by one.

    before, after: called around every request, outside of any lock; a competitor or a probe of a test acts there.
    fired: how often each fault hit, by call site (kind, class of key). asked: how many requests each call site sent.
    """

    def __init__(
        self,
        inner: Backend,
        script: Script | Iterable[Rule] = (),
        *,
        before: Callable[[Request], None] | None = None,
        after: Callable[[Request], None] | None = None,
        key_class: Callable[[str], str] = default_key_class,
    ) -> None:
        self._inner = inner
        self._script: Script = Rules(script) if isinstance(script, Iterable) else script
        self._before = before
        self._after = after
        self._key_class = key_class
        self._lock = threading.Lock()
        self._number = 0
        self._pending: list[tuple[int | None, Callable[[], object]]] = []
        self._states: dict[str, list[GetResult | None]] = {}
        self.fired: Counter[tuple[Kind, str, Fault]] = Counter()
        self.asked: Counter[tuple[Kind, str]] = Counter()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def pending(self) -> int:
        """How many delayed effects have not taken place yet."""
        with self._lock:
            return len(self._pending)

    def release(self) -> None:
        """Let every delayed effect take place now, in the order in which they were asked for."""
        with self._lock:
            due, self._pending = self._pending, []
        for _, effect in due:
            _quietly(effect)

    def never_fired(self, faults: Iterable[Fault]) -> set[tuple[Kind, str, Fault]]:
        """Call sites that were used, with the faults among `faults` that they can suffer but that never hit them."""
        wanted = set(faults)
        return {(kind, key, fault) for kind, key in self.asked for fault in wanted & APPLICABLE[kind] if not self.fired[kind, key, fault]}

    # ---- the contract

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        def answer(state: GetResult) -> GetResult | NotModified:
            return NotModified() if state.meta.version == if_none_match else _cut(state, byte_range)

        def lie(result: GetResult | NotModified) -> GetResult | NotModified:
            return result if isinstance(result, NotModified) else replace(result, meta=_wrong(result.meta))

        return self._read("get", key, lambda: self._inner.get(key, byte_range, if_none_match), answer, lie)

    def head(self, key: str) -> ObjectMeta:
        return self._read("head", key, lambda: self._inner.head(key), lambda state: state.meta, _wrong)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        copied = bytes(data)
        return self._write(
            "put",
            key,
            lambda: self._inner.put(key, copied, mode, metadata),
            lambda: self._inner.put(key, copied, Overwrite(), metadata),
        )

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        copied = bytes(data)
        return self._write("append", key, lambda: self._inner.append(key, copied, offset))

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        return self._write(
            "copy",
            target,
            lambda: self._inner.copy(source, target, mode, metadata),
            lambda: self._inner.copy(source, target, Overwrite(), metadata),
        )

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        request, hit = self._begin("upload_start", key)
        asked = Overwrite() if hit is not None and hit.fault is Fault.IGNORE_CONDITION else mode
        return _FaultyUpload(self, key, self._do(request, hit, lambda: self._inner.start_upload(key, asked, metadata)))

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        request, hit = self._begin("list", prefix)
        return self._do(request, hit, lambda: self._inner.list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        request, hit = self._begin("delete", keys[0] if keys else "")
        if hit is not None and hit.fault is Fault.PARTIAL:
            done = {result.key: result for result in self._do(request, None, lambda: self._inner.delete_batch(keys[::2]))}
            return [done.get(key) or DeleteResult(key, Throttled(f"{self.url} was told to refuse the deletion of {key!r}")) for key in keys]
        return self._do(request, hit, lambda: self._inner.delete_batch(keys))

    def close(self) -> None:
        self._inner.close()

    # ---- one request

    def _begin(self, kind: Kind, key: str) -> tuple[Request, Hit | None]:
        """Count the request, let what is due take place, and ask the script."""
        with self._lock:
            self._number += 1
            request = Request(self._number, kind, key)
            due = [effect for at, effect in self._pending if at is not None and at < self._number]
            self._pending = [(at, effect) for at, effect in self._pending if at is None or at >= self._number]
            hit = self._script.choose(request)
            self.asked[kind, self._key_class(key)] += 1
            if hit is not None:
                assert hit.fault in APPLICABLE[kind], f"a request of kind {kind!r} cannot suffer {hit.fault.value!r}"
                self.fired[kind, self._key_class(key), hit.fault] += 1
        for effect in due:
            _quietly(effect)
        if self._before is not None:
            self._before(request)
        self._observe(key)
        return request, hit

    def _do(self, request: Request, hit: Hit | None, effect: Callable[[], R]) -> R:
        """The effect as `hit` has it, for requests that raise when their answer is lost."""
        fault = None if hit is None else hit.fault
        what = f"{request.kind} of {request.key!r} in {self.url}"
        if fault is Fault.CRASH_BEFORE:
            raise Crash(f"crash before {what}")
        if fault is Fault.THROTTLE:
            raise Throttled(f"{what} was told to be refused: ask again later")
        if fault is Fault.BEFORE:
            raise Unavailable(f"{what} was told to be lost on the way there")
        if hit is not None and fault is Fault.LATER:
            with self._lock:
                self._pending.append((None if hit.delay is None else request.number + hit.delay, effect))
            raise Unavailable(f"{what} was told to arrive later")
        try:
            result = effect()
            if fault is Fault.TWICE:
                result = effect()
        finally:
            self._observe(request.key)
            if self._after is not None:
                self._after(request)
        if fault is Fault.CRASH_AFTER:
            raise Crash(f"crash after {what}")
        if fault is Fault.AFTER:
            raise Unavailable(f"the answer to {what} was told to be lost on the way back")
        return result

    def _write(
        self, kind: Kind, key: str, effect: Callable[[], PutOutcome], unconditional: Callable[[], PutOutcome] | None = None
    ) -> PutOutcome:
        request, hit = self._begin(kind, key)
        fault = None if hit is None else hit.fault
        if fault is Fault.IGNORE_CONDITION:
            assert unconditional is not None
            return self._do(request, None, unconditional)
        try:
            outcome = self._do(request, hit, effect)
        except Unavailable as error:
            return OutcomeUnknown(error)
        if fault is Fault.WRONG_VERSION and isinstance(outcome, Written):
            return replace(outcome, version=Version(outcome.version + "-wrong"))
        return outcome

    def _read(self, kind: Kind, key: str, effect: Callable[[], R], from_state: Callable[[GetResult], R], lie: Callable[[R], R]) -> R:
        request, hit = self._begin(kind, key)
        fault = None if hit is None else hit.fault
        if fault is Fault.MISSING:
            raise NotFound(f"there is no object {key!r} in {self.url} (so it was told to say)")
        if fault is Fault.STALE:
            former = self._former(key)
            if former is None:
                raise NotFound(f"there is no object {key!r} in {self.url} yet (so it was told to say)")
            return from_state(former)
        result = self._do(request, hit, effect)
        return lie(result) if fault is Fault.WRONG_VERSION else result

    # ---- former states

    def _observe(self, key: str) -> None:
        """Remember the present state of the key, so that a stale read can answer with it later."""
        try:
            found = self._inner.get(key, None, None) if key else None
        except FileIOError:
            found = None
        state = found if isinstance(found, GetResult) else None
        with self._lock:
            states = self._states.setdefault(key, [])
            if not states or _version(states[-1]) != _version(state):
                states.append(state)
                del states[:-2]

    def _former(self, key: str) -> GetResult | None:
        with self._lock:
            states = self._states.get(key, [])
            return states[-2] if len(states) > 1 else None


class _FaultyUpload(Upload):
    def __init__(self, store: FaultyBackend, key: str, inner: Upload) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    def put_part(self, number: int, data: Buffer) -> None:
        copied = bytes(data)
        request, hit = self._store._begin("upload_part", self._key)
        self._store._do(request, hit, lambda: self._inner.put_part(number, copied))

    def complete(self) -> PutOutcome:
        return self._store._write("upload_complete", self._key, self._inner.complete)

    def abort(self) -> None:
        request, hit = self._store._begin("upload_abort", self._key)
        self._store._do(request, hit, self._inner.abort)


def _quietly(effect: Callable[[], object]) -> None:
    """A delayed effect: nobody is there any more to hear of its failure."""
    try:
        effect()
    except Exception:  # noqa: BLE001  (whatever it is, a real network would swallow it too)
        return


def _version(state: GetResult | None) -> Version | None:
    return None if state is None else state.meta.version


def _wrong(meta: ObjectMeta) -> ObjectMeta:
    return replace(meta, version=Version(meta.version + "-wrong"))


def _cut(state: GetResult, byte_range: ByteRange | None) -> GetResult:
    size = len(state.data)
    match byte_range:
        case None:
            return state
        case Range(start, end):
            return GetResult(state.meta, state.data[start:end], min(start, size), state.store_time_ms)
        case Suffix(length):
            start = max(0, size - length)
            return GetResult(state.meta, state.data[start:], start, state.store_time_ms)


__all__ = [
    "APPLICABLE",
    "Crash",
    "Fault",
    "FaultyBackend",
    "Hit",
    "Kind",
    "RandomFaults",
    "Request",
    "Rule",
    "Rules",
    "Script",
    "default_key_class",
]
