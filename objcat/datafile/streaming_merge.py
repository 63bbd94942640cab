"""Merging files that are sorted by key without holding them: all of them are cut at common keys, and each cut is merged by itself.

Base files are sorted by key, and so are the rows of one file group in a log object, each key once in each. A cut holds every row of its
keys, so that whatever a merge, a rewrite or a compaction does to the rows of a key can be done cut by cut, with the memory of a few row
groups."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.errors import CorruptTable


def cut_sorted(sources: Sequence[Iterable[pa.Table]], *, key: Sequence[str]) -> Iterator[list[pa.Table | None]]:
    """Pieces of some sources, cut so that every row of a key is in one cut: of each source its rows, None where it has none there.

    sources: each yields tables which, one after the other, are sorted by `key` as Arrow sorts, ascending, and have each key once (the only
    table of a source may have a key several times). Cuts come by ascending key. Holds one table of every source, and takes a next one only
    when it is needed. Raises CorruptTable for a null in a key.
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
    """The rows by ascending key, nulls last; those of one key keep their order."""
    # In text, Arrow takes what begins with a dot for a path.
    return rows.take(pc.sort_indices(rows.select(list(key)), sort_keys=[(pc.field(name), "ascending") for name in key]))


class _RunHead:
    """What is at hand of one source. rows: not empty; None when the source has come to its end."""

    def __init__(self, source: Iterable[pa.Table], key: Sequence[str]) -> None:
        self._source = iter(source)
        self._key = key
        self._begin = 0
        self._keys: list[Any] = []
        self.rows: pa.Table | None = None

    @property
    def last_key(self) -> tuple[Any, ...]:
        return self._key_at(-1)

    def fill(self) -> None:
        """Have rows at hand, if any are left."""
        while self.rows is None:
            rows = next(self._source, None)
            if rows is None:
                return
            if rows.num_rows:
                self._check_keys(rows)
                self.rows, self._begin = rows, 0
                self._keys = [_comparable(rows.column(name)) for name in self._key]

    def _check_keys(self, rows: pa.Table) -> None:
        """No key has a null: where one comes, columns are not where the schema says that they are."""
        empty = [name for name in self._key if rows.column(name).null_count]
        if empty:
            raise CorruptTable(
                f"the key column {empty[0]!r} has nulls in rows of a file group: its files were written under another schema. Nothing was "
                "changed. Run `objcat doctor` to see which object is damaged, and restore it from a backup of the bucket"
            )

    def take_all(self) -> pa.Table | None:
        if self.rows is None:
            return None
        taken, self.rows = self.rows.slice(self._begin), None
        return taken

    def take_through(self, cut: tuple[Any, ...]) -> pa.Table | None:
        """The rows at hand up to a key, itself included."""
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
    """Values that Python compares as Arrow sorts them. Dates and times as numbers: Python's own do not reach as far."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _orderly(value: Any) -> Any:
    """NaN, which Arrow sorts after all numbers, compares with nothing in Python."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value
