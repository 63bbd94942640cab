"""Tables whose base files hold bloom filters of their keys: a write reads the keys of those files only in which one of its own may lie."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.datafile.bloom import ranges_of
from objcat.errors import CorruptTable, InvalidInput
from objcat.metadata.files import BaseFile
from tests.tables.scrambling import with_keys_scrambled

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("v", pa.int64())])

pytestmark = pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> objcat.Lake:
    # So that no file is read by mistake.
    monkeypatch.setattr("objcat.datafile.bloom.FALSE_POSITIVES", 1e-7)
    return objcat.Lake(FileIO(MemoryBackend("bloom")))


def create(lake: objcat.Lake, kind: TableType, **settings: Any) -> objcat.Table:
    table = lake.create_table(
        "t", SCHEMA, key=["id"], table_type=kind, index=objcat.BloomIndex(), properties={"target_file_bytes": "1024"}, **settings
    )
    for part in range(6):
        table.insert(batch(*range(part, 600, 6)))
    return table


def batch(*keys: int, v: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"{key * 7919 % 1009:04}-{key}", "v": v} for key in keys]


def rows(table: objcat.Table) -> dict[str, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key is there twice"
    return {row["id"]: row["v"] for row in found}


def bases(table: objcat.Table) -> list[BaseFile]:
    return [group.base for group in table.refresh().file_groups(table._context.manifests) if group.base is not None]


@pytest.mark.usefixtures("no_hints")
def test_keys_are_read_only_where_a_filter_knows_one(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    with with_keys_scrambled(table, without=batch(7)[0]["id"]) as scrambled:
        assert len(scrambled) == len(bases(table)) - 1 >= 5
        table = objcat.Lake(lake.fileio).table("t")
        table.upsert(batch(7, v=1))
        with pytest.raises(CorruptTable, match="cannot be read as Parquet"):
            table.upsert(batch(8, v=1))
    assert rows(objcat.Lake(lake.fileio).table("t")) == {row["id"]: row["v"] for row in [*batch(*range(600)), *batch(7, v=1)]}


def test_a_file_whose_filter_is_known_is_not_read_again(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.upsert(batch(7, v=1))
    files = {base.path: table._context.fileio.read(base.path) for base in bases(table)}
    wanted = next(path for path, data in files.items() if batch(7)[0]["id"] in ids(data))
    hidden = {path: data for path, data in files.items() if path != wanted}
    table._context.fileio.delete(hidden)
    table.upsert(batch(7, v=2))
    for path, data in hidden.items():
        table._context.fileio.put(path, data)
    assert rows(table)[batch(7)[0]["id"]] == 2 and len(rows(table)) == 600


def ids(data: bytes) -> list[str]:
    found: list[str] = pq.read_table(pa.BufferReader(data), columns=["id"]).column(0).to_pylist()
    return found


def test_keys_in_log_rows_are_found(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.delete(batch(3))
    table.insert(batch(601, 602))
    table.upsert(batch(3, 601, v=1))
    table.upsert(batch(3, 601, v=2))
    found = rows(table)
    assert len(found) == 602 and [found[row["id"]] for row in batch(3, 601, 602)] == [2, 2, 0]


def test_a_file_group_that_holds_log_rows_only_is_found(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.delete(batch(7000, 7001))
    table.upsert(batch(7000, v=1))
    table.upsert(batch(7000, 7001, v=2))
    assert [rows(table)[row["id"]] for row in batch(7000, 7001)] == [2, 2]


def test_a_key_would_be_there_twice_if_log_rows_were_not_read(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake, kind)
    table.set_properties({"target_file_bytes": str(10**6)})
    table.insert(batch(601))
    assert any(group.logs for group in table.refresh().file_groups(table._context.manifests)) == (kind == "merge_on_read")
    table.set_properties({"target_file_bytes": "1024"})
    monkeypatch.setattr("objcat.datafile.log_reader.LogReader.pieces", lambda *_: iter(()))
    table.insert(batch(601, v=1))
    monkeypatch.undo()
    if kind == "copy_on_write":
        assert rows(table)[batch(601)[0]["id"]] == 1
        return
    with pytest.raises(AssertionError, match="a key is there twice"):
        rows(table)


def test_a_key_would_be_there_twice_if_a_filter_denied_it(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake, kind)
    monkeypatch.setattr("objcat.datafile.bloom_lookup.FileFilters.may_hold", lambda *_: [])
    table.insert(batch(7, v=1))
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="a key is there twice"):
        rows(table)


def test_files_without_filters_are_read(lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.metadata.table_spec.TableSpec.filtered", frozenset())
    table = create(lake, kind)
    monkeypatch.undo()
    assert all(filters_of(table, base) is None for base in bases(table))
    table.upsert(batch(7, 601, v=1))
    found = rows(table)
    assert len(found) == 601 and found[batch(7)[0]["id"]] == 1


def filters_of(table: objcat.Table, base: BaseFile) -> object:
    return ranges_of(pq.read_metadata(pa.BufferReader(table._context.fileio.read(base.path))), {"id": "BYTE_ARRAY"})


def test_files_that_services_write_have_filters(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.upsert(batch(*range(0, 600, 5), v=1))
    table.maintenance.compact()
    assert all(filters_of(table, base) is not None for base in bases(table))


@pytest.mark.parametrize("data_type", [pa.float64(), pa.bool_()], ids=str)
def test_key_columns_without_filters_are_read(lake: objcat.Lake, kind: TableType, data_type: pa.DataType) -> None:
    schema = pa.schema([pa.field("k", data_type), pa.field("n", pa.int64()), pa.field("v", pa.int64())])
    values = [0.0, float("nan"), 2.5] if data_type == pa.float64() else [True, False]
    for number, key in enumerate((["k"], ["k", "n"], ["n", "k"])):
        table = lake.create_table(
            f"f{number}", schema, key=key, table_type=kind, index=objcat.BloomIndex(), properties={"target_file_bytes": "1024"}
        )
        for v in range(3):
            for value in values:
                table.upsert([{"k": value, "n": 1, "v": v}])
        assert table.scan().to_arrow().column("v").to_pylist() == [2] * len(values)


def test_lateness_is_refused(lake: objcat.Lake, kind: TableType) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])
    with pytest.raises(InvalidInput, match="allowed_lateness is for tables with the bucket index"):
        lake.create_table("late", schema, key=["id"], ordering="at", allowed_lateness="1 day", index=objcat.BloomIndex())
    assert kind
