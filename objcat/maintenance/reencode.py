"""Re-encoding: base files of cold partitions are written again with a stronger codec. No row changes, and no writer waits."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import islice

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.progress import shown_progress
from objcat.datafile.file_encoding import FileEncoding
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.open_files import open_parquet
from objcat.datafile.parquet import BaseWriter, base_path, base_pieces
from objcat.maintenance.in_place_steps import first_groups
from objcat.maintenance.replaced_files import narrow, propose
from objcat.metadata.files import BaseFile, FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import plan_scan
from objcat.tasks.model import TXN_FIELD
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import Action, FileGroupId, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service

COMMIT_FILES_MAX = 1000
COMMIT_BYTES_MAX = 4 * 1024**3
"""Files, and their bytes, of one commit at most. A run that is killed has to read so much again."""
LEVEL_MAX = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Reencoding:
    """What a run did.

    Attributes:
        slots: of its commits, in order. Empty: nothing was to be gained.
        files: that were written again.
        bytes_before, bytes: of these files, before and after.
        left: files that stay, since they would not become smaller by as much as was asked.
    """

    slots: tuple[int, ...] = ()
    files: int = 0
    bytes_before: int = 0
    bytes: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True)
class ReencodingSettings:
    """Which files to re-encode, and how. least_saving: the share of its bytes that a file has to lose at least."""

    where: str | pc.Expression | None
    level: int
    least_saving: float


@dataclass(frozen=True, slots=True)
class _FilesToReencode:
    snapshot: Snapshot
    groups: tuple[FileGroup, ...]


class _NoneSmaller(Exception):
    """No file of a plan would become smaller."""


def reencode_files(timeline: Timeline[Tables], table: str, wanted: ReencodingSettings) -> Reencoding:
    """Write base files again where that saves bytes, in one commit for each 1,000 files.

    Takes file groups that are a base file of ours alone: those with log rows are left to compaction. It is a compaction, so no writer
    conflicts with it, and a file group that another service or writer replaces meanwhile is left to that. A row group of each file is read
    and encoded first, and only files that become smaller are read whole.

    Raises InvalidPredicate, CommitConflict, CommitUnknown, TableClosed, storage errors. What was committed stays.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)
    view = timeline.open()
    total = Reencoding()
    done: set[FileGroupId] = set()
    left: set[FileGroupId] = set()

    def plan(now: LogView[Tables]) -> _FilesToReencode | None:
        snapshot = snapshot_of(now, table, where=fileio.url)
        snapshot.spec.check_own_files("re-encode files")
        found = plan_scan(snapshot, manifests, where=wanted.where, columns=None).groups
        groups = [group for group in found if _is_alone(group) and group.group_id not in done]
        chosen = first_groups(sorted(groups, key=lambda group: group.group_id), files_max=COMMIT_FILES_MAX, bytes_max=COMMIT_BYTES_MAX)
        return _FilesToReencode(snapshot, tuple(chosen)) if chosen else None

    def run(work: _FilesToReencode, txn: Txn) -> ServiceResult:
        bases = _written(fileio, work, wanted, txn)
        smaller = {base.group_id for base in bases}
        ids = {group.group_id for group in work.groups}
        done.update(ids)
        left.update(ids - smaller)
        if not bases:
            raise _NoneSmaller
        return propose(bases, as_of=work.snapshot.slot)

    service = Service(action=Action.COMPACTION, table=table, plan=plan, run=run, narrow=narrow)
    while True:
        try:
            committed = run_service(timeline, service, view)
        except _NoneSmaller:
            view = timeline.refresh(view)
            continue
        if committed is None:
            return replace(total, left=len(left))
        proposal = committed.proposal
        before = {group.group_id: group.base.bytes for group in committed.plan.groups if group.base is not None}
        replaced = proposal.footprint.replaces
        total = replace(
            total,
            slots=(*total.slots, committed.entry.slot),
            files=total.files + len(replaced),
            bytes_before=total.bytes_before + sum(before[group_id] for group_id in replaced),
            bytes=total.bytes + proposal.summary.bytes,
        )
        view = timeline.refresh(view)


def _is_alone(group: FileGroup) -> bool:
    """Whether a base file of ours is all there is, with the rows of this file group alone. Deletes that were retained are log rows."""
    return group.base is not None and not group.is_adopted and not group.logs and not group.is_shared(group.base.group_id)


def _written(fileio: FileIO, work: _FilesToReencode, wanted: ReencodingSettings, txn: Txn) -> list[BaseFile]:
    """The files that became smaller."""
    spec = work.snapshot.spec
    with shown_progress(fileio.env, "objcat: re-encode files", len(work.groups), unit="files") as advance:

        def made(group: FileGroup) -> BaseFile | None:
            assert group.base is not None
            found = _smaller(fileio, spec, group.base, group.group_id, wanted, txn)
            advance(1)
            return found

        found = run_all(fileio.env, made, work.groups, at_once=fileio.env.parallelism)
    return [base for base in found if base is not None]


def _smaller(
    fileio: FileIO, spec: TableSpec, base: BaseFile, group_id: FileGroupId, wanted: ReencodingSettings, txn: Txn
) -> BaseFile | None:
    encoding = FileEncoding(level=wanted.level)
    if not base.rows or _share_of_first_row_group(fileio, spec, base, encoding) > 1 - wanted.least_saving:
        return None
    path = base_path(txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    made = _copied(fileio, fileio, spec, base, path, encoding, row_groups=None)
    if made.bytes > base.bytes * (1 - wanted.least_saving):
        # The first row group was not like the others.
        fileio.delete([path])
        return None
    return msgspec.structs.replace(made, group_id=group_id, promoted=base.promoted)


def _copied(
    source: FileIO, target: FileIO, spec: TableSpec, base: BaseFile, path: str, encoding: FileEncoding, *, row_groups: int | None
) -> BaseFile:
    """A file with the rows of another one. row_groups: the first ones only."""
    schema: pa.Schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
    names = [name for name in schema.names if name != TXN_COLUMN]
    with BaseWriter(
        target, path, schema, base.group_id, statistics=spec.statistics, filtered=spec.filtered, order=base.order, encoding=encoding
    ) as writer:
        for rows in islice(base_pieces(source, base, [*names, TXN_COLUMN], spec=spec), row_groups):
            writer.write(rows.select(schema.names))
        return writer.finish()


def _share_of_first_row_group(fileio: FileIO, spec: TableSpec, base: BaseFile, encoding: FileEncoding) -> float:
    """What the first row group would take, as a share of what it takes."""
    with open_parquet(fileio, base, spec.table_schema) as file:
        before = _bytes_of(file.metadata, 1)
    store = FileIO(MemoryBackend())
    made = _copied(fileio, store, spec, base, "sample.parquet", encoding, row_groups=1)
    footer = pq.read_metadata(io.BytesIO(store.read(made.path)))
    return _bytes_of(footer, footer.num_row_groups) / max(1, before)


def _bytes_of(footer: pq.FileMetaData, row_groups: int) -> int:
    groups = [footer.row_group(number) for number in range(row_groups)]
    return sum(group.column(number).total_compressed_size for group in groups for number in range(group.num_columns))
