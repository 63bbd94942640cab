"""Attempts to lose a row or to get an acknowledgement that is not true: every fault at every request, and a model beside the table."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import objcat
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import APPLICABLE, Crash, Fault, FaultyBackend, Hit, Request
from fileio.write_outcomes import RetryPolicy
from objcat.datafile import parquet
from objcat.engine import local
from objcat.errors import CommitUnknown, InvalidBatch, InvalidInput, InvalidPredicate, NullKey, ObjcatError, TableNotFound
from objcat.tasks import write_base_files, write_log_rows
from objcat.tasks.model import WriteResult, WriteTask
from tests.effort import effort

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
BEFORE = {1: "old", 2: "old"}
AFTER = {1: "new", 2: "old", 3: "new"}
BATCH = [{"id": 1, "value": "new"}, {"id": 3, "value": "new"}]


def lake_on(backend: Any, seed: int) -> objcat.Lake:
    return objcat.Lake(FileIO(backend, env=FakeEnv(seed), policy=RetryPolicy(attempts_max=3)))


def rows_of(table: objcat.Table, **scan: Any) -> dict[Any, Any]:
    rows = table.scan(**scan).to_arrow().to_pylist()
    found = {row["id"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


# ---- every fault at every request ----------------------------------------------------------------------------------

FAULTS = sorted(set(Fault) - {Fault.IGNORE_CONDITION}, key=lambda fault: fault.value)
"""All but a store that lies about conditions, which is refused when a table is created."""


@dataclass
class Strike:
    """Hits request `first` and, unless `last` is equal, those up to `last`, with a fault where they can suffer it."""

    fault: Fault
    first: int
    last: int
    hits: int = 0

    def choose(self, request: Request) -> Hit | None:
        if not self.first <= request.number <= self.last or self.fault not in APPLICABLE[request.kind]:
            return None
        self.hits += 1
        return Hit(self.fault)


@dataclass(frozen=True)
class Case:
    """An operation on a table. before, after: the rows that a reader may find; None: there is no table."""

    run: Callable[[objcat.Lake, objcat.Table | None], Any]
    before: dict[int, str] | None
    after: dict[int, str] | None


CASES = {
    "upsert": Case(lambda _, table: table.upsert(BATCH), BEFORE, AFTER),  # type: ignore[union-attr]
    "insert": Case(lambda _, table: table.insert(BATCH), BEFORE, AFTER),  # type: ignore[union-attr]
    "delete": Case(lambda _, table: table.delete([{"id": 1}]), BEFORE, {2: "old"}),  # type: ignore[union-attr]
    "open and upsert": Case(lambda lake, _: lake.table("t").upsert(BATCH), BEFORE, AFTER),
    "create": Case(lambda lake, _: lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2)), None, {}),
}


def state(lake: objcat.Lake) -> dict[int, str] | None:
    try:
        return rows_of(lake.table("t"))
    except TableNotFound:
        return None


def data_files(backend: MemoryBackend) -> set[str]:
    return {key for key in FileIO(backend).list_keys() if "/data/" in key}


def strike(case: Case, fault: Fault, first: int, last: int, *, rival: bool) -> bool:
    """One run; whether the fault hit anything. rival: another writer takes the next slot first."""
    memory = MemoryBackend("struck")
    clean = lake_on(memory, 1)
    if case.before is not None:
        clean.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2)).insert(
            [{"id": k, "value": v} for k, v in case.before.items()]
        )
    script = Strike(fault, 0, -1)
    backend = FaultyBackend(memory, script)
    shaky = lake_on(backend, 2)
    table = None if case.before is None else shaky.table("t")
    if rival:
        clean.table("t").upsert([{"id": 100, "value": "rival"}])
    extra = {100: "rival"} if rival else {}
    before = None if case.before is None else case.before | extra
    after = None if case.after is None else case.after | extra
    present = data_files(memory)
    asked = sum(backend.asked.values())
    script.first, script.last = asked + first, asked + last
    outcome = "acknowledged"
    try:
        case.run(shaky, table)
    except CommitUnknown:
        outcome = "unknown"
    except Crash:
        outcome = "crashed"
    except (ObjcatError, FileIOError):
        outcome = "failed"
    if not script.hits:
        return False
    allowed = {"acknowledged": [after], "failed": [before]}.get(outcome, [before, after])
    found: dict[int, str] | None = None
    for _ in range(2):
        found = state(clean)
        assert found in allowed, (fault, first, outcome, found)
        # An answer that is still under way may leave a file behind, and where everything fails nothing can be removed.
        if outcome == "failed" and first == last and fault is not Fault.LATER:
            assert data_files(memory) == present, (fault, first, "files stay")
        allowed = [found] if outcome != "unknown" else allowed
        backend.release()
    if found is not None:
        clean.table("t").upsert([{"id": 50, "value": "next"}])
        assert state(clean) == found | {50: "next"}
        assert [entry.slot for entry in clean.table("t").inspect.history()] == list(range(len(clean.table("t").inspect.history())))
    return True


LASTING = [Fault.AFTER, Fault.BEFORE, Fault.LATER, Fault.THROTTLE]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("faults", "lasting", "rival"),
    [(FAULTS, False, False), (LASTING, True, False), (LASTING, False, True)],
    ids=["once", "from then on", "beside a rival"],
)
def test_a_fault_at_any_request_neither_loses_nor_doubles(name: str, faults: list[Fault], lasting: bool, rival: bool) -> None:
    case = CASES[name]
    hits = 0
    for fault in faults:
        missed = 0
        for first in range(1, 100):
            struck = strike(case, fault, first, 10_000 if lasting else first, rival=rival and case.before is not None)
            hits += struck
            missed = 0 if struck else missed + 1
            if missed > 5:
                break
    assert hits > 10


# ---- what may never reach the log ----------------------------------------------------------------------------------


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("breaking")))


@pytest.mark.parametrize("metadata", [{"batch": 7}, {7: "batch"}, {"batch": None}, {"batch": "\ud800"}])
def test_metadata_that_is_not_text_does_not_make_the_table_unreadable(lake: objcat.Lake, metadata: Any) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidInput, match="metadata holds"):
        table.upsert(BATCH, metadata=metadata)
    assert rows_of(lake.table("t")) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"properties": {"owner": 7}}, "properties holds"),
        ({"index": objcat.BucketIndex(4.0)}, "whole number"),  # type: ignore[arg-type]
        ({"index": objcat.BucketIndex("4")}, "whole number"),  # type: ignore[arg-type]
        ({"index": objcat.BucketIndex(True)}, "whole number"),
        ({"key": "id"}, r"Give a list of names, \['id'\]"),
        ({"index": objcat.BucketIndex(4, columns="id")}, r"Give a list of names, \['id'\]"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_a_wrong_type_do_not_make_a_table_that_nobody_opens(lake: objcat.Lake, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        lake.create_table("t", SCHEMA, **({"key": ["id"]} | given))
    assert list(lake.fileio.list_keys()) == []


# ---- batches -------------------------------------------------------------------------------------------------------


def test_a_column_that_only_later_rows_have_is_written(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    table.upsert([{"id": 1}, {"id": 2, "value": "Rome"}])
    assert rows_of(table) == {1: None, 2: "Rome"}


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([{"id": 1}, {"id": "x"}], "'id' of the batch holds values of several types"),
        ([{"id": 2**70}], "'id' of the batch"),
        ([{"id": 1, 7: "x"}], "has the column 7"),
        ([{}], "is empty|lacks the column"),
    ],
)
def test_rows_that_make_no_table_are_refused_in_one_sentence(lake: objcat.Lake, batch: Any, says: str) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    with pytest.raises(InvalidBatch, match=says):
        table.upsert(batch)


# ---- what a write that fails leaves --------------------------------------------------------------------------------


def keys_of(lake: objcat.Lake) -> set[str]:
    """Every object but the hints, which are put in the background."""
    return {key for key in lake.fileio.list_keys() if not key.endswith("head.json")}


def test_pieces_that_still_run_when_another_fails_leave_no_file(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece fails at once; the others are held back until it has."""
    monkeypatch.setattr(local, "SPLIT_ROWS", 10)
    failed = threading.Event()

    def hold(request: Request) -> None:
        if request.kind == "put" and "/data/" in request.key:
            failed.wait(0.5)

    memory = MemoryBackend("held")
    table = objcat.Lake(FileIO(FaultyBackend(memory, before=hold))).create_table("t", SCHEMA, key=["id"])
    before = set(FileIO(memory).list_keys())
    ids = pa.array([None, *range(1, 80)], pa.int64())
    with pytest.raises(NullKey):
        table.upsert(pa.table({"id": ids}))
    failed.set()
    list(table._context.fileio.env.map(lambda _: None, range(64)))
    assert {key for key in FileIO(memory).list_keys() if "/data/" in key} == {key for key in before if "/data/" in key}


