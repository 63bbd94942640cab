"""`FaultyBackend`: a backend that fails on purpose, in the same way on every run.

It sits below `FileIO`'s settling, where the network is. A script decides what fails and when: `Rules` for chosen requests, `RandomFaults`
for a seeded storm. Requests and faults are counted by call site (kind of request, class of key), so that a test can insist that every
fault fired everywhere it can.
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
    """The effect takes place. The answer is lost."""
    LATER = "later"
    """No answer now. The effect takes place at `FaultyBackend.release`, or after `delay` more requests."""
    TWICE = "twice"
    """Something in between repeats the request. The second answer comes back: the failed condition of the repetition."""
    THROTTLE = "throttle"
    """Refused before any effect: raises Throttled."""
    PARTIAL = "partial"
    """A batch of deletes deletes every second key. The others answer Throttled."""
    WRONG_VERSION = "wrong version"
    """The answer names a version that the object does not have."""
    STALE = "stale"
    """A read answers with the previous state (NotFound when there was none)."""
    MISSING = "missing"
    """A read answers NotFound although the object exists."""
    IGNORE_CONDITION = "ignore condition"
    """The store lies: the write takes place although its condition fails."""
    CRASH_BEFORE = "crash before"
    """The actor stops (raises Crash) before the effect."""
    CRASH_AFTER = "crash after"
    """The actor stops (raises Crash) after the effect."""


class Crash(BaseException):
    """The process of the actor ends here. It is not an `Exception`, so that no handler of the code under test survives it."""


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
"""The faults that a kind of request can suffer."""


# ---- scripts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `number`: from 1, over all kinds and keys. `key`: the first key of a batch, or the prefix of a listing."""

    number: int
    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class Hit:
    """The decision of a script. `delay`: for LATER, the number of requests until the effect takes place; None waits for `release`."""

    fault: Fault
    delay: int | None = None


class Script(Protocol):
    """Decides what happens to each request. It is called once per request, in order, under a lock."""

    def choose(self, request: Request) -> Hit | None:
        """The fault of a request; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One planned fault.

    Args:
        fault: The fault.
        kinds: The kinds of request; None means every kind that can suffer it.
        key: Which keys; None means all.
        nth: The first matching request that it hits, from 1.
        times: How many requests in a row.
        delay: See `Hit`.
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
                raise ValueError(f"A request of kind {kind!r} cannot suffer {self.fault.value!r}.")

    def matches(self, request: Request) -> bool:
        """Whether the rule is about this kind of request and this key."""
        kinds = self.kinds if self.kinds is not None else {kind for kind, faults in APPLICABLE.items() if self.fault in faults}
        return request.kind in kinds and (self.key is None or self.key(request.key))


class Rules:
    """A script of planned faults. Every rule counts its own matching requests. If two would hit the same one, the first rule does."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules = list(rules)
        self._seen = [0] * len(self._rules)

    def choose(self, request: Request) -> Hit | None:
        """The fault of the first rule that hits."""
        hit: Hit | None = None
        for index, rule in enumerate(self._rules):
            if rule.matches(request):
                self._seen[index] += 1
                if hit is None and rule.nth <= self._seen[index] < rule.nth + rule.times:
                    hit = Hit(rule.fault, rule.delay)
        return hit


class RandomFaults:
    """A storm of faults from a seed.

    Args:
        seed: The source of randomness.
        rate: The probability that a request is hit.
        faults: The faults to choose from.
        faults_max: After this many, the network is calm; None never is.
    """

    def __init__(self, *, seed: int, rate: float, faults: Iterable[Fault], faults_max: int | None = None) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._faults = sorted(set(faults), key=lambda fault: fault.value)
        self._left = faults_max

    def choose(self, request: Request) -> Hit | None:
        """A random fault that the request can suffer, at the rate."""
        possible = [fault for fault in self._faults if fault in APPLICABLE[request.kind]]
        if self._left == 0 or not possible or self._random.random() >= self._rate:
            return None
        if self._left is not None:
            self._left -= 1
        return Hit(self._random.choice(possible), delay=self._random.randrange(1, 6))


# ---- the backend -------------------------------------------------------------------------------------------------


def default_key_class(key: str) -> str:
    """The key with its numbers and identifiers replaced by `#`. The same code writes all keys of one class."""
    return re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", key)


