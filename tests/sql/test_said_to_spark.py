"""What is handed to Spark as text and as paths, looked at without Spark: nothing in it becomes anything else there."""

from __future__ import annotations

import pytest
import sqlglot

from objcat.errors import CorruptTable, InvalidSql
from objcat.predicate.dialect import SparkText, spark_sql, told_to_spark, without_variables
from objcat.spark.native.files import paths_inside


@pytest.mark.parametrize("name", ["${env:HOME}", "a${x}b", "${system:user.name}"])
def test_a_name_that_spark_takes_for_a_variable_is_refused(name: str) -> None:
    tree = sqlglot.parse_one(f"SELECT `{name}`, t.`{name}` AS x FROM t", dialect=SparkText)
    for said in (told_to_spark, without_variables):
        with pytest.raises(InvalidSql, match="variable"):
            said(tree)


@pytest.mark.parametrize("text", ["${env:HOME}", "a ${x} it's", "`_objcat_0`", "\\${x}"])
def test_text_that_spark_would_put_something_into_is_told_in_bytes(text: str) -> None:
    tree = sqlglot.exp.select(sqlglot.exp.Literal.string(text))
    said = spark_sql(without_variables(tree))
    assert said == f"SELECT CAST(X'{text.encode().hex()}' AS STRING)"
    plain = sqlglot.parse_one("SELECT 'it''s \\\\ plain $ {x}' AS `a$b`", dialect=SparkText)
    assert without_variables(plain) == plain


@pytest.mark.parametrize("path", ["../x.parquet", "data/../../x", "/etc/passwd", "", "data//x", "./x", "data/\0"])
def test_a_path_that_leads_out_of_the_table_is_not_told(path: str) -> None:
    good = ["data/a/b=..c/x.parquet", "data/a/%2e%2e/x.parquet"]
    assert paths_inside(good) == good
    with pytest.raises(CorruptTable, match="no path below the table"):
        paths_inside([*good, path])
