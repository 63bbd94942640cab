"""`LakeContext`: what the methods of a lake share. The catalog, the logs of its tables, and how a table is opened and dropped."""

from __future__ import annotations

import logging
import threading

import msgspec

from fileio.check.probe import check_commit_store
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NameBinding, TableEntry, check_name
from objcat.catalog.plans import check_name_free, plan_drop, plan_move, renamed
from objcat.catalog.table_lifecycle import close
from objcat.errors import Contention, ObjcatError, TableClosed, TableNotFound
from objcat.maintenance.auto import AutoMaintenance
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_log import log_of_lake
from objcat.metadata.table_state import Tables
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.attempt import moved_error
from objcat.timeline.entry import log_key
from objcat.timeline.hints import FoundHint, Hints
from objcat.timeline.json_objects import decode_json
from objcat.timeline.log_state import MOVED_TABLE, LogState
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

ATTEMPTS_MAX = 20
"""How often an operation on names tries again while others change the same names."""
VIEWS_CACHED_MAX = 64
"""Logs of which a lake remembers the newest view."""


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_BINDINGS = msgspec.json.Decoder(NameBinding)

EMPTY_LOG_VIEW: LogView[Tables] = LogView(LogState(), {})
"""The view of a log without a slot."""


class LakeContext:
    """The state of one `Lake`. Safe for many threads.

    It caches the newest view of the catalog and of the logs that it has opened, so that opening a table again costs one GET for each.
    """

    def __init__(self, fileio: FileIO, catalog: Catalog | None = None) -> None:
        """catalog: of the names; the log below the lake when None."""
        self.fileio = fileio
        self.catalog = Catalog(fileio) if catalog is None else catalog
        self.auto_maintenance = AutoMaintenance()
        self._lock = threading.Lock()
        self._views: dict[str, LogView[Tables]] = {}
        self._hints: dict[str, Hints] = {}
        self._is_store_checked = False

    def table(self, name: str, table: str, timeline: Timeline[Tables], view: LogView[Tables]) -> Table:
        """A handle of a table. `table`: its id. `view`: of its log."""
        return Table(TableContext(name, timeline, table, view, auto_maintenance=self.auto_maintenance))

    def open_table(self, name: str) -> Table:
        """A table by its name. Raises as `Lake.table`."""
        binding, hint = self._binding_and_hint(name)
        timeline, view = self.open_log(binding.prefix, hint)
        if view.log.marks(binding.table).moved_to is not msgspec.UNSET:
            binding = self.newest_binding(name)
            timeline, view = self.open_log(binding.prefix)
        try:
            snapshot_of(view, binding.table, where=timeline.fileio.url)
        except TableClosed as error:
            raise TableClosed(
                f"{error} The name {name!r} still points to it. Finish the drop with lake.drop_table({name!r}), or bring the "
                f"table back with lake.undrop_table({name!r})."
            ) from error
        return self.table(binding.name, binding.table, timeline, view)

    def _binding_and_hint(self, name: str) -> tuple[NameBinding, FoundHint | None]:
        """What a name means, and the hint of the log there. It is read while the catalog is asked, where the name probably points.

        None where that log is known, or elsewhere. Raises TableNotFound.
        """
        check_name(name)
        likely, known = self.catalog.foresee()
        bound = likely.table(name)
        if bound is None or bound.binding.prefix in self._views:
            return self.binding_of(name, known).binding, None
        prefix = bound.binding.prefix
        asked = self.fileio.env.submit_io(self.timeline(prefix).read_hint)
        binding = self.binding_of(name, known).binding
        return binding, asked.result() if binding.prefix == prefix else None

    def check_store(self) -> None:
        """Check once that the store is fit for commits. Raises StoreUnfit."""
        if not self._is_store_checked:
            check_commit_store(self.fileio)
            self._is_store_checked = True

    def timeline(self, prefix: str) -> Timeline[Tables]:
        """The log at a prefix, without reading it."""
        with self._lock:
            hints = self._hints.pop(prefix, None) or Hints()
            self._hints[prefix] = hints
            while len(self._hints) > VIEWS_CACHED_MAX:
                del self._hints[next(iter(self._hints))]
        return log_of_lake(self.fileio, prefix, hints)

    def open_log(self, prefix: str, hint: FoundHint | None = None) -> tuple[Timeline[Tables], LogView[Tables]]:
        """A log at its head, from the cached view where there is one. hint: of the log, if it was just read."""
        timeline = self.timeline(prefix)
        kept = self._views.get(prefix)
        view = timeline.open(hint) if kept is None else timeline.refresh(kept)
        self.remember(prefix, view)
        return timeline, view

    def remember(self, prefix: str, view: LogView[Tables]) -> None:
        """Cache a view of the log at a prefix, unless a newer one is cached."""
        with self._lock:
            kept = self._views.pop(prefix, None)
            self._views[prefix] = view if kept is None or kept.slot <= view.slot else kept
            while len(self._views) > VIEWS_CACHED_MAX:
                del self._views[next(iter(self._views))]

    def binding_of(self, name: str, hint: FoundHint | None = None) -> TableEntry:
        """The catalog's entry of a name. hint: of the catalog, if it was just read. Raises TableNotFound."""
        check_name(name)
        names = self.catalog.refresh(hint)
        bound = names.table(name)
        if bound is None:
            raise names.not_found(name, where=self.fileio.url)
        return bound

    def newest_binding(self, name: str) -> NameBinding:
        """What a name means. A move that stopped before the name had moved is finished first. Raises TableNotFound.

        Where the catalog cannot be changed, the answer is where the table is, all the same.
        """
        binding = self.binding_of(name).binding
        try:
            return self.finish_move(binding)
        except _CannotFinish as unfinished:
            logger.warning("The name %r still points to the log that its table left: %s", name, unfinished.__cause__)
            return unfinished.binding

    def finish_move(self, binding: NameBinding) -> NameBinding:
        """Move the name of a table whose log says that it goes on elsewhere. Returns where it is; the binding itself if it did not move.

        Raises _CannotFinish when the catalog could not be changed.
        """
        timeline, view = self.open_log(binding.prefix)
        marks = view.log.marks(binding.table)
        if marks.closed_at is None or marks.moved_to is msgspec.UNSET:
            return binding
        closed = marks.closed_at
        said = timeline.log.read_known(closed).metadata.get(MOVED_TABLE, "")
        moved = decode_json(said.encode(), _BINDINGS, where=log_key(closed), what="where a table moved to")
        try:
            names = self.catalog.change(lambda names: plan_move(names, binding.table, closed, moved))
        except (ObjcatError, FileIOError) as error:
            raise _CannotFinish(renamed(moved, binding.name)) from error
        bound = names.table_of(moved.table)
        return renamed(moved, binding.name) if bound is None else bound.binding

    def check_free(self, names: CatalogNames, name: str) -> None:
        """Raises TableExists. A table whose drop was interrupted does not hold its name."""
        bound = names.table(name)
        if bound is None or not self.complete_drop(bound):
            check_name_free(names, name, where=self.fileio.url)

    def close_table(self, binding: NameBinding) -> int:
        """Close a table; returns the slot of its CLOSE. A table whose log was deleted by hand has only its name left.

        Raises TableMoved when it moved to another log meanwhile.
        """
        timeline, view = self.open_log(binding.prefix)
        if view.slot < 0:
            return binding.opened + 1
        try:
            view = close(timeline, view, binding.table)
        except TableNotFound:
            return binding.opened + 1
        self.remember(binding.prefix, view)
        closed, moved_to = _closed_at(view, binding.table), view.log.marks(binding.table).moved_to
        if moved_to is not msgspec.UNSET:
            raise moved_error(binding.table, moved_to, closed)
        return closed

    def complete_drop(self, bound: TableEntry) -> bool:
        """Finish a drop that was interrupted between its two steps, or a move. Returns whether there was a drop."""
        binding = self.newest_binding(bound.binding.name)
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


class _CannotFinish(Exception):
    """The name of a table that moved could not be changed. binding: where the table is."""

    def __init__(self, binding: NameBinding) -> None:
        super().__init__(binding.prefix)
        self.binding = binding


def _closed_at(view: LogView[Tables], table: str) -> int:
    closed = view.log.marks(table).closed_at
    assert closed is not None
    return closed
