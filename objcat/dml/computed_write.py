"""Runs writes that are computed from existing rows: update, merge, delete. After a conflict they are computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeAlias

import msgspec
import numpy as np

from fileio.store import FileIO
from objcat.common.validation import instance, text_mapping
from objcat.errors import InvalidBatch
from objcat.metadata.derived import check_not_derived
from objcat.metadata.files import encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.properties import SchemaMode
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

SAID_TWICE = (
    "Several rows of the source match the one row ({}) of the table, and nothing says which counts. Nothing was written. "
    "Reduce the source to one row per key."
)
"""The error if there are several rows of one key."""
DELETED = "_objcat_deleted"
"""Column of computed rows: whether the row is deleted."""
_DELETED = Predicate(
    DELETED, (DELETED,), TableSchema(columns=(Column(id=1, name=DELETED, physical=DELETED, type="boolean", nullable=False),), last_id=1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRows:
    """The rows that a write results in.

    Args:
        engine: writes `data`.
        data: has all columns of the table, and `DELETED` if rows are deleted.
        inserted: number of new rows, as of the snapshot that the rows were computed from. None: the write computes them. Then there may be
            none at all.
        updated, deleted: numbers of changed and of deleted rows, likewise.
        kept: digests of keys whose rows stay, because they are newer. Nobody may delete or move these first. For indexes with lookup.
        close: releases what was cached for it.
        refuse_repeated: raises InvalidBatch. The write calls it where a key comes twice. None: `data` has each key once.
    """

    engine: Engine[Any]
    data: Any
    inserted: int | None
    updated: int | None
    deleted: int | None
    kept: bytes = b""
    close: Callable[[], None] = lambda: None
    refuse_repeated: Callable[[], NoReturn] | None = None


Work: TypeAlias = Callable[[Txn], ServiceResult | None]
"""Reads a table, writes files under a transaction, and returns what to commit. None if nothing changes."""


Renew: TypeAlias = Callable[[ServiceResult, Snapshot, Snapshot], ServiceResult | None]
"""The proposal for a later snapshot with the same files. None if the files are not right there."""


class WriteTarget(Protocol):
    """The table of a computed write."""

    name: str
    id: str
    timeline: Timeline[Tables]
    manifests: Manifests

    @property
    def fileio(self) -> FileIO:
        """The store of the table."""

    @property
    def spec(self) -> TableSpec:
        """The spec that the handle saw last."""

    def committed(self, write: Callable[[], ServiceCommit[Any] | None], *, spark: Any = None) -> CommitResult | None:
        """Run a write and record its slot in the handle. spark: the session that writes."""


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
    """Run a computed write of a table as one commit. Raises as `run_computed_write`.

    spark: the session that computes it. renew: see `run_computed_write`.
    """
    told = text_mapping({} if metadata is None else metadata, what="metadata")
    if app is not None:
        instance(app, AppVersion, what="app", such_as="an objcat.AppVersion(app='...', version=...)")

    def write() -> ServiceCommit[Work] | None:
        """Commit the write."""
        return run_computed_write(table.timeline, table.id, prepare, metadata=told, action=action, app=app, renew=renew)

    return table.committed(write, spark=spark)


def former_of(snapshot: Snapshot, manifests: Manifests) -> frozenset[str]:
    """The partitions of previous partition specs that have file groups."""
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
    """Write the rows computed from a table, as one commit. Returns None if nothing changes.

    If another commit changes a file group that this one writes, everything is computed again from the newest snapshot, so no update is
    lost.

    Args:
        prepare: checks the request against a snapshot and returns the work, or None if there is nothing to do.
        action: the action of the log entry. None: a commit of the table's kind.
        renew: avoids a new computation if the written files are also right after the other commit.

    Raises:
        CommitConflict: after as many attempts as the policy allows. Nothing is visible.
        AlreadyApplied, StreamRewound: the application version was written before, or taken back.
        WriterFenced, TableClosed: nothing is visible.
        CommitUnknown: the commit may have landed.
        FileIOError: the store failed. What `prepare` and its work raise passes through.
    """
    where = timeline.fileio.url

    def run(work: Work, txn: Txn) -> ServiceResult:
        """Do the work, and record the proposal."""
        proposal = work(txn)
        if proposal is None:
            raise _NothingComputed
        return replace(proposal, metadata=metadata)

    view = timeline.open()
    spec = snapshot_of(view, table, where=where).spec
    check_not_derived(spec, "change rows")
    if action is None:
        action = Action.COMMIT if spec.rewrites else Action.DELTA_COMMIT

    def renewed(proposal: ServiceResult, before: LogView[Tables], after: LogView[Tables]) -> ServiceResult | None:
        """The renewed proposal."""
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
    """No row changes."""


def written(
    fileio: FileIO, outcome: ComputedRows, snapshot: Snapshot, txn: Txn, *, schema_mode: SchemaMode = SchemaMode.STRICT
) -> ServiceResult:
    """Write computed rows to a table with a key. Raises as a write, and storage errors.

    schema_mode: what the rows may change in the schema of the snapshot.
    """
    refuse = outcome.refuse_repeated
    deletes = None if outcome.deleted == 0 else _DELETED
    change = WriteBatch(
        outcome.engine, outcome.data, Operation.UPSERT, schema_mode, delete_when=deletes, computed=True, tells_keys=refuse is not None
    )
    part = TableWriter(fileio, Manifests(fileio), snapshot.spec.table, [change], kept=outcome.kept)
    try:
        part.write(snapshot, txn)
    finally:
        outcome.close()
    if refuse is not None and _has_repeated(part.all.keys):
        refuse()
    delta, summary = part.delta(snapshot), part.summary()
    counts = (outcome.inserted, outcome.updated, outcome.deleted)
    is_counted = None not in counts
    if is_counted and summary.rows != sum(count or 0 for count in counts):
        raise InvalidBatch(COMPUTED_AGAIN)
    if is_counted and summary.inserted is None:
        summary = msgspec.structs.replace(summary, inserted=outcome.inserted, updated=outcome.updated, deleted=outcome.deleted)
    return ServiceResult(
        footprint=part.footprint(snapshot, computed=True), changes=encode_delta(delta), summary=summary, files=tuple(delta.paths)
    )


def _has_repeated(digests: bytes) -> bool:
    found = np.sort(np.frombuffer(digests, "<u8"))
    return bool((found[1:] == found[:-1]).any())
