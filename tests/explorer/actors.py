"""Actors: real code over a store that answers from a script, run from its beginning up to the first request that has no answer yet.

Actors share nothing but the store, so the next request of one is a pure function of the answers that it has had. That function is
remembered here as a tree: a node is a list of answers, and holds the request that comes next or the end of the actor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

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
from fileio.env import MEMORY_BYTES, done_at_once
from fileio.errors import FileIOError, Unsupported
from fileio.store import FileIO
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CorruptTable, ObjcatError, SharedTransaction
from objcat.metadata.table_state import Tables
from objcat.timeline.log_view import LogView
from tests.explorer.store import (
    STORE_TIME_MS,
    Answer,
    Contents,
    Profile,
    Request,
    deletions_of,
    meta_of,
    object_of,
    outcome_of,
    page_of,
    perform,
)

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_MAX = 400
"""An actor that asks for more than this does not end."""


# ---- what an actor says of itself --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The caller was told that its transaction is durable in this slot."""

    txn: str
    slot: int


@dataclass(frozen=True, slots=True)
class Created:
    """The caller was told that its table is there since this slot."""

    table: str
    slot: int


@dataclass(frozen=True, slots=True)
class Named:
    """The caller was told that a name means a table."""

    name: str
    table: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """The caller was told that a table is dropped."""

    table: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The caller was told that a table is dropped to which nobody ever wrote."""

    table: str


@dataclass(frozen=True, slots=True)
class Stated:
    """The caller was told that a property of a table has a value."""

    table: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The caller was told that a derived table shows this slot of its source."""

    table: str
    source: str
    slot: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The caller was told that the transaction is not committed and never will be."""

    txn: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """The caller was told that nobody knows."""

    txn: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A rollback says that this slot fences the transaction."""

    txn: str
    slot: int


@dataclass(frozen=True, slots=True)
class Began:
    """A read begins: what it returns must not be older than the head of the log now. log: its prefix."""

    log: str


