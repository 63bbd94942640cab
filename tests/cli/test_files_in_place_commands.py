"""`objcat refresh-files`: the folders of a table in place."""

from __future__ import annotations

import json
from pathlib import Path

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
