"""Finds row groups of a base file that may hold some keys, by bloom filters and bounds, without reading keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from objcat.datafile.bloom import Filter, Hashes, may_hold, parse_filter, physical_type, ranges_of, value_hashes
from objcat.metadata.table_spec import TableSpec

FILTERS_BYTES_MAX = 128 * 1024**2
"""Bytes of filters that a handle caches."""
_APART_BYTES_MAX = 4096
"""Filters no further apart than this are read together."""


class FilterFile(Protocol):
    """A file to read filters from."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Keys to look for. Picklable.

    columns: physical names of the key columns with filters, and their physical types. hashes: for each column, of every key. key: the
    first
    key column. first: its values, which are compared with the bounds of row groups.
    """

    columns: dict[str, str]
    hashes: tuple[Hashes, ...]
    key: str
    first: pa.ChunkedArray

    @classmethod
    def of(cls, spec: TableSpec, rows: pa.Table) -> Probe:
        """The probe for some keys. rows: the key columns, under physical names."""
        names = [column.physical for column in spec.key_columns if column.id in spec.filtered]
        columns = {name: physical_type(rows.column(name).type) for name in names}
        key = spec.key_columns[0].physical
        return cls(columns, tuple(value_hashes(rows.column(name)) for name in names), key, rows.column(key))

    @classmethod
    def of_all(cls, probes: Sequence[Probe]) -> Probe:
        """One probe for keys in parts, at least one."""
        hashes = tuple(np.concatenate(parts) for parts in zip(*(probe.hashes for probe in probes), strict=True))
        first = pa.chunked_array([chunk for probe in probes for chunk in probe.first.chunks], probes[0].first.type)
        return cls(probes[0].columns, hashes, probes[0].key, first)

    def within(self, bounds: Bounds | None) -> npt.NDArray[np.int64]:
        """The numbers of the keys inside some bounds."""
        if bounds is None:
            return np.arange(len(self.first))
        within = pc.and_(pc.greater_equal(self.first, bounds[0]), pc.less_equal(self.first, bounds[1]))
        return np.flatnonzero(np.asarray(within))


Bounds = tuple[pa.Scalar, pa.Scalar]
"""Of the first key column, both included."""


@dataclass(frozen=True, slots=True)
class FileFilters:
    """What is known of the row groups of a file.

    known: False if the file has no filters, or of an unknown kind. bytes: memory that this takes.
    """

    row_groups: int
    bounds: tuple[Bounds | None, ...] = ()
    blocks: tuple[tuple[Filter, ...], ...] = ()
    known: bool = False
    bytes: int = 0

    def may_hold(self, probe: Probe) -> list[int]:
        """The numbers of row groups that may hold a key: all its filters accept one."""
        if not self.known:
            return list(range(self.row_groups))
        return [number for number in range(self.row_groups) if self._may_hold(number, probe)]

    def _may_hold(self, number: int, probe: Probe) -> bool:
        keys = probe.within(self.bounds[number])
        for blocks, hashes in zip(self.blocks[number], probe.hashes, strict=True):
            keys = keys[may_hold(blocks, hashes[keys])]
        return bool(len(keys))


def read_filters(footer: pq.FileMetaData, source: FilterFile, probe: Probe) -> FileFilters:
    """The filters of a file. One read if they are adjacent, as in our own files. Raises what `source` raises."""
    ranges = ranges_of(footer, probe.columns) if probe.columns else None
    if ranges is None:
        return FileFilters(footer.num_row_groups)
    data = _read(source, sorted({one for group in ranges for one in group}))
    parsed = [[parse_filter(data[one]) for one in group] for group in ranges]
    blocks = tuple(tuple(one for one in group if one is not None) for group in parsed)
    if any(len(group) < len(probe.columns) for group in blocks):
        return FileFilters(footer.num_row_groups)
    key = next(at for at in range(footer.num_columns) if footer.schema.column(at).path == probe.key)
    first = probe.first.type
    bounds = tuple(_bounds(footer.row_group(number).column(key), first) for number in range(footer.num_row_groups))
    size = sum(one.nbytes for group in blocks for one in group) + 1024 * footer.num_row_groups
    return FileFilters(footer.num_row_groups, bounds, blocks, known=True, bytes=size)


def _read(source: FilterFile, ranges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """The bytes of some ranges (offset, length), in order."""
    runs: list[list[tuple[int, int]]] = []
    for one in ranges:
        if runs and one[0] - sum(runs[-1][-1]) <= _APART_BYTES_MAX:
            runs[-1].append(one)
        else:
            runs.append([one])
    found = {}
    for run in runs:
        begin = run[0][0]
        source.seek(begin)
        data = source.read(sum(run[-1]) - begin)
        found.update({(offset, length): bytes(data[offset - begin : offset - begin + length]) for offset, length in run})
    return found


def _bounds(chunk: pq.ColumnChunkMetaData, data_type: pa.DataType) -> Bounds | None:
    """Bounds from a footer. None if it has none, or in another order than the values compare."""
    known: Any = chunk.statistics
    if known is None or not known.has_min_max:
        return None
    if pt.is_integer(data_type) or pt.is_date32(data_type) or pt.is_timestamp(data_type):
        whole = pa.int64() if data_type.bit_width == 64 else pa.int32()
        low, high = (pa.scalar(int(raw), whole).cast(data_type) for raw in (known.min_raw, known.max_raw))
        return low, high
    return (pa.scalar(known.min, data_type), pa.scalar(known.max, data_type)) if pt.is_string(data_type) else None
