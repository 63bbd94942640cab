"""Plans a scan: a pure function from a snapshot to the file groups to read.

`plan_scan` prunes file groups by partition, key hash and column statistics, from manifests alone. It reads no data file.
`ScanPlan.tasks` divides the rest into tasks of about equal bytes. Both engines run the same tasks, so they return the same rows.
`narrow_plan` and `only_read` restrict a plan further, for a filter that arrives later.
`Table.scan`, deletes and other computed writes begin here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.validation import nearest_name, shown
from objcat.datafile.bucket_hash import spark_hash
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.errors import InvalidInput, InvalidPredicate
from objcat.metadata.column_parts import field_at, part_of, path_of, with_parts
from objcat.metadata.files import FileGroup, LogSlice
from objcat.metadata.manifest import Manifests
from objcat.metadata.manifest_rows import ManifestChange, rows_of
from objcat.metadata.partition_values import PartitionRanges, spans_of
from objcat.metadata.schema import Column, StructType, TableSchema, arrow_type
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.arrow_expression import both, check_expression
from objcat.predicate.parse import parse_predicate
from objcat.tasks.change_columns import COMMIT_FIELDS, COMMIT_SLOT, COMMIT_TIME
from objcat.tasks.model import Filter, ScanTask
from objcat.tasks.scan import FILE_COLUMN, HIDDEN_FIELDS
from objcat.tasks.scan_parts import schema_read
from objcat.timeline.entry import FileGroupId

COMMIT_COLUMNS = (COMMIT_SLOT, COMMIT_TIME)
HIDDEN = (*COMMIT_COLUMNS, FILE_COLUMN)
"""Hidden columns of every table. A scan returns them if they are named."""
HASHES_MAX = 256
"""Keys of a filter that select file groups by hash. With more keys, all file groups are candidates."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan reads.

    Args:
        columns: logical names and hidden ones (`HIDDEN`), in order.
        plain: file groups whose rows are those of their base file.
        merged: the other file groups.
        hashes: of the keys that can pass, if the filter names them. Other file groups are excluded.
        mode: one of `MODES`.
        parts: those of the columns that come with some of their fields only.
    """

    snapshot: Snapshot
    columns: tuple[str, ...]
    where: Filter | None
    plain: tuple[FileGroup, ...]
    merged: tuple[FileGroup, ...]
    hashes: frozenset[int] | None = None
    mode: str = "snapshot"
    parts: tuple[Column, ...] = ()

    @property
    def groups(self) -> tuple[FileGroup, ...]:
        """All file groups that are read."""
        return (*self.plain, *self.merged)

    @property
    def columns_read(self) -> tuple[Column, ...]:
        """The table columns that a scan needs: selected, filtered by, and used to locate and merge rows."""
        spec = self.snapshot.spec
        named = {*self.columns, *(() if self.where is None else self.where.columns)}
        inner = {column.id for column in (*spec.key_columns, *spec.bucket_columns, *spec.ordering_columns)}
        return tuple(column for column in spec.table_schema.columns if column.name in named or column.id in inner)

    @property
    def fields_read(self) -> list[Column]:
        """`columns_read`, of files in place: with the fields alone that are needed."""
        schema = schema_read(self.snapshot.spec.table_schema, self.columns, self.parts, self.where)
        return [schema.by_id(column.id) for column in self.columns_read]

    def task(self, groups: Sequence[FileGroup], *, columns: Sequence[str] | None = None, parts: Sequence[Column] = ()) -> ScanTask:
        """One task that reads these file groups. columns, parts: in place of the plan's, where columns are given."""
        chosen, parts = (self.columns, self.parts) if columns is None else (tuple(columns), tuple(parts))
        by_txn = any(name in COMMIT_COLUMNS for name in chosen)
        read = [name for name in chosen if name not in COMMIT_COLUMNS]
        return ScanTask(self.snapshot.spec, tuple(groups), (*read, TXN_COLUMN) if by_txn else tuple(read), self.where, parts)

    def bounds(self, manifests: Manifests) -> pa.Table:
        """Bounds of `columns_read` in the files that are read, see `Snapshot.bounds`. Raises as `Manifests.load`."""
        group_ids = None if self.where is None else {group.group_id for group in self.groups}
        return self.snapshot.bounds(manifests, self.columns_read, group_ids=group_ids)

    def tasks(self, groups: Sequence[FileGroup], *, count_max: int) -> list[ScanTask]:
        """The file groups in at most `count_max` tasks of about equal bytes, adjacent ones together."""
        wanted = max(1, min(count_max, len(groups)))
        total = sum(_bytes(group) for group in groups)
        dealt: list[list[FileGroup]] = [[] for _ in range(wanted)]
        done = 0
        for group in groups:
            dealt[min(wanted - 1, done * wanted // max(1, total))].append(group)
            done += _bytes(group)
        return [self.task(part) for part in dealt if part]


SNAPSHOT: Final = "snapshot"
"""Every row as of the slot."""
READ_OPTIMIZED: Final = "read_optimized"
"""Base files only: the state after the last compaction or copy-on-write write, without newer log rows."""
MODES = (SNAPSHOT, READ_OPTIMIZED)


def plan_scan(
    snapshot: Snapshot,
    manifests: Manifests,
    *,
    where: str | pc.Expression | None,
    columns: Sequence[str] | None,
    mode: str = SNAPSHOT,
) -> ScanPlan:
    """The plan of a scan.

    Args:
        where: SQL text or an Arrow expression over logical names.
        mode: one of `MODES`.

    Raises:
        InvalidPredicate: the filter does not fit.
        InvalidInput: an unknown column.
    """
    schema = snapshot.spec.table_schema
    return _planned(snapshot, manifests, parse_filter(where, schema), *_chosen(columns, schema), mode)


def narrow_plan(plan: ScanPlan, manifests: Manifests, *, where: str | pc.Expression | None, columns: Sequence[str] | None) -> ScanPlan:
    """The plan for those rows of the same snapshot that also pass `where`. columns: in place of the plan's. Raises as `plan_scan`."""
    schema = plan.snapshot.spec.table_schema
    chosen, parts = (plan.columns, plan.parts) if columns is None else _chosen(columns, with_parts(schema, plan.parts))
    parts = (*parts, *(part for part in plan.parts if part.name in chosen and part.name not in {one.name for one in parts}))
    further = parse_filter(where, schema)
    if further is None:
        return replace(plan, columns=chosen, parts=parts)
    predicate = further if plan.where is None else both(plan.where, further, schema)
    return _planned(plan.snapshot, manifests, predicate, chosen, parts, plan.mode)


def narrow_among(plan: ScanPlan, manifests: Manifests, *, where: str | None, columns: Sequence[str]) -> ScanPlan:
    """As `narrow_plan`, of no other file groups than those of the plan."""
    found = narrow_plan(plan, manifests, where=where, columns=columns)
    among = {group.group_id for group in plan.groups}
    plain, merged = (tuple(group for group in groups if group.group_id in among) for groups in (found.plain, found.merged))
    return replace(found, plain=plain, merged=merged)


def _planned(
    snapshot: Snapshot,
    manifests: Manifests,
    predicate: Filter | None,
    chosen: tuple[str, ...],
    parts: tuple[Column, ...],
    mode: str,
) -> ScanPlan:
    hashes = None if predicate is None else key_hashes(predicate, snapshot.spec)
    partitions = None if predicate is None else fixed_partitions(predicate, snapshot.spec)
    groups = snapshot.file_groups(
        manifests, where=None if predicate is None else predicate.to_pruning(), hashes=hashes, partitions=partitions
    )
    if mode == READ_OPTIMIZED and not snapshot.spec.rewrites:
        # In a copy-on-write table, log objects hold only deletes that wait for late rows. The base files are the table.
        groups = [replace(group, logs=()) for group in groups if group.base is not None]
    return ScanPlan(
        snapshot,
        chosen,
        predicate,
        plain=tuple(group for group in groups if group.is_plain),
        merged=tuple(group for group in groups if not group.is_plain),
        hashes=hashes,
        mode=mode,
        parts=parts,
    )


def only_read(plan: ScanPlan) -> ScanPlan:
    """The plan without log rows whose keys cannot pass, by the bounds of their log objects.

    Only for readers that return rows. A rewrite of file groups needs all of their rows. Bounds are known for log objects that no
    checkpoint
    includes yet. Without a key, log rows are excluded by the bounds of any column.
    """
    spec, where = plan.snapshot.spec, plan.where
    key = [column.name for column in spec.key_columns]
    deciding = set(where.columns if where is not None else ()) & set(key or spec.table_schema.names)
    logs = [part for group in plan.merged for part in group.logs]
    pruning = where.to_pruning(only=sorted(deciding)) if where is not None and deciding and logs else None
    if pruning is None:
        return plan
    known = _log_objects(plan.snapshot, {part.group_id for part in logs}, {part.object.path for part in logs})
    may = pruning.may_match(rows_of([ManifestChange(FileGroupId("", 0, 1), logs=(part,)) for part in known], spec, pruning.columns), spec)
    needless = {part.object.path for part, matches in zip(known, may.tolist(), strict=True) if not matches}
    if not needless:
        return plan
    left = [replace(group, logs=tuple(part for part in group.logs if part.object.path not in needless)) for group in plan.merged]
    groups = [*plan.plain, *(group for group in left if group.base is not None or group.logs)]
    return replace(
        plan, plain=tuple(group for group in groups if group.is_plain), merged=tuple(group for group in groups if not group.is_plain)
    )


def _log_objects(snapshot: Snapshot, group_ids: Collection[FileGroupId], paths: Collection[str]) -> list[LogSlice]:
    """A slice of each of these log objects that has known bounds. group_ids: to which their rows are addressed."""
    overlay = snapshot.table.overlay
    changes = [overlay[group_id] for group_id in group_ids if group_id in overlay]
    return list({part.object.path: part for change in changes for part in change.logs if part.object.path in paths}.values())


def parse_filter(where: str | pc.Expression | None, schema: TableSchema) -> Filter | None:
    """A filter from a user's argument. Raises InvalidPredicate."""
    if where is None:
        return None
    if isinstance(where, pc.Expression):
        return check_expression(where, schema)
    if not isinstance(where, str):
        raise InvalidPredicate(f"where is {shown(where)}. Pass SQL text as after WHERE, or a pyarrow.compute.Expression.")
    return parse_predicate(where, schema)


def key_hashes(predicate: Filter, spec: TableSpec) -> frozenset[int] | None:
    """The hashes of the keys that can pass, if the filter fixes every hashed column to a few values. Else None."""
    columns = spec.bucket_columns
    fixed = predicate.fixed()
    # A literal may differ from the stored floating value that it equals, for example 0.1 in 32 bits.
    if not columns or any(column.name not in fixed or column.type in ("float", "double") for column in columns):
        return None
    if math.prod(len(fixed[column.name]) for column in columns) > HASHES_MAX:
        return None
    keys = list(itertools.product(*(fixed[column.name] for column in columns)))
    if not keys:
        return frozenset()
    arrays = [pa.array(values, arrow_type(column.type)) for values, column in zip(zip(*keys, strict=True), columns, strict=True)]
    return frozenset(spark_hash(arrays).tolist())


def fixed_partitions(predicate: Filter, spec: TableSpec) -> PartitionRanges | None:
    """The partitions that may hold a passing row. None if the filter does not say."""
    return spans_of((spec.partitioning, *spec.former), spec.table_schema, predicate.fixed()) if spec.partition_columns else None


def hidden_field(name: str) -> pa.Field:
    """The Arrow field of a hidden column."""
    return {field.name: field for field in (*COMMIT_FIELDS, *HIDDEN_FIELDS)}[name]


def _chosen(columns: Sequence[str] | None, schema: TableSchema) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """The chosen columns by name, and those of them of which some fields are chosen, with these."""
    asked = tuple(schema.names if columns is None else columns)
    paths = [(name,) if name in schema.names or name in HIDDEN else _path(name, schema) for name in asked]
    if not paths:
        raise InvalidInput("columns=[] selects nothing. Name at least one column, or leave it out for all.")
    known = set(paths)
    if len(known) != len(paths) or any(path[:depth] in known for path in paths for depth in range(1, len(path))):
        raise InvalidInput(f"columns={list(asked)} names a column twice. Name each once.")
    fields = {path: field_at(schema, path).id for path in paths if len(path) > 1}
    parts = [part_of(schema.column(name), set(fields.values())) for name in dict.fromkeys(path[0] for path in fields)]
    return tuple(dict.fromkeys(path[0] for path in paths)), tuple(part for part in parts if part is not None)


def _path(name: str, schema: TableSchema) -> tuple[str, ...]:
    whole = str(name).partition(".")[0]
    column = next((column for column in schema.columns if column.name == whole), None)
    if column is None and "`" not in str(name):
        raise InvalidInput(f"The table has no column {name!r}: {nearest_name(name, [*schema.names, *HIDDEN])}")
    if column is not None and not isinstance(column.type, StructType):
        raise InvalidInput(f"The table has no column {name!r}: read {whole!r} whole")
    return path_of(name, schema)


def _bytes(group: FileGroup) -> int:
    """Bytes to read for the file group: its base file, and its share of the log objects."""
    logs = sum(rows.object.bytes * (rows.end - rows.start) // max(1, rows.object.rows) for rows in group.logs)
    return (group.base.bytes if group.base else 0) + logs
