"""Queries in DuckDB, in this process: every table comes as a stream of Arrow batches, of the columns and files that the query needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from sqlglot import expressions as sql

from fileio.errors import MissingDependency
from objcat.errors import InvalidBatch, InvalidSql
from objcat.scan import Scan
from objcat.sql.needs import needs_of
from objcat.sql.runner import Source

R = TypeVar("R")


class LocalRunner:
    """A `runner.Runner` over DuckDB, for one statement. Rows come as Arrow: tables as results, streams as batches."""

    spark: Any = None

    def __init__(self) -> None:
        # Arrow hands on the text of what a stream raises, and not the error.
        self._errors: list[Exception] = []

    def rows(self, query: sql.Query, sources: Sequence[Source]) -> pa.RecordBatchReader:
        running = _Running(query, sources, self._errors)
        return self._stream(running.reader.schema, running.batches())

    def result(self, query: sql.Query, sources: Sequence[Source]) -> pa.Table:
        running = _Running(query, sources, self._errors)
        return pa.Table.from_batches(running.batches(), schema=running.reader.schema)

    def cause(self, error: Exception) -> Exception:
        return self._errors[0] if self._errors else error

    def _stream(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(schema, watched(batches, self._errors))

    def told(self, rows: pa.Table) -> pa.Table:
        return rows

    def names(self, rows: pa.RecordBatchReader) -> list[str]:
        return list(rows.schema.names)

    def fitted(self, rows: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
        nullable = pa.schema([field.with_nullable(True) for field in schema])

        def cast() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                columns = []
                for column, field in zip(batch.columns, nullable, strict=True):
                    try:
                        columns.append(column.cast(field.type))
                    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                        reason = str(error).splitlines()[0]
                        raise InvalidBatch(f"the column {field.name!r} takes {field.type}, not what the query gives: {reason}") from error
                yield pa.RecordBatch.from_arrays(columns, schema=nullable)

        return self._stream(nullable, cast())


class _Running:
    """One query. What a scan raises inside of DuckDB comes out as it was raised."""

    def __init__(self, query: sql.Query, sources: Sequence[Source], errors: list[Exception]) -> None:
        duckdb = _duckdb()
        self._errors = errors
        self._connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        with contextlib.suppress(duckdb.Error):
            # Without the extension that knows zones there is only UTC.
            self._connection.execute("SET TimeZone = 'UTC'")
        needs = needs_of(query, {source.name: source.table.schema for source in sources})
        for source in sources:
            need = needs[source.name]
            columns = need.columns if need.columns is None or need.columns else _narrowest(source)
            scan = source.table.scan(where=need.where, columns=columns, as_of=source.as_of)
            self._connection.register(source.name, _Served(scan, self._errors))
        self.reader: pa.RecordBatchReader = self._try(
            lambda: self._connection.sql(query.sql(dialect="duckdb", identify=True)).to_arrow_reader()
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._try(lambda: next(self.reader, None))) is not None:
            yield batch
        self._connection.close()

    def _try(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except (_duckdb().Error, OSError, pa.ArrowException) as error:
            if self._errors:
                raise self._errors[0] from error
            reason = " ".join(line.strip() for line in str(error).split("\n\n")[0].splitlines() if line.strip())
            raise InvalidSql(f"the query was refused by DuckDB: {reason}") from error


class _Served:
    """A scan as DuckDB reads it: a new stream whenever it asks for one, since a WITH that is used twice is read twice."""

    def __init__(self, scan: Scan, errors: list[Exception]) -> None:
        self._scan = scan
        self._errors = errors

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = self._scan.to_batches()
        return pa.RecordBatchReader.from_batches(stream.schema, watched(stream, self._errors)).__arrow_c_stream__(requested_schema)


def watched(batches: Iterable[pa.RecordBatch], errors: list[Exception]) -> Iterator[pa.RecordBatch]:
    """The batches; what they raise is kept in `errors` too."""
    try:
        yield from batches
    except Exception as error:
        errors.append(error)
        raise


def _narrowest(source: Source) -> list[str]:
    """Some column, for a query that only counts."""
    spec = source.table.spec
    return [(spec.key_columns or spec.table_schema.columns)[0].name]


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency("SQL without Spark needs duckdb: pip install 'objcat[local]'") from error
    return duckdb
