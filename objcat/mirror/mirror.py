"""Mirrors of a table: they follow its log, slot by slot.

`TableMirrors.catch_up` goes from the newest mirrored slot to the newest slot of the log. Any process may call it, at any time: a slot of a
mirror is put if absent, so two that race agree, and one that dies halfway leaves nothing that a reader takes for a state.
A mirror holds nothing that the log does not say. One that is lost is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from fileio.errors import FileIOError
from objcat.errors import CheckpointCollected, CorruptTable, ObjcatError
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import MIRROR_ICEBERG_VERSION, MIRROR_MODE, READ_OPTIMIZED, mirrors_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.mirror.changes import ChangeReader
from objcat.mirror.formats import PREFIXES, folder_of, formats_of, remove_mirror
from objcat.mirror.model import (
    CorruptMirror,
    MirrorChange,
    MirroredSlot,
    MirrorFolder,
    MirrorFormat,
    MirrorHeld,
    MirrorNotRestarted,
    MirrorSlotTaken,
)
from objcat.timeline.checkpoint import TAIL_SLOTS_MAX
from objcat.timeline.entry import Entry
from objcat.timeline.log import with_changes
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

READ_AT_ONCE = 64
"""Entries that are read ahead while a mirror catches up."""
REMEMBERED = 8
"""Changes of the newest slots that are computed once for all mirrors of a table."""
RESTARTS_MAX = 3
"""How often a round tries to begin a mirror again at one slot. Each time it computes the whole table."""
HELD_SLOTS = 8
"""A mirror that is held looks once in so many slots whether it can begin again: that computes the whole table."""
RACES_MAX = 1000
"""How often one call gives way to other processes that mirror the same slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """Where a mirror is after a round.

    Attributes:
        format: `iceberg` or `delta`.
        slot: the newest mirrored slot; -1 when there is none.
        lag: how many slots of the log follow it.
        written: slots that this round mirrored.
        held: why the mirror cannot go on, empty if it can.
    """

    format: str
    slot: int
    lag: int
    written: int = 0
    held: str = ""


class _SettingsChanged(Exception):
    """The table had no such mirror at a slot on the way, or one of other rows. It begins again."""


