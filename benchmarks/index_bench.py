"""`./dev bench index`: what an upsert takes as a table grows, under each index, on local storage and by the local engine.

Every file group is a small file of its own. Keys follow one another, as those that grow with time do, or come at random, so that bounds
rule no file out. An upsert changes 100 keys and brings 100 new ones, on a handle that has just been opened (cold), and again on one that
has written before (warm): what an index keeps in memory shows there. Opening is not counted; `./dev bench metadata` has it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import objcat
from benchmarks import environment

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("fare", pa.float64()), pa.field("payload", pa.binary(100), nullable=False)]
)
ROWS_PER_GROUP = 50
CHANGED = NEW = 100
ROUNDS = 5
GROUPS_PER_COMMIT = 100
"""Of keys that follow one another: a commit deals its keys to so many file groups, which all have about the same bounds."""
SLACK = 1.01
"""How much larger than a file the target is, so that an insert creates no more file groups than it needs."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an upsert took: medians over its rounds, except `ms_max`.

    `cpu_ms`: of all threads, which other work on the machine changes little. `gets`, `puts`: requests. `read_bytes`, `written_bytes`: their
    payload.
    """

    ms: float
    ms_max: float
    cpu_ms: float
    gets: int
    puts: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """`groups`: of the table before the upserts. `built_s`: how long it took to create it."""

    index: str
    kind: str
    keys: str
    groups: int
    built_s: float
    cold: Cost
    warm: Cost


class WrongRows(Exception):
    """A table does not hold the rows that were written."""


INDEXES: dict[str, Callable[[int], Any]] = {
    "bucket": lambda groups: objcat.BucketIndex(min(groups, 65_536)),
    "simple": lambda _: objcat.SimpleIndex(),
    "bloom": lambda _: objcat.BloomIndex(),
    "memory": lambda _: objcat.MemoryIndex(),
    "record": lambda _: objcat.RecordIndex(),
    "record-compacted": lambda _: objcat.RecordIndex(),
}
"""By the number of file groups. Of the last one the index is merged before the upserts, as maintenance does from time to time."""

GROWING = (100, 1_000, 10_000)
"""File groups of tables whose writes may go over all of them."""
GROUPS = {"bucket": (400, 40_000), "record-compacted": (400, 40_000)}
"""File groups under the others: an upsert shall cost the same. The larger ones take minutes to make."""


def batch(ids: Keys) -> pa.Table:
    """Rows of these keys, that take about 100 bytes each: what they hold does not compress."""
    payload = np.random.default_rng(len(ids)).bytes(100 * len(ids))
    column = pa.Array.from_buffers(pa.binary(100), len(ids), [None, pa.py_buffer(payload)])
    return pa.table({"id": ids, "fare": ids / 7.0, "payload": column}, schema=SCHEMA)


def make_table(lake: Any, name: str, index: str, ids: Keys, *, commits: int, kind: str = "merge_on_read") -> tuple[Any, int]:
    """A table of these keys in file groups of about `ROWS_PER_GROUP`, and how many keys it has.

    It is written by so many commits, and one for the first group; the last ones are left out when there are as many groups as there should
    be. The rows of an insert are dealt to as many groups as they need to be as large as the target, going by the files that are there. So
    the target is the size of a file of so many rows, which another table finds out, and the first commit makes one such file.
    """
    groups = math.ceil(len(ids) / ROWS_PER_GROUP)
    first, rest = ids[:ROWS_PER_GROUP], ids[ROWS_PER_GROUP:]
    probe = lake.create_table(f"{name}_probe", SCHEMA, key=["id"], index=INDEXES[index](1), table_type=kind)
    target_bytes = math.ceil(probe.insert(batch(first)).bytes * SLACK)
    properties = {"target_file_bytes": str(target_bytes)}
    table = lake.create_table(name, SCHEMA, key=["id"], index=INDEXES[index](groups), table_type=kind, properties=properties)
    made, rows = table.insert(batch(first)).files, len(first)
    for piece in np.array_split(rest, commits):
        if commits == 1 or made < groups:
            made += table.insert(batch(piece)).files
            rows += len(piece)
    if index == "record-compacted":
        table.maintenance.compact()
    return table, rows


def measure(place: Path, index: str, keys: str, groups: int, *, rounds: int = ROUNDS, kind: str = "merge_on_read") -> Result:
    """Create a table with about so many file groups, and upsert into it."""
    rng = np.random.default_rng(groups)
    name, is_ascending = f"{index}_{keys}_{groups}", keys == "ascending"
    ids = np.arange(groups * ROWS_PER_GROUP)
    if not is_ascending:
        rng.shuffle(ids)
    commits = max(1, groups // GROUPS_PER_COMMIT) if is_ascending and index != "bucket" else 1
    began = time.perf_counter()
    table, total = make_table(objcat.connect(place), name, index, ids, commits=commits, kind=kind)
    built_s = time.perf_counter() - began
    found = table.inspect.stats().groups
    costs: dict[bool, list[Cost]] = {False: [], True: []}
    for number in range(2 * rounds):
        is_warm = number >= rounds
        if not is_warm:
            table = objcat.connect(place).table(name)
        changed = rng.integers(0, total, 1) + np.arange(CHANGED) if is_ascending else rng.choice(total, CHANGED, replace=False)
        new = total + number * NEW + np.arange(NEW)
        costs[is_warm].append(_upsert(table, batch(np.concatenate([np.unique(changed % total), new]))))
    _check(table, np.concatenate([ids[:total], total + np.arange(2 * rounds * NEW)]))
    return Result(index, kind, keys, found, built_s, _median(costs[False]), _median(costs[True]))


def _check(table: Any, right: Keys) -> None:
    """Raises WrongRows when the table holds other keys, or one of them twice."""
    found = table.scan(columns=["id"]).to_arrow().column("id").to_numpy()
    if not np.array_equal(np.sort(found), np.sort(right)):
        raise WrongRows(f"{table.name} holds {len(found):,} rows of {len(np.unique(found)):,} keys, and should hold {len(right):,}")


def _upsert(table: Any, rows: pa.Table) -> Cost:
    before, began, began_cpu = table._context.fileio.metrics.snapshot(), time.perf_counter(), time.process_time()
    table.upsert(rows)
    ms, cpu_ms = (time.perf_counter() - began) * 1000, (time.process_time() - began_cpu) * 1000
    sent = table._context.fileio.metrics.snapshot() - before
    gets, puts = (sum(count for kind, count in sent.requests.items() if kind.startswith(what)) for what in ("get", "put"))
    return Cost(ms, ms, cpu_ms, gets, puts, sent.bytes_read, sent.bytes_written)


def _median(costs: Sequence[Cost]) -> Cost:
    ms = [one.ms for one in costs]
    counts = [int(statistics.median(getattr(one, name) for one in costs)) for name in ("gets", "puts", "read_bytes", "written_bytes")]
    return Cost(statistics.median(ms), max(ms), statistics.median(one.cpu_ms for one in costs), *counts)


def main(arguments: Sequence[str]) -> int:
    """Measure and show a table. `--json FILE` saves the figures so far."""
    parser = argparse.ArgumentParser(prog="./dev bench index", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--groups",
        type=int,
        nargs="*",
        help="file groups of each table; by default 400 and 40,000 where a write finds its keys without "
        "going over the table, and 100, 1,000 and 10,000 where it does not",
    )
    parser.add_argument("--kinds", nargs="*", default=["merge_on_read"], choices=["merge_on_read", "copy_on_write"])
    parser.add_argument("--indexes", nargs="*", default=list(INDEXES), choices=list(INDEXES))
    parser.add_argument("--keys", nargs="*", default=["ascending", "random"], choices=["ascending", "random"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="where to create the tables; the default is a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    shown = Table(title=f"an upsert of {CHANGED} changed and {NEW} new keys, local storage, local engine")
    for column in (
        "index",
        "kind",
        "keys",
        "file groups",
        "built, s",
        "",
        "ms (greatest)",
        "CPU ms",
        "GETs",
        "PUTs",
        "KB read",
        "KB written",
    ):
        shown.add_column(column, justify="left" if column in ("index", "kind", "keys", "") else "right")
    results = []
    command, began = shlex.join(["./dev", "bench", "index", *arguments]), environment.now()
    for index, kind, keys in itertools.product(given.indexes, given.kinds, given.keys):
        for groups in given.groups or GROUPS.get(index, GROWING):
            with tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=given.directory) as place:
                one = measure(Path(place), index, keys, groups, rounds=given.rounds, kind=kind)
            results.append(one)
            sys.stderr.write(f"{one}\n")
            shown.add_row(one.index, one.kind, one.keys, f"{one.groups:,}", f"{one.built_s:,.1f}", "cold", *_shown(one.cold))
            shown.add_row("", "", "", "", "", "warm", *_shown(one.warm))
            if given.json is not None:
                told = {**environment.machine(command, began=began), "store": "local disk"}
                given.json.write_text(json.dumps({"environment": told, "results": [asdict(one) for one in results]}, indent=1))
    (Console() if sys.stdout.isatty() else Console(width=140)).print(shown)
    return 0


def _shown(cost: Cost) -> tuple[str, ...]:
    sizes = (f"{size / 1000:,.0f}" for size in (cost.read_bytes, cost.written_bytes))
    return (f"{cost.ms:,.0f} ({cost.ms_max:,.0f})", f"{cost.cpu_ms:,.0f}", f"{cost.gets:,}", f"{cost.puts:,}", *sizes)
