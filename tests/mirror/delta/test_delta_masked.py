"""Masked rows that engines could take for rows: none of them gives any, be it that it refuses the table."""

from __future__ import annotations

from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from fileio.registry import open_store
from objcat.metadata.table_spec import BucketIndex
from tests.mirror.delta.synthetic import History, read_by_deltalake, spec_of

ROWS = [{"id": number, "v": str(number)} for number in range(4)]


def history(path: Path) -> History:
    return History(open_store(path.as_uri()))


def test_a_file_in_a_folder_with_an_equals_sign_is_masked_for_polars(tmp_path: Path) -> None:
    table = history(tmp_path)
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(table.file(ROWS, masked={1}, name="city=Rome")))
    assert sorted(pl.read_delta(table.url).rows(), key=repr) == table.rows_at[1]


def test_polars_refuses_what_it_would_read_without_its_deletion_vectors(tmp_path: Path) -> None:
    table = history(tmp_path)
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(table.file(ROWS, name="city=Z%C3%BCrich")))
    assert sorted(pl.read_delta(table.url).rows(), key=repr) == table.rows_at[1]
    (path,) = table.files
    mirror.write(table.mask({path: {2}}))
    with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="columnMapping"):
        pl.read_delta(table.url)
    for slot in (1, 2):
        assert read_by_deltalake(table.url, slot) == table.rows_at[slot]


def test_a_masked_delete_lacks_values_of_columns_that_are_not_null(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    table = history(tmp_path)
    table.spec = spec_of(schema, key=["id"], index=BucketIndex(1))
    mirror = table.mirror()
    mirror.write(table.begin())
    mirror.write(table.add(table.file([*ROWS, {"id": 9}], masked={4})))
    assert read_by_deltalake(table.url) == table.rows_at[1]
    fields = deltalake.DeltaTable(table.url).schema().fields
    assert [field.nullable for field in fields] == [False, True]


def test_the_folder_of_vectors_has_letters_and_digits_alone(tmp_path: Path) -> None:
    # Trino refuses every other name.
    table = history(tmp_path)
    table.mirror().write(table.begin())
    table.mirror().write(table.add(table.file(ROWS, masked={1})))
    (file,) = tmp_path.rglob("deletion_vector_*.bin")
    assert file.parent.name.isalnum()
