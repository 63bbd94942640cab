"""`cut_source`: the source of a merge in parts by key, each of which is joined in memory. Rows of one key are in one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from objcat.datafile.bucket_hash import bucket_of
from objcat.dml.duckdb import MergeSource
from objcat.engine.row_file import FileRows, RowFile
from objcat.engine.spooled_batch import Rows, SpooledBatch
from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec

PARTS_MAX = 512
"""Parts of a source. Each is a query, and reads the file groups of its keys."""


@dataclass(frozen=True, slots=True)
class SourcePart:
    """The rows of a source whose keys have one remainder. number: the remainder. count: of parts."""

    source: MergeSource
    number: int = 0
    count: int = 1

    def matching(self, target: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a table that may match. target: under logical names."""
        columns = _hashed(self.source.spec)
        for batch in target:
            if self.count == 1:
                yield batch
                continue
            parts = bucket_of([batch.column(column.name) for column in columns], self.count)
            yield batch.filter(pa.array(parts == self.number))


def cut_source(source: MergeSource, *, bytes_max: int) -> Sequence[SourcePart]:
    """A source in parts of about that many Arrow bytes. Several parts wait on local disk.

    Under a bucket index each part has file groups of its own, as long as there are enough of them.

    Raises:
        InvalidBatch, NullKey: a row has no key that fits.
        StoreFull: the local disk is full.
    """
    count = _count(source, _bytes_of(source.rows) // max(1, bytes_max) + 1)
    if count == 1:
        return [SourcePart(source)]
    columns = _hashed(source.spec)
    file = RowFile()
    parts: list[list[FileRows]] = [[] for _ in range(count)]
    for rows in gathered(source.tables(), bytes_max):
        found = source.found(rows)
        numbers = bucket_of([found.column(column.physical) for column in columns], count)
        for number in np.unique(numbers).tolist():
            chosen = rows.filter(pa.array(numbers == number))
            parts[number].append(file.append(chosen.schema, chosen.to_batches()))
    return [
        SourcePart(replace(source, rows=SpooledBatch(source.rows.schema, part)), number, count) for number, part in enumerate(parts) if part
    ]


def _hashed(spec: TableSpec) -> list[Column]:
    return spec.key_columns if spec.is_located else spec.bucket_columns


def _count(source: MergeSource, wanted: int) -> int:
    """How many parts there are: a divisor or a multiple of the bucket count, so that a part has whole buckets, or a bucket whole parts."""
    spec = source.spec
    wanted = min(wanted, PARTS_MAX)
    if spec.is_located or wanted == 1:
        return wanted
    buckets = spec.index.count
    if wanted > buckets:
        return -(-wanted // buckets) * buckets
    return next(count for count in range(wanted, buckets + 1) if buckets % count == 0)


def _bytes_of(rows: Rows) -> int:
    """The Arrow bytes of rows, those on disk by the measure of the first ones."""
    if isinstance(rows, pa.Table):
        return int(rows.nbytes)
    first = next(rows.to_batches(), None)
    return 0 if first is None else first.nbytes * rows.num_rows // max(1, first.num_rows)


def gathered(tables: Iterable[pa.Table], bytes_max: int) -> Iterator[pa.Table]:
    """Tables of about that many Arrow bytes, made of smaller ones."""
    held: list[pa.Table] = []
    size = 0
    for rows in tables:
        held.append(rows)
        size += rows.nbytes
        if size >= bytes_max:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
