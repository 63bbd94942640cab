"""The bucket fails while an ingest writes to it: every row comes once, whatever is lost, late, repeated, refused, slow or away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.databases import PostgresServer
from fileio.errors import StoreFull, Unavailable
from fileio.testing.faults import Crash, Fault
from tests.effort import seeds
from tests.ingest.struck import Calm, EveryAnswerLost, LateSlots, OnSlots, Storm, StruckShop, Switch, duplicates, wait_until


@pytest.fixture
def struck(postgres: PostgresServer, tmp_path: Path) -> Iterator[StruckShop]:
    made = StruckShop(postgres, tmp_path)
    made.sql("create table items(id int primary key, n int); insert into items select i, 0 from generate_series(1, 9) i")
    yield made
    made.close()


READ = [("read", number, 0) for number in range(1, 10)]


def written(shop: StruckShop, transactions: int) -> list[tuple[str, int, int]]:
    """Write so many transactions. Returns the changes that the lake has to have."""
    for number in range(transactions):
        shop.transaction(f"update items set n = {number + 1} where id = 1", f"insert into items values ({100 + number}, 0)")
    return [change for number in range(transactions) for change in (("update", 1, number + 1), ("insert", 100 + number, 0))]


@pytest.mark.parametrize("then", [0, 12])
def test_every_answer_of_a_commit_is_lost(struck: StruckShop, then: int) -> None:
    """The answers are lost while tables are read and while the stream is followed. Then reads that would settle it fail too."""
    struck.script = script = EveryAnswerLost(then)
    made = struck.ingest()
    made.once()
    changes = written(struck, 3)
    again = struck.ingest()
    again.once()
    assert struck.changes() == READ + changes
    assert script.lost > 5
    waits = (made.metrics.value("store_waits_total") or 0) + (again.metrics.value("store_waits_total") or 0)
    assert waits > 0 if then else waits == 0


@pytest.mark.parametrize("delay", [3, 12])
def test_commits_that_land_late(struck: StruckShop, delay: int) -> None:
    """The request is on its way when nobody waits for it any more."""
    struck.script = script = LateSlots(delay)
    struck.ingest().once()
    changes = written(struck, 4)
    struck.ingest().once()
    assert struck.backend is not None
    struck.backend.release()
    assert struck.changes() == READ + changes and script.late > 1


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_the_process_ends_at_a_commit(struck: StruckShop, fault: Fault) -> None:
    """Between the data files and the slot, and between the slot and what the source is told: at each commit, one after the other."""
    changes: list[tuple[str, int, int]] = []
    for nth in range(1, 7):
        struck.script = script = OnSlots(fault, nth)
        struck.transaction(f"update items set n = {nth} where id = 2")
        changes.append(("update", 2, nth))
        try:
            struck.ingest().once()
        except Crash:
            assert script.hits == 1
    struck.script = Calm()
    struck.ingest().once()
    # What happened before a chunk was read is in the chunk.
    assert struck.differences_of_history() == [] and duplicates(struck.changes()) == []
    before = struck.changes()
    tail = written(struck, 2)
    struck.ingest().once()
    assert struck.changes() == before + tail


@pytest.mark.parametrize("seed", seeds(2, integration=4, with_all=40))
def test_a_storm(struck: StruckShop, seed: int) -> None:
    struck.script = script = Storm(seed)
    struck.ingest().once()
    changes = written(struck, 4)
    struck.ingest().once()
    assert struck.backend is not None
    struck.backend.release()
    assert struck.changes() == READ + changes, f"seed {seed}"
    assert script.hits > 5


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_a_bucket_that_is_away_for_a_while(struck: StruckShop, pause_s: float) -> None:
    """The reader stops at the limit of the queue, the lag grows, and the ingest goes on when the bucket is back, slow or not."""
    limit = 100_000
    struck.history(f"away_s = 120\nqueue_bytes = {limit}\ntransaction_bytes = 50000")
    struck.script = network = Switch(pause_s)
    made = struck.ingest()
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        wait_until(lambda: len(struck.rows_or_none("items")) == 9, "the table is read")
        wait_until(lambda: made.metrics.value("lag_seconds") == 0, "the head is reached")
        network.is_away = True
        for _ in range(20):
            struck.sql("insert into items select (select max(id) from items) + i, 0 from generate_series(1, 150) i")
        wait_until(lambda: (made.metrics.value("store_waits_total") or 0) >= 2, "the bucket is waited for")
        wait_until(lambda: (made.metrics.value("lag_seconds") or 0) > 1, "the lag grows")
        assert network.refused > 0 and 'objcat_ingest_lag_seconds{source="shop"}' in made.metrics.text()
        # One transaction of 150 rows may be more than the limit.
        assert (made.metrics.value("queue_bytes") or 0) <= limit + 150 * 600
        network.is_away = False
        wait_until(lambda: len(struck.rows("items")) == 9 + 20 * 150, "the rows come")
        wait_until(lambda: made.metrics.value("lag_seconds") == 0, "the lag is gone")
    finally:
        network.is_away = False
        made.stop()
        runner.join(60)
    assert not runner.is_alive() and duplicates(struck.changes()) == []


def test_a_bucket_that_stays_away_stops_the_run(struck: StruckShop) -> None:
    struck.ingest().once()
    changes = written(struck, 1)
    struck.history("away_s = 0.3")
    struck.script = network = Switch()
    network.is_away = True
    with pytest.raises(Unavailable):
        struck.ingest().run()
    network.is_away = False
    struck.ingest().once()
    assert struck.changes() == READ + changes


def test_a_local_disk_that_is_full(struck: StruckShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large transaction waits on disk. Where there is no room, the run stops with a message, and the next one has the rows."""
    struck.history("transaction_bytes = 20000")
    struck.ingest().once()
    struck.sql("insert into items select i, 1 from generate_series(1000, 9000) i")

    def full(**_: Any) -> Any:
        return open("/dev/full", "w+b")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(StoreFull, match="TMPDIR"):
            struck.ingest().once()
    assert struck.changes() == READ
    struck.ingest().once()
    assert struck.changes() == READ + [("insert", number, 1) for number in range(1000, 9001)]
