"""What writes do for the maintenance of their table, by its policy: in nobody's way, and for a cost that follows what changed."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.env import SystemEnv
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Fault, FaultyBackend, Request, Rule
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, SnapshotExpired
from objcat.maintenance.auto import AutoMaintenance
from objcat.timeline.entry import Action

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


class Counted:
    """A table on a store that counts GETs of the log; its clock goes six minutes between two writes."""

    def __init__(self, *, rules: list[Rule] | None = None, **properties: str) -> None:
        self.env = FakeEnv(7)
        self.gets = self.requests = 0
        backend = FaultyBackend(MemoryBackend(f"maintenance-{id(self)}", env=self.env), rules or [], before=self._before)
        self.lake = objcat.Lake(FileIO(backend, env=self.env))
        self.table = self.lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=properties)
        self.model: dict[int, int] = {}

    def _before(self, request: Request) -> None:
        self.requests += 1
        self.gets += request.kind == "get" and "/log/" in f"/{request.key}"

    def transact(self, times: int = 1) -> None:
        """As `write`, by transactions."""
        for _ in range(times):
            self.env.advance(360)
            number = len(self.actions())
            with self.lake.transaction() as transaction:
                transaction["t"].upsert([{"id": number % 7, "v": number}])
            assert transaction.result is not None
            self.model[number % 7] = number

    def write(self, times: int = 1) -> None:
        for _ in range(times):
            self.env.advance(360)
            number = len(self.actions())
            self.table.upsert([{"id": number % 7, "v": number}, {"id": 100 + number % 5, "v": number}])
            self.model |= {number % 7: number, 100 + number % 5: number}

    def actions(self) -> list[Action]:
        return [entry.action for entry in self.table._context.timeline.log.read_after(-1)]

    def check(self) -> None:
        assert {row["id"]: row["v"] for row in self.table.scan().to_arrow().to_pylist()} == self.model


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning is looked at more often than it pays, so that little has to be written."""
    for module in ("objcat.maintenance.clean", "objcat.maintenance.auto"):
        monkeypatch.setattr(import_module(module), "CLEANED_SLOTS_MIN", 8)


@pytest.mark.parametrize(
    "policy",
    [{"compact_after_commits": "6"}, {"compact_after_bytes": "8000"}, {"compact_after_s": "300"}, {"compact_after_log_percent": "300"}],
    ids=lambda policy: next(iter(policy)),
)
def test_a_write_compacts_when_it_is_time(policy: dict[str, Any]) -> None:
    counted = Counted(**policy)
    counted.write(3)
    assert Action.COMPACTION not in counted.actions()
    counted.write(20)
    compactions = counted.actions().count(Action.COMPACTION)
    assert 2 <= compactions <= 8
    assert counted.table.inspect.stats().log_objects <= 12
    counted.check()


def test_without_a_policy_nothing_is_compacted_and_nothing_young_is_cleaned() -> None:
    counted = Counted()
    counted.write(34)
    assert set(counted.actions()) == {Action.CREATE, Action.DELTA_COMMIT}
    counted.check()


@pytest.mark.parametrize("how", ["write", "transact"])
def test_a_compaction_by_policy_that_fails_fails_no_write(caplog: pytest.LogCaptureFixture, how: str) -> None:
    broken = Rule(kinds=frozenset({"put", "upload_start"}), key=_is_base_file, fault=Fault.BEFORE, times=10_000)
    counted = Counted(rules=[broken], compact_after_commits="2")
    with caplog.at_level(logging.WARNING, logger="objcat"):
        getattr(counted, how)(12)
    assert Action.COMPACTION not in counted.actions()
    assert "is left to later writers" in caplog.text
    counted.check()


