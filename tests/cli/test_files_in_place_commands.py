"""`objcat create-in-place`, `refresh-files`, `precompute` and `promote`: the folders of a table in place."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import fields
from pathlib import Path

import pyarrow as pa

import objcat
from tests.cli.commands import run
from tests.tables.in_place import as_json, rows


def test_files_of_a_folder_are_taken(tmp_path: Path) -> None:
    folder, table = tmp_path / "in", f"{tmp_path}/lake/logs.app"
    folder.mkdir()
    (folder / "a.json").write_bytes(as_json(rows(0, 5)))
    (folder / "b.json").write_bytes(as_json(rows(5, 7)) + b"no JSON\n")
    lake = objcat.connect(tmp_path / "lake")
    lake.create_table("logs.app", source=objcat.Files(f"{folder}/*.json", format="json", bad_rows="permit"))
    one = run("refresh-files", table, f"{folder}/a.json", "--json")
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout) | {"slots": 0, "bytes": 0} == {
        "slots": 0, "added": 1, "replaced": 0, "dropped": 0, "rows": 5, "bytes": 0, "bad_rows": 0, "unsettled": 0, "ignored": 0,
    }  # fmt: skip
    said = run("refresh-files", table)
    assert "1 files are new, 0 changed, 0 are gone; 2 rows" in said.stdout and "1 lines are no rows" in said.stdout
    assert "nothing to take" in run("refresh-files", table).stdout
    (folder / "a.json").unlink()
    failed = run("refresh-files", table)
    assert failed.returncode == 2 and "a.json vanished" in failed.stderr
    assert "1 are gone" in run("refresh-files", table, "--on-missing", "drop").stdout
    assert lake.sql("CALL refresh_files(table => 'logs.app')").to_pylist()[0]["added"] == 0
    assert lake.sql("SELECT count(*) AS n FROM logs.app").to_pylist() == [{"n": 2}]


def test_a_table_has_every_setting(tmp_path: Path) -> None:
    """Each argument of `Files` is an option, and the table is that of the call in Python."""
    (tmp_path / "in/day=2/a").mkdir(parents=True)
    (tmp_path / "in/day=2/a/1.csv").write_text("1;x\n2;-\n3;no number;\nfour;y\n")
    (tmp_path / "more/day=3/b").mkdir(parents=True)
    patterns = [f"{tmp_path}/in/day=*/{{host}}/*.csv", f"{tmp_path}/more/day=*/{{host}}/*.csv"]
    options = {
        "format": ["csv"], "path_columns": ["--path-column", "day int"], "delimiter": ["--delimiter", ";"], "header": ["--no-header"],
        "nulls": ["--null", "-", "--null", "none"], "bad_rows": ["--bad-rows", "permit"], "on_change": ["--on-change", "replace"],
        "on_missing": ["--on-missing", "drop"], "precompute": ["--precompute", "id"], "line": [], "patterns": [],
    }  # fmt: skip
    assert set(options) == {one.name for one in fields(objcat.Files)}
    given = [word for words in options.values() for word in words if words != ["csv"]]
    said = ["--format", "csv", "--columns", "id BIGINT, name STRING, host STRING", "--property", "by=ana", "--shared-log", "shop"]
    done = run("create-in-place", f"{tmp_path}/lake/logs.app", *patterns, *said, *given)
    assert done.returncode == 0, done.stderr
    assert "logs.app has the columns id, name, host, day. Take its files" in done.stdout
    lake = objcat.connect(tmp_path / "lake")
    source = objcat.Files(
        patterns, format="csv", path_columns={"day": "int"}, delimiter=";", header=False, nulls=["-", "none"], bad_rows="permit",
        on_change="replace", on_missing="drop", precompute=["id"],
    )  # fmt: skip
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("host", pa.string())])
    same = lake.create_table("same", schema, source=source, properties={"by": "ana"}, shared_log="shop")
    made = lake.table("logs.app")
    assert (made.spec.in_place, made.schema, made.partitioning) == (same.spec.in_place, same.schema, same.partitioning)
    assert made.properties == {"by": "ana"} and made.url == same.url
    made.refresh_files()
    found = sorted(made.scan().to_arrow().to_pylist(), key=str)
    same.refresh_files()
    assert found == sorted(same.scan().to_arrow().to_pylist(), key=str) and {"id": 1, "name": "x", "host": "a", "day": 2} in found


def test_a_table_of_lines_has_columns_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "day=2026-01-01").mkdir()
    (tmp_path / "day=2026-01-01/a.log").write_text("7 WARN\n")
    url, pattern = f"{tmp_path}/lake/logs", f"{tmp_path}/*/*.log"
    line = ["--format", "text", "--line", r"(?P<n>\d+) (?P<level>\w+)"]
    done = run("create-in-place", url, pattern, *line, "--columns", "n INT, level STRING, day DATE", "--path-column", "day", "--json")
    assert json.loads(done.stdout) == {"name": "logs", "slot": 0, "columns": ["n", "level", "day"], "path_columns": ["day"]}, done.stderr
    table = objcat.connect(tmp_path / "lake").table("logs")
    table.refresh_files()
    assert table.scan().to_arrow().to_pylist() == [{"n": 7, "level": "WARN", "day": dt.date(2026, 1, 1)}]
    wrong_ones: dict[tuple[str, ...], str] = {
        ("--format", "xml"): "format='xml' is not known",
        ("--format", "json", "--path-column", "day datum"): "The column 'day' of the path has the type 'datum'",
        ("--format", "json", "--path-column", "day, day"): "names 'day' twice",
        **{
            ("--format", "json", "--columns", text): "is no list of columns"
            for text in ("id", "id BIGINT, name", "", "id BIGINT) AS (x", "id BIGINT) COMMENT 'x' --", "id BIGINT, PRIMARY KEY (id)", "(")
        },
        ("--format", "text"): "line= is the expression",
        ("--format", "json", "--property", "x"): "KEY=VALUE",
        (*line, "--columns", "n INT"): "The table 'logs' exists",
    }
    for wrong, message in wrong_ones.items():
        failed = run("create-in-place", url, pattern, *wrong)
        assert failed.returncode == 2 and message in failed.stderr, failed.stderr


def test_columns_are_precomputed(tmp_path: Path) -> None:
    folder, table = tmp_path / "in", f"{tmp_path}/lake/logs"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1, "name": "a", "payload": {"status": 2, "text": "b"}}\n')
    lake = objcat.connect(tmp_path / "lake")
    lake.create_table("logs", source=objcat.Files(f"{folder}/*.json", format="json")).refresh_files()

    def asked(*arguments: str) -> list[str]:
        done = run("precompute", table, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert len(said["slots"]) == said["files"] == 1 and said["unsettled"] == 0
        held: list[str] = said["columns"]
        return held

    assert asked("id", "payload.status") == ["id", "payload.status"]
    assert lake.table("logs").scan(columns=["payload.status", "id"]).explain().sources["precomputed"] == 1
    assert asked("--add", "name") == ["id", "name", "payload.status"]
    assert asked("payload.status", "--remove") == ["id", "name"]
    assert asked("name") == ["name"]
    assert "nothing to make: every file has name" in run("precompute", table).stdout
    said = run("precompute", table, "--remove-all").stdout
    assert "1 files have no precomputed columns; 0 bytes were written" in said
    for wrong, message in {
        ("--add",): "need columns",
        ("--remove-all", "id"): "has none",
        ("id", "--add", "--remove"): "excludes the others",
        ("id", "--remove"): "'id' is not precomputed: the table has nothing",
        ("payload.nothing",): "has no field 'nothing'",
    }.items():
        failed = run("precompute", table, *wrong)
        assert failed.returncode == 2 and message in failed.stderr, failed.stderr
    (folder / "a.json").unlink()
    assert "1 files changed or are gone; run objcat refresh-files" in run("precompute", table, "id").stdout


def test_a_table_is_promoted(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"in/day={day}").mkdir(parents=True)
        (tmp_path / f"in/day={day}/a.json").write_bytes(as_json(rows(day * 10, day * 10 + 3)))
    lake, table = objcat.connect(tmp_path / "lake"), f"{tmp_path}/lake/logs"
    source = objcat.Files(f"{tmp_path}/in/day=*/*.json", format="json", path_columns={"day": "int"})
    lake.create_table("logs", source=source).refresh_files()
    assert "3 rows were written in 1 files" in run("promote", table, "--where", "day = 1").stdout
    assert "nothing to promote" in run("promote", table, "--where", "day = 1").stdout
    done = json.loads(run("promote", table, "--json").stdout)
    assert (done["files"], done["rows"], done["is_whole"]) == (1, 3, True)
    assert lake.table("logs").scan().count() == 6
    assert run("promote", table).returncode == 2
