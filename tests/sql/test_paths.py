"""Paths of columns in statements: which part is a table, which a column, and which a field of a struct."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, InvalidPredicate, InvalidSql

ROWS = pa.table(
    {
        "id": [1],
        "before": [{"rows": {"x": 11, "deep": {"y": 12}}, "x": 13}],
        "rows": [{"x": 21, "deep": {"y": 22}}],
        "x": [31],
    }
)
"""Whoever forgets a part of `before.rows.x` finds another column."""


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    lake = objcat.connect(tmp_path)
    for name in ("plain", "rows", "a.rows", "a.b.c.rows", "b.other"):
        lake.create_table(name, ROWS.schema, key=["id"], index=objcat.BucketIndex(1)).insert(ROWS)
    return lake


PATHS = [
    ("plain", "before.x", 13),
    ("plain", "before.rows.x", 11),
    ("plain", "before.rows.deep.y", 12),
    ("plain", "plain.before.rows.deep.y", 12),
    ("plain p", "p.before.rows.deep.y", 12),
    ("rows", "rows.x", 31),
    ("rows", "rows.rows.x", 21),
    ("rows", "rows.before.rows.x", 11),
    ("a.rows", "a.rows.x", 31),
    ("a.rows", "A.Rows.before.rows.x", 11),
    ("a.rows", "before.rows.x", 11),
    ("a.b.c.rows", "a.b.c.rows.x", 31),
    ("a.b.c.rows", "b.c.rows.before.rows.deep.y", 12),
    ("a.b.c.rows", "before.rows.deep.y", 12),
    ("(SELECT * FROM a.rows) s", "s.before.rows.x", 11),
    ("plain p JOIN a.rows ON p.id = a.rows.id", "a.rows.before.rows.x", 11),
]


@pytest.mark.parametrize(("source", "path", "value"), PATHS)
def test_each_part_of_a_path_counts(lake: objcat.Lake, source: str, path: str, value: int) -> None:
    query = f"SELECT {path} AS found FROM {source} WHERE {path} > 0 GROUP BY {path} HAVING max({path}) > 0 ORDER BY {path}"
    assert lake.sql(query).to_pylist() == [{"found": value}]
    assert lake.sql(f"SELECT count(*) AS n FROM {source} WHERE {path} <> {value}").to_pylist() == [{"n": 0}]


def test_a_query_in_a_query_names_tables_around_it(lake: objcat.Lake) -> None:
    query = "SELECT (SELECT max(p.x) FROM plain p WHERE p.x = a.rows.x) AS found, a.rows.* FROM a.rows"
    assert lake.sql(query).select(["found", "id", "x"]).to_pylist() == [{"found": 31, "id": 1, "x": 31}]
    with pytest.raises(InvalidSql, match=r'"a.rows" not found'):
        lake.sql("SELECT a.rows.x FROM a.rows r")


def test_a_filter_of_a_statement_means_the_whole_path(lake: objcat.Lake) -> None:
    def x(name: str) -> object:
        return lake.sql(f"SELECT x FROM {name}").to_pylist()[0]["x"]

    # Without its first part it would be true: the table is called as the struct inside is.
    lake.sql("UPDATE rows SET x = 99 WHERE before.rows.x = 31")
    assert x("rows") == 31
    lake.sql("UPDATE a.rows SET a.rows.x = a.rows.before.rows.x + rows.x WHERE before.rows.x = 11 AND a.rows.x = 31")
    assert x("a.rows") == 42
    lake.sql("DELETE FROM rows WHERE before.rows.x = 31")
    assert x("rows") == 31
    with pytest.raises(InvalidPredicate, match="'other' is not a column"):
        lake.sql("DELETE FROM rows WHERE other.rows.x = 31")
    lake.sql("DELETE FROM a.rows WHERE a.rows.before.rows.deep.y = 12 AND rows.x = 42")
    assert lake.sql("SELECT count(*) AS n FROM a.rows").to_pylist() == [{"n": 0}]
    for statement in ("UPDATE rows SET before.rows.x = 1", "UPDATE rows SET other.rows.x = 1"):
        with pytest.raises(InvalidSql, match="is no column of the table 'rows'"):
            lake.sql(statement)
    lake.sql("DELETE FROM rows WHERE rows.x = 31")
    assert lake.sql("SELECT count(*) AS n FROM rows").to_pylist() == [{"n": 0}]


def test_a_merge_names_its_tables_whole(lake: objcat.Lake) -> None:
    lake.sql("""
        MERGE INTO a.rows USING b.other ON a.rows.id = b.other.id
        WHEN MATCHED AND b.other.before.rows.x = 11 AND a.rows.before.rows.deep.y = 12
        THEN UPDATE SET a.rows.x = b.other.before.rows.deep.y + other.x + rows.before.x
    """)
    assert lake.sql("SELECT x FROM a.rows").to_pylist() == [{"x": 12 + 31 + 13}]
    with pytest.raises(InvalidInput, match="Source and target are both called 'rows'"):
        lake.sql("MERGE INTO a.rows USING rows ON a.rows.id = rows.id WHEN MATCHED THEN DELETE")
