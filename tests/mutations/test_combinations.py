"""Bugs that the drawn tables found, planted again: each by a seed that finds it still."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from objcat.errors import InvalidInput
from tests.combinations.seeds import run
from tests.combinations.test_combinations import BY_DEFAULT, SEEDS

BUGS: dict[str, tuple[int, type[Exception], list[tuple[str, str, Any]]]] = {
    "a key that goes to a partition of another partitioning is a delete and an insert": (
        50,
        AssertionError,
        [("objcat.planning.changes", "_parts_keys", lambda spec, *_: spec.is_global)],
    ),
    "changes over a RESTORE have the types of its end": (
        407,
        InvalidInput,
        [(module, "with_widest", lambda spec, _: spec) for module in ("objcat.table.change_feed", "objcat.planning.changes")],
    ),
    "names of a batch are looked at once, however long ago": (
        3,
        KeyError,
        [("objcat.datafile.batch_checks", "_check_located", lambda *_: None)],
    ),
}
"""With a seed of those that run by default, and what it ends in. Where what is drawn changes, another seed has to be found."""


def test_these_seeds_run_by_default() -> None:
    assert {seed for seed, _, _ in BUGS.values()} <= set(SEEDS[:BY_DEFAULT])


@pytest.mark.parametrize("bug", BUGS)
def test_a_seed_finds(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, error, places = BUGS[bug]
    for module, name, wrong in places:
        monkeypatch.setattr(import_module(module), name, wrong)
    with pytest.raises(error) as failed:
        run(seed)
    assert f"This was seed {seed}" in "".join(failed.value.__notes__)
