"""A table beside a model of it, slot by slot, for reads that follow what changed. Values are unique: a version of a row is its value."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common.validation import TableType
from tests.services.world import Model

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("o", pa.int64(), nullable=False)])
KEYS = 12
_names = itertools.count()


class Followed:
    """Writes go to the table and to the model."""

    def __init__(self, *, kind: TableType = "merge_on_read", ordered: bool = False, buckets: int = 2) -> None:
        self.backend = MemoryBackend(f"followed-{next(_names)}")
        self.lake = objcat.Lake(FileIO(self.backend, env=FakeEnv(5)))
        ordering = "o" if ordered else None
        self.table = self.lake.create_table("t", SCHEMA, key=["id"], table_type=kind, ordering=ordering, index=objcat.BucketIndex(buckets))
        self.buckets = buckets
        self.ordered = ordered
        self.model = Model(ordered=ordered)
        self.model.slots.append({})
        self.values = itertools.count(1)

    @property
    def head(self) -> int:
        return self.model.head

    def stranger(self) -> objcat.Table:
        """The table as another process opens it."""
        return objcat.Lake(FileIO(self.backend, env=FakeEnv(9))).table("t")

    def upsert(self, *keys: int, order: int = 0, how: str = "upsert") -> int:
        rows = [(key, next(self.values), order) for key in keys]
        slot = getattr(self.table, how)([{"id": key, "v": value, "o": at} for key, value, at in rows]).slot
        self.model.upsert(rows)
        return slot

    def delete(self, *keys: int, order: int | None = None) -> int:
        columns = {"id": pa.array(keys, pa.int64())}
        if order is not None:
            columns["o"] = pa.array([order] * len(keys), pa.int64())
        slot = self.table.delete(pa.table(columns)).slot
        self.model.delete([(key, order) for key in keys])
        return slot

    def same(self, *, done: object) -> None:
        if done is not None:
            self.model.same()

    def restore(self, slot: int) -> None:
        self.table.restore(to=slot)
        self.model.restore(slot)

    def step(self, chance: random.Random, *, restores: bool = True) -> None:
        """One operation at random."""
        keys = chance.sample(range(KEYS), chance.randint(1, 4))
        match chance.choices(("upsert", "insert", "delete", "compact", "split", "restore"), (10, 3, 5, 3, 1, 1))[0]:
            case "upsert":
                self.upsert(*keys, order=chance.randrange(6))
            case "insert":
                fresh = [key for key in keys if key not in self.model.values()]
                if fresh:
                    self.upsert(*fresh, order=chance.randrange(6), how="insert")
            case "delete":
                self.delete(*keys, order=chance.randrange(6) if self.ordered and chance.random() < 0.6 else None)
            case "compact":
                self.same(done=self.table.maintenance.compact())
            case "split" if self.buckets < 16:
                self.same(done=self.table.maintenance.split_buckets())
                self.buckets *= 2
            case "restore" if restores:
                self.restore(chance.randint(1, self.head))
                self.buckets = 16
            case _:
                pass

    # ---- what must come out

    def changed(self, since: int, until: int) -> dict[int, int]:
        """The rows at `until` that are others than at `since`."""
        before = self.model.values(since) if since >= 0 else {}
        return {key: value for key, value in self.model.values(until).items() if before.get(key) != value}

    def changes(self, since: int, until: int) -> list[tuple[int, str, int, int]]:
        """(slot, type, key, value) of every commit's changes."""
        told = []
        for slot in range(since + 1, until + 1):
            told += [(slot, *change) for change in _difference(self.model.values(slot - 1) if slot else {}, self.model.values(slot))]
        return sorted(told)

    def net(self, since: int, until: int) -> list[tuple[str, int, int]]:
        return sorted(_difference(self.model.values(since) if since >= 0 else {}, self.model.values(until)))

    # ---- what comes out

    def read_changed(self, since: Any, until: Any = None, **options: Any) -> dict[int, int]:
        rows = self.table.incremental(since=since, until=until, **options).to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
        return {row["id"]: row["v"] for row in rows}

    def read_changes(self, since: Any, until: Any = None) -> list[tuple[int, str, int, int]]:
        rows = self.table.changes(since=since, until=until).to_arrow().to_pylist()
        assert [row["_commit_slot"] for row in rows] == sorted(row["_commit_slot"] for row in rows)
        return sorted((row["_commit_slot"], row["_change_type"], row["id"], row["v"]) for row in rows)

    def read_net(self, since: Any, until: Any = None) -> list[tuple[str, int, int]]:
        rows = self.table.changes(since=since, until=until, net=True).to_arrow().to_pylist()
        return sorted((row["_change_type"], row["id"], row["v"]) for row in rows)


def _difference(before: dict[int, int], after: dict[int, int]) -> list[tuple[str, int, int]]:
    told: list[tuple[str, int, int]] = []
    for key in before.keys() | after.keys():
        if key not in before:
            told.append(("insert", key, after[key]))
        elif key not in after:
            told.append(("delete", key, before[key]))
        elif before[key] != after[key]:
            told += [("update_before", key, before[key]), ("update_after", key, after[key])]
    return told
