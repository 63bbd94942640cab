"""The rows that every side gets: TPC-H from its own generator, and batches of changes drawn from it. Built once and cached.

A batch of *one* (*ten*) per cent has that share of the table's rows, nine in ten of them updates. The keys of *one* are also in *ten*, so
after both, ten per cent of the keys are written. *Small* batches have 100 rows. New keys lie between the old ones, where TPC-H leaves
room. An update changes a sum, a text and the ordering column: one third each go a day back, a day forward, or stay. In event-time order,
the third that goes back loses to the existing row, and the third that stays ties with it.

In *ordered* batches the ordering column of every row is later than that of all rows before, and in *late* ones of all but 1 %.

Orders also have *tenth* (0.1 %) and *all* (100 %), drawn in the same way. *Recent*, 1 %, prefers to update large keys (half of its updates
are among the newest 3.4 % of the keys), and its new keys are greater than every old one. *Gone* is the keys of 1 %, one in ten of which
does not exist.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.works import COLUMNS, EVENT_TIMES, KEYS
from devkit.paths import cache_dir, file_lock

SMALL_BATCHES = 200
SMALL_ROWS = 100
_AMOUNTS = {"orders": "o_totalprice", "lineitem": "l_extendedprice"}
_TEXTS = {"orders": "o_comment", "lineitem": "l_comment"}
_MILLION = 1_000_000
_SEEDS = {"update": 1, "insert": 2, "small update": 3, "small insert": 4, "day": 5, "recent": 6, "gone": 7, "late": 8}
PERCENT: Mapping[str, float] = {"tenth": 0.1, "one": 1, "ten": 10, "all": 100, "recent": 1, "gone": 1}
"""The share of the rows of its table, by batch."""
STREAMS = ("ordered", "late")
"""How batches come in event time, other than in no order."""
_IN_STREAMS = tuple(f"{batch}-{stream}" for stream in STREAMS for batch in ("one", "ten"))
BATCHES: Mapping[str, tuple[str, ...]] = {"orders": (*PERCENT, *_IN_STREAMS), "lineitem": ("one", "ten", *_IN_STREAMS)}
RECENT_POWER = 19
"""The probability that *recent* changes a row grows with this power of the key's rank, from 0 for the oldest to 1 for the newest."""
_SALTS = {"tenth": 2, "one": 1, "ten": 10, "all": 100, "recent": 30}
"""What a batch adds to an amount. The values differ, so that a lost batch is noticed."""


@dataclass(frozen=True, slots=True)
class Data:
    """The files of one scale factor."""

    root: Path
    scale: float

    def source(self, name: str) -> Path:
        """The Parquet file of a TPC-H table."""
        return self.root / f"{name}.parquet"

    def batch(self, source: str, name: str) -> Path:
        """The Parquet file of a batch."""
        return self.root / f"{source}-{name}.parquet"

    def small(self, number: int) -> Path:
        """A small batch. They wrap around: there are `SMALL_BATCHES`."""
        return self.root / "small" / f"{number % SMALL_BATCHES:04d}.parquet"


