"""A table beside a dict that says, slot by slot, what it must hold; and stores on which others act between two requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import objcat
from fileio.contract import Backend
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import APPLICABLE, Fault, FaultyBackend, Hit, Request
from objcat.maintenance.clean import clean
from objcat.maintenance.compact import CompactionPlan, compact, plan_compaction
from objcat.maintenance.savepoint import savepoint
from objcat.metadata.manifest import Manifests
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, Footprint, new_txn
from objcat.timeline.log_view import Timeline

ORDERED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("o", pa.int64(), nullable=False)])
PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
BUCKETS = 2
_stores = itertools.count()


@dataclass(frozen=True)
class Seen:
    """The newest known of a key. value: None for a delete that has an ordering value."""

    order: int
    value: int | None


Rows = Mapping[int, Seen]


class Model:
    """What a table holds after every slot, as a replay over a dict."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.slots: list[Rows] = []

    @property
    def head(self) -> int:
        return len(self.slots) - 1

    def values(self, slot: int = -1) -> dict[int, int]:
        return {key: seen.value for key, seen in sorted(self.slots[slot].items()) if seen.value is not None}

    def upsert(self, rows: Iterable[tuple[int, int, int]]) -> None:
        now = dict(self.slots[-1])
        for key, value, order in rows:
            if not self.ordered or key not in now or order >= now[key].order:
                now[key] = Seen(order, value)
        self.slots.append(now)

    def delete(self, keys: Iterable[tuple[int, int | None]]) -> None:
        now = dict(self.slots[-1])
        for key, order in keys:
            if order is None or not self.ordered:
                now.pop(key, None)
            elif key not in now or order >= now[key].order:
                now[key] = Seen(order, None)
        self.slots.append(now)

    def same(self) -> None:
        self.slots.append(self.slots[-1])

    def restore(self, slot: int) -> None:
        self.slots.append(self.slots[slot])


class World:
    """A table with its model, on one store, written by actors of their own."""

    def __init__(self, *, ordered: bool = True, backend: Backend | None = None, buckets: int = BUCKETS) -> None:
        self.backend = backend or MemoryBackend(f"world-{next(_stores)}")
        self.ordered = ordered
        self.model = Model(ordered=ordered)
        self._seeds = itertools.count(1)
        schema = ORDERED if ordered else PLAIN
        lake = objcat.Lake(self.store())
        self.table = lake.create_table("t", schema, key=["id"], ordering="o" if ordered else None, index=objcat.BucketIndex(buckets))
        self.id = self.table.id
        self.model.slots.append({})

    def store_on(self, backend: Backend) -> FileIO:
        return FileIO(backend, env=FakeEnv(next(self._seeds)))

    def store(self, before: Callable[[Request], None] | None = None) -> FileIO:
        backend = self.backend if before is None else FaultyBackend(self.backend, before=before)
        return self.store_on(backend)

    def timeline(self, before: Callable[[Request], None] | None = None) -> Timeline[Any]:
        """A log of the table as a process of its own opens it. before: called before each of its requests."""
        return self.on(self.store(before))

    def on(self, store: FileIO) -> Timeline[Any]:
        return Timeline(store.child(self.place), TablesReducer())

    @property
    def place(self) -> str:
        return self.table._context.fileio.url.removeprefix(self.store().url).strip("/")

    # ---- writes, on the table and on the model; from a handle that knows the newest slot, so that no RESTORE refuses them

    def upsert(self, *rows: tuple[int, int, int]) -> int:
        names = ORDERED.names if self.ordered else PLAIN.names
        self.table.refresh()
        result = self.table.upsert([dict(zip(names, row, strict=False)) for row in rows])
        self.model.upsert(rows)
        return result.slot

    def insert(self, *rows: tuple[int, int, int]) -> int:
        names = ORDERED.names if self.ordered else PLAIN.names
        self.table.refresh()
        result = self.table.insert([dict(zip(names, row, strict=False)) for row in rows])
        self.model.upsert(rows)
        return result.slot

    def delete(self, *keys: tuple[int, int | None]) -> int:
        """Delete keys, all with an ordering value or all without."""
        with_order = self.ordered and keys[0][1] is not None
        columns = {"id": pa.array([key for key, _ in keys], pa.int64())}
        if with_order:
            columns["o"] = pa.array([order for _, order in keys], pa.int64())
        self.table.refresh()
        result = self.table.delete(pa.table(columns))
        self.model.delete(keys)
        return result.slot

    # ---- what there is

    def read(self, slot: int | None = None) -> dict[int, int]:
        """The table as a stranger reads it, each key once."""
        return self._read(objcat.Lake(self.store()).table("t"), slot)

    def _read(self, table: objcat.Table, slot: int | None) -> dict[int, int]:
        rows = table.scan(as_of=slot).to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
        return {row["id"]: row["v"] for row in sorted(rows, key=lambda row: row["id"])}

    def readable(self) -> list[int]:
        """Slots that the log promises to keep."""
        view = self.timeline().open()
        marks = view.log.marks(self.id)
        return [slot for slot in range(view.slot + 1) if marks.is_readable(slot)]

    def check(self) -> None:
        """The log has the model's slots, and everything that is readable is what it was."""
        assert self.timeline().open().slot == self.model.head
        table = objcat.Lake(self.store()).table("t")
        for slot in self.readable():
            assert self._read(table, slot) == self.model.values(slot), f"slot {slot}"

    def named(self, slot: int) -> set[str]:
        """Data files that the state of a slot names."""
        timeline = self.timeline()
        view = timeline.at(slot)
        if view.log.marks(self.id).closed_at is not None:
            return set()
        groups = Snapshot(view.log, view.state[self.id]).file_groups(Manifests(timeline.fileio))
        bases = {group.base.path for group in groups if group.base is not None}
        return bases | {rows.object.path for group in groups for rows in group.logs}

    def stored(self) -> set[str]:
        """Data files that are in the store."""
        return {key for key in self.timeline().fileio.list_keys("data/") if key.endswith(".parquet")}

    def check_files_after_clean(self) -> None:
        """Cleaning leaves what is readable, and no other file: nobody who lost or was superseded has left any."""
        for _ in range(2):
            clean(self.timeline(), self.id, keep_slots=1)
        self.check_files()

    def check_files(self) -> None:
        """Every file of a readable slot is there, and no other."""
        needed = set[str]().union(*(self.named(slot) for slot in self.readable()))
        assert self.stored() == needed


