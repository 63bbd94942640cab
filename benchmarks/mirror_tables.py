"""Tables of very many files, of which 16 file groups are real, so that their mirrors can be followed; and what a slot of a mirror costs."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import objcat
from benchmarks.metadata_bench import Maker
from objcat.datafile.bucket_hash import bucket_of
from objcat.maintenance.auto_mirror import AutoMirror
from objcat.metadata.files import Bound
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import MIRROR_ICEBERG_VERSION, MIRRORS
from objcat.mirror.mirror import TableMirrors
from objcat.timeline.checkpoint import SPACING_SLOTS
from objcat.timeline.entry import FileGroupId

SCHEMA = pa.schema(
    [
        pa.field("place", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        pa.field("fare", pa.float64()),
    ]
)
REAL_GROUPS = 16
ROWS = 50_000
"""Rows of each real file group."""
BUCKETS_MAX = 50_000
"""File groups of one partition."""
FILES_PER_COMMIT = 10_000
FORMATS: dict[str, dict[str, str]] = {
    "Iceberg v2": {MIRRORS: "iceberg", MIRROR_ICEBERG_VERSION: "2"},
    "Iceberg v3": {MIRRORS: "iceberg", MIRROR_ICEBERG_VERSION: "3"},
    "Delta": {MIRRORS: "delta"},
}
KINDS = ("no file", "100 rows after a compaction", "100 rows", "20,000 rows", "compaction")


class _Maker(Maker):
    """Fills a table with file groups that are not there, around those that are."""

    def _bounds(self, group_id: FileGroupId, *, rows: int) -> dict[int, Bound]:
        day, low = group_id.partition.removeprefix("day="), self._random.randrange(10**6)
        fare = round(self._random.random() * 500, 2)
        return {1: (0, 10**6, 0), 2: (low, low + 10**6, 0), 3: (day, day, 0), 4: (2.5, fare, self._random.randrange(min(100, rows + 1)))}


class _NoMirror(AutoMirror):
    """Leaves the mirrors of a handle's commits to what is measured."""

    def after(self, *args: Any, **more: Any) -> None:
        """Nothing."""


def name_of(partition: int) -> str:
    """The name of a partition."""
    return f"day={partition:04d}"


def places(count: int) -> list[int]:
    """Values of the bucket column, each of another bucket."""
    candidates = np.arange(4 * REAL_GROUPS)
    buckets = bucket_of([pa.array(candidates)], count)
    _, first = np.unique(buckets, return_index=True)
    return [int(one) for one in sorted(candidates[first])[:REAL_GROUPS]]


def all_rows(chosen: Sequence[int], ids: int) -> pa.Table:
    """All rows of the real file groups. ids: in each."""
    count = ids * len(chosen)
    columns = {"place": np.repeat(np.array(chosen), ids), "id": np.tile(np.arange(ids), len(chosen)), "day": ["0000"] * count}
    return pa.table({**columns, "fare": np.arange(count) / 7}, schema=SCHEMA)


def some_rows(chosen: Sequence[int], count: int, *, ids: int, seed: int) -> pa.Table:
    """New values for some rows, at random. All of them exist."""
    draw = np.random.default_rng(seed)
    place, day = np.array(chosen)[np.arange(count) % len(chosen)], ["0000"] * count
    return pa.table({"place": place, "id": draw.integers(0, ids, count), "day": day, "fare": draw.random(count)}, schema=SCHEMA)


def opened(url: str) -> objcat.Table:
    """A handle whose commits are not mirrored by themselves."""
    table = objcat.table_at(url)
    table._context.auto_maintenance.mirrors = _NoMirror()
    return table


