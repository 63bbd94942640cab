"""`FileGroupMap`: the file groups of a large table, made into Python values on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from objcat.metadata.files import FileGroup
from objcat.metadata.manifest_rows import BUCKET_BITS, Ints
from objcat.metadata.snapshot import LiveFiles
from objcat.timeline.entry import FileGroupId


class FileGroupMap(MutableMapping[FileGroupId, FileGroup]):
    """File groups by id. Groups that are set hide those of the snapshot. For one thread."""

    def __init__(self, live: LiveFiles) -> None:
        self._live = live
        self._own: dict[FileGroupId, FileGroup] = {}
        self._numbers = np.flatnonzero(live.merged.is_live)
        self._keys = (live.partition[self._numbers] << BUCKET_BITS) | live.bucket[self._numbers]
        self._codes = {name: code for code, name in enumerate(live.partitions.names)}

    def __getitem__(self, group_id: FileGroupId) -> FileGroup:
        found = self.of([group_id])
        if not found:
            raise KeyError(group_id)
        return found[group_id]

    def __setitem__(self, group_id: FileGroupId, group: FileGroup) -> None:
        self._own[group_id] = group

    def __delitem__(self, group_id: FileGroupId) -> None:
        raise TypeError("A file group ends by a commit, not here.")

    def __contains__(self, group_id: object) -> bool:
        return isinstance(group_id, FileGroupId) and (group_id in self._own or self._number(group_id) is not None)

    def __iter__(self) -> Iterator[FileGroupId]:
        yield from self._own
        yield from (group_id for group_id in self._live.group_ids(self._numbers) if group_id not in self._own)

    def __len__(self) -> int:
        return len(self._numbers) + sum(self._number(group_id) is None for group_id in self._own)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions that have a file group."""
        names = self._live.partitions.names
        codes = np.unique(self._live.partition[self._numbers]).tolist()
        return frozenset([*(names[code] for code in codes), *(group_id.partition for group_id in self._own)])

    def of(self, group_ids: Collection[FileGroupId]) -> dict[FileGroupId, FileGroup]:
        """The file groups of some ids. Ids without a file group are left out."""
        numbers = [number for group_id in group_ids if group_id not in self._own and (number := self._number(group_id)) is not None]
        found = {group.group_id: group for group in self._live.groups(np.array(sorted(numbers), np.int64))}
        return found | {group_id: self._own[group_id] for group_id in group_ids if group_id in self._own}

    def smallest(self, partition: str, count: int) -> dict[FileGroupId, FileGroup]:
        """The `count` file groups of a partition that hold the fewest bytes, and all that were set."""
        first, last = self._range(partition)
        within = self._numbers[first:last]
        chosen = within[np.argsort(self._sizes[within], kind="stable")[:count]]
        found = {group.group_id: group for group in self._live.groups(np.sort(chosen))}
        return found | {group_id: group for group_id, group in self._own.items() if group_id.partition == partition}

    def taken(self, partition: str) -> set[int]:
        """The buckets of a partition that have a file group."""
        first, last = self._range(partition)
        taken = set(self._live.bucket[self._numbers[first:last]].tolist())
        return taken | {group_id.bucket for group_id in self._own if group_id.partition == partition}

    @property
    def bytes(self) -> int:
        """Bytes of all file groups of the snapshot."""
        return int(self._sizes[self._numbers].sum())

    def _number(self, group_id: FileGroupId) -> int | None:
        code = self._codes.get(group_id.partition)
        if code is None or self._live.counts[code] != group_id.bucket_count:
            return None
        key = (code << BUCKET_BITS) | group_id.bucket
        at = int(np.searchsorted(self._keys, key))
        return int(self._numbers[at]) if at < len(self._keys) and self._keys[at] == key else None

    def _range(self, partition: str) -> tuple[int, int]:
        code = self._codes.get(partition)
        if code is None:
            return 0, 0
        first, last = np.searchsorted(self._keys, [code << BUCKET_BITS, (code + 1) << BUCKET_BITS])
        return int(first), int(last)

    @cached_property
    def _sizes(self) -> Ints:
        """Bytes of every file group: its base file, and its share of the log files."""
        live = self._live
        bases = np.asarray(pc.fill_null(live.rows.column("base_bytes"), 0).to_numpy())[live.members.row[live.merged.winner]]
        slices = live.slices()
        end, start, rows, size = (slices.field(name).to_numpy() for name in ("end", "start", "rows", "bytes"))
        shares = size * (end - start) // np.maximum(1, rows)
        logs = np.bincount(live.merged.slice_group, weights=shares, minlength=len(bases)).astype(np.int64)
        return np.where(live.merged.has_base, bases, 0) + logs
