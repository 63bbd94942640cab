"""From a snapshot to the stream without a gap: which changes a chunk already has, and when a table is consistent.

A chunk is committed at once, with what its snapshot has seen. The stream may be behind it, or ahead:

- A change of a key that no chunk has reached yet is left out: the chunk that reaches it will have it.
- A change of a key within a chunk is left out when the chunk has seen its transaction, and applied otherwise.
- A chunk that has not seen a transaction that was already applied is read again.

When the stream has passed all that a chunk has seen, the chunk is forgotten. A table without chunks and without unread keys is consistent:
only then does a slot hold exactly what the source had at one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from objcat.ingest.model import Change, ChangeSource, KeyOrder, KeyValues, Mark, Position, RowChange, SnapshotChunk, SourceTable
from objcat.ingest.packed_row import row_bytes

PIECE_CHANGES = 5_000
"""So many changes are looked at together, to ask the source about their keys at once."""
PIECE_BYTES = 16 * 1024 * 1024
"""Fewer of them, when their rows have so many bytes."""
MARKS_MAX = 64
"""With more marks than that, the source is asked which of them it still needs."""
MARKS_STORED_MAX = 16
"""The same, before a commit stores them."""


class UnreadRange(msgspec.Struct, kw_only=True):
    """What is left to read of a table. after: the last key that was read. replaces: whether the lake may have other rows there."""

    after: list[Any] | None = None
    order: KeyOrder = KeyOrder.SOURCE
    replaces: bool = False


class ReadChunk(msgspec.Struct, kw_only=True):
    """A chunk that the stream has not passed. See `SnapshotChunk`."""

    after: list[Any] | None
    last: list[Any] | None
    covers: Any
    until: dict[str, Any]


class TableProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far one table is.

    Args:
        unread: what is left to read; None: nothing.
        order: by what the keys of the chunks are compared.
        chunks: in the order of their keys.
        incomplete: keys of rows that lack a value which the source did not send, and no longer had when it was asked.
        rows: that chunks have had, for people.
        columns: all columns that the source ever had.
        version: the `SourceTable.version` that was read last.
        lake: the id of its table in the lake; None before the first chunk.
        aside: why the table is set aside; None: it is followed.
        is_reading: whether a source without chunks has not handed over all rows that the table had before.
    """

    unread: UnreadRange | None = None
    order: KeyOrder = KeyOrder.SOURCE
    chunks: list[ReadChunk] = []
    incomplete: list[list[Any]] = []
    rows: int = 0
    columns: list[str] = []
    version: Any = None
    lake: str | None = None
    aside: str | None = None
    is_reading: bool = False

    @property
    def is_consistent(self) -> bool:
        """Whether slots show what the source had at one moment."""
        return self.is_handed_over and not self.is_reading and not self.incomplete and self.aside is None

    @property
    def is_handed_over(self) -> bool:
        """Whether the stream alone says what the rows are."""
        return self.unread is None and not self.chunks


