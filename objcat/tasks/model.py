"""What goes into a task and what comes out of it: small picklable values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import pyarrow as pa

from objcat.datafile.merge import OP_COLUMN
from objcat.datafile.parquet import TXN_COLUMN
from objcat.metadata.files import BaseFile, FileGroup, LogObject
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.arrow_expression import ArrowFilter
from objcat.predicate.parse import Predicate
from objcat.timeline.entry import FileGroupId, Txn

Filter: TypeAlias = Predicate | ArrowFilter
"""What a scan filters by, from SQL text or from Arrow."""

OP_FIELD = pa.field(OP_COLUMN, pa.int8(), nullable=False)
TXN_FIELD = pa.field(TXN_COLUMN, pa.string(), nullable=False)
PLACE_COLUMN = "_objcat_place"
"""Of a row under an index that is no hash: twice the number of its file group in `WriteTask.group_ids`, and one more when its key is new
there. Below zero: the key leaves the file group -1 - that, since its row goes to another."""
PLACE_FIELD = pa.field(PLACE_COLUMN, pa.int32(), nullable=False)


class Operation(enum.StrEnum):
    """What a write does to the keys of its rows."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """How a bulk insert into a table without a key deals rows to files: as they come; by partition, so that no two tasks write to one; or
    by columns, so that every file holds a range of their values, sorted. Names are logical."""

    by_partition: bool = False
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write rows of one transaction.

    bucket_counts: of partitions that were split. live_group_ids: of an insert into a merge-on-read table: those that have a file group,
    where rows go to log rows. groups: of a copy-on-write table: what is live, by file group. former_partitions: those partitions of former
    partitionings that have a file group. only: the file groups whose rows are written, None for all; the others are left out. delete_when:
    of an upsert: rows of the batch for which it is true are deletes. group_ids: that rows name by number in `PLACE_COLUMN`, under an index
    that is no hash. layout: of a bulk insert: rows become files of their own. Of a table without a key: fillable, the partitions with a
    file group that takes more, None where that is not known; row_bytes, of a row in a file."""

    spec: TableSpec
    txn: Txn
    operation: Operation
    bucket_counts: Mapping[str, int] = field(default_factory=dict)
    live_group_ids: frozenset[FileGroupId] = frozenset()
    groups: Mapping[FileGroupId, FileGroup] = field(default_factory=dict)
    former_partitions: frozenset[str] = frozenset()
    only: frozenset[FileGroupId] | None = None
    delete_when: Predicate | None = None
    layout: WriteLayout | None = None
    fillable: frozenset[str] | None = None
    row_bytes: float | None = None
    group_ids: tuple[FileGroupId, ...] = ()

    @property
    def routed(self) -> bool:
        """Whether all rows of a file group must meet in one task."""
        spec = self.spec
        return not spec.is_keyless and (spec.rewrites or spec.is_located or self.operation is Operation.INSERT)

    def bucket_count(self, partition: str) -> int:
        """How many buckets a partition has."""
        return self.bucket_counts.get(partition, self.spec.index.count)

    def group_id(self, bucket: int, partition: str = "") -> FileGroupId:
        """The file group of a bucket."""
        return FileGroupId(partition, bucket, self.bucket_count(partition))


class GroupRewrite(msgspec.Struct, frozen=True, array_like=True):
    """What came of one file group of a copy-on-write table.

    rows: of the batch. inserted, updated, deleted: rows of the file group. changed: else the batch left its rows as they were.
    """

    group_id: FileGroupId
    rows: int
    inserted: int
    updated: int
    deleted: int
    changed: bool


class WriteResult(msgspec.Struct, frozen=True):
    """Files that a task wrote. rows: after folding repeated keys. rewritten: the file groups that a copy-on-write task has read.

    placed, updated: under an index that is no hash: digests of the keys that were inserted, moved or deleted, and of the others; 8 bytes
    each, little endian. moved: rows that were there and went to another file group. index: log objects of the record index, in order.
    """

    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogObject, ...] = ()
    rows: int = 0
    rewritten: tuple[GroupRewrite, ...] = ()
    placed: bytes = b""
    updated: bytes = b""
    moved: int = 0
    index: tuple[LogObject, ...] = ()

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(
            self.bases + other.bases,
            self.logs + other.logs,
            self.rows + other.rows,
            self.rewritten + other.rewritten,
            self.placed + other.placed,
            self.updated + other.updated,
            self.moved + other.moved,
            self.index + other.index,
        )


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Read and merge the rows of some file groups.

    columns: logical names and hidden ones (`FILE_COLUMN`, `TXN_COLUMN`), in order. where: keeps the rows for which it is true.
    """

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    columns: tuple[str, ...]
    where: Filter | None
