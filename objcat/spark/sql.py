"""Queries of statements in Spark. Each table is a lazy frame, so that Catalyst prunes it like any other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from sqlglot import expressions as sql

from objcat.common.validation import SHOWN_CHARACTERS_MAX
from objcat.errors import InvalidSql
from objcat.metadata.column_parts import cheapest_column
from objcat.predicate.dialect import spark_sql, without_variables
from objcat.spark.native.relation import spark_schema
from objcat.spark.versions import from_arrow, try_cast

_UTC = ("UTC", "Etc/UTC", "GMT", "Z")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class NamedTable(Protocol):
    """One mention of a table in a query, like `objcat.sql.runner.QueryTable`."""

    @property
    def name(self) -> str:
        """Its name in the text of the query."""

    @property
    def table(self) -> Any:
        """Its handle."""

    @property
    def as_of(self) -> Any:
        """See `Table.scan`."""

    @property
    def need(self) -> Any:
        """Columns and a filter that are enough, of a table in place. None: not known."""


class SparkRunner:
    """An `objcat.sql.runner.Runner` over a session. Results are lazy frames."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Any = spark

    def rows(self, query: sql.Query, sources: Sequence[NamedTable]) -> DataFrame:
        """See `Runner.rows`."""
        text = spark_sql(without_variables(query))
        if sources:
            # Spark replaces names in braces by frames; braces of the text itself are doubled.
            text = text.replace("{", "{{").replace("}", "}}")
            for source in sources:
                text = text.replace(f"`{source.name}`", f"{{{source.name}}}")
        try:
            try:
                found: DataFrame = self.spark.sql(text, **{source.name: self._frame(source) for source in sources})
            except AnalysisException:
                if all(source.need is None for source in sources):
                    raise
                # Spark may need a column by rules of its own.
                frames = {source.name: source.table.scan(as_of=source.as_of).to_spark(self.spark) for source in sources}
                found = self.spark.sql(text, **frames)
        except (AnalysisException, ParseException) as error:
            raise _refused(error) from error
        return found

    def _frame(self, source: NamedTable) -> DataFrame:
        """A table as a frame. Of one in place, Python workers read what the query needs: Catalyst cannot push anything into them."""
        if source.need is None:
            whole: DataFrame = source.table.scan(as_of=source.as_of).to_spark(self.spark)
            return whole
        # Literals of times are of the zone of the session, and of UTC in filters.
        where = source.need.where if self.spark.conf.get("spark.sql.session.timeZone") in _UTC else None
        columns = source.need.columns
        if columns == []:
            columns = [cheapest_column(source.table.spec)]
        read: DataFrame = source.table.scan(columns=columns, where=where).to_spark(self.spark)
        return read

    def session_rows(self, text: str) -> DataFrame:
        """The rows of a query of the session's own tables and views. Raises InvalidSql."""
        try:
            found: DataFrame = self.spark.sql(text)
        except (AnalysisException, ParseException) as error:
            raise _refused(error) from error
        return found

    def result(self, query: sql.Query, sources: Sequence[NamedTable]) -> DataFrame:
        """See `Runner.result`."""
        return self.rows(query, sources)

    def told(self, rows: pa.Table) -> DataFrame:
        """See `Runner.told`."""
        return from_arrow(self.spark, rows)

    def cause(self, error: Exception) -> Exception:
        """See `Runner.cause`."""
        return error

    def names(self, rows: DataFrame) -> list[str]:
        """See `Runner.names`."""
        return list(rows.columns)

    def batch(self, rows: DataFrame) -> DataFrame:
        """See `Runner.batch`."""
        return rows

    def fitted(self, rows: DataFrame, schema: pa.Schema) -> DataFrame:
        """See `Runner.fitted`."""
        rows = rows.toDF(*(f"_{number}" for number in range(len(schema))))
        fields = spark_schema(schema).fields
        given = [field.dataType for field in rows.schema.fields]
        is_strict = self.spark.conf.get("spark.sql.ansi.enabled") == "true"
        try:
            return rows.select(
                *(
                    (value.cast(wanted.dataType) if is_strict else _fitted(value, kind, wanted.dataType)).alias(wanted.name)
                    for value, kind, wanted in zip(map(F.col, rows.columns), given, fields, strict=True)
                )
            )
        except AnalysisException as error:
            raise _refused(error) from error

    def moment(self, said: sql.Expr) -> dt.datetime | None:
        """See `Runner.moment`."""
        try:
            found = self.spark.sql(f"SELECT unix_micros(try_cast({spark_sql(said)} AS TIMESTAMP_LTZ))").collect()[0][0]
            return None if found is None else _EPOCH + dt.timedelta(microseconds=found)
        except (AnalysisException, ParseException, OverflowError):
            return None


def _fitted(value: Column, given: DataType, wanted: DataType) -> Column:
    """A value in another type, where the session's casts give null or a truncated number.

    The job fails at a value that does not fit, as an INSERT of Spark does in every session.
    """
    match given, wanted:
        case ArrayType(), ArrayType():
            return F.transform(value, lambda element: _fitted(element, given.elementType, wanted.elementType))
        case MapType(), MapType():
            keys = F.transform(F.map_keys(value), lambda key: _fitted(key, given.keyType, wanted.keyType))
            return F.map_from_arrays(keys, F.transform(F.map_values(value), lambda one: _fitted(one, given.valueType, wanted.valueType)))
        case StructType(), StructType() if len(given) == len(wanted):
            pairs = zip(given.fields, wanted.fields, strict=True)
            fields = [_fitted(value.getField(old.name), old.dataType, new.dataType).alias(new.name) for old, new in pairs]
            return F.when(value.isNotNull(), F.struct(*fields))
    cast = try_cast(value, wanted)
    shown = F.substring(value.cast("string"), 1, SHOWN_CHARACTERS_MAX)
    refused = F.concat(
        F.lit("The value "), shown, F.lit(f" does not fit into {wanted.simpleString()}. Nothing was written. Cast it yourself.")
    )
    return F.when(value.isNull() | cast.isNotNull(), cast).otherwise(F.raise_error(refused))


def _refused(error: AnalysisException) -> InvalidSql:
    reason = str(error).strip().split(";")[0].splitlines()[0]
    return InvalidSql(f"Spark refused the query: {reason}. Correct the statement.")
