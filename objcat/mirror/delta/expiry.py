"""Deletes what no readable version of a Delta log needs.

A version needs the newest checkpoint at or below it, the commits after that one, and the vectors that these name. The vectors of a
version are those of the checkpoint, and those of later slots. So commits are never read here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fileio.contract import GetResult, ObjectMeta, PreconditionFailed, Update, require_written
from objcat.mirror.delta.actions import LOG, commit_key
from objcat.mirror.delta.checkpoints import DeltaCheckpoint, advance_hint, write_checkpoint
from objcat.mirror.delta.loading import DeltaListing, list_log
from objcat.mirror.delta.restarts import without_removes
from objcat.mirror.delta.state import DeltaState
from objcat.mirror.delta.vectors import VECTORS_FOLDER, vector_name, vector_slot
from objcat.mirror.forgotten_slots import FORGOTTEN, forget_slots, forgotten_before
from objcat.mirror.model import MirrorFolder, MirrorNotRestarted

_VERSION = re.compile(r"(\d{20})\.")


@dataclass(frozen=True, slots=True)
class _Kept:
    """The versions from a checkpoint, `base` (-1: from the first commit), to `last`. None: to the newest one."""

    base: int
    last: int | None

    def has(self, version: int) -> bool:
        """Whether a version is one of them."""
        return version >= self.base and (self.last is None or version <= self.last)


def expire(folder: MirrorFolder, state: DeltaState, *, modified_before_ms: int) -> int:
    """Delete what versions below the oldest readable slot have alone, except saved slots, and what an erasure has forgotten.

    Args:
        folder: The mirror.
        state: Its newest version. It says which slots are readable.
        modified_before_ms: Younger objects stay: a process may be about to name them. What an erasure has forgotten goes at once.

    Returns:
        The number of deleted objects.
    """
    forgotten = min(_forgotten(folder), state.info.since)
    listing = list_log(folder)
    kept = [_kept(listing, min(state.info.oldest, state.slot), open_end=True)]
    kept += [_kept(listing, slot, open_end=False) for slot in state.info.saved if slot <= state.slot]

    def is_old(meta: ObjectMeta) -> bool:
        return meta.modified_ms < modified_before_ms

    log = [
        meta.key
        for version, meta in (*listing.commits.items(), *listing.checkpoints.items())
        if version < forgotten or (is_old(meta) and not any(one.has(version) for one in kept))
    ]
    vectors = [
        meta.key
        for slot, meta in _vector_files(folder)
        if slot < forgotten or (is_old(meta) and not any(one.has(slot) and slot > one.base for one in kept))
    ]
    # The log goes first: without it nothing names the vectors.
    return _delete(folder, log) + _delete(folder, _unnamed(folder, listing, kept, vectors))


def _kept(listing: DeltaListing, version: int, *, open_end: bool) -> _Kept:
    base = max((checkpoint for checkpoint in listing.checkpoints if checkpoint <= version), default=-1)
    return _Kept(base, None if open_end else version)


def _unnamed(folder: MirrorFolder, listing: DeltaListing, kept: Collection[_Kept], keys: Collection[str]) -> list[str]:
    """Those of some files of vectors that no checkpoint names from which kept versions begin."""
    if not keys:
        return []
    named: set[str] = set()
    for base in {one.base for one in kept if one.base >= 0}:
        for vectors in DeltaCheckpoint(folder, base, listing.checkpoints[base]).vectors():
            named |= {f"{folder.folder}{vector_name(vector)}" for vector in vectors}
    return [key for key in keys if key not in named]


def forget_before(folder: MirrorFolder, state: DeltaState | None, slot: int) -> int:
    """Delete everything older than the restart at or after a slot, at once. Returns how many objects that were.

    state: the newest version. None: there is none, and everything before the slot goes.

    Raises:
        MirrorNotRestarted: The newest version does not build on such a restart.
    """
    if state is None:
        return _delete_before(folder, slot)
    since = state.info.since
    if since < slot:
        raise MirrorNotRestarted(
            f"The Delta mirror of {folder.name} builds on slot {since}, which is before {slot}. Nothing was deleted. Restart the mirror, "
            "then forget what was before."
        )
    if since == 0:
        return 0
    checkpoint = state.checkpoint
    if checkpoint is None or checkpoint.version < since:
        checkpoint, files = write_checkpoint(folder, state.slot, state.settings, state.pieces(), time_ms=state.time_ms)
        state.begin_at(checkpoint, files=files)
    forget_slots(folder.fileio, _forgotten_key(folder), since)
    # A hint that names a deleted checkpoint would cost every reader a LIST.
    advance_hint(folder, checkpoint, files=checkpoint.rows - 3)
    deleted = _delete_before(folder, since)
    _drop_removes(folder, since)
    return deleted


def delete_late(folder: MirrorFolder, slot: int) -> None:
    """Delete what this process wrote from a slot on, if an erasure had forgotten that slot before. All of it is older than the erasure."""
    forgotten = _forgotten(folder)
    if slot < forgotten:
        _delete_before(folder, forgotten)


def _forgotten(folder: MirrorFolder) -> int:
    return forgotten_before(folder.fileio, _forgotten_key(folder))


def _forgotten_key(folder: MirrorFolder) -> str:
    """Beside the vectors: nobody else looks there, as they do in the log."""
    return f"{folder.folder}{VECTORS_FOLDER}/{FORGOTTEN}"


def _drop_removes(folder: MirrorFolder, version: int) -> None:
    """Write the commit of a restart again without its removes: they have paths of earlier files.

    Readers that know an earlier version refuse it then, and begin at its checkpoint.
    """
    key = commit_key(folder, version)
    result = folder.fileio.get(key)
    assert isinstance(result, GetResult)
    lines = result.data.splitlines(keepends=True)
    kept = without_removes(lines)
    if len(kept) == len(lines):
        return
    outcome = folder.fileio.put(key, b"".join(kept), Update(result.meta.version))
    # Else another process did the same.
    if not isinstance(outcome, PreconditionFailed):
        require_written(outcome, f"{key!r}")


def _delete_before(folder: MirrorFolder, slot: int) -> int:
    keys = [meta.key for version, meta in _of_versions(folder) if version < slot]
    keys += [meta.key for number, meta in _vector_files(folder) if number < slot]
    return _delete(folder, keys)


def _of_versions(folder: MirrorFolder) -> Iterator[tuple[int, ObjectMeta]]:
    """All objects of the log that belong to a version, also those that other software put there."""
    for page in folder.fileio.list(f"{folder.folder}{LOG}"):
        for meta in page.objects:
            found = _VERSION.match(meta.key.removeprefix(f"{folder.folder}{LOG}"))
            if found is not None:
                yield int(found[1]), meta


def _vector_files(folder: MirrorFolder) -> Iterator[tuple[int, ObjectMeta]]:
    for page in folder.fileio.list(f"{folder.folder}{VECTORS_FOLDER}/"):
        for meta in page.objects:
            slot = vector_slot(meta.key)
            if slot is not None:
                yield slot, meta


def _delete(folder: MirrorFolder, keys: Collection[str]) -> int:
    """Delete objects. Raises the first error of the store, after all others are deleted."""
    results = folder.fileio.delete(keys)
    for result in results:
        if result.error is not None:
            raise result.error
    return len(results)
