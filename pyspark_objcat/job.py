"""A write whose tasks write the table's own files before there is a commit. The files become one commit, or are removed.

Spark runs a source's writer in three places: where it is created, in the tasks, and where messages are committed or aborted. Only values go
between them, so a job is a value, and its transaction has an id before anything is written. Only what Spark passes to the commit counts:
files of failed or superseded attempts are in no message.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import objcat
from fileio.errors import FileIOError
from fileio.store import FileIO, StoreDescription
from objcat.datafile.batch_checks import check_columns, check_delete_columns
from objcat.datafile.casting import named
from objcat.datafile.merge import OP_COLUMN, OP_DELETE
from objcat.datafile.parquet import base_pieces, log_pieces
from objcat.errors import InvalidInput, ObjcatError, StreamRewound, WriterFenced
from objcat.maintenance.auto import AutoMaintenance
from objcat.metadata.files import BaseFile, LogObject
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema import columns_from_arrow
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import parse_predicate
from objcat.spark.engine import schema_of_struct
from objcat.table.context import LatestView
from objcat.tasks.model import OP_FIELD, Operation, WriteResult, WriteTask
from objcat.tasks.write_batches import write_unrouted
from objcat.tasks.write_log_rows import written_columns
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Txn, data_prefix, new_txn
from objcat.timeline.intents import remove_files
from objcat.timeline.log_state import AppVersion
from objcat.write.engine import EngineCapabilities
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import CommitResult, commit_write
from pyspark_objcat.options import COPY_ON_WRITE_REFUSED, LOCATED_REFUSED, CreatedTable, FormatOptions, refused

logger = logging.getLogger("objcat")

QUERY_KEY = "sql.streaming.queryId"
"""The property by which tasks learn their streaming query: an id that its checkpoint stores."""

_MAINTENANCE = AutoMaintenance()
"""Automatic maintenance of the process in which Spark commits, also for the batches of a stream, until it is idle for a minute."""

# As in `objcat.timeline.entry`: types must be resolved before threads use them.
_RESULTS = msgspec.msgpack.Decoder(WriteResult)


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """What one task did.

    Attributes:
        number: of the task.
        task: what it was asked to write.
        result: its files, encoded.
        error: pickled; then there is no result.
        query: the streaming query of the task.
    """

    number: int
    task: WriteTask
    result: bytes | None
    error: bytes | None
    query: str | None


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One write of a frame.

    Attributes:
        schema: of the frame.
        task: what each task writes, whichever rows it gets.
        made: the table that was created for the write, if any.
    """

    options: FormatOptions
    store: StoreDescription
    schema: pa.Schema
    mode: SchemaMode
    task: WriteTask
    made: CreatedTable | None

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
        """In a task: write its rows. An error of theirs goes into the message, because Spark would repeat the task, which mends nothing."""
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty(QUERY_KEY)
        try:
            with self.store.open() as fileio:
                result = write_unrouted(
                    fileio, self.task, f"spark-{number}", (batch.rename_columns(self.schema.names) for batch in batches)
                )
        except (ObjcatError, FileIOError) as error:
            return WrittenFiles(number, self.task, None, pickle.dumps(error), query)
        return WrittenFiles(number, self.task, msgspec.msgpack.encode(result), None, query)

    def commit(self, written: Sequence[WrittenFiles], *, app: AppVersion | None, metadata: Mapping[str, str]) -> CommitResult | None:
        """On the driver: commit what the tasks wrote; None when they had no rows.

        Raises what a task met, and as `Table.upsert`. After any error but CommitUnknown the files are gone.
        """
        table = self.options.table()
        # Of equal keys, the row of the later task counts.
        written = sorted(written, key=lambda one: one.number)
        task = written[0].task if written else self.task
        error = next((one.error for one in written if one.error is not None), None)
        if error is not None:
            _remove(table._context.fileio, task.txn)
            raise pickle.loads(error)  # noqa: S301 - our own executors wrote it
        result = sum((_RESULTS.decode(one.result) for one in written if one.result is not None), WriteResult())
        if not result.rows:
            return None
        given = WrittenFilesEngine(table._context.fileio, self.schema, task, result)
        change = WriteBatch(given, None, task.operation, self.mode, task.delete_when)
        standing = LatestView(table._context.timeline, table._context.timeline.open())
        before = standing.view.outcomes.find(table._context.fileio, task.txn)
        if before is not None and before.committed:
            # A repeated commit has succeeded.
            return None
        if before is not None:
            _remove(table._context.fileio, task.txn)
            raise WriterFenced(
                f"{task.txn} was rolled back at slot {before.slot}, because its writer had written no file for long and was taken "
                "for dead. Nothing of it is visible. Write again."
            )
        part, began_slot = TableWriter(table._context.fileio, table._context.manifests, table.id, [change]), standing.view.slot
        committer = Committer(table._context.fileio)
        try:
            done, followed = commit_write(
                table._context.timeline, committer, [part], standing.view, metadata=metadata, app=app, txn=task.txn
            )
        except StreamRewound:
            _remove(table._context.fileio, task.txn)
            raise
        if done.already_applied:
            if done.txn != task.txn:
                _remove(table._context.fileio, task.txn)
            return done
        if given.superseded:
            remove_files(table._context.fileio, given.superseded, why=task.txn)
        standing.advance(followed)
        table._context.timeline.after_commit(standing.view, standing.adopt_checkpoint)
        _MAINTENANCE.after(table._context.timeline, standing.view, table.id, table._context.manifests, since_slot=began_slot)
        return done


