"""Intents, heartbeats and plans are advice; tidying up after the dead deletes only what the log lets go."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.contract import Buffer, ByteRange, Create, GetResult, NotModified, PutMode, PutOutcome, Version
from fileio.env import SystemEnv
from fileio.memory import MEMORY_CAPABILITIES, MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.common.validation import TableType
from objcat.engine.local import LocalEngine
from objcat.errors import AlreadyDone, CommitUnknown, InvalidInput, SharedTransaction, WriterFenced
from objcat.inspection.doctor import examine
from objcat.tasks.model import Operation
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, Txn, intent_key, new_txn
from objcat.timeline.intents import ANNOUNCED_AFTER_S, HEARTBEAT_S, Intent, decode_intent, pending_plans, request
from objcat.timeline.log_state import LogState
from objcat.timeline.rollback import resolve
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import CommitResult, commit_write
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])


class SlowEnv(FakeEnv):
    """Whatever is to be called again and again is called for the first time at once: all that is done here takes long."""

    def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
        function()
        return super().repeat(function, every_s, first_s=first_s)


def rows(*keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "value": "a"} for key in keys]


def keys(table: objcat.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())


def create(backend: MemoryBackend, env: FakeEnv | None = None, *, kind: TableType = "merge_on_read") -> objcat.Table:
    lake = objcat.Lake(FileIO(backend, env=env or FakeEnv()))
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, index=objcat.BucketIndex(2))


def intent_of(table: objcat.Table, txn: str) -> Intent:
    return decode_intent(table._context.fileio.read(intent_key(Txn(txn))), key=intent_key(Txn(txn)))


# ---- under way


def test_a_heartbeat_says_that_the_writer_lives_until_it_is_done() -> None:
    env = FakeEnv()
    table = create(MemoryBackend("heart"), env)
    committer = Committer(table._context.fileio)
    txn = new_txn(env)
    committer.announce(txn, Action.DELTA_COMMIT, table._context.timeline.open().log, engine="test").result()
    (beat,) = env.repeated
    first = intent_of(table, txn)
    for number in (1, 2):
        env.advance(HEARTBEAT_S)
        beat()
        assert intent_of(table, txn).beats == number
    assert intent_of(table, txn).heartbeat_ms == first.heartbeat_ms + int(2 * HEARTBEAT_S * 1000)
    assert intent_of(table, txn).requested_at_ms == first.requested_at_ms
    committer.delete_intent(txn).result()
    assert env.repeated == []
    beat()
    assert not table._context.fileio.exists(intent_key(txn)), "a late heartbeat put the intent again"


def test_a_heartbeat_survives_a_store_that_does_not_answer() -> None:
    env = FakeEnv()
    memory = MemoryBackend("deaf")
    create(memory, env)
    rules = [Rule(kinds=frozenset({"put"}), key=lambda key: "intents/" in key, fault=Fault.BEFORE, nth=2, times=3)]
    lake = objcat.Lake(FileIO(FaultyBackend(memory, rules), env=env))
    table = lake.table("t")
    committer = Committer(table._context.fileio)
    txn = new_txn(env)
    committer.announce(txn, Action.DELTA_COMMIT, table._context.timeline.open().log, engine="test").result()
    (beat,) = env.repeated
    beat()
    beat()
    assert intent_of(table, txn).beats >= 1
    committer.delete_intent(txn).result()


def test_a_writer_is_heard_while_it_runs_and_no_longer() -> None:
    """With real threads: the heart beats beside the work."""

    class Fast(SystemEnv):
        def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
            assert first_s == every_s == HEARTBEAT_S
            return super().repeat(function, 0.01)

    fileio = FileIO(MemoryBackend("threads"), env=Fast())
    committer = Committer(fileio)
    txn = new_txn(fileio.env)
    committer.announce(txn, Action.COMMIT, LogState(), engine="test").result()
    while decode_intent(fileio.read(intent_key(txn)), key=intent_key(txn)).beats < 3:
        pass
    committer.delete_intent(txn).result()
    assert not fileio.exists(intent_key(txn))


def test_a_write_that_is_over_soon_leaves_no_trace_but_its_data_and_its_slot() -> None:
    env = FakeEnv()
    table = create(MemoryBackend("soon"), env)
    table.upsert(rows(1))
    before = table._context.fileio.metrics.snapshot()
    result = table.upsert(rows(2))
    assert (table._context.fileio.metrics.snapshot() - before).requests == result.requests == {"get": 1, "put_create": 2}
    assert env.repeated == []


def test_a_write_that_takes_long_is_announced_and_heard_until_it_is_over() -> None:
    env = SlowEnv()
    backend = RacingBackend("long", env=env)
    table = create(backend, env)
    seen: list[Intent] = []

    def look() -> None:
        (key,) = table._context.fileio.list_keys("intents/")
        (beat,) = env.repeated
        beat()
        seen.append(intent_of(table, key.removeprefix("intents/").partition(".")[0]))

    backend.races = [look]
    result = table.upsert(rows(1))
    (intent,) = seen
    assert (intent.txn, intent.action, intent.base, intent.beats) == (result.txn, Action.DELTA_COMMIT, 0, 1)
    assert env.repeated == [] and not list(table._context.fileio.list_keys("intents/"))


def test_a_heart_that_is_stopped_before_its_time_announces_nothing() -> None:
    env = FakeEnv()
    table = create(MemoryBackend("stopped"), env)
    committer, txn = Committer(table._context.fileio), new_txn(env)
    committer.announce_if_slow(txn, Action.DELTA_COMMIT, LogState(slot=0), engine="test")
    (late,) = env.repeated
    before = table._context.fileio.metrics.snapshot()
    committer.delete_intent(txn).result()
    late()
    assert (table._context.fileio.metrics.snapshot() - before).requests == {}


def test_an_intent_whose_put_is_under_way_when_its_writer_ends_goes_all_the_same() -> None:
    """With real threads: the writer does not wait for the put, and whoever deletes does."""

    class Held(MemoryBackend):
        arrived, released = threading.Event(), threading.Event()

        def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
            if "intents/" in key:
                self.arrived.set()
                assert self.released.wait(60)
            return super().put(key, data, mode, metadata)

    class Hasty(SystemEnv):
        def repeat(self, function: Callable[[], None], every_s: float, *, first_s: float | None = None) -> Callable[[], None]:
            assert first_s == ANNOUNCED_AFTER_S
            return super().repeat(function, every_s, first_s=0)

    backend = Held("held")
    fileio = FileIO(backend, env=Hasty())
    committer, txn = Committer(fileio), new_txn(fileio.env)
    committer.announce_if_slow(txn, Action.COMMIT, LogState(slot=0), engine="test")
    assert backend.arrived.wait(60)
    gone = committer.delete_intent(txn)
    assert not gone.done()
    backend.released.set()
    gone.result()
    assert not fileio.exists(intent_key(txn))


def test_an_intent_that_cannot_be_put_does_not_fail_a_write_and_is_tried_again() -> None:
    memory = MemoryBackend("refused")
    create(memory)
    rules = [Rule(kinds=frozenset({"put"}), key=lambda key: "intents/" in key, fault=Fault.THROTTLE, times=2)]
    env = SlowEnv(3)
    backend = FaultyBackend(memory, rules)
    table = objcat.Lake(FileIO(backend, env=env, policy=RetryPolicy(attempts_max=2))).table("t")
    committer, txn = Committer(table._context.fileio), new_txn(env)
    committer.announce_if_slow(txn, Action.DELTA_COMMIT, LogState(slot=0), engine="test")
    assert not table._context.fileio.exists(intent_key(txn))
    (beat,) = env.repeated
    beat()
    assert intent_of(table, txn).beats == 0
    committer.delete_intent(txn).result()
    assert not table._context.fileio.exists(intent_key(txn))
    assert table.upsert(rows(1)).slot == 1


@pytest.mark.parametrize("failing", [1, 2], ids=["the look whose it is fails", "the look when it landed fails"])
def test_an_intent_whose_put_was_in_doubt_is_taken_for_the_own_one_that_it_is(failing: int) -> None:
    store = FakeEnv()
    memory = MemoryBackend("doubt", env=store, capabilities=replace(MEMORY_CAPABILITIES, store_clock=True))
    create(memory, store)
    rules = [
        Rule(kinds=frozenset({"put"}), key=lambda key: "intents/" in key, fault=Fault.AFTER),
        Rule(kinds=frozenset({"head"}), key=lambda key: "intents/" in key, fault=Fault.BEFORE, nth=failing),
    ]
    env = FakeEnv(10)
    backend = FaultyBackend(memory, rules)
    table = objcat.Lake(FileIO(backend, env=env, policy=RetryPolicy(attempts_max=1))).table("t")
    committer, txn = Committer(table._context.fileio), new_txn(env)
    committer.announce_if_slow(txn, Action.DELTA_COMMIT, LogState(slot=0), engine="test")
    (beat,) = env.repeated
    for _ in range(3):
        beat()
    assert len(backend.fired) == 2
    assert intent_of(table, txn).beats == 1
    committer.delete_intent(txn).result()
    assert not table._context.fileio.exists(intent_key(txn))


def test_a_commit_that_nobody_knows_of_leaves_an_intent_whether_it_has_files_or_not() -> None:
    memory = MemoryBackend("unknown", env=FakeEnv())
    create(memory, kind="copy_on_write")
    for number, files in enumerate([1, 0]):
        rules = [Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in key, fault=Fault.BEFORE, times=99)]
        fileio = FileIO(FaultyBackend(memory, rules), env=FakeEnv(20 + number), policy=RetryPolicy(attempts_max=1))
        table = objcat.Lake(fileio).table("t")
        with pytest.raises(CommitUnknown) as caught:
            table.upsert(rows(1)) if files else table.delete([{"id": 1}])
        assert intent_of(table, caught.value.txn).base == table.refresh().slot
        assert len(list(table._context.fileio.list_keys("data/"))) == files
        (swept,) = later(memory, 3601).maintenance.rollback_failed_writes()
        assert swept.txn == caught.value.txn and isinstance(swept.outcome, objcat.RolledBackAt)


def test_who_is_rolled_back_before_it_reads_what_it_has_written_is_told_that_and_not_that_the_table_is_corrupt() -> None:
    """Rows without a key are written as files of their own first, and those that fill a file group are read again."""
    memory = MemoryBackend("read again", env=FakeEnv())
    table = objcat.Lake(FileIO(memory, env=FakeEnv())).create_table("t", SCHEMA, key=None, table_type="copy_on_write")
    table.insert(rows(1))
    swept: list[Any] = []

    def sweep(request: Request) -> None:
        if request.kind == "put" and "/data/" in request.key and not swept:
            swept.extend(table.maintenance.rollback_failed_writes(older_than_s=0))

    writer = objcat.Lake(FileIO(FaultyBackend(memory, after=sweep), env=FakeEnv(9))).table("t")
    with pytest.raises(WriterFenced, match="was rolled back at slot 2"):
        writer.insert(rows(2))
    assert [one.txn for one in swept] == [table.inspect.history()[-1].rollback_of]
    assert keys(table) == [1] and examine(table._context.timeline).findings == []


class HandledBackend(MemoryBackend):
    """A signal comes while an object is put, and its handler raises an error of its own: before the object is there, or after."""

    at: str | None = None
    after = False

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        if self.at is None or self.at not in f"/{key}":
            return super().put(key, data, mode, metadata)
        self.at = None
        if self.after:
            super().put(key, data, mode, metadata)
        raise TimeoutError("the time that a handler allows is over")


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("after", [False, True])
def test_an_error_from_outside_while_a_slot_is_asked_for_does_not_take_the_files_of_a_commit(kind: TableType, after: bool) -> None:
    backend = HandledBackend("handled", env=FakeEnv())
    table = create(backend, kind=kind)
    backend.at, backend.after = "/log/", after
    with pytest.raises(CommitUnknown, match="TimeoutError: the time that a handler allows") as caught:
        table.upsert(rows(1))
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert keys(table) == ([1] if after else [])
    assert intent_of(table, caught.value.txn).base == 0
    assert table.resolve(caught.value.txn) == (objcat.CommittedAt(1) if after else objcat.RolledBackAt(1, 1))
    assert keys(table) == ([1] if after else [])


COMPUTED: Mapping[str, Callable[[objcat.Table], Any]] = {
    "overwrite": lambda table: table.overwrite(rows(2)),
    "update": lambda table: table.update({"value": "'new'"}),
    "delete": lambda table: table.delete("id = 1"),
    "compact": lambda table: table.maintenance.compact(),
}


@pytest.mark.parametrize("write", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.parametrize("after", [False, True])
def test_a_write_that_computes_its_rows_and_a_service_say_so_too(write: Callable[[objcat.Table], Any], after: bool) -> None:
    backend = HandledBackend("handled and computed", env=FakeEnv())
    table = create(backend)
    table.upsert(rows(1))
    backend.at, backend.after = "/log/", after
    with pytest.raises(CommitUnknown, match="TimeoutError: the time that a handler allows") as caught:
        write(table)
    assert intent_of(table, caught.value.txn).base == 1
    assert table.resolve(caught.value.txn) == (objcat.CommittedAt(2) if after else objcat.RolledBackAt(2, 1))
    assert examine(table._context.timeline).findings == []


def test_an_error_from_outside_before_a_slot_is_asked_for_leaves_nothing() -> None:
    backend = HandledBackend("handled early", env=FakeEnv())
    table = create(backend)
    backend.at, backend.after = "/data/", True
    with pytest.raises(TimeoutError):
        table.upsert(rows(1))
    assert table.refresh().slot == 0
    assert not list(table._context.fileio.list_keys("data/")) and not list(table._context.fileio.list_keys("intents/"))


def test_of_two_operations_that_draw_one_id_only_one_takes_itself_for_committed() -> None:
    """What both write lies below one prefix: so the loser deletes nothing either."""
    backend = RacingBackend("shared", env=FakeEnv())
    first = create(backend)
    second = objcat.Lake(FileIO(backend, env=FakeEnv(8))).table("t")
    txn = new_txn(FakeEnv(5))

    def write(table: objcat.Table, *ids: int) -> CommitResult:
        part = TableWriter(
            table._context.fileio,
            table._context.manifests,
            table.id,
            [WriteBatch(LocalEngine(table._context.fileio), pa.Table.from_pylist(rows(*ids), SCHEMA), Operation.UPSERT)],
        )
        view = table._context.timeline.open()
        return commit_write(table._context.timeline, Committer(table._context.fileio), [part], view, metadata={}, txn=txn)[0]

    backend.races = [lambda: write(first, 1)]
    with pytest.raises(SharedTransaction, match="Slot 1 belongs to another operation"):
        write(second, 2)
    assert keys(first) == keys(later(backend, 0)) == [1]
    assert not list(first._context.fileio.list_keys("intents/"))


def test_a_service_whose_id_is_announced_already_deletes_nothing_that_may_be_another_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(MemoryBackend("announced"))
    table.upsert(rows(1))
    txn = new_txn(FakeEnv(5))
    others = [intent_key(txn), f"data/{txn}/local-0-0.log.parquet"]
    for key in others:
        table._context.fileio.put(key, b"of another", Create())
    monkeypatch.setattr("objcat.write.service_commit.new_txn", lambda _: txn)
    with pytest.raises(SharedTransaction, match="exists already"):
        table.maintenance.compact()
    assert all(table._context.fileio.exists(key) for key in others)
    assert table.refresh().slot == 1


# ---- planned


def plan_of(table: objcat.Table) -> Txn:
    plan = {table.id: msgspec.Raw(b'{"homes":[0]}')}
    return request(table._context.fileio, Action.COMPACTION, table.refresh().slot, engine="scheduler", plan=plan)


def execute(table: objcat.Table, plan: Intent, *, committer: Committer | None = None) -> int:
    """What a worker does with a plan, as far as the log is concerned."""
    committer = committer or Committer(table._context.fileio)
    view = table._context.timeline.at(plan.base)
    txn = new_txn(table._context.fileio.env)
    committer.announce(txn, plan.action, view.log, engine="worker", plan_of=plan.txn).result()
    try:
        candidate = CommitAttempt(txn=txn, action=plan.action, base=view.log, changes={}, footprint={table.id: Footprint()}, plan=plan.txn)
        return committer.commit(candidate).entry.slot
    finally:
        committer.delete_intent(txn, plan=plan.txn).result()


def test_a_plan_waits_until_somebody_executes_it() -> None:
    table = create(MemoryBackend("plan"))
    txn = plan_of(table)
    table.upsert(rows(1))
    (plan,) = pending_plans(table._context.fileio)
    assert (plan.txn, plan.base, plan.action, plan.engine) == (txn, 0, Action.COMPACTION, "scheduler")
    assert msgspec.json.decode(plan.plan[table.id]) == {"homes": [0]}
    slot = execute(table, plan)
    assert table.inspect.history()[slot].plan == txn
    assert pending_plans(table._context.fileio) == []
    assert not list(table._context.fileio.list_keys("intents/"))


def test_of_two_executors_of_a_plan_one_wins_whenever_the_other_comes() -> None:
    table = create(MemoryBackend("two"))
    plan_of(table)
    (plan,) = pending_plans(table._context.fileio)
    slot = execute(table, plan)
    table.upsert(rows(1))
    with pytest.raises(AlreadyDone) as caught:
        execute(table, plan)
    assert caught.value.winner_slot == slot


def test_a_plan_that_was_rolled_back_fences_whoever_executes_it() -> None:
    table = create(MemoryBackend("fenced"))
    txn = plan_of(table)
    (plan,) = pending_plans(table._context.fileio)
    assert isinstance(table.resolve(txn), objcat.RolledBackAt)
    with pytest.raises(WriterFenced, match="Plan again"):
        execute(table, plan)


# ---- left behind


@pytest.fixture
def memory() -> MemoryBackend:
    """A store whose objects are as old as a `FakeEnv` of that age says."""
    return MemoryBackend("dead", env=FakeEnv())


def die(memory: MemoryBackend, at: str, *, after: bool = False, slow: bool = False) -> None:
    """A writer whose process ends at a put. slow: it had been at work for long enough to be announced."""
    rule = Rule(kinds=frozenset({"put"}), key=lambda key: at in key, fault=Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE)
    lake = objcat.Lake(FileIO(FaultyBackend(memory, [rule]), env=SlowEnv(9) if slow else FakeEnv(9)))
    with pytest.raises(Crash):
        lake.table("t").upsert(rows(66))


def later(memory: MemoryBackend, seconds: float) -> objcat.Table:
    """The table as somebody sees it after a while."""
    env = FakeEnv(77, now_ms=FakeEnv().now_ms() + int(seconds * 1000))
    return objcat.Lake(FileIO(memory, env=env)).table("t")


@pytest.mark.parametrize("slow", [False, True])
def test_the_dead_are_rolled_back_and_nothing_of_them_stays(memory: MemoryBackend, slow: bool) -> None:
    table = create(memory)
    table.upsert(rows(1))
    die(memory, "/log/", slow=slow)
    assert len(list(table._context.fileio.list_keys("intents/"))) == slow
    left = set(table._context.fileio.list_keys("data/"))
    (swept,) = table.maintenance.rollback_failed_writes(older_than_s=0)
    assert isinstance(swept.outcome, objcat.RolledBackAt)
    assert swept.files == 1
    assert {key for key in left if swept.txn in key}.isdisjoint(table._context.fileio.list_keys("data/"))
    assert not list(table._context.fileio.list_keys("intents/"))
    assert table.inspect.history()[-1].rollback_of == swept.txn
    assert keys(table) == [1]
    assert table.maintenance.rollback_failed_writes(older_than_s=0) == []


@pytest.mark.parametrize("slow", [False, True])
def test_who_hears_of_a_dead_transaction_settles_it_by_its_id(memory: MemoryBackend, slow: bool) -> None:
    table = create(memory)
    die(memory, "/log/", slow=slow)
    (path,) = table._context.fileio.list_keys("data/")
    txn = path.split("/")[1]
    report = examine(table._context.timeline)
    assert report.healthy
    (finding,) = report.findings
    assert finding.subject == f"data/{txn}/" and "holds 1 objects of a transaction that is not in the log" in finding.says
    assert ("its intent is there" in finding.says) == slow
    assert table.resolve(txn) == objcat.RolledBackAt(1, 1)
    assert not list(table._context.fileio.list_keys("data/")) and not list(table._context.fileio.list_keys("intents/"))
    assert not examine(table._context.timeline).findings


def test_a_round_of_maintenance_finds_the_dead_whether_they_had_an_intent_or_not(memory: MemoryBackend) -> None:
    table = create(memory)
    table.upsert(rows(1))
    for slow, key in ((False, "/data/"), (False, "/log/"), (True, "/log/")):
        die(memory, key, after=key == "/data/", slow=slow)
        found = [
            [step.why for step in later(memory, after_s).maintenance.run().did if step.service == "rollback"]
            for after_s in (3500, 3700, 3700)
        ]
        assert found == [[], ["1 transactions of dead writers were rolled back"], []]
    assert keys(later(memory, 3700)) == [1]


def test_a_writer_that_died_after_its_slot_is_committed(memory: MemoryBackend) -> None:
    table = create(memory)
    die(memory, "/log/", after=True, slow=True)
    (swept,) = table.maintenance.rollback_failed_writes(older_than_s=0)
    assert (swept.outcome, swept.files) == (objcat.CommittedAt(1), 0)
    assert not list(table._context.fileio.list_keys("intents/"))
    assert keys(table) == [66]


def test_files_without_an_intent_are_found_too(memory: MemoryBackend) -> None:
    table = create(memory)
    die(memory, "/data/", after=True)
    txn = new_txn(FakeEnv(5))
    table._context.fileio.put(f"data/{txn}/local-0-0.log.parquet", b"rows", Create())
    swept = table.maintenance.rollback_failed_writes(older_than_s=0)
    assert txn in {one.txn for one in swept}
    assert not list(table._context.fileio.list_keys("data/"))


def test_of_a_committed_transaction_only_unnamed_files_go(memory: MemoryBackend) -> None:
    table = create(memory, kind="copy_on_write")
    result = table.insert(rows(*range(50)))
    named = set(table._context.fileio.list_keys("data/"))
    # What a task left that was repeated, as Spark does.
    table._context.fileio.put(f"data/{result.txn}/00000000-feed-beef_00000.parquet", b"rows", Create())
    (swept,) = table.maintenance.rollback_failed_writes(older_than_s=0)
    assert (swept.txn, swept.outcome, swept.files) == (result.txn, objcat.CommittedAt(1), 1)
    assert set(table._context.fileio.list_keys("data/")) == named
    assert len(keys(table)) == 50


def test_changes_beside_the_log_are_named_too(memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.timeline.side_objects.INLINE_BYTES_MAX", 10)
    table = create(memory)
    table.upsert(rows(1, 2, 3))
    assert table.inspect.history()[1].side is not None
    assert table.maintenance.rollback_failed_writes(older_than_s=0) == []
    assert keys(later(memory, 0)) == [1, 2, 3]


def test_who_was_heard_of_lately_is_left_alone(memory: MemoryBackend) -> None:
    table = create(memory)
    die(memory, "/log/", slow=True)
    assert table.maintenance.rollback_failed_writes() == []
    assert later(memory, 3590).maintenance.rollback_failed_writes() == []
    assert list(table._context.fileio.list_keys("intents/"))
    assert len(later(memory, 3610).maintenance.rollback_failed_writes()) == 1
    with pytest.raises(InvalidInput, match=r"is not a time span\. Give seconds"):
        table.maintenance.rollback_failed_writes(older_than_s=-1)


def test_a_slow_writer_that_was_taken_for_dead_is_fenced() -> None:
    backend = RacingBackend("slow", env=FakeEnv())
    table = create(backend)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(8))).table("t")
    backend.races = [lambda: other.maintenance.rollback_failed_writes(older_than_s=0)]
    with pytest.raises(WriterFenced):
        table.upsert(rows(1))
    assert keys(other) == []
    table.upsert(rows(2))
    assert keys(other) == [2]


def test_plans_stay_until_they_are_settled(memory: MemoryBackend) -> None:
    table = create(memory)
    waiting, fenced = plan_of(table), plan_of(table)
    resolve(table._context.fileio, fenced)
    table.maintenance.rollback_failed_writes(older_than_s=0)
    assert [plan.txn for plan in pending_plans(table._context.fileio)] == [waiting]


def test_the_plan_of_an_executor_that_died_goes_with_it(memory: MemoryBackend) -> None:
    table = create(memory)
    plan_of(table)
    (plan,) = pending_plans(table._context.fileio)

    class Dies(Committer):
        def delete_intent(self, txn: Txn, *, plan: Txn | None = None) -> Any:
            raise Crash

    with pytest.raises(Crash):
        execute(table, plan, committer=Dies(table._context.fileio))
    table.maintenance.rollback_failed_writes(older_than_s=0)
    assert pending_plans(table._context.fileio) == []


# ---- clocks


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_wrong_shows_nowhere_where_the_store_has_one(hours: int, caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 1_800_000_000_000
    store = FakeEnv(now_ms=now_ms)
    backend = MemoryBackend("clocked", env=store, capabilities=replace(MEMORY_CAPABILITIES, store_clock=True))
    table = create(backend, FakeEnv(1, now_ms=now_ms))
    env = FakeEnv(2, now_ms=now_ms + hours * 3_600_000)
    with caplog.at_level(logging.WARNING, "objcat.timeline"):
        wrong = objcat.Lake(FileIO(backend, env=env)).table("t")
        wrong.upsert(rows(1))
    assert "Correct the local clock" in caplog.text
    table.upsert(rows(2))
    times = [entry.committed_at_ms for entry in table.inspect.history()]
    assert times == sorted(set(times))
    assert max(times) < now_ms + 60_000


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("reads_tell", [False, True])
@pytest.mark.parametrize("data", ["written here", "its answer is lost", "written by others", "none"])
def test_the_first_commit_of_a_handle_has_the_time_of_the_store_whoever_writes_its_data(
    data: str, reads_tell: bool, slow: bool, hours: int
) -> None:
    """The answers to the data and to the look at the slot below tell what time it is; else that to the intent, put for its sake."""

    class Clocked(MemoryBackend):
        def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
            result = super().get(key, byte_range, if_none_match)
            return replace(result, store_time_ms=store.now_ms()) if reads_tell and isinstance(result, GetResult) else result

    store = FakeEnv(now_ms=1_800_000_000_000)
    backend = Clocked("clocked", env=store, capabilities=replace(MEMORY_CAPABILITIES, store_clock=True))
    create(backend, FakeEnv(1, now_ms=store.now_ms()), kind="copy_on_write")
    store.advance(600)
    env = (SlowEnv if slow else FakeEnv)(2, now_ms=store.now_ms() + hours * 3_600_000)
    lost = [Rule(kinds=frozenset({"put"}), key=lambda key: "/data/" in key, fault=Fault.AFTER)] if data == "its answer is lost" else []
    table = objcat.Lake(FileIO(FaultyBackend(backend, lost), env=env)).table("t")
    others = objcat.Lake(FileIO(backend, env=env)).table("t")._context.fileio
    engine = LocalEngine(others if data == "written by others" else table._context.fileio)
    operation = Operation.DELETE if data == "none" else Operation.UPSERT
    part = TableWriter(
        table._context.fileio, table._context.manifests, table.id, [WriteBatch(engine, pa.Table.from_pylist(rows(1), SCHEMA), operation)]
    )
    result, _ = commit_write(table._context.timeline, Committer(table._context.fileio), [part], table._context.timeline.open(), metadata={})
    assert abs(result.committed_at_ms - store.now_ms()) <= 1000
    tries = {"written here": 1, "its answer is lost": 2}.get(data, 0)
    assert result.requests["put_create"] == (slow or not (data == "written here" or reads_tell)) + tries + 1
    assert not list(table._context.fileio.list_keys("intents/"))


@pytest.mark.parametrize("minutes", [-60, -6])
def test_without_a_clock_in_the_store_one_that_is_behind_adds_a_millisecond(memory: MemoryBackend, minutes: int) -> None:
    env = FakeEnv(1)
    table = create(memory, env)
    behind = objcat.Lake(FileIO(memory, env=FakeEnv(2, now_ms=env.now_ms() + minutes * 60_000))).table("t")
    slot = behind.upsert(rows(1)).slot
    before, after = table.inspect.history()[slot - 1 : slot + 1]
    assert after.committed_at_ms == before.committed_at_ms + 1


def test_without_a_clock_in_the_store_one_that_is_ahead_is_recorded_and_the_others_follow(memory: MemoryBackend) -> None:
    env = FakeEnv(1)
    table = create(memory, env)
    ahead = objcat.Lake(FileIO(memory, env=FakeEnv(2, now_ms=env.now_ms() + 3_600_000))).table("t")
    ahead_ms = ahead.upsert(rows(1)).committed_at_ms
    assert ahead_ms >= env.now_ms() + 3_600_000
    assert table.upsert(rows(2)).committed_at_ms == ahead_ms + 1
    when = dt.datetime.fromtimestamp(ahead_ms / 1000, dt.UTC)
    assert table.scan(as_of=when).to_arrow().num_rows == 1
