"""Bugs that others had are planted, and the tests of this folder find each: a test that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ingest import test_postgres as traps
from tests.ingest.planted import BUGS, plant
from tests.ingest.shop import Shop

FOUND_BY: dict[str, Callable[[Shop], None]] = {
    "position apart": traps.test_killed_after_every_commit,
    "key as row": traps.test_a_value_that_was_not_sent_stays,
    "last schema wins": traps.test_rows_of_two_schemas_in_one_batch,
    "no replaced range": traps.test_a_second_snapshot_replaces_ranges,
    "positions in the log": traps.test_a_commit_in_the_log_that_no_snapshot_sees,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant(bug, monkeypatch)
    with pytest.raises(AssertionError, match=r"differ|== \[\]|at the source|in the lake|assert"):
        FOUND_BY[bug](shop)
