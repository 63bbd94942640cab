"""Merges files that are sorted by key without holding them: it cuts all of them at common keys.

Base files, and the rows of a file group in a log object, are sorted by key, each key once. A cut holds every row of its keys. So a merge,
rewrite or compaction can work cut by cut, with the memory of a few row groups.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import CorruptTable


def cut_sorted(sources: Sequence[Iterable[pa.Table]], *, key: Sequence[str]) -> Iterator[list[pa.Table | None]]:
    """Pieces of some sources, cut so that all rows of a key are in one cut. Per source its rows, or None.

    Cuts come by ascending key. Holds one table per source, and reads the next one only when it is needed. Raises CorruptTable for a null
    key.

    sources: each yields tables sorted by `key` in Arrow's order, ascending, each key once. The only table of a source may repeat keys.
    """
    heads = [_RunHead(source, key) for source in sources]
    while True:
        for head in heads:
            head.fill()
        live = [head for head in heads if head.rows is not None]
        if not live:
            return
        if len(live) == 1:
            yield [head.take_all() for head in heads]
            continue
        cut = min(head.last_key for head in live)
        yield [head.take_through(cut) for head in heads]


def sort_by_key(rows: pa.Table, *, key: Sequence[str]) -> pa.Table:
    """The rows by ascending key, nulls last. The sort is stable."""
    # Arrow reads text that begins with a dot as a path.
    return rows.take(pc.sort_indices(rows.select(list(key)), sort_keys=[(pc.field(name), "ascending") for name in key]))


class _RunHead:
    """The rows at hand of one source. rows: not empty, or None at its end."""

    def __init__(self, source: Iterable[pa.Table], key: Sequence[str]) -> None:
        self._source = iter(source)
        self._key = key
        self._begin = 0
        self._keys: list[Any] = []
        self.rows: pa.Table | None = None

    @property
    def last_key(self) -> tuple[Any, ...]:
        """The last key at hand."""
        return self._key_at(-1)

    def fill(self) -> None:
        """Get rows if any remain."""
        while self.rows is None:
            rows = next(self._source, None)
            if rows is None:
                return
            if rows.num_rows:
                self._check_keys(rows)
                self.rows, self._begin = rows, 0
                self._keys = [_comparable(rows.column(name)) for name in self._key]

    def _check_keys(self, rows: pa.Table) -> None:
        """Check that no key is null. A null means that columns are not where the schema expects them."""
        empty = [name for name in self._key if rows.column(name).null_count]
        if empty:
            raise CorruptTable(
                f"The key column {empty[0]!r} has nulls in rows of a file group, so its files were written under another schema. "
                "Nothing was changed. Run `objcat doctor` to see which object is damaged, and restore it from a backup of the bucket."
            )

    def take_all(self) -> pa.Table | None:
        """All rows at hand."""
        if self.rows is None:
            return None
        taken, self.rows = self.rows.slice(self._begin), None
        return taken

    def take_through(self, cut: tuple[Any, ...]) -> pa.Table | None:
        """The rows at hand up to and including a key."""
        if self.rows is None:
            return None
        end = bisect.bisect_right(range(self.rows.num_rows), cut, lo=self._begin, key=self._key_at)
        if end == self.rows.num_rows:
            return self.take_all()
        taken = self.rows.slice(self._begin, end - self._begin)
        self._begin = end
        return taken if taken.num_rows else None

    def _key_at(self, row: int) -> tuple[Any, ...]:
        return tuple([_orderly(values[row].as_py()) for values in self._keys])


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Python compares in Arrow's order. Dates and times are numbers, since Python's range is smaller."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _orderly(value: Any) -> Any:
    """A NaN as a value that sorts after all numbers, as in Arrow. Python does not order NaN."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value
