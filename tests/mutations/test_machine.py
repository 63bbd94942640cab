"""Bugs that lost rows of partitions which nobody had named, planted again: the machine of tables finds each in what runs by default."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from hypothesis import Phase

from tests.tables.test_machine import SEARCHES, search_replacements

replacing: Any = import_module("objcat.dml.overwrite")


def ends_all(ended: Any, snapshot: Any, manifests: Any, partitions: Collection[str] | None) -> Any:
    return ended(snapshot, manifests, None if partitions is None or "" in partitions else partitions)


BUGS: dict[str, tuple[str, str, Any]] = {
    "rows of a former partition go with those of a present one": (
        "objcat.table.overwrite",
        "_of_batch",
        lambda _table, _snapshot, partitions: partitions,
    ),
    "rows of which a filter is true of none go with those of the batch": (
        "objcat.table.overwrite",
        "_named_or_empty",
        lambda _table, _snapshot, _where, named, partitions: named | partitions,
    ),
    "the partition without a name is the whole table": (
        "objcat.dml.overwrite",
        "_ended",
        partial(ends_all, replacing._ended),
    ),
}


def search_all() -> None:
    for number in range(SEARCHES):
        search_replacements(number, phases=(Phase.generate,))


@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_of_tables_finds(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, wrong = BUGS[bug]
    monkeypatch.setattr(import_module(module), name, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        search_all()
