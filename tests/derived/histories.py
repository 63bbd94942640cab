"""Random queries of the grammar of derived tables, and random histories of the three tables that they read."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

import objcat
from objcat.derived.refresh import RefreshResult
from objcat.lake.lake import Lake

TRIPS = pa.schema(
    [
        ("id", pa.int64()),
        ("driver", pa.int32()),
        ("Town", pa.string()),
        ("km", pa.int64()),
        ("fare", pa.decimal128(9, 2)),
        ("tip", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
DRIVERS = pa.schema([("id", pa.int64()), ("team", pa.string()), ("boss", pa.int64()), ("grade", pa.int64())])
EVENTS = pa.schema([("town", pa.string()), ("kind", pa.string()), ("weight", pa.int64())])
TOWNS = [*"abcde", "é", ""]
DAY = dt.datetime(2026, 1, 30, tzinfo=dt.UTC)


class Sources:
    """The three tables: two with a key, and one without, whose rows repeat."""

    def __init__(self, drawn: random.Random, lake: Lake) -> None:
        self.drawn = drawn
        self.lake = lake
        settings: list[dict[str, Any]] = [
            {},
            {"index": objcat.BucketIndex(2)},
            {"table_type": "copy_on_write"},
            {"index": objcat.SimpleIndex()},
        ]
        lake.create_table("trips", TRIPS, key=["id"], **drawn.choice(settings))
        lake.create_table("ref.drivers", DRIVERS, key=["id"], **drawn.choice(settings))
        lake.create_table("events", EVENTS, key=None)
        self.added = 0
        lake.table("trips").upsert([self.trip() for _ in range(40)])
        lake.table("ref.drivers").upsert([self.driver() for _ in range(14)])
        lake.table("events").insert([self.event() for _ in range(15)])
        for _ in range(3):
            self.change()

    def maybe(self, value: Any) -> Any:
        """A value, or null."""
        return None if self.drawn.random() < 0.2 else value

    def trip(self) -> dict[str, Any]:
        drawn = self.drawn
        return {
            "id": drawn.randrange(40),
            "driver": self.maybe(drawn.randrange(12)),
            "Town": self.maybe(drawn.choice(TOWNS)),
            "km": self.maybe(drawn.randrange(-3, 9)),
            "fare": self.maybe(Decimal(drawn.randrange(-500, 2000)) / 100),
            # Sums of these are exact in any order.
            "tip": self.maybe(drawn.randrange(16) / 4),
            "at": self.maybe(DAY + dt.timedelta(hours=drawn.randrange(72))),
        }

    def driver(self) -> dict[str, Any]:
        drawn = self.drawn
        return {
            "id": drawn.randrange(12),
            "team": self.maybe(drawn.choice("xyz")),
            "boss": self.maybe(drawn.randrange(12)),
            "grade": self.maybe(drawn.randrange(4)),
        }

    def event(self) -> dict[str, Any]:
        return {
            "town": self.maybe(self.drawn.choice(TOWNS)),
            "kind": self.maybe(self.drawn.choice("pq")),
            "weight": self.maybe(self.drawn.randrange(3)),
        }

    def change(self) -> None:
        """One commit to one of the tables, or a service of one."""
        drawn = self.drawn
        trips, drivers, events = (self.lake.table(name) for name in ("trips", "ref.drivers", "events"))
        match drawn.choice(
            ["trips"] * 4 + ["drivers"] * 3 + ["events"] * 3 + ["untrip", "undriver", "unevent", "compact", "column", "update", "restore"]
        ):
            case "trips":
                trips.upsert([self.trip() for _ in range(drawn.randrange(1, 9))])
            case "drivers":
                drivers.upsert([self.driver() for _ in range(drawn.randrange(1, 4))])
            case "events":
                events.insert([self.event() for _ in range(drawn.randrange(1, 6))])
            case "untrip":
                trips.delete([{"id": drawn.randrange(40)} for _ in range(drawn.randrange(1, 9))])
            case "undriver":
                drivers.delete([{"id": drawn.randrange(12)}])
            case "unevent":
                events.delete(f"weight = {drawn.randrange(3)}")
            case "update":
                trips.update({"km": "km + 1"}, where=f"id < {drawn.randrange(20)}")
            case "compact":
                drawn.choice([trips, drivers]).maintenance.compact()
            case "column":
                self.added += 1
                drawn.choice([trips, drivers, events]).alter.add_column(f"more{self.added}", pa.int64())
            case "restore":
                some = drawn.choice([trips, drivers])
                some.restore(to=max(0, some.snapshot.slot - drawn.randrange(3)))


@dataclass(frozen=True, slots=True)
class DrawnQuery:
    """A query, and the key of its result."""

    text: str
    key: list[str]


CONDITIONS = [
    "t.km > 2",
    "t.km > 2 OR t.fare IS NULL",
    "NOT (t.Town = 'a')",
    "t.Town IN ('a', 'b', NULL)",
    "coalesce(t.km, 0) BETWEEN 0 AND 5",
    "CASE WHEN t.tip > 1 THEN true ELSE t.km IS NOT NULL END",
]
TERMS = [
    "t.km",
    "t.fare",
    "t.Town",
    "t.tip * 2",
    "t.km + 1",
    "upper(t.Town)",
    "CASE WHEN t.km > 0 THEN 'more' ELSE 'less' END",
    "t.at",
    "t.driver",
]
OF_DRIVERS = ["{0}.team", "{0}.grade", "{0}.boss", "coalesce({0}.team, 'none')", "{0}.grade * t.km", "t.km > {0}.grade", "{0}.id"]
AGGREGATES = [
    "sum(t.km) AS kms",
    "count(t.km) AS km_count",
    "sum(t.fare) AS fares, count(t.fare) AS fare_count",
    "min(t.km) AS least",
    "max(t.Town) AS last",
    "min(t.at) AS first_at",
    "max(t.fare) AS most",
    "sum(coalesce(t.km, 0)) AS kms_or_none",
    "sum(t.km * 2 + 1) AS twice, count(t.km * 2 + 1) AS twice_count",
]
OTHERS = [
    "avg(t.km) AS mean",
    "count(DISTINCT t.Town) AS towns",
    "sum(t.tip) AS tips",
    "sum(t.km) / count(*) AS ratio",
    "max(t.km) - min(t.km) AS width",
]
GROUPS = ["coalesce(t.Town, '?')", "CAST(coalesce(t.at, TIMESTAMP '2026-01-01 00:00:00Z') AS DATE)", "coalesce(t.driver, -1)", "t.id % 3"]


def drawn_query(drawn: random.Random) -> DrawnQuery:  # noqa: C901 - one branch for each part of a query
    """A query of the grammar."""
    kind = drawn.choice(["rows", "rows", "rows", "many", "groups", "groups", "groups", "events", "whole"])
    if kind == "events":
        return _of_events(drawn)
    if kind == "whole":
        return drawn.choice(
            [
                DrawnQuery("SELECT id, km, rank() OVER (PARTITION BY Town ORDER BY km, id) AS place FROM trips", ["id"]),
                DrawnQuery("SELECT id, km FROM trips WHERE driver IN (SELECT id FROM ref.drivers WHERE grade > 1)", ["id"]),
                DrawnQuery(
                    "WITH best AS (SELECT driver, max(km) AS km FROM trips GROUP BY driver) SELECT driver, km FROM best WHERE driver >= 0",
                    ["driver"],
                ),
                DrawnQuery("SELECT id, 't' AS kind FROM trips UNION ALL SELECT id, 'd' AS kind FROM ref.drivers", ["id", "kind"]),
                DrawnQuery(
                    "SELECT coalesce(t.id, -1) AS t, coalesce(d.id, -1) AS d FROM trips t FULL JOIN ref.drivers d ON t.driver = d.id",
                    ["t", "d"],
                ),
            ]
        )
    joins: list[str] = []
    aliases: list[str] = []
    for alias in ["d", "e", "f"][: drawn.choice([0, 1, 1, 2, 2, 3] if kind != "many" else [1, 2])]:
        side = drawn.choice(["JOIN", "LEFT JOIN", "LEFT JOIN"])
        to = [f"t.driver = {alias}.id", f"{alias}.id = t.driver", *(f"{other}.boss = {alias}.id" for other in aliases)]
        on = drawn.choice(to)
        if kind == "many":
            on = drawn.choice([f"{alias}.grade = t.km", f"{alias}.boss = t.driver", f"{alias}.team = t.Town", f"{alias}.grade > t.km"])
        if drawn.random() < 0.3:
            on += drawn.choice(
                [f" AND {alias}.grade > 1", f" AND {alias}.team IS NOT NULL", " AND t.km < 4", f" AND ({alias}.team = 'x' OR t.km = 1)"]
            )
        joins.append(f"{side} ref.drivers {alias} ON {on}")
        aliases.append(alias)
    where = drawn.sample(CONDITIONS, drawn.choice([0, 0, 1, 1, 2]))
    if aliases and drawn.random() < 0.3:
        where.append(
            drawn.choice(["{0}.grade > 0", "{0}.team IS NULL", "{0}.id = t.driver", "t.km <> {0}.grade"]).format(drawn.choice(aliases))
        )
    tail = f"FROM trips AS t {' '.join(joins)}" + (f" WHERE {' AND '.join(f'({one})' for one in where)}" if where else "")
    if kind == "groups":
        groups = drawn.sample(GROUPS, drawn.choice([1, 1, 2]))
        if aliases and drawn.random() < 0.4:
            groups[0] = f"coalesce({aliases[0]}.team, '-')"
        if drawn.random() < 0.2:
            groups = ["t.id"]
        named = [f"{term} AS g{number}" for number, term in enumerate(groups)]
        some = drawn.sample(AGGREGATES, drawn.randrange(0, 4))
        if drawn.random() < 0.75:
            some.insert(0, "count(*) AS n")
        if drawn.random() < 0.25:
            some.append(drawn.choice(OTHERS))
        having = drawn.choice([" HAVING count(*) > 1", " HAVING sum(t.km) > 3"]) if drawn.random() < 0.15 else ""
        keys = [f"g{number}" for number in range(len(groups))]
        if not some and drawn.random() < 0.5:
            return DrawnQuery(f"SELECT DISTINCT {', '.join(named)} {tail}", keys)
        return DrawnQuery(f"SELECT {', '.join([*named, *some])} {tail} GROUP BY {', '.join(groups)}{having}", keys)
    terms = drawn.sample(TERMS, drawn.randrange(1, 4))
    for alias in aliases:
        terms += [term.format(alias) for term in drawn.sample(OF_DRIVERS, drawn.randrange(0, 3))]
    keys = ["id"]
    columns = ["t.id AS id", *(f"{term} AS c{number}" for number, term in enumerate(terms))]
    if kind == "many":
        keys += [f"k{alias}" for alias in aliases]
        columns += [f"coalesce({alias}.id, -1) AS k{alias}" for alias in aliases]
    return DrawnQuery(f"SELECT {', '.join(columns)} {tail}", keys)


def _of_events(drawn: random.Random) -> DrawnQuery:
    """A query over the table whose rows repeat."""
    join = drawn.choice(
        [
            "",
            "LEFT JOIN trips t ON t.Town = v.town",
            "JOIN trips t ON t.Town = v.town AND t.km > v.weight",
            "LEFT JOIN trips t ON t.km = v.weight",
        ]
    )
    group = drawn.choice(["coalesce(v.town, '?')", "coalesce(v.kind, '-')"])
    more = drawn.choice(["count(v.weight) AS m, sum(v.weight) AS w", "min(v.weight) AS w", "avg(v.weight) AS w", "max(v.kind) AS w"])
    count = drawn.choice(["count(*) AS n, ", "count(*) AS n, ", ""])
    return DrawnQuery(f"SELECT {group} AS g, {count}{more} FROM events v {join} GROUP BY {group}", ["g"])


def rows_of(table: pa.Table, schema: pa.Schema) -> list[str]:
    """The rows in an order that equal tables share."""
    return sorted(str(list(row.values())) for row in table.rename_columns(schema.names).cast(schema).to_pylist())


def recomputed(lake: Lake, text: str, slots: Any) -> pa.Table:
    """The rows of a query at slots of its tables."""
    for name, slot in sorted(slots.items(), key=lambda one: -len(one[0])):
        text = _at(text, name, slot)
    return lake.sql(text)


def _at(text: str, name: str, slot: int) -> str:
    words = text.split(" ")
    return " ".join(f"{name} VERSION AS OF {slot}" + word[len(name) :] if word.rstrip(")") == name else word for word in words)


def check_equal(lake: Lake, name: str, query: DrawnQuery, result: RefreshResult) -> None:
    """The derived table has the rows that its query has at the slots of the result."""
    schema = lake.table(name).schema
    found = rows_of(lake.table(name).scan().to_arrow(), schema)
    wanted = rows_of(recomputed(lake, query.text, result.sources), schema)
    assert found == wanted, (query, result)


Refresh = Callable[[Lake, str], RefreshResult]