class FaultyBackend(Backend):
    """Another backend behind a network that follows a script. Safe for many threads; deterministic with one.

    `fired` counts each fault by call site (kind, class of key). `asked` counts the requests of each call site.

    Args:
        inner: The backend.
        script: The script, or rules.
        before: Called before every request, outside of any lock. A competitor or a check of a test acts there.
        after: Called after every request, in the same way.
        key_class: The class of a key.
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
        """The URL of the inner backend."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner backend."""
        return self._inner.capabilities

    @property
    def pending(self) -> int:
        """The number of delayed effects that have not taken place."""
        with self._lock:
            return len(self._pending)

    def release(self) -> None:
        """Let every delayed effect take place now, in the order of the requests."""
        with self._lock:
            due, self._pending = self._pending, []
        for _, effect in due:
            _quietly(effect)

    def never_fired(self, faults: Iterable[Fault]) -> set[tuple[Kind, str, Fault]]:
        """Used call sites with those of `faults` that they can suffer but that never hit them."""
        wanted = set(faults)
        return {(kind, key, fault) for kind, key in self.asked for fault in wanted & APPLICABLE[kind] if not self.fired[kind, key, fault]}

    # ---- the contract

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        """May be stale, missing, or have a wrong version."""

        def answer(state: GetResult) -> GetResult | NotModified:
            return NotModified() if state.meta.version == if_none_match else _cut(state, byte_range)

        def lie(result: GetResult | NotModified) -> GetResult | NotModified:
            return result if isinstance(result, NotModified) else replace(result, meta=_wrong(result.meta))

        return self._read("get", key, lambda: self._inner.get(key, byte_range, if_none_match), answer, lie)

    def head(self, key: str) -> ObjectMeta:
        """May be stale, missing, or have a wrong version."""
        return self._read("head", key, lambda: self._inner.head(key), lambda state: state.meta, _wrong)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """May be lost, delayed, repeated, or ignore its condition."""
        copied = bytes(data)
        return self._write(
            "put",
            key,
            lambda: self._inner.put(key, copied, mode, metadata),
            lambda: self._inner.put(key, copied, Overwrite(), metadata),
        )

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        """May be lost, delayed or repeated."""
        copied = bytes(data)
        return self._write("append", key, lambda: self._inner.append(key, copied, offset))

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """May be lost, delayed, repeated, or ignore its condition."""
        return self._write(
            "copy",
            target,
            lambda: self._inner.copy(source, target, mode, metadata),
            lambda: self._inner.copy(source, target, Overwrite(), metadata),
        )

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        """May be lost, or forget its condition."""
        request, hit = self._begin("upload_start", key)
        asked = Overwrite() if hit is not None and hit.fault is Fault.IGNORE_CONDITION else mode
        return _FaultyUpload(self, key, self._do(request, hit, lambda: self._inner.start_upload(key, asked, metadata)))

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        """May be lost."""
        request, hit = self._begin("list", prefix)
        return self._do(request, hit, lambda: self._inner.list_page(prefix, start_after, delimiter, cursor, limit))

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        """May be lost, delayed, repeated or partial."""
        request, hit = self._begin("delete", keys[0] if keys else "")
        if hit is not None and hit.fault is Fault.PARTIAL:
            done = {result.key: result for result in self._do(request, None, lambda: self._inner.delete_batch(keys[::2]))}
            return [
                done.get(key) or DeleteResult(key, Throttled(f"{self.url} was told to refuse the deletion of {key!r}.")) for key in keys
            ]
        return self._do(request, hit, lambda: self._inner.delete_batch(keys))

    def close(self) -> None:
        """Close the inner backend."""
        self._inner.close()

    # ---- one request

    def _begin(self, kind: Kind, key: str) -> tuple[Request, Hit | None]:
        """Count the request, let due effects take place, and ask the script."""
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
        """The effect under `hit`, for requests that raise when their answer is lost."""
        fault = None if hit is None else hit.fault
        what = f"{request.kind} of {request.key!r} in {self.url}"
        if fault is Fault.CRASH_BEFORE:
            raise Crash(f"crash before {what}")
        if fault is Fault.THROTTLE:
            raise Throttled(f"The {what} was told to be refused. Try again later.")
        if fault is Fault.BEFORE:
            raise Unavailable(f"The {what} was told to be lost on the way there.")
        if hit is not None and fault is Fault.LATER:
            with self._lock:
                self._pending.append((None if hit.delay is None else request.number + hit.delay, effect))
            raise Unavailable(f"The {what} was told to arrive later.")
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
            raise Unavailable(f"The answer to the {what} was told to be lost on the way back.")
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
            raise NotFound(f"There is no object {key!r} in {self.url}, as it was told to say.")
        if fault is Fault.STALE:
            previous = self._previous(key)
            if previous is None:
                raise NotFound(f"There is no object {key!r} in {self.url} yet, as it was told to say.")
            return from_state(previous)
        result = self._do(request, hit, effect)
        return lie(result) if fault is Fault.WRONG_VERSION else result

    # ---- previous states

    def _observe(self, key: str) -> None:
        """Remember the current state of the key, so that a stale read can answer with it later."""
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

    def _previous(self, key: str) -> GetResult | None:
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
    """A delayed effect. Its failure has no receiver."""
    try:
        effect()
    except Exception:  # noqa: BLE001  (a real network would swallow it too)
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
