"""SQL is Spark's, also where DuckDB computes it: `tests/spark/test_sql.py` shows that Spark makes the same of these."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidSql
from tests.sql.meanings import AGGREGATED, AGGREGATES, MEANINGS, QUERY, ROWS, SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    lake.create_table("t", SCHEMA, key=["k"], index=objcat.BucketIndex(1)).insert(pa.Table.from_pylist(ROWS, schema=SCHEMA))
    return lake


def test_functions_mean_what_they_mean_to_spark(lake: objcat.Lake) -> None:
    found = lake.sql(QUERY)
    assert {text: column.to_pylist() for text, column in zip(MEANINGS, found.columns, strict=True)} == MEANINGS
    (aggregated,) = lake.sql(AGGREGATED).to_pylist()
    assert dict(zip(AGGREGATES, aggregated.values(), strict=True)) == AGGREGATES


def test_updates_and_merges_go_by_the_same_meaning(lake: objcat.Lake) -> None:
    table = lake.table("t")
    table.update({"n": "dayofweek(d)", "s": "regexp_replace(s, '(X)', '[$1]')"}, where=r"s like '%\_%' or dayofweek(d) = 2")
    assert table.scan(where="k < 2", columns=["k", "n", "s"]).to_arrow().sort_by("k").to_pylist() == [
        {"k": 0, "n": 4, "s": "a.b_c%d"},
        {"k": 1, "n": 2, "s": "a[X]b[X]c"},
    ]
    done = table.merge([{"k": k} for k in range(4)]).when_matched_delete(where="NOT array_contains(target.l, 9)").execute()
    assert done is not None and done.deleted == 2
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [0, 2]


def test_a_cast_that_does_not_fit_is_an_error_where_null_is_not_asked_for(lake: objcat.Lake) -> None:
    table = lake.table("t")
    for text in ("SELECT CAST(s AS INT) AS n FROM t", "INSERT INTO t (k, n) SELECT k + 10, CAST(s AS INT) FROM t"):
        with pytest.raises((InvalidSql, InvalidInput), match="Could not convert string"):
            lake.sql(text)
    assert table.refresh().slot == 1 and table.scan().count() == len(ROWS)
    assert lake.sql("SELECT TRY_CAST(s AS INT) AS n FROM t WHERE k = 0").to_pylist() == [{"n": None}]


@pytest.mark.parametrize("said", ["to_char(i, '9G999')", "instr(s, 'b', 1, 2)"])
def test_what_has_no_words_without_spark_is_refused(lake: objcat.Lake, said: str) -> None:
    with pytest.raises(InvalidSql):
        lake.sql(f"SELECT {said} FROM t")


def test_nothing_stands_between_what_listagg_joins_unless_it_is_said(lake: objcat.Lake) -> None:
    joined = lake.sql("SELECT listagg(c) AS bare, listagg(c, '-') AS said FROM VALUES ('a'), ('b') AS v(c)").to_pylist()
    assert joined == [{"bare": "ab", "said": "a-b"}]
