"""The lag of an ingest: by the clock of the source, and also while the run waits for something."""

from __future__ import annotations

from fileio.testing.env import FakeEnv
from objcat.ingest.ingest_lag import IngestLag


def test_the_lag_is_that_of_the_newest_committed_change() -> None:
    env = FakeEnv(1)
    lag = IngestLag(env, fresh_s=3)
    assert lag.seconds() is None
    lag.asked(None)
    env.sleep(2)
    assert lag.seconds() is None
    lag.committed(env.now_ms() - 5_000)
    assert lag.seconds() == 5
    lag.asked(None)
    lag.reached()
    assert lag.seconds() == 0
    # A source that was asked a moment ago has moved by a sign of life at least.
    env.sleep(2)
    lag.asked(None)
    assert lag.seconds() == 0
    env.sleep(2)
    assert lag.seconds() == 4
    lag.committed(env.now_ms() - 1_000)
    assert lag.seconds() == 1


def test_a_run_that_asks_no_more_falls_behind() -> None:
    env = FakeEnv(1)
    lag = IngestLag(env, fresh_s=3)
    lag.asked(None)
    lag.reached()
    env.sleep(2)
    assert lag.seconds() == 0
    env.sleep(4)
    assert lag.seconds() == 6


def test_the_clock_of_the_source_counts() -> None:
    env = FakeEnv(1)
    lag = IngestLag(env, fresh_s=3)
    for hours in (5, -5):
        source_ms = env.now_ms() + hours * 3_600_000
        lag.asked(source_ms)
        lag.committed(source_ms - 2_000)
        assert lag.seconds() == 2 and lag.offset_s == hours * 3600
    lag.committed(env.now_ms() - 5 * 3_600_000 + 10_000)
    assert lag.seconds() == 0
