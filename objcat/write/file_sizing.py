"""Packing: which homes rows get that may live anywhere in their partition: rows without a key, and new keys where the index is no hash.

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
    """Pieces with homes. fills: of a copy-on-write table, what is to be rewritten together with a group; these files have no home."""

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
    """Homes for the pieces of an insert.

    pieces: base files and log rows that say their partition only. live: the file groups of those partitions. draw: a large random number.
    fills: whether base files of a copy-on-write table may go to groups that are there; log rows always do.
    """
    homes = _Homes(spec, live, draw)
    logs = tuple(msgspec.structs.replace(log, homes=tuple(_placed(homes, log, rows) for rows in log.homes)) for log in pieces.logs)
    bases: list[BaseFile] = []
    filled: dict[FileGroupId, list[BaseFile]] = defaultdict(list)
    for base in sorted(pieces.bases, key=lambda base: base.bytes):
        home = homes.fill(base.home.partition, base.bytes, whole=True) if fills and spec.rewrites else None
        if home is not None:
            filled[home].append(base)
        else:
            bases.append(msgspec.structs.replace(base, home=homes.new(base.home.partition)))
    written = WriteResult(tuple(sorted(bases, key=lambda base: base.home)), logs, pieces.rows)
    return Packed(written, {home: tuple(files) for home, files in filled.items()})


def homes_apart(
    spec: TableSpec, wanted: Sequence[tuple[str, int]], live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int]
) -> list[tuple[FileGroupId, ...]]:
    """For each of some partitions so many homes that have no file group, each home once. live, draw: as of `assign_file_groups`."""
    homes = _Homes(spec, live, draw)
    return [tuple(homes.new(partition) for _ in range(count)) for partition, count in wanted]


def groups_for_new_keys(
    spec: TableSpec, new: Mapping[str, int], live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int]
) -> Mapping[str, tuple[FileGroupId, ...]]:
    """Homes for new keys, by partition, among which the rows are dealt evenly.

    new: rows by partition. live, draw: as of `assign_file_groups`.
    """
    taken = None
    if isinstance(live, FileGroupMap):
        # Rows go to the smallest group, or to none of them: the others need not be looked at.
        taken = {partition: live.taken(partition) for partition in new}
        live = {home: group for partition in new for home, group in live.smallest(partition, NEAR_GROUPS).items()}
    homes = _Homes(spec, live, draw, taken)
    row_bytes = row_bytes_of(live.values()) or ROW_BYTES
    found = {}
    for partition, rows in sorted(new.items()):
        size = int(rows * row_bytes)
        home = homes.fill(partition, size, whole=True)
        count = -(-size // spec.target_file_bytes)
        found[partition] = (home,) if home is not None else tuple(homes.new(partition) for _ in range(max(1, count)))
    return found


def _placed(homes: _Homes, log: LogObject, rows: LogRows) -> LogRows:
    partition = rows.home.partition
    size = log.bytes * (rows.end - rows.start) // max(1, log.rows)
    home = homes.fill(partition, size, whole=False)
    return LogRows(home if home is not None else homes.new(partition, size), rows.start, rows.end)


class _Homes:
    """The homes of some partitions, and how much each holds. taken: buckets with a group, by partition, where `live` is not all."""

    def __init__(
        self, spec: TableSpec, live: Mapping[FileGroupId, FileGroup], draw: Callable[[], int], taken: Mapping[str, set[int]] | None = None
    ) -> None:
        self._spec = spec
        self._draw = draw
        self._target = spec.target_file_bytes
        self._taken: dict[str, set[int]] = defaultdict(set, taken or {})
        self._sizes: dict[str, dict[FileGroupId, int]] = defaultdict(dict)
        for home, group in live.items():
            self._taken[home.partition].add(home.bucket)
            if not spec.rewrites or (group.base is not None and not group.logs):
                self._sizes[home.partition][home] = size_of(group)

    def fill(self, partition: str, size: int, *, whole: bool) -> FileGroupId | None:
        """The smallest group that takes so many bytes more; None when none does. whole: it must not grow beyond the target."""
        sizes = self._sizes[partition]
        home = min(sizes, key=lambda home: (sizes[home], home), default=None)
        if home is None or sizes[home] >= self._target or (whole and sizes[home] + size > self._target):
            return None
        sizes[home] += size
        return home

    def new(self, partition: str, size: int | None = None) -> FileGroupId:
        """A home without a group. size: what it takes, where more may come to it."""
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
        home = FileGroupId(partition, bucket, count)
        if size is not None:
            self._sizes[partition][home] = size
        return home
