"""Evaluates DML programs in this process with DuckDB: joins a source with table rows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.common.duckdb_sandbox import connect_duckdb
from objcat.datafile.batch_checks import conform_delete, located
from objcat.datafile.bucket_hash import bucket_of, key_digests
from objcat.datafile.nested_slices import compact_nested_slices
from objcat.datafile.parquet import constant
from objcat.dml.computed_write import SAID_TWICE
from objcat.dml.program import NUMBER, SOURCE_HERE, TARGET_HERE, Assigned, ClauseAction, MergeProgram, Tree, source_column, target_column
from objcat.engine.spooled_batch import Rows
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import PARTITION_SCOPE, TableSpec
from objcat.predicate.dialect import spark_sql
from objcat.predicate.duckdb import duckdb_text
from objcat.timeline.entry import FileGroupId

PLACE = "_objcat_place"
"""Column of a result row: the partition of the row that it comes from."""
_KEY, _SOURCE_PLACE, _TARGET_PLACE, _POSITION = "_objcat_key", "_objcat_source_place", "_objcat_target_place", "_objcat_position"


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The source rows of a merge.

    program: over them. former: partitions of previous partition specs that have file groups.
    """

    rows: Rows
    program: MergeProgram
    spec: TableSpec
    former: frozenset[str]

    def schema(self) -> pa.Schema:
        """The schema of `batches`."""
        fields = [pa.field(source_column(place), field.type) for place, field in enumerate(self.rows.schema)]
        keys = self.spec.table_schema.to_arrow_physical(nullable=True)
        fields += [pa.field(f"{_KEY}{n}", keys.field(column.physical).type) for n, column in enumerate(self.spec.key_columns)]
        fields += [pa.field(_SOURCE_PLACE, pa.string()), pa.field(_POSITION, pa.int64()), pa.field(SOURCE_HERE, pa.bool_())]
        return pa.schema(fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its columns by number, with the key in the table's types, and the partition. Raises InvalidBatch and NullKey."""
        schema, position = self.schema(), 0
        for rows in self.tables():
            found = self.found(rows)
            keys = [found.column(column.physical) for column in self.spec.key_columns]
            count = rows.num_rows
            positions = pa.array(np.arange(position, position + count))
            columns = [*rows.columns, *keys, self.places(found), positions, pa.array(np.full(count, True))]
            position += count
            yield from pa.table(columns, names=schema.names).cast(schema).to_batches()

    def group_ids(self, snapshot: Snapshot) -> frozenset[FileGroupId]:
        """The file groups that may store keys of the source. Raises as `batches`."""
        found = set()
        for rows in self.tables():
            fitted = self.found(rows)
            places = self.places(fitted).dictionary_encode().combine_chunks()
            codes = np.asarray(places.indices.to_numpy(zero_copy_only=False))
            for code, place in enumerate(places.dictionary.to_pylist()):
                count = snapshot.table.bucket_counts.get(place, self.spec.index.count)
                chosen = fitted.filter(pa.array(codes == code))
                buckets = bucket_of([chosen.column(column.physical) for column in self.spec.bucket_columns], count)
                found |= {FileGroupId(place, bucket, count) for bucket in np.unique(buckets).tolist()}
        return frozenset(found)

    def keys_without(self, changed: pa.Table) -> bytes:
        """Digests of the keys of the source that have no row among others, as entries hold them. changed: all columns of the table."""
        theirs = conform_delete(changed.select(list(self.program.located)), self.spec)
        own = [self._digests(self.found(rows)) for rows in self.tables()]
        return np.setdiff1d(np.concatenate(own), self._digests(theirs)).astype("<u8").tobytes()

    def _digests(self, found: pa.Table) -> npt.NDArray[np.uint64]:
        columns = [found.column(column.physical) for column in self.spec.key_columns]
        return key_digests(columns if self.spec.is_global else [self.places(found), *columns])

    def places(self, found: pa.Table) -> pa.ChunkedArray:
        """The partition of every row. found: under physical names."""
        return _places(found, self.spec, self.former)

    def tables(self) -> Iterable[pa.Table]:
        """The rows, in parts."""
        if isinstance(self.rows, pa.Table):
            return [self.rows] if self.rows.num_rows else []
        return (pa.Table.from_batches([batch]) for batch in self.rows.to_batches())

    def found(self, rows: pa.Table) -> pa.Table:
        """The columns that locate rows, under physical names, in the types of the table. Raises InvalidBatch and NullKey."""
        names = list(self.program.located)
        return conform_delete(pa.table([rows.column(self.program.located[name]) for name in names], names=names), self.spec)


@dataclass(frozen=True, slots=True)
class MergeScope:
    """The rows of a table that a source may match.

    limits: by key column, the lowest and highest source value. buckets: under the table's bucket count, None without hash buckets.
    nothing: no
    source row has a whole key.
    """

    limits: Mapping[str, tuple[Any, Any]]
    buckets: frozenset[int] | None
    nothing: bool = False

    def where(self) -> str | None:
        """The scope as a filter. None if it excludes nothing."""
        terms = []
        for name, (least, greatest) in self.limits.items():
            column = sql.column(name, quoted=True)
            terms += [sql.GTE(this=column.copy(), expression=_literal(least)), sql.LTE(this=column, expression=_literal(greatest))]
        return spark_sql(sql.and_(*terms)) if terms else None

    def holds(self, group_id: FileGroupId, spec: TableSpec) -> bool:
        """Whether a file group may have such rows."""
        return self.buckets is None or group_id.bucket % spec.index.count in self.buckets


def _literal(value: Any) -> Tree:
    return sql.cast(sql.Literal.string(value.isoformat()), "date") if isinstance(value, dt.date) else sql.convert(value)


def _places_of(rows: pa.Table, spec: TableSpec, former: Collection[str]) -> pa.ChunkedArray:
    """The partition of every row. rows: under logical names."""
    return _places(located(rows, spec) if spec.partition_columns and not spec.is_global else rows, spec, former)


def _places(found: pa.Table, spec: TableSpec, former: Collection[str]) -> pa.ChunkedArray:
    if not spec.partition_columns or spec.is_global:
        return pa.chunked_array([constant("", found.num_rows)])
    partitions = spec.partition_of(found, former)
    return pa.chunked_array([pa.array(partitions.texts, pa.string()).take(pa.array(partitions.codes))])


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Rows with all columns of the table, each key once, and their counts. deletes: marks deletes."""

    rows: pa.Table
    deletes: pa.Array
    inserted: int
    updated: int
    deleted: int


def check_program(program: MergeProgram, spec: TableSpec, source: pa.Schema | None) -> None:
    """Check that DuckDB knows the expressions and that results fit their columns.

    Raises InvalidInput, InvalidPredicate and MissingDependency.
    """
    with _Session() as session:
        session.declare("target", _target_schema(spec))
        tables = "target"
        if source is not None:
            schema = pa.schema([pa.field(source_column(place), field.type) for place, field in enumerate(source)])
            session.declare("source", schema)
            tables = "source, target"
        every = [*program.assigned, *program.conditions]
        try:
            fields = _types(session, every, tables)
        except InvalidInput:
            # One at a time, so that the error names the right expression.
            fields = [field for one in every for field in _types(session, [one], tables)]
    program.check_types(pa.schema(fields), spec)


def _types(session: _Session, expressions: Sequence[Assigned], tables: str) -> list[pa.Field]:
    if not expressions:
        return []
    chosen = ", ".join(f"{duckdb_text(one.expression)} AS c{n}" for n, one in enumerate(expressions))
    query = f"SELECT {chosen} FROM (FROM {tables} LIMIT 0)"  # noqa: S608 - expressions, checked to be such
    return list(session.ask(query, expressions[0].text).schema)


def evaluate(
    program: MergeProgram, snapshot: Snapshot, target: Iterable[pa.RecordBatch], former: frozenset[str], source: MergeSource | None
) -> Evaluated | None:
    """The rows that a program makes of a table. None if nothing changes. Holds the source and the result.

    Args:
        target: rows of the table, under logical names, with the columns that the program needs.

    Raises:
        InvalidBatch: two source rows match one row of the table.
        InvalidInput: a row would move, or an expression fails.
        NullKey: a key is null.
    """
    spec = snapshot.spec
    with _Session() as session:
        session.register("target", _target_schema(spec), _target_batches(spec, target, former))
        if source is not None:
            session.register("source", source.schema(), source.batches())
        found = session.ask(_query(program, spec, joined=source is not None), "the write")
    if not found.num_rows:
        return None
    numbers = found.column(NUMBER)
    acts = [program.acts[number] for number in numbers.to_pylist()]
    names = spec.table_schema.names
    rows = found.select([f"c{place}" for place in range(len(names))]).rename_columns(names)
    deletes = pa.array([act is ClauseAction.DELETE for act in acts])
    places = found.column(PLACE)
    if source is not None:
        _check_once(rows, places, spec)
    if spec.key_scope == PARTITION_SCOPE:
        _check_stays(rows.filter(pc.invert(deletes)), places.filter(pc.invert(deletes)), spec, former)
    return Evaluated(rows, deletes, acts.count(ClauseAction.INSERT), acts.count(ClauseAction.UPDATE), acts.count(ClauseAction.DELETE))


def evaluate_rows(program: MergeProgram, spec: TableSpec, rows: pa.Table, zone: str) -> tuple[pa.Array, pa.Table]:
    """The changed rows of a table without a key: their positions and new values.

    Args:
        rows: all columns, under logical names.
        zone: the time zone of days and hours, and of times without one.

    Raises:
        InvalidInput: an expression fails, or the zone is unknown.
    """
    names = spec.table_schema.names
    schema = pa.schema([pa.field(target_column(place), field.type) for place, field in enumerate(rows.schema)])
    numbered = pa.schema([*schema, pa.field(_POSITION, pa.int64())])
    table = pa.table([*rows.columns, pa.array(np.arange(rows.num_rows))], names=numbered.names).cast(numbered)
    chosen = ", ".join(f"{duckdb_text(program.columns[name])} AS c{place}" for place, name in enumerate(names))
    inner = f"SELECT *, {duckdb_text(program.number)} AS {NUMBER} FROM target"  # noqa: S608 - expressions, checked to be such
    query = f"SELECT {_POSITION}, {chosen} FROM ({inner}) WHERE {NUMBER} IS NOT NULL"  # noqa: S608 - as above
    with _Session(zone) as session:
        session.register("target", numbered, table.to_batches())
        found = session.ask(query, "the update")
    return found.column(_POSITION).combine_chunks(), found.drop_columns([_POSITION]).rename_columns(names)


def _target_schema(spec: TableSpec) -> pa.Schema:
    fields = [pa.field(target_column(place), field.type) for place, field in enumerate(spec.table_schema.to_arrow())]
    return pa.schema([*fields, pa.field(_TARGET_PLACE, pa.string()), pa.field(TARGET_HERE, pa.bool_())])


def _target_batches(spec: TableSpec, target: Iterable[pa.RecordBatch], former: Collection[str]) -> Iterator[pa.RecordBatch]:
    schema = _target_schema(spec)
    for batch in target:
        rows = pa.Table.from_batches([batch])
        places = _places_of(rows, spec, former)
        given = rows.column_names
        own = [rows.column(f.name) if f.name in given else pa.nulls(rows.num_rows, f.type) for f in spec.table_schema.to_arrow()]
        columns = [*own, places, pa.array(np.full(rows.num_rows, True))]
        yield from pa.table(columns, names=schema.names).cast(schema).to_batches()


def _query(program: MergeProgram, spec: TableSpec, *, joined: bool) -> str:
    names = spec.table_schema.names
    chosen = ", ".join(f"{duckdb_text(program.columns[name])} AS c{place}" for place, name in enumerate(names))
    late = "" if program.late is None else f" AND NOT coalesce({duckdb_text(program.late)}, FALSE)"
    if not joined:
        relation, place = "target", _TARGET_PLACE
    else:
        keys = [target_column(names.index(column.name)) for column in spec.key_columns]
        on = " AND ".join([f"{_KEY}{n} = {key}" for n, key in enumerate(keys)] + [f"{_SOURCE_PLACE} = {_TARGET_PLACE}"])
        relation = f"({_source_once(program, len(keys))}) {program.join.upper()} JOIN target ON {on}"
        place = f"coalesce({_SOURCE_PLACE}, {_TARGET_PLACE})"
    numbered = f"SELECT *, {duckdb_text(program.number)} AS {NUMBER} FROM {relation}"  # noqa: S608 - expressions, checked to be such
    return f"SELECT {NUMBER}, {place} AS {PLACE}, {chosen} FROM ({numbered}) WHERE {NUMBER} IS NOT NULL{late}"  # noqa: S608 - as above


def _source_once(program: MergeProgram, keys: int) -> str:
    """The source with each key once, if an ordering column decides which row counts."""
    if not program.ordering:
        return "SELECT * FROM source"
    by = ", ".join([*(f"{_KEY}{n}" for n in range(keys)), _SOURCE_PLACE])
    newest = ", ".join([*(f"{name} DESC NULLS LAST" for name in program.ordering), f"{_POSITION} DESC"])
    return f"SELECT * FROM source QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {newest}) = 1"  # noqa: S608 - names of our own


def _check_once(rows: pa.Table, places: pa.ChunkedArray, spec: TableSpec) -> None:
    key = [column.name for column in spec.key_columns]
    numbered = pa.table([*(rows.column(name) for name in key), places], names=[*(str(n) for n in range(len(key))), PLACE])
    counted = numbered.group_by(numbered.column_names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1))
    if twice.num_rows:
        raise said_twice({name: twice.column(str(n))[0].as_py() for n, name in enumerate(key)})


def said_twice(key: dict[str, Any]) -> InvalidBatch:
    """The error if several source rows match one row of the table."""
    shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
    return InvalidBatch(SAID_TWICE.format(shown))


def moved(column: str) -> InvalidInput:
    """The error if a write would move a row to another partition."""
    return InvalidInput(
        f"A row would move to another partition by its new value of {column!r}, and that partition may have a row of its key. Nothing "
        "was written. Delete the row and insert another one."
    )


def _check_stays(rows: pa.Table, places: pa.ChunkedArray, spec: TableSpec, former: Collection[str]) -> None:
    if rows.num_rows and spec.partition_columns:
        now = _places_of(rows, spec, former)
        if not pc.all(pc.equal(now, places)).as_py():
            raise moved(next(column.name for column in spec.partition_columns if column.id not in spec.key))


class _Session:
    """A separate DuckDB that can access only registered relations. A context manager."""

    def __init__(self, zone: str = "UTC") -> None:
        # DuckDB would ignore the minutes of UTC+05:30.
        known = "UTC" if zone == "Z" else re.sub(r"^(UTC|UT|GMT)?(?=[+-])", "GMT", zone)
        try:
            self._connection = connect_duckdb(needed_by="update() and merge() of rows in this process need", zone=known)
        except LookupError as error:
            raise InvalidInput(
                f"Rows of a table without a key are computed in this process, which does not know the session's time zone {zone!r}. "
                "Nothing was written. Set spark.sql.session.timeZone to that of a place, such as Europe/Rome."
            ) from error
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def declare(self, name: str, schema: pa.Schema) -> None:
        """Define a relation without rows."""
        self._connection.register(name, schema.empty_table())

    def register(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Define a stream as a relation, for one query."""
        self._connection.register(name, pa.RecordBatchReader.from_batches(schema, compact_nested_slices(self._watched(batches))))

    def ask(self, query: str, text: str) -> pa.Table:
        """The answer to a query. text: its expression, for errors. Raises InvalidPredicate, InvalidInput, and what a stream raises."""
        import duckdb

        try:
            return self._connection.sql(query).to_arrow_table()
        except Exception as error:
            if self._failures:
                # DuckDB replaces what a stream raises by its own error.
                raise self._failures[0] from None
            if isinstance(error, (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.NotImplementedException)):
                raise InvalidPredicate(
                    f"The expression {text!r} does not fit ({_reason(error)}). Nothing was written. Change it."
                ) from error
            if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)):
                raise InvalidInput(
                    f"An expression fails on a row ({_reason(error)}). Nothing was written. Change it, or filter such rows out."
                ) from error
            raise

    def _watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self._failures.append(error)
            raise


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0]
