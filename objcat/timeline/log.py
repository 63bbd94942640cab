"""Read the log: slots are dense and immutable, so the first missing slot is above the head."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fileio.contract import GetResult
from fileio.env import map_io
from fileio.errors import BucketNotFound, NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.timeline.entry import Entry, SideObject, decode_entry, log_key
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import RESTORE, decode_json
from objcat.timeline.side_objects import get_side

# As in `objcat.timeline.entry`: types must be known before threads meet them.
_CHANGES = msgspec.json.Decoder(dict[str, msgspec.Raw])
WINDOW_SLOTS_MAX = 32
REREADS_MAX = 5
LOOK_BEYOND_S = 60.0
"""Seconds. Who has not heard of the log for so long looks behind its end, whether it goes on there."""


class Log:
    """The slots of one log. Holds no state: every call asks the store."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio

    @says_where
    def read_slot(self, slot: int) -> Entry | None:
        """The entry of a slot, None when nothing is there (yet). One GET; two for an archived slot."""
        stub = self.read_stub(slot)
        return None if stub is None else self._whole(stub, {})

    @says_where
    def read_known(self, slot: int) -> Entry:
        """The entry of a slot that is known to be taken: a 404 is asked again. Raises CorruptTable when nothing is there."""
        return self._whole(self._insist(slot, self.read_stub(slot)), {})

    @says_where
    def read_stub(self, slot: int) -> Entry | None:
        """What the slot's own object says. For an archived slot this is less than the whole entry. One GET."""
        key = log_key(slot)
        try:
            result = self._fileio.get(key)
        except BucketNotFound:
            # This is no empty log: the URL is wrong.
            raise
        except NotFound:
            return None
        assert isinstance(result, GetResult)
        return _stub_of(slot, result)

    @says_where
    def read_after(
        self,
        slot: int,
        *,
        until: int | None = None,
        window: int = 1,
        expected: int = 0,
        first: GetResult | None = None,
        looks_beyond: bool = False,
        stubs: Sequence[Entry | None] = (),
    ) -> list[Entry]:
        """Every entry above `slot` up to the head, in order, without a gap.

        Archived entries come whole, one history file at a time.

        Args:
            until: The last slot to read, inclusive. None: the head.
            window: Slots requested at once at the start. It doubles up to `WINDOW_SLOTS_MAX`. With 1, a refresh without news is one GET.
            expected: How many more slots are likely to be there. They are requested at once too.
            first: The object of the first slot, if it is known already.
            looks_beyond: Ask for the slot above the first absent one too, if no later one was asked for. It shows whether a slot was
                deleted by hand.
            stubs: What `read_stub` has just said of the first slots. They are not asked for again.
        """
        archived: dict[int, Entry] = {}
        entries = [] if first is None else [self._whole(_stub_of(slot + 1, first), archived)]
        size, window = min(WINDOW_SLOTS_MAX, window + expected), window if expected else window * 2
        while until is None or slot + len(entries) < until:
            begin = slot + len(entries) + 1
            if begin in archived:
                entries.append(archived.pop(begin))
                continue
            end = begin + size if until is None else min(until + 1, begin + size)
            if stubs:
                asked, end, stubs = list(stubs), begin + len(stubs), ()
            else:
                asked = map_io(self._fileio.env, self.read_stub, range(begin, end))
            if looks_beyond and asked[-1] is None and None not in asked[:-1]:
                asked.append(self.read_stub(end))
            found = self._fill_gaps(begin, asked)
            entries.extend(self._whole(stub, archived) for stub in found)
            if len(found) < len(asked):
                return entries
            size, window = min(WINDOW_SLOTS_MAX, window), window * 2
        return entries

    @says_where
    def check_end(self, slot: int) -> None:
        """Check that the log does not go on behind an absent slot. slot: the last one that is known. One request.

        Raises CorruptTable.
        """
        if self._fileio.exists(log_key(slot + 2)):
            self._insist(slot + 1, None)

    def read_base(self, slot: int, *, is_old: bool) -> Entry | None:
        """What the object of the last known slot says, before a write. is_old: whether to `check_end` too, whose errors it raises."""
        found = self.read_stub(slot)
        if is_old and found is not None:
            self.check_end(slot)
        return found

    def _whole(self, stub: Entry, archived: dict[int, Entry]) -> Entry:
        """The whole entry of a slot. archived: entries of history files read so far; a newly read file is added."""
        for _ in range(REREADS_MAX):
            if stub.history is None:
                return stub
            if stub.slot in archived:
                break
            try:
                archived |= self._history(stub.history.file)
            except CorruptTable:
                # An erasure replaces a history file by another one, and deletes the old one.
                again = self._insist(stub.slot, self.read_stub(stub.slot))
                if again.history == stub.history:
                    raise
                stub = again
        entry = archived.pop(stub.slot, None)
        if entry is None or entry.txn != stub.txn:
            named = "its history file" if stub.history is None else stub.history.file.path
            raise CorruptTable(
                f"{log_key(stub.slot)} says that {named} holds its entry, but it does not. Restore both from one backup of the bucket."
            )
        return entry

    def _history(self, file: SideObject) -> dict[int, Entry]:
        """The entries of a history file by slot. Raises CorruptTable."""
        from objcat.timeline.history_files import decode_history

        return {entry.slot: entry for entry in decode_history(get_side(self._fileio, file), path=file.path)}

    def _fill_gaps(self, first: int, found: list[Entry | None]) -> list[Entry]:
        """The entries up to the first slot that is truly absent. A 404 below a slot that was seen is asked again: that slot must exist."""
        seen = max((i for i, entry in enumerate(found) if entry is not None), default=-1)
        return [self._insist(first + i, found[i]) for i in range(seen + 1)]

    def _insist(self, slot: int, found: Entry | None) -> Entry:
        """The entry of a slot that must exist: the one that was found, or the answer when it is asked again."""
        for _ in range(REREADS_MAX):
            found = found or self.read_stub(slot)
        if found is None:
            raise CorruptTable(absent_slot(slot))
        return found


def absent_slot(slot: int) -> str:
    """What to say of a slot that is absent below another one."""
    return f"{log_key(slot)} is missing although later slots exist. {RESTORE}"


def _stub_of(slot: int, found: GetResult) -> Entry:
    """The entry in the object of a slot. Raises CorruptTable when it belongs to another slot."""
    key = log_key(slot)
    entry = decode_entry(found.data, key=key)
    if entry.slot != slot:
        raise CorruptTable(f"{key} holds the entry of slot {entry.slot}. {RESTORE}")
    return entry


@says_where
def with_changes(fileio: FileIO, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with their changes. One GET, in parallel, for each entry that has them in a side object.

    If an erasure has removed the side object, the entry is read again from its slot.
    """

    def fill(entry: Entry) -> Entry:
        if entry.side is None or entry.changes:
            return entry
        try:
            data = get_side(fileio, entry.side)
        except CorruptTable as error:
            again = Log(fileio).read_known(entry.slot)
            if again.side == entry.side:
                raise CorruptTable(f"{log_key(entry.slot)} names an object that cannot be read. {error}") from error
            return fill(again)
        changes = decode_json(data, _CHANGES, where=entry.side.path, what=f"the changes of slot {entry.slot}")
        return msgspec.structs.replace(entry, changes=changes)

    if not any(entry.side is not None for entry in entries):
        return list(entries)
    return map_io(fileio.env, fill, entries)
