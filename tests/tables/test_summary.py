"""What a commit says of itself, to its caller and in the log, and whose times it carries."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.timeline.entry import Action
from objcat.version import VERSION
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])


def rows(*keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "value": "a"} for key in keys]


def create(lake: objcat.Lake, kind: TableType = "merge_on_read") -> objcat.Table:
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_the_entry_says_what_the_result_says(kind: TableType) -> None:
    table = create(objcat.Lake(FileIO(MemoryBackend("says"))), kind)
    results = [table.insert(rows(1, 2, 3)), table.upsert(rows(3, 3, 4)), table.delete([{"id": 1}])]
    for result, entry in zip(results, table.inspect.history()[1:], strict=True):
        said = entry.summary
        assert said is not None
        assert (said.rows, said.inserted, said.updated, said.deleted) == (result.rows, result.inserted, result.updated, result.deleted)
        assert (said.files, said.bytes, said.attempts, said.slots_lost) == (result.files, result.bytes, 1, 0)
        files = list(table._context.fileio.list_keys(f"data/{entry.txn}/"))
        assert len(files) == result.files
        assert sum(table._context.fileio.head(key).size for key in files) == result.bytes
        assert said.requests == {kind: count for kind, count in result.requests.items() if kind in said.requests}
        # The slot and the data.
        assert said.requests["put_create"] == 1 + result.files
    assert [result.rows for result in results] == [3, 2, 1]


def test_a_blind_write_does_not_pretend_to_know() -> None:
    table = create(objcat.Lake(FileIO(MemoryBackend("blind"))))
    inserted, upserted, deleted = table.insert(rows(1, 2)), table.upsert(rows(2, 3)), table.delete([{"id": 1}])
    assert (inserted.inserted, inserted.updated, inserted.deleted) == (2, None, None)
    assert (upserted.inserted, upserted.updated, upserted.deleted) == (None, None, None)
    assert (deleted.inserted, deleted.updated, deleted.deleted) == (None, None, None)


def test_a_redo_is_counted_in_the_entry_too() -> None:
    backend = RacingBackend("redone")
    lake = objcat.Lake(FileIO(backend))
    table = create(lake, "copy_on_write")
    backend.races = [lambda: lake.table("t").upsert(rows(*range(10)))]
    result = table.upsert(rows(*range(5, 20)))
    said = table.inspect.history()[-1].summary
    assert said is not None
    assert (said.attempts, said.slots_lost) == (result.attempts, result.slots_lost) == (2, 1)
    assert (said.inserted, said.updated) == (result.inserted, result.updated) == (10, 5)


def test_every_entry_says_who_wrote_it() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("who")))
    table = create(lake)
    table.upsert(rows(1))
    table.resolve("20260101T000000000Z-0123456789abcdef")
    entries = table.inspect.history()
    assert [entry.action for entry in entries] == [Action.CREATE, Action.DELTA_COMMIT, Action.ROLLBACK]
    assert {entry.writer for entry in entries} == {f"objcat {VERSION}, local"}