@pytest.mark.parametrize("operation", ["upsert", "insert"])
def test_a_failure_of_any_kind_before_the_commit_leaves_nothing(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    before = keys_of(lake)
    place: Any = write_log_rows if operation == "upsert" else parquet.BaseWriter
    name = "write_log" if operation == "upsert" else "finish"
    real = getattr(place, name)

    def write_and_fail(*args: Any, **settings: Any) -> None:
        real(*args, **settings)
        raise MemoryError("no memory is left")

    monkeypatch.setattr(place, name, write_and_fail)
    with pytest.raises(MemoryError):
        getattr(table, operation)(BATCH)
    assert keys_of(lake) == before


def test_two_base_files_of_one_group_never_reach_the_log(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"])
    before = keys_of(lake)
    real = write_base_files.write_inserts

    def write_twice(fileio: FileIO, task: WriteTask, name: str, batches: Iterable[pa.RecordBatch]) -> WriteResult:
        rows = list(batches)
        return real(fileio, task, name, rows) + real(fileio, task, name, rows)

    monkeypatch.setattr(local, "write_routed", write_twice)
    with pytest.raises(InvalidBatch, match="Cast the key columns"):
        table.insert(BATCH)
    assert keys_of(lake) == before


def test_threads_on_one_handle_see_what_was_acknowledged_before_they_ask(lake: objcat.Lake) -> None:
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    wrong: list[str] = []

    def work(number: int) -> None:
        seen = 0
        for step in range(15):
            slot = table.upsert([{"id": number * 100 + step}]).slot
            snapshot = table.refresh()
            if snapshot.slot < max(seen, slot) or table.snapshot.slot < slot:
                wrong.append(f"slot {slot} was acknowledged, the handle is at {snapshot.slot}")
            seen = snapshot.slot

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(rows_of(table)) == sorted(number * 100 + step for number in range(4) for step in range(15))


# ---- filters -------------------------------------------------------------------------------------------------------

WIDE = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("tiny", pa.int8()),
        pa.field("price", pa.decimal128(6, 2)),
        pa.field("ratio", pa.float32()),
        pa.field("x", pa.int64()),
        pa.field("p", pa.struct([("x", pa.int64())])),
    ]
)
WIDE_ROWS: list[dict[str, Any]] = [
    {"id": 1, "tiny": 1, "price": Decimal("1.50"), "ratio": 0.1, "x": 1, "p": {"x": 100}},
    {"id": 2, "tiny": None, "price": None, "ratio": None, "x": None, "p": None},
    {"id": 2**53 + 1, "tiny": -128, "price": Decimal("-9999.99"), "ratio": 0.5, "x": 3, "p": None},
    {"id": 2**63 - 1, "tiny": 127, "price": Decimal("9999.99"), "ratio": -0.0, "x": 4, "p": None},
]


