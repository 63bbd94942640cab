"""A replacement wins beside a writer that is faster, however much faster: counted in slots, in simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import objcat
from fileio.store import FileIO
from fileio.testing import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.common.validation import TableType
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ
from tests.timeline.simulated import Simulation, SlowBackend

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("v", pa.int64())])
LATENCY_S = 0.02
LOG_BEFORE = 50
"""Slots. The log has a checkpoint, and the hint."""
THEIRS_MAX = 500
"""Commits after which the busy writers end, so that a replacement which never wins ends too."""
ROWS = 20
REPLACED = {(n, -1) for n in range(ROWS)}


def rows(table: objcat.Table, *, as_of: int | None = None) -> set[tuple[int, int]]:
    found = table.scan(columns=["id", "v"], where="city = 'Rome'", as_of=as_of).to_arrow().to_pylist()
    return {(row["id"], row["v"]) for row in found}


def replaced_beside(seed: int, *, slower: int, busy: int, kind: TableType) -> objcat.CommitResult:
    """A replacement by a process each of whose requests takes so many times longer, beside busy upserters of the same partition."""
    simulation = Simulation(seed)
    backend = SlowBackend("starving", simulation)
    table = objcat.Lake(FileIO(backend, env=FakeEnv(seed))).create_table(
        "t", SCHEMA, key=["id"], key_scope="partition", partition_by=["city"], index=objcat.BucketIndex(2), table_type=kind
    )
    for number in range(LOG_BEFORE):
        table.upsert([{"id": number, "city": "Rome", "v": number}])
    theirs: list[tuple[int, int]] = []
    done: list[objcat.CommitResult] = []

    def upserter(number: int) -> Callable[[], None]:
        own = objcat.Lake(FileIO(backend, env=simulation.process())).table("t")

        def upsert() -> None:
            while not done and len(theirs) < THEIRS_MAX:
                key = 1_000 * (number + 1) + len(theirs)
                theirs.append((key, own.upsert([{"id": key, "city": "Rome", "v": 0}]).slot))

        return upsert

    def farther(_request: Request) -> None:
        simulation.sleep((slower - 1) * backend.latency_s)

    late = objcat.Lake(FileIO(FaultyBackend(backend, before=farther), env=simulation.process())).table("t")

    def replace() -> None:
        simulation.sleep(5 * LATENCY_S)
        done.append(late.insert_overwrite([{"id": n, "city": "Rome", "v": -1} for n in range(ROWS)]))

    writers = [*map(upserter, range(busy)), replace]
    backend.latency_s = LATENCY_S
    simulation.run(writers)
    backend.latency_s = 0.0
    assert len(theirs) < THEIRS_MAX, "the replacement came only when nobody else wrote any more"
    assert sorted([slot for _, slot in theirs] + [done[0].slot]) == list(range(LOG_BEFORE + 1, table.refresh().slot + 1))
    assert rows(table, as_of=done[0].slot) == REPLACED
    assert rows(table) == REPLACED | {(key, 0) for key, slot in theirs if slot > done[0].slot}
    return done[0]


@pytest.mark.parametrize("kind", [MERGE_ON_READ, COPY_ON_WRITE])
@pytest.mark.parametrize(("slower", "lost_max"), [(3, 16), (10, 10)])
def test_a_slow_replacement_wins_beside_a_busy_writer(slower: int, lost_max: int, kind: TableType) -> None:
    done = replaced_beside(1, slower=slower, busy=1, kind=kind)
    assert done.attempts == 1 and done.slots_lost <= lost_max


def test_a_slow_replacement_wins_beside_three_busy_writers() -> None:
    assert replaced_beside(1, slower=5, busy=3, kind=MERGE_ON_READ).slots_lost <= 16
