"""Writes on Spark: the task functions of `objcat.tasks` inside `mapInArrow`, so that they also run on Spark Connect.

Begin with `SparkEngine`, the `Engine` that `objcat.write` uses for DataFrames, and `run_tasks`, which runs a function over each partition
of a frame.
A worker opens the store from its description, writes files, and returns what it wrote; only the driver commits. A frame is computed once
for each call, so its tasks can be repeated: the files of an attempt that ended early are in no commit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from fileio.errors import FileIOError
from fileio.store import FileIO, StoreDescription
from objcat.datafile.batch_checks import check_columns, check_delete_columns, check_named_once
from objcat.engine.local import LocalEngine
from objcat.errors import InvalidBatch, ObjcatError
from objcat.metadata.table_spec import MemoryIndexSpec, TableSpec
from objcat.predicate.parse import Predicate
from objcat.spark import frames
from objcat.spark.batches import in_batches_of_rows
from objcat.spark.frames import CachedFrame, cached_frame, unpersist_quietly
from objcat.spark.index_lookup import (
    GatheredFrame,
    LocatedFrame,
    LookupJoin,
    gathered_frame,
    located_frame,
    new_frame,
    partitions_of_frame,
    placed_frame,
)
from objcat.spark.jobs import described
from objcat.spark.native.column_names import quoted
from objcat.spark.partition_moves import MovingFrame, moved_frame, moving_frame
from objcat.spark.routing import by_bucket, by_group, in_buckets_of, is_of_files, is_worth_a_shuffle, partition_columns
from objcat.spark.versions import arrow_schema
from objcat.spark.worker_task import BatchFunction, gave_others, opened, spark_task
from objcat.tasks.key_lookup import BatchKeys, BatchKeysHandle, KeyLocations, LocateTask
from objcat.tasks.model import PLACE_COLUMN, Operation, WriteLayout, WriteResult, WriteTask
from objcat.tasks.shuffle_order import POSITION, in_frame_order
from objcat.tasks.write_batches import write_routed, write_unrouted
from objcat.tasks.write_log_rows import written_columns
from objcat.write.engine import EngineCapabilities

# As in `objcat.timeline.entry`: types must be resolved before threads use them.
_RESULTS = msgspec.msgpack.Decoder(WriteResult)
_RESULT_SCHEMA = "task int, result binary, error binary"
JOBS_MAX = 3
"""Jobs for one batch, where executors are lost."""


class SparkEngine:
    """Runs task functions on the executors of the DataFrame's session. Each opens the store itself. `table`: its name in job
    descriptions."""

    def __init__(self, store: StoreDescription, *, table: str) -> None:
        self._store = store
        self._table = table
        self.name = "spark"

    @property
    def capabilities(self) -> EngineCapabilities:
        """It looks keys up on executors, collects the keys of small batches, and caches frames."""
        return EngineCapabilities(key_lookup=self, collectable_keys=self, batch_cache=self)

    def check(self, data: DataFrame, spec: TableSpec, operation: Operation, delete_when: Predicate | None = None) -> None:
        """Refuse a frame that cannot be written, before a job runs. `delete_when`: see `WriteTask`. Raises InvalidBatch."""
        known = _known_schema(data)
        if known is not None and operation is not Operation.DELETE:
            check_named_once(known)
        _check(data, spec, operation, delete_when)
        self.name = f"spark {data.sparkSession.version}"

    def partitions(self, data: DataFrame, spec: TableSpec, former: Collection[str]) -> None:
        """None: finding out would take a job of its own."""

    def partitions_named(self, data: DataFrame, spec: TableSpec, former: Collection[str]) -> Collection[str]:
        """The partitions of the frame's rows. A job of its own."""
        with described(data.sparkSession, f"objcat: look at the partitions for {self._table}"):
            return partitions_of_frame(data, spec, former)

    def all_pass(self, data: DataFrame, where: Predicate) -> bool:
        """Whether a filter is true for all rows. A job of its own. Raises SparkJobFailed, SparkJobLost."""
        with described(data.sparkSession, f"objcat: look at the rows for {self._table}"):
            return data.where(f"NOT coalesce({where.to_spark_sql()}, false)").isEmpty()

    def schema(self, data: DataFrame) -> pa.Schema:
        """The columns of the frame. Raises InvalidBatch for a type that Arrow does not have."""
        return schema_of_frame(data)

    def write(self, data: DataFrame, task: WriteTask) -> WriteResult:
        """Write every partition; returns the files in the order of the partitions.

        The frame is computed once for each call, and a rewrite after a conflict (`task.only`) computes those rows again. The caller must
        cache or checkpoint a frame that does not give the same rows each time. Raises InvalidBatch, NullKey and storage errors of the
        executors.
        """
        # The table may have other columns than when the frame was checked.
        with self._writing(data, task):
            _check(data, task.spec, task.operation, task.delete_when)
            if task.only is not None:
                data = data.where(in_buckets_of(task.spec, task.only))
            if task.routed:
                data = by_group(data, task.spec, keeps_order=task.operation is not Operation.DELETE)
            elif task.spec.has_key and is_worth_a_shuffle(data, task.spec):
                data = by_bucket(data, task.spec)
            if task.layout is not None:
                data = _laid_out(data, task.spec, task.layout)
            # mapInArrow looks columns up by unquoted names and fails at a dot, so they go by number.
            names = data.columns
            return self._run(data.toDF(*map(str, range(len(names)))), names, task)

    def first(self, data: DataFrame, spec: TableSpec) -> KeyLocations | None:
        """A large frame for an empty table: rows of files, counted beforehand, that go by their keys alone. Raises as `kept`."""
        with described(data.sparkSession, f"objcat: count the rows for {self._table}"):
            self.schema(data)
            if spec.partition_columns or spec.is_global or isinstance(spec.index, MemoryIndexSpec) or not is_of_files(data):
                return None
            count = data.count()
        names = tuple(data.columns)
        return new_frame(data.toDF(*map(str, range(len(names)))), names, spec, count=count) if count > frames.ROWS_MAX else None

    @contextmanager
    def kept(self, data: DataFrame, fileio: FileIO, *, here: bool) -> Iterator[tuple[SparkEngine | LocalEngine, CachedFrame | pa.Table]]:
        """The frame, computed once. With `here`, a small one is collected to the driver, where writing needs no more jobs.

        Raises InvalidBatch for a type that Arrow does not have, and storage errors of the executors.
        """
        with ExitStack() as held:
            with described(data.sparkSession, f"objcat: look at the rows for {self._table}"):
                schema = self.schema(data)
                frame = held.enter_context(cached_frame(data))
                rows = frame.collected(schema) if here else None
            if rows is None:
                yield self, frame
            else:
                yield LocalEngine(fileio), rows

    @contextmanager
    def gathered(self, data: CachedFrame, spec: TableSpec, former: Collection[str]) -> Iterator[BatchKeysHandle]:
        """The keys of a frame. Raises storage errors of the executors."""
        with described(data.rows.sparkSession, f"objcat: look at the keys for {self._table}"):
            yield gathered_frame(data, spec, former)

    def locate(self, gathered: BatchKeysHandle, task: LocateTask) -> KeyLocations:
        """Look up the file groups of the frame's keys by a join. Spark caches the frame until it is written. Raises storage errors."""
        frame: GatheredFrame = gathered.data
        if task.is_first and not task.spec.partition_columns and not task.spec.is_global:
            return new_frame(frame.rows, frame.names, task.spec, count=gathered.span.rows)
        with described(frame.rows.sparkSession, f"objcat: find the keys of {self._table}"):
            if task.spec.is_global:
                looked_for = LookupJoin.of(gathered.span, frame.probe, frame.keys)
                located = moving_frame(self._store, frame.rows, frame.names, task, looked_for)
            else:
                located = located_frame(self._store, gathered, task)
        # Its result is cached.
        unpersist_quietly(frame.rows)
        return located

    def keys_told(self, gathered: BatchKeysHandle) -> BatchKeys | None:
        """The keys of a frame, in some order; None when there are too many."""
        frame: GatheredFrame = gathered.data
        return frame.keys

    def write_placed(self, located: KeyLocations, targets: Mapping[str, tuple[int, ...]], task: WriteTask) -> WriteResult:
        """Write the rows where `located` says. Raises as `write`."""
        batch: LocatedFrame | MovingFrame = located.data
        with self._writing(batch.rows, task):
            if isinstance(batch, MovingFrame):
                return self._run(moved_frame(batch, targets), [*batch.names, PLACE_COLUMN], task)
            return self._run(placed_frame(batch, targets), [*batch.names, PLACE_COLUMN, POSITION], task)

    def _writing(self, data: DataFrame, task: WriteTask) -> AbstractContextManager[None]:
        return described(data.sparkSession, f"objcat: {task.operation} {self._table}")

    def _run(self, numbered: DataFrame, names: Sequence[str], task: WriteTask) -> WriteResult:
        """Write a frame whose columns go by number. `names`: their names; `POSITION` as the last one gives the order of rows."""
        function = spark_task(_write_batches, self._store, task, names)
        return in_batches_of_rows(numbered, task.spec.table, lambda rows: run_tasks(rows, function))


