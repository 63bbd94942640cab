"""Transactions: reads and writes of several tables that share a log, committed in one slot."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fileio.errors import FileIOError
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NameBinding
from objcat.common.memory_errors import after_commit, reports_full_memory
from objcat.common.validation import (
    IsolationName,
    SchemaModeName,
    case_folded,
    instance,
    name_list,
    one_of,
    shown,
    text,
    text_mapping,
    whole_number,
)
from objcat.engine.local import to_arrow_batch
from objcat.engine.spooled_batch import SPOOL_SHARE, RowSpool
from objcat.errors import EmptyBatch, InvalidInput, ObjcatError, TablesInSeveralLogs
from objcat.maintenance.auto import AutoMaintenance
from objcat.maintenance.savepoint import check_readable
from objcat.metadata.manifest import Manifests
from objcat.metadata.schema_evolution import ColumnChange
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.planning.commits import Commits
from objcat.planning.scan import plan_scan
from objcat.table.alter import ColumnAlterer
from objcat.table.batch_input import prepare_batch, session_of, workers_on
from objcat.table.block_calls import BlockCalls
from objcat.table.block_steps import DeleteStep, check_inside, check_range, parse_partial, replacing_steps
from objcat.table.partial_rows import is_ragged
from objcat.table.scan import Scan
from objcat.tasks.model import Operation
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Entry, Footprint
from objcat.timeline.log_state import AppVersion
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.position import SourcePosition, check_position
from objcat.timeline.reopening import reopening
from objcat.write.block_writer import AlterStep, TruncateStep
from objcat.write.table_writer import WriteBatch
from objcat.write.transaction import CommitResult, commit_parts

logger = logging.getLogger("objcat")

R = TypeVar("R")

OpenLog: TypeAlias = Callable[[str], tuple[Timeline[Tables], LogView[Tables]]]
"""Opens the log below a prefix of the lake at its newest view."""
KeepLog: TypeAlias = Callable[[str, LogView[Tables]], None]
"""Caches a newer view of the log below a prefix."""


class Isolation(enum.StrEnum):
    """What a transaction that reads is protected from.

    SNAPSHOT: buckets that it writes have not changed since its snapshot. SERIALIZABLE: nor have the tables that it reads.
    """

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


@dataclass(slots=True, kw_only=True)
class _Block:
    """What a block has named and done so far. `first`: what named its log. `opened`: the slot that it reads. `spool`: holds its rows.
    `calls`: by table id. `read`: the tables that were scanned."""

    first: str
    prefix: str
    timeline: Timeline[Tables]
    view: LogView[Tables]
    opened: int
    keep: KeepLog
    manifests: Manifests
    spool: RowSpool
    calls: dict[str, BlockCalls] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    is_open: bool = True

    def check_open(self) -> None:
        """Raises InvalidInput after the end of the block."""
        if not self.is_open:
            raise InvalidInput("The transaction has ended. Begin another one with lake.transaction().")

    def snapshot(self, table: str) -> Snapshot:
        """A table as the block reads it."""
        return snapshot_of(self.view, table, where=self.timeline.fileio.url)

    def on(self, table: str) -> BlockCalls:
        """The calls on a table."""
        if table not in self.calls:
            self.calls[table] = BlockCalls(self.snapshot(table).spec)
        return self.calls[table]

    def standing(self, work: Callable[[], R]) -> R:
        """Run `work`; again, from the same slot on another checkpoint, when the view's checkpoint was deleted."""

        def reopen() -> None:
            self.view = self.timeline.at(self.view.slot)
            self.keep(self.prefix, self.view)

        return reopening(self.timeline, work, reopen)

    def check_readable(self, table: str) -> None:
        """Raises SnapshotExpired when the slot that the block reads was cleaned."""
        check_readable(self.timeline.refresh(self.view).log, table, self.view.slot, where=self.timeline.fileio.url)


class TransactionAlterer(ColumnAlterer):
    """Changes the columns of one table in a transaction (`tx[name].alter`). Later batches of the block are of the new columns.

    The changes are applied to the columns that the table has at the commit. If another commit has changed these, and a change does not fit
    any more, the block fails with InvalidSchema, and nothing is written.
    """

    def __init__(self, name: str, block: _Block, table: str) -> None:
        self.name = name
        self._block = block
        self.id = table

    def __repr__(self) -> str:
        return f"TransactionAlterer({self.name!r})"

    def _apply(self, changes: Sequence[ColumnChange]) -> None:
        self._block.check_open()
        self._block.on(self.id).add([AlterStep(tuple(changes))])


