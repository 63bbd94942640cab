"""Redaction: remove erased values from existing entries. Everybody can still read the log.

A slot is never deleted, and never changes whose it is. But a tombstone names a history file for the rest. So the entries below the erasure
go to new history files without the erased values, and their slots name these. An old history file is deleted once no slot names it. Readers
that know nothing of erasures find ordinary tombstones.

Where whole partitions are removed, an entry cannot be replayed upon an earlier state. A reader that begins at the table's creation can
replay it if the creation says that it was redacted too. So that slot comes last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fileio.contract import Create, GetResult, OutcomeUnknown, PreconditionFailed, Update, Version, Written, require_written
from fileio.env import map_io
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.errors import Contention, CorruptTable
from objcat.timeline.archive import FILE_BYTES_MAX, FILE_SLOTS_MAX, tombstone_of
from objcat.timeline.entry import Action, Entry, HistoryRow, SideObject, Txn, decode_entry, encode_entry, log_key
from objcat.timeline.json_objects import RESTORE
from objcat.timeline.log import WINDOW_SLOTS_MAX, with_changes
from objcat.timeline.side_objects import get_side, read_intact, side_object, sides_of

ATTEMPTS_MAX = 10
"""Passes over the log. Each pass repeats what another process prevented in the pass before."""
SUFFIX = ".erased.parquet"
"""The name of a history file that an erasure wrote.

An archiver must not take it for its own: it may delete its own files while no slot names them yet.
"""
_FILE = re.compile(r"history/(\d{20})-(\d{20})-[0-9a-f]+(\.erased)?\.parquet")
_PLAN = "history/erasing-"
_SIDE = re.compile(r"data/([^/]+)/(changes\.json|keys|position\.json)-[^/]+")


@dataclass(frozen=True, slots=True)
class Redacted:
    """The result of a redaction.

    Args:
        slots: How many slots it changed.
        files: History files that it wrote.
        deleted: Objects that nothing names any more.
    """

    slots: int
    files: tuple[str, ...]
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _RedactedSlot:
    """The object of a slot as it was read. body: its bytes."""

    stub: Entry
    body: bytes
    version: Version

    @property
    def path(self) -> str | None:
        """The history file that holds its entry."""
        return None if self.stub.history is None else self.stub.history.file.path


@dataclass(slots=True)
class _Pass:
    """One pass over the log.

    Args:
        ids: Erasures that removed partitions from entries of the table.
        sides: Side objects that entries name now.
    """

    ids: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    sides: set[str] = field(default_factory=set)
    slots: int = 0
    lost: int = 0
    files: list[str] = field(default_factory=list)
    creation: tuple[_RedactedSlot, Entry] | None = None


class Erasing(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a redaction that removes partitions from the log, while it is under way. The next erasure continues it.

    Halfway through, the log can only be replayed from the newest checkpoint. So nobody could say any more which partitions were to stay.

    Args:
        id: Of the erasure.
        end: Slots below it are redacted.
        live: Partitions that stay.
    """

    id: str
    table: str
    end: int
    live: tuple[str, ...]


_PLANS = msgspec.json.Decoder(Erasing)


def leave(fileio: FileIO, plan: Erasing) -> None:
    """Store a plan before any of it is carried out."""
    key = _plan_key(plan)
    require_written(fileio.put(key, msgspec.json.encode(plan), Create()), key)


def pending(fileio: FileIO, table: str) -> list[Erasing]:
    """The unfinished plans for a table. Raises CorruptTable."""
    found = []
    for key in fileio.list_keys("history/"):
        if not key.startswith(_PLAN):
            continue
        try:
            plan = _PLANS.decode(fileio.read(key))
        except NotFound:
            continue
        except msgspec.DecodeError as error:
            raise CorruptTable(f"{key} is not the plan of an erasure ({error}). {RESTORE}") from error
        if plan.table == table:
            found.append(plan)
    return found


def settle(fileio: FileIO, plan: Erasing) -> None:
    """Delete a plan that was carried out. A plan that was never stored is no error."""
    for result in fileio.delete([_plan_key(plan)]):
        if result.error is not None:
            raise result.error


def _plan_key(plan: Erasing) -> str:
    return f"{_PLAN}{plan.id}.json"


