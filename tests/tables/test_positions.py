"""A transaction with the position of a source: rows and position are one commit, whoever else reads, writes, cleans, restores or erases."""

# ruff: noqa: PT012, SIM117  (a transaction is a block, and fails where it ends)

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Hit, Request
from fileio.write_outcomes import RetryPolicy
from objcat.errors import (
    CommitConflict,
    CommitUnknown,
    CorruptTable,
    InvalidInput,
    NotErased,
    PositionConflict,
    SnapshotExpired,
    StreamRewound,
    TablesInSeveralLogs,
)
from objcat.inspection.doctor import examine
from objcat.timeline.archive import archive
from objcat.timeline.entry import Action
from objcat.timeline.position import STATE_INLINE_BYTES_MAX

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
LARGE = "x" * STATE_INLINE_BYTES_MAX


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("positions")


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(7)))
    for name in ("orders", "lines"):
        create(lake, name)
    return lake


def create(lake: objcat.Lake, name: str, shared_log: str | None = "shop") -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), shared_log=shared_log)


def position(since: int, state: Mapping[str, Any] | None = None, source: str = "mysql", **more: Any) -> objcat.SourcePosition:
    return objcat.SourcePosition(source=source, state={"at": since + 1} if state is None else state, since=since, **more)


def row(key: int, value: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "value": value}]


def put(lake: objcat.Lake, own: objcat.SourcePosition, *keys: int, value: str = "a", table: str = "orders") -> objcat.CommitResult:
    with lake.transaction(shared_log="shop", position=own) as tx:
        for key in keys:
            tx[table].upsert(row(key, value))
    assert tx.result is not None
    return tx.result


def keys(lake: objcat.Lake, table: str = "orders") -> list[int]:
    return sorted(lake.table(table).scan().to_arrow().column("id").to_pylist())


def states(lake: objcat.Lake) -> list[str]:
    """The objects that hold states."""
    return sorted(key.rpartition("/")[2][:13] for key in lake.fileio.list_keys() if "/position.json-" in key)


def check(lake: objcat.Lake) -> None:
    report = examine(lake.table("orders")._context.timeline, deep=True)
    assert report.findings == []


class LostSlot:
    """The answer to the put of a slot is lost, and nobody can look at that slot afterwards."""

    def __init__(self, slot: int) -> None:
        self._key = f"log/{slot:020d}.json"
        self._is_put = False

    def choose(self, request: Request) -> Hit | None:
        if not request.key.endswith(self._key):
            return None
        if request.kind == "put":
            self._is_put = True
            return Hit(Fault.AFTER)
        return Hit(Fault.BEFORE) if self._is_put else None


# ---- the commit --------------------------------------------------------------------------------------------------


def test_rows_of_two_tables_and_the_position_are_one_slot(lake: objcat.Lake) -> None:
    assert lake.source_position("mysql", shared_log="shop") is None
    with lake.transaction(shared_log="shop", position=position(-1, {"gtid": "0-1-7"}), metadata={"job": "eu"}) as tx:
        tx["orders"].upsert(row(1))
        tx["lines"].insert(row(2))
    assert tx.result is not None
    found = lake.source_position("mysql", shared_log="SHOP")
    assert found == objcat.StoredPosition(
        source="mysql",
        version=0,
        state={"gtid": "0-1-7"},
        slot=tx.result.slot,
        txn=tx.result.txn,
        committed_at_ms=tx.result.committed_at_ms,
    )
    (entry,) = [entry for entry in lake.table("lines").inspect.history() if entry.slot == tx.result.slot]
    assert set(entry.changes) == {lake.table(name).id for name in ("orders", "lines")}
    assert (keys(lake), keys(lake, "lines")) == ([1], [2])
    check(lake)


