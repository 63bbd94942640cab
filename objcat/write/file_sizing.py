"""Chooses file groups for rows without a hash bucket, by the sizes of existing files.

These are rows without a key, and new keys under an index without hash buckets. They go to the smallest file groups of their partition
until those are large enough, then to new ones. Sizes come from the snapshot.

Under the bucket index, the default, the hash of a key chooses its file group: see `by_group` in `objcat.tasks.write_log_rows`.
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
"""In a partition with many file groups, only so many of the smallest are candidates. Not every one of a copy-on-write table accepts rows.
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """Written files with their file groups.

    fills: files of a copy-on-write table without a file group yet, by the file group to rewrite together with them.
    """

    written: WriteResult
    fills: Mapping[FileGroupId, tuple[BaseFile, ...]] = field(default_factory=dict)


def size_of(group: FileGroup) -> int:
    """Bytes of a file group: its base file, and its share of the log objects."""
    logs = sum(part.object.bytes * part.rows // max(1, part.object.rows) for part in group.logs)
    return (group.base.bytes if group.base is not None else 0) + logs


def row_bytes_of(groups: Iterable[FileGroup]) -> float | None:
    """Bytes per row in the base files of some file groups. None without any."""
    bases = [group.base for group in groups if group.base is not None]
    rows = sum(base.rows for base in bases)
    return sum(base.bytes for base in bases) / rows if rows else None


def assign_file_groups(
    spec: TableSpec, pieces: WriteResult, live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int], *, fills: bool
) -> Packed:
    """Assign file groups to the files of an insert.

    Args:
        pieces: base files and log rows that name only their partition.
        live: the file groups of those partitions.
        draw: returns a large random number.
        fills: whether base files of a copy-on-write table may join existing file groups. Log rows always may.
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
    """Choose unused file group ids: as many for each partition as `wanted` says, each id once.

    live, draw: see `assign_file_groups`.
    """
    group_ids = _GroupChoice(spec, live, draw)
    return [tuple(group_ids.new(partition) for _ in range(count)) for partition, count in wanted]


def groups_for_new_keys(
    spec: TableSpec, new: Mapping[str, int], live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int]
) -> Mapping[str, tuple[FileGroupId, ...]]:
    """File groups for new keys, by partition. Rows are spread evenly among them.

    new: rows by partition. live, draw: see `assign_file_groups`.
    """
    taken = None
    if isinstance(live, FileGroupMap):
        # Rows go to the smallest group or to new ones, so the others need not be read.
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
    """The file groups of some partitions, and the bytes in each.

    taken: used buckets by partition, where `live` is not complete.
    """

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
        """The smallest file group with room for `size` more bytes, or None. whole: the file group must stay below the target size."""
        sizes = self._sizes[partition]
        group_id = min(sizes, key=lambda group_id: (sizes[group_id], group_id), default=None)
        if group_id is None or sizes[group_id] >= self._target or (whole and sizes[group_id] + size > self._target):
            return None
        sizes[group_id] += size
        return group_id

    def new(self, partition: str, size: int | None = None) -> FileGroupId:
        """An unused file group id. size: its bytes, if more rows may follow."""
        count, taken = self._spec.index.count, self._taken[partition]
        if len(taken) >= count:
            raise InvalidInput(
                f"The partition {partition or '(all)'} has {count:,} file groups, which is the maximum. Nothing was written. Raise the "
                "property 'target_file_bytes', or partition the table further."
            )
        # A random bucket, so that concurrent inserts do not meet.
        bucket = self._draw() % count
        while bucket in taken:
            bucket = (bucket + 1) % count
        taken.add(bucket)
        group_id = FileGroupId(partition, bucket, count)
        if size is not None:
            self._sizes[partition][group_id] = size
        return group_id
