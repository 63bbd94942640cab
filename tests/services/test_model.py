"""Write, compact, clean, save, restore and split in whatever order: each readable slot is the replay of the log over a dict."""

from __future__ import annotations

import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fileio.contract import Backend
from fileio.local.backend import LocalBackend
from fileio.local.options import LocalOptions
from objcat.errors import SnapshotExpired
from objcat.maintenance.clean import clean
from objcat.maintenance.cluster import cluster
from objcat.maintenance.cluster_keys import Clustering
from objcat.maintenance.compact import compact
from objcat.maintenance.restore import restore
from objcat.maintenance.savepoint import release, savepoint
from objcat.maintenance.split_buckets import split_buckets
from objcat.timeline.entry import FileGroupId
from tests.effort import effort
from tests.services.world import World

KEYS = st.integers(0, 7)
ORDERS = st.integers(0, 5)
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 99), ORDERS), min_size=1, max_size=5, unique_by=lambda row: row[0])
BUCKETS_MAX = 16


class Services(RuleBasedStateMachine):
    """Each step is one operation; after each, the newest slot and all readable ones are compared."""

    world: World

    def backend(self) -> Backend | None:
        return None

    @initialize(ordered=st.booleans())
    def create(self, ordered: bool) -> None:
        self.world = World(ordered=ordered, backend=self.backend())
        self.buckets = 2

    @rule(rows=ROWS)
    def upsert(self, rows: Any) -> None:
        self.world.upsert(*rows)

    @rule(rows=ROWS)
    def insert(self, rows: Any) -> None:
        fresh = [row for row in rows if row[0] not in self.world.model.slots[-1]]
        if fresh:
            self.world.insert(*fresh)

    @rule(keys=st.lists(st.tuples(KEYS, ORDERS), min_size=1, max_size=4, unique_by=lambda row: row[0]), barrier=st.booleans())
    def delete(self, keys: Any, barrier: bool) -> None:
        self.world.delete(*((key, None if barrier else order) for key, order in keys))

    @rule()
    def compact(self) -> None:
        if compact(self.world.timeline(), self.world.id):
            self.world.model.same()

    @rule(share=st.integers(0, 1))
    def compact_some(self, share: int) -> None:
        timeline = self.world.timeline()
        group_ids = [FileGroupId("", share, 2)]
        if compact(timeline, self.world.id, file_groups=group_ids):
            self.world.model.same()

    @rule(by=st.sampled_from([("v",), ("v", "id"), ("id",)]), zorder=st.booleans())
    def cluster(self, by: tuple[str, ...], zorder: bool) -> None:
        if cluster(self.world.timeline(), self.world.id, Clustering(by=by, zorder=zorder and len(by) > 1)):
            self.world.model.same()

    @rule(keep=st.integers(1, 8))
    def clean(self, keep: int) -> None:
        if clean(self.world.timeline(), self.world.id, keep_slots=keep).slot is not None:
            self.world.model.same()
        self.world.check_files()

    @rule(back=st.integers(0, 12))
    def savepoint(self, back: int) -> None:
        slot = max(0, self.world.model.head - back)
        try:
            if savepoint(self.world.timeline(), self.world.id, slot=slot):
                self.world.model.same()
        except SnapshotExpired:
            assert slot not in self.world.readable()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        saved = sorted(self.world.timeline().open().log.marks(self.world.id).saved)
        if saved:
            assert release(self.world.timeline(), self.world.id, slot=data.draw(st.sampled_from(saved)))
            self.world.model.same()

    @rule(back=st.integers(0, 12))
    def restore(self, back: int) -> None:
        slot = max(0, self.world.model.head - back)
        try:
            restore(self.world.timeline(), self.world.id, to=slot)
        except SnapshotExpired:
            assert slot not in self.world.readable()
        else:
            self.world.model.restore(slot)
            self.buckets = 0

    @precondition(lambda self: 0 < self.buckets < BUCKETS_MAX)
    @rule()
    def split(self) -> None:
        assert split_buckets(self.world.timeline(), self.world.id) is not None
        self.world.model.same()
        self.buckets *= 2

    @invariant()
    def every_readable_slot_is_what_it_was(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


class ServicesOnFiles(Services):
    """The same on a file system."""

    def backend(self) -> Backend:
        self.folder = tempfile.TemporaryDirectory()
        return LocalBackend(self.folder.name, LocalOptions())

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestServices = Services.TestCase
TestServices.settings = settings(max_examples=effort(10, with_all=25), stateful_step_count=25, deadline=None)
TestServicesOnFiles = ServicesOnFiles.TestCase
TestServicesOnFiles.settings = settings(max_examples=effort(2, with_all=4), stateful_step_count=20, deadline=None)
