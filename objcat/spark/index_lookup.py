"""Index lookup on Spark, where the index is no hash: tasks read the keys of file groups, and Spark joins them with the batch.

The batch goes once through Python workers, which add the place of every row. Spark caches it until it is written. So it is computed once,
and what is written is what was looked up.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from fileio.store import StoreDescription
from objcat.common.bounded_cache import BoundedCache
from objcat.datafile.batch_checks import located as of_partitions
from objcat.datafile.bloom import Hashes
from objcat.datafile.bloom_lookup import FILTERS_BYTES_MAX, Probe
from objcat.datafile.bucket_hash import spark_hash
from objcat.errors import InvalidBatch
from objcat.metadata.properties import INDEX_PLUGIN
from objcat.metadata.schema import arrow_type
from objcat.metadata.table_spec import RecordIndexSpec, TableSpec
from objcat.spark.frames import CachedFrame, kept_unless_it_fails, unpersist_quietly
from objcat.spark.native.column_names import quoted
from objcat.spark.native.relation import spark_schema
from objcat.spark.routing import typed, with_position
from objcat.spark.worker_task import BatchFunction, opened, spark_task
from objcat.tasks.key_lookup import (
    NOWHERE,
    BatchKeys,
    BatchKeysHandle,
    KeyFilter,
    KeyLocations,
    KeySpan,
    LocateTask,
    known_keys,
    parts_of,
    provisional_place,
)
from objcat.tasks.model import PLACE_COLUMN
from objcat.tasks.shuffle_order import POSITION
from objcat.write.index_lookup import COMPUTED_AGAIN

GROUPS_PER_TASK = 32
PROBED_KEYS_MAX = 1024**2
"""Keys of a batch for which bloom filters or a record index are asked. With more keys, one is likely in nearly every file, and every task
gets all of them."""
_PARTITION, _GROUPS, GROUP_IDS = "_objcat_partition", "_objcat_groups", "_objcat_group_ids"


@dataclass(frozen=True, slots=True)
class GatheredFrame:
    """A batch that Spark caches, with columns by number.

    Attributes:
        names: of its columns.
        probe: what filters are asked with; None when none are.
        keys: for a record index, when there are not too many.
    """

    rows: DataFrame
    names: tuple[str, ...]
    probe: Probe | None = None
    keys: BatchKeys | None = None


@dataclass(frozen=True, slots=True)
class LookupJoin:
    """The keys for which files were read, or left out.

    Attributes:
        hashes: for each column whose filters were asked, sorted.
        asked: sorted hashes of the keys that a record index was asked for; None where it was not.
    """

    span: KeySpan
    hashes: tuple[Hashes, ...]
    asked: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, span: KeySpan, probe: Probe | None, keys: BatchKeys | None = None) -> LookupJoin:
        """The keys of a span, or of a probe or keys where those were asked."""
        hashes = () if probe is None else tuple(np.unique(hashes) for hashes in probe.hashes)
        return cls(span, hashes, None if keys is None else np.unique(keys.hashes))

    def check(self, keys: BatchKeys, spec: TableSpec) -> None:
        """Raises InvalidBatch where one of some keys is not among them."""
        same = self.span.holds(keys, spec)
        if self.hashes:
            pairs = zip(Probe.of(spec, keys.rows).hashes, self.hashes, strict=True)
            same &= all(bool((of[np.minimum(np.searchsorted(of, own), len(of) - 1)] == own).all()) for own, of in pairs)
        if self.asked is not None:
            same &= bool(np.isin(keys.hashes, self.asked).all())
        if not same:
            raise InvalidBatch(COMPUTED_AGAIN)


@dataclass(frozen=True, slots=True)
class LocatedFrame:
    """A batch with columns by number, `POSITION`, the place of every row, and its partition. `names`: of the batch's columns."""

    rows: DataFrame
    names: tuple[str, ...]


