"""Writers that commit together: who is in whose slot, what it costs, and what a writer says that was left in doubt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.errors import Unavailable
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule, Rules
from objcat.errors import CommitUnknown, Contention
from objcat.inspection.doctor import examine
from objcat.metadata.shared_commits import commits_of
from objcat.timeline import commit_group
from objcat.timeline.attempt import CommitAttempt, CommitRetryPolicy
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Txn, decode_entry, encode_entry, log_key
from objcat.timeline.log_state import AppVersion, LogState
from objcat.timeline.shared_slots import CommitRequest, decode_request, encode_request, holds, may_commit, request_of, with_requests
from tests.timeline.simulated import FarBackend, Overlapped

T = TypeVar("T")
R = TypeVar("R")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
LATENCY_S = 0.02
TOGETHER = {"group_commit": "on"}
REQUESTS_MAX = 12
"""For each commit of many writers, whatever they are for."""


# ---- in simulated time -------------------------------------------------------------------------------------------


def contend(seed: int, *, writers: int, each: int, properties: dict[str, str]) -> tuple[float, float, list[Entry]]:
    """Writers of different processes in closed loops. Returns commits for each second, requests for each commit, and the log."""
    simulation = Overlapped(seed)
    backend = FarBackend(simulation)
    here = objcat.Lake(FileIO(backend, env=FakeEnv(seed, now_ms=simulation.now_ms() - 1000)))
    table = here.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4), properties=properties)
    told: dict[str, int] = {}

    def writer(number: int) -> Callable[[], None]:
        own = objcat.Lake(FileIO(backend, env=simulation.process())).table("t")

        def write() -> None:
            for count in range(each):
                done = own.upsert([{"id": number * 1000 + count, "v": count}, {"id": -1, "v": number}])
                told[done.txn] = done.slot

        return write

    tasks = [writer(number) for number in range(writers)]
    backend.latency_s = LATENCY_S
    simulation.run(tasks)
    backend.latency_s = 0.0
    table.refresh()
    history = list(table.inspect.history())
    assert told == {txn: entry.slot for entry in history[1:] for txn in entry.txns}
    rows = {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert rows.keys() == {-1, *(number * 1000 + count for number in range(writers) for count in range(each))}
    last = commits_of(table.inspect.history()[-1])[-1]
    assert f"{last.txn}" in told and rows[-1] in range(writers)
    commits = writers * each
    return commits / simulation.monotonic_s(), backend.counts["requests"] / commits, history


def test_many_writers_share_slots() -> None:
    alone, _, slots = contend(1, writers=16, each=3, properties={})
    assert len(slots) == 1 + 16 * 3
    together, requests, slots = contend(1, writers=16, each=8, properties=TOGETHER)
    assert max(len(entry.txns) for entry in slots) == 16
    assert requests <= REQUESTS_MAX
    assert together > 2 * alone  # In simulated time, so it is a count of round trips.


def test_one_writer_asks_nobody() -> None:
    _, plain, _ = contend(2, writers=1, each=20, properties={})
    _, together, slots = contend(2, writers=1, each=20, properties=TOGETHER)
    assert together == plain and not any(entry.also for entry in slots)


# ---- by hand ------------------------------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody asks before its first try."""
    monkeypatch.setattr(commit_group, "ASKS_AFTER_SLOTS", 0)


def lake_of(backend: MemoryBackend, seed: int, *rules: Rule) -> objcat.Lake:
    env = FakeEnv(seed)
    return objcat.Lake(FileIO(FaultyBackend(backend, Rules(list(rules))), env=env))


def created(backend: MemoryBackend, **settings: Any) -> objcat.Table:
    return lake_of(backend, 1).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2), properties=TOGETHER, **settings)


def rows_of(table: objcat.Table) -> dict[int, int]:
    table.refresh()
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


def is_slot(key: str) -> bool:
    return "/log/" in key


CRASH = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=is_slot)


def leave_request(backend: MemoryBackend, seed: int, row: dict[str, int], **metadata: str) -> None:
    """A writer that asks, and dies."""
    with pytest.raises(Crash):
        lake_of(backend, seed, CRASH).table("t").upsert([row], metadata=metadata)


