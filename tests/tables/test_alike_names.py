"""Names of columns that look the same: those that differ in case or Unicode normalisation alone are refused wherever one could come in."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from objcat.errors import InvalidBatch, InvalidInput, InvalidSchema
from objcat.metadata import schema, schema_evolution

COMPOSED = unicodedata.normalize("NFC", "é")
DECOMPOSED = unicodedata.normalize("NFD", "é")
PAIRS = [
    (COMPOSED, DECOMPOSED),
    (DECOMPOSED, COMPOSED),
    ("straße", "STRASSE"),
    (COMPOSED, DECOMPOSED.upper()),
    ("ΜΆΪΟΣ", "μάϊος"),
    ("id2", "ID2"),
]
ID = pa.field("id", pa.int64(), nullable=False)


def made(place: Path, *fields: Any) -> objcat.Table:
    return objcat.connect(place).create_table("t", pa.schema([ID, *fields]), key=["id"], index=objcat.BucketIndex(1))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_no_table_has_two_columns_that_look_the_same(tmp_path: Path, first: str, second: str) -> None:
    assert first != second
    for fields in (
        [(first, pa.int64()), (second, pa.int64())],
        [("s", pa.struct([(first, pa.int64()), (second, pa.int64())]))],
        [("l", pa.list_(pa.struct([(first, pa.int64()), (second, pa.int64())])))],
    ):
        with pytest.raises(InvalidSchema, match="must differ in more than case and Unicode normalisation"):
            made(tmp_path, *fields)
    table = made(tmp_path, (first, pa.int64()), ("other", pa.int64()), ("s", pa.struct([(first, pa.int64()), ("b", pa.int64())])))
    slot = table.refresh().slot
    for change in (
        lambda: table.alter.add_column(second, "bigint"),
        lambda: table.alter.rename_column("other", second),
        lambda: table.alter.add_column(f"s.{second}", "bigint"),
        lambda: table.alter.rename_column("s.b", second),
        lambda: table.upsert(pa.table({"id": [1], second: [1]}), schema_mode="add"),
        lambda: table.upsert(pa.table({"id": [1], "s": [{first: 1, second: 2}]}), schema_mode="add"),
    ):
        with pytest.raises(InvalidSchema, match="must differ in more than case and Unicode normalisation"):
            change()
    assert table.refresh().slot == slot
    # What a column itself is called may change so.
    table.alter.rename_column(first, second)
    assert second in table.schema.names


@pytest.mark.parametrize(("first", "second"), PAIRS[:3])
def test_a_batch_with_a_name_that_looks_the_same_is_refused_and_not_null(tmp_path: Path, first: str, second: str) -> None:
    table = made(tmp_path, (first, pa.int64()), ("s", pa.struct([(first, pa.int64())])))
    for rows in ([{"id": 1, second: 5}], pa.table({"id": [1], "s": [{second: 1}]})):
        with pytest.raises(InvalidBatch) as raised:
            table.upsert(rows)
        said = str(raised.value)
        assert ascii(first) in said and ascii(second) in said and "Use the spelling of the table" in said
    for read in (
        lambda: table.scan(columns=[second]),
        lambda: table.scan(where=f"`{second}` = 1"),
        lambda: table.scan(where=pc.field(second) == 1),
        lambda: table.update({second: "1"}),
        lambda: table.incremental(since=-1, columns=[second]),
        lambda: table.scan().min(second),
    ):
        with pytest.raises(InvalidInput) as raised_by_name:
            read()
        assert ascii(first) in str(raised_by_name.value) and ascii(second) in str(raised_by_name.value)
    assert table.scan().count() == 0


def test_a_table_that_has_such_columns_is_read_written_and_altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older versions made them, which looked at simple case."""
    with monkeypatch.context() as older:
        for module in (schema, schema_evolution):
            older.setattr(module, "case_folded", str.lower)
        made(tmp_path, (COMPOSED, pa.int64()), (DECOMPOSED, pa.int64()))
    table = objcat.connect(tmp_path).table("t")
    table.upsert([{"id": 1, COMPOSED: 1, DECOMPOSED: 2}])
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, COMPOSED: 1, DECOMPOSED: 2}]
    assert table.scan(columns=[DECOMPOSED], where="id = 1").to_arrow().to_pylist() == [{DECOMPOSED: 2}]
    table.upsert(pa.table({"id": [2], COMPOSED: [3], DECOMPOSED: [4], "new": [5]}), schema_mode="add")
    table.alter.add_column("more", "string")
    assert objcat.connect(tmp_path).sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 2}]
    table.alter.rename_column(DECOMPOSED, "plain")
    assert table.scan(where="id = 2", columns=[COMPOSED, "plain", "new"]).to_arrow().to_pylist() == [{COMPOSED: 3, "plain": 4, "new": 5}]


def test_sql_creates_no_such_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Unicode normalisation"):
        objcat.connect(tmp_path).sql(f"CREATE TABLE t (id BIGINT, `{COMPOSED}` INT, `{DECOMPOSED}` INT)")
