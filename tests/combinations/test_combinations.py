"""Tables of every kind, partitioning, index and schema, and all operations in any order, beside dicts."""

from __future__ import annotations

import pytest

from tests.combinations.seeds import run
from tests.combinations.tables import SeveralOrderings
from tests.effort import few, seeds

FINDING = (50, 407, 3)
"""What finds bugs that were there: `tests/mutations/test_combinations.py` plants them again."""
SEEDS = [*FINDING, *(seed for seed in range(150) if seed not in FINDING)]
BY_DEFAULT, BEFORE_A_MERGE = 6, 12


@pytest.mark.parametrize("seed", [*few(SEEDS, BY_DEFAULT, integration=BEFORE_A_MERGE), *seeds(0, with_all=50)])
def test_every_read_is_what_the_dicts_say(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", [*few(range(100), 2, integration=6), *seeds(0, with_all=20)])
def test_every_read_of_a_table_with_several_ordering_columns(seed: int) -> None:
    run(seed, SeveralOrderings(seed))
