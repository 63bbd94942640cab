"""`./dev bench derived`: a change of 0.1 % reaches derived tables, by a refresh and by computing the whole query.

In each round the same change is followed by both sides, in turns: a derived table is refreshed, and a table of the same columns is
overwritten with the result of the query. Their rows are compared after each round: different rows have no time, and the command fails.

`--spark` adds Spark, which computes the query and replaces a table of Parquet. `--peers` adds other tools, see `benchmarks.derived_peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks import environment
from benchmarks.derived_peers import DERIVED_PEERS, DerivedPeer, forgets

CHANGED = 0.001
DRIVERS, CITIES = 20_000, 500
GOAL = 20.0
"""How much faster a refresh is."""
_JOIN = (
    "SELECT t.id, t.at, t.fare, t.km, d.name, d.team, c.country FROM trips t JOIN drivers d ON t.driver = d.id "
    "LEFT JOIN cities c ON t.city = c.id WHERE t.km > 0"
)
_SUMS = (
    "SELECT t.city, t.hour, count(*) AS trips, sum(t.fare) AS fares FROM trips t JOIN drivers d ON t.driver = d.id "
    "WHERE d.team <> 'none' GROUP BY t.city, t.hour"
)
_EXTREMES = "SELECT t.city, t.hour, count(*) AS trips, min(t.fare) AS least, max(t.fare) AS most FROM trips t GROUP BY t.city, t.hour"
QUERIES = {"join": (_JOIN, ["id"]), "sums": (_SUMS, ["city", "hour"]), "extremes": (_EXTREMES, ["city", "hour"])}
"""By name, the text of a query, and the key of its result."""


def trips_of(ids: np.ndarray[Any, Any], drawn: np.random.Generator, batch: int = 0) -> pa.Table:
    """Trips with these ids. batch: the number of the change that brings them."""
    count = len(ids)
    return pa.table(
        {
            "id": ids,
            "driver": drawn.integers(0, DRIVERS, count),
            "city": drawn.integers(0, CITIES, count),
            "hour": ids % 24,
            "at": pa.array(1_790_000_000_000_000 + ids * 1_000_000).cast(pa.timestamp("us", tz="UTC")),
            "fare": drawn.integers(300, 9_000, count),
            "km": drawn.integers(0, 60, count),
            "note": pa.array([f"trip {number % 9973}" for number in ids]),
            "batch": np.full(count, batch),
        }
    )


def make_sources(lake: objcat.Lake, rows: int, drawn: np.random.Generator) -> None:
    """The three sources. Columns are not nullable, so sums need no count of their own."""
    trips = trips_of(np.arange(rows), drawn)
    trips = trips.cast(pa.schema([field.with_nullable(False) for field in trips.schema]))
    lake.create_table("trips", trips.schema, key=["id"], index=objcat.BucketIndex(4)).bulk_insert(trips)
    drivers = pa.table(
        {
            "id": np.arange(DRIVERS),
            "name": [f"driver {number}" for number in range(DRIVERS)],
            "team": ["none" if number % 50 == 0 else f"team {number % 7}" for number in range(DRIVERS)],
        }
    )
    lake.create_table("drivers", drivers.schema, key=["id"], index=objcat.BucketIndex(1)).bulk_insert(drivers)
    cities = pa.table({"id": np.arange(CITIES), "country": [f"country {number % 60}" for number in range(CITIES)]})
    lake.create_table("cities", cities.schema, key=["id"], index=objcat.BucketIndex(1)).bulk_insert(cities)


def change_of(kind: str, rows: int, number: int, drawn: np.random.Generator) -> pa.Table:
    """0.1 % of the trips: new ones and late corrections of the last hours, or any. number: of the change, from 0 on."""
    count = int(rows * CHANGED)
    if kind == "recent":
        fresh = np.arange(rows + number * count, rows + number * count + count * 3 // 4)
        return trips_of(np.concatenate([fresh, rows - 1 - drawn.choice(rows // 100, count - len(fresh), replace=False)]), drawn, number + 1)
    return trips_of(drawn.choice(rows, count, replace=False), drawn, number + 1)


def differing(one: pa.Table, other: pa.Table, key: list[str]) -> int:
    """Of how many keys two tables do not have the same row."""
    order = [(name, "ascending") for name in key]
    wanted, found = one.sort_by(order), other.select(one.column_names).cast(one.schema).sort_by(order)
    if wanted.equals(found):
        return 0
    connection = duckdb.connect()
    connection.register("wanted", wanted)
    connection.register("found", found)
    rows = "(FROM wanted EXCEPT ALL FROM found) UNION ALL (FROM found EXCEPT ALL FROM wanted)"
    (counted,) = connection.sql(f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(key)} FROM ({rows}))").fetchall()
    return int(counted[0])


def spark_session() -> Any:
    """A session on the cores of this machine."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
    }
    session = builder.master("local[2]").appName("derived").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a call, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured. parquet: where Spark's table is. spark: None without it."""

    lake: objcat.Lake
    rows: int
    rounds: int
    drawn: np.random.Generator
    parquet: Path
    spark: Any
    peers: Sequence[DerivedPeer]


@dataclass(frozen=True, slots=True)
class BenchSide:
    """One way to follow a query.

    run: takes the number of the last change that was followed. rows: the result. is_exact: False where it cannot give those of the query.
    """

    name: str
    run: Callable[[int], Any]
    rows: Callable[[], pa.Table]
    is_exact: bool = True


