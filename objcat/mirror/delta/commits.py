"""What a commit of the Delta mirror says: a change of a mirror as actions. Nothing is written here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from objcat.metadata.schema import Column
from objcat.mirror.delta.actions import (
    APP,
    ENGINE,
    RESTART,
    DeltaAdd,
    DeltaCommitInfo,
    DeltaLine,
    DeltaRemove,
    DeltaTxn,
    DeltaVector,
    delta_path,
    table_id,
)
from objcat.mirror.delta.features import DeltaSettings, settings_of, stat_names
from objcat.mirror.delta.state import DeltaState
from objcat.mirror.delta.stats import stats_of
from objcat.mirror.delta.vectors import VectorFile, Vectors, union
from objcat.mirror.model import CorruptMirror, MirrorChange, MirroredFile, MirrorFolder


@dataclass(slots=True)
class DeltaCommit:
    """A commit that is being made. Its files are not here: there may be many.

    Attributes:
        folder: The mirror.
        change: What it writes.
        info: Its first action.
        settings: Metadata and protocol after it.
        head: Its first actions, `info` included.
        vector_file: Its vectors.
        vectors: By path of the file, where each vector is, and its bytes.
    """

    folder: MirrorFolder
    change: MirrorChange
    info: DeltaCommitInfo
    settings: DeltaSettings
    head: list[DeltaLine]
    vector_file: VectorFile
    vectors: dict[str, tuple[DeltaVector, bytes]] = field(default_factory=dict)
    _columns: dict[int, Column] = field(init=False)

    def __post_init__(self) -> None:
        self._columns = stat_names(self.change.spec, self.settings.metadata)

    @property
    def time_ms(self) -> int:
        """Its commit time."""
        return self.info.in_commit_timestamp or 0

    def mask(self, path: str, bitmap: Any) -> DeltaVector:
        """Add the vector of a file. path: as in actions."""
        self.vectors[path] = self.vector_file.add(bitmap)
        return self.vectors[path][0]

    def add(self, path: str, file: MirroredFile) -> DeltaAdd:
        """A new file, with its vector."""
        return add_action(self.change, self._columns, path, file, self.vectors[path][0] if path in self.vectors else None)


def add_action(change: MirrorChange, columns: Mapping[int, Column], path: str, file: MirroredFile, vector: DeltaVector | None) -> DeltaAdd:
    """The action for a new file. columns: by id, as statistics name them. path: as in actions."""
    return DeltaAdd(
        path=path,
        partition_values={},
        size=file.bytes,
        modification_time=change.committed_at_ms,
        data_change=not change.keeps_rows,
        stats=stats_of(file.rows, file.bounds, columns, nulls_at_most=file.nulls_at_most),
        deletion_vector=vector,
    )


def appended(folder: MirrorFolder, state: DeltaState, change: MirrorChange, vectors: Vectors) -> tuple[DeltaCommit, list[DeltaLine]]:
    """The commit of the slot after a state, and all its actions. Raises CorruptMirror if the change does not fit the state."""
    added = {delta_path(folder, file.path): file for file in change.added}
    masked = {delta_path(folder, file.path): file for file in change.masked}
    removed = [delta_path(folder, path) for path in change.removed]
    live = state.find({*added, *masked, *removed})
    _check(folder, change, live=live, removed=removed, added=added, masked=masked)
    commit = begin_commit(
        folder,
        change,
        masked=[file.path for file in (*change.added, *change.masked) if len(file.masked)],
        before=state.settings,
        after_ms=state.time_ms,
        since=state.info.since,
    )
    # A file without vectors before and after has not changed; one commit may not have both actions for it.
    same = {path for path in removed if path in added and live[path].deletion_vector is None and not len(added[path].masked)}
    removes = [remove_action(change, live[path]) for path in removed if path not in same]
    adds: list[DeltaLine] = []
    old = {path: live[path].deletion_vector for path in masked}
    read = vectors.read(vector for vector in old.values() if vector is not None)
    for path, file in masked.items():
        before = old[path]
        bitmap = union(read, before, file.masked)
        if len(bitmap) > (0 if before is None else before.cardinality):
            removes.append(remove_action(change, live[path]))
            vector = commit.mask(path, bitmap)
            add = msgspec.structs.replace(live[path], data_change=not change.keeps_rows, deletion_vector=vector)
            adds.append(DeltaLine(add=add))
    for path, file in added.items():
        if path not in same:
            if len(file.masked):
                commit.mask(path, union({}, None, file.masked))
            adds.append(DeltaLine(add=commit.add(path, file)))
    return commit, [*commit.head, *removes, *adds]


def begin_commit(
    folder: MirrorFolder, change: MirrorChange, *, masked: Collection[str], before: DeltaSettings | None, after_ms: int, since: int
) -> DeltaCommit:
    """A commit without files.

    Args:
        folder: The mirror.
        change: What it writes.
        masked: Paths of files with masked rows. They decide which features are needed.
        before: The settings of the version before. None: at a restart.
        after_ms: The commit time of the version before, -1 for none.
        since: The slot of the last restart.
    """
    settings = settings_of(
        change.spec, table=table_id(folder), name=folder.name, masked=masked, created_ms=change.committed_at_ms, before=before
    )
    time_ms = max(change.committed_at_ms, after_ms + 1)
    info = DeltaCommitInfo(
        operation_parameters={"objcat.slot": str(change.slot)},
        in_commit_timestamp=time_ms,
        timestamp=time_ms,
        operation=str(change.action),
        is_blind_append=False,
        engine_info=ENGINE,
        txn_id=change.txn,
        slot=change.slot,
        table=folder.table,
        attempt=folder.fileio.env.new_id(),
        since=since,
        oldest=change.oldest_slot,
        saved=tuple(sorted(change.saved)),
    )
    head = [DeltaLine(commit_info=info)]
    if before is None or settings.protocol != before.protocol:
        head.append(DeltaLine(protocol=settings.protocol))
    if before is None or settings.metadata != before.metadata:
        head.append(DeltaLine(meta_data=settings.metadata))
    head.append(DeltaLine(txn=DeltaTxn(app_id=APP, version=change.slot, last_updated=time_ms)))
    return DeltaCommit(folder, change, info, settings, head, VectorFile(change.slot, folder.fileio.env))


def _check(
    folder: MirrorFolder,
    change: MirrorChange,
    *,
    live: Mapping[str, DeltaAdd],
    removed: Sequence[str],
    added: Mapping[str, MirroredFile],
    masked: Mapping[str, MirroredFile],
) -> None:
    """Check that a change fits the state. Else rows would be there twice, or not at all. Raises CorruptMirror."""
    missing = [path for path in (*removed, *masked) if path not in live]
    twice = [path for path in added if path in live and path not in removed]
    both = [path for path in masked if path in added or path in removed]
    for paths, what in ((missing, "does not name"), (twice, "names already"), (both, "would change twice")):
        if paths:
            raise CorruptMirror(
                f"Slot {change.slot} does not fit the Delta mirror of {folder.name}. That {what} {paths[0]}, one of {len(paths)} files. "
                f"Nothing was written. {RESTART}"
            )


def remove_action(change: MirrorChange, add: DeltaAdd) -> DeltaLine:
    """The line that removes a file with its vector."""
    return DeltaLine(
        remove=DeltaRemove(
            path=add.path,
            deletion_timestamp=change.committed_at_ms,
            data_change=not change.keeps_rows,
            extended_file_metadata=True,
            partition_values={},
            size=add.size,
            deletion_vector=add.deletion_vector,
        )
    )