@dataclass(frozen=True, slots=True)
class Saw:
    """A read returned a log up to this slot.

    log: its prefix. table: by id; empty: the only one. groups: (file group, files in the order in which their rows count), sorted. rows:
    (key, value), sorted."""

    log: str
    slot: int
    table: str = ""
    groups: tuple[tuple[tuple[str, int, int], tuple[str, ...]], ...] | None = None
    rows: tuple[tuple[int, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Erased:
    """The caller was given a certificate: what was there of a key when it began (`Began`) is in no file any more. log: its prefix."""

    log: str
    key: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The operation ended in an error that is part of its contract; nothing of it is committed, unless the error says that nobody knows."""

    error: str


@dataclass(frozen=True, slots=True)
class Broke:
    """The code ended in an error that no schedule may lead to."""

    error: str


Note = (
    Acknowledged
    | Created
    | Named
    | Dropped
    | TakenBack
    | Stated
    | Shown
    | Failed
    | Undecided
    | RolledBack
    | Began
    | Saw
    | Erased
    | Refused
    | Broke
)


# ---- actors ------------------------------------------------------------------------------------------------------


class Role(Protocol):
    """What an actor does: one call, through the public interfaces, with everything that it learns noted. Equal roles do the same."""

    def __call__(self, me: Participant) -> None: ...


@dataclass(frozen=True, slots=True)
class Actor:
    """number: of its identifiers, unique in a cell, 1 to 255. clock_ms: how far its clock is ahead. attempts_max: of one call."""

    name: str
    number: int
    role: Role
    clock_ms: int = 0
    attempts_max: int = 2


@dataclass(slots=True)
class Participant:
    """What a role is given. number: of its actor. warm: the table as of the beginning, for a role that has it open already."""

    fileio: FileIO
    number: int
    warm: LogView[Tables] | None
    notes: list[Note] = field(default_factory=list)

    def note(self, note: Note) -> None:
        self.notes.append(note)


def owner_of(txn: str) -> int:
    """The number of the actor that made a transaction id."""
    return int(txn.rpartition("-")[2][:2], 16)


class ActorEnv:
    """The world of one actor: a clock that stands still, identifiers that carry its number, no pauses, no threads.

    slow_after: after so many pauses, each further one is so long that what repeats comes again; None: no pause is.
    """

    def __init__(self, actor: Actor) -> None:
        self._now_ms = STORE_TIME_MS + actor.clock_ms
        self._number = actor.number
        self._ids = 0
        self._repeated: list[Callable[[], None]] = []
        self.slow_after: int | None = None

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """A pause is no request, so nothing can be seen of it but what repeats meanwhile."""
        if self.slow_after is None or self.slow_after > 0:
            self.slow_after = None if self.slow_after is None else self.slow_after - 1
            return
        repeated, self._repeated = self._repeated, []  # None of them comes again while it waits itself.
        try:
            for function in repeated:
                function()
        finally:
            self._repeated = repeated

    def random(self) -> float:
        return 0.5

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._number:02x}{self._ids:014x}"

    def submit(self, function: Callable[[], R], *, idle: bool = False) -> Future[R]:
        return done_at_once(function)

    def submit_io(self, function: Callable[[], R]) -> Future[R]:
        return done_at_once(function)

    def idle_wait(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def urgent(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give_way(self) -> None:
        """Whoever has the turn has it alone."""

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        """Time stands still, so nothing comes again but in a pause of a slow actor."""
        self._repeated.append(function)
        return lambda: self._repeated.remove(function)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return iter([function(item) for item in items])


class _Paused(BaseException):
    """The actor has asked for something that has no answer yet. Not an `Exception`: nothing of the code under test may handle it."""


class ExplorerBackend(Backend):
    """Answers requests from a list. Those beyond it are the actor's next ones: they are answered from the store `ahead`, as if nothing went
    wrong and nobody else moved; without it the first of them ends the run.

    asked: all requests. given: the answers to those beyond the list. asides: the call site of each of these, and how many notes were there.
    """

    def __init__(self, answers: Sequence[Answer], profile: Profile, ahead: Contents | None, notes: Sequence[Note]) -> None:
        self._answers = answers
        self._profile = profile
        self._ahead = ahead
        self._notes = notes
        self._is_over = False
        self.asked: list[Request] = []
        self.given: list[Answer] = []
        self.asides: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        return "explorer://store"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(store_clock=self._profile.clock, content_versions=self._profile.content_versions)

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        request = Request("get", (key,), rest=(byte_range, if_none_match))
        return object_of(self._ask(request), request)

    def head(self, key: str) -> ObjectMeta:
        request = Request("head", (key,))
        return meta_of(self._ask(request), request)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        request = Request("put", (key,), bytes(data), mode, tuple(sorted(metadata.items())))
        return outcome_of(self._ask(request), request)

    def list_page(self, prefix: str, start_after: str | None, delimiter: str | None, cursor: str | None, limit: int) -> ListPage:
        assert delimiter is None and cursor is None, "the explorer lists every key below a prefix in one page"
        request = Request("list", (prefix,), rest=(start_after,))
        return page_of(self._ask(request), request)

    def delete_batch(self, keys: Sequence[str]) -> Sequence[DeleteResult]:
        request = Request("delete", tuple(keys))
        return deletions_of(self._ask(request), request)

    def append(self, key: str, data: Buffer, offset: int) -> PutOutcome:
        raise Unsupported("the explorer's store does not append")

    def start_upload(self, key: str, mode: PutMode, metadata: Mapping[str, str]) -> Upload:
        raise Unsupported("the explorer's store has no uploads: write objects of one part")

    def copy(self, source: str, target: str, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        raise Unsupported("the explorer's store does not copy")

    def close(self) -> None:
        pass

    def _ask(self, request: Request) -> Answer:
        if self._is_over:  # what asks now is a `finally` on the way out
            raise _Paused
        self.asked.append(request)
        if len(self.asked) <= len(self._answers):
            return self._answers[len(self.asked) - 1]
        self.asides.append((_call_site(request), len(self._notes)))
        if self._ahead is None or len(self.asked) > REQUESTS_MAX:
            self._is_over = True
            raise _Paused
        answer, self._ahead = perform(self._ahead, request, self._profile)
        self.given.append(answer)
        return answer


_FOLDERS = frozenset({"log", "intents", "requests", "data", "checkpoints", "history", "metadata", "_delta_log", "deltavectors"})
_SETTLING = frozenset({"_judge", "_last_look", "resolve_write_outcome"})


def _call_site(request: Request) -> str:
    """Where the code asks: the innermost function above `fileio`, what it asks for, and which part of the settling asks it."""
    frame = sys._getframe(2)
    settling = ""
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "fileio.write_outcomes" and not settling and request.kind != "put" and frame.f_code.co_name in _SETTLING:
            settling = f" in {frame.f_code.co_name}"
        if module.startswith("objcat.") or (module.startswith("tests.") and not module.startswith("tests.explorer.actors")):
            break
        frame = frame.f_back
    parts = request.key.split("/")
    folder = next((part for part in parts if part in _FOLDERS), parts[-1])
    return f"{frame.f_code.co_qualname.replace('.<locals>', '')}: {request.kind} {folder}{settling}"


# ---- the tree of what an actor does ------------------------------------------------------------------------------


class NotDeterministic(AssertionError):
    """The same answers led to other requests: something besides the store and the Env decides what the code does."""


class Step(NamedTuple):
    """request: what comes next; None: the actor has ended. site: of the code that asks. notes: all that it has said so far."""

    request: Request | None
    site: str
    notes: tuple[Note, ...]


class Tree:
    """All that is known of one actor. Node 0 is the beginning; a node's children are the answers to its request."""

    def __init__(self, actor: Actor, profile: Profile, warm: LogView[Tables] | None) -> None:
        self.actor = actor
        self._profile = profile
        self._warm = warm
        self._parents: list[tuple[int, Answer] | None] = [None]
        self._children: list[dict[Answer, int]] = [{}]
        self._checked = 0
        self.runs = 0
        self.steps: list[Step] = []
        self._learn(0, None)

    def child(self, node: int, answer: Answer, ahead: Contents | None = None) -> int:
        """The node after an answer; runs the code when it is new.

        ahead: the store then. The run goes on from there to the actor's end in calm weather, which is what somebody asks next (P11).
        """
        found = self._children[node].get(answer)
        if found is None:
            found = self._add(node, answer)
            self._learn(found, ahead)
        return found

    def verify(self) -> int:
        """Run every step a second time that was run only once, and compare. Returns how many steps are known. Raises NotDeterministic.

        A run compares every request on its way with what was remembered, so only the leaves are left to be run again.
        """
        for node in range(self._checked, len(self.steps)):
            if not self._children[node] and self._run(node, None)[0] != [self.steps[node]]:
                raise NotDeterministic(f"{self.actor.name} ends its run {node} otherwise when it is repeated")
        self._checked = len(self.steps)
        return self._checked

    def _add(self, node: int, answer: Answer) -> int:
        added = len(self._parents)
        self._parents.append((node, answer))
        self._children.append({})
        self._children[node][answer] = added
        return added

    def _learn(self, node: int, ahead: Contents | None) -> None:
        """Remember what a new node asks for, and the nodes that the run came to after it."""
        steps, given = self._run(node, ahead)
        self.steps.append(steps[0])
        for answer, step in zip(given, steps[1:], strict=True):
            node = self._add(node, answer)
            self.steps.append(step)

    def _path(self, node: int) -> list[tuple[int, Answer]]:
        path = []
        while (parent := self._parents[node]) is not None:
            path.append(parent)
            node = parent[0]
        return path[::-1]

    def _run(self, node: int, ahead: Contents | None) -> tuple[list[Step], list[Answer]]:
        """What comes at a node, and at those after it with the answers that lead there. Compares what comes before with what is known."""
        self.runs += 1
        path = self._path(node)
        notes: list[Note] = []
        backend = ExplorerBackend([answer for _, answer in path], self._profile, ahead, notes)
        policy = RetryPolicy(attempts_max=self.actor.attempts_max)
        me = Participant(FileIO(backend, env=ActorEnv(self.actor), policy=policy), self.actor.number, self._warm, notes)
        ended = _play(self.actor.role, me)
        for (before, _), asked in zip(path, backend.asked, strict=False):
            if self.steps[before].request != asked:
                raise NotDeterministic(f"{self.actor.name} asked for {asked}, and before for {self.steps[before].request}")
        new = backend.asked[len(path) :]
        if len(backend.asked) < len(path) or not (ended or new):
            raise NotDeterministic(f"{self.actor.name} ends before it has asked for all that it asked for before")
        if len(backend.asked) > REQUESTS_MAX:
            notes.append(Broke(f"{self.actor.name} does not end within {REQUESTS_MAX} requests"))
            ended = True
            new.pop()
        steps = [Step(request, site, tuple(notes[:said])) for request, (site, said) in zip(new, backend.asides, strict=False)]
        if ended:
            steps.append(Step(None, "", tuple(notes)))
        return steps, backend.given


def _play(role: Role, me: Participant) -> bool:
    """Whether the role came to its end, rather than to a request without an answer."""
    try:
        role(me)
    except _Paused:
        return False
    except (CorruptTable, SharedTransaction) as error:
        me.note(Broke(f"{type(error).__name__}: {error}"))
    except (ObjcatError, FileIOError) as error:
        me.note(Refused(type(error).__name__))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a counterexample)
        me.note(Broke(f"{type(error).__name__}: {error}"))
    return True