@pytest.mark.parametrize("how", ["write", "transact"])
def test_a_write_that_nothing_is_due_after_asks_nothing_more(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, blind = Counted(), Counted()
    getattr(looking, how)(12)
    with monkeypatch.context() as patch:
        patch.setattr(AutoMaintenance, "after", lambda *_, **__: None)
        getattr(blind, how)(12)
    assert looking.requests == blind.requests


@pytest.mark.parametrize("how", ["write", "transact"])
def test_a_table_whose_writers_never_pass_the_slots_of_a_look_is_looked_after(how: str) -> None:
    """Two tables of one log are written by turns, this one in odd slots, each time by somebody who has just opened it."""
    env = FakeEnv(11)
    store = FileIO(MemoryBackend(f"maintenance-{how}", env=env), env=env)
    for name, properties in (("even", {}), ("odd", {"compact_after_commits": "3"})):
        objcat.Lake(store).create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(1), shared_log="d", properties=properties)
    actions: list[Action] = []
    for number in range(12):
        lake = objcat.Lake(store)
        name = ("even", "odd")[number % 2]
        if how == "write":
            slot = lake.table(name).upsert([{"id": number, "v": number}]).slot
        else:
            with lake.transaction() as transaction:
                transaction[name].upsert([{"id": number, "v": number}])
            assert transaction.result is not None
            slot = transaction.result.slot
        actions = [entry.action for entry in objcat.Lake(store).table("odd")._context.timeline.log.read_after(-1)]
        if Action.COMPACTION in actions:
            break
        assert slot % 2 == number % 2
    assert Action.COMPACTION in actions
    assert len(objcat.Lake(store).table("odd").scan().to_arrow()) == number // 2 + 1


def test_a_round_that_is_under_way_is_not_begun_again(tmp_path: Path) -> None:
    env = Holding()
    lake = objcat.connect(tmp_path, env=env)
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1), properties={"compact_after_commits": "2"})
    for number in range(12):
        table.upsert([{"id": number, "v": number}])
        with lake.transaction() as transaction:
            transaction["t"].upsert([{"id": 100 + number, "v": number}])
    assert len(env.held) == 1
    env.held.pop()()
    assert Action.COMPACTION in [entry.action for entry in table._context.timeline.log.read_after(-1)]
    for number in range(4):
        table.upsert([{"id": number, "v": number}])
    assert len(env.held) == 1


