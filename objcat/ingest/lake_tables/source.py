"""`LakeTablesSource`: the tables of another objcat lake as a `ChangeSource`. Begin with `transactions`.

A log has an order, and every slot of it can be read. So the stream reads all tables of a log as of one slot, some file groups at a time,
and then the changes of the slots after it. The source is only read: nothing in it knows of this reader.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fileio.env import Env
from fileio.errors import FileIOError, Throttled, Unavailable
from objcat.engine.spooled_batch import RowSpool
from objcat.errors import IngestStopped, PositionGone, SnapshotExpired, SourceAway, SourceUnfit, TableClosed, TableNotFound
from objcat.ingest.config import IngestConfig
from objcat.ingest.lake_tables.columns import describe, has_to_be_read, note_columns, source_table
from objcat.ingest.lake_tables.progress import FollowedTable, LakeProgress
from objcat.ingest.lake_tables.settings import LakeTablesSettings, lake_tables_settings
from objcat.ingest.lake_tables.slot_changes import read_slots
from objcat.ingest.model import (
    Change,
    ChangeKind,
    Position,
    RowBatch,
    SchemaChanged,
    SourceReport,
    SourceTable,
    SourceTransaction,
    TableRead,
    TableTruncated,
)
from objcat.ingest.routes import Router
from objcat.ingest.stream_source import StreamSource
from objcat.lake.lake import Lake, connect
from objcat.metadata.files import FileGroup
from objcat.table.table import Table

_PLACE = re.compile(r"(.+)@(\d{1,18})(?:/(\d{1,18}))?")
MARK = 0
"""The mark of every slot: there are no chunks that have to know one from another."""


def open_source(config: IngestConfig, router: Router, env: Env) -> LakeTablesSource:
    """Open a lake. See `objcat.ingest.sources.open_source`."""
    return LakeTablesSource(config, lake_tables_settings(config), router, env)


def position_text(position: Position) -> str:
    """See `objcat.ingest.sources.position_text`: the last slot of a log, or the last part of a table."""
    return str(position["last"]) or "its beginning"


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:  # noqa: ARG001 - as all sources have it
    """See `objcat.ingest.sources.transaction_text`. A slot of a log, or a part of a table that is read."""
    found, progress = _PLACE.fullmatch(text), LakeProgress.parse(position)
    if found is None:
        raise ValueError("a transaction is LOG@SLOT, and a part of a table that is read is TABLE@SLOT/PART")
    place, slot, part = found[1], int(found[2]), found[3]
    if part is None:
        if place not in progress.slots:
            raise ValueError(f"there is no log {place!r} that is followed, only {', '.join(sorted(progress.slots)) or 'none'}")
        if slot <= progress.slots[place]:
            raise ValueError("that slot is in the lake")
        return f"{place}@{slot}"
    followed = progress.tables.get(place)
    # One that is to be read again is not in the position until its first part is written.
    if followed is None and not Router(config).follows(place):
        raise ValueError(f"no route follows a table {place!r}")
    if followed is not None and followed.groups_read is None:
        raise ValueError(f"the table {place!r} is not being read")
    return f"{place}@{slot}/{int(part)}"


class LakeTablesSource(StreamSource):
    """See `ChangeSource` and `ReplayedSource`."""

    reads_first = True
    knows_tables = True

    def __init__(self, config: IngestConfig, settings: LakeTablesSettings, router: Router, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._env = env
        self._lake = connect(settings.url, settings.options, env=env)
        self._wake = threading.Condition()
        self._is_closed = False
        self._is_wanted = False
        self._known: dict[str, SourceTable] = {}

    # ---- what there is

    def check_settings(self) -> None:
        """See `ChangeSource`. A lake that is followed into itself must not follow what it writes."""
        own = connect(self._config.lake.url, self._config.lake.options)
        if own.fileio.url != self._lake.fileio.url:
            return
        with self._errors("reading its catalog"):
            names = self._followed()
        written = {routed.name for name in names if (routed := self._router.route(describe(self._lake.table(name), self._router)))}
        both = sorted(name for name in written if self._router.follows(name))
        if both:
            raise SourceUnfit(
                f"{self._config.path} follows {both[0]!r}, which it also writes: its own rows would come back to it. Nothing was done. Let "
                "`tables` of the routes leave out what `to` names."
            )

    def describe_tables(self) -> Sequence[SourceTable]:
        """See `ChangeSource`."""
        found = []
        with self._errors("reading its catalog"):
            for name in self._followed():
                with contextlib.suppress(TableNotFound, TableClosed):
                    found.append(describe(self._lake.table(name), self._router))
        return found

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. The stream compares the schemas of its slots."""
        return None

    def begin(self, tables: Sequence[str]) -> Position:
        """See `ChangeSource`."""
        progress = LakeProgress()
        with self._errors("reading its logs"):
            for name in tables:
                self._begin_table(progress, name)
        return progress.position()

    def read_again(self, position: Position, tables: Sequence[str]) -> Position:
        """See `ReplayedSource`."""
        progress = LakeProgress.parse(position)
        for name in tables:
            progress.tables.pop(name, None)
        return progress.position()

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. The stream finds tables that joined, and reads them."""
        return []

    # ---- the stream

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """See `ChangeSource`."""
        progress = LakeProgress.parse(position)
        while not self._is_closed:
            with self._wake:
                self._is_wanted = False
            with self._errors("reading its logs"):
                moved = self._take_tables(progress)
                for name in progress.reading():
                    try:
                        yield from self._rows(progress, name)
                    except (TableNotFound, TableClosed):
                        # It was dropped meanwhile.
                        progress.tables.pop(name, None)
                for log in progress.logs():
                    for transaction in self._changes(progress, log):
                        moved = True
                        yield transaction
            yield SourceTransaction(position=progress.position())
            if not moved:
                with self._wake:
                    self._wake.wait_for(lambda: self._is_closed or self._is_wanted, timeout=self._settings.poll_s)

    def _followed(self) -> list[str]:
        return [name for name in self._lake.tables() if self._router.follows(name)]

    def _take_tables(self, progress: LakeProgress) -> bool:
        """Take note of tables that joined, and of those that are others now. Returns whether one did."""
        names = self._followed()
        for name in [name for name in progress.tables if name not in names]:
            del progress.tables[name]
        has_joined = False
        for name in names:
            with contextlib.suppress(TableNotFound, TableClosed):
                known = progress.tables.get(name)
                if known is not None:
                    binding = self._lake._context.binding_of(name).binding
                    if (binding.table, binding.prefix) == (known.id, known.log):
                        continue
                    del progress.tables[name]
                has_joined |= self._begin_table(progress, name)
        return has_joined

    def _begin_table(self, progress: LakeProgress, name: str) -> bool:
        """Let the rows of a table be read as of the slot that its log has reached. Returns False where it did not exist there."""
        table = self._lake.table(name)
        if describe(table, self._router).problem is not None:
            return False
        binding = self._lake._context.binding_of(name).binding
        newest = table.refresh().slot
        reached = progress.slots.get(binding.prefix)
        if reached is None or all(known.log != binding.prefix for known in progress.tables.values()):
            # No table of this log is followed yet, so no change of it is missing.
            reached = progress.slots[binding.prefix] = newest
        if reached < newest and not _exists(table, reached):
            return False
        progress.tables[name] = FollowedTable(id=table.id, log=binding.prefix, columns={}, groups_read=0)
        return True

    def _rows(self, progress: LakeProgress, name: str) -> Iterator[SourceTransaction]:
        """The rows of a table as of the slot of its log, some file groups in each transaction."""
        followed = progress.tables[name]
        slot = progress.slots[followed.log]
        handle = self._lake.table(name)
        scan = handle.scan(as_of=slot)
        schema = scan.plan.snapshot.spec.table_schema
        table = source_table(name, schema, describe(handle, self._router).key)
        groups = sorted(scan.plan.groups, key=_group_order)
        done = followed.groups_read or 0
        changes: list[Change] = [SchemaChanged(table)]
        if done == 0:
            changes += [TableTruncated(table), TableRead(table, is_done=False)]
        note_columns(schema, followed)
        while not self._is_closed:
            part = groups[done : done + 1]
            spool = RowSpool(bytes_max=self._config.run.transaction_bytes)
            batches: list[RowBatch] = []
            size = 0
            for rows in scan._tables(part) if part else ():
                size += rows.nbytes
                batches.append(RowBatch(table, ChangeKind.INSERT, spool.keep(rows)))
            done += len(part)
            is_done = done >= len(groups)
            changes += batches
            if is_done:
                changes.append(TableRead(table, is_done=True))
            followed.groups_read = None if is_done else done
            progress.last = f"{name}@{slot}/{done}"
            count = sum(batch.rows.num_rows for batch in batches)
            yield SourceTransaction(
                position=progress.position(),
                mark=MARK,
                changes=changes,
                count=max(1, count),
                size_bytes=size,
            )
            if is_done:
                return
            changes = []

    def _changes(self, progress: LakeProgress, log: str) -> Iterator[SourceTransaction]:
        """The slots of a log after the one that was reached, up to its newest one."""
        while names := progress.followed(log):
            handles: dict[str, Table] = {}
            for name in names:
                with contextlib.suppress(TableNotFound, TableClosed):
                    handles[name] = self._lake.table(name)
                if name not in handles or handles[name].id != progress.tables[name].id:
                    # It is read again when it is there again: some of its changes are passed over meanwhile.
                    handles.pop(name, None)
                    del progress.tables[name]
            since = progress.slots[log]
            newest = min((table.refresh().slot for table in handles.values()), default=since)
            if newest <= since or self._is_closed:
                return
            until = min(newest, since + self._settings.range_slots)
            yield from self._range(progress, log, handles, since, until)

    def _range(self, progress: LakeProgress, log: str, handles: Mapping[str, Table], since: int, until: int) -> Iterator[SourceTransaction]:
        tables: dict[str, tuple[Table, SourceTable]] = {}
        announced: list[Change] = []
        for name, handle in handles.items():
            followed = progress.tables[name]
            schema = handle._context.snapshot_as_of(until).spec.table_schema
            table = source_table(name, schema, describe(handle, self._router).key)
            if has_to_be_read(schema, followed):
                # From the first slot of the range on: its changes are passed over, and it is read at the slot that is reached.
                followed.groups_read = 0
                announced.append(TableRead(table, is_done=False))
                continue
            known = self._known.get(name)
            if known is not None and known.version == table.version:
                table = known
            else:
                self._known[name] = table
                announced.append(SchemaChanged(table))
            note_columns(schema, followed)
            tables[name] = (handle, table)
        bytes_max = self._config.run.transaction_bytes
        slots = read_slots(tables, since=since, until=until, bytes_max=bytes_max)
        for place, one in enumerate(slots):
            progress.slots[log] = one.slot
            progress.last = f"{log}@{one.slot}"
            if place == len(slots) - 1:
                progress.slots[log] = until
            yield SourceTransaction(
                position=progress.position(),
                mark=MARK,
                changes=[*announced, *one.changes],
                count=one.count,
                size_bytes=min(bytes_max, one.size_bytes),
                committed_at_ms=one.committed_at_ms,
            )
            announced = []
        progress.slots[log] = until
        if announced:
            yield SourceTransaction(position=progress.position(), mark=MARK, changes=announced, count=len(announced))

    # ---- positions

    def is_reached(self, position: Position, target: Position) -> bool:
        """See `ChangeSource`."""
        at, wanted = LakeProgress.parse(position), LakeProgress.parse(target)
        logs = {table.log for table in at.tables.values()}
        return (
            not at.reading()
            and all(at.slots.get(log, -1) >= slot for log, slot in wanted.slots.items() if log in logs)
            and not any(self._can_be_read(name) for name in wanted.tables if name not in at.tables)
        )

    def _can_be_read(self, name: str) -> bool:
        """Whether a table is still there and can be followed: one that was dropped never comes to a position."""
        with self._errors("reading its catalog"), contextlib.suppress(TableNotFound, TableClosed):
            return describe(self._lake.table(name), self._router).problem is None
        return False

    def head(self) -> Position:
        """See `ChangeSource`."""
        progress = LakeProgress()
        with self._errors("reading its logs"):
            for name in self._followed():
                with contextlib.suppress(TableNotFound, TableClosed):
                    table = self._lake.table(name)
                    if describe(table, self._router).problem is not None:
                        continue
                    prefix = self._lake._context.binding_of(name).binding.prefix
                    progress.tables[name] = FollowedTable(id=table.id, log=prefix, columns={})
                    progress.slots[prefix] = max(progress.slots.get(prefix, -1), table.refresh().slot)
        with self._wake:
            self._is_wanted = True
            self._wake.notify_all()
        return progress.position()

    def confirm(self, position: Position) -> None:
        """See `ChangeSource`. The source keeps slots by its own settings."""

    def beat(self) -> None:
        """See `ChangeSource`. Every look moves the stream."""

    def report(self) -> SourceReport:
        """See `ChangeSource`."""
        return SourceReport(head=self.head(), state=f"lake {self._lake.fileio.url}")

    def position_text(self, position: Position) -> str:
        """See `ChangeSource`."""
        return position_text(position)

    def close(self) -> None:
        """See `ChangeSource`."""
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        where = f"The lake {self._lake.fileio.url} of {self._config.name!r}"
        try:
            yield
        except SnapshotExpired as error:
            raise PositionGone(
                f"{where} has cleaned slots that this ingest has not read: {error} What is committed stays, and nothing was left out. Run "
                f"`objcat ingest resnapshot {self._config.path} --all`, which reads all tables again. Let the source keep its slots longer "
                "than an ingest may be away."
            ) from error
        except (Throttled, Unavailable) as error:
            raise SourceAway(f"{where} failed while {doing}: {error}") from error
        except FileIOError as error:
            raise IngestStopped(f"{where} failed while {doing}: {error} What is committed stays. Start again.") from error


def _exists(table: Table, slot: int) -> bool:
    """Whether a table existed at a slot of its log."""
    return table.id in table._context.timeline.at(slot).state


def _group_order(group: FileGroup) -> tuple[str, int, int]:
    return group.group_id.partition, group.group_id.bucket_count, group.group_id.bucket