@pytest.fixture
def wide(lake: objcat.Lake) -> objcat.Table:
    table = lake.create_table("wide", WIDE, key=["id"], index=objcat.BucketIndex(2))
    table.upsert(pa.Table.from_pylist(WIDE_ROWS, schema=WIDE))
    return table


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBERS = [
    "0",
    "1",
    "1.0",
    "1.5",
    "1.505",
    "-0.001",
    "-128",
    "-128.5",
    "127.5",
    "1e3",
    "300",
    "-10000",
    "9999.99",
    "9999.995",
    "1e90",
    "-1e90",
]
NUMBERS += ["9007199254740992.5", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809.5"]


@pytest.mark.parametrize("column", ["id", "tiny", "price"])
def test_a_number_of_any_size_and_scale_compares_exactly(wide: objcat.Table, column: str) -> None:
    for number in NUMBERS:
        for sign, compare in COMPARE.items():
            expected = {row["id"] for row in WIDE_ROWS if row[column] is not None and compare(Decimal(row[column]), Decimal(number))}
            for where, wanted in (
                (f"{column} {sign} {number}", expected),
                (f"not {column} {sign} {number}", {row["id"] for row in WIDE_ROWS if row[column] is not None} - expected),
            ):
                found = {row["id"] for row in wide.scan(where=where, columns=["id"]).to_arrow().to_pylist()}
                assert found == wanted, where
        members = wide.scan(where=f"{column} in ({number}, 1)", columns=["id"]).to_arrow().to_pylist()
        assert {row["id"] for row in members} == {row["id"] for row in WIDE_ROWS if row[column] in (Decimal(number), 1)}


def test_a_short_float_compares_as_sql_does(wide: objcat.Table) -> None:
    """A 32-bit 0.1 is above the 64-bit one, and 0.5 is the same in both."""
    found = {
        where: wide.scan(where=where).to_arrow().num_rows for where in ("ratio = 0.1", "ratio > 0.1", "ratio in (0.1, 0.5)", "ratio = 0")
    }
    assert found == {"ratio = 0.1": 0, "ratio > 0.1": 2, "ratio in (0.1, 0.5)": 1, "ratio = 0": 1}


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("p.z = 1", "names 'p.z', which is not there: valid ones are x"),
        ("wide.id = 1", "without its table"),
        ("id = true", "Cast one of them"),
        ("id = p", "cannot be compared"),
        ("id = cast('1' as int)", "cannot push down"),
    ],
)
def test_a_filter_that_would_mean_another_column_or_fail_late_is_refused(wide: objcat.Table, where: str, says: str) -> None:
    with pytest.raises(InvalidPredicate, match=says):
        wide.scan(where=where)


