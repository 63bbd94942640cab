"""`objcat doctor` on tables that were damaged by hand: each damage is found under the invariant that it breaks, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.contract import GetResult, Overwrite
from objcat.inspection.doctor import examine, examine_names
from objcat.inspection.findings import Coverage, DoctorReport, Severity
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, new_txn
from tests.cli.commands import run

TXN = "20260101T000000000Z-0123456789abcdef"


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    lake = objcat.connect(tmp_path)
    table = lake.create_table(
        "city.trips", pa.schema([("id", pa.int64()), ("fare", pa.float64())]), key=["id"], index=objcat.BucketIndex(2)
    )
    table.insert([{"id": i, "fare": 1.0} for i in range(10)])
    table.upsert([{"id": 3, "fare": 2.0}])
    table.upsert([{"id": i, "fare": 3.0} for i in range(5)])
    # Intents go off the critical path, and hints come beside it.
    while list(table._context.fileio.list_keys("intents/")) or table._context.timeline._is_hinting:
        pass
    return table


def read(table: objcat.Table, slot: int) -> dict[str, Any]:
    result = table._context.fileio.get(f"log/{slot:020d}.json")
    assert isinstance(result, GetResult)
    return dict(json.loads(result.data))


def found(report: DoctorReport) -> set[tuple[str, str]]:
    return {(finding.invariant, str(finding.severity)) for finding in report.findings}


def change_slot(table: objcat.Table, slot: int, change: Callable[[dict[str, Any]], None]) -> None:
    entry = read(table, slot)
    del entry["digest"]  # as if an older objcat had written it
    change(entry)
    table._context.fileio.put(f"log/{slot:020d}.json", json.dumps(entry).encode(), Overwrite())
    table._context.fileio.delete(["head.json"])  # the hint, which may carry the entry as it was


def test_a_healthy_table_has_no_findings(table: objcat.Table) -> None:
    report = examine(table._context.timeline, deep=True)
    assert report.healthy and report.findings == []
    assert report.counts["slots"] == 4
    assert report.counts["files"] == 4
    assert report.counts["rows"] == 16


def test_it_changes_nothing(table: objcat.Table) -> None:
    before = {meta.key: meta.version for page in table._context.fileio.list() for meta in page.objects}
    examine(table._context.timeline, deep=True)
    assert {meta.key: meta.version for page in table._context.fileio.list() for meta in page.objects} == before


def first_path(table: objcat.Table, slot: int, kind: str) -> str:
    (delta,) = read(table, slot)["changes"].values()
    return str(delta[kind][0]["path"])


def gap(table: objcat.Table) -> None:
    table._context.fileio.delete(["log/00000000000000000002.json"])


def lost_file(table: objcat.Table) -> None:
    table._context.fileio.delete([first_path(table, 1, "bases")])


def cut_file(table: objcat.Table) -> None:
    table._context.fileio.put(first_path(table, 2, "logs"), b"short", Overwrite())


def equal_times(table: objcat.Table) -> None:
    before = read(table, 2)
    change_slot(table, 3, lambda entry: entry.update(committed_at_ms=before["committed_at_ms"]))


def twice(table: objcat.Table) -> None:
    before = read(table, 2)
    change_slot(table, 3, lambda entry: entry.update(txn=before["txn"]))


def fenced_and_committed(table: objcat.Table) -> None:
    victim = read(table, 2)["txn"]
    change_slot(table, 3, lambda entry: entry.update(action="ROLLBACK", rollback_of=victim, changes={}, footprint={}))


def unjudged(table: objcat.Table) -> None:
    """The first base files of slot 1 as if they had been written again, by somebody who had not seen slot 1."""

    def change(entry: dict[str, Any]) -> None:
        first = read(table, 1)
        entry.update(base=0, footprint=first["footprint"])

    change_slot(table, 3, change)


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (gap, "P1"),
        (lost_file, "P7"),
        (cut_file, "P7"),
        (equal_times, "P6"),
        (twice, "P2"),
        (fenced_and_committed, "P2"),
        (unjudged, "P5"),
    ],
)
def test_each_damage_is_found(table: objcat.Table, tmp_path: Path, damage: Callable[[objcat.Table], None], invariant: str) -> None:
    damage(table)
    report = examine(table._context.timeline)
    broken = {finding.invariant for finding in report.findings if finding.severity is Severity.BROKEN}
    # Files of another transaction than their entry's are refused by the replay, too.
    assert broken == ({invariant, "P9"} if damage is twice else {invariant})
    assert all(finding.says and finding.remedy for finding in report.findings)
    done = run("doctor", f"{tmp_path}/city.trips", "--json")
    assert done.returncode == 1, done.stderr
    assert {finding["invariant"] for finding in json.loads(done.stdout)["findings"] if finding["severity"] == "broken"} == broken


def test_a_lake_is_examined_with_all_its_tables(table: objcat.Table, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("notes", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(2))
    lake.create_table("gone", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(2))
    lake.drop_table("gone")
    done = run("doctor", str(tmp_path), "--json")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [report["healthy"] for report in reports] == [True] * 4
    assert reports[0]["looked_at"]["names"] == 2
    assert reports[0]["tables"] == [] and sorted(name for report in reports for name in report["tables"]) == [
        "city.trips",
        "gone (dropped)",
        "notes",
    ]
    lost_file(table)
    done = run("doctor", str(tmp_path))
    assert done.returncode == 1
    assert [line.partition(" (")[0] for line in done.stdout.splitlines() if "what was examined holds" in line or "not whole" in line] == [
        "the names of the lake: what was examined holds",
        "city.trips: the table is not whole",
        "gone",
        "notes: what was examined holds",
    ]


def test_one_table_and_a_shared_log_are_named(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    for name in ("orders", "items"):
        lake.create_table(name, pa.schema([("id", pa.int64())]), key=["id"], shared_log="shop")
    assert "\nitems, orders: what was examined holds" in run("doctor", str(tmp_path)).stdout
    objcat.create_table_at(tmp_path / "alone", pa.schema([("id", pa.int64())]), key=["id"])
    assert run("doctor", f"{tmp_path}/alone").stdout.startswith("alone: what was examined holds")


def test_a_lake_is_examined_to_the_end_when_one_log_cannot_be_read(table: objcat.Table, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("notes", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(2))
    table._context.fileio.put("log/00000000000000000001.json", b"not an entry", Overwrite())
    done = run("doctor", str(tmp_path), "--json")
    health = {report["url"]: report["healthy"] for report in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert len(health) == 3 and [url for url, healthy in health.items() if not healthy] == [table._context.fileio.url]


def test_a_log_without_a_name_is_left_over(table: objcat.Table, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    objcat.create_table_at(lake.fileio.child("tables/half-0123456789abcdef"), pa.schema([("id", pa.int64())]), key=["id"])
    (finding,) = examine_names(lake.fileio).findings
    assert finding.severity is Severity.LEFTOVER
    assert finding.subject == "tables/half-0123456789abcdef/"


def test_a_name_whose_drop_died_half_way_says_what_finishes_it(table: objcat.Table, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    view = table._context.timeline.open()
    closing = CommitAttempt(
        txn=new_txn(table._context.fileio.env), action=Action.CLOSE, base=view.log, changes={}, footprint={table.id: Footprint()}
    )
    Committer(table._context.fileio).commit(closing)
    (finding,) = examine_names(lake.fileio).findings
    assert finding.subject == "city.trips" and "drop_table" in finding.remedy
    lake.drop_table("city.trips")
    assert examine_names(lake.fileio).findings == []


def test_rows_in_the_wrong_bucket_are_found_in_depth(table: objcat.Table) -> None:
    path = first_path(table, 1, "bases")
    local = Path(str(table._context.fileio.url).removeprefix("file://").removeprefix("file:")) / path
    rows = pq.read_table(local)
    size = local.stat().st_size
    other = rows.set_column(0, rows.schema.field(0), pa.array([key + 1 for key in rows.column(0).to_pylist()], pa.int64()))
    pq.write_table(other, local, compression="zstd")
    change_slot(table, 1, lambda entry: _resize(entry, path, local.stat().st_size))
    assert size > 0
    assert examine(table._context.timeline).healthy
    assert ("P9", "broken") in found(examine(table._context.timeline, deep=True))


def _resize(entry: dict[str, Any], path: str, size: int) -> None:
    (delta,) = entry["changes"].values()
    for base in delta["bases"]:
        if base["path"] == path:
            base["bytes"] = size


def test_what_a_dead_writer_left_is_no_illness_and_names_the_command(table: objcat.Table, tmp_path: Path) -> None:
    table._context.fileio.put(f"data/{TXN}/local-0-0.log.parquet", b"half")
    done = run("doctor", f"{tmp_path}/city.trips")
    assert done.returncode == 0
    assert "what was examined holds" in done.stdout and "rows were not read" in done.stdout and "objcat rollback" in done.stdout
    assert "rolled back at slot 4; 1 files were removed" in run("rollback", f"{tmp_path}/city.trips", TXN).stdout
    assert examine(table._context.timeline).findings == []
    table._context.fileio.put(f"data/{TXN}/local-0-1.log.parquet", b"half")
    assert "is rolled back at slot 4; 1 files were removed" in run("rollback", f"{tmp_path}/city.trips", "--older-than", "0").stdout
    assert "nothing to settle" in run("rollback", f"{tmp_path}/city.trips", "--older-than", "0").stdout


def test_a_table_of_a_newer_client_is_refused(table: objcat.Table, tmp_path: Path) -> None:
    change_slot(table, 3, lambda entry: entry.update(features={"quantum": "9.1"}))
    done = run("doctor", f"{tmp_path}/city.trips")
    assert done.returncode == 2
    assert "objcat 9.1 or newer" in done.stderr


def test_it_says_how_far_it_looked(table: objcat.Table, tmp_path: Path) -> None:
    """What only rows can show is not claimed by who reads none."""
    said = {
        deep: json.loads(run("doctor", f"{tmp_path}/city.trips", "--json", *(["--deep"] if deep else [])).stdout) for deep in (False, True)
    }
    examined = {"P1", "P2", "P5", "P6", "P7", "P8"}
    for deep, report in said.items():
        assert {name for name, coverage in report["invariants"].items() if coverage == "checked"} == examined | ({"P9"} if deep else set())
        assert report["invariants"]["P9"] == ("checked" if deep else "in part")
        assert {name for name, coverage in report["invariants"].items() if coverage == "not looked at"} == {"P3", "P4", "P10", "P11"}
    shown = run("doctor", f"{tmp_path}/city.trips").stdout
    assert "in part: P9" in shown and "rows were not read" in shown and "holds" in shown and "every invariant" not in shown
    assert "rows were not read" not in run("doctor", f"{tmp_path}/city.trips", "--deep").stdout


def test_what_it_could_not_come_to_it_has_not_looked_at(table: objcat.Table) -> None:
    table._context.fileio.put("log/00000000000000000001.json", b"not an entry", Overwrite())
    report = examine(table._context.timeline, deep=True)
    assert not report.healthy
    assert {name for name, coverage in report.coverage.items() if coverage is not Coverage.NOT_LOOKED_AT} == set()