def sides_of(of: Measured, name: str) -> list[BenchSide]:
    """The sides of a query. The first one is what the others are compared with."""
    lake, (query, _) = of.lake, QUERIES[name]
    whole = f"{name}_whole"
    sides = [
        BenchSide("refresh", lambda _: lake.refresh_derived(name), lambda: lake.table(name).scan().to_arrow()),
        BenchSide(
            "recompute",
            lambda _: lake.table(whole).overwrite(lake.sql(query).cast(lake.table(whole).schema)),
            lambda: lake.table(whole).scan().to_arrow(),
        ),
    ]
    if of.spark is not None:

        def by_spark(_: int) -> None:
            lake.sql(query, of.spark).write.mode("overwrite").parquet(str(of.parquet))

        sides.append(BenchSide("spark", by_spark, lambda: pq.read_table(of.parquet)))
    return sides + [_side_of(peer, name, way) for peer in of.peers for way in peer.ways]


def _side_of(peer: DerivedPeer, name: str, way: str) -> BenchSide:
    return BenchSide(
        f"{peer.name}, {way}",
        lambda since: peer.run(name, way, since),
        lambda: peer.rows(name, way),
        is_exact=not forgets(QUERIES[name][0], way),
    )


def run_kind(of: Measured, name: str, kind: str, *, first: int) -> dict[str, Any]:
    """The seconds of each side for each change of a kind. The first round does not count. first: the number of its change."""
    sides = sides_of(of, name)
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    differs: dict[str, list[int]] = {side.name: [] for side in sides[1:]}
    read: dict[str, int] = {}
    for number in range(of.rounds + 1):
        batch = change_of(kind, of.rows, first + number, of.drawn)
        of.lake.table("trips").upsert(batch)
        for peer in of.peers:
            peer.change(batch)
        for side in sides if number % 2 else reversed(sides):
            seconds, result = timed(lambda side=side, since=first + number: side.run(since))  # type: ignore[misc]
            if number:
                took[side.name].append(seconds)
            if side.name == "refresh":
                read = dict(result.rows_read or {})
        wanted = sides[0].rows()
        for side in sides[1:]:
            differs[side.name].append(differing(wanted, side.rows(), QUERIES[name][1]))
    ratios = [whole_s / refresh_s for whole_s, refresh_s in zip(took["recompute"], took["refresh"], strict=True)]
    wrong = [side.name for side in sides[1:] if side.is_exact and any(differs[side.name])]
    # Different rows have no time.
    middle = {side: statistics.median(values) for side, values in took.items() if not any(differs.get(side, ()))}
    found = {"query": name, "change": kind, "seconds": took, "median": middle, "ratios": ratios, "rows read": read}
    return {**found, "keys that differ": differs, "wrong": wrong}


def told(one: dict[str, Any]) -> str:
    """What a run of a kind found, in one line."""
    times = ", ".join(f"{side} {value:.3f} s" for side, value in one["median"].items())
    without = ", ".join(f"{side} {values[-1]:,}" for side, values in one["keys that differ"].items() if any(values))
    said = f"{one['query']}, {one['change']} changes: {times}: {statistics.median(one['ratios']):.1f} times, goal {GOAL:.0f}"
    said += f"; rows read {one['rows read']}" + (f"; keys that differ: {without}" if without else "")
    return said + (f"; WRONG: {', '.join(one['wrong'])}" if one["wrong"] else "")


def main(arguments: list[str]) -> int:
    """Run the suite and return its exit status."""
    parser = argparse.ArgumentParser(prog="./dev bench derived", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the largest source")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    parser.add_argument("--directory", type=Path, help="where the lake is")
    parser.add_argument("--spark", action="store_true", help="also compute it by Spark as a whole")
    parser.add_argument("--peers", nargs="*", choices=sorted(DERIVED_PEERS), default=[], help="other tools")
    parser.add_argument("--json", type=Path, help="where results are written")
    given = parser.parse_args(arguments)
    began = environment.now()
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=given.directory)))
        lake, drawn = objcat.connect(place / "lake"), np.random.default_rng(0)
        make_sources(lake, given.rows, drawn)
        peers = [stack.enter_context(DERIVED_PEERS[name](lake, place / "peers" / name, QUERIES)) for name in given.peers]
        for peer in peers:
            peer.load()
        of = Measured(lake, given.rows, given.rounds, drawn, place / "of_spark", spark_session() if given.spark else None, peers)
        about = {"peers": {peer.name: peer.about() for peer in peers}} if peers else {}
        first = 0
        for name in QUERIES:
            first_computation(of, name)
            for kind in ("recent", "scattered"):
                one = run_kind(of, name, kind, first=first)
                first += given.rounds + 1
                found.append(one)
                print(told(one), flush=True)
                if given.json is not None:
                    command = shlex.join(["./dev", "bench", "derived", *arguments])
                    said = {**environment.machine(command, began=began), "store": "local disk", "rows": given.rows, **about}
                    given.json.write_text(json.dumps({"environment": said, "results": found}, indent=1))
    return 1 if any(one["wrong"] for one in found) else 0


def first_computation(of: Measured, name: str) -> None:
    """Have all sides compute a query for the first time."""
    query, key = QUERIES[name]
    seconds, table = timed(lambda: of.lake.create_derived(name, query, key=key))
    of.lake.create_table(f"{name}_whole", table.schema, key=key)
    print(f"{name}: created with {table.scan().count():,} rows in {seconds:.1f} s", flush=True)
    for peer in of.peers:
        for way in peer.ways:
            print(f"{name}: {peer.name}, {way}: created in {peer.run(name, way, -1):.1f} s", flush=True)