def test_a_long_list_of_values(wide: objcat.Table) -> None:
    assert wide.scan(where=f"id in ({', '.join(map(str, range(3000)))})").to_arrow().num_rows == 2


# ---- a model beside the table --------------------------------------------------------------------------------------

KEYS = st.tuples(st.integers(0, 3), st.sampled_from([0.0, -0.0, math.nan, 1.5]))
MODEL_SCHEMA = pa.schema([("a", pa.int64()), ("f", pa.float64()), ("o", pa.int64()), ("v", pa.int64())])


def same_key(a: int, f: float) -> tuple[int, str]:
    return a, "nan" if math.isnan(f) else str(f + 0.0)


class TableBesideModel(RuleBasedStateMachine):
    """Two handles on one table, and a dict that replays the same operations; every slot is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lake = objcat.Lake(FileIO(MemoryBackend("model"), env=FakeEnv(3)))
        self.count = 0

    @initialize(ordered=st.booleans(), buckets=st.sampled_from([1, 3]))
    def create(self, ordered: bool, buckets: int) -> None:
        self.ordered = ordered
        table = self.lake.create_table(
            "t", MODEL_SCHEMA, key=["a", "f"], ordering="o" if ordered else None, index=objcat.BucketIndex(buckets, columns=("a",))
        )
        self.handles = [table, self.lake.table("t")]
        self.model: dict[tuple[int, str], tuple[int, int | None]] = {}  # key -> (ordering, value, None once deleted)
        self.slots: list[dict[tuple[int, str], int]] = [{}]

    def done(self, slot: int) -> None:
        assert slot == len(self.slots)
        self.slots.append({key: value for key, (_, value) in self.model.items() if value is not None})

    def put(self, key: tuple[int, str], ordering: int, value: int | None) -> None:
        if not self.ordered or key not in self.model or ordering >= self.model[key][0]:
            self.model[key] = (ordering, value)

    @rule(handle=st.integers(0, 1), insert=st.booleans(), rows=st.lists(st.tuples(KEYS, st.integers(0, 4)), min_size=1, max_size=6))
    def write(self, handle: int, insert: bool, rows: list[tuple[tuple[int, float], int]]) -> None:
        batch = []
        for (a, f), ordering in rows:
            self.count += 1
            batch.append({"v": self.count, "f": f, "a": a, "o": ordering})
            self.put(same_key(a, f), ordering, self.count)
        table = self.handles[handle]
        self.done((table.insert if insert else table.upsert)(batch).slot)

    @rule(handle=st.integers(0, 1), keys=st.lists(KEYS, min_size=1, max_size=3))
    def delete_whatever_came_before(self, handle: int, keys: list[tuple[int, float]]) -> None:
        for a, f in keys:
            self.model.pop(same_key(a, f), None)
        self.done(self.handles[handle].delete([{"a": a, "f": f} for a, f in keys]).slot)

    @rule(handle=st.integers(0, 1), rows=st.lists(st.tuples(KEYS, st.integers(0, 4)), min_size=1, max_size=3))
    def delete_what_is_not_newer(self, handle: int, rows: list[tuple[tuple[int, float], int]]) -> None:
        for (a, f), ordering in rows:
            if self.ordered:
                self.put(same_key(a, f), ordering, None)
            else:
                self.model.pop(same_key(a, f), None)
        self.done(self.handles[handle].delete([{"a": a, "f": f, "o": ordering} for (a, f), ordering in rows]).slot)

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle: int) -> None:
        self.handles[handle] = self.lake.table("t")

    def read(self, table: objcat.Table, slot: int | None) -> dict[tuple[int, str], int]:
        rows = table.scan(as_of=slot).to_arrow().to_pylist()
        found = {same_key(row["a"], row["f"]): row["v"] for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        return found

    @rule(handle=st.integers(0, 1))
    def the_newest_rows_are_the_models(self, handle: int) -> None:
        assert self.read(self.handles[handle], None) == self.slots[-1]

    def teardown(self) -> None:
        if hasattr(self, "slots"):
            for slot, rows in enumerate(self.slots):
                assert self.read(self.handles[0], slot) == rows


TestTableBesideModel = TableBesideModel.TestCase
TestTableBesideModel.settings = settings(max_examples=effort(12, with_all=25), stateful_step_count=15, deadline=None)
