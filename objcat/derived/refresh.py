"""`refresh`: bring a derived table to the newest slots of its sources, in one commit.

The slots of the sources are in that commit, as a position that builds on the former one. So two refreshes at once, or one whose answer was
lost, never apply a change twice: the second finds another version of the position, and is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fileio.errors import FileIOError
from objcat.common.memory_errors import after_commit
from objcat.derived.query import DerivedQuery, QuerySource, resolve_query
from objcat.derived.results import COMES, GOES, DerivedRows, compute_groups, compute_rows, compute_whole
from objcat.derived.same_terms import check_same_in_spark
from objcat.derived.session import LocalQuerySession, QuerySession
from objcat.derived.shape import RefreshWay, Shape, shape_of
from objcat.derived.slot_scans import SlotScans
from objcat.derived.source_rows import SourceRows
from objcat.derived.spark_source_rows import SparkSourceRows
from objcat.derived.state import RefreshState, SourceState, new_position, read_state, state_of
from objcat.errors import CommitConflict, InvalidInput, InvalidSql, ObjcatError, PositionConflict, SnapshotExpired, TableNotFound
from objcat.maintenance.maintain import MaintenanceStep
from objcat.maintenance.metrics import changes_rows
from objcat.metadata.derived import definition_of
from objcat.metadata.properties import SchemaMode
from objcat.sql.runner import SqlLake
from objcat.table.table import Table
from objcat.tasks.model import Operation
from objcat.timeline.position import StoredPosition
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import CommitResult, commit_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("objcat")

ATTEMPTS_MAX = 5
"""How often a refresh begins again because another one was faster."""
LAG_SLOTS_MAX = 1000
"""Up to so many slots are looked at for changes of rows; beyond, each counts."""
IDLE_SLOTS_MAX = 64
"""So many slots without a change of what the query reads are passed over before a refresh commits that it has seen them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshResult:
    """What a refresh did.

    Attributes:
        slot: of its commit; None when nothing had changed.
        way: "rows", "groups" or "whole": how the new rows were found. None when nothing had changed.
        why: the reason, where everything was computed although the query can follow changes.
        upserted: rows that it inserted or replaced.
        deleted: rows that it deleted.
        sources: by name of a source, the slot whose rows the table shows.
        rows_read: by name of a source, rows that were read of it. None where the whole query was computed, or Spark read them.
    """

    slot: int | None
    way: str | None
    why: str | None
    upserted: int
    deleted: int
    sources: Mapping[str, int]
    rows_read: Mapping[str, int] | None = field(default=None)


def refresh(table: Table, lake: SqlLake, *, full: bool, spark: SparkSession | None = None) -> RefreshResult:
    """See `Lake.refresh_derived`."""
    if spark is None:
        return _refresh_again(table, lake, full=full, spark=None)
    from objcat.spark.query_session import run_with_own_settings

    return run_with_own_settings(lambda: _refresh_again(table, lake, full=full, spark=spark))


