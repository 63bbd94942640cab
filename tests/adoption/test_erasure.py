"""Erasures of tables that were adopted: files of the other tool that held the rows go, and the log says nothing of them any more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import objcat
from fileio.contract import DeleteResult
from fileio.errors import Unavailable
from fileio.store import FileIO
from fileio.testing.faults import Crash
from objcat.errors import NotErased
from objcat.inspection.doctor import examine
from objcat.table.erase import ErasureCertificate
from tests.adoption.foreign import plain

NAME = "Quartz-Nightingale"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("city", pa.string())])


def people(*ids: int) -> pa.Table:
    rows = [{"id": one, "name": NAME if one == 77 else f"person number {one}", "city": f"city {one % 3}"} for one in ids]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.fixture
def adopted(catalog: SqlCatalog, lake: objcat.Lake) -> objcat.Table:
    """Of three files. The second one has the row to erase, under a name that the column had before."""
    foreign = catalog.create_table("db.t", SCHEMA)
    foreign.append(people(1, 2, 3))
    foreign.append(people(4, 77, 5))
    with foreign.update_schema() as change:
        change.rename_column("name", "label")
    foreign.append(people(6, 7).rename_columns(["id", "label", "city"]))
    lake.adopt_iceberg(foreign, "t", key=["id"], properties={"mirrors": "iceberg"})
    return lake.table("t")


def adopted_paths(table: objcat.Table) -> set[Path]:
    store = table._context
    groups = table.refresh().file_groups(store.manifests)
    bases = [group.base for group in groups if group.base is not None and group.base.adopted is not None]
    lake = Path(str(store.fileio.outer_url).removeprefix("file://"))
    return {lake / base.path.removeprefix("_lake/") for base in bases}


def holding(table: objcat.Table) -> list[str]:
    """The objects of a table that hold the name, in their bytes or in their own."""
    where = Path(table.url.removeprefix("file://"))
    files = (path for path in where.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if NAME in str(path) or NAME.encode() in path.read_bytes())


def check_erased(table: objcat.Table, certificate: ErasureCertificate, expected: list[dict[str, Any]]) -> None:
    assert certificate.found == 0 and not holding(table)
    assert any("adopted from" in text for text in certificate.not_promised)
    assert plain(table.scan().to_arrow()) == expected
    assert examine(table._context.timeline, deep=True).healthy


def test_a_row_of_an_adopted_file(adopted: objcat.Table) -> None:
    files = adopted_paths(adopted)
    assert len(files) == 3
    adopted.maintenance.mirror()
    expected = [row for row in plain(adopted.scan().to_arrow()) if row["id"] != 77]
    certificate = adopted.erase([{"id": 77}])
    assert certificate.deleted == 1
    left = adopted_paths(adopted)
    assert len(left) == 2 and left < files
    assert {path.exists() for path in left} == {True} and not any(path.exists() for path in files - left)
    (examined,) = (one for one in certificate.examined if one.kind == "adopted files")
    assert (examined.objects, examined.found) == (2, 0)
    check_erased(adopted, certificate, expected)
    # What the log still names is read as before, and the next erasure finds nothing to do there.
    adopted.upsert(people(8).rename_columns(["id", "label", "city"]))
    check_erased(adopted, adopted.erase("label = 'person number 8'"), expected)


def test_a_value_that_is_in_paths_and_in_the_log_alone(lake: objcat.Lake, tmp_path: Path) -> None:
    """Delta keeps values of partitions out of files, so that the log has them, and the paths too."""
    write_deltalake(tmp_path / "old", people(1, 2, 77, 4), partition_by=["name"])
    lake.adopt_delta("old", "t", key=["id"], key_scope="table")
    table = lake.table("t")
    assert holding(table)
    expected = [row for row in plain(table.scan().to_arrow()) if row["id"] != 77]
    check_erased(table, table.erase(f"name = '{NAME}'"), expected)
    assert len(adopted_paths(table)) == 3


@pytest.mark.parametrize("step", ["forget", "_begin_mirrors_again"])
def test_an_erasure_that_stops_is_finished_by_the_next(adopted: objcat.Table, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    expected = [row for row in plain(adopted.scan().to_arrow()) if row["id"] != 77]

    def die(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(f"objcat.table.erase.{step}", die)
        with pytest.raises(Crash):
            adopted.erase([{"id": 77}])
    check_erased(adopted, adopted.erase([{"id": 77}]), expected)


def test_an_adopted_file_that_the_store_retains_is_told(adopted: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row for row in plain(adopted.scan().to_arrow()) if row["id"] != 77]
    with monkeypatch.context() as patch:
        patch.setattr("objcat.maintenance.clean.remove_files", lambda _fileio, keys, **_: len(keys))
        with pytest.raises(Unavailable, match=r"still exist, _lake/.*Erase again"):
            adopted.erase([{"id": 77}])
    check_erased(adopted, adopted.erase([{"id": 77}]), expected)


def test_a_file_that_stays_is_told_each_time(adopted: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says that it deletes adopted files, and retains them. No erasure forgets where they are."""
    expected = [row for row in plain(adopted.scan().to_arrow()) if row["id"] != 77]
    files, real = adopted_paths(adopted), FileIO.delete

    def retain(store: FileIO, keys: Iterable[str]) -> list[DeleteResult]:
        listed = list(keys)
        real(store, [key for key in listed if not key.startswith("_lake/")])
        return [DeleteResult(key) for key in listed]

    with monkeypatch.context() as patch:
        patch.setattr(FileIO, "delete", retain)
        for _ in range(5):
            with pytest.raises(Unavailable, match="still exist, _lake/"):
                adopted.erase([{"id": 77}])
    for path in files - adopted_paths(adopted):
        path.unlink()
    check_erased(adopted, adopted.erase([{"id": 77}]), expected)


