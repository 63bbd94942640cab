"""`objcat adopt`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

import objcat
from fileio.errors import MissingDependency
from objcat.cli import app
from objcat.errors import InvalidInput
from tests.adoption.foreign import iceberg_catalog

ROWS = pa.table({"id": [1, 2], "city": ["Oslo", "Zürich"]})


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_table_of_each_format(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "old", ROWS, partition_by=["city"])
    said = run("adopt", str(tmp_path), "old", "shop.delta", "--format", "delta", "--key", "id", "--index", "record", "--ordering", "city")
    assert "2 rows of the Delta table" in said.replace("\n", " ")
    catalog = iceberg_catalog(tmp_path)
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    catalog.close()
    found = json.loads(run("adopt", str(tmp_path), "warehouse/db/t", "shop.iceberg", "--copy-on-write", "--json"))
    assert (found["format"], found["files_named"], found["files_rewritten"], found["rows"]) == ("Iceberg v2", 1, {}, 2)
    lake = objcat.connect(tmp_path)
    assert lake.tables() == ["shop.delta", "shop.iceberg"]
    assert lake.table("shop.delta").spec.ordering == 2
    assert lake.table("shop.iceberg").table_type == "copy_on_write"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["lake"], "lacks a source or a name"),
        (["lake", "old", "t", "--format", "hudi"], "--format"),
        (["lake", "old", "t", "--index", "bucket"], "--index"),
        (["lake", "old", "t", "--ordering", "city"], "names no --key"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_calls_that_do_not_fit(arguments: list[str], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        CliRunner().invoke(app, ["adopt", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(("adopt", "package"), [("adopt_iceberg", "pyiceberg"), ("adopt_delta", "deltalake")])
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopt: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"{adopt}\(\) needs {package}, which .* Run pip install 'objcat\[adopt\]'"):
        getattr(objcat.connect(tmp_path), adopt)("old", "t", key=None)
