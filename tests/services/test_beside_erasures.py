"""Whoever reads or writes between any two requests of an erasure, from below it or anew, finds what is there; and a search finds all."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import FileIO, open_store
from fileio.contract import Create
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import NotErased
from objcat.inspection.doctor import examine
from objcat.maintenance import forget_erased
from objcat.table.erasure_search import Search, Sought
from objcat.timeline.checkpoint_expiry import fence, valid_roots
from objcat.timeline.entry import log_key
from tests.effort import effort, few
from tests.services.people import HER, NEEDLES, SCHEMA, lake_on, leaks, other
from tests.services.test_forgetting import checkpoints, lived, made, write

REQUESTS_MAX = 6000
STRIDE = effort(331, with_all=11)


def between(backend: MemoryBackend, at: int, act: Callable[[], None]) -> FaultyBackend:
    """The store, on which somebody acts before the request of that number that an erasure sends."""
    count = 0

    def before(_request: Request) -> None:
        nonlocal count
        count += 1
        if count == at:
            act()

    return FaultyBackend(backend, before=before)


@pytest.mark.parametrize("partition_by", few(["by mail", "whole"], 1))
@pytest.mark.parametrize("who", ["reads from below", "reads anew", "writes from below", "erases too", "archives and publishes"])
def test_between_any_two_requests(who: str, partition_by: str) -> None:
    for at in range(1 + len(who) % 7, REQUESTS_MAX, STRIDE):
        backend = MemoryBackend("between")
        table = made(backend, partition_by=partition_by)
        lived(table)
        checkpoints(table, backend)
        rows = table.scan(where="ssn <> '123-45-6789'").count()
        old = lake_on(backend, 70).table("people")
        acted: list[int] = []

        def act(old: objcat.Table = old, acted: list[int] = acted, backend: MemoryBackend = backend) -> None:
            acted.append(1)
            match who:
                case "reads from below":
                    acted.append(old.scan(where="ssn <> '123-45-6789'").count())
                case "reads anew":
                    acted.append(lake_on(backend, 71).table("people").scan(where="ssn <> '123-45-6789'").count())
                case "writes from below":
                    old.upsert([other(500, mail="late@example.com")])
                case "erases too":
                    lake_on(backend, 72).table("people").erase("ssn = '123-45-6789'", older_than_s=3600)
                case _:
                    late = lake_on(backend, 73).table("people")
                    late._context.timeline.publish(late._context.timeline.open())
                    late.maintenance.archive(keep_slots=1)

        erased = (
            objcat.Lake(FileIO(between(backend, at, act), env=FakeEnv(60))).table("people").erase("ssn = '123-45-6789'", older_than_s=0)
        )
        assert erased.found == 0
        assert acted[1:] in ([], [rows]), f"before request {at}"
        expected = rows + (who == "writes from below" and bool(acted))
        for seen in (old, table, lake_on(backend, 74).table("people")):
            assert seen.scan().count() == expected, f"before request {at}"
        assert leaks(backend) == [], f"before request {at}"
        assert examine(old._context.timeline, deep=True).healthy, f"before request {at}"
        write(old, [other(501)])
        assert table.scan().count() == expected + 1
        if not acted:
            assert at > 100
            return
    pytest.fail(f"an erasure sends more than {REQUESTS_MAX} requests")


def test_a_checkpoint_of_a_slow_publisher_that_comes_after_the_claim_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of a slot between the new checkpoint and the claim, and names manifests of the one before, which have her values."""
    backend = MemoryBackend("slow publisher")
    table = made(backend)
    lived(table)
    checkpoints(table, backend)
    late = lake_on(backend, 73).table("people")
    save = forget_erased._save
    published: list[int] = []

    def busy(*arguments: Any) -> bool:
        saved = save(*arguments)
        if not published:
            for number in range(20):
                write(table, [other(100 + number % 5)])
            late.refresh()
        return saved

    def fenced(*arguments: Any) -> tuple[int, ...]:
        if not published:
            published.append(late._context.timeline._publish(late._context.view).checkpoint)
        return fence(*arguments)

    monkeypatch.setattr(forget_erased, "_save", busy)
    monkeypatch.setattr(forget_erased, "fence", fenced)
    erased = lake_on(backend, 60).table("people").erase("ssn = '123-45-6789'", older_than_s=0)
    assert published and erased.found == 0
    assert leaks(backend) == []
    assert published[0] not in valid_roots(table._context.fileio, table.refresh().slot)
    assert examine(table._context.timeline, deep=True).healthy


