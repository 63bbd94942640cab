"""The runner: a real side in its process; sides that lie, fail or lack something; the order of turns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.data import Data, make_data
from benchmarks.peers import SIDES
from benchmarks.remote import Files, Remote, SideFailed, SideLacks, files_below, written
from benchmarks.run import Runner
from benchmarks.suites import SCANS, SUITES
from benchmarks.tables_bench import selected
from benchmarks.truth import Commit, state
from benchmarks.works import Chain, Layout, Step, comparable, digest_query

CHAIN = Chain(
    "orders",
    "local",
    (Layout("orders", "orders"),),
    (
        Step("load", ("orders",), "load"),
        Step("upsert", ("orders",), "upsert", batch="one"),
        Step("digest", ("orders",)),
    ),
)


@pytest.fixture(scope="module")
def data() -> Data:
    return make_data(0.001, lambda _: None)


class Told:
    """A side that answers as it should, or with the fault that it was told. calls: what all of them were asked, in order."""

    def __init__(self, name: str, directory: Path, calls: list[tuple[str, str]], fault: str = "") -> None:
        self.name, self.directory, self.calls, self.fault = name, directory, calls, fault
        self.paths: list[str] = []

    def files(self, place: str) -> Files:
        return files_below(Path(place))

    def ask(self, what: str, **arguments: Any) -> dict[str, object]:
        self.calls.append((what, self.name))
        if self.fault == f"fails at {what}":
            raise SideFailed(f"failed at {what}")
        if self.fault == f"lacks {what}":
            raise SideLacks(f"it has no {what}")
        match what:
            case "create":
                self.paths = []
                return {"place": str(self.directory / self.name)}
            case "load":
                self.paths += arguments["paths"]
            case "upsert":
                self.paths += [] if self.fault == "loses upserts" else arguments["paths"]
            case "digest":
                base, *batches = map(Path, self.paths)
                commits = [Commit("upsert", batch) for batch in batches]
                what_of = ", ".join(digest_query("orders", "duckdb").aggregates)
                sql = f"select {what_of} from ({state(base, CHAIN.layouts[0], commits)})"
                return {"rows": comparable(duckdb.execute(sql).fetchall())}
        return {"seconds": [1.0], "peak_bytes": 1, "cpu_seconds": 1.0}


def run(data: Data, tmp_path: Path, *, chain: Chain = CHAIN, rounds: int = 1, **faults: str):
    calls: list[tuple[str, str]] = []
    sides = {name.replace("_", "-"): Told(name.replace("_", "-"), tmp_path, calls, fault) for name, fault in faults.items()}
    results = Runner(sides, data, None, rounds=rounds, say=lambda _: None).run(chain)  # type: ignore[arg-type]
    return {result.work: result for result in results}, calls


def test_sides_that_hold_the_same_rows_are_right(data, tmp_path):
    results, _ = run(data, tmp_path, objcat_local="", deltalake="")
    assert [result.wrong for result in results.values()] == [{}, {}]
    assert [len(samples) for samples in results["upsert"].samples.values()] == [1, 1]


def test_a_side_that_lost_rows_is_found_and_no_work_of_the_chain_is_right(data, tmp_path):
    results, _ = run(data, tmp_path, objcat_local="", deltalake="loses upserts")
    assert [list(result.wrong) for result in results.values()] == [["deltalake"], ["deltalake"]]
    assert "instead of" in results["upsert"].wrong["deltalake"]


def test_a_side_that_fails_is_out_of_the_round_and_the_others_go_on(data, tmp_path):
    results, calls = run(data, tmp_path, objcat_local="", deltalake="fails at upsert")
    assert results["upsert"].wrong == {"deltalake": "failed at upsert"}
    assert list(results["upsert"].samples) == ["objcat-local"]
    assert ("digest", "deltalake") not in calls
    assert ("drop", "deltalake") in calls


def test_a_side_that_has_no_such_thing_is_not_wrong(data, tmp_path):
    results, _ = run(data, tmp_path, objcat_local="", pyiceberg="lacks upsert")
    assert results["upsert"].lacks == {"pyiceberg": "it has no upsert"}
    assert results["upsert"].wrong == {}


def test_a_side_without_the_table_is_not_asked_about_it(data, tmp_path):
    steps = (replace(CHAIN.steps[0], sides=("objcat-local",)), *CHAIN.steps[1:])
    results, calls = run(data, tmp_path, chain=replace(CHAIN, steps=steps), objcat_local="", deltalake="")
    assert {name for _, name in calls} == {"objcat-local"}
    assert results["upsert"].wrong == {}


def test_the_sides_take_turns_and_the_first_one_changes(data, tmp_path):
    _, calls = run(data, tmp_path, rounds=2, objcat_local="", deltalake="")
    loads = [name for what, name in calls if what == "load"]
    assert loads[:2] == loads[:1:-1]
    assert sorted(loads[:2]) == ["deltalake", "objcat-local"]


@pytest.mark.parametrize(("seconds", "uncounted"), [(60.0, 3), (0.0, 0)])
def test_the_first_calls_of_a_query_do_not_count_as_long_as_there_is_time(data, tmp_path, monkeypatch, seconds, uncounted):
    monkeypatch.setattr("benchmarks.run.WARM_S_MAX", seconds)
    query = Step("query", ("orders",), "scan", query=SCANS["orders"], warm=3, repeats=2)
    results, calls = run(data, tmp_path, chain=replace(CHAIN, steps=(CHAIN.steps[0], query), anew=False), rounds=2, objcat_local="")
    assert len(results["scan"].samples["objcat-local"]) == 4
    assert len([what for what, _ in calls if what == "query"]) == 4 + uncounted


def test_a_real_side_in_its_process(data, tmp_path):
    remote = Remote(SIDES["objcat-local"], tmp_path / "objcat-local")
    try:
        remote.start(memory="1g", cores=1)
        (result, upsert) = Runner({"objcat-local": remote}, data, data, rounds=2, say=lambda _: None).run(CHAIN)
        with pytest.raises(SideFailed, match="failed at digest: KeyError"):
            remote.ask("digest", table="nobody's")
    finally:
        remote.close()
    assert result.wrong == upsert.wrong == {}
    (samples,) = upsert.samples.values()
    assert [len(sample.seconds) for sample in samples] == [1, 1]
    assert all(sample.files and sample.bytes and sample.peak_bytes > 2**20 and sample.cpu_seconds and sample.requests for sample in samples)
    json.dumps([sample.seconds for sample in samples])


def test_a_process_that_ends_is_a_failure(tmp_path):
    remote = Remote(SIDES["objcat-local"], tmp_path / "objcat-local")
    remote.start(memory="1g", cores=1)
    remote.close()
    with pytest.raises(SideFailed, match="ended with status 0 during digest"):
        remote.ask("digest", table="orders")


def test_files_that_are_new_or_grew_count_as_written(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"12")
    before = files_below(tmp_path)
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d").write_bytes(b"1")
    (tmp_path / "c" / ".d.crc").write_bytes(b"of Hadoop")
    (tmp_path / "a").unlink()
    assert written(before, files_below(tmp_path)) == (2, 4)


@pytest.mark.parametrize("suite", SUITES)
def test_steps_of_suites_name_their_layouts_and_sides(suite):
    for chain in SUITES[suite]:
        names = {layout.name for layout in chain.layouts}
        works = [step.work for step in chain.steps if step.work]
        assert len(works) == len(set(works))
        for step in chain.steps:
            assert set(step.tables) <= names
            assert set(step.sides) <= set(SIDES)
            assert all(SIDES[side].engine == chain.engine for side in step.sides)
            assert all(count % step.blocks == 0 for _, count in step.counts)


def test_one_work_is_chosen_with_what_comes_before_it_and_the_check():
    (chain,) = selected(SUITES["write"][:1], "10 %")
    assert [step.op for step in chain.steps] == ["load", "upsert", "upsert", "digest"]
    assert [step.work for step in chain.steps] == ["", "", "upsert 10 %", ""]
    assert selected(SUITES["write"], "no such work") == []


def test_the_name_of_a_chain_and_a_colon_choose_works_of_no_other_chain():
    (chain,) = selected(SUITES["write"], "orders, merge-on-read: upsert")
    assert (chain.name, [step.work for step in chain.steps if step.work]) == ("orders, merge-on-read", ["upsert 1 %", "upsert 10 %"])
    (whole,) = selected(SUITES["services"], "orders, cleaning")
    assert whole.steps == next(one for one in SUITES["services"] if one.name == whole.name).steps
