"""Keeps processes at work on a mirrored table, loses answers of its store, and kills processes at puts of their mirrors.

Each process has a way of its own to the store, and the way knows what a request is. So a process dies exactly when an object of a mirror
has landed and the process does not know it yet, or just before it lands. A run in which that never happened does not count.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import objcat
from devkit.fault_proxy import FaultProxy
from devkit.handle import ServerHandle
from objcat.inspection.doctor import examine
from tests.chaos.supervisor import LOST, forks, random_fault
from tests.mirror.chaos.auditor import TABLE, MirrorAuditor, audit, compared
from tests.mirror.chaos.worker import ERASED_FROM, KEYS, MirrorJob, Role, main
from tests.mirror.histories import make_table, people
from tests.schedules.gate import key_of

TICK_S = 0.05
END_S_MAX = 60
LOOK_S = 0.5
"""How often a run looks at what has happened so far."""
PUTS_MAX = 40
"""A process is killed at one of so many puts of mirrors from its beginning, or from when it was armed."""
SHARE_BEFORE = 0.25
"""Of the kills, before the put lands. All others are after it."""
ERASURES_HIT = 0.02
"""The probability that an erasure meets a fault at a tick. It sends hundreds of requests."""
ERASURES_KILLED = 0.4
"""The share of the processes that erase which are killed."""
RANDOM_KILLS = 0.001
"""The probability that a process is killed at a tick, wherever it is."""
_PUTS = (
    (re.compile(r"/metadata/v\d+\.metadata\.json$"), "metadata file"),
    (re.compile(r"/metadata/version-hint\.text$"), "hint"),
    (re.compile(r"/metadata/(snap|m0|m1|pos|dv)-"), ""),
    (re.compile(r"/_delta_log/\d{20}\.json$"), "commit"),
    (re.compile(r"/_delta_log/\d{20}\.checkpoint\.parquet$"), "checkpoint"),
    (re.compile(r"/deltavectors/"), "vectors"),
)


def mirror_put(request: Any) -> str | None:
    """What object of a mirror a request puts. None if it puts none."""
    if request.method not in ("PUT", "POST") or request.query.startswith("delete"):
        return None
    key = f"/{key_of(request)}"
    for pattern, kind in _PUTS:
        if found := pattern.search(key):
            return kind or found[1]
    return None


class MirrorGate(FaultProxy):
    """The way of one process to the store. Kills it at a put of a mirror that was chosen by `arm`."""

    def __init__(self, upstream: str, scheme: str) -> None:
        self._arming = threading.Lock()
        self._pid = 0
        self._left = 0
        self._before = False
        self.killed: Counter[str] = Counter()
        """Kills by what had landed."""
        self.killed_before = 0
        super().__init__(upstream, scheme)

    def arm(self, pid: int, nth: int, *, before: bool) -> None:
        """Kill a process at its nth put of a mirror from now on."""
        with self._arming:
            self._pid, self._left, self._before = pid, nth, before

    @property
    def is_armed(self) -> bool:
        with self._arming:
            return self._left > 0

    def _handle(self, request: Any) -> Any:
        kind = mirror_put(request)
        with self._arming:
            self._left -= kind is not None and self._left > 0
            due = kind is not None and self._left == 0 and self._pid != 0
            pid, before = self._pid, self._before
            if due:
                self._pid = 0
        if due and before:
            os.kill(pid, signal.SIGKILL)
            self.killed_before += 1
        outcome = super()._handle(request)
        if due and not before:
            os.kill(pid, signal.SIGKILL)
            # Only what the store has acknowledged has landed for certain.
            if kind is not None and 200 <= getattr(outcome, "status", 0) < 300:
                self.killed[kind] += 1
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """What must happen. A run ends when it has, however long that takes up to `seconds_max`.

    after_puts: kills right after a put of a mirror had
    landed; kinds: of different objects. lost: answers. writes, compactions, erasures: calls that ended well. slots: metadata files that
    the auditor has compared, of each format.
    """

    seconds_max: float
    after_puts: int
    kinds: int
    lost: int
    writes: int
    compactions: int
    erasures: int
    slots: int
    version: str = "2"
    writers: int = 4
    mirrors: int = 2


@dataclass(slots=True)
class MirrorHappened:
    """What did."""

    after_puts: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    lost: int = 0
    faults: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def lacks(self, plan: MirrorPlan) -> list[str]:
        """Why the run does not count. Empty if it does."""
        has = {
            "processes killed after a put of a mirror": (sum(self.after_puts.values()), plan.after_puts),
            "kinds of objects after which they were": (len(self.after_puts), plan.kinds),
            "lost answers": (self.lost, plan.lost),
            "writes": (self.calls["upsert"] + self.calls["delete"], plan.writes),
            "compactions": (self.calls["compact"], plan.compactions),
            "erasures": (self.calls["erase"], plan.erasures),
            "Iceberg metadata files compared": (self.slots["iceberg"], plan.slots),
            "Delta versions compared": (self.slots["delta"], plan.slots),
        }
        return [f"{count} {name}, of {least}" for name, (count, least) in has.items() if count < least]


@dataclass(slots=True)
class Post:
    """Where one process after another does the work of a role."""

    number: int
    role: Role
    gate: MirrorGate
    options: Mapping[str, Any]
    process: Any = None
    lives: int = 0


class MirrorChaos:
    """One run on one server."""

    def __init__(self, store: ServerHandle, plan: MirrorPlan, *, seed: int, directory: Path) -> None:
        self._store, self._plan, self._seed, self._directory = store, plan, seed, directory
        self._url = f"{store.url}/lake"
        self._chance = random.Random(seed)
        self._random_kills = 0
        self._looked_s = 0.0

    def run(self) -> tuple[MirrorHappened, list[str]]:
        """Let everything happen. Returns it, and what is wrong."""
        self._directory.mkdir()
        table = make_table(objcat.connect(self._url, self._store.options), TABLE, mirror_iceberg_version=self._plan.version)
        table.upsert(people(*range(KEYS)))
        auditor = forks.Process(target=audit, args=(self._url, dict(self._store.options), str(self._directory), self._seed), daemon=True)
        began_s = time.monotonic()
        with ExitStack() as stack:
            posts = [self._post(number, role, stack) for number, role in enumerate(self._roles())]
            auditor.start()
            try:
                while self._goes_on(began_s, posts) and auditor.is_alive():
                    for post in posts:
                        self._attend(post)
                    time.sleep(TICK_S)
            finally:
                self._end(posts)
            auditor.join(END_S_MAX)
            happened = self._happened(posts)
        happened.seconds = time.monotonic() - began_s
        problems = self._verdict(happened)
        return happened, problems or self._check_end(happened)

    def _roles(self) -> list[Role]:
        return [*["write"] * self._plan.writers, *["mirror"] * self._plan.mirrors, "serve", "erase"]  # type: ignore[list-item]

    def _post(self, number: int, role: Role, stack: ExitStack) -> Post:
        gate = stack.enter_context(MirrorGate(self._store.endpoint, self._store.scheme))
        return Post(number, role, gate, dict(self._store.through(gate.url).options))

    def _goes_on(self, began_s: float, posts: list[Post]) -> bool:
        if list(self._directory.glob("*.broke")) or time.monotonic() - began_s > self._plan.seconds_max:
            return False
        if time.monotonic() - self._looked_s < LOOK_S:
            return True
        self._looked_s = time.monotonic()
        return bool(self._happened(posts).lacks(self._plan))

    def _attend(self, post: Post) -> None:
        """Keep a process at work, a fault before it, and a kill."""
        chance = self._chance
        if post.process is None or not post.process.is_alive():
            post.lives += 1
            job = MirrorJob(
                url=self._url,
                options=post.options,
                role=post.role,
                name=f"{post.role}-{post.number}-{post.lives}",
                seed=self._seed,
                directory=str(self._directory),
                seconds_max=self._plan.seconds_max + END_S_MAX,
            )
            post.process = forks.Process(target=main, args=(job,), daemon=True)
            post.process.start()
            # Of the processes that erase only some are killed: an erasure must come to its end now and then.
            if post.role != "erase" or chance.random() < ERASURES_KILLED:
                post.gate.arm(post.process.pid, chance.randint(1, PUTS_MAX), before=chance.random() < SHARE_BEFORE)
        elif post.role != "erase" and chance.random() < RANDOM_KILLS:
            os.kill(post.process.pid, signal.SIGKILL)
            self._random_kills += 1
        if not post.gate.pending and (post.role != "erase" or chance.random() < ERASURES_HIT):
            post.gate.plan(random_fault(chance))
        if post.gate.landing and chance.random() < 0.2:
            post.gate.release()

    def _end(self, posts: list[Post]) -> None:
        """No process works and nothing is under way any more when this returns."""
        for post in posts:
            post.gate.arm(0, 0, before=False)
        (self._directory / "stop").touch()
        for post in posts:
            if post.process is not None:
                post.process.join(END_S_MAX)
                if post.process.is_alive():
                    post.process.kill()
                    post.process.join()
            post.gate.release()

    def _happened(self, posts: list[Post]) -> MirrorHappened:
        found = MirrorHappened(calls=Counter(line for path in self._directory.glob("*.said") for line in path.read_text().splitlines()))
        for post in posts:
            found.after_puts += post.gate.killed
            exchanges = post.gate.exchanges
            found.faults += sum(exchange.fault is not None for exchange in exchanges)
            found.lost += sum(exchange.fault in LOST for exchange in exchanges)
        found.kills = sum(found.after_puts.values()) + sum(post.gate.killed_before for post in posts) + self._random_kills
        found.slots = compared(self._directory)
        return found

    def _verdict(self, happened: MirrorHappened) -> list[str]:
        """What the auditor, and the processes, have met."""
        problems = [f"{path.stem} broke: {path.read_text()}" for path in self._directory.glob("*.broke")]
        path = self._directory / "verdict.json"
        if not path.exists():
            return [*problems, "the auditor left no verdict"]
        verdict = json.loads(path.read_text())
        happened.slots, happened.counts = Counter(verdict["slots"]), Counter(verdict["counts"])
        return [*problems, *verdict["problems"]]

    def _check_end(self, happened: MirrorHappened) -> list[str]:
        """Everybody is gone: the mirrors catch up, all of their slots are right, and the doctor finds nothing."""
        table = objcat.connect(self._url, self._store.options).table(TABLE)
        slot = table.refresh().slot
        reports = table.maintenance.mirror()
        problems = [f"the {report.format} mirror is at slot {report.slot} of {slot}: {report.held}" for report in reports if report.lag]
        auditor = MirrorAuditor(self._url, self._store.options, self._directory / "copy at the end")
        auditor.all()
        happened.counts["compared at the end"] = auditor.verdict.counts["compared"]
        findings = [one for one in examine(table._context.timeline, deep=True).findings if one.invariant == "P7" or "mirror" in one.says]
        # What killed processes left of erased rows goes with one more erasure, which searches everything.
        certificate = table.erase(f"id >= {ERASED_FROM}", older_than_s=0)
        happened.counts["objects searched at the end"] = sum(one.objects for one in certificate.examined)
        auditor.all()
        return [*problems, *auditor.verdict.problems, *(f"the doctor: {one.subject} {one.says}" for one in findings)]