def test_what_is_found_is_named_and_no_value_is_told() -> None:
    backend = MemoryBackend("found")
    table = made(backend)
    lived(table)
    table._context.fileio.put("copies/of-somebody.txt", b"who: Ada Q. Lovelace", Create())
    with pytest.raises(NotErased, match=r"1 objects of people still hold values .* copies/of-somebody\.txt among them") as raised:
        table.erase("ssn = '123-45-6789'", older_than_s=0)
    assert raised.value.objects == ("copies/of-somebody.txt",)
    assert not any(needle in str(raised.value) for needle in NEEDLES)
    table._context.fileio.delete(["copies/of-somebody.txt"])
    done = table.erase("ssn = '123-45-6789'", older_than_s=0)
    assert leaks(backend) == []
    assert not any(needle in str(done) for needle in NEEDLES if needle not in done.where)


def test_a_certificate_lists_what_was_searched_and_what_for() -> None:
    backend = MemoryBackend("lists")
    table = made(backend)
    lived(table)
    checkpoints(table, backend)
    table.upsert([other(7, name=f"friend of {HER['name']}")])
    done = table.erase("ssn = '123-45-6789'", older_than_s=0)
    kinds = {one.kind: one for one in done.examined}
    assert {"log entries", "history files", "checkpoint roots", "checkpoint manifests", "data files", "the hint"} <= kinds.keys()
    assert all(one.objects > 0 and one.bytes > 0 and one.found == 0 for one in done.examined)
    assert sum(one.objects for one in done.examined) + done.under_way == len(list(table._context.fileio.list_keys("")))
    assert done.sought >= 8
    assert done.held_by_others >= 1, "her name is in the row of another"
    assert done.too_short >= 3, "numbers, and the date"
    assert any("backups" in one for one in done.not_promised)


def test_a_delete_of_another_that_is_retained_holds_its_values() -> None:
    """The other one's delete has the time of the erased row, which is hers too. The delete of the erased row ends."""
    backend = MemoryBackend("retained")
    lake = objcat.Lake(FileIO(backend))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.int64(), nullable=False), ("name", pa.string())])
    table = lake.create_table("people", schema, key=["id"], ordering="at", index=objcat.BucketIndex(1))
    table.upsert([{"id": 1000 + one, "at": 70_000_000_000 + one, "name": f"person number {one}"} for one in (1, 2, 3)])
    table.delete([{"id": 1002, "at": 70_000_000_007}])
    table.upsert([{"id": 1001, "at": 70_000_000_007, "name": "of one moment"}])
    table.delete([{"id": 1001, "at": 70_000_000_008}])
    table.maintenance.compact()
    done = table.erase([{"id": 1001}], older_than_s=0)
    assert done.found == 0 and done.held_by_others >= 1
    assert table.scan().to_arrow()["id"].to_pylist() == [1003]
    table.upsert([{"id": 1002, "at": 70_000_000_006, "name": "late"}])
    assert table.scan().to_arrow()["id"].to_pylist() == [1003], "her delete is still there"
    done = table.erase([{"id": 1003}], older_than_s=0)
    assert done.found == 0 and table.scan().count() == 0


def test_what_a_dead_process_left_in_a_local_store_goes(tmp_path: os.PathLike[str]) -> None:
    lake = objcat.Lake(open_store(f"file://{tmp_path}"))
    table = lake.create_table("people", SCHEMA, key=["ssn"], index=objcat.BucketIndex(2))
    lived(table)
    left = os.path.join(tmp_path, ".objcat", "tmp", "left")
    os.makedirs(os.path.dirname(left), exist_ok=True)
    with open(left, "wb") as file:
        file.write(b"Ada Q. Lovelace")
    with pytest.raises(NotErased, match="left among them"):
        table.erase("ssn = '123-45-6789'", older_than_s=3600)
    assert table.erase("ssn = '123-45-6789'", older_than_s=0).found == 0
    assert not os.path.exists(left)
    for path, _, names in os.walk(tmp_path):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                data = file.read()
            assert b"Lovelace" not in data, name
            if name.endswith(".parquet"):
                assert "Lovelace" not in str(pq.read_table(os.path.join(path, name)).to_pydict())


def test_a_hint_is_searched_like_the_objects_that_it_carries() -> None:
    """Numbers in bounds are found in it, and what it says of another table of its log is not."""
    fileio = FileIO(MemoryBackend("hints"), env=FakeEnv(1))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    table = objcat.create_table_at(fileio, schema, key=["id"], index=objcat.BucketIndex(1))
    for number in range(8):
        table.upsert([{"id": number, "v": 987_654_321}])
    for own, is_found in ((table.id, True), ("0123456789abcdef", False)):
        search = Search(fileio, own, table.spec, Sought(typed={2: {987_654_321}}), frozenset(), is_shared=not is_found)
        for key in ("head.json", log_key(6)):
            search.examine(fileio.head(key))
        found = {kind: examined.found for kind, examined in search.classes.items()}
        assert found == {"the hint": int(is_found), "log entries": int(is_found)}
