"""Actors with a gate of their own each, moved by the steps of a schedule; no step waits for time to pass."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

import objcat
from devkit.fault_proxy import FaultKind
from devkit.handle import ServerHandle, StoreScheme
from fileio.env import SystemEnv
from fileio.errors import FileIOError
from fileio.registry import open_store
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitConflict, CommitUnknown, WriterFenced
from objcat.timeline.log_state import AppVersion
from tests.chaos.auditor import audit
from tests.chaos.journal import Attempt, Outcome
from tests.chaos.operations import resolution
from tests.schedules.gate import WAIT_S_MAX, Gate, Hold, Point

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
TRIES = 3
POLICY = RetryPolicy(attempts_max=TRIES, deadline_s=WAIT_S_MAX, backoff_ms_first=1, backoff_ms_max=2)
EVERY_TRY = TRIES
ONE_BUCKET = objcat.BucketIndex(1)

Work = Literal["upsert", "insert", "delete", "upsert once", "settle A", "scan"]
"""What an actor does: one call of the table. "upsert once" is version 1 of an application, the same for all actors."""


@dataclass(frozen=True, slots=True)
class Does:
    """An actor: its call and the keys that this is about. slow: it has taken so long before its first request that it is announced then."""

    work: Work = "upsert"
    keys: tuple[int, ...] = (1,)
    slow: bool = False


class SlowEnv(SystemEnv):
    """Whatever is to be called again and again is called for the first time at once, before the call that asks for it goes on."""

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        function()
        return super().repeat(function, every_s, first_s=first_s)


@dataclass(frozen=True, slots=True)
class Broken:
    """A fault of an actor's requests at a point."""

    actor: str
    kind: FaultKind
    point: Point
    times: int = 1
    nth: int = 1
    code: int = 503


@dataclass(frozen=True, slots=True)
class Step:
    """One move. hold: start the actor, unless it runs, and wait until its nth request at the point is held. run: from start to end. go: let
    it go on to its end. land: what was delayed of it reaches the server now."""

    move: Literal["hold", "run", "go", "land"]
    actor: str
    point: Point = "slot"
    when: Literal["before", "after"] = "before"
    nth: int = 1


def hold(actor: str, when: Literal["before", "after"], point: Point, nth: int = 1) -> Step:
    return Step("hold", actor, point, when, nth)


def run(actor: str) -> Step:
    return Step("run", actor)


def go(actor: str) -> Step:
    return Step("go", actor)