def make_data(scale: float, say: Callable[[str], None]) -> Data:
    """The data of a scale factor. Generates it when it is missing. Safe for several processes at once."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    target = cache_dir() / "tpch" / f"sf{scale:g}-{recipe}"
    with file_lock(target.with_name(target.name + ".lock"), f"another process is generating TPC-H at scale {scale:g}"):
        if not target.exists():
            say(f"Generating TPC-H at scale {scale:g} (once).")
            building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
            try:
                _generate(scale, building)
                building.rename(target)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
    return Data(target, scale)


def connection(memory: str = "2GB") -> duckdb.DuckDBPyConnection:
    """DuckDB with limits. What does not fit spills to disk."""
    connected = duckdb.connect()
    connected.execute(f"set memory_limit = '{memory}'; set threads = 2; set preserve_insertion_order = true; set TimeZone = 'UTC'")
    connected.execute(f"set temp_directory = '{tempfile.gettempdir()}/objcat-bench-spill'")
    return connected


def _generate(scale: float, directory: Path) -> None:
    data, raw = Data(directory, scale), directory / "raw"
    program = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    subprocess.run([program, "parquet", "-s", f"{scale:g}", "--tables=orders,lineitem", f"--output-dir={raw}"], check=True)
    duck = connection()
    for source in COLUMNS:
        columns = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in COLUMNS[source].items())
        _copy(duck, f"select {columns} from '{raw / source}.parquet'", data.source(source))
        for batch in BATCHES[source]:
            _copy(duck, _select(data, source, batch), data.batch(source, batch))
    shutil.rmtree(raw)
    data.small(0).parent.mkdir()
    duck.execute(f"create temp table small as {_small(data)}")
    for number in range(SMALL_BATCHES):
        _copy(duck, f"select * exclude (batch) from small where batch = {number}", data.small(number))
    duck.close()


def _copy(duck: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    """Write a file completely before it gets its name, in the size that Spark splits over two cores."""
    duck.execute(f"copy ({select}) to '{path}.part' (format parquet, compression zstd, row_group_size 122880)")
    os.replace(f"{path}.part", path)


def _lot(source: str, purpose: str) -> str:
    """A number below a million, drawn for each key."""
    return f"(hash({', '.join(KEYS[source])}, {_SEEDS[purpose]}) % {_MILLION})"


def _changed(source: str, *, salt: str, key_offset: str, stream: str = "", rows: str = "") -> str:
    """The columns of a row after the change. `salt`, `key_offset`: SQL. `stream`: of `STREAMS`, with the `rows` that it follows, as SQL."""
    amount, text, day, key = _AMOUNTS[source], _TEXTS[source], EVENT_TIMES[source], KEYS[source][0]
    moved = f"{day} + (hash({', '.join(KEYS[source])}, {_SEEDS['day']}, {salt}) % 3)::int - 1"
    if stream:
        later = f"(select max({day}) from {rows}) + {salt}"
        moved = later if stream == "ordered" else f"case when {_lot(source, 'late')} < {_MILLION // 100} then {moved} else {later} end"
    changes = {
        key: f"{key} + {key_offset}",
        amount: f"{amount} + {salt}",
        text: f"reverse({text})",
        day: moved,
    }
    return ", ".join(f"cast({changes.get(name, name)} as {kind}) as {name}" for name, kind in COLUMNS[source].items())


def _select(data: Data, source: str, batch: str) -> str:
    """The rows of a batch. `updates`, `inserts`: how many in a million rows."""
    batch, _, stream = batch.partition("-")
    rows = f"'{data.source(source)}'"
    updates, inserts = (round(PERCENT[batch] * share) for share in (9_000, 1_000))
    if batch == "gone":
        (key,) = KEYS[source]
        drawn = f"select {key} from {rows} where {_lot(source, 'gone')} < {updates}"
        return f"{drawn} union all select {key} + 24 from {rows} where {_lot(source, 'insert')} < {inserts}"
    salt = str(_SALTS[batch])
    if batch == "recent":
        (key,) = KEYS[source]
        ranked = f"(select *, percent_rank() over (order by {key}) as _rank, max({key}) over () as _newest from {rows})"
        changed = f"{_lot(source, 'recent')} < {updates * (RECENT_POWER + 1)} * _rank ** {RECENT_POWER}"
        return (
            f"select {_changed(source, salt=salt, key_offset='0')} from {ranked} where {changed} "
            f"union all select {_changed(source, salt=salt, key_offset='_newest')} from {ranked} where {_lot(source, 'insert')} < {inserts}"
        )
    updated, inserted = (_changed(source, salt=salt, key_offset=by, stream=stream, rows=rows) for by in ("0", "8"))
    return (
        f"select {updated} from {rows} where {_lot(source, 'update')} < {updates} "
        f"union all select {inserted} from {rows} where {_lot(source, 'insert')} < {inserts}"
    )


def _small(data: Data) -> str:
    """All small batches of orders, numbered. No key is in two of them."""

    def part(purpose: str, rows: int, key_offset: str) -> str:
        order = f"{_lot('orders', purpose)}, o_orderkey"
        drawn = f"select *, (row_number() over (order by {order}) - 1) // {rows} as batch from '{data.source('orders')}'"
        return f"select {_changed('orders', salt='batch + 20', key_offset=key_offset)}, batch from ({drawn}) where batch < {SMALL_BATCHES}"

    new = SMALL_ROWS // 10
    return f"{part('small update', SMALL_ROWS - new, '0')} union all {part('small insert', new, '16')}"
