"""Inserts that look at what is there: keys of the table are refused or passed over, whoever writes them meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.errors import EmptyBatch, InvalidBatch, InvalidInput, InvalidSql, KeyExists, NullKey
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("at", pa.int64(), nullable=False),
        ("v", pa.int64()),
    ]
)
TABLES: list[dict[str, Any]] = [
    {"index": objcat.BucketIndex(3)},
    {"index": objcat.BucketIndex(3), "table_type": "copy_on_write"},
    {"index": objcat.BucketIndex(3), "ordering": "at"},
    {"index": objcat.SimpleIndex()},
    {"index": objcat.BloomIndex(), "table_type": "copy_on_write"},
    {"index": objcat.MemoryIndex(), "ordering": "at"},
    {"index": objcat.RecordIndex()},
    {"index": objcat.RecordIndex(), "partition_by": ["city"]},
    {"index": objcat.SimpleIndex(), "partition_by": ["city"], "key_scope": "partition"},
]
HASHED = [settings for settings in TABLES if isinstance(settings["index"], objcat.BucketIndex)]


def make(store: FileIO | None = None, **settings: Any) -> objcat.Table:
    table = objcat.Lake(store or FileIO(MemoryBackend("modes"), env=FakeEnv(3))).create_table("t", SCHEMA, key=["id"], **settings)
    table.insert(rows(range(8)))
    table.upsert(rows(range(2), v=5))
    return table


def rows(ids: range, *, v: int = 0, at: int = 5) -> list[dict[str, Any]]:
    return [{"id": f"k{number}", "city": "ab"[number % 2], "at": at, "v": v} for number in ids]


def state(table: objcat.Table) -> dict[str, int]:
    found = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


@pytest.mark.parametrize("settings", TABLES, ids=repr)
def test_what_becomes_of_keys_that_are_there(settings: dict[str, Any]) -> None:
    table = make(**settings)
    before, slot = state(table), table.refresh().slot
    # A row that is there and newer than the batch is there, too.
    with pytest.raises(
        KeyExists,
        match=r"2 rows of the batch have keys that are in the table 't' already, \(id='k\d'\), \(id='k\d'\)\. Nothing was written\. Leave",
    ):
        table.insert(rows(range(6, 10), v=9, at=1), on_existing="fail")
    assert state(table) == before and table.refresh().slot == slot
    done = table.insert(rows(range(6, 10), v=9, at=9), on_existing="skip")
    assert done is not None and (done.inserted, done.updated, done.rows) == (2, 0, 2)
    assert state(table) == {**before, "k8": 9, "k9": 9}
    assert table.insert(rows(range(4), v=9, at=9), on_existing="skip") is None
    assert table.refresh().slot == slot + 1
    failing = table.insert(rows(range(20, 22), v=7), on_existing="fail")
    assert (failing.inserted, failing.rows) == (2, 2)
    # A key that was deleted is not there.
    table.delete([{"id": "k20", "city": "a"}])
    table.insert(rows(range(20, 21), v=8), on_existing="fail")
    table.insert(rows(range(3), v=1, at=9))
    assert state(table) == {**before, "k8": 9, "k9": 9, "k20": 8, "k21": 7, "k0": 1, "k1": 1, "k2": 1}
    table.maintenance.compact()
    with pytest.raises(KeyExists, match=r"\(id='k0'\)|and \d more"):
        table.insert(rows(range(10)), on_existing="fail")


def test_a_refusal_shows_some_of_the_keys() -> None:
    table = make(index=objcat.BucketIndex(1))
    with pytest.raises(KeyExists, match=r"8 rows of .*\), \(.*\), \(.*\) and 5 more\. .*on_existing='skip'"):
        table.insert(rows(range(12)), on_existing="fail")


@pytest.mark.parametrize("settings", TABLES, ids=repr)
def test_a_key_that_comes_meanwhile_is_there(settings: dict[str, Any]) -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), **settings)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    backend.races = [lambda: other.upsert(rows(range(30, 31), v=1))]
    done = table.insert(rows(range(30, 32), v=2, at=9), on_existing="skip")
    assert done is not None and done.inserted == 1
    assert (state(table)["k30"], state(table)["k31"]) == (1, 2)
    backend.races = [lambda: other.upsert(rows(range(40, 41), v=1))]
    with pytest.raises(KeyExists, match=r"\(id='k40'\)"):
        table.insert(rows(range(40, 42), v=2, at=9), on_existing="fail")
    assert state(table)["k40"] == 1 and "k41" not in state(table)
    assert not list(table._context.fileio.list_keys("intents/"))


@pytest.mark.parametrize("settings", HASHED, ids=repr)
def test_a_key_that_goes_meanwhile_is_not_there(settings: dict[str, Any]) -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), **settings)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    # Whether or not another row goes to the bucket of the one that is deleted.
    for number in range(8):
        backend.races = [lambda number=number: other.delete([{"id": f"k{number}"}])]  # type: ignore[misc]
        table.insert(rows(range(number, number + 1), v=3, at=9) + rows(range(50 + number, 51 + number)), on_existing="skip")
        assert state(table)[f"k{number}"] == 3, number


def test_many_writers_of_one_key_insert_it_once() -> None:
    store = FileIO(MemoryBackend("many"), env=FakeEnv(1))
    make(store, index=objcat.BucketIndex(2))
    handles = [objcat.Lake(store).table("t") for _ in range(4)]
    won = [handle.insert(rows(range(60, 61), v=place), on_existing="skip") for place, handle in enumerate(handles)]
    assert [done is not None for done in won] == [True, False, False, False] and state(handles[0])["k60"] == 0


WRONG: list[tuple[type[Exception], str, Callable[[objcat.Table], Any]]] = [
    (InvalidInput, "on_existing='ignore' is not known", lambda table: table.insert(rows(range(1)), on_existing="ignore")),  # type: ignore[call-overload]
    (InvalidInput, "changes no schema", lambda table: table.insert(rows(range(1)), on_existing="skip", schema_mode="add")),
    (InvalidBatch, "did you mean 'city'", lambda table: table.insert([{"id": "a", "at": 1, "cty": "x"}], on_existing="skip")),
    (NullKey, "null", lambda table: table.insert([{"id": None, "at": 1}], on_existing="fail")),
    (EmptyBatch, "empty", lambda table: table.insert(SCHEMA.empty_table(), on_existing="fail")),
    (InvalidBatch, "Several rows", lambda table: table.insert(rows(range(70, 71)) * 2, on_existing="skip")),
]


@pytest.mark.parametrize(("error", "says", "insert"), WRONG, ids=[says for _, says, _ in WRONG])
def test_what_is_refused(error: type[Exception], says: str, insert: Callable[[objcat.Table], Any]) -> None:
    table = make(index=objcat.BucketIndex(2))
    with pytest.raises(error, match=says):
        insert(table)
    assert table.refresh().slot == 2


def test_tables_that_cannot_say_whether_a_key_is_there() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("others"), env=FakeEnv(3)))
    without_key = lake.create_table("k", SCHEMA, key=None)
    with pytest.raises(InvalidInput, match="has no key"):
        without_key.insert(rows(range(1)), on_existing="skip")


def test_in_sql() -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("sql"), env=FakeEnv(3)))
    table = lake.create_table("t", SCHEMA, key=["id"])
    lake.sql("INSERT INTO t VALUES ('a', 'x', 1, 1)")
    with pytest.raises(KeyExists, match=r"\(id='a'\)"):
        lake.sql("INSERT OR FAIL INTO t VALUES ('a', 'x', 1, 2), ('b', 'x', 1, 2)")
    lake.sql("INSERT OR IGNORE INTO t VALUES ('a', 'x', 1, 3), ('b', 'x', 1, 3)")
    lake.sql("INSERT INTO t VALUES ('b', 'x', 1, 4), ('c', 'x', 1, 4) ON CONFLICT DO NOTHING")
    assert state(table) == {"a": 1, "b": 3, "c": 4}
    lake.sql("INSERT OR REPLACE INTO t VALUES ('a', 'x', 1, 5)")
    assert state(table) == {"a": 5, "b": 3, "c": 4}
    for wrong in ("INSERT OR ABORT INTO t VALUES ('a', 'x', 1, 5)", "INSERT INTO t VALUES ('a', 'x', 1, 5) ON CONFLICT (id) DO NOTHING"):
        with pytest.raises(InvalidSql, match="is not supported"):
            lake.sql(wrong)
    with pytest.raises(InvalidSql, match="OVERWRITE"):
        lake.sql("INSERT INTO t REPLACE WHERE city = 'x' VALUES ('a', 'x', 1, 5) ON CONFLICT DO NOTHING")
    assert state(table) == {"a": 5, "b": 3, "c": 4}
