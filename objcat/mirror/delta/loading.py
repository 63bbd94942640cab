"""Reads a Delta log: its newest version, with few requests. Nobody else's commit is taken for one of objcat's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fileio.contract import ObjectMeta, Range
from fileio.env import map_io
from fileio.errors import FileIOError, NotFound
from objcat.errors import ObjcatError
from objcat.mirror.delta.actions import (
    LOG,
    RESTART,
    DeltaCommitInfo,
    DeltaLine,
    checkpoint_version,
    commit_key,
    commit_version,
    decode_commit,
    table_id,
)
from objcat.mirror.delta.checkpoints import DeltaCheckpoint, advance_hint, read_hint, write_checkpoint
from objcat.mirror.delta.features import DeltaSettings
from objcat.mirror.delta.state import DeltaState, replayed
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorFolder

HEAD_BYTES = Range(0, 64 * 1024)
"""These bytes hold the first line of a commit."""
logger = logging.getLogger("objcat.mirror")


@dataclass(frozen=True, slots=True)
class DeltaListing:
    """The objects of a log from some version on, by version."""

    commits: dict[int, ObjectMeta]
    checkpoints: dict[int, ObjectMeta]


@dataclass(frozen=True, slots=True)
class _ReadCommit:
    """A commit as it was read. error: why it cannot be."""

    version: int
    bytes: int
    lines: Sequence[DeltaLine] = ()
    error: ObjcatError | None = None

    @property
    def info(self) -> DeltaCommitInfo | None:
        """Its first action."""
        return next((line.commit_info for line in self.lines if line.commit_info is not None), None)

    @property
    def restarts(self) -> bool:
        """Whether it has the whole table."""
        return self.info is not None and self.info.since == self.version


def list_log(folder: MirrorFolder, *, since: int | None = None) -> DeltaListing:
    """The commits and checkpoints of a log. since: the first version. None: all of them."""
    prefix = f"{folder.folder}{LOG}"
    found = DeltaListing({}, {})
    for page in folder.fileio.list(prefix, start_after=None if since is None else f"{prefix}{since:020d}"):
        for meta in page.objects:
            commit, checkpoint = commit_version(meta.key), checkpoint_version(meta.key)
            if commit is not None and commit >= (since or 0):
                found.commits[commit] = meta
            elif checkpoint is not None and checkpoint >= (since or 0):
                found.checkpoints[checkpoint] = meta
    return found


def load(folder: MirrorFolder) -> DeltaState | None:
    """The newest version. None if there is no log.

    A restart whose checkpoint is missing gets it here: the process that began it died.

    Raises:
        ForeignMetadata: objcat did not write it.
        CorruptMirror: It cannot be read.
    """
    hint, _ = read_hint(folder)
    listing = list_log(folder, since=None if hint is None else hint.version)
    if hint is not None and (hint.version not in listing.checkpoints or not listing.commits):
        listing = list_log(folder)
    if not listing.commits:
        for version, meta in listing.checkpoints.items():
            _check_table(folder, version, DeltaCheckpoint(folder, version, meta).settings())
            raise CorruptMirror(f"The Delta mirror of {folder.name} has checkpoints and no commits. {RESTART}")
        return None
    newest = max(listing.commits)
    base = max((version for version in listing.checkpoints if version <= newest), default=None)
    first = _first_dense(listing, newest, base)
    commits = read_commits(folder, first, newest, head_only=base)
    restart = max((commit.version for commit in commits if commit.restarts), default=-1)
    if restart > (-1 if base is None else base):
        state = _restarted(folder, commits[restart - first])
    elif base is not None:
        state = _from_checkpoint(folder, base, listing.checkpoints[base], commits[0])
    else:
        raise _broken(folder, commits[0])
    for commit in commits[state.slot + 1 - first :]:
        advance(folder, state, commit)
    return state


def _first_dense(listing: DeltaListing, newest: int, base: int | None) -> int:
    """The first version of the run of commits that ends with the newest one, not below the checkpoint."""
    first = newest
    while first - 1 in listing.commits and first != base:
        first -= 1
    return first


def read_commits(folder: MirrorFolder, first: int, last: int, *, head_only: int | None = None) -> list[_ReadCommit]:
    """Commits, read in parallel.

    head_only: a version of which only the first line is needed. It may be large.
    """

    def read(version: int) -> _ReadCommit:
        try:
            if version == head_only:
                data = folder.fileio.read(commit_key(folder, version), byte_range=HEAD_BYTES).split(b"\n", 1)[0]
            else:
                data = folder.fileio.read(commit_key(folder, version))
            return _ReadCommit(version, len(data), decode_commit(folder, version, data))
        except NotFound:
            return _ReadCommit(version, 0, error=CorruptMirror(f"{commit_key(folder, version)} of {folder.name} is gone. {RESTART}"))
        except ObjcatError as error:
            return _ReadCommit(version, 0, error=error)

    return map_io(folder.fileio.env, read, range(first, last + 1))


def advance(folder: MirrorFolder, state: DeltaState, commit: _ReadCommit) -> None:
    """Apply the next commit. Raises ForeignMetadata, CorruptMirror."""
    if commit.error is not None:
        raise commit.error
    state.advance(commit.lines, size=commit.bytes)
    _check_table(folder, state.slot, state.settings)


def _restarted(folder: MirrorFolder, commit: _ReadCommit) -> DeltaState:
    """The state of a restart. It gets its checkpoint, without which a log that begins above 0, or has a gap below, cannot be read."""
    settings, info, changed = replayed(commit.lines, None)
    state = DeltaState(slot=commit.version, info=info, settings=settings, changed=dict(changed), commit_bytes=commit.bytes)
    _check_table(folder, state.slot, state.settings)
    if commit.version > 0:
        publish_checkpoint(folder, state)
    return state


def _from_checkpoint(folder: MirrorFolder, base: int, meta: ObjectMeta, first: _ReadCommit) -> DeltaState:
    """The state of a checkpoint. first: the commit of that version. If it is gone, the next one."""
    if first.error is not None:
        raise first.error
    if first.version not in (base, base + 1):
        raise _broken(folder, first)
    assert first.info is not None
    checkpoint = DeltaCheckpoint(folder, base, meta)
    state = DeltaState(slot=base, info=first.info, settings=checkpoint.settings(), checkpoint=checkpoint)
    _check_table(folder, state.slot, state.settings)
    return state


def _broken(folder: MirrorFolder, commit: _ReadCommit) -> ObjcatError:
    why = f"The log of the Delta mirror of {folder.name} begins at version {commit.version} without what was before it. {RESTART}"
    return commit.error or CorruptMirror(why)


def _check_table(folder: MirrorFolder, version: int, settings: DeltaSettings) -> None:
    found = settings.metadata.id
    if found != table_id(folder):
        raise ForeignMetadata(
            f"The Delta metadata of {folder.name} at version {version} is that of another table: its id is {found}, not "
            f"{table_id(folder)}. Nothing was changed. Remove that metadata, or the other table's writer."
        )


def publish_checkpoint(folder: MirrorFolder, state: DeltaState) -> None:
    """Write the checkpoint of a state, and let the hint name it. If the store refuses, the next commit or reader tries again."""
    try:
        checkpoint, files = write_checkpoint(folder, state.slot, state.settings, state.pieces(), time_ms=state.time_ms)
        state.begin_at(checkpoint, files=files)
        advance_hint(folder, checkpoint, files=files)
    except FileIOError as error:
        logger.warning("The checkpoint of version %d of the Delta mirror of %s was not written: %s", state.slot, folder.name, error)