def test_a_block_with_a_position_asks_for_no_more_than_one_without(lake: objcat.Lake) -> None:
    def cost(own: objcat.SourcePosition | None) -> dict[str, int]:
        before = lake.fileio.metrics.snapshot()
        with lake.transaction(shared_log="shop", position=own) as tx:
            tx["orders"].upsert(row(1))
        assert tx.result is not None
        asked = dict(tx.result.requests)
        asked["catalog"] = (lake.fileio.metrics.snapshot() - before).request_count
        return asked

    cost(None)
    without = cost(None)
    assert cost(position(-1)) == without
    assert cost(position(0, {"a": LARGE})) == {**without, "put_create": without["put_create"] + 1}
    assert cost(position(1, {})) == without


def test_a_block_without_changes_commits_the_position(lake: objcat.Lake) -> None:
    put(lake, position(-1), 1)
    with lake.transaction(shared_log="shop", position=position(0)) as tx:
        assert tx["orders"].scan().count() == 1
    assert tx.result is not None
    assert (tx.result.slot, tx.result.rows, tx.result.files, tx.result.already_applied) == (3, 0, 0, False)
    newest = lake.table("orders").inspect.history()[-1]
    assert (newest.slot, newest.action, newest.footprint, dict(newest.changes)) == (3, Action.COMMIT, {}, {})
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert (found.version, found.slot) == (1, 3)
    check(lake)


def test_a_block_that_fails_commits_nothing(lake: objcat.Lake) -> None:
    before = set(lake.fileio.list_keys())
    with pytest.raises(ValueError, match="mine"), lake.transaction(shared_log="shop", position=position(-1)) as tx:
        tx["orders"].upsert(row(1))
        raise ValueError("mine")
    assert tx.result is None
    assert set(lake.fileio.list_keys()) == before
    assert lake.source_position("mysql", shared_log="shop") is None


def test_each_source_of_a_log_has_its_own_and_other_logs_have_others(lake: objcat.Lake) -> None:
    create(lake, "elsewhere", "other")
    put(lake, position(-1, source="pg"), 1)
    put(lake, position(-1), 2)
    put(lake, position(0, {"a": LARGE}, source="pg"))
    assert [(one.source, one.version) for one in lake.source_positions(shared_log="shop")] == [("mysql", 0), ("pg", 1)]
    assert lake.source_positions(shared_log="other") == []
    assert lake.source_positions(shared_log="none") == []
    assert lake.source_position("pg", shared_log="other") is None
    pg = lake.source_position("pg", shared_log="shop")
    assert pg is not None
    assert pg.state == {"a": LARGE}


def test_what_does_not_fit_is_refused_before_the_block(lake: objcat.Lake) -> None:
    create(lake, "alone", None)
    with pytest.raises(InvalidInput, match="no shared log 'none'"), lake.transaction(shared_log="none", position=position(-1)):
        pytest.fail("the block has begun")
    with pytest.raises(InvalidInput, match="Give its name too"):
        lake.transaction(position=position(-1))
    with pytest.raises(InvalidInput, match="Give one of the two"):
        lake.transaction(shared_log="shop", position=position(-1), app=objcat.AppVersion(app="a", version=1))
    with pytest.raises(InvalidInput, match=r"SourcePosition\("):
        lake.transaction(shared_log="shop", position={"source": "mysql"})  # type: ignore[arg-type]
    with pytest.raises(TablesInSeveralLogs, match="The shared log 'shop' and the table 'alone'"):
        with lake.transaction(shared_log="shop", position=position(-1)) as tx:
            tx["alone"].upsert(row(1))
    assert lake.source_positions(shared_log="shop") == []


def test_a_block_may_name_its_log_without_a_position(lake: objcat.Lake) -> None:
    with lake.transaction(shared_log="shop") as tx:
        tx["orders"].upsert(row(1))
    assert keys(lake) == [1]
    with lake.transaction(shared_log="shop") as tx:
        pass
    assert tx.result is None


# ---- conflicts ---------------------------------------------------------------------------------------------------


def test_a_second_reader_is_refused_when_its_block_begins(lake: objcat.Lake) -> None:
    put(lake, position(-1), 1)
    with pytest.raises(PositionConflict), lake.transaction(shared_log="shop", position=position(-1)):
        pytest.fail("the block has begun")


