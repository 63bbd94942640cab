"""Bugs of several ordering columns."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.mutations.bugs import bug

merging: Any = import_module("objcat.datafile.merge")


@bug(
    "the first of several ordering columns decides alone",
    "P5",
    "two ordering columns: write, write, copy on write",
    "two ordering columns: write, delete, copy on write",
)
def _first_ordering_column_alone(patch: pytest.MonkeyPatch) -> None:
    order = merging._order
    patch.setattr(merging, "_order", lambda rows, *, key, ordering: order(rows, key=key, ordering=ordering[:1]))


@bug("a compaction goes by the first of several ordering columns", "P5", "two ordering columns: write, write, compaction")
def _first_ordering_column_in_compactions(patch: pytest.MonkeyPatch) -> None:
    _first_ordering_column_alone(patch)
