"""Text in SQL is what Spark takes it for, wherever SQL is read: in statements, queries, expressions and filters."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidPredicate, InvalidSql

QUOTED = {
    "'O''Brien'": "O'Brien",
    r"'O\'Brien'": "O'Brien",
    '''"O'Brien"''': "O'Brien",
    '"say ""so"""': 'say "so"',
    """'a""b'""": 'a""b',
    '''"a''b"''': "a''b",
    "''": "",
    "''''": "'",
    "'''a'''": "'a'",
    r"'it''s \\ ''so'''": r"it's \ 'so'",
}
"""Text as it is written, and what it says."""


@pytest.mark.parametrize(("text", "said"), QUOTED.items(), ids=QUOTED)
def test_quotes_within_text(tmp_path: Path, text: str, said: str) -> None:
    lake = objcat.connect(tmp_path)
    lake.sql("CREATE TABLE names (id BIGINT, name STRING, PRIMARY KEY (id)) CLUSTERED BY (id) INTO 1 BUCKETS")
    table = lake.table("names")
    lake.sql(f"INSERT INTO names VALUES (1, {text}), (2, 'x')")
    table.update({"name": text}, where="id = 2")
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [{"id": 1, "name": said}, {"id": 2, "name": said}]
    assert table.scan(where=f"name = {text}").count() == 2
    assert table.scan(where=f"name in ('other', {text})").to_arrow().num_rows == 2
    assert lake.sql(f"SELECT count(*) AS n FROM names WHERE name = {text}").to_pylist() == [{"n": 2}]
    lake.sql(f"MERGE INTO names t USING (SELECT 1 AS id, {text} AS name) s ON t.id = s.id WHEN MATCHED AND t.name = {text} THEN DELETE")
    lake.sql(f"DELETE FROM names WHERE name = {text}")
    assert table.scan().count() == 0


def test_texts_that_follow_one_another_are_one() -> None:
    assert objcat.connect("memory:").sql("SELECT 'a''b' 'c' AS s").to_pylist() == [{"s": "a'bc"}]


@pytest.mark.parametrize("text", ["z = X'41'", "z <> X''"])
def test_bytes_in_a_filter_are_refused_as_they_were_written(tmp_path: Path, text: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("k", pa.int64()), ("z", pa.binary())]), key=["k"])
    with pytest.raises(InvalidPredicate, match="X'"):
        table.scan(where=text).to_arrow()


def test_a_term_that_spark_has_no_words_for_is_computed_here(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string()), ("v", pa.int64())]), key=["id"])
    table.upsert([{"id": 1, "s": "xAz", "v": 0}, {"id": 2, "s": "q", "v": 0}, {"id": 3, "s": "A", "v": 0}])
    done = table.update({"v": "v + 1"}, where="id < 3 AND regexp_extract(s, '(a)', 1, 'i') = 'A'")
    assert done is not None and done.updated == 1
    assert table.scan(where="v = 1").to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(InvalidSql, match="not known without Spark"):
        table.update({"v": "v + 1"}, where="levenshtein(s, 'xAz', 1) = 0")
