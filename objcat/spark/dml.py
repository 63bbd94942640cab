"""MERGE and UPDATE clauses evaluated by Spark: a source joined with the rows of a scan, and the result as a frame computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NoReturn

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from fileio.store import StoreDescription
from objcat.datafile.batch_checks import means_the_same
from objcat.dml.computed_write import DELETED, SAID_TWICE, ComputedRows
from objcat.dml.duckdb import MergeScope, moved, said_twice
from objcat.dml.program import NUMBER, SOURCE_HERE, TARGET_HERE, ClauseAction, MergeProgram, source_column, target_column
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate
from objcat.metadata.schema import Column as TableColumn
from objcat.metadata.schema import arrow_type, type_text
from objcat.metadata.table_spec import PARTITION_SCOPE, TableSpec
from objcat.predicate.dialect import told_to_spark
from objcat.spark.engine import SparkEngine
from objcat.spark.frames import kept_unless_it_fails, persist_unshared, unpersist_quietly
from objcat.spark.jobs import described
from objcat.spark.native.column_names import quoted
from objcat.spark.native.relation import spark_schema
from objcat.spark.routing import bucket_column, is_worth_a_shuffle, partition_columns, with_position
from objcat.spark.versions import arrow_schema, try_cast
from objcat.spark.worker_task import translate_spark_errors
from objcat.tasks.shuffle_order import POSITION
from objcat.write.index_lookup import COMPUTED_AGAIN

_KEY, _SOURCE_PLACE, _TARGET_PLACE, _PLACE, _RANK, _BUCKET = (
    f"_objcat_{name}" for name in ("key", "source_place", "target_place", "place", "rank", "bucket")
)
_LIMITED = ("tinyint", "smallint", "int", "bigint", "date", "string")
"""Types of key columns whose least and greatest values Spark and objcat order and write alike, under any session settings."""


def check_on_spark(program: MergeProgram, spec: TableSpec, source: DataFrame | None, spark: SparkSession, *, table: str) -> None:
    """Refuse expressions that Spark does not know, or whose type does not fit their column, before a job runs.

    Raises InvalidInput and InvalidPredicate; SparkJobLost where the session was stopped. `table`: its name in messages.
    """
    with translate_spark_errors(spark, f"objcat: look at the expressions for {table}"):
        _check(program, spec, source, spark)


def _check(program: MergeProgram, spec: TableSpec, source: DataFrame | None, spark: SparkSession) -> None:
    if spec.key_scope == PARTITION_SCOPE and spec.former:
        raise InvalidInput(
            "The partitioning of the table changed, so Spark cannot tell which partition a key belongs to. Nothing was "
            "written. Run this in the local engine, with a source in this process and without spark=."
        )
    if source is not None:
        _check_located(program, spec, source)
    named = {} if source is None else {source_column(place): kind for place, kind in enumerate(arrow_schema(source.schema).types)}
    told = [(told_to_spark(one.expression), one.text) for one in (*program.assigned, *program.conditions)]
    # A plain column of the source needs no analysis, which takes Spark some milliseconds for each.
    computed = {text: shown for text, shown in told if text not in named}
    types = {**named, **_types_of(computed, spec, source, spark)}
    program.check_types(pa.schema([pa.field(str(place), types[text]) for place, (text, _) in enumerate(told)]), spec)


def _types_of(told: Mapping[str, str], spec: TableSpec, source: DataFrame | None, spark: SparkSession) -> dict[str, pa.DataType]:
    """The types of expressions over a source and a table. Raises InvalidPredicate. told: by text for Spark, that of the user."""
    if not told:
        return {}
    schema = spec.table_schema.to_arrow()
    rows = spark.createDataFrame([], spark_schema(schema)).toDF(*(target_column(place) for place in range(len(schema))))
    if source is not None:
        rows = rows.crossJoin(source.limit(0).toDF(*(source_column(place) for place in range(len(source.columns)))))

    def types(texts: Sequence[str]) -> dict[str, pa.DataType]:
        found = rows.select(*(F.expr(text).alias(str(place)) for place, text in enumerate(texts))).schema
        return dict(zip(texts, arrow_schema(found).types, strict=True))

    try:
        return types(list(told))
    except AnalysisException as error:
        if len(told) > 1:
            # One by one, for the first that does not fit.
            return {text: kind for one in told.items() for text, kind in _types_of(dict([one]), spec, source, spark).items()}
        (shown,) = told.values()
        raise InvalidPredicate(
            f"The expression {shown!r} does not fit ({str(error).splitlines()[0]}). Nothing was written. Correct the expression."
        ) from error


def _check_located(program: MergeProgram, spec: TableSpec, source: DataFrame) -> None:
    """Refuse a source whose keys would have to be guessed: 1.5 is no 1, and text is no number."""
    given = arrow_schema(source.select(*(F.col(quoted(name)) for name in dict.fromkeys(program.located.values()))).schema)
    for name, said in program.located.items():
        column = spec.table_schema.column(name)
        found = given.field(said).type
        if not means_the_same(found, arrow_type(column.type)):
            raise InvalidBatch(
                f"The column {said!r} is {found} in the source and {type_text(column.type)} in the table, and converting it would "
                "be a guess. Nothing was written. Cast it yourself."
            )


def evaluate_on_spark(  # noqa: PLR0913 - what reads and what runs
    program: MergeProgram,
    spec: TableSpec,
    target: Callable[[MergeScope | None], DataFrame],
    source: DataFrame | None,
    spark: SparkSession,
    *,
    store: StoreDescription,
    table: str,
    reaches: bool = False,
    counts: bool = True,
) -> ComputedRows | None:
    """What a program makes of the rows of a table; None for nothing. Spark caches the frame until the outcome is closed.

    Args:
        target: gives rows of the table, all columns; with a scope it may leave out rows outside the scope.
        reaches: ask the source for its scope first, in a job of its own. The source is computed once all the same, and cached meanwhile.
        counts: False: rows need not be counted. Then the write computes them, if it can refuse repeated keys by itself.

    Raises:
        InvalidBatch: two source rows match one row of the table, or Spark lost its cached copy of a source that gives other rows each time.
        InvalidInput: a row would move.
    """
    with described(spark, f"objcat: compute the rows for {table}"):
        return _evaluated_beside(program, spec, target, source, store=store, table=table, reaches=reaches, counts=counts)


def replace_on_spark(program: MergeProgram, spec: TableSpec, source: DataFrame, *, store: StoreDescription, table: str) -> ComputedRows:
    """What a program that replaces rows whatever is there, `MergeProgram.replacing`, makes of a source. Nothing runs yet.

    Two source rows of one key are refused, unless an ordering column says which counts. Tasks tell the keys of few rows to the driver. Many
    rows have a shuffle anyway, after which Spark counts.
    """
    assert program.replacing is not None, "only such a program needs no rows of the table"
    places = len(_places(spec))
    keys, came = [f"{_KEY}{n}" for n in range(len(spec.key_columns))], [f"{_SOURCE_PLACE}{n}" for n in range(places)]
    is_little = not is_worth_a_shuffle(source, spec)
    is_checked_later = is_little and not program.ordering

    def located() -> DataFrame:
        return _source(source, program, spec, _places(spec))

    def refuse_repeated() -> NoReturn:
        """The key, or that the source has other rows by now."""
        with described(source.sparkSession, f"objcat: look for keys that the source for {table} repeats"):
            named = [F.col(key).alias(column.name) for key, column in zip(keys, spec.key_columns, strict=True)]
            _check_once(located().select(*named, *(F.col(name).alias(f"{_PLACE}{n}") for n, name in enumerate(came))), spec, places)
        raise InvalidBatch(COMPUTED_AGAIN)

    # Each column that a frame gains costs Spark a millisecond or more, so there are those of the table alone where no others are needed.
    rows = _numbered_source(source)
    if not is_checked_later:
        rows = located() if program.ordering else _distinct(located(), keys, came, spec)
    return ComputedRows(
        engine=SparkEngine(store, table=table),
        data=rows.selectExpr(*(f"{told_to_spark(tree)} AS {quoted(name)}" for name, tree in program.replacing.items())),
        inserted=None,
        updated=None,
        deleted=0,
        refuse_repeated=refuse_repeated if is_checked_later else None,
    )


def _distinct(rows: DataFrame, keys: Sequence[str], places: Sequence[str], spec: TableSpec) -> DataFrame:
    """The rows, which end their job at a key that comes twice in a partition. A null in a key passes: a write refuses it.

    keys, places: columns of the rows, as the key columns of the table are in order.
    """
    has_key = F.lit(True)
    for name in keys:
        has_key = has_key & F.col(quoted(name)).isNotNull()
    before, after = SAID_TWICE.split("{}")
    told = [
        F.concat(F.lit(f"{column.name}="), F.col(quoted(name)).cast("string")) for column, name in zip(spec.key_columns, keys, strict=True)
    ]
    refused = F.raise_error(F.concat(F.lit(before), F.concat_ws(", ", *told), F.lit(after)))
    alike = F.count(F.lit(1)).over(Window.partitionBy(*map(quoted, keys), *places))
    counted = rows.withColumn(_RANK, alike)
    return counted.where(F.when(~has_key | (F.col(_RANK) == 1), F.lit(True)).otherwise(refused)).drop(_RANK)


def _evaluated_beside(
    program: MergeProgram,
    spec: TableSpec,
    target: Callable[[MergeScope | None], DataFrame],
    source: DataFrame | None,
    *,
    store: StoreDescription,
    table: str,
    reaches: bool,
    counts: bool,
) -> ComputedRows | None:
    # Whether rows stay in their partitions is asked of all of them, before any is written.
    counts = counts or spec.is_located or spec.key_scope == PARTITION_SCOPE
    places = _places(spec)
    if source is None:
        rows = _numbered(_target(target(None), spec, places), program)
        if not counts:
            return _uncounted(program, spec, rows, store=store, table=table, joined=False)
        return _counted(program, spec, rows, store=store, table=table, joined=False)
    located = _source(source, program, spec, places)
    reach, within = None, located
    if reaches:
        located = persist_unshared(located)
    with ExitStack() as held:
        if reaches:
            held.callback(unpersist_quietly, located)
            reach = _reach(located, spec)
            within = _within(located, reach, spec)
        rows = _numbered(_joined(within, _target(target(reach), spec, places), program, spec, len(places)), program)
        if counts:
            return _counted(program, spec, rows, store=store, table=table, joined=True)
        is_little = not is_worth_a_shuffle(located if program.join in ("inner", "left") else rows, spec)
        return _uncounted(program, spec, rows, store=store, table=table, joined=True, is_little=is_little, close=held.pop_all().close)


def _reach(located: DataFrame, spec: TableSpec) -> MergeScope:
    """The scope of the source as `_source` gives it; one job."""
    limited = [(f"{_KEY}{n}", column.name) for n, column in enumerate(spec.key_columns) if column.type in _LIMITED]
    hashed = bool(spec.bucket_columns) and not any(column.type in ("float", "double") for column in spec.bucket_columns)
    asked = [F.count(F.lit(1)).alias("rows"), *(F.collect_set(_BUCKET).alias("buckets") for _ in range(hashed))]
    for key, _ in limited:
        asked += [F.min(key).alias(f"least_{key}"), F.max(key).alias(f"greatest_{key}")]
    (found,) = located.where(_has_key(spec)).agg(*asked).collect()
    if not found["rows"]:
        return MergeScope({}, None, nothing=True)
    limits = {name: (found[f"least_{key}"], found[f"greatest_{key}"]) for key, name in limited}
    return MergeScope(limits, frozenset(found["buckets"]) if hashed else None)


def _within(located: DataFrame, reach: MergeScope, spec: TableSpec) -> DataFrame:
    """The source, which ends its job at a key outside its scope.

    Rows of the table that such a key meets were left out: Spark lost its cached copy, and recomputed other rows.
    """
    inside = F.lit(not reach.nothing)
    for n, column in enumerate(spec.key_columns):
        if column.name in reach.limits:
            inside = inside & F.col(f"{_KEY}{n}").between(*map(F.lit, reach.limits[column.name]))
    if reach.buckets is not None:
        inside = inside & F.col(_BUCKET).isin(sorted(reach.buckets))
    return located.where(F.when(~_has_key(spec) | inside, F.lit(True)).otherwise(F.raise_error(F.lit(COMPUTED_AGAIN))))


def _has_key(spec: TableSpec) -> Column:
    """Whether a source row may match a row of the table: no part of its key is null."""
    whole = F.lit(True)
    for n in range(len(spec.key_columns)):
        whole = whole & F.col(f"{_KEY}{n}").isNotNull()
    return whole


def _numbered(rows: DataFrame, program: MergeProgram) -> DataFrame:
    """The rows that a clause takes, with its number. `rows`: of the table, next to those of the source where it is joined."""
    numbered = rows.withColumn(NUMBER, F.expr(told_to_spark(program.number))).where(F.col(NUMBER).isNotNull())
    if program.late is None:
        return numbered
    return numbered.where(~F.coalesce(F.expr(told_to_spark(program.late)), F.lit(False)))


def _become(program: MergeProgram, spec: TableSpec, places: int, *, joined: bool) -> list[Column]:
    """What numbered rows become: the places that they come from, whether they are deleted, and the columns of the table."""
    sides = (_SOURCE_PLACE, _TARGET_PLACE) if joined else (_TARGET_PLACE,)
    came = [F.coalesce(*(F.col(f"{side}{n}") for side in sides)).alias(f"{_PLACE}{n}") for n in range(places)]
    deletes = [number for number, act in enumerate(program.acts) if act is ClauseAction.DELETE]
    columns = [F.expr(told_to_spark(program.columns[name])).alias(name) for name in spec.table_schema.names]
    return [*came, F.col(NUMBER).isin(deletes).alias(DELETED), *columns]


def _uncounted(
    program: MergeProgram,
    spec: TableSpec,
    rows: DataFrame,
    *,
    store: StoreDescription,
    table: str,
    joined: bool,
    is_little: bool = False,
    close: Callable[[], None] = lambda: None,
) -> ComputedRows:
    """Numbered rows, which the write computes. is_little: whether tasks can tell their keys to the driver. `close`: when it has."""
    places = len(_places(spec))
    found = rows.select(*_become(program, spec, places, joined=joined))
    names, came = spec.table_schema.names, [f"{_PLACE}{n}" for n in range(places)]
    keys = [column.name for column in spec.key_columns]

    def refuse_repeated() -> NoReturn:
        """The key, or that the source has other rows by now."""
        with described(rows.sparkSession, f"objcat: look for keys that the source for {table} repeats"):
            _check_once(found, spec, places)
        raise InvalidBatch(COMPUTED_AGAIN)

    checked = _distinct(found, keys, came, spec) if joined and not is_little else found
    return ComputedRows(
        engine=SparkEngine(store, table=table),
        data=checked.select(*(quoted(name) for name in names), *([DELETED] if ClauseAction.DELETE in program.acts else [])),
        inserted=None,
        updated=None,
        deleted=None if ClauseAction.DELETE in program.acts else 0,
        close=close,
        refuse_repeated=refuse_repeated if joined and is_little else None,
    )


def _counted(
    program: MergeProgram, spec: TableSpec, rows: DataFrame, *, store: StoreDescription, table: str, joined: bool
) -> ComputedRows | None:
    """Numbered rows, which Spark has computed and caches until the outcome is closed. None for no rows."""
    places = _places(spec)
    found = persist_unshared(rows.select(F.col(NUMBER), *_become(program, spec, len(places), joined=joined)))
    with kept_unless_it_fails(found):
        counts = _counts(found, program.acts)
        if not sum(counts.values()):
            unpersist_quietly(found)
            return None
        if joined:
            _check_once(found, spec, len(places))
        if spec.key_scope == PARTITION_SCOPE:
            _check_stays(found, spec, places)
    data = found.select(*(quoted(name) for name in spec.table_schema.names), *([DELETED] if counts[ClauseAction.DELETE] else []))
    return ComputedRows(
        engine=SparkEngine(store, table=table),
        data=data,
        inserted=counts[ClauseAction.INSERT],
        updated=counts[ClauseAction.UPDATE],
        deleted=counts[ClauseAction.DELETE],
        close=lambda: unpersist_quietly(found),
    )


def _target(target: DataFrame, spec: TableSpec, places: Sequence[Column]) -> DataFrame:
    columns = [F.col(quoted(name)).alias(target_column(place)) for place, name in enumerate(spec.table_schema.names)]
    placed = [place.alias(f"{_TARGET_PLACE}{n}") for n, place in enumerate(places)]
    return target.select(*columns, *placed, F.lit(True).alias(TARGET_HERE))


def _source(source: DataFrame, program: MergeProgram, spec: TableSpec, places: Sequence[Column]) -> DataFrame:
    """The source's columns by number, with the key in the types of the table, and what its partitions are made of."""
    numbered = _numbered_source(source)
    # The columns that partition expressions use, under the table's names.
    said = {name: F.col(source_column(source.columns.index(given))) for name, given in program.located.items()}
    located = numbered.select("*", *(column.alias(name) for name, column in said.items()))
    types = {field.name: field.dataType for field in located.schema.fields}
    keys = [_as_stored(column, types[column.name]).alias(f"{_KEY}{n}") for n, column in enumerate(spec.key_columns)]
    placed = [place.alias(f"{_SOURCE_PLACE}{n}") for n, place in enumerate(places)]
    bucket = [bucket_column(spec).alias(_BUCKET)] if spec.bucket_columns else []
    rows = located.select(*numbered.columns, *keys, *placed, *bucket, F.lit(True).alias(SOURCE_HERE))
    if not program.ordering:
        return rows
    by = [*(f"{_KEY}{n}" for n in range(len(keys))), *(f"{_SOURCE_PLACE}{n}" for n in range(len(places)))]
    greatest = [F.col(name).desc_nulls_last() for name in program.ordering]
    newest = Window.partitionBy(*by).orderBy(*greatest, F.col(POSITION).desc())
    return with_position(rows).withColumn(_RANK, F.row_number().over(newest)).where(F.col(_RANK) == 1).drop(_RANK, POSITION)


