"""Re-encoding of base files: no row changes, whoever writes meanwhile, and only files that become smaller are written again."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.faults import Crash, Fault, FaultyBackend
from objcat.errors import InvalidInput, InvalidPredicate
from objcat.inspection.doctor import examine
from objcat.lake.lake import Lake
from objcat.maintenance import reencode
from tests.services.world import At
from tests.tables.in_place import as_json, of_lake, rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.string()), ("n", pa.int64()), ("text", pa.string())])
SOME = 4000


def texts(begin: int, end: int, part: str = "a", n: int = 0) -> pa.Table:
    """Rows with text that a stronger codec makes clearly smaller."""
    drawn = random.Random(7)
    lines = [
        f"GET /shop/item/{drawn.randrange(300)}?session={drawn.randrange(50):08x}&ref=mail-{drawn.randrange(9)} HTTP/1.1 "
        f"status={drawn.choice([200, 404])} agent=Mozilla/5.0 (X11; Linux x86_64) rv:{drawn.randrange(90, 99)}"
        for _ in range(begin, end)
    ]
    return pa.table({"id": range(begin, end), "part": [part] * (end - begin), "n": [n] * (end - begin), "text": lines}, SCHEMA)


def noise(begin: int, end: int, part: str) -> pa.Table:
    """Rows that no codec makes smaller."""
    lines = [secrets.token_bytes(60).hex() for _ in range(begin, end)]
    return pa.table({"id": range(begin, end), "part": [part] * (end - begin), "n": [0] * (end - begin), "text": lines}, SCHEMA)


def content(table: objcat.Table, **asked: Any) -> list[dict[str, Any]]:
    """All rows, with the slots that committed them."""
    table.refresh()
    found = table.scan(columns=["id", "part", "n", "text", "_commit_slot"], **asked).to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["id"], str(row)))


def lake_of() -> objcat.Lake:
    return Lake(FileIO(MemoryBackend(secrets.token_hex(4))))


def bytes_of(table: objcat.Table) -> int:
    table.refresh()
    return table.inspect.stats().base_bytes


@pytest.mark.parametrize(
    ("key", "table_type"), [(None, "merge_on_read"), (["id", "part"], "merge_on_read"), (["id", "part"], "copy_on_write")]
)
def test_files_become_smaller_and_rows_stay(key: Any, table_type: Any) -> None:
    table = lake_of().create_table(
        "t", SCHEMA, key=key, table_type=table_type, partition_by=["part"], index=None if key is None else objcat.BucketIndex(1)
    )
    table.insert(texts(0, SOME, "a"))
    table.insert(texts(SOME, 2 * SOME, "b"))
    if key is not None:
        table.maintenance.compact()
    before, slot, size = content(table), table.snapshot.slot, bytes_of(table)
    done = table.maintenance.reencode(where="part = 'a'", level=9)
    assert (len(done.slots), done.files, done.left) == (1, 1, 0) and done.bytes < done.bytes_before * 0.95
    assert content(table) == before and bytes_of(table) == size - done.bytes_before + done.bytes
    again = table.maintenance.reencode(level=9)
    assert (again.files, again.left) == (1, 1), "a file that is encoded so already does not become smaller"
    assert table.maintenance.reencode(level=9).slots == () and table.maintenance.reencode(least_saving=0.9).left == 2
    assert content(table) == before
    old = [row | {"_commit_slot": 0} for row in content(table, as_of=slot)]
    assert old == [row | {"_commit_slot": 0} for row in before], "older slots read the files that they name"
    assert table.changes(since=slot).to_arrow().num_rows == 0
    table.maintenance.clean(keep_slots=1)
    assert content(table) == before and not examine(table._context.timeline, deep=True).findings


def test_files_that_nothing_makes_smaller_stay() -> None:
    table = lake_of().create_table("t", SCHEMA, key=None, partition_by=["part"])
    table.insert(noise(0, 500, "n"))
    table.insert(texts(500, 500 + SOME, "t"))
    slot = table.refresh().slot
    assert table.maintenance.reencode(where="part = 'n'", level=3) == reencode.Reencoding(left=1)
    assert table.refresh().slot == slot
    done = table.maintenance.reencode(level=9)
    assert (done.files, done.left) == (1, 1)
    files = [key for key in table._context.fileio.list_keys("") if key.endswith(".parquet")]
    assert len(files) == 3, "nothing is left of a file that did not become smaller"


def test_log_rows_and_retained_deletes_are_left_to_compaction() -> None:
    """A delete with an ordering value outlives compactions. The same history without re-encoding is the model."""

    def history(*, reencodes: bool) -> list[Any]:
        table = lake_of().create_table("t", SCHEMA, key=["id"], ordering="n", index=objcat.BucketIndex(1))

        def reencoded() -> int:
            return table.maintenance.reencode(level=9).files if reencodes else 0

        table.upsert(texts(0, SOME, n=1))
        assert reencoded() == 0, "there are no base files yet"
        table.maintenance.compact()
        table.upsert(texts(5, 6, n=9), delete_when="n = 9")
        table.maintenance.compact()
        assert reencoded() == 0, "the delete is still there"
        table.upsert(texts(5, 6, n=4))
        table.upsert(texts(7, 8, n=3))
        assert reencoded() == 0
        table.maintenance.compact()
        reencoded()
        return [(row["id"], row["n"], row["text"]) for row in content(table)]

    found = history(reencodes=True)
    assert found == history(reencodes=False) and len(found) == SOME - 1


@pytest.mark.parametrize("table_type", ["merge_on_read", "copy_on_write"])
def test_two_writers_that_come_between_win(table_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_of()
    table = lake.create_table("t", SCHEMA, key=["id", "part"], table_type=table_type, partition_by=["part"], index=objcat.BucketIndex(1))
    for place, part in enumerate("abc"):
        table.insert(texts(place * SOME, (place + 1) * SOME, part))
    table.maintenance.compact()
    written = reencode._written

    def between(*given: Any) -> Any:
        found = written(*given)
        monkeypatch.setattr(reencode, "_written", written)
        assert len(found) == 3
        lake.table("t").upsert(texts(0, 10, "a", n=1))
        lake.table("t").delete(f"id = {SOME}")
        return found

    monkeypatch.setattr(reencode, "_written", between)
    done = table.maintenance.reencode(level=9)
    assert done.files >= 1
    found = {row["id"]: row["n"] for row in content(table)}
    assert found == {number: int(number < 10) for number in range(3 * SOME) if number != SOME}
    assert not examine(table._context.timeline, deep=True).findings


def test_writers_of_other_threads_lose_nothing() -> None:
    lake = lake_of()
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    table.insert(texts(0, SOME))
    table.maintenance.compact()
    errors: list[BaseException] = []

    def write(first: int) -> None:
        try:
            own = lake.table("t")
            for step in range(1, 8):
                own.upsert(texts(first, first + 20, n=step))
                own.delete(f"id = {first + 20 + step}")
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        table.maintenance.reencode(level=9, least_saving=0)
        table.maintenance.compact()
    for thread in threads:
        thread.join()
    assert not errors
    gone = {first + 20 + step for first in (0, 1000) for step in range(1, 8)}
    expected = {n: 7 if n < 20 or 1000 <= n < 1020 else 0 for n in range(SOME) if n not in gone}
    assert {row["id"]: row["n"] for row in content(table)} == expected
    assert examine(table._context.timeline, deep=True).healthy


FAULTS = [
    Fault.CRASH_AFTER,
    *(pytest.param(fault, marks=pytest.mark.tier("all")) for fault in (Fault.AFTER, Fault.CRASH_BEFORE, Fault.BEFORE, Fault.TWICE)),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_dies_at_any_request(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencode, "COMMIT_FILES_MAX", 1)
    for number in range(1, 200):
        backend = MemoryBackend(secrets.token_hex(4))
        table = Lake(FileIO(backend)).create_table("t", SCHEMA, key=None, partition_by=["part"])
        for place, part in enumerate("ab"):
            table.insert(texts(place * 1500, place * 1500 + 1500, part))
        expected = content(table)
        script = At(number, fault)
        with contextlib.suppress(Crash, Exception):
            Lake(FileIO(FaultyBackend(backend, script))).table("t").maintenance.reencode(level=9)
        table = Lake(FileIO(backend)).table("t")
        assert content(table) == expected
        table.maintenance.reencode(level=9)
        table.maintenance.rollback_failed_writes(older_than_s=0)
        table.maintenance.clean(keep_slots=1)
        assert content(table) == expected and examine(table._context.timeline, deep=True).healthy
        assert len([key for key in FileIO(backend).list_keys("tables/") if "/data/" in key]) == 2
        if not script.hit:
            assert number > 10
            return
    pytest.fail("a run sends more than 200 requests")


def test_what_does_not_fit_is_refused() -> None:
    store, lake = of_lake()
    store.put("in/a.json", as_json(rows(0, 5)))
    table = lake.create_table("t", source=objcat.Files(f"{store.url}/in/*.json", format="json"))
    table.refresh_files()
    with pytest.raises(InvalidInput, match="cannot re-encode files"):
        table.maintenance.reencode()
    table.maintenance.promote()
    assert table.maintenance.reencode(least_saving=0).files in (0, 1)
    assert len(table.scan().to_arrow()) == 5
    own = lake.create_table("own", SCHEMA, key=None)
    for wrong in ({"level": 0}, {"level": 23}, {"level": "9"}, {"least_saving": 1}, {"least_saving": -0.1}, {"least_saving": True}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            own.maintenance.reencode(**wrong)
    with pytest.raises(InvalidPredicate, match="nothing"):
        own.maintenance.reencode(where="nothing = 1")
    assert lake.sql("CALL reencode(table => 'own', level => 3)").num_rows == 1
