"""The table of docs/spec/reading.md of what a reader does with what is bad: objcat does so, to a table of spec/tables/."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import objcat
from devkit.paths import ROOT
from devkit.spec_values import rows_json
from fileio.contract import Create
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CorruptTable, UnsupportedFormat
from objcat.metadata.replay import TablesReducer
from objcat.table.context import TableContext
from objcat.timeline.log_view import Timeline

NAME = "checkpoints-and-archive"
FOLDER = ROOT / "spec" / "tables" / NAME
TABLE = json.loads((FOLDER / "table.json").read_text())["tables"][0]["table"]
OBJECTS = {path.relative_to(FOLDER / "objects").as_posix(): path.read_bytes() for path in (FOLDER / "objects").rglob("*") if path.is_file()}
SLOTS = sorted(key for key in OBJECTS if key.startswith("log/"))
HEAD = len(SLOTS) - 1
ROOTS = sorted(key for key in OBJECTS if key.endswith("root.json"))
WHOLE_ROOT = max(key for key in ROOTS if b'"void"' not in OBJECTS[key])
"""The newest checkpoint that is none in name only."""
Change = Callable[[dict[str, bytes]], None]


def read(change: Change, slot: int = HEAD) -> Any:
    """The rows of a slot, after a change of the objects."""
    objects = dict(OBJECTS)
    change(objects)
    env = FakeEnv(1)
    fileio = FileIO(MemoryBackend("bad", env=env), env=env)
    for key, data in objects.items():
        fileio.put(key, data, Create())
    timeline = Timeline(fileio, TablesReducer())
    table = objcat.Table(TableContext("bad", timeline, TABLE, timeline.open()))
    return rows_json(table.scan(as_of=slot).to_arrow().to_pylist())


def expected(slot: int = HEAD) -> Any:
    return json.loads((FOLDER / "rows" / f"{slot}.json").read_text())[TABLE]


def entry_with(slot: int, **fields: Any) -> Change:
    """An entry with other fields, and without the digest of its bytes."""

    def change(objects: dict[str, bytes]) -> None:
        content = json.loads(objects[SLOTS[slot]])
        content.pop("digest")
        objects[SLOTS[slot]] = json.dumps({**content, **fields}).encode()

    return change


def replaced(key: str, data: bytes) -> Change:
    return lambda objects: objects.update({key: data})


def removed(key: str) -> Change:
    def change(objects: dict[str, bytes]) -> None:
        del objects[key]

    return change


def flipped(key: str) -> Change:
    data = OBJECTS[key]
    middle = len(data) // 2
    return replaced(key, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def test_as_it_is() -> None:
    assert read(lambda _: None) == expected()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(removed("head.json"), id="no hint"),
        pytest.param(replaced("head.json", b"no JSON"), id="a hint that is no JSON"),
        pytest.param(replaced("head.json", b'{"slot":5,"checkpoint":0,"nonce":"00"}'), id="a stale hint"),
        pytest.param(replaced("head.json", b'{"slot":999,"checkpoint":992,"nonce":"00"}'), id="a hint that is ahead"),
        pytest.param(entry_with(HEAD, another_field={"of": "a later writer"}), id="an unknown field"),
        pytest.param(entry_with(HEAD, features=None, side=None, apps=None, metadata=None, summary=None), id="nulls"),
        pytest.param(entry_with(HEAD, committed_at_ms=1), id="a commit time that does not increase"),
    ],
)
def test_a_reader_goes_on(change: Change) -> None:
    assert read(change) == expected()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(replaced(WHOLE_ROOT, b"no JSON"), id="a root that is no JSON"),
        pytest.param(flipped(WHOLE_ROOT), id="a root with a wrong digest"),
        pytest.param(
            flipped(next(key for key in OBJECTS if key.startswith(WHOLE_ROOT[:33]) and key.endswith(".parquet"))), id="another shard"
        ),
    ],
)
def test_a_bad_checkpoint_is_replayed_around(change: Change) -> None:
    assert read(change) == expected()


NEWEST_DATA = max(key for key in OBJECTS if key.startswith("data/") and key.endswith(".log.parquet"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(removed(SLOTS[HEAD - 1]), id="a slot that is absent below one that was seen"),
        pytest.param(replaced(SLOTS[HEAD], b"no JSON"), id="an entry that is no JSON"),
        pytest.param(flipped(SLOTS[HEAD]), id="an entry with a wrong digest"),
        pytest.param(entry_with(HEAD, base=HEAD), id="an entry that breaks a rule"),
        pytest.param(removed(NEWEST_DATA), id="no data file"),
        pytest.param(flipped(NEWEST_DATA), id="a data file with another byte"),
        pytest.param(replaced(NEWEST_DATA, OBJECTS[NEWEST_DATA][:-9]), id="a data file of another size"),
    ],
)
def test_it_is_corrupt(change: Change) -> None:
    with pytest.raises(CorruptTable) as raised:
        read(change)
    assert any(key in str(raised.value) for key in (SLOTS[HEAD], SLOTS[HEAD - 1], NEWEST_DATA))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"format": 2, "min_client": "9.9"}, "format 2"),
        ({"features": {"quantum": "9.9"}}, "'quantum'"),
        ({"action": "TELEPORT"}, "TELEPORT"),
    ],
)
def test_it_is_refused_and_not_corrupt(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedFormat, match=named):
        read(entry_with(HEAD, **fields))