def redact(fileio: FileIO, table: str, of: Callable[[Entry], Entry], *, end: int) -> Redacted:
    """Replace each entry below `end` by what `of` makes of it, and delete what held the old ones.

    The slots below `end` must no longer be readable for the table, and files of readable slots must stay named. Safe while writers,
    readers, archivers and other redactions run. If it is interrupted, the next one finishes it.

    Args:
        of: A pure function. It returns an entry unchanged if nothing has to go. It sees changes inline.

    Raises:
        Contention, CorruptTable, FileIOError: Erase again.
    """
    slots = 0
    files: list[str] = []
    for _ in range(ATTEMPTS_MAX):
        listed = list(fileio.list_keys("history/"))
        places = _read_slots(fileio, range(end))
        done = _Pass()
        _go_over(fileio, table, lambda entry: of(entry) if entry.slot < end else entry, done, places, listed)
        _tell_creation(fileio, table, done)
        slots, files = slots + done.slots, [*files, *done.files]
        if not done.lost:
            return Redacted(slots, tuple(files), _delete_rest(fileio, done, listed, places))
    raise Contention(
        f"Others change the slots of {fileio.url} as fast as they are redacted. The erasure is not finished. Erase again.", winner_slot=end
    )


def _read_slots(fileio: FileIO, slots: Sequence[int]) -> dict[int, _RedactedSlot]:
    def read(slot: int) -> _RedactedSlot:
        key = log_key(slot)
        result = fileio.get(key)
        assert isinstance(result, GetResult)
        return _RedactedSlot(decode_entry(result.data, key=key), result.data, result.meta.version)

    found: dict[int, _RedactedSlot] = {}
    for begin in range(0, len(slots), WINDOW_SLOTS_MAX):
        window = slots[begin : begin + WINDOW_SLOTS_MAX]
        found |= dict(zip(window, map_io(fileio.env, read, window), strict=True))
    return found


def _go_over(
    fileio: FileIO, table: str, of: Callable[[Entry], Entry], done: _Pass, places: dict[int, _RedactedSlot], listed: Sequence[str]
) -> None:
    """Redact all slots except that of the table's creation, the newest first."""
    named = {place.path for place in places.values()}
    touched = _overlapped(fileio, places, [path for path in listed if path not in named])
    for path, group in _grouped(places):
        bodies = _bodies(fileio, path, group)
        if bodies is None:
            done.lost += len(group)
            continue
        # A deleted file affects all of its slots, also those above the erasure.
        whole = group if path is None else _whole_group(fileio, path, bodies, places)
        _redact_group(fileio, table, of, done, whole, bodies, is_due=path is None or any(place.stub.slot in touched for place in whole))


def _redact_group(
    fileio: FileIO,
    table: str,
    of: Callable[[Entry], Entry],
    done: _Pass,
    group: Sequence[_RedactedSlot],
    bodies: Mapping[int, bytes],
    *,
    is_due: bool,
) -> None:
    """Redact the slots of one history file, or some that are in none. is_due: whether they move whatever their entries hold."""
    before = [decode_entry(bodies[place.stub.slot], key=log_key(place.stub.slot)) for place in group]
    pairs = list(zip(group, before, map(of, with_changes(fileio, before)), strict=True))
    moving, rows = [], []
    for place, old, new in pairs:
        done.ids.update(new.erased.get(table, ()))
        is_same = _bare(new) == _bare(old)
        if new.action is Action.CREATE and table in new.footprint:
            done.creation = place, old if is_same else new
        else:
            moving.append(place)
            rows.append(bodies[place.stub.slot] if is_same else encode_entry(new))
        is_due |= not is_same
        done.sides.update(side.path for side in sides_of(old if is_same else new))
    if is_due and moving:
        _move(fileio, done, moving, rows)
    elif not is_due:
        done.named.update(place.path for place in group if place.path is not None)


def _bare(entry: Entry) -> Entry:
    """An entry as its slot holds it when its changes are in a side object."""
    return entry if entry.side is None else msgspec.structs.replace(entry, changes={})


def _tell_creation(fileio: FileIO, table: str, done: _Pass) -> None:
    """Once all other slots are done, make the creation of the table name the same erasures."""
    if done.creation is None or done.lost:
        return
    place, entry = done.creation
    ids = tuple(sorted(done.ids))
    if place.path in done.named and entry.erased.get(table, ()) == ids:
        return
    told = entry if not ids else msgspec.structs.replace(entry, erased={**entry.erased, table: ids})
    _move(fileio, done, [place], [encode_entry(_bare(told))])