class IngestState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a commit stores with the position.

    Args:
        position: where the stream goes on.
        tables: by their names at the source.
        marks: of transactions that were applied and that a snapshot might not see yet.
        requests: the version of the last requests of `objcat ingest resnapshot` and `skip` that were taken.
        skips: positions of transactions that are not applied.
        dead: records that went to the dead letters so far.
        nulled: values that no type of the lake holds, such as infinite times, and that became null so far.
        transactions: of the source that were applied so far.
        is_between: whether the source says that its tables are not those of one moment.
    """

    position: dict[str, Any]
    tables: dict[str, TableProgress] = {}
    marks: list[Any] = []
    requests: int = -1
    skips: list[str] = []
    dead: int = 0
    nulled: int = 0
    transactions: int = 0
    is_between: bool = False

    @property
    def is_consistent(self) -> bool:
        """Whether all tables are, so that sums over tables hold. Tables that are set aside do not count."""
        return not self.is_between and all(table.is_consistent for table in self.tables.values() if table.aside is None)


class Handover:
    """Decides about chunks and changes. It changes the state that it is given."""

    def __init__(self, source: ChangeSource, state: IngestState) -> None:
        self.state = state
        self._source = source

    def begin_snapshot(self, table: str, *, replaces: bool, order: KeyOrder = KeyOrder.SOURCE) -> None:
        """Read a table from its first key on. `replaces`: whether the lake may have rows of it."""
        progress = self.state.tables.setdefault(table, TableProgress())
        progress.unread = UnreadRange(replaces=replaces, order=order)
        progress.order = order
        progress.chunks, progress.incomplete, progress.rows, progress.aside = [], [], 0, None

    def unread_table(self) -> str | None:
        """The table of which a chunk is to be read next; None when none is."""
        for name, progress in self.state.tables.items():
            if progress.unread is not None and progress.aside is None:
                return name
        return None

    def is_usable(self, chunk: SnapshotChunk) -> bool:
        """Whether a chunk has seen everything that was applied. Otherwise it has to be read again."""
        # Marks count as they stood when the chunk was read. A transaction may be settled since, and be missing in the chunk all the same.
        is_usable = all(self._source.is_covered(chunk.covers, mark) for mark in self.state.marks)
        self.state.marks = self._source.unsettled(self.state.marks)
        return is_usable

    def note_chunk(self, chunk: SnapshotChunk) -> None:
        """A chunk is about to be committed."""
        progress = self.state.tables[chunk.table.name]
        assert progress.unread is not None
        last = None if chunk.last is None else list(chunk.last)
        after = None if chunk.after is None else list(chunk.after)
        progress.chunks.append(ReadChunk(after=after, last=last, covers=chunk.covers, until=dict(chunk.until)))
        progress.rows += chunk.rows.num_rows
        progress.unread = None if last is None else msgspec.structs.replace(progress.unread, after=last)

    def note_transaction(self, position: Position, mark: Mark, *, is_consistent: bool | None = None) -> bool:
        """A transaction was applied, or the stream has come as far as `position` without one. For the rest see `SourceTransaction`.

        Returns:
            Whether a table was handed over by that.
        """
        self.state.position = dict(position)
        if is_consistent is not None:
            self.state.is_between = not is_consistent
        if mark is not None:
            self.state.transactions += 1
            self._note_mark(mark)
        is_handed_over = False
        for progress in self.state.tables.values():
            if progress.chunks:
                progress.chunks = [chunk for chunk in progress.chunks if not self._source.is_reached(position, chunk.until)]
                is_handed_over |= progress.is_handed_over
        return is_handed_over

    def _note_mark(self, mark: Mark) -> None:
        if not self._source.has_snapshots:
            return
        self.state.marks.append(mark)
        if len(self.state.marks) > MARKS_MAX:
            self.state.marks = self._source.unsettled(self.state.marks)

    def settle(self, *, is_quiet: bool = False) -> None:
        """A commit is about to store the state. Marks that no later chunk can lack are left out, so that it stays small.

        is_quiet: it has no rows. Then none is kept that is not needed: the numbers of transactions of PostgreSQL come around, and one that
        is very old would count as one that no snapshot has seen.
        """
        if len(self.state.marks) > (0 if is_quiet else MARKS_STORED_MAX):
            self.state.marks = self._source.unsettled(self.state.marks)

    def wanted(self, changes: Iterator[Change], mark: Mark) -> Iterator[tuple[Change, bool, bool]]:
        """The changes of a transaction, each with whether its old key is to be deleted and whether its key is to be written.

        Changes of rows that are left out are not in it. All other changes are. What follows one of these is judged after it was taken: it
        may have set its table aside, or begun to read it again.
        """
        for piece in _pieces(changes):
            plain = {name for name, progress in self.state.tables.items() if progress.is_handed_over and progress.aside is None}
            if all(not isinstance(change, RowChange) or change.table.name in plain for change in piece):
                yield from ((change, True, True) for change in piece)
            else:
                yield from self._wanted(piece, mark, plain)

    def _wanted(self, piece: Sequence[Change], mark: Mark, plain: Collection[str]) -> Iterator[tuple[Change, bool, bool]]:
        asked: dict[str, tuple[SourceTable, dict[KeyValues, bool]]] = {}
        for change in piece:
            if isinstance(change, RowChange) and change.table.name not in plain:
                keys = asked.setdefault(change.table.name, (change.table, {}))[1]
                keys[change.key] = False
                if change.old_key is not None:
                    keys[change.old_key] = False
        answers: Mapping[str, Mapping[KeyValues, bool]] = {
            name: self._applies(table, list(keys), mark) for name, (table, keys) in asked.items()
        }
        for change in piece:
            if not isinstance(change, RowChange) or change.table.name not in answers:
                yield change, True, True
                continue
            applies = answers[change.table.name]
            moves_from = change.old_key is not None and applies[change.old_key]
            if moves_from or applies[change.key]:
                yield change, moves_from, applies[change.key]

    def _applies(self, table: SourceTable, keys: Sequence[KeyValues], mark: Mark) -> dict[KeyValues, bool]:
        """For each key of a table that is not handed over, whether a change of this transaction is to be applied."""
        progress = self.state.tables.get(table.name)
        if progress is None or progress.aside is not None:
            return dict.fromkeys(keys, False)
        chunks, unread = progress.chunks, progress.unread
        if not chunks:
            assert unread is not None
            if unread.after is None:
                return dict.fromkeys(keys, False)
            first: list[Any] | None = unread.after
            bounds = [tuple(unread.after)]
        else:
            first = chunks[0].after
            bounds = [] if first is None else [tuple(first)]
            bounds += [tuple(chunk.last) for chunk in chunks if chunk.last is not None]
        covered = [self._source.is_covered(chunk.covers, mark) for chunk in chunks]
        places = self._source.place_keys(table, keys, bounds, order=progress.order) if bounds else [0] * len(keys)
        shift = 0 if first is None else 1
        answers = {}
        for key, place in zip(keys, places, strict=True):
            at = place - shift
            if at < 0:
                answers[key] = True  # The stream has passed the chunk of this key.
            elif at < len(chunks):
                answers[key] = not covered[at]
            else:
                answers[key] = unread is None
        return answers


def _pieces(changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Changes of rows that follow one another, so many at most; and each other change by itself."""
    piece: list[Change] = []
    size = 0
    for change in changes:
        is_row = isinstance(change, RowChange)
        if isinstance(change, RowChange):
            piece.append(change)
            size += row_bytes(change.row)
        if piece and (not is_row or len(piece) >= PIECE_CHANGES or size >= PIECE_BYTES):
            yield piece
            piece, size = [], 0
        if not is_row:
            yield [change]
    if piece:
        yield piece