def _numbered_source(source: DataFrame) -> DataFrame:
    """The source's columns by number."""
    numbered = source.toDF(*(source_column(place) for place in range(len(source.columns))))
    kinds = [(field.name, field.dataType, _uncollated(field.dataType)) for field in numbered.schema.fields]
    if any(kind != plain for _, kind, plain in kinds):
        # A table's text has no collation, and Spark uses none where two meet.
        numbered = numbered.select(*(F.col(name) if kind == plain else F.col(name).cast(plain).alias(name) for name, kind, plain in kinds))
    return numbered


def _uncollated(kind: DataType) -> DataType:
    """A type whose text is compared byte by byte."""
    match kind:
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(_uncollated(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_uncollated(kind.keyType), _uncollated(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(field.name, _uncollated(field.dataType), field.nullable) for field in kind.fields])
    return kind


def _as_stored(column: TableColumn, given: DataType) -> Column:
    """A column of a frame in the table's type; null where that type does not hold the value, because a cast may round."""
    said = F.col(quoted(column.name))
    stored = try_cast(said, "timestamp_ltz" if column.type == "timestamp" else str(column.type))
    own = spark_schema(pa.schema([pa.field("key", arrow_type(column.type))])).fields[0].dataType
    return stored if given in (own, NullType()) else F.when(try_cast(stored, given).eqNullSafe(said), stored)


def _joined(source: DataFrame, target: DataFrame, program: MergeProgram, spec: TableSpec, places: int) -> DataFrame:
    names = spec.table_schema.names
    keys = [target_column(names.index(column.name)) for column in spec.key_columns]
    on = F.lit(True)
    for n, key in enumerate(keys):
        on = on & (F.col(f"{_KEY}{n}") == F.col(key))
    for n in range(places):
        on = on & F.col(f"{_SOURCE_PLACE}{n}").eqNullSafe(F.col(f"{_TARGET_PLACE}{n}"))
    return source.join(target, on, program.join)


def _counts(found: DataFrame, acts: Sequence[ClauseAction]) -> Mapping[ClauseAction, int]:
    counts = dict.fromkeys(ClauseAction, 0)
    for row in found.groupBy(NUMBER).count().collect():
        counts[acts[row[NUMBER]]] += row["count"]
    return counts


def _check_once(found: DataFrame, spec: TableSpec, places: int) -> None:
    key = [column.name for column in spec.key_columns]
    by = [F.col(quoted(name)).alias(f"{_KEY}{n}") for n, name in enumerate(key)] + [F.col(f"{_PLACE}{n}") for n in range(places)]
    twice = found.groupBy(*by).agg(F.count(F.lit(1)).alias("rows")).where("rows > 1").limit(1).collect()
    if twice:
        raise said_twice({name: twice[0][f"{_KEY}{n}"] for n, name in enumerate(key)})


def _check_stays(found: DataFrame, spec: TableSpec, places: Sequence[Column]) -> None:
    stays = F.lit(True)
    for n, place in enumerate(places):
        stays = stays & place.eqNullSafe(F.col(f"{_PLACE}{n}"))
    if not found.where(~F.col(DELETED) & ~stays).limit(1).isEmpty():
        raise moved(next(column.name for column in spec.partition_columns if column.id not in spec.key))


def _places(spec: TableSpec) -> Sequence[Column]:
    """What finds a row besides its key."""
    return () if spec.is_global else partition_columns(spec)
