"""Copies a table into another log of its lake: its file groups, merged, as base files with the deletes that must outlive them.

The first commit is a CREATE that has all of it, so the copy is there with one slot. Each further one replaces the file groups that changed
in the source since. The copy has no name, so nobody else commits to it. `objcat.lake.move` closes the source and moves the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from objcat.errors import InvalidInput
from objcat.maintenance.compact import CompactTask, compact_groups
from objcat.maintenance.workers import Workers
from objcat.metadata.consistency import check_own
from objcat.metadata.derived import check_not_derived
from objcat.metadata.files import OUTER, FileGroup, LogObject, LogSlice, TableDelta, encode_delta, features_of
from objcat.metadata.key_index_table import index_spec, is_of_index
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.metadata.watermark import WATERMARK_FEATURE, Watermark, in_another_log
from objcat.tasks.model import WriteResult
from objcat.tasks.row_order import kept_order
from objcat.timeline.attempt import CommitAttempt, Committed
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import Action, FileGroupId, Footprint, Summary, Txn, new_txn
from objcat.timeline.log_state import TableLogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.version import writer_of

GROUPS_PER_TASK = 64
COPIED_FROM = "objcat.copied_from"
"""Metadata of the commits of a copy: the prefix of the source's log, and the slot that was copied."""


class SourceChanged(Exception):
    """The source has other settings, or fewer file groups, than the copy. Copy it again."""


