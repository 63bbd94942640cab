"""Rows on local disk that are cut by bucket, so that a load writes one bucket after another.

A load sorts its rows by bucket and key. Of rows that are cut on their way to the disk, each part is small enough to be sorted in memory,
so no sorted run goes to the disk a second time. All rows of a key are in one part, in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.env import default_env
from objcat.common.progress import shown_progress
from objcat.datafile.batch_checks import keyed
from objcat.datafile.bucket_hash import spark_hash
from objcat.datafile.casting import plain
from objcat.datafile.local_disk import room_for_rows
from objcat.datafile.row_selection import RowSelection
from objcat.engine.row_file import RowFile
from objcat.errors import ObjcatError
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.model import Operation, WriteTask
from objcat.tasks.write_log_rows import gather

PARTS_MAX = 64
"""Parts at most. More would make pieces on disk too small."""
CUT_BYTES = 32 * 1024**2
"""Arrow bytes of rows that are cut together."""
PLAIN_BYTES_MAX = 2 * 1024**3
"""Arrow bytes that are written uncompressed. They mostly stay in the memory of the system, where compression costs more than it saves."""


@dataclass(frozen=True, slots=True)
class BucketParts:
    """Cuts rows by bucket: part n holds the buckets whose number is n modulo `count`, a divisor of the bucket count."""

    spec: TableSpec
    count: int

    @classmethod
    def of(cls, spec: TableSpec, operation: Operation) -> Self | None:
        """The parts of a batch for a table. None if the write does not sort rows by bucket, or there is only one part."""
        if operation is not Operation.INSERT or not spec.has_key or spec.is_located or spec.rewrites:
            return None
        buckets = spec.index.count
        count = max(number for number in range(1, min(PARTS_MAX, buckets) + 1) if buckets % number == 0)
        return cls(spec, count) if count > 1 else None

    def fits(self, task: WriteTask) -> bool:
        """Whether no file group of a task has rows in two parts. Bucket counts and columns may have changed since the cut."""
        counts = {task.spec.index.count, *task.bucket_counts.values()}
        is_alike = task.spec.bucket_columns == self.spec.bucket_columns and not task.spec.is_located
        return is_alike and all(count % self.count == 0 for count in counts)

    def of_rows(self, rows: pa.Table) -> npt.NDArray[np.uint16]:
        """The part of every row. Raises InvalidBatch, NullKey, and ValueError for a key that has no hash."""
        found = keyed(rows, self.spec)
        hashes = spark_hash([found.column(column.physical) for column in self.spec.bucket_columns])
        return np.mod(hashes, np.int32(self.count)).astype(np.uint16)


class PartedRows:
    """Rows of a stream in a `RowFile`, by part. See `BucketParts`.

    Rows that cannot be cut stay in their order. The write that follows says what is wrong with them.
    """

    def __init__(self, file: RowFile, schema: pa.Schema, batches: Iterable[pa.RecordBatch], parts: BucketParts) -> None:
        """Write all rows. Raises what the stream raises, and StoreFull if the local disk is full."""
        self.num_rows = 0
        self._file = file
        self._schema = schema
        self._cut = parts
        self._is_cut = True
        self._spans: list[list[tuple[int, int]]] = [[] for _ in range(parts.count)]
        self._bytes = [0] * parts.count
        self._starts: list[int] = []
        with shown_progress(default_env(), "objcat: take rows", None, unit="rows") as advance:
            writer = self._begun(compressed=False)
            for rows in gather(batches, CUT_BYTES):
                if len(self._starts) == 1 and sum(self._bytes) + rows.nbytes > PLAIN_BYTES_MAX:
                    self._end(writer)
                    writer = self._begun(compressed=True)
                self._append(writer, rows)
                self.num_rows += rows.num_rows
                advance(rows.num_rows)
                del rows
            self._end(writer)

    @property
    def part_bytes(self) -> int:
        """Arrow bytes of the rows of the largest part."""
        return max(self._bytes)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the parts that have rows."""
        return [number for number, spans in enumerate(self._spans) if spans]

    def fits(self, task: WriteTask) -> bool:
        """See `BucketParts.fits`."""
        return self._is_cut and self._cut.fits(task)

    def of_part(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in the order in which they came. Several threads may read parts."""
        for start, end in self._spans[number]:
            data = pa.allocate_buffer(end - start)
            self._file.read_at(start, memoryview(data))
            reader = pa.BufferReader(data)
            message = pa.ipc.read_message(reader)
            # The schema comes with the first batch of the file.
            yield pa.ipc.read_record_batch(pa.ipc.read_message(reader) if message.type == "schema" else message, self._schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows. Those of a key come in their order."""
        for start in self._starts:
            yield from self._file.stream(start)

    def _begun(self, *, compressed: bool) -> pa.RecordBatchWriter:
        self._starts.append(self._file.end())
        with room_for_rows():
            return self._file.writer(self._schema, compressed=compressed)

    def _end(self, writer: pa.RecordBatchWriter) -> None:
        with room_for_rows():
            writer.close()
            self._file.flush()

    def _append(self, writer: pa.RecordBatchWriter, rows: pa.Table) -> None:
        for number, part in self._parts(rows):
            for batch in part.to_batches():
                start = self._file.end()
                with room_for_rows():
                    writer.write_batch(batch)
                self._spans[number].append((start, self._file.end()))
                self._bytes[number] += batch.nbytes

    def _parts(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        try:
            numbers = self._cut.of_rows(rows)
        except (ObjcatError, ValueError):
            self._is_cut = False
            yield 0, rows
            return
        selected = RowSelection(rows, np.argsort(numbers, kind="stable"), parts=self._cut.count)
        ends = np.cumsum(np.bincount(numbers, minlength=self._cut.count)).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                yield number, selected.rows(start, end)


def can_be_cut(schema: pa.Schema) -> bool:
    """Whether rows of these columns keep their types when they are sorted and read back piece by piece."""
    return bool(plain(schema.empty_table()).schema.equals(schema))
