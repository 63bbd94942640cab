"""Keeps processes at work on one table, kills and stops them at random and loses answers of the store, until enough of all has happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

import objcat
from devkit import toolchain
from devkit.fault_proxy import Fault, FaultKind, FaultProxy, Match, any_request, conditional_write, method_is
from devkit.handle import ServerHandle
from devkit.paths import ROOT
from objcat.common.validation import TableType
from tests.chaos.journal import Journal, Tail
from tests.chaos.operations import OPERATIONS, local_session, open_table
from tests.chaos.worker import HASTY, TABLE, Job, main, perform, stop_file

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
LOST: frozenset[FaultKind] = frozenset({"drop_after", "status_after", "delayed_landing", "duplicate", "cut_answer"})
"""Faults after which the client knows less than the store."""
TICK_S = 0.05
END_S_MAX = 30
STOPS_PER_TICK = 0.1
STOP_S_MAX = 0.5
ANSWER_BYTES_MAX = 1200
"""Cuts are within so many bytes: most are within the head."""
ROLLBACKS_PER_STOP = 0.6
SPARK_CALLS_SPARED = 4

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    ["tests.chaos.worker", "pyarrow.parquet", "objcat.engine.local", "boto3", "google.cloud.storage", "azure.storage.blob"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What must happen.

    local, spark: processes at once. commits, kills, lost, unknown: at least so many acknowledged commits, processes killed, answers of the
    store lost or doubled, commits whose writers were left without an answer, and (fenced) writers that were rolled back while they lived.
    spark_commits: how many of the commits are Spark's, at least. seconds_max: after that the run ends with what there is.
    between_kills: operations that end between two kills, at most. kind: of the table. together: whether writers share slots.
    """

    local: int
    spark: int = 0
    commits: int
    kills: int
    lost: int
    unknown: int
    fenced: int
    spark_commits: int = 0
    seconds_max: float
    between_kills: int = 12
    kind: TableType = "merge_on_read"
    together: bool = False


@dataclass(slots=True)
class Happened:
    """What did. faults: all that were made, lost answers included. cuts: answers of which a part arrived, of the lost ones."""

    commits: int = 0
    kills: int = 0
    lost: int = 0
    unknown: int = 0
    fenced: int = 0
    spark_commits: int = 0
    pauses: int = 0
    faults: int = 0
    cuts: int = 0
    seconds: float = 0.0

    def enough(self, plan: Plan) -> bool:
        names = ("commits", "kills", "lost", "unknown", "fenced", "spark_commits")
        return all(getattr(self, name) >= getattr(plan, name) for name in names)


class Process(Protocol):
    """A process that can be stopped and killed."""

    def signal(self, number: signal.Signals) -> None: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...


