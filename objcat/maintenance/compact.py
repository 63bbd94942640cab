"""Compaction: merge the log rows of file groups into new base files. What writers append meanwhile stays on top."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.common.validation import instance, instances
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.late_changes import without_forgotten
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.log_reader import LogReader
from objcat.datafile.parquet import BaseWriter, base_path, constant, log_path, write_log
from objcat.errors import AlreadyDone, CommitConflict, Contention, InvalidInput, SnapshotExpired, TableClosed, WriterFenced
from objcat.maintenance.compaction_strategy import EVERYTHING, CompactionStrategy, choose
from objcat.maintenance.reindex import index_due, of_live_groups
from objcat.maintenance.workers import Advance, LocalWorkers, Workers
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogRows, Order, TableDelta, decode_delta, encode_delta, features_of
from objcat.metadata.key_index_table import index_spec, is_of_index
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import parse_filter
from objcat.tasks.merged_rows import current_cuts, loaded_logs, rewritten_at_once, split_by_group
from objcat.tasks.model import TXN_FIELD, WriteResult
from objcat.tasks.parallel import run_all
from objcat.tasks.row_order import in_order, kept_order
from objcat.tasks.write_log_rows import log_schema
from objcat.timeline.entry import Action, FileGroupId, Footprint, Summary, Txn, requested_key
from objcat.timeline.intents import ADVICE, pending_plans, remove_files, request
from objcat.timeline.json_objects import decode_json
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening
from objcat.timeline.rollback import resolve
from objcat.write.service_commit import Service, ServiceResult, run_service

# As in `objcat.timeline.entry`: types must be resolved before threads use them.
_PLANNED = msgspec.json.Decoder(tuple[FileGroupId, ...])
GROUPS_PER_TASK = 64
TASKS_PER_WORKER = 2
"""Tasks per worker where several run at once, so that none waits long for the last one."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Which file groups to compact, as of which slot. `txn`: set when several processes may execute the plan and one wins."""

    slot: int
    file_groups: tuple[FileGroupId, ...]
    txn: Txn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A compaction that is durable.

    Attributes:
        slot, txn: of its commit.
        as_of: log rows above this slot stayed.
        file_groups: those with new base files.
        rows, files, bytes: written.
    """

    slot: int
    txn: Txn
    as_of: int
    file_groups: tuple[FileGroupId, ...]
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Merge some file groups under one transaction.

    Attributes:
        name: of the task within the transaction.
        groups: the file groups to merge.
        orders: for each group, the order of its new file; None for that of the key.
        committed_at_ms: commit time of the slot that the groups are as of.
        live: for groups of an index, the live file groups of the table.
        restamps: rows become rows of this transaction, since they go to a log that does not know those which wrote them.
    """

    spec: TableSpec
    txn: Txn
    name: str
    groups: tuple[FileGroup, ...]
    orders: tuple[Order | None, ...]
    committed_at_ms: int
    live: frozenset[FileGroupId] | None = None
    restamps: bool = False


def plan_compaction(
    view: LogView[Tables],
    table: str,
    manifests: Manifests,
    *,
    file_groups: Collection[FileGroupId] | None = None,
    strategy: CompactionStrategy | None = None,
    whole_index: bool = False,
) -> CompactionPlan | None:
    """Plan what to compact as of a view; None when there is nothing to do.

    Takes file groups with log rows, with rows in files that they share since a split, or with deletes that an older compaction retained
    and that may be forgotten since. Takes those of a record index too, when file groups and strategy select everything and the index is
    due.

    Args:
        file_groups: only those that share keys with one of these; all when None.
        strategy: which of them to take; all when None.
        whole_index: take all index groups that have anything to merge, due or not.

    Raises:
        TableClosed, InvalidPredicate, PluginMissing, PluginFailed: see `objcat.errors`.
    """
    if file_groups is not None:
        file_groups = instances(
            file_groups, FileGroupId, what="file_groups", such_as='a list of file groups, [objcat.FileGroupId("", 3, 16)]'
        )
    if strategy is None:
        strategy = EVERYTHING
    else:
        instance(strategy, CompactionStrategy, what="strategy", such_as="an objcat.CompactionStrategy(log_bytes_min=...)")
    snapshot = snapshot_of(view, table, where=manifests.url)
    where = parse_filter(strategy.where, snapshot.spec.table_schema)
    pruning = None if where is None else where.to_pruning()
    unmerged = snapshot.file_groups(manifests, where=pruning, group_ids=file_groups, unmerged=True)
    taken = choose(unmerged, strategy, snapshot.spec, lambda: snapshot.live_partitions(manifests), now_ms=snapshot.committed_at_ms)
    chosen = tuple(group.group_id for group in taken)
    if file_groups is None and strategy == EVERYTHING:
        chosen += index_due(snapshot, manifests, whole=whole_index)
    return CompactionPlan(view.slot, chosen) if chosen else None


