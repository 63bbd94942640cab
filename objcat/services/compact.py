"""Compaction: the log rows of file groups become part of their base files. Writers go on meanwhile: what they append stays on top."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.errors import InvalidInput
from objcat.services.perform import Proposal, Service, perform
from objcat.storage.files import TXN_COLUMN, base_path, log_path, read_base, read_log, write_base, write_log_of_homes
from objcat.storage.hashing import bucket_of
from objcat.storage.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, merge
from objcat.table import BaseFile, FileGroup, LogObject, LogRows, Manifests, TableDelta, Tables, TableSpec
from objcat.table.files import decode_delta, encode_delta
from objcat.table.snapshot import LogSlice, snapshot_of
from objcat.tasks import WriteResult, run_all
from objcat.timeline import Action, Footprint, Home, Summary, Timeline, Txn, View

GROUPS_PER_TASK = 64


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Which file groups to compact, as of which slot. txn: of the plan, when several processes may execute it and one of them shall win."""

    slot: int
    homes: tuple[Home, ...]
    txn: Txn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A compaction that is durable.

    as_of: log rows above this slot stayed. homes: whose base files are new. rows, files, bytes: written.
    """

    slot: int
    txn: Txn
    as_of: int
    homes: tuple[Home, ...]
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Merge some file groups under one transaction. name: of the task within it."""

    spec: TableSpec
    txn: Txn
    name: str
    groups: tuple[FileGroup, ...]


def plan_compaction(
    view: View[Tables], table: str, manifests: Manifests, *, homes: Collection[Home] | None = None
) -> CompactionPlan | None:
    """What there is to compact as of a view: file groups with log rows, or with rows of files that they share since a split.

    homes: only these, all when None. Returns None when nothing is to be done. Raises TableClosed.
    """
    snapshot = snapshot_of(view, table, where=table)
    wanted = None if homes is None else frozenset(homes)
    chosen = tuple(group.home for group in snapshot.file_groups(manifests, homes=wanted) if _needs_compaction(group))
    return CompactionPlan(view.slot, chosen) if chosen else None


