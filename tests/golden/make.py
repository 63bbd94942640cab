"""Makes the golden lake: `./dev run python -m tests.golden.make` writes format-1.zip and expected.json anew.

To be run by hand, and only while format 1 may still change: once it is released, the archive stays for ever as it is. One seed and one
clock, so that two runs of one version of objcat make equal lakes.
"""

from __future__ import annotations

import datetime as dt
import json
import zipfile
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import objcat
from fileio.contract import GetResult
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule, Rules
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import FileGroupId
from tests.golden.content import ALONE, content_of

HERE = Path(__file__).parent
ARCHIVE = HERE / "format-1.zip"
EXPECTED = HERE / "expected.json"
NINE = dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)
BEGAN_MS = int(NINE.timestamp() * 1000)

TRIPS = pa.schema(
    [
        pa.field("trip_id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("fare", pa.decimal128(8, 2)),
        pa.field("updated_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


class Maker:
    """A lake in memory, and a clock that goes on by a minute before every step."""

    def __init__(self) -> None:
        self.env = FakeEnv(20261121, now_ms=BEGAN_MS)
        self.backend = MemoryBackend("golden", env=self.env)
        self.lake = objcat.Lake(FileIO(self.backend, env=self.env))

    def tick(self) -> None:
        self.env.advance(60)

    def dying(self, fault: Fault, seed: int) -> objcat.Lake:
        """The lake as a process sees it that is killed at the next slot that it claims."""
        rule = Rule(fault=fault, kinds=frozenset({"put"}), key=lambda key: "/log/" in key)
        env = FakeEnv(seed, now_ms=self.env.now_ms())
        return objcat.Lake(FileIO(FaultyBackend(self.backend, Rules([rule])), env=env))


def trip(trip_id: int, city: str, fare: str, hours: float = 0) -> dict[str, Any]:
    return {"trip_id": trip_id, "city": city, "fare": Decimal(fare), "updated_at": NINE + dt.timedelta(hours=hours)}


def make() -> objcat.Lake:
    """The golden lake, in memory."""
    maker = Maker()
    for step in (_trips, _places, _stock, _bank, _keys, _values, _wide, _events, _rides, _lines, _grown, _names, _alone, _sorted):
        step(maker)
        maker.tick()
    return maker.lake


def _trips(maker: Maker) -> None:
    """An ordering column: base files, late rows, a tombstone, a barrier, applications, dead writers, a split that stays uncompacted."""
    lake, tick = maker.lake, maker.tick
    trips = lake.create_table("city.trips", TRIPS, key=["trip_id"], ordering="updated_at", index=objcat.BucketIndex(4))
    tick()
    trips.insert([trip(n, "Rome" if n % 2 else "Oslo", f"{n}.50") for n in range(1, 13)], metadata={"source": "meters"})
    tick()
    trips.upsert([trip(1, "Rome", "21.00", 1), trip(2, "Oslo", "22.00", -1)], app=objcat.AppVersion(app="stream", version=6))
    tick()
    trips.upsert([trip(13, "Zürich", "13.13", 2), trip(13, "Zürich", "13.14", 3)], app=objcat.AppVersion(app="stream", version=7))
    tick()
    trips.delete([{"trip_id": 3, "updated_at": NINE + dt.timedelta(hours=5)}, {"trip_id": 99, "updated_at": NINE}])
    tick()
    trips.delete([{"trip_id": 4}, {"trip_id": 5}])
    tick()
    trips.upsert([trip(3, "Rome", "33.00", 4), trip(4, "Oslo", "44.00", -9), trip(99, "Oslo", "99.00", 1)])
    for seed, fault in ((2, Fault.CRASH_BEFORE), (3, Fault.CRASH_AFTER)):
        tick()
        try:
            maker.dying(fault, seed).table("city.trips").upsert([trip(20 + seed, "Kyiv", "1.00")])
        except Crash:
            tick()
            trips.maintenance.rollback_failed_writes(older_than_s=1)
    tick()
    trips.set_properties({"owner": "Ωmega", "unit": "€"})
    tick()
    trips.maintenance.split_buckets(count=8)
    tick()
    trips.upsert([trip(6, "Bergen", "66.00", 6), trip(30, "Bergen", "30.00")], metadata={"größe": "klein"})
    tick()
    trips.insert([trip(31, "Nuuk", "31.00")])


PLACES = pa.schema(
    [
        pa.field("straße", pa.string(), nullable=False),
        pa.field("tag", pa.date32(), nullable=False),
        ("地名", pa.struct([pa.field("lang", pa.string()), pa.field("名", pa.string(), nullable=False)])),
        ("besuche", pa.list_(pa.field("element", pa.struct([("wer", pa.string()), ("minuten", pa.int16())])))),
        ("noten", pa.map_(pa.string(), pa.list_(pa.float32()))),
    ]
)


def _places(maker: Maker) -> None:
    """No ordering column, names and values of several scripts, nested types; compacted, and written on top of that."""
    lake, tick = maker.lake, maker.tick
    places = lake.create_table(
        "city.Plätze", PLACES, key=["straße", "tag"], index=objcat.BucketIndex(2, ("straße",)), properties={"farbe": "blau"}
    )

    def row(street: str, day: int, *visits: tuple[str, int | None], **marks: list[float | None]) -> dict[str, Any]:
        visited = [{"wer": who, "minuten": minutes} for who, minutes in visits]
        named = {"lang": "ja", "名": f"{street}の"} if day % 2 else None
        return {"straße": street, "tag": dt.date(2026, 11, day), "地名": named, "besuche": visited or None, "noten": list(marks.items())}

    def upsert(*rows: dict[str, Any]) -> None:
        tick()
        places.upsert(pa.Table.from_pylist(list(rows), PLACES))

    upsert(row("Hauptstraße", 1, ("Ann", 5), ("Bo", None), gut=[1.0, None]), row("東京", 2), row("", 3, ("Çelik", 7)))
    upsert(row("東京", 2, ("Dana", 9), schlecht=[]), row("🚕", 5, gut=[0.5]))
    tick()
    places.delete([{"straße": "", "tag": dt.date(2026, 11, 3)}])
    tick()
    places.maintenance.compact()
    upsert(row("Hauptstraße", 1, ("Eve", 1)), row("Ringstraße", 7))


def _stock(maker: Maker) -> None:
    """Copy-on-write."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema([pa.field("item", pa.int32(), nullable=False), ("name", pa.string()), ("count", pa.int64())])
    stock = lake.create_table("shop.stock", schema, key=["item"], index=objcat.BucketIndex(3), table_type="copy_on_write")
    tick()
    stock.insert([{"item": n, "name": f"item {n}", "count": 10 * n} for n in range(10)])
    tick()
    stock.upsert([{"item": 3, "name": "three", "count": 1}, {"item": 77, "name": None, "count": None}])
    tick()
    stock.delete([{"item": 0}, {"item": 5}, {"item": 1000}])


def _bank(maker: Maker) -> None:
    """Two tables of one domain, changed by transactions; one of them was created later."""
    lake, tick = maker.lake, maker.tick
    account = pa.field("account", pa.decimal128(12, 0), nullable=False)
    accounts = lake.create_table("bank.accounts", pa.schema([account, ("balance", pa.int64())]), key=["account"], shared_log="bank")
    tick()
    accounts.insert([{"account": Decimal(n), "balance": 100} for n in (1, 2, 3)])
    tick()
    moves = pa.schema([pa.field("id", pa.binary(), nullable=False), account, ("amount", pa.int64())])
    lake.create_table("bank.moves", moves, key=["id"], shared_log="bank", index=objcat.BucketIndex(2))
    for number, (source, target, amount) in enumerate([(1, 2, 30), (2, 3, 5)]):
        tick()
        app = objcat.AppVersion(app="transfers", version=number)
        with lake.transaction(isolation="serializable", metadata={"transfer": str(number)}, app=app) as tx:
            balances = {row["account"]: row["balance"] for row in tx["bank.accounts"].scan().to_arrow().to_pylist()}
            changed = [(Decimal(source), -amount), (Decimal(target), amount)]
            tx["bank.accounts"].upsert([{"account": who, "balance": balances[who] + by} for who, by in changed])
            tx["bank.moves"].insert([{"id": bytes([number, i]), "account": who, "amount": by} for i, (who, by) in enumerate(changed)])


def _keys(maker: Maker) -> None:
    """A key of every type that a key can have."""
    lake, tick = maker.lake, maker.tick
    types = {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "short_decimal": pa.decimal128(10, 2),
        "long_decimal": pa.decimal128(38, 10),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    schema = pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in types.items()), pa.field("value", pa.int64())])
    table = lake.create_table("types.keys", schema, key=list(types), index=objcat.BucketIndex(4))

    def row(n: int, value: int, **other: Any) -> dict[str, Any]:
        late = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999 - n)
        key = [n % 2 == 0, n - 3, -n, n * 1000, n * 10**12, n / 4, n / 8, Decimal(n) / 4, Decimal(-n).scaleb(20), f"π{n}", bytes([255, n])]
        day = dt.date(1970, 1, 1) - dt.timedelta(days=n)
        return {**dict(zip(types, [*key, day, late.replace(tzinfo=dt.UTC), late], strict=True)), "value": value, **other}

    tick()
    table.upsert([row(n, n) for n in range(6)])
    tick()
    table.upsert([row(1, 100), row(7, 7, float=float("nan"), double=float("nan")), row(8, 8, float=-0.0, double=-0.0)])
    tick()
    table.upsert([row(7, 700, float=float("nan"), double=-float("nan")), row(8, 800, float=0.0, double=0.0)])
    tick()
    table.delete([row(2, 0), row(3, 0)])


def _values(maker: Maker) -> None:
    """Values at the edges of their types; an ordering by text; compacted with tombstones."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("version", pa.string(), nullable=False),
            ("tinyint", pa.int8()),
            ("float", pa.float32()),
            ("double", pa.float64()),
            ("decimal", pa.decimal128(38, 38)),
            ("binary", pa.binary()),
            ("date", pa.date32()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_ntz", pa.timestamp("us")),
            ("boolean", pa.bool_()),
        ]
    )
    table = lake.create_table("types.values", schema, key=["id"], ordering="version", index=objcat.BucketIndex(1))
    floats = [float("inf"), float("-inf"), float("nan"), -0.0, 1.5, None]
    times = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), NINE.replace(tzinfo=None), None, None, None]
    tick()
    table.upsert(
        [
            {
                "id": n,
                "version": "b",
                "tinyint": (-128, 127, 0, None, 1, 2)[n],
                "float": value,
                "double": value,
                "decimal": None if n == 5 else Decimal(n + 1).scaleb(-38),
                "binary": (b"", b"\0\xff", None)[n % 3],
                "date": None if times[n] is None else times[n].date(),  # type: ignore[union-attr]
                "timestamp": None if times[n] is None else times[n].replace(tzinfo=dt.UTC),  # type: ignore[union-attr]
                "timestamp_ntz": times[n],
                "boolean": (True, False, None)[n % 3],
            }
            for n, value in enumerate(floats)
        ]
    )
    tick()
    table.delete([{"id": 4, "version": "c"}, {"id": 9, "version": "a"}])
    tick()
    table.maintenance.compact()
    tick()
    table.upsert([{"id": 4, "version": "bb"}, {"id": 9, "version": "aa"}, {"id": 5, "version": "b", "boolean": True}])


def _wide(maker: Maker) -> None:
    """So much in one commit that its changes do not fit into the slot, and that a checkpoint after few changes is only a part."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
    wide = maker.lake.create_table("wide", schema, key=["id"], index=objcat.BucketIndex(256))
    maker.tick()
    with maker.lake.transaction() as tx:
        for first in range(0, 4000, 250):
            batch = pa.table({"id": range(first, first + 500), "value": range(first, first + 500)}, schema=schema)
            # Adjacent batches of the same columns would be one.
            tx["wide"].upsert(batch if first % 500 else batch.select(["value", "id"]))
    for n in range(66):
        maker.tick()
        if n % 33 == 32:
            wide.upsert(pa.table({"id": range(n * 10, n * 10 + 10), "value": [n] * 10}, schema=schema))
        else:
            wide.set_properties({"last": str(n)})
    maker.tick()
    wide.delete([{"id": n} for n in range(0, 3000, 1000)])


def _events(maker: Maker) -> None:
    """A long log: checkpoints, some collected, an application, a savepoint below the bound, a clean, a restore, archived slots."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("what", pa.string()), pa.field("at", pa.int64(), nullable=False)])
    events = lake.create_table("log.events", schema, key=["id"], ordering="at", index=objcat.BucketIndex(2))

    def write(first: int, end: int) -> None:
        for n in range(first, end):
            tick()
            app = objcat.AppVersion(app="feed", version=n)
            events.upsert([{"id": n % 20, "what": f"event {n}", "at": n}, {"id": 100 + n, "what": None, "at": n}], app=app)
            if n % 10 == 9:
                tick()
                events.delete([{"id": 100 + n - 5, "at": n}])

    write(0, 22)
    tick()
    events.maintenance.savepoint(slot=20, name="before the flood")
    tick()
    events.maintenance.compact()
    write(22, 40)
    tick()
    events.maintenance.compact()
    tick()
    events.maintenance.clean(before=30)
    write(40, 74)
    tick()
    collect_checkpoints(events._context.timeline, Committer(events._context.fileio), keep=1)
    write(74, 76)
    tick()
    events.restore(to=84)
    tick()
    events.upsert([{"id": 0, "what": "after the restore", "at": 1000}])
    tick()
    archive(events._context.timeline, keep_slots=16)
    tick()
    events.refresh()
    events.upsert([{"id": 1, "what": "the last one", "at": 1001}], app=objcat.AppVersion(app="other", version=1))


def _rides(maker: Maker) -> None:
    """Partitions of several transforms, of awkward values and under two partitionings; a horizon for late rows; rows and deletes mixed."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema(
        [pa.field("ride", pa.string(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), ("city", pa.string())]
    )
    rides = lake.create_table(
        "city.rides",
        schema,
        key=["ride"],
        ordering="at",
        allowed_lateness="2 days",
        partition_by=["truncate(ride, 1)", "city"],
        key_scope="partition",
        index=objcat.BucketIndex(2),
    )
    cities = ("a/b", "", None, "Zürich", "x=1&y", "東京 %")

    def ride(n: int, hours: float = 0) -> dict[str, Any]:
        return {"ride": f"{'pq'[n % 2]}{n}", "at": NINE + dt.timedelta(hours=hours), "city": cities[n % len(cities)]}

    tick()
    rides.insert([ride(n) for n in range(12)])
    tick()
    rides.upsert([ride(n, 1) | {"op": "d" if n % 2 else "u"} for n in range(6)], delete_when="op = 'd'")
    tick()
    rides.alter.set_partitioning(["day(at)"])
    tick()
    rides.upsert([ride(n, 30) for n in (0, 20, 21)])
    tick()
    rides.upsert([ride(1, -500), ride(30, -500)])
    tick()
    rides.maintenance.compact()
    tick()
    rides.delete("city = 'Zürich'")


def _lines(maker: Maker) -> None:
    """Tables without a key, of both kinds: equal rows stay, small inserts fill, a filter deletes."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema([("line", pa.int64()), ("text", pa.string())])
    for kind in ("merge_on_read", "copy_on_write"):
        tick()
        lines = lake.create_table(f"lines.{kind}", schema, key=None, table_type=kind, partition_by=["truncate(line, 10)"])
        for batch in (range(25), range(20, 30), (3, 3)):
            tick()
            lines.insert([{"line": n, "text": f"line {n}"} for n in batch])
        tick()
        lines.delete("line >= 24 and line < 27")
        tick()
        lines.maintenance.compact()


def _grown(maker: Maker) -> None:
    """Columns added, renamed, swapped, dropped, widened and added again, nested ones too, between writes; then an earlier state again."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema(
        [pa.field("id", pa.int32(), nullable=False), ("a", pa.int16()), ("b", pa.string()), ("s", pa.struct([("x", pa.int8())]))]
    )
    grown = lake.create_table("bank.grown", schema, key=["id"], index=objcat.BucketIndex(1))
    tick()
    grown.insert([{"id": n, "a": n, "b": f"b{n}", "s": {"x": n}} for n in range(4)])
    tick()
    grown.alter.apply([objcat.RenameColumn("a", "c"), objcat.RenameColumn("b", "a"), objcat.RenameColumn("c", "b")])
    tick()
    grown.upsert([{"id": 1, "a": "new a", "b": 300, "s": {"x": 1, "y": "y"}, "new": 1.5}], schema_mode="add")
    tick()
    grown.alter.widen_column("b", "bigint")
    tick()
    grown.alter.drop_column("a")
    tick()
    grown.alter.add_column("a", pa.bool_(), after="id")
    tick()
    grown.upsert([{"id": 9, "a": True, "b": 2**40}])
    tick()
    grown.maintenance.compact()
    tick()
    grown.restore(to=3)
    tick()
    grown.upsert([{"id": 2, "a": "text again", "b": 2}])


def _names(maker: Maker) -> None:
    """Names: a rename into another namespace, a drop, an undrop under another name, properties; enough changes for a checkpoint."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
    for name in ("old.Émile", "old.gone", "old.back"):
        tick()
        lake.create_table(name, schema, key=["id"], index=objcat.BucketIndex(1)).insert([{"id": 1, "value": name}])
    tick()
    lake.namespaces.create("new.home", {"owner": "Ann"})
    tick()
    lake.rename_table("old.Émile", "new.home.Émile")
    for name in ("old.gone", "old.back"):
        tick()
        lake.drop_table(name)
    tick()
    lake.undrop_table("old.back", new_name="new.back").upsert([{"id": 2, "value": "again"}])
    tick()
    lake.namespaces.create("empty")
    tick()
    lake.namespaces.drop("empty")
    for n in range(40):
        tick()
        lake.namespaces.set_properties("city", {"seen": str(n), f"every tenth {n // 10}": "yes"}, unset=[f"every tenth {n // 10 - 1}"])


def _alone(maker: Maker) -> None:
    """A table that no lake names."""
    schema = pa.schema([pa.field("meter", pa.string(), nullable=False), ("reading", pa.float64())])
    meters = objcat.create_table_at(maker.lake.fileio.child(ALONE), schema, key=["meter"], index=objcat.BucketIndex(2))
    maker.tick()
    meters.insert([{"meter": f"m{n}", "reading": n / 2} for n in range(5)])
    maker.tick()
    meters.upsert([{"meter": "m1", "reading": 100.0}])


def _sorted(maker: Maker) -> None:
    """Base files in an order of other columns than the key, in manifests too; log rows and tombstones on top of them; keys that went to
    other file groups."""
    lake, tick = maker.lake, maker.tick
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.int64()), ("text", pa.string())])
    tick()
    table = lake.create_table("lines.sorted", schema, key=["id"], ordering="at", index=objcat.BucketIndex(2))

    def rows(numbers: Iterable[int], at: int) -> list[dict[str, Any]]:
        return [{"id": n, "at": at, "text": None if n % 5 == 0 else f"text {n * 7 % 40:02}"} for n in numbers]

    tick()
    table.insert(rows(range(40), 1))
    tick()
    table.maintenance.cluster(by=["text", "id"])
    for n in range(36):
        tick()
        table.upsert(rows([n], n % 3))
    tick()
    table.delete([{"id": n, "at": 5} for n in range(0, 9, 4)])
    tick()
    table.maintenance.compact(file_groups=[FileGroupId("", 0, 2)])
    tick()
    table.maintenance.cluster(by=["text", "at"], zorder=True, where="text < 'text 20'", io_bytes_max=1)
    tick()
    table.upsert(rows([4, 5, 50], 4))
    tick()
    looked_up = lake.create_table(
        "lines.moved", schema, key=["id"], ordering="at", index=objcat.RecordIndex(2), properties={"target_file_bytes": "1024"}
    )
    for n in range(3):
        tick()
        looked_up.upsert(rows(range(n * 10, n * 10 + 10), n))
    tick()
    looked_up.delete([{"id": n, "at": 5} for n in (3, 13)])
    tick()
    looked_up.set_properties({"target_file_bytes": "4096"})
    tick()
    looked_up.maintenance.cluster(by=["text"])
    tick()
    looked_up.upsert(rows([3, 4, 24, 40], 3))


def places_of(lake: objcat.Lake) -> dict[str, str]:
    """Where each table's log is, relative to the lake."""
    return {name: lake.table(name)._context.fileio.url.removeprefix(lake.fileio.url).strip("/") for name in lake.tables()}


def objects_of(fileio: FileIO) -> dict[str, bytes]:
    """Every object of a store."""
    found = {key: fileio.get(key) for key in sorted(fileio.list_keys())}
    return {key: result.data for key, result in found.items() if isinstance(result, GetResult)}


def write_archive(objects: dict[str, bytes], path: Path) -> None:
    """One zip archive, of equal bytes for equal objects."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archived:
        for key, data in objects.items():
            archived.writestr(zipfile.ZipInfo(key), data, zipfile.ZIP_DEFLATED)


def main() -> None:
    lake = make()
    places = places_of(lake)
    objects = objects_of(lake.fileio)
    write_archive(objects, ARCHIVE)
    expected = {"places": places, "content": content_of(lake)}
    EXPECTED.write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(objects)} objects, {ARCHIVE.stat().st_size:,} bytes; {EXPECTED.name}: {EXPECTED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
