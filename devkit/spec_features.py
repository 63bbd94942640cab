"""The tables of `spec/tables/`: what is done to each of them."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa

import objcat
from devkit.spec_adopted import adopted
from devkit.spec_blocks import blocks
from devkit.spec_defaults import column_defaults
from devkit.spec_derived import derived_tables
from devkit.spec_hints import hint_of_another_log, hint_with_root, hint_without_checkpoint
from devkit.spec_ordering import ordering_columns
from devkit.spec_shared import shared_slots
from devkit.spec_tables import NINE, Feature, Maker
from devkit.spec_values import zoneless
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule, Rules
from objcat.metadata.table_spec import Index
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_view import Timeline

ITEMS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("count", pa.int32())])
READINGS = pa.schema(
    [
        pa.field("meter", pa.string(), nullable=False),
        ("reading", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
PLACES = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("at", pa.int64())])


def item(number: int, name: str | None = None, count: int | None = None) -> dict[str, Any]:
    """A row of a table without an ordering column."""
    return {"id": number, "name": f"item {number}" if name is None else name, "count": number if count is None else count}


def items(numbers: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    """Some of these rows."""
    return [item(number, **more) for number in numbers]


def reading(meter: str, value: float, hours: float) -> dict[str, Any]:
    """A row of a table with an ordering column, some hours after nine."""
    return {"meter": meter, "reading": value, "at": NINE + dt.timedelta(hours=hours)}


def merge_on_read(maker: Maker) -> None:
    """Log rows, deletes, a first insert, a rolled-back writer, a compaction, log rows above it."""
    table = maker.table("items", ITEMS, key=["id"], index=objcat.BucketIndex(2))
    maker.tick()
    table.insert(items(range(12)))
    maker.tick()
    table.upsert([item(3, "three"), item(20)], metadata={"source": "shop"})
    maker.tick()
    table.delete([{"id": 4}, {"id": 20}, {"id": 99}])
    maker.tick()
    rule = Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: "/log/" in key)
    dying = objcat.Lake(FileIO(FaultyBackend(maker.backend, Rules([rule])), env=FakeEnv(7, now_ms=maker.env.now_ms())))
    with contextlib.suppress(Crash):
        dying.table("items").upsert([item(3, "never")])
    maker.tick(90)
    table.maintenance.rollback_failed_writes(older_than_s=60)
    maker.tick()
    table.upsert([item(4, "again"), item(5, "five")])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([item(5, "five again"), item(21)])


def event_time(maker: Maker) -> None:
    """Late rows, equal times, tombstones, barriers, a compaction that retains tombstones, and late rows above it."""
    table = maker.table("readings", READINGS, key=["meter"], ordering="at", index=objcat.BucketIndex(2))
    maker.tick()
    table.upsert([reading(f"m{n}", n, 0) for n in range(8)])
    maker.tick()
    table.upsert([reading("m0", 100, -1), reading("m1", 101, 0), reading("m2", 102, 1)])
    maker.tick()
    table.delete([{"meter": "m3", "at": NINE + dt.timedelta(hours=2)}, {"meter": "m4", "at": NINE - dt.timedelta(hours=2)}])
    maker.tick()
    table.delete([{"meter": "m5"}, {"meter": "m6"}])
    maker.tick()
    table.upsert([reading("m3", 103, 1), reading("m5", 105, -5)])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([reading("m3", 203, 1.5), reading("m6", 206, -9), reading("m7", 207, -1)])
    maker.tick()
    table.upsert([reading("m3", 303, 2)])


def lateness(maker: Maker) -> None:
    """Log rows further behind the commit time of their slot than a day count for nothing; base files are not measured."""
    table = maker.table("readings", READINGS, key=["meter"], ordering="at", allowed_lateness="1 day", index=objcat.BucketIndex(1))
    maker.tick()
    table.insert([reading(f"m{n}", n, -40) for n in range(3)])
    maker.tick()
    table.upsert([reading("m0", 100, -39), reading("m1", 101, -23), reading("m5", 105, -50)])
    maker.tick()
    table.delete([{"meter": "m1", "at": NINE - dt.timedelta(hours=20)}, {"meter": "m2", "at": NINE - dt.timedelta(hours=30)}])
    maker.tick()
    table.delete("meter = 'm2'")
    maker.tick()
    table.maintenance.compact()
    maker.tick(60 * 30)
    table.upsert([reading("m1", 201, -22), reading("m0", 200, 10)])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([reading("m1", 301, 9)])


def copy_on_write(maker: Maker) -> None:
    """Every write makes new base files; ordered deletes that won stay as log rows."""
    table = maker.table("readings", READINGS, key=["meter"], ordering="at", index=objcat.BucketIndex(2), table_type="copy_on_write")
    maker.tick()
    table.insert([reading(f"m{n}", n, 0) for n in range(8)])
    maker.tick()
    table.upsert([reading("m0", 100, -1), reading("m1", 101, 1), reading("m9", 9, 0)])
    maker.tick()
    table.delete([{"meter": "m1", "at": NINE + dt.timedelta(hours=2)}, {"meter": "nobody", "at": NINE}])
    maker.tick()
    table.upsert([reading("m1", 201, 1.5), reading("nobody", 1, -1)])
    maker.tick()
    table.delete([{"meter": "m2"}])


def _looked_up(maker: Maker, index: Index) -> None:
    table = maker.table("items", ITEMS, key=["id"], index=index, properties={"target_file_bytes": "1024"})
    for first in (0, 8):
        maker.tick()
        table.upsert(items(range(first, first + 10)))
    maker.tick()
    table.upsert([item(1, "one"), item(9, "nine"), item(30)])
    maker.tick()
    table.delete([{"id": 2}, {"id": 77}])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([item(2, "two again"), item(31)])


def index_simple(maker: Maker) -> None:
    """The index `simple`: keys stay in the file group of their first row."""
    _looked_up(maker, objcat.SimpleIndex())


def index_bloom(maker: Maker) -> None:
    """The index `bloom`: base files have bloom filters."""
    _looked_up(maker, objcat.BloomIndex())


def index_memory(maker: Maker) -> None:
    """The index `memory`."""
    _looked_up(maker, objcat.MemoryIndex())


def index_record(maker: Maker) -> None:
    """The index `record`: a second table, in `index` of changes, says where keys are."""
    _looked_up(maker, objcat.RecordIndex(2))


def keys_that_move(maker: Maker) -> None:
    """A lookup index over all partitions: rows move between partitions, if they win."""
    table = maker.table("places", PLACES, key=["id"], ordering="at", partition_by=["city"], index=objcat.SimpleIndex())
    maker.tick()
    table.upsert([{"id": n, "city": "Oslo" if n % 2 else "Rome", "at": 10} for n in range(8)])
    maker.tick()
    table.upsert([{"id": 1, "city": "Rome", "at": 11}, {"id": 2, "city": "Oslo", "at": 9}, {"id": 3, "city": "Kyiv", "at": 10}])
    maker.tick()
    table.delete([{"id": 4, "at": 12}])
    maker.tick()
    table.upsert([{"id": 4, "city": "Kyiv", "at": 11}, {"id": 1, "city": "Oslo", "at": 12}])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([{"id": 4, "city": "Kyiv", "at": 13}])


EVENTS = pa.schema(
    [
        pa.field("event", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        ("what", pa.string()),
    ]
)
CITIES = ("Rome", "Zürich", "", "a/b=c", "東京 %", "x" * 200)


def event(number: int, what: str = "") -> dict[str, Any]:
    """A row of a partitioned table; some values need an escape or are cut."""
    at = NINE + dt.timedelta(hours=7 * number, days=40 * (number % 3))
    return {"event": number, "at": at, "day": at.date(), "city": CITIES[number % len(CITIES)], "what": what or f"event {number}"}


def partitioned(maker: Maker) -> None:
    """Partitions by five transforms and by awkward text."""
    by = ["year(day)", "month(day)", "hour(at)", "truncate(event, 8)", "city"]
    table = maker.table("events", EVENTS, key=["event", "at", "day", "city"], partition_by=by, index=objcat.BucketIndex(1))
    maker.tick()
    table.upsert([event(number) for number in range(12)])
    maker.tick()
    table.upsert([event(3, "again"), event(30)])
    maker.tick()
    table.delete([{name: event(5)[name] for name in ("event", "at", "day", "city")}])
    maker.tick()
    table.maintenance.compact()


def repartitioned(maker: Maker) -> None:
    """Rows of live partitions of the previous spec stay there; new partitions follow the new one, twice."""
    table = maker.table("events", EVENTS, key=["event", "city"], partition_by=["truncate(city, 1)"], index=objcat.BucketIndex(1))
    maker.tick()
    table.upsert([event(number) for number in (0, 1, 6)])
    maker.tick()
    table.alter.set_partitioning(["truncate(event, 4)"])
    maker.tick()
    table.upsert([event(0, "stays"), event(3), event(4, "new"), event(12, "stays too")])
    maker.tick()
    table.delete_partition("city = 'Rome'")
    maker.tick()
    table.upsert([event(0, "moved on"), event(12, "moved too")])
    maker.tick()
    table.alter.set_partitioning(["city"])
    maker.tick()
    table.upsert([event(1, "again"), event(5), event(17, "Z")])


def split(maker: Maker) -> None:
    """Buckets are split without a file written again; then one half is compacted, and split again."""
    table = maker.table("items", ITEMS, key=["id"], index=objcat.BucketIndex(2))
    maker.tick()
    table.insert(items(range(16)))
    maker.tick()
    table.upsert(items(range(0, 20, 3), name="before"))
    maker.tick()
    table.maintenance.split_buckets(count=4)
    maker.tick()
    table.upsert(items(range(0, 24, 5), name="after"))
    maker.tick()
    table.delete([{"id": 1}, {"id": 2}])
    maker.tick()
    table.maintenance.compact(file_groups=[FileGroupId("", bucket, 4) for bucket in (0, 3)])
    maker.tick()
    table.maintenance.split_buckets(count=8)
    maker.tick()
    table.upsert(items(range(0, 30, 7), name="last"))


def clustered(maker: Maker) -> None:
    """Base files in another order than that of the key, and along a z-order; log rows on top of them."""
    table = maker.table("places", PLACES, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    maker.tick()
    table.insert([{"id": n, "city": f"city {n * 7 % 12}" if n % 5 else None, "at": n % 3} for n in range(24)])
    maker.tick()
    table.maintenance.cluster(by=["city", "id"])
    maker.tick()
    table.upsert([{"id": n, "city": "moved", "at": 1} for n in range(0, 24, 4)])
    maker.tick()
    table.delete([{"id": 6, "at": 9}])
    maker.tick()
    table.delete([{"id": 7}])
    maker.tick()
    table.maintenance.cluster(by=["city", "at"], zorder=True)
    maker.tick()
    table.upsert([{"id": 6, "city": "late", "at": 8}, {"id": 7, "city": "back", "at": 0}])


def clustered_groups(maker: Maker) -> None:
    """A clustering moves rows from file groups to others, under a record index."""
    settings = {"target_file_bytes": "1024"}
    table = maker.table("places", PLACES, key=["id"], ordering="at", index=objcat.RecordIndex(2), properties=settings)
    for first in (0, 10):
        maker.tick()
        table.upsert([{"id": n, "city": f"city {n * 7 % 12}", "at": 1} for n in range(first, first + 10)])
    maker.tick()
    table.delete([{"id": 3, "at": 5}])
    maker.tick()
    table.set_properties({"target_file_bytes": "65536"})
    maker.tick()
    table.maintenance.cluster(by=["city"])
    maker.tick()
    table.upsert([{"id": 3, "city": "late", "at": 4}, {"id": 4, "city": "newer", "at": 2}, {"id": 40, "city": "new", "at": 1}])


def restored(maker: Maker) -> None:
    """States that come back: across a split, a change of the schema, another restore, and a drop."""
    table = maker.table("items", ITEMS, key=["id"], index=objcat.BucketIndex(1))
    maker.tick()
    table.insert(items(range(6)), app=objcat.AppVersion(app="feed", version=1))
    maker.tick()
    table.upsert([item(1, "one"), item(7)], app=objcat.AppVersion(app="feed", version=2))
    maker.tick()
    table.maintenance.split_buckets(count=2)
    maker.tick()
    table.alter.widen_column("count", "bigint")
    maker.tick()
    table.upsert([item(1, "wide", count=2**40)])
    maker.tick()
    table.restore(to=2)
    maker.tick()
    table.upsert([item(2, "two")])
    maker.tick()
    table.restore(to=5)
    maker.tick()
    maker.lake.drop_table("items")
    maker.tick()
    maker.lake.undrop_table("items").upsert([item(3, "after the drop")])


def several_tables(maker: Maker) -> None:
    """Two tables of one domain share a log; the second begins later; one slot changes both."""
    accounts = pa.schema([pa.field("account", pa.decimal128(12, 0), nullable=False), ("balance", pa.int64())])
    moves = pa.schema([pa.field("id", pa.binary(), nullable=False), ("account", pa.decimal128(12, 0)), ("amount", pa.int64())])
    first = maker.table("bank.accounts", accounts, key=["account"], shared_log="bank", index=objcat.BucketIndex(1))
    maker.tick()
    first.insert([{"account": Decimal(n), "balance": 100} for n in (1, 2, 3)])
    maker.table("bank.moves", moves, key=["id"], shared_log="bank", index=objcat.BucketIndex(1))
    for number, (source, target, amount) in enumerate([(1, 2, 30), (2, 3, 5)]):
        maker.tick()
        with maker.lake.transaction(isolation="serializable", metadata={"transfer": str(number)}) as tx:
            balances = {row["account"]: row["balance"] for row in tx["bank.accounts"].scan().to_arrow().to_pylist()}
            changed = [(Decimal(source), -amount), (Decimal(target), amount)]
            tx["bank.accounts"].upsert([{"account": who, "balance": balances[who] + by} for who, by in changed])
            tx["bank.moves"].insert([{"id": bytes([number, at]), "account": who, "amount": by} for at, (who, by) in enumerate(changed)])
    maker.tick()
    maker.lake.table("bank.moves").maintenance.compact()


def positions(maker: Maker) -> None:
    """Two sources of a log of two tables: small and large states, a commit without rows, a RESTORE, a checkpoint, archived slots."""
    first = maker.table("shop.items", ITEMS, key=["id"], shared_log="shop", index=objcat.BucketIndex(1))
    maker.table("shop.places", PLACES, key=["id"], shared_log="shop", index=objcat.BucketIndex(1))

    def read(source: str, since: int, state: dict[str, Any], *ids: int, resumed_after: int | None = None) -> None:
        maker.tick()
        position = objcat.SourcePosition(source=source, state=state, since=since, resumed_after=resumed_after)
        with maker.lake.transaction(shared_log="shop", position=position) as tx:
            if ids:
                tx["shop.items"].upsert([item(number) for number in ids])
            if source == "mysql-eu":
                tx["shop.places"].upsert([{"id": number, "city": "Oslo", "at": since} for number in ids])

    read("mysql-eu", -1, {"gtid": "0-1-7", "todo": [["shop.items", 0, 100]]}, 1, 2)
    read("mysql-eu", 0, {"gtid": "0-1-9"}, 2, 3)
    read("orders", -1, {"offsets": {"0": 12, "1": 2**60}, "seen": [None, True, 0.5, "Zürich"]}, 7)
    read("mysql-eu", 1, {"gtid": "0-1-9", "chunks": [[number, f"item {number}"] for number in range(400)]}, 4)
    read("orders", 0, {"offsets": {"0": 12, "1": 2**60}})
    maker.tick()
    first.restore(to=4)
    read("mysql-eu", 2, {"gtid": "0-1-11"}, 5, resumed_after=first.refresh().slot)
    for number in range(40):
        maker.tick()
        first.upsert([item(number)])
    maker.tick()
    archive(first._context.timeline, keep_slots=16)
    read("orders", 1, {}, 8, resumed_after=7)


def without_key(maker: Maker) -> None:
    """Equal rows stay; small inserts fill file groups; a filter deletes."""
    schema = pa.schema([("line", pa.int64()), ("text", pa.string())])
    table = maker.table("lines", schema, key=None, partition_by=["truncate(line, 10)"])
    for batch in (range(12), (3, 3), range(8, 16)):
        maker.tick()
        table.insert([{"line": n, "text": f"line {n}"} for n in batch])
    maker.tick()
    table.delete("line >= 9 and line < 12")
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.insert([{"line": None, "text": None}])


def schema_evolution(maker: Maker) -> None:
    """Columns added, renamed, swapped, dropped, widened and added again, nested ones too, between writes."""
    schema = pa.schema(
        [pa.field("id", pa.int32(), nullable=False), ("a", pa.int16()), ("b", pa.string()), ("s", pa.struct([("x", pa.int8())]))]
    )
    table = maker.table("grown", schema, key=["id"], index=objcat.BucketIndex(1))
    maker.tick()
    table.insert([{"id": n, "a": n, "b": f"b{n}", "s": {"x": n} if n else None} for n in range(4)])
    maker.tick()
    table.alter.apply([objcat.RenameColumn("a", "c"), objcat.RenameColumn("b", "a"), objcat.RenameColumn("c", "b")])
    maker.tick()
    table.upsert([{"id": 1, "a": "new a", "b": 300, "s": {"x": 1, "y": "y"}, "new": 1.5}], schema_mode="add")
    maker.tick()
    table.alter.widen_column("b", "bigint")
    maker.tick()
    table.alter.drop_column("a")
    maker.tick()
    table.alter.add_column("a", pa.bool_(), after="id")
    maker.tick()
    table.upsert([{"id": 9, "a": True, "b": 2**40}])
    maker.tick()
    table.maintenance.compact()


def every_type(maker: Maker) -> None:
    """A column of every type with values at its edges, null, and nested; keys of several types."""
    types = {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "short": pa.decimal128(10, 2),
        "long": pa.decimal128(38, 10),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "struct": pa.struct([("who", pa.string()), ("inner", pa.struct([("x", pa.int8())]))]),
        "list": pa.list_(pa.struct([("y", pa.float32())])),
        "map": pa.map_(pa.string(), pa.list_(pa.int16())),
    }
    keyed_by = {"k1": pa.string(), "k2": pa.float64(), "k3": pa.decimal128(20, 0)}
    keys = [pa.field(name, kind, nullable=False) for name, kind in keyed_by.items()]
    table = maker.table("types", pa.schema([*keys, *types.items()]), key=["k1", "k2", "k3"], index=objcat.BucketIndex(2))
    naive = zoneless(9999, 12, 31, 23, 59, 59, 999_999)
    full = [True, -128, 32767, -(2**31), 2**63 - 1, float("inf"), float("nan"), Decimal("-0.50"), Decimal("12.0000000001")]
    full += ["Zürich 🚕", b"\0\xff", dt.date(1, 1, 1), dt.datetime(1, 1, 1, tzinfo=dt.UTC), naive]
    full += [{"who": "Ann", "inner": None}, [{"y": 1.5}, None], [("a", [1, None]), ("b", None)]]
    zero = [False, 0, 0, 0, 0, -0.0, -0.0, Decimal("0.00"), Decimal(0), "", b"", dt.date(1970, 1, 1), NINE, NINE.replace(tzinfo=None)]
    zero += [{"who": None, "inner": {"x": 1}}, [], []]

    def row(keyed: Sequence[Any], values: Sequence[Any] | None) -> dict[str, Any]:
        named = zip(types, [None] * len(types) if values is None else values, strict=True)
        return {**dict(zip(("k1", "k2", "k3"), keyed, strict=True)), **dict(named)}

    maker.tick()
    nan = float("nan")
    table.upsert([row(("Zürich", nan, Decimal(-129)), full), row(("", -0.0, Decimal(128)), zero), row(("abcü", 1.5, Decimal(0)), None)])
    maker.tick()
    table.upsert([row(("Zürich", -nan, Decimal(-129)), zero), row(("", 0.0, Decimal(128)), full)])
    maker.tick()
    table.maintenance.compact()


def overwritten(maker: Maker) -> None:
    """Whole partitions replaced and emptied."""
    table = maker.table("places", PLACES, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(1))
    cities = ("Oslo", "Rome", "Kyiv")
    maker.tick()
    table.upsert([{"id": n, "city": cities[n % 3], "at": 1} for n in range(9)])
    maker.tick()
    table.insert_overwrite([{"id": n, "city": "Rome", "at": 2} for n in (1, 40)])
    maker.tick()
    table.delete_partition("city = 'Kyiv'")
    maker.tick()
    table.upsert([{"id": 50, "city": "Kyiv", "at": 3}])


def clean_and_savepoint(maker: Maker) -> None:
    """A retention floor, files that are gone, a saved slot below the floor, and another that was released."""
    table = maker.table("items", ITEMS, key=["id"], index=objcat.BucketIndex(1))
    for number in range(4):
        maker.tick()
        table.upsert(items(range(number, number + 3), name=f"write {number}"))
    maker.tick()
    table.maintenance.savepoint(slot=2, name="audit")
    maker.tick()
    table.maintenance.savepoint(slot=3, name="for an hour")
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.maintenance.release_savepoint(slot=3)
    maker.tick()
    table.upsert([item(0, "newest")])
    maker.tick()
    table.maintenance.clean(before=7)


def erasure(maker: Maker) -> None:
    """Rows of a partition are erased: entries are redacted, and the partition's name is gone. An older reader refuses this table."""
    table = maker.table("places", PLACES, key=["id", "city"], partition_by=["city"], index=objcat.BucketIndex(1))
    maker.tick()
    table.upsert([{"id": n, "city": "Oslo" if n % 2 else "secret", "at": n} for n in range(8)])
    maker.tick()
    table.upsert([{"id": 3, "city": "Oslo", "at": 33}], metadata={"note": "about a secret"})
    maker.tick(120)
    table.erase("city = 'secret'", older_than_s=60)
    maker.tick()
    table.refresh()
    table.upsert([{"id": 5, "city": "Oslo", "at": 55}])


