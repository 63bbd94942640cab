"""`./dev bench derived`: all sides run, rows that differ have no time, and rows of objcat that differ make it fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import derived_bench
from benchmarks.derived_peers import DERIVED_PEERS, forgets
from benchmarks.peers.derived_dbt import merge_model, table_model

SMALL = ["--rows", "2000", "--rounds", "1"]


def run(place: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """The status of the command, and its results."""
    status = derived_bench.main([*SMALL, "--directory", str(place), "--json", str(place / "found.json"), *more])
    return status, json.loads((place / "found.json").read_text())["results"]


@pytest.mark.tier("all")
def test_a_refresh_gives_the_rows_of_its_query(tmp_path: Path) -> None:
    status, results = run(tmp_path)
    assert status == 0
    assert [(one["query"], one["change"]) for one in results] == [
        (query, kind) for query in derived_bench.QUERIES for kind in ("recent", "scattered")
    ]
    assert all(set(one["median"]) == {"refresh", "recompute"} and one["keys that differ"] == {"recompute": [0, 0]} for one in results)


@pytest.mark.tier("integration")
def test_rows_that_differ_have_no_time_and_make_it_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(derived_bench, "QUERIES", {"extremes": derived_bench.QUERIES["extremes"]})
    sides_of = derived_bench.sides_of

    def one_row_less(*asked: Any) -> Any:
        refreshed, whole = sides_of(*asked)
        return [refreshed, derived_bench.BenchSide(whole.name, whole.run, lambda: whole.rows().slice(1))]

    monkeypatch.setattr(derived_bench, "sides_of", one_row_less)
    status, results = run(tmp_path)
    assert status == 1
    assert [(set(one["median"]), one["keys that differ"], one["wrong"]) for one in results] == [
        ({"refresh"}, {"recompute": [1, 1]}, ["recompute"])
    ] * 2
    assert "keys that differ: recompute 1; WRONG: recompute" in capsys.readouterr().out


@pytest.mark.tier("all")
@pytest.mark.timeout(1800)
def test_all_tools_follow_the_changes(tmp_path: Path) -> None:
    """dbt on objcat and on Delta Lake, and declarative pipelines of Spark. Merges of groups forget some, as the page says."""
    status, results = run(tmp_path, "--spark", "--peers", *DERIVED_PEERS)
    assert status == 0, results
    for one in results:
        sides = {"recompute", "spark", *(f"{peer.name}, {way}" for peer in DERIVED_PEERS.values() for way in peer.ways)}
        assert set(one["keys that differ"]) == sides
        exact = {side for side in sides if not forgets(derived_bench.QUERIES[one["query"]][0], side.rpartition(" ")[2])}
        assert exact <= set(one["median"])


def test_keys_whose_rows_differ_are_counted() -> None:
    one = pa.table({"k": [1, 2, 3], "v": ["a", "b", None]})
    other = pa.table({"v": [None, "c", "d"], "k": pa.array([3, 2, 4], pa.int32())})
    assert derived_bench.differing(one, one.take([2, 0, 1]), ["k"]) == 0
    # 1 is missing, 2 has another value, 4 should not be there.
    assert derived_bench.differing(one, other, ["k"]) == 3


def test_models_of_dbt_follow_the_changed_trips_alone() -> None:
    """With their sources by name, a filter that only later runs have, and deletes of rows that no longer fit the query."""
    join, key = derived_bench.QUERIES["join"]
    model = merge_model(join, key)
    assert "{{ var('sources') }}trips t JOIN {{ var('sources') }}drivers d" in model
    assert "WHERE t.km > 0 {% if is_incremental() %}AND t.batch > {{ env_var('BENCH_SINCE') }}{% endif %}" in model
    assert "WHEN MATCHED THEN DELETE" in model
    extremes, key = derived_bench.QUERIES["extremes"]
    assert "WHERE (t.city, t.hour) IN (SELECT city, hour FROM" in merge_model(extremes, key)
    assert merge_model(extremes, key).rstrip().endswith("{% endif %} GROUP BY t.city, t.hour")
    assert "is_incremental" not in table_model(extremes, key)
    assert [forgets(join, "merge"), forgets(extremes, "merge"), forgets(extremes, "table")] == [False, True, False]
