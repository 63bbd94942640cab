"""The store of the explorer: immutable contents, requests and answers as plain values, and what a request does as a pure function.

Equal contents are one value, so that two schedules that lead to the same store are recognised as one state. Every key remembers the state
that it was in before, which is what a stale read answers with.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from fileio.contract import (
    Create,
    DeleteResult,
    GetResult,
    ListPage,
    NotModified,
    ObjectMeta,
    OutcomeUnknown,
    PreconditionFailed,
    PutMode,
    PutOutcome,
    Range,
    Suffix,
    Update,
    Version,
    Written,
)
from fileio.errors import NotFound, Throttled, Unavailable

STORE_TIME_MS = 1_800_000_000_000
"""What the store's clock says, where it has one."""


class Fault(enum.Enum):
    """What may go wrong with one request. As in `fileio.testing.faults`, as far as a choice at every request makes sense; and `ECHO`."""

    BEFORE = "lost on the way there, no answer"
    AFTER = "it takes effect, the answer is lost"
    LATER = "no answer; it is still under way and may land at any time"
    TWICE = "repeated on the way: the answer is that of the repetition"
    ECHO = "it is answered, and a repetition of it is still under way"
    THROTTLE = "refused before any effect"
    STALE = "answered from an earlier state"
    CRASH_BEFORE = "the actor dies before it"
    CRASH_AFTER = "the actor dies after it took effect"


CRASHES = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER})


class Object(NamedTuple):
    """What is under a key."""

    data: bytes
    version: str
    metadata: tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """A key: what is there, what was there before, and how often it was written (where versions are generations)."""

    now: Object | None
    before: Object | None
    writes: int


Contents: TypeAlias = Mapping[str, Place]


class Request(NamedTuple):
    """One request. keys: one, or those of a batch of deletes, or the prefix of a listing. rest: what else was asked for."""

    kind: str
    keys: tuple[str, ...]
    data: bytes = b""
    mode: PutMode | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    rest: tuple[object, ...] = ()

    @property
    def key(self) -> str:
        return self.keys[0]


class Answer(NamedTuple):
    """What came back. kind: written, conflict, unknown, throttled, unavailable, object, absent, page or deleted."""

    kind: str
    version: str | None = None
    found: Object | None = None
    keys: tuple[tuple[str, int, str], ...] = ()
    time_ms: int | None = None


LOST = Answer("unknown")
REFUSED = Answer("throttled")
UNAVAILABLE = Answer("unavailable")
ABSENT = Answer("absent")
DELETED = Answer("deleted")


class Profile(NamedTuple):
    """How a store behaves where stores differ. content_versions: equal bytes have equal versions. clock: answers tell its time."""

    content_versions: bool = False
    clock: bool = False


PLAIN = Profile()

# ---- what a request does -----------------------------------------------------------------------------------------


def perform(contents: Contents, request: Request, profile: Profile) -> tuple[Answer, Contents]:
    """The answer, and the contents afterwards: the same object when nothing changed."""
    match request.kind:
        case "get" | "head":
            place = contents.get(request.key)
            return _found(place.now if place else None), contents
        case "list":
            return _page({key: place.now for key, place in contents.items()}, request), contents
        case "delete":
            gone = [key for key in request.keys if (place := contents.get(key)) and place.now]
            if not gone:
                return DELETED, contents
            changed = dict(contents)
            for key in gone:
                changed[key] = Place(None, changed[key].now, changed[key].writes)
            return DELETED, changed
        case "put":
            return _put(contents, request, profile)
    raise AssertionError(f"the explorer has no requests of kind {request.kind!r}: add them to perform()")


def stale(contents: Contents, request: Request) -> Answer:
    """What a read answers from the states before the present ones."""
    if request.kind == "list":
        return _page({key: place.before for key, place in contents.items()}, request)
    place = contents.get(request.key)
    return _found(place.before if place else None)


def settled(contents: Contents) -> Contents:
    """The same store after a while: nothing is so new that a read could miss it."""
    return {key: Place(place.now, place.now, place.writes) for key, place in contents.items() if place.now is not None}


def _put(contents: Contents, request: Request, profile: Profile) -> tuple[Answer, Contents]:
    place = contents.get(request.key, Place(None, None, 0))
    current = None if place.now is None else place.now.version
    match request.mode:
        case Create() if place.now is not None:
            return Answer("conflict", version=current), contents
        case Update(version) if version != current:
            return Answer("conflict", version=current), contents
    writes = 0 if profile.content_versions else place.writes + 1
    version = Version(hashlib.sha256(request.data).hexdigest()[:16] if profile.content_versions else str(writes))
    changed = dict(contents)
    changed[request.key] = Place(Object(request.data, version, request.metadata), place.now, writes)
    return Answer("written", version=version, time_ms=STORE_TIME_MS if profile.clock else None), changed


def _found(found: Object | None) -> Answer:
    return ABSENT if found is None else Answer("object", found=found)


def _page(objects: Mapping[str, Object | None], request: Request) -> Answer:
    start_after = request.rest[0]
    return Answer(
        "page",
        keys=tuple(
            (key, len(found.data), found.version)
            for key, found in sorted(objects.items())
            if found is not None and key.startswith(request.key) and (start_after is None or key > str(start_after))
        ),
    )


# ---- answers as the backend's contract has them ------------------------------------------------------------------


def outcome_of(answer: Answer, request: Request) -> PutOutcome:
    """The outcome of a put. Raises Throttled."""
    match answer.kind:
        case "written":
            return Written(Version(answer.version or ""), answer.time_ms)
        case "conflict":
            return PreconditionFailed(None if answer.version is None else Version(answer.version))
        case "throttled":
            raise Throttled(f"the put of {request.key} was refused")
    return OutcomeUnknown(Unavailable(f"the put of {request.key} was not answered"))


def object_of(answer: Answer, request: Request) -> GetResult | NotModified:
    """The object, or the range of it, that was asked for. Raises NotFound, Unavailable."""
    found = _require(answer, request)
    byte_range, if_none_match = request.rest
    if if_none_match == found.version:
        return NotModified()
    data, offset = found.data, 0
    match byte_range:
        case Range(start, end):
            data, offset = found.data[start:end], start
        case Suffix(length):
            offset = max(0, len(found.data) - length)
            data = found.data[offset:]
    return GetResult(_meta(request.key, found), data, offset)


def meta_of(answer: Answer, request: Request) -> ObjectMeta:
    """What a head answers. Raises NotFound, Unavailable."""
    return _meta(request.key, _require(answer, request))


def page_of(answer: Answer, request: Request) -> ListPage:
    """One page with every key. Raises Unavailable."""
    if answer.kind != "page":
        raise Unavailable(f"the listing of {request.key} was not answered")
    return ListPage([ObjectMeta(key, size, Version(version), STORE_TIME_MS) for key, size, version in answer.keys])


def deletions_of(answer: Answer, request: Request) -> list[DeleteResult]:
    """The results of a batch. Raises Unavailable."""
    if answer.kind != "deleted":
        raise Unavailable(f"the deletion of {request.key} was not answered")
    return [DeleteResult(key) for key in request.keys]


def _require(answer: Answer, request: Request) -> Object:
    if answer.kind == "absent":
        raise NotFound(f"there is no object {request.key}")
    if answer.found is None:
        raise Unavailable(f"the {request.kind} of {request.key} was not answered")
    return answer.found


def _meta(key: str, found: Object) -> ObjectMeta:
    return ObjectMeta(key, len(found.data), Version(found.version), STORE_TIME_MS, dict(found.metadata))
