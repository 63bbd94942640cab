"""Index lookup on Spark for keys that are unique in the whole table: rows may leave their partition, see `objcat.tasks.partition_moves`.

Like `objcat.spark.index_lookup`, but the batch is first reduced to one row for each key, because rows of one key may name several
partitions.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from fileio.store import StoreDescription
from objcat.datafile.merge import OP_COLUMN, OP_DELETE
from objcat.errors import InvalidBatch
from objcat.metadata.schema import Column as TableColumn
from objcat.metadata.schema import arrow_type
from objcat.spark.frames import kept_unless_it_fails, unpersist_quietly
from objcat.spark.index_lookup import GROUP_IDS, GROUPS_PER_TASK, LookupJoin, group_of_new
from objcat.spark.native.column_names import quoted
from objcat.spark.native.relation import spark_schema
from objcat.spark.routing import typed, with_position
from objcat.spark.worker_task import opened, spark_task
from objcat.tasks.key_lookup import NOWHERE, KeyLocations, LocateTask, parts_of
from objcat.tasks.model import PLACE_COLUMN
from objcat.tasks.partition_moves import CurrentLocations, PartitionMoves, living_keys, moves_of, ordering_names
from objcat.tasks.shuffle_order import POSITION

_PARTITION, _LEFT, _MOVED = "_objcat_partition", "_objcat_left", "_objcat_moved"
_NUMBER, _IS_ROW, _HAS_LOST, _LIVES = "_objcat_number", "_objcat_is_row", "_objcat_has_lost", "_objcat_lives"
_TURN, _ORDER = "_objcat_turn", "_objcat_order"
_ADDED = [
    StructField(PLACE_COLUMN, LongType()),
    StructField(_PARTITION, StringType()),
    StructField(_LEFT, IntegerType()),
    StructField(_MOVED, BooleanType()),
]


@dataclass(frozen=True, slots=True)
class MovingFrame:
    """A batch with columns by number and the way of every row.

    That is its place, its partition, the file group that its key leaves, and whether a row moves. `names`: of the batch's columns.
    """

    rows: DataFrame
    names: tuple[str, ...]


def moving_frame(
    store: StoreDescription, batch: DataFrame, names: tuple[str, ...], task: LocateTask, looked_for: LookupJoin
) -> KeyLocations:
    """Look up the file groups of a frame's keys; its columns go by number. Raises storage errors of the executors."""
    spec, columns = task.spec, batch.columns
    keys = {f"_objcat_key_{number}": column for number, column in enumerate(spec.key_columns)}

    def of_batch(name: str) -> Column:
        return F.col(quoted(str(names.index(name))))

    rows = with_position(batch)
    for name, column in keys.items():
        rows = rows.withColumn(name, typed(of_batch(column.name), column))
    ordering = spec.ordering_columns
    decides = bool(ordering) and all(column.name in names for column in ordering)
    order = [f"{_ORDER}_{number}" for number in range(len(ordering))]
    for name, column in zip(order, ordering, strict=True) if decides else ():
        rows = rows.withColumn(name, typed(of_batch(column.name), column))
    newest = _newest(order, ordering) if decides else []
    turn = F.row_number().over(Window.partitionBy(*keys).orderBy(*newest, F.col(POSITION).desc()))
    rows = rows.withColumn(_TURN, turn).where(F.col(_TURN) == 1)
    lives = _living(store, rows, list(keys), task)
    if lives is None:
        rows = rows.withColumn(_LIVES, F.lit(None).cast(f"struct<{_NUMBER}: int, {_IS_ROW}: boolean>"))
        decides = False
    else:
        rows = rows.join(lives.toDF(*(f"{name}_there" for name in keys), _LIVES), [F.col(n) == F.col(f"{n}_there") for n in keys], "left")
    known_order = [F.col(f"{_LIVES}.{name}") for name in ordering_names(spec)]
    lost = F.coalesce(_are_greater(known_order, [F.col(name) for name in order]), F.expr("false")) if decides else F.lit(False)
    told = [F.col(f"{_LIVES}.{_NUMBER}").alias(_NUMBER), F.col(f"{_LIVES}.{_IS_ROW}").alias(_IS_ROW), lost.alias(_HAS_LOST)]
    known = rows.select(*(quoted(name) for name in columns), *told)
    partitions = tuple(group.group_id.partition for group in task.groups)
    schema = StructType([*known.schema.fields[:-3], *_ADDED])
    placed = known.mapInArrow(spark_task(move_batches, replace(task, groups=()), names, partitions, looked_for), schema).persist()
    with kept_unless_it_fails(placed):
        counted = {(row["what"], row["which"]): row["count"] for row in _counts(placed).collect()}
    new = {which: count for (what, which), count in counted.items() if what == "new"}
    found = frozenset(int(which) for what, which in counted if what in ("at", "left"))
    left = sum(count for (what, _), count in counted.items() if what == "left")
    written = sum(count for (what, _), count in counted.items() if what != "moved")
    return KeyLocations(
        MovingFrame(placed, names),
        new,
        found,
        lambda: unpersist_quietly(placed),
        left=left,
        moved=counted.get(("moved", ""), 0),
        rows=written,
    )


