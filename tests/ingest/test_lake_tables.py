"""Tables of another lake: their rows as of a slot, then every slot after it, whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.env import default_env
from objcat.errors import IngestStopped, PositionGone, SourceUnfit
from objcat.ingest.lake_tables.columns import source_table
from objcat.ingest.lake_tables.slot_changes import read_slots
from objcat.ingest.model import RowBatch
from objcat.ingest.requests import add_request
from objcat.ingest.routes import Router
from objcat.ingest.sources import open_source
from tests.ingest.two_lakes import TwoLakes

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32())])


@pytest.fixture
def lakes(tmp_path: Path) -> TwoLakes:
    made = TwoLakes(tmp_path)
    for name in ("accounts", "wallets"):
        made.source.create_table(f"shop.{name}", SCHEMA, key=["id"], shared_log="shop")
        made.source.table(f"shop.{name}").upsert(rows(range(50), 100))
    return made


def rows(ids: Any, n: int) -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64()), "n": pa.array([n] * len(ids), pa.int32())})


def transfer(lakes: TwoLakes, one: int, amount: int) -> None:
    """Move an amount between two tables in one transaction, as both rows are now."""
    with lakes.source.transaction() as tx:
        for name, sign in (("shop.accounts", -1), ("shop.wallets", 1)):
            (row,) = tx[name].scan(where=f"id = {one}").to_arrow().to_pylist()
            tx[name].upsert(rows([one], row["n"] + sign * amount))


def sums(lakes: TwoLakes) -> dict[int, tuple[bool, int | None]]:
    """For each slot of the lake: whether it says that it is consistent, and the sum of both tables."""
    tables = [lakes.lake.table(f"copy.{name}") for name in ("accounts", "wallets")]
    found = {}
    for slot in range(tables[0].refresh().slot + 1):
        stored = lakes.lake.source_position("copy", shared_log="copy", as_of=slot)
        if stored is None or stored.slot != slot:
            continue
        is_reading = any(table.get("is_reading") for table in stored.state["tables"].values())
        total: int | None = None
        if not is_reading:
            total = sum(pc.sum(table.scan(columns=["n"], as_of=slot).to_arrow()["n"]).as_py() or 0 for table in tables)
        found[slot] = (not is_reading, total)
    return found


def test_rows_and_changes(lakes: TwoLakes) -> None:
    state = lakes.once()
    assert state.is_consistent and lakes.differences("accounts") == lakes.differences("wallets") == []
    accounts = lakes.source.table("shop.accounts")
    accounts.upsert(rows([3, 4, 100], 7))
    accounts.delete(pa.table({"id": [5, 6]}))
    accounts.update({"n": 5}, where="id < 3")
    accounts.maintenance.compact()
    lakes.once()
    assert lakes.differences("accounts") == [] and lakes.lake.table("copy.accounts").scan().count() == 49
    before = lakes.lake.table("copy.accounts").refresh().slot
    lakes.once()
    assert lakes.lake.table("copy.accounts").refresh().slot <= before + 1


def test_transactions_stay_whole(lakes: TwoLakes) -> None:
    lakes.configure(run="", route="", settings="range_slots = 5")
    lakes.once()
    for number in range(23):
        transfer(lakes, number, number + 1)
    lakes.once()
    assert lakes.differences("accounts") == lakes.differences("wallets") == []
    found = sums(lakes)
    assert {total for is_whole, total in found.values() if is_whole} == {10_000} and sum(whole for whole, _ in found.values()) >= 2


def test_a_table_is_read_in_parts_and_goes_on_after_a_kill(lakes: TwoLakes, monkeypatch: pytest.MonkeyPatch) -> None:
    from objcat.ingest.sink import LakeSink

    class Killed(BaseException):
        """What ends a process in this test."""

    commit = LakeSink.commit
    left = 3

    def commit_some(self: Any, *arguments: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return commit(self, *arguments)

    lakes.configure(run="")
    text = lakes.config_path.read_text().replace("batch_s = 0.05", "batch_s = 0.0\nbatch_rows = 1")
    lakes.config_path.write_text(text)
    with monkeypatch.context() as patch:
        patch.setattr(LakeSink, "commit", commit_some)
        with pytest.raises(Killed):
            lakes.once()
    stored = lakes.lake.source_position("copy", shared_log="copy")
    assert stored is not None and any(table["groups_read"] for table in stored.state["position"]["tables"].values())
    transfer(lakes, 1, 5)
    state = lakes.once()
    assert state.is_consistent and lakes.differences("accounts") == lakes.differences("wallets") == []
    assert {total for is_whole, total in sums(lakes).values() if is_whole} == {10_000}


def test_a_restore_and_an_overwrite_of_the_source(lakes: TwoLakes) -> None:
    lakes.once()
    accounts = lakes.source.table("shop.accounts")
    slot = accounts.refresh().slot
    accounts.upsert(rows(range(40, 60), 1))
    lakes.once()
    accounts.restore(to=slot)
    lakes.once()
    assert lakes.differences("accounts") == []
    accounts.overwrite(rows(range(5), 3))
    lakes.once()
    assert lakes.differences("accounts") == [] and lakes.lake.table("copy.accounts").scan().count() == 5
    with lakes.source.transaction() as tx:
        tx["shop.accounts"].truncate()
        tx["shop.wallets"].upsert(rows([0], 9))
    lakes.once()
    assert lakes.lake.table("copy.accounts").scan().count() == 0 and lakes.differences("wallets") == []


def test_schemas_are_followed(lakes: TwoLakes) -> None:
    lakes.once()
    accounts = lakes.source.table("shop.accounts")
    accounts.alter.add_column("note", pa.string())
    accounts.alter.widen_column("n", pa.int64())
    wide = pa.table({"id": [1], "n": [2**40], "note": ["x"]})
    accounts.upsert(wide)
    lakes.once()
    assert lakes.differences("accounts") == []
    accounts.alter.add_column("kind", pa.string(), default="plain")
    lakes.once()
    assert lakes.differences("accounts") == []
    accounts.alter.rename_column("note", "remark")
    accounts.upsert(pa.table({"id": [2], "n": [1], "remark": ["y"], "kind": ["z"]}))
    lakes.once()
    assert lakes.differences("accounts") == []
    accounts.alter.drop_column("kind")
    accounts.upsert(pa.table({"id": [3], "n": [1], "remark": ["y"]}))
    lakes.once()
    assert lakes.differences("accounts") == []
    accounts.alter.add_column("kind", pa.string())
    lakes.once()
    assert lakes.differences("accounts") == []


def test_tables_that_join_go_and_are_replaced(lakes: TwoLakes) -> None:
    lakes.once()
    lakes.source.create_table("shop.items", SCHEMA, key=["id"], shared_log="shop")
    lakes.source.table("shop.items").upsert(rows(range(3), 1))
    lakes.source.create_table("shop.alone", SCHEMA, key=["id"])
    lakes.source.table("shop.alone").upsert(rows(range(4), 1))
    assert lakes.once().is_consistent
    assert lakes.differences("items") == lakes.differences("alone") == []
    lakes.source.drop_table("shop.items")
    assert lakes.once().tables["shop.items"].aside is not None
    lakes.source.create_table("shop.items", SCHEMA, key=["id"], shared_log="shop")
    lakes.source.table("shop.items").upsert(rows(range(10, 12), 1))
    lakes.source.drop_table("shop.alone")
    lakes.source.create_table("shop.alone", SCHEMA, key=["id"])
    lakes.source.table("shop.alone").upsert(rows(range(20, 22), 1))
    lakes.once()
    assert lakes.differences("items") == lakes.differences("alone") == []
    lakes.source.move_to_shared_log("shop.alone", shared_log="shop")
    lakes.source.table("shop.alone").upsert(rows([30], 1))
    assert lakes.once().is_consistent and lakes.differences("alone") == []


def test_a_table_without_a_key(lakes: TwoLakes) -> None:
    lakes.source.create_table("shop.log", SCHEMA, key=None)
    log = lakes.source.table("shop.log")
    log.insert(rows(range(5), 1))
    lakes.once()
    log.insert(rows(range(5, 8), 1))
    lakes.once()
    assert sorted(row["id"] for row in lakes.lake.table("copy.log").scan().to_arrow().to_pylist()) == list(range(8))
    log.delete("id = 3")
    state = lakes.once()
    assert "has no key" in str(state.tables["shop.log"].aside)
    add_request(lakes.lake, lakes.config(), "resnapshot", "shop.log")
    lakes.once()
    assert sorted(row["id"] for row in lakes.lake.table("copy.log").scan().to_arrow().to_pylist()) == [0, 1, 2, 4, 5, 6, 7]


def test_slots_that_were_cleaned_stop_the_run(lakes: TwoLakes) -> None:
    lakes.once()
    accounts = lakes.source.table("shop.accounts")
    for number in range(4):
        accounts.upsert(rows(range(50), number))
    accounts.maintenance.compact()
    accounts.maintenance.clean(keep_slots=1)
    with pytest.raises(PositionGone, match=r"resnapshot .* --all"):
        lakes.once()
    add_request(lakes.lake, lakes.config(), "resnapshot_all")
    lakes.once()
    assert lakes.differences("accounts") == lakes.differences("wallets") == []


def test_a_restore_of_the_copy_stops_the_run(lakes: TwoLakes) -> None:
    lakes.once()
    copy = lakes.lake.table("copy.accounts")
    slot = copy.refresh().slot
    lakes.source.table("shop.accounts").upsert(rows([1], 5))
    lakes.once()
    lakes.lake.table("copy.accounts").restore(to=slot)
    with pytest.raises(IngestStopped, match="RESTORE"):
        lakes.once()
    add_request(lakes.lake, lakes.config(), "resnapshot_all")
    lakes.once()
    assert lakes.differences("accounts") == []


def test_a_lake_that_follows_what_it_writes_is_refused(lakes: TwoLakes) -> None:
    text = lakes.config_path.read_text().replace(str(lakes.lake_path), str(lakes.source_path))
    lakes.config_path.write_text(text.replace('to = "copy.', 'to = "shop.new_'))
    with pytest.raises(SourceUnfit, match="also writes"):
        lakes.once()


def test_a_key_within_partitions_needs_a_key(lakes: TwoLakes) -> None:
    lakes.source.create_table("shop.parts", SCHEMA, key=["id"], partition_by=["n"], key_scope="partition")
    state = lakes.once()
    assert "unique within a partition" in str(state.tables["shop.parts"].aside)


def test_slots_between_a_renamed_column_and_its_read_are_not_consistent(lakes: TwoLakes) -> None:
    """The changes of the table in that range are passed over, so the slots do not hold whole transactions."""
    lakes.configure(settings="range_slots = 50", run="")
    lakes.once()
    for number in range(5):
        transfer(lakes, number, 10)
    lakes.source.table("shop.accounts").alter.add_column("kind", pa.string(), default="x")
    for number in range(5, 8):
        transfer(lakes, number, 10)
    text = lakes.config_path.read_text()
    lakes.config_path.write_text(text.replace("batch_s = 0.05", "batch_s = 0.0\nbatch_rows = 1"))
    state = lakes.once()
    assert state.is_consistent and lakes.differences("accounts") == lakes.differences("wallets") == []
    found = sums(lakes)
    assert {total for is_whole, total in found.values() if is_whole} == {10_000} and any(not whole for whole, _ in found.values())


def test_a_key_that_the_route_names_for_a_table_without_one(lakes: TwoLakes) -> None:
    lakes.configure(route='key = ["id"]')
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = lakes.source.create_table("shop.log", schema, key=None)
    table.insert(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}, schema=schema))
    lakes.once()
    # Without a key, the row is deleted and inserted in one slot.
    lakes.source.sql("UPDATE shop.log SET v = 'new' WHERE id = 2")
    lakes.source.sql("DELETE FROM shop.log WHERE id = 3")
    lakes.once()
    assert lakes.differences("log") == [] and lakes.lake.table("copy.log").scan().count() == 2


def test_a_run_ends_when_a_table_is_dropped_that_it_waits_for(lakes: TwoLakes) -> None:
    config = lakes.config()
    source = open_source(config, Router(config), default_env())
    position = source.begin([])
    target = source.head()
    lakes.source.drop_table("shop.wallets")
    for transaction in source.transactions(position):
        position = transaction.position
        if not transaction.changes:
            break
    source.close()
    assert list(target["tables"]) == ["shop.accounts", "shop.wallets"] and list(position["tables"]) == ["shop.accounts"]
    assert source.is_reached(position, target)


def test_a_column_that_a_restore_brings_back(lakes: TwoLakes) -> None:
    lakes.once()
    table = lakes.source.table("shop.accounts")
    slot = table.refresh().slot
    table.alter.drop_column("n")
    lakes.once()
    # The table is read again, and then the column is null in every row.
    table.alter.add_column("kind", pa.string(), default="x")
    lakes.once()
    table.restore(to=slot)
    assert lakes.once().is_consistent and lakes.differences("accounts") == []


WIDE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
POOLS: list[Any] = []
"""Memory that was measured. Arrow may hold parts of it later."""


def wide(ids: range) -> pa.Table:
    drawn = os.urandom(50 * len(ids)).hex()
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "text": [drawn[place : place + 100] for place in range(0, len(drawn), 100)]}, schema=WIDE
    )


def is_equal(lakes: TwoLakes, name: str) -> bool:
    there, here = (
        lake.table(f"{space}.{name}").scan().to_arrow().select(WIDE.names).sort_by("id")
        for lake, space in ((lakes.source, "shop"), (lakes.lake, "copy"))
    )
    return bool(there.equals(here))


def read_measured(table: Any, *, since: int, until: int, bytes_max: int) -> tuple[Any, int]:
    """The slots of a range, and the most bytes that Arrow had at once while they were read and then passed on."""
    before = pa.default_memory_pool()
    POOLS.append(pa.proxy_memory_pool(before))
    pa.set_memory_pool(POOLS[-1])
    try:
        slots = read_slots(
            {"big": (table, source_table("big", table.spec.table_schema, ("id",)))}, since=since, until=until, bytes_max=bytes_max
        )
        changes = [change for slot in slots for change in slot.changes if isinstance(change, RowBatch)]
        rows = sum(batch.num_rows for change in changes for batch in change.rows.to_batches())
        assert rows == sum(slot.count for slot in slots)
        return slots, POOLS[-1].max_memory()
    finally:
        pa.set_memory_pool(before)


def test_a_slot_that_is_larger_than_the_memory(lakes: TwoLakes) -> None:
    lakes.configure(run="transaction_bytes = 1048576")
    table = lakes.source.create_table("shop.big", WIDE, key=["id"], index=objcat.BucketIndex(32), shared_log="shop")
    lakes.once()
    before = table.refresh().slot
    with lakes.source.transaction() as tx:
        tx["shop.big"].upsert(wide(range(200_000)))
        tx["shop.accounts"].upsert(rows([1], 7))
    (slot,), peak = read_measured(table, since=before, until=table.refresh().slot, bytes_max=1 << 20)
    _, whole = read_measured(table, since=before, until=table.refresh().slot, bytes_max=1 << 40)
    assert slot.size_bytes > 20_000_000 and whole > slot.size_bytes
    assert peak < slot.size_bytes // 2, f"{peak:,} of {slot.size_bytes:,} bytes were in memory at once"
    lakes.once()
    assert is_equal(lakes, "big") and lakes.differences("accounts") == []
    copy = lakes.lake.table("copy.big")
    head = copy.refresh().slot
    assert {copy.scan(as_of=slot).count() for slot in range(head - 3, head + 1)} == {0, 200_000}
    # Deletes, updates and inserts of one slot.
    with lakes.source.transaction() as tx:
        tx["shop.big"].upsert(wide(range(100_000, 220_000)))
        tx["shop.big"].delete(pa.table({"id": pa.array(range(50_000), pa.int64())}))
    lakes.once()
    assert is_equal(lakes, "big") and copy.scan().count() == 170_000