def gathered_frame(frame: CachedFrame, spec: TableSpec, former: Collection[str]) -> BatchKeysHandle:
    """Collect statistics of a frame's keys. Raises MissingOnWorkers."""
    rows, names = frame.rows, frame.names
    needed = {column.name for column in (*spec.key_columns, *spec.partition_columns)}
    numbers = [number for number, name in enumerate(names) if name in needed]
    keys = rows.select(*(quoted(str(number)) for number in numbers))
    named = [names[number] for number in numbers]
    span = KeySpan.of_all(_told(keys, spark_task(span_of_batches, spec, named, former)))
    probe = told = None
    asked = isinstance(spec.index, RecordIndexSpec) or INDEX_PLUGIN in spec.properties
    if asked and 0 < span.rows <= PROBED_KEYS_MAX:
        parts = _told(keys, spark_task(keys_of_batches, spec, named, former))
        rows_told = pa.concat_tables(parts)
        told = BatchKeys(rows_told, np.zeros(rows_told.num_rows, np.int64), ("",), spark_hash(rows_told.columns))
    if spec.filtered and 0 < span.rows <= PROBED_KEYS_MAX:
        probe = Probe.of_all(_told(keys, spark_task(probe_of_batches, spec, named, former)))
    return BatchKeysHandle(GatheredFrame(rows, names, probe, told), span)


def partitions_of_frame(data: DataFrame, spec: TableSpec, former: Collection[str]) -> frozenset[str]:
    """The partitions of a frame's rows. Raises InvalidBatch, MissingOnWorkers."""
    needed = {column.name for column in spec.partition_columns}
    named = [name for name in data.columns if name in needed]
    rows = data.toDF(*map(str, range(len(data.columns)))).select(*(quoted(str(data.columns.index(name))) for name in named))
    found: set[str] = set()
    for told in _told(rows, spark_task(partitions_of_batches, spec, named, former)):
        if isinstance(told, InvalidBatch):
            raise told
        found |= told
    return frozenset(found)


def _told(keys: DataFrame, function: BatchFunction) -> list[Any]:
    """The results of the tasks, from a pickled column."""
    rows = keys.mapInArrow(function, "told binary").collect()
    return [pickle.loads(bytes(row["told"])) for row in rows]  # noqa: S301 - our own executors wrote it


def located_frame(store: StoreDescription, gathered: BatchKeysHandle, task: LocateTask) -> KeyLocations:
    """Look up the file groups of a frame's keys. Raises storage errors of the executors."""
    frame: GatheredFrame = gathered.data
    names = frame.names
    joined = _with_groups(store, frame, task)
    columns = [*joined.schema.fields[:-1], StructField(PLACE_COLUMN, LongType()), StructField(_PARTITION, StringType())]
    partitions = tuple(group.group_id.partition for group in task.groups)
    rows = joined.mapInArrow(
        spark_task(place_batches, task.spec, names, partitions, LookupJoin.of(gathered.span, frame.probe, frame.keys), task.former),
        StructType(columns),
    ).persist()
    group = F.when(F.col(PLACE_COLUMN) < 0, NOWHERE).otherwise(F.col(PLACE_COLUMN)).alias("number")
    with kept_unless_it_fails(rows):
        counted = rows.groupBy(_PARTITION, group).count().collect()
    new = {row[_PARTITION]: row["count"] for row in counted if row["number"] == NOWHERE}
    found = frozenset(row["number"] for row in counted if row["number"] != NOWHERE)
    return KeyLocations(LocatedFrame(rows, names), new, found, lambda: unpersist_quietly(rows))


def new_frame(rows: DataFrame, names: tuple[str, ...], spec: TableSpec, *, count: int) -> KeyLocations:
    """A frame for an empty table without partitions: rows go by their keys alone, and pass through no worker first."""
    keys = [typed(F.col(quoted(str(names.index(column.name)))), column) for column in spec.key_columns]
    # See `provisional_place`.
    place = F.lit(-1) - F.hash(*keys).cast("bigint").bitwiseAND(F.lit(0x7FFFFFFF))
    placed = with_position(rows).select("*", place.alias(PLACE_COLUMN), F.lit("").alias(_PARTITION))
    return KeyLocations(LocatedFrame(placed, names), {"": max(1, count)}, frozenset())


