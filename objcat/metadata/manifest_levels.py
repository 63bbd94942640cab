"""Levels of manifests: which runs a checkpoint merges, and which base shards it rewrites.

A checkpoint needs no older manifest: the changes since the last one become a run of their own. So that runs do not pile up, runs of similar
size are merged, as in a log-structured merge tree. Each merge grows the run of a row by a factor, which limits how often a row is written.
Once all runs are one, it is merged into those base shards of which it changes a large part. The other base shards are named again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.env import map_io
from fileio.store import FileIO
from objcat.metadata.files import BaseFile, LogObject
from objcat.metadata.manifest import Manifests, ShardRef, get_shard, put_shards
from objcat.metadata.manifest_rows import Ints, Partitions, bounded_by, merge_rows, order_keys, rows_of
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import TableState
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_state import LogState

SHARD_ITEMS = 16_384
"""Approximate number of file groups and log slices of a shard."""
RUNS_MAX = 3
"""Runs besides the base: the most that a scan of one partition reads, besides base shards."""
GROWTH = 8
"""A run is merged with one that is at most this many times larger.

It is merged into a base shard of which it changes at least one part in this many.
"""
ITEMS_SMALL = 1024
"""Below this, writing again costs less than reading one more object."""
SHARDS_MERGED_MAX = 8
"""Base shards that one checkpoint rewrites, or a quarter of them if that is more. So a checkpoint is never as large as the table."""


def runs_to_merge(new: int, runs: Sequence[int]) -> int:
    """How many of the newest runs are merged with `new` items. runs: the items of each, the newest first."""
    merged, items = 0, new
    while merged < len(runs) and (runs[merged] <= max(GROWTH * items, ITEMS_SMALL) or len(runs) - merged >= RUNS_MAX):
        items += runs[merged]
        merged += 1
    return merged


def shards_to_merge(changed: Sequence[int], base: Sequence[int]) -> list[int]:
    """The base shards to rewrite, most changed first. changed: items of the run in the range of each. base: items of each."""
    ratios = [(part / max(1, size), i) for i, (part, size) in enumerate(zip(changed, base, strict=True)) if part]
    due = [(ratio, i) for ratio, i in ratios if ratio * GROWTH >= 1 or base[i] <= ITEMS_SMALL]
    return [i for _, i in sorted(due, reverse=True)[: max(SHARDS_MERGED_MAX, len(base) // 4)]]


def cut(items: Ints, partitions: Ints) -> list[int]:
    """Where to cut sorted rows into shards.

    The shards are even, of about `SHARD_ITEMS` or less, and end where small partitions end.

    Args:
        items: Of each row.
        partitions: The number of the partition of each row.

    Returns:
        The first row of every shard.
    """
    if not len(items):
        return []
    ends = np.cumsum(items)
    total = int(ends[-1])
    target = total / -(-total // SHARD_ITEMS)
    starts = [0]
    done = 0
    edges = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
    for edge, following in zip(edges, [*edges[1:], len(items)], strict=True):
        before = int(ends[edge - 1]) if edge else 0
        size = int(ends[following - 1]) - before
        if edge and edge != starts[-1] and (before + size / 2 - done > target):
            starts.append(edge)
            done = before
        while int(ends[following - 1]) - done > 1.5 * SHARD_ITEMS:
            inside = int(np.searchsorted(ends, done + target))
            inside = min(max(inside, starts[-1] + 1), following - 1)
            if inside <= starts[-1]:
                break
            starts.append(inside)
            done = int(ends[inside - 1])
    return starts


def write_manifests(fileio: FileIO, state: TableState, folder: str) -> TableState:
    """The same table without an overlay: its changes are written as manifests below `folder`. Reads only what is merged."""
    if not state.overlay:
        return state
    spec = state.spec
    base = sorted((ref for ref in state.manifest if ref.run == 0), key=lambda ref: _order(ref.first))
    runs = sorted({ref.run for ref in state.manifest if ref.run}, reverse=True)
    of_run = {run: [ref for ref in state.manifest if ref.run == run] for run in runs}
    give_way = fileio.env.give_way
    give_way()
    new = rows_of(state.overlay.values(), spec, pause=give_way)
    count = runs_to_merge(int(_items(new).sum()), [sum(ref.items for ref in of_run[run]) for run in runs])
    merged = [ref for run in runs[:count] for ref in of_run[run]]
    kept = [ref for run in runs[count:] for ref in of_run[run]]
    is_whole = not kept
    give_way()
    tables = [shard.rows(None, spec) for shard in map_io(fileio.env, lambda ref: get_shard(fileio, ref), merged)]
    give_way()
    changed = merge_rows([new, *tables], spec, whole=(lambda _: True) if is_whole and not base else None, pause=give_way)
    if is_whole:
        base, changed = _merge_into_base(fileio, base, changed, spec, folder)
    run = max([0, *runs]) + 1
    kept += put_shards(fileio, _shards(changed), folder, spec, run=run)
    return replace(state, manifest=(*base, *kept), overlay={})


def save_table_afresh(fileio: FileIO, state: TableState, folder: str, files: Mapping[str, BaseFile | LogObject]) -> TableState:
    """The same table on new manifests that depend on no older one.

    They hold the live file groups, the partitions that have some, and the bounds of their own files. Reads all manifests.

    Args:
        files: By path, as entries name them. The bounds of other files are not known.
    """
    tables = [shard.rows(None, state.spec) for shard in map_io(fileio.env, lambda ref: get_shard(fileio, ref), state.manifest)]
    merged = merge_rows([*tables, rows_of(state.overlay.values(), state.spec)], state.spec, whole=lambda _: True)
    live = Snapshot(LogState(), state).live_partitions(Manifests(fileio))
    rows = merged.filter(pc.is_in(merged.column("partition"), value_set=pa.array(sorted(live), pa.string())))
    bases, logs = rows.column("base_path").to_pylist(), rows.column("logs").to_pylist()
    named = [[*([base] if base is not None else []), *(part["path"] for part in of_row)] for base, of_row in zip(bases, logs, strict=True)]
    sizes = rows.column("base_rows").to_pylist()
    found = [
        [files.get(path) or _unknown(path, size if path == base else 0) for path in paths]
        for paths, base, size in zip(named, bases, sizes, strict=True)
    ]
    refs = put_shards(fileio, _shards(bounded_by(rows, found, state.spec)), folder, state.spec, run=0)
    counts = {name: count for name, count in state.bucket_counts.items() if name in live or count != state.spec.index.count}
    return replace(state, manifest=tuple(refs), overlay={}, bucket_counts=counts)


def _unknown(path: str, rows: int) -> BaseFile:
    return BaseFile(path=path, bytes=0, rows=rows or 0, group_id=FileGroupId("", 0, 1))


def _merge_into_base(
    fileio: FileIO, base: list[ShardRef], changed: pa.Table, spec: TableSpec, folder: str
) -> tuple[list[ShardRef], pa.Table]:
    """The base with the changes of the ranges that are due, and the remaining changes."""
    give_way = fileio.env.give_way
    if not base:
        return put_shards(fileio, _shards(changed), folder, spec, run=0), changed.slice(0, 0)
    range_of = _ranges(changed, [ref.first for ref in base])
    counts = np.bincount(range_of, weights=_items(changed), minlength=len(base)).astype(np.int64)
    due = shards_to_merge(counts.tolist(), [ref.items for ref in base])

    def rewrite(i: int) -> list[ShardRef]:
        part = changed.take(pa.array(np.flatnonzero(range_of == i)))
        give_way()
        # A partition that begins another range may have rows in both.
        shared = {ref.first.partition for ref in (*base[i : i + 1 if i else i], *base[i + 1 : i + 2])}
        table = get_shard(fileio, base[i]).rows(None, spec)
        give_way()
        rows = merge_rows([table, part], spec, whole=lambda name: name not in shared, pause=give_way)
        return put_shards(fileio, _shards(rows), folder, spec, run=0)

    rewritten = dict(zip(due, fileio.env.map(rewrite, due), strict=True))
    refs = [ref for i, old in enumerate(base) for ref in rewritten.get(i, [old])]
    return refs, changed.filter(pa.array(~np.isin(range_of, due)))


def _ranges(rows: pa.Table, firsts: Sequence[FileGroupId]) -> Ints:
    """For every row, the base shard whose range it is in. The first range includes all smaller file groups."""
    group_ids = pa.table(
        {
            "partition": pa.array([group_id.partition for group_id in firsts], pa.string()),
            "bucket": pa.array([group_id.bucket for group_id in firsts], pa.int32()),
            "bucket_count": pa.array([group_id.bucket_count for group_id in firsts], pa.int32()),
        }
    )
    both = pa.concat_tables([group_ids, rows.select(group_ids.column_names)])
    keys = order_keys(both, Partitions.of(both.column("partition")))
    return np.maximum(0, np.searchsorted(keys[: len(firsts)], keys[len(firsts) :], side="right") - 1)


def _shards(rows: pa.Table) -> list[pa.Table]:
    starts = cut(_items(rows), Partitions.of(rows.column("partition")).codes)
    return [rows.slice(start, end - start) for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=False) if end > start]


def _items(rows: pa.Table) -> Ints:
    return np.asarray(pc.list_value_length(rows.column("logs")).to_numpy(), dtype=np.int64) + 1


def _order(group_id: FileGroupId) -> tuple[str, int, int]:
    return group_id.partition, group_id.bucket_count, group_id.bucket
