"""Writes that are computed from the rows that are there: an update, a merge. If others change these rows first, they are computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import msgspec

from fileio.store import FileIO
from objcat.common.validation import instance, text_mapping
from objcat.errors import InvalidBatch
from objcat.metadata.files import encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.schema import Column, TableSchema
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.predicate.parse import Predicate
from objcat.tasks.model import Operation
from objcat.timeline.entry import Action, Txn
from objcat.timeline.log_state import AppVersion
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.engine import Engine
from objcat.write.index_lookup import COMPUTED_AGAIN
from objcat.write.service_commit import Service, ServiceCommit, ServiceResult, run_service
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import CommitResult

DELETED = "_objcat_deleted"
"""Of an outcome with deletes: whether a row is one."""
_DELETED = Predicate(
    DELETED, (DELETED,), TableSchema(columns=(Column(id=1, name=DELETED, physical=DELETED, type="boolean", nullable=False),), last_id=1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRows:
    """The rows that a write comes to, each key once. engine: writes `data`, which has all columns of the table, and `DELETED` when rows are
    deleted. inserted, updated, deleted: how many of them are what, as of the snapshot that they were computed from. close: gives up what
    was kept for it."""

    engine: Engine[Any]
    data: Any
    inserted: int
    updated: int
    deleted: int
    close: Callable[[], None] = lambda: None


Work: TypeAlias = Callable[[Txn], ServiceResult | None]
"""Reads a table, writes files under a transaction, and says what to commit; None when nothing changes."""


Renew: TypeAlias = Callable[[ServiceResult, Snapshot, Snapshot], ServiceResult | None]
"""What a proposal for one snapshot becomes for a later one, with the same files; None when they are not right there."""


class WriteTarget(Protocol):
    """A table that computed writes go to."""

    name: str
    id: str
    timeline: Timeline[Tables]
    manifests: Manifests

    @property
    def fileio(self) -> FileIO:
        """Where the table is."""

    @property
    def spec(self) -> TableSpec:
        """What the handle last saw of it."""

    def committed(self, write: Callable[[], ServiceCommit[Any] | None], *, spark: Any = None) -> CommitResult | None:
        """Run a write; the handle has seen its slot. spark: the session that writes."""


def run(
    table: WriteTarget,
    prepare: Callable[[Snapshot], Work | None],
    *,
    metadata: Mapping[str, str] | None,
    action: Action | None = None,
    app: AppVersion | None = None,
    spark: Any = None,
    renew: Renew | None = None,
) -> CommitResult | None:
    """Run a computed write of a table, as one commit. spark: the session that computes it. renew: as of `run_computed_write`, as what it
    raises."""
    told = text_mapping({} if metadata is None else metadata, what="metadata")
    if app is not None:
        instance(app, AppVersion, what="app", such_as="an objcat.AppVersion(app='...', version=...)")

    def write() -> ServiceCommit[Work] | None:
        return run_computed_write(table.timeline, table.id, prepare, metadata=told, action=action, app=app, renew=renew)

    return table.committed(write, spark=spark)


def former_of(snapshot: Snapshot, manifests: Manifests) -> frozenset[str]:
    """The partitions of former partitionings that have a file group."""
    spec = snapshot.spec
    return frozenset(filter(spec.is_former, snapshot.live_partitions(manifests))) if spec.former else frozenset()


def run_computed_write(
    timeline: Timeline[Tables],
    table: str,
    prepare: Callable[[Snapshot], Work | None],
    *,
    metadata: Mapping[str, str],
    action: Action | None = None,
    app: AppVersion | None = None,
    renew: Renew | None = None,
) -> ServiceCommit[Work] | None:
    """Write what is computed from a table, as one commit; None when nothing is.

    prepare: checks what is asked against a snapshot, and returns what does it; None when there is nothing to do. Where another commit
    touches a bucket that this one writes, all is computed again from the newest snapshot, so no update of either is lost. action: what the
    log calls it; None: a commit as the kind of the table makes them. renew: spares that where what was written is right above the other
    commit too. Raises what `prepare` and what it returns raise, AlreadyApplied and StreamRewound, CommitConflict (after as many attempts as
    the policy allows; nothing is visible), WriterFenced, TableClosed, CommitUnknown and storage errors."""
    where = timeline.fileio.url

    def run(work: Work, txn: Txn) -> ServiceResult:
        proposal = work(txn)
        if proposal is None:
            raise _NothingComputed
        return replace(proposal, metadata=metadata)

    view = timeline.open()
    if action is None:
        action = Action.COMMIT if snapshot_of(view, table, where=where).spec.rewrites else Action.DELTA_COMMIT

    def renewed(proposal: ServiceResult, before: LogView[Tables], after: LogView[Tables]) -> ServiceResult | None:
        assert renew is not None
        return renew(proposal, snapshot_of(before, table, where=where), snapshot_of(after, table, where=where))

    service = Service(
        action=action,
        table=table,
        plan=lambda view: prepare(snapshot_of(view, table, where=where)),
        run=run,
        renew=None if renew is None else renewed,
        app=app,
    )
    try:
        return run_service(timeline, service, view)
    except _NothingComputed:
        return None


class _NothingComputed(Exception):
    """Rows that might have changed do not."""


def written(fileio: FileIO, outcome: ComputedRows, snapshot: Snapshot, txn: Txn) -> ServiceResult:
    """Write an outcome to a table with a key. Raises as a write, and storage errors."""
    change = WriteBatch(outcome.engine, outcome.data, Operation.UPSERT, delete_when=_DELETED if outcome.deleted else None)
    part = TableWriter(fileio, Manifests(fileio), snapshot.spec.table, [change])
    try:
        part.write(snapshot, txn)
    finally:
        outcome.close()
    delta, summary = part.delta(snapshot), part.summary()
    if summary.rows != outcome.inserted + outcome.updated + outcome.deleted:
        raise InvalidBatch(COMPUTED_AGAIN)
    if summary.inserted is None:
        summary = msgspec.structs.replace(summary, inserted=outcome.inserted, updated=outcome.updated, deleted=outcome.deleted)
    return ServiceResult(
        footprint=part.footprint(snapshot, computed=True), changes=encode_delta(delta), summary=summary, files=tuple(delta.paths)
    )
