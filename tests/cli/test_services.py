"""`objcat compact`, `split`, `clean`, `savepoint`, `release`, `restore` and `undrop`, and what would be deleted, as a user runs them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import FileIO
from fileio.local.backend import LocalBackend
from fileio.testing import Crash, Fault, FaultyBackend, Rule
from tests.cli.commands import run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64())])


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    table = objcat.connect(tmp_path).create_table("city.trips", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": i, "fare": 1.0} for i in range(20)])
    table.upsert([{"id": i, "fare": 2.0} for i in range(5)])
    return table


@pytest.fixture
def url(table: objcat.Table, tmp_path: Path) -> str:
    return f"{tmp_path}/city.trips"


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As `run`; a dry run sends no request that writes."""
    if "--dry-run" not in arguments:
        return run(*arguments)
    opened: list[LocalBackend] = []
    written: list[str] = []
    with contextlib.ExitStack() as stack:
        begin = LocalBackend.__init__

        def opens(backend: LocalBackend, *given: Any) -> None:
            # Tables of the test may still be deleting their intents: only what this call opens counts.
            opened.append(backend)
            begin(backend, *given)

        stack.enter_context(mock.patch.object(LocalBackend, "__init__", opens))
        for name in ("put", "append", "copy", "start_upload", "delete_batch"):
            stack.enter_context(mock.patch.object(LocalBackend, name, _noting(name, getattr(LocalBackend, name), opened, written)))
        done = run(*arguments)
    assert opened and not written, written
    return done


def _noting(name: str, method: Callable[..., Any], opened: list[LocalBackend], written: list[str]) -> Callable[..., Any]:
    def noted(backend: LocalBackend, *given: Any) -> Any:
        if any(backend is one for one in opened):
            written.append(f"{name} {given[0]}")
        return method(backend, *given)

    return noted


