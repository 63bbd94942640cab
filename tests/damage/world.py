"""A small lake in memory that has every class of stored objects, and what every kind of read says of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import Create, Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.catalog import names as catalog_names
from objcat.inspection.doctor import examine, examine_names
from objcat.timeline import checkpoint, hints, side_objects, txn_outcomes
from objcat.timeline.entry import FORMAT_VERSION, Action, intent_key, new_txn
from objcat.timeline.intents import Intent, encode_intent

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.int64()), ("city", pa.string())])
NAMES = ("bucket", "record")
SMALL: Mapping[Any, Mapping[str, int]] = {
    checkpoint: {"SPACING_SLOTS": 4, "TAIL_SLOTS_MAX": 6},
    hints: {"PAUSE_S": 0},
    txn_outcomes: {"INLINE_MAX": 6, "BLOCK_RECORDS": 4},
    side_objects: {"INLINE_BYTES_MAX": 900, "INLINE_DIGESTS_MAX": 3},
    catalog_names: {"INLINE_BYTES_MAX": 64},
}
"""Constants of the code that make a log of a few slots have all that a long one has."""


@contextmanager
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, constants in SMALL.items():
            for name, value in constants.items():
                patch.setattr(module, name, value)
        yield


Objects = Mapping[str, bytes]
"""A store by key."""


def store_of(objects: Objects, *, seed: int = 1) -> FileIO:
    store = FileIO(MemoryBackend("lake", env=FakeEnv(0)), env=FakeEnv(seed))
    for key, data in objects.items():
        store.put(key, data, Create())
    return store


def objects_of(store: FileIO) -> dict[str, bytes]:
    return {key: store.read(key) for key in store.list_keys()}


def rows(first: int, count: int, at: int) -> list[dict[str, Any]]:
    return [{"id": n, "at": at, "city": ("Oslo", "Lima", "Pune")[n % 3]} for n in range(first, first + count)]


@cache
def pristine() -> tuple[Objects, Objects]:
    """The lake, and older versions of those of its objects that were replaced."""
    older: dict[str, bytes] = {}
    with small():
        store = store_of({})
        lake = objcat.Lake(store)
        bucket = lake.create_table(
            "bucket", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2), partition_by=["city"], key_scope="partition"
        )
        record = lake.create_table("record", SCHEMA, key=["id"], index=objcat.RecordIndex(buckets=2))
        for number in range(6):
            lake.create_table(f"other{number}", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
        lake.namespaces.create("space")
        lake._context.catalog.timeline.publish(lake._context.catalog.timeline.open())
        lake.rename_table("other0", "space.renamed")
        lake.drop_table("other1")
        for table in (bucket, record):
            table.insert(rows(0, 9, 0))
            for number in range(1, 7):
                table.upsert(rows(number, 5, number))
            table.maintenance.compact()
            older |= {f"{prefix(table)}/{key}": data for key, data in objects_of(table._context.fileio).items()}
            for number in range(7, 12):
                table.upsert(rows(number, 4, number))
                table._context.timeline.publish(table._context.timeline.open())
            table.delete([{"id": 3, "at": 50, "city": "Oslo"}] if table is bucket else [{"id": 3}])
            table.maintenance.savepoint(name="kept")
            table.maintenance.archive(keep_slots=9)
            table.maintenance.expire_checkpoints(keep=2)
            table.upsert(rows(20, 3, 20))
            assert table.maintenance.schedule_compaction() is not None
            _leave_intent(table)
        return objects_of(store), older


def prefix(table: objcat.Table) -> str:
    return table._context.fileio.url.rpartition("lake/")[2].strip("/")


def _leave_intent(table: objcat.Table) -> None:
    env = FakeEnv(99, now_ms=1_600_000_000_000)
    txn = new_txn(env)
    intent = Intent(
        format=FORMAT_VERSION, txn=txn, action=Action.DELTA_COMMIT, base=2, host="h", engine="e", requested_at_ms=1, heartbeat_ms=1
    )
    table._context.fileio.put(intent_key(txn), encode_intent(intent), Create())


# ---- classes of objects --------------------------------------------------------------------------------------------

_CLASSES = (
    ("hint", r"head\.json"),
    ("void root", r"checkpoints/\d+/root\.json"),
    ("shard", r"checkpoints/.*/(base|delta)-"),
    ("segment", r"checkpoints/.*/outcomes-"),
    ("names of a catalog", r"checkpoints/.*/names-"),
    ("history file", r"history/"),
    ("plan", r"intents/.*\.requested\.json"),
    ("intent", r"intents/.*\.inflight\.json"),
    ("digests of keys", r"data/[^/]+/keys-"),
    ("changes beside an entry", r"data/[^/]+/changes\.json-"),
    ("index file", r"data/[^/]+/_index/"),
    ("log file", r"data/.*\.log\.parquet$"),
    ("base file", r"data/.*\.parquet$"),
    ("tombstone", r"log/"),
)


@dataclass(frozen=True)
class Target:
    """An object that is changed. table: whose it is, None for the catalog. older: another version that it had."""

    key: str
    kind: str
    table: str | None
    older: bytes | None = None


@cache
def targets() -> tuple[Target, ...]:
    objects, older = pristine()
    found = []
    for key, data in objects.items():
        group_id, _, rest = (
            key.partition("/") if key.startswith("_catalog/") else ("/".join(key.split("/")[:2]), "", "/".join(key.split("/")[2:]))
        )
        name = re.sub(r"-[0-9a-f]+$", "", group_id.removeprefix("tables/"))
        table = None if group_id == "_catalog" else name
        if table is not None and table not in NAMES:
            continue
        kind = next((kind for kind, pattern in _CLASSES if re.match(pattern, rest)), None)
        if kind is None:
            continue
        if kind == "tombstone" and b'"history"' not in data:
            kind = "entry" if table else "entry of a catalog"
        if kind == "void root" and b'"void"' not in data:
            kind = "root" if table else "root of a catalog"
        found.append(Target(key, kind, table, older.get(key) if older.get(key) != data else None))
    return tuple(found)


# ---- reads ---------------------------------------------------------------------------------------------------------

Read = Callable[[FileIO, str], Any]


def _table(store: FileIO, name: str) -> objcat.Table:
    return objcat.Lake(store).table(name)


def _sorted(found: pa.Table) -> list[str]:
    return sorted(map(str, found.to_pylist()))


def _write(store: FileIO, name: str) -> list[str]:
    table = _table(store, name)
    table.upsert(rows(2, 3, 100))
    # As somebody else reads it.
    return _sorted(_table(FileIO(store._bare, env=FakeEnv(5)), name).scan().to_arrow())


def _examined(store: FileIO, name: str, *, deep: bool) -> bool:
    """Never compared: what an examination finds is its business, that it ends is ours."""
    lake = objcat.Lake(store)
    examine_names(store)
    examine(lake.table(name)._context.timeline, deep=deep)
    return True


READS: dict[str, Read] = {
    "open": lambda store, name: _table(store, name).schema,
    "names": lambda store, _: sorted(objcat.Lake(store).tables()),
    "scan": lambda store, name: _sorted(_table(store, name).scan().to_arrow()),
    "lookup": lambda store, name: _sorted(_table(store, name).scan(where="id = 4").to_arrow()),
    "time travel": lambda store, name: [_sorted(_table(store, name).scan(as_of=slot).to_arrow()) for slot in (1, 9, 14)],
    "changes": lambda store, name: _sorted(_table(store, name).changes(since=3).to_arrow()),
    "incremental": lambda store, name: _sorted(
        _table(store, name).incremental(since=8, columns=["id", "at", "city", "_commit_slot", "_commit_time"]).to_arrow()
    ),
    "history": lambda store, name: str([(e.slot, e.action, e.txn, e.committed_at_ms) for e in _table(store, name).inspect.history()]),
    "stats": lambda store, name: str(_table(store, name).inspect.stats()),
    "plans": lambda store, name: len([str(plan.file_groups) for plan in _table(store, name).maintenance.scheduled_compactions()]),
    "doctor": lambda store, name: _examined(store, name, deep=False),
    "doctor --deep": lambda store, name: _examined(store, name, deep=True),
    "write": _write,
    "execute": lambda store, name: (_table(store, name).maintenance.execute_scheduled(), READS["scan"](store, name))[1],
    "tidy up": lambda store, name: (_table(store, name).maintenance.rollback_failed_writes(older_than_s=0), READS["scan"](store, name))[1],
}
CHANGING = ("write", "execute", "tidy up")
"""Those that write: each has a store of its own."""


@cache
def expected() -> Mapping[tuple[str, str], Any]:
    objects, _ = pristine()
    with small():
        return {(name, what): read(store_of(objects, seed=7), name) for name in NAMES for what, read in READS.items()}


def chosen_reads(random: random.Random, count: int) -> list[str]:
    """The scan, a write, and some others."""
    others = [what for what in READS if what not in ("scan", "write")]
    return ["scan", *random.sample(others, count), "write"]


__all__ = ["CHANGING", "NAMES", "READS", "Overwrite", "Target", "chosen_reads", "expected", "pristine", "small", "store_of", "targets"]
