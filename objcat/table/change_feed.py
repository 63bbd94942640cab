"""`ChangeFeed`: the rows of an incremental read or of changes, pinned to a range of slots when it was planned."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fileio.optional import library
from fileio.store import FileIO
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import moment_ms, name_list, session, shown
from objcat.errors import CorruptTable, InvalidInput, SnapshotExpired
from objcat.maintenance.savepoint import check_readable
from objcat.metadata.manifest import Manifests
from objcat.metadata.schema import TableSchema
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.metadata.type_widening import under
from objcat.planning.changes import ChangeRange, ChangesPlan, clusterings_of, plan_changes, with_widest
from objcat.planning.commits import Commits
from objcat.planning.event_time import LogOrder
from objcat.planning.incremental import HIDDEN, IncrementalPlan, chosen_columns, plan_incremental
from objcat.planning.scan import parse_filter
from objcat.table.verified_files import verified
from objcat.tasks.changes import bytes_of, read_changed
from objcat.timeline.checkpoint import TAIL_SLOTS_MAX
from objcat.timeline.entry import Entry, Txn
from objcat.timeline.log import with_changes
from objcat.timeline.log_view import LogView, Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Point: TypeAlias = int | str | dt.datetime
"""A point in the log: a slot, a transaction, or a time (the newest commit at or before it)."""

_TXN = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{16}")


@reports_full_memory
class ChangeFeed:
    """The rows that `Table.changes` or `Table.incremental` planned, for the slots above `since` up to `until`.

    Nothing is read before one of its methods is called. It can be read again while its files are retained.
    """

    def __init__(self, fileio: FileIO, plan: IncrementalPlan | ChangesPlan, *, since: int, until: int, check: Callable[[], None]) -> None:
        """`check`: raises SnapshotExpired when the log says that files of the range were cleaned."""
        self._fileio = fileio
        self._check = check
        self.plan = plan
        self.since = since
        self.until = until

    def __repr__(self) -> str:
        return f"Feed({self._fileio.url!r}, slots {self.since + 1} to {self.until})"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.plan.schema

    def to_arrow(self) -> pa.Table:
        """Read all rows into an Arrow table; changes come in the order of their slots.

        Raises:
            SnapshotExpired: files were cleaned since it was planned.
            CorruptTable, storage errors: see `objcat.errors`.
        """
        env = self._fileio.env
        tasks: Sequence[Any] = self.plan.tasks(count_max=env.parallelism)
        try:
            parts = list(env.map(lambda task: list(read_changed(self._fileio, task)), tasks))
        except CorruptTable:
            self._check()
            raise
        tables = [table for part in parts for table in part]
        rows = pa.concat_tables([self.schema.empty_table(), *tables])
        return rows if self.plan.sort_by is None else rows.sort_by(self.plan.sort_by)

    def _tables(self, *, bytes_max: int) -> Iterator[pa.Table]:
        """Read changes part by part: those of the file groups between which no key moves. The rows of a part are in no order.

        Small parts are read together as long as they have fewer bytes, about. Raises as `to_arrow`.
        """
        assert isinstance(self.plan, ChangesPlan), "an incremental read has tasks of another kind"
        env = self._fileio.env
        waiting = deque(self.plan.tasks(count_max=env.parallelism))
        try:
            while waiting:
                some = [waiting.popleft()]
                size = bytes_of(some[0])
                while waiting and len(some) < env.parallelism and (size := size + bytes_of(waiting[0])) <= bytes_max:
                    some.append(waiting.popleft())
                yield from env.map(lambda task: pa.concat_tables(list(read_changed(self._fileio, task))), some)
        except CorruptTable:
            self._check()
            raise

    def to_pandas(self) -> Any:
        """Read all rows into a pandas frame. Raises as `to_arrow`, and MissingDependency."""
        return library("pandas", needed_by="to_pandas() needs", extra="local").DataFrame(self.to_arrow().to_pandas())

    def to_polars(self) -> Any:
        """Read all rows into a polars frame. Raises as `to_arrow`, and MissingDependency."""
        return library("polars", needed_by="to_polars() needs", extra="local").DataFrame(self.to_arrow())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A lazy Spark DataFrame of the rows, in no order.

        An incremental read is native where a scan is, unless a RESTORE is in its range. Otherwise workers read through `fileio`, one task
        for each changed part of the table.

        Args:
            spark: the session.

        Returns:
            The frame.

        Raises:
            Unsupported: the executors cannot open the store.
            MissingOnWorkers, SparkJobLost, SnapshotExpired: see `objcat.errors`.
        """
        from objcat.spark.native.changes import feed_dataframe

        def verify(plan: IncrementalPlan) -> LogOrder:
            return verified(self._fileio, plan.manifests, plan.scan())

        return feed_dataframe(session(spark), self._fileio.describe(), self.plan, verify=verify)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedContext:
    """A table as feeds need it. `view`: the newest view, just opened or refreshed. `name`: for messages."""

    timeline: Timeline[Tables]
    table: str
    name: str
    manifests: Manifests
    commits: Commits
    view: LogView[Tables]

    @property
    def url(self) -> str:
        """Where the log is."""
        return self.timeline.fileio.url

    def snapshot(self, slot: int) -> Snapshot:
        """The table at a slot. Raises SnapshotExpired, InvalidInput for a slot before the table was created, TableClosed."""
        view = self.view_at(slot)
        check_readable(self.view.log, self.table, slot, where=self.url)
        if self.table not in view.state:
            raise InvalidInput(
                f"The table {self.name!r} did not exist at slot {slot}: it was created later, in a shared log. Use a later slot."
            )
        return snapshot_of(view, self.table, where=self.url)

    def view_at(self, slot: int) -> LogView[Tables]:
        """The view at a slot."""
        return self.view if slot == self.view.slot else self.timeline.at(slot)

    def slots(self, since: Point, until: Point | None) -> tuple[int, int]:
        """The slots of a range. Raises InvalidInput."""
        first = self._slot(since, what="since")
        last = self.view.slot if until is None else self._slot(until, what="until")
        if last < first:
            raise InvalidInput(f"until={shown(until)} is slot {last}, which comes before since={shown(since)}, slot {first}. Swap them.")
        return first, last

    def entries(self, since: int, until: int) -> list[Entry]:
        """The entries above a slot, with their changes. Sends no request for those that the view has cached."""
        kept = [entry for entry in self.view.tail if since < entry.slot <= until]
        if len(kept) < until - since:
            kept = self.timeline.log.read_after(since, until=until, window=TAIL_SLOTS_MAX)
        return with_changes(self.timeline.fileio, kept)

    def restores(self, since: int, until: int) -> bool:
        """Whether a RESTORE of the range brings back a slot before it. Reads the range only where that is older than all checkpoints."""
        log = self.view.log
        if since >= log.root_bound:
            return any(since < slot <= until and restored < since for slot, restored in log.restores)
        footprints = (entry.footprint.get(self.table) for entry in self.entries(since, until))
        return any(found is not None and found.restores is not None and found.restores < since for found in footprints)

    def _slot(self, point: Point, *, what: str) -> int:
        newest = self.view.slot
        if isinstance(point, int) and not isinstance(point, bool):
            least = -1 if what == "since" else 0
            if not least <= point <= newest:
                raise InvalidInput(
                    f"{what}={point} is no slot of the table {self.name!r}. Use a slot from 0 to {newest}, or since=-1 for before the "
                    "first."
                )
            return point
        if isinstance(point, str) and _TXN.fullmatch(point):
            try:
                return self.commits.find(self.view.outcomes, [Txn(point)])[Txn(point)].slot
            except CorruptTable as error:
                raise InvalidInput(
                    f"{what}={point!r} is no transaction that the table {self.name!r} has committed. See `objcat log` for its transactions."
                ) from error
        slot = self.timeline.slot_at_time(moment_ms(point, what=what), self.view)
        if slot < 0 and what == "until":
            raise InvalidInput(f"The table {self.name!r} did not exist at {point}: it was created later. Use a later time.")
        return slot