def _grouped(places: Mapping[int, _RedactedSlot]) -> Iterator[tuple[str | None, list[_RedactedSlot]]]:
    """The slots by the history file that they name, the newest first. Those without one are in groups of the size of one file."""
    by_path: dict[str, list[_RedactedSlot]] = {}
    bare: list[_RedactedSlot] = []
    for slot in sorted(places, reverse=True):
        place = places[slot]
        if place.path is not None:
            by_path.setdefault(place.path, []).append(place)
            continue
        if bare and (len(bare) == FILE_SLOTS_MAX or sum(len(one.body) for one in bare) > FILE_BYTES_MAX):
            yield None, bare[::-1]
            bare = []
        bare.append(place)
    if bare:
        yield None, bare[::-1]
    yield from by_path.items()


def _bodies(fileio: FileIO, path: str | None, group: Sequence[_RedactedSlot]) -> dict[int, bytes] | None:
    """The entries of some slots as bytes. None when another redaction has replaced their history file."""
    from objcat.timeline.history_files import decode_bodies

    if path is None:
        return {place.stub.slot: place.body for place in group}
    history = group[0].stub.history
    assert history is not None
    try:
        return dict(decode_bodies(get_side(fileio, history.file), path=path))
    except CorruptTable:
        if all(again.path == path for again in _read_slots(fileio, [place.stub.slot for place in group]).values()):
            raise
        return None


def _whole_group(fileio: FileIO, path: str, slots: Iterable[int], places: dict[int, _RedactedSlot]) -> list[_RedactedSlot]:
    """All slots that name a history file, of those whose entries it holds."""
    beyond = [slot for slot in sorted(slots) if slot not in places]
    found = {**places, **_read_slots(fileio, beyond)}
    return [found[slot] for slot in sorted(slots) if found[slot].path == path]


def _overlapped(fileio: FileIO, places: dict[int, _RedactedSlot], unnamed: Sequence[str]) -> Collection[int]:
    """The slots of history files that no slot names yet: their writer is at work, or dead.

    Once these slots have changed, that writer can no longer change them. Those above the erasure are read into `places`.
    """
    touched: set[int] = set()
    for path in unnamed:
        found = _FILE.fullmatch(path)
        if found is not None and int(found[1]) in places:
            covered = range(int(found[1]), int(found[2]) + 1)
            places |= _read_slots(fileio, [slot for slot in covered if slot not in places])
            touched.update(covered)
    return touched


def _move(fileio: FileIO, done: _Pass, group: Sequence[_RedactedSlot], rows: Sequence[bytes]) -> None:
    """Write a history file of some entries, and make their slots name it."""
    file = _write(fileio, group, rows)

    def bury(row: int) -> bool:
        place = group[row]
        tombstone = encode_entry(tombstone_of(place.stub, HistoryRow(file, row)))
        match fileio.put(log_key(place.stub.slot), tombstone, Update(place.version)):
            case Written():
                return True
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                return False

    for begin in range(0, len(group), WINDOW_SLOTS_MAX):
        window = range(begin, min(len(group), begin + WINDOW_SLOTS_MAX))
        buried = sum(map_io(fileio.env, bury, window))
        done.slots += buried
        done.lost += len(window) - buried
    done.named.add(file.path)
    done.files.append(file.path)


def _write(fileio: FileIO, group: Sequence[_RedactedSlot], rows: Sequence[bytes]) -> SideObject:
    """A history file, read back, as it becomes the only place of its entries."""
    from objcat.timeline.history_files import decode_bodies, encode_history

    slots = [place.stub.slot for place in group]
    data = encode_history(rows, [place.stub for place in group])
    path = f"history/{slots[0]:020d}-{slots[-1]:020d}-{fileio.env.new_id()}{SUFFIX}"
    require_written(fileio.put(path, data, Create()), path)
    file = side_object(path, data)
    if decode_bodies(read_intact(fileio, path, file.sha256, named_by="erasure"), path=path) != list(zip(slots, rows, strict=True)):
        raise CorruptTable(
            f"{path} does not read back as it was written. Nothing was redacted. Report this as a bug in objcat or in pyarrow."
        )
    return file


def _delete_rest(fileio: FileIO, done: _Pass, listed: Collection[str], places: Mapping[int, _RedactedSlot]) -> tuple[str, ...]:
    """Delete history files and side objects that nothing names any more. Objects written since the listing are left alone."""
    rest = [path for path in listed if _FILE.fullmatch(path) and path not in done.named]
    rest = [path for path in rest if int(path.split("/")[1].split("-")[0]) in places]
    txns = {txn for place in places.values() for txn in place.stub.txns}
    for key in fileio.list_keys("data/"):
        found = _SIDE.fullmatch(key)
        if found is not None and Txn(found[1]) in txns and key not in done.sides:
            rest.append(key)
    for result in fileio.delete(rest) if rest else ():
        if result.error is not None:
            raise result.error
    return tuple(rest)
