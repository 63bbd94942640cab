"""`objcat schema`, `query` and `export`, as a user runs them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import objcat
from tests.cli.commands import run, run_process

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("fare", pa.float64()),
        ("cost", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
    ]
)
AT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    table = objcat.connect(tmp_path / "lake").create_table("city.trips", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    cities = ("Rome", "Oslo")
    table.insert(
        [{"id": i, "city": cities[i % 2], "fare": i / 2, "cost": decimal.Decimal("1.50"), "at": AT, "raw": b"\0"} for i in range(60)]
    )
    table.upsert([{"id": 3, "city": "Lima", "fare": float("nan"), "cost": None, "at": AT, "raw": None}])
    return table


@pytest.fixture
def lake(table: objcat.Table, tmp_path: Path) -> str:
    return f"{tmp_path}/lake"


def says(*arguments: str, columns: int = 100) -> str:
    done = run(*arguments, columns=columns)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_schema(table: objcat.Table, lake: str) -> None:
    table.alter.add_column("tip", "int")
    shown = says("schema", f"{lake}/city.trips")
    for part in (
        "id",
        "decimal",
        "tip",
        "table type: merge_on_read",
        "key: id",
        "ordering: at",
        "index: type=bucket, count=2, columns=['id']",
    ):
        assert part in shown, shown
    found = json.loads(says("schema", f"{lake}/city.trips", "--json"))
    assert [column["column"] for column in found["columns"]] == [*SCHEMA.names, "tip"]
    assert (found["key"], found["ordering"], found["slot"]) == (["id"], "at", 3)
    then = json.loads(says("schema", f"{lake}/city.trips", "--slot", "1", "--json"))
    assert [column["column"] for column in then["columns"]] == SCHEMA.names
    nulls = {line.split()[0]: line.split()[2] for line in shown.splitlines() if line.split()[:1] in (["id"], ["city"], ["at"])}
    assert nulls == {"id": "no", "city": "yes", "at": "no"}, shown
    table.maintenance.split_buckets()
    assert "bucket counts: (all)=4" in says("schema", f"{lake}/city.trips") and "bucket counts" not in shown


def test_a_query_is_shown_and_told_as_json(lake: str) -> None:
    shown = says("query", lake, "SELECT city, count(*) AS n FROM city.trips GROUP BY city ORDER BY city")
    assert [line.split() for line in shown.splitlines() if line.strip()][2:] == [
        ["Lima", "1"],
        ["Oslo", "29"],
        ["Rome", "30"],
        ["3", "rows"],
    ]
    lines = says("query", lake, "SELECT * FROM city.trips WHERE id IN (3, 4) ORDER BY id", "--json").splitlines()
    assert json.loads(lines[0]) == {"id": 3, "city": "Lima", "fare": "NaN", "cost": None, "at": "2026-01-31T12:00:00Z", "raw": None}
    assert json.loads(lines[1]) | {"at": ""} == {"id": 4, "city": "Rome", "fare": 2.0, "cost": "1.50", "at": "", "raw": "AA=="}
    assert json.loads(says("query", lake, "SELECT city FROM city.trips VERSION AS OF 1 WHERE id = 3", "--json")) == {"city": "Oslo"}
    assert json.loads(says("query", lake, "SHOW TABLES", "--json")) == {"table": "city.trips"}
    assert len(says("query", lake, "DESCRIBE city.trips", "--json").splitlines()) == len(SCHEMA)


def test_a_long_answer_says_that_there_is_more(lake: str) -> None:
    shown = says("query", lake, "SELECT id FROM city.trips")
    assert "50 rows" in shown and "--limit 0" in shown
    assert "60 rows" in says("query", lake, "SELECT id FROM city.trips", "--limit", "0")
    assert len(says("query", lake, "SELECT id FROM city.trips", "--limit", "2", "--json").splitlines()) == 60


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("DELETE FROM city.trips", "does not only read"),
        ("DROP TABLE city.trips", "does not only read"),
        ("INSERT INTO city.trips SELECT * FROM city.trips", "does not only read"),
        ("CALL compact('city.trips')", "does not only read"),
        ("UNDROP TABLE city.trips", "does not only read"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELEC 1", ""),
        ("SELECT nothing FROM city.trips", "nothing"),
        ("SELECT * FROM city.tripz", "did you mean 'city.trips'"),
    ],
)
def test_what_is_no_question_is_refused_in_one_sentence(table: objcat.Table, lake: str, sql: str, part: str) -> None:
    assert part in refused("query", lake, sql)
    assert table.refresh().slot == 2


def test_a_query_needs_a_lake_and_a_text(lake: str) -> None:
    assert "There is no query in the call" in refused("query", lake)
    assert "There is no query in the call" in refused("query")


def test_export(table: objcat.Table, lake: str, tmp_path: Path) -> None:
    url = f"{lake}/city.trips"
    rows = table.scan().to_arrow().sort_by("id")
    assert "60 rows of city.trips at slot 2" in says("export", url, str(tmp_path / "all.parquet"))
    assert pq.read_table(tmp_path / "all.parquet").sort_by("id").drop_columns("fare") == rows.drop_columns("fare")
    told = json.loads(says("export", url, str(tmp_path / "some.csv"), "--where", "city = 'Rome'", "--columns", "id, city", "--json"))
    assert (told["rows"], told["format"], told["slot"]) == (30, "csv", 2)
    assert pa_csv.read_csv(tmp_path / "some.csv").column("city").unique().to_pylist() == ["Rome"]
    says("export", url, str(tmp_path / "old.jsonl"), "--slot", "1")
    lines = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text().splitlines()]
    assert len(lines) == 60 and next(line["city"] for line in lines if line["id"] == 3) == "Oslo"
    assert len(says("export", url, "-", "--format", "jsonl").splitlines()) == 60
    assert says("export", url, "-", "--format", "csv", "--columns", "city", "--where", "id = 3") == '"city"\n"Lima"\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.parquet", "lake", "old.jsonl", "some.csv"]


@pytest.mark.parametrize("command", ["export", "report"])
def test_what_is_no_file_is_not_replaced(lake: str, tmp_path: Path, command: str) -> None:
    """A device would be a plain file for all others from then on."""
    place = tmp_path / "pipe.csv"
    os.mkfifo(place)
    done = run(command, f"{lake}/city.trips", str(place), "--overwrite")
    assert done.returncode == 2 and "is not a file, and was left as it is" in done.stderr
    assert place.is_fifo()


def test_an_export_for_which_there_is_no_room_says_so_and_leaves_no_file(lake: str, tmp_path: Path) -> None:
    target = tmp_path / "trips.jsonl"
    # A limit of this process stands for a disk that is full.
    limited = 'ulimit -f 1; exec "$@"'
    # -B: Python 3.11 would leave half a file of byte code, too.
    command = [sys.executable, "-B", "-m", "objcat.cli", "export", f"{lake}/city.trips", str(target)]
    done = subprocess.run(["sh", "-c", limited, "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"{target} cannot be written (File too large). Free some space" in done.stderr
    assert not list(tmp_path.glob("*.jsonl")) and not list(tmp_path.glob(".*.part"))


def test_an_export_that_fails_leaves_no_file(table: objcat.Table, lake: str, tmp_path: Path) -> None:
    url = f"{lake}/city.trips"
    target = tmp_path / "out"
    target.mkdir()
    (target / "there.csv").write_text("mine")
    for arguments, part in (
        ([url, str(target / "there.csv")], "--overwrite"),
        ([url, str(target / "rows.txt")], "--format"),
        ([url, "-", "--format", "parquet"], "standard output"),
        ([url, str(target / "no/such/rows.csv")], "Create that folder"),
        ([url, str(target / "rows.csv"), "--where", "nothing = 1"], "nothing"),
        ([url, str(target / "rows.csv"), "--columns", "fair"], "did you mean 'fare'"),
    ):
        assert part in refused("export", *arguments)
    for path in table._context.fileio.list_keys("data/"):
        table._context.fileio.delete([path])
    assert "restore" in refused("export", url, str(target / "rows.csv"))
    assert [path.name for path in target.iterdir()] == ["there.csv"]
    assert (target / "there.csv").read_text() == "mine"


def test_whoever_reads_the_output_may_stop(lake: str) -> None:
    """As `head` does: no stack trace."""
    import subprocess
    import sys

    command = [
        sys.executable,
        "-m",
        "objcat.cli",
        "query",
        lake,
        "SELECT a.id, b.city FROM city.trips a, city.trips b, city.trips c",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert run_process("query", lake, "SELECT 1 AS one", "--json").stdout == '{"one": 1}\n'
