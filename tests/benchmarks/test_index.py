"""The suite `index`: tables of as many file groups as asked for, whatever the index, and rows that are counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

import objcat
from benchmarks.index_bench import INDEXES, WrongRows, _check, batch, main, measure

SOME = ("record", "bloom")
"""By every change: one that finds keys by itself, and one that reads files."""


@pytest.mark.parametrize("index", [index if index in SOME else pytest.param(index, marks=pytest.mark.tier("all")) for index in INDEXES])
def test_a_table_has_about_as_many_file_groups_as_asked_for(tmp_path, index):
    for keys in ("ascending", "random"):
        found = measure(tmp_path, index, keys, 120, rounds=1)
        assert 100 <= found.groups <= 140
        assert found.cold.gets > 0 and found.cold.puts > 0
        assert found.cold.read_bytes > 0 and found.warm.written_bytes > 0


def test_rows_that_are_lost_are_found(tmp_path):
    table = objcat.connect(tmp_path).create_table("t", batch(np.arange(1)).schema, key=["id"], index=objcat.RecordIndex())
    table.insert(batch(np.arange(100)))
    _check(table, np.arange(100))
    with pytest.raises(WrongRows, match="holds 100 rows of 100 keys, and should hold 101"):
        _check(table, np.arange(101))


def test_the_figures_are_kept(tmp_path, capsys):
    assert main(["--groups", "3", "--indexes", "record", "--keys", "random", "--rounds", "1", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["environment"]["command"].startswith("./dev bench index --groups 3")
    (kept,) = found["results"]
    assert kept["index"] == "record"
    assert "file groups" in capsys.readouterr().out
