"""`./dev bench index`: what an upsert takes as a table grows, under each index, on local storage and by the local engine.

Every file group is a small file of its own. Keys follow one another, as those that grow with time do, or come at random, so that bounds
rule no file out. An upsert changes 100 keys and brings 100 new ones, on a handle that has just been opened, and again on one that has
written before: what an index keeps in memory shows there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import objcat

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64()), pa.field("city", pa.string())])
ROWS_PER_GROUP = 10
CHANGED = NEW = 100
ROUNDS = 5
TARGET_BYTES = 1024
"""Below what the smallest file takes, so that each insert begins file groups."""


@dataclass(frozen=True, slots=True)
class Result:
    """upsert_ms: median and maximum, on a new handle. gets: of one upsert. warm: on a handle that has written before."""

    index: str
    keys: str
    groups: int
    upsert_ms: float
    upsert_ms_max: float
    gets: int
    warm_ms: float
    warm_gets: int


INDEXES: dict[str, Callable[[int], Any]] = {
    "bucket": lambda groups: objcat.Bucket(min(groups, 65_536)),
    "simple": lambda _: objcat.Simple(),
    "bloom": lambda _: objcat.Bloom(),
    "memory": lambda _: objcat.Memory(),
    "record": lambda _: objcat.Record(),
}


def batch(ids: np.ndarray) -> pa.Table:
    """Rows of these keys."""
    return pa.table({"id": ids, "fare": ids / 7.0, "city": np.where(ids % 3 == 0, "Rome", "Oslo")}, schema=SCHEMA)


def measure(place: Path, index: str, keys: str, groups: int, *, rounds: int = ROUNDS) -> Result:
    """Make a table with about so many file groups, and upsert into it."""
    rng = np.random.default_rng(groups)
    lake = objcat.connect(place)
    name = f"{index}_{keys}_{groups}"
    properties = {"target_file_bytes": str(TARGET_BYTES)}
    table = lake.create_table(name, SCHEMA, key=["id"], index=INDEXES[index](groups), properties=properties)
    total = groups * ROWS_PER_GROUP
    ids = np.arange(total) if keys == "ascending" else rng.permutation(total)
    # One group a commit would take as many commits: a batch is dealt to a hundred groups, by hash.
    commits = max(1, groups // 100) if index != "bucket" and keys == "ascending" else 1
    for piece in np.array_split(ids, commits):
        table.insert(batch(piece))
    took: dict[bool, list[float]] = {False: [], True: []}
    gets: dict[bool, list[int]] = {False: [], True: []}
    for number in range(2 * rounds):
        is_warm = number >= rounds
        if not is_warm:
            table = lake.table(name)
        changed = rng.integers(0, total, 1) + np.arange(CHANGED) if keys == "ascending" else rng.choice(total, CHANGED, replace=False)
        new = total + number * NEW + np.arange(NEW)
        rows = batch(np.concatenate([np.unique(changed % total), new]))
        began = time.perf_counter()
        done = table.upsert(rows)
        took[is_warm].append((time.perf_counter() - began) * 1000)
        gets[is_warm].append(sum(count for kind, count in done.requests.items() if kind.startswith("get")))
    found = table.stats().groups
    cold = (statistics.median(took[False]), max(took[False]), int(statistics.median(gets[False])))
    return Result(index, keys, found, *cold, statistics.median(took[True]), int(statistics.median(gets[True])))


def main(arguments: Sequence[str]) -> int:
    """Measure, and show a table; --json FILE keeps the figures."""
    parser = argparse.ArgumentParser(prog="./dev bench index", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--groups", type=int, nargs="*", default=[100, 1_000, 10_000], help="file groups of each table; 40000 takes minutes"
    )
    parser.add_argument("--indexes", nargs="*", default=list(INDEXES), choices=list(INDEXES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    shown = Table(title=f"an upsert of {CHANGED} changed and {NEW} new keys, local storage, local engine")
    for column in ("index", "keys", "file groups", "ms (median)", "ms (max)", "GETs", "ms, warm", "GETs, warm"):
        shown.add_column(column, justify="left" if column in ("index", "keys") else "right")
    results = []
    with tempfile.TemporaryDirectory(prefix="objcat-bench-") as place:
        for index in given.indexes:
            for keys in ("ascending", "random"):
                for groups in given.groups:
                    one = measure(Path(place), index, keys, groups, rounds=given.rounds)
                    results.append(one)
                    sys.stderr.write(f"{one}\n")
                    cold = (f"{one.upsert_ms:,.0f}", f"{one.upsert_ms_max:,.0f}", f"{one.gets:,}")
                    shown.add_row(one.index, one.keys, f"{one.groups:,}", *cold, f"{one.warm_ms:,.0f}", f"{one.warm_gets:,}")
    Console().print(shown)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) for one in results], indent=1))
    return 0