@reports_full_memory
class TransactionTable:
    """A table inside a transaction. What it writes is committed at the end of the block."""

    def __init__(self, name: str, block: _Block, table: str) -> None:
        self.name = name
        self._block = block
        self.id = table

    def __repr__(self) -> str:
        return f"TransactionTable({self.name!r}, slot {self.snapshot.slot})"

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the table that the block reads."""
        return self._block.snapshot(self.id)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, by their current names, after the block's own changes of columns."""
        return self._block.on(self.id).spec.table_schema.to_arrow()

    @property
    def alter(self) -> TransactionAlterer:
        """Changes of columns: `apply`, `add_column`, `drop_column`, `rename_column`, `move_column`, `widen_column`, `drop_not_null`."""
        return TransactionAlterer(self.name, self._block, self.id)

    def upsert(self, data: Any, *, schema_mode: SchemaModeName | None = None, delete_when: str | None = None) -> None:
        """Insert or replace rows by key at the end of the block. Do not change the data before.

        Args:
            data, schema_mode, delete_when: see `Table.upsert`.

        Raises:
            InvalidBatch, InvalidSchema, InvalidPredicate: the batch does not fit.
        """
        self._change(data, Operation.UPSERT, schema_mode, delete_when)

    def insert(self, data: Any, *, schema_mode: SchemaModeName | None = None) -> None:
        """Insert rows whose keys you declare new, at the end of the block. Do not change the data before.

        Args:
            data, schema_mode: see `Table.upsert`.

        Raises:
            InvalidBatch, InvalidSchema: the batch does not fit.
        """
        self._change(data, Operation.INSERT, schema_mode)

    def delete(self, keys: Any) -> None:
        """Delete rows by key at the end of the block.

        Args:
            keys: a batch with the key columns, see `Table.delete`. A filter belongs to `delete_where`.

        Raises:
            InvalidBatch: the batch does not fit.
        """
        if isinstance(keys, (str, pc.Expression)):
            raise InvalidInput("delete() of a transaction takes a batch of keys. Delete by a filter with delete_where(filter).")
        self._change(keys, Operation.DELETE)

    def delete_where(self, where: str | pc.Expression) -> None:
        """Delete the rows for which a filter is true: those of the table at the commit, and those of earlier calls of the block.

        If another commit changes rows that the filter can reach, they are read again. With an ordering column, older rows of the deleted
        keys stay out, as by `Table.delete` with a filter; a later call of the block counts only with a value that is not older.

        Args:
            where: a filter, see `Table.delete`.

        Raises:
            InvalidPredicate: the filter does not parse or fit.
            InvalidInput: computed terms in a table with allowed_lateness.
            MissingDependency: DuckDB, which evaluates computed terms, is missing.
        """
        self._block.check_open()
        if not isinstance(where, (str, pc.Expression)):
            raise InvalidInput(f"delete_where() takes a filter, and {shown(where)} is none. Delete by key with delete(keys).")
        step = DeleteStep(where, self.name)
        step.check(self._block.on(self.id).spec)
        self._block.on(self.id).add([step])

    def truncate(self) -> None:
        """Delete all rows: those of the table at the commit, and those of earlier calls of the block, which are not written at all.

        It reads no row and names no key, so it is never repeated because of other writers. With an ordering column, older rows that come
        late are let in again.
        """
        self._block.check_open()
        self._block.on(self.id).add([TruncateStep()])

    def replace_range(self, data: Any, *, where: str | pc.Expression, schema_mode: SchemaModeName | None = None) -> None:
        """Replace the rows for which a filter is true by a batch. At this point of the block, the batch is exactly what the filter finds.

        Rows of the table are replaced whatever their ordering values, and older rows that come late are let in again. If another commit
        changes rows that the filter can reach, they are read again.

        Args:
            data: see `Table.upsert`. An empty batch only deletes. In a table without a key its rows are inserted.
            where: a filter that a scan can apply, see `Table.scan`. It must be true of every row of the batch.
            schema_mode: see `Table.upsert`.

        Raises:
            InvalidBatch: the batch does not fit, or a row is not in the range.
            InvalidPredicate: the filter does not parse or fit.
            InvalidInput: the filter has computed terms, or the table has allowed_lateness.
        """
        self._block.check_open()
        spec = self._block.on(self.id).spec
        check_range(spec, where, name=self.name)
        try:
            change: WriteBatch | None = self._batch(data, Operation.UPSERT if spec.has_key else Operation.INSERT, schema_mode)
        except EmptyBatch:
            change = None
        if change is not None:
            spec = change.widened_spec(spec)
            check_inside(change, check_range(spec, where, name=self.name), spec)
        self._block.on(self.id).add(replacing_steps(where, change, spec, self._block.timeline.fileio, name=self.name))

    def upsert_partial(self, data: Any) -> None:
        """Insert or update rows by key of which the batch has only some columns. The others keep their values, and are null in new rows.

        It sees rows of earlier calls of the block. If another commit changes the file groups of its keys, they are read again.

        Args:
            data: a batch of this process, see `Table.upsert_partial`.

        Raises:
            InvalidBatch, NullKey: the batch does not fit.
            InvalidInput: the table has no key, or allowed_lateness.
            MissingDependency: DuckDB, which joins the rows, is missing.
        """
        self._block.check_open()
        calls = self._block.on(self.id)
        calls.add([parse_partial(data, calls.spec, self._block.spool, ragged=is_ragged(data), name=self.name)])

    def scan(self, *, where: str | pc.Expression | None = None, columns: Sequence[str] | None = None, limit: int | None = None) -> Scan:
        """Plan a scan of the transaction's snapshot. It sees neither the block's own writes nor later commits.

        Args:
            where, columns, limit: see `Table.scan`.

        Returns:
            A `Scan`.

        Raises:
            ObjcatError: the errors of `Table.scan`.
        """
        block, table = self._block, self.id
        block.check_open()
        if columns is not None:
            name_list(columns, what="columns")
        if limit is not None:
            whole_number(limit, what="limit")
        plan = block.standing(lambda: plan_scan(self.snapshot, block.manifests, where=where, columns=columns))
        block.read.add(table)
        commits = Commits(block.timeline.fileio)
        return Scan(
            block.timeline.fileio,
            plan,
            block.manifests,
            limit=limit,
            check=lambda: block.check_readable(table),
            commits=lambda txns: block.standing(lambda: commits.find(block.view.outcomes, txns)),
        )

    def _change(self, data: Any, operation: Operation, schema_mode: SchemaModeName | None = None, delete_when: str | None = None) -> None:
        self._block.check_open()
        self._block.on(self.id).add_rows(self._batch(data, operation, schema_mode, delete_when))

    def _batch(
        self, data: Any, operation: Operation, schema_mode: SchemaModeName | None = None, delete_when: str | None = None
    ) -> WriteBatch:
        spec = self._block.on(self.id).spec
        rows = to_arrow_batch(data, spec.table_schema, self._block.spool)
        batch = data if rows is None else rows
        return prepare_batch(self._block.timeline.fileio, batch, spec, operation, schema_mode, delete_when, table=self.name)