def test_a_savepoint_retains_adopted_files(adopted: objcat.Table) -> None:
    """A row that no savepoint holds is erased; the files of the savepoint stay, and are searched."""
    adopted.upsert(people(9).rename_columns(["id", "label", "city"]))
    saved = adopted.maintenance.savepoint()
    assert saved is not None
    adopted.upsert(people(10).rename_columns(["id", "label", "city"]))
    adopted.maintenance.compact()
    expected = [row for row in plain(adopted.scan().to_arrow()) if row["id"] != 10]
    before = plain(adopted.scan(as_of=saved.saved).to_arrow())
    certificate = adopted.erase([{"id": 10}])
    assert certificate.found == 0
    assert plain(adopted.scan().to_arrow()) == expected
    assert plain(adopted.scan(as_of=saved.saved).to_arrow()) == before


def test_adopted_files_are_searched_whatever_their_names_are(lake: objcat.Lake, tmp_path: Path) -> None:
    """Hive's names have no ending. A column that was dropped is still in such a file, where no value is in one piece."""
    old = tmp_path / "old"
    write_deltalake(old, people(1, 77))
    shared = people(2, 3).append_column("also", pa.array(["Quartz-Amber", NAME]))
    write_deltalake(old, shared, mode="append", schema_mode="merge")
    log = max((old / "_delta_log").glob("*.json"))
    name = next(path.name for path in old.glob("*.parquet") if path.name in log.read_text())
    (old / name).unlink()
    file = old / "000000_0"
    pq.write_table(shared, file, use_dictionary=False, column_encoding={"also": "DELTA_BYTE_ARRAY"}, write_statistics=False)
    assert NAME.encode() not in file.read_bytes()
    log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text().replace(name, file.name)))
    lake.adopt_delta("old", "t", key=["id"])
    table = lake.table("t")
    table.alter.drop_column("also")
    with pytest.raises(NotErased, match=r"_lake/old/000000_0 among them. Rewrite the adopted files"):
        table.erase([{"id": 77}])
