"""The bar that long work draws on a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from objcat import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as stderr; not by a fixture, since pytest sets stderr anew before each test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


def long_work(place: Path) -> None:
    """An import and a compaction."""
    (place / "from").mkdir()
    for part in range(3):
        pq.write_table(pa.table({"id": range(part * 10, part * 10 + 10)}), place / "from" / f"{part}.parquet")
    lake = objcat.connect(place / "lake")
    lake.import_parquet(place / "from", "t", key=["id"], index=objcat.Bucket(2))
    table = lake.table("t")
    table.upsert([{"id": key} for key in range(50)])
    assert table.compact() is not None


def test_long_work_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    long_work(tmp_path)
    drawn = terminal.getvalue()
    assert "objcat: import into t" in drawn
    assert "objcat: compact" in drawn
    assert "100%" in drawn


def test_short_work_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 10**6)
    long_work(tmp_path)
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    long_work(tmp_path)
    assert capfd.readouterr() == ("", "")
