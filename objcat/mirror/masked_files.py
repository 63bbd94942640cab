"""Data files as a mirror names them: which of their rows file groups need, and which do not count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fileio.store import FileIO
from objcat.metadata.files import Adoption, BaseFile, Bound, FileGroup, LogObject, LogSlice
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.file_bounds import bounds_by_path
from objcat.mirror.model import MirroredFile, Positions
from objcat.mirror.superseded_rows import SupersededRowReader
from objcat.timeline.entry import FileGroupId

NO_ROWS: Positions = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class NeededRows:
    """Rows of a file that a file group needs: a base file, or a slice of a log file."""

    group: FileGroup
    file: BaseFile | LogSlice

    @property
    def path(self) -> str:
        """Of the file."""
        return self.file.path if isinstance(self.file, BaseFile) else self.file.object.path

    @property
    def written_for(self) -> FileGroupId:
        """The file group that the rows were written for. A split may have divided it since."""
        return self.file.group_id

    @property
    def key(self) -> tuple[str, int, int, FileGroupId]:
        """Equal for the same rows of the same file group."""
        first, last = (0, self.file.rows) if isinstance(self.file, BaseFile) else (self.file.start, self.file.end)
        return self.path, first, last, self.group.group_id

    @property
    def size(self) -> tuple[int, int]:
        """Bytes and rows of the whole file."""
        return (self.file.bytes, self.file.rows) if isinstance(self.file, BaseFile) else (self.file.object.bytes, self.file.object.rows)


def of_table(of_path: Sequence[NeededRows], masked: Positions, bounds: Mapping[int, Bound]) -> MirroredFile:
    """A file of a table, with the bounds that its manifests have. of_path: what is needed of it."""
    first = of_path[0]
    size, rows = first.size
    return MirroredFile(
        path=first.path,
        bytes=size,
        rows=rows,
        bounds=bounds,
        masked=masked,
        nulls_at_most=True,
        adopted=adoption_of(first.file),
        bounds_of_group=any(len(needed_by(part.group)) > 1 for part in of_path),
    )


def adoption_of(file: BaseFile | LogObject | LogSlice) -> Adoption | None:
    """What the log knows of a file that another tool wrote."""
    return file.adopted if isinstance(file, BaseFile) else None


def needed_by(group: FileGroup) -> list[NeededRows]:
    """What a file group needs of files."""
    return [*([] if group.base is None else [NeededRows(group, group.base)]), *(NeededRows(group, part) for part in group.logs)]


class MaskedFileReader:
    """Finds the masked rows of files. Remembers keys of small files. Safe for many threads."""

    def __init__(self, fileio: FileIO, manifests: Manifests) -> None:
        self._fileio = fileio
        self._manifests = manifests
        self.rows = SupersededRowReader(fileio)

    def superseded(self, spec: TableSpec, group: FileGroup, fresh: Sequence[LogSlice]) -> Mapping[str, Positions]:
        """By path, the rows of a file group that stop counting because of some of its log rows. Raises as `SupersededRowReader`."""
        if not fresh:
            return {}
        if group.is_plain:
            # Deletes that a compaction retained. They change no row that is there.
            return united([{part.object.path: self.rows.own_positions(spec, group, part)} for part in fresh])
        return self.rows.superseded(spec, group, fresh)

    def superseded_by_logs(self, spec: TableSpec, groups: Iterable[FileGroup]) -> dict[str, Positions]:
        """By path, all rows of some file groups that do not count because of their log rows."""
        with_logs = [group for group in groups if group.logs and spec.key]
        return united(self._fileio.env.map(lambda group: self.superseded(spec, group, group.logs), with_logs))

    def files(self, snapshot: Snapshot, groups: Sequence[FileGroup], paths: Collection[str]) -> list[MirroredFile]:
        """Some files with all their masked rows, sorted by path. groups: all that need rows of them."""
        spec = snapshot.spec
        needed: dict[str, list[NeededRows]] = {}
        for group in groups:
            for part in needed_by(group):
                if part.path in paths:
                    needed.setdefault(part.path, []).append(part)
        superseded = self.superseded_by_logs(spec, groups)
        bounds = bounds_by_path(snapshot, self._manifests, [group.group_id for group in groups])
        files = []
        for path, of_path in sorted(needed.items()):
            masked = self.masked_of(spec, of_path, superseded.get(path, NO_ROWS))
            files.append(of_table(of_path, masked, bounds.get(path, {})))
        return files

    def masked_of(self, spec: TableSpec, of_path: Sequence[NeededRows], superseded: Positions) -> Positions:
        """The rows of a file that do not count: no file group needs them, or they are superseded. of_path: all that is needed of it."""
        first = of_path[0]
        if isinstance(first.file, BaseFile) and not first.group.is_shared(first.file.group_id):
            # One file group needs all of it. Most files of a large table are such ones.
            return superseded
        counts = np.zeros(first.size[1], np.bool_)
        for part in of_path:
            counts[self.rows.own_positions(spec, part.group, part.file)] = True
        counts[superseded] = False
        return np.flatnonzero(~counts)


def united(parts: Iterable[Mapping[str, Positions]]) -> dict[str, Positions]:
    """The positions of all parts, by path."""
    found: dict[str, list[Positions]] = {}
    for part in parts:
        for path, positions in part.items():
            found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(of_path)) if len(of_path) > 1 else of_path[0] for path, of_path in found.items()}