def incremental(
    source: FeedContext,
    since: Point,
    until: Point | None,
    *,
    where: str | pc.Expression | None,
    columns: Sequence[str] | None,
    schema: TableSchema | None = None,
) -> ChangeFeed:
    """See `Table.incremental`. `schema`: of another slot, whose columns the rows get instead of those of `until`."""
    first, last = source.slots(since, until)
    snapshot = _under(source.snapshot(last), schema)
    if source.restores(first, last):
        # Rows from before the range are back. Their transactions do not show it, only the earlier state of the table does.
        named = chosen_columns(snapshot.spec, columns, hidden=HIDDEN)
        predicate = parse_filter(where, snapshot.spec.table_schema)
        changed = replace(_changes(source, first, snapshot, columns=named, net=True), latest=True, where=predicate)
        return ChangeFeed(source.timeline.fileio, changed, since=first, until=last, check=lambda: _check_whole(source, first))
    commits = source.commits.between(source.view.outcomes, first, last)
    plan = plan_incremental(snapshot, source.manifests, commits, since=first, where=where, columns=columns)
    return ChangeFeed(source.timeline.fileio, plan, since=first, until=last, check=lambda: _check(source, last))


def changes(
    source: FeedContext, since: Point, until: Point | None, *, columns: Sequence[str] | None, net: bool, schema: TableSchema | None = None
) -> ChangeFeed:
    """See `Table.changes`. `schema`: see `incremental`."""
    first, last = source.slots(since, until)
    snapshot = _under(source.snapshot(last), schema)
    named = chosen_columns(snapshot.spec, None if columns is None else name_list(columns, what="columns"))
    plan = _changes(source, first, snapshot, columns=named, net=net)
    return ChangeFeed(source.timeline.fileio, plan, since=first, until=last, check=lambda: _check_whole(source, first))