def schedule_compaction(
    timeline: Timeline[Tables],
    table: str,
    *,
    file_groups: Collection[FileGroupId] | None = None,
    strategy: CompactionStrategy | None = None,
) -> CompactionPlan | None:
    """Plan a compaction and store the plan for executors; None when there is nothing to compact.

    One executor wins. `resolve(plan.txn)` takes a plan back. Raises as `plan_compaction`, and storage errors.
    """
    fileio = timeline.fileio
    plan = reopening(
        timeline, lambda: plan_compaction(timeline.open(), table, Manifests(fileio), file_groups=file_groups, strategy=strategy)
    )
    if plan is None:
        return None
    body = {table: msgspec.Raw(msgspec.json.encode(plan.file_groups))}
    return replace(plan, txn=request(fileio, Action.COMPACTION, plan.slot, engine="service", plan=body))


def scheduled_compactions(timeline: Timeline[Tables], table: str) -> list[CompactionPlan]:
    """The plans that wait for an executor, oldest first; some may be settled already. One LIST, and one GET for each."""
    intents = [intent for intent in pending_plans(timeline.fileio) if intent.action is Action.COMPACTION and table in intent.plan]
    what = "a list of file groups to compact"
    planned = [decode_json(i.plan[table], _PLANNED, where=requested_key(i.txn), what=what, remedy=ADVICE) for i in intents]
    return [CompactionPlan(i.base, file_groups, i.txn) for i, file_groups in zip(intents, planned, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What became of a plan that waited. `result` is None when it was settled otherwise, for the reason `why`."""

    plan: CompactionPlan
    result: CompactionResult | None = None
    why: str = ""


def execute_scheduled(timeline: Timeline[Tables], table: str, *, workers: Workers | None = None) -> list[Executed]:
    """Execute the waiting plans of a table, oldest first, each as one commit.

    Of several executors of a plan one wins, and nothing is done twice. A plan that somebody else executed or rolled back is removed. A plan
    that cannot be executed any more, because others rewrote or cleaned what it names, is rolled back so that it does not wait forever.

    Args:
        workers: do the work; this process when None.

    Raises:
        TableClosed, Contention, CommitUnknown, storage errors: what was executed stays committed, and the other plans wait.
    """
    done: list[Executed] = []
    for plan in scheduled_compactions(timeline, table):
        assert plan.txn is not None, "a scheduled plan has a transaction"
        try:
            executed = Executed(plan=plan, result=compact(timeline, table, plan=plan, workers=workers))
        except AlreadyDone as error:
            executed = Executed(plan=plan, why=str(error))
        except (Contention, TableClosed):
            raise
        except (CommitConflict, SnapshotExpired, WriterFenced) as error:
            # WriterFenced may concern only the executor, taken for dead. Then the plan is taken back, so that its trace may go.
            resolve(timeline.fileio, plan.txn)
            executed = Executed(plan=plan, why=str(error))
        # It is settled, one way or the other.
        remove_files(timeline.fileio, [requested_key(plan.txn)], why=plan.txn)
        done.append(executed)
    return done


def compact(
    timeline: Timeline[Tables],
    table: str,
    *,
    file_groups: Collection[FileGroupId] | None = None,
    strategy: CompactionStrategy | None = None,
    plan: CompactionPlan | None = None,
    whole_index: bool = False,
    workers: Workers | None = None,
) -> CompactionResult | None:
    """Compact file groups of a table in one commit; None when there is nothing to compact.

    No writer conflicts with a compaction. File groups that another service took first are left to it. After a RESTORE or a split it plans
    again, unless a plan was given.

    Args:
        file_groups, strategy, whole_index: see `plan_compaction`.
        plan: execute only this plan.
        workers: do the work; this process when None.

    Raises:
        AlreadyDone: somebody else executed the plan.
        WriterFenced: the plan was rolled back.
        SnapshotExpired: the plan is older than what cleaning has left.
        CommitConflict, TableClosed, CommitUnknown, storage errors: see `objcat.errors`.
    """
    if plan is not None and (file_groups is not None or strategy is not None):
        raise InvalidInput(
            "compact() got a plan together with file groups or a strategy. A plan names its file groups; give only the plan."
        )
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)
    doing = workers or LocalWorkers(fileio)

    def work_of(view: LogView[Tables]) -> CompactionWork | None:
        chosen = plan or plan_compaction(view, table, manifests, file_groups=file_groups, strategy=strategy, whole_index=whole_index)
        if chosen is None:
            return None
        snapshot = snapshot_of(view, table, where=fileio.url)
        groups = tuple(snapshot.all_groups(manifests, group_ids=frozenset(chosen.file_groups)))
        live = snapshot.live_group_ids(manifests) if any(map(is_of_index, chosen.file_groups)) else None
        spec = snapshot.spec
        return CompactionWork(chosen, spec, groups, snapshot.committed_at_ms, lambda group: kept_order(group, spec), live)

    service = Service(
        action=Action.COMPACTION,
        table=table,
        plan=work_of,
        run=lambda work, txn: run_compaction(doing, work, txn),
        plan_txn=None if plan is None else plan.txn,
        narrow=narrowed,
    )
    view = timeline.open() if plan is None else timeline.at(plan.slot)
    done = run_service(timeline, service, view, replans=plan is None)
    if done is None:
        return None
    entry, summary = done.entry, done.proposal.summary
    return CompactionResult(
        slot=entry.slot,
        txn=entry.txn,
        as_of=done.plan.plan.slot,
        file_groups=tuple(group_id for group_id in done.proposal.footprint.replaces if not is_of_index(group_id)),
        rows=summary.rows,
        files=summary.files,
        bytes=summary.bytes,
    )


def compact_index(
    timeline: Timeline[Tables], table: str, manifests: Manifests, *, view: LogView[Tables] | None = None, workers: Workers | None = None
) -> CompactionResult | None:
    """Compact only the record index of a table; None when it has little to merge. Raises as `compact` of a plan.

    view: the newest one; the log is opened when None.
    """
    view = timeline.open() if view is None else view
    file_groups = index_due(snapshot_of(view, table, where=timeline.fileio.url), manifests)
    return compact(timeline, table, plan=CompactionPlan(view.slot, file_groups), workers=workers) if file_groups else None


@dataclass(frozen=True, slots=True)
class CompactionWork:
    """A compaction plan with what its tasks need. `order_of`: see `CompactTask.orders`."""

    plan: CompactionPlan
    spec: TableSpec
    groups: tuple[FileGroup, ...]
    committed_at_ms: int
    order_of: Callable[[FileGroup], Order | None]
    live: frozenset[FileGroupId] | None = None

    def tasks(self, txn: Txn, *, at_once: int) -> list[CompactTask]:
        """Split the plan into tasks, smaller ones where several run at once, and one for the index. Neighbours share log objects."""
        own = [group for group in self.groups if not is_of_index(group.group_id)]
        size = GROUPS_PER_TASK
        if at_once > 1:
            size = max(1, min(size, len(own) // (TASKS_PER_WORKER * at_once)))
        parts = [tuple(own[at : at + size]) for at in range(0, len(own), size)]
        tasks = [
            CompactTask(self.spec, txn, f"compact-{number}", part, tuple(map(self.order_of, part)), self.committed_at_ms)
            for number, part in enumerate(parts)
        ]
        index, of_index = tuple(group for group in self.groups if is_of_index(group.group_id)), index_spec(self.spec)
        if of_index is not None and index:
            tasks.append(CompactTask(of_index, txn, "compact-index", index, (None,) * len(index), self.committed_at_ms, self.live))
        return tasks


def run_compaction(workers: Workers, work: CompactionWork, txn: Txn) -> ServiceResult:
    """Write the new files of a plan. Raises CorruptTable, storage errors."""
    tasks = work.tasks(txn, at_once=workers.at_once)
    written = workers.run(compact_groups, tasks, service="compact", groups=len(work.groups))
    return _proposal(written.bases, written.logs, as_of=work.plan.slot)


def narrowed(proposal: ServiceResult, taken: frozenset[FileGroupId]) -> ServiceResult | None:
    """The same result without some file groups. Base files are independent, and not every row of a log object must be named."""
    assert proposal.changes is not None
    delta = decode_delta(proposal.changes)
    assert delta.as_of is not None
    index = () if delta.index is None else delta.index.bases
    bases = tuple(base for base in (*delta.bases, *index) if base.group_id not in taken)
    if not bases:
        return None
    kept = (msgspec.structs.replace(log, slices=tuple(rows for rows in log.slices if rows.group_id not in taken)) for log in delta.logs)
    return _proposal(bases, tuple(log for log in kept if log.slices), as_of=delta.as_of)


def _proposal(bases: tuple[BaseFile, ...], logs: tuple[LogObject, ...], *, as_of: int) -> ServiceResult:
    files: list[BaseFile | LogObject] = [*bases, *logs]
    own = tuple(base for base in bases if not is_of_index(base.group_id))
    of_index = tuple(base for base in bases if is_of_index(base.group_id))
    index = TableDelta(bases=of_index, as_of=as_of) if of_index else None
    delta = TableDelta(bases=own, logs=logs, as_of=as_of, index=index)
    return ServiceResult(
        footprint=Footprint(replaces=tuple(sorted(base.group_id for base in bases))),
        changes=encode_delta(delta),
        summary=Summary(rows=sum(base.rows for base in own), files=len(files), bytes=sum(file.bytes for file in files)),
        files=tuple(file.path for file in files),
        features=features_of(delta),
    )


# ---- tasks -------------------------------------------------------------------------------------------------------


def compact_groups(fileio: FileIO, task: CompactTask, advance: Advance) -> WriteResult:
    """Write a new base file for every file group of a task, and one log object with the deletes that must outlive it, if any.

    With an ordering column, a delete that has a value of it keeps out older rows that come later, so it must stay. Without one, and for a
    delete without a value, the order of the slots decides. Calls `advance` for each group.
    """
    logs = loaded_logs(fileio, task.spec, task.groups)
    at_once = rewritten_at_once(task.groups, fileio.env, sorts=any(task.orders))

    def compacted(pair: tuple[FileGroup, Order | None]) -> tuple[BaseFile, pa.Table]:
        found = _compact_group(fileio, task, *pair, logs)
        advance(1)
        return found

    results = run_all(fileio.env, compacted, list(zip(task.groups, task.orders, strict=True)), at_once=at_once)
    bases = tuple(base for base, _ in results)
    rows = sum(base.rows for base in bases)
    kept = [(base.group_id, deletes) for base, deletes in results if deletes.num_rows]
    if not kept:
        return WriteResult(bases, rows=rows)
    ends = np.cumsum([deletes.num_rows for _, deletes in kept]).tolist()
    file_groups = tuple(LogRows(group_id, end - deletes.num_rows, end) for (group_id, deletes), end in zip(kept, ends, strict=True))
    path = log_path(task.txn, task=task.name, attempt=fileio.env.new_id())
    tombstones = pa.concat_tables([deletes for _, deletes in kept])
    log = write_log(fileio, path, tombstones, file_groups, statistics=task.spec.statistics)
    return WriteResult(bases, (log,), rows)


def _compact_group(fileio: FileIO, task: CompactTask, group: FileGroup, order: Order | None, logs: LogReader) -> tuple[BaseFile, pa.Table]:
    """The new base file of a group, written while its rows are merged, and the deletes that stay."""
    spec = task.spec
    schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    path = base_path(task.txn, group.group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    kept = [log_schema(spec).empty_table()]

    def merged() -> Iterator[pa.Table]:
        for found, _ in current_cuts(fileio, spec, group, logs):
            live, deletes = split_by_group(found)
            if task.live is not None:
                live = of_live_groups(live, task.live)
            # A delete older than the horizon as of this slot keeps nothing out any more: such rows are late themselves.
            needed = without_forgotten(drop_late_rows(deletes, spec, task.committed_at_ms), spec)
            kept.append(needed.drop_columns([TXN_COLUMN]).cast(log_schema(spec)))
            rows = live.select(schema.names)
            yield rows.set_column(len(schema) - 1, TXN_FIELD, constant(task.txn, rows.num_rows)) if task.restamps else rows
        logs.done(group)

    with BaseWriter(fileio, path, schema, group.group_id, statistics=spec.statistics, filtered=spec.filtered, order=order) as writer:
        for rows in merged() if order is None else in_order(merged(), order, spec.table_schema):
            writer.write(rows)
        return writer.finish(), pa.concat_tables(kept)
