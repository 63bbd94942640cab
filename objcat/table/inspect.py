"""`TableInspector`: what the metadata of a table says, as `table.inspect`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import AsOf, whole_number
from objcat.inspection.history import CommitHistory, snapshots_of
from objcat.inspection.snapshot_stats import TableStats, files_of, partitions_of_snapshot, stats_of
from objcat.metadata.snapshot import Snapshot
from objcat.table.context import TableContext
from objcat.timeline.log import with_changes
from objcat.timeline.process_log import check_log_unchanged


@reports_full_memory
class TableInspector:
    """Reads the metadata of one table (`table.inspect`). No data file is read. Safe for many threads."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"TableInspector({self._context.name!r} at {self._context.fileio.url!r})"

    def history(self, *, limit: int | None = None, as_of: AsOf | None = None) -> CommitHistory:
        """The commits of this table, oldest first, without those of other tables of a shared log.

        Args:
            limit: only the newest so many, for about as many requests.
            as_of: those up to a slot or a time, see `Table.scan`.

        Returns:
            A list of commits; `to_arrow()` makes a table of it.

        Raises:
            InvalidInput, SnapshotExpired, storage errors: see `objcat.errors`.
            TableNotFound: the log was deleted by hand under this handle.
        """
        span = None if limit is None else whole_number(limit, what="limit")
        last = None if as_of is None else self._context.snapshot_as_of(as_of).slot
        newest = self._context.refresh().log
        if last is None:
            last = newest.slot
        while True:
            after = -1 if span is None else max(-1, last - span)
            entries = with_changes(self._context.fileio, self._context.timeline.log.read_after(after))
            if after < newest.slot:
                is_whole = len(entries) >= newest.slot - after
                if not is_whole:
                    self._context.timeline.check_absent(after + len(entries) + 1, newest.slot)
                found = entries[newest.slot - after - 1] if is_whole else None
                check_log_unchanged(newest, found, where=self._context.fileio.url)
            mine = [one for one in entries if one.slot <= last and (self._context.id in one.footprint or not one.footprint)]
            if limit is None or span is None:
                return CommitHistory(mine, self._context.id)
            if after < 0 or len(mine) >= limit:
                return CommitHistory(mine[max(0, len(mine) - limit) :], self._context.id)
            # Others share the log.
            span *= 4

    def snapshots(self, *, as_of: AsOf | None = None) -> pa.Table:
        """The slots that can be read with `as_of`: those that cleaning has kept, and savepoints.

        Args:
            as_of: those up to a slot or a time, see `Table.scan`.

        Returns:
            An Arrow table, one row for each, oldest first; `SNAPSHOTS` of `objcat.inspection.history` describes its columns.

        Raises:
            InvalidInput, SnapshotExpired, storage errors: see `objcat.errors`.
            TableNotFound: the log was deleted by hand under this handle.
        """
        commits = self.history(as_of=as_of)
        # The log was read before: what is cleaned meanwhile is left out.
        return snapshots_of(commits, self._context.refresh().log.marks(self._context.id))

    def stats(self) -> TableStats:
        """The size of the newest snapshot: rows, bytes, files and file groups.

        Returns:
            Counts; `print` them.

        Raises:
            fileio.errors.FileIOError: the store failed.
        """
        return self._context.retry_on_new_checkpoint(lambda: stats_of(self._context.refresh(), self._context.manifests))

    def files(self, *, as_of: AsOf | None = None) -> pa.Table:
        """The data files of the newest snapshot, or of an older one.

        Args:
            as_of: a slot or a time, see `Table.scan`.

        Returns:
            An Arrow table, one row for each file; `FILES` of `objcat.inspection.snapshot_stats` describes its columns.

        Raises:
            InvalidInput, SnapshotExpired, storage errors: see `objcat.errors`.
        """
        return self._context.retry_on_new_checkpoint(lambda: files_of(self._snapshot(as_of), self._context.manifests))

    def partitions(self, *, as_of: AsOf | None = None) -> pa.Table:
        """The partitions of the newest snapshot, or of an older one.

        Args:
            as_of: a slot or a time, see `Table.scan`.

        Returns:
            An Arrow table, one row for each partition; `PARTITIONS` of `objcat.inspection.snapshot_stats` describes its columns.

        Raises:
            InvalidInput, SnapshotExpired, storage errors: see `objcat.errors`.
        """
        return self._context.retry_on_new_checkpoint(lambda: partitions_of_snapshot(self._snapshot(as_of), self._context.manifests))

    def commit_metadata(self, slot: int) -> Mapping[str, str]:
        """The metadata that the writer of a commit gave it.

        Args:
            slot: of the commit.

        Returns:
            Text to text.

        Raises:
            CorruptTable, storage errors: see `objcat.errors`.
        """
        return self._context.timeline.log.read_known(slot).metadata

    def _snapshot(self, as_of: AsOf | None) -> Snapshot:
        return self._context.refresh() if as_of is None else self._context.snapshot_as_of(as_of)
