"""The check of one engine on all histories."""

from __future__ import annotations

import os
import random
from functools import partial

from devkit.engines import ENGINES
from tests.effort import ALL_VARIABLE
from tests.engines.matrix import MirroredHistory, Run, all_slots, read_all, some_slots
from tests.engines.process import Engines

SLOW = ("spark", "trino")
"""Engines that take most of a second for each read: fewer reads where not every slot is read."""


def check_engine(name: str, engines: Engines, histories: list[MirroredHistory]) -> None:
    """Check an engine on all of them, and that it still has its limits."""
    run, rng, reads = Run(), random.Random(f"{name} {histories[0].history.seed}"), 2 if name in SLOW else 4
    for mirrored in histories:
        read_all(engines[name], mirrored, all_slots if os.environ.get(ALL_VARIABLE) else partial(some_slots, count=reads, rng=rng), run)
    assert not run.differences, "\n".join(run.differences)
    assert run.unmet([name]) == [], "take these out of tests/engines/limits.py, and run ./dev docs engines"
    assert {cell for _engine, _mirror, cell, _outcome in run.reads} == _cells_of(name, histories)


def _cells_of(name: str, histories: list[MirroredHistory]) -> set[str]:
    """The kinds of histories that an engine can be asked for. The catalog has tables of Iceberg alone."""
    cells = [mirrored.history.cell for mirrored in histories]
    return {cell.name for cell in cells if "iceberg" in ENGINES[name].formats or not cell.by_catalog}
