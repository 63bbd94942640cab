"""`RefreshState`: how far a derived table is, which the position in the commit of its rows holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from objcat.errors import InvalidInput
from objcat.metadata.derived import refresh_source
from objcat.metadata.schema import type_text
from objcat.metadata.snapshot import Snapshot
from objcat.table.table import Table
from objcat.timeline.position import SourcePosition, StoredPosition, read_position


class SourceState(msgspec.Struct, kw_only=True):
    """How far a derived table is in one of its sources.

    Args:
        table: Its id. A table that is dropped and created again has another one.
        log: The prefix of its log in the lake, since slots are of a log.
        slot: The rows are those of this slot.
        committed_at_ms: The commit time of that slot.
        columns: By name of each column that the query names, its id and type.
    """

    table: str
    log: str
    slot: int
    committed_at_ms: int
    columns: dict[str, tuple[int, str]]


class RefreshState(msgspec.Struct, kw_only=True):
    """The state of a refresh. sources: by the name of the table in the query."""

    sources: dict[str, SourceState]


def read_state(table: Table) -> tuple[StoredPosition, RefreshState] | None:
    """The state of the newest refresh that the handle has seen; None before the first one.

    Raises InvalidInput for a state that this version cannot read.
    """
    source = refresh_source(table.id)
    progress = table._context.view.log.sources.get(source)
    if progress is None:
        return None
    stored = read_position(table._context.fileio, source, progress)
    try:
        return stored, msgspec.convert(dict(stored.state), RefreshState)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"The state of the derived table {table.name!r} was written by another version of objcat ({error}). Nothing was done. Use that "
            "version, or refresh it as a whole, lake.refresh_derived(name, full=True)."
        ) from error


def new_position(table: Table, state: RefreshState, stored: StoredPosition | None) -> SourcePosition:
    """The position that a refresh commits, upon the one that it began with."""
    plain: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(state))
    return SourcePosition(
        source=refresh_source(table.id),
        state=plain,
        since=-1 if stored is None else stored.version,
        resumed_after=None if stored is None else stored.rewound_at,
    )


def state_of(snapshot: Snapshot, log: str, columns: list[str]) -> SourceState:
    """The state of a source at a snapshot. columns: those that the query names."""
    schema = snapshot.spec.table_schema
    named = {name: (column.id, type_text(column.type)) for name in columns for column in [schema.column(name)]}
    return SourceState(table=snapshot.spec.table, log=log, slot=snapshot.slot, committed_at_ms=snapshot.committed_at_ms, columns=named)