class TableMirrors:
    """The mirrors of one table. It remembers what it has read and written, so that the next slot costs little. For one thread at a time.

    Args:
        timeline: of the table's log.
        table: its id.
        name: its name, for errors and for metadata.
        manifests: a cache of the manifests of this log.
        elsewhere: where to write mirrors, whatever the table says, and the properties that count there. None: as the table says.
    """

    def __init__(
        self,
        timeline: Timeline[Tables],
        table: str,
        name: str,
        manifests: Manifests,
        *,
        elsewhere: tuple[MirrorFolder, Mapping[str, str]] | None = None,
    ) -> None:
        self._timeline = timeline
        self._elsewhere = elsewhere
        self._table = table
        self._name = name
        self._manifests = manifests
        self._head: LogView[Tables] | None = None
        self._view: LogView[Tables] | None = None
        self._settings: tuple[str, ...] | None = None
        self._is_read_optimized = False
        self._formats: tuple[MirrorFormat, ...] = ()
        self._changes = ChangeReader(timeline, table, manifests)
        self._computed: dict[int, tuple[MirrorChange, bool]] = {}
        self._tried_again: dict[str, int] = {}

    def catch_up(self, view: LogView[Tables] | None = None) -> tuple[MirrorReport, ...]:
        """Mirror every slot that is not mirrored yet. Returns a report for each format that the property `mirrors` names.

        Args:
            view: the newest view, if the caller has it. None: it is read.

        Raises:
            ObjcatError, FileIOError: of a mirror that failed. The other ones have caught up. Slots that were mirrored stay.
        """
        if view is None:
            view = self._timeline.open() if self._head is None else self._timeline.refresh(self._head)
        self._head = head = view
        reports, errors = [], []
        for form in self._formats_at(head):
            try:
                reports.append(self._follow(form, head))
            except (ObjcatError, FileIOError) as error:
                logger.warning("The %s mirror of %s at %s failed: %s", form.format, self._name, self._timeline.fileio.url, error)
                errors.append(error)
        if errors:
            raise errors[0]
        return tuple(reports)

    def start_over(self, view: LogView[Tables]) -> int:
        """Make each mirror again from the table as it is at a slot, and delete what it held of unreadable slots. Returns how many objects.

        For erasures: earlier metadata holds bounds and positions of rows that are gone.

        Raises:
            MirrorNotRestarted: Another process has mirrored this slot already, upon earlier metadata. Call it again at a later slot.
        """
        deleted, bound = 0, view.log.marks(self._table).bound
        for form in self._formats_at(view):
            for _ in range(RACES_MAX):
                newest = _newest(form)
                if newest is None or newest.slot < view.slot:
                    try:
                        form.write(self.state_at(view))
                    except MirrorSlotTaken:
                        continue
                break
            try:
                deleted += form.forget_before(view.slot)
            except MirrorNotRestarted:
                # Another process may have mirrored this slot, after a restart of its own.
                deleted += form.forget_before(min(bound, view.slot))
        return deleted

    def remove_unnamed(self, view: LogView[Tables]) -> int:
        """Delete the mirrors that the properties of the table do not name. Returns how many objects. Raises storage errors."""
        wanted = mirrors_of(view.state[self._table].spec.properties)
        folder = folder_of(self._timeline, self._table, self._name)
        return sum(remove_mirror(folder, name, slot=view.slot) for name in PREFIXES if name not in wanted)

    def newest(self, view: LogView[Tables]) -> dict[str, MirroredSlot | None]:
        """The newest slot of each mirror. Raises as `MirrorFormat.newest`, except that an unreadable mirror counts as none."""
        return {form.format: _newest(form) for form in self._formats_at(view)}

    def formats(self, view: LogView[Tables]) -> tuple[MirrorFormat, ...]:
        """The mirrors that the properties of the table name at a view."""
        return self._formats_at(view)

    def state_at(self, view: LogView[Tables]) -> MirrorChange:
        """The table at a view, as a change that begins a mirror: all files with their masked rows. Raises as `ChangeReader.next`."""
        self._formats_at(view)
        return self._changes.whole(view, self._timeline.log.read_known(view.slot))

    # ---- how

    def _formats_at(self, view: LogView[Tables]) -> tuple[MirrorFormat, ...]:
        properties = self._properties_of(view.state[self._table].spec)
        settings = (*mirrors_of(properties), str(properties.get(MIRROR_MODE)), str(properties.get(MIRROR_ICEBERG_VERSION)))
        if settings != self._settings:
            is_read_optimized = properties.get(MIRROR_MODE) == READ_OPTIMIZED
            elsewhere = self._elsewhere
            folder = folder_of(self._timeline, self._table, self._name) if elsewhere is None else elsewhere[0]
            self._formats = formats_of(properties, folder)
            self._changes = ChangeReader(self._timeline, self._table, self._manifests, read_optimized=is_read_optimized)
            self._settings, self._view, self._computed, self._is_read_optimized = settings, None, {}, is_read_optimized
        return self._formats

    def _properties_of(self, spec: TableSpec) -> Mapping[str, str]:
        """The properties that say which mirrors there are."""
        return spec.properties if self._elsewhere is None else self._elsewhere[1]

    def _follow(self, form: MirrorFormat, head: LogView[Tables]) -> MirrorReport:
        """Bring one mirror up to a view."""
        written = began = 0
        for _ in range(RACES_MAX):
            newest = _newest(form)
            try:
                if newest is None or not self._can_follow(newest, head):
                    began += 1
                    if began > RESTARTS_MAX:
                        raise CorruptMirror(
                            f"The {form.format} mirror of {self._name} has a damaged slot {head.slot}, and cannot begin again there. "
                            "Nothing was changed. It begins again after the next commit."
                        )
                    if newest is not None and newest.slot >= head.slot:
                        break
                    form.write(self.state_at(head))
                    written += 1
                else:
                    written += self._walk(form, newest, head)
                break
            except _SettingsChanged:
                try:
                    form.write(self.state_at(head))
                    written += 1
                    break
                except MirrorSlotTaken:
                    continue
            except MirrorSlotTaken:
                continue
            except MirrorHeld as held:
                if self._begins_again(form, newest, head):
                    written += 1
                    break
                at = form.newest()
                slot = -1 if at is None else at.slot
                return MirrorReport(format=form.format, slot=slot, lag=head.slot - slot, written=written, held=str(held))
            except (CorruptTable, CheckpointCollected):
                # Files may have been cleaned while they were read.
                head = self._timeline.refresh(head)
                if newest is None or newest.slot + 1 >= head.log.marks(self._table).bound:
                    raise
        at = form.newest()
        slot = -1 if at is None else at.slot
        return MirrorReport(format=form.format, slot=slot, lag=max(0, head.slot - slot), written=written)

    def _begins_again(self, form: MirrorFormat, newest: MirroredSlot | None, head: LogView[Tables]) -> bool:
        """Whether a mirror that is held could begin again at the newest slot, since what held it is gone. Tried once in some slots."""
        if newest is None or head.slot < self._tried_again.get(form.format, -HELD_SLOTS) + HELD_SLOTS:
            return False
        self._tried_again[form.format] = head.slot
        try:
            form.write(self.state_at(head))
        except (MirrorHeld, MirrorSlotTaken):
            return False
        return True

    def _can_follow(self, newest: MirroredSlot, head: LogView[Tables]) -> bool:
        """Whether a mirror can go on slot by slot: the next slots are readable, and it is of this log."""
        if newest.slot >= head.slot:
            return newest.slot > head.slot or newest.txn == self._txn_at(head.slot)
        if newest.slot < head.log.marks(self._table).bound:
            # Files of its slot may be gone. After an erasure nothing may build on what was mirrored before.
            return False
        return newest.txn == self._txn_at(newest.slot)

    def _txn_at(self, slot: int) -> str:
        known = self._view
        if known is not None and known.tail and known.tail[-1].slot == slot:
            return known.tail[-1].txn
        return self._timeline.log.read_known(slot).txn

    def _walk(self, form: MirrorFormat, newest: MirroredSlot, head: LogView[Tables]) -> int:
        """Mirror the slots after one, up to a view. Returns how many."""
        written, slot = 0, newest.slot
        last = self._last_of_table(slot, head)
        while slot < last:
            until = min(last, slot + READ_AT_ONCE)
            found = self._timeline.log.read_after(slot, until=until, window=until - slot)
            for entry in with_changes(self._timeline.fileio, found):
                change, shows_the_same = self._change_of(entry)
                if not shows_the_same or form.format not in mirrors_of(self._properties_of(change.spec)):
                    raise _SettingsChanged
                form.write(change)
                written += 1
            slot = until
        return written

    def _change_of(self, entry: Entry) -> tuple[MirrorChange, bool]:
        """What an entry changes, and whether mirrors show the same rows before and after it as now. The newest ones are remembered."""
        known = self._computed.get(entry.slot)
        if known is not None and known[0].txn == entry.txn:
            return known
        before = self._at(entry.slot - 1)
        after = self._timeline.advance(before, [entry])
        specs = (view.state[self._table].spec for view in (before, after))
        modes = {self._properties_of(spec).get(MIRROR_MODE) == READ_OPTIMIZED for spec in specs}
        found = self._changes.next(before, entry, after), modes == {self._is_read_optimized}
        self._view = after
        self._computed = {slot: one for slot, one in self._computed.items() if slot > entry.slot - REMEMBERED} | {entry.slot: found}
        return found

    def _last_of_table(self, slot: int, head: LogView[Tables]) -> int:
        """The newest slot up to a view that concerns the table. Only where tables share a log may that be an earlier one."""
        if len(head.state) <= 1:
            return head.slot
        for entry in reversed(head.tail):
            if entry.slot <= slot or self._concerns(entry):
                return max(slot, entry.slot)
        return head.slot

    def _concerns(self, entry: Entry) -> bool:
        return self._table in entry.footprint or self._table in entry.changes

    def _at(self, slot: int) -> LogView[Tables]:
        """The view of a slot. It stands on a checkpoint that is not far below."""
        known = self._view
        if known is not None and known.slot == slot and known.slot - known.checkpoint <= 2 * TAIL_SLOTS_MAX:
            return known
        return self._timeline.at(slot)


def _newest(form: MirrorFormat) -> MirroredSlot | None:
    """The newest slot of a mirror, None if there is none that can be read."""
    try:
        return form.newest()
    except CorruptMirror as error:
        logger.warning("A %s mirror is made again: %s", form.format, error)
        return None