def _refresh_again(table: Table, lake: SqlLake, *, full: bool, spark: SparkSession | None) -> RefreshResult:
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _refresh(table, lake, full=full, spark=spark)
        except PositionConflict:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
            # Another refresh was faster. What it did not see may still be missing.
            table.refresh()
    raise AssertionError("unreachable: the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class PinnedSources:
    """The query of a derived table at the newest slots of its sources.

    Args:
        shape: The best way to follow it.
        state: What a refresh to these slots commits.
        former: The state of the newest refresh, None before the first.
        stored: The position that has it.
        why_whole: Why everything has to be computed all the same; None: it has not.
    """

    query: DerivedQuery
    shape: Shape
    state: RefreshState
    former: RefreshState | None
    stored: StoredPosition | None
    why_whole: str | None


def pin_sources(table: Table, lake: SqlLake, *, full: bool) -> PinnedSources:
    """Open the sources of a derived table at their newest slots, and compare them with the newest refresh.

    Raises InvalidInput for a table that is not derived, and where a source is no longer the one that the table was computed from.
    """
    definition = definition_of(table.refresh().spec)
    if definition is None:
        raise InvalidInput(
            f"The table {table.name!r} is not derived, so there is nothing to refresh. Create one with lake.create_derived()."
        )
    known = read_state(table)
    stored, former = known if known is not None else (None, None)
    opened = _PinnedLake(lake, {} if former is None or full else former.sources, table.name)
    try:
        query = resolve_query(definition.query, cast("SqlLake", opened))
    except InvalidSql as error:
        raise InvalidInput(
            f"The query of the derived table {table.name!r} no longer fits its sources: {error} The table stays as of its last refresh. "
            "Undo the change of the columns, or create another table with another query."
        ) from error
    columns: dict[str, list[str]] = {}
    for source in query.sources:
        columns.setdefault(source.name, []).extend(source.columns)
    logs = {name: lake._context.binding_of(opened.names[name]).binding.prefix for name in columns}
    state = RefreshState(
        sources={name: state_of(opened.tables[name].snapshot, logs[name], sorted({*names})) for name, names in columns.items()}
    )
    why = "it is the first one" if former is None else ("it was asked for" if full else None)
    if why is None and stored is not None and stored.rewound_at is not None:
        why = f"the RESTORE at slot {stored.rewound_at} took the table back"
    if former is not None and not full:
        _check_same(table, former, state)
    shape = shape_of(query, table.key or [])
    return PinnedSources(query, shape, state, former, stored, why)


class _PinnedLake:
    """A lake whose tables are opened once, by the ids that the newest refresh knows."""

    def __init__(self, lake: SqlLake, known: Mapping[str, SourceState], derived: str) -> None:
        self._lake = lake
        self._known = known
        self._derived = derived
        self.tables: dict[str, Table] = {}
        self.names: dict[str, str] = {}

    def table(self, name: str) -> Table:
        """A table of the query, at its newest slot."""
        if name not in self.tables:
            self.names[name] = self._name_now(name)
            opened = self._lake.table(self.names[name])
            # The handle keeps the name of the query, which is what its rows are called there.
            opened._context.name = name
            self.tables[name] = opened
        return self.tables[name]

    def _name_now(self, name: str) -> str:
        """The name that the table has now. Raises InvalidInput where the name is another table's."""
        known = self._known.get(name)
        if known is None:
            return name
        names = self._lake._context.catalog.refresh()
        bound = names.table(name)
        if bound is not None and bound.binding.table == known.table:
            return name
        renamed = names.table_of(known.table)
        if renamed is not None and bound is None:
            return str(renamed.binding.name)
        what = "is another table now: the one that it was computed from was dropped or renamed" if bound is not None else "was dropped"
        raise InvalidInput(
            f"The source {name!r} of the derived table {self._derived!r} {what}. The table stays as of its last refresh. Bring the "
            f"source back, or compute everything from what has the name now: lake.refresh_derived({self._derived!r}, full=True)."
        )

    def __getattr__(self, name: str) -> object:
        return getattr(self._lake, name)


def _check_same(table: Table, former: RefreshState, state: RefreshState) -> None:
    """Raises InvalidInput where a column that the query names is another one now."""
    for name, source in state.sources.items():
        before = former.sources.get(name)
        if before is None:
            continue
        if before.table != source.table or before.log != source.log:
            raise InvalidInput(
                f"The source {name!r} of the derived table {table.name!r} moved to another log, so its slots are others. The table "
                f"stays as of its last refresh. Compute everything again: lake.refresh_derived({table.name!r}, full=True)."
            )
        for column, now in source.columns.items():
            then = before.columns.get(column)
            if then is not None and then != now:
                was = f"of type {then[1]}" if then[1] != now[1] else "another column"
                raise InvalidInput(
                    f"The column {column!r} of {name!r} was {was} when the derived table {table.name!r} was refreshed last, and is of type "
                    f"{now[1]} now. The table stays as of its last refresh. Undo that change, or compute everything from the new column: "
                    f"lake.refresh_derived({table.name!r}, full=True)."
                )


def _refresh(table: Table, lake: SqlLake, *, full: bool, spark: SparkSession | None) -> RefreshResult:
    pinned = pin_sources(table, lake, full=full)
    if spark is not None:
        check_same_in_spark(pinned.query)
    if pinned.why_whole is None:
        assert pinned.former is not None
        if all(pinned.state.sources[name].slot == known.slot for name, known in pinned.former.sources.items()):
            return _nothing(pinned.former)
    try:
        return _computed(table, pinned, pinned.why_whole, spark)
    except SnapshotExpired as error:
        if pinned.why_whole is not None:
            raise
        logger.warning("The derived table %r is computed as a whole: %s", table.name, error)
        return _computed(table, pinned, f"changes were cleaned: {error}", spark)


def _nothing(state: RefreshState) -> RefreshResult:
    slots = {name: source.slot for name, source in state.sources.items()}
    return RefreshResult(slot=None, way=None, why=None, upserted=0, deleted=0, sources=slots)


def _computed(table: Table, pinned: PinnedSources, why: str | None, spark: SparkSession | None) -> RefreshResult:
    """Compute and commit. why: the reason to compute everything; None: follow the changes where the query can."""
    query, shape = pinned.query, pinned.shape
    way = shape.way if why is None else RefreshWay.WHOLE
    former = pinned.former.sources if pinned.former is not None else {}
    scans = {source.name: SlotScans(source.table) for source in query.sources}
    known = former if way is not RefreshWay.WHOLE else {}
    derived = DerivedRows(table, SlotScans(table), table.snapshot.slot, table.schema, tuple(table.key or ()))
    session = LocalQuerySession() if spark is None else _open_spark(spark, table.name)
    try:
        rows = [_source_rows(source, pinned.state, known, scans[source.name], session) for source in query.sources]
        changed = True
        match way:
            case RefreshWay.WHOLE:
                compute_whole(session, query, derived, rows, is_empty=pinned.stored is None)
            case RefreshWay.ROWS:
                changed = compute_rows(session, query, shape, derived, rows)
            case RefreshWay.GROUPS:
                changed = compute_groups(session, query, shape, derived, rows)
        counts = {
            name: session.rows(f"SELECT count(*) AS n FROM {name}").column("n")[0].as_py() if changed else 0 for name in (COMES, GOES)
        }
        changed = any(counts.values())
        if not changed and pinned.former is not None and why is None and not _has_to_say(pinned):
            return _nothing(pinned.former)
        result = _commit(table, session, pinned, counts if changed else {})
    finally:
        session.close()
    read = {name: sum(one.rows_read for one in rows if one.source.name == name) for name in query.names}
    return RefreshResult(
        slot=result.slot,
        way=str(way),
        why=why,
        upserted=counts[COMES],
        deleted=counts[GOES],
        sources={name: source.slot for name, source in pinned.state.sources.items()},
        rows_read=None if way is RefreshWay.WHOLE or spark is not None else read,
    )


def _open_spark(spark: SparkSession, name: str) -> QuerySession:
    from objcat.spark.query_session import SparkQuerySession

    return SparkQuerySession(spark, name)


def _source_rows(
    source: QuerySource, state: RefreshState, former: Mapping[str, SourceState], scans: SlotScans, session: QuerySession
) -> SourceRows:
    slot = state.sources[source.name].slot
    before = former[source.name].slot if source.name in former else slot
    if isinstance(session, LocalQuerySession):
        return SourceRows(source, before, slot, scans)
    return SparkSourceRows(source, before, slot, scans, session)


def _has_to_say(pinned: PinnedSources) -> bool:
    """Whether slots without a change are so many that cleaning might reach the old ones."""
    assert pinned.former is not None
    known = pinned.former.sources
    return any(name not in known or source.slot - known[name].slot > IDLE_SLOTS_MAX for name, source in pinned.state.sources.items())


def _commit(table: Table, session: QuerySession, pinned: PinnedSources, counts: Mapping[str, int]) -> CommitResult:
    """Write rows, deletes and position in one commit. Raises PositionConflict when another refresh was faster."""
    context = table._context
    batches: Sequence[WriteBatch] = list(_batches(table, session, counts, is_first=pinned.stored is None))
    parts = [TableWriter(context.fileio, context.manifests, table.id, batches)] if batches else []
    position = new_position(table, pinned.state, pinned.stored)
    began = context.view.slot
    metadata = {"refresh": " ".join(f"{name}@{source.slot}" for name, source in sorted(pinned.state.sources.items()))}

    def run() -> tuple[CommitResult | None, Sequence[object]]:
        return commit_parts(context.timeline, context.committer, parts, context.view, metadata=metadata, position=position)

    try:
        result, followed = context.retry_on_new_checkpoint(run)
    except CommitConflict:
        _seen(table)
        raise
    assert result is not None, "a position is committed whatever changes"
    with after_commit(result.slot):
        try:
            context.latest.advance(followed)  # type: ignore[arg-type]
        except (ObjcatError, FileIOError) as error:
            logger.warning("%r did not replay its own refresh at slot %d, which is durable: %s", table, result.slot, error)
        context.timeline.after_commit(context.view, context.latest.adopt_checkpoint)
        if batches:
            context.after_write(result, since_slot=began)
    return result


def _seen(table: Table) -> None:
    try:
        table.refresh()
    except FileIOError as error:
        logger.warning("%r was not read again: %s", table, error)


def _batches(table: Table, session: QuerySession, counts: Mapping[str, int], *, is_first: bool) -> list[WriteBatch]:
    comes = Operation.INSERT if is_first else Operation.UPSERT
    found = []
    for name, operation in ((GOES, Operation.DELETE), (COMES, comes)):
        if counts.get(name):
            engine, rows = session.batch(name, table)
            found.append(WriteBatch(engine, rows, operation, SchemaMode.STRICT, None))
    return found


def refresh_if_due(table: Table, lake: SqlLake, *, after_s: int) -> MaintenanceStep | None:
    """Refresh a derived table where a source is ahead and its last refresh is so long ago; None where it is not due.

    Raises as `Lake.refresh_derived`.
    """
    known = read_state(table)
    if known is not None and table._context.fileio.env.now_ms() - known[0].committed_at_ms < after_s * 1000:
        return None
    done = refresh(table, lake, full=False)
    if done.slot is None:
        return None
    how = f"the whole query was computed: {done.why}" if done.why is not None else f"by {done.way}"
    return MaintenanceStep(
        service="refresh", done=True, why=f"sources changed: {done.upserted:,} rows came, {done.deleted:,} went, {how}", slot=done.slot
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedLag:
    """How far a derived table is behind one of its sources.

    Attributes:
        source: the name of the source in the query.
        slot: whose rows the table shows; -1 before the first refresh.
        newest: the newest slot of the source; None where it cannot be opened.
        slots: of the source that it does not show and that may have changed rows; None where that is not known.
        seconds: from the commit that it shows to the last of these; None where that is not known.
    """

    source: str
    slot: int
    newest: int | None
    slots: int | None
    seconds: float | None


def lag_of(table: Table, lake: SqlLake) -> list[DerivedLag]:
    """See `Lake.derived_lag`."""
    definition = definition_of(table.refresh().spec)
    if definition is None:
        raise InvalidInput(f"The table {table.name!r} is not derived, so it is behind nothing.")
    known = read_state(table)
    states = {} if known is None else known[1].sources
    found = []
    for name in definition.sources:
        state = states.get(name)
        try:
            source = _PinnedLake(lake, states, table.name).table(name)
        except (InvalidInput, TableNotFound):
            found.append(DerivedLag(source=name, slot=-1 if state is None else state.slot, newest=None, slots=None, seconds=None))
            continue
        snapshot = source.snapshot
        if state is None:
            found.append(DerivedLag(source=name, slot=-1, newest=snapshot.slot, slots=snapshot.slot + 1, seconds=None))
            continue
        slots, newest_ms = _changes_after(source, state)
        seconds = max(0, newest_ms - state.committed_at_ms) / 1000
        found.append(DerivedLag(source=name, slot=state.slot, newest=snapshot.slot, slots=slots, seconds=seconds))
    return found


def _changes_after(source: Table, state: SourceState) -> tuple[int, int]:
    """How many slots after a state may have changed rows of a source, and the commit time of the last one."""
    snapshot = source.snapshot
    behind = snapshot.slot - state.slot
    if state.table != source.id or not 0 <= behind <= LAG_SLOTS_MAX:
        return max(0, behind), snapshot.committed_at_ms
    entries = source._context.timeline.log.read_after(state.slot, until=snapshot.slot) if behind else []
    changed = [one.committed_at_ms for one in entries if source.id in one.footprint and changes_rows(one, source.id)]
    return len(changed), max(changed, default=state.committed_at_ms)
