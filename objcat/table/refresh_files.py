"""`refresh_files`: what changed in the folders of a table in place becomes commits.

Each commit is a service: list, compare with the newest snapshot, look at the files, claim one slot, and begin again where another commit
changed the table first. So two refreshes never take a file twice, and one that is killed leaves whole commits behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fileio.errors import NotFound, ObjectChanged
from objcat.adoption.source_files import LookedAtFile, SourceFile, SourceListing, look_at, partitions_in_place
from objcat.common.memory_errors import reports_full_memory
from objcat.common.progress import shown_progress
from objcat.common.validation import name_list, one_of
from objcat.datafile.in_place import settings_of, shown_source
from objcat.errors import InvalidInput, SourceFileChanged
from objcat.metadata.files import FileGroup, TableDelta, encode_delta, features_of
from objcat.metadata.in_place import OnChange, OnMissing
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.table.context import TableContext
from objcat.table.reader import TableReader
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import Action, FileGroupId, Footprint, Summary, Txn
from objcat.timeline.log_view import LogView
from objcat.write.file_sizing import groups_apart
from objcat.write.service_commit import Service, ServiceResult, run_service

COMMIT_FILES_MAX = 10_000
COMMIT_BYTES_MAX = 16 * 1024**3
"""Files, and their bytes, that one commit takes at most. A refresh that is killed has to look at so much again."""
NAMED_MAX = 5
"""Files that an error names at most."""
ID_RANGE = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRefresh:
    """What a refresh did.

    Attributes:
        slots: of its commits, in order. Empty: nothing had changed.
        added, replaced, dropped: files that are new, that were another version, and that are gone.
        rows: of the files that were added or replaced.
        bytes: of the same files.
        bad_rows: lines of them that are no rows, and were left out.
        unsettled: files that changed while they were looked at. The next refresh takes them.
        ignored: given files that no pattern means.
    """

    slots: tuple[int, ...] = ()
    added: int = 0
    replaced: int = 0
    dropped: int = 0
    rows: int = 0
    bytes: int = 0
    bad_rows: int = 0
    unsettled: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class _RefreshWork:
    """What one commit does. takes: files, each with the file group that it replaces, if any. is_last: nothing is left after it."""

    snapshot: Snapshot
    takes: Sequence[tuple[SourceFile, FileGroup | None]]
    drops: tuple[FileGroupId, ...]
    ignored: int
    is_last: bool


@dataclass(slots=True)
class _Done:
    """What the run of one commit did, of which the entry does not tell."""

    added: int = 0
    replaced: int = 0
    rows: int = 0
    bytes: int = 0
    bad_rows: int = 0
    unsettled: int = 0


@dataclass(frozen=True, slots=True)
class _RefreshArguments:
    """The arguments of a refresh."""

    files: Sequence[str] | None
    newer_names: bool
    on_change: str
    on_missing: str
    unsafe_unmask: bool


@reports_full_memory
class RefreshableTable(TableReader):
    """The part of `Table` that follows files in place."""

    def refresh_files(
        self,
        files: Sequence[str] | None = None,
        *,
        newer_names: bool = False,
        on_change: OnChange | None = None,
        on_missing: OnMissing | None = None,
        unsafe_unmask: bool = False,
    ) -> FileRefresh:
        """Take the files of a table in place as they are now: new ones are added, in one commit for each 10,000 files.

        Files of text are read once, to count their rows and to know their bounds; of Parquet the footer is read. A file that cannot be
        read as the table says is an error, and nothing of its commit is visible. Several refreshes may run at the same time.

        Args:
            files: URLs of files to look at, such as a message of a notification queue names: `s3://bucket/key`, with the key as it is. None
                lists all sources.
            newer_names: list only keys above the greatest that is known of each source, where names ascend with time. What happened to
                older files is then not seen.
            on_change: "fail" or "replace", what to do about a file that is another one than before. None: as the table was created.
            on_missing: "fail" or "drop", the same of a file that is gone.
            unsafe_unmask: also replace files of which rows were deleted. The new version may have these rows again.

        Returns:
            What was done.

        Raises:
            SourceFileChanged: a file changed or is gone, and the setting says "fail"; or it cannot be read as the table says.
            InvalidInput: an argument does not fit, the table is not in place, or a partition has too many files.
            CommitConflict, CommitUnknown, storage errors: see `objcat.errors`. Earlier commits of the refresh stay.
        """
        self.refresh()
        spec = self.spec
        if not spec.is_in_place:
            raise InvalidInput(
                f"The files of the table {self.name!r} are its own, so there is nothing to refresh. Write rows to it, or create a table "
                "in place with source=objcat.Files(...)."
            )
        if files is not None and newer_names:
            raise InvalidInput("newer_names=True lists the sources, and files= says which files to look at. Give one of them.")
        settings = settings_of(spec)
        request = _RefreshArguments(
            files=None if files is None else name_list(files, what="files"),
            newer_names=newer_names,
            on_change=one_of(on_change or settings.on_change, get_args(OnChange), what="on_change"),
            on_missing=one_of(on_missing or settings.on_missing, get_args(OnMissing), what="on_missing"),
            unsafe_unmask=unsafe_unmask,
        )
        return _Refresh(self._context, request).run()


class _Refresh:
    """One refresh, over all its commits. For one thread."""

    def __init__(self, context: TableContext, request: _RefreshArguments) -> None:
        self._context = context
        self._request = request
        self._done = _Done()

    def run(self) -> FileRefresh:
        """Commit until nothing is left."""
        slots: list[int] = []
        totals = _Done()
        dropped = ignored = 0
        while True:
            work: list[_RefreshWork] = []

            def commit(work: list[_RefreshWork] = work) -> Any:
                service = Service(action=self._action(), table=self._context.id, plan=lambda view: self._plan(view, work), run=self._run)
                try:
                    return run_service(self._context.timeline, service, self._context.view)
                except _NothingLeft:
                    return None

            result = self._context.committed(commit)
            for name in _Done.__slots__:
                setattr(totals, name, getattr(totals, name) + getattr(self._done, name))
            if work:
                ignored = work[-1].ignored
            if result is not None:
                slots.append(result.slot)
                dropped += len(work[-1].drops)
            if result is None or work[-1].is_last:
                break
        return FileRefresh(
            slots=tuple(slots),
            added=totals.added,
            replaced=totals.replaced,
            dropped=dropped,
            rows=totals.rows,
            bytes=totals.bytes,
            bad_rows=totals.bad_rows,
            unsettled=totals.unsettled,
            ignored=ignored,
        )

    def _action(self) -> Action:
        return Action.COMMIT if self._context.spec.rewrites else Action.DELTA_COMMIT

    # ---- what there is to do

    def _plan(self, view: LogView[Tables], planned: list[_RefreshWork]) -> _RefreshWork | None:
        """The work of one commit as of a view. The snapshot is older than the listing, so that a commit between them is a conflict."""
        self._done = _Done()
        planned.clear()
        snapshot = snapshot_of(view, self._context.id, where=self._context.fileio.url)
        if not snapshot.spec.is_in_place:
            raise InvalidInput(
                f"The table {self._context.name!r} was promoted meanwhile, so its files are its own. Nothing more was taken. Write rows "
                "to it."
            )
        groups = snapshot.file_groups(self._context.manifests)
        promoted = {base.promoted: group for group in groups if (base := group.base) is not None and base.promoted is not None}
        known = {base.path: group for group in groups if (base := group.base) is not None and base.source is not None}
        found, gone, ignored = self._found(snapshot, {**promoted, **known})
        listed = {file.path: file for file in found if file.path not in promoted}
        missing = [path for path in gone if path in known]
        changed = [path for path, file in listed.items() if path in known and _is_other(known[path], file)]
        self._check(snapshot, known, changed, missing)
        takes = [(listed[path], known.get(path)) for path in [*changed, *(path for path in listed if path not in known)]]
        chosen, is_last = _limited(takes)
        work = _RefreshWork(snapshot, chosen, tuple(sorted(known[path].group_id for path in missing)), ignored, is_last)
        planned.append(work)
        return work if work.takes or work.drops else None

    def _found(self, snapshot: Snapshot, known: Mapping[str, FileGroup]) -> tuple[Sequence[SourceFile], Collection[str], int]:
        """Files that are there, paths of files that are gone, and how many given ones no pattern means."""
        settings = settings_of(snapshot.spec)
        listing = SourceListing(self._context.fileio, settings.sources, lake_url=self._context.fileio.outer_url)
        if self._request.files is not None:
            return listing.given(self._request.files)
        if self._request.newer_names:
            return list(listing.files(after=_greatest_keys(known))), (), 0
        found = list(listing.files())
        return found, known.keys() - {file.path for file in found}, 0

    def _check(self, snapshot: Snapshot, known: Mapping[str, FileGroup], changed: Sequence[str], missing: Sequence[str]) -> None:
        if changed and self._request.on_change == "fail":
            raise SourceFileChanged(
                f"{_named(snapshot, changed)} changed after the last refresh. Nothing was taken. Call refresh_files(on_change='replace') "
                "to have their rows as they are now, or put the files back."
            )
        if missing and self._request.on_missing == "fail":
            raise SourceFileChanged(
                f"{_named(snapshot, missing)} vanished after the last refresh. Nothing was taken. Call refresh_files(on_missing='drop') to "
                "drop their rows, or put the files back."
            )
        masked = [path for path in changed if (base := known[path].base) is not None and base.source is not None and base.source.masked]
        if masked and not self._request.unsafe_unmask:
            raise SourceFileChanged(
                f"{_named(snapshot, masked)} changed, and rows were deleted that the new version may have again. Nothing was "
                "taken. Call refresh_files(on_change='replace', unsafe_unmask=True), and delete these rows again."
            )

    # ---- doing it

    def _run(self, work: _RefreshWork, txn: Txn) -> ServiceResult:
        self._done = done = _Done()
        spec = work.snapshot.spec
        looked = self._look(work, done, txn)
        if not looked and not work.drops:
            raise _NothingLeft
        new = [file for file, group in looked if group is None]
        ids = self._free_ids(work.snapshot, partitions_in_place(spec, new))
        bases = [file.base_file(group_id, txn) for file, group_id in zip(new, ids, strict=True)]
        replaced = [file.base_file(group.group_id, txn) for file, group in looked if group is not None]
        done.added, done.replaced = len(new), len(replaced)
        done.rows = sum(file.rows for file, _ in looked)
        done.bytes = sum(file.file.meta.size for file, _ in looked)
        done.bad_rows = sum(file.bad_rows for file, _ in looked)
        delta = TableDelta(
            bases=tuple(sorted([*bases, *replaced], key=lambda base: base.group_id)),
            as_of=work.snapshot.slot if replaced else None,
            retires=work.drops,
        )
        before = sum(group.base.rows for _, group in looked if group is not None and group.base is not None)
        gone = {*work.drops}
        dropped = [group for group in work.snapshot.file_groups(self._context.manifests, group_ids=gone) if group.group_id in gone]
        return ServiceResult(
            footprint=Footprint(
                creates=tuple(sorted(base.group_id for base in bases)),
                replaces=tuple(sorted(base.group_id for base in replaced)),
                retires=work.drops,
                # A file that another refresh took meanwhile is in another file group, perhaps.
                read_partitions=("",),
            ),
            changes=encode_delta(delta),
            summary=Summary(
                rows=done.rows,
                inserted=done.rows,
                updated=0,
                deleted=before + sum(group.base.rows for group in dropped if group.base is not None),
                files=len(delta.bases),
                bytes=done.bytes,
            ),
            features=features_of(delta),
            files=tuple(file.path for base in delta.bases if (file := base.precomputed_file) is not None),
        )

    def _look(self, work: _RefreshWork, done: _Done, txn: Txn) -> list[tuple[LookedAtFile, FileGroup | None]]:
        """The files whose rows were counted. Raises SourceFileChanged for one that cannot be read as the table says."""
        env, spec = self._context.fileio.env, work.snapshot.spec
        with shown_progress(env, "objcat: look at files", len(work.takes), unit="files") as advance:

            def look(pair: tuple[SourceFile, FileGroup | None]) -> LookedAtFile | None:
                """Look at one file. None: it changed meanwhile."""
                try:
                    return look_at(self._context.fileio, spec, pair[0], txn)
                except (NotFound, ObjectChanged):
                    return None
                except SourceFileChanged as error:
                    if isinstance(error.__cause__, (NotFound, ObjectChanged)):
                        return None
                    raise
                except BrokenFile as error:
                    raise SourceFileChanged(
                        f"{shown_source(spec, pair[0].path)} cannot be taken: {error}. Nothing of this commit was taken. Correct the file, "
                        "or leave it out by the pattern. bad_rows='permit' of a table leaves out lines that are no rows."
                    ) from error
                finally:
                    advance(1)

            found = run_all(env, look, work.takes, at_once=env.parallelism)
        pairs = list(zip(found, (group for _, group in work.takes), strict=True))
        done.unsettled = sum(file is None for file, _ in pairs)
        return [(file, group) for file, group in pairs if file is not None]

    def _free_ids(self, snapshot: Snapshot, partitions: Sequence[str]) -> list[FileGroupId]:
        """An unused file group for each file, in its partition."""
        counts: dict[str, int] = {}
        for partition in partitions:
            counts[partition] = counts.get(partition, 0) + 1
        live = {group.group_id: group for group in snapshot.file_groups(self._context.manifests, partitions=counts)}
        env = self._context.fileio.env
        drawn = groups_apart(snapshot.spec, sorted(counts.items()), live, lambda: int(env.random() * ID_RANGE))
        left = {partition: iter(ids) for (partition, _), ids in zip(sorted(counts.items()), drawn, strict=True)}
        return [next(left[partition]) for partition in partitions]


class _NothingLeft(Exception):
    """Every file changed while it was looked at."""


def _is_other(group: FileGroup, file: SourceFile) -> bool:
    base = group.base
    assert base is not None and base.source is not None
    return base.source.version != str(file.meta.version) or base.bytes != file.meta.size


def _limited(takes: Sequence[tuple[SourceFile, FileGroup | None]]) -> tuple[Sequence[tuple[SourceFile, FileGroup | None]], bool]:
    """As many files as one commit takes, and whether these are all."""
    size = 0
    for count, (file, _) in enumerate(takes):
        size += file.meta.size
        if count and (count >= COMMIT_FILES_MAX or size > COMMIT_BYTES_MAX):
            return takes[:count], False
    return takes, True


def _greatest_keys(known: Mapping[str, FileGroup]) -> dict[int, str]:
    greatest: dict[int, str] = {}
    for path in known:
        _, number, key = path.split("/", 2)
        greatest[int(number)] = max(key, greatest.get(int(number), ""))
    return greatest


def _named(snapshot: Snapshot, paths: Sequence[str]) -> str:
    shown = ", ".join(shown_source(snapshot.spec, path) for path in sorted(paths)[:NAMED_MAX])
    more = f", and {len(paths) - NAMED_MAX:,} more," if len(paths) > NAMED_MAX else ""
    return f"{len(paths):,} of the files of this table, {shown}{more}" if len(paths) > 1 else f"The file {shown}"
