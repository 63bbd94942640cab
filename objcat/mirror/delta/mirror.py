"""`DeltaMirror`: writes each slot of a table as one version of a Delta log, over the table's own data files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fileio.contract import Create, OutcomeUnknown, PutOutcome, Written, require_written
from fileio.errors import FileIOError, NotWritten
from objcat.mirror.absent_columns import check_no_absent
from objcat.mirror.adopted_files import check_for_delta
from objcat.mirror.delta import expiry
from objcat.mirror.delta.actions import RESTART, DeltaAdd, DeltaLine, commit_key, delta_path, encode_lines, log_path_of
from objcat.mirror.delta.checkpoints import advance_hint, write_checkpoint
from objcat.mirror.delta.commits import DeltaCommit, appended
from objcat.mirror.delta.loading import HEAD_BYTES, advance, list_log, load, logger, publish_checkpoint, read_commits
from objcat.mirror.delta.restarts import DeltaRestart
from objcat.mirror.delta.state import DeltaState
from objcat.mirror.delta.stats import rows_of_stats
from objcat.mirror.delta.vectors import Vectors, bitmaps, positions_of
from objcat.mirror.model import (
    CorruptMirror,
    MirrorChange,
    MirroredSlot,
    MirrorFolder,
    MirrorSlotTaken,
    Positions,
)

FRESH_S = 60.0
"""What is remembered counts for so long, in seconds. After that, the commit that would refuse a put may have expired."""
_FIRST_LINES = msgspec.json.Decoder(DeltaLine)


class DeltaMirror:
    """The Delta mirror of one table. See `MirrorFormat` for its contract. For one thread.

    Version n of the log is slot n. `<folder>_delta_log/` has commits and checkpoints, `<folder>deltavectors/` the deletion vectors.

    Args:
        folder: Where it is.

    Raises:
        MissingDependency: The library of bitmaps is not installed.
    """

    format = "delta"
    has_every_slot = True

    def __init__(self, folder: MirrorFolder) -> None:
        bitmaps()
        self._folder = folder
        self._vectors = Vectors(folder)
        self._state: DeltaState | None = None
        self._seen_s = 0.0
        self._wrote: int | None = None
        self._corrupt: CorruptMirror | None = None

    def newest(self) -> MirroredSlot | None:
        """See `MirrorFormat.newest`. One LIST if nothing has changed since.

        Raises:
            CorruptMirror: Also if a slot could not be written for that reason. A restart heals it.
        """
        if self._corrupt is not None:
            raise CorruptMirror(str(self._corrupt))
        state = self._look()
        return None if state is None else MirroredSlot(state.slot, state.info.txn_id or "")

    def write(self, change: MirrorChange) -> None:
        """See `MirrorFormat.write`. Two puts, one if no file changes, and no other request. Now and then a checkpoint.

        Raises:
            MirrorSlotTaken: Another process was first.
            MirrorHeld: The table names files that readers of Delta would not read as objcat does: adopted ones, or ones that lack a column
                with a default.
            CorruptMirror: The change does not fit what the mirror says.
            NotWritten: It is not known whether the slot was written. Read the newest slot again.
        """
        check_for_delta(change, self._folder.fileio, name=self._folder.name)
        check_no_absent(change, self._folder.fileio, format_name="Delta", name=self._folder.name)
        try:
            if change.restarts:
                self._restart(change)
            else:
                self._append(change)
        except BaseException as error:
            self._state = None
            # A restart that came too late proves that another process could write.
            self._corrupt = error if isinstance(error, CorruptMirror) else None
            raise

    def masked(self, paths: Sequence[str]) -> Mapping[str, Positions]:
        """See `MirrorFormat.masked`."""
        state = self._known_state()
        adds = state.find([delta_path(self._folder, path) for path in paths])
        vectors = {add.path: add.deletion_vector for add in adds.values() if add.deletion_vector is not None}
        read = self._vectors.read(vectors.values())
        return {log_path_of(self._folder, path): positions_of(read[vector]) for path, vector in vectors.items()}

    def live_files(self) -> Mapping[str, int]:
        """See `MirrorFormat.live_files`."""
        found: dict[str, int] = {}
        for add in self._known_state().files():
            rows = rows_of_stats(add.stats)
            if rows is None:
                raise CorruptMirror(f"The Delta mirror of {self._folder.name} does not say how many rows {add.path} has. {RESTART}")
            found[log_path_of(self._folder, add.path)] = rows - (0 if add.deletion_vector is None else add.deletion_vector.cardinality)
        return found

    def expire(self, *, modified_before_ms: int) -> int:
        """See `MirrorFormat.expire`."""
        state = self._look()
        return 0 if state is None else expiry.expire(self._folder, state, modified_before_ms=modified_before_ms)

    def forget_before(self, slot: int) -> int:
        """See `MirrorFormat.forget_before`.

        Raises:
            MirrorNotRestarted: The mirror did not restart at or after the slot.
        """
        return expiry.forget_before(self._folder, self._look(), slot)

    # ---- reading

    def _known_state(self) -> DeltaState:
        state = self._state or self._look()
        if state is None:
            raise CorruptMirror(f"There is no Delta mirror of {self._folder.name}. {RESTART}")
        return state

    def _look(self) -> DeltaState | None:
        """The newest state in the store."""
        self._seen_s = self._folder.fileio.env.monotonic_s()
        state, self._state = self._state, None
        wrote, self._wrote = self._wrote, None
        if state is not None:
            later = list_log(self._folder, since=state.slot + 1).commits
            dense = sorted(later) == list(range(state.slot + 1, state.slot + 1 + len(later)))
            commits = read_commits(self._folder, state.slot + 1, state.slot + len(later)) if dense else []
            if dense and not any(commit.restarts or commit.error for commit in commits):
                for commit in commits:
                    advance(self._folder, state, commit)
                self._state = state
        self._state = self._state or load(self._folder)
        if wrote is not None and self._state is not None and wrote < self._state.info.since:
            # The mirror began again above what this process wrote since it looked.
            expiry.delete_late(self._folder, wrote)
        return self._state

    def _readable_state(self) -> DeltaState | None:
        """The newest state, None if there is none that can be read. Raises ForeignMetadata."""
        try:
            return self._look()
        except CorruptMirror as error:
            logger.warning("The Delta mirror of %s begins again: %s", self._folder.name, error)
            return None

    # ---- writing

    def _append(self, change: MirrorChange) -> None:
        fileio = self._folder.fileio
        if fileio.env.monotonic_s() - self._seen_s > FRESH_S:
            self._look()
        state = self._known_state()
        if change.slot <= state.slot:
            raise self._taken(change.slot)
        if change.slot > state.slot + 1:
            raise ValueError(f"The Delta mirror of {self._folder.name} is at slot {state.slot}, so slot {change.slot} cannot follow.")
        if state.is_checkpoint_due:
            # Before the commit: if the checkpoint before it is damaged, this slot can still restart the mirror.
            publish_checkpoint(self._folder, state)
        commit, lines = appended(self._folder, state, change, self._vectors)
        data = encode_lines(lines)
        keys = self._put_vectors(commit)
        seen_s = fileio.env.monotonic_s()
        self._wrote = change.slot if self._wrote is None else self._wrote
        self._settle(fileio.put(commit_key(self._folder, change.slot), data, Create()), commit, keys)
        for vector, bitmap in commit.vectors.values():
            self._vectors.remember(vector, bitmap)
        self._seen_s = seen_s
        state.advance(lines, size=len(data))

    def _restart(self, change: MirrorChange) -> None:
        folder, slot = self._folder, change.slot
        # What is remembered may have been deleted.
        self._state = None
        before, self._state = self._readable_state(), None
        self._check_free(slot)
        restart = DeltaRestart(folder, change)
        restart.store_files()
        try:
            # That took its time. A version that came meanwhile is one to follow.
            if not self._check_free(slot):
                before = None if before is None or before.slot == slot - 1 else before
            elif before is None or before.slot != slot - 1:
                before, self._state = self._readable_state(), None
        except BaseException:
            restart.discard()
            raise
        self._wrote = slot
        commit, size = self._put_restart(restart, change, before)
        self._corrupt = None
        if slot == 0:
            changed: dict[str, DeltaAdd | None] = {add.path: add for add in restart.adds()}
            self._state = DeltaState(slot=0, info=commit.info, settings=commit.settings, changed=changed, commit_bytes=size)
            return
        try:
            checkpoint, count = write_checkpoint(folder, slot, commit.settings, restart.pieces(), time_ms=commit.time_ms)
            self._state = DeltaState(slot=slot, info=commit.info, settings=commit.settings, checkpoint=checkpoint)
            advance_hint(folder, checkpoint, files=count)
        except FileIOError as error:
            logger.warning("The checkpoint of the restart of the Delta mirror of %s was not written: %s", folder.name, error)

    def _check_free(self, slot: int) -> bool:
        """Check that nobody has written a slot or a later one. Returns whether the slot before it is there. Raises MirrorSlotTaken."""
        there = list_log(self._folder, since=max(0, slot - 1)).commits
        if any(version >= slot for version in there):
            raise self._taken(slot)
        return slot - 1 in there

    def _put_restart(self, restart: DeltaRestart, change: MirrorChange, newest: DeltaState | None) -> tuple[DeltaCommit, int]:
        """Put the commit of a restart. Returns it, and its size. newest: the newest version, if it can be read."""
        key = commit_key(self._folder, change.slot)
        after_ms = -1 if newest is None else newest.time_ms
        before = newest if newest is not None and newest.slot == change.slot - 1 else None
        commit = restart.begin(follows=before is not None, after_ms=after_ms)
        try:
            size, outcome = self._put_parts(key, restart.parts(commit, before))
        except CorruptMirror as error:
            logger.warning("The Delta mirror of %s begins again upon a version that cannot be read: %s", self._folder.name, error)
            commit = restart.begin(follows=False, after_ms=after_ms)
            size, outcome = self._put_parts(key, restart.parts(commit, None))
        self._settle(outcome, commit, restart.vector_keys)
        return commit, size

    # ---- putting

    def _put_vectors(self, commit: DeltaCommit) -> list[str]:
        """Put the vectors of a commit. Returns the keys of what was put."""
        if commit.vector_file.is_empty:
            return []
        key = f"{self._folder.folder}{commit.vector_file.name}"
        require_written(self._folder.fileio.put(key, commit.vector_file.data, Create()), f"{key!r}")
        return [key]

    def _put_parts(self, key: str, parts: Iterable[bytes]) -> tuple[int, PutOutcome]:
        """Put an object that may be large, if absent. Returns its size too."""
        fileio = self._folder.fileio
        if not fileio.capabilities.conditional_complete:
            data = b"".join(parts)
            return len(data), fileio.put(key, data, Create())
        with fileio.open_write(key, Create()) as stream:
            size = sum(stream.write(part) for part in parts)
            return size, stream.finish()

    def _settle(self, outcome: PutOutcome, commit: DeltaCommit, vector_keys: Sequence[str]) -> None:
        """Return if a commit is visible. Raises MirrorSlotTaken, NotWritten. vector_keys: its files of vectors."""
        key = commit_key(self._folder, commit.change.slot)
        if isinstance(outcome, OutcomeUnknown):
            found = self._attempt_at(key)
            if found is None:
                why = f"It is not known whether {key} was written ({outcome.cause}). Nothing was deleted. Read the newest slot again."
                raise NotWritten(why, outcome) from outcome.cause
            is_ours = found == commit.info.attempt
        else:
            is_ours = isinstance(outcome, Written)
        if not is_ours:
            # Nothing names our vectors, and nothing ever will.
            self._folder.fileio.delete(vector_keys)
            raise self._taken(commit.change.slot)

    def _attempt_at(self, key: str) -> str | None:
        """Whose commit is there. Empty if nobody's of objcat, None if that cannot be known now."""
        try:
            line = self._folder.fileio.read(key, byte_range=HEAD_BYTES).split(b"\n", 1)[0]
            info = _FIRST_LINES.decode(line).commit_info
        except (FileIOError, msgspec.DecodeError):
            return None
        return "" if info is None else info.attempt

    def _taken(self, slot: int) -> MirrorSlotTaken:
        return MirrorSlotTaken(
            f"Another process has written slot {slot} of the Delta mirror of {self._folder.name}. Nothing of this attempt is visible. Read "
            "the newest slot, and go on after it."
        )
