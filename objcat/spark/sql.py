"""Queries of statements in Spark: every table is a lazy frame of its own, so that Catalyst prunes it as it does any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import expressions as sql

from objcat.errors import InvalidSql
from objcat.predicate.dialect import spark_sql
from objcat.spark.native import spark_schema

if TYPE_CHECKING:
    from objcat.sql.runner import Source


class SparkRunner:
    """An `objcat.sql.runner.Runner` over a session. Results are lazy frames."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Any = spark

    def rows(self, query: sql.Query, sources: Sequence[Source]) -> DataFrame:
        frames = {source.name: source.table.scan(as_of=source.as_of).to_spark(self.spark) for source in sources}
        text = spark_sql(query)
        if frames:
            # Spark puts frames where the text names them in braces; braces of the text's own are doubled.
            text = text.replace("{", "{{").replace("}", "}}")
            for name in frames:
                text = text.replace(f"`{name}`", f"{{{name}}}")
        try:
            found: DataFrame = self.spark.sql(text, **frames)
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().split(";")[0].splitlines()[0]
            raise InvalidSql(f"the query was refused by Spark: {reason}") from error
        return found

    def result(self, query: sql.Query, sources: Sequence[Source]) -> DataFrame:
        return self.rows(query, sources)

    def told(self, rows: pa.Table) -> DataFrame:
        made: DataFrame = self.spark.createDataFrame(rows)
        return made

    def cause(self, error: Exception) -> Exception:
        return error

    def names(self, rows: DataFrame) -> list[str]:
        return list(rows.columns)

    def batch(self, rows: DataFrame) -> DataFrame:
        return rows

    def fitted(self, rows: DataFrame, schema: pa.Schema) -> DataFrame:
        rows = rows.toDF(*(f"_{number}" for number in range(len(schema))))
        fields = spark_schema(schema).fields
        return rows.select(*(F.col(f"_{number}").cast(field.dataType).alias(field.name) for number, field in enumerate(fields)))
