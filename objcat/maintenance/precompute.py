"""Makes precomputed columns of files in place that lack them, and drops those that are not wanted any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fileio.store import FileIO
from objcat.adoption.precompute import lacks_columns, precompute
from objcat.errors import InvalidInput
from objcat.maintenance.in_place_steps import bases_of_unchanged, first_groups
from objcat.maintenance.replaced_files import narrow
from objcat.metadata.files import BaseFile, FileGroup, TableDelta, encode_delta, features_of
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Action, FileGroupId, Footprint, Summary, Txn
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceResult, run_service

COMMIT_FILES_MAX = 10_000
COMMIT_BYTES_MAX = 16 * 1024**3
"""Files, and their bytes, of one commit at most. A run that is killed has to read so much again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precomputation:
    """What a run made.

    Attributes:
        slots: of its commits, in order. Empty: every file has the columns that are wanted.
        files: that have them now.
        bytes: of the columns that were written.
        unsettled: files that changed or are gone. `refresh_files` takes or drops them.
    """

    slots: tuple[int, ...] = ()
    files: int = 0
    bytes: int = 0
    unsettled: int = 0


@dataclass(frozen=True, slots=True)
class _FilesToRead:
    snapshot: Snapshot
    groups: tuple[FileGroup, ...]
    is_last: bool


class _AllChanged(Exception):
    """Every file changed."""


def files_that_lack_columns(snapshot: Snapshot, manifests: Manifests) -> list[FileGroup]:
    """The file groups whose files have other precomputed columns than the table wants."""
    if not snapshot.spec.is_in_place:
        return []
    groups = snapshot.file_groups(manifests)
    return [
        group for group in groups if group.base is not None and group.base.source is not None and lacks_columns(snapshot.spec, group.base)
    ]


def precompute_columns(
    timeline: Timeline[Tables], table: str, *, view: LogView[Tables] | None = None, bytes_max: int | None = None
) -> Precomputation:
    """Give every file in place the precomputed columns that its table wants, in one commit for each 10,000 files.

    Each file is read once. A delete or a refresh that changes a file meanwhile wins, and the file has its turn in the next run.

    Args:
        view: where to begin.
        bytes_max: of files to read, about. One file is read in any case.

    Raises:
        InvalidInput: the table is not in place.
        CommitConflict, CommitUnknown, TableClosed, storage errors: see `objcat.errors`. Earlier commits of the run stay.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)
    view = timeline.open() if view is None else view
    if not snapshot_of(view, table, where=fileio.url).spec.is_in_place:
        raise InvalidInput("The files of this table are its own, so columns are read from them. Leave out the call.")
    slots: list[int] = []
    passed: set[FileGroupId] = set()
    files = size = 0
    left = bytes_max
    while True:
        plans: list[_FilesToRead] = []

        def plan(now: LogView[Tables], plans: list[_FilesToRead] = plans, left: int | None = left) -> _FilesToRead | None:
            snapshot = snapshot_of(now, table, where=fileio.url)
            groups = [group for group in files_that_lack_columns(snapshot, manifests) if group.group_id not in passed]
            chosen = first_groups(
                groups, files_max=COMMIT_FILES_MAX, bytes_max=COMMIT_BYTES_MAX if left is None else min(left, COMMIT_BYTES_MAX)
            )
            plans.append(_FilesToRead(snapshot, tuple(chosen), len(chosen) == len(groups)))
            return plans[-1] if chosen else None

        def run(work: _FilesToRead, txn: Txn) -> ServiceResult:
            return _made(fileio, work, txn, passed)

        service = Service(action=Action.COMPACTION, table=table, plan=plan, run=run, narrow=partial(narrow, propose=_proposal))
        try:
            done = run_service(timeline, service, view)
        except _AllChanged:
            done = None
        if done is not None:
            slots.append(done.entry.slot)
            files += len(done.proposal.footprint.replaces)
            size += done.proposal.summary.bytes
        read = sum(group.base.bytes for group in plans[-1].groups if group.base is not None) if plans else 0
        left = None if left is None else left - read
        if not plans or plans[-1].is_last or (left is not None and left <= 0):
            return Precomputation(slots=tuple(slots), files=files, bytes=size, unsettled=len(passed))
        view = timeline.refresh(view)


def _made(fileio: FileIO, work: _FilesToRead, txn: Txn, passed: set[FileGroupId]) -> ServiceResult:
    """The files with their columns. passed: takes those that changed or are gone."""
    spec = work.snapshot.spec
    bases = bases_of_unchanged(
        fileio, work.groups, lambda base: precompute(fileio, spec, base, txn), what="objcat: precompute columns", passed=passed
    )
    if not bases:
        raise _AllChanged
    return _proposal(bases, as_of=work.snapshot.slot, txn=txn)


def _proposal(bases: Sequence[BaseFile], *, as_of: int, txn: Txn | None = None) -> ServiceResult:
    bases = sorted(bases, key=lambda base: base.group_id)
    delta = TableDelta(bases=tuple(bases), as_of=as_of)
    made = [file for base in bases if (file := base.precomputed_file) is not None and (txn is None or f"/{txn}/" in file.path)]
    return ServiceResult(
        footprint=Footprint(replaces=tuple(base.group_id for base in bases)),
        changes=encode_delta(delta),
        summary=Summary(files=len(made), bytes=sum(file.bytes for file in made)),
        files=tuple(file.path for file in made),
        features=features_of(delta),
    )
