"""Sorts rows: those of an unsorted base file by key, and those of a file with a sort order by its columns.

What does not fit into memory waits on local disk, in sorted runs. So memory is limited for any file size. A z-order is an exception: it
holds the columns that it sorts by.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from objcat.datafile.local_disk import SpilledRows
from objcat.datafile.log_reader import EXPANSION
from objcat.datafile.parquet import BASE_ROW_GROUP_ROWS
from objcat.datafile.streaming_merge import cut_sorted, sort_by_key
from objcat.metadata.files import FileGroup, Order
from objcat.metadata.schema import TableSchema
from objcat.metadata.table_spec import TableSpec

SORTED_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of rows that are sorted in memory. Of more rows, two such parts are held at once."""
ZORDER_BITS = 16

_PLACE = "_objcat_place"
"""Prefix of the sort columns in runs: one per column of the order, by number, and last the number of the row."""


def kept_order(group: FileGroup, spec: TableSpec) -> Order | None:
    """The sort order that a compaction of a file group preserves: that of its base file, while the columns exist."""
    order = None if group.base is None else group.base.order
    known = {column.id for column in spec.table_schema.columns}
    return order if order is not None and known.issuperset(order.columns) else None


def lies_otherwise(group: FileGroup) -> bool:
    """Whether the rows of its base file are not sorted by key."""
    return group.base is not None and group.base.is_unsorted


def sorting_bytes(group: FileGroup) -> int:
    """Memory for sorting the rows of a file group, about."""
    return 0 if group.base is None else min(3 * SORTED_BYTES_MAX, 3 * EXPANSION * group.base.bytes)


def by_key(pieces: Iterable[pa.Table], *, key: Sequence[str]) -> Iterator[pa.Table]:
    """Rows sorted by key. Each key comes once, and none is null. Raises StoreFull if the local disk is full."""
    with tempfile.TemporaryDirectory(prefix="objcat-") as directory:
        runs: list[SpilledRows] = []
        held: pa.Table | None = None
        for rows in _gathered(pieces):
            if held is not None:
                runs.append(SpilledRows([held], Path(directory, f"run-{len(runs)}")))
            held = None
            held = sort_by_key(rows, key=key)
        if held is None:
            return
        sources: list[Iterable[pa.Table]] = [run.pieces() for run in runs]
        for cut in cut_sorted([*sources, _parts(held)], key=key):
            present = [rows for rows in cut if rows is not None]
            yield present[0] if len(present) == 1 else sort_by_key(pa.concat_tables(present), key=key)


def in_order(pieces: Iterable[pa.Table], order: Order, schema: TableSchema) -> Iterator[pa.Table]:
    """Rows of a table, under physical names, in a sort order. The sort is stable. Raises StoreFull if the local disk is full."""
    columns = [schema.by_id(column_id).physical for column_id in order.columns]
    gathered = _gathered(pieces)
    first, second = next(gathered, None), next(gathered, None)
    if first is None:
        return
    if second is None:
        yield from _parts(sorted_rows(first, columns, zorder=order.zorder))
        return
    several = chain([first, second], gathered)
    del first, second
    with tempfile.TemporaryDirectory(prefix="objcat-") as directory:
        numbered = _along_curve(several, columns, Path(directory)) if order.zorder else _numbered(several, columns)
        for rows in by_key(numbered, key=_places(len(columns), zorder=order.zorder)):
            yield rows.select([name for name in rows.column_names if not name.startswith(_PLACE)])


def sorted_rows(rows: pa.Table, columns: Sequence[str], *, zorder: bool) -> pa.Table:
    """Rows in a sort order, nulls last. Unchanged without columns."""
    if not columns:
        return rows
    if not zorder:
        return sort_by_key(rows, key=columns)
    return rows.take(pa.array(np.argsort(_zvalues(rows, columns), kind="stable")))


def _zvalues(rows: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """For every row, the interleaved bits of its ranks in each column (Morton's curve). Nulls come last.

    Ranks treat every type and every distribution of values alike.
    """
    values = np.zeros(rows.num_rows, np.uint64)
    for number, name in enumerate(columns):
        ranks = pc.rank(rows.column(name), sort_keys="ascending", tiebreaker="min")
        places = (np.asarray(ranks).astype(np.uint64) - np.uint64(1)) * np.uint64(1 << ZORDER_BITS) // np.uint64(rows.num_rows)
        for bit in range(ZORDER_BITS):
            values |= (places >> np.uint64(bit) & np.uint64(1)) << np.uint64(bit * len(columns) + number)
    return values


def _gathered(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join adjacent pieces up to the size that is sorted in memory."""
    held: list[pa.Table] = []
    size = 0
    for rows in pieces:
        if not rows.num_rows:
            continue
        held.append(rows)
        size += rows.nbytes
        if size >= SORTED_BYTES_MAX:
            together, held, size = pa.concat_tables(held), [], 0
            yield together
            del together
    if held:
        yield pa.concat_tables(held)


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, BASE_ROW_GROUP_ROWS):
        yield rows.slice(start, BASE_ROW_GROUP_ROWS)


def _places(count: int, *, zorder: bool) -> list[str]:
    """The columns that `_numbered` and `_along_curve` add."""
    return [f"{_PLACE}{number}" for number in range(2 if zorder else 2 * count + 1)]


def _numbered(pieces: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows with their sort columns, which have no nulls and are unique together."""
    begin = 0
    for rows in pieces:
        places: list[Any] = []
        for name in columns:
            values = rows.column(name)
            places += [values.is_null().cast(pa.int8()), _filled(values)]
        places.append(pa.array(np.arange(begin, begin + rows.num_rows)))
        begin += rows.num_rows
        yield _with(rows, places)


def _along_curve(pieces: Iterable[pa.Table], columns: Sequence[str], directory: Path) -> Iterator[pa.Table]:
    """Rows with their position on the curve and their number. Positions are known after all rows are read."""
    spilled: list[SpilledRows] = []
    known: list[pa.Table] = []
    for rows in pieces:
        known.append(rows.select(list(columns)))
        spilled.append(SpilledRows([rows], directory / f"part-{len(spilled)}"))
    values = _zvalues(pa.concat_tables(known), columns)
    known.clear()
    begin = 0
    for part in spilled:
        for rows in part.pieces():
            end = begin + rows.num_rows
            yield _with(rows, [pa.array(values[begin:end]), pa.array(np.arange(begin, end))])
            begin = end
        part.remove()


def _with(rows: pa.Table, places: Sequence[Any]) -> pa.Table:
    for number, values in enumerate(places):
        rows = rows.append_column(f"{_PLACE}{number}", values)
    return rows


def _filled(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Fill nulls with any value. They are not sorted by it."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    nothing: Any = 0
    if pa.types.is_decimal(values.type):
        nothing = Decimal(0)
    elif pa.types.is_string(values.type):
        nothing = ""
    elif pa.types.is_binary(values.type):
        nothing = b""
    return pc.fill_null(values, pa.scalar(nothing, values.type))
