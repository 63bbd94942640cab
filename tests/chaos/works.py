"""What processes are killed at: tables with something to do for each service, and what each entry of such a service means in rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from fileio.stream_settings import StreamSettings
from objcat.timeline.entry import Action, Entry

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
ERASED = 7
IMPORTED = {number: {500 + 10 * number + i: number for i in range(5)} for number in (1, 2, 3)}
"""By commit of the import: its rows."""

Rows = Mapping[int, int]


class Story:
    """A table that is made, with the rows that each of its slots must have.

    begins: the slot that made the table. sources: a directory of files for imports. table: of the work; the writer beside it writes to the
    table `beside`. dead: performs a work in a process that is killed before its slot.
    """

    def __init__(self, lake: objcat.Lake, sources: Path, dead: Callable[[str], None]) -> None:
        self.lake, self.sources, self.dead = lake, sources, dead
        self.states: list[Rows] = []
        self.beside = "t"
        self.begins = 0
        self.table: Any = None

    def create(self, **settings: Any) -> None:
        self.table = self.lake.create_table("t", SCHEMA, **settings)
        self.states = [{}]

    def upsert(self, rows: Rows) -> None:
        batch = [{"id": key, "v": value} for key, value in rows.items()]
        slot = (self.table.upsert if self.table.spec.has_key else self.table.insert)(batch).slot
        assert slot == len(self.states)
        self.states.append({**self.states[-1], **rows})

    def bulk(self, rows: Rows) -> None:
        assert self.table.bulk_insert([{"id": key, "v": value} for key, value in rows.items()]).slot == len(self.states)
        self.states.append({**self.states[-1], **rows})

    def delete(self, *keys: int) -> None:
        assert self.table.delete([{"id": key} for key in keys]).slot == len(self.states)
        self.states.append({key: value for key, value in self.states[-1].items() if key not in keys})

    def same(self) -> None:
        """What came since has changed no row."""
        self.table.refresh()
        self.states += [self.states[-1]] * (self.table.snapshot.slot + 1 - len(self.states))


def rows(*keys: int, v: int = 0) -> Rows:
    return dict.fromkeys(keys, v)


def keyed(story: Story, **settings: Any) -> None:
    """Base files, log rows and deletes above them."""
    story.create(**{"key": ["id"], "index": objcat.BucketIndex(2), **settings})
    story.upsert(rows(*range(20)))
    story.upsert(rows(*range(5, 12), v=1))
    story.delete(19, 3)


def looked_up(story: Story) -> None:
    keyed(story, index=objcat.RecordIndex())


def rewriting(story: Story) -> None:
    keyed(story, table_type="copy_on_write")


def without_key(story: Story) -> None:
    """Three small file groups."""
    story.create(key=None)
    for begin in (0, 10, 20):
        story.bulk(rows(*range(begin, begin + 10), v=begin))


def expiring(story: Story) -> None:
    """Slots whose files a clean deletes, one of them saved."""
    keyed(story)
    story.table.maintenance.savepoint(slot=1)
    for value in (2, 3):
        story.table.maintenance.compact()
        story.same()
        story.upsert(rows(*range(8), v=value))
    story.same()


def with_dead(story: Story) -> None:
    """Writers that died before their slots have left files and intents."""
    keyed(story)
    for work in ("upsert", "compact"):
        story.dead(work)
    story.same()


def planned(story: Story) -> None:
    keyed(story)
    assert story.table.maintenance.schedule_compaction()
    story.same()


def shared(story: Story) -> None:
    """A dropped table, whose log another one shares."""
    story.lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2), shared_log="d").upsert([{"id": ERASED, "v": 1}])
    story.table = story.lake.create_table("beside", SCHEMA, key=["id"], index=objcat.BucketIndex(2), shared_log="d")
    story.beside = "beside"
    story.begins = story.table.snapshot.slot
    story.states = [{}]
    story.same()
    story.upsert(rows(*range(5)))
    story.lake.drop_table("t")
    story.same()


def long(story: Story) -> None:
    """Checkpoints, entries to archive, and whatever else a round of maintenance looks at."""
    keyed(story, properties={"keep_commits": "3", "auto_clean": "false"})
    for value in range(70):
        story.upsert(rows(value % 20, v=100 + value))
        if value % 15 == 14:
            story.table.maintenance.compact()
            story.same()
    story.dead("upsert")
    story.same()


def importing(story: Story) -> None:
    story.create(key=None)
    for number, some in IMPORTED.items():
        batch = pa.table({"id": list(some), "v": list(some.values())}, schema=SCHEMA)
        pq.write_table(batch, story.sources / f"{number}.parquet")


def unchanged(entry: Entry, states: list[Rows]) -> Rows:
    """What an entry of a service that changes no row makes of the rows."""
    assert entry.action not in (Action.COMMIT, Action.DELTA_COMMIT, Action.RESTORE), f"nobody has written slot {entry.slot}: {entry}"
    return states[-1]


def restored(entry: Entry, states: list[Rows]) -> Rows:
    if entry.action is not Action.RESTORE:
        return unchanged(entry, states)
    (footprint,) = entry.footprint.values()
    assert footprint.restores is not None
    return states[footprint.restores]


def erased(entry: Entry, states: list[Rows]) -> Rows:
    if entry.action not in (Action.COMMIT, Action.DELTA_COMMIT):
        return unchanged(entry, states)
    assert ERASED in states[-1], f"slot {entry.slot} deletes what is deleted"
    return {key: value for key, value in states[-1].items() if key != ERASED}


def imported(entry: Entry, states: list[Rows]) -> Rows:
    if entry.action not in (Action.COMMIT, Action.DELTA_COMMIT):
        return unchanged(entry, states)
    (version,) = [version for apps in entry.apps.values() for version in apps.values()]
    assert not IMPORTED[version].keys() & states[-1].keys(), f"commit {version} of the import is there twice"
    return {**states[-1], **IMPORTED[version]}


def was_uploaded(entry: Entry, states: list[Rows]) -> Rows:
    return {**states[-1], **uploaded()} if entry.action in (Action.COMMIT, Action.DELTA_COMMIT) else unchanged(entry, states)


def upserted(entry: Entry, states: list[Rows]) -> Rows:
    return {**states[-1], **UPSERTED} if entry.action in (Action.COMMIT, Action.DELTA_COMMIT) else unchanged(entry, states)


UPSERTED = rows(*range(15, 25), v=9)


def upsert(lake: objcat.Lake, _: Path) -> object:
    return lake.table("t").upsert([{"id": key, "v": value} for key, value in UPSERTED.items()])


PART_BYTES = 2 * 1024**2
"""Of an upload where a store allows it; S3 wants 5 MiB."""


@cache
def uploaded() -> Rows:
    """Rows whose one file is as long as a few parts."""
    noise = np.random.default_rng(7)
    return dict(zip(range(1 << 40, (1 << 40) + 800_000), noise.integers(-(1 << 62), 1 << 62, 800_000).tolist(), strict=True))


def upload(lake: objcat.Lake, _: Path) -> object:
    """One file, which goes to the store in parts."""
    streams: Any = importlib.import_module("fileio.store")
    streams.FileIO.open_write.__kwdefaults__["settings"] = StreamSettings(part_bytes=PART_BYTES, parallelism=1)
    some = uploaded()
    return lake.table("t").upsert(pa.table({"id": list(some), "v": list(some.values())}))


def save(lake: objcat.Lake, _: Path) -> object:
    """A slot is saved, another one no longer."""
    table = lake.table("t")
    return table.maintenance.savepoint(), table.maintenance.release_savepoint(slot=1)


def archive(lake: objcat.Lake, _: Path) -> object:
    return lake.table("t").maintenance.archive(keep_slots=1), lake.table("t").maintenance.expire_checkpoints(keep=1)


def maintain(lake: objcat.Lake, _: Path) -> object:
    """Everything is due."""
    due: Any = importlib.import_module("objcat.maintenance.maintain")
    due.KEPT_SLOTS, due.FILE_SLOTS_MAX, due.COLLECTED_SLOTS_MIN = 2, 4, 4
    due.COMPACT_AFTER_COMMITS, due.KEPT_CHECKPOINTS, due.DEAD_AFTER_S = 1, 1, 0
    done = lake.table("t").maintenance.run()
    assert not [step for step in done.steps if step.failed], done
    return done


@dataclass(frozen=True, slots=True)
class Work:
    """begin: makes the table. serve: what a process is killed at; called again it finishes. means: an entry that it made."""

    begin: Callable[[Story], None]
    serve: Callable[[objcat.Lake, Path], object]
    means: Callable[[Entry, list[Rows]], Rows] = field(default=unchanged)


WORKS: dict[str, Work] = {
    "compact": Work(keyed, lambda lake, _: lake.table("t").maintenance.compact()),
    "cluster": Work(without_key, lambda lake, _: lake.table("t").maintenance.cluster(["v"])),
    "clean": Work(expiring, lambda lake, _: lake.table("t").maintenance.clean(keep_slots=1)),
    "restore": Work(expiring, lambda lake, _: lake.table("t").restore(to=4), restored),
    "erase": Work(keyed, lambda lake, _: lake.table("t").erase(f"id = {ERASED}", older_than_s=0), erased),
    "purge": Work(shared, lambda lake, _: lake.purge_table("t", older_than_s=0)),
    "rollback": Work(with_dead, lambda lake, _: lake.table("t").maintenance.rollback_failed_writes(older_than_s=0)),
    "import": Work(importing, lambda lake, sources: lake.import_parquet(sources, "t", key=None, commit_bytes=1), imported),
    "maintain": Work(long, maintain),
    "upsert": Work(keyed, upsert, upserted),
    "upload": Work(keyed, upload, was_uploaded),
    "erase, copy-on-write": Work(rewriting, lambda lake, _: lake.table("t").erase(f"id = {ERASED}", older_than_s=0), erased),
    "erase, record index": Work(looked_up, lambda lake, _: lake.table("t").erase(f"id = {ERASED}", older_than_s=0), erased),
    "cluster, record index": Work(looked_up, lambda lake, _: lake.table("t").maintenance.cluster(["v"])),
    "cluster, bucket index": Work(keyed, lambda lake, _: lake.table("t").maintenance.cluster(["v"])),
    "execute": Work(planned, lambda lake, _: lake.table("t").maintenance.execute_scheduled()),
    "split": Work(keyed, lambda lake, _: lake.table("t").maintenance.split_buckets(count=4)),
    "save": Work(expiring, save),
    "archive": Work(long, archive),
}