def placed_frame(located: LocatedFrame, targets: Mapping[str, tuple[int, ...]]) -> DataFrame:
    """The batch with columns by number, `PLACE_COLUMN` and `POSITION`, the rows of a file group in one partition. `targets`: see
    `KeyLookup`."""
    rows = located.rows
    if len(targets) == 1:
        ((text, group_ids),) = targets.items()
        known = F.array(*(F.lit(group_id) for group_id in group_ids))
        rows = rows.withColumn(GROUP_IDS, F.when(F.col(_PARTITION) == text, known))
    elif targets:
        chosen = rows.sparkSession.createDataFrame(
            [(text, list(group_ids)) for text, group_ids in targets.items()], f"of string, {GROUP_IDS} array<int>"
        )
        rows = rows.join(F.broadcast(chosen), F.col(_PARTITION) == F.col("of"), "left")
    else:
        rows = rows.withColumn(GROUP_IDS, F.lit(None).cast("array<int>"))
    place = F.col(PLACE_COLUMN)
    code = F.when(place >= 0, place * 2).otherwise(group_of_new(place) * 2 + 1)
    columns = [quoted(str(number)) for number in range(len(located.names))]
    rows = rows.select(*columns, code.cast("int").alias(PLACE_COLUMN), POSITION)
    # Without a count, so that Spark sizes the tasks by bytes.
    return rows.repartition(F.shiftright(PLACE_COLUMN, 1))


def group_of_new(place: Column) -> Column:
    """The file group of a row with a new key, out of those chosen for its partition. Ends the job where none were chosen."""
    turn = F.pmod(-1 - place, F.size(GROUP_IDS)).cast("int") + 1
    return F.coalesce(F.element_at(GROUP_IDS, turn).cast("bigint"), F.raise_error(F.lit(COMPUTED_AGAIN)).cast("bigint"))


def _with_groups(store: StoreDescription, frame: GatheredFrame, task: LocateTask) -> DataFrame:
    """The batch with `POSITION` and, last, the numbers of the file groups that hold a row's key, in any partition."""
    rows, names = with_position(frame.rows), frame.names
    tasks = parts_of(task, GROUPS_PER_TASK)
    if not tasks:
        return rows.withColumn(_GROUPS, F.lit(None).cast("array<int>"))
    spark = rows.sparkSession
    columns = task.spec.key_columns
    keys = [f"_objcat_key_{number}" for number in range(len(columns))]
    fields = [pa.field(key, arrow_type(column.type)) for key, column in zip(keys, columns, strict=True)]
    schema = spark_schema(pa.schema([*fields, pa.field("number", pa.int32())]))
    numbered = spark.createDataFrame([(number, pickle.dumps(part)) for number, part in enumerate(tasks)], "number int, task binary")
    known = numbered.repartition(len(tasks), "number").mapInArrow(spark_task(read_keys, store, keys, frame.probe), schema)
    groups = known.groupBy(*keys).agg(F.collect_set("number").alias(_GROUPS))
    of_batch = [typed(F.col(quoted(str(names.index(column.name)))), column) for column in columns]
    same = [one == F.col(key) for one, key in zip(of_batch, keys, strict=True)]
    return rows.join(groups, same, "left").select(*rows.columns, _GROUPS)