class SparkProcess:
    """A driver of its own with its JVM, in a session of their own so that one signal kills both."""

    def __init__(self, job: Job) -> None:
        environment = {
            **os.environ,
            "JAVA_HOME": str(toolchain.java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with Path(job.directory, f"{job.name}.said").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", job.to_json()],
                env={**environment, "PYTHONPATH": search},
                cwd=job.directory,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


class LocalProcess:
    """A process of the local engine, forked from one that has imported everything."""

    def __init__(self, name: str, work: Callable[[Any], None], job: Any) -> None:
        self._process = forks.Process(target=work, args=(job,), name=name, daemon=True)
        self._process.start()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def join(self, timeout: float | None = None) -> None:
        self._process.join(timeout)


@dataclass(slots=True)
class Place:
    """Where one process after another works. proxy: before the store, for this place alone; None where the store is not reached by HTTP."""

    number: int
    spark: bool
    url: str
    options: Mapping[str, Any]
    proxy: FaultProxy | None
    process: Process | None = None
    lives: int = 0
    stopped_until_s: float | None = None

    @property
    def name(self) -> str:
        """Of the process that works there now."""
        return f"p{self.number}-{self.lives}"


class Impatient(Protocol):
    """Somebody who thinks that a writer that stands still is dead."""

    def roll_back(self) -> None:
        """Roll back all that is under way."""


class Operator:
    """The one of a run with one table."""

    def __init__(self, store: ServerHandle | Path, directory: Path, seed: int) -> None:
        self._session = local_session(*open_table(*where(store), TABLE), random.Random(seed), 0)
        self._journal = Journal(directory / "operator.journal")
        self._count = 0

    def roll_back(self) -> None:
        self._count += 1
        name = f"operator.{self._count}"
        perform(self._journal, "operator", name, "roll back", OPERATIONS["roll back"][1](self._session, name))


@dataclass(slots=True)
class Supervisor:
    """One run."""

    plan: Plan
    seed: int
    directory: Path
    places: list[Place]
    operator: Impatient
    happened: Happened = field(default_factory=Happened)

    def run(self) -> Happened:
        chance = random.Random(self.seed)
        tail = Tail(self.directory)
        began_s = time.monotonic()
        next_kill = chance.randint(1, self.plan.between_kills)
        try:
            while not self.happened.enough(self.plan) and time.monotonic() < began_s + self.plan.seconds_max:
                for place in self.places:
                    if place.process is None or not place.process.is_alive():
                        place.lives += 1
                        place.process = self.begin(place)
                    self._stop_or_wake(place, tail, chance)
                    self._plan_faults(place, chance)
                if sum(tail.outcomes.values()) >= next_kill:
                    time.sleep(chance.uniform(0, TICK_S))
                    self._kill(chance.choice([place for place in self.places if self._is_prey(place, tail)]))
                    next_kill += chance.randint(1, self.plan.between_kills)
                time.sleep(TICK_S)
                self._count(tail)
        finally:
            self._end()
        self._count(tail)
        self.happened.seconds = time.monotonic() - began_s
        return self.happened

    def _is_prey(self, place: Place, tail: Tail) -> bool:
        """Starting a JVM takes as long as many calls of others, so it would never come to anything: it is spared until it did."""
        return not place.spark or tail.ended_of[place.name] >= SPARK_CALLS_SPARED

    def begin(self, place: Place) -> Process:
        """A process that works at a place."""
        job = Job(
            url=place.url,
            options=place.options,
            name=place.name,
            number=place.number * 10_000 + place.lives,
            seed=self.seed,
            directory=str(self.directory),
            spark=place.spark,
            seconds_max=self.plan.seconds_max + END_S_MAX,
            together=self.plan.together,
        )
        return SparkProcess(job) if place.spark else LocalProcess(job.name, main, job)

    def _kill(self, place: Place) -> None:
        if place.process is not None and place.process.is_alive():
            place.process.signal(signal.SIGKILL)
            place.process.join()
            place.stopped_until_s = None
            self.happened.kills += 1

    def _stop_or_wake(self, place: Place, tail: Tail, chance: random.Random) -> None:
        """A process that stands still in the middle of a write is what others take for dead."""
        if place.process is None:
            return
        if place.stopped_until_s is None:
            if tail.at_work.get(place.name) and chance.random() < STOPS_PER_TICK:
                place.process.signal(signal.SIGSTOP)
                place.stopped_until_s = time.monotonic() + chance.uniform(0, STOP_S_MAX)
                self.happened.pauses += 1
                if chance.random() < ROLLBACKS_PER_STOP:
                    self.operator.roll_back()
        elif time.monotonic() > place.stopped_until_s:
            place.process.signal(signal.SIGCONT)
            place.stopped_until_s = None

    def _plan_faults(self, place: Place, chance: random.Random) -> None:
        """Keep a fault waiting, and let what was delayed land now and then."""
        if place.proxy is None:
            return
        if not place.proxy.pending:
            place.proxy.plan(random_fault(chance))
        if place.proxy.landing and chance.random() < 0.2:
            place.proxy.release()

    def _count(self, tail: Tail) -> None:
        tail.update()
        self.happened.commits = tail.outcomes["acknowledged"]
        self.happened.unknown = tail.outcomes["unknown"]
        self.happened.spark_commits = sum(
            tail.commits_of[f"p{place.number}-{life}"] for place in self.places if place.spark for life in range(1, place.lives + 1)
        )
        self.happened.fenced = tail.errors["WriterFenced"]
        exchanges = [exchange for place in self.places if place.proxy for exchange in place.proxy.exchanges]
        self.happened.faults = sum(exchange.fault is not None for exchange in exchanges)
        self.happened.cuts = sum(exchange.fault == "cut_answer" for exchange in exchanges)
        self.happened.lost = sum(exchange.fault in LOST for exchange in exchanges)

    def _end(self) -> None:
        """No process works and nothing is under way any more when this returns."""
        stop_file(self.directory).touch()
        for place in self.places:
            if place.process is not None:
                place.process.signal(signal.SIGCONT)
                place.process.join(END_S_MAX)
                if place.process.is_alive():
                    place.process.signal(signal.SIGKILL)
                    place.process.join()
            if place.proxy is not None:
                place.proxy.release()


FAULTS: Sequence[tuple[int, FaultKind, Match, int]] = [
    # how often compared with the others, kind, which requests, how many of them in turn
    (6, "drop_after", conditional_write, 1),
    (2, "drop_after", conditional_write, 3),
    (2, "drop_after", any_request, 1),
    (3, "duplicate", conditional_write, 1),
    (2, "status_after", conditional_write, 1),
    (2, "delayed_landing", conditional_write, 1),
    (5, "delayed_landing", conditional_write, HASTY.attempts_max),  # all that a writer sends for one write: it cannot know
    (2, "drop_before", any_request, 2),
    (2, "status_before", any_request, 2),
    (1, "drop_before", method_is("GET", "HEAD"), 4),
    (3, "cut_answer", conditional_write, 1),
    (1, "cut_answer", conditional_write, HASTY.attempts_max),
    (2, "cut_answer", any_request, 2),
]


def random_fault(chance: random.Random) -> Fault:
    """A fault of one place, at one of its next requests."""
    _, kind, match, times = chance.choices(FAULTS, [weight for weight, *_ in FAULTS])[0]
    nth, code, at = chance.randint(1, 9), chance.choice([500, 503]), chance.randrange(ANSWER_BYTES_MAX)
    return Fault(kind, match, times=times, nth=nth, code=code, at=at)


def run_chaos(store: ServerHandle | Path, plan: Plan, *, seed: int, directory: Path) -> Happened:
    """Create the table and let the plan happen; journals are in `directory` afterwards, and no process of the run is left."""
    url, options = where(store)
    properties = {"group_commit": "on" if plan.together else "off"}
    settings: dict[str, Any] = {"index": objcat.BucketIndex(4), "table_type": plan.kind, "properties": properties}
    objcat.connect(url, options).create_table(TABLE, SCHEMA, key=["id"], **settings)
    directory.mkdir()
    with ExitStack() as stack:
        places = list(places_of(store, plan, stack.enter_context))
        return Supervisor(plan, seed, directory, places, Operator(store, directory, seed)).run()


def places_of(store: ServerHandle | Path, plan: Plan, enter: Callable[[Any], Any]) -> Iterator[Place]:
    for number in range(plan.local + plan.spark):
        spark = number >= plan.local
        if isinstance(store, Path):
            yield Place(number, spark, *where(store), None)
        else:
            proxy = enter(FaultProxy(store.endpoint, store.scheme))
            yield Place(number, spark, *where(store.through(proxy.url)), proxy)


def where(store: ServerHandle | Path) -> tuple[str, dict[str, Any]]:
    """URL and options of the lake of a run."""
    return (str(store), {}) if isinstance(store, Path) else (f"{store.url}/lake", dict(store.options))