def says(*arguments: str) -> str:
    done = checked(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(*arguments: str) -> Any:
    return json.loads(says(*arguments, "--json"))


def refused(*arguments: str) -> str:
    done = checked(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def everything(place: Path) -> dict[str, bytes]:
    """Every object below a place, but for intents, which go off the critical path."""
    found: dict[str, bytes] = {}
    for pattern in ("tables/*/data/**/*", "tables/*/log/**/*", "tables/*/checkpoints/**/*", "catalog/**/*"):
        found |= {str(path): path.read_bytes() for path in place.glob(pattern) if path.is_file()}
    return found


def test_compact(table: objcat.Table, url: str) -> None:
    done = told("compact", url)
    assert (done["slot"], done["rows"], len(done["file_groups"])) == (3, 20, 2)
    assert says("compact", url).startswith("nothing to compact")
    assert told("compact", url) is None
    assert table.inspect.stats().log_objects == 0


def test_a_compaction_is_planned_by_one_job_and_executed_by_another(table: objcat.Table, url: str) -> None:
    assert says("compact", url, "--execute") == "no plan waits\n"
    plan = told("compact", url, "--schedule")
    assert len(plan["file_groups"]) == 2 and table.refresh().slot == 2
    assert "waits: 2 file groups as of slot 2" in says("compact", url, "--schedule")
    first, second = told("compact", url, "--execute")
    assert (first["result"]["slot"], first["result"]["rows"], first["plan"]["txn"]) == (3, 20, plan["txn"])
    assert second["result"] is None and second["why"]
    assert told("compact", url, "--execute") == []
    assert told("compact", url, "--schedule") is None


def test_split(table: objcat.Table, url: str) -> None:
    assert told("split", url)["count"] == 4
    assert "has 16 buckets" in says("split", url, "--count", "16")
    assert says("split", url, "--count", "16").startswith("nothing to do")
    assert "power of two" in refused("split", url, "--count", "48")
    assert "no partition of the table" in refused("split", url, "--partition", "city=Rome")
    assert table.scan().count() == 20


def test_cluster_joins_and_sorts(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("clicks", pa.schema([("id", pa.int64()), ("page", pa.string())]), key=None)
    for number in range(3):
        table.bulk_insert([{"id": number, "page": "home"}, {"id": 10 - number, "page": "jobs"}])
    url = f"{tmp_path}/clicks"
    assert "3 file groups became 1; 6 rows were written" in says("cluster", url)
    assert says("cluster", url).startswith("nothing to gain")
    assert told("cluster", url, "--by", "page", "--by", "id", "--zorder")["rows"] == 6
    assert told("cluster", url) is None
    assert "'pages', which is not a column: did you mean 'page'" in refused("cluster", url, "--by", "pages")
    assert table.scan().count() == 6


def test_cluster_sorts_within_file_groups_where_rows_have_a_place(table: objcat.Table, url: str) -> None:
    assert "Name the columns that rows are sorted by within each group" in refused("cluster", url)
    assert "2 file groups became 2; 20 rows were written" in says("cluster", url, "--by", "fare")
    assert says("cluster", url, "--by", "fare").startswith("nothing to gain")
    assert table.scan().count() == 20


def test_cluster_joins_groups_of_keys_that_are_looked_up(tmp_path: Path) -> None:
    properties = {"target_file_bytes": "1024"}
    table = objcat.connect(tmp_path).create_table("trips", SCHEMA, key=["id"], index=objcat.RecordIndex(2), properties=properties)
    for number in range(3):
        table.upsert([{"id": 2 * number, "fare": 1.0}, {"id": 2 * number + 1, "fare": 2.0}])
    groups = table.inspect.stats().groups
    table.set_properties({"target_file_bytes": "100000"})
    assert f"{groups} file groups became 1; 6 rows were written" in says("cluster", f"{tmp_path}/trips")
    assert table.scan().count() == 6


def test_clean_says_what_it_would_delete_and_deletes_it(table: objcat.Table, url: str, tmp_path: Path) -> None:
    assert says("clean", url, "--keep-slots", "9").startswith("nothing to delete")
    assert told("clean", url, "--keep-slots", "9", "--dry-run")["files"] == 0
    old = set(table.inspect.files().column("path").to_pylist())
    table.maintenance.compact()
    before = everything(tmp_path)
    would = told("clean", url, "--keep-slots", "1", "--dry-run")
    assert (set(would["paths"]), would["files"], would["bound"]) == (old, len(old), 3)
    people = says("clean", url, "--keep-slots", "1", "--dry-run")
    assert all(path in people for path in old) and "nothing was changed" in people
    assert everything(tmp_path) == before
    done = told("clean", url, "--keep-slots", "1")
    assert (done["files"], done["bound"]) == (len(old), 3)
    assert old.isdisjoint(table._context.fileio.list_keys("data/"))
    assert told("clean", url, "--keep-slots", "1", "--dry-run")["files"] == 0
    assert "are gone for certain" in says("clean", url, "--keep-slots", "1")
    assert says("clean", url, "--keep-slots", "1").startswith("nothing to delete")
    for wrong in (["--keep-slots", "1", "--before", "2"], ["--keep-slots", "1", "--keep-hours", "2"]):
        assert "clean() takes keep_slots, or before" in refused("clean", url, *wrong)
    assert "from 1 up" in refused("clean", url, "--keep-slots", "0", "--dry-run")


def test_clean_takes_what_is_to_be_kept_and_else_what_the_table_says(table: objcat.Table, url: str) -> None:
    table.maintenance.compact()
    assert says("clean", url).startswith("nothing to delete")
    assert told("clean", url, "--keep-hours", "1")["slot"] is None
    assert told("clean", url, "--keep-commits", "1", "--keep-hours", "1", "--dry-run")["files"] == 0
    would = told("clean", url, "--keep-versions", "1", "--dry-run")
    assert would["files"] > 0 and told("clean", url, "--keep-versions", "1")["files"] == would["files"]
    assert "from 1 up" in refused("clean", url, "--keep-commits", "0")


def test_a_savepoint_keeps_what_clean_would_take(table: objcat.Table, url: str) -> None:
    assert told("savepoint", url, "--slot", "1", "--name", "month")["saved"] == 1
    assert says("savepoint", url, "--slot", "1").startswith("nothing to do")
    assert "no slot 99" in refused("savepoint", url, "--slot", "99")
    table.maintenance.compact()
    says("clean", url, "--keep-slots", "1")
    assert objcat.table_at(table._context.fileio.url).scan(as_of=1).count() == 20
    assert "saved are 1" in says("release", url, "2")
    assert "slot 1 is released" in says("release", url, "1")
    assert told("release", url, "1") is None
    assert told("clean", url, "--keep-slots", "1", "--dry-run")["files"] > 0


def test_restore(table: objcat.Table, url: str, tmp_path: Path) -> None:
    table.delete("id >= 10")
    before = everything(tmp_path)
    assert told("restore", url, "1", "--dry-run") == {
        "dry_run": True,
        "restored": 1,
        "newest": 3,
        "undone": 2,
        "rows": 10,
        "rows_restored": 20,
    }
    assert "10 rows would be 20" in says("restore", url, "1", "--dry-run")
    assert everything(tmp_path) == before
    assert "`objcat restore` with 3 takes that back" in says("restore", url, "1")
    assert {row["fare"] for row in objcat.connect(tmp_path).table("city.trips").scan().to_arrow().to_pylist()} == {1.0}
    assert told("restore", url, "3")["restored"] == 3
    for dry in ([], ["--dry-run"]):
        assert "Use a slot from 0 to 5" in refused("restore", url, "77", *dry)
    table.maintenance.compact()
    says("clean", url, "--keep-slots", "1")
    for dry in ([], ["--dry-run"]):
        assert "was cleaned" in refused("restore", url, "1", *dry)


def test_undrop(url: str, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.drop_table("city.trips")
    assert says("undrop", url) == "city.trips is back, as it was when it was dropped\n"
    lake.drop_table("city.trips")
    assert told("undrop", url, "--new-name", "city.journeys")["name"] == "city.journeys"
    assert "city.trips" in refused("undrop", url)


def test_purge_says_what_it_would_delete(table: objcat.Table, url: str, tmp_path: Path) -> None:
    files = set(table._context.fileio.list_keys("data/"))
    assert "is not dropped" in refused("purge", url, "--older-than", "0", "--dry-run")
    objcat.connect(tmp_path).drop_table("city.trips")
    before = everything(tmp_path)
    assert "Nothing was deleted" in refused("purge", url, "--older-than", "86400", "--dry-run")
    would = told("purge", url, "--older-than", "0", "--dry-run")
    assert set(would["paths"]) == files
    assert f"would delete {len(files)} files" in says("purge", url, "--older-than", "0", "--dry-run")
    assert everything(tmp_path) == before
    assert told("purge", url, "--older-than", "0")["files"] == would["files"]


def test_rollback_says_what_it_would_settle(table: objcat.Table, url: str, tmp_path: Path) -> None:
    rule = Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in key, fault=Fault.CRASH_BEFORE)
    bare = objcat.connect(tmp_path).fileio._bare
    with pytest.raises(Crash):
        objcat.Lake(FileIO(FaultyBackend(bare, [rule]))).table("city.trips").upsert([{"id": 1, "fare": 9.0}])
    before = everything(tmp_path)
    would = told("rollback", url, "--older-than", "0", "--dry-run")
    assert (would["slot"], would["committed"], len(would["files"])) == (None, False, 1)
    assert says("rollback", url, "--dry-run").startswith("nothing to settle")
    for named in (["--older-than", "0"], [would["txn"]]):
        assert f"{would['txn']} would be rolled back; 1 files" in says("rollback", url, *named, "--dry-run")
    assert everything(tmp_path) == before
    done = told("rollback", url, would["txn"])
    assert (done["txn"], done["committed"], done["files"]) == (would["txn"], False, 1)
    assert set(would["files"]).isdisjoint(table._context.fileio.list_keys("data/"))


def test_collect_says_what_it_would_delete(table: objcat.Table, url: str, tmp_path: Path) -> None:
    for number in range(40):
        table.upsert([{"id": number % 3, "fare": float(number)}])
        if table.snapshot.slot in (16, 32):
            table._context.timeline.publish(table._context.timeline.open())
    objects = everything(tmp_path)
    would = told("collect", url, "--keep", "1", "--dry-run")
    assert (would["slot"], would["voided"]) == (None, [16])
    assert "would delete the checkpoints of slots 16" in says("collect", url, "--keep", "1", "--dry-run")
    assert says("collect", url, "--keep", "2", "--dry-run") == "nothing to collect\n"
    assert everything(tmp_path) == objects
    done = told("collect", url, "--keep", "1")
    assert done["voided"] == [16] and done["objects"] >= would["objects"]


def test_erase(table: objcat.Table, url: str, tmp_path: Path) -> None:
    first = set(table.inspect.files().column("path").to_pylist())
    says("savepoint", url, "--slot", "1")
    before = everything(tmp_path)
    would = told("erase", url, "--where", "id in (3, 4)", "--dry-run")
    assert (would["rows"], would["saved"]) == (2, [1])
    assert "`objcat release` slots 1 first" in says("erase", url, "--where", "id in (3, 4)", "--dry-run")
    assert "did you mean 'id'" in refused("erase", url, "--where", "idd = 3", "--dry-run")
    assert "at slots 1. Nothing was erased. Release them" in refused("erase", url, "--where", "id in (3, 4)")
    assert everything(tmp_path) == before
    says("release", url, "1")
    done = told("erase", url, "--where", "id in (3, 4)")
    assert (done["deleted"], done["found"], done["where"]) == (2, 0, "id in (3, 4)")
    assert first < set(done["files"]) and set(done["files"]).isdisjoint(table._context.fileio.list_keys("data/"))
    kept = pa.concat_tables(pq.read_table(path) for path in tmp_path.glob("tables/*/data/**/*.parquet"))
    assert kept.num_rows == 18, "no file holds such a row"
    assert objcat.connect(tmp_path).table("city.trips").scan().count() == 18
    assert "no row passed any more" in says("erase", url, "--where", "id in (3, 4)")