@pytest.mark.usefixtures("eager")
def test_a_writer_commits_for_one_that_died() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    leave_request(backend, 2, {"id": 1, "v": 1}, who="dead")
    done = table.upsert([{"id": 2, "v": 2}], metadata={"who": "alive"})
    assert rows_of(table) == {1: 1, 2: 2}
    (_, entry) = table.inspect.history()
    assert entry.slot == done.slot and entry.txn == done.txn and len(entry.also) == 1
    assert [dict(one.metadata) for one in commits_of(entry)] == [{"who": "alive"}, {"who": "dead"}]
    assert not list(table._context.fileio.list_keys("requests/"))
    assert table.resolve(entry.also[0].txn).slot == done.slot
    assert [row["rows"] for row in table.inspect.history().to_arrow().to_pylist()] == [0, 1, 1]
    assert table.inspect.snapshots().to_pylist()[-1]["slot"] == done.slot
    assert rows_of(table) == {1: 1, 2: 2}
    report = examine(table._context.timeline, deep=True)
    assert report.healthy and not report.findings, report.findings


@pytest.mark.usefixtures("eager")
def test_a_sweep_leaves_the_files_of_all_transactions_of_a_slot() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    leave_request(backend, 2, {"id": 1, "v": 1})
    table.upsert([{"id": 2, "v": 2}])
    assert table.maintenance.rollback_failed_writes(older_than_s=0) == []
    table.maintenance.compact()
    assert rows_of(table) == {1: 1, 2: 2}


@pytest.mark.usefixtures("eager")
def test_who_is_rolled_back_is_not_committed_by_others() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    leave_request(backend, 2, {"id": 1, "v": 1})
    (dead,) = table.maintenance.rollback_failed_writes(older_than_s=0)
    table.upsert([{"id": 2, "v": 2}])
    assert rows_of(table) == {2: 2}
    assert table.resolve(Txn(dead.txn)) == dead.outcome.__class__(dead.outcome.slot, 0)  # type: ignore[call-arg]


@pytest.mark.usefixtures("eager")
def test_a_sweep_removes_requests_that_no_slot_may_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_group, "REQUEST_SLOTS", 1)
    backend = MemoryBackend("t")
    table = created(backend)
    leave_request(backend, 2, {"id": 1, "v": 1})
    monkeypatch.setattr(commit_group, "ASKS_AFTER_SLOTS", 2)
    table.upsert([{"id": 2, "v": 2}])
    assert len(list(table._context.fileio.list_keys("requests/"))) == 1
    assert any("request" in finding.says for finding in examine(table._context.timeline).findings)
    table.maintenance.rollback_failed_writes(older_than_s=0)
    assert not list(table._context.fileio.list_keys("requests/"))
    assert rows_of(table) == {2: 2}


@pytest.mark.usefixtures("eager")
def test_a_writer_that_fails_while_others_may_commit_it_does_not_say_that_it_failed() -> None:
    backend = MemoryBackend("t")
    table = created(backend)

    def away(request: Request) -> None:
        if request.kind == "put" and is_slot(request.key):
            raise Unavailable("the store is away")

    broken = objcat.Lake(FileIO(FaultyBackend(backend, before=away), env=FakeEnv(2))).table("t")
    with pytest.raises(CommitUnknown, match="asked other writers") as caught:
        broken.upsert([{"id": 1, "v": 1}])
    table.upsert([{"id": 2, "v": 2}])
    assert rows_of(table) == {1: 1, 2: 2}
    assert table.resolve(caught.value.txn).slot == 1


@pytest.mark.usefixtures("eager")
def test_no_request_of_a_write_that_does_more_than_append() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    asked: list[Request] = []
    own = objcat.Lake(FileIO(FaultyBackend(backend, before=asked.append), env=FakeEnv(3))).table("t")
    own.bulk_insert([{"id": 1, "v": 1}])
    own.upsert([{"id": 2, "v": 2}], app=AppVersion(app="stream", version=1))
    own.insert_overwrite([{"id": 3, "v": 3}])
    own.maintenance.compact()
    assert not [request for request in asked if "requests/" in request.key and request.kind == "put"]
    assert rows_of(table) == {3: 3}


def test_a_table_without_the_property_has_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_group, "ASKS_AFTER_SLOTS", 0)
    backend = MemoryBackend("t")
    table = created(backend)
    table.set_properties(unset=["group_commit"])
    leave_request(backend, 2, {"id": 1, "v": 1})
    assert not list(table._context.fileio.list_keys("requests/"))
    table.upsert([{"id": 2, "v": 2}])
    assert rows_of(table) == {2: 2}


