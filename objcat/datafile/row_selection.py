"""Rows of a table in another order, which are copied only where they are needed.

A sort by file group and key moves every row. To copy all of them at once takes as much memory again, and one thread. A file group that
copies its own rows holds these alone, in the thread that writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PIECE_ROWS_MIN = 1024
"""Rows that a part takes from a batch, on average. For fewer, all batches of a table are joined first."""

_Numbers = npt.NDArray[np.int64]


class RowSelection:
    """Some rows of a table by number. Many threads may copy parts of it.

    Args:
        source: the rows.
        numbers: of the selected rows, in their order.
        parts: into how many parts it will be cut, about.
    """

    def __init__(self, source: pa.Table, numbers: _Numbers, *, parts: int = 1) -> None:
        self._schema = source.schema
        self._numbers = numbers
        self._bytes = int(source.nbytes * len(numbers) // max(1, source.num_rows))
        batches = source.to_batches()
        if parts * len(batches) * PIECE_ROWS_MIN > len(numbers):
            batches = source.combine_chunks().to_batches()
        self._batches = batches
        self._begins = np.cumsum([0, *(batch.num_rows for batch in batches)])

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        """Arrow bytes of the rows, about."""
        return self._bytes

    def table(self) -> pa.Table:
        """All rows."""
        return self.rows(0, self.num_rows)

    def rows(self, start: int, end: int) -> pa.Table:
        """The rows from `start` to `end`: a copy, unless they lie one after another."""
        return self._taken(self._numbers[start:end])

    def pieces(self, start: int, end: int, *, rows_max: int) -> Iterator[pa.Table]:
        """The same, a few at a time."""
        for at in range(start, end, rows_max):
            yield self.rows(at, min(end, at + rows_max))

    def only(self, ranges: Sequence[tuple[int, int]]) -> Self:
        """The rows of some ranges, one after another."""
        chosen = object.__new__(type(self))
        chosen._schema, chosen._batches, chosen._begins = self._schema, self._batches, self._begins
        chosen._numbers = np.concatenate([np.zeros(0, np.int64), *(self._numbers[start:end] for start, end in ranges)])
        chosen._bytes = self._bytes * len(chosen._numbers) // max(1, len(self._numbers))
        return chosen

    def _taken(self, numbers: _Numbers) -> pa.Table:
        """Arrow would join the batches for each call."""
        if not len(numbers):
            return self._schema.empty_table()
        if numbers[-1] - numbers[0] == len(numbers) - 1 and (numbers[1:] > numbers[:-1]).all():
            # They lie one after another already.
            return pa.Table.from_batches(self._batches, schema=self._schema).slice(int(numbers[0]), len(numbers))
        if len(self._batches) == 1:
            return pa.Table.from_batches([self._batches[0].take(pa.array(numbers))], schema=self._schema)
        if (numbers[1:] < numbers[:-1]).any():
            # First by batch, then in order.
            order = np.argsort(numbers, kind="stable")
            places = np.empty(len(numbers), np.int64)
            places[order] = np.arange(len(numbers))
            return self._taken(numbers[order]).combine_chunks().take(pa.array(places))
        cuts = np.searchsorted(numbers, self._begins)
        found = [
            batch.take(pa.array(numbers[start:end] - begin))
            for batch, start, end, begin in zip(self._batches, cuts[:-1].tolist(), cuts[1:].tolist(), self._begins.tolist(), strict=False)
            if start < end
        ]
        return pa.Table.from_batches(found, schema=self._schema)
