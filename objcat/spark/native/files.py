"""Which rows of which files make up some file groups, as lists for relations. Does not import Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd

import pyarrow as pa

from fileio.contract import check_key
from fileio.errors import InvalidKey
from objcat.datafile.parquet import txn_of_path
from objcat.errors import CorruptTable
from objcat.metadata.files import BaseFile, FileGroup, LogObject
from objcat.timeline.entry import FileGroupId

BLOCK_BITS = 10
"""Row ranges are looked up by blocks of 2 to the power of this many rows."""
RANK_BITS_BELOW = 40
"""A block and the rank of its object are looked up as one number, with the rank shifted by so many bits."""


@dataclass(frozen=True, slots=True)
class BaseRows:
    """A base file of which all rows count, or those of one bucket: since a split, other buckets may have files of their own.

    Attributes:
        part: the number of its partition, or file group.
        bucket, count: rows must be of this bucket under this count; count 0 for any.
    """

    file: BaseFile
    part: int
    bucket: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Rows `start` to `end` (excluded) of a log object, which count. `bucket`, `count`: see `BaseRows`."""

    start: int
    end: int
    part: int
    bucket: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class LogRowsOf:
    """A log object of which all rows count, or those of some segments.

    Attributes:
        rank: its place in the order in which rows count; a base file's is -1.
        slot: of the commit whose rows they are.
        committed_at_ms: by which its rows may be late; 0 where lateness is not measured.
        part: of all rows, when they are of one.
        segments: None for all rows.
    """

    object: LogObject
    rank: int
    slot: int
    committed_at_ms: int
    part: int
    segments: tuple[RowSegment, ...] | None

    @property
    def rows(self) -> int:
        """How many rows count."""
        return self.object.rows if self.segments is None else sum(one.end - one.start for one in self.segments)


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of some groups.

    Attributes:
        parts: how many partitions, or file groups, they are of.
        log_objects: how many log objects may hold one key.
    """

    bases: tuple[BaseRows, ...]
    logs: tuple[LogRowsOf, ...]
    parts: int
    log_objects: int

    @property
    def log_rows(self) -> int:
        """How many log rows count."""
        return sum(log.rows for log in self.logs)


class _Parts:
    """The numbers of the parts of a table in which a key is once: its partitions, or its file groups."""

    def __init__(self, groups: Iterable[FileGroup], *, by_group: bool) -> None:
        self._by_group = by_group
        self._numbers = {part: number for number, part in enumerate(sorted({self._part(group.group_id) for group in groups}))}

    def _part(self, group_id: FileGroupId) -> tuple[str, int]:
        return group_id.partition, group_id.bucket if self._by_group else 0

    def __getitem__(self, group_id: FileGroupId) -> int:
        return self._numbers[self._part(group_id)]

    def __len__(self) -> int:
        return len(self._numbers)


def sources_of(groups: Sequence[FileGroup], *, scoped: bool, by_group: bool = False) -> Sources:
    """The files of groups.

    Args:
        scoped: whether one key may be in several partitions, each time as another row.
        by_group: parts are file groups, none of which was split, because log rows that end a key in one group do not apply to another.
    """
    parts = _Parts(groups, by_group=by_group)
    logs = tuple(_logs(groups, parts, scoped=scoped or by_group))
    # An object holds each key once, and a key of one part is in one group.
    objects = [{log.object.path for log in group.logs} for group in groups]
    if len(parts) > 1 and not (scoped or by_group):
        objects = [set().union(*objects)]
    return Sources(tuple(_bases(groups, parts)), logs, len(parts), max(map(len, objects), default=0))


def _bases(groups: Iterable[FileGroup], parts: _Parts) -> Iterable[BaseRows]:
    of_file: dict[str, list[FileGroup]] = {}
    for group in groups:
        if group.base is not None:
            of_file.setdefault(group.base.path, []).append(group)
    for sharers in of_file.values():
        file = sharers[0].base
        assert file is not None
        part = parts[file.group_id]
        if _is_whole(file.group_id, sharers):
            yield BaseRows(file, part)
        else:
            yield from (BaseRows(file, part, group.group_id.bucket, group.group_id.bucket_count) for group in sharers)


def _is_whole(group_id: FileGroupId, sharers: Sequence[FileGroup]) -> bool:
    """Whether every row addressed to a file group is of one of these groups."""
    count = sharers[0].group_id.bucket_count
    return len(sharers) == count // gcd(group_id.bucket_count, count) or not sharers[0].is_shared(group_id)


@dataclass(slots=True)
class _Collected:
    slot: int
    committed_at_ms: int
    object: LogObject
    sharers: dict[tuple[int, int, FileGroupId], list[FileGroup]] = field(default_factory=dict)


def _logs(groups: Iterable[FileGroup], parts: _Parts, *, scoped: bool) -> Iterable[LogRowsOf]:
    """The log objects. One may count at several places in the order: deletes with a base file count as of an earlier slot than the rest."""
    found: dict[tuple[int, int, int, str], _Collected] = {}
    for group in groups:
        for one in group.logs:
            key = (one.slot, one.named_at, one.number, one.object.path)
            entry = found.setdefault(key, _Collected(one.slot, one.committed_at_ms, one.object))
            entry.sharers.setdefault((one.start, one.end, one.group_id), []).append(group)
    for rank, key in enumerate(sorted(found)):
        entry = found[key]
        segments = tuple(_joined(_segments(entry, parts), keep_parts=scoped))
        part = segments[0].part
        whole = segments == (RowSegment(0, entry.object.rows, part),)
        yield LogRowsOf(entry.object, rank, entry.slot, entry.committed_at_ms, part, None if whole else segments)


def _segments(entry: _Collected, parts: _Parts) -> Iterable[RowSegment]:
    for (start, end, group_id), sharers in sorted(entry.sharers.items(), key=lambda item: item[0][:2]):
        part = parts[group_id]
        if _is_whole(group_id, sharers):
            yield RowSegment(start, end, part)
        else:
            yield from (RowSegment(start, end, part, group.group_id.bucket, group.group_id.bucket_count) for group in sharers)


def _joined(segments: Iterable[RowSegment], *, keep_parts: bool) -> Iterable[RowSegment]:
    """The segments, with neighbours joined."""
    last: RowSegment | None = None
    for one in segments:
        if last is not None and not last.count and not one.count and last.end == one.start and (last.part == one.part or not keep_parts):
            last = RowSegment(last.start, one.end, last.part)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def paths_inside(paths: Sequence[str]) -> list[str]:
    """Paths that an entry names, as Spark gets them. Spark would follow one that leads out of the table, which `fileio` refuses.

    Raises CorruptTable.
    """
    for path in paths:
        try:
            check_key(path)
        except InvalidKey as error:
            raise CorruptTable(
                f"The log names the data file {path[:200]!r}, which is no path below the table ({error}). The entry was not "
                "written by objcat. Restore it from a backup."
            ) from error
    return list(paths)


def txn_of(log: LogRowsOf) -> str:
    """The transaction that wrote the rows of a log object."""
    return txn_of_path(log.object.path)


def segment_rows(logs: Iterable[LogRowsOf]) -> pa.Table:
    """The segments of log objects, to join their rows with: one row for every block that a segment touches.

    `of_block`: the object's rank above the block's number. The other columns are of the segment, `of_last` excluded.
    """
    columns: dict[str, list[int]] = {name: [] for name in ("of_block", "of_first", "of_last", "of_part", "of_bucket", "of_count")}
    for log in logs:
        for one in log.segments or ():
            for block in range(one.start >> BLOCK_BITS, ((one.end - 1) >> BLOCK_BITS) + 1):
                row = (log.rank << RANK_BITS_BELOW | block, one.start, one.end, one.part, one.bucket, one.count)
                for values, value in zip(columns.values(), row, strict=True):
                    values.append(value)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