def span_of_batches(
    spec: TableSpec, names: Sequence[str], former: Collection[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: statistics of the keys of some batches."""
    yield from _telling(KeySpan.of_all([keys.span(spec) for keys in _keys_of(spec, names, former, batches)]))


def partitions_of_batches(
    spec: TableSpec, names: Sequence[str], former: Collection[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: the partitions of the rows of some batches, or the error of one of them."""
    found: set[str] = set()
    try:
        for batch in batches:
            found.update(spec.partition_of(of_partitions(pa.Table.from_batches([batch.rename_columns(list(names))]), spec), former).texts)
    except InvalidBatch as error:
        yield from _telling(error)
    else:
        yield from _telling(found)


def probe_of_batches(
    spec: TableSpec, names: Sequence[str], former: Collection[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: the keys of some batches, as filters are asked for them."""
    probes = [Probe.of(spec, keys.rows) for keys in _keys_of(spec, names, former, batches)]
    if probes:
        yield from _telling(Probe.of_all(probes))


def keys_of_batches(
    spec: TableSpec, names: Sequence[str], former: Collection[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: the keys of some batches."""
    parts = [keys.rows for keys in _keys_of(spec, names, former, batches)]
    if parts:
        yield from _telling(pa.concat_tables(parts).combine_chunks())


def _keys_of(spec: TableSpec, names: Sequence[str], former: Collection[str], batches: Iterable[pa.RecordBatch]) -> Iterator[BatchKeys]:
    for batch in batches:
        # The task that writes a row reports what is wrong with it.
        with suppress(InvalidBatch):
            yield BatchKeys.of(spec, iter([pa.Table.from_batches([batch.rename_columns(list(names))])]), former)


def _telling(value: object) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"told": pa.array([pickle.dumps(value)], pa.binary())})


def read_keys(
    store: StoreDescription, names: Sequence[str], probe: Probe | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On a worker: the keys of some pickled tasks. `probe`: read only row groups that may hold one of its keys."""
    sieve = None if probe is None else KeyFilter(probe, BoundedCache(bytes_max=FILTERS_BYTES_MAX))
    with opened(store) as fileio:
        for batch in batches:
            for pickled in batch.column("task").to_pylist():
                first, task = pickle.loads(pickled)  # noqa: S301 - our own driver wrote it
                for rows in known_keys(fileio, task, sieve=sieve):
                    numbers = pc.add(rows.column(PLACE_COLUMN), pa.scalar(first, pa.int32()))
                    yield from rows.drop_columns([PLACE_COLUMN]).append_column("n", numbers).rename_columns([*names, "number"]).to_batches()


def place_batches(
    spec: TableSpec,
    names: Sequence[str],
    partitions: Sequence[str],
    looked_for: LookupJoin,
    former: frozenset[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """On a worker: batches with the place of every row, and its partition. `partitions`: of every file group."""
    for batch in batches:
        columns = batch.columns[:-1]
        rows = pa.Table.from_arrays(columns[:-1], names=list(names))
        try:
            keys = BatchKeys.of(spec, iter([rows]), former)
        except InvalidBatch:
            # The task that writes the row reports what is wrong with it.
            places, texts = np.full(batch.num_rows, NOWHERE, np.int64), pa.array([""] * batch.num_rows)
        else:
            looked_for.check(keys, spec)
            found = _of_partition(batch.column(batch.num_columns - 1), keys, partitions)
            places = np.where(found >= 0, found, provisional_place(keys.hashes))
            texts = pa.array(keys.texts, pa.string()).take(pa.array(keys.partition))
        named = [*batch.schema.names[:-1], PLACE_COLUMN, _PARTITION]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(places), texts], names=named)


def _of_partition(groups: pa.ListArray, keys: BatchKeys, partitions: Sequence[str]) -> npt.NDArray[np.int64]:
    """For every row, that of its groups which is in its partition, or `NOWHERE`."""
    found = np.full(len(groups), NOWHERE, np.int64)
    row = np.asarray(pc.list_parent_indices(groups)).astype(np.int64)
    if not len(row):
        return found
    number = np.asarray(pc.list_flatten(groups)).astype(np.int64)
    codes = {text: code for code, text in enumerate(keys.texts)}
    of_group = np.array([codes.get(partition, NOWHERE) for partition in partitions], np.int64)
    same = of_group[number] == keys.partition[row]
    found[row[same]] = number[same]
    return found
