"""Queries in DuckDB, in this process. A table is a stream of Arrow batches with only the columns and files that the query needs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import expressions as sql

from fileio.optional import library
from objcat.common.duckdb_sandbox import SHARED
from objcat.common.memory_errors import is_full
from objcat.errors import InvalidSql
from objcat.metadata.column_parts import cheapest_column
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.duckdb import duckdb_text, strict_casts
from objcat.sql.pushdown import ALL, Need, needs_of
from objcat.sql.runner import QueryTable
from objcat.table.scan import Scan

R = TypeVar("R")
_NEEDED_BY = "SQL without Spark needs"


class LocalRunner:
    """A `runner.Runner` over DuckDB, for one statement. Rows come as Arrow: tables as results, streams as batches."""

    spark: Any = None

    def __init__(self) -> None:
        # Arrow passes on only the text of an error that a stream raises.
        self._errors: list[BaseException] = []

    def rows(self, query: sql.Query, sources: Sequence[QueryTable]) -> _Running:
        """See `Runner.rows`."""
        return _Running(query, sources, self._errors)

    def result(self, query: sql.Query, sources: Sequence[QueryTable]) -> pa.Table:
        """See `Runner.result`."""
        return self.batch(self.rows(query, sources)).read_all()

    def told(self, rows: pa.Table) -> pa.Table:
        """See `Runner.told`."""
        return rows

    def moment(self, said: sql.Expr) -> dt.datetime | None:  # noqa: ARG002 - they are UTC in queries too
        """See `Runner.moment`."""
        return None

    def cause(self, error: Exception) -> Exception:
        """See `Runner.cause`."""
        return next((one for one in self._errors if isinstance(one, Exception)), error)

    def names(self, rows: _Running) -> list[str]:
        """See `Runner.names`."""
        return rows.names

    def batch(self, rows: _Running) -> pa.RecordBatchReader:
        """See `Runner.batch`."""
        return rows.read()

    def fitted(self, rows: _Running, schema: pa.Schema) -> pa.RecordBatchReader:
        """See `Runner.fitted`."""
        return rows.cast(pa.schema([field.with_nullable(True) for field in schema])).read()


class _Running:
    """One query. An error that a scan raises inside DuckDB comes out as it was raised."""

    def __init__(self, query: sql.Query, sources: Sequence[QueryTable], errors: list[BaseException]) -> None:
        self._errors = errors
        self._connection = SHARED.connect(needed_by=_NEEDED_BY)
        self._text = duckdb_text(strict_casts(query), identify=True)
        self._specs = {source.name: _spec(source) for source in sources}
        self._serve(sources, self._needs(query, sources))
        try:
            self._relation = self._try(lambda: self._connection.sql(self._text))
        except InvalidSql:
            # DuckDB may need a column by rules of its own, such as one that EXCEPT names.
            self._serve(sources, {source.name: ALL for source in sources})
            self._relation = self._try(lambda: self._connection.sql(self._text))
        self._schema: pa.Schema | None = None

    def _needs(self, query: sql.Query, sources: Sequence[QueryTable]) -> Mapping[str, Need]:
        known = {source.name: source.need for source in sources if source.need is not None}
        if len(known) == len(sources):
            return known
        schemas = {name: spec.table_schema.to_arrow() for name, spec in self._specs.items()}
        return needs_of(query, schemas, by_field=[name for name, spec in self._specs.items() if spec.is_in_place])

    def _serve(self, sources: Sequence[QueryTable], needs: Mapping[str, Need]) -> None:
        for source in sources:
            need = needs[source.name]
            columns = need.columns if need.columns is None or need.columns else [cheapest_column(self._specs[source.name])]
            scan = source.table.scan(where=need.where, columns=columns, as_of=source.as_of)
            self._connection.register(source.name, StreamedScan(scan, self._errors))

    @property
    def names(self) -> list[str]:
        return list(self._relation.columns)

    def cast(self, schema: pa.Schema) -> _Running:
        """Cast the columns by position to other names and types, as DuckDB casts; returns this query."""
        # DuckDB itself names the types of Arrow.
        self._connection.register(_SHAPE, schema.empty_table())
        types = self._connection.sql(f"SELECT * FROM {_SHAPE}").types  # noqa: S608 - a constant
        names = [f"c{number}" for number in range(len(types))]
        casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(names, types, strict=True))
        text = f"SELECT {casts} FROM ({self._text}) AS given({', '.join(names)})"  # noqa: S608 - made of names of ours and of a checked query
        self._relation = self._try(lambda: self._connection.sql(text))
        self._schema = schema
        return self

    def read(self) -> pa.RecordBatchReader:
        reader = self._try(self._relation.to_arrow_reader)
        schema = reader.schema if self._schema is None else self._schema
        return pa.RecordBatchReader.from_batches(schema, watched(self._batches(reader, schema), self._errors))

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while (batch := self._try(lambda: next(reader, None))) is not None:
            columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        self._connection.close()

    def _try(self, work: Callable[[], R]) -> R:
        return run_in_duckdb(work, self._errors, what="the query", then="Correct the statement.")


def _spec(source: QueryTable) -> TableSpec:
    """The spec as of the slot that is read, at which the columns may have been others."""
    table, as_of = source.table, source.as_of
    return table.spec if as_of is None else table._context.latest.retry_on_new_checkpoint(lambda: table._context.snapshot_as_of(as_of)).spec


_SHAPE = "_objcat_shape"


class StreamedScan:
    """A scan as DuckDB reads it: a new stream for each request, because a WITH that is used twice is read twice."""

    def __init__(self, scan: Scan, errors: list[BaseException]) -> None:
        self._scan = scan
        self._errors = errors

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = self._scan.to_batches()
        return pa.RecordBatchReader.from_batches(stream.schema, watched(stream, self._errors)).__arrow_c_stream__(requested_schema)


def run_in_duckdb(work: Callable[[], R], errors: Sequence[BaseException], *, what: str, then: str) -> R:
    """What `work` returns.

    Args:
        errors: What scans inside it raised, see `watched`.
        what: The thing that DuckDB refuses, for the message.
        then: The next step, for the message.

    Raises:
        InvalidSql: DuckDB refused it.
        BaseException: the first of `errors`; or DuckDB's own error where memory or disk is full.
    """
    try:
        return work()
    except (_duckdb().Error, OSError, pa.ArrowException) as error:
        if isinstance(error, (_duckdb().FatalException, _duckdb().InternalException)):
            SHARED.forget()
        if errors:
            raise errors[0] from error
        if is_full(error):
            raise
        reason = " ".join(line.strip() for line in str(error).split("\n\n")[0].splitlines() if line.strip())
        raise InvalidSql(f"DuckDB refused {what}: {reason}. {then}") from error


def watched(batches: Iterable[pa.RecordBatch], errors: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """The batches; what they raise is added to `errors` too."""
    try:
        yield from batches
    except (Exception, KeyboardInterrupt) as error:
        errors.append(error)
        raise


def _duckdb() -> Any:
    return library("duckdb", needed_by=_NEEDED_BY, extra="local")
