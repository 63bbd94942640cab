"""What writes leave behind is looked after by the writers themselves: whoever notices that something is due does it, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from fileio.env import on_fork
from objcat.errors import InvalidInput
from objcat.maintenance.clean import CLEANED_SLOTS_MIN, clean, is_clean_due
from objcat.maintenance.compact import compact, compact_index, schedule_compaction, scheduled_compactions
from objcat.maintenance.compaction_strategy import strategy_of
from objcat.maintenance.due import compactable, partitions_to_split, waiting_of, why_compact
from objcat.maintenance.reindex import index_due
from objcat.maintenance.split_buckets import split_buckets
from objcat.maintenance.workers import Workers
from objcat.metadata.maintenance_policy import policy_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import RecordIndexSpec
from objcat.metadata.table_state import Tables
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

SLOTS_BETWEEN_LOOKS = 4
"""A writer looks whenever the log passes a multiple of this: often enough for any policy, and for a part of the writes only."""


class AutoMaintenance:
    """What writes begin for the upkeep of their tables: of each table one round at a time, in the background. Safe for many threads.

    Every write of rows ends with `after`, whoever commits it: handles, transactions, Spark's own writes and streams. A lake has one for all
    of its tables, so that a round that takes long is not begun again by the writes that come meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, str]] = set()
        on_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._busy = set()

    def after(
        self,
        timeline: Timeline[Tables],
        view: LogView[Tables],
        table: str,
        manifests: Manifests,
        *,
        since_slot: int,
        workers: Callable[[], Workers] | None = None,
    ) -> None:
        """Begin what the policy of a table says is due, now that a write has moved its log from a slot to where `view` stands.

        Never raises, and nobody waits for it: a write is acknowledged whatever comes of this, and what fails is logged. Whoever passes a
        slot of a certain distance looks, so that a table is looked after by writers that write once, too; two that do so at once share the
        work as all services do. No request where nothing may be due. workers: gives those that compact; None: this process does.
        """
        # In a log that tables share, the writer of one may never be the one that passes such a slot.
        since_slot = min(since_slot, view.slot - len(view.state))
        where = timeline.fileio.url
        try:
            if not may_be_due(view, table, since_slot=since_slot) or not self._begin(where, table):
                return
        except InvalidInput as error:
            logger.warning("the table %s at %s is not looked after: %s", table, where, error)
            return
        work = partial(upkeep_after, timeline, view, table, manifests, since_slot=since_slot)
        try:
            timeline.fileio.env.submit(partial(self._quietly, where, table, view.slot, work, workers), idle=True)
        except RuntimeError as error:
            self._end(where, table)
            logger.warning("the upkeep of %s is left to later writers, as the process ends: %s", where, error)

    def _quietly(self, where: str, table: str, slot: int, work: Callable[..., None], workers: Callable[[], Workers] | None) -> None:
        try:
            work(workers=None if workers is None else workers())
        except Exception as error:  # noqa: BLE001 - the write that began this has succeeded, and the next one tries again
            logger.warning("the upkeep of %s after slot %d is left to later writers: %s", where, slot, error)
        finally:
            self._end(where, table)

    def _begin(self, where: str, table: str) -> bool:
        with self._lock:
            if (where, table) in self._busy:
                return False
            self._busy.add((where, table))
            return True

    def _end(self, where: str, table: str) -> None:
        with self._lock:
            self._busy.discard((where, table))


def may_be_due(view: LogView[Tables], table: str, *, since_slot: int) -> bool:
    """Whether `upkeep_after` might find anything to do. No request. Raises InvalidInput for properties that are no policy."""
    if since_slot // SLOTS_BETWEEN_LOOKS == view.slot // SLOTS_BETWEEN_LOOKS or table not in view.state:
        return False
    policy = policy_of(view.state[table].spec.properties)
    long_enough = view.slot - view.log.marks(table).bound >= CLEANED_SLOTS_MIN
    has_index = isinstance(view.state[table].spec.index, RecordIndexSpec)
    return policy.compacts or has_index or policy.split_above_bytes is not None or (policy.auto_clean and long_enough)


def upkeep_after(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    manifests: Manifests,
    *,
    since_slot: int,
    workers: Workers | None = None,
) -> None:
    """Double buckets, compact and clean, where the policy of a table says so: what a write does that has moved the log from `since_slot`.

    Where the policy plans only, a compaction that is due is left as a plan, unless one waits already. view: what the writer knows now.
    workers: compact; this process when None. Asks the store nothing where nothing is due, but for manifests that `manifests` has not kept,
    and, of a clean by hours, O(log n) entries now and then. Raises what services raise.
    """
    snapshot = snapshot_of(view, table, where=timeline.fileio.url)
    policy = policy_of(snapshot.spec.properties)
    if policy.split_above_bytes is not None:
        for partition in partitions_to_split(snapshot, manifests, above_bytes=policy.split_above_bytes):
            split_buckets(timeline, table, partition=partition, count=2 * snapshot.table.bucket_count(partition))
    if policy.compacts:
        waiting = waiting_of(compactable(snapshot, manifests, policy), now_ms=snapshot.committed_at_ms)
        if why_compact(waiting, policy) is not None:
            strategy = strategy_of(policy, io_bytes_max=policy.compact_io_bytes_max)
            if not policy.plans_only:
                compact(timeline, table, strategy=strategy, workers=workers)
            elif not scheduled_compactions(timeline, table):
                schedule_compaction(timeline, table, strategy=strategy)
    # Of a copy-on-write table nothing else has a compaction, and one within a bound of bytes leaves the index out. And a write that looks
    # keys up opens what all commits have added to it: that is merged in time where no policy says anything, too.
    if index_due(snapshot, manifests, crowded=not policy.compacts):
        compact_index(timeline, table, manifests, workers=workers)
    if policy.auto_clean and is_clean_due(timeline, view, table, policy.retention, since_slot=since_slot):
        clean(timeline, table, retention=policy.retention)
