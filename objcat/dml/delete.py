"""Deleting rows by a filter: which rows these are is read from a snapshot, and if another commit changes them first, it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import pyarrow.compute as pc

from fileio.store import FileIO
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
    """Finds the rows of a scan, writes deletes of them, and file groups without them."""

    def keys(self, plan: ScanPlan) -> Any | None:
        """The rows of a scan as a batch; None when there are none."""

    def write(self, data: Any, task: WriteTask) -> WriteResult:
        """Write the batch."""

    def rewrite(self, task: DeleteTask) -> WriteResult:
        """Run the task over all of its file groups, perhaps in pieces."""

    def write_located(self, place: LookupContext, data: Any, task: WriteTask) -> WriteResult:
        """Write the batch where the index is no hash."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What is to be deleted. keys: the rows to delete, of a table with a key."""

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
    """Delete the rows for which a filter is true, as one commit; None when there are none.

    outright: leave no delete behind that a compaction has to keep; older rows that come late are let in again then.

    A merge-on-read table gets deletes of their keys; file groups of a copy-on-write table, and of one without a key, are rewritten. With an
    ordering column the deletes keep out what is older than the rows that they end. Where another commit touches the same file groups first,
    the filter is read again. Raises InvalidPredicate, CommitConflict (after as many attempts as the policy allows; nothing is visible),
    WriterFenced, TableClosed, CommitUnknown and storage errors."""
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def work_of(view: LogView[Tables]) -> Deletion | None:
        snapshot = snapshot_of(view, table, where=fileio.url)
        spec = snapshot.spec
        plan = plan_scan(snapshot, manifests, where=where, columns=_columns(spec, outright=outright))
        if spec.is_keyless:
            return Deletion(snapshot, plan) if plan.groups else None
        keys = engine.keys(plan)
        return None if keys is None else Deletion(snapshot, plan, keys)

    view = timeline.open()
    action = Action.DELTA_COMMIT if not snapshot_of(view, table, where=fileio.url).spec.rewrites else Action.COMMIT

    def run(work: Deletion, txn: Txn) -> ServiceResult:
        return replace(_run(fileio, manifests, engine, work, txn, outright=outright), metadata=metadata)

    try:
        return run_service(timeline, Service(action=action, table=table, plan=work_of, run=run), view)
    except _NothingToDelete:
        return None


class _NothingToDelete(Exception):
    """Files that might hold such rows hold none."""


def _columns(spec: TableSpec, *, outright: bool) -> list[str]:
    """What says which rows are meant, and how old they are, which a delete outright does not ask."""
    ordering = [] if spec.ordering_column is None or outright else [spec.ordering_column]
    columns = [*spec.key_columns, *spec.partition_columns, *ordering] or list(spec.table_schema.columns[:1])
    return list(dict.fromkeys(column.name for column in columns))


def _run(fileio: FileIO, manifests: Manifests, engine: KeyEngine, work: Deletion, txn: Txn, *, outright: bool) -> ServiceResult:
    snapshot, spec = work.snapshot, work.snapshot.spec
    if spec.is_keyless:
        assert work.plan.where is not None, "a delete has a filter"
        rewritten = engine.rewrite(DeleteTask(spec, txn, work.plan.groups, work.plan.where))
        if not rewritten.bases:
            raise _NothingToDelete
        return proposal_of(rewritten, snapshot)
    former = frozenset(filter(spec.is_former, snapshot.live_partitions(manifests))) if spec.former else frozenset()
    task = WriteTask(
        spec,
        txn,
        Operation.DELETE,
        bucket_counts=snapshot.table.bucket_counts,
        groups={group.group_id: group for group in work.plan.groups} if spec.rewrites else {},
        former_partitions=former,
    )
    if spec.is_located:
        live = {group.group_id: group for group in snapshot.file_groups(manifests)}
        written = engine.write_located(LookupContext(fileio, manifests, snapshot, live), work.keys, task)
        return proposal_of(written, snapshot, keys=keys_of(fileio, txn, [written]))
    return proposal_of(engine.write(work.keys, task) if outright else _write(engine, work.keys, task), snapshot)


def _write(engine: KeyEngine, keys: Any, task: WriteTask) -> WriteResult:
    """Deletes of the keys of rows that are there.

    Where there is a horizon, a row may be older than it by now, and a delete with its ordering value would come too late, and count for
    nothing. So each key gets two: one without a value, which always counts, and above it one with the value, which keeps older rows out
    for as long as these would count.
    """
    if task.spec.lateness_ms is None:
        return engine.write(keys, task)
    ends = engine.write(keys, replace(task, spec=msgspec.structs.replace(task.spec, ordering=None, lateness_ms=None)))
    kept = engine.write(keys, task)
    return msgspec.structs.replace(ends + kept, rows=kept.rows)