def run_tasks(data: DataFrame, function: BatchFunction) -> WriteResult:
    """Run a function that yields rows of `task_result_row` over every partition; returns the files by task number.

    Raises the error that a task reported. When an executor is lost, Spark may end a job because some tasks would see other rows than tasks
    that have ended. Such a job is done again from the start; the files of its ended tasks are in no result.
    """
    rows = _collected(data, function)
    for row in rows:
        if row.error is not None:
            raise pickle.loads(bytes(row.error))  # noqa: S301 - our own executors wrote it
    return sum((_RESULTS.decode(row.result) for row in sorted(rows, key=lambda row: row.task)), WriteResult())


def _collected(data: DataFrame, function: BatchFunction) -> list[Row]:
    for _ in range(JOBS_MAX - 1):
        try:
            # A new frame: one that was computed before reuses what is left of its shuffles.
            return data.mapInArrow(function, _RESULT_SCHEMA).collect()
        except Exception as error:
            if not gave_others(error):
                raise
    return data.mapInArrow(function, _RESULT_SCHEMA).collect()


def task_result_row(number: int, work: Callable[[], WriteResult]) -> pa.RecordBatch:
    """On a worker: one row with the number of a task, and its result or its error."""
    result, error = None, None
    try:
        result = msgspec.msgpack.encode(work())
    except (ObjcatError, FileIOError) as failure:
        # Returned, not raised: Spark would repeat the task, which cannot mend a bad row, and hide the message in a stack trace.
        error = pickle.dumps(failure)
    return pa.RecordBatch.from_pydict(
        {"task": pa.array([number], pa.int32()), "result": pa.array([result], pa.binary()), "error": pa.array([error], pa.binary())}
    )


