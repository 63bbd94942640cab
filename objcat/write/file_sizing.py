"""Packing: which file groups rows get that may live anywhere in their partition: rows without a key, and new keys where the index is no
hash.

Rows go to the smallest file groups of their partition until these are large enough, and to new ones then. The sizes are those of the
files that the snapshot names; nothing is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from objcat.errors import InvalidInput
from objcat.metadata.file_groups import FileGroupMap
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogRows
from objcat.metadata.table_spec import ROW_BYTES, TableSpec
from objcat.tasks.model import WriteResult
from objcat.timeline.entry import FileGroupId

NEAR_GROUPS = 16
"""Of a partition with many file groups, so many of the smallest are looked at: in a copy-on-write table not all of them take rows."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Pieces with file groups. fills: of a copy-on-write table, what is to be rewritten together with a group; these files have no file
    group."""

    written: WriteResult
    fills: Mapping[FileGroupId, tuple[BaseFile, ...]] = field(default_factory=dict)


def size_of(group: FileGroup) -> int:
    """Bytes of a group: its base file, and its share of the log objects."""
    logs = sum(part.object.bytes * part.rows // max(1, part.object.rows) for part in group.logs)
    return (group.base.bytes if group.base is not None else 0) + logs


def row_bytes_of(groups: Iterable[FileGroup]) -> float | None:
    """Bytes of a row in the base files of some groups; None where there are none."""
    bases = [group.base for group in groups if group.base is not None]
    rows = sum(base.rows for base in bases)
    return sum(base.bytes for base in bases) / rows if rows else None


def assign_file_groups(
    spec: TableSpec, pieces: WriteResult, live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int], *, fills: bool
) -> Packed:
    """File groups for the pieces of an insert.

    pieces: base files and log rows that say their partition only. live: the file groups of those partitions. draw: a large random number.
    fills: whether base files of a copy-on-write table may go to groups that are there; log rows always do.
    """
    group_ids = _GroupChoice(spec, live, draw)
    logs = tuple(msgspec.structs.replace(log, slices=tuple(_placed(group_ids, log, rows) for rows in log.slices)) for log in pieces.logs)
    bases: list[BaseFile] = []
    filled: dict[FileGroupId, list[BaseFile]] = defaultdict(list)
    for base in sorted(pieces.bases, key=lambda base: base.bytes):
        group_id = group_ids.fill(base.group_id.partition, base.bytes, whole=True) if fills and spec.rewrites else None
        if group_id is not None:
            filled[group_id].append(base)
        else:
            bases.append(msgspec.structs.replace(base, group_id=group_ids.new(base.group_id.partition)))
    written = WriteResult(tuple(sorted(bases, key=lambda base: base.group_id)), logs, pieces.rows)
    return Packed(written, {group_id: tuple(files) for group_id, files in filled.items()})


def groups_apart(
    spec: TableSpec, wanted: Sequence[tuple[str, int]], live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int]
) -> list[tuple[FileGroupId, ...]]:
    """For each of some partitions so many file groups that have no file group, each file group once. live, draw: as of
    `assign_file_groups`."""
    group_ids = _GroupChoice(spec, live, draw)
    return [tuple(group_ids.new(partition) for _ in range(count)) for partition, count in wanted]


def groups_for_new_keys(
    spec: TableSpec, new: Mapping[str, int], live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int]
) -> Mapping[str, tuple[FileGroupId, ...]]:
    """File groups for new keys, by partition, among which the rows are dealt evenly.

    new: rows by partition. live, draw: as of `assign_file_groups`.
    """
    taken = None
    if isinstance(live, FileGroupMap):
        # Rows go to the smallest group, or to none of them: the others need not be looked at.
        taken = {partition: live.taken(partition) for partition in new}
        live = {group_id: group for partition in new for group_id, group in live.smallest(partition, NEAR_GROUPS).items()}
    group_ids = _GroupChoice(spec, live, draw, taken)
    row_bytes = row_bytes_of(live.values()) or ROW_BYTES
    found = {}
    for partition, rows in sorted(new.items()):
        size = int(rows * row_bytes)
        group_id = group_ids.fill(partition, size, whole=True)
        count = -(-size // spec.target_file_bytes)
        found[partition] = (group_id,) if group_id is not None else tuple(group_ids.new(partition) for _ in range(max(1, count)))
    return found


def _placed(group_ids: _GroupChoice, log: LogObject, rows: LogRows) -> LogRows:
    partition = rows.group_id.partition
    size = log.bytes * (rows.end - rows.start) // max(1, log.rows)
    group_id = group_ids.fill(partition, size, whole=False)
    return LogRows(group_id if group_id is not None else group_ids.new(partition, size), rows.start, rows.end)


class _GroupChoice:
    """The file groups of some partitions, and how much each holds. taken: buckets with a group, by partition, where `live` is not all."""

    def __init__(
        self, spec: TableSpec, live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int], taken: Mapping[str, set[int]] | None = None
    ) -> None:
        self._spec = spec
        self._draw = draw
        self._target = spec.target_file_bytes
        self._taken: dict[str, set[int]] = defaultdict(set, taken or {})
        self._sizes: dict[str, dict[FileGroupId, int]] = defaultdict(dict)
        for group_id, group in live.items():
            self._taken[group_id.partition].add(group_id.bucket)
            if not spec.rewrites or (group.base is not None and not group.logs):
                self._sizes[group_id.partition][group_id] = size_of(group)

    def fill(self, partition: str, size: int, *, whole: bool) -> FileGroupId | None:
        """The smallest group that takes so many bytes more; None when none does. whole: it must not grow beyond the target."""
        sizes = self._sizes[partition]
        group_id = min(sizes, key=lambda group_id: (sizes[group_id], group_id), default=None)
        if group_id is None or sizes[group_id] >= self._target or (whole and sizes[group_id] + size > self._target):
            return None
        sizes[group_id] += size
        return group_id

    def new(self, partition: str, size: int | None = None) -> FileGroupId:
        """A file group without a group. size: what it takes, where more may come to it."""
        count, taken = self._spec.index.count, self._taken[partition]
        if len(taken) >= count:
            raise InvalidInput(
                f"the partition {partition or '(all)'} holds {count:,} file groups, which is as many as it can: raise the property "
                "'target_file_bytes', or partition the table further; nothing was written"
            )
        # At random, so that inserts that know nothing of one another do not meet.
        bucket = self._draw() % count
        while bucket in taken:
            bucket = (bucket + 1) % count
        taken.add(bucket)
        group_id = FileGroupId(partition, bucket, count)
        if size is not None:
            self._sizes[partition][group_id] = size
        return group_id
