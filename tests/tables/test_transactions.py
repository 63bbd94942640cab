"""Several tables, one slot: all of it or nothing, one snapshot for what is read, and who wins when two meet."""

# ruff: noqa: PT012  (a transaction is a block, and fails where it ends)

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.common.validation import IsolationName, TableType
from objcat.errors import (
    CommitConflict,
    CommitUnknown,
    InvalidBatch,
    InvalidInput,
    ObjcatError,
    TableClosed,
    TableNotFound,
    TablesInSeveralLogs,
)
from objcat.metadata.files import decode_delta
from objcat.timeline.entry import Action

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
KINDS = ["merge_on_read", "copy_on_write"]


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("transactions")


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(memory, env=FakeEnv(7)))


def create(lake: objcat.Lake, name: str, **settings: Any) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), **({"shared_log": "sales"} | settings))


def rows_of(table: Any) -> dict[int, str]:
    rows = table.scan().to_arrow().to_pylist()
    found = {row["id"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def row(key: int, value: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "value": value}]


# ---- one slot ----------------------------------------------------------------------------------------------------


def test_several_tables_change_in_one_slot(lake: objcat.Lake) -> None:
    a, b = create(lake, "a"), create(lake, "b", table_type="copy_on_write")
    b.upsert(row(1, "old"))
    with lake.transaction(metadata={"job": "night"}) as tx:
        tx["a"].upsert(row(1, "new"))
        tx["b"].delete(row(1))
        tx["B"].insert(row(2, "new"))
    assert tx.result is not None
    (entry,) = [entry for entry in b.inspect.history() if entry.slot == tx.result.slot]
    assert set(entry.changes) == {a.id, b.id}
    assert entry.txn == tx.result.txn
    assert entry.metadata == {"job": "night"}
    assert (rows_of(a), rows_of(b)) == ({1: "new"}, {2: "new"})
    assert tx.result.rows == 3
    kept = {
        path for entry in (*a.inspect.history(), *b.inspect.history()) for raw in entry.changes.values() for path in decode_delta(raw).paths
    }
    assert set(a._context.fileio.list_keys("data/")) == kept, (
        "files that a later batch of the block replaced are gone, and so is nothing else"
    )
    assert list(a._context.fileio.list_keys("intents/")) == []


def test_a_block_that_writes_nothing_commits_nothing(lake: objcat.Lake) -> None:
    a = create(lake, "a")
    with lake.transaction(isolation="serializable") as tx:
        assert rows_of(tx["a"]) == {}
    assert tx.result is None
    with lake.transaction():
        pass
    assert len(a.inspect.history()) == 1


@pytest.mark.parametrize("failure", [ValueError, Crash])
def test_an_exception_in_the_block_leaves_nothing(lake: objcat.Lake, failure: type[BaseException]) -> None:
    a, b = create(lake, "a"), create(lake, "b")
    before = set(lake.fileio.list_keys())
    with pytest.raises(failure), lake.transaction() as tx:
        tx["a"].upsert(row(1))
        tx["b"].upsert(row(1))
        raise failure
    assert tx.result is None
    assert set(lake.fileio.list_keys()) == before
    assert (rows_of(a), rows_of(b)) == ({}, {})


def test_a_batch_that_fails_when_the_block_ends_leaves_nothing(lake: objcat.Lake) -> None:
    a = create(lake, "a")
    create(lake, "b")
    before = set(lake.fileio.list_keys())
    with pytest.raises(InvalidBatch), lake.transaction() as tx:
        tx["a"].upsert(row(1))
        tx["b"].upsert([{"id": None, "value": "x"}, {"id": 1, "value": "y"}])
    assert set(lake.fileio.list_keys()) == before
    assert rows_of(a) == {}


def test_tables_of_two_domains_are_refused_before_anything_is_written(lake: objcat.Lake) -> None:
    create(lake, "a")
    create(lake, "alone", shared_log=None)
    before = set(lake.fileio.list_keys())
    with pytest.raises(TablesInSeveralLogs, match="The table 'a' and the table 'alone' have separate logs"), lake.transaction() as tx:
        tx["a"].upsert(row(1))
        tx["alone"].upsert(row(1))
    assert set(lake.fileio.list_keys()) == before


def test_wrong_use_is_one_sentence(lake: objcat.Lake) -> None:
    create(lake, "a")
    with pytest.raises(InvalidInput, match="did you mean 'serializable'"):
        lake.transaction(isolation="serialisable")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not text"):
        lake.transaction(metadata={"a": 1})  # type: ignore[dict-item]
    idle = lake.transaction()
    with pytest.raises(InvalidInput, match="not open"):
        idle["a"]
    with pytest.raises(TableNotFound, match="did you mean 'a'"), lake.transaction() as tx:
        tx["aa"]
    with lake.transaction() as tx:
        kept = tx["a"]
        with pytest.raises(InvalidBatch, match="did you mean 'value'"):
            kept.upsert([{"id": 1, "valeu": "x"}])
    for attempt in (lambda: kept.upsert(row(1)), kept.scan, lambda: tx["a"], tx.__enter__):
        with pytest.raises(InvalidInput, match=r"ended|not open|one block"):
            attempt()


def test_a_table_alone_in_its_log_has_transactions_too(lake: objcat.Lake) -> None:
    alone = create(lake, "alone", shared_log=None)
    with lake.transaction() as tx:
        tx["alone"].upsert(row(1))
        tx["alone"].upsert(row(2))
    assert rows_of(alone) == {1: "a", 2: "a"}
    assert len(alone.inspect.history()) == 2


# ---- order inside of a transaction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filled", [False, True])
def test_batches_to_one_table_keep_their_order(lake: objcat.Lake, kind: TableType, filled: bool) -> None:
    table, twin = create(lake, "a", table_type=kind), create(lake, "twin", table_type=kind)
    if filled:
        for each in (table, twin):
            each.upsert([{"id": key, "value": "old"} for key in range(1, 7)])
    steps: list[tuple[str, Any]] = [
        ("upsert", [*row(1, "u1"), *row(2, "u1"), *row(3, "u1")]),
        ("insert", [*row(2, "i2"), *row(4, "i2"), *row(5, "i2")]),
        ("delete", [*row(3), *row(4)]),
        ("insert", [*row(3, "i3")]),
        ("upsert", [*row(5, "u4")]),
        ("delete", [*row(1)]),
    ]
    with lake.transaction() as tx:
        for name, batch in steps:
            getattr(tx["a"], name)(batch)
    for name, batch in steps:
        getattr(twin, name)(batch)
    assert rows_of(table) == rows_of(twin)
    assert rows_of(table) == ({6: "old"} if filled else {}) | {2: "i2", 3: "i3", 5: "u4"}
    # What follows in later slots lies on top.
    table.upsert(row(3, "later"))
    assert rows_of(table)[3] == "later"


ORDERED = SCHEMA.append(pa.field("at", pa.int64()))


def ordered(key: int, value: str, at: int) -> list[dict[str, Any]]:
    return [{"id": key, "value": value, "at": at}]


@pytest.mark.parametrize("kind", KINDS)
def test_where_a_column_decides_the_greater_value_wins_inside_a_transaction_too(lake: objcat.Lake, kind: TableType) -> None:
    table = lake.create_table("o", ORDERED, key=["id"], ordering="at", index=objcat.BucketIndex(2), table_type=kind)
    with lake.transaction() as tx:
        tx["o"].upsert(ordered(1, "newer", 9))
        tx["o"].upsert(ordered(1, "older", 3))
        tx["o"].upsert(ordered(2, "gone", 3))
        tx["o"].delete([{"id": 2, "at": 5}])
        tx["o"].upsert(ordered(2, "late", 4))
    assert rows_of(table) == {1: "newer"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [objcat.BucketIndex(1), objcat.RecordIndex()])
@pytest.mark.parametrize("first", ["delete", "write"])
def test_a_delete_without_a_value_ends_what_came_before_it_and_nothing_after(
    lake: objcat.Lake, kind: TableType, index: Any, first: str
) -> None:
    table = lake.create_table("o", ORDERED, key=["id"], ordering="at", index=index, table_type=kind)
    table.upsert(ordered(1, "old", 9))
    steps: list[Callable[[Any], None]] = [lambda t: t.delete([{"id": 1}, {"id": 7}]), lambda t: t.upsert(ordered(1, "new", 2))]
    with lake.transaction() as tx:
        for step in steps if first == "delete" else reversed(steps):
            step(tx["o"])
        tx["o"].upsert(ordered(2, "new", 2))
    assert rows_of(table) == ({1: "new", 2: "new"} if first == "delete" else {2: "new"})
    table.maintenance.compact()
    assert rows_of(table) == ({1: "new", 2: "new"} if first == "delete" else {2: "new"})


# ---- isolation ---------------------------------------------------------------------------------------------------


def test_reads_see_one_snapshot_and_not_the_block_itself(lake: objcat.Lake) -> None:
    a, b = create(lake, "a"), create(lake, "b")
    a.upsert(row(1, "before"))
    with lake.transaction() as tx:
        assert rows_of(tx["a"]) == {1: "before"}
        a.upsert(row(1, "meanwhile"))
        b.upsert(row(1, "meanwhile"))
        tx["a"].upsert(row(2, "mine"))
        assert rows_of(tx["a"]) == {1: "before"}
        assert rows_of(tx["b"]) == {}
    assert rows_of(a) == {1: "meanwhile", 2: "mine"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_what_was_computed_from_rows_that_changed_is_refused(lake: objcat.Lake, kind: TableType, isolation: IsolationName) -> None:
    table = create(lake, "a", table_type=kind)
    table.upsert(row(1, "0"))
    with pytest.raises(CommitConflict) as caught, lake.transaction(isolation=isolation) as tx:
        count = int(rows_of(tx["a"])[1])
        table.upsert(row(1, "1"))
        tx["a"].upsert(row(1, str(count + 1)))
    assert caught.value.winner_slot == 2
    assert rows_of(table) == {1: "1"}


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_two_that_read_what_the_other_writes_are_refused_where_that_was_asked_for(lake: objcat.Lake, isolation: IsolationName) -> None:
    on_call, log = create(lake, "on_call"), create(lake, "log")
    on_call.upsert(row(1))
    refused = pytest.raises(CommitConflict, match="read rows") if isolation == "serializable" else contextlib.nullcontext()
    with refused, lake.transaction(isolation=isolation) as tx:
        assert rows_of(tx["on_call"]) == {1: "a"}
        on_call.delete(row(1))
        tx["log"].upsert(row(1, "somebody is on call"))
    assert list(rows_of(log)) == ([1] if isolation == "snapshot" else [])


@pytest.mark.parametrize("kind", KINDS)
def test_blind_writes_are_redone_and_not_refused(memory: MemoryBackend, kind: TableType) -> None:
    setup = objcat.Lake(FileIO(memory))
    theirs = [create(setup, "a", table_type=kind), create(setup, "b", table_type=kind)]
    races = [lambda: [table.insert([*row(1, "theirs"), *row(2, "theirs")]) for table in theirs]]

    def race(request: Request) -> None:
        if races and request.kind == "put" and request.key.startswith("tables/") and "/log/" in request.key:
            races.pop()()

    lake = objcat.Lake(FileIO(FaultyBackend(memory, before=race)))
    with lake.transaction() as tx:
        tx["a"].insert([*row(2, "mine"), *row(3, "mine")])
        tx["b"].insert(row(2, "mine"))
        tx["b"].upsert(row(1, "mine"))
    assert tx.result is not None
    assert tx.result.attempts > 1
    assert rows_of(theirs[0]) == {1: "theirs", 2: "mine", 3: "mine"}
    assert rows_of(theirs[1]) == {1: "mine", 2: "mine"}
    assert {entry.txn for entry in theirs[0].inspect.history() if entry.slot == tx.result.slot} == {tx.result.txn}


def test_a_table_that_was_dropped_meanwhile_takes_the_whole_transaction_down(lake: objcat.Lake) -> None:
    a = create(lake, "a")
    create(lake, "b")
    with pytest.raises((TableClosed, CommitConflict)), lake.transaction() as tx:
        tx["a"].upsert(row(1))
        tx["b"].upsert(row(1))
        lake.drop_table("b")
    with pytest.raises((TableClosed, CommitConflict)), lake.transaction() as tx:
        rows_of(tx["a"])
        tx["a"].upsert(row(1))
        lake.drop_table("a")
    assert rows_of(lake.undrop_table("a")) == rows_of(lake.undrop_table("b")) == {}
    assert [entry.action for entry in a.inspect.history()].count(Action.DELTA_COMMIT) == 0


def test_a_renamed_table_is_still_the_table(lake: objcat.Lake) -> None:
    create(lake, "a")
    with lake.transaction() as tx:
        tx["a"].upsert(row(1))
        lake.rename_table("a", "moved")
    assert rows_of(lake.table("moved")) == {1: "a"}


def test_a_transaction_of_an_application_counts_once(lake: objcat.Lake) -> None:
    a, b = create(lake, "a"), create(lake, "b")
    slots = []
    for value in ("first", "again"):
        with lake.transaction(app=objcat.AppVersion(app="stream", version=1)) as tx:
            tx["a"].upsert(row(1, value))
            tx["b"].upsert(row(1, value))
        assert tx.result is not None
        slots.append((tx.result.slot, tx.result.already_applied))
    assert slots == [(2, False), (2, True)]
    assert (rows_of(a), rows_of(b)) == ({1: "first"}, {1: "first"})


def test_transfers_between_tables_conserve_the_sum(memory: MemoryBackend) -> None:
    """Threads move units from one table to the other, each by reading and writing both; nothing is lost, nothing doubled."""
    lake = objcat.Lake(FileIO(memory))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("units", pa.int64())])
    tables = [lake.create_table(name, schema, key=["id"], index=objcat.BucketIndex(1), shared_log="bank") for name in ("left", "right")]
    for table in tables:
        table.upsert([{"id": 1, "units": 100}])
    done: list[int] = []

    def move(amount: int) -> None:
        own = objcat.Lake(lake.fileio)
        for _ in range(200):
            try:
                with own.transaction() as tx:
                    left, right = (tx[name].scan().to_arrow().to_pylist()[0]["units"] for name in ("left", "right"))
                    tx["left"].upsert([{"id": 1, "units": left - amount}])
                    tx["right"].upsert([{"id": 1, "units": right + amount}])
            except CommitConflict:
                continue
            done.append(amount)
            return

    threads = [threading.Thread(target=move, args=(amount,)) for amount in (1, 2, 4, 8, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [1, 2, 4, 8, 16]
    assert [table.scan().to_arrow().to_pylist() for table in tables] == [[{"id": 1, "units": 69}], [{"id": 1, "units": 131}]]


# ---- faults ------------------------------------------------------------------------------------------------------


def test_what_a_transaction_asks_of_the_store(memory: MemoryBackend) -> None:
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
    create(lake, "a")
    create(lake, "b")
    with lake.transaction() as tx:
        tx["a"].upsert(row(1))
        tx["b"].upsert(row(1))
    assert tx.result is not None
    # Two log objects and the slot; the look at the base slot.
    assert tx.result.requests == {"get": 1, "put_create": 3}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.AFTER, Fault.BEFORE, Fault.THROTTLE])
