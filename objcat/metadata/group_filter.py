"""`GroupFilter`: which rows of manifests belong to some file groups. Shards are sorted, so most of them need not be read for a few."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import pyarrow as pa

from objcat.metadata.manifest import ShardRef
from objcat.metadata.manifest_rows import BUCKET_BITS, Ints, Mask, Partitions, integers
from objcat.timeline.entry import FileGroupId


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Live file groups of some partitions.

    A row of a manifest may be of another bucket count than its partition has now. It belongs to each live file group whose bucket is equal
    modulo the greatest common divisor of the two counts.

    Args:
        counts: By partition, its bucket count now.
        buckets: By partition, the live buckets, ascending.
    """

    counts: Mapping[str, int]
    buckets: Mapping[str, Ints]
    _remainders: dict[tuple[str, int], frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, group_ids: Collection[FileGroupId], count_of: Callable[[str], int]) -> GroupFilter:
        """The live file groups that have keys in common with some file groups."""
        counts: dict[str, int] = {}
        found: dict[str, set[int]] = {}
        for group_id in group_ids:
            count = counts.get(group_id.partition)
            if count is None:
                count = counts[group_id.partition] = count_of(group_id.partition)
            divisor = gcd(group_id.bucket_count, count)
            found.setdefault(group_id.partition, set()).update(range(group_id.bucket % divisor, count, divisor))
        return cls(counts, {name: np.array(sorted(buckets), dtype=np.int64) for name, buckets in found.items()})

    def meets(self, ref: ShardRef) -> bool:
        """Whether a shard may have a row of them, by its range."""
        first, last = ref.first, ref.last
        if (first.partition, first.bucket_count) != (last.partition, last.bucket_count):
            return any(first.partition <= name <= last.partition for name in self.buckets)
        buckets = self.buckets.get(first.partition)
        if buckets is None:
            return False
        divisor = gcd(first.bucket_count, self.counts[first.partition])
        return bool(((buckets - first.bucket) % divisor <= last.bucket - first.bucket).any())

    def has(self, group_id: FileGroupId) -> bool:
        """Whether a row with this id belongs to one of them."""
        buckets = self.buckets.get(group_id.partition)
        if buckets is None:
            return False
        divisor = gcd(group_id.bucket_count, self.counts[group_id.partition])
        remainders = self._remainders.get((group_id.partition, divisor))
        if remainders is None:
            remainders = self._remainders[(group_id.partition, divisor)] = frozenset((buckets % divisor).tolist())
        return group_id.bucket % divisor in remainders

    def rows_of(self, rows: pa.Table) -> pa.Table:
        """The rows that belong to one of them."""
        partitions = Partitions.of(rows.column("partition"))
        count, bucket = integers(rows, "bucket_count"), integers(rows, "bucket")
        mask = np.zeros(rows.num_rows, np.bool_)
        for code, name in enumerate(partitions.names):
            wanted = self.buckets.get(name)
            if wanted is not None:
                at = np.arange(rows.num_rows) if len(partitions.names) == 1 else np.flatnonzero(partitions.codes == code)
                mask[at] = _belong(count[at], bucket[at], wanted, self.counts[name])
        return rows if mask.all() else rows.take(pa.array(np.flatnonzero(mask)))

    def keys(self, partitions: Partitions) -> Ints:
        """Them as numbers: partition, then bucket."""
        codes = {name: code for code, name in enumerate(partitions.names)}
        known = [(codes[name] << BUCKET_BITS) | buckets for name, buckets in self.buckets.items() if name in codes]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *known]))


def _belong(count: Ints, bucket: Ints, wanted: Ints, live_count: int) -> Mask:
    """For rows of one partition, whether they belong to one of the live buckets `wanted`."""
    mask = np.zeros(len(count), np.bool_)
    for own in np.unique(count).tolist():
        divisor = gcd(own, live_count)
        is_wanted = np.zeros(divisor, np.bool_)
        is_wanted[wanted % divisor] = True
        mask |= (count == own) & is_wanted[bucket % divisor]
    return mask
