"""Whatever happens to a stored object: the same rows, or a typed error that names the object. Never other rows, a raw error, or no end."""

from __future__ import annotations

import pytest

from tests.damage.judge import FAILURES, drawn, judged, tally
from tests.damage.kinds import KINDS
from tests.damage.world import NAMES, targets
from tests.effort import effort, few

SLICES, SEEDS = 19, effort(40, with_all=900)
"""Every slice has all classes and kinds. About half of the seeds draw a kind of damage that does not fit their object."""


@pytest.mark.parametrize("number", few(range(SLICES), 6))
def test_reads_give_the_same_rows_or_name_the_object(number: int) -> None:
    found = tally(range(number, SLICES * SEEDS, SLICES), reads=effort(2, with_all=4))
    assert sum(found.counts.values()) > SEEDS // 6
    assert not found.failures, "\n".join(
        f"seed {one.seed}: {one.target.key}: {one.kind}: {one.outcome}: {one.why}" for one in found.failures
    )


@pytest.mark.parametrize("seed", [1003089, 1005312, 1007094])
def test_what_a_long_run_found(seed: int) -> None:
    """A table's entry in the place of another's, whose changes are not there; roots whose schema names no key column of the files."""
    verdict = judged(seed, reads=4)
    assert verdict is not None
    assert verdict.outcome not in FAILURES, verdict.why


def test_there_is_an_object_of_every_class() -> None:
    kinds = {target.kind for target in targets()}
    assert {target.table for target in targets()} == {*NAMES, None}
    assert kinds == {
        "base file",
        "changes beside an entry",
        "digests of keys",
        "entry",
        "entry of a catalog",
        "hint",
        "history file",
        "index file",
        "intent",
        "log file",
        "names of a catalog",
        "plan",
        "root",
        "root of a catalog",
        "segment",
        "shard",
        "tombstone",
        "void root",
    }


def test_every_kind_of_damage_fits_some_object() -> None:
    made = [drawn(seed) for seed in range(len(KINDS) * len({target.kind for target in targets()}))]
    assert {kind for found in made if found is not None for kind in (found[1],)} == set(KINDS)
