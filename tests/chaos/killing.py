"""A process that does one work is killed (-9) at a chosen request, while another one writes; then everything is compared.

Over HTTP a proxy chooses: the process is dead before the server has seen the request, or before the server does it. On a file system the
process kills itself, before the request or after it.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq

import objcat
from devkit.fault_proxy import Fault, FaultKind, FaultProxy
from devkit.handle import ServerHandle
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import CommitConflict, WriterFenced
from objcat.inspection.doctor import examine
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.checkpoint import Root, read_root
from objcat.timeline.entry import log_key
from objcat.timeline.log import with_changes
from objcat.timeline.log_view import LogView, Timeline
from tests.chaos.supervisor import forks
from tests.chaos.works import WORKS, Rows, Story, rows
from tests.copies import copy_lake
from tests.schedules.gate import Gate

TURNS_MAX = 5
"""Commits of the writer beside a work."""
TURN_REQUESTS = 4
"""Requests of the work between two of them, over HTTP."""
AT_SLOT = -1
"""In the place of a number: the put of the first slot."""
AT_PART = -2
"""In the place of a number: the second part of an upload."""
WAIT_S_MAX = 120
_PART = re.compile(r"(?i)\b(partnumber=|comp=block(&|$)|upload_id=)")
"""In the query of a part of an upload, to S3, Azure and GCS."""
MOMENTS: tuple[FaultKind, ...] = ("drop_after", "drop_before", "delayed_landing")
"""What becomes of the request at which a process dies: it takes effect once it is dead, never, or after others have tidied up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a lake lies, and where its files to import do."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    sources: Path

    def lake(self) -> objcat.Lake:
        return objcat.connect(self.url, self.options)

    def through(self, proxy: FaultProxy) -> Place:
        endpoint = proxy.url + urlsplit(self.options["endpoint"]).path
        return Place(url=self.url, options={**self.options, "endpoint": endpoint}, sources=self.sources)

    @property
    def is_local(self) -> bool:
        return not self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """kill_at: the number of a request, on a file system. before: it is not done. writes: a key that is written first. report: where what
    was done is told."""

    place: Place
    work: str
    report: Path
    kill_at: int | None = None
    before: bool = False
    writes: int | None = None


