"""Planted bugs of services that plain tests find, in less time than a search would take: with the bug each of them fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tests.services.test_auto_maintenance as auto_maintenance
import tests.services.test_cleaning as cleanings
import tests.services.test_clustering as clusterings
import tests.services.test_erasing as erasures
import tests.services.test_keeping as keeping
import tests.services.test_splits as splits
from objcat.errors import NotErased

erasing: Any = import_module("objcat.table.erase")
cleaning: Any = import_module("objcat.maintenance.clean")
restoring: Any = import_module("objcat.maintenance.restore")

Check = Callable[[pytest.MonkeyPatch, Path], object]


def planted(module: str, name: str, value: object, check: Check) -> Callable[[pytest.MonkeyPatch, Path], None]:
    """Replaces a function of a module by a wrong one, and checks."""

    def run(patch: pytest.MonkeyPatch, folder: Path) -> None:
        patch.setattr(import_module(module), name, value)
        check(patch, folder)

    return run


def merges_once(table: Any) -> None:
    erasing.compact(table.timeline, table.id, whole_index=True)


def looks_once(check: Any, table: Any, where: str, *, left: str) -> None:
    if left.startswith("nothing"):
        check(table, where, left=left)


def without_apps(proposal: Any, *, footprint: Any, apps: Any) -> Any:
    return proposal(footprint=footprint)


def one_more(nth_newest: Any, slots: Any, count: int, otherwise: int) -> Any:
    return nth_newest(slots, count - 1, otherwise) if count > 1 else nth_newest(slots, count, otherwise)


BUGS: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "an erasure that merges, and does not look whether another compaction was first": planted(
        "objcat.table.erase",
        "_merge_all",
        merges_once,
        lambda patch, _: erasures.test_a_compaction_that_was_planned_before_the_delete_and_comes_first_hides_no_row(patch),
    ),
    "an erasure that does not look for savepoints that came meanwhile": planted(
        "objcat.table.erase",
        "check_saved",
        partial(looks_once, erasing.check_saved),
        lambda patch, _: erasures.test_a_savepoint_that_comes_meanwhile_takes_the_certificate_away(patch),
    ),
    "a compaction after a split that takes the rows of the sibling along": planted(
        "objcat.tasks.merged_rows",
        "own_rows",
        lambda rows, *_: rows,
        lambda *_: splits.test_append_then_split_then_compaction_of_the_children(),
    ),
    "a clean that keeps one version less": planted(
        "objcat.maintenance.clean",
        "_nth_newest",
        partial(one_more, cleaning._nth_newest),
        lambda _, folder: auto_maintenance.test_clean_by_hand_takes_what_is_to_be_kept(folder),
    ),
    "a clean that leaves what an earlier one had begun": planted(
        "objcat.maintenance.clean",
        "_leftovers",
        lambda *_: set(),
        lambda *_: cleanings.test_deletes_that_fail_are_left_to_the_next_clean(),
    ),
    "a clean that never looks again at what a savepoint kept": planted(
        "objcat.maintenance.clean",
        "_released",
        lambda *_: set(),
        lambda *_: keeping.test_a_savepoint_outlives_cleaning_and_its_release_does_not(),
    ),
    "a clean that does not know that a clustering ends file groups": planted(
        "objcat.maintenance.clean",
        "_ends_files",
        lambda entry, table: table in entry.footprint and bool(entry.footprint[table].replaces),
        lambda *_: clusterings.test_small_groups_become_few_and_nothing_else_changes(),
    ),
    "a restore that forgets how far applications were": planted(
        "objcat.maintenance.restore",
        "ServiceResult",
        partial(without_apps, restoring.ServiceResult),
        lambda *_: keeping.test_a_restore_brings_back_rows_and_forgets_nothing_else(),
    ),
    "a restore that gives ids of columns again": planted(
        "objcat.metadata.replay",
        "_restored",
        lambda then, _: then,
        lambda *_: keeping.test_column_ids_are_not_given_again_after_a_restore(),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fails_a_plain_test(bug: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # An erasure that has left something finds that by itself.
    with pytest.raises((AssertionError, pytest.fail.Exception, NotErased)):
        BUGS[bug](monkeypatch, tmp_path)