def moved_frame(located: MovingFrame, targets: Mapping[str, tuple[int, ...]]) -> DataFrame:
    """The batch with columns by number and `PLACE_COLUMN` last, the rows of a file group in one partition.

    A row whose key leaves a file group is there twice. `targets`: see `KeyLookup`.
    """
    rows = located.rows
    if targets:
        chosen = rows.sparkSession.createDataFrame(
            [(text, list(group_ids)) for text, group_ids in targets.items()], f"of string, {GROUP_IDS} array<int>"
        )
        rows = rows.join(F.broadcast(chosen), F.col(_PARTITION) == F.col("of"), "left")
    else:
        rows = rows.withColumn(GROUP_IDS, F.lit(None).cast("array<int>"))
    place, left = F.col(PLACE_COLUMN), F.col(_LEFT)
    code = F.when(place >= 0, place * 2).otherwise(group_of_new(place) * 2 + 1).cast("int")
    codes = F.when(left >= 0, F.array(code, -1 - left)).otherwise(F.array(code))
    columns = [quoted(str(number)) for number in range(len(located.names))]
    rows = rows.select(*columns, F.explode(codes).alias(PLACE_COLUMN))
    # Without a count, so that Spark sizes the tasks by bytes.
    return rows.repartition(F.when(place < 0, -1 - place).otherwise(F.shiftright(PLACE_COLUMN, 1)))


def _living(store: StoreDescription, rows: DataFrame, keys: Sequence[str], task: LocateTask) -> DataFrame | None:
    """The keys in the file groups of a task, each once, with its place and row; None where there are no file groups."""
    spec, tasks = task.spec, parts_of(task, GROUPS_PER_TASK)
    if not tasks:
        return None
    spark = rows.sparkSession
    fields = [pa.field(key, arrow_type(column.type)) for key, column in zip(keys, spec.key_columns, strict=True)]
    told = [pa.field(_NUMBER, pa.int32()), pa.field(_IS_ROW, pa.bool_())]
    for name, column in zip(ordering_names(spec), spec.ordering_columns, strict=True):
        told.append(pa.field(name, arrow_type(column.type)))
    numbered = spark.createDataFrame([(number, pickle.dumps(part)) for number, part in enumerate(tasks)], "number int, task binary")
    schema = pa.schema([*fields, *told])
    known = numbered.repartition(len(tasks), "number").mapInArrow(spark_task(read_lives, store, schema.names), spark_schema(schema))
    return known.groupBy(*keys).agg(F.max(F.struct(*(field.name for field in told))).alias(_LIVES))


def _newest(names: Sequence[str], ordering: Sequence[TableColumn]) -> list[Column]:
    """The order of the rows of a key. A row without an ordering value stays, and is refused by the task that writes it."""
    newest = [F.col(name).desc_nulls_first() for name in names]
    if len(names) == 1:
        return newest
    missing = F.lit(False)
    for name, column in zip(names, ordering, strict=True):
        missing |= F.col(name).isNull()
        if column.type in ("float", "double"):
            missing |= F.isnan(F.col(name))
    return [missing.desc(), *newest]


