"""`explain`: how a derived table is refreshed, in sentences."""

from __future__ import annotations

from objcat.derived.refresh import pin_sources
from objcat.derived.shape import RefreshWay
from objcat.metadata.derived import definition_of
from objcat.sql.runner import SqlLake
from objcat.table.table import Table

_SAID = {
    RefreshWay.ROWS: "A refresh reads the changed rows of each table, and the rows that they join with.",
    RefreshWay.GROUPS: "A refresh reads the changed rows of each table and the rows that they join with, and changes their groups.",
    RefreshWay.WHOLE: "A refresh computes the whole query, and writes what differs.",
}


def explain(table: Table, lake: SqlLake) -> str:
    """See `Lake.explain_derived`."""
    pinned = pin_sources(table, lake, full=False)
    shape = pinned.shape
    definition = definition_of(table.spec)
    assert definition is not None
    lines = [definition.query, "", _SAID[shape.way]]
    if shape.way is RefreshWay.GROUPS and shape.by_difference:
        lines.append("Counts and sums of a group follow from the changes. It is computed again where its least or greatest value went.")
    lines += dict.fromkeys(shape.remarks)
    if pinned.why_whole is not None and shape.way is not RefreshWay.WHOLE:
        lines.append(f"The next refresh computes the whole query: {pinned.why_whole}.")
    for name, source in pinned.state.sources.items():
        known = None if pinned.former is None else pinned.former.sources.get(name)
        at = "never read" if known is None else f"at slot {known.slot}"
        lines.append(f"{name}: {at}, newest slot {source.slot}.")
    return "\n".join(lines)