def make_mirrored(url: str, *, files: int, ids: int, say: Callable[[str], None]) -> None:
    """A table of many files. Its newest checkpoint holds all of them. ids: rows of each real file group."""
    count = min(files, BUCKETS_MAX)
    index = objcat.BucketIndex(count, ("place",))
    objcat.create_table_at(url, SCHEMA, key=["place", "id", "day"], partition_by=["day"], index=index)._context.fileio.close()
    table = opened(url)
    table.upsert(all_rows(places(count), ids))
    table.maintenance.compact()
    real = {group.group_id for group in table.snapshot.file_groups(table._context.manifests)}
    assert len(real) == REAL_GROUPS, real
    maker = _Maker(url)
    every = [FileGroupId(name_of(number // count), number % count, count) for number in range(files)]
    missing = [group_id for group_id in every if group_id not in real]
    for first in range(0, len(missing), FILES_PER_COMMIT):
        maker.commit(missing[first : first + FILES_PER_COMMIT], [])
        maker.publish()
        if first // FILES_PER_COMMIT % 25 == 24:
            say(f"{first:,} files")
    maker.fileio.close()
    table = opened(url)
    while table.refresh().slot % SPACING_SLOTS:
        table.set_properties({"made": str(table.snapshot.slot)})
    table._context.timeline.publish(table._context.view)


class Follower:
    """The mirrors of a table, by a handle of their own. Its first call is cold."""

    def __init__(self, url: str) -> None:
        self._context = context = opened(url)._context
        self._fileio = context.fileio
        self._mirrors = TableMirrors(context.timeline, context.id, context.name, Manifests(context.fileio))

    def catch_up(self) -> dict[str, float]:
        """What the mirror of the slots since the last call costs. Requests are by kind; the rest is bytes and seconds."""
        before, began_s, began_cpu_s = self._fileio.metrics.snapshot(), time.perf_counter(), time.process_time()
        (report,) = self._mirrors.catch_up()
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        sent = self._fileio.metrics.snapshot() - before
        if report.lag or report.held:
            raise AssertionError(f"The mirror did not follow: {report}")
        asked = {f"request {kind}": number for kind, number in sent.requests.items() if number}
        return {
            **asked,
            "bytes written": sent.bytes_written,
            "bytes read": sent.bytes_read,
            "seconds": seconds,
            "CPU seconds": cpu_s,
            "slots": report.written,
        }

    def live_files(self) -> int:
        """How many files the mirror names."""
        (form,) = self._mirrors.formats(self._context.timeline.open())
        return len(form.live_files())


def commit(table: objcat.Table, kind: str, chosen: Sequence[int], *, ids: int, seed: int) -> None:
    """One commit of a kind, see `KINDS`. A compaction needs an upsert before it."""
    if kind == "no file":
        table.set_properties({"note": str(seed)})
    elif kind == "compaction":
        if table.maintenance.compact() is None:
            raise AssertionError("There was nothing to compact.")
    else:
        table.upsert(some_rows(chosen, int(kind.split(maxsplit=1)[0].replace(",", "")), ids=ids, seed=seed))


def peak_bytes() -> int:
    """Of the memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def begin(url: str, form: str) -> dict[str, float]:
    """Set the properties, and make the mirror of the table as it is."""
    opened(url).set_properties(FORMATS[form])
    pa.array([0])
    follower = Follower(url)
    sample = {**follower.catch_up(), "peak bytes": peak_bytes()}
    return {**sample, "live files": follower.live_files()}


def follow(url: str, count: int, ids: int, rounds: int) -> dict[str, dict[str, float]]:
    """What slots of each kind cost: by a process that has mirrored none of them ("cold"), and by one that mirrors all ("warm").

    Args:
        url: of a table whose mirror has begun.
        count: its buckets.
        ids: rows of each real file group.
        rounds: of which the medians are returned; one more is not counted.
    """
    table, chosen = opened(url), places(count)
    found: dict[str, dict[str, float]] = {}
    for turn, kind in enumerate(KINDS):
        commit(table, kind, chosen, ids=ids, seed=1 + turn)
        found[f"{kind}, cold"] = Follower(url).catch_up()
    warm = Follower(url)
    warm.catch_up()
    samples: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for turn in range(rounds + 1):
        for number, kind in enumerate(KINDS):
            commit(table, kind, chosen, ids=ids, seed=100 + turn * len(KINDS) + number)
            sample = warm.catch_up()
            if sample["slots"] != 1:
                raise AssertionError(f"{kind} made {sample['slots']} slots")
            if turn:
                samples[kind].append(sample)
    for kind, taken in samples.items():
        names = dict.fromkeys(name for sample in taken for name in sample)
        found[f"{kind}, warm"] = {name: statistics.median([sample.get(name, 0) for sample in taken]) for name in names}
    found["process"] = {"peak bytes": peak_bytes()}
    return found
