"""`Reach`: the rows of the other sources that can meet some rows of one source in the result of a query.

It gives more rows rather than fewer: the query itself decides. For a source of a LEFT join it has every row that the rows before it meet,
since a row that is missing there would become nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from objcat.derived.shape import Edge, Shape, Side
from objcat.derived.source_rows import SourceRows


class Reach:
    """For one step of a refresh. slots: at which each source is read. seed: where it begins, by the places of sources."""

    def __init__(self, shape: Shape, rows: Sequence[SourceRows], slots: Sequence[int], seed: Mapping[int, Any]) -> None:
        self._shape = shape
        self._rows = rows
        self._slots = slots
        self._seed = dict(seed)

    def tables(self, *, fixed: Mapping[int, Any], twice: int | None = None) -> dict[int, list[Any]]:
        """The rows of each source that is not fixed: one table, and for `twice` the rows as of its both slots."""
        met = self._met()
        found: dict[int, list[Any]] = {}
        known: dict[int, Sequence[Any]] = {place: [one] for place, one in fixed.items()}
        for place, side in enumerate(self._shape.sides):
            if place in fixed:
                continue
            if side is Side.INNER and place in met:
                found[place] = [met[place]]
            else:
                own = [edge for edge in self._shape.edges if edge.owner == place and edge.other(place)[0] in known]
                rows = self._rows[place]
                slots = [rows.before, rows.after] if place == twice else [self._slots[place]]
                found[place] = [self._by(place, own, known, slot) if own else rows.all(slot) for slot in slots]
            known[place] = found[place]
        return found

    def _met(self) -> dict[int, Any]:
        """What the seed meets in every row of the result, from source to source.

        From a source of a LEFT join one may go on to those before it, and not the other way: there may be nulls instead.
        """
        found = dict(self._seed)
        waiting = True
        while waiting:
            waiting = False
            ways: dict[int, list[Edge]] = {}
            for edge in self._shape.edges:
                for place in edge.sources:
                    other, _, _ = edge.other(place)
                    is_forward = edge.owner == place and self._shape.sides[place] is Side.LEFT
                    if place not in found and other in found and not is_forward:
                        ways.setdefault(place, []).append(edge)
            if ways:
                place = min(ways, key=lambda one: (not self._is_lookup(one, ways[one]), one))
                found[place] = self._by(place, ways[place], {other: [rows] for other, rows in found.items()}, self._slots[place])
                waiting = True
        return found

    def _by(self, place: int, edges: Sequence[Edge], known: Mapping[int, Sequence[Any]], slot: int) -> Any:
        other, theirs, mine = self._best(place, edges).other(place)
        return self._rows[place].found(slot, mine, [self._rows[other].values(rows, theirs) for rows in known[other]])

    def _best(self, place: int, edges: Sequence[Edge]) -> Edge:
        """The edge by which rows are found soonest: by the key."""
        key = self._rows[place].source.table.key or []
        return min(edges, key=lambda edge: edge.other(place)[2] not in key)

    def _is_lookup(self, place: int, edges: Sequence[Edge]) -> bool:
        return any(edge.other(place)[2] in (self._rows[place].source.table.key or []) for edge in edges)
