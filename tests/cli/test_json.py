"""`--json`: the page `docs/reference/json.md` says of every command what it prints, and how it ends."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import objcat
from objcat.cli import app
from tests.cli.commands import run, run_process

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
ROWS = {
    command: (shape, set(re.findall(r"`(\w+)`", keys)))
    for command, shape, keys in re.findall(r"^\| `([^`]+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    if not command.startswith("ingest ")  # They need a database: tests/ingest/test_commands.py.
}
CALLS: dict[str, list[list[str]]] = {
    "ls": [["LAKE"], ["EMPTY"]],
    "ls --dropped": [["LAKE"], ["EMPTY"]],
    "undrop": [["LAKE/gone"]],
    "schema": [["TABLE"]],
    "query": [["LAKE", "SELECT * FROM trips"], ["LAKE", "SELECT * FROM trips WHERE id > 9"], ["LAKE", "SHOW TABLES"]],
    "export": [["TABLE", "FILE.parquet"]],
    "report": [["TABLE", "FILE.html"]],
    "log": [["TABLE"]],
    "show": [["TABLE", "1"]],
    "stats": [["TABLE"]],
    "files": [["TABLE"]],
    "partitions": [["TABLE"]],
    "doctor": [["TABLE"], ["LAKE"]],
    "rollback": [["TABLE"], ["TABLE", "TXN"]],
    "compact": [["TABLE"], ["TABLE"]],
    "cluster": [["TABLE", "--by", "city"], ["TABLE", "--by", "city"]],
    "reencode": [["TABLE"], ["TABLE", "--where", "id = 1", "--level", "3"]],
    "split": [["TABLE", "--count", "2"], ["TABLE", "--count", "2"]],
    "clean": [["TABLE", "--keep-slots", "1"], ["TABLE", "--keep-slots", "5"]],
    "clean --dry-run": [["TABLE", "--keep-slots", "1"]],
    "savepoint": [["TABLE"]],
    "release": [["TABLE", "2"], ["TABLE", "3"]],
    "restore": [["TABLE", "1"]],
    "restore --dry-run": [["TABLE", "1"]],
    "erase": [["TABLE", "--where", "id = 1"]],
    "erase --dry-run": [["TABLE", "--where", "id = 1"]],
    "archive": [["TABLE"]],
    "collect": [["TABLE"], ["TABLE", "--dry-run"]],
    "move": [["LAKE/trips", "--shared-log", "shop"]],
    "purge": [["LAKE/gone", "--older-than", "0"]],
    "purge --dry-run": [["LAKE/gone", "--older-than", "0"]],
    "maintain": [["TABLE"], ["LAKE"]],
    "maintain --metrics": [["TABLE"]],
    "adopt": [["LAKE", "old", "shop.old", "--format", "delta"]],
    "create-in-place": [["LAKE/more", "FILE.json", "--format", "json"]],
    "refresh-files": [["LAKE/lines"]],
    "precompute": [["LAKE/lines", "id"], ["LAKE/lines"], ["LAKE/lines", "--remove-all"]],
    "precompute --queries": [["FILE.sql", "LAKE/lines"]],
    "promote": [["LAKE/lines"]],
    "refresh": [["LAKE/cities"]],
    "refresh --lag": [["LAKE/cities"]],
    "refresh --explain": [["LAKE/cities"]],
    "mirror": [["TABLE"], ["LAKE"]],
    "profiles": [[]],
    "store-check": [["LAKE"]],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    lake = objcat.connect(tmp_path / "lake")
    schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    table = lake.create_table("trips", schema, key=["id"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "city": "Rome", "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)}])
    table.upsert([{"id": 2, "city": "Oslo", "at": None}])
    lake.create_table("gone", pa.schema([("id", pa.int64())]), key=["id"]).upsert([{"id": 1}])
    lake.drop_table("gone")
    return tmp_path


def test_the_page_and_this_test_know_every_command() -> None:
    # A server prints no answer: it runs until it is stopped.
    named = {command.name for command in app.registered_commands} - {"serve"}
    assert {command.partition(" ")[0] for command in ROWS} == named
    assert set(ROWS) == set(CALLS)


@pytest.mark.parametrize("command", ROWS)
def test_it_prints_what_the_page_says(place: Path, command: str) -> None:
    shape, keys = ROWS[command]
    if command == "release":
        objcat.connect(place / "lake").table("trips").maintenance.savepoint()
    if command == "create-in-place":
        (place / "file.json").write_text('{"id": 1}\n')
    if command == "adopt":
        write_deltalake(place / "lake" / "old", pa.table({"id": [1, 2]}))
    if command.partition(" ")[0] in ("refresh-files", "precompute", "promote"):
        (place / "1.json").write_text('{"id": 1}\n')
        objcat.connect(place / "lake").create_table("lines", source=objcat.Files(f"{place}/*.json", format="json"))
    if command == "precompute --queries":
        (place / "file.sql").write_text("SELECT id FROM lines; SELECT count(*) FROM lines")
    if command.partition(" ")[0] in ("precompute", "promote"):
        objcat.connect(place / "lake").table("lines").refresh_files()
    if command.partition(" ")[0] == "refresh":
        objcat.connect(place / "lake").create_derived("cities", "SELECT city, count(*) AS n FROM trips GROUP BY city", key=["city"])
    if command == "mirror":
        objcat.connect(place / "lake").table("trips").set_properties({"mirrors": "iceberg,delta"})
    if command == "profiles":
        (place / "config" / "objcat").mkdir(parents=True)
        (place / "config" / "objcat" / "profiles.toml").write_text('[a]\nurl = "x"\n[b]\nurl = "y"\n')
    txn = objcat.connect(place / "lake").table("trips").inspect.history(limit=1)[0].txn
    found = []
    words = {"TABLE": f"{place}/lake/trips", "LAKE": f"{place}/lake", "EMPTY": f"{place}/none", "TXN": txn, "FILE": f"{place}/file"}
    for arguments in CALLS[command]:
        given = [re.sub(r"^(TABLE|LAKE|EMPTY|TXN|FILE)", lambda match: words[match[0]], word) for word in arguments]
        done = run(*command.split(), *given, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout.isascii()
        values = [json.loads(line) for line in done.stdout.splitlines()] if shape == "lines" else [json.loads(done.stdout)]
        assert all(isinstance(value, dict) or (shape == "object" and value is None) for value in values)
        found += [value for value in values if value is not None]
    assert found, "nothing was shown"
    assert command == "query" or all(keys <= set(value) for value in found)


def test_moments_have_a_zone(place: Path) -> None:
    url = f"{place}/lake/trips"
    moment = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    assert all(moment.fullmatch(json.loads(line)["committed_at"]) for line in run("log", url, "--json").stdout.splitlines())
    assert moment.fullmatch(json.loads(run("ls", f"{place}/lake", "--dropped", "--json").stdout)["dropped_at"])
    told = json.loads(run("query", f"{place}/lake", "SELECT at, CAST(at AS TIMESTAMP_NTZ) AS b FROM trips WHERE id = 1", "--json").stdout)
    assert told == {"at": "2026-01-31T12:00:00Z", "b": "2026-01-31T12:00:00"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["log", "LAKE/tripz"], "TableNotFound"),
        (["query", "LAKE", "SELECT"], "InvalidSql"),
        (["query", "LAKE", "SELECT * FROM read_text('/etc/passwd')"], "InvalidSql"),
        (["ls", "s3://bucket/lake", "-o", "nonsense=1"], "InvalidConfig"),
        (["ls", "nowhere:/x"], "InvalidConfig"),
        (["log"], "MissingParameter"),
        (["log", "LAKE/trips", "--nonsense"], "NoSuchOption"),
        (["show", "LAKE/trips", "99"], "InvalidInput"),
        (["clean", "LAKE/trips", "--keep-slots", "many"], "BadParameter"),
        (["nonsense"], "NoSuchCommand"),
        (["export", "LAKE/trips", "/nowhere/x.csv"], "InvalidInput"),
    ],
    ids=" ".join,
)
def test_an_error_is_an_object_too(place: Path, arguments: list[str], error: str) -> None:
    words = [word.replace("LAKE", f"{place}/lake") for word in arguments]
    plain, told = run(*words), run(*words, "--json")
    assert plain.returncode == told.returncode == 2
    assert told.stdout == "" and told.stderr.count("\n") == 1, told.stderr
    found = json.loads(told.stderr)
    assert set(found) == {"error", "message", "exit_code"} and found["exit_code"] == 2 and found["message"]
    assert found["error"] == error or (error == "NoSuchCommand" and found["error"] == "UsageError"), found
    assert plain.stderr and not plain.stderr.startswith("{")


def test_an_answer_of_no_is_told_on_stdout(place: Path) -> None:
    path = objcat.connect(place / "lake").table("trips").inspect.files()["path"][0].as_py()
    next((place / "lake").rglob(path.rpartition("/")[2])).unlink()
    done = run("doctor", f"{place}/lake/trips", "--json")
    assert (done.returncode, done.stderr) == (1, "") and json.loads(done.stdout)["healthy"] is False


def test_a_process_of_its_own_ends_the_same_way(place: Path) -> None:
    done = run_process("log", f"{place}/lake/tripz", "--json")
    assert done.returncode == 2 and json.loads(done.stderr)["error"] == "TableNotFound"
