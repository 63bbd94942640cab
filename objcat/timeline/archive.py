"""Archiving: move entries that no reader replays any more to history files. Their slots become tombstones.

A slot is never deleted. A store forgets the key of a deleted object, and a stalled writer could take the slot. A tombstone holds what
decides something (whose slot it is, what it fences, application versions, the time) and names the history file. Readers of the log see no
difference: `Log` returns the whole entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, Update, Version, Written, require_written
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.validation import whole_number
from objcat.errors import CheckpointCollected, CorruptTable
from objcat.timeline import checkpoint
from objcat.timeline.entry import Entry, HistoryRow, SharedCommit, SideObject, decode_entry, encode_entry, log_key
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import RESTORE
from objcat.timeline.log import WINDOW_SLOTS_MAX, Log
from objcat.timeline.log_view import Timeline
from objcat.timeline.side_objects import read_intact, side_object

ATTEMPTS_MAX = 3
"""How often archiving starts again because the checkpoint was deleted while it was read back."""
FILE_SLOTS_MAX = 256
FILE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of entries in one history file, before compression. The last window of slots may exceed it."""
_FILE = re.compile(r"history/(\d{20})-(\d{20})-[0-9a-f]+\.parquet")


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of `table.maintenance.archive`.

    Args:
        first_slot: The first slot that it looked at. Slots below it were archived before.
        end_slot: The end of the slots that it looked at, exclusive. All of them are archived now.
        tombstones: Slots that this call turned into tombstones.
        files: History files that it wrote.
    """

    first_slot: int
    end_slot: int
    tombstones: int = 0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ArchivedSlot:
    """A slot that is not archived yet, as it is in the store."""

    entry: Entry
    body: bytes
    version: Version


@says_where
def archive(timeline: Timeline[Any], *, keep_slots: int) -> Archived:
    """Move the entries below the newest checkpoint to history files. The newest `keep_slots` of the log stay.

    It first reads back every object of that checkpoint. If one is missing, nothing is archived. Safe while writers, readers and other
    archivers run. If it is interrupted, the log reads the same; the next call continues, and removes history files that no slot names.

    Raises InvalidInput, CorruptTable, and storage errors.
    """
    whole_number(keep_slots, what="keep_slots", least=1)
    for _ in range(ATTEMPTS_MAX):
        try:
            return _archive(timeline, keep_slots)
        except CheckpointCollected:
            pass  # There is a newer one now.
    return _archive(timeline, keep_slots)


def _archive(timeline: Timeline[Any], keep_slots: int) -> Archived:
    """One attempt at `archive`. Raises CheckpointCollected when its checkpoint is deleted meanwhile."""
    fileio = timeline.fileio
    newest = timeline.open()
    root = checkpoint.newest_root(fileio, newest.slot)
    end = 0 if root is None else min(root.slot, newest.slot + 1 - keep_slots)
    if root is None or end <= 0:
        return Archived(0, 0)
    first = max(0, _first_whole(timeline.log, end) - WINDOW_SLOTS_MAX)
    read_back(timeline, root)
    done = Archived(first, first)
    while done.end_slot < end:
        done = _archive_some(fileio, done, end)
    fileio.delete(unnamed_history(fileio, fileio.list_keys("history/")))
    return done


def unnamed_history(fileio: FileIO, keys: Iterable[str]) -> list[str]:
    """The history files among the keys that no slot names, or ever will. The tombstones of all their slots name others.

    An archiver leaves one when it dies before its first tombstone. The next archiver of these slots writes another. Costs a GET for each
    file that shares slots with another one, and one for each slot of those that are found.
    """
    files = sorted((int(found[1]), int(found[2]), key) for key in keys if (found := _FILE.fullmatch(key)))
    shared: set[tuple[int, int, str]] = set()
    longest = files[:1]
    for file in files[1:]:
        if file[0] <= longest[0][1]:
            shared |= {longest[0], file}
        longest = [max(longest[0], file, key=lambda one: one[1])]
    return [key for first, last, key in sorted(shared) if not _may_be_named(fileio, key, range(first, last + 1))]


def _may_be_named(fileio: FileIO, path: str, slots: range) -> bool:
    """Whether a slot names a history file, or is not archived yet, so that a running archiver may write its tombstone."""
    log, window = Log(fileio), 1
    while slots:
        for stub in map_io(fileio.env, log.read_stub, slots[:window]):
            if stub is None or stub.history is None or stub.history.file.path == path:
                return True
        slots, window = slots[window:], WINDOW_SLOTS_MAX
    return False


def tombstone_of(entry: Entry, history: HistoryRow) -> Entry:
    """The tombstone of an entry: what stays in its slot."""
    return Entry(
        format=entry.format,
        slot=entry.slot,
        action=entry.action,
        txn=entry.txn,
        base=entry.base,
        committed_at_ms=entry.committed_at_ms,
        features=entry.features,
        writer_features=entry.writer_features,
        apps=entry.apps,
        plan=entry.plan,
        rollback_of=entry.rollback_of,
        also=tuple(SharedCommit(txn=other.txn, base=other.base) for other in entry.also),
        history=history,
    )


def _first_whole(log: Log, end: int) -> int:
    """About the first slot below `end` that is not archived, by O(log n) GETs.

    Archivers go upwards in windows of slots. So tombstones and entries mix only within one window below the answer.
    """
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        stub = log.read_stub(middle)
        if stub is not None and stub.history is not None:
            low = middle + 1
        else:
            high = middle
    return low


@says_where
def read_back(timeline: Timeline[Any], root: checkpoint.Root) -> None:
    """Read every object that a checkpoint depends on. Raises CorruptTable when one is missing, CheckpointCollected when it was deleted."""
    timeline.reducer.load(root.payload)
    paths = sorted({*timeline.reducer.objects(root.payload), *(segment.path for segment in root.segments)})

    def read(path: str) -> None:
        try:
            timeline.fileio.get(path)
        except NotFound as error:
            found = checkpoint.read_root(timeline.fileio, root.slot)
            if found is None or isinstance(found.root, checkpoint.VoidRoot):
                raise CheckpointCollected(f"The checkpoint at slot {root.slot} was deleted while it was read. Use a newer one.") from error
            raise CorruptTable(
                f"The checkpoint at slot {root.slot} lacks {path}. So nothing below it was archived or redacted. "
                "Restore that object from a backup of the bucket."
            ) from error

    for begin in range(0, len(paths), WINDOW_SLOTS_MAX):
        map_io(timeline.fileio.env, read, paths[begin : begin + WINDOW_SLOTS_MAX])


def _archive_some(fileio: FileIO, done: Archived, end: int) -> Archived:
    """Archive the next slots, as many as one history file holds."""
    slots: list[_ArchivedSlot] = []
    at = done.end_slot
    while at < min(end, done.end_slot + FILE_SLOTS_MAX) and sum(len(slot.body) for slot in slots) < FILE_BYTES_MAX:
        window = range(at, min(end, done.end_slot + FILE_SLOTS_MAX, at + WINDOW_SLOTS_MAX))
        slots.extend(slot for slot in map_io(fileio.env, lambda number: _read(fileio, number), window) if slot is not None)
        at = window.stop
    if not slots:
        return Archived(done.first_slot, at, done.tombstones, done.files)
    file = _write_history(fileio, slots)
    tombstones = 0
    if file is None:
        return Archived(done.first_slot, at, done.tombstones, done.files)
    for begin in range(0, len(slots), WINDOW_SLOTS_MAX):
        rows = range(begin, min(len(slots), begin + WINDOW_SLOTS_MAX))
        tombstones += sum(map_io(fileio.env, lambda row: _bury(fileio, slots[row], HistoryRow(file, row)), rows))
    if tombstones == 0:
        fileio.delete([file.path])  # Another archiver was faster at every slot, so nothing names this file.
        return Archived(done.first_slot, at, done.tombstones, done.files)
    return Archived(done.first_slot, at, done.tombstones + tombstones, (*done.files, file.path))


def _read(fileio: FileIO, number: int) -> _ArchivedSlot | None:
    """A slot as it is. None when it is a tombstone."""
    key = log_key(number)
    try:
        result = fileio.get(key)
    except NotFound as error:
        raise CorruptTable(f"{key} is missing although later slots exist. {RESTORE}") from error
    assert isinstance(result, GetResult)
    entry = decode_entry(result.data, key=key)
    return None if entry.history is not None else _ArchivedSlot(entry, result.data, result.meta.version)


def _write_history(fileio: FileIO, slots: Sequence[_ArchivedSlot]) -> SideObject | None:
    """A history file of some slots, read back, as it becomes the only place of the whole entries.

    None when another archiver has archived all these slots meanwhile, and has deleted this file.
    """
    from objcat.timeline.history_files import decode_history, encode_history

    entries = [slot.entry for slot in slots]
    data = encode_history([slot.body for slot in slots], entries)
    path = f"history/{entries[0].slot:020d}-{entries[-1].slot:020d}-{fileio.env.new_id()}.parquet"
    require_written(fileio.put(path, data, Create()), path)
    file = side_object(path, data)
    try:
        found = read_intact(fileio, path, file.sha256, named_by="archiving")
    except NotFound:
        if all(_read(fileio, slot.entry.slot) is None for slot in slots):
            return None
        raise
    if decode_history(found, path=path) != entries:
        raise CorruptTable(
            f"{path} does not read back as it was written. Nothing was archived. Report this as a bug in objcat or in pyarrow."
        )
    return file


def _bury(fileio: FileIO, slot: _ArchivedSlot, row: HistoryRow) -> bool:
    """Put a tombstone in a slot. Returns whether it is ours; another archiver's is as good."""
    key = log_key(slot.entry.slot)
    match fileio.put(key, encode_entry(tombstone_of(slot.entry, row)), Update(slot.version)):
        case Written():
            return True
        case OutcomeUnknown(cause):
            raise cause
        case PreconditionFailed():
            found = Log(fileio).read_stub(slot.entry.slot)
            if found is None or found.history is None or found.txn != slot.entry.txn:
                raise CorruptTable(f"{key} was changed by something else than an archiver. {RESTORE}")
            return found.history == row
