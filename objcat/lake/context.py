"""`LakeContext`: what the methods of a lake share. The catalog, the logs of its tables, and how a table is opened and dropped."""

from __future__ import annotations

import threading

from fileio.check.probe import check_commit_store
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NameBinding, TableEntry, check_name
from objcat.catalog.plans import check_name_free, plan_drop
from objcat.catalog.table_lifecycle import close
from objcat.errors import Contention, TableClosed, TableNotFound
from objcat.maintenance.auto import AutoMaintenance
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_log import log_of_lake
from objcat.metadata.table_state import Tables
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline

ATTEMPTS_MAX = 20
"""How often an operation on names tries again while others change the same names."""
VIEWS_CACHED_MAX = 64
"""Logs of which a lake remembers the newest view."""


EMPTY_LOG_VIEW: LogView[Tables] = LogView(LogState(), {})
"""The view of a log without a slot."""


class LakeContext:
    """The state of one `Lake`. Safe for many threads.

    It caches the newest view of the catalog and of the logs that it has opened, so that opening a table again costs one GET for each.
    """

    def __init__(self, fileio: FileIO) -> None:
        self.fileio = fileio
        self.catalog = Catalog(fileio)
        self.auto_maintenance = AutoMaintenance()
        self._lock = threading.Lock()
        self._views: dict[str, LogView[Tables]] = {}
        self._is_store_checked = False

    def table(self, name: str, table: str, timeline: Timeline[Tables], view: LogView[Tables]) -> Table:
        """A handle of a table. `table`: its id. `view`: of its log."""
        return Table(TableContext(name, timeline, table, view, auto_maintenance=self.auto_maintenance))

    def open_table(self, name: str) -> Table:
        """A table by its name. Raises as `Lake.table`."""
        bound = self.binding_of(name)
        timeline, view = self.open_log(bound.binding.prefix)
        try:
            snapshot_of(view, bound.binding.table, where=timeline.fileio.url)
        except TableClosed as error:
            raise TableClosed(
                f"{error} The name {name!r} still points to it. Finish the drop with lake.drop_table({name!r}), or bring the "
                f"table back with lake.undrop_table({name!r})."
            ) from error
        return self.table(bound.binding.name, bound.binding.table, timeline, view)

    def check_store(self) -> None:
        """Check once that the store is fit for commits. Raises StoreUnfit."""
        if not self._is_store_checked:
            check_commit_store(self.fileio)
            self._is_store_checked = True

    def timeline(self, prefix: str) -> Timeline[Tables]:
        """The log at a prefix, without reading it."""
        return log_of_lake(self.fileio, prefix)

    def open_log(self, prefix: str) -> tuple[Timeline[Tables], LogView[Tables]]:
        """A log at its head, from the cached view where there is one."""
        timeline = self.timeline(prefix)
        kept = self._views.get(prefix)
        view = timeline.open() if kept is None else timeline.refresh(kept)
        self.remember(prefix, view)
        return timeline, view

    def remember(self, prefix: str, view: LogView[Tables]) -> None:
        """Cache a view of the log at a prefix, unless a newer one is cached."""
        with self._lock:
            kept = self._views.pop(prefix, None)
            self._views[prefix] = view if kept is None or kept.slot <= view.slot else kept
            while len(self._views) > VIEWS_CACHED_MAX:
                del self._views[next(iter(self._views))]

    def binding_of(self, name: str) -> TableEntry:
        """The catalog's entry of a name. Raises TableNotFound."""
        check_name(name)
        names = self.catalog.refresh()
        bound = names.table(name)
        if bound is None:
            raise names.not_found(name, where=self.fileio.url)
        return bound

    def check_free(self, names: CatalogNames, name: str) -> None:
        """Raises TableExists. A table whose drop was interrupted does not hold its name."""
        bound = names.table(name)
        if bound is None or not self.complete_drop(bound):
            check_name_free(names, name, where=self.fileio.url)

    def close_table(self, binding: NameBinding) -> int:
        """Close a table; returns the slot of its CLOSE. A table whose log was deleted by hand has only its name left."""
        timeline, view = self.open_log(binding.prefix)
        if view.slot < 0:
            return binding.opened + 1
        try:
            view = close(timeline, view, binding.table)
        except TableNotFound:
            return binding.opened + 1
        self.remember(binding.prefix, view)
        return _closed_at(view, binding.table)

    def complete_drop(self, bound: TableEntry) -> bool:
        """Finish a drop that was interrupted between its two steps. Returns whether there was one."""
        binding = bound.binding
        _, view = self.open_log(binding.prefix)
        if view.log.marks(binding.table).closed_at is None:
            return False
        self.finish_drop(binding.table, _closed_at(view, binding.table))
        return True

    def finish_drop(self, table: str, closed: int) -> None:
        """Take the name of a closed table away, the second step of a drop."""
        self.catalog.change(lambda names: plan_drop(names, table, closed))

    def contended(self, what: str) -> Contention:
        """The error of an operation on names that others have overtaken too often."""
        return Contention(f"{what}. Nothing was changed. Try again later.", winner_slot=self.catalog.slot)


def _closed_at(view: LogView[Tables], table: str) -> int:
    closed = view.log.marks(table).closed_at
    assert closed is not None
    return closed
