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
"""How much is remembered of the newest slots: their changes are computed once for all mirrors of a table."""
RESTARTS_MAX = 3
"""How often a round tries to begin a mirror again at one slot. Each time it computes the whole table."""
HELD_SLOTS = 8
"""A mirror that is held looks once in so many slots whether it can begin again: that computes the whole table."""
RACES_MAX = 1000
"""How often one call gives way to other processes that mirror the same slots."""
SKIPPED_SLOTS_MAX = 256
"""How many slots of other tables, in the same log, a mirror leaves out before it shows one. So it never falls far behind the log."""
LOOKED_BACK_SLOTS = 4 * SKIPPED_SLOTS_MAX
"""Entries that are read to see whether a table changed at all since its newest mirrored slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """Where a mirror is after a round.

    Attributes:
        format: `iceberg` or `delta`.
        slot: the newest mirrored slot; -1 when there is none.
        lag: how many slots of the log it lacks, up to the newest one that concerns the table. 0: there is nothing to do.
        written: slots that this round mirrored.
        held: why the mirror cannot go on, empty if it can.
    """

    format: str
    slot: int
    lag: int
    written: int = 0
    held: str = ""


class _WasOff(Exception):
    """The table had no such mirror at a slot on the way. It begins again."""


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
        self._formats: tuple[MirrorFormat, ...] = ()
        self._readers: dict[bool, ChangeReader] = {}
        self._computed: dict[int, MirrorChange] = {}
        self._tried_again: dict[str, int] = {}
        self._unchanged: dict[int, int] = {}

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

    def lags(self, view: LogView[Tables]) -> dict[str, int]:
        """By format, how many slots a mirror lacks, see `MirrorReport.lag`. Raises as `newest`."""
        return {name: self.lag(-1 if newest is None else newest.slot, view) for name, newest in self.newest(view).items()}

    def lag(self, slot: int, view: LogView[Tables]) -> int:
        """How many slots a mirror lacks whose newest one is `slot`, -1 for none. See `MirrorReport.lag`."""
        last = self._last_of_table(slot, view)
        return 0 if last <= slot or self._is_unchanged(slot, last, view) else last - slot

    def state_at(self, view: LogView[Tables]) -> MirrorChange:
        """The table at a view, as a change that begins a mirror: all files with their masked rows. Raises as `ChangeReader.next`."""
        return self._reader_at(view).whole(view, self._timeline.log.read_known(view.slot))

    # ---- how

    def _formats_at(self, view: LogView[Tables]) -> tuple[MirrorFormat, ...]:
        properties = self._properties_of(view.state[self._table].spec)
        settings = (*mirrors_of(properties), str(properties.get(MIRROR_ICEBERG_VERSION)))
        if settings != self._settings:
            elsewhere = self._elsewhere
            folder = folder_of(self._timeline, self._table, self._name) if elsewhere is None else elsewhere[0]
            self._formats = formats_of(properties, folder)
            self._settings = settings
        return self._formats

    def _properties_of(self, spec: TableSpec) -> Mapping[str, str]:
        """The properties that say which mirrors there are."""
        return spec.properties if self._elsewhere is None else self._elsewhere[1]

    def _reader_at(self, view: LogView[Tables]) -> ChangeReader:
        """What computes changes for the rows that mirrors show at a view, by the property `mirror_mode`."""
        is_read_optimized = self._properties_of(view.state[self._table].spec).get(MIRROR_MODE) == READ_OPTIMIZED
        if is_read_optimized not in self._readers:
            made = ChangeReader(self._timeline, self._table, self._manifests, read_optimized=is_read_optimized)
            self._readers[is_read_optimized] = made
        return self._readers[is_read_optimized]

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
            except _WasOff:
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
                return MirrorReport(format=form.format, slot=slot, lag=self.lag(slot, head), written=written, held=str(held))
            except (CorruptTable, CheckpointCollected):
                # Files may have been cleaned while they were read.
                head = self._timeline.refresh(head)
                if newest is None or newest.slot + 1 >= head.log.marks(self._table).bound:
                    raise
        at = form.newest()
        slot = -1 if at is None else at.slot
        return MirrorReport(format=form.format, slot=slot, lag=self.lag(slot, head), written=written)

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
        bound = head.log.marks(self._table).bound
        if newest.slot < bound and not self._is_unchanged(newest.slot, bound, head):
            # Files of its slot may be gone. After an erasure nothing may build on what was mirrored before.
            return False
        return newest.txn == self._txn_at(newest.slot)

    def _txn_at(self, slot: int) -> str:
        known = self._view
        if known is not None and known.tail and known.tail[-1].slot == slot:
            return known.tail[-1].txn
        return self._timeline.log.read_known(slot).txn

    def _walk(self, form: MirrorFormat, newest: MirroredSlot, head: LogView[Tables]) -> int:
        """Mirror the slots after one, up to the last one of the table in a view. Returns how many."""
        written, mirrored = 0, newest.slot
        last = self._last_of_table(mirrored, head)
        slot = max(mirrored, self._unchanged.get(mirrored, mirrored))
        while slot < last:
            until = min(last, slot + READ_AT_ONCE)
            found = self._timeline.log.read_after(slot, until=until, window=until - slot)
            for entry in with_changes(self._timeline.fileio, found):
                if not self._concerns(entry) and entry.slot - mirrored < SKIPPED_SLOTS_MAX:
                    self._pass_over(entry)
                    continue
                if form.has_every_slot:
                    written += self._fill(form, mirrored, entry)
                change = self._change_of(entry)
                if form.format not in mirrors_of(self._properties_of(change.spec)):
                    raise _WasOff
                form.write(change)
                mirrored, written = entry.slot, written + 1
            slot = until
        self._note_unchanged(mirrored, slot)
        return written

    def _fill(self, form: MirrorFormat, slot: int, entry: Entry) -> int:
        """Mirror the slots between one and an entry, which do not concern the table. Returns how many."""
        if entry.slot - slot <= 1:
            return 0
        before = self._at(entry.slot - 1)
        skipped = self._timeline.log.read_after(slot, until=entry.slot - 1, window=READ_AT_ONCE)
        for one in skipped:
            form.write(self._reader_at(before).nothing(before, one))
        return len(skipped)

    def _pass_over(self, entry: Entry) -> None:
        """Go on to the view of a slot that is not mirrored."""
        if self._view is not None and self._view.slot == entry.slot - 1:
            self._view = self._timeline.advance(self._view, [entry])

    def _change_of(self, entry: Entry) -> MirrorChange:
        """What an entry changes in mirrors. The newest ones are remembered.

        An entry that changes which rows mirrors show begins them again, at its own slot, so that it follows the slot before.
        """
        known = self._computed.get(entry.slot)
        if known is not None and known.txn == entry.txn:
            return known
        before = self._at(entry.slot - 1)
        after = self._timeline.advance(before, [entry])
        reader = self._reader_at(after)
        found = reader.next(before, entry, after) if reader is self._reader_at(before) else reader.whole(after, entry)
        self._view = after
        self._computed = {slot: one for slot, one in self._computed.items() if slot > entry.slot - REMEMBERED} | {entry.slot: found}
        return found

    def _last_of_table(self, slot: int, head: LogView[Tables]) -> int:
        """The newest slot up to a view that concerns the table, as far as is known; `slot` if no later one does."""
        for entry in reversed(head.tail):
            if entry.slot <= slot or self._concerns(entry):
                return max(slot, entry.slot)
        unknown = head.tail[0].slot - 1 if head.tail else head.slot
        return slot if self._unchanged.get(slot, slot) >= unknown else unknown

    def _concerns(self, entry: Entry) -> bool:
        """Whether a slot is of the table. Where tables share a log, most slots are of others."""
        return self._table in entry.footprint or self._table in entry.changes

    def _is_unchanged(self, slot: int, until: int, head: LogView[Tables]) -> bool:
        """Whether no slot after one, up to another, concerns the table. False if finding out would take long."""
        if slot < 0 or len(head.state) <= 1:
            return False
        known = max(slot, self._unchanged.get(slot, slot))
        tail = [entry for entry in head.tail if known < entry.slot <= until]
        missing = (tail[0].slot - 1 if tail else until) - known
        if missing > LOOKED_BACK_SLOTS or any(map(self._concerns, tail)):
            return False
        if missing > 0 and any(map(self._concerns, self._timeline.log.read_after(known, until=known + missing, window=READ_AT_ONCE))):
            return False
        self._note_unchanged(slot, until)
        return True

    def _note_unchanged(self, slot: int, until: int) -> None:
        """Remember that no slot after one, up to another, concerns the table."""
        known = {**self._unchanged, slot: max(until, self._unchanged.get(slot, until))}
        self._unchanged = dict(sorted(known.items())[-REMEMBERED:])

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
