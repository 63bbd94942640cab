"""`./dev demo --derived`: flights, weather and airlines become two derived tables, which follow a month of changes.

Each day brings the times of its flights, corrected weather and cancelled flights. A refresh is killed on some days, in a process of its
own. After each day both tables are compared with their queries over the slots that they name.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from rich.console import Console

import objcat
from devkit.demo_checks import Check, show_checks
from devkit.demo_flights import KEY, SCHEMA, Step, january, package_data, rows_of, scheduled

WIDE = """
    SELECT f.carrier, f.flight, f.origin, f.time_hour, f.day, f.dest, f.dep_delay, f.arr_delay, a.name AS airline,
        w.temp, w.wind_speed, w.visib
    FROM ops.flights f JOIN ref.airlines a ON f.carrier = a.carrier
    LEFT JOIN ref.weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
"""
DELAYS = """
    SELECT a.name AS airline, f.day, count(*) AS flights, count(f.arr_delay) AS arrived, sum(f.arr_delay) AS minutes_late,
        max(f.dep_delay) AS worst
    FROM ops.flights f JOIN ref.airlines a ON f.carrier = a.carrier
    GROUP BY a.name, f.day
"""
TABLES: Mapping[str, tuple[str, list[str]]] = {"gold.flights_wide": (WIDE, list(KEY)), "gold.delays": (DELAYS, ["airline", "day"])}
KILLED_EVERY = 5
CANCELLED = 3
"""Flights of each day that are deleted."""
_REFRESH = "import sys, objcat; print('begun', flush=True); objcat.connect(sys.argv[1]).refresh_derived(sys.argv[2])"


def weather(day: int | None = None) -> pa.Table:
    """The hours of January 2013 at the three airports, or of one day. Raises ValueError when a key repeats."""
    rows = pyarrow.csv.read_csv(package_data() / "weather.csv", convert_options=pyarrow.csv.ConvertOptions(null_values=["NA"]))
    rows = rows.filter((pc.field("month") == 1) & ((pc.field("day") == day) if day is not None else pc.field("day").is_valid()))
    at = rows["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    measured = ("temp", "wind_speed", "visib")
    columns = {"origin": rows["origin"], **{name: rows[name].cast(pa.float64()) for name in measured}, "time_hour": at}
    return pa.table(columns)


def derived_demo(console: Console, *, path: Path | None, days: int) -> list[Check]:
    """Run the story. Returns its checks."""
    began = time.monotonic()
    with ExitStack() as stack:
        place = path if path is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="objcat-demo-")))
        lake = objcat.connect(str(place))
        flown = january(days)
        _create(console, lake, flown)
        wrong: list[str] = []
        killed = landed = changed = 0
        ways: set[str | None] = set()
        for day in range(1, days + 1):
            _change(lake, flown, day)
            for name, (query, _) in TABLES.items():
                if day % KILLED_EVERY == 0:
                    killed += 1
                    landed += _kill_refresh(place, lake, name)
                done = lake.refresh_derived(name)
                ways.add(done.way)
                changed += done.upserted + done.deleted
                wanted = lake.sql(at_slots(query, done.sources))
                if rows_in_order(wanted, lake.table(name).schema) != rows_in_order(
                    lake.table(name).scan().to_arrow(), lake.table(name).schema
                ):
                    wrong.append(f"{name} on day {day}")
            if day % 10 == 0 or day == days:
                console.print(
                    f"day {day}: {changed:,} rows of derived tables came, changed or went; {killed} refreshes were killed", highlight=False
                )
        for name in TABLES:
            console.print(f"\n{lake.explain_derived(name).split(chr(10), 1)[1].strip()}", soft_wrap=True, highlight=False)
        checks = [
            Check(
                "after each day, each table is its query over the slots that it names",
                not wrong,
                wrong[0] if wrong else f"{days} days, {len(TABLES)} tables",
            ),
            Check(
                "refreshes were killed in mid-work, and each change counted once",
                killed > 0 and not wrong,
                f"{killed} killed, {landed} of them had committed",
            ),
            Check("no refresh computed its whole query", "whole" not in ways, ", ".join(sorted(way for way in ways if way))),
            Check("nothing is left to do", all(lake.refresh_derived(name).slot is None for name in TABLES), "a refresh finds no change"),
        ]
        show_checks(console, checks, time.monotonic() - began)
        return checks


def _create(console: Console, lake: objcat.Lake, flown: pa.Table) -> None:
    lake.create_table("ops.flights", SCHEMA, key=list(KEY), index=objcat.BucketIndex(2)).bulk_insert(scheduled(flown))
    airlines = pyarrow.csv.read_csv(package_data() / "airlines.csv")
    lake.create_table("ref.airlines", airlines.schema, key=["carrier"], index=objcat.BucketIndex(1)).bulk_insert(airlines)
    hours = weather()
    lake.create_table("ref.weather", hours.schema, key=["origin", "time_hour"], index=objcat.BucketIndex(1)).bulk_insert(hours)
    for name, (query, key) in TABLES.items():
        made = lake.create_derived(name, query, key=key, index=objcat.BucketIndex(2))
        console.print(f"{name}: {made.scan().count():,} rows", highlight=False)


def _change(lake: objcat.Lake, flown: pa.Table, day: int) -> None:
    """What a day brings: times of its flights, flights that are gone, weather that was measured again, another name of an airline."""
    flights = lake.table("ops.flights")
    flights.upsert(rows_of(flown, Step("actual", day), "tower"))
    flights.delete(flown.filter(pc.field("day") == day).select(list(KEY)).slice(0, CANCELLED))
    hours = weather(day)
    lake.table("ref.weather").upsert(hours.set_column(1, "temp", pc.add(hours["temp"], 0.5)).slice(0, 6))
    if day % 7 == 0:
        lake.table("ref.airlines").upsert([{"carrier": "HA", "name": f"Hawaiian Airlines, week {day // 7}"}])


def _kill_refresh(place: Path, lake: objcat.Lake, name: str) -> bool:
    """Start a refresh in a process of its own, and kill it while it works. Returns whether it had committed."""
    slot = lake.table(name).refresh().slot
    with subprocess.Popen([sys.executable, "-c", _REFRESH, str(place), name], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.25)
        process.kill()
    return lake.table(name).refresh().slot > slot


def at_slots(query: str, slots: Mapping[str, int]) -> str:
    """A query over named slots of its tables."""
    for name, slot in slots.items():
        query = query.replace(f"{name} ", f"{name} VERSION AS OF {slot} ")
    return query


def rows_in_order(rows: pa.Table, schema: pa.Schema) -> Sequence[str]:
    """The rows in an order that equal tables share."""
    return sorted(str(list(row.values())) for row in rows.cast(pa.schema([field.with_nullable(True) for field in schema])).to_pylist())
