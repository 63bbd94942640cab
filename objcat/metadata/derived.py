"""`Derived`: the stored definition of a derived table, which is the result of a query over other tables.

Only a refresh changes rows of such a table. Its commit carries a position of the source `refresh_source(table)`, so the slots of the tables
that the query reads are in the commit of the rows, and two refreshes never build on one state.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from objcat.errors import InvalidInput

DERIVED_FEATURE = {"derived_tables": "0.1.0"}
"""What a writer must understand once a log has a derived table: another one would write rows that the query does not have."""


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a derived table shows.

    Args:
        query: A SELECT in Spark's dialect, in which each table has its whole name and each column that of its table.
        sources: The names of the tables in it, as they were at creation.
    """

    query: str
    sources: tuple[str, ...]


class MayBeDerived(Protocol):
    """A spec."""

    @property
    def derived(self) -> Derived | msgspec.UnsetType | None:
        """See `TableSpec`."""


def refresh_source(table: str) -> str:
    """The name of the source whose position says how far a derived table is. table: its id."""
    return f"derived:{table}"


def definition_of(spec: MayBeDerived) -> Derived | None:
    """The definition of a derived table; None for any other table."""
    return spec.derived if isinstance(spec.derived, Derived) else None


def check_not_derived(spec: MayBeDerived, doing: str) -> None:
    """Raises InvalidInput for a derived table. doing: what is refused, after "cannot"."""
    if isinstance(spec.derived, Derived):
        raise InvalidInput(
            f"This table is derived from {', '.join(spec.derived.sources)}, so it cannot {doing}: only lake.refresh_derived(name) changes "
            "its rows. Nothing was written. Write to these tables and refresh it, or copy its rows to another table."
        )
