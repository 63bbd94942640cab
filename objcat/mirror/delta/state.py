"""The state of a Delta log at one version: what its newest checkpoint says, changed by the commits after it.

Only the changes are in memory. Files of the checkpoint are looked up when they are needed, and all of them are kept if they are few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from objcat.common.bounded_cache import BoundedCache
from objcat.mirror.delta.actions import RESTART, DeltaAdd, DeltaCommitInfo, DeltaLine
from objcat.mirror.delta.checkpoints import DeltaCheckpoint, adds_of, merged
from objcat.mirror.delta.features import DeltaSettings, as_in_checkpoint
from objcat.mirror.model import CorruptMirror

WHOLE_ROWS_MAX = 20_000
"""A checkpoint of up to so many files is kept in memory as a whole."""
KNOWN_BYTES = 32 * 1024 * 1024
"""About how many bytes of files of a larger one are kept."""
VERSIONS_MIN = 32
"""The least number of versions between two checkpoints."""
VERSIONS_MAX = 1024
"""The greatest number: a reader gets so many commits when it opens the table."""
SHARE = 4
"""A checkpoint is written when the commits since the last one have a quarter of its bytes. So checkpoints cost in proportion to commits."""


@dataclass(slots=True)
class DeltaState:
    """One version.

    Attributes:
        slot: The version.
        info: The first action of its commit.
        settings: Metadata and protocol.
        checkpoint: The newest one up to it. None: the log is read from its first commit, or from a restart, on.
        changed: Files since the checkpoint: as they are now, None for those that are not live any more.
        commit_bytes: Bytes of all commits since the checkpoint.
        since_checkpoint: How many commits that are.
    """

    slot: int
    info: DeltaCommitInfo
    settings: DeltaSettings
    checkpoint: DeltaCheckpoint | None = None
    changed: dict[str, DeltaAdd | None] = field(default_factory=dict)
    commit_bytes: int = 0
    since_checkpoint: int = 0
    _whole: dict[str, DeltaAdd] | None = None
    _known: BoundedCache[DeltaAdd | None] = field(default_factory=lambda: BoundedCache(bytes_max=KNOWN_BYTES))

    @property
    def time_ms(self) -> int:
        """The commit time of the version."""
        return self.info.in_commit_timestamp or 0

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a checkpoint should be written at this version."""
        if self.checkpoint is None and self.info.since > 0:
            # That of the restart is missing, and readers may need it.
            return True
        if self.since_checkpoint < VERSIONS_MIN:
            return False
        before = 0 if self.checkpoint is None else self.checkpoint.bytes
        return self.since_checkpoint >= VERSIONS_MAX or self.commit_bytes * SHARE >= before

    def find(self, paths: Collection[str]) -> dict[str, DeltaAdd]:
        """Those of some files that are live. Raises CorruptMirror."""
        found: dict[str, DeltaAdd] = {}
        missing: list[str] = []
        for path in paths:
            if path in self.changed:
                add = self.changed[path]
                if add is not None:
                    found[path] = add
            else:
                missing.append(path)
        return found | self._find_in_checkpoint(missing)

    def _find_in_checkpoint(self, paths: Sequence[str]) -> dict[str, DeltaAdd]:
        if self.checkpoint is None or not paths:
            return {}
        if self._whole is None and self.checkpoint.rows <= WHOLE_ROWS_MAX:
            self._whole = {add.path: add for piece in self.checkpoint.pieces() for add in adds_of(piece)}
        if self._whole is not None:
            return {path: self._whole[path] for path in paths if path in self._whole}
        known = {path: self._known.get(path) for path in paths}
        found = {path: add for path, add in known.items() if add is not None}
        read = self.checkpoint.find([path for path in paths if path not in found])
        for path, add in read.items():
            self._remember(path, add)
        return found | read

    def _remember(self, path: str, add: DeltaAdd | None) -> None:
        """Keep what the checkpoint says of a file. None: it does not have the file any more."""
        self._known.put(path, add, 500 + len(path) + len((add and add.stats) or ""))

    def files(self) -> Iterator[DeltaAdd]:
        """All live files. Raises CorruptMirror."""
        yield from (add for add in self.changed.values() if add is not None)
        if self._whole is not None:
            yield from (add for path, add in self._whole.items() if path not in self.changed)
        elif self.checkpoint is not None:
            for piece in self.checkpoint.pieces():
                yield from (add for add in adds_of(piece) if add.path not in self.changed)

    def pieces(self) -> Iterator[pa.Array]:
        """All live files as a checkpoint has them. Raises CorruptMirror."""
        if self._whole is not None or self.checkpoint is None:
            return merged((), {**(self._whole or {}), **self.changed})
        return merged(self.checkpoint.pieces(), self.changed)

    def begin_at(self, checkpoint: DeltaCheckpoint, *, files: int) -> None:
        """Go on from a checkpoint of this version.

        files: how many it has.
        """
        if self._whole is not None or self.checkpoint is None:
            whole = {**(self._whole or {}), **self.changed} if files <= WHOLE_ROWS_MAX else None
            self._whole = None if whole is None else {path: add for path, add in whole.items() if add is not None}
        for path, add in self.changed.items():
            self._remember(path, add)
        self.checkpoint, self.changed, self.commit_bytes, self.since_checkpoint = checkpoint, {}, 0, 0

    def advance(self, lines: Sequence[DeltaLine], *, size: int) -> None:
        """Apply the commit of the next version. size: its bytes."""
        settings, info, changed = replayed(lines, self.settings)
        assert info.slot == self.slot + 1, "versions of a mirror are dense"
        self.slot, self.info, self.settings = info.slot, info, settings
        self.changed |= changed
        self.commit_bytes += size
        self.since_checkpoint += 1


def replayed(
    lines: Sequence[DeltaLine], before: DeltaSettings | None
) -> tuple[DeltaSettings, DeltaCommitInfo, Mapping[str, DeltaAdd | None]]:
    """What a commit says: the settings after it, its first action, and its files. Raises CorruptMirror.

    before: the settings before it. None: it must have both.
    """
    info = next(line.commit_info for line in lines if line.commit_info is not None)
    metadata = next((line.meta_data for line in lines if line.meta_data is not None), before.metadata if before else None)
    protocol = next((line.protocol for line in lines if line.protocol is not None), before.protocol if before else None)
    if metadata is None or protocol is None:
        raise CorruptMirror(f"Slot {info.slot} of a Delta mirror has no metadata, and neither has a commit before it. {RESTART}")
    settings = DeltaSettings(metadata, as_in_checkpoint(protocol))
    changed: dict[str, DeltaAdd | None] = {line.remove.path: None for line in lines if line.remove is not None}
    changed |= {line.add.path: line.add for line in lines if line.add is not None}
    return settings, info, changed
