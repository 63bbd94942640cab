"""The table of `spec/tables/` with derived tables: what they show is a query, and how far they are is a position."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import objcat
from devkit.spec_tables import Maker

TRIPS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("driver", pa.int64()), ("fare", pa.int64())])
DRIVERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
WIDE = "SELECT t.id, t.fare, d.name AS driver FROM trips t LEFT JOIN drivers d ON t.driver = d.id"
SUMS = (
    "SELECT coalesce(driver, -1) AS driver, count(*) AS trips, sum(fare) AS fares, count(fare) AS fares_known, max(fare) AS most "
    "FROM trips GROUP BY 1"
)


def derived_tables(maker: Maker) -> None:
    """A join and an aggregate of two tables, all in one log: refreshes by rows, by groups and as a whole, after a RESTORE too."""
    settings: dict[str, Any] = {"shared_log": "trips", "index": objcat.BucketIndex(1)}
    lake = maker.lake
    trips = maker.table("trips", TRIPS, key=["id"], **settings)
    drivers = maker.table("drivers", DRIVERS, key=["id"], **settings)
    maker.tick()
    trips.upsert([{"id": number, "driver": number % 3, "fare": number * 10} for number in range(6)])
    maker.tick()
    drivers.upsert([{"id": 0, "name": "Ana"}, {"id": 1, "name": "Ben"}])
    maker.tick()
    wide = lake.create_derived("wide", WIDE, key=["id"], **settings)
    maker.tick()
    lake.create_derived("sums", SUMS, key=["driver"], **settings)

    def refresh(*names: str) -> None:
        for name in names:
            maker.tick()
            lake.refresh_derived(name)

    maker.tick()
    trips.upsert([{"id": 2, "driver": 1, "fare": None}, {"id": 6, "driver": None, "fare": 60}, {"id": 7, "driver": 2, "fare": 70}])
    maker.tick()
    drivers.upsert([{"id": 2, "name": "Chloé"}])
    refresh("wide", "sums")
    earlier = wide.refresh().slot
    maker.tick()
    trips.delete([{"id": 4}, {"id": 5}])
    maker.tick()
    drivers.delete([{"id": 0}])
    refresh("sums")
    maker.tick()
    trips.maintenance.compact()
    refresh("wide")
    maker.tick()
    wide.restore(to=earlier)
    refresh("wide", "sums")
    maker.tick()
    trips.upsert([{"id": 8, "driver": 1, "fare": 80}])
