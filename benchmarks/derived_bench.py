"""`./dev bench derived`: a change of 0.1 % reaches derived tables, by a refresh and by computing the whole query.

In each round the same change is followed by both sides, in turns: a derived table is refreshed, and a table of the same columns is
overwritten with the result of the query. Their rows are compared after each round: different rows have no time, and the command fails.

`--spark` adds what a materialized view of Spark's declarative pipelines does at each run: Spark computes the query and replaces a table.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from benchmarks import environment

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


def trips_of(ids: np.ndarray[Any, Any], drawn: np.random.Generator) -> pa.Table:
    """Trips with these ids."""
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
    """0.1 % of the trips: new ones and late corrections of the last hours, or any."""
    count = int(rows * CHANGED)
    if kind == "recent":
        fresh = np.arange(rows + number * count, rows + number * count + count * 3 // 4)
        return trips_of(np.concatenate([fresh, rows - 1 - drawn.choice(rows // 100, count - len(fresh), replace=False)]), drawn)
    return trips_of(drawn.choice(rows, count, replace=False), drawn)


def same_rows(one: pa.Table, others: list[pa.Table], key: list[str]) -> bool:
    """Whether tables have the same rows."""
    order = [(name, "ascending") for name in key]
    wanted = one.sort_by(order)
    return all(wanted.equals(other.cast(one.schema).sort_by(order)) for other in others)


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


def run_kind(of: Measured, name: str, kind: str, *, first: int) -> dict[str, Any]:
    """The seconds of each side for each change of a kind. The first round does not count."""
    lake, rows, rounds, drawn = of.lake, of.rows, of.rounds, of.drawn
    query, key = QUERIES[name]
    whole = f"{name}_whole"
    took: dict[str, list[float]] = {"refresh": [], "recompute": [], **({"spark": []} if of.spark is not None else {})}
    read: dict[str, int] = {}
    wrong = []
    for number in range(rounds + 1):
        lake.table("trips").upsert(change_of(kind, rows, first + number, drawn))
        sides: list[tuple[str, Callable[[], Any]]] = [
            ("refresh", lambda: lake.refresh_derived(name)),
            ("recompute", lambda: lake.table(whole).overwrite(lake.sql(query).cast(lake.table(whole).schema))),
        ]
        if of.spark is not None:
            sides.append(("spark", lambda: lake.sql(query, of.spark).write.mode("overwrite").parquet(str(of.parquet))))
        for side, work in sides if number % 2 else reversed(sides):
            seconds, result = timed(work)
            if number:
                took[side].append(seconds)
            if side == "refresh":
                read = dict(result.rows_read or {})
        others = [lake.table(whole).scan().to_arrow(), *([pq.read_table(of.parquet)] if of.spark is not None else [])]
        if not same_rows(lake.table(name).scan().to_arrow(), others, key):
            wrong.append(number)
    ratios = [whole_s / refresh_s for whole_s, refresh_s in zip(took["recompute"], took["refresh"], strict=True)]
    middle = {side: statistics.median(values) for side, values in took.items()}
    return {"query": name, "change": kind, "seconds": took, "median": middle, "ratios": ratios, "rows read": read, "wrong": wrong}


def main(arguments: list[str]) -> int:
    """Run the suite and return its exit status."""
    parser = argparse.ArgumentParser(prog="./dev bench derived", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the largest source")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    parser.add_argument("--directory", type=Path, help="where the lake is")
    parser.add_argument("--spark", action="store_true", help="also compute it by Spark as a whole")
    parser.add_argument("--json", type=Path, help="where results are written")
    given = parser.parse_args(arguments)
    began = environment.now()
    drawn = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=given.directory) as place:
        lake = objcat.connect(place)
        make_sources(lake, given.rows, drawn)
        of = Measured(lake, given.rows, given.rounds, drawn, Path(place) / "of_spark", spark_session() if given.spark else None)
        first = 0
        for name, (query, key) in QUERIES.items():
            seconds, table = timed(lambda name=name, query=query, key=key: lake.create_derived(name, query, key=key))  # type: ignore[misc]
            lake.create_table(f"{name}_whole", table.schema, key=key)
            print(f"{name}: created with {table.scan().count():,} rows in {seconds:.1f} s", flush=True)
            for kind in ("recent", "scattered"):
                one = run_kind(of, name, kind, first=first)
                first += given.rounds + 1
                found.append(one)
                ratio = statistics.median(one["ratios"])
                times = ", ".join(f"{side} {value:.3f} s" for side, value in one["median"].items())
                said = f"WRONG in rounds {one['wrong']}" if one["wrong"] else f"{times}: {ratio:.1f} times, goal {GOAL:.0f}"
                print(f"{name}, {kind} changes: {said}; rows read {one['rows read']}", flush=True)
                if given.json is not None:
                    command = shlex.join(["./dev", "bench", "derived", *arguments])
                    told = {**environment.machine(command, began=began), "store": "local disk", "rows": given.rows}
                    given.json.write_text(json.dumps({"environment": told, "results": found}, indent=1))
    return 1 if any(one["wrong"] for one in found) else 0
