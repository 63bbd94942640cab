"""An adopted table is found by its URL as by its name, and only one module opens the logs of tables."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import objcat
from fileio.registry import open_store
from objcat.errors import CorruptTable, InvalidInput
from objcat.lake.standalone import open_table_store
from objcat.lake.urls import find_log, find_table
from tests.adoption.foreign import plain

ROOT = Path(__file__).parents[2]
ROWS = pa.table({"id": [1, 2, 3], "city": ["Oslo", "Zürich", None]})
CHILDREN = {"objcat/catalog/catalog.py", "objcat/metadata/table_log.py"}
"""Modules that open a part of a store: the names of a lake, and the logs of tables."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of an adopted table with a row of its own."""
    lake = objcat.connect(tmp_path / "lake")
    write_deltalake(tmp_path / "lake" / "old", ROWS, partition_by=["city"])
    lake.adopt_delta("old", "t", key=["id"])
    lake.table("t").upsert(pa.table({"id": [2], "city": ["Bern"]}))
    (found,) = (tmp_path / "lake" / "tables").iterdir()
    return found


NOW = [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Bern"}, {"id": 3, "city": None}]


def test_logs_of_tables_are_opened_by_one_module() -> None:
    """Elsewhere a store would be opened that does not reach adopted files, and nobody would notice until a table is adopted.

    A `child()` of nothing is a plan of Spark's.
    """
    found = set()
    for package in ("objcat", "pyspark_objcat"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "child" and node.args:
                    found.add(path.relative_to(ROOT).as_posix())
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Timeline":
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == CHILDREN


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "path"])
def test_by_its_url(place: Path, as_text: bool) -> None:
    table = objcat.table_at(str(place) if as_text else place)
    assert plain(table.scan().to_arrow()) == NOW
    table.upsert(pa.table({"id": [4], "city": ["Rome"]}))
    table.maintenance.compact()
    assert plain(objcat.table_at(f"file://{place}/").scan().to_arrow()) == [*NOW, {"id": 4, "city": "Rome"}]
    assert table.url == objcat.connect(place.parents[1]).table("t").url


def test_by_its_url_where_names_are_looked_for_first(place: Path) -> None:
    assert plain(find_table(str(place)).scan().to_arrow()) == NOW
    assert find_log(str(place)).fileio.outer_url == f"file://{place.parents[1]}"


def test_a_store_without_the_lake_is_refused_and_says_how_to_open_it(place: Path) -> None:
    with pytest.raises(InvalidInput, match=r"opened without that. Nothing was read. Open it by its name in the lake"):
        objcat.table_at(open_store(place)).scan().to_arrow()


def test_a_copy_of_the_table_alone_does_not_take_files_of_another_lake(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "tables" / place.name
    shutil.copytree(place, copy)
    with pytest.raises(CorruptTable, match="is missing"):
        objcat.table_at(copy).scan().to_arrow()


@pytest.mark.parametrize(
    ("url", "lake"),
    [
        ("s3://bucket/lake/tables/t-0123456789abcdef", "s3://bucket/lake"),
        ("s3://bucket/tables/t-0123456789abcdef/", "s3://bucket"),
        ("s3://bucket/lake/tables/t", None),
        ("s3://tables/t-0123456789abcdef", None),
        ("s3://bucket/lake/table/t-0123456789abcdef", None),
        ("/tables/t-0123456789abcdef", None),
    ],
)
def test_which_urls_are_of_a_table_in_a_lake(url: str, lake: str | None) -> None:
    store = open_table_store(url)
    assert store.outer_url == lake
    assert store.url == open_store(url.rstrip("/")).url
