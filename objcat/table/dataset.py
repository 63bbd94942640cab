"""A scan as an Arrow dataset: each query names its columns and filter, and the scan is planned again for these.

Arrow's own datasets are files, and a table is not: rows in log files replace others, and columns are stored under names that never change.
So this has the methods of a dataset, and a scan answers them.
"""

# ruff: noqa: A002 - the names of methods and arguments are Arrow's

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from objcat.predicate.implied import names_in, tree_of

if TYPE_CHECKING:
    import polars as pl

READ_AHEAD_BATCHES = 1
"""Batches that Arrow takes ahead of its consumer; the scan reads ahead itself."""
TUNING = frozenset(
    {
        *("batch_size", "batch_readahead", "fragment_readahead", "fragment_scan_options"),
        *("use_threads", "cache_metadata", "memory_pool"),
    }
)
"""Arguments of Arrow's reads that tune file access; there are no files to see here."""

Columns = Sequence[str] | Mapping[str, pc.Expression]


class DatasetRows(Protocol):
    """What a read needs of a scan."""

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows, as a stream."""

    def count(self) -> int:
        """The number of rows."""


@dataclass(frozen=True, slots=True)
class DatasetReader:
    """Answers a dataset.

    Attributes:
        schema: of everything that can be asked for.
        filterable: columns that a filter of `exactly` may name.
        exactly: makes a scan of some columns (all when None) of the rows that pass a filter, up to a number of rows.
        possibly: the same for all rows that may pass a filter, whatever NaN means to it.
    """

    schema: pa.Schema
    filterable: Collection[str]
    exactly: Callable[[Sequence[str] | None, pc.Expression | None, int | None], DatasetRows]
    possibly: Callable[[Sequence[str] | None, pc.Expression | None, int | None], DatasetRows]


class ScanDataset(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A `pyarrow.dataset.Dataset` over the rows of a scan, pinned to its snapshot. Safe for many threads; not picklable.

        dataset = table.scan().to_dataset()
        duckdb.sql("SELECT city, count(*) FROM dataset WHERE id < 1000 GROUP BY city")
        dataset.to_table(columns=["city"], filter=pc.field("id") < 1000)

    A read takes the columns that it names and the files that its filter may match, and returns exactly the rows that pass. A comparison
    with NaN is false, as in Arrow. Reads raise as those of a scan. Files (`get_fragments`) are not shown, because they hold rows that no
    longer count. Other methods that depend on files or row order raise NotImplementedError too, and name an alternative.
    """

    def __init__(self, source: DatasetReader, where: pc.Expression | None = None) -> None:
        # Without Arrow's own state, so every method that would use it is defined here.
        self._source = source
        self._where = where

    def __repr__(self) -> str:
        where = "" if self._where is None else f", where {' '.join(str(self._where).split())}"
        return f"ScanDataset({', '.join(self.schema.names)}{where})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A dataset of a scan cannot be pickled. Open the table where it is needed, table.scan(...).to_dataset().")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._source.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What is known of every row: nothing."""
        return pc.scalar(True)

    # ---- reads

    def scanner(self, columns: Columns | None = None, filter: pc.Expression | None = None, **tuning: Any) -> pads.Scanner:
        """A scanner for one use.

        Args:
            columns: names in the order wanted, or expressions by name; all when None.
            filter: over the columns.
            tuning: the other arguments of Arrow's method, which change nothing here.

        Returns:
            A `pyarrow.dataset.Scanner`.
        """
        _check(tuning)
        rows, projection, rest = self._narrowed(columns, filter)
        ahead = {"batch_readahead": READ_AHEAD_BATCHES, "fragment_readahead": READ_AHEAD_BATCHES}
        return pads.Scanner.from_batches(rows.to_batches(), columns=projection, filter=rest, **ahead)

    def to_batches(self, columns: Columns | None = None, filter: pc.Expression | None = None, **tuning: Any) -> Iterator[pa.RecordBatch]:
        """The rows as record batches. Arguments as for `scanner`."""
        _check(tuning)
        rows, projection, rest = self._narrowed(columns, filter)
        if projection is None and rest is None:
            return iter(rows.to_batches())
        return iter(self.scanner(columns, filter).to_batches())

    def to_table(self, columns: Columns | None = None, filter: pc.Expression | None = None, **tuning: Any) -> pa.Table:
        """All rows. Arguments as for `scanner`."""
        return self.scanner(columns, filter, **tuning).to_table()

    def head(self, num_rows: int, columns: Columns | None = None, filter: pc.Expression | None = None, **tuning: Any) -> pa.Table:
        """`num_rows` rows, no particular ones; little more than these are read. Other arguments as for `scanner`."""
        _check(tuning)
        rows, projection, rest = self._narrowed(columns, filter, max(0, num_rows))
        return pads.Scanner.from_batches(rows.to_batches(), columns=projection, filter=rest).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **tuning: Any) -> int:
        """The number of rows that pass; from metadata alone where that is exact, see `Scan.count`."""
        _check(tuning)
        rows, _, rest = self._narrowed(None, filter)
        return rows.count() if rest is None else sum(batch.num_rows for batch in self.to_batches(None, filter))

    def filter(self, expression: pc.Expression) -> ScanDataset:
        """The dataset of the rows that pass."""
        return ScanDataset(self._source, self._together(expression))

    def possible(self, columns: Sequence[str] | None, filter: pc.Expression | None, rows_max: int | None) -> Iterator[pa.RecordBatch]:
        """Rows that include all that may pass a filter, whatever NaN means to it. `rows_max`: that many of them, no particular ones."""
        names = None if columns is None else _or_some(columns, self.schema)
        return iter(self._source.possibly(names, filter, rows_max).to_batches())

    def _narrowed(
        self, columns: Columns | None, filter: pc.Expression | None, rows_max: int | None = None
    ) -> tuple[DatasetRows, Columns | None, pc.Expression | None]:
        """The rows, and the projection and filter still to be applied to them (None for none).

        `rows_max`: how many of the rows that pass are wanted.
        """
        where = self._together(filter)
        read = _names((where,)) if where is not None else []
        rest = None if read is not None and set(read) <= set(self._source.filterable) else where
        pushed, rows_max = (where, rows_max) if rest is None else (None, None)
        wanted = columns if columns is None or not isinstance(columns, Mapping) else _names(columns.values())
        if wanted is None or (rest is not None and read is None):
            return self._source.exactly(None, pushed, rows_max), columns, rest
        names = _or_some(wanted if rest is None or read is None else [*wanted, *read], self.schema)
        projection = None if not isinstance(columns, Mapping) and list(columns or ()) == names else columns
        return self._source.exactly(names, pushed, rows_max), projection, rest

    def _together(self, filter: pc.Expression | None) -> pc.Expression | None:
        if filter is None or self._where is None:
            return self._where if filter is None else filter
        return self._where & filter

    # ---- what it is not

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "A dataset of a scan has no fragments, because files hold rows that no longer count. Use to_batches(columns=..., filter=...)."
        )

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("A dataset of a scan has the schema of its table. Project with columns=, and cast what was read.")

    def take(self, indices: Any, **_: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("Rows of a scan have no numbers. Filter by the key, or use to_table().take(indices).")

    def sort_by(self, sorting: Any, **_: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("A dataset of a scan is not sorted. Use to_table().sort_by(...).")

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("A dataset of a scan has no join. Use to_table().join(...), or DuckDB or polars over it.")

    def join_asof(self, *_: Any, **__: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("A dataset of a scan has no join. Use to_table().join_asof(...), or DuckDB or polars over it.")


def lazy_frame(polars: Any, dataset: ScanDataset, *, is_pure: bool) -> pl.LazyFrame:
    """A polars frame that reads what its query needs when it is collected. `is_pure`: whether it has the same rows each time.

    polars itself applies the filters, so they mean what they mean to polars. The scan skips only what they exclude for certain.
    """

    def source(columns: list[str] | None, predicate: Any, rows_max: int | None, _: int | None) -> Iterator[Any]:
        # A limit on the rows comes before the filter.
        pushed = None if predicate is None or rows_max is not None else _as_arrow(polars, dataset.schema, predicate)
        left = rows_max
        for batch in dataset.possible(columns, pushed, rows_max):
            rows = batch if left is None else batch.slice(0, left)
            frame = polars.from_arrow(rows)
            yield frame if predicate is None else frame.filter(predicate)
            if left is not None:
                left -= rows.num_rows

    schema = polars.from_arrow(dataset.schema.empty_table()).schema
    made: pl.LazyFrame = polars.io.plugins.register_io_source(source, schema=schema, is_pure=is_pure)
    return made


class _Listening(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset without rows that records the filter it is asked for."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.heard: pc.Expression | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def to_batches(self, *, filter: pc.Expression | None = None, **_: Any) -> Iterator[pa.RecordBatch]:
        self.heard = filter
        return iter(())


def _as_arrow(polars: Any, schema: pa.Schema, predicate: Any) -> pc.Expression | None:
    """The part of a polars filter that Arrow can express; polars gives it only to the datasets that it scans."""
    listening = _Listening(schema)
    polars.scan_pyarrow_dataset(listening).filter(predicate).collect()
    return listening.heard


def _check(tuning: Mapping[str, Any]) -> None:
    if unknown := set(tuning) - TUNING:
        raise TypeError(f"A read of a dataset has no argument {min(unknown)!r}. Give columns and filter.")


def _names(expressions: Iterable[pc.Expression]) -> list[str] | None:
    """The columns that expressions read; None when that is not known."""
    trees = [tree_of(expression) for expression in expressions]
    known = [tree for tree in trees if tree is not None]
    return list(dict.fromkeys(name for tree in known for name in names_in(tree))) if len(known) == len(trees) else None


def _or_some(names: Iterable[str], schema: pa.Schema) -> list[str]:
    """Each name once; one column where there is none, because rows without columns cannot be counted."""
    return list(dict.fromkeys(names)) or [schema.names[0]]