def begin_job(options: FormatOptions, schema: StructType) -> WriteJob:
    """Where the writer is created: open or create the table, and check that the frame fits.

    Raises InvalidInput for a table whose rows must be collected or looked up, InvalidBatch, InvalidSchema, InvalidPredicate, TableNotFound.
    """
    given = schema_of_struct(schema)
    if options.operation is not None and "delete_when" in options.own and options.operation is not Operation.UPSERT:
        raise InvalidInput(f"The option delete_when is for upserts, not for operation={str(options.operation)!r}. Leave one of them out.")
    table, made = options.table_for(given)
    try:
        mode, task = _plan(options, table, given)
    except Exception:
        if made is not None:
            options.take_back(made)
        raise
    return WriteJob(options, table._context.fileio.describe(), given, mode, task, made)


def _plan(options: FormatOptions, table: objcat.Table, given: pa.Schema) -> tuple[SchemaMode, WriteTask]:
    """What tasks write to a table. Raises as `begin_job`."""
    spec = table.spec
    if spec.rewrites and spec.has_key:
        raise InvalidInput(refused(table.name, COPY_ON_WRITE_REFUSED))
    if spec.is_located:
        raise InvalidInput(refused(table.name, LOCATED_REFUSED))
    operation = options.operation_of(spec)
    delete_when = None
    if "delete_when" in options.own:
        if not spec.has_key:
            raise InvalidInput("The table has no key, so nothing says which rows to delete. Leave out the option delete_when.")
        delete_when = parse_predicate(options.own["delete_when"], columns_from_arrow(given))
    mode = options.schema_mode_of(spec)
    change = WriteBatch(WrittenFilesEngine(table._context.fileio, given), None, operation, mode, delete_when)
    (task,) = TableWriter(table._context.fileio, table._context.manifests, table.id, [change]).tasks(
        table.snapshot, new_txn(table._context.fileio.env)
    )
    check = check_delete_columns if operation is Operation.DELETE else check_columns
    check(written_columns(given.names, task.spec, delete_when), task.spec)
    return mode, task


def give_up(options: FormatOptions, txn: Txn) -> None:
    """Remove what the tasks of a job wrote, unless it is committed, which its driver may not know. Never raises."""
    try:
        table = options.table()
        if next(iter(table._context.fileio.list_keys(data_prefix(txn))), None) is not None:
            table.resolve(txn)
    except (ObjcatError, FileIOError) as error:
        logger.warning("The files of %s were not removed; table.maintenance.rollback_failed_writes() will remove them: %s", txn, error)


