"""`DeltaMirror`: writes each slot of a table as one version of a Delta log, over the table's own data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

import msgspec

from fileio.contract import Create, OutcomeUnknown, PutOutcome, Written, require_written
from fileio.errors import FileIOError, NotWritten
from objcat.mirror.absent_columns import check_no_absent
from objcat.mirror.adopted_files import check_for_delta
from objcat.mirror.delta import expiry
from objcat.mirror.delta.actions import RESTART, DeltaAdd, DeltaLine, commit_key, delta_path, encode_lines, log_path_of
from objcat.mirror.delta.checkpoints import ROW_GROUP_ROWS, advance_hint, array_of, write_checkpoint
from objcat.mirror.delta.commits import DeltaCommit, appended, replaced, restarted
from objcat.mirror.delta.loading import HEAD_BYTES, advance, list_log, load, logger, publish_checkpoint, read_commits
from objcat.mirror.delta.state import DeltaState
from objcat.mirror.delta.stats import rows_of_stats
from objcat.mirror.delta.vectors import Vectors, bitmaps, positions_of
from objcat.mirror.model import (
    CorruptMirror,
    MirrorChange,
    MirroredFile,
    MirroredSlot,
    MirrorFolder,
    MirrorSlotTaken,
    Positions,
)

T = TypeVar("T")
FRESH_S = 60.0
"""What is remembered counts for so long, in seconds. After that, the commit that would refuse a put may have expired."""
_PART_LINES = 10_000
"""Lines of a commit that are encoded at once."""
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

    def __init__(self, folder: MirrorFolder) -> None:
        bitmaps()
        self._folder = folder
        self._vectors = Vectors(folder)
        self._state: DeltaState | None = None
        self._seen_s = 0.0
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
        if state is not None:
            later = list_log(self._folder, since=state.slot + 1).commits
            dense = sorted(later) == list(range(state.slot + 1, state.slot + 1 + len(later)))
            commits = read_commits(self._folder, state.slot + 1, state.slot + len(later)) if dense else []
            if dense and not any(commit.restarts or commit.error for commit in commits):
                for commit in commits:
                    advance(self._folder, state, commit)
                self._state = state
        self._state = self._state or load(self._folder)
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
        self._put_vectors(commit)
        seen_s = fileio.env.monotonic_s()
        self._settle(fileio.put(commit_key(self._folder, change.slot), data, Create()), commit)
        self._seen_s = seen_s
        state.advance(lines, size=len(data))

    def _restart(self, change: MirrorChange) -> None:
        folder = self._folder
        before = self._readable_state()
        self._state = None
        if list_log(folder, since=change.slot).commits:
            raise self._taken(change.slot)
        commit, files = restarted(folder, change)
        self._put_vectors(commit)
        if (before is None or before.slot != change.slot - 1) and change.slot - 1 in list_log(folder, since=change.slot - 1).commits:
            # Another process has written the version before meanwhile. Without removes of its files they would count twice.
            before, self._state = self._readable_state(), None
        removes = _removes(change, before, files)
        lines = chain(commit.head, removes, (DeltaLine(add=commit.add(path, file)) for path, file in files))
        size, outcome = self._put_parts(commit_key(folder, change.slot), map(encode_lines, _parts(lines, _PART_LINES)))
        self._settle(outcome, commit)
        self._corrupt = None
        if change.slot == 0:
            changed: dict[str, DeltaAdd | None] = {path: commit.add(path, file) for path, file in files}
            self._state = DeltaState(slot=0, info=commit.info, settings=commit.settings, changed=changed, commit_bytes=size)
            return
        pieces = (array_of(commit.add(path, file) for path, file in part) for part in _parts(files, ROW_GROUP_ROWS))
        try:
            checkpoint, count = write_checkpoint(folder, change.slot, commit.settings, pieces, time_ms=change.committed_at_ms)
            self._state = DeltaState(slot=change.slot, info=commit.info, settings=commit.settings, checkpoint=checkpoint)
            advance_hint(folder, checkpoint, files=count)
        except FileIOError as error:
            logger.warning("The checkpoint of the restart of the Delta mirror of %s was not written: %s", folder.name, error)

    # ---- putting

    def _put_vectors(self, commit: DeltaCommit) -> None:
        if not commit.vector_file.is_empty:
            key = f"{self._folder.folder}{commit.vector_file.name}"
            require_written(self._folder.fileio.put(key, commit.vector_file.data, Create()), f"{key!r}")

    def _put_parts(self, key: str, parts: Iterable[bytes]) -> tuple[int, PutOutcome]:
        """Put an object that may be large, if absent. Returns its size too."""
        fileio = self._folder.fileio
        if not fileio.capabilities.conditional_complete:
            data = b"".join(parts)
            return len(data), fileio.put(key, data, Create())
        with fileio.open_write(key, Create()) as stream:
            size = sum(stream.write(part) for part in parts)
            return size, stream.finish()

    def _settle(self, outcome: PutOutcome, commit: DeltaCommit) -> None:
        """Return if a commit is visible. Raises MirrorSlotTaken, NotWritten."""
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
            if not commit.vector_file.is_empty:
                self._folder.fileio.delete([f"{self._folder.folder}{commit.vector_file.name}"])
            raise self._taken(commit.change.slot)
        for vector, data in commit.vectors.values():
            self._vectors.remember(vector, data)

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


def _removes(change: MirrorChange, before: DeltaState | None, files: Sequence[tuple[str, MirroredFile]]) -> list[DeltaLine]:
    """What a restart removes: a reader that knows the version before may apply it upon that. After a gap none can.

    before: the newest state. If it cannot be read, readers cannot know it either.
    """
    if before is None or before.slot != change.slot - 1:
        return []
    try:
        return list(replaced(change, before, files))
    except CorruptMirror as error:
        logger.warning("A Delta mirror begins again upon a version that cannot be read: %s", error)
        return []


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of a size."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
