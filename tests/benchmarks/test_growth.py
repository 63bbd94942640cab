"""What operations ask of the store does not follow the number of files, and the clock of the simulated store counts what overlaps once."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from benchmarks import growth_page
from benchmarks.day_bench import Run, Shape, bills
from benchmarks.growth_bench import Cost, cost, sides_of
from benchmarks.growth_iceberg import IcebergState
from benchmarks.growth_states import of_commits, of_files, of_tables
from benchmarks.simulated_store import BYTES_PER_S, CALLS_AT_ONCE, LATENCY_S, Charges, SimulatedBackend
from fileio.contract import Create
from fileio.env import map_io

SIZES = (100, 10_000)


@pytest.fixture(scope="module")
def costs() -> dict[int, dict[str, Cost]]:
    """What operations take beside few files and beside many. Each finds the state as the one before left it."""
    found: dict[int, dict[str, Cost]] = {}
    for size in SIZES:
        state, (own, _) = of_files(size), sides_of("files")
        found[size] = {name: cost(own, state, "files", size, name) for name in ("open", "plan", "lookup", "commit")}
    return found


@pytest.mark.parametrize("operation", ["open", "plan", "lookup", "commit"])
def test_requests_and_round_trips_do_not_follow_the_files(costs: dict[int, dict[str, Cost]], operation: str) -> None:
    few, many = (costs[size][operation] for size in SIZES)
    assert sum(many.requests.values()) <= sum(few.requests.values()) + 2, (few, many)
    assert many.trips <= few.trips + 1, (few, many)


def test_every_operation_runs_beside_a_long_log() -> None:
    state, (own, _) = of_commits(100), sides_of("commits")
    for operation in own.names:
        assert cost(own, state, "commits", 100, operation).requests, operation


def test_pyiceberg_runs_on_the_same_store() -> None:
    state, (_, peer) = IcebergState(2_000), sides_of("files")
    asked = {operation: cost(peer, state, "files", 2_000, operation).requests for operation in peer.names}
    assert asked["open"] == {"GET": 1}
    assert asked["commit"]["PUT"] == 4  # Data, manifest, manifest list, metadata file.


def test_a_table_is_found_among_many_names_by_as_many_requests() -> None:
    (own,) = sides_of("tables")
    few, many = (cost(own, of_tables(size), "tables", size, "open") for size in (10, 1_500))
    assert sum(many.requests.values()) <= sum(few.requests.values()) + 4, (few, many)


def asked(state: SimulatedBackend, calls: int, *, beside: bool) -> tuple[float, int]:
    """Simulated seconds and round trips in sequence of so many reads."""
    fileio = state.opened()
    state.charges = Charges()
    keys = ["one"] * calls
    if beside:
        map_io(fileio.env, fileio.read, keys)
    else:
        for key in keys:
            fileio.read(key)
    ended_s = state.clock.monotonic_s()
    charges, state.charges = state.charges, None
    assert charges.kinds == {"GET": calls}
    return ended_s, charges.in_sequence(ended_s)


def test_requests_that_overlap_are_charged_once() -> None:
    state = SimulatedBackend()
    state.opened().put("one", b"x" * 1_000_000, Create())
    each_s = LATENCY_S + 1_000_000 / BYTES_PER_S
    for calls, beside, trips in ((4, False, 4), (4, True, 1), (CALLS_AT_ONCE + 1, True, 2)):
        seconds, found = asked(state, calls, beside=beside)
        assert seconds == pytest.approx(trips * each_s)
        assert found == trips


def test_what_runs_in_the_background_takes_no_time_of_the_caller() -> None:
    state = SimulatedBackend()
    fileio = state.opened()
    fileio.put("one", b"x", Create())
    state.charges = charges = Charges()
    reading = fileio.env.submit_io(partial(fileio.read, "one"))
    assert fileio.env.monotonic_s() == 0
    assert charges.in_sequence(0) == 0
    assert reading.result() == b"x"
    assert fileio.env.monotonic_s() == pytest.approx(LATENCY_S, abs=1e-6)


def test_exponents_are_slopes_and_a_logarithm_is_not_said_to_grow() -> None:
    sizes = [10.0**power for power in range(2, 7)]
    assert growth_page.exponent([(size, 3 * size) for size in sizes]) == pytest.approx(1)
    assert growth_page.exponent([(size, 7.0) for size in sizes]) == pytest.approx(0)
    assert growth_page.grows([(size, size**0.5) for size in sizes], "requests")
    assert not growth_page.grows([(size, 5 * size.bit_length()) for size in map(int, sizes)], "requests")


def test_the_page_has_a_plot_and_says_what_grows(tmp_path: Path) -> None:
    def result(size: int, requests: int) -> dict[str, object]:
        shared = {"bytes_read": 10, "bytes_written": 0, "seconds": 0.02, "cpu_s": 0.001, "peak_bytes": 0, "trips": 1}
        return {"side": "objcat", "axis": "files", "size": size, "operation": "plan", "requests": {"GET": requests}, **shared}

    told = {"command": "bench", "tree": "abc", "began": "now", "machine": "2 cores"}
    figures = {"files": {"environment": told, "results": [result(size, size // 10) for size in (1_000, 10_000, 100_000)]}}
    page = tmp_path / "growth.md"
    growth_page.write(page, figures)
    assert "| plan one partition | 1.00 | 0.00 | 0.00 | 0.00 | requests:" in page.read_text()
    assert (tmp_path / "growth-files.svg").read_text().startswith("<svg")


def test_the_page_says_what_a_day_lost_and_costs(tmp_path: Path) -> None:
    result = asdict(Run(Shape(writers=1, tables=1, hours=0.004)).run())
    told = {"command": "bench", "tree": "abc", "began": "now", "machine": "2 cores"}
    page = tmp_path / "growth.md"
    growth_page.write(page, {}, {"environment": told, "result": {**result, "lost": 7}, "bills": bills(result)})
    assert "at their slot | 7 |" in page.read_text()
    assert "| Iceberg | " in page.read_text()
