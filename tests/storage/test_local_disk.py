"""Rows that wait on local disk: they come back as they were, in pieces that are small whatever their width."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from objcat.datafile.local_disk import PIECE_BYTES, PIECE_ROWS, SpilledRows


@pytest.mark.parametrize("seed", range(4))
def test_any_stretch_of_rows_comes_back(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    heights = [dice.choice([1, 7, 300, PIECE_ROWS, 3 * PIECE_ROWS + 1]) for _ in range(12)]
    count = sum(heights)
    rows = pa.table({"number": range(count), "text": [None if dice.random() < 0.1 else "x" * dice.randrange(9) for _ in range(count)]})
    starts = [sum(heights[:at]) for at in range(len(heights))]
    spilled = SpilledRows([rows.slice(start, height) for start, height in zip(starts, heights, strict=True)], tmp_path / "rows")
    pieces = list(spilled.pieces())
    assert pa.concat_tables(pieces).equals(rows) and len(pieces) <= 2 * count // PIECE_ROWS + 1
    for _ in range(20):
        start = dice.randrange(count)
        end = dice.randint(start + 1, min(count, start + dice.choice([1, 500, count])))
        assert pa.concat_tables(spilled.pieces(start, end)).equals(rows.slice(start, end - start))
    spilled.remove()
    assert list(tmp_path.iterdir()) == []


def test_pieces_of_wide_rows_are_as_small(tmp_path: Path) -> None:
    wide, narrow = pa.table({"text": ["x" * 100_000] * 200}), pa.table({"text": ["y"] * 50_000})
    pieces = list(SpilledRows([narrow, wide, narrow], tmp_path / "rows").pieces())
    assert pa.concat_tables(pieces).equals(pa.concat_tables([narrow, wide, narrow]))
    assert max(piece.nbytes for piece in pieces) <= PIECE_BYTES and max(piece.num_rows for piece in pieces) <= PIECE_ROWS
    assert len(pieces) < 30


def test_pieces_are_as_small_where_the_wide_rows_are_neighbours(tmp_path: Path) -> None:
    rows = pa.table({"text": ["y"] * 50_000 + ["x" * 100_000] * 200 + ["x" * 3 * PIECE_BYTES]})
    pieces = list(SpilledRows([rows], tmp_path / "rows").pieces())
    assert pa.concat_tables(pieces).equals(rows)
    assert max(piece.nbytes for piece in pieces if piece.num_rows > 1) <= PIECE_BYTES and len(pieces) < 30
