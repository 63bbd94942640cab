"""Every engine reads every kind of history by every mirror that it takes: exactly the rows of objcat, or a refusal that is known."""

from __future__ import annotations

import os
import random

import pytest

from devkit.engines import AT_NIGHT, ENGINES
from tests.effort import ALL_VARIABLE
from tests.engines.cells import CELLS, CHIEF
from tests.engines.checks import check_engine
from tests.engines.limits import MIRRORS, Mirror
from tests.engines.matrix import MirroredHistory, Run, read_all
from tests.engines.process import Engines
from tests.engines.pruning import check_aggregates, check_filters

BY_DAY = [name for name in ENGINES if name not in AT_NIGHT]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", BY_DAY)
def test_every_read_has_the_rows_of_its_slot(name: str, engines: Engines, histories: list[MirroredHistory]) -> None:
    check_engine(name, engines, histories)


def test_duckdb_still_needs_its_cache_of_files_off_for_vectors(engines: Engines, histories: list[MirroredHistory]) -> None:
    """Otherwise the setting and its note can go."""
    engines.end("duckdb")
    assert any(_reads_wrong(engines, mirrored) for mirrored in histories if "iceberg 3" in mirrored.shown)
    engines.end("duckdb")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["duckdb", "spark"])
def test_aggregates_and_filters_skip_no_file_that_counts(name: str, engines: Engines, histories: list[MirroredHistory]) -> None:
    """Counts, minima and maxima may come from metadata, and filters skip files by bounds: neither may lose a row."""
    rng = random.Random(histories[0].history.seed)
    wrong = []
    for mirrored in histories:
        for mirror in mirrored.shown:
            wrong += check_aggregates(engines[name], mirrored, mirror)
            wrong += check_filters(engines[name], mirrored, mirror, rng)
    assert not wrong, "\n".join(wrong)


def test_every_kind_of_history_is_written_with_every_mirror(histories: list[MirroredHistory]) -> None:
    written = {(mirrored.history.cell.name, mirror) for mirrored in histories for mirror in mirrored.shown}
    assert written == {(name, mirror) for name in (CELLS if os.environ.get(ALL_VARIABLE) else CHIEF) for mirror in MIRRORS}
    assert min(mirrored.history.newest for mirrored in histories) >= 40


def _reads_wrong(engines: Engines, mirrored: MirroredHistory) -> bool:
    """Whether DuckDB reads some slot wrong from the newest to the oldest, without its setting."""
    run = Run()
    read_all(engines["duckdb"], mirrored, _backwards, run, is_told=False)
    return bool(run.differences)


def _backwards(mirrored: MirroredHistory, mirror: Mirror) -> list[tuple[str, int]]:
    return [("travel", slot) for slot in reversed(mirrored.shown[mirror].travel)]
