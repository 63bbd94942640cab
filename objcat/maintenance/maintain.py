"""One round of maintenance of a table: every service that its policy says is due, within a budget.

Begin with `maintain`. `table.maintenance.run`, the command line and Spark call it. Each service of the round decides whether it is due, and
commits on its own or not at all. A service that fails is reported and the others go on.
A round is safe on several machines at once, because every service is. `auto.py` does the part that is due after each write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fileio.contract import GetResult
from fileio.errors import FileIOError, NotFound
from objcat.common.validation import seconds, whole_number
from objcat.errors import ObjcatError, TableClosed
from objcat.inspection.verify_files import VERIFIED_BYTES, Verified, verify_some
from objcat.maintenance.clean import clean, is_clean_due
from objcat.maintenance.cluster import cluster, small_groups_of
from objcat.maintenance.cluster_keys import Clustering
from objcat.maintenance.compact import compact, compact_index, execute_scheduled
from objcat.maintenance.compaction_strategy import CompactionStrategy, io_bytes
from objcat.maintenance.due import compactable, partitions_to_split, waiting_of, why_compact
from objcat.maintenance.precompute import files_that_lack_columns, precompute_columns
from objcat.maintenance.split_buckets import split_buckets
from objcat.maintenance.workers import Workers
from objcat.metadata.files import files_named_by
from objcat.metadata.maintenance_policy import Policy, policy_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import MIRRORS
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import TableMirrors
from objcat.mirror.retention import expire_mirrors
from objcat.timeline.archive import FILE_SLOTS_MAX, archive
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.dead_writers import has_dead, rollback_dead_writers
from objcat.timeline.entry import Action
from objcat.timeline.intents import REQUESTED_SUFFIX, Intent, decode_intent
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening

COMPACT_AFTER_COMMITS = 16
COMPACT_AFTER_S = 3600
"""When a round compacts a table whose properties do not say."""
COMPACTED_BYTES_MAX = 10 * 1024**3
"""Bytes that one compaction of a round reads and writes at most, so that a crash does not lose more work."""
SMALL_GROUPS_MAX = 16
"""Small file groups in one partition of a table without a key; more of them are joined."""
DEAD_AFTER_S = 3600
LOOKED_BACK_S = 3 * 86_400
"""Writers that died before their intent are looked for among those that began in this time. Otherwise each round would list all files."""
BUSY_S = 60
"""A compaction of another process that touched its intent within so many seconds is left alone."""
KEPT_SLOTS = 1000
"""Newest slots of a log that are not archived."""
KEPT_CHECKPOINTS = 2
COLLECTED_SLOTS_MIN = 512
"""Checkpoints are expired once in so many slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStep:
    """One service of a round.

    Attributes:
        service: its name, for example `compact`.
        done: whether it ran; otherwise it was left.
        why: what made it due, or why it was left.
        failed: it was left because it failed.
        bytes: that it wrote.
        slot: of its commit, where it made one.
    """

    service: str
    done: bool
    why: str
    failed: bool = False
    bytes: int = 0
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What a round of maintenance did to a table, and what it left. Services that were not due are not in it.

    Attributes:
        table: its name, or its id.
        io_bytes: bytes that compactions read and wrote.
        verified_files, verified_bytes: files read to compare their digests.
        damaged: what is wrong with files that differ from what was committed. There is a failed step `verify` then.
    """

    table: str
    steps: tuple[MaintenanceStep, ...] = ()
    io_bytes: int = 0
    verified_files: int = 0
    verified_bytes: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def did(self) -> tuple[MaintenanceStep, ...]:
        """The steps that ran."""
        return tuple(step for step in self.steps if step.done)

    @property
    def left(self) -> tuple[MaintenanceStep, ...]:
        """The steps that were due but left, with the reason."""
        return tuple(step for step in self.steps if not step.done)


def maintain(
    timeline: Timeline[Tables],
    table: str,
    *,
    name: str = "",
    io_bytes_max: int | None = None,
    seconds_max: float | None = None,
    verify_bytes_max: int = VERIFIED_BYTES,
    workers: Workers | None = None,
) -> MaintenanceReport:
    """Run the services that are due by the policy of a table, each as its own commit.

    In this order: roll back writers that died at least an hour ago, execute scheduled compactions, double buckets, compact, join small file
    groups, precompute columns, clean, archive, expire checkpoints, mirror. Then read some files, drawn at random, to verify them. What does
    not fit the budget is left and reported. A step that fails is left with its error, and the others go on.

    Args:
        name: of the table, for people.
        io_bytes_max: bytes that compactions may read and write; the last one may exceed it by one file group.
        seconds_max: no step begins later.
        verify_bytes_max: about how many bytes are read to verify files, 0 for none; one file may exceed it.
        workers: compact and cluster; this process when None.

    Raises:
        InvalidInput, TableClosed, storage errors of opening the table: see `objcat.errors`.
    """
    if io_bytes_max is not None:
        whole_number(io_bytes_max, what="io_bytes_max", least=1)
    if seconds_max is not None:
        seconds(seconds_max, what="seconds_max")
    whole_number(verify_bytes_max, what="verify_bytes_max", least=0)
    view = timeline.open()
    snapshot_of(view, table, where=timeline.fileio.url)
    done = _Round(timeline, view, table, name or table, io_bytes_max=io_bytes_max, seconds_max=seconds_max, workers=workers)
    done.run()
    verified = done.verify(verify_bytes_max)
    return MaintenanceReport(
        table=name or table,
        steps=tuple(done.steps),
        io_bytes=done.io_bytes,
        verified_files=verified.files,
        verified_bytes=verified.bytes,
        damaged=verified.damaged,
    )


class _Round:
    def __init__(
        self,
        timeline: Timeline[Tables],
        view: LogView[Tables],
        table: str,
        name: str,
        *,
        io_bytes_max: int | None,
        seconds_max: float | None,
        workers: Workers | None,
    ) -> None:
        self._timeline, self._table, self._name, self._workers = timeline, table, name, workers
        self._fileio, self._env = timeline.fileio, timeline.fileio.env
        self._manifests = Manifests(timeline.fileio)
        self._view: LogView[Tables] | None = view
        self._names_mirrors: bool | None = None
        self._io_bytes_max = io_bytes_max
        self.io_bytes = 0
        self._until_s = None if seconds_max is None else self._env.monotonic_s() + seconds_max
        self.steps: list[MaintenanceStep] = []

    def run(self) -> None:
        services: dict[str, Callable[[], None]] = {
            "rollback": self._roll_back,
            "execute": self._execute,
            "split": self._split,
            "compact": self._compact,
            "index": self._reindex,
            "cluster": self._cluster,
            "precompute": self._precompute,
            "clean": self._clean,
            "archive": self._archive,
            "collect": self._collect,
            "mirror": self._mirror,
        }
        for service, work in services.items():
            if self._is_late():
                self._leave(service, "there is no time left to look")
                continue
            try:
                reopening(self._timeline, work, self._forget_view)
            except TableClosed:
                raise
            except (ObjcatError, FileIOError) as error:
                self._leave(service, str(error), failed=True)

    def verify(self, bytes_max: int) -> Verified:
        """Verify some files. A damaged one, or an error, is a step that failed."""
        if not bytes_max:
            return Verified()
        try:
            verified = verify_some(self._timeline, self._table, bytes_max=bytes_max, view=self._view, is_late=self._is_late)
        except (ObjcatError, FileIOError) as error:
            self._leave("verify", str(error), failed=True)
            return Verified()
        if verified.damaged:
            why = "; ".join(verified.damaged)
            self._leave("verify", f"Files differ from what was committed: {why}. Restore them from a backup.", failed=True)
        return verified

    def _did(self, service: str, why: str, *, slot: int | None = None, size: int = 0) -> None:
        self.steps.append(MaintenanceStep(service=service, done=True, why=why, slot=slot, bytes=size))

    def _leave(self, service: str, why: str, *, failed: bool = False) -> None:
        self.steps.append(MaintenanceStep(service=service, done=False, why=why, failed=failed))

    def _is_late(self) -> bool:
        return self._until_s is not None and self._env.monotonic_s() >= self._until_s

    def _latest(self) -> LogView[Tables]:
        """The newest view. A round opens the log once, and each service reads on from there."""
        self._view = self._timeline.open() if self._view is None else self._timeline.refresh(self._view)
        return self._view

    def _forget_view(self) -> None:
        """Open the log again: the checkpoint of the view was deleted, or is damaged."""
        self._view = None

    def _policy(self) -> Policy:
        spec = snapshot_of(self._latest(), self._table, where=self._fileio.url).spec
        self._names_mirrors = MIRRORS in spec.properties
        return policy_of(spec.properties)

    # ---- the services, each of which finds out whether it is due

    def _roll_back(self) -> None:
        view = self._latest()
        if has_dead(self._timeline, view, older_than_s=DEAD_AFTER_S, begun_within_s=LOOKED_BACK_S):
            swept = rollback_dead_writers(self._timeline, view, older_than_s=DEAD_AFTER_S, names_of=files_named_by)
            self._did("rollback", f"{len(swept)} transactions of dead writers were rolled back")

    def _execute(self) -> None:
        if self._io_left is not None and self._io_left <= 0:
            return
        for executed in execute_scheduled(self._timeline, self._table, workers=self._workers):
            if executed.result is None:
                self._leave("execute", executed.why or "there was nothing left to merge")
            else:
                self.io_bytes += 2 * executed.result.bytes
                self._did("execute", "a compaction was scheduled", slot=executed.result.slot, size=executed.result.bytes)

    def _split(self) -> None:
        above_bytes = self._policy().split_above_bytes
        if above_bytes is None:
            return
        snapshot = snapshot_of(self._latest(), self._table, where=self._fileio.url)
        for partition in partitions_to_split(snapshot, self._manifests, above_bytes=above_bytes):
            count = 2 * snapshot.table.bucket_count(partition)
            done = split_buckets(self._timeline, self._table, partition=partition, count=count)
            if done is not None:
                self._did("split", f"buckets of {partition or 'the table'} held more than {above_bytes:,} bytes each", slot=done.slot)

    def _compact(self) -> None:
        view = self._latest()
        snapshot = snapshot_of(view, self._table, where=self._fileio.url)
        policy = policy_of(snapshot.spec.properties)
        groups = compactable(snapshot, self._manifests, policy)
        waiting = waiting_of(groups, now_ms=snapshot.committed_at_ms)
        otherwise = Policy(compact_after_commits=COMPACT_AFTER_COMMITS, compact_after_s=COMPACT_AFTER_S)
        why = why_compact(waiting, policy if policy.compacts else otherwise)
        if why is None and waiting.shared:
            why = f"{waiting.shared:,} file groups share files since a split"
        if why is None:
            return
        other = self._compacts_elsewhere()
        if other is not None:
            self._leave("compact", f"{other.host} is compacting the table")
            return
        todo = {group.group_id: io_bytes(group) for group in groups}
        while todo:
            if self._is_late() or (self._io_left is not None and self._io_left <= 0):
                size = sum(todo.values())
                self._leave("compact", f"{why}; the budget ends before {len(todo):,} file groups, {size:,} bytes to read and write")
                return
            most = min(size for size in (self._io_left, policy.compact_io_bytes_max, COMPACTED_BYTES_MAX) if size is not None)
            strategy = CompactionStrategy(order=policy.choice.order, plugin=policy.choice.plugin, io_bytes_max=most)
            done = compact(self._timeline, self._table, file_groups=list(todo), strategy=strategy, workers=self._workers)
            if done is None:
                return
            taken = [todo.pop(group_id) for group_id in done.file_groups if group_id in todo]
            self.io_bytes += sum(taken)
            self._did("compact", why, slot=done.slot, size=done.bytes)
            if not taken:
                return  # A split came in between: the next round knows the file groups.

    def _reindex(self) -> None:
        """A copy-on-write table has no compaction that would take the index along, so the index is compacted alone."""
        done = compact_index(self._timeline, self._table, self._manifests, view=self._latest(), workers=self._workers)
        if done is not None:
            self._did("index", "the record index has much to merge", slot=done.slot, size=done.bytes)

    def _cluster(self) -> None:
        small = small_groups_of(snapshot_of(self._latest(), self._table, where=self._fileio.url), self._manifests)
        if small < SMALL_GROUPS_MAX:
            return
        why = f"a partition has {small:,} small file groups"
        if self._io_left is not None and self._io_left <= 0:
            self._leave("cluster", f"{why}; the budget is spent")
            return
        most = min(size for size in (self._io_left, self._policy().compact_io_bytes_max, COMPACTED_BYTES_MAX) if size is not None)
        done = cluster(self._timeline, self._table, Clustering(io_bytes_max=most), workers=self._workers)
        if done is not None:
            self.io_bytes += 2 * done.bytes
            self._did("cluster", why, slot=done.slot, size=done.bytes)

    def _precompute(self) -> None:
        view = self._latest()
        lacking = len(files_that_lack_columns(snapshot_of(view, self._table, where=self._fileio.url), self._manifests))
        if not lacking:
            return
        why = f"{lacking:,} files have other precomputed columns than the table wants"
        if self._io_left is not None and self._io_left <= 0:
            self._leave("precompute", f"{why}; the budget is spent")
            return
        done = precompute_columns(self._timeline, self._table, view=view, bytes_max=self._io_left)
        if done.unsettled:
            self._leave("precompute", f"{done.unsettled:,} files changed or are gone. Call table.refresh_files().")
        if done.slots:
            self._did("precompute", why, slot=done.slots[-1], size=done.bytes)

    @property
    def _io_left(self) -> int | None:
        return None if self._io_bytes_max is None else self._io_bytes_max - self.io_bytes

    def _compacts_elsewhere(self) -> Intent | None:
        """The intent of a compaction under way elsewhere. Advice only: it saves two machines the same work, of which one would lose."""
        now_ms = self._env.now_ms()
        for page in self._fileio.list("intents/"):
            for meta in page.objects:
                if _is_plan(meta.key) or now_ms - meta.modified_ms > BUSY_S * 1000:
                    continue
                try:
                    found = self._fileio.get(meta.key)
                except NotFound:
                    continue
                assert isinstance(found, GetResult)
                intent = decode_intent(found.data, key=meta.key)
                if intent.action is Action.COMPACTION:
                    return intent
        return None

    def _clean(self) -> None:
        policy, view = self._policy(), self._latest()
        if is_clean_due(self._timeline, view, self._table, policy.retention, since_slot=None):
            done = clean(self._timeline, self._table, retention=policy.retention, view=view)
            if done.slot is not None:
                left = f", {done.failed:,} are left to the next clean" if done.failed else ""
                self._did("clean", f"nothing needs slots below {done.bound}; {done.files:,} files{left}", slot=done.slot)
            if done.doubt:
                self._leave("clean", done.doubt)

    def _mirror(self) -> None:
        # A table that never had mirrors costs no request here.
        if self._names_mirrors is False:
            return
        view = self._latest()
        mirrors = TableMirrors(self._timeline, self._table, self._name, self._manifests)
        removed = mirrors.remove_unnamed(view)
        if removed:
            self._did("mirror", f"{removed:,} objects were of mirrors that the table has no more")
        for report in mirrors.catch_up(view):
            if report.written:
                self._did("mirror", f"the {report.format} mirror lagged by {report.written:,} slots")
            if report.held:
                self._leave("mirror", f"the {report.format} mirror stays at slot {report.slot}: {report.held}")
        expired = expire_mirrors(self._timeline, view, self._table)
        if expired:
            self._did("mirror", f"no readable slot named {expired:,} objects of mirrors")

    def _archive(self) -> None:
        slot = self._latest().slot - KEPT_SLOTS - FILE_SLOTS_MAX
        entry = self._timeline.log.read_stub(slot) if slot >= 0 else None
        if entry is None or entry.history is not None:
            return
        done = archive(self._timeline, keep_slots=KEPT_SLOTS)
        if done.tombstones:
            self._did("archive", f"{done.tombstones:,} entries below slot {done.end_slot} are no longer replayed")

    def _collect(self) -> None:
        view = self._latest()
        if view.slot - view.log.root_bound < COLLECTED_SLOTS_MIN:
            return
        done = collect_checkpoints(self._timeline, Committer(self._fileio), keep=KEPT_CHECKPOINTS)
        if done.slot is not None:
            self._did("collect", f"nothing needs checkpoints below slot {done.bound}; {done.objects:,} objects", slot=done.slot)


def _is_plan(key: str) -> bool:
    return key.endswith(REQUESTED_SUFFIX)
