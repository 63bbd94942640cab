"""How SQL text is read: as Spark reads it."""

from __future__ import annotations

from sqlglot.dialects.spark import Spark


class SparkText(Spark):
    """Spark's dialect, in which a quote within text may be doubled, as SQL's standard has it and Spark from 4.0 on. sqlglot goes by what
    came before, and makes OBrien of 'O''Brien'."""

    class Tokenizer(Spark.Tokenizer):
        """As Spark's."""

        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - as its base has it
