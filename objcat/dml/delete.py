"""Deletes rows by a filter. The rows are read from a snapshot, and read again after a conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.metadata.derived import check_not_derived
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import ScanPlan, plan_scan
from objcat.tasks.model import Operation, WriteResult, WriteTask
from objcat.tasks.regroup_rows import DeleteTask
from objcat.timeline.entry import Action, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.index_lookup import LookupContext, keys_of
from objcat.write.service_commit import Service, ServiceCommit, ServiceResult, run_service
from objcat.write.service_result import proposal_of


class KeyEngine(Protocol):
    """Finds the rows of a scan, writes deletes of them, and rewrites file groups without them."""

    def keys(self, plan: ScanPlan) -> Any | None:
        """The rows of a scan as a batch, or None without any."""

    def write(self, data: Any, task: WriteTask) -> WriteResult:
        """Write the batch."""

    def rewrite(self, task: DeleteTask) -> WriteResult:
        """Run the task over all of its file groups, perhaps in pieces."""

    def write_located(self, place: LookupContext, data: Any, task: WriteTask) -> WriteResult:
        """Write the batch under an index without hash buckets."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What to delete. keys: for a table with a key, the rows to delete."""

    snapshot: Snapshot
    plan: ScanPlan
    keys: Any = None


def delete_where(
    timeline: Timeline[Tables],
    table: str,
    where: str | pc.Expression,
    *,
    engine: KeyEngine,
    metadata: Mapping[str, str],
    outright: bool = False,
) -> ServiceCommit[Deletion] | None:
    """Delete the rows for which a filter is true, as one commit. Returns None if there are none.

    A merge-on-read table gets deletes of their keys. File groups of a copy-on-write table, and of one without a key, are rewritten. With
    an
    ordering column the deletes reject rows that are older than the deleted ones. After a conflict in these file groups the filter is read
    again.

    Args:
        outright: leave no tombstone for compactions to retain. Late older rows are then accepted again.

    Raises:
        InvalidPredicate: the filter does not fit.
        CommitConflict: after as many attempts as the policy allows. Nothing is visible.
        WriterFenced, TableClosed: nothing is visible.
        CommitUnknown: the commit may have landed.
        FileIOError: the store failed.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def work_of(view: LogView[Tables]) -> Deletion | None:
        """The work as of a view, or None."""
        snapshot = snapshot_of(view, table, where=fileio.url)
        spec = snapshot.spec
        plan = plan_scan(snapshot, manifests, where=where, columns=_columns(spec, outright=outright))
        if not spec.has_key:
            return Deletion(snapshot, plan) if plan.groups else None
        keys = engine.keys(plan)
        return None if keys is None else Deletion(snapshot, plan, keys)

    view = timeline.open()
    spec = snapshot_of(view, table, where=fileio.url).spec
    check_not_derived(spec, "delete rows")
    action = Action.COMMIT if spec.rewrites else Action.DELTA_COMMIT

    def run(work: Deletion, txn: Txn) -> ServiceResult:
        """Write the deletes."""
        return replace(_run(fileio, manifests, engine, work, txn, outright=outright), metadata=metadata)

    try:
        return run_service(timeline, Service(action=action, table=table, plan=work_of, run=run), view)
    except _NothingToDelete:
        return None


class _NothingToDelete(Exception):
    """Files that may hold such rows hold none."""


def _columns(spec: TableSpec, *, outright: bool) -> list[str]:
    """The columns that identify rows and their age. An outright delete needs no age."""
    ordering = [] if outright else spec.ordering_columns
    columns = [*spec.key_columns, *spec.partition_columns, *ordering] or list(spec.table_schema.columns[:1])
    return list(dict.fromkeys(column.name for column in columns))


def _run(fileio: FileIO, manifests: Manifests, engine: KeyEngine, work: Deletion, txn: Txn, *, outright: bool) -> ServiceResult:
    snapshot, spec = work.snapshot, work.snapshot.spec
    if not spec.has_key:
        assert work.plan.where is not None, "a delete has a filter"
        rewritten = engine.rewrite(DeleteTask(spec, txn, work.plan.groups, work.plan.where))
        if not rewritten.bases:
            raise _NothingToDelete
        return proposal_of(rewritten, snapshot)
    former = frozenset(filter(spec.is_former, snapshot.live_partitions(manifests))) if spec.former else frozenset()
    task = WriteTask(
        # Deletes have the ordering values of the rows that they end, however low.
        msgspec.structs.replace(spec, watermark=msgspec.UNSET),
        txn,
        Operation.DELETE,
        bucket_counts=snapshot.table.bucket_counts,
        groups={group.group_id: group for group in work.plan.groups} if spec.rewrites else {},
        previous_partitions=former,
    )
    if spec.is_located:
        live = {group.group_id: group for group in snapshot.file_groups(manifests)}
        written = engine.write_located(LookupContext(fileio, manifests, snapshot, live), work.keys, task)
        return proposal_of(written, snapshot, keys=keys_of(fileio, txn, [written]))
    return proposal_of(engine.write(work.keys, task) if outright else _write(engine, work.keys, task), snapshot)


def _write(engine: KeyEngine, keys: Any, task: WriteTask) -> WriteResult:
    """Deletes of the keys of existing rows.

    With a lateness horizon a row may be older than it by now, and a delete with its ordering value would be too late to count. So each key
    gets
    two deletes: one without a value, which always counts, and one with the value, which rejects older rows for as long as these would
    count.
    """
    if task.spec.lateness_ms is None:
        return engine.write(keys, task)
    ends = engine.write(keys, replace(task, spec=msgspec.structs.replace(task.spec, ordering=None, lateness_ms=None)))
    kept = engine.write(keys, task)
    return msgspec.structs.replace(ends + kept, rows=kept.rows)
