"""Automatic maintenance: after a write, the writer starts whatever service is due, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from fileio.env import on_fork
from objcat.errors import InvalidInput, PluginFailed, PluginMissing
from objcat.maintenance.auto_mirror import AutoMirror, NoMirrors
from objcat.maintenance.clean import CLEANED_SLOTS_MIN, clean, is_clean_due
from objcat.maintenance.compact import compact, compact_index, schedule_compaction, scheduled_compactions
from objcat.maintenance.compaction_strategy import strategy_of
from objcat.maintenance.due import compactable, partitions_to_split, waiting_of, why_compact
from objcat.maintenance.reindex import index_due
from objcat.maintenance.split_buckets import split_buckets
from objcat.maintenance.workers import Workers
from objcat.metadata.maintenance_policy import Policy, policy_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import RecordIndexSpec
from objcat.metadata.table_state import Tables
from objcat.timeline.log_view import LogView, Timeline

logger = logging.getLogger("objcat")

SLOTS_BETWEEN_LOOKS = 4
"""A writer looks when the log passes a multiple of this. That is often enough for any policy, and only part of the writes pay for it."""


class AutoMaintenance:
    """Starts table services after writes: one round per table at a time, in the background. Safe for many threads.

    Every write of rows ends with `after`: handles, transactions, Spark writes and streams. A lake has one for all its tables, so writes do
    not start a second round while a long one runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, str]] = set()
        self.mirrors = AutoMirror()
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
        name: str = "",
        workers: Callable[[], Workers] | None = None,
    ) -> None:
        """Start what the policy of a table says is due, after a write moved its log from `since_slot` to `view`.

        Never raises, and nobody waits for it. The write is acknowledged in any case, and failures are logged. The writer that passes
        certain slots looks, so tables of writers that write only once are maintained too. Two rounds at once share the work as all services
        do. Sends no request where nothing may be due.

        Args:
            view: the log as the write left it.
            since_slot: the slot before the write.
            name: of the table, for people.
            workers: makes the workers that compact; None: this process compacts.
        """
        self.mirrors.after(timeline, view, table, name, manifests)
        # In a log that tables share, the writer of one may never be the one that passes such a slot.
        since_slot = min(since_slot, view.slot - len(view.state))
        # Of many threads whose commits passed such a slot one looks.
        looked = timeline.views.shared.looked
        since_slot = max(since_slot, looked.get(table, -1))
        where = timeline.fileio.url
        try:
            if not may_be_due(view, table, since_slot=since_slot) or not self._begin(where, table):
                return
        except InvalidInput as error:
            logger.warning("Automatic maintenance of table %s at %s is off: %s", table, where, error)
            return
        looked[table] = view.slot
        work = partial(maintain_after, timeline, view, table, manifests, since_slot=since_slot)
        try:
            timeline.fileio.env.submit(partial(self._quietly, where, table, view.slot, work, workers), idle=True)
        except RuntimeError as error:
            self._end(where, table)
            logger.warning("Maintenance of %s is left to later writers, because the process ends: %s", where, error)

    def _quietly(self, where: str, table: str, slot: int, work: Callable[..., None], workers: Callable[[], Workers] | None) -> None:
        try:
            work(workers=None if workers is None else workers())
        except Exception as error:  # noqa: BLE001 - the write that began this has succeeded, and the next one tries again
            logger.warning("Maintenance of %s after slot %d failed and is left to later writers: %s", where, slot, error)
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


class NoMaintenance(AutoMaintenance):
    """Starts nothing: for a table that has no name yet, and may never have one."""

    def __init__(self) -> None:
        super().__init__()
        self.mirrors = NoMirrors()

    def after(self, *_: object, **__: object) -> None:
        """Start nothing."""


def may_be_due(view: LogView[Tables], table: str, *, since_slot: int) -> bool:
    """Whether `maintain_after` might find anything to do. Sends no request. Raises InvalidInput for properties that are no policy."""
    if since_slot // SLOTS_BETWEEN_LOOKS == view.slot // SLOTS_BETWEEN_LOOKS or table not in view.state:
        return False
    policy = policy_of(view.state[table].spec.properties)
    long_enough = view.slot - view.log.marks(table).bound >= CLEANED_SLOTS_MIN
    has_index = isinstance(view.state[table].spec.index, RecordIndexSpec)
    return policy.compacts or has_index or policy.split_above_bytes is not None or (policy.auto_clean and long_enough)


def maintain_after(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    table: str,
    manifests: Manifests,
    *,
    since_slot: int,
    workers: Workers | None = None,
) -> None:
    """Double buckets, compact and clean, where the policy of a table says so. A write runs it after its commit.

    Where the policy only plans, a compaction that is due is left as a plan, unless one waits already. Sends no request where nothing is
    due, except for manifests that `manifests` has not cached and, now and then for a clean by hours, O(log n) entries. Raises what services
    raise.

    Args:
        view: the log as the writer knows it.
        since_slot: the slot before the write.
        workers: run the compaction; this process when None.
    """
    snapshot = snapshot_of(view, table, where=timeline.fileio.url)
    policy = policy_of(snapshot.spec.properties)
    if policy.split_above_bytes is not None:
        for partition in partitions_to_split(snapshot, manifests, above_bytes=policy.split_above_bytes):
            split_buckets(timeline, table, partition=partition, count=2 * snapshot.table.bucket_count(partition))
    if policy.compacts:
        try:
            _compact_if_due(timeline, table, snapshot, manifests, policy, workers)
        except (PluginMissing, PluginFailed) as error:
            # Another process may have the plug-in. What else is due needs none.
            logger.warning("Writers of table %s at %s compact nothing: %s", table, timeline.fileio.url, error)
    # Of a copy-on-write table nothing else has a compaction, and one within a bound of bytes leaves the index out. And a write that looks
    # keys up opens what all commits have added to it: that is merged in time where no policy says anything, too.
    if index_due(snapshot, manifests, crowded=not policy.compacts):
        compact_index(timeline, table, manifests, workers=workers)
    if policy.auto_clean and is_clean_due(timeline, view, table, policy.retention, since_slot=since_slot):
        clean(timeline, table, retention=policy.retention)


def _compact_if_due(
    timeline: Timeline[Tables], table: str, snapshot: Snapshot, manifests: Manifests, policy: Policy, workers: Workers | None
) -> None:
    waiting = waiting_of(compactable(snapshot, manifests, policy), now_ms=snapshot.committed_at_ms)
    if why_compact(waiting, policy) is None:
        return
    strategy = strategy_of(policy, io_bytes_max=policy.compact_io_bytes_max)
    if not policy.plans_only:
        compact(timeline, table, strategy=strategy, workers=workers)
    elif not scheduled_compactions(timeline, table):
        schedule_compaction(timeline, table, strategy=strategy)