def schema_of_frame(data: DataFrame) -> pa.Schema:
    """The columns of a batch. Raises InvalidBatch for no batch, for a type that Arrow does not have, and for two columns of one name."""
    return _checked(_known_schema(data), what="The frame")


def schema_of_struct(schema: StructType) -> pa.Schema:
    """The columns of a Spark schema. Raises InvalidBatch as `schema_of_frame`."""
    return _checked(_named(schema, what="The schema"), what="The schema")


def _checked(found: pa.Schema | None, *, what: str) -> pa.Schema:
    if found is None:
        raise InvalidBatch(f"{what} has a list or a map whose elements have no type. Nothing was written. Cast it to one that has.")
    check_named_once(found)
    return found


def _known_schema(data: DataFrame) -> pa.Schema | None:
    """As `schema_of_frame`; None where Arrow cannot name a Spark type: the elements of `array()` have none, and are never null."""
    # A Column has every attribute: it reads them as struct fields.
    if not hasattr(type(data), "mapInArrow"):
        raise InvalidBatch(
            f"A {type(data).__name__} is not a batch of rows. Give a Spark DataFrame, an Arrow table, or a pandas or polars frame."
        )
    if data.isStreaming:
        raise InvalidBatch(
            "A streaming frame is not a batch of rows. Nothing was written. Write it with a streaming query: "
            'frame.writeStream.format("objcat").'
        )
    try:
        schema = data.schema
    except PySparkException as error:
        # Older versions know no Python type for some of Spark's.
        raise _unheld(error, what="The frame") from error
    return _named(schema, what="The frame")


def _unheld(error: PySparkException, *, what: str) -> InvalidBatch:
    return InvalidBatch(
        f"{what} has a column of a type that Parquet does not hold ({' '.join(str(error).split())}). Nothing was written. Cast it."
    )


def _named(schema: StructType, *, what: str) -> pa.Schema | None:
    try:
        found = arrow_schema(schema)
    except PySparkException as error:
        raise _unheld(error, what=what) from error
    except ValueError:
        return None
    for field, said in zip(schema.fields, found, strict=True):
        foreign = _foreign(field.dataType, said.type)
        if foreign is not None:
            raise InvalidBatch(
                f"{what} has the column {field.name!r} of the type {foreign.simpleString()}, which tables do not have; it would "
                "become a struct of bytes. Nothing was written. Write text or bytes (to_json of a variant, st_asbinary of a "
                "geometry)."
            )
    return found


def _foreign(kind: DataType, said: pa.DataType) -> DataType | None:
    """The first type within a Spark type that Arrow maps to a struct although it is none."""
    match kind:
        case StructType():
            inner = [(field.dataType, said.field(number).type) for number, field in enumerate(kind.fields)]
        case ArrayType():
            inner = [(kind.elementType, said.value_type)]
        case MapType():
            inner = [(kind.keyType, said.key_type), (kind.valueType, said.item_type)]
        case UserDefinedType():
            # A user-defined type declares how it is stored.
            inner = []
        case _:
            return kind if pa.types.is_struct(said) else None
    return next((foreign for pair in inner if (foreign := _foreign(*pair)) is not None), None)


def _laid_out(data: DataFrame, spec: TableSpec, layout: WriteLayout) -> DataFrame:
    """The frame in the layout of a bulk insert."""
    if layout.columns:
        names = [quoted(name) for name in layout.columns]
        return data.repartitionByRange(*names).sortWithinPartitions(*names)
    columns = partition_columns(spec) if layout.by_partition else []
    return data.repartition(*columns) if columns else data


def _check(data: DataFrame, spec: TableSpec, operation: Operation, delete_when: Predicate | None) -> None:
    (check_delete_columns if operation is Operation.DELETE else check_columns)(written_columns(data.columns, spec, delete_when), spec)


def _write_batches(
    store: StoreDescription, task: WriteTask, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the batches of one partition of a frame. Yields one row, see `task_result_row`."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    named: Iterable[pa.RecordBatch] = (batch.rename_columns(names) for batch in batches)
    if POSITION in names:
        named = in_frame_order(named)
    yield task_result_row(number, lambda: _write_partition(store, task, f"spark-{number}", named))


def _write_partition(store: StoreDescription, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
    with opened(store) as fileio:
        return (write_routed if task.routed else write_unrouted)(fileio, task, name, batches)
