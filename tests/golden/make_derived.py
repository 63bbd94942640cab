"""Makes the golden lake of derived tables: `./dev run python -m tests.golden.make_derived` writes format-1-derived.zip anew.

As `make.py`: to be run by hand, and only while format 1 may still change.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa

import objcat
from objcat.timeline.archive import archive
from tests.golden.make import Maker, objects_of

ARCHIVE = Path(__file__).parent / "format-1-derived.zip"
TRIPS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("driver", pa.int64()), ("Town", pa.string()), ("fare", pa.int64())])
DRIVERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
EVENTS = pa.schema([("town", pa.string()), ("weight", pa.int64())])
_TOWNS = (
    "SELECT coalesce(t.Town, '?') AS town, count(*) AS n, sum(t.fare) AS fares, count(t.fare) AS known, min(t.fare) AS least "
    "FROM events v JOIN trips t ON v.town = t.Town GROUP BY 1"
)
QUERIES = {
    "gold.wide": (
        "SELECT t.id, t.fare, d.name AS driver FROM trips t LEFT JOIN people.drivers d ON t.driver = d.id WHERE t.fare > 0",
        ["id"],
    ),
    "gold.towns": (_TOWNS, ["town"]),
    "gold.ranks": ("SELECT id, rank() OVER (ORDER BY fare, id) AS place FROM trips", ["id"]),
    "gold.counts": ("SELECT n, count(*) AS towns FROM gold.towns GROUP BY n", ["n"]),
}
"""By name, the text of a query and the key of its result; the last one reads another derived table."""


def make() -> objcat.Lake:
    """Derived tables of every way, with sources that changed since the last refresh, or were renamed, and archived slots."""
    maker = Maker()
    lake, tick = maker.lake, maker.tick
    trips = lake.create_table("trips", TRIPS, key=["id"], index=objcat.BucketIndex(2))
    lake.create_table("people.drivers", DRIVERS, key=["id"], index=objcat.BucketIndex(1))
    events = lake.create_table("events", EVENTS, key=None)
    trips.upsert([{"id": number, "driver": number % 4, "Town": "aé?"[number % 3], "fare": number} for number in range(20)])
    lake.table("people.drivers").upsert([{"id": number, "name": f"driver {number}"} for number in range(3)])
    events.insert([{"town": town, "weight": 1} for town in ("a", "a", "é")])
    for name, (query, key) in QUERIES.items():
        tick()
        lake.create_derived(name, query, key=key, properties={"refresh_after_s": "0"} if name == "gold.counts" else None)
    for number in range(40):
        tick()
        trips.upsert([{"id": number, "driver": 2, "Town": "a", "fare": number - 3}])
        lake.refresh_derived("gold.wide")
    tick()
    wide = lake.table("gold.wide")
    archive(wide._context.timeline, keep_slots=8)
    wide.maintenance.compact()
    for name in QUERIES:
        tick()
        lake.refresh_derived(name)
    tick()
    trips.delete([{"id": 3}])
    events.insert([{"town": "a", "weight": None}, {"town": "new", "weight": 2}])
    lake.table("people.drivers").upsert([{"id": 2, "name": "Chloé"}])
    lake.rename_table("people.drivers", "people.who")
    return lake


def main() -> None:
    """Write the archive."""
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as packed:
        for key, data in sorted(objects_of(make().fileio).items()):
            packed.writestr(zipfile.ZipInfo(key, (2026, 11, 21, 9, 0, 0)), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