def test_of_two_readers_in_their_blocks_the_second_to_end_is_refused_and_leaves_nothing(lake: objcat.Lake) -> None:
    with pytest.raises(PositionConflict) as refused, lake.transaction(shared_log="shop", position=position(-1, {"a": LARGE})) as slow:
        slow["orders"].upsert(row(2))
        put(lake, position(-1, {"of": "the first"}), 1)
        before = set(lake.fileio.list_keys())
    assert slow.result is None
    assert refused.value.version == 0
    assert set(lake.fileio.list_keys()) == before
    assert keys(lake) == [1]
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert found.state == {"of": "the first"}


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_other_commits_do_not_conflict_with_a_position(lake: objcat.Lake, isolation: Any) -> None:
    """Writers of the same file groups, services and other readers come in between, and the block has read nothing."""
    orders = lake.table("orders")
    with lake.transaction(shared_log="shop", position=position(-1), isolation=isolation) as tx:
        tx["orders"].upsert(row(1, "of the source"))
        orders.upsert(row(1, "of another"))
        orders.maintenance.compact()
        put(lake, position(-1, source="pg"), 3)
        orders.upsert(row(2))
    assert {one["id"]: one["value"] for one in orders.scan().to_arrow().to_pylist()} == {1: "of the source", 2: "a", 3: "a"}
    check(lake)


def test_a_position_does_not_hide_a_conflict_of_what_a_block_has_read(lake: objcat.Lake) -> None:
    with pytest.raises(CommitConflict) as refused:
        with lake.transaction(shared_log="shop", position=position(-1), isolation="serializable") as tx:
            tx["orders"].scan().count()
            lake.table("orders").upsert(row(1))
    assert not isinstance(refused.value, PositionConflict)
    assert lake.source_position("mysql", shared_log="shop") is None