def _remove(fileio: FileIO, txn: Txn) -> None:
    """Remove the files of a transaction that has asked for no slot, and will not."""
    try:
        keys = list(fileio.list_keys(data_prefix(txn)))
    except FileIOError as error:
        logger.warning("The files of %s were not removed; table.maintenance.rollback_failed_writes() will remove them: %s", txn, error)
        return
    if keys:
        remove_files(fileio, keys, why=txn)


class WrittenFilesEngine:
    """An engine for files that exist already.

    When the table changed since they were planned, so that they do not fit (other columns, partitions or buckets), this process writes
    their rows again from the files. `superseded`: the files that were replaced so.
    """

    def __init__(self, fileio: FileIO, schema: pa.Schema, task: WriteTask | None = None, written: WriteResult | None = None) -> None:
        from pyspark import __version__

        self.name = f"spark {__version__}"
        self.superseded: list[str] = []
        self._fileio = fileio
        self._schema = schema
        self._task = task
        self._written = WriteResult() if written is None else written

    @property
    def capabilities(self) -> EngineCapabilities:
        """None: the files are there, and no key is looked up."""
        return EngineCapabilities()

    def partitions(self, data: None, spec: TableSpec, former: Collection[str]) -> None:
        """Not known."""

    def schema(self, data: None) -> pa.Schema:  # noqa: ARG002 - there is but one
        """The columns of the frame."""
        return self._schema

    def write(self, data: None, task: WriteTask) -> WriteResult:  # noqa: ARG002 - the rows are in the files
        """The files, or new ones with their rows. Raises InvalidBatch where they do not fit a changed table, and storage errors."""
        assert self._task is not None, "nothing is written by what only plans"
        if task.only is None and _fits(self._task, task):
            return self._written
        files: list[BaseFile | LogObject] = [*self._written.bases, *self._written.logs]
        if task.only is None:
            self.superseded = [file.path for file in files]
        mark = _free_name(task.spec)
        again = task
        if task.delete_when is not None:
            deleted = parse_predicate(f"{mark} = {OP_DELETE}", columns_from_arrow(pa.schema([pa.field(mark, OP_FIELD.type)])))
            again = replace(task, delete_when=deleted)
        # File by file, as each holds a key once. So a file group has as many rows as before, and later rows stay later.
        results = (
            write_unrouted(self._fileio, again, f"again-{number}", self._rows(file, task, mark)) for number, file in enumerate(files)
        )
        return sum(results, WriteResult())

    def _rows(self, file: BaseFile | LogObject, task: WriteTask, mark: str) -> Iterator[pa.RecordBatch]:
        """The rows of a file as a user's batch for the current table. `mark`: the column that says which rows are deletes."""
        assert self._task is not None
        schema = task.spec.table_schema
        earlier = {column.physical for column in self._task.spec.table_schema.columns}
        columns = [column for column in schema.columns if column.physical in earlier]
        if task.operation is Operation.DELETE:
            columns = [column for column in columns if column.name in self._schema.names]
        physical = [column.physical for column in columns]
        fields = [schema.to_arrow().field(column.name).with_nullable(True) for column in columns]
        pieces = (
            log_pieces(self._fileio, file, 0, file.rows, physical, schema)
            if isinstance(file, LogObject)
            else base_pieces(self._fileio, file, physical, spec=task.spec)
        )
        for piece in pieces:
            rows = named(piece.select(physical).rename_columns([column.name for column in columns]), pa.schema(fields))
            if task.delete_when is not None:
                rows = rows.append_column(mark, piece.column(OP_COLUMN))
            yield from rows.to_batches()


def _fits(planned: WriteTask, task: WriteTask) -> bool:
    """Whether what was written for one task is what another asks for."""

    def relevant(one: WriteTask) -> Any:
        return msgspec.structs.replace(one.spec, properties={}), dict(one.bucket_counts), one.previous_partitions

    return bool(relevant(planned) == relevant(task))


def _free_name(spec: TableSpec) -> str:
    """A name that no column of the table has."""
    name = "op"
    while name in (known.lower() for known in spec.table_schema.names):
        name += "_"
    return name
