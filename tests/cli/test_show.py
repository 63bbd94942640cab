"""`objcat show`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.contract import Create, GetResult
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, new_txn
from tests.cli.commands import run


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("trips", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(2))
    table.upsert([{"id": i} for i in range(10)], metadata={"job": "night [run]"})
    return table


def test_a_slot_and_its_transaction_show_the_same(table: objcat.Table, tmp_path: Path) -> None:
    txn = table.inspect.history()[1].txn
    by_slot = run("show", f"{tmp_path}/trips", "1", columns=200)
    by_txn = run("show", f"{tmp_path}/trips", txn, columns=200)
    assert by_slot.returncode == by_txn.returncode == 0
    assert by_slot.stdout == by_txn.stdout
    for word in ("DELTA_COMMIT", txn, "bucket 0/2", "job=night [run]", ".log.parquet"):
        assert word in by_slot.stdout


def test_changes_of_the_schema_and_of_properties_are_told_in_words(table: objcat.Table, tmp_path: Path) -> None:
    table.upsert([{"id": 1, "tip": 0.5, "place": {"x": 1}}], schema_mode="add")
    table.alter.apply([objcat.RenameColumn("tip", "extra"), objcat.AddColumn("n", "int", first=True), objcat.AddColumn("place.y", "int")])
    table.set_properties({"owner": "me", "level": "2"})
    table.set_properties({"level": "3"}, unset=["owner"])
    table.restore(to=2)
    said = {slot: " ".join(run("show", f"{tmp_path}/trips", str(slot), columns=200).stdout.split()) for slot in range(7)}
    assert "schema" not in said[0] + said[1]
    assert "schema added tip (double); added place (struct<x: int64>)" in said[2]
    assert ".log.parquet" in said[2]
    assert "schema added n (int); renamed tip to extra; added place.y (int)" in said[3]
    assert "schema" not in said[4]
    assert "properties level=2; owner=me" in said[4]
    assert "properties level=3; owner taken away" in said[5]
    assert "restores slot 2 schema renamed extra to tip; dropped n; dropped place.y properties level taken away" in said[6]


def test_slots_are_those_of_the_log_that_tables_share(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    for name in ("one", "two"):
        lake.create_table(name, pa.schema([("id", pa.int64())]), key=["id"], shared_log="pair")
    slots = {name: lake.table(name).upsert([{"id": 1}]).slot for name in ("one", "two")}
    for name, slot in slots.items():
        done = run("show", f"{tmp_path}/{name}", str(slot), "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown["slot"] == slot and list(shown["footprint"]) == [lake.table(name).id]


def test_as_json_it_is_the_entry(table: objcat.Table, tmp_path: Path) -> None:
    done = run("show", f"{tmp_path}/trips", "1", "--json")
    shown = json.loads(done.stdout)
    assert shown["slot"] == 1 and shown["metadata"] == {"job": "night [run]"}
    slot = table._context.fileio.get("log/00000000000000000001.json")
    assert isinstance(slot, GetResult)
    assert shown == json.loads(slot.data)


def test_a_transaction_under_way_shows_who_is_at_it(table: objcat.Table, tmp_path: Path) -> None:
    txn = new_txn(table._context.fileio.env)
    Committer(table._context.fileio).announce(txn, Action.DELTA_COMMIT, table._context.timeline.open().log, engine="spark").result()
    done = run("show", f"{tmp_path}/trips", txn, columns=200)
    assert done.returncode == 0
    assert "INFLIGHT" in done.stdout and "spark" in done.stdout


def test_an_intent_that_is_none_is_one_sentence(table: objcat.Table, tmp_path: Path) -> None:
    txn = new_txn(table._context.fileio.env)
    table._context.fileio.put(f"intents/{txn}.inflight.json", b"nothing", Create())
    done = run("show", f"{tmp_path}/trips", txn)
    assert done.returncode == 2
    assert "is not an intent" in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("instant", "says"),
    [
        ("7", "has no slot 7. Use a slot from 0 to 1"),
        ("9" * 5000, "Use a slot from 0 to 1"),
        ("²", "is not a transaction id"),
        ("yesterday", "is not a transaction id"),
        ("20260101T000000000Z-0123456789abcdef", "has no transaction"),
    ],
)
def test_what_is_not_there_is_one_sentence(table: objcat.Table, tmp_path: Path, instant: str, says: str) -> None:
    done = run("show", f"{tmp_path}/trips", instant)
    assert done.returncode == 2
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1
