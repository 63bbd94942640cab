"""Columns with a default for older rows: Iceberg v3 says it, and mirrors that cannot wait until every file has the column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

import objcat
from devkit.spec_defaults import DEFAULTS
from objcat.mirror import mirror

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])


def create(folder: Path, **properties: str) -> objcat.Table:
    return objcat.connect(folder).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)


def reports(table: objcat.Table) -> dict[str, Any]:
    return {report.format: report for report in table.maintenance.mirror()}


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_mirror_without_defaults_waits_for_the_last_file(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "HELD_SLOTS", 1)
    table = create(tmp_path, mirrors=form)
    table.insert([{"id": n, "city": "x"} for n in range(8)])
    assert not reports(table)[form].held
    before = table.refresh().slot
    table.alter.add_column("n", "int", default=5)
    assert "'n'" in reports(table)[form].held and reports(table)[form].slot == before
    table.upsert([{"id": 1, "city": "new"}])
    table.maintenance.compact()
    held = reports(table)[form]
    assert held.slot == before and "has no such default" in held.held, "one bucket has no log rows, and keeps its file"
    table.maintenance.cluster(by=["city"])
    assert reports(table)[form].slot == table.refresh().slot
    table.upsert([{"id": 2, "city": "later"}])
    table.alter.set_default("n", 6)
    assert reports(table)[form].slot == table.refresh().slot


def test_a_late_file_holds_it_again(tmp_path: Path) -> None:
    table = create(tmp_path, mirrors="delta")
    stale = objcat.connect(tmp_path).table("t")
    stale.refresh()
    table.alter.add_column("n", "int", default=5)
    assert reports(table)["delta"].slot == 1, "a table without files has none that lacks it"
    stale.upsert([{"id": 1, "city": "x"}])
    assert "data/" in reports(table)["delta"].held


def test_iceberg_3_says_defaults_and_pyiceberg_reads_them(tmp_path: Path) -> None:
    table = create(tmp_path, mirrors="iceberg", mirror_iceberg_version="3")
    table.insert([{"id": n, "city": "x"} for n in range(4)])
    table.alter.apply([objcat.AddColumn(f"d{n}", kind, default=value) for n, (kind, value) in enumerate(DEFAULTS)])
    table.alter.set_default("d3", 33)
    table.upsert([{"id": 9, "city": "new"}])
    report = reports(table)["iceberg"]
    assert not report.held and report.slot == table.refresh().slot
    read = StaticTable.from_metadata(f"{table.url}/metadata/v{report.slot + 1}.metadata.json").scan().to_arrow()
    own = table.scan().to_arrow().sort_by("id")
    assert read.select(own.schema.names).sort_by("id").to_pylist() == own.to_pylist()
