"""Writing where the index is no hash: keys are looked up, those that are new get homes, and then rows are written as under any index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from fileio.store import FileIO
from objcat.packing import homes_for
from objcat.table import FileGroup, Manifests, Pruning, Snapshot, TableSpec
from objcat.tasks import Located, LocateTask, WriteResult, WriteTask
from objcat.timeline import Home, Txn
from objcat.timeline.entry import Digests, Keys
from objcat.timeline.side import put_digests

D_contra = TypeVar("D_contra", contravariant=True)


@runtime_checkable
class Locator(Protocol[D_contra]):
    """What looks up the keys of one kind of batch, and writes it."""

    def pruning(self, data: D_contra, spec: TableSpec, former: Collection[str]) -> Pruning | None:
        """Leaves out file groups that hold no key of the batch, by the bounds of their files; None when it would cost too much to know.
        former: as of `WriteTask`."""

    def locate(self, data: D_contra, task: LocateTask) -> Located:
        """Look up where the keys of the batch live. Raises InvalidBatch, NullKey and storage errors."""

    def write_placed(self, located: Located, targets: Mapping[str, tuple[int, ...]], task: WriteTask) -> WriteResult:
        """Write a batch that was located, once. targets: the homes of rows with new keys by partition, as numbers in `task.homes`."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a batch is written. live: the file groups of all partitions that it has rows of. earlier: homes in which the transaction has
    written before."""

    fileio: FileIO
    manifests: Manifests
    snapshot: Snapshot
    live: Mapping[Home, FileGroup]
    earlier: Collection[Home] = ()


def write_located(place: Placing, engine: object, data: Any, task: WriteTask) -> WriteResult:
    """Write a batch: look its keys up, choose homes for those that are new, and run the task.

    engine: of the batch, a `Locator`. task: without homes. Raises what the engine raises.
    """
    assert isinstance(engine, Locator), f"{type(engine).__name__} looks no keys up"
    spec, live = task.spec, place.live
    where = engine.pruning(data, spec, task.former_partitions)
    candidates = sorted(live)
    if where is not None:
        partitions = {home.partition for home in candidates}
        kept = {group.home for group in place.snapshot.file_groups(place.manifests, where=where, partitions=partitions)}
        candidates = [home for home in candidates if home in kept or home in place.earlier]
    located = engine.locate(data, LocateTask(spec, tuple(live[home] for home in candidates), task.former_partitions))
    try:
        return _write(place, engine, located, candidates, task)
    finally:
        located.release()


def _write(place: Placing, engine: Locator[Any], located: Located, candidates: Sequence[Home], task: WriteTask) -> WriteResult:
    """candidates: the homes that `located` numbers."""
    live = place.live
    targets = homes_for(task.spec, located.new, live, lambda: int(place.fileio.env.new_id(), 16))
    numbers = {home: number for number, home in enumerate(candidates)}
    numbered = {partition: tuple(numbers.setdefault(home, len(numbers)) for home in homes) for partition, homes in targets.items()}
    touched = {candidates[number] for number in located.found} | {home for homes in targets.values() for home in homes}
    there = touched & live.keys()
    groups = {home: live[home] for home in there} if task.spec.rewrites else {}
    return engine.write_placed(located, numbered, replace(task, homes=tuple(numbers), live_homes=frozenset(there), groups=groups))


def keys_of(fileio: FileIO, txn: Txn, written: Sequence[WriteResult]) -> Keys:
    """The keys that were placed, and the others, as an entry names them. Writes a side object for many. Raises storage errors."""
    placed = {digest for result in written for digest in _digests(result.placed)}
    updated = {digest for result in written for digest in _digests(result.updated)} - placed
    return Keys(*(put_digests(fileio, txn, digests) if digests else Digests() for digests in (placed, updated)))


def _digests(data: bytes) -> list[int]:
    found: list[int] = np.frombuffer(data, "<u8").tolist()
    return found
