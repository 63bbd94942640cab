"""Promotion: files in place become files of the table. The sources stay where they are, and no refresh takes them again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.parquet import BaseWriter, base_path, base_pieces
from objcat.errors import InvalidInput
from objcat.maintenance.in_place_steps import bases_of_unchanged, first_groups
from objcat.maintenance.replaced_files import narrow, propose
from objcat.metadata.files import BaseFile, FileGroup, TableDelta, encode_delta, features_of
from objcat.metadata.in_place import FilesInPlace
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import plan_scan
from objcat.tasks.model import TXN_FIELD
from objcat.timeline.entry import Action, FileGroupId, Footprint, SchemaChange, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service

COMMIT_FILES_MAX = 1000
COMMIT_BYTES_MAX = 4 * 1024**3
"""Files, and their bytes, of one commit at most. A promotion that is killed has to read so much again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What a promotion did.

    Attributes:
        slots: of its commits, in order.
        files, rows, bytes: that were written in place of files in place.
        unsettled: files that changed or are gone, and stay in place. `refresh_files` takes or drops them.
        is_whole: whether the table is an ordinary one now.
    """

    slots: tuple[int, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    unsettled: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _FilesToPromote:
    """Files of one commit."""

    snapshot: Snapshot
    groups: tuple[FileGroup, ...]


class _NonePromoted(Exception):
    """Every file changed."""


class _FilesCame(Exception):
    """A refresh took files meanwhile."""


def promote_files(timeline: Timeline[Tables], table: str, *, where: str | pc.Expression | None = None) -> Promotion:
    """Write the rows of files in place to files of the table, as commits that change no row.

    A refresh or a delete that changes a file meanwhile wins, and the file has its turn after it. Without a filter, the table ends as an
    ordinary one, which takes rows and no files, unless a file cannot be read.

    Args:
        where: only files that may hold a row for which this scan filter is true, such as those of a partition.

    Raises:
        InvalidInput: the table is not in place.
        InvalidPredicate, CommitConflict, CommitUnknown, TableClosed, storage errors: see `objcat.errors`. What was committed stays.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)
    view = timeline.open()
    if not snapshot_of(view, table, where=fileio.url).spec.is_in_place:
        raise InvalidInput("The files of this table are its own, so there is nothing to promote. Leave out the call.")
    total = Promotion()
    passed: set[FileGroupId] = set()

    def plan(now: LogView[Tables]) -> _FilesToPromote | None:
        snapshot = snapshot_of(now, table, where=fileio.url)
        found = plan_scan(snapshot, manifests, where=where, columns=None).groups
        groups = [group for group in found if _is_in_place(group) and group.group_id not in passed]
        chosen = first_groups(sorted(groups, key=lambda group: group.group_id), files_max=COMMIT_FILES_MAX, bytes_max=COMMIT_BYTES_MAX)
        return _FilesToPromote(snapshot, tuple(chosen)) if chosen else None

    def run(work: _FilesToPromote, txn: Txn) -> ServiceResult:
        return _written(fileio, work, txn, passed)

    service = Service(action=Action.COMPACTION, table=table, plan=plan, run=run, narrow=narrow)
    while True:
        try:
            done = run_service(timeline, service, view)
        except _NonePromoted:
            continue
        view = timeline.refresh(view)
        if done is not None:
            summary = done.proposal.summary
            total = replace(
                total,
                slots=(*total.slots, done.entry.slot),
                files=total.files + summary.files,
                rows=total.rows + summary.rows,
                bytes=total.bytes + summary.bytes,
            )
            continue
        if where is not None or passed:
            return replace(total, unsettled=len(passed))
        try:
            ended = _end(timeline, table, view, manifests)
        except _FilesCame:
            view = timeline.refresh(view)
            continue
        return replace(total, slots=(*total.slots, *ended), is_whole=True)


def _is_in_place(group: FileGroup) -> bool:
    return group.base is not None and group.base.source is not None


def _written(fileio: FileIO, work: _FilesToPromote, txn: Txn, passed: set[FileGroupId]) -> ServiceResult:
    """Files of the table with the rows of files in place. passed: takes those that changed or are gone."""
    spec = work.snapshot.spec
    bases = bases_of_unchanged(
        fileio, work.groups, lambda base: _promoted(fileio, spec, base, txn), what="objcat: promote files", passed=passed
    )
    if not bases:
        raise _NonePromoted
    return propose(bases, as_of=work.snapshot.slot)


def _promoted(fileio: FileIO, spec: TableSpec, base: BaseFile, txn: Txn) -> BaseFile:
    """A file of the table with the rows of a file in place that are not masked. Raises SourceFileChanged, storage errors."""
    schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    names = [name for name in schema.names if name != TXN_COLUMN]
    path = base_path(txn, base.group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    with BaseWriter(fileio, path, schema, base.group_id, statistics=spec.statistics, filtered=spec.filtered) as writer:
        for rows in base_pieces(fileio, base, [*names, TXN_COLUMN], spec=spec):
            writer.write(rows.select(schema.names))
        return msgspec.structs.replace(writer.finish(), promoted=base.path)


def _end(timeline: Timeline[Tables], table: str, view: LogView[Tables], manifests: Manifests) -> tuple[int, ...]:
    """Commit that the table is an ordinary one, and give the slot. None where another process did. Raises _FilesCame."""

    def plan(now: LogView[Tables]) -> TableSpec | None:
        snapshot = snapshot_of(now, table, where=timeline.fileio.url)
        settings = snapshot.spec.in_place
        if any(map(_is_in_place, snapshot.file_groups(manifests))):
            raise _FilesCame
        if not isinstance(settings, FilesInPlace) or settings.promoted:
            return None
        return msgspec.structs.replace(
            snapshot.spec, in_place=msgspec.structs.replace(settings, promoted=True, precompute=(), precompute_fields=())
        )

    def run(spec: TableSpec, _txn: Txn) -> ServiceResult:
        delta = TableDelta(spec=spec)
        # Whether there are files in place depends on all files.
        footprint = Footprint(schema=SchemaChange(columns=(), needs_data=True), read_partitions=("",))
        return ServiceResult(footprint=footprint, changes=encode_delta(delta), features=features_of(delta))

    done = run_service(timeline, Service(action=Action.SCHEMA, table=table, plan=plan, run=run), view)
    return () if done is None else (done.entry.slot,)
