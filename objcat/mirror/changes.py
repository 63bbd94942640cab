"""Computes what a slot changes in a mirror, from the log: which files it adds and removes, and which rows of the others it masks.

`ChangeReader.next` takes one entry, and costs what the entry touched. `ChangeReader.whole` takes a table as it is, see `whole_table.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fileio.env import map_io
from objcat.common.bounded_cache import BoundedCache
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogSlice, TableDelta, decode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_state import Tables
from objcat.mirror.masked_files import NO_ROWS, MaskedFileReader, NeededRows, adoption_of, needed_by, united
from objcat.mirror.model import MirrorChange, MirroredFile, Positions
from objcat.mirror.superseded_rows import range_of
from objcat.mirror.whole_table import WholeTable
from objcat.timeline.entry import Action, Entry, FileGroupId
from objcat.timeline.log import with_changes
from objcat.timeline.log_view import LogView, Timeline

REMEMBERED_LOGS_BYTES_MAX = 16 * 1024**2
"""What is remembered of log files: their file groups, to know when the last of them needs the file no more."""


class ChangeReader:
    """Computes the changes of one table. Remembers small things between slots. For one thread.

    Args:
        read_optimized: the mirror has base files alone, as scans with `mode="read_optimized"` do.
    """

    def __init__(self, timeline: Timeline[Tables], table: str, manifests: Manifests, *, read_optimized: bool = False) -> None:
        self._timeline = timeline
        self._table = table
        self._manifests = manifests
        self._is_read_optimized = read_optimized
        self._files = MaskedFileReader(timeline.fileio, manifests)
        self._log_groups: BoundedCache[frozenset[FileGroupId]] = BoundedCache(bytes_max=REMEMBERED_LOGS_BYTES_MAX)

    def whole(self, view: LogView[Tables], entry: Entry) -> MirrorChange:
        """The change that makes a mirror of the table as it is. entry: of the slot of the view. Raises as `next`."""
        snapshot = Snapshot(view.log, view.state[self._table])
        env = self._timeline.fileio.env
        files = WholeTable(snapshot, self._manifests, self._files, env, read_optimized=self._is_read_optimized)
        return replace(self.nothing(view, entry), restarts=True, added=files)

    def next(self, before: LogView[Tables], entry: Entry, after: LogView[Tables]) -> MirrorChange:
        """The change of one entry.

        Args:
            before: the view below it.
            entry: with its changes.
            after: the view of its slot.

        Raises:
            CorruptTable, CheckpointCollected, storage errors: as for a scan of both slots.
        """
        old, new = (Snapshot(view.log, view.state[self._table]) for view in (before, after))
        known = {column.id for column in old.spec.table_schema.columns}
        joined = frozenset(column.id for column in new.spec.table_schema.columns if column.id not in known)
        empty = replace(self.nothing(after, entry), joined=joined)
        footprint = entry.footprint.get(self._table)
        raw = entry.changes.get(self._table)
        delta = TableDelta() if raw is None else decode_delta(raw)
        if footprint is not None and footprint.restores is not None:
            return self._of_all_groups(empty, old, new)
        ids = {*(base.group_id for base in delta.bases), *delta.retires, *(rows.group_id for log in delta.logs for rows in log.slices)}
        if not ids:
            return empty
        if delta.splits:
            # Ids before and after are of different bucket counts.
            return self._of_all_groups(empty, old, new)
        for log in delta.logs:
            self._remember(log)
        return self._of_groups(empty, old, new, delta, ids)

    def nothing(self, view: LogView[Tables], entry: Entry) -> MirrorChange:
        """The change of a slot that changes no file. view: of that slot, or of another one at which the table is the same."""
        marks = view.log.marks(self._table)
        return MirrorChange(
            slot=entry.slot,
            txn=entry.txn,
            committed_at_ms=entry.committed_at_ms,
            action=entry.action,
            keeps_rows=entry.action is Action.COMPACTION,
            restarts=False,
            spec=view.state[self._table].spec,
            oldest_slot=marks.bound,
            saved=frozenset(marks.saved),
        )

    def _groups(self, snapshot: Snapshot, group_ids: Collection[FileGroupId] | None) -> list[FileGroup]:
        groups = snapshot.file_groups(self._manifests, group_ids=group_ids)
        if self._is_read_optimized:
            return [replace(group, logs=()) for group in groups if group.base is not None]
        return groups

    # ---- some file groups

    def _of_groups(
        self, empty: MirrorChange, old: Snapshot, new: Snapshot, delta: TableDelta, ids: Collection[FileGroupId]
    ) -> MirrorChange:
        """The change of an entry that touches these file groups."""
        groups = self._groups(new, ids)
        needed = {part.key: part for group in groups for part in needed_by(group)}
        ended = [part for group in self._groups(old, ids) for part in needed_by(group) if part.key not in needed]
        named = {part.path for part in needed.values()}
        left = named | self._named(new, [part for part in ended if part.path not in named])
        if new.spec.key:
            self._files.rows.read_ahead(new.spec, [log for log in delta.logs if log.path in named])
        masked = list(self._timeline.fileio.env.map(lambda group: self._superseded(new, group, delta, empty.slot), groups))
        masked += [{part.path: self._files.rows.own_positions(old.spec, part.group, part.file)} for part in ended if part.path in left]
        rows = united(masked)
        files: list[BaseFile | LogObject] = [*delta.bases, *delta.logs]
        added = [
            MirroredFile(
                path=file.path,
                bytes=file.bytes,
                rows=file.rows,
                bounds=file.bounds,
                masked=rows.pop(file.path, NO_ROWS),
                adopted=adoption_of(file),
            )
            for file in files
            if file.path in named
        ]
        sizes = {part.path: part.size for part in (*needed.values(), *ended)}
        return replace(
            empty,
            removed=sorted({part.path for part in ended} - left),
            added=added,
            masked=[
                MirroredFile(path=path, bytes=sizes[path][0], rows=sizes[path][1], masked=positions)
                for path, positions in sorted(rows.items())
                if len(positions)
            ],
        )

    def _superseded(self, new: Snapshot, group: FileGroup, delta: TableDelta, slot: int) -> Mapping[str, Positions]:
        """By path, the rows of a file group that stop counting."""
        self._timeline.fileio.env.give_way()
        spec = new.spec
        if not spec.key:
            return {}
        is_rewritten = group.base is not None and any(base.path == group.base.path for base in delta.bases)
        fresh = [part for part in group.logs if is_rewritten or part.named_at == slot]
        return self._files.superseded(spec, group, fresh)

    # ---- files that others may still need

    def _named(self, new: Snapshot, ended: Sequence[NeededRows]) -> frozenset[str]:
        """The files of some needed that other file groups still need."""
        bases = {part.written_for for part in ended if isinstance(part.file, BaseFile)}
        logs = {part.path: part.file.named_at for part in ended if isinstance(part.file, LogSlice)}
        if not bases and not logs:
            return frozenset()
        of_logs = self._groups_of_logs(logs)
        ids = None if of_logs is None else bases | of_logs
        still = new.live(self._manifests, (), ids).paths()
        return still & {part.path for part in ended}

    def _groups_of_logs(self, named_at: Mapping[str, int]) -> set[FileGroupId] | None:
        """All file groups that log files have rows of. None if the entries that say so are gone."""
        unknown = {slot for path, slot in named_at.items() if self._log_groups.get(path) is None}
        found = map_io(self._timeline.fileio.env, self._timeline.log.read_slot, sorted(unknown))
        for entry in with_changes(self._timeline.fileio, [entry for entry in found if entry is not None]):
            raw = entry.changes.get(self._table)
            for log in () if raw is None else decode_delta(raw).logs:
                self._remember(log)
        known = [self._log_groups.get(path) for path in named_at]
        if any(groups is None for groups in known):
            return None
        return {group_id for groups in known if groups is not None for group_id in groups}

    def _remember(self, log: LogObject) -> None:
        groups = frozenset(rows.group_id for rows in log.slices)
        self._log_groups.put(log.path, groups, 128 * (1 + len(groups)))

    # ---- all file groups

    def _of_all_groups(self, empty: MirrorChange, old: Snapshot, new: Snapshot) -> MirrorChange:
        """The change between two snapshots whose file groups may differ in any way, as after a restore."""
        before, after = ({group.group_id: group for group in self._groups(snapshot, None)} for snapshot in (old, new))
        changed = [
            group
            for mine, other in ((before, after), (after, before))
            for group_id, group in mine.items()
            if group_id not in other or _state_of(group) != _state_of(other[group_id])
        ]
        touched = {part.path for group in changed for part in needed_by(group)}
        named_before, named_after = ({part.path for group in groups.values() for part in needed_by(group)} for groups in (before, after))
        near = [group for group in after.values() if any(part.path in touched for part in needed_by(group))]
        return replace(
            empty,
            removed=sorted(touched & named_before),
            added=self._files.files(new, near, touched & named_after),
        )


def _state_of(group: FileGroup) -> tuple[object, ...]:
    """Equal when the same rows of the same files count."""
    return (group.base and group.base.path, group.as_of, tuple((*range_of(part), part.slot) for part in group.logs))
