"""What one slot changes in a mirror, in words that Iceberg and Delta have in common. Values only: nothing is read or written here.

`objcat.mirror.changes` computes a `MirrorChange` from the log. Each format writes it as its own metadata, see `MirrorFormat`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from fileio.store import FileIO
from objcat.errors import InvalidInput, ObjcatError
from objcat.metadata.files import Adoption, Bound
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import Action

Positions: TypeAlias = npt.NDArray[np.int64]
"""Row numbers within one data file, from 0, ascending, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredFile:
    """A data file, as a mirror names it.

    Attributes:
        path: relative to the log's prefix.
        bytes: its size.
        rows: all its rows, masked ones too.
        bounds: by column id, as entries have them. Columns that are missing are not known.
        masked: rows that do not count: they are deletes, or were replaced by newer rows.
        nulls_at_most: the counts of nulls in `bounds` are not exact: there are no more nulls than that.
        adopted: of a file that another tool wrote, what the log knows of it.
        bounds_of_group: `bounds` are those of several files of a file group. They hold for this one, and say nothing of its types.
    """

    path: str
    bytes: int
    rows: int
    bounds: Mapping[int, Bound] = field(default_factory=dict)
    masked: Positions
    nulls_at_most: bool = False
    adopted: Adoption | None = None
    bounds_of_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorChange:
    """What a mirror changes from one slot to the next.

    A mirror names the files that the snapshot of its slot names, also those all of whose rows are masked. A file that gets masked rows back
    as live rows, after a restore, is in both `removed` and `added`.

    Attributes:
        slot: that the mirror has afterwards.
        txn: the transaction of that slot.
        committed_at_ms: its commit time.
        action: what that slot did.
        keeps_rows: whether the rows of the table are the same as before, as after a compaction.
        restarts: `added` is the whole table. Nothing that the mirror named before counts any more.
        spec: the settings of the table at that slot.
        removed: paths of files that are not needed from now on.
        added: new files, with all their masked rows. Of a change that restarts the mirror, they are sorted by `encoded_path`, and may be
            read from disk each time that they are gone through.
        masked: files that stay, with the rows that are masked in addition, and without bounds. Some rows may have been masked before.
        oldest_slot: slots below it may be unreadable, except saved ones.
        saved: slots with a savepoint.
        joined: ids of columns that the table lacked before. Files from before may lack them.
    """

    slot: int
    txn: str
    committed_at_ms: int
    action: Action
    keeps_rows: bool
    restarts: bool
    spec: TableSpec
    removed: Sequence[str] = ()
    added: Iterable[MirroredFile] = ()
    masked: Sequence[MirroredFile] = ()
    oldest_slot: int = 0
    saved: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether no file changes."""
        return not (self.restarts or self.removed or self.added or self.masked)


def encoded_path(path: str) -> str:
    """The path of a data file as Delta has it. Paths may hold `%`, which is encoded again; `=` is not, as in what others write."""
    return quote(path, safe="/=")


@dataclass(frozen=True, slots=True)
class MirrorFolder:
    """Where a mirror is.

    Attributes:
        fileio: the store of the metadata: the prefix of the log, unless `data` is given.
        folder: below that prefix: empty, or a path with a slash at its end, where tables share a log.
        table: the id of the table.
        name: its name, for errors and for metadata.
        data: the prefix of the log, where the metadata is elsewhere. For Iceberg alone.
    """

    fileio: FileIO
    folder: str
    table: str
    name: str
    data: FileIO | None = None

    @property
    def log_store(self) -> FileIO:
        """The prefix of the log, to which paths of data files are relative."""
        return self.fileio if self.data is None else self.data

    @property
    def to_log(self) -> str:
        """The relative path from the folder to the log's prefix."""
        return "../" * self.folder.count("/")

    @property
    def to_lake(self) -> str | None:
        """The relative path from the folder to the lake's prefix, for adopted files. None: the table has no lake."""
        lake = self.log_store.outer_url
        if lake is None:
            return None
        below = self.log_store.url.removeprefix(lake.rstrip("/")).strip("/")
        return self.to_log + "../" * (below.count("/") + 1)


@dataclass(frozen=True, slots=True)
class MirroredSlot:
    """The newest slot of a mirror, and the transaction that committed it."""

    slot: int
    txn: str


class MirrorSlotTaken(ObjcatError):
    """Another process wrote the mirror of this slot first. Nothing of the attempt is visible. Read the newest slot again, and go on."""


class MirrorHeld(ObjcatError):
    """The format cannot express the table as it is at a slot. The mirror keeps its last slot until that changes."""


class MirrorNotRestarted(InvalidInput):
    """The newest slot of a mirror names metadata of slots that were to be forgotten. Nothing was deleted. Restart the mirror first."""


class MirrorFormat(Protocol):
    """One mirror of one table, in one format. It remembers what it has read and written. For one thread.

    Every object is put if absent, under a name that nobody else uses, before the one object that makes the slot visible. That one is also
    put if absent, so only one process can mirror a slot, and a process that dies leaves nothing that a reader takes for a state.
    """

    @property
    def format(self) -> str:
        """`iceberg` or `delta`."""

    @property
    def has_every_slot(self) -> bool:
        """Whether each slot needs metadata, also one that does not concern the table."""

    def newest(self) -> MirroredSlot | None:
        """The newest slot in the store, None if there is no mirror. Forgets what it remembers if another process has gone on.

        Raises:
            ForeignMetadata: The metadata was not written by objcat.
            CorruptMirror: It cannot be read. A change that restarts the mirror replaces it.
        """

    def write(self, change: MirrorChange) -> None:
        """Write the slot after the newest one, see `has_every_slot`. With `change.restarts`, any later slot.

        Raises:
            MirrorSlotTaken: Another process was first.
            MirrorHeld: The format cannot express it.
        """

    def masked(self, paths: Sequence[str]) -> Mapping[str, Positions]:
        """All masked rows of live files at the newest slot. A file without any may be left out."""

    def live_files(self) -> Mapping[str, int]:
        """Paths of all files that the newest slot names, each with its number of live rows. Reads all metadata of that slot."""

    def expire(self, *, modified_before_ms: int) -> int:
        """Delete objects of the mirror that no readable slot names, and that are older than a time. Returns how many.

        What is of slots that an erasure has forgotten goes at once: a process put it that read the table before.
        """

    def forget_before(self, slot: int) -> int:
        """Delete all metadata that was written for slots before one, at once. The mirror must have restarted at or after it.

        For erasures: nothing of the earlier objects remains. Returns how many were deleted.

        Raises:
            MirrorNotRestarted: It builds on an earlier slot.
        """


class ForeignMetadata(ObjcatError):
    """Metadata of this format is at the table's prefix, but objcat did not write it. Nothing is changed."""


class CorruptMirror(ObjcatError):
    """The metadata of a mirror cannot be read. The table is not affected."""