@reports_full_memory
class Transaction:
    """Reads and writes of several tables with one shared log: all of it becomes visible at once, or nothing. A context manager, for one
    thread.

    All scans see one snapshot, taken when the block names its first table, or begins with a shared log. They do not see the block's own
    writes. Arguments are checked when they are passed; files are written at the end of the block, and committed in one slot. The calls on
    one table have the effect of commits of their own, one after another: each sees the rows and columns that the calls before it left. An
    exception ends the block; then nothing was written.

    `result`: the commit, after the block; None when it changed nothing and has no position.
    """

    def __init__(  # noqa: PLR0913 - one for each setting of a block
        self,
        catalog: Catalog,
        open_log: OpenLog,
        keep_log: KeepLog,
        *,
        isolation: IsolationName,
        metadata: Mapping[str, str],
        app: AppVersion | None,
        position: SourcePosition | None,
        shared_log: str | None,
        auto_maintenance: AutoMaintenance,
    ) -> None:
        self.isolation = Isolation(one_of(isolation, Isolation, what="isolation"))
        self.result: CommitResult | None = None
        self._catalog = catalog
        self._open_log = open_log
        self._keep_log = keep_log
        self._metadata = text_mapping(metadata, what="metadata")
        self._app = app
        self._position, self._shared_log = _checked_position(position, shared_log, app)
        self._auto_maintenance = auto_maintenance
        self._names: CatalogNames | None = None
        self._block: _Block | None = None
        self._tables: dict[str, TransactionTable] = {}
        self._has_ended = False

    def __enter__(self) -> Self:
        if self._names is not None or self._has_ended:
            raise InvalidInput("A transaction has one block. Begin another one with lake.transaction().")
        self._names = self._catalog.refresh()
        if self._shared_log is not None:
            self._block = self._block_at(self._names, self._shared_log)
            check_position(self._position, self._block.view.log.sources)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._has_ended = True
        if self._block is not None:
            self._block.is_open = False
            if kind is None:
                self.result = self._commit(self._block)

    def __getitem__(self, name: str) -> TransactionTable:
        """The table of that name, inside this transaction.

        Raises TableNotFound, TableClosed, and TablesInSeveralLogs when it does not share the log of the tables named before.
        """
        if self._names is None or self._has_ended:
            raise InvalidInput("The transaction is not open. Use it inside its block, `with lake.transaction() as tx:`.")
        bound = self._names.table(text(name, what="name of a table"))
        if bound is None:
            raise self._names.not_found(name, where=self._catalog.where)
        binding = bound.binding
        if binding.table not in self._tables:
            block = self._block_of(binding)
            block.snapshot(binding.table)
            self._tables[binding.table] = TransactionTable(binding.name, block, binding.table)
        return self._tables[binding.table]

    def _block_of(self, binding: NameBinding) -> _Block:
        if self._block is None:
            self._block = self._begin(f"The table {binding.name!r}", binding.prefix)
        if self._block.prefix != binding.prefix:
            raise TablesInSeveralLogs(
                f"{self._block.first} and the table {binding.name!r} have separate logs, so one commit cannot change both. "
                "Nothing was written. Create such tables with one shared log, lake.create_table(name, ..., shared_log='...'), or move one "
                "with lake.move_to_shared_log()."
            )
        return self._block

    def _block_at(self, names: CatalogNames, shared_log: str) -> _Block:
        """A block in a shared log, before it names a table. Raises InvalidInput where no table was created in that log."""
        prefix = names.shared_logs.get(case_folded(shared_log))
        block = None if prefix is None else self._begin(f"The shared log {shared_log!r}", prefix)
        if block is None or block.view.slot < 0:
            raise InvalidInput(
                f"There is no shared log {shared_log!r} in {self._catalog.where}. Nothing was written. Create its first table with "
                f"lake.create_table(name, ..., shared_log={shared_log!r})."
            )
        return block

    def _begin(self, first: str, prefix: str) -> _Block:
        timeline, view = self._open_log(prefix)
        return _Block(
            first=first,
            prefix=prefix,
            timeline=timeline,
            view=view,
            opened=view.slot,
            keep=self._keep_log,
            manifests=Manifests(timeline.fileio),
            spool=RowSpool(bytes_max=timeline.fileio.env.memory_bytes // SPOOL_SHARE),
        )

    def _commit(self, block: _Block) -> CommitResult | None:
        timeline = block.timeline
        parts = [calls.part(timeline.fileio, block.manifests, table) for table, calls in block.calls.items() if calls]
        if not parts and self._position is None:
            return None
        committer = Committer(timeline.fileio)
        # A block that read nothing may begin from the newest state.
        reads: dict[str, Footprint] | None = None
        if block.read:
            serializable = self.isolation is Isolation.SERIALIZABLE
            reads = {table: Footprint(read_partitions=("",)) for table in sorted(block.read) if serializable}

        def write() -> tuple[LogView[Tables], tuple[CommitResult | None, Sequence[Entry]]]:
            began = timeline.refresh(block.view) if reads is None else block.view
            done = commit_parts(
                timeline, committer, parts, began, metadata=self._metadata, app=self._app, position=self._position, reads=reads
            )
            return began, done

        view, (result, followed) = block.standing(write)
        if result is None:
            return None
        try:
            view = timeline.advance(view, followed)
        except (ObjcatError, FileIOError, MemoryError) as error:
            logger.warning("The log at %s was not replayed up to slot %d, which is durable: %s", timeline.fileio.url, result.slot, error)
            return result
        with after_commit(result.slot):
            self._keep_log(block.prefix, view)
            timeline.after_commit(view, lambda standing: self._keep_log(block.prefix, timeline.adopt_checkpoint(view, standing)))
            if not result.already_applied:
                self._look_after(block, view)
        return result

    def _look_after(self, block: _Block, view: LogView[Tables]) -> None:
        """Start maintenance of every table that the block has written, as after a single write."""
        for table in self._tables.values():
            calls = block.calls.get(table.id)
            if calls is None:
                continue
            spark = next((spark for data in calls.frames if (spark := session_of(data)) is not None), None)
            workers = None if spark is None else partial(workers_on, spark, block.timeline.fileio, table=table.name)
            if calls:
                self._auto_maintenance.after(
                    block.timeline, view, table.id, block.manifests, since_slot=block.opened, name=table.name, workers=workers
                )


def _checked_position(
    position: SourcePosition | None, shared_log: str | None, app: AppVersion | None
) -> tuple[SourcePosition | None, str | None]:
    """The position of a transaction and the name of its log. Raises InvalidInput."""
    if shared_log is not None:
        text(shared_log, what="shared_log")
    if position is None:
        return None, shared_log
    instance(position, SourcePosition, what="position", such_as="an objcat.SourcePosition(source='...', state={...}, since=...)")
    if shared_log is None:
        raise InvalidInput("A position is in a shared log. Give its name too, lake.transaction(shared_log='...', position=...).")
    if app is not None:
        raise InvalidInput("A position counts the commits of its source, as a version of an application does. Give one of the two.")
    return position, shared_log
