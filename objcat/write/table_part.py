"""`TablePart`: what one transaction writes to one table, as a commit sees it.

`objcat.write.transaction` writes the parts of a transaction, claims one slot for all of them, and has parts written again after a conflict.
`TableWriter` is the part of batches. `BlockWriter` is the part of a block whose calls depend on rows, on the schema, or on each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from objcat.metadata.files import TableDelta
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.conflicts import Conflict
from objcat.timeline.entry import Entry, FileGroupId, Footprint, Summary, Txn


class TablePart(Protocol):
    """What a transaction writes to one table. For one thread.

    Attributes:
        table: The id of the table.
        superseded: Keys of objects that were written and that the entry does not name.
    """

    table: str
    superseded: list[str]

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines that write."""

    @property
    def is_whole(self) -> bool:
        """Whether a conflict concerns all of the work, since what it writes in one file group may depend on rows of others."""

    def begin(self) -> None:
        """Forget what was written under an earlier transaction id."""

    def write(self, snapshot: Snapshot, txn: Txn) -> None:
        """Write all files, in place of those written before. Raises InvalidBatch, NullKey and storage errors."""

    def rewrite(self, snapshot: Snapshot, txn: Txn, group_ids: Collection[FileGroupId], met: Sequence[tuple[Entry, Conflict]]) -> bool:
        """Make the files right for a later snapshot, in which others have changed these file groups. Raises as `write`.

        Args:
            snapshot: of the table, above all entries that were met.
            txn: of the transaction.
            group_ids: file groups in conflict.
            met: the conflicts, with the entries of others.

        Returns:
            Whether work was repeated. False: the files were right as they are.
        """

    def footprint(self, snapshot: Snapshot, *, computed: bool = False) -> Footprint:
        """What it changes and depends on. computed: whether its rows may depend on rows that the transaction read."""

    def delta(self, snapshot: Snapshot) -> TableDelta:
        """The changes of the table for an entry that follows the snapshot. An empty one when nothing changes."""

    def summary(self) -> Summary:
        """Counts of rows and files."""
