"""SQL that goes through us to Spark means there what it says: beside what Spark makes of the text itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import objcat
from objcat.errors import InvalidSql
from objcat.predicate.dialect import SparkText, spark_sql

TEXTS = [
    "SELECT instr('abcabc', 'b', 1, 2)",
    "SELECT instr('abcabc', 'b', -1, 1)",
    "SELECT instr('abcabc', 'c'), locate('b', 'abcabc', 3), position('b' IN 'abc')",
    "SELECT listagg(c), listagg(c, '-'), string_agg(DISTINCT c) FROM VALUES ('a') AS t(c)",
    "SELECT listagg(c) WITHIN GROUP (ORDER BY c DESC) FROM VALUES ('a'), ('b') AS t(c)",
    "SELECT max_by(x, y, 2), min_by(x, y, 2), max_by(x, y) FROM VALUES ('a', 10), ('b', 50), ('c', 20) AS t(x, y)",
    "SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY c) FROM VALUES (0), (10) AS t(c)",
    "SELECT percentile_disc(0.25) WITHIN GROUP (ORDER BY c) FROM VALUES (0), (10) AS t(c)",
    "SELECT to_char(12454, '99G999'), to_char(78.12, '$99.99'), to_char(DATE '2016-04-08', 'y'), to_varchar(X'53', 'hex')",
    "SELECT to_json(parse_json('{\"a\": 1}')), try_parse_json('{') IS NULL, variant_get(parse_json('{\"a\": 1}'), '$.a', 'int')",
    "SELECT 'a\x007', 'O''Brien', \"it's\", 'a\\\\b', '\\%', '\\u0041\\101', r'\\n'",
]
"""That sqlglot writes for Spark in a way that means something else."""
UNEQUAL = (
    "aes_encrypt",
    "approx_top",
    "current",
    "curdate",
    "hll",
    "input_file",
    "java_method",
    "kll",
    "localtime",
    "monotonically",
    "now(",
)
UNEQUAL_TOO = (
    "rand",
    "reflect",
    "session_user",
    "shuffle",
    "sketch",
    "spark_partition",
    "uniform",
    "unix_timestamp()",
    "user()",
    "uuid",
    "version",
)


def answer(spark: SparkSession, text: str) -> str:
    return repr([tuple(row) for row in spark.sql(text).collect()])


def said_again(text: str) -> str:
    return spark_sql(sqlglot.parse_one(text, dialect=SparkText))


@pytest.mark.parametrize("text", TEXTS)
def test_text_means_to_spark_what_it_says(spark: SparkSession, text: str) -> None:
    try:
        expected = answer(spark, text)
    except PySparkException:
        pytest.xfail("this version of Spark does not know one of them")
    assert answer(spark, said_again(text)) == expected


def examples(spark: SparkSession) -> Iterator[str]:
    """Of Spark's own documentation of each function, those that answer the same whenever they are asked."""
    for function in [row.function for row in spark.sql("SHOW FUNCTIONS").collect()]:
        described = "\n".join(row.function_desc for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{function}`").collect())
        for example in re.findall(r"> (SELECT .*?);\n", described, re.DOTALL):
            if not any(word in example.lower() for word in (*UNEQUAL, *UNEQUAL_TOO)):
                yield example


@pytest.mark.tier("all")
def test_examples_of_all_functions_mean_what_they_say(spark: SparkSession) -> None:
    compared, wrong, refused = 0, [], []
    for example in examples(spark):
        try:
            expected, text = answer(spark, example), said_again(example)
        except (PySparkException, sqlglot.errors.SqlglotError, InvalidSql):
            continue
        compared += 1
        try:
            found = answer(spark, text)
        except PySparkException:
            refused.append(text)
            continue
        if found != expected:
            wrong.append((example, text, expected, found))
    assert not wrong
    assert compared > 800
    # Literals of TIME, which Spark takes where it refuses the type.
    assert [text for text in refused if "AS TIME)" not in text] == []


def test_a_query_over_a_table_keeps_its_functions(spark: SparkSession, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", pa.schema([("k", pa.int64()), ("s", pa.string())]), key=["k"], index=objcat.BucketIndex(1))
    table.upsert([{"k": k, "s": s} for k, s in enumerate(["abab", "bb", "", None])])
    found = lake.sql("SELECT k, locate('b', s, 3) AS at, to_char(k + 1000, '9G999') AS said FROM t ORDER BY k", spark).collect()
    assert [tuple(row) for row in found] == [(0, 4, "1,000"), (1, 0, "1,001"), (2, 0, "1,002"), (3, None, "1,003")]
    lake.sql("UPDATE t SET s = to_char(k + 1000, '9G999') WHERE to_char(k + 1000, '9G999') = '1,000'", spark)
    assert table.scan(where="k = 0").to_arrow().column("s").to_pylist() == ["1,000"]
