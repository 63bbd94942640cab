"""Mirrors follow a table by themselves, hold its files while they need them, and end with it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.table import StaticTable

import objcat
from objcat.inspection.doctor import examine
from objcat.mirror.model import CorruptMirror, ForeignMetadata
from tests.cli.commands import run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("value", pa.int64())])
MIRRORS = {"mirrors": "iceberg,delta"}


def folder(table: objcat.Table) -> Path:
    return Path(table.url.removeprefix("file://"))


def by_iceberg(table: objcat.Table, slot: int, *, below: str = "") -> list[dict[str, Any]]:
    found = StaticTable.from_metadata(f"{table.url}/{below}metadata/v{slot + 1}.metadata.json").scan().to_arrow()
    return found.sort_by("id").to_pylist()


def by_delta(table: objcat.Table, slot: int | None, *, below: str = "") -> list[dict[str, Any]]:
    read = QueryBuilder().register("t", DeltaTable(f"{table.url}/{below}", version=slot)).execute("SELECT * FROM t ORDER BY id")
    return pa.table(read).to_pylist()


def rows_at(table: objcat.Table, slot: int) -> list[dict[str, Any]]:
    return table.scan(as_of=slot).to_arrow().sort_by("id").to_pylist()


def newest(table: objcat.Table) -> dict[str, int]:
    return {report.format: report.slot for report in table.maintenance.mirror()}


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    return objcat.connect(tmp_path)


@pytest.fixture
def table(lake: objcat.Lake) -> objcat.Table:
    return lake.create_table("shop.people", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=MIRRORS)


def people(*ids: int, value: int = 0) -> list[dict[str, Any]]:
    return [{"id": one, "name": f"person number {one}", "value": value} for one in ids]


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "it did not come about within a minute"
        time.sleep(0.02)


def test_each_commit_is_mirrored_in_the_background(table: objcat.Table) -> None:
    table.upsert(people(1, 2, 3))
    table.delete([{"id": 2}])
    table.maintenance.compact()
    table.alter.add_column("more", pa.int32())
    slot = table.refresh().slot
    eventually((folder(table) / f"_delta_log/{slot:020d}.json").exists)
    eventually((folder(table) / f"metadata/v{slot + 1}.metadata.json").exists)
    for at in range(slot + 1):
        assert by_delta(table, at) == rows_at(table, at) == by_iceberg(table, at)


def test_a_mirror_begins_at_the_newest_slot_and_ends_with_its_property(lake: objcat.Lake) -> None:
    table = lake.create_table("shop.later", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    for number in range(5):
        table.upsert(people(number, number + 1, value=number))
    table.set_properties(MIRRORS)
    slot = table.refresh().slot
    assert newest(table) == {"delta": slot, "iceberg": slot}
    table.upsert(people(3, value=9))
    assert newest(table) == {"delta": slot + 1, "iceberg": slot + 1}
    for at in (slot, slot + 1):
        assert by_delta(table, at) == rows_at(table, at) == by_iceberg(table, at)
    assert by_delta(table, None) == rows_at(table, slot + 1)
    table.set_properties({"mirrors": "iceberg"})
    assert newest(table) == {"iceberg": table.refresh().slot}
    assert not list((folder(table) / "_delta_log").glob("*")) and list((folder(table) / "metadata").glob("*"))
    table.set_properties({"mirrors": "none"})
    assert newest(table) == {}
    assert not list((folder(table) / "metadata").glob("*"))
    assert rows_at(table, table.refresh().slot)


def test_a_commit_sends_no_request_more_and_waits_for_none(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, rounds = {}, []
    for name, properties in (("shop.with", MIRRORS), ("shop.without", {})):
        with monkeypatch.context() as patch:
            # What a round in the background sends does not count here.
            patch.setattr("objcat.maintenance.auto_mirror.AutoMirror._quietly", lambda *_, name=name: rounds.append(name))
            made = lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)
            newest(made)
            before = made._context.fileio.metrics.snapshot()
            for number in range(3):
                made.upsert(people(number))
            sent[name] = (made._context.fileio.metrics.snapshot() - before).requests
    assert set(rounds) == {"shop.with"}
    assert sent["shop.with"] == sent["shop.without"]


def test_cleaning_waits_for_a_mirror_and_expires_it(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        table.upsert(people(1, 2, 3, value=number))
        table.maintenance.compact()
    newest(table)
    slot = table.refresh().slot

    def fail(*_: object) -> None:
        raise objcat.errors.CorruptTable("the mirror cannot go on")

    with monkeypatch.context() as patch:
        patch.setattr("objcat.mirror.mirror.TableMirrors._walk", fail)
        table.upsert(people(4))
        table.maintenance.compact()
        cleaned = table.maintenance.clean(keep_slots=1)
    assert cleaned.bound == slot
    assert by_delta(table, slot) == rows_at(table, slot) == by_iceberg(table, slot)
    assert set(newest(table).values()) == {table.refresh().slot}
    assert table.maintenance.clean(keep_slots=1).bound > slot
    at = table.refresh().slot
    assert set(newest(table).values()) == {at}
    assert by_delta(table, at) == rows_at(table, at) == by_iceberg(table, at)
    document = json.loads((folder(table) / f"metadata/v{at + 1}.metadata.json").read_text())
    assert min(one["snapshot-id"] for one in document["snapshots"]) > table.refresh().log.marks(table.id).bound


def test_a_mirror_that_has_not_moved_for_a_week_holds_nothing(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.upsert(people(1, 2))
    newest(table)

    def fail(*_: object) -> None:
        raise objcat.errors.CorruptTable("the mirror cannot go on")

    monkeypatch.setattr("objcat.mirror.mirror.TableMirrors._walk", fail)
    monkeypatch.setattr("objcat.mirror.retention.WAITED_MS", -1)
    table.upsert(people(1))
    table.maintenance.compact()
    table.upsert(people(1))
    assert table.maintenance.clean(keep_slots=1).bound == table.refresh().slot - 1


def test_erasing_leaves_nothing_in_mirrors(table: objcat.Table) -> None:
    table.upsert([{"id": number, "name": f"someone {number}", "value": number} for number in range(20)])
    table.upsert([{"id": 7_654_321_123, "name": "Zoë Quartz-Nightingale", "value": 987_654_321_987}])
    table.maintenance.compact()
    newest(table)
    held = [path for path in folder(table).rglob("*") if path.is_file() and b"Quartz-Nightingale" in path.read_bytes()]
    assert any("_delta_log" in path.parts for path in held), "the bounds of the mirror hold her name before"
    certificate = table.erase([{"id": 7_654_321_123}])
    assert certificate.found == 0 and certificate.deleted == 1
    assert {one.kind for one in certificate.examined} >= {"mirrors"}
    slot = table.refresh().slot
    assert set(newest(table).values()) == {slot}
    assert by_delta(table, slot) == rows_at(table, slot) == by_iceberg(table, slot)
    assert not [path for path in folder(table).rglob("*") if path.is_file() and b"Nightingale" in path.read_bytes()]


def test_a_purge_deletes_the_mirrors(lake: objcat.Lake, table: objcat.Table) -> None:
    table.upsert(people(1))
    newest(table)
    where = folder(table)
    lake.drop_table("shop.people")
    lake.purge_table("shop.people", older_than_s=0)
    assert not [path for path in where.rglob("*") if path.is_file() and ({"metadata", "_delta_log", "deltavectors"} & set(path.parts))]


def test_a_dropped_table_that_comes_back_goes_on(lake: objcat.Lake, table: objcat.Table) -> None:
    table.upsert(people(1, 2))
    newest(table)
    lake.drop_table("shop.people")
    back = lake.undrop_table("shop.people")
    back.upsert(people(2, value=5))
    slot = back.refresh().slot
    assert set(newest(back).values()) == {slot}
    assert by_delta(back, slot) == rows_at(back, slot) == by_iceberg(back, slot)


def test_doctor_tells_of_a_mirror_that_lags(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    newest(table)
    monkeypatch.setattr("objcat.maintenance.auto_mirror.mirrors_of", lambda _: ())
    monkeypatch.setattr("objcat.inspection.mirror_checks.LAG_SLOTS_MAX", 3)
    for number in range(5):
        table.upsert(people(number))
    found = [finding.says for finding in examine(table._context.timeline).findings]
    assert len([says for says in found if "5 slots behind" in says]) == 2
    assert 'objcat_mirror_lag_slots{table="shop.people",format="delta"} 5' in table.maintenance.metrics()


def test_metadata_of_others_is_left_alone(lake: objcat.Lake) -> None:
    table = lake.create_table("shop.people", SCHEMA, key=["id"])
    write_deltalake(folder(table), pa.table({"id": [1, 2]}))
    log = folder(table) / "_delta_log"
    foreign = log / f"{0:020d}.json"
    table.set_properties({"mirrors": "delta"})
    with pytest.raises(ForeignMetadata):
        table.maintenance.mirror()
    assert [path.name for path in log.iterdir() if path.is_file()] == [foreign.name]
    assert table.upsert(people(1)) is not None
    table.set_properties({"mirrors": "none"})
    assert table.maintenance.mirror() == [] and foreign.exists()


def test_tables_of_one_log_have_mirrors_of_their_own(lake: objcat.Lake) -> None:
    made = [lake.create_table(f"shop.t{n}", SCHEMA, key=["id"], shared_log="shop", properties=MIRRORS) for n in range(2)]
    for number, table in enumerate(made):
        table.upsert(people(number, number + 1, value=number))
    for number, table in enumerate(made):
        below = f"mirrors/{table.id}/" if number else ""
        slot = min(newest(table).values())
        assert by_iceberg(table, slot, below=below) == rows_at(table, slot) == by_delta(table, slot, below=below)
        assert slot == 2 + number


def test_read_optimized_mirrors_have_base_files_alone(lake: objcat.Lake) -> None:
    properties = {**MIRRORS, "mirror_mode": "read_optimized"}
    table = lake.create_table("shop.people", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)
    table.upsert(people(*range(10)))
    table.maintenance.compact()
    table.upsert(people(*range(5), value=7))
    table.delete([{"id": 9}])
    table.maintenance.split_buckets(count=4)
    slot = table.refresh().slot
    assert set(newest(table).values()) == {slot}
    expected = table.scan(mode="read_optimized").to_arrow().sort_by("id").to_pylist()
    assert by_iceberg(table, slot) == by_delta(table, slot) == expected
    assert len(expected) == 10 and not list(folder(table).glob("deltavectors/*"))


def test_the_command_mirrors_a_lake(lake: objcat.Lake, table: objcat.Table) -> None:
    table.upsert(people(1))
    newest(table)
    done = run("mirror", lake.fileio.url, columns=200)
    said = done.stdout
    assert done.returncode == 0, done.stderr
    assert "shop.people: delta is at slot 1, 0 behind" in said and "shop.people: iceberg is at slot 1" in said
    rows = lake.sql("CALL mirror(table => 'shop.people')").to_pylist()
    assert sorted(row["format"] for row in rows) == ["delta", "iceberg"] and all(row["lag"] == 0 for row in rows)


def test_a_failing_mirror_fails_no_commit(table: objcat.Table, caplog: pytest.LogCaptureFixture) -> None:
    (folder(table) / "metadata").mkdir(exist_ok=True)
    newest(table)
    for path in (folder(table) / "metadata").iterdir():
        path.unlink()
    (folder(table) / "metadata" / "version-hint.text").write_text("nonsense")
    with caplog.at_level(logging.WARNING):
        assert table.upsert(people(1)) is not None
    slot = table.refresh().slot
    fresh = objcat.connect(table._context.fileio.url.rsplit("/tables/", 1)[0]).table("shop.people")
    assert set(newest(fresh).values()) == {slot}
    assert by_iceberg(table, slot) == rows_at(table, slot)


def test_counts_of_nulls_that_are_not_exact_exclude_no_row(lake: objcat.Lake) -> None:
    """A mirror that begins late knows bounds of file groups, with nulls of all their files together."""
    table = lake.create_table("shop.people", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.upsert([{"id": number, "name": None, "value": 1} for number in range(4)])
    table.upsert([{"id": 9, "name": "known", "value": None}])
    table.maintenance.compact()
    table.upsert([{"id": 10, "name": "known too", "value": None}, {"id": 11, "name": None, "value": None}])
    table.set_properties(MIRRORS)
    newest(table)
    metadata = f"{table.url}/metadata/v{table.refresh().slot + 1}.metadata.json"
    for where, count in (("name is null", 5), ("name is not null", 2), ("value is null", 3), ("value is not null", 4), ("id >= 9", 3)):
        assert table.scan(where=where).count() == count
        assert StaticTable.from_metadata(metadata).scan(row_filter=where).to_arrow().num_rows == count, where
        found = QueryBuilder().register("t", DeltaTable(table.url)).execute(f"SELECT id FROM t WHERE {where}")
        assert pa.table(found).num_rows == count, where


def test_a_mirror_that_is_held_goes_on_when_no_file_holds_it_any_more(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg reads no file with integers as floats: its mirror waits until such files are written again, and Delta's does not."""
    schema = SCHEMA.append(pa.field("score", pa.int32()))
    table = lake.create_table("shop.people", schema, key=["id"], index=objcat.BucketIndex(1), properties=MIRRORS)
    table.upsert([{**row, "score": 1} for row in people(1, 2)])
    table.maintenance.compact()
    held_at = table.refresh().slot
    newest(table)
    table.alter.widen_column("score", pa.float64())
    table.upsert([{**row, "score": 1.5} for row in people(2, value=7)])
    reports = {report.format: report for report in table.maintenance.mirror()}
    assert reports["delta"].lag == 0 and not reports["delta"].held
    assert reports["iceberg"].slot == held_at and "score" in reports["iceberg"].held
    monkeypatch.setattr("objcat.mirror.mirror.HELD_SLOTS", 0)
    table.maintenance.compact()
    slot = table.refresh().slot
    assert newest(table) == {"delta": slot, "iceberg": slot}
    # deltalake reads no table with a widened column.
    assert by_iceberg(table, slot) == rows_at(table, slot)
    table.upsert([{**row, "score": 2.5} for row in people(9)])
    assert newest(table)["iceberg"] == slot + 1


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_damaged_newest_slot_heals(lake: objcat.Lake, form: str) -> None:
    """Iceberg's at once, by another metadata file in its place. Delta's with the next commit: a version is written once."""
    table = lake.create_table("shop.people", SCHEMA, key=["id"], index=objcat.BucketIndex(1), properties={"mirrors": form})
    table.upsert(people(1, 2))
    slot = newest(table)[form]
    damaged = folder(table) / (f"metadata/v{slot + 1}.metadata.json" if form == "iceberg" else f"_delta_log/{slot:020d}.json")
    damaged.write_bytes(damaged.read_bytes()[:40])
    other = objcat.connect(lake.fileio.url).table("shop.people")
    if form == "iceberg":
        assert newest(other) == {form: slot} and by_iceberg(other, slot) == rows_at(other, slot)
    else:
        with pytest.raises(CorruptMirror, match="after the next commit"):
            other.maintenance.mirror()
    other.upsert(people(3))
    assert newest(other) == {form: slot + 1}
    assert (by_iceberg if form == "iceberg" else by_delta)(other, slot + 1) == rows_at(other, slot + 1)
