"""Many threads of one process write to one table: no slot is lost, and a commit sends what a single one sends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.env import SystemEnv
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.timeline.log import Log

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
THREADS, COMMITS = 8, 6


class Threads:
    """A table, and a handle for each thread: one for all, or one of a lake of its own. counted: the stores whose requests count."""

    def __init__(self, *, own: bool, **settings: Any) -> None:
        # Maintenance and checkpoints send requests too, whenever they run. Both wait for slots that these tests do not reach.
        properties = {"compact_after_commits": "1000", "auto_clean": "false"}
        backend, env = MemoryBackend("threads"), SystemEnv()
        self.lake = objcat.Lake(FileIO(backend, env=env))
        layout: dict[str, Any] = {"key": ["id"], "index": objcat.BucketIndex(2)} | settings
        first = self.lake.create_table("t", SCHEMA, properties=properties, **layout)
        lakes = [objcat.Lake(FileIO(backend, env=env)) for _ in range(THREADS)] if own else []
        self.handles = [lake.table("t") for lake in lakes] or [first] * THREADS
        self.table = first
        self._before = [handle._context.fileio.metrics.snapshot() for handle in self._distinct()]

    def _distinct(self) -> Sequence[objcat.Table]:
        return list({id(handle): handle for handle in self.handles}.values())

    def sent(self) -> Mapping[str, int]:
        """The requests of all handles since the beginning, by kind."""
        found: dict[str, int] = {}
        for handle, before in zip(self._distinct(), self._before, strict=True):
            for kind, count in (handle._context.fileio.metrics.snapshot() - before).requests.items():
                found[kind] = found.get(kind, 0) + count
        return found

    def run(self, write: Callable[[objcat.Table, int, int], Any]) -> list[Any]:
        """Call `write` with a handle, the number of its thread and of the commit, in all threads at once. Returns all results."""
        done: list[Any] = []
        errors: list[BaseException] = []
        ready = threading.Barrier(THREADS)

        def loop(number: int) -> None:
            try:
                ready.wait()
                done.extend(write(self.handles[number], number, commit) for commit in range(COMMITS))
            except BaseException as error:  # noqa: BLE001 - for the test
                errors.append(error)

        threads = [threading.Thread(target=loop, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return done


def rows(number: int, commit: int) -> list[dict[str, int]]:
    """Rows of one thread: one that it writes again and again, and a new one."""
    return [{"id": number * 1000, "value": commit}, {"id": number * 1000 + commit + 1, "value": commit}]


def expected() -> dict[int, int]:
    found = {number * 1000: COMMITS - 1 for number in range(THREADS)}
    return found | {number * 1000 + commit + 1: commit for number in range(THREADS) for commit in range(COMMITS)}


def found(table: objcat.Table) -> dict[int, int]:
    table.refresh()
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("own", [False, True], ids=["one handle", "handles of their own"])
def test_upserts_of_many_threads_send_what_single_ones_send(own: bool) -> None:
    threads = Threads(own=own)
    done = threads.run(lambda table, number, commit: table.upsert(rows(number, commit)))
    assert sorted(each.slot for each in done) == list(range(1, THREADS * COMMITS + 1))
    assert {(each.slots_lost, each.attempts) for each in done} == {(0, 1)}
    # Data and slot, and the look at the newest known slot. Checkpoints are put in the background: a root, its objects, and the hint.
    sent = threads.sent()
    checkpoints = 4 * (THREADS * COMMITS // 16)
    assert 2 * len(done) <= sent["put_create"] <= 2 * len(done) + checkpoints
    assert len(done) <= sent["get"] <= len(done) + checkpoints
    assert found(threads.table) == expected()


@pytest.mark.parametrize("own", [False, True], ids=["one handle", "handles of their own"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_writes_that_read_the_table_lose_no_slot_either(kind: Any, own: bool) -> None:
    threads = Threads(own=own, table_type=kind)
    done = threads.run(lambda table, number, commit: table.insert(rows(number, commit)))
    assert sorted(each.slot for each in done) == list(range(1, THREADS * COMMITS + 1))
    assert {each.slots_lost for each in done} == {0}
    assert found(threads.table) == expected()


def test_updates_computed_from_rows_are_not_lost() -> None:
    threads = Threads(own=True)
    threads.table.upsert([{"id": 1, "value": 0}])
    threads.run(lambda table, _number, _commit: table.update({"value": "value + 1"}, where="id = 1"))
    assert found(threads.table) == {1: THREADS * COMMITS}


def test_transactions_over_tables_of_one_log_lose_no_slot() -> None:
    threads = Threads(own=True, shared_log="sales")
    threads.lake.create_table("u", SCHEMA, key=["id"], index=objcat.BucketIndex(2), shared_log="sales")

    def write(_: objcat.Table, number: int, commit: int) -> Any:
        with threads.lake.transaction() as block:
            block["t"].upsert(rows(number, commit))
            block["u"].upsert(rows(number, commit))
        return block.result

    done = threads.run(write)
    assert len({each.slot for each in done}) == THREADS * COMMITS
    assert {each.slots_lost for each in done} == {0}
    assert found(threads.table) == found(threads.lake.table("u")) == expected()


def test_a_process_beside_loses_slots_and_no_rows() -> None:
    threads = Threads(own=False)
    other = objcat.Lake(FileIO(threads.lake._context.fileio._bare, env=SystemEnv())).table("t")
    done = threads.run(lambda table, number, commit: (other if number == 0 else table).upsert(rows(number, commit)))
    assert sorted(each.slot for each in done) == list(range(1, THREADS * COMMITS + 1))
    assert found(threads.table) == expected()
    assert len(Log(threads.table._context.fileio).read_after(-1)) == THREADS * COMMITS + 1