def test_a_fault_at_any_request_leaves_both_tables_changed_or_none(fault: Fault) -> None:
    hits = 0
    for nth in range(1, 40):
        memory = MemoryBackend("faults")
        clean = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
        tables = [create(clean, "a"), create(clean, "b", table_type="copy_on_write")]
        for table in tables:
            table.upsert(row(1, "old"))
        kinds = frozenset({"put", "get", "head", "list", "delete"}) if fault is not Fault.AFTER else frozenset({"put", "delete"})
        backend = FaultyBackend(memory, [Rule(fault=fault, kinds=kinds, nth=nth)])  # type: ignore[arg-type]
        lake = objcat.Lake(FileIO(backend, env=FakeEnv(2), policy=RetryPolicy(attempts_max=3)))
        outcome = "acknowledged"
        try:
            with lake.transaction() as tx:
                tx["a"].upsert(row(1, "new"))
                tx["b"].upsert(row(1, "new"))
        except (CommitUnknown, Crash):
            outcome = "unknown"
        except (ObjcatError, FileIOError):
            outcome = "failed"
        found = [rows_of(clean.table(name))[1] for name in ("a", "b")]
        allowed = {"acknowledged": ["new"], "failed": ["old"]}.get(outcome, ["old", "new"])
        assert found in [[value, value] for value in allowed], (fault, nth, outcome)
        hits += bool(backend.fired)
        if not backend.fired:
            break
    assert hits >= 3, "two files and the slot at least"
