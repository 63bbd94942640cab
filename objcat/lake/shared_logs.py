"""The logs that several tables of a lake share: positions of sources in them, and tables that move into them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from objcat.catalog.names import check_name
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import AsOf, case_folded, moment_ms, text
from objcat.errors import CorruptTable, InvalidInput, SnapshotExpired
from objcat.lake.context import LakeContext
from objcat.lake.imports import ImportingLake
from objcat.lake.move import move_table
from objcat.metadata.table_state import Tables
from objcat.table.batch_input import workers_on
from objcat.table.table import Table
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.position import StoredPosition, read_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS_MAX = 5
"""How often a position is read again because a newer one replaced it meanwhile."""


@reports_full_memory
class SharedLogsLake(ImportingLake):
    """What a lake has for each shared log."""

    def source_position(self, source: str, *, shared_log: str, as_of: AsOf | None = None) -> StoredPosition | None:
        """How far the reader of a source has come, by the newest commit with `transaction(position=...)`.

        Args:
            source: its name.
            shared_log: the log that its tables share.
            as_of: a slot of that log, or a time. None: the newest.

        Returns:
            The position; None before its first commit, also where there is no such log yet.

        Raises:
            SnapshotExpired: the state of that earlier version was cleaned.
            CorruptTable: the object of the state is missing or damaged.
        """
        text(source, what="source")
        return next((found for found in _positions(self._context, shared_log, as_of, source)), None)

    def move_to_shared_log(self, name: str, *, shared_log: str, spark: SparkSession | None = None) -> Table:
        """Move a table into a log that other tables share, so that it can change together with them.

        A table that is alone in its log, where there is no shared log of that name, shares its own log from now on: nothing is copied, and
        everything stays. Otherwise its rows are copied into the shared log, and the name moves. Rows, schema with its ids, key, ordering
        column, partitions, index, properties and versions of applications stay. Slots and history begin again. The table as it was is a
        dropped one: `undrop_table(name, new_name=...)` reads its history, `purge_table` deletes its files.

        Safe while others write: a commit that comes first moves along, a later one to the old log is refused with TableMoved. If it is
        interrupted, the table is where it was, or has moved. Call it again.

        Args:
            name: of the table.
            shared_log: the name of the log.
            spark: the session whose executors copy. None: this process.

        Returns:
            A handle on the table where it is now.

        Raises:
            TableNotFound, TableClosed: there is no such table.
            InvalidInput: an application was rewound by a RESTORE, and has not written since.
            Contention: others wrote to the table all the time; nothing was changed.
            CommitUnknown: it may have moved; call it again.
        """
        checked = check_name(shared_log, what="shared_log")
        workers = None if spark is None else partial(workers_on, spark, table=name)
        return move_table(self._context, check_name(name), checked, workers)

    def source_positions(self, *, shared_log: str) -> list[StoredPosition]:
        """The position of every source of a shared log, by name. Arguments and errors as `source_position`."""
        return _positions(self._context, shared_log, None, None)


def _positions(lake: LakeContext, shared_log: str, as_of: AsOf | None, source: str | None) -> list[StoredPosition]:
    """The positions of one source or of all. Empty where there is no such log."""
    prefix = lake.catalog.refresh().shared_logs.get(case_folded(check_name(shared_log, what="shared_log")))
    if prefix is None:
        return []
    timeline, view = lake.open_log(prefix)
    if view.slot < 0:
        return []
    for _ in range(ATTEMPTS_MAX - 1):
        then = view if as_of is None else _view_as_of(timeline, view, as_of, shared_log)
        try:
            return _read(timeline, then, source)
        except CorruptTable as error:
            newer = timeline.refresh(view)
            if as_of is not None and newer.log.sources != then.log.sources:
                raise SnapshotExpired(
                    f"The state of an earlier position in the shared log {shared_log!r} was cleaned. Without as_of, "
                    "lake.source_position() gives the newest one."
                ) from error
            if newer.slot == view.slot:
                raise
            view = newer
    return _read(timeline, view, source)


def _read(timeline: Timeline[Tables], view: LogView[Tables], source: str | None) -> list[StoredPosition]:
    known = view.log.sources
    return [read_position(timeline.fileio, name, known[name]) for name in sorted(known) if source in (None, name)]


def _view_as_of(timeline: Timeline[Tables], newest: LogView[Tables], as_of: AsOf, shared_log: str) -> LogView[Tables]:
    """The view of a slot or a time. Raises InvalidInput where there is none."""
    if not isinstance(as_of, int):
        return timeline.at_time(moment_ms(as_of, what="as_of"), newest)
    if not 0 <= as_of <= newest.slot:
        raise InvalidInput(f"The shared log {shared_log!r} has no slot {as_of}. Use a slot from 0 to {newest.slot}.")
    return timeline.at(as_of)