class Suicide:
    """Ends its process without a word at a request."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._seen = 0
        self._parts: set[int] = set()

    def _is_it(self, request: Request) -> bool:
        if self._job.kill_at == AT_SLOT:
            return request.kind == "put" and "/log/" in request.key and "_catalog" not in request.key
        if self._job.kill_at == AT_PART:
            if request.kind == "upload_part":
                self._parts.add(request.number)
            return len(self._parts) == 2
        return request.number == self._job.kill_at

    def before(self, request: Request) -> None:
        self._seen = request.number
        if self._job.before and self._is_it(request):
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, request: Request) -> None:
        if not self._job.before and self._is_it(request):
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def seen(self) -> int:
        return self._seen


def perform(job: Job) -> None:
    """The process. What it reports was acknowledged."""
    told: dict[str, Any] = {}

    def report(**said: Any) -> None:
        told.update(said)
        new = job.report.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(job.report)

    try:
        store = open_store(job.place.url, job.place.options)
        suicide = Suicide(job)
        if job.place.is_local:
            store = FileIO(FaultyBackend(store._backend, before=suicide.before, after=suicide.after))
        lake = objcat.Lake(store)
        if job.writes is not None:
            table = lake.table("beside" if job.work == "purge" else "t")
            some = [{"id": job.writes, "v": 1}]
            done = table.upsert(some) if table.spec.has_key else table.insert(some)
            report(txn=done.txn, key=job.writes)
        result = WORKS[job.work].serve(lake, job.place.sources)
        report(result=repr(result), requests=suicide.seen)
    except BaseException:
        report(error=traceback.format_exc())
        raise
    # Nothing is waited for but what was asked for.
    os._exit(0)


class Beside:
    """A writer in this process, which lives on."""

    def __init__(self, place: Place, name: str) -> None:
        self._table = place.lake().table(name)
        self.acknowledged: dict[str, Rows] = {}
        self.turns = 0

    def turn(self) -> None:
        """One commit, or none when somebody forestalls it."""
        self.turns += 1
        some = rows(1000 + self.turns, 1100 + self.turns % 2 if self._table.spec.key_columns else 1200 + self.turns, v=self.turns)
        try:
            self._table.refresh()
            write = self._table.upsert if self._table.spec.has_key else self._table.insert
            self.acknowledged[write([{"id": key, "v": value} for key, value in some.items()]).txn] = some
        except (CommitConflict, WriterFenced):
            return


class Choice:
    """The match of a fault: lets the writer beside have its turns, and kills the process when its request has come."""

    def __init__(self, beside: Beside, nth: int | None) -> None:
        self._beside, self._nth = beside, nth
        self.gate: Gate | None = None
        self._parts = 0
        self._known = threading.Event()
        self._pid = 0
        self.seen = 0
        self.hit = False

    def meet(self, pid: int) -> None:
        self._pid = pid
        self._known.set()

    def __call__(self, method: str, _path: str, query: str, _headers: Mapping[str, str]) -> bool:
        self._known.wait()
        assert self.gate is not None
        self.seen += 1
        self._parts += method == "PUT" and _PART.search(query) is not None
        if self.seen % TURN_REQUESTS == 0 and self._beside.turns < TURNS_MAX:
            self._beside.turn()
        point, key = self.gate.now
        is_slot = point == "slot" and "_catalog" not in key
        if not (is_slot if self._nth == AT_SLOT else self._parts == 2 if self._nth == AT_PART else self.seen == self._nth):
            return False
        os.kill(self._pid, signal.SIGKILL)
        self.hit = True
        return True


@dataclass(slots=True)
class Ground:
    """Where many runs begin with one and the same lake. store: a server, or a directory."""

    store: ServerHandle | Path
    directory: Path
    _made: dict[str, Story] = field(default_factory=dict)
    _runs: int = 0

    def _place(self, name: str) -> Place:
        sources = self.directory / "sources"
        if isinstance(self.store, Path):
            return Place(url=str(self.store / name), sources=sources)
        return Place(url=f"{self.store.url}/{name}", options=self.store.options, sources=sources)

    def begin(self, work: str) -> tuple[Place, Story]:
        """A copy of the lake that a work begins with; made when it is first asked for."""
        template = self._place(f"template-{work.replace(', ', '-')}")
        if work not in self._made:
            template.sources.mkdir(exist_ok=True)
            story = Story(template.lake(), template.sources, lambda other: self._dies(template, other))
            WORKS[work].begin(story)
            self._made[work] = story
        self._runs += 1
        place = self._place(f"run-{self._runs}")
        if isinstance(self.store, Path):
            copy_lake(template.url, place.url)
        else:
            bucket = open_store(self.store.url, self.store.options)
            above = len(self.store.url) + 1
            source, target = template.url[above:], place.url[above:]
            with ThreadPoolExecutor(4) as pool:
                copied = [pool.submit(bucket.copy, key, target + key.removeprefix(source)) for key in bucket.list_keys(f"{source}/")]
                for one in copied:
                    one.result()
        return place, self._made[work]

    def _dies(self, place: Place, work: str) -> None:
        beside = Beside(place, "t")
        beside.turns = TURNS_MAX
        with self.killed(place, work, beside, AT_SLOT, "drop_before") as died:
            assert died.hit

    @contextmanager
    def killed(self, place: Place, work: str, beside: Beside, nth: int | None, moment: FaultKind) -> Iterator[Died]:
        """A process that was killed at its nth request; within, what it had asked for last may still be under way."""
        self._runs += 1
        report = self.directory / f"report-{self._runs}"
        if place.is_local:
            process = forks.Process(
                target=perform, args=(Job(place=place, work=work, report=report, kill_at=nth, before=moment == "drop_before"),)
            )
            process.start()
            while process.is_alive():
                if beside.turns < TURNS_MAX:
                    beside.turn()
            process.join()
            told = read(report)
            yield Died(process.exitcode, told, process.exitcode == -signal.SIGKILL, requests=told.get("requests", 0))
            return
        assert isinstance(self.store, ServerHandle)
        choice = Choice(beside, nth)
        with Gate(self.store.endpoint, self.store.scheme) as proxy:
            choice.gate = proxy
            proxy.plan(Fault(moment, choice))
            process = forks.Process(target=perform, args=(Job(place=place.through(proxy), work=work, report=report),))
            process.start()
            assert process.pid is not None
            choice.meet(process.pid)
            process.join(WAIT_S_MAX)
            while len(proxy.exchanges) + proxy.landing < choice.seen:
                # Requests that were under way when it died come to their end.
                assert process.exitcode is not None
            yield Died(process.exitcode, read(report), choice.hit, requests=choice.seen)
            proxy.release()

    def finish(self, place: Place, work: str, key: int) -> dict[str, Any]:
        """A fresh process writes, and does the work to its end."""
        self._runs += 1
        report = self.directory / f"report-{self._runs}"
        process = forks.Process(target=perform, args=(Job(place=place, work=work, report=report, writes=key),))
        process.start()
        process.join(WAIT_S_MAX)
        told = read(report)
        assert process.exitcode == 0, told.get("error", f"{process.exitcode}")
        return told


@dataclass(frozen=True, slots=True)
class Died:
    """exitcode: of the process. told: what it reported. hit: whether it was killed. requests: that it had sent, where that is known."""

    exitcode: int | None
    told: Mapping[str, Any]
    hit: bool
    requests: int = 0


def read(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    return found


# ---- what must hold


def check(place: Place, work: str, story: Story, acknowledged: Mapping[str, Rows], *, slots_max: int) -> None:
    """Every readable slot (so many of them at most) holds what the log means, what was acknowledged is in the log, the doctor finds nothing
    broken."""
    table = place.lake().table(story.beside)
    entries = table._context.timeline.log.read_after(-1)
    states = list(story.states)
    missing = dict(acknowledged)
    for entry in entries[len(states) :]:
        written = missing.pop(entry.txn, None)
        states.append(WORKS[work].means(entry, states) if written is None else {**states[-1], **written})
    assert not missing, f"acknowledged, and not in the log: {missing}"
    view = table._context.timeline.open()
    assert len(entries) <= view.slot + 1
    marks = view.log.marks(table.id)
    readable = [slot for slot in range(story.begins, len(entries)) if marks.is_readable(slot)]
    some = {*readable[:: max(1, len(readable) // slots_max)], *readable[-1:], *(slot for slot in marks.saved if slot)}
    for slot in sorted(some):
        found = table.scan(as_of=slot).to_arrow()
        assert found.num_rows == len(states[slot]), f"slot {slot}"
        assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == states[slot], f"slot {slot}"
    report = examine(table._context.timeline, deep=True)
    assert report.healthy, report.findings


def tidy(place: Place, story: Story) -> None:
    """What somebody does who knows that everybody is dead."""
    table = place.lake().table(story.beside)
    table.maintenance.rollback_failed_writes(older_than_s=0)
    for _ in range(2):
        table.maintenance.clean(keep_slots=1)


def orphans(place: Place, story: Story) -> list[str]:
    """As `orphans_of`; on a file system hidden files too."""
    return orphans_of(place.lake().table(story.beside))


def orphans_of(table: objcat.Table) -> list[str]:
    """Every object of a lake with one log that is no slot and that nothing needs which can be read; of a directory, every file."""
    above, _, log = table._context.fileio.url.rpartition("/tables/")
    needed = {f"tables/{log}/{key}" for key in _needed(table._context.timeline, table._context.timeline.open())}
    if above.startswith("file:"):
        root = above.removeprefix("file://")
        # What is a hint on its way is gone when one looks again.
        stored = _files_in(root) & _files_in(root)
    else:
        stored = {f"tables/{log}/{key}" for key in table._context.fileio.list_keys()}
    return sorted(key for key in stored - needed if key.startswith(f"tables/{log}/") or not key.startswith(("tables/", "_catalog/")))


def _files_in(root: str) -> set[str]:
    """The files of a lake, without copies that were being written by writers who died: those are taken away after a day, which is over."""
    with os.scandir(f"{root}/.objcat/tmp") as temporary:
        for entry in temporary:
            with suppress(FileNotFoundError):
                os.utime(entry.path, (0, 0))
    objcat.connect(root).fileio.put("tables/last", b"")
    objcat.connect(root).fileio.delete(["tables/last"])
    return {os.path.relpath(os.path.join(directory, name), root) for directory, _, names in os.walk(root) for name in names}


def _needed(timeline: Timeline[Any], view: LogView[Any]) -> set[str]:
    named = {"head.json", *(log_key(slot) for slot in range(view.slot + 1))}
    entries = with_changes(timeline.fileio, timeline.log.read_after(-1))
    for entry in entries:
        sides = [
            entry.side,
            *(
                side
                for footprint in entry.footprint.values()
                if footprint.keys
                for side in (footprint.keys.placed.side, footprint.keys.updated.side)
            ),
        ]
        named |= {side.path for side in sides if side is not None}
        stub = timeline.log.read_stub(entry.slot)
        assert stub is not None
        if stub.history is not None:
            named.add(stub.history.file.path)
    for name in view.state:
        marks = view.log.marks(name)
        for slot in (slot for slot in range(view.slot + 1) if marks.is_readable(slot)):
            then = timeline.at(slot)
            if name not in then.state or then.log.marks(name).closed_at is not None:
                continue
            for group in Snapshot(then.log, then.state[name]).all_groups(Manifests(timeline.fileio)):
                named |= {file.path for file in (group.base, *(rows.object for rows in group.logs)) if file is not None}
    for slot in range(0, view.slot + 1, 16):
        found = read_root(timeline.fileio, slot)
        if found is not None:
            named.add(f"checkpoints/{slot:020d}/root.json")
            if isinstance(found.root, Root):
                named |= {*timeline.reducer.objects(found.root.payload), *(segment.path for segment in found.root.segments)}
    return named


def holding(place: Place, key: int) -> list[str]:
    """The data files, of whatever commit or none, that hold a row of a key."""
    store = place.lake().fileio
    files = [path for path in store.list_keys("tables/") if path.endswith(".parquet") and "/data/" in path and "/_index/" not in path]
    return [path for path in files if key in pq.read_table(io.BytesIO(store.get(path).data), columns=["id"])["id"].to_pylist()]  # type: ignore[union-attr]
