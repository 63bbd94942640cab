"""Other tools beside `objcat ingest`: a lake that differs has no figures, a tool that fails stops no other, and what a run subtracts."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ingest_bench
from benchmarks.ingest_debezium import DebeziumPipeline
from benchmarks.ingest_peers import PEERS
from benchmarks.ingest_works import LakeDiffers, stream_sample
from benchmarks.measured import RunFailed, Took

ROWS = (3, 6, 2, 1, 40, 9, 5)


def _pipeline(monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...]) -> DebeziumPipeline:
    pipeline = DebeziumPipeline(SimpleNamespace(digest=lambda: ROWS), Path())  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline, "_streaming", SimpleNamespace(ask=lambda _: {"digest": list(rows)}), raising=False)
    return pipeline


def test_a_table_of_hudi_that_differs_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    _pipeline(monkeypatch, ROWS).check()
    with pytest.raises(LakeDiffers, match="the table of Hudi"):
        _pipeline(monkeypatch, (*ROWS[:-1], 6)).check()


def test_a_tool_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any, **__: Any) -> dict[str, float]:
        raise RunFailed("it ended")

    said: list[str] = []
    monkeypatch.setitem(PEERS, "dlt", ("dlt", fail))
    monkeypatch.setitem(PEERS, "debezium", ("the other", lambda *_, **__: {"changes": 10.0}))
    monkeypatch.setattr(ingest_bench, "measure_streams", lambda *_, **__: {})
    chosen = argparse.Namespace(rows=10, sources=[], rounds=1, peers=["dlt", "debezium"])
    assert ingest_bench._stream(tmp_path, chosen, said.append) == {"the other": {"changes": 10.0}}
    assert "stream, dlt: no figures. RunFailed: it ended" in said


def test_a_run_without_changes_is_subtracted() -> None:
    sample = stream_sample(Took(12.0, 6.0, 100, ""), Took(2.0, 1.0, 90, ""), 50, 3.0)
    assert (sample["changes for each CPU second"], sample["changes a second"]) == (10.0, 5.0)
