"""Rows that are copied where they are needed: the same rows as Arrow's own, whatever the batches and the order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from objcat.datafile import row_selection
from objcat.datafile.merge import ascends, winners
from objcat.datafile.row_selection import RowSelection

ROWS = 5000
DICE = np.random.default_rng(7)
ORDERS = {
    "as they are": np.arange(ROWS),
    "every third": np.arange(0, ROWS, 3),
    "backwards": np.arange(ROWS)[::-1].copy(),
    "shuffled": DICE.permutation(ROWS),
    "with repeats": DICE.integers(0, ROWS, 2 * ROWS),
    "none": np.zeros(0, np.int64),
}


def rows(batch_rows: int) -> pa.Table:
    whole = pa.table(
        {
            "k": pa.array(range(ROWS), pa.int64()),
            "text": pa.array([None if number % 7 == 0 else f"text {number}" for number in range(ROWS)]),
            "nested": pa.array([{"a": number, "b": [number] * (number % 3)} for number in range(ROWS)]),
        }
    )
    return pa.Table.from_batches(whole.to_batches(max_chunksize=batch_rows))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batch_rows", [ROWS, 1700, 100])
@pytest.mark.parametrize("rows_min", [1, 1024, ROWS], ids=["batches stay", "default", "batches are joined"])
def test_a_selection_is_what_arrow_takes(monkeypatch: pytest.MonkeyPatch, order: str, batch_rows: int, rows_min: int) -> None:
    monkeypatch.setattr(row_selection, "PIECE_ROWS_MIN", rows_min)
    source, numbers = rows(batch_rows), ORDERS[order].astype(np.int64)
    selection = RowSelection(source, numbers, parts=4)
    right = source.take(pa.array(numbers))
    assert selection.table().equals(right) and selection.num_rows == right.num_rows
    assert pa.concat_tables([*selection.pieces(0, len(numbers), rows_max=333), source.slice(0, 0)]).equals(right)
    start, end = len(numbers) // 3, len(numbers) // 2
    assert selection.rows(start, end).equals(right.slice(start, end - start))
    some = selection.only([(start, end), (0, start // 2)])
    assert some.table().equals(pa.concat_tables([right.slice(start, end - start), right.slice(0, start // 2)]))


def test_rows_that_ascend_are_not_sorted_and_others_are() -> None:
    """One row of many is out of order, equal to another, null or NaN: at the beginning, at the end, in another batch."""
    for count in (2, 100, 3000):
        ordered = pa.table({"a": pa.array(np.repeat(np.arange(count), 2)), "b": pa.array([0.5, 1.5] * count)})
        assert ascends(ordered, ["a", "b"]) and not ascends(ordered, ["a"]) and not ascends(ordered, ["b"])
        assert winners(ordered, key=["a", "b"], ordering=()).tolist() == list(range(2 * count))
        for at in (0, count, 2 * count - 2):
            for name, value in (("a", count), ("b", 1.5), ("b", float("nan")), ("a", None)):
                values = ordered.column(name).to_pylist()
                values[at] = value
                broken = ordered.set_column(ordered.column_names.index(name), name, pa.array(values, ordered.schema.field(name).type))
                broken = pa.concat_tables([broken.slice(0, 3), broken.slice(3)])
                moves = name == "a" and value is not None and at == 2 * count - 2
                assert not ascends(broken, ["a", "b"]) or moves, (count, at, name, value)
    assert ascends(pa.table({"a": pa.array([], pa.int64())}), ["a"]) and ascends(pa.table({"a": [1]}), ["a"])
