"""spec/tables/: objcat, the second reader and the smallest reader of the pages all read the stated rows at every slot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from devkit.paths import ROOT
from devkit.spec_features import FEATURES
from devkit.spec_tables import actions_of, make
from devkit.spec_values import rows_json
from fileio.contract import Create
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import SnapshotExpired, TableClosed
from objcat.metadata.replay import TablesReducer
from objcat.table.context import TableContext
from objcat.timeline.log_view import Timeline
from tests.protocol import reader
from tests.protocol.smallest_reader import Reader, Refused

FOLDER = ROOT / "spec" / "tables"
NAMES = [feature.name for feature in FEATURES if not feature.is_lake]
BYTES_MAX = 2_000_000


def described(name: str) -> Any:
    return json.loads((FOLDER / name / "table.json").read_text())


def expected(name: str) -> Mapping[tuple[str, int], Any]:
    """By table id and slot: the rows, or why there are none."""
    folder = FOLDER / name
    found: dict[tuple[str, int], Any] = {(one["table"], one["slot"]): one["why"] for one in described(name)["refused"]}
    for path in (folder / "rows").glob("*.json"):
        for table, rows in json.loads(path.read_text()).items():
            assert (table, int(path.stem)) not in found
            found[table, int(path.stem)] = rows
    slots = len(described(name)["slots"])
    assert set(found) == {(one["table"], slot) for one in described(name)["tables"] for slot in range(slots)}
    return found


def objects_of(name: str) -> dict[str, bytes]:
    folder = FOLDER / name / "objects"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_memory(name: str) -> FileIO:
    """The objects of a feature in a store."""
    env = FakeEnv(1)
    fileio = FileIO(MemoryBackend("tables", env=env), env=env)
    for key, data in objects_of(name).items():
        fileio.put(key, data, Create())
    return fileio


def test_the_folders_are_those_of_the_features() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {feature.name for feature in FEATURES}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < BYTES_MAX


@pytest.mark.parametrize("name", NAMES)
def test_objcat_reads_the_stated_rows(name: str) -> None:
    fileio = in_memory(name)
    assert actions_of(objects_of(name)) == [said.split()[1] for said in described(name)["slots"]]
    for one in described(name)["tables"]:
        timeline = Timeline(fileio, TablesReducer())
        table = objcat.Table(TableContext(one["name"], timeline, one["table"], timeline.open()))
        for (of, slot), rows in expected(name).items():
            if of == one["table"] and rows != "not created":
                assert told(table, slot) == rows, (one["name"], slot)


def told(table: objcat.Table, slot: int) -> Any:
    try:
        return rows_json(table.scan(as_of=slot).to_arrow().to_pylist())
    except SnapshotExpired:
        return "expired"
    except TableClosed:
        return "closed"


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_reader_reads_the_stated_rows(name: str) -> None:
    smallest = Reader(FOLDER / name / "objects", reader.hash_key, logical)
    for (table, slot), rows in expected(name).items():
        try:
            found: Any = rows_json(smallest.read(table, slot))
        except Refused as refused:
            found = str(refused)
        assert found == rows, (table, slot)


def logical(value: Any, kind: Any) -> Any:
    """A value as a scan returns it: what the smallest reader takes for a number is a date or a time again."""
    value = reader.logical(value, kind)
    if value is not None and kind in ("date", "timestamp", "timestamp_ntz"):
        return pa.scalar(value, pa.int32() if kind == "date" else pa.int64()).cast(reader.PLAIN[kind]).as_py()
    return value


@pytest.mark.parametrize("name", [name for name in NAMES if name != "erasure"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["from slot 0", "from the checkpoint"])
def test_the_second_reader_reads_the_stated_rows(name: str, checkpoint: bool) -> None:
    """It checks on the way whatever the pages say of an object. It does not know the feature of an erasure."""
    log = reader.Log(FOLDER / name / "objects")
    for (table, slot), rows in expected(name).items():
        if rows == "not created":
            continue
        try:
            found: Any = rows_json(log.rows(table, slot, root=checkpoint))
        except reader.Expired:
            found = "expired"
        except reader.Closed:
            found = "closed"
        assert found == rows, (table, slot)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["from slot 0", "from the checkpoint"])
def test_the_second_reader_reads_the_stated_positions(checkpoint: bool) -> None:
    log = reader.Log(FOLDER / "positions" / "objects")
    said = json.loads((FOLDER / "positions" / "positions.json").read_text())
    assert {name for positions in said.values() for name in positions} == {"mysql-eu", "orders"}
    for slot in range(log.head + 1):
        assert log.positions(slot, root=checkpoint) == said.get(str(slot), {}), slot


def test_the_names_of_a_lake() -> None:
    folder = FOLDER / "names"
    said = json.loads((folder / "names.json").read_text())
    lake = objcat.Lake(in_memory("names"))
    second = reader.Lake(folder / "objects")
    assert lake.tables() == second.tables() == [one["name"] for one in said["tables"]]
    bindings = [second.names.tables[reader.name_key(one["name"])] for one in said["tables"]]
    assert [(found["table"], found["prefix"]) for found in bindings] == [(one["table"], one["prefix"]) for one in said["tables"]]
    assert second.namespaces() == {one["name"]: one["properties"] for one in said["namespaces"]}
    assert second.dropped() == said["dropped"] == sorted(dropped.name for dropped in lake.dropped_tables())


@pytest.mark.parametrize(("number", "name"), [(number, feature.name) for number, feature in enumerate(FEATURES)])
def test_the_code_still_writes_such_tables(number: int, name: str) -> None:
    """The same entries with the same rows; sizes and digests of files may differ, as libraries write them."""
    made = make(FEATURES[number], number)
    for document, text in made.documents.items():
        assert (FOLDER / name / document).read_text() == text
    stored = objects_of(name)
    assert set(made.objects) == set(stored)
    for key in stored:
        if "log/" in key:
            assert shape(json.loads(made.objects[key])) == shape(json.loads(stored[key])), key


def shape(value: Any, *, field: str = "") -> Any:
    """An entry without what depends on the bytes of its files, on the version of objcat, and on what else its writer asked the store."""
    if field in ("bytes", "digest", "footer", "requests", "sha256", "writer"):
        return type(value).__name__
    if isinstance(value, dict):
        return {name: shape(item, field=name) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else value


def test_a_wrong_row_is_found(tmp_path: Path) -> None:
    """The check of the smallest reader can fail: without one log file's rows it reads something else."""
    name = "merge-on-read"
    for key, data in objects_of(name).items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    entry = tmp_path / "log" / f"{2:020d}.json"
    content = json.loads(entry.read_bytes())
    (table,) = content["changes"]
    content["changes"][table]["logs"] = []
    entry.write_text(json.dumps(content))
    smallest = Reader(tmp_path, reader.hash_key, logical)
    assert rows_json(smallest.read(table, 2)) != expected(name)[table, 2]
