"""`FollowedTables`: the tables that an ingest follows, with their state, their routes and their schemas as they change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from objcat.errors import IngestStopped
from objcat.ingest.decoding import masked
from objcat.ingest.handover import Handover, IngestState, TableProgress
from objcat.ingest.ingest_metrics import IngestMetrics
from objcat.ingest.model import ChangeSource, KeyOrder, Position, ReplayedSource, SchemaChanged, SourceTable
from objcat.ingest.routes import HISTORY, RECORD_PROFILE, RoutedTable, Router
from objcat.ingest.sink import LakeSink, TableUnfit

logger = logging.getLogger("objcat")

GONE = "It is no longer at the source, or no route follows it."


@dataclass(frozen=True, slots=True)
class _LakeChange:
    """What others did to a table of the lake, in a sentence. is_mended: whether a snapshot makes it what it was."""

    what: str
    is_mended: bool


class FollowedTables:
    """What is known of the tables. For one thread.

    Attributes:
        state: what the next commit stores.
        handover: decides about chunks and changes.
        has_changed: whether the state changed in a way that has to be committed soon, rows or not.
        committed_position: that of the last commit; None before the first.
    """

    state: IngestState
    handover: Handover

    def __init__(self, source: ChangeSource, sink: LakeSink, router: Router, metrics: IngestMetrics) -> None:
        self.has_changed = False
        self._source = source
        self._sink = sink
        self._router = router
        self._metrics = metrics
        self._described: dict[str, SourceTable] = {}
        self._routed: dict[str, RoutedTable] = {}
        self.committed_position: Position | None = None
        self._has_met_others = False

    def load(self, state: IngestState | None) -> None:
        """Take over the state of the last commit, or begin. Looks at the tables of the source.

        Raises:
            IngestStopped: no table is followed, or before the first commit, none can be.
        """
        if state is not None:
            self.state = state
        self._describe()
        if not self._routed:
            known = ", ".join(sorted(self._described)[:10])
            has = f"It has {known}" if known else "The user sees none"
            raise IngestStopped(
                f"No table of the source matches a route. {has}. Nothing was done. Correct `tables` of the routes, or the rights of "
                "the user."
            )
        if state is None:
            self._check_routes()
            self.begin_again()
            return
        self.handover = Handover(self._source, state)
        self.committed_position = dict(state.position)
        for name in list(state.tables):
            self._take_lake(name)
        if self._sink.was_restored and self._source.has_snapshots:
            logger.warning("A RESTORE took tables back, so all tables are read again.")
            for name in self._followable():
                self._begin_snapshot(name)
        self._follow()
        self.discover()

    def begin_again(self) -> None:
        """Let the source remember from now on, and read all tables."""
        names = self._followable()
        kept = getattr(self, "state", None)
        self.state = IngestState(position=dict(self._source.begin(names)))
        if kept is not None:
            self.state.requests, self.state.dead, self.state.nulled = kept.requests, kept.dead, kept.nulled
            self.state.skips = kept.skips
        self.handover = Handover(self._source, self.state)
        for name in names:
            self._begin_snapshot(name)
        self._set_problems_aside()
        self.has_changed = True

    @property
    def has_moved(self) -> bool:
        """Whether the stream has come further than the last commit says."""
        return self.committed_position is None or self._source.has_to_store(self.committed_position, self.state.position)

    def committed(self) -> None:
        """The state was committed."""
        self.has_changed = False
        self._has_met_others = False
        self.committed_position = dict(self.state.position)

    def routed(self, name: str) -> RoutedTable | None:
        """Where a table of the source goes; None when it is not followed."""
        return self._routed.get(name)

    def described(self, name: str) -> SourceTable:
        """A table as the source described it last."""
        return self._described[name]

    def limits(self) -> tuple[int, float]:
        """Changes and seconds of a batch: the smallest ones of all profiles, since a commit holds all tables."""
        every = [routed.profile for routed in self._routed.values()]
        profiles = [profile for profile in every if profile is not RECORD_PROFILE] or every
        return min(profile.batch_rows for profile in profiles), min(profile.batch_s for profile in profiles)

    def discover(self) -> None:
        """Look at the source for tables that joined or are gone, and for schemas that changed in ways that no row tells."""
        self._describe()
        for name in self._followable():
            progress = self.state.tables.get(name)
            if progress is None or progress.aside == GONE:
                continue
            table = self._described[name]
            if progress.version != table.version:
                changed = self._source.compare_schemas(progress.version, table)
                if changed is not None and progress.aside is None:
                    self.take_schema(changed)
                progress.version = table.version
                self.has_changed = True
        for name, progress in self.state.tables.items():
            if name not in self._routed and progress.aside is None:
                self.set_aside(name, GONE)
        self._set_problems_aside()
        self._follow()

    def take_schema(self, changed: SchemaChanged) -> None:
        """A table has another schema: its table in the lake follows, or it is set aside."""
        table = changed.table
        progress = self.state.tables.get(table.name)
        routed = self._routed.get(table.name)
        if progress is None or routed is None or progress.aside is not None:
            return
        self._metrics.add("schema_changes_total")
        self._take_lake(table.name)
        # A column that was dropped and joins again would show its old values.
        comes_again = set(changed.defaults) & {*routed.route.mask, *progress.columns}
        if self._source.has_snapshots and (changed.needs_snapshot or comes_again):
            self._begin_snapshot(table.name)
        has_table = not self._source.has_snapshots or self._sink.has_table(routed.name)
        if table.has_schema and has_table and self._is_followed(table.name):
            is_held = self.ensure(table, changed)
            if is_held and not self._source.has_snapshots and table.version is not None:
                # After a start, the source knows its schemas by what is stored.
                progress.version = table.version

    def ensure(self, table: SourceTable, changed: SchemaChanged | None = None) -> bool:
        """Let the table of the lake hold a schema. Returns whether it does; otherwise the table is set aside."""
        routed, progress = self._routed[table.name], self.state.tables[table.name]
        try:
            fresh = self._router.route(table)
            if fresh is not None and fresh.problem is not None:
                raise TableUnfit(fresh.problem)
            if fresh is None or fresh.key != routed.key:
                raise TableUnfit(
                    f"The key of {table.name} changed from {list(routed.key)} to {list(table.key)}. Route it to another table."
                )
            self._sink.ensure_table(routed, table, _defaults_of(changed, routed))
        except TableUnfit as error:
            self.set_aside(table.name, str(error))
            return False
        if progress.lake is None and (found := self._sink.look_at(routed.name)) is not None:
            progress.lake = found.id
        known = set(progress.columns)
        progress.columns += [column.name for column in table.columns if column.name not in known]
        return True

    def has_new_columns(self, table: SourceTable) -> bool:
        """Whether a schema has columns that its table never had."""
        progress = self.state.tables.get(table.name)
        return progress is not None and not {column.name for column in table.columns} <= set(progress.columns)

    def set_aside(self, name: str, why: str) -> None:
        """Follow a table no longer, while the others go on."""
        logger.warning("The table %s is set aside: %s", name, why)
        progress = self.state.tables.setdefault(name, TableProgress())
        progress.aside, progress.unread, progress.chunks, progress.incomplete = why, None, [], []
        self.has_changed = True

    def resnapshot(self, name: str) -> None:
        """Read a table again, also one that was set aside. A name that is not followed is logged."""
        if name not in self._followable():
            logger.warning("The table %s is not read again: %s", name, self._problem(name) or "it is not followed.")
            return
        self._begin_snapshot(name)

    def check_restored(self) -> None:
        """Raises IngestStopped where a RESTORE took rows back that the stream does not bring again by itself."""
        if self._sink.was_restored and not self._source.has_snapshots:
            raise IngestStopped(
                "A RESTORE took back rows of the lake that this source does not bring again by itself. Nothing was done. Run `objcat "
                "ingest resnapshot CONFIG --all`, which empties the tables and reads what the source still has. Then start it again."
            )
        self.check_record()

    def check_record(self) -> None:
        """Raises IngestStopped where the record of a source cannot be written: it would bring everything again."""
        for name, table in self._described.items():
            progress = self.state.tables.get(name)
            if table.is_record and progress is not None and progress.aside is not None:
                raise IngestStopped(
                    f"The record of what this source has brought cannot be written: {progress.aside} Nothing was done. Run `objcat ingest "
                    "resnapshot CONFIG --all`, which empties the tables and reads what the source still has. Then start it again."
                )

    def read_again(self, name: str, *, is_left_out: bool = False) -> bool:
        """Let a source without snapshots bring a table again, or what was left out of it. Returns whether it will.

        A name that is not followed is logged.
        """
        source = cast("ReplayedSource", self._source)
        is_known = name in self._routed
        if name not in self._followable() and (is_known or source.knows_tables or not self._router.follows(name)):
            logger.warning("The table %s is not read again: %s", name, self._problem(name) or "it is not followed.")
            return False
        if is_left_out and is_known and self._has_lost_rows(name):
            logger.warning(
                "What was left out of %s is not read: the table %r of the lake is not the one that has the rest of its rows. Run `objcat "
                "ingest resnapshot` without --left-out.",
                name,
                self._routed[name].name,
            )
            return False
        read = source.read_left_out if is_left_out else source.read_again
        self.state.position = dict(read(self.state.position, [name]))
        self.has_changed = True
        if is_known:
            self._begin_snapshot(name)
        else:
            # Nothing of it could be read so far: it is known once something can.
            self.state.tables.pop(name, None)
        return True

    def begin_if_truncated(self, name: str) -> bool:
        """A table that is being read was truncated: it is read from the beginning. Returns whether it was being read."""
        progress = self.state.tables[name]
        if progress.is_handed_over:
            return False
        self._begin_snapshot(name)
        return True

    def lake_has_changed(self) -> bool:
        """Whether tables of the lake are not as this ingest left them: dropped, made again, or without a column.

        Also when that was seen since the last commit: rows that wait may still be of a table as it was.
        """
        return self._has_met_others or any(self._lake_change(name) is not None for name in self.state.tables)

    # ---- helpers

    def _check_routes(self) -> None:
        """Raises IngestStopped where no table fits its route, before anything was begun."""
        problems = [routed.problem for name, routed in self._routed.items() if not self._described[name].is_record]
        if problems and None not in problems:
            raise IngestStopped(f"No table can be followed. {problems[0]} Nothing was read.")

    def _describe(self) -> None:
        described = [self._with_key(table) for table in self._source.describe_tables()]
        state = getattr(self, "state", None)
        first = set() if state is None else {name for name, progress in state.tables.items() if progress.aside is None}
        self._routed = dict(self._router.route_all(described, first=first))
        self._described = {table.name: table for table in described}

    def _with_key(self, table: SourceTable) -> SourceTable:
        """A table whose schema is not known yet has the key that its table of the lake has."""
        if table.has_schema:
            return table
        routed = self._router.route(table)
        if routed is None or routed.problem is not None or routed.route.deletes == HISTORY:
            return table
        key = self._sink.key_of(routed.name)
        return table if key is None else replace(table, key=key)

    def _take_lake(self, name: str) -> None:
        """Look at a table of the lake. What others did to it is mended where a snapshot mends it; otherwise it is set aside."""
        change = self._lake_change(name)
        if change is None:
            return
        self._has_met_others = True
        if change.is_mended:
            logger.warning("%s So %s is read again.", change.what, name)
            self._begin_snapshot(name)
        else:
            self.set_aside(name, change.what)

    def _lake_change(self, name: str) -> _LakeChange | None:
        """What others did to the table of the lake that a table is written to; None: nothing that counts."""
        progress, routed, table = self.state.tables[name], self._routed.get(name), self._described.get(name)
        if routed is None or table is None or progress.aside is not None or progress.lake is None or routed.problem is not None:
            return None
        found, can_read = self._sink.look_at(routed.name), self._source.has_snapshots
        again = f"run `objcat ingest resnapshot ... {name}`, which reads it again. Or skip it by a route."
        if found is None:
            return _LakeChange(f"The table {routed.name!r} of the lake was dropped or renamed. To have it again, {again}", is_mended=False)
        if not found.is_shared:
            said = f"The table {routed.name!r} of the lake was made again, outside of the shared log of this source."
            return _LakeChange(f"{said} Drop it, and {again}", is_mended=False)
        if found.id != progress.lake:
            said = f"The table {routed.name!r} of the lake was made again."
            return _LakeChange(said if can_read else f"{said} Drop it, and {again}", is_mended=can_read)
        lost = [one.name for one in routed.written(table) if one.name in progress.columns and one.name not in found.columns]
        if lost:
            said = f"The table {routed.name!r} of the lake no longer has the columns {lost}, which {name} has."
            return _LakeChange(f"{said} To leave a column out, name it in `drop` of the route.", is_mended=can_read)
        return None

    def _has_lost_rows(self, name: str) -> bool:
        """Whether the table of the lake is not the one that a table was written to: it was dropped, or made again."""
        progress = self.state.tables.get(name)
        if progress is None or progress.lake is None:
            return False
        found = self._sink.look_at(self._routed[name].name)
        return found is None or found.id != progress.lake

    def _followable(self) -> list[str]:
        return [name for name in self._routed if self._problem(name) is None]

    def _problem(self, name: str) -> str | None:
        """Why a table cannot be followed, at the source or as its route says; None when it can."""
        routed = self._routed.get(name)
        return None if routed is None else self._described[name].problem or routed.problem

    def _set_problems_aside(self) -> None:
        for name in self._routed:
            problem = self._problem(name)
            progress = self.state.tables.get(name)
            if problem is not None and (progress is None or progress.aside is None):
                self.set_aside(name, problem)
                self.state.tables[name].version = self._described[name].version

    def _follow(self) -> None:
        """Tell the source which tables are followed, and read those that it did not record before."""
        names = [name for name in self._followable() if self._is_followed(name)]
        unrecorded = set(self._source.follow_tables(names))
        for name in names:
            progress = self.state.tables.get(name)
            came_again = progress is not None and progress.aside == GONE and not self._source.has_snapshots
            if progress is None or name in unrecorded or came_again:
                self._begin_snapshot(name)

    def _is_followed(self, name: str) -> bool:
        progress = self.state.tables.get(name)
        return progress is None or progress.aside in (None, GONE)

    def _begin_stream(self, name: str, table: SourceTable) -> None:
        """Follow a table of which everything comes by the stream."""
        before = self.state.tables.get(name)
        progress = self.state.tables.setdefault(name, TableProgress())
        if before is None or before.aside is not None:
            progress.is_reading = cast("ReplayedSource", self._source).reads_first
        if progress.aside is not None:
            progress.lake = None
        progress.aside, progress.version = None, table.version
        if table.is_record:
            self.ensure(table)

    def _begin_snapshot(self, name: str) -> None:
        routed, table = self._routed[name], self._described[name]
        self.has_changed = True
        if not self._source.has_snapshots:
            self._begin_stream(name, table)
            return
        self._sink.forget(routed.name)
        replaces = self._sink.has_table(routed.name)
        # A range of keys is replaced by the order of the lake. Where that cannot be, the table is emptied first.
        by_bytes = replaces and table.sorts_by_bytes and bool(routed.key) and not set(routed.key) & set(routed.route.mask)
        self.handover.begin_snapshot(name, replaces=replaces, order=KeyOrder.BYTES if by_bytes else KeyOrder.SOURCE)
        self.state.tables[name].version = table.version
        self.state.tables[name].lake = None


def _defaults_of(changed: SchemaChanged | None, routed: RoutedTable) -> Mapping[str, Any]:
    """The defaults of columns as they are written. A hidden column has a hidden default."""
    if changed is None:
        return {}
    made = {}
    for name, value in changed.defaults.items():
        mask = routed.route.mask.get(name)
        if value is None or mask == "null" or name in routed.route.drop:
            continue
        plain = pa.array([value], changed.table.column(name).type)
        made[name] = value if mask is None else masked(plain, mask, routed.route.mask_secret)[0].as_py()
    return made
