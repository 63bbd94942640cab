"""Erased values in positions of sources: a state may hold keys, such as the bounds of a chunk that is copied."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from fileio.store import FileIO
from objcat.errors import CorruptTable, NotErased
from objcat.timeline.position import SIDE_KIND, PositionProgress
from objcat.timeline.side_objects import get_side

FORM_CHARACTERS_MIN = 6
"""Numbers and times from this length on are looked for in states; shorter ones occur by chance, as versions and counts."""


class StateSearch:
    """Looks for numbers and times in states, each as a value of its own. Texts are found among the bytes of the objects."""

    def __init__(self, values: Iterable[Collection[Any]]) -> None:
        self._forms = frozenset(form for some in values for value in some for form in _forms(value) if len(form) >= FORM_CHARACTERS_MIN)

    def is_in(self, state: Any) -> bool:
        """Whether a state, or a document with states, holds a value."""
        return bool(self._forms) and not self._forms.isdisjoint(_leaves(state))

    def is_in_object(self, key: str, data: bytes) -> bool:
        """Whether a side object or the root of a checkpoint holds a value in a state."""
        if key.rpartition("/")[2].startswith(f"{SIDE_KIND}-"):
            return self.is_in(json.loads(data))
        if key.endswith("/root.json"):
            return self.is_in(((json.loads(data) or {}).get("log") or {}).get("positions"))
        return False


def held_by_positions(name: str, sources: Collection[str]) -> NotErased:
    """The error of an erasure whose values are in the newest states of some sources. name: of the table."""
    return NotErased(
        f"The state of the newest position of {', '.join(map(repr, sorted(sources)))} holds values of the rows to erase from {name}. The "
        "rows are deleted, and nothing else was erased. Let the reader commit a position without them, or commit one with "
        "lake.transaction(position=...). Then erase again; it goes on from here."
    )


def sources_with(fileio: FileIO, positions: Mapping[str, PositionProgress], holds: Callable[[bytes], bool]) -> list[str]:
    """The sources whose newest state holds a value, as JSON. A state that is being replaced holds nothing."""
    named = []
    for source, progress in positions.items():
        try:
            data = msgspec.json.encode(progress.state) if progress.side is None else get_side(fileio, progress.side)
        except CorruptTable:
            continue
        if holds(data):
            named.append(source)
    return named


def _forms(value: Any) -> Iterator[str]:
    """The forms of a value as one in JSON: none of texts and bytes, which are looked for elsewhere."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, dt.date, dt.time)):
        return
    yield str(value)
    if isinstance(value, (dt.date, dt.time)):
        yield value.isoformat()


def _leaves(value: Any) -> Iterator[str]:
    """The plain values in a JSON value, keys of objects too, as texts."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None:
        yield str(value)