class Holding(SystemEnv):
    """Keeps maintenance until it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []

    def submit(self, function: Any, *, idle: bool = False) -> Any:
        if idle:
            self.held.append(function)
            return Future()
        return super().submit(function)


def _is_base_file(key: str) -> bool:
    return "/data/" in key and not key.endswith(".log.parquet")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("how", ["write", "transact"])
def test_writes_clean_what_the_policy_lets_go(how: str) -> None:
    counted = Counted(compact_after_commits="4", keep_commits="10")
    getattr(counted, how)(36)
    counted.check()
    bound = counted.table._context.timeline.open().log.marks(counted.table.id).bound
    newest = counted.table.refresh().slot
    commits = [slot for slot, action in enumerate(counted.actions()) if action is Action.DELTA_COMMIT]
    # The ten newest commits are readable for certain, and not more than a few times as many.
    assert bound <= commits[-10] and newest - bound < 40
    assert Action.CLEAN in counted.actions()
    for slot in (commits[-10], newest):
        counted.table.scan(as_of=slot).to_arrow()
    with pytest.raises(SnapshotExpired):
        counted.table.scan(as_of=5)


@pytest.mark.usefixtures("often")
def test_hours_are_those_of_the_log() -> None:
    counted = Counted(compact_after_commits="4", keep_hours="1")
    counted.write(40)
    bound = counted.table._context.timeline.open().log.marks(counted.table.id).bound
    entries = counted.table._context.timeline.log.read_after(-1)
    newest = entries[-1].committed_at_ms
    assert bound > 0 and entries[bound].committed_at_ms <= newest - 3_600_000
    assert newest - entries[bound].committed_at_ms < 4 * 3_600_000
    counted.check()


@pytest.mark.usefixtures("often")
def test_cleaning_can_be_left_to_others_and_savepoints_stay() -> None:
    left = Counted(compact_after_commits="4", keep_commits="5", auto_clean="false")
    left.write(24)
    assert Action.CLEAN not in left.actions()
    saving = Counted(compact_after_commits="4", keep_commits="5")
    saving.write(6)
    saved = saving.table.maintenance.savepoint()
    assert saved is not None
    before = saving.table.scan(as_of=saved.saved).to_arrow().sort_by("id")
    saving.write(24)
    assert Action.CLEAN in saving.actions()
    assert saving.table.scan(as_of=saved.saved).to_arrow().sort_by("id") == before
    saving.check()


@pytest.mark.parametrize(("keep", "writes"), [("10", 80), pytest.param("150", 600, marks=pytest.mark.tier("all"))])
def test_the_cost_of_cleaning_follows_what_changed(keep: str, writes: int) -> None:
    """However long the retention is, a write reads a few entries of the log on average: those that may expire, a few times."""
    cleaning, leaving = Counted(keep_commits=keep), Counted(auto_clean="false")
    for counted in (cleaning, leaving):
        for number in range(writes):
            counted.table.upsert([{"id": number % 3, "v": number}])
    assert (cleaning.gets - leaving.gets) / writes < 6


def test_clean_by_hand_takes_what_is_to_be_kept(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1), properties={"keep_versions": "1"})
    for number in range(12):
        table.upsert([{"id": 1, "v": number}])
        if number % 3 == 2:
            table.maintenance.compact()
    # Slots 1 to 16: a compaction at 4, 8, 12 and 16.
    assert table.maintenance.clean(keep_versions=2).bound == 12
    assert table.maintenance.clean(keep_commits=6, keep_versions=1).bound == 12
    assert table.maintenance.clean().bound >= 16
    assert table.maintenance.clean(keep_hours=1).slot is None or table.scan().to_arrow().num_rows == 1
    with pytest.raises(InvalidInput, match="keep_commits"):
        table.maintenance.clean(keep_slots=1, keep_commits=1)
    with pytest.raises(InvalidInput, match="keep_hours"):
        table.maintenance.clean(keep_hours=0)


def test_buckets_double_when_they_are_large() -> None:
    counted = Counted(split_above_bytes="2000", compact_after_commits="4")
    for number in range(24):
        counted.env.advance(60)
        rows = [{"id": 1000 * number + one, "v": one} for one in range(200)]
        counted.table.upsert(rows)
        counted.model |= {row["id"]: row["v"] for row in rows}
    splits = [entry for entry in counted.table._context.timeline.log.read_after(-1) if entry.action is Action.REPLACE]
    assert len(splits) >= 2 and all(entry.summary is None or entry.summary.bytes == 0 for entry in splits)
    counted.check()
    assert counted.table.inspect.stats().groups >= 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_commits", "0"),
        ("keep_hours", "a week"),
        ("auto_clean", "no"),
        ("split_above_bytes", "-1"),
        ("compact_after_s", "1.5"),
        ("compact_order", "oldest"),
        ("compact_plan_only", "yes"),
        ("compact_partitions_newest", "0"),
        ("compact_log_count_min", "-1"),
        ("compact_after_log_percent", "30 %"),
        ("target_log_bytes", "12"),
        ("target_log_bytes", "1e9"),
    ],
)
def test_values_that_a_policy_does_not_take(tmp_path: Path, name: str, value: str) -> None:
    lake = objcat.connect(tmp_path)
    with pytest.raises(InvalidInput, match=name):
        lake.create_table("t", SCHEMA, key=["id"], properties={name: value})
    table: Any = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidInput, match=name):
        table.set_properties({name: value})


def test_a_policy_takes_the_newest_partitions_or_all_others(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id", "v"], partition_by=["v"], properties={"compact_partitions_newest": "2"})
    with pytest.raises(InvalidInput, match="compact_partitions_newest and compact_partitions_older exclude each other"):
        table.set_properties({"compact_partitions_older": "2"})
    with pytest.raises(InvalidInput, match=r"exclude each other.*Unset one of them"):
        lake.create_table("u", SCHEMA, key=["id"], properties={"compact_partitions_newest": "2", "compact_partitions_older": "2"})
    lake.sql("ALTER TABLE t UNSET TBLPROPERTIES ('compact_partitions_newest')")
    lake.sql("ALTER TABLE t SET TBLPROPERTIES ('compact_partitions_older' = '2', 'compact_order' = 'newest')")
    table.refresh()
    assert table.properties == {"compact_partitions_older": "2", "compact_order": "newest"}
    with pytest.raises(InvalidInput, match="compact_order"):
        lake.sql("ALTER TABLE t SET TBLPROPERTIES ('compact_order' = 'backwards')")


@pytest.mark.parametrize("how", ["write", "maintain"])
def test_what_a_policy_does_not_take_makes_nothing_due(how: str) -> None:
    """Of ten days the two newest are compacted by the policy, however much waits in the others."""
    counted = Counted()
    lake = counted.lake
    properties = {"compact_after_commits": "3", "compact_partitions_newest": "2", "compact_log_count_min": "2"}
    table = lake.create_table(
        "p", SCHEMA, key=["id", "v"], partition_by=["v"], index=objcat.BucketIndex(1, columns=("id",)), properties=properties
    )
    for turn in range(9):
        # The newest day is the last one by number, which is not the last by its text.
        table.upsert([{"id": turn, "v": day} for day in range(2, 11)])
    if how == "maintain":
        lake.table("p").maintenance.run()
    entries = table._context.timeline.log.read_after(-1)
    taken = {
        group_id.partition for entry in entries if entry.action is Action.COMPACTION for group_id in entry.footprint[table.id].replaces
    }
    assert taken == {"v=9", "v=10"}
    unmerged = {
        row["partition"] for row in table.inspect.partitions().to_pylist() if row["groups_unmerged"] and row["partition"] not in taken
    }
    assert unmerged == {f"v={day}" for day in range(2, 9)}
    assert table.scan().count() == 81
    # What only the others wait for is not due.
    before = len(entries)
    for turn in range(9, 17):
        table.upsert([{"id": turn, "v": day} for day in range(2, 8)])
    assert [entry.action for entry in table._context.timeline.log.read_after(before - 1)] == [Action.DELTA_COMMIT] * 8


def test_a_policy_may_only_plan_and_another_job_executes() -> None:
    counted = Counted(compact_after_commits="4", compact_plan_only="true")
    counted.write(12)
    assert Action.COMPACTION not in counted.actions()
    # One plan waits, however many writes found a compaction due.
    (plan,) = counted.table.maintenance.scheduled_compactions()
    assert plan.file_groups
    (executed,) = counted.lake.table("t").maintenance.execute_scheduled()
    assert executed.result is not None and executed.result.as_of == plan.slot and counted.table.maintenance.scheduled_compactions() == []
    assert counted.actions().count(Action.COMPACTION) == 1
    counted.check()
    counted.write(8)
    (later,) = counted.table.maintenance.scheduled_compactions()
    assert later.txn != plan.txn
    done = counted.lake.table("t").maintenance.run()
    assert "execute" in [step.service for step in done.did] and counted.table.maintenance.scheduled_compactions() == []
    counted.check()


def test_log_rows_in_percent_of_their_base_files() -> None:
    counted = Counted(compact_after_log_percent="50")
    rows = [{"id": number, "v": number} for number in range(20_000)]
    counted.table.insert(rows)
    counted.model |= {row["id"]: row["v"] for row in rows}
    counted.write(12)
    assert Action.COMPACTION not in counted.actions(), "a few rows beside twenty thousand"
    counted.table.set_properties({"compact_after_log_percent": "1"})
    counted.write(8)
    assert Action.COMPACTION in counted.actions()
    counted.check()


@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.SimpleIndex()], ids=repr)
def test_log_files_are_as_large_as_the_table_says(tmp_path: Path, index: Any) -> None:
    rows = pa.table({"id": range(4_000), "v": range(4_000)}, schema=SCHEMA)
    counts = []
    for number, properties in enumerate([{}, {"target_log_bytes": str(16 * 1024)}]):
        table = objcat.connect(tmp_path).create_table(f"t{number}", SCHEMA, key=["id"], index=index, properties=properties)
        table.insert(rows)
        before = table.inspect.stats().log_objects
        table.upsert(rows)
        counts.append(table.inspect.stats().log_objects - before)
        assert table.scan().to_arrow().sort_by("id") == rows
    assert counts[0] == 1 and 3 <= counts[1] <= 5


@pytest.mark.parametrize(("kind", "bounded"), [("merge_on_read", True), ("copy_on_write", False)])
def test_writes_merge_a_record_index_that_has_grown(kind: TableType, bounded: bool) -> None:
    """A compaction within a bound of bytes leaves it out, and a copy-on-write table has no other."""
    env = FakeEnv(5)
    policy = {"compact_after_commits": "4", **({"compact_io_bytes_max": "1000000"} if bounded else {})}
    table = objcat.Lake(FileIO(MemoryBackend(f"maintenance-index-{kind}", env=env), env=env)).create_table(
        "t", SCHEMA, key=["id"], index=objcat.RecordIndex(1), table_type=kind, properties=policy
    )
    for number in range(12):
        table.upsert([{"id": number, "v": number}])
    index = table.refresh().index
    assert index is not None
    assert sum(len(group.logs) for group in index.file_groups(table._context.manifests)) < 8
    assert {row["id"] for row in table.scan().to_arrow().to_pylist()} == set(range(12))