def _are_greater(mine: Sequence[Column], theirs: Sequence[Column]) -> Column:
    """Whether the first of some values that differ is greater among mine."""
    pairs = list(zip(mine, theirs, strict=True))
    greater = pairs[-1][0] > pairs[-1][1]
    for one, other in reversed(pairs[:-1]):
        greater = (one > other) | ((one == other) & greater)
    return greater


def _counts(placed: DataFrame) -> DataFrame:
    """How many rows go where. `what` is new (by partition), at (by file group), left (by file group), or moved."""
    place, left = F.col(PLACE_COLUMN), F.col(_LEFT)

    def entry(what: str, which: Column) -> Column:
        return F.struct(F.lit(what).alias("what"), which.cast("string").alias("which"))

    entries = F.array(
        F.when(place < 0, entry("new", F.col(_PARTITION))).otherwise(entry("at", place)),
        F.when(left >= 0, entry("left", left)),
        F.when(F.col(_MOVED), entry("moved", F.lit(""))),
    )
    one = placed.select(F.explode(entries).alias("entry")).where(F.col("entry").isNotNull())
    return one.groupBy(F.col("entry.what").alias("what"), F.col("entry.which").alias("which")).count()


def read_lives(store: StoreDescription, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: the keys in the file groups of some pickled tasks. `names`: columns to give."""
    with opened(store) as fileio:
        for batch in batches:
            for pickled in batch.column("task").to_pylist():
                first, task = pickle.loads(pickled)  # noqa: S301 - our own driver wrote it
                keys = [column.physical for column in task.spec.key_columns]
                for rows in living_keys(fileio, task):
                    numbers = pc.add(rows.column(PLACE_COLUMN), pa.scalar(first, pa.int32()))
                    columns = [*(rows.column(key) for key in keys), numbers, pc.not_equal(rows.column(OP_COLUMN), OP_DELETE)]
                    columns += [rows.column(name) for name in ordering_names(task.spec)]
                    yield from pa.Table.from_arrays(columns, names=list(names)).to_batches()


def move_batches(
    task: LocateTask, names: Sequence[str], partitions: Sequence[str], looked_for: LookupJoin, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: batches with where every row goes. `task`: without file groups. `partitions`: of every file group."""
    for batch in batches:
        columns, (number, is_row, has_lost) = batch.columns[:-3], batch.columns[-3:]
        rows = pa.Table.from_arrays(columns, names=list(names))
        try:
            moving = PartitionMoves.of(task.spec, iter([rows]), task.former, task.operation, task.delete_when)
        except InvalidBatch:
            # The task that writes the row reports what is wrong with it.
            nowhere = np.full(batch.num_rows, NOWHERE, np.int64)
            added = [nowhere, pa.array([""] * batch.num_rows), nowhere.astype(np.int32), np.zeros(batch.num_rows, np.bool_)]
        else:
            looked_for.check(replace(moving.keys, texts=("",)), task.spec)
            # Null where the key is not stored.
            yes = pa.array([True])
            flags = (np.asarray(pc.is_in(values, value_set=yes).to_numpy(zero_copy_only=False)) for values in (is_row, has_lost))
            lives = CurrentLocations(np.asarray(number.fill_null(NOWHERE)).astype(np.int64), *flags)
            moves = moves_of(lives, moving.keys, moving.deleted, partitions)
            texts = pa.array(moving.keys.texts, pa.string()).take(pa.array(moving.keys.partition))
            added = [moves.places, texts, moves.left.astype(np.int32), moves.was_row]
        names_added = [field.name for field in _ADDED]
        arrays = [pa.array(values) if isinstance(values, np.ndarray) else values for values in added]
        yield pa.RecordBatch.from_arrays([*columns, *arrays], names=[*batch.schema.names[:-3], *names_added])
