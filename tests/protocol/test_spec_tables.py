"""spec/tables/: objcat, the second reader and the smallest reader of the pages all read the stated rows at every slot."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import objcat
from devkit.paths import ROOT
from devkit.spec_features import FEATURES
from devkit.spec_tables import SEED, actions_of, make
from devkit.spec_values import rows_json
from fileio.contract import Create
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CorruptTable, SnapshotExpired, TableClosed
from objcat.metadata.replay import TablesReducer
from objcat.table.context import TableContext
from objcat.timeline.log_view import Timeline
from tests.protocol import reader
from tests.protocol.smallest_reader import Reader, Refused

FOLDER = ROOT / "spec" / "tables"
NAMES = [feature.name for feature in FEATURES if not feature.is_lake]
BYTES_MAX = 2_000_000
ID = re.compile(f"{SEED >> 16:04x}[0-9a-f]{{12}}")
"""An id that the writer of these tables drew."""


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
@pytest.mark.parametrize("name", ["positions", "derived-tables"])
def test_the_second_reader_reads_the_stated_positions(name: str, checkpoint: bool) -> None:
    log = reader.Log(FOLDER / name / "objects")
    said = json.loads((FOLDER / name / "positions.json").read_text())
    ids = {one["name"]: one["table"] for one in described(name)["tables"]}
    sources = {"mysql-eu", "orders"} if name == "positions" else {f"derived:{ids[table]}" for table in ("wide", "sums")}
    assert {source for positions in said.values() for source in positions} == sources
    for slot in range(log.head + 1):
        assert log.positions(slot, root=checkpoint) == said.get(str(slot), {}), slot


def test_derived_tables_show_their_query_at_the_slots_of_their_positions() -> None:
    """By the stated rows and positions and the stored query alone. A RESTORE takes rows back that no position says, until a refresh."""
    name = "derived-tables"
    tables = {one["table"]: one["name"] for one in described(name)["tables"]}
    entries = [json.loads(data) for key, data in objects_of(name).items() if key.startswith("log/")]
    created = {table: change["spec"] for entry in entries if entry["action"] == "CREATE" for table, change in entry["changes"].items()}
    features = {table: entry.get("writer_features", {}) for entry in entries if entry["action"] == "CREATE" for table in entry["changes"]}
    derived = {table: spec["derived"] for table, spec in created.items() if "derived" in spec}
    assert sorted(tables[table] for table in derived) == ["sums", "wide"]
    assert all("derived_tables" in features[table] for table in derived)
    rows, compared = expected(name), 0
    for slot, positions in json.loads((FOLDER / name / "positions.json").read_text()).items():
        for source, position in positions.items():
            table = source.removeprefix("derived:")
            definition, state = derived[table], position["state"]["sources"]
            assert sorted(state) == sorted(definition["sources"])
            if position["rewound_at"] is not None:
                continue
            connection = duckdb.connect()
            for one, known in state.items():
                assert tables[known["table"]] == one
                fields = {field["name"]: field for field in created[known["table"]]["table_schema"]["columns"]}
                assert {column: [fields[column]["id"], fields[column]["type"]] for column in known["columns"]} == known["columns"]
                kinds = pa.schema([(name, reader.PLAIN[field["type"]]) for name, field in fields.items()])
                connection.register(one, pa.Table.from_pylist(rows[known["table"], known["slot"]], kinds))
            found = connection.sql(sqlglot.transpile(definition["query"], read="spark", write="duckdb")[0]).to_arrow_table()
            own = created[table]["table_schema"]["columns"]
            found = found.cast(pa.schema([(field["name"], reader.PLAIN[field["type"]]) for field in own]))
            assert rows_json(found.to_pylist()) == rows[table, int(slot)], (slot, tables[table])
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("name", ["hint-without-checkpoint", "hint-with-root"])
def test_what_a_hint_carries_is_the_log(name: str) -> None:
    log = reader.Log(FOLDER / name / "objects")
    carried = log.carried()
    assert carried is not None
    root, entries = carried
    below = -1
    if root is not None:
        below = root["slot"]
        assert below > 0
        assert root == without_digest(log.prefix.json(f"checkpoints/{below:020d}/root.json"))
    assert 0 < len(entries) < log.head - below
    assert entries == [without_digest(log.entry(slot)) for slot in range(below + 1, below + 1 + len(entries))]


@pytest.mark.parametrize("name", ["hint-without-checkpoint", "hint-with-root"])
def test_objcat_opens_by_what_a_hint_carries(name: str) -> None:
    """Also where all slots below the hint are gone: none of them is asked for."""
    hint = json.loads(objects_of(name)["head.json"])
    fileio = in_memory(name)
    fileio.delete([f"log/{slot:020d}.json" for slot in range(hint["slot"])])
    assert Timeline(fileio, TablesReducer()).open().slot == len(described(name)["slots"]) - 1 > hint["slot"]


def test_a_hint_of_another_log_is_passed_over() -> None:
    name = "hint-of-another-log"
    assert json.loads(objects_of(name)["head.json"])["carried"]["slot"] == 4
    assert reader.Log(FOLDER / name / "objects").carried() is None
    for missing in (1, 3):
        fileio = in_memory(name)
        fileio.delete([f"log/{missing:020d}.json"])
        with pytest.raises(CorruptTable):
            Timeline(fileio, TablesReducer()).open()


def without_digest(stored: Any) -> Any:
    return {name: value for name, value in stored.items() if name != "digest"}


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
    """The same entries with the same rows; sizes and digests of files may differ, as libraries write them, and so may the ids drawn."""
    made = make(FEATURES[number], number)
    for document, text in made.documents.items():
        assert (FOLDER / name / document).read_text() == text
    written, stored = numbered(made.objects), numbered(objects_of(name))
    assert set(written) == set(stored)
    for key in stored:
        if "log/" in key:
            assert shape(json.loads(written[key])) == shape(json.loads(stored[key])), key


def numbered(objects: Mapping[str, bytes]) -> dict[str, str]:
    """Objects with their ids in the order in which they first appear: how many ids a writer draws in between is its own affair."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"id-{len(numbers):04d}")

    entries = {key: ID.sub(number, data.decode()) for key, data in sorted(objects.items()) if "log/" in key}
    return {ID.sub(number, key): entries.get(key, "") for key in sorted(objects)}


def shape(value: Any, *, field: str = "") -> Any:
    """An entry without what depends on the bytes of its files, on the version of objcat, and on what its writer met in the store."""
    if field in ("bytes", "digest", "footer", "requests", "sha256", "writer"):
        return type(value).__name__
    if isinstance(value, dict):
        return {name: shape(item, field=name) for name, item in value.items() if name != "slots_lost"}
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
