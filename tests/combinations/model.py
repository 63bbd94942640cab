"""The rows that a table has to hold at every slot, kept in dicts: what each write does to them, and what has changed between two slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tests.combinations.values import Column, Values, as_key, comparable, in_order, row_of, shown

Ident: TypeAlias = Any
"""What a row is known by: its key, with the partition where it is unique only there; a number of its own where there is no key."""
Change: TypeAlias = tuple[str, int, Any]
"""Kind, slot and row."""


@dataclass(frozen=True)
class Row:
    """slot: of the commit that wrote it. ordering: None where the table has none. place: its partition."""

    values: Values
    slot: int
    ordering: Any
    place: str


@dataclass(frozen=True)
class State:
    """The columns and rows of a slot. gone: of keys that were deleted with an ordering value, that and where; older rows stay out."""

    columns: tuple[Column, ...]
    rows: Mapping[Ident, Row]
    gone: Mapping[Ident, tuple[Any, str]]

    @property
    def values(self) -> list[Values]:
        return [row.values for row in self.rows.values()]


class Draft:
    """What a write makes of a state. key, ordering: uids; none without. parted: keys are unique in each partition only. is_beyond:
    whether a row comes too long after its event time to count."""

    _numbers = itertools.count()

    def __init__(
        self,
        state: State,
        slot: int,
        *,
        key: Sequence[int],
        ordering: Sequence[int],
        parted: bool,
        is_beyond: Callable[[Values], bool],
    ) -> None:
        self.before = state
        self.columns = state.columns
        self.rows = dict(state.rows)
        self.gone = dict(state.gone)
        self.slot = slot
        self._key, self._ordering, self._parted, self._is_beyond = key, ordering, parted, is_beyond

    def made(self) -> State:
        return State(self.columns, self.rows, self.gone)

    @property
    def is_changed(self) -> bool:
        old = self.before.rows
        return self.rows.keys() != old.keys() or any(row is not old[ident] for ident, row in self.rows.items())

    def ident(self, values: Values, place: str) -> Ident:
        if not self._key:
            return next(self._numbers)
        key = comparable([as_key(values[uid]) for uid in self._key])
        return (place, key) if self._parted else key

    def _measure(self, values: Values) -> Any:
        return tuple(in_order(values[uid]) for uid in self._ordering) or None

    def is_late(self, ident: Ident, values: Values) -> bool:
        """Whether what is there is newer."""
        known = self.rows[ident].ordering if ident in self.rows else self.gone[ident][0] if ident in self.gone else None
        return known is not None and self._measure(values) < known

    def put(self, values: Values, place: str, *, timed: bool = True) -> None:
        """A row. timed: whether it counts only when it does not come too late after its event time."""
        ident = self.ident(values, place)
        if not self.is_late(ident, values) and not (timed and self._is_beyond(values)):
            self.gone.pop(ident, None)
            kept = {**values, **{uid: as_key(values[uid]) for uid in self._key}}
            self.rows[ident] = Row(kept, self.slot, self._measure(values), place)

    def change(self, ident: Ident, new: Values) -> None:
        """Some values of a row, which stays as old as it is."""
        row = self.rows[ident]
        self.rows[ident] = replace(row, values={**row.values, **new}, slot=self.slot)

    def delete(self, values: Values, place: str, *, measured: bool) -> None:
        """A key. measured: whether the delete says how new it is; one that does not ends whatever is there."""
        ident = self.ident(values, place)
        if not measured or not self._ordering:
            self.rows.pop(ident, None)
            self.gone.pop(ident, None)
        elif not self.is_late(ident, values) and not self._is_beyond(values):
            there = self.rows.pop(ident).place if ident in self.rows else self.gone[ident][1] if ident in self.gone else place
            self.gone[ident] = (self._measure(values), there)

    def end(self, ident: Ident, measure: Any = None) -> None:
        """A row that is there, by what was found in it. measure: of what ended it, where that has one."""
        row = self.rows.pop(ident)
        if self._ordering:
            self.gone[ident] = (row.ordering if measure is None else max(row.ordering, measure), row.place)

    def end_by(self, ident: Ident, values: Values) -> None:
        """A row that is there, by one of a source, which may be newer."""
        self.end(ident, self._measure(values))

    def clear(self, places: set[str] | None = None) -> None:
        """Partitions with their deletes; None: all."""
        self.rows = {} if places is None else {ident: row for ident, row in self.rows.items() if row.place not in places}
        self.gone = {} if places is None else {ident: gone for ident, gone in self.gone.items() if gone[1] not in places}


def rows_of(state: State, columns: Sequence[Column]) -> list[Any]:
    return [shown(row_of(row.values, columns), columns) for row in state.rows.values()]


def changes_between(before: State | None, after: State, columns: Sequence[Column], slot: int, *, keyed: bool) -> Iterator[Change]:
    """What a feed tells of two states; before: None is no table yet. Rows without a key are deleted and inserted."""
    for _, one, other in changed_rows(before, after):
        was, now = [None if row is None else shown(row_of(row.values, columns), columns) for row in (one, other)]
        both = keyed and one is not None and other is not None
        if one is not None:
            yield "update_before" if both else "delete", slot, was
        if other is not None:
            yield "update_after" if both else "insert", slot, now


def changed_rows(before: State | None, after: State) -> Iterator[tuple[Ident, Row | None, Row | None]]:
    """The same slot of both means the same row."""
    old: Mapping[Ident, Row] = {} if before is None else before.rows
    for ident in {**old, **after.rows}:
        one, other = old.get(ident), after.rows.get(ident)
        if one is None or other is None or one.slot != other.slot:
            yield ident, one, other
