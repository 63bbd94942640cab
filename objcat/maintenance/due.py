"""What is due in a table, by its metadata alone: pure functions of a snapshot and a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from objcat.maintenance.compaction_strategy import base_bytes, choose, log_bytes, strategy_of
from objcat.metadata.files import FileGroup
from objcat.metadata.maintenance_policy import Policy
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.entry import BUCKETS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionBacklog:
    """Log rows that wait to be merged.

    Attributes:
        commits: commits that added them.
        bytes: their size.
        base_bytes: size of the base files of their groups.
        oldest_s: seconds between the commit of the first of them and the newest commit of the log.
        shared: file groups that still share a file with others since a split.
    """

    commits: int = 0
    bytes: int = 0
    base_bytes: int = 0
    oldest_s: float = 0.0
    shared: int = 0


def waiting_of(groups: Iterable[FileGroup], *, now_ms: int) -> CompactionBacklog:
    """The backlog of some file groups. `now_ms`: the time of the newest commit."""
    slots: dict[int, int] = {}
    size = base = shared = 0
    for group in groups:
        size += log_bytes(group)
        base += base_bytes(group)
        shared += group.base is not None and group.is_shared(group.base.group_id)
        for part in group.logs:
            if part.slot > group.as_of:
                slots[part.named_at] = part.committed_at_ms
    oldest_ms = min((at_ms for at_ms in slots.values() if at_ms), default=now_ms)
    return CompactionBacklog(commits=len(slots), bytes=size, base_bytes=base, oldest_s=max(0, now_ms - oldest_ms) / 1000, shared=shared)


def why_compact(waiting: CompactionBacklog, policy: Policy) -> str | None:
    """Which compaction trigger is reached, in words; None when none is."""
    if policy.compact_after_commits is not None and waiting.commits >= policy.compact_after_commits:
        return f"log rows of {waiting.commits:,} commits wait"
    if policy.compact_after_bytes is not None and waiting.bytes >= policy.compact_after_bytes:
        return f"{waiting.bytes:,} bytes of log rows wait"
    percent = policy.compact_after_log_percent
    if percent is not None and waiting.commits and 100 * waiting.bytes >= percent * waiting.base_bytes:
        return f"{waiting.bytes:,} bytes of log rows wait for {waiting.base_bytes:,} bytes of base files"
    if policy.compact_after_s is not None and waiting.commits and waiting.oldest_s >= policy.compact_after_s:
        return f"log rows have waited for {waiting.oldest_s:,.0f} s"
    return None


def compactable(snapshot: Snapshot, manifests: Manifests, policy: Policy) -> list[FileGroup]:
    """The file groups with something to merge that a compaction by policy takes, over several runs. Sorted by file group.

    Raises PluginMissing and PluginFailed, of a strategy of another package.
    """
    groups = snapshot.file_groups(manifests, unmerged=True)
    return choose(groups, strategy_of(policy), snapshot.spec, lambda: snapshot.live_partitions(manifests), now_ms=snapshot.committed_at_ms)


def partitions_to_split(snapshot: Snapshot, manifests: Manifests, *, above_bytes: int) -> list[str]:
    """The partitions whose buckets hold more than `above_bytes` each on average, and can double."""
    spec = snapshot.spec
    if not spec.has_key or spec.is_located:
        return []
    sizes: Counter[str] = Counter()
    for group in snapshot.file_groups(manifests):
        sizes[group.group_id.partition] += base_bytes(group) + log_bytes(group)
    counts = {partition: snapshot.table.bucket_count(partition) for partition in sizes}
    return sorted(name for name, size in sizes.items() if size > above_bytes * counts[name] and 2 * counts[name] <= BUCKETS_MAX)
