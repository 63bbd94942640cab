"""Several change the names of a lake at once, or die between two requests: names and tables never fall apart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha512
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from devkit.handle import ServerHandle
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule
from fileio.write_outcomes import RetryPolicy
from objcat.errors import (
    CommitConflict,
    CommitUnknown,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NullKey,
    ObjcatError,
    TableClosed,
    TableExists,
    TableNotFound,
)
from tests.effort import few

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
CHANGER = Path(__file__).with_name("names_process.py")


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("races")


def lake_on(backend: Any, seed: int = 1) -> objcat.Lake:
    return objcat.Lake(FileIO(backend, env=FakeEnv(seed), policy=RetryPolicy(attempts_max=3)))


def create(lake: objcat.Lake, name: str = "t", **settings: Any) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), **settings)


def rows_of(table: objcat.Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


def row(key: int, value: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "value": value}]


def check_whole(lake: objcat.Lake) -> None:
    """Every name means an open table of its own and stands in namespaces that are there, and whatever was dropped is closed."""
    names = lake._context.catalog.refresh()
    ids = [bound.binding.table for bound in names.tables.values()]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(names.dropped)
    for name in lake.tables():
        assert lake.table(name).id in ids
        if "." in name:
            assert name.rpartition(".")[0].casefold() in names.namespaces
    assert not set(names.tables) & set(names.namespaces)
    for dropped in names.dropped.values():
        view = lake._context.open_log(dropped.binding.prefix)[1]
        assert view.log.marks(dropped.table).closed_at is not None, "a dropped table can be written"


# ---- at once -----------------------------------------------------------------------------------------------------


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """What each action returned or raised, run in threads that begin together."""
    barrier = threading.Barrier(len(actions))
    outcomes: list[Any] = [None] * len(actions)

    def run(number: int) -> None:
        barrier.wait()
        try:
            outcomes[number] = actions[number]()
        except ObjcatError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.fixture(params=["memory", "file"])
def open_lake(request: pytest.FixtureRequest, tmp_path: Path, memory: MemoryBackend) -> Callable[[], objcat.Lake]:
    """Handles on one lake, as of several processes."""
    if request.param == "file":
        return lambda: objcat.connect(tmp_path / "lake", {"fsync": False})
    return lambda: objcat.Lake(FileIO(memory))


def test_one_of_several_creators_has_the_name(open_lake: Callable[[], objcat.Lake]) -> None:
    outcomes = at_once(*[lambda: create(open_lake(), "a.b.t")] * 6)
    won = [outcome for outcome in outcomes if isinstance(outcome, objcat.Table)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, TableExists)]
    assert (len(won), len(lost)) == (1, 5)
    winner = won[0].inspect.history()[0].txn
    assert all(winner in str(error) for error in lost)
    lake = open_lake()
    check_whole(lake)
    assert {key.split("/")[1] for key in lake.fileio.list_keys("tables/")} == {won[0]._context.fileio.url.rpartition("/")[2]}


def test_names_in_one_new_namespace_and_domain_all_come_to_be(open_lake: Callable[[], objcat.Lake]) -> None:
    names = [f"new.ns.t{number}" for number in range(6)]
    tables = at_once(*[lambda name=name: create(open_lake(), name, shared_log="d") for name in names])
    assert [getattr(table, "name", table) for table in tables] == names
    assert len({table._context.fileio.url for table in tables}) == 1
    check_whole(open_lake())
    assert open_lake().tables() == names


@pytest.mark.parametrize("round_number", range(5))
def test_a_namespace_is_dropped_empty_or_not_at_all(open_lake: Callable[[], objcat.Lake], round_number: int) -> None:
    lake = open_lake()
    lake.namespaces.create("ns")
    other = open_lake()
    created, dropped = at_once(lambda: create(open_lake(), "ns.t"), lambda: other.namespaces.drop("ns"))
    check_whole(lake)
    if isinstance(dropped, NamespaceNotEmpty):
        assert lake.tables() == ["ns.t"]
    else:
        assert dropped is None
        assert isinstance(created, (NamespaceNotFound, objcat.Table))
    assert ("ns.t" in lake.tables()) == isinstance(created, objcat.Table)


@pytest.mark.parametrize("round_number", range(5))
def test_rename_and_drop_of_one_table(open_lake: Callable[[], objcat.Lake], round_number: int) -> None:
    lake = open_lake()
    table = create(lake)
    renamed, dropped = at_once(lambda: open_lake().rename_table("t", "s"), lambda: open_lake().drop_table("t"))
    check_whole(lake)
    assert dropped is None or isinstance(dropped, TableNotFound)
    assert renamed is None or isinstance(renamed, TableNotFound)
    assert lake.tables() == ([] if dropped is None else ["s"])
    assert [found.table for found in lake.dropped_tables()] == ([table.id] if dropped is None else [])


def test_renames_of_one_table_and_to_one_name(open_lake: Callable[[], objcat.Lake]) -> None:
    lake = open_lake()
    ids = {create(lake, name).id for name in ("a", "b", "c")}
    moves = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"), ("c", "z")]
    outcomes = at_once(*[lambda move=move: open_lake().rename_table(*move) for move in moves])
    check_whole(lake)
    assert {lake.table(name).id for name in lake.tables()} == ids
    assert all(outcome is None or isinstance(outcome, (TableExists, TableNotFound)) for outcome in outcomes)


def test_a_table_comes_back_once(open_lake: Callable[[], objcat.Lake]) -> None:
    lake = open_lake()
    create(lake).upsert(row(1))
    lake.drop_table("t")
    outcomes = at_once(*[lambda name=f"back{n}": open_lake().undrop_table("t", new_name=name) for n in range(4)])
    back = [outcome for outcome in outcomes if isinstance(outcome, objcat.Table)]
    assert len(back) == 1
    assert all(isinstance(outcome, (objcat.Table, TableNotFound)) for outcome in outcomes), outcomes
    check_whole(lake)
    assert lake.tables() == [back[0].name]
    assert rows_of(back[0]) == {1: "a"}


@pytest.mark.parametrize("domain", [None, "d"])
def test_a_drop_under_writers_loses_nothing_that_was_acknowledged(open_lake: Callable[[], objcat.Lake], domain: str | None) -> None:
    lake = open_lake()
    create(lake, shared_log=domain)
    neighbour = create(lake, "neighbour", shared_log=domain)
    acknowledged: list[int] = []
    started = threading.Semaphore(0)

    def write(writer: int) -> None:
        table = open_lake().table("t")
        for number in range(1000):
            key = writer * 1000 + number
            table.upsert(row(key))
            acknowledged.append(key)
            started.release()

    def drop() -> None:
        for _ in range(6):
            started.acquire()
        open_lake().drop_table("t")

    outcomes = at_once(lambda: write(1), lambda: write(2), drop)
    assert [type(outcome) for outcome in outcomes[:2]] in [
        [a, b] for a in (TableClosed, CommitConflict) for b in (TableClosed, CommitConflict)
    ]
    assert outcomes[2] is None
    check_whole(lake)
    assert sorted(rows_of(lake.undrop_table("t"))) == sorted(acknowledged)
    neighbour.upsert(row(1))
    assert rows_of(neighbour) == {1: "a"}


def test_everything_at_once_keeps_names_and_tables_together(open_lake: Callable[[], objcat.Lake]) -> None:
    lake = open_lake()
    for name in ("ns.a", "b"):
        create(lake, name).upsert(row(1, name))

    def shake(own: objcat.Lake, seed: int) -> None:
        steps: list[Callable[[], Any]] = [
            lambda: own.rename_table("ns.a", "a"),
            lambda: own.rename_table("a", "ns.a"),
            lambda: own.drop_table("b"),
            lambda: own.undrop_table("b"),
            lambda: own.drop_table("ns.a"),
            lambda: own.undrop_table("ns.a", new_name="a"),
            lambda: own.namespaces.drop("ns"),
            lambda: create(own, f"ns.new{seed}"),
            lambda: own.drop_table(f"ns.new{seed}"),
        ]
        for number in range(12):
            with suppress(TableExists, TableNotFound, NamespaceNotEmpty, NamespaceNotFound, TableClosed):
                steps[(number * (seed + 2)) % len(steps)]()

    outcomes = at_once(*[lambda seed=seed: shake(open_lake(), seed) for seed in range(4)])
    assert outcomes == [None] * 4
    check_whole(lake)
    for dropped in lake.dropped_tables():
        lake.undrop_table(dropped.name, table=dropped.table, new_name=f"back.{dropped.table}")
    values = [value for name in lake.tables() for value in rows_of(lake.table(name)).values()]
    assert sorted(values) == ["b", "ns.a"], "every row that was written is in exactly one table"


# ---- in an order that a test chooses -------------------------------------------------------------------------------


class Interrupted(FaultyBackend):
    """Before the nth PUT of a slot of the catalog or of a table, somebody else acts."""

    def __init__(self, inner: MemoryBackend, script: Sequence[Rule] = ()) -> None:
        super().__init__(inner, script, before=self._look)
        self.acts: Iterator[Callable[[], Any]] = iter(())
        self.where = ""

    def before_slot_of(self, where: str, *acts: Callable[[], Any]) -> None:
        self.where, self.acts = where, iter(acts)

    def _look(self, request: Request) -> None:
        if self.where and request.kind == "put" and request.key.startswith(self.where) and "/log/" in request.key:
            act = next(self.acts, None)
            if act is not None:
                act()


@pytest.fixture
def backend(memory: MemoryBackend) -> Interrupted:
    return Interrupted(memory)


@pytest.fixture
def slow(backend: Interrupted) -> objcat.Lake:
    return lake_on(backend, 2)


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    return lake_on(memory, 1)


def test_a_certain_loser_takes_its_own_prefix_away_and_nothing_else(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    backend.before_slot_of("_catalog/", lambda: create(lake).upsert(row(1)))
    with pytest.raises(TableExists, match="named by"):
        create(slow)
    check_whole(lake)
    assert rows_of(slow.table("t")) == {1: "a"}
    assert len({key.split("/")[1] for key in lake.fileio.list_keys("tables/")}) == 1


def test_the_loser_of_a_domain_moves_into_the_log_of_the_winner(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    backend.before_slot_of("_catalog/", lambda: create(lake, "first", shared_log="d"))
    second = create(slow, "second", shared_log="d")
    assert second._context.fileio.url == lake.table("first")._context.fileio.url
    assert len({key.split("/")[1] for key in lake.fileio.list_keys("tables/")}) == 1
    with lake.transaction() as tx:
        tx["first"].upsert(row(1))
        tx["second"].upsert(row(1))
    check_whole(lake)


def test_the_loser_of_a_name_in_a_shared_log_leaves_a_closed_table_that_nobody_sees(
    backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake
) -> None:
    create(lake, "first", shared_log="d")
    backend.before_slot_of("_catalog/", lambda: create(lake))
    with pytest.raises(TableExists):
        create(slow, shared_log="d")
    view = lake.table("first")._context.timeline.open()
    (loser,) = set(view.state) - {lake.table("first").id}
    assert view.log.marks(loser).closed_at is not None
    assert lake.dropped_tables() == []


def test_a_change_of_another_name_is_no_reason_to_fail(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    create(lake, "old")
    backend.before_slot_of("_catalog/", lambda: create(lake, "a"), lambda: lake.namespaces.create("b"))
    slow.rename_table("old", "b.new")
    assert lake.tables() == ["a", "b.new"]
    check_whole(lake)


def test_a_change_that_is_durable_stands_although_what_others_changed_cannot_be_read_after_it(
    memory: MemoryBackend, lake: objcat.Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """What is more than a slot holds lies beside it, and is read when it is replayed."""
    lake.namespaces.create("ns")
    unreadable = Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), key=lambda key: "/changes.json-" in key, times=99)
    racing = Interrupted(memory, [unreadable])
    slow = lake_on(racing, 2)
    slow.tables()
    racing.before_slot_of("_catalog/", lambda: lake.namespaces.set_properties("ns", {"note": "n" * 100_000}))
    create(slow).upsert(row(1))
    assert "is durable" in caplog.text
    check_whole(lake)
    assert rows_of(lake.table("t")) == {1: "a"}


def test_a_change_of_a_table_that_is_durable_stands_although_what_others_changed_cannot_be_read_after_it(
    memory: MemoryBackend, lake: objcat.Lake, caplog: pytest.LogCaptureFixture
) -> None:
    table = create(lake, partition_by=["value"], key_scope="partition")
    unreadable = Rule(fault=Fault.BEFORE, kinds=frozenset({"get"}), key=lambda key: "/changes.json-" in key, times=99)
    racing = Interrupted(memory, [unreadable])
    slow = lake_on(racing, 2).table("t")
    racing.before_slot_of("tables/", lambda: table.upsert([{"id": key, "value": sha512(b"%d" % key).hexdigest()} for key in range(900)]))
    slow.alter.add_column("more", pa.int64())
    assert "is durable" in caplog.text
    assert lake.table("t").scan(columns=["more"]).to_arrow()["more"].null_count == 900
    check_whole(lake)


def test_a_namespace_that_is_dropped_under_a_creation_does_not_come_back(
    backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake
) -> None:
    lake.namespaces.create("ns", {"owner": "ana"})
    backend.before_slot_of("_catalog/", lambda: lake.namespaces.drop("ns"))
    with pytest.raises(NamespaceNotFound, match="was dropped"):
        create(slow, "ns.t")
    check_whole(lake)
    assert (lake.tables(), lake.namespaces.list(), list(lake.fileio.list_keys("tables/"))) == ([], [], [])


def test_a_namespace_that_gets_a_table_is_not_dropped(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    lake.namespaces.create("ns")
    backend.before_slot_of("_catalog/", lambda: create(lake, "ns.t"))
    with pytest.raises(NamespaceNotEmpty, match=r"ns\.t"):
        slow.namespaces.drop("ns")
    check_whole(lake)


@pytest.mark.parametrize("where", ["_catalog/", "tables/"])
def test_a_table_that_is_renamed_under_its_drop_is_dropped(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake, where: str) -> None:
    create(lake)
    backend.before_slot_of(where, lambda: lake.rename_table("t", "s"))
    slow.drop_table("t")
    assert lake.tables() == []
    assert [dropped.name for dropped in lake.dropped_tables()] == ["s"]
    check_whole(lake)


@pytest.mark.parametrize("where", ["_catalog/", "tables/"])
def test_a_slow_drop_spares_a_table_that_was_dropped_and_restored_meanwhile(
    backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake, where: str
) -> None:
    create(lake).upsert(row(1))

    def rival() -> None:
        lake.drop_table("t")
        lake.undrop_table("t", new_name="back").upsert(row(2))

    backend.before_slot_of(where, rival)
    with suppress(TableNotFound, CommitConflict):
        slow.drop_table("t")
    check_whole(lake)
    if lake.tables():
        assert rows_of(lake.table("back")) == {1: "a", 2: "a"}
    else:
        assert rows_of(lake.undrop_table("back")) == {1: "a", 2: "a"}


def test_two_that_bring_a_table_back_never_take_back_what_was_written_between(
    backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake
) -> None:
    create(lake).upsert(row(1))
    lake.drop_table("t")
    backend.before_slot_of("tables/", lambda: lake.undrop_table("t").upsert(row(2)))
    with pytest.raises((TableExists, TableNotFound)):
        slow.undrop_table("t")
    assert rows_of(lake.table("t")) == {1: "a", 2: "a"}
    check_whole(lake)


def test_a_drop_that_comes_between_the_two_steps_of_bringing_back(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    table = create(lake)
    table.upsert(row(1))
    lake.drop_table("t")

    def rival() -> None:
        lake.undrop_table("t").upsert(row(2))
        lake.drop_table("t")

    backend.before_slot_of("_catalog/", rival)
    back = slow.undrop_table("t")
    assert rows_of(back) == {1: "a", 2: "a"}
    check_whole(lake)


def test_the_name_of_a_table_that_comes_back_is_taken_meanwhile(backend: Interrupted, slow: objcat.Lake, lake: objcat.Lake) -> None:
    create(lake).upsert(row(1, "first"))
    lake.drop_table("t")
    backend.before_slot_of("_catalog/", lambda: create(lake).upsert(row(1, "second")))
    with pytest.raises(TableExists):
        slow.undrop_table("t")
    assert rows_of(lake.table("t")) == {1: "second"}
    assert rows_of(lake.undrop_table("t", new_name="first")) == {1: "first"}
    check_whole(lake)


# ---- death between two requests ------------------------------------------------------------------------------------

OPERATIONS: dict[str, tuple[Callable[[objcat.Lake], Any], list[str], list[str]]] = {
    # What is done to a lake with `ns.old` and the dropped `gone`, and the names before and after.
    "create": (lambda lake: create(lake, "new.t"), ["ns.old"], ["new.t", "ns.old"]),
    "create in a domain": (lambda lake: create(lake, "t", shared_log="d"), ["ns.old"], ["ns.old", "t"]),
    "rename": (lambda lake: lake.rename_table("ns.old", "b.new"), ["ns.old"], ["b.new"]),
    "drop": (lambda lake: lake.drop_table("ns.old"), ["ns.old"], []),
    "undrop": (lambda lake: lake.undrop_table("gone"), ["ns.old"], ["gone", "ns.old"]),
}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.AFTER, Fault.BEFORE, Fault.THROTTLE])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_death_between_any_two_requests(operation: str, fault: Fault) -> None:
    act, before, after = OPERATIONS[operation]
    hits = 0
    for nth in range(1, 60):
        memory = MemoryBackend("death")
        clean = lake_on(memory, 1)
        create(clean, "ns.old", shared_log="d").upsert(row(1, "old"))
        create(clean, "gone").upsert(row(1, "gone"))
        clean.drop_table("gone")
        backend = FaultyBackend(memory, [Rule(fault=fault, nth=nth)])
        outcome = "acknowledged"
        try:
            act(lake_on(backend, 2))
        except (Crash, CommitUnknown):
            outcome = "unknown"
        except (ObjcatError, FileIOError):
            outcome = "failed"
        if not backend.fired:
            break
        hits += 1
        found = lake_on(memory, 3)
        # A drop that died half-way has closed the table; its name goes with the next look of somebody who wants it.
        names = [name for name in found.tables() if not is_closed(found, name)]
        allowed = {"acknowledged": [after], "failed": [before, after] if operation == "drop" else [before]}.get(outcome, [before, after])
        assert names in allowed, (operation, fault, nth, outcome)
        # Whoever comes next finds everything as usual, and finishes what was begun.
        if names == before:
            act(found)
        assert [name for name in found.tables() if not is_closed(found, name)] == after
        if "ns.old" in after:
            assert rows_of(found.table("ns.old")) == {1: "old"}
        else:
            with suppress(TableNotFound):
                found.drop_table("ns.old")
            create(found, "ns.old")
        check_whole(found)
    assert hits > 2


def is_closed(lake: objcat.Lake, name: str) -> bool:
    try:
        lake.table(name)
    except TableClosed:
        return True
    return False


def test_a_half_done_drop_is_finished_by_whoever_wants_the_name_or_the_table(memory: MemoryBackend) -> None:
    for finish in ("create", "rename", "undrop", "drop"):
        lake = lake_on(MemoryBackend(finish), 1)
        create(lake).upsert(row(1))
        create(lake, "other")
        backend = FaultyBackend(
            lake.fileio._bare, [Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: "_catalog" in key)]
        )
        with pytest.raises(Crash):
            lake_on(backend, 2).drop_table("t")
        with pytest.raises(TableClosed, match=r"lake\.undrop_table"):
            lake.table("t")
        if finish == "create":
            assert rows_of(create(lake)) == {}
        elif finish == "rename":
            lake.rename_table("other", "t")
            assert rows_of(lake.table("t")) == {}
        elif finish == "undrop":
            assert rows_of(lake.undrop_table("t")) == {1: "a"}
        else:
            lake.drop_table("t")
            assert lake.tables() == ["other"]
        check_whole(lake)


def test_an_unknown_change_of_names_is_settled_for_ever(memory: MemoryBackend) -> None:
    lake = lake_on(memory, 1)
    create(lake)
    rules = [Rule(fault=Fault.LATER, kinds=frozenset({"put"}), key=lambda key: key.startswith("_catalog/log/"), times=99)]
    backend = FaultyBackend(memory, rules)
    with pytest.raises(CommitUnknown, match=r"lake\.resolve\(txn\)") as caught:
        lake_on(backend, 2).rename_table("t", "s")
    settled = lake.resolve(caught.value.txn)
    backend.release()
    assert isinstance(settled, objcat.RolledBackAt)
    assert lake_on(memory, 3).tables() == ["t"]
    check_whole(lake_on(memory, 4))


# ---- processes ---------------------------------------------------------------------------------------------------


def start(url: str, options: dict[str, Any], number: int, names: list[str], domain: str | None) -> subprocess.Popen[str]:
    job = {"url": url, "options": options, "number": number, "names": names, "domain": domain}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, str(CHANGER), json.dumps(job)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def check_processes(url: str, options: dict[str, Any], domain: str | None) -> None:
    names = [f"ns.t{number}" for number in range(4)]
    processes = [start(url, options, number, names, domain) for number in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = [process.communicate("go\n", timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], [errors for _, errors in answers]
    outcomes = [outcome for output, _ in answers for outcome in json.loads(output)]
    lake = objcat.connect(url, options)
    check_whole(lake)
    assert lake.tables() == names
    for name in names:
        (winner,) = [outcome for outcome in outcomes if outcome["name"] == name and "won" in outcome]
        losers = [outcome for outcome in outcomes if outcome["name"] == name and "lost" in outcome]
        table = lake.table(name)
        assert table.id == winner["won"]
        assert list(rows_of(table).values()) == [name]
        assert {outcome["lost"] for outcome in losers} == {"TableExists"}
        assert all("named by" in outcome["says"] for outcome in losers)


@pytest.mark.parametrize("domain", [None, "d"])
def test_processes_create_the_same_names_on_local_disk(tmp_path: Path, domain: str | None) -> None:
    check_processes(str(tmp_path / "lake"), {}, domain)


@pytest.mark.parametrize("server", few(["versitygw", "fake-gcs-server", "azurite"], 1))
def test_processes_create_the_same_names_on_a_server(servers: Callable[[str], ServerHandle], server: str) -> None:
    store = servers(server).fresh_bucket()
    check_processes(f"{store.url}/lake", dict(store.options), None)


# ---- tables that their first write creates ------------------------------------------------------------------------


def refused_file(place: Path) -> Path:
    """Rows that are refused only when they are read."""
    place.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": pa.array([1, None], pa.int64()), "value": ["a", "b"]}), place / "part.parquet")
    return place


def interrupting(memory: MemoryBackend, nth: int, other: Callable[[], Any]) -> tuple[objcat.Lake, list[Any]]:
    """A lake at whose nth request another one does something first; and what that returned."""
    done: list[Any] = []

    def before(request: Request) -> None:
        if request.number == nth:
            done.append(other())

    return lake_on(FaultyBackend(memory, before=before), seed=9), done


@pytest.mark.parametrize("domain", [None, "d"])
def test_a_table_whose_first_write_is_refused_goes_unless_another_has_written_to_it(tmp_path: Path, domain: str | None) -> None:
    source = refused_file(tmp_path / "source")
    kept = 0
    for nth in range(1, 1000):
        memory = MemoryBackend(f"run{nth}")
        other = lake_on(memory)
        create(other, "neighbour", shared_log=domain)
        lake, done = interrupting(memory, nth, lambda: other.write(row(7), "t", key=["id"], shared_log=domain))  # noqa: B023
        with pytest.raises(NullKey, match=r"Nothing was written\. Fill it or filter it out\.$"):
            lake.import_parquet(source, "t", key=["id"], shared_log=domain)
        fresh = lake_on(memory, seed=5)
        check_whole(fresh)
        if not done:
            assert fresh.tables() == ["neighbour"]
            break
        assert rows_of(fresh.table("t")) == {7: "a"}
        kept += not fresh.dropped_tables()
    # Before the CLOSE the table stays, or was the other's; after it, the other one has created a table of its own.
    assert 0 < kept < nth - 1


@pytest.mark.parametrize("domain", [None, "d"])
def test_a_first_write_goes_on_when_another_takes_the_table_back(tmp_path: Path, domain: str | None) -> None:
    source = refused_file(tmp_path / "source")
    for nth in range(1, 1000):
        memory = MemoryBackend(f"run{nth}")
        other = lake_on(memory)
        create(other, "neighbour", shared_log=domain)

        def refused() -> None:
            with pytest.raises(NullKey):
                other.import_parquet(source, "t", key=["id"], shared_log=domain)  # noqa: B023

        lake, done = interrupting(memory, nth, refused)
        lake.write(row(7), "t", key=["id"], shared_log=domain)
        fresh = lake_on(memory, seed=5)
        assert rows_of(fresh.table("t")) == {7: "a"}
        check_whole(fresh)
        if not done:
            return


def test_a_table_that_was_created_and_written_to_by_one_import_stays_when_a_later_commit_is_refused(tmp_path: Path) -> None:
    source = refused_file(tmp_path / "source")
    pq.write_table(pa.table({"id": pa.array([5], pa.int64()), "value": ["e"]}), source / "a.parquet")
    lake = objcat.connect(tmp_path / "lake")
    with pytest.raises(NullKey, match=r"1 of 2 commits stay\."):
        lake.import_parquet(source, "t", key=["id"], commit_bytes=1)
    assert rows_of(lake.table("t")) == {5: "e"}