def checkpoints_and_archive(maker: Maker) -> None:
    """A long log: checkpoints with shards of several runs, a void one, the hint, archived slots; most rows come from the checkpoint."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("what", pa.string()), pa.field("at", pa.int64(), nullable=False)])
    table = maker.table("events", schema, key=["id"], ordering="at", index=objcat.BucketIndex(2))
    for number in range(70):
        maker.tick()
        if number % 20 == 19:
            table.maintenance.compact()
        else:
            table.upsert([{"id": number % 9, "what": f"event {number}", "at": number}], app=objcat.AppVersion(app="feed", version=number))
    maker.tick()
    # The stored table is of a time when a collection put no hint, for which ids are drawn.
    with mock.patch.object(Timeline, "publish_hint"):
        collect_checkpoints(table._context.timeline, Committer(table._context.fileio), keep=1)
    maker.tick()
    archive(table._context.timeline, keep_slots=16)
    maker.tick()
    table.refresh()
    table.upsert([{"id": 1, "what": "the last one", "at": 100}])


def names(maker: Maker) -> None:
    """The catalog of a lake: namespaces, a rename, a drop, an undrop under another name, a purge."""
    lake = maker.lake
    for name in ("old.Émile", "old.gone", "old.back", "old.purged"):
        maker.table(name, ITEMS, key=["id"], index=objcat.BucketIndex(1))
    maker.tick()
    lake.namespaces.create("new.place", {"owner": "Ann"})
    maker.tick()
    lake.rename_table("old.Émile", "new.place.Émile")
    for name in ("old.gone", "old.back", "old.purged"):
        maker.tick()
        lake.drop_table(name)
    maker.tick()
    lake.undrop_table("old.back", new_name="new.back")
    maker.tick()
    lake.purge_table("old.purged", older_than_s=0)
    maker.table("shared.one", ITEMS, key=["id"], shared_log="both")
    maker.tick()
    lake.namespaces.set_properties("new", {"seen": "yes"})


def large_commit(maker: Maker) -> None:
    """Changes too large for a slot, and more digests of keys than a footprint holds: both are in side objects."""
    by = ["city", "truncate(city, 120)"]
    table = maker.table("places", PLACES, key=["id", "city"], partition_by=by, index=objcat.SimpleIndex())
    maker.tick()
    table.insert([{"id": n, "city": f"{'long ' * 30}{n}", "at": None} for n in range(60)])
    maker.tick()
    table.delete([{"id": 1000 + n, "city": "x"} for n in range(520)])


FEATURES: Sequence[Feature] = [
    Feature("merge-on-read", "log rows, deletes, a rolled-back writer, a compaction", merge_on_read),
    Feature("event-time", "an ordering column: late rows, equal times, tombstones, also above a compaction, barriers", event_time),
    Feature("lateness", "late rows that count for nothing, and base files that are not measured", lateness),
    Feature("copy-on-write", "new base files for each write, with ordered deletes next to them", copy_on_write),
    Feature("index-simple", "the index simple: rows say where their key is", index_simple),
    Feature("index-bloom", "the index bloom", index_bloom),
    Feature("index-memory", "the index memory", index_memory),
    Feature("index-record", "the index record", index_record),
    Feature("keys-that-move", "keys unique over all partitions, whose rows move", keys_that_move),
    Feature("partitioned", "partitions by five transforms, with escapes and a cut value", partitioned),
    Feature("repartitioned", "two changes of the partition spec", repartitioned),
    Feature("split", "buckets split twice, half of them compacted between", split),
    Feature("clustered", "base files in another order, and in a z-order", clustered),
    Feature("clustered-groups", "a clustering that moves rows between file groups", clustered_groups),
    Feature("restored", "restores over a split and a change of the schema, a drop and an undrop", restored),
    Feature("several-tables", "two tables in one log", several_tables),
    Feature("without-key", "a table without a key", without_key),
    Feature("schema-evolution", "every change of columns", schema_evolution),
    Feature("every-type", "every type, nested ones too, and keys with traps", every_type),
    Feature("overwritten", "partitions that are replaced and emptied", overwritten),
    Feature("clean-and-savepoint", "slots that expired, and one that was saved", clean_and_savepoint),
    Feature("erasure", "an erasure that removed a partition", erasure),
    Feature("checkpoints-and-archive", "checkpoints, void roots, the hint, archived slots", checkpoints_and_archive),
    Feature("names", "the names of a lake", names, is_lake=True),
    Feature("large-commit", "side objects: of changes, and of digests of keys", large_commit),
    Feature("adopted-files", "files that another tool wrote, read under the names and with the values of the log", adopted),
    Feature("column-defaults", "columns that join with a default, for rows of older files and for batches", column_defaults),
    Feature("positions", "positions of two sources, in the log of two tables", positions),
    Feature("blocks", "slots with several calls on one table: blocks of transactions", blocks),
    Feature(
        "ordering-columns", "three ordering columns: rows that differ in one of them, tombstones, barriers, a compaction", ordering_columns
    ),
    Feature("hint-without-checkpoint", "a hint that carries every entry of a young log", hint_without_checkpoint),
    Feature("hint-with-root", "a hint that carries the root of a checkpoint and the entries above it", hint_with_root),
    Feature("hint-of-another-log", "a hint that carries another last entry than its slot has", hint_of_another_log),
    Feature("derived-tables", "a join and an aggregate that refreshes keep up to date, with the slots that they show", derived_tables),
    Feature("shared-slots", "slots that commit several transactions, of writers that asked and died", shared_slots),
]
