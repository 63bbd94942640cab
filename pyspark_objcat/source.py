"""The classes that Spark calls: readers whose tasks are those of a scan or a feed, and writers whose tasks write the files of one
commit."""

# ruff: noqa: N802, N803 - the names of methods and arguments are Spark's

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import objcat
from fileio.errors import FileIOError
from fileio.store import StoreDescription
from objcat.errors import CorruptTable, InvalidInput, ObjcatError
from objcat.metadata.snapshot import Snapshot
from objcat.spark.native.format import ReadsScan
from objcat.spark.stream_sink import QUERY, check_query
from objcat.spark.versions import ArrowStreamWriter, arrow_schema
from objcat.table.scan import Scan
from objcat.tasks.changes import read_changed
from objcat.tasks.scan import scan_groups
from objcat.timeline.log_state import AppVersion
from pyspark_objcat.follow import TableStream, as_declared, columns_of
from pyspark_objcat.job import WriteJob, WrittenFiles, begin_job, give_up
from pyspark_objcat.options import FOLLOWING, FormatOptions, TableAtLoad, parse_options

TASKS_MAX = 64 * 1024

P = ParamSpec("P")
R = TypeVar("R")


def told(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls, so that its errors are short.

    Spark prints where each error was raised and its causes before the message, which no user needs. A corrupt table is an exception to
    that.
    """

    @functools.wraps(method)
    def called(*args: P.args, **named: P.kwargs) -> R:
        try:
            return method(*args, **named)
        except CorruptTable:
            raise
        except (ObjcatError, FileIOError) as error:
            raise error.with_traceback(None) from None

    return called


class DefaultSource(DataSource):
    """The format `objcat`."""

    @told
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(dict(options))
        self._said: TableAtLoad | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "objcat"

    @told
    def schema(self) -> StructType:
        """The schema of a read, also of a stream."""
        parsed = self._parsed
        table = parsed.table()
        if parsed.mode in FOLLOWING:
            snapshot = parsed.end(table)
            found = parsed.followed(snapshot.spec)
        else:
            scan = parsed.scan(table)
            found, snapshot = scan.schema, scan.plan.snapshot
        self._said = TableAtLoad(table.id, snapshot.slot, snapshot.spec.table_schema)
        return from_arrow_schema(pa.schema([field.remove_metadata() for field in found]), prefer_timestamp_ntz=True)

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of a snapshot, or of the changes in a range of slots, by the options."""
        kind = _FeedReader if self._parsed.mode in FOLLOWING else _ScanReader
        return kind(self._parsed, schema, self._said)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer that commits at the end. Raises InvalidInput for the mode `overwrite`, and for a copy-on-write table with a key."""
        if overwrite:
            raise InvalidInput(
                'The format objcat has no mode "overwrite". Nothing was written. Write with .mode("append"), which upserts into '
                "a table with a key, or drop the table first."
            )
        self._parsed.check_write(streams=False)
        return _FormatWriter(begin_job(self._parsed, schema))

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of a table's changes. Raises InvalidInput for options that this PySpark does not support."""
        return TableStream(self._parsed, schema, self._said)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrowStreamWriter:
        """A sink that has every batch exactly once. Raises InvalidInput for a stream without a name, and for the output mode `complete`."""
        if overwrite:
            raise InvalidInput(
                'The format objcat has no output mode "complete". Nothing was written. Use "append", or '
                'objcat.spark.foreach_batch(table, app_id=...) and "update", with a table whose key is what you group by.'
            )
        self._parsed.check_write(streams=True)
        app = self._parsed.app_id()
        return _StreamWriter(begin_job(self._parsed, schema), app, self._parsed.number("resumed_after"))


class _Reader(DataSourceReader):
    """Pickled to the workers before it plans, once, for the first action. `said`: None where Spark was given a schema."""

    def __init__(self, options: FormatOptions, schema: StructType, said: TableAtLoad | None) -> None:
        self._options = options
        self._schema = schema
        self._said = said
        self._store = options.table()._context.fileio.describe()

    def _check(self, table: objcat.Table, snapshot: Snapshot) -> None:
        """Raises InvalidInput for another table, or other columns, than those of the frame."""
        if self._said is not None:
            self._said.check(table, snapshot.slot, snapshot.spec.table_schema, self._schema.fieldNames(), path=self._options.path)


class _ScanReader(_Reader, ReadsScan):
    @property
    def store(self) -> StoreDescription:
        return self._store

    def planned(self) -> Scan:
        table = self._options.table()
        # Without columns, because those of the frame may be gone.
        self._check(table, self._options.scan(table).plan.snapshot)
        return self._options.scan(table, self._schema.fieldNames())

    @told
    def partitions(self) -> Sequence[InputPartition]:
        plan = self.planned().plan
        tasks = plan.tasks(plan.groups, count_max=max(1, min(len(plan.groups), TASKS_MAX)))
        return [InputPartition(pickle.dumps(task)) for task in tasks] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _read(self._store, partition, scan_groups, self._schema)


class _FeedReader(_Reader):
    """Like `_ScanReader`, for a range of slots."""

    @told
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        table = options.table()
        end = options.end(table)
        self._check(table, end)
        columns = columns_of(options, self._schema.fieldNames())
        feed = options.feed(table, options.since, end.slot, columns, end.spec.table_schema)
        tasks: Sequence[Any] = feed.plan.tasks(count_max=TASKS_MAX)
        return [InputPartition(pickle.dumps(task)) for task in tasks] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _read(self._store, partition, read_changed, self._schema)


def _read(store: StoreDescription, partition: InputPartition, read: Any, schema: StructType) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of a pickled task, exactly as Spark declared them."""
    if partition.value is None:
        return
    declared = arrow_schema(schema)
    with store.open() as fileio:
        for rows in read(fileio, pickle.loads(partition.value)):  # noqa: S301 - our own driver wrote it
            yield from as_declared(rows, declared).to_batches()


class _FormatWriter(DataSourceArrowWriter):
    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._job.write(iterator)

    @told
    def commit(self, messages: Sequence[Any]) -> None:
        self._job.commit(_written(messages), app=None, metadata={})

    def abort(self, messages: Sequence[Any]) -> None:  # noqa: ARG002 - the transaction is known without them
        give_up(self._job.options, self._job.task.txn)
        if self._job.made is not None:
            self._job.options.take_back(self._job.made)


class _StreamWriter(ArrowStreamWriter):
    """The writer for the tasks of a batch. Spark commits with another instance, so all that it commits comes in messages."""

    def __init__(self, job: WriteJob, app: str, resumed_after: int | None) -> None:
        self._job = job
        self._app = app
        self._resumed_after = resumed_after

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._job.write(iterator)

    @told
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        written = _written(messages)
        app = AppVersion(app=self._app, version=batchId, resumed_after=self._resumed_after)
        query = next((one.query for one in written if one.query is not None), None)
        metadata: Mapping[str, str] = {} if query is None else {QUERY: query}
        done = self._job.commit(written, app=app, metadata=metadata)
        if done is not None and done.already_applied:
            check_query(self._job.options.table(), done.slot, app, query)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: ARG002 - a batch that is given up has no version yet
        for txn in dict.fromkeys(one.task.txn for one in _written(messages)):
            give_up(self._job.options, txn)


def _written(messages: Sequence[Any]) -> list[WrittenFiles]:
    """The messages of tasks that ended well."""
    return [message for message in messages if isinstance(message, WrittenFiles)]