@pytest.mark.usefixtures("eager")
def test_an_erasure_removes_requests() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    table.upsert([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    leave_request(backend, 2, {"id": 7, "v": 1}, who="Ana")
    table.upsert([{"id": 3, "v": 3}], metadata={"who": "Ben"})
    leave_request(backend, 3, {"id": 7, "v": 2}, who="Ana")
    certificate = table.erase("id = 7", older_than_s=0)
    assert certificate.found == 0
    assert not list(table._context.fileio.list_keys("requests/"))
    assert rows_of(table) == {1: 1, 2: 2, 3: 3}
    for entry in table.inspect.history():
        assert not entry.metadata and not any(one.metadata for one in entry.also), "an erasure removes what writers said"


@pytest.mark.usefixtures("eager")
def test_a_purge_removes_requests() -> None:
    backend = MemoryBackend("t")
    table = created(backend)
    leave_request(backend, 2, {"id": 7, "v": 1})
    fileio = table._context.fileio
    assert list(fileio.list_keys("requests/"))
    lake = lake_of(backend, 3)
    lake.drop_table("t")
    lake.purge_table("t", older_than_s=0)
    assert not list(fileio.list_keys("requests/"))


def test_threads_of_one_process_share_slots() -> None:
    """While one claims a slot, the others wait; the next one commits for all of them."""
    backend = MemoryBackend("t")
    begun, go_on = threading.Event(), threading.Event()

    def slowly(request: Request) -> None:
        if request.kind == "put" and is_slot(request.key) and not begun.is_set():
            begun.set()
            assert go_on.wait(30)

    table = objcat.Lake(FileIO(MemoryBackend("t"))).create_table("other", SCHEMA, key=["id"])
    created(backend)
    lake = objcat.Lake(FileIO(FaultyBackend(backend, before=slowly)))
    table = lake.table("t")
    done: list[objcat.CommitResult] = []
    threads = [threading.Thread(target=lambda n=n: done.append(table.upsert([{"id": n, "v": n}]))) for n in range(8)]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    offers = table._context.committer._shared.offers
    while len(offers._waiting) < 7:
        threading.Event().wait(0.01)
    go_on.set()
    for thread in threads:
        thread.join()
    assert rows_of(table) == {number: number for number in range(8)}
    history = table.inspect.history()
    assert [len(entry.txns) for entry in history[1:]] == [1, 7]
    assert {(one.txn, one.slot) for one in done} == {(txn, entry.slot) for entry in history[1:] for txn in entry.txns}


# ---- what may share a slot ----------------------------------------------------------------------------------------


def txn_of(number: int) -> Txn:
    return Txn(f"20261127T090000000Z-{number:016x}")


def log_of(number: int) -> bytes:
    return (
        b'{"path": "data/%s/a.log.parquet", "bytes": 1, "rows": 1, "row_group_rows": 1, "homes": [[["", 0, 2], 0, 1]]}'
        % txn_of(number).encode()
    )


def attempt(number: int, **differing: Any) -> CommitAttempt:
    settings: dict[str, Any] = {
        "txn": txn_of(number),
        "action": Action.DELTA_COMMIT,
        "base": LogState(slot=3),
        "changes": {"t": msgspec.Raw(b'{"logs": [%s]}' % log_of(number))},
        "footprint": {"t": Footprint(appends=(FileGroupId("", 0, 2),))},
        "shares_slot": True,
    }
    return CommitAttempt(**{**settings, **differing})


def asking(number: int, **differing: Any) -> CommitRequest:
    request = request_of(attempt(number, **differing), until=9)
    assert request is not None
    return request


@pytest.mark.parametrize(
    "differing",
    [
        {"action": Action.COMMIT},
        {"plan": txn_of(9)},
        {"app": AppVersion(app="a", version=1)},
        {"features": {"base_order": "0.1.0"}},
        {"writer_features": {"watermark": "0.1.0"}},
        {"footprint": {"t": Footprint(appends=(FileGroupId("", 0, 2),), rmw=(FileGroupId("", 0, 2),))}},
        {"footprint": {"t": Footprint(creates=(FileGroupId("", 0, 2),))}},
        {"changes": {"t": msgspec.Raw(b'{"logs": [], "removes": ["data/x"]}')}},
        {"changes": {}},
        {"changes": {"t": msgspec.Raw(b'{"logs": [%s]}' % b",".join([log_of(1)] * 2000))}},
        {"base": LogState()},
    ],
    ids=min,
)
def test_what_does_not_share_a_slot(differing: dict[str, Any]) -> None:
    assert request_of(attempt(1, **differing), until=9) is None


def entry_of(slot: int, **differing: Any) -> Entry:
    settings: dict[str, Any] = {"format": 1, "slot": slot, "action": Action.DELTA_COMMIT, "txn": txn_of(100 + slot), "base": slot - 1}
    return Entry(**{**settings, "committed_at_ms": slot, **differing})


def test_who_may_be_committed_where() -> None:
    request = asking(1)
    assert may_commit(request, [entry_of(4)], slot=5)
    assert may_commit(request, [], slot=9) and not may_commit(request, [], slot=10), "its last slot"
    assert not may_commit(request, [], slot=3), "its base"
    shared = with_requests(entry_of(4, txn=txn_of(2), changes=attempt(2).changes, footprint=attempt(2).footprint), [request])
    assert not may_commit(request, [shared], slot=5), "it is there"
    assert not may_commit(request, [entry_of(4, action=Action.ROLLBACK, rollback_of=request.txn)], slot=5)
    restored = entry_of(4, action=Action.RESTORE, footprint={"t": Footprint(restores=1)})
    assert not may_commit(request, [restored], slot=5), "a conflict"


def test_an_entry_with_requests() -> None:
    own = entry_of(4, txn=txn_of(2), changes=dict(attempt(2).changes), footprint=dict(attempt(2).footprint))
    entry = with_requests(own, [asking(1), asking(3)])
    assert entry.txns == (txn_of(2), txn_of(1), txn_of(3))
    assert decode_entry(encode_entry(entry), key=log_key(4)).also == entry.also
    assert [
        bytes(log).count(txn_of(n).encode())
        for n, log in zip((2, 1, 3), msgspec.json.decode(entry.changes["t"], type=dict[str, list[msgspec.Raw]])["logs"], strict=True)
    ] == [1, 1, 1]
    for number in (1, 2, 3):
        assert holds(entry, attempt(number).changes)
    assert not holds(entry, attempt(4).changes)
    assert [(one.txn, one.footprint, len(one.changes)) for one in commits_of(entry)] == [
        (txn_of(number), attempt(number).footprint, 1) for number in (2, 1, 3)
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"also": ()},
        {"features": {}},
        {"writer_features": {}},
        {"action": Action.COMPACTION},
        {"txn": txn_of(1)},
    ],
    ids=min,
)
def test_an_entry_that_contradicts_itself_is_refused(changed: dict[str, Any]) -> None:
    own = entry_of(4, txn=txn_of(2), changes=dict(attempt(2).changes), footprint=dict(attempt(2).footprint))
    entry = msgspec.structs.replace(with_requests(own, [asking(1)]), **changed)
    if "also" in changed:
        encode_entry(entry)
        return
    with pytest.raises(TypeError, match="no reader takes"):
        encode_entry(entry)