@dataclass(slots=True)
class TableCopy:
    """A table of one log on its way into another.

    Args:
        target: The other log. Its store reaches the source's files as keys of the lake.
        view: Of the other log, at the newest slot that the copy has seen.
        prefix: Of the source's log, relative to the lake.
        table: The id of the copy.
        workers: Do the work, on the store of `target`.
        copied: The file groups of the source that the copy has, by id.
        spec: Settings of the source, None before the first commit.
        opened: The slot that created the copy, -1 before it.
    """

    target: Timeline[Tables]
    view: LogView[Tables]
    prefix: str
    table: str
    workers: Workers
    copied: dict[FileGroupId, FileGroup] = field(default_factory=dict)
    spec: TableSpec | None = None
    bucket_counts: Mapping[str, int] = field(default_factory=dict)
    opened: int = -1

    def follow(self, source: Snapshot, manifests: Manifests, marks: TableLogState) -> None:
        """Make the copy what the source is at a slot, in one commit.

        Raises:
            SourceChanged: the copy cannot follow; it stays as it is.
            InvalidInput: an application was rewound, which the copy could not say.
            CorruptTable: a file of the source is damaged, or a clean has deleted it.
            CommitUnknown, storage errors: nobody can reach the copy.
        """
        source.spec.check_own_files("be copied to another log")
        check_not_derived(source.spec, "be copied to another log")
        _check_rewound(marks)
        groups = {group.group_id: group for group in source.all_groups(manifests)}
        if self.spec is not None and (self.spec != source.spec or self.bucket_counts != source.table.bucket_counts):
            raise SourceChanged
        ended = tuple(sorted(self.copied.keys() - groups.keys()))
        if any(map(is_of_index, ended)):
            raise SourceChanged
        changed = [group for group_id, group in groups.items() if self.copied.get(group_id) != group]
        fileio = self.target.fileio
        session = CommitSession(Committer(fileio), new_txn(fileio.env), waits=True)
        action = Action.CREATE if self.spec is None else Action.COMMIT
        skew_ms = session.announce(action, self.view.log, engine="service")
        with session:
            written = self._written(session.txn, source, changed)
            committed = self._commit(session, skew_ms, action, self._proposal(source, written, ended), marks, source.slot)
        self.view = self.target.advance(self.view, [*committed.read, committed.entry])
        self.opened = committed.entry.slot if self.spec is None else self.opened
        self.spec, self.bucket_counts, self.copied = source.spec, source.table.bucket_counts, groups

    def _written(self, txn: Txn, source: Snapshot, groups: Sequence[FileGroup]) -> WriteResult:
        """The new files of some file groups of the source."""
        spec = msgspec.structs.replace(source.spec, table=self.table)
        own = [_outer(group, self.prefix) for group in groups if not is_of_index(group.group_id)]
        of_index = [_outer(group, self.prefix) for group in groups if is_of_index(group.group_id)]
        tasks = [self._task(spec, txn, f"copy-{at}", own[at : at + GROUPS_PER_TASK], source) for at in range(0, len(own), GROUPS_PER_TASK)]
        index = index_spec(spec)
        if index is not None and of_index:
            tasks.append(self._task(index, txn, "copy-index", of_index, source))
        return self.workers.run(compact_groups, tasks, service="move", groups=len(groups))

    def _task(self, spec: TableSpec, txn: Txn, name: str, groups: Sequence[FileGroup], source: Snapshot) -> CompactTask:
        orders = tuple(None if is_of_index(group.group_id) else kept_order(group, source.spec) for group in groups)
        return CompactTask(spec, txn, name, tuple(groups), orders, source.committed_at_ms, restamps=True)

    def _proposal(self, source: Snapshot, written: WriteResult, ended: tuple[FileGroupId, ...]) -> tuple[TableDelta, Footprint]:
        """What the commit changes in the copy."""
        own = tuple(base for base in written.bases if not is_of_index(base.group_id))
        of_index = tuple(base for base in written.bases if is_of_index(base.group_id))
        is_first = self.spec is None
        splits = dict(source.table.bucket_counts) if is_first else {}
        as_of = self.view.slot
        delta = TableDelta(
            spec=self._spec_of(source) if is_first else None,
            bases=own,
            logs=written.logs,
            as_of=as_of if written.bases else None,
            retires=ended,
            splits=splits,
            index=TableDelta(bases=of_index, as_of=as_of) if of_index else None,
        )
        known = {base.group_id for base in written.bases if base.group_id in self.copied}
        footprint = Footprint(
            creates=tuple(sorted(base.group_id for base in written.bases if base.group_id not in known)),
            replaces=tuple(sorted(known)),
            retires=ended,
            splits=splits,
        )
        return delta, footprint

    def _spec_of(self, source: Snapshot) -> TableSpec:
        return msgspec.structs.replace(source.spec, table=self.table, watermark=in_another_log(source.spec.watermark))

    def _commit(
        self,
        session: CommitSession,
        skew_ms: Callable[[], int],
        action: Action,
        proposal: tuple[TableDelta, Footprint],
        marks: TableLogState,
        slot: int,
    ) -> Committed:
        delta, footprint = proposal
        files = delta.files
        candidate = CommitAttempt(
            txn=session.txn,
            action=action,
            base=self.view.log,
            changes={self.table: encode_delta(delta)},
            footprint={self.table: footprint},
            writer=writer_of("service"),
            features=features_of(delta),
            writer_features=WATERMARK_FEATURE if delta.spec is not None and isinstance(delta.spec.watermark, Watermark) else {},
            apps={self.table: {app: reached.version for app, reached in marks.apps.items()}} if marks.apps else {},
            summary=Summary(rows=sum(base.rows for base in delta.bases), files=len(files), bytes=sum(file.bytes for file in files)),
            metadata={COPIED_FROM: f"{self.prefix} {slot}"},
        )
        check_own(delta, candidate, self.table)
        while True:
            outcome = session.try_commit(candidate, skew_ms=skew_ms())
            if isinstance(outcome, Committed):
                return outcome
            # The log was empty, and somebody else has created its first table.
            self.view = self.target.advance(self.view, outcome.read)
            candidate = replace(candidate, base=self.view.log)


def _check_rewound(marks: TableLogState) -> None:
    rewound = sorted(app for app, reached in marks.apps.items() if reached.rewound_at is not None)
    if rewound:
        raise InvalidInput(
            f"A RESTORE took back versions of the application {rewound[0]!r}, which has written nothing since. In another log nobody would "
            "tell it. Nothing was changed. Let it write with resumed_after first, and move the table then."
        )


def _outer(group: FileGroup, prefix: str) -> FileGroup:
    """A file group with the keys of its files in the lake."""

    def reached(path: str) -> str:
        return path if path.startswith(f"{OUTER}/") else f"{OUTER}/{prefix}/{path}"

    def log(found: LogObject) -> LogObject:
        return msgspec.structs.replace(found, path=reached(found.path))

    def part(found: LogSlice) -> LogSlice:
        return msgspec.structs.replace(found, object=log(found.object))

    base = None if group.base is None else msgspec.structs.replace(group.base, path=reached(group.base.path))
    return replace(group, base=base, logs=tuple(map(part, group.logs)))
