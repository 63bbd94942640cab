"""`TableContext`: the state that the parts of a handle share. `LatestView`: the newest view of a log that a handle has seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.common.memory_errors import after_commit
from objcat.common.validation import AsOf, moment_ms
from objcat.errors import AlreadyApplied, InvalidInput, ObjcatError
from objcat.maintenance.auto import AutoMaintenance
from objcat.maintenance.savepoint import check_readable
from objcat.maintenance.workers import Workers
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import MirrorReport
from objcat.planning.commits import CommitInfo, Commits
from objcat.table.batch_input import workers_on
from objcat.table.change_feed import FeedContext
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Entry, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening
from objcat.write.bucket_size_warning import BucketSizeWarning
from objcat.write.service_commit import ServiceCommit
from objcat.write.transaction import CommitResult, already_applied_result, result_of

logger = logging.getLogger("objcat")

R = TypeVar("R")
AHEAD_BYTES_MAX = 1024**2
"""Bytes of manifests up to which a plan reads them before it is known whether there is a newer slot."""
CLOCKS_APART_MS = 60_000
"""Clocks of machines may differ by so much without a warning."""


class LatestView:
    """The newest view that a handle has seen; it never goes back. Safe for many threads."""

    def __init__(self, timeline: Timeline[Tables], view: LogView[Tables]) -> None:
        self._timeline = timeline
        self._view = view
        self._lock = threading.Lock()

    @property
    def view(self) -> LogView[Tables]:
        """The view. Sends no request."""
        return self._view

    def refresh(self) -> LogView[Tables]:
        """Read the newest view: one GET when nothing is new."""
        return self.set_if_newer(self._timeline.refresh(self._view))

    def set_if_newer(self, view: LogView[Tables]) -> LogView[Tables]:
        """Cache a view unless another thread has cached a newer one. Returns the cached one."""
        with self._lock:
            if view.slot > self._view.slot:
                self._view = view
            return self._view

    def advance(self, entries: Sequence[Entry]) -> None:
        """Replay entries that may overlap those that another thread replayed meanwhile."""
        self.set_if_newer(self._timeline.views.catch_up(self._view, entries, self._timeline.advance))

    def adopt_checkpoint(self, standing: LogView[Tables]) -> None:
        """Take over the checkpoint of `standing` when it is newer than the own one, whatever slot the handle has reached."""
        with self._timeline.views.replaying():
            while True:
                view = self._view
                rebased = self._timeline.adopt_checkpoint(view, standing)
                with self._lock:
                    if self._view is view:
                        self._view = rebased
                        break
            self._timeline.views.offer(rebased)

    def retry_on_new_checkpoint(self, work: Callable[[], R]) -> R:
        """Run `work`; again from another checkpoint when the handle's one was deleted meanwhile or is damaged.

        The last attempt starts from the log itself. Returns what `work` returns.
        """
        return reopening(self._timeline, work, lambda: self._stand(self._timeline.open()))

    def _stand(self, opened: LogView[Tables]) -> None:
        """Cache a newly opened view, also at the slot of the cached one."""
        with self._lock:
            if opened.slot >= self._view.slot:
                self._view = opened
        self._timeline.views.offer(opened)


class TableContext:
    """What the parts of a handle share: where the table is, the newest view of its log, and what follows a commit. Not public.

    `auto_maintenance`: starts services after writes. `listeners`: called after every commit of rows. Safe for many threads.
    """

    def __init__(
        self, name: str, timeline: Timeline[Tables], table: str, view: LogView[Tables], *, auto_maintenance: AutoMaintenance | None = None
    ) -> None:
        self.name = name
        self.id = table
        self.timeline = timeline
        self.fileio: FileIO = timeline.fileio
        self.manifests = Manifests(timeline.fileio)
        self.latest = LatestView(timeline, view)
        self.committer = Committer(timeline.fileio)
        self.commits = Commits(timeline.fileio)
        self.advice = BucketSizeWarning(name)
        self.auto_maintenance = auto_maintenance or AutoMaintenance()
        self.listeners: list[Callable[[CommitResult], None]] = []

    def __repr__(self) -> str:
        return f"Table({self.name!r} at {self.fileio.url!r}, slot {self.view.slot})"

    # ---- the newest state

    @property
    def view(self) -> LogView[Tables]:
        """The newest view of the log seen so far. Sends no request."""
        return self.latest.view

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot seen so far. Sends no request."""
        return snapshot_of(self.view, self.id, where=self.fileio.url)

    @property
    def spec(self) -> TableSpec:
        """The table's definition as of `snapshot`."""
        return self.snapshot.spec

    def refresh(self) -> Snapshot:
        """Read the newest snapshot: one GET when nothing is new."""
        return snapshot_of(self.latest.refresh(), self.id, where=self.fileio.url)

    def on_newest(self, work: Callable[[Snapshot], R]) -> R:
        """What `work` makes of the newest snapshot: one GET when nothing is new, as `refresh`.

        While manifests must be read, it is asked for news beside that. When there are some, `work` is called again. It must be a plan,
        which changes nothing.
        """
        view = self.view
        if not self._reads_manifests(view):
            return work(self.refresh())
        asked = self.fileio.env.submit_io(partial(self.timeline.log.read_stub, view.slot + 1))
        early: R | None = None
        failure: Exception | None = None
        try:
            early = work(snapshot_of(view, self.id, where=self.fileio.url))
        except (ObjcatError, FileIOError) as error:
            failure = error
        stub = asked.result()
        if stub is not None:
            self.latest.set_if_newer(self.timeline.refresh(view, [stub]))
            return work(self.snapshot)
        if failure is not None:
            raise failure
        self.timeline.look_beyond(view)
        return cast("R", early)

    def _reads_manifests(self, view: LogView[Tables]) -> bool:
        """Whether a plan of a view has to read manifests that are few and small."""
        refs = view.state[self.id].manifest if self.id in view.state else ()
        return 0 < sum(ref.bytes for ref in refs) <= AHEAD_BYTES_MAX and self.manifests.lacks(refs)

    def retry_on_new_checkpoint(self, work: Callable[[], R]) -> R:
        """See `LatestView.retry_on_new_checkpoint`."""
        return self.latest.retry_on_new_checkpoint(work)

    def commits_of(self, txns: Collection[Txn]) -> Mapping[Txn, CommitInfo]:
        """When the transactions that rows name were committed, see `objcat.planning.commits`. The handle has seen their slots."""
        return self.retry_on_new_checkpoint(lambda: self.commits.find(self.view.outcomes, txns))

    def check_readable(self, slot: int) -> None:
        """Raises SnapshotExpired when a slot was cleaned meanwhile: one GET when nothing is new."""
        check_readable(self.timeline.refresh(self.view).log, self.id, slot, where=self.fileio.url)

    def _warn_of_clocks(self, newest: Snapshot) -> None:
        """Warn of a clock. A time is looked up in the commit times, which nobody can check where the store has no clock."""
        ahead_ms = newest.committed_at_ms - self.fileio.env.now_ms()
        if ahead_ms > CLOCKS_APART_MS and not self.fileio.capabilities.store_clock:
            logger.warning(
                "The newest commit of %r is dated %d s ahead of this machine's clock. One of the two is wrong, so a time may "
                "name another slot than you mean. table.inspect.history() has the slots.",
                self,
                ahead_ms // 1000,
            )

    def snapshot_as_of(self, as_of: AsOf) -> Snapshot:
        """The snapshot of a slot, or of the newest commit at or before a time. Raises InvalidInput, SnapshotExpired."""
        newest = self.refresh()
        if isinstance(as_of, int):
            if as_of < 0 or as_of > newest.slot:
                raise InvalidInput(f"The table {self.name!r} has no slot {as_of}. Use a slot from 0 to {newest.slot}.")
            view = self.timeline.at(as_of)
        else:
            when_ms = moment_ms(as_of, what="as_of")
            self._warn_of_clocks(newest)
            try:
                view = self.timeline.at_time(when_ms, self.view)
            except InvalidInput as error:
                raise InvalidInput(f"The table {self.name!r} did not exist at {as_of}: it was created later. Use a later time.") from error
        check_readable(newest.log, self.id, view.slot, where=self.fileio.url)
        if self.id not in view.state:
            self.timeline.check_checkpoint(view)
            raise InvalidInput(
                f"The table {self.name!r} did not exist at {as_of}: it was created later, in a shared log. Use a later slot or time."
            )
        return snapshot_of(view, self.id, where=self.fileio.url)

    # ---- what follows a commit

    def committed(self, write: Callable[[], ServiceCommit[Any] | None], *, spark: Any = None) -> CommitResult | None:
        """Run a write that is a service, and return its commit; the handle has seen it. `spark`: the session that writes."""
        began, since_slot = self.fileio.metrics.snapshot(), self.view.slot
        try:
            done = write()
        except AlreadyApplied as applied:
            return already_applied_result(self.fileio, applied.winner_slot, began)
        if done is None:
            return None
        sent = self.fileio.metrics.snapshot() - began
        result = result_of(done.entry, done.entry.txn, done.proposal.summary, attempts=done.attempts, slots_lost=done.slots_lost, sent=sent)
        self.after_service(None)
        with after_commit(result.slot):
            self.after_write(result, since_slot=since_slot, spark=spark)
        return result

    def after_service(self, result: R) -> R:
        """The result of a service; the handle sees its slot, unless the store fails. The service stays committed in any case."""
        try:
            self.refresh()
        except (ObjcatError, FileIOError, MemoryError) as error:
            logger.warning("%r did not read what its service committed: %s", self, error)
        self.mirror_later()
        return result

    def mirror_later(self) -> None:
        """Mirror what the handle has seen, in the background, if the table has mirrors. Never raises."""
        self.auto_maintenance.mirrors.after(self.timeline, self.view, self.id, self.name, self.manifests)

    def mirrors_start_over(self) -> int:
        """Make the mirrors again from the newest slot, and forget their history. Raises as `TableMirrors.start_over`."""
        self.refresh()
        return self.auto_maintenance.mirrors.start_over(self.timeline, self.view, self.id, self.name, self.manifests)

    def mirror_now(self) -> tuple[MirrorReport, ...]:
        """Bring the mirrors up to the newest slot. Raises as `TableMirrors.catch_up`."""
        self.refresh()
        return self.auto_maintenance.mirrors.now(self.timeline, self.view, self.id, self.name, self.manifests)

    def add_listener(self, listener: Callable[[CommitResult], None]) -> Callable[[], None]:
        """Call `listener` after every commit of rows. Returns a function that ends the calls."""
        self.listeners.append(listener)

        def end() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        return end

    def after_write(self, result: CommitResult, *, since_slot: int, spark: Any = None) -> None:
        """The end of every commit of rows: maintenance that is due (see `AutoMaintenance.after`), and listeners. `spark`: the session that
        wrote."""
        workers = None if spark is None else partial(workers_on, spark, self.fileio, table=self.name)
        self.auto_maintenance.after(
            self.timeline, self.view, self.id, self.manifests, since_slot=since_slot, name=self.name, workers=workers
        )
        for listener in list(self.listeners):
            try:
                listener(result)
            except Exception as error:  # noqa: BLE001 - the commit is durable, whatever others make of it
                logger.warning("A listener of %r failed at slot %d: %r", self, result.slot, error)

    def workers(self, spark: Any) -> Workers | None:
        """The executors of a session. Raises Unsupported for a store that they cannot open."""
        return None if spark is None else workers_on(spark, self.fileio, table=self.name)

    def feed_context(self) -> FeedContext:
        """What change feeds need of the table, at its newest slot."""
        self.refresh()
        return FeedContext(
            timeline=self.timeline, table=self.id, name=self.name, manifests=self.manifests, commits=self.commits, view=self.view
        )