def test_requests_that_are_left_alone() -> None:
    request = asking(1)
    data = encode_request(request)
    found = decode_request(data, key=request.key)
    assert found is not None and encode_request(msgspec.structs.replace(found, digest="")) == data
    assert decode_request(data[:-3], key=request.key) is None, "cut"
    assert decode_request(data.replace(b"0.1.0", b"9.1.0").replace(b'"base": 3', b'"base": 2'), key=request.key) is None, "changed"
    assert decode_request(data, key=asking(2).key) is None, "another key"
    for field, value in {"rules": 2, "format": 2, "changes": {}, "appends": {}}.items():
        other = msgspec.structs.replace(request, **{field: value})
        assert decode_request(encode_request(other), key=request.key) is None, field
    foreign = msgspec.structs.replace(request, changes={"t": msgspec.Raw(b'{"logs": [%s]}' % log_of(2))})
    assert decode_request(encode_request(foreign), key=request.key) is None, "files of another transaction"


def test_a_writer_gives_up_when_nobody_can_commit_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses slot after slot; while its request is open it goes on, and then says that it failed."""
    monkeypatch.setattr(commit_group, "ASKS_AFTER_SLOTS", 1)
    monkeypatch.setattr(commit_group, "REQUEST_SLOTS", 3)
    backend = MemoryBackend("t")
    table = created(backend)
    taken: list[int] = []

    def overtaken(request: Request) -> None:
        if request.kind == "put" and is_slot(request.key):
            taken.append(lake_of(backend, 100 + len(taken)).table("t").upsert([{"id": 100 + len(taken), "v": 0}]).slot)

    late = objcat.Lake(FileIO(FaultyBackend(backend, before=overtaken), env=FakeEnv(2))).table("t")
    late._context.committer.policy = CommitRetryPolicy(slots_max=2)
    with pytest.raises(Contention):
        late.upsert([{"id": 1, "v": 1}])
    assert len(taken) >= 4
    assert 1 not in rows_of(table)
