"""Deleting rows by a filter: which rows these are is read from a snapshot, and if another commit changes them first, it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.read.plan import ScanPlan, plan_scan
from objcat.services.perform import Done, Proposal, Service, perform
from objcat.storage.files import BaseWriter, base_path
from objcat.table import BaseFile, FileGroup, LogObject, Manifests, Snapshot, TableDelta, Tables, TableSpec
from objcat.table.files import encode_delta
from objcat.table.snapshot import snapshot_of
from objcat.tasks import TXN_FIELD, Operation, Rewritten, WriteResult, WriteTask, run_all
from objcat.tasks.current import current_cuts, loaded_logs, rewritten_at_once
from objcat.tasks.model import Filter
from objcat.timeline import Action, Footprint, Summary, Timeline, Txn, View


class KeyEngine(Protocol):
    """Finds the rows of a scan, and writes deletes of them."""

    def keys(self, plan: ScanPlan) -> Any | None:
        """The rows of a scan as a batch; None when there are none."""

    def write(self, data: Any, task: WriteTask) -> WriteResult:
        """Write the batch."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to be erased. keys: the rows to delete, of a table with a key."""

    snapshot: Snapshot
    plan: ScanPlan
    keys: Any = None


def erase(
    timeline: Timeline[Tables], table: str, where: str | pc.Expression, *, engine: KeyEngine, metadata: Mapping[str, str]
) -> Done[Erasure] | None:
    """Delete the rows for which a filter is true, as one commit; None when there are none.

    A merge-on-read table gets deletes of their keys; file groups of a copy-on-write table, and of one without a key, are rewritten. With an
    ordering column the deletes keep out what is older than the rows that they end. Where another commit touches the same homes first, the
    filter is read again. Raises InvalidPredicate, CommitConflict (after as many attempts as the policy allows; nothing is visible), Fenced,
    TableClosed, CommitUnknown and storage errors.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def work_of(view: View[Tables]) -> Erasure | None:
        snapshot = snapshot_of(view, table, where=fileio.url)
        spec = snapshot.spec
        plan = plan_scan(snapshot, manifests, where=where, columns=_columns(spec))
        if spec.is_keyless:
            return Erasure(snapshot, plan) if plan.groups else None
        keys = engine.keys(plan)
        return None if keys is None else Erasure(snapshot, plan, keys)

    view = timeline.open()
    action = Action.DELTA_COMMIT if not snapshot_of(view, table, where=fileio.url).spec.rewrites else Action.COMMIT

    def run(work: Erasure, txn: Txn) -> Proposal:
        return replace(_run(fileio, manifests, engine, work, txn), metadata=metadata)

    try:
        return perform(timeline, Service(action=action, table=table, plan=work_of, run=run), view)
    except _NothingToErase:
        return None


class _NothingToErase(Exception):
    """Files that might hold such rows hold none."""


def _columns(spec: TableSpec) -> list[str]:
    """What says which rows are meant, and how old they are."""
    ordering = [] if spec.ordering_column is None else [spec.ordering_column]
    columns = [*spec.key_columns, *spec.partition_columns, *ordering] or list(spec.table_schema.columns[:1])
    return list(dict.fromkeys(column.name for column in columns))


def _run(fileio: FileIO, manifests: Manifests, engine: KeyEngine, work: Erasure, txn: Txn) -> Proposal:
    snapshot, spec = work.snapshot, work.snapshot.spec
    if spec.is_keyless:
        assert work.plan.where is not None, "an erasure has a filter"
        erased = _erased(fileio, spec, work.plan.groups, work.plan.where, txn)
        if not erased.bases:
            raise _NothingToErase
        return _proposal(erased, snapshot)
    former = frozenset(filter(spec.is_former, snapshot.live_partitions(manifests))) if spec.former else frozenset()
    task = WriteTask(
        spec,
        txn,
        Operation.DELETE,
        bucket_counts=snapshot.table.bucket_counts,
        groups={group.home: group for group in work.plan.groups} if spec.rewrites else {},
        former_partitions=former,
    )
    return _proposal(engine.write(work.keys, task), snapshot)


def _proposal(written: WriteResult, snapshot: Snapshot) -> Proposal:
    replaces = tuple(sorted(base.home for base in written.bases))
    appends = tuple(sorted({rows.home for log in written.logs for rows in log.homes}.difference(replaces)))
    files: list[BaseFile | LogObject] = [*written.bases, *written.logs]
    return Proposal(
        footprint=Footprint(replaces=replaces, appends=appends, rmw=appends),
        changes=encode_delta(TableDelta(bases=written.bases, logs=written.logs, as_of=snapshot.slot if replaces else None)),
        summary=Summary(
            rows=written.rows,
            inserted=0,
            updated=0,
            deleted=sum(home.deleted for home in written.rewritten) if written.rewritten else written.rows,
            files=len(files),
            bytes=sum(file.bytes for file in files),
        ),
        files=tuple(file.path for file in files),
    )


def _erased(fileio: FileIO, spec: TableSpec, groups: tuple[FileGroup, ...], where: Filter, txn: Txn) -> WriteResult:
    """The groups of a table without a key that hold such rows, rewritten without them."""
    logs = loaded_logs(fileio, spec, groups)

    def rewrite(group: FileGroup) -> tuple[BaseFile, int] | None:
        schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        path = base_path(txn, group.home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        before = 0
        with BaseWriter(fileio, path, schema, group.home, bounded=spec.bounded) as writer:
            after = 0
            for rows, _ in current_cuts(fileio, spec, group, logs):
                kept = _without(rows, spec, where)
                before, after = before + rows.num_rows, after + kept.num_rows
                writer.write(kept.select(schema.names))
            return (writer.finish(), before - after) if after < before else None

    at_once = rewritten_at_once(groups, most=fileio.env.parallelism)
    found = [one for one in run_all(fileio.env, rewrite, groups, at_once=at_once) if one is not None]
    rewritten = tuple(Rewritten(base.home, count, 0, 0, count, changed=True) for base, count in found)
    return WriteResult(tuple(base for base, _ in found), rows=sum(count for _, count in found), rewritten=rewritten)


def _without(rows: pa.Table, spec: TableSpec, where: Filter) -> pa.Table:
    """The rows for which the filter is false or null."""
    names = {column.physical: column.name for column in spec.table_schema.columns}
    logical = rows.select(list(names)).rename_columns(list(names.values()))
    return rows.filter(pc.invert(_truth(logical, where)))


def _truth(rows: pa.Table, where: Filter) -> pa.Array:
    number = pa.array(np.arange(rows.num_rows))
    passed = rows.append_column(_NUMBER, number).filter(where.to_arrow()).column(_NUMBER)
    return pc.is_in(number, value_set=passed.combine_chunks())


_NUMBER = "_objcat_number"