def _under(snapshot: Snapshot, schema: TableSchema | None) -> Snapshot:
    if schema is None:
        return snapshot
    return replace(snapshot, table=replace(snapshot.table, spec=under(snapshot.spec, schema)))


def _changes(source: FeedContext, since: int, until: Snapshot, *, columns: Sequence[str], net: bool) -> ChangesPlan:
    _check_whole(source, since)
    entries = source.entries(since, until.slot)
    # File groups are followed from one clustering to the next, which changes no rows; keys are followed through them.
    clusterings = [] if until.spec.has_key else clusterings_of(entries, source.table)
    points = [since, *(slot for slot in clusterings if slot < until.slot), until.slot]
    plans = [
        plan_changes(
            ChangeRange(
                table=source.table,
                before=source.view_at(first) if first >= 0 else None,
                until=until if last == until.slot else source.snapshot(last),
                entries=[entry for entry in entries if first < entry.slot <= last],
                at=source.view_at,
            ),
            source.manifests,
            columns=columns,
            net=net,
        )
        for first, last in itertools.pairwise(points)
    ]
    classes = tuple(one for plan in plans for one in plan.classes)
    restored = any(found is not None and found.restores is not None for found in (entry.footprint.get(source.table) for entry in entries))
    wide = with_widest(until.spec, [plan.wide for plan in plans])
    return replace(plans[-1], wide=wide, classes=classes, moved=not until.spec.has_key and (len(plans) > 1 or restored))


def _check(source: FeedContext, slot: int) -> None:
    check_readable(source.timeline.refresh(source.view).log, source.table, slot, where=source.url)


def _check_whole(source: FeedContext, since: int) -> None:
    """Raises SnapshotExpired unless every slot from `since` on is readable."""
    bound = source.timeline.refresh(source.view).log.marks(source.table).bound
    if max(since, 0) < bound:
        raise SnapshotExpired(
            f"Changes of table {source.name!r} at {source.url} since slot {since} need files that were cleaned. Read changes "
            f"since slot {bound}, or read incremental(since={since}), which still has the current state of changed rows."
        )
