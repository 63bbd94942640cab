"""What writes leave behind is looked after by the writers themselves: whoever notices that something is due does it, in the background."""

from __future__ import annotations

from objcat.services.clean import CLEANED_SLOTS_MIN, clean, is_clean_due
from objcat.services.compact import compact
from objcat.services.due import partitions_to_split, waiting_of, why_compact
from objcat.services.split import split_buckets
from objcat.services.strategy import CompactionStrategy
from objcat.table import Manifests, Tables
from objcat.table.policy import policy_of
from objcat.table.snapshot import snapshot_of
from objcat.timeline import Timeline, View

SLOTS_BETWEEN_LOOKS = 4
"""A writer looks whenever the log passes a multiple of this: often enough for any policy, and for a part of the writes only."""


def may_be_due(view: View[Tables], table: str, *, since_slot: int) -> bool:
    """Whether `upkeep_after` might find anything to do. No request. Raises InvalidInput for properties that are no policy."""
    if since_slot // SLOTS_BETWEEN_LOOKS == view.slot // SLOTS_BETWEEN_LOOKS or table not in view.state:
        return False
    policy = policy_of(view.state[table].spec.properties)
    long_enough = view.slot - view.log.marks(table).bound >= CLEANED_SLOTS_MIN
    return policy.compacts or policy.split_above_bytes is not None or (policy.auto_clean and long_enough)


def upkeep_after(timeline: Timeline[Tables], view: View[Tables], table: str, manifests: Manifests, *, since_slot: int) -> None:
    """Double buckets, compact and clean, where the policy of a table says so: what a write does that has moved the log from `since_slot`.

    view: what the writer knows now. Asks the store nothing where nothing is due, but for manifests that `manifests` has not kept, and, of
    a clean by hours, O(log n) entries now and then. Raises what services raise.
    """
    snapshot = snapshot_of(view, table, where=timeline.fileio.url)
    policy = policy_of(snapshot.spec.properties)
    if policy.split_above_bytes is not None:
        for partition in partitions_to_split(snapshot, manifests, above_bytes=policy.split_above_bytes):
            split_buckets(timeline, table, partition=partition, count=2 * snapshot.table.bucket_count(partition))
    if policy.compacts:
        waiting = waiting_of(snapshot.file_groups(manifests, unmerged=True), now_ms=snapshot.committed_at_ms)
        if why_compact(waiting, policy) is not None:
            compact(timeline, table, strategy=CompactionStrategy(io_bytes_max=policy.compact_io_bytes_max))
    if policy.auto_clean and is_clean_due(timeline, view, table, policy.retention, since_slot=since_slot):
        clean(timeline, table, retention=policy.retention)