def land(actor: str) -> Step:
    return Step("land", actor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A row of the table of schedules.

    expect: what every actor is told: "slot 2", "slot 2 at attempt 2", the name of an error, "rolled back at 1", "committed at 1", "already
    applied", "rows {...}"; after " -> " what settling says of an outcome that is unknown. rows: the table in the end, key -> the actor that
    wrote it last. servers: the schemes that it means something for.
    """

    name: str
    steps: Sequence[Step]
    expect: Mapping[str, str]
    rows: Mapping[int, str]
    faults: Sequence[Broken] = ()
    actors: Mapping[str, Does] = field(default_factory=dict)
    kind: str = "merge_on_read"
    index: objcat.BucketIndex | objcat.SimpleIndex = ONE_BUCKET
    servers: Sequence[StoreScheme] = ("s3", "gs", "az")


@dataclass(slots=True)
class Actor:
    """One process, played by a thread with a store of its own. told: what it was told last, as a schedule expects it."""

    name: str
    does: Does
    gate: Gate
    table: Any
    attempt: Attempt
    running: Future[None] | None = None
    held: list[Hold] = field(default_factory=list)
    told: str = "nothing"

    def call(self, txn_of_a: Callable[[], str]) -> None:
        """Do it, and note what came of it."""
        self.attempt.began_ns = time.monotonic_ns()
        try:
            self.attempt.outcome, self.attempt.said, self.told = self._work(txn_of_a)
        except CommitUnknown as error:
            self.attempt.outcome, self.attempt.said, self.told = "unknown", {"txn": error.txn}, "CommitUnknown"
        except (CommitConflict, WriterFenced, FileIOError) as error:
            self.attempt.outcome, self.attempt.said, self.told = "failed", {"error": repr(error)}, type(error).__name__
        self.attempt.ended_ns = time.monotonic_ns()

    def _work(self, txn_of_a: Callable[[], str]) -> tuple[Outcome, Mapping[str, Any], str]:
        metadata = {"attempt": self.attempt.name}
        rows = [{"id": key, "value": value} for key, value in self.attempt.writes.items()]
        match self.does.work:
            case "settle A":
                found = resolution(txn_of_a(), self.table.resolve(txn_of_a()))
                return "settled", {"resolved": [found]}, f"{'committed' if found['committed'] else 'rolled back'} at {found['slot']}"
            case "scan":
                read = {row["id"]: row["value"] for row in self.table.scan().to_arrow().to_pylist()}
                return "read", {"rows": read, "count": len(read)}, f"rows {owners(read)}"
            case "delete":
                result = self.table.delete([{"id": key} for key in self.does.keys], metadata=metadata)
            case "insert":
                result = self.table.insert(rows, metadata=metadata)
            case "upsert":
                result = self.table.upsert(rows, metadata=metadata)
            case _:
                result = self.table.upsert(rows, metadata=metadata, app=AppVersion(app="job", version=1))
        if result.already_applied:
            return "failed", {"error": "it was applied already"}, "already applied"
        redone = f" at attempt {result.attempts}" if result.attempts > 1 else ""
        return "acknowledged", {"slot": result.slot, "txn": result.txn}, f"slot {result.slot}{redone}"


def owners(rows: Mapping[int, str]) -> dict[int, str]:
    """key -> the actor that wrote it."""
    return {key: value.split(":")[0] for key, value in sorted(rows.items())}


def play(schedule: Schedule, store: ServerHandle, lake: Any) -> None:
    """Play a schedule on a new table, compare what everybody was told, and audit the table. lake: that of the store's bucket."""
    table = lake.create_table(f"t{secrets.token_hex(6)}", SCHEMA, key=["id"], index=schedule.index, table_type=schedule.kind)
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(len(schedule.expect)))
        actors = {who: stack.enter_context(_Entered(_actor(who, schedule, store, table._context.fileio.url))) for who in schedule.expect}
        for fault in schedule.faults:
            actors[fault.actor].gate.fault(fault.kind, fault.point, times=fault.times, nth=fault.nth, code=fault.code)
        for step in schedule.steps:
            _move(step, actors, threads)
        told = {who: actor.told for who, actor in actors.items()}
        left = {who: actor.gate.pending for who, actor in actors.items() if actor.gate.pending}
    assert left == {}, f"faults that never fired show nothing: {left}"
    verdict = audit(table, table._context.fileio, [actor.attempt for actor in actors.values()])
    for who, actor in actors.items():
        if actor.attempt.outcome == "unknown":
            found = resolution(actor.attempt.said["txn"], table.resolve(actor.attempt.said["txn"]))
            told[who] += f" -> {'slot' if found['committed'] else 'rolled back at'} {found['slot']}"
    assert told == dict(schedule.expect), f"expected {dict(schedule.expect)}, but they were told {told}"
    assert verdict.problems == [], verdict.problems
    rows = owners({row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()})
    assert rows == dict(schedule.rows), f"expected the rows of {dict(schedule.rows)}, but found {rows}"


class _Entered:
    """An actor whose gate is open and closed in the end, whatever happened."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __enter__(self) -> Actor:
        return self._actor

    def __exit__(self, *_: object) -> None:
        self._actor.gate.open_all()
        if self._actor.running is not None:
            self._actor.running.exception(WAIT_S_MAX)
        self._actor.gate.close()


def _actor(who: str, schedule: Schedule, store: ServerHandle, place: str) -> Actor:
    does = schedule.actors.get(who, Does())
    gate = Gate(store.endpoint, store.scheme)
    env = SlowEnv() if does.slow else None
    table = objcat.table_at(open_store(place, dict(store.through(gate.url).options), policy=POLICY, env=env))
    gate.clear()
    changes = does.work not in ("settle A", "scan")
    writes = {key: None if does.work == "delete" else f"{who}:{key}" for key in does.keys if changes}
    return Actor(who, does, gate, table, Attempt(who, who, does.work, writes, 0))


def _move(step: Step, actors: Mapping[str, Actor], threads: ThreadPoolExecutor) -> None:
    actor = actors[step.actor]

    def start() -> Future[None]:
        return actor.running or threads.submit(actor.call, lambda: actors["A"].gate.txns[-1])

    match step.move:
        case "hold":
            held = actor.gate.hold(step.point, step.when, step.nth)
            before, actor.held = actor.held, [held]
            actor.running = start()
            for earlier in before:
                earlier.opened.set()
            actor.running.add_done_callback(lambda _: held.reached.set())
            assert held.reached.wait(WAIT_S_MAX), f"{actor.name} never came to {step}"
            assert not actor.running.done(), f"{actor.name} ended with {actor.told!r} before {step}: {actor.running.exception()!r}"
        case "run":
            actor.running = start()
            actor.running.result(WAIT_S_MAX)
        case "go":
            assert actor.running is not None, f"{actor.name} was not started"
            for held in actor.held:
                held.opened.set()
            actor.running.result(WAIT_S_MAX)
        case "land":
            assert actor.gate.landing, f"nothing of {actor.name} was delayed"
            actor.gate.release()
