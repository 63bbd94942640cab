"""Tasks and their results: small picklable values that a driver exchanges with workers.

`WriteTask` says what to write and where. `WriteResult` names the files that came of it. `ScanTask` reads file groups.
`objcat.write` and the table services make the tasks. The engines (local threads, Spark) ship them to the functions of this package:
`write_batches` picks the function for a write, `scan` reads, `rewrite_groups` merges.
A task holds no connection and claims no slot. Files of a task are visible only after the driver commits them.
So a task may run again: a repeated run writes other file names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import pyarrow as pa

from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.merge import OP_COLUMN
from objcat.metadata.files import BaseFile, FileGroup, LogObject
from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.arrow_expression import ArrowFilter
from objcat.predicate.parse import Predicate
from objcat.timeline.entry import FileGroupId, Txn

Filter: TypeAlias = Predicate | ArrowFilter
"""A filter of a scan, from SQL text or from Arrow."""

OP_FIELD = pa.field(OP_COLUMN, pa.int8(), nullable=False)
TXN_FIELD = pa.field(TXN_COLUMN, pa.string(), nullable=False)
PLACE_COLUMN = "_objcat_place"
"""Hidden column of a row under an index without hash buckets: its file group.

The value is twice the number of the file group in `WriteTask.group_ids`, plus one if the key is new there. A negative value v means that
the key leaves file group -1 - v, because its row goes to another.
"""
PLACE_FIELD = pa.field(PLACE_COLUMN, pa.int32(), nullable=False)


class Operation(enum.StrEnum):
    """What a write does to the keys of its rows."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """How a bulk insert into a table without a key distributes rows to files.

    By default in their order. by_partition: no two tasks write to one partition. columns: logical names; every file holds a sorted range
    of
    their values.
    """

    by_partition: bool = False
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write rows of one transaction.

    Args:
        bucket_counts: of partitions that were split.
        live_group_ids: for an insert into a merge-on-read table, the existing file groups. Their rows become log rows.
        groups: for a copy-on-write table, the live file groups.
        previous_partitions: partitions of previous partition specs that have file groups.
        only: the file groups whose rows are written. Other rows are left out. None: all.
        delete_when: for an upsert, rows for which it is true are deletes.
        group_ids: the file groups that `PLACE_COLUMN` numbers, under an index without hash buckets.
        layout: of a bulk insert. Its rows become separate files.
        fillable: without a key, the partitions with a file group that has room. None: unknown.
        row_bytes: without a key, bytes per row in a file.
        tells_keys: of an upsert under an index with hash buckets, whether the result has `WriteResult.keys`.
    """

    spec: TableSpec
    txn: Txn
    operation: Operation
    bucket_counts: Mapping[str, int] = field(default_factory=dict)
    live_group_ids: frozenset[FileGroupId] = frozenset()
    groups: Mapping[FileGroupId, FileGroup] = field(default_factory=dict)
    previous_partitions: frozenset[str] = frozenset()
    only: frozenset[FileGroupId] | None = None
    delete_when: Predicate | None = None
    layout: WriteLayout | None = None
    fillable: frozenset[str] | None = None
    row_bytes: float | None = None
    group_ids: tuple[FileGroupId, ...] = ()
    tells_keys: bool = False

    @property
    def routed(self) -> bool:
        """Whether all rows of a file group must meet in one task."""
        spec = self.spec
        return spec.has_key and (spec.rewrites or spec.is_located or self.operation is Operation.INSERT)

    def bucket_count(self, partition: str) -> int:
        """Number of buckets of a partition."""
        return self.bucket_counts.get(partition, self.spec.index.count)

    def group_id(self, bucket: int, partition: str = "") -> FileGroupId:
        """The file group id of a bucket."""
        return FileGroupId(partition, bucket, self.bucket_count(partition))


class GroupRewrite(msgspec.Struct, frozen=True, array_like=True):
    """The result for one file group of a copy-on-write table.

    rows: of the batch. inserted, updated, deleted: rows of the file group. changed: False if the batch left its rows as they were.
    """

    group_id: FileGroupId
    rows: int
    inserted: int
    updated: int
    deleted: int
    changed: bool


class WriteResult(msgspec.Struct, frozen=True):
    """Files that a task wrote.

    Args:
        rows: number of rows, after repeated keys are merged.
        rewritten: the file groups that a copy-on-write task read.
        placed: under an index without hash buckets, digests of inserted, moved and deleted keys, 8 bytes each, little endian.
        updated: digests of the other keys, likewise.
        moved: existing rows that went to another file group.
        index: log objects of the record index, in order.
        late: rows of the batch that were left out, because they are below the watermark of the table.
        keys: digests of the keys of all rows, as often as each comes, if the task asks for them.
    """

    bases: tuple[BaseFile, ...] = ()
    logs: tuple[LogObject, ...] = ()
    rows: int = 0
    rewritten: tuple[GroupRewrite, ...] = ()
    placed: bytes = b""
    updated: bytes = b""
    moved: int = 0
    index: tuple[LogObject, ...] = ()
    late: int = 0
    keys: bytes = b""

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
            self.late + other.late,
            self.keys + other.keys,
        )


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Read and merge the rows of some file groups.

    Args:
        columns: logical names and hidden ones (`FILE_COLUMN`, `TXN_COLUMN`), in order.
        where: selects the rows for which it is true.
        parts: those of the columns that come with some of their fields only.
    """

    spec: TableSpec
    groups: tuple[FileGroup, ...]
    columns: tuple[str, ...]
    where: Filter | None
    parts: tuple[Column, ...] = ()
