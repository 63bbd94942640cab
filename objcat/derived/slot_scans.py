"""`SlotScans`: scans and changes of a table at slots, which read the log once for each slot. What the handle has seen costs no request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow.compute as pc

from objcat.errors import CheckpointCollected
from objcat.maintenance.savepoint import check_readable
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.planning.scan import ScanPlan, plan_scan
from objcat.table.change_feed import ChangeFeed, FeedContext, changes
from objcat.table.scan import Scan
from objcat.table.table import Table
from objcat.timeline.log_view import LogView

R = TypeVar("R")


class SlotScans:
    """Scans of one table. The view of a slot never changes, so it is kept as long as this object."""

    def __init__(self, table: Table) -> None:
        self._context = table._context
        self._kept: dict[int, LogView[Tables]] = {self._context.view.slot: self._context.view}

    def snapshot(self, slot: int) -> Snapshot:
        """The table at a slot. Raises SnapshotExpired, InvalidInput where there was none."""
        return self._retried(lambda: self._snapshot(slot))

    def scan(self, slot: int, *, where: str | pc.Expression | None = None, columns: Sequence[str] | None = None) -> Scan:
        """As `Table.scan` as of a slot."""
        context = self._context

        def plan() -> ScanPlan:
            return plan_scan(self._snapshot(slot), context.manifests, where=where, columns=columns)

        check = lambda: context.check_readable(slot)  # noqa: E731 - a scan calls it when a file is gone
        return Scan(context.fileio, self._retried(plan), context.manifests, check=check, commits=context.commits_of)

    def changes(self, *, since: int, until: int, columns: Sequence[str], net: bool) -> ChangeFeed:
        """As `Table.changes`."""

        def plan() -> ChangeFeed:
            known = self._context.feed_context()
            feed = _KeptFeed(
                timeline=known.timeline,
                table=known.table,
                name=known.name,
                manifests=known.manifests,
                commits=known.commits,
                view=known.view,
                kept=self,
            )
            return changes(feed, since, until, columns=columns, net=net)

        return self._retried(plan)

    def view(self, slot: int) -> LogView[Tables]:
        """The log at a slot."""
        if slot not in self._kept:
            self._kept[slot] = self._context.timeline.at(slot)
        return self._kept[slot]

    def _snapshot(self, slot: int) -> Snapshot:
        context = self._context
        if slot not in self._kept:
            check_readable(context.refresh().log, context.id, slot, where=context.fileio.url)
        view = self.view(slot)
        if context.id not in view.state:
            return context.snapshot_as_of(slot)
        return snapshot_of(view, context.id, where=context.fileio.url)

    def _retried(self, work: Callable[[], R]) -> R:
        def attempt() -> R:
            try:
                return work()
            except CheckpointCollected:
                # The kept views may stand on that checkpoint.
                self._kept.clear()
                raise

        return self._context.retry_on_new_checkpoint(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptFeed(FeedContext):
    """A feed whose views are kept."""

    kept: SlotScans

    def view_at(self, slot: int) -> LogView[Tables]:
        """The view at a slot."""
        return self.kept.view(slot)