def compact(
    timeline: Timeline[Tables], table: str, *, homes: Collection[Home] | None = None, plan: CompactionPlan | None = None
) -> CompactionResult | None:
    """Compact file groups of a table in one commit; None when there is nothing to compact.

    homes: only these, all that have log rows when None. plan: execute just this one.
    No writer ever conflicts with a compaction. Homes that another service took first are left to it; after a RESTORE or a split it plans
    again, unless a plan was given. Raises AlreadyDone (somebody else executed the plan), Fenced (it was rolled back), CommitConflict,
    SnapshotExpired (the plan is older than what cleaning has left), TableClosed, CommitUnknown and storage errors.
    """
    if plan is not None and homes is not None:
        raise InvalidInput("compact() takes homes or a plan, not both: a plan names its homes")
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def work_of(view: View[Tables]) -> _Work | None:
        chosen = plan or plan_compaction(view, table, manifests, homes=homes)
        if chosen is None:
            return None
        snapshot = snapshot_of(view, table, where=fileio.url)
        return _Work(chosen, snapshot.spec, tuple(snapshot.file_groups(manifests, homes=frozenset(chosen.homes))))

    service = Service(action=Action.COMPACTION, table=table, plan=work_of, run=lambda work, txn: _run(fileio, work, txn), narrow=_narrow)
    view = timeline.open() if plan is None else timeline.at(plan.slot)
    done = perform(timeline, service, view, replans=plan is None)
    if done is None:
        return None
    entry, summary = done.committed.entry, done.proposal.summary
    return CompactionResult(
        slot=entry.slot,
        txn=entry.txn,
        as_of=done.plan.plan.slot,
        homes=done.proposal.footprint.replaces,
        rows=summary.rows,
        files=summary.files,
        bytes=summary.bytes,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A compaction plan with what its tasks need."""

    plan: CompactionPlan
    spec: TableSpec
    groups: tuple[FileGroup, ...]


def _run(fileio: FileIO, work: _Work, txn: Txn) -> Proposal:
    parts = [work.groups[at : at + GROUPS_PER_TASK] for at in range(0, len(work.groups), GROUPS_PER_TASK)]
    tasks = [CompactTask(work.spec, txn, f"compact-{number}", part) for number, part in enumerate(parts)]
    written = sum((compact_groups(fileio, task) for task in tasks), WriteResult())
    return _proposal(written.bases, written.logs, as_of=work.plan.slot, plan=work.plan.txn)


def _narrow(proposal: Proposal, taken: frozenset[Home]) -> Proposal | None:
    """The same without some homes: base files stand for themselves, and nothing says that a log object's rows must all be named."""
    assert proposal.changes is not None
    delta = decode_delta(proposal.changes)
    assert delta.as_of is not None
    bases = tuple(base for base in delta.bases if base.home not in taken)
    if not bases:
        return None
    kept = (msgspec.structs.replace(log, homes=tuple(rows for rows in log.homes if rows.home not in taken)) for log in delta.logs)
    return _proposal(bases, tuple(log for log in kept if log.homes), as_of=delta.as_of, plan=proposal.plan)


def _proposal(bases: tuple[BaseFile, ...], logs: tuple[LogObject, ...], *, as_of: int, plan: Txn | None) -> Proposal:
    files: list[BaseFile | LogObject] = [*bases, *logs]
    return Proposal(
        footprint=Footprint(replaces=tuple(sorted(base.home for base in bases))),
        changes=encode_delta(TableDelta(bases=bases, logs=logs, as_of=as_of)),
        plan=plan,
        summary=Summary(rows=sum(base.rows for base in bases), files=len(files), bytes=sum(file.bytes for file in files)),
        files=tuple(file.path for file in files),
    )


def _needs_compaction(group: FileGroup) -> bool:
    shared = group.base is not None and group.base.home != group.home
    return shared or group.base is None or any(rows.slot > group.as_of for rows in group.logs)


# ---- tasks -------------------------------------------------------------------------------------------------------


def compact_groups(fileio: FileIO, task: CompactTask) -> WriteResult:
    """A new base file for every file group of a task, and one log object with the deletes that must outlive it, if there are any.

    With an ordering column, a delete that has a value of it keeps older rows out that come later: it must stay. Without one, and for a
    delete without a value, the order of the slots says all.
    """
    results = run_all(fileio.env, lambda group: _compact_group(fileio, task, group), task.groups)
    bases = tuple(base for base, _ in results)
    rows = sum(base.rows for base in bases)
    kept = [(base.home, deletes) for base, deletes in results if deletes.num_rows]
    if not kept:
        return WriteResult(bases, rows=rows)
    ends = np.cumsum([deletes.num_rows for _, deletes in kept]).tolist()
    homes = tuple(LogRows(home, end - deletes.num_rows, end) for (home, deletes), end in zip(kept, ends, strict=True))
    path = log_path(task.txn, task=task.name, attempt=fileio.env.new_id())
    log = write_log_of_homes(fileio, path, pa.concat_tables([deletes for _, deletes in kept]), homes)
    return WriteResult(bases, (log,), rows)


def _compact_group(fileio: FileIO, task: CompactTask, group: FileGroup) -> tuple[BaseFile, pa.Table]:
    """The new base file of a group, and its deletes that stay."""
    spec = task.spec
    ordering = spec.ordering_column
    rows = _read_group(fileio, spec, group)
    key = [column.physical for column in spec.key_columns]
    merged = merge(rows, key=key, ordering=None if ordering is None else ordering.physical, keep_deletes=True)
    is_delete = pc.equal(merged.column(OP_COLUMN), OP_DELETE)
    live = merged.filter(pc.invert(is_delete)).drop_columns([OP_COLUMN])
    schema = spec.table_schema.to_arrow_physical().append(pa.field(TXN_COLUMN, pa.string(), nullable=False))
    path = base_path(task.txn, group.home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    base = write_base(fileio, path, live.cast(schema), group.home, task.txn)
    deletes = merged.filter(is_delete).drop_columns([TXN_COLUMN])
    if ordering is None:
        return base, deletes.slice(0, 0)
    return base, deletes.filter(pc.is_valid(deletes.column(ordering.physical)))


def _read_group(fileio: FileIO, spec: TableSpec, group: FileGroup) -> pa.Table:
    """Every row of a group in the order in which they count, with its operation and the transaction that wrote it."""
    physical = spec.table_schema.to_arrow_physical(nullable=True)
    schema = physical.append(pa.field(OP_COLUMN, pa.int8())).append(pa.field(TXN_COLUMN, pa.string()))
    parts = []
    if group.base is not None:
        base = read_base(fileio, group.base, [*physical.names, TXN_COLUMN])
        base = base.append_column(OP_COLUMN, pa.array(np.full(base.num_rows, OP_UPSERT, dtype=np.int8)))
        parts.append(_of_home(base, spec, group.home, at=group.base.home).select(schema.names).cast(schema))
    for rows in group.logs:
        (part,) = read_log(fileio, rows.object, [(rows.start, rows.end)], physical.names)
        part = part.append_column(TXN_COLUMN, pa.array([_txn_of(rows)] * part.num_rows, pa.string()))
        parts.append(_of_home(part, spec, group.home, at=_home_of(rows)).select(schema.names).cast(schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _of_home(rows: pa.Table, spec: TableSpec, home: Home, *, at: Home) -> pa.Table:
    """Those rows of a file's home that belong to `home`: a split divides file groups, and leaves their files as they are."""
    if at == home:
        return rows
    buckets = bucket_of([rows.column(column.physical) for column in spec.bucket_columns], home.bucket_count)
    return rows.filter(pa.array(buckets == home.bucket))


def _home_of(rows: LogSlice) -> Home:
    return next(part.home for part in rows.object.homes if part.start == rows.start)


def _txn_of(rows: LogSlice) -> str:
    """The transaction that wrote a log object: all that it wrote lies below its own prefix."""
    return rows.object.path.split("/")[1]