def test_many_readers_and_a_writer_lose_nothing_and_count_nothing_twice() -> None:
    """Each reader takes the position, adds its rows to the sum in the state, and goes on from there when it is refused."""
    lake = objcat.Lake(FileIO(MemoryBackend("race")))
    create(lake, "orders")
    rounds, readers = 12, 3
    landed: list[tuple[int, int]] = []
    failures: list[BaseException] = []

    def read(number: int) -> None:
        try:
            for turn in range(rounds):
                known = lake.source_position("mysql", shared_log="shop")
                since, total = (-1, 0) if known is None else (known.version, known.state["rows"])
                own = [{"id": 1000 * number + 10 * turn + at, "value": "source"} for at in range(turn % 3 + 1)]
                try:
                    with lake.transaction(shared_log="shop", position=position(since, {"rows": total + len(own)})) as tx:
                        tx["orders"].upsert(own)
                except PositionConflict:
                    continue
                landed.append((since + 1, len(own)))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def write() -> None:
        try:
            for turn in range(rounds):
                lake.table("orders").upsert([{"id": -turn - 1, "value": "writer"}])
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)] + [threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert sorted(version for version, _ in landed) == list(range(found.version + 1))
    assert found.state["rows"] == sum(rows for _, rows in landed) == lake.table("orders").scan(where="value = 'source'").count()
    assert lake.table("orders").scan(where="value = 'writer'").count() == rounds
    check(lake)


def test_an_unknown_outcome_names_the_transaction_that_the_position_then_has(memory: MemoryBackend, lake: objcat.Lake) -> None:
    losing = objcat.Lake(FileIO(FaultyBackend(memory, LostSlot(2)), env=FakeEnv(9), policy=RetryPolicy(attempts_max=1)))
    with pytest.raises(CommitUnknown) as unknown:
        put(losing, position(-1), 1)
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert found.txn == unknown.value.txn
    assert isinstance(lake.table("orders").resolve(unknown.value.txn), objcat.CommittedAt)
    with pytest.raises(PositionConflict):
        put(lake, position(-1), 1)
    put(lake, position(0), 2)
    assert keys(lake) == [1, 2]


# ---- RESTORE, drop, undrop ---------------------------------------------------------------------------------------


def test_a_restore_refuses_the_next_commit_until_it_is_acknowledged(lake: objcat.Lake) -> None:
    put(lake, position(-1), 1)
    put(lake, position(0, {"a": LARGE}), 2, 3)
    restored = lake.table("orders").restore(to=2).slot
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert (found.version, found.rewound_at) == (1, restored)
    with pytest.raises(StreamRewound, match=f"resumed_after={restored}"):
        put(lake, position(1), 4)
    then = lake.source_position("mysql", shared_log="shop", as_of=2)
    assert then is not None
    assert (then.version, then.state, then.rewound_at) == (0, {"at": 0}, None)
    put(lake, position(1, then.state, resumed_after=restored), 2, 3)
    assert keys(lake) == [1, 2, 3]
    check(lake)


def test_dropping_tables_leaves_positions_and_an_undrop_marks_them(lake: objcat.Lake) -> None:
    put(lake, position(-1), 1)
    lake.drop_table("orders")
    put(lake, position(0), 5, table="lines")
    lake.undrop_table("orders")
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert found.rewound_at is not None, "it read on while the table was not there"
    put(lake, position(1, resumed_after=found.rewound_at), 2)
    lake.drop_table("orders")
    lake.purge_table("orders", older_than_s=0)
    lake.drop_table("lines")
    lake.purge_table("lines", older_than_s=0)
    create(lake, "lines")
    again = lake.source_position("mysql", shared_log="shop")
    assert again is not None
    assert (again.version, again.rewound_at) == (2, None)


# ---- what is stored ----------------------------------------------------------------------------------------------


def test_another_process_finds_the_position_from_a_checkpoint_and_after_archiving(memory: MemoryBackend, lake: objcat.Lake) -> None:
    for since in range(-1, 69):
        put(lake, position(since, {"at": since, "a": LARGE} if since % 2 else None), since % 5)
    timeline = lake.table("orders")._context.timeline
    assert archive(timeline, keep_slots=1).tombstones > 40
    fresh = objcat.Lake(FileIO(memory, env=FakeEnv(11)))
    before = fresh.fileio.metrics.snapshot()
    found = fresh.source_position("mysql", shared_log="shop")
    spent = fresh.fileio.metrics.snapshot() - before
    assert found is not None
    assert (found.version, found.slot, found.state["at"]) == (69, 71, 69)
    assert spent.request_count < 45
    early = fresh.source_position("mysql", shared_log="shop", as_of=2)
    assert early is not None
    assert early.version == 0
    check(lake)


def test_a_clean_of_any_table_removes_states_that_are_no_longer_the_newest(lake: objcat.Lake) -> None:
    for since in range(-1, 4):
        put(lake, position(since, {"a": LARGE, "at": since}), 1, table="orders" if since % 2 else "lines")
    put(lake, position(-1, {"b": LARGE}, source="pg"))
    assert len(states(lake)) == 6
    lines = lake.table("lines")
    lines.maintenance.compact()
    done = lines.maintenance.clean(before=4)
    assert done.bound == 4
    assert len(states(lake)) == 4
    with pytest.raises(SnapshotExpired, match="was cleaned"):
        lake.source_position("mysql", shared_log="shop", as_of=3)
    kept = lake.source_position("mysql", shared_log="shop", as_of=4)
    assert kept is not None
    assert kept.state["at"] == 1
    lake.table("orders").maintenance.clean(keep_slots=1)
    assert len(states(lake)) == 2
    lines.maintenance.clean(keep_slots=1)
    assert [one.state.get("at") for one in lake.source_positions(shared_log="shop")] == [3, None]
    put(lake, position(4), 1)
    check(lake)


def test_a_savepoint_of_any_table_keeps_the_state_of_its_slot_until_it_is_released(lake: objcat.Lake) -> None:
    for since in range(-1, 3):
        put(lake, position(since, {"a": LARGE, "at": since}), since)
    orders = lake.table("orders")
    assert orders.maintenance.savepoint(slot=3) is not None
    orders.maintenance.clean(keep_slots=1)
    found = lake.source_position("mysql", shared_log="shop", as_of=3)
    assert found is not None
    assert found.state["at"] == 0
    assert len(states(lake)) == 2
    orders.maintenance.release_savepoint(slot=3)
    orders.maintenance.clean(keep_slots=1)
    assert len(states(lake)) == 1
    check(lake)


def test_a_sweep_of_dead_writers_leaves_states(lake: objcat.Lake) -> None:
    put(lake, position(-1, {"a": LARGE}), 1)
    put(lake, position(0, {"a": LARGE}))
    lake.table("orders").maintenance.rollback_failed_writes(older_than_s=0)
    assert len(states(lake)) == 2
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert found.state == {"a": LARGE}


def test_the_doctor_finds_versions_that_do_not_count(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    put(lake, position(-1), 1)
    for module in ("timeline.commit", "table.transaction", "write.transaction"):
        monkeypatch.setattr(f"objcat.{module}.check_position", lambda own, known: None)
    put(lake, position(-1), 2)
    report = examine(lake.table("orders")._context.timeline)
    assert [(one.invariant, one.subject) for one in report.findings] == [("P5", "slot 3")]
    assert "brings version 0 of the position of 'mysql', and slot 2 has version 0" in report.findings[0].says


def test_the_doctor_finds_a_state_that_is_gone(lake: objcat.Lake) -> None:
    put(lake, position(-1, {"a": LARGE}), 1)
    timeline = lake.table("orders")._context.timeline
    (state,) = [key for key in timeline.fileio.list_keys() if "position.json-" in key]
    kept = timeline.fileio.read(state)
    timeline.fileio.delete([state])
    with pytest.raises(CorruptTable, match=r"position\.json-"):
        lake.source_position("mysql", shared_log="shop")
    report = examine(timeline)
    assert [(one.invariant, one.subject) for one in report.findings] == [("P7", "the position of 'mysql'")]
    timeline.fileio.put(state, kept)
    assert examine(timeline).healthy


# ---- erasure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_an_erasure_removes_earlier_states_of_every_source(lake: objcat.Lake, large: bool) -> None:
    more = {"a": LARGE} if large else {}
    put(lake, position(-1, {"chunk": ["ana-1234567", 7654321], **more}), 7654321, value="ana-1234567")
    put(lake, position(0, {"chunk": None, **more}), 2)
    put(lake, position(-1, {"who": "ana-1234567"}, source="pg"))
    put(lake, position(0, {}, source="pg"))
    lake.table("orders").erase("value = 'ana-1234567'", older_than_s=0)
    assert not [key for key in lake.fileio.list_keys() if b"ana-1234567" in lake.fileio.read(key)]
    assert len(states(lake)) == int(large)
    with pytest.raises(SnapshotExpired):
        lake.source_position("mysql", shared_log="shop", as_of=2)
    found = lake.source_position("mysql", shared_log="shop")
    assert found is not None
    assert found.state["chunk"] is None
    put(lake, position(1), 3)
    assert keys(lake) == [2, 3]
    check(lake)


@pytest.mark.parametrize("held", [["ana-1234567"], {"ana-1234567": 1}, 7654321, "7654321"])
@pytest.mark.parametrize("large", [False, True])
def test_an_erasure_names_the_source_whose_newest_state_holds_a_value(lake: objcat.Lake, large: bool, held: Any) -> None:
    more = {"a": LARGE} if large else {}
    put(lake, position(-1, {"chunk": held, **more}), 7654321, value="ana-1234567")
    orders = lake.table("orders")
    for _ in range(2):
        with pytest.raises(NotErased, match="newest position of 'mysql'"):
            orders.erase("value = 'ana-1234567'", older_than_s=0)
    put(lake, position(0, {"chunk": None, **more}))
    certificate = orders.erase("id = 7654321 or value = 'ana-1234567'", older_than_s=0)
    assert certificate.found == 0
    assert not [key for key in lake.fileio.list_keys() if b"ana-1234567" in lake.fileio.read(key)]
    check(lake)
