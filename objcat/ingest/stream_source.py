"""`StreamSource`: what sources have in common that have nothing but their stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from objcat.ingest.model import KeyOrder, KeyValues, Mark, Position, Row, SnapshotChunk, SourceTable


class StreamSource:
    """The part of a `ChangeSource` without snapshots that reads chunks. Nothing of it is called but `fetch_rows` and `unsettled`."""

    has_snapshots = False

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """See `ChangeSource`."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots: {table.name} comes by the stream.")

    def place_keys(self, table: SourceTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], *, order: KeyOrder) -> list[int]:
        """See `ChangeSource`."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots: {table.name} comes by the stream.")

    def fetch_rows(self, table: SourceTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> Mapping[KeyValues, Row]:  # noqa: ARG002
        """See `ChangeSource`. The stream cannot be asked for a row."""
        return {}

    def is_covered(self, covers: Any, mark: Mark) -> bool:
        """See `ChangeSource`."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots, so none covers {mark!r}: {covers!r}.")

    def has_to_store(self, stored: Position, position: Position) -> bool:
        """See `ChangeSource`."""
        return dict(stored) != dict(position)

    def read_left_out(self, position: Position, tables: Sequence[str]) -> Position:
        """See `ReplayedSource`."""
        raise NotImplementedError(f"{type(self).__name__} has no record of what was left out of {', '.join(tables)}.")

    def unsettled(self, marks: Sequence[Mark]) -> list[Mark]:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. No chunk can lack a transaction."""
        return []
