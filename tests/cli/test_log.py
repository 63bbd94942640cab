"""`objcat log`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from tests.cli.commands import run


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    lake = objcat.connect(tmp_path)
    table = lake.create_table(
        "city.trips", pa.schema([("id", pa.int64()), ("fare", pa.float64())]), key=["id"], index=objcat.BucketIndex(2)
    )
    table.insert([{"id": i, "fare": 1.0} for i in range(10)])
    table.upsert([{"id": 3, "fare": 2.0}], metadata={"job": "night [run]"})
    return table


def test_log_as_json_is_one_object_a_commit(table: objcat.Table, tmp_path: Path) -> None:
    done = run("log", f"{tmp_path}/city.trips", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [(r["slot"], r["action"], r["rows"]) for r in rows] == [(0, "CREATE", 0), (1, "DELTA_COMMIT", 10), (2, "DELTA_COMMIT", 1)]
    assert rows[2]["metadata"] == {"job": "night [run]"}
    assert rows[1]["txn"] == table.inspect.history()[1].txn


@pytest.mark.parametrize("columns", [80, 200])
def test_log_for_people_shows_every_commit(table: objcat.Table, tmp_path: Path, columns: int) -> None:
    table.resolve("20260101T000000000Z-0123456789abcdef")
    done = run("log", f"{tmp_path}/city.trips", columns=columns)
    assert done.returncode == 0
    for word in ("CREATE", "DELTA_COMMIT", "ROLLBACK", "night"):
        assert word in done.stdout
    assert (table.inspect.history()[1].txn in done.stdout) == (columns == 200)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["log", "nothing"], "names no table"),
        (["log", "{tmp}/nothing"], "There is no table 'nothing'"),
        (["log", "s4://bucket/lake/t"], "did you mean"),
        (["log", "{tmp}/city.trips", "-o", "fsink=1"], "did you mean 'fsync'"),
    ],
)
def test_wrong_input_is_one_sentence(table: objcat.Table, tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run(*[argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_log_and_show_tell_positions_of_sources(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    lake.create_table("shop.orders", pa.schema([("id", pa.int64())]), key=["id"], shared_log="shop")
    position = objcat.SourcePosition(source="mysql-eu", state={"gtid": "0-1-7"}, since=-1)
    with lake.transaction(shared_log="shop", position=position) as tx:
        tx["shop.orders"].upsert([{"id": 1}])
    rows = [json.loads(line) for line in run("log", f"{tmp_path}/shop.orders", "--json").stdout.splitlines()]
    assert [row["positions"] for row in rows] == [{}, {"mysql-eu": 0}]
    assert rows[1]["metadata"] == {}
    assert "mysql-eu" in run("log", f"{tmp_path}/shop.orders", columns=160).stdout
    assert "mysql-eu" in run("show", f"{tmp_path}/shop.orders", "1").stdout


def test_move_says_where_the_table_is(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    schema = pa.schema([("id", pa.int64())])
    lake.create_table("first", schema, key=["id"], shared_log="shop")
    lake.create_table("second", schema, key=["id"]).upsert([{"id": 1}])
    done = run("move", f"{tmp_path}/second", "--shared-log", "shop")
    assert done.returncode == 0
    assert "second is in the shared log shop, at slot 1" in done.stdout
    assert objcat.connect(tmp_path).table("second").scan().count() == 1
    assert run("move", f"{tmp_path}/none", "--shared-log", "shop").returncode == 2