def once(kind: str, prefix: str, act: Callable[[], object], *, nth: int = 1) -> Callable[[Request], None]:
    """Something that others do before the nth request of a kind below a prefix, once."""
    left = [nth]

    def before(request: Request) -> None:
        if request.kind == kind and f"/{prefix}" in f"/{request.key}":
            left[0] -= 1
            if left[0] == 0:
                act()

    return before


def rows(count: int, *, value: int = 1, order: int = 1) -> list[tuple[int, int, int]]:
    return [(key, value, order) for key in range(count)]


def planned(world: World) -> CompactionPlan:
    timeline = world.timeline()
    plan = plan_compaction(timeline.open(), world.id, Manifests(timeline.fileio))
    assert plan is not None
    return plan


def history(world: World) -> list[Entry]:
    return world.timeline().log.read_after(-1)


def close(world: World) -> None:
    timeline = world.timeline()
    txn = new_txn(timeline.fileio.env)
    footprint = {world.id: Footprint()}
    Committer(timeline.fileio).commit(
        CommitAttempt(txn=txn, action=Action.CLOSE, base=timeline.open().log, changes={}, footprint=footprint)
    )


class At:
    """One fault at the nth request. hit: whether it came to that."""

    def __init__(self, number: int, fault: Fault) -> None:
        self._number = number
        self._fault = fault
        self.hit = False

    def choose(self, request: Request) -> Hit | None:
        if request.number != self._number:
            return None
        self.hit = True
        return Hit(self._fault) if self._fault in APPLICABLE[request.kind] else None


def expiring(*, saved: bool = False) -> World:
    """A table whose slot 1 names files that a clean would delete."""
    world = World()
    world.upsert(*rows(6))
    world.upsert(*rows(6, value=2, order=2))
    compact(world.timeline(), world.id)
    world.model.same()
    if saved:
        savepoint(world.timeline(), world.id, slot=1)
        world.model.same()
    return world
