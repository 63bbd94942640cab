"""docs/spec/ is a whole specification: a reader that was written from these pages alone sees what objcat sees, at every slot.

Lakes are made through the public API by random but seeded operations, and compared both ways of opening: all slots from 0 on, and the
newest checkpoint with the slots above it.
"""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import importlib.util
import itertools
import json
import random
import re
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import GetResult
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Request, Rule, Rules
from objcat.common.validation import TableType
from objcat.errors import CommitConflict, InvalidInput, SnapshotExpired, StreamRewound, TableClosed
from objcat.metadata.table_spec import Index
from objcat.timeline.archive import archive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "golden"


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reader = _module("second_reader", HERE / "reader.py")

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [False, True], ids=["from slot 0", "from the checkpoint"])
NINE = dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)

NUMBERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("o", pa.int64())])
PLACES = pa.schema(
    [
        pa.field("street", pa.string(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        ("o", pa.timestamp("us", tz="UTC")),
        ("seen", pa.list_(pa.struct([("who", pa.string()), ("minutes", pa.int16())]))),
        ("marks", pa.map_(pa.string(), pa.float32())),
    ]
)
MONEY = pa.schema([pa.field("amount", pa.decimal128(30, 3), nullable=False), ("code", pa.binary()), ("o", pa.decimal128(9, 2))])


def number(key: int, order: int, value: int) -> dict[str, Any]:
    return {"id": key - 7, "v": None if value % 5 == 0 else value, "o": order}


def place(key: int, order: int, value: int) -> dict[str, Any]:
    seen = [{"who": f"ü{value}", "minutes": None if value % 2 else value % 100}] if value % 3 else None
    street = ("", "Straße", "東京の", "abc", "abcde")[key % 5]
    return {
        "street": street,
        "day": dt.date(1970, 1, 3) - dt.timedelta(days=key // 5),
        "o": NINE + dt.timedelta(microseconds=order),
        "seen": seen,
        "marks": [("a", value / 4), ("b", None)] if value % 2 else [],
    }


def money(key: int, order: int, value: int) -> dict[str, Any]:
    return {"amount": (Decimal(key) - 8) * Decimal(10) ** key / 1000, "code": bytes([value % 256, 255]), "o": Decimal(order) / 4}


Maker = Callable[[int, int, int], dict[str, Any]]
SHAPES: dict[str, tuple[pa.Schema, list[str], Maker]] = {
    "numbers": (NUMBERS, ["id"], number),
    "places": (PLACES, ["street", "day"], place),
    "money": (MONEY, ["amount"], money),
}
KEYS = 16
ORDERS = 6
SPLITS_MAX = 3


class World:
    """A lake in memory that random operations change; a minute passes before each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.env = FakeEnv(seed, now_ms=int(NINE.timestamp() * 1000))
        self.backend = MemoryBackend(f"second-reader-{seed}", env=self.env)
        self.lake = objcat.Lake(FileIO(self.backend, env=self.env))
        self.batches = itertools.count()
        self.deaths = itertools.count(seed * 1000)

    def dump(self, path: Path) -> Path:
        for key in self.lake.fileio.list_keys():
            found = self.lake.fileio.get(key)
            assert isinstance(found, GetResult)
            (path / key).parent.mkdir(parents=True, exist_ok=True)
            (path / key).write_bytes(found.data)
        return path


class Subject:
    """A table, and the operations on it."""

    def __init__(
        self,
        world: World,
        name: str,
        shape: str,
        *,
        ordered: bool,
        kind: TableType = "merge_on_read",
        domain: str | None = None,
        evolves: bool = False,
        index: Index | None = None,
        partition_by: Sequence[str] = (),
    ) -> None:
        self.world, self.name, self.ordered, self.evolves = world, name, ordered, evolves
        self.schema, self.key, self.maker = SHAPES[shape]
        self.table = world.lake.create_table(
            name,
            self.schema,
            key=self.key,
            ordering="o" if ordered else None,
            index=index or objcat.BucketIndex(2),
            table_type=kind,
            shared_log=domain,
            partition_by=partition_by,
            properties={"target_file_bytes": "2048"},
        )
        self.splits = SPLITS_MAX if self.table.spec.is_located else 0

    def batch(self, size: int | None = None) -> pa.Table:
        """Keys may come twice, orders late or equal."""
        rng = self.world.random
        rows = [
            self.maker(rng.randrange(KEYS), rng.randrange(ORDERS), next(self.world.batches)) for _ in range(size or rng.randrange(1, 7))
        ]
        if not self.evolves:
            return pa.Table.from_pylist(rows, self.schema)
        schema = self.table.refresh().spec.table_schema.to_arrow()
        fixed = {*self.key, "o"}
        return pa.Table.from_pylist(
            [{field.name: row[field.name] if field.name in fixed else some_value(rng, field.type) for field in schema} for row in rows],
            schema,
        )

    def do_alter(self) -> None:
        """Some change of a column other than those by which rows are found and ordered, nested ones too."""
        self.table.refresh()
        rng, fields = self.world.random, self.table.schema
        named = [name for name in fields.names if name not in (*self.key, "o")]
        new = f"{rng.choice(['x', 'Ä', 'v', 'who_3'])}{next(self.world.batches) % 4}"
        if len(named) < 2:
            self.table.alter.add_column(f"{new}b" if new in named else new, "smallint")
            return
        path = rng.choice(named)
        inside = _structs(fields.field(path).type, path)
        sibling = None
        if inside and rng.random() < 0.7:
            prefix, struct = rng.choice(inside)
            path, new = f"{prefix}.{rng.choice([field.name for field in struct])}", f"{prefix}.{new}"
            sibling = struct.field(0).name
        kind = rng.choice(
            [pa.int16(), pa.float32(), pa.string(), pa.decimal128(5, 1), pa.list_(pa.struct([("n", pa.int8()), ("m", pa.date32())]))]
        )
        widened = [objcat.WidenColumn(path, wide) for wide in ("bigint", "double", "decimal(30,3)", "decimal(38,1)", "decimal(38,10)")]
        changes = [
            objcat.AddColumn(new, kind, first=rng.random() < 0.3),
            objcat.DropColumn(path),
            objcat.RenameColumn(path, new.rpartition(".")[2]),
            objcat.MoveColumn(path, after=sibling or self.key[0]),
            *widened,
        ]
        rng.shuffle(changes)
        for change in changes:
            with contextlib.suppress(InvalidInput):
                self.table.alter.apply([change])
                return

    def do_upsert_more(self) -> None:
        """A batch that brings a column along."""
        batch = self.batch()
        name = f"x{next(self.world.batches) % 4}"
        if name not in batch.column_names:
            batch = batch.append_column(name, pa.array([1.5] * len(batch), pa.float32()))
        self.table.upsert(batch, schema_mode=self.world.random.choice(["add", "widen"]))

    def keys(self, *, with_order: bool) -> pa.Table:
        return self.batch().select([*self.key, "o"] if with_order else self.key)

    def some_slot(self) -> int:
        """One of the newest slots that can be read."""
        self.table.refresh()
        newest = self.table.snapshot.slot
        while True:
            slot = self.world.random.randrange(max(0, newest - 30), newest + 1)
            try:
                self.table.scan(as_of=slot)
            except (SnapshotExpired, TableClosed):
                continue
            return slot

    def step(self, weights: dict[str, int]) -> None:
        self.world.env.advance(60)
        chosen = self.world.random.choices(list(weights), weights=list(weights.values()))[0]
        try:
            getattr(self, f"do_{chosen}")()
        except CommitConflict:
            self.table.refresh()  # A RESTORE that this handle had not seen.

    def do_upsert(self) -> None:
        self.table.upsert(self.batch())

    def do_insert(self) -> None:
        self.table.insert(self.batch())

    def do_delete(self) -> None:
        self.table.delete(self.keys(with_order=False))

    def do_delete_ordered(self) -> None:
        self.table.delete(self.keys(with_order=True))

    def do_app(self) -> None:
        rng = self.world.random
        app, version = rng.choice(["a", "b"]), rng.randrange(100)
        try:
            self.table.upsert(self.batch(), app=objcat.AppVersion(app=app, version=version))
        except StreamRewound as rewound:
            found = re.search(r"slot (\d+)", str(rewound))
            assert found is not None
            if rng.random() < 0.7:
                self.table.upsert(self.batch(), app=objcat.AppVersion(app=app, version=version, resumed_after=int(found[1])))

    def do_compact(self) -> None:
        self.table.maintenance.compact()

    def do_cluster(self) -> None:
        plain = [field.name for field in self.table.schema if not pa.types.is_nested(field.type)]
        by = self.world.random.sample(plain, min(len(plain), self.world.random.choice([1, 2])))
        self.table.maintenance.cluster(by=by, zorder=len(by) > 1 and self.world.random.random() < 0.4)

    def do_split(self) -> None:
        if self.splits < SPLITS_MAX:
            self.splits += 1
            self.table.maintenance.split_buckets()

    def do_properties(self) -> None:
        self.table.set_properties({"owner": f"Ω{next(self.world.batches)}"})

    def do_savepoint(self) -> None:
        self.table.maintenance.savepoint(slot=self.some_slot())

    def do_release(self) -> None:
        saved = sorted(marks_of(self.table).saved)
        if saved:
            self.table.maintenance.release_savepoint(slot=self.world.random.choice(saved))

    def do_restore(self) -> None:
        self.table.restore(to=self.some_slot())
        self.table.refresh()

    def do_clean(self) -> None:
        self.table.refresh()
        self.table.maintenance.clean(keep_slots=self.world.random.randrange(20, 60))

    def do_archive(self) -> None:
        archive(self.table._context.timeline, keep_slots=self.world.random.randrange(1, 20))

    def do_rename(self) -> None:
        self.world.lake.rename_table(self.name, new := self.world.random.choice(["x.Ä", "x.y.z", "w"]) + f"{next(self.world.batches)}")
        self.name = new

    def do_drop(self) -> None:
        self.world.lake.drop_table(self.name)
        self.world.env.advance(60)
        new_name = f"again{next(self.world.batches)}"
        self.table = self.world.lake.undrop_table(self.name, new_name=new_name)
        self.name = new_name

    def do_die(self) -> None:
        """A writer is killed at its slot, before or after it is there."""
        rule = Rule(fault=self.world.random.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER]), kinds=frozenset({"put"}), key=_is_slot)
        env = FakeEnv(next(self.world.deaths), now_ms=self.world.env.now_ms())
        lake = objcat.Lake(FileIO(FaultyBackend(self.world.backend, Rules([rule])), env=env))
        with pytest.raises(Crash):
            lake.table(self.name).upsert(self.batch())
        self.world.env.advance(60)
        self.table.maintenance.rollback_failed_writes(older_than_s=1)

    def do_forestalled(self) -> None:
        """Somebody else commits between the plan of an operation and its slot."""
        world, pending = self.world, [self.world.random.choice(["upsert", "delete", "compact", "alter" if self.evolves else "split"])]

        def before(request: Request) -> None:
            if pending and request.kind == "put" and _is_slot(request.key):
                getattr(self, f"do_{pending.pop()}")()

        env = FakeEnv(next(world.deaths), now_ms=world.env.now_ms())
        late = objcat.Lake(FileIO(FaultyBackend(world.backend, before=before), env=env)).table(self.name)
        match world.random.choice(["upsert", "insert", "delete", "compact"]):
            case "upsert":
                late.upsert(self.batch())
            case "insert":
                late.insert(self.batch())
            case "delete":
                late.delete(self.keys(with_order=self.ordered))
            case "compact":
                late.maintenance.compact()


def _structs(data_type: pa.DataType, path: str) -> list[tuple[str, pa.StructType]]:
    """The structs inside of a column, by path."""
    if pa.types.is_struct(data_type):
        inside = [found for field in data_type for found in _structs(field.type, f"{path}.{field.name}")]
        return [(path, data_type), *inside]
    if pa.types.is_list(data_type):
        return _structs(data_type.value_type, f"{path}.element")
    return _structs(data_type.item_type, f"{path}.value") if pa.types.is_map(data_type) else []


def some_value(rng: random.Random, data_type: pa.DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(data_type):
        return {field.name: some_value(rng, field.type) for field in data_type}
    if pa.types.is_list(data_type):
        return [some_value(rng, data_type.value_type) for _ in range(rng.randrange(3))]
    if pa.types.is_map(data_type):
        return [(f"k{number}", some_value(rng, data_type.item_type)) for number in range(rng.randrange(3))]
    number = rng.randrange(-100, 100)
    if pa.types.is_decimal(data_type):
        return Decimal(number) / 4 if data_type.scale > 1 else Decimal(number)
    if pa.types.is_floating(data_type):
        return number / 4
    if pa.types.is_date(data_type):
        return dt.date(1970, 1, 1) + dt.timedelta(days=number)
    if pa.types.is_string(data_type):
        return f"ü{number}"
    return bytes([abs(number)]) if pa.types.is_binary(data_type) else number


def _is_slot(key: str) -> bool:
    return "/log/" in key


def marks_of(table: objcat.Table) -> Any:
    return table._context.timeline.open().log.marks(table.id)


WEIGHTS = {
    **dict.fromkeys(["properties", "release", "clean", "rename", "drop"], 1),
    **dict.fromkeys(["split", "savepoint", "restore", "archive", "die"], 2),
    **dict.fromkeys(["delete", "app", "forestalled"], 8),
    "upsert": 24,
    "insert": 12,
    "compact": 5,
    "cluster": 5,
}


def plain(value: Any) -> Any:
    """A value of a row that compares by its bits: NaN equals NaN, and -0.0 differs from 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(plain(row)) for row in rows)


def told(table: objcat.Table, slot: int) -> list[str] | str:
    """What objcat says of a slot."""
    try:
        return shown(table.scan(as_of=slot).to_arrow().to_pylist())
    except SnapshotExpired:
        return "expired"
    except TableClosed:
        return "closed"


def read(table: Any, slot: int) -> list[str] | str:
    """What the second reader says of it."""
    try:
        return shown(table.rows(slot))
    except reader.Expired:
        return "expired"
    except reader.Closed:
        return "closed"


def outcomes_of(table: objcat.Table) -> dict[str, tuple[str, int]]:
    """Of every txn that the log speaks of."""
    outcomes: dict[str, tuple[str, int]] = {}
    for entry in table.inspect.history():
        outcomes[entry.txn] = ("committed", entry.slot)
        if entry.rollback_of is not None:
            outcomes[entry.rollback_of] = ("rolled back", entry.slot)
    return outcomes


def compare(lake: objcat.Lake, path: Path) -> int:
    """Every name, and every table at every slot, both ways of opening; how many snapshots had rows."""
    compared = 0
    lakes = [reader.Lake(path), reader.Lake(path, checkpoint=True)]
    for second in lakes:
        assert second.tables() == lake.tables()
        assert second.namespaces() == {name: lake.namespaces.properties(name) for name in lake.namespaces.list()}
        assert second.dropped() == sorted(dropped.name for dropped in lake.dropped_tables())
    for name in lake.tables():
        table = lake.table(name)
        tables = [second.table(name) for second in lakes]
        marks = marks_of(table)
        for second in tables:
            assert second.log.head == table.snapshot.slot
            assert second.marks.bound == marks.bound
            assert second.marks.saved == set(marks.saved)
            assert second.marks.apps == {app: (reached.version, reached.rewound_at) for app, reached in marks.apps.items()}
            for txn, outcome in outcomes_of(table).items():
                assert second.outcome(txn) == outcome
            assert second.outcome("20261121T090000000Z-0000000000000000") is None
        for slot in range(tables[0].log.born(table.id), table.snapshot.slot + 1):
            expected = told(table, slot)
            compared += isinstance(expected, list) and bool(expected)
            for second in tables:
                assert read(second, slot) == expected, (name, slot, second.checkpoint)
    return compared


@pytest.mark.parametrize(
    ("seed", "shape", "ordered", "kind"),
    [
        (1, "numbers", True, "merge_on_read"),
        (2, "numbers", False, "merge_on_read"),
        (3, "numbers", True, "copy_on_write"),
        (4, "places", True, "merge_on_read"),
        (5, "money", False, "copy_on_write"),
        (6, "money", True, "merge_on_read"),
    ],
)
def test_every_slot_of_a_table(tmp_path: Path, seed: int, shape: str, ordered: bool, kind: TableType) -> None:
    world = World(seed)
    subject = Subject(world, "city.things", shape, ordered=ordered, kind=kind)
    weights = {**WEIGHTS, "delete_ordered": 8 if ordered else 0}
    for _ in range(56):
        subject.step(weights)
    path = world.dump(tmp_path)
    assert any(path.glob("tables/*/checkpoints/*/root.json"))
    assert compare(world.lake, path) > 20


@pytest.mark.parametrize(
    ("seed", "ordered", "kind", "index"),
    [
        (41, True, "merge_on_read", objcat.BloomIndex()),
        (42, False, "merge_on_read", objcat.RecordIndex(3)),
        (43, True, "copy_on_write", objcat.RecordIndex(2)),
        (46, False, "copy_on_write", objcat.MemoryIndex()),
    ],
)
def test_every_slot_of_a_table_whose_keys_are_located(tmp_path: Path, seed: int, ordered: bool, kind: TableType, index: Index) -> None:
    world = World(seed)
    subject = Subject(world, "city.things", "money", ordered=ordered, kind=kind, index=index)
    for _ in range(40):
        subject.step(WEIGHTS)
    assert compare(world.lake, world.dump(tmp_path)) > 15


@pytest.mark.parametrize(
    ("seed", "ordered", "kind", "index"),
    [(44, True, "merge_on_read", objcat.RecordIndex(2)), (45, False, "copy_on_write", objcat.SimpleIndex())],
)
def test_every_slot_of_a_table_whose_rows_move(tmp_path: Path, seed: int, ordered: bool, kind: TableType, index: Index) -> None:
    world = World(seed)
    # So that late rows are of another partition than their keys.
    subject = Subject(world, "city.things", "money", ordered=ordered, kind=kind, index=index, partition_by=["o"])
    for _ in range(30):
        subject.step(WEIGHTS)
    assert subject.table.spec.is_global
    assert compare(world.lake, world.dump(tmp_path)) > 10


@pytest.mark.parametrize(
    ("seed", "shape", "ordered", "kind"),
    [
        (21, "numbers", True, "merge_on_read"),
        (22, "numbers", False, "copy_on_write"),
        (23, "places", True, "merge_on_read"),
        (24, "places", False, "copy_on_write"),
        (25, "money", True, "merge_on_read"),
    ],
)
def test_every_slot_of_a_table_whose_schema_changes(tmp_path: Path, seed: int, shape: str, ordered: bool, kind: TableType) -> None:
    world = World(seed)
    subject = Subject(world, "city.things", shape, ordered=ordered, kind=kind, evolves=True)
    schemas = set()
    for _ in range(70):
        subject.step({**WEIGHTS, "delete_ordered": 8 if ordered else 0, "alter": 30, "upsert_more": 4, "restore": 3})
        schemas.add(subject.table.refresh().spec.table_schema)
    path = world.dump(tmp_path)
    assert len(schemas) > 10
    assert compare(world.lake, path) > 20


def test_a_delete_that_a_compaction_keeps_counts_as_of_its_plan(tmp_path: Path) -> None:
    world = World(10)
    table = world.lake.create_table("t", NUMBERS, key=["id"], ordering="o", index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "v": 1, "o": 1}, {"id": 2, "v": 1, "o": 1}])
    table.delete([{"id": 1, "o": 5}, {"id": 2, "o": 5}])
    pending = [[{"id": 1, "v": 2, "o": 5}, {"id": 2, "v": 2, "o": 4}]]

    def before(request: Request) -> None:
        if pending and request.kind == "put" and _is_slot(request.key):
            table.upsert(pending.pop())

    objcat.Lake(FileIO(FaultyBackend(world.backend, before=before), env=FakeEnv(11))).table("t").maintenance.compact()
    assert told(table, 4) == shown([{"id": 1, "v": 2, "o": 5}])
    assert compare(world.lake, world.dump(tmp_path)) == 3


def test_tables_of_one_domain(tmp_path: Path) -> None:
    world = World(7)
    one = Subject(world, "bank.one", "numbers", ordered=True, domain="bank")
    for _ in range(5):
        one.step({"upsert": 1})
    other = Subject(world, "bank.other", "money", ordered=False, domain="bank", kind="copy_on_write")
    gone = Subject(world, "bank.gone", "numbers", ordered=False, domain="bank")
    subjects = [one, other, gone]

    def transaction() -> None:
        with world.lake.transaction(isolation=world.random.choice(["snapshot", "serializable"])) as tx:
            for subject in world.random.sample(subjects, 2):
                tx[subject.name].scan().to_arrow()
                tx[subject.name].upsert(subject.batch())
                if world.random.random() < 0.5:
                    tx[subject.name].insert(subject.batch())

    weights = {name: weight for name, weight in WEIGHTS.items() if name not in ("archive", "clean")}
    for number in range(50):
        if number == 35:
            world.lake.drop_table(gone.name)
            subjects.remove(gone)
        if number % 3 == 0:
            world.env.advance(60)
            transaction()
        else:
            world.random.choice(subjects).step(weights)
    path = world.dump(tmp_path)
    assert compare(world.lake, path) > 40
    for second in (reader.Lake(path), reader.Lake(path, checkpoint=True)):
        with pytest.raises(reader.Closed):
            second.dropped_table(gone.name).rows()
        assert {second.table(name).log.prefix for name in second.tables()} == {second.dropped_table(gone.name).log.prefix}


@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_tables_with_a_horizon_for_late_rows(tmp_path: Path, kind: pa.DataType) -> None:
    world = World(11)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), pa.field("o", kind, nullable=False)])
    table = world.lake.create_table("late", schema, key=["id"], ordering="o", allowed_lateness="36 hours", index=objcat.BucketIndex(2))
    for step in range(60):
        world.env.advance(world.random.choice([60, 6 * 3600, 20 * 3600]))
        now_ms = world.env.now_ms()
        orders = [now_ms - world.random.randrange(4 * 86_400_000) for _ in range(2)]
        values = (
            pa.array([ms // 86_400_000 for ms in orders], pa.int32()) if kind == pa.date32() else pa.array([ms * 1000 for ms in orders])
        )
        keys = pa.array(world.random.sample(range(6), 2))
        match world.random.choice(["upsert", "upsert", "insert", "delete", "barrier", "compact"]):
            case "compact":
                table.maintenance.compact()
            case "delete":
                table.delete(pa.table({"id": keys, "o": values.cast(kind)}))
            case "barrier":
                table.delete(pa.table({"id": keys}))
            case how:
                getattr(table, how)(pa.table({"id": keys, "v": pa.array([step, step]), "o": values.cast(kind)}))
    assert compare(world.lake, world.dump(tmp_path)) > 40


def test_a_log_whose_older_outcomes_are_in_segments(tmp_path: Path) -> None:
    world = World(8)
    subject = Subject(world, "long", "numbers", ordered=True)
    for _ in range(170):
        subject.step({"upsert": 9, "die": 1})
    path = world.dump(tmp_path)
    roots = [json.loads(root.read_text()) for root in path.glob("tables/*/checkpoints/*/root.json")]
    assert any(root.get("segments") for root in roots)
    outcomes = outcomes_of(subject.table)
    assert len({said for said, _ in outcomes.values()}) == 2
    for second in (reader.Lake(path), reader.Lake(path, checkpoint=True)):
        assert {txn: second.table("long").outcome(txn) for txn in outcomes} == outcomes
        assert read(second.table("long"), 100) == told(subject.table, 100)
    settled = {txn: subject.table.resolve(txn) for txn, (said, _) in outcomes.items() if said == "rolled back"}
    assert settled and all(isinstance(found, objcat.RolledBackAt) for found in settled.values())


def test_changes_too_large_for_a_slot_and_a_catalog_too_large_for_a_root(tmp_path: Path) -> None:
    world = World(9)
    table = world.lake.create_table("wide", NUMBERS, key=["id"], index=objcat.BucketIndex(8192))
    table.upsert(pa.Table.from_pylist([number(n, n, n) for n in range(4000)], NUMBERS))
    table.delete([{"id": n} for n in range(0, 4000, 7)])
    for n in range(40):
        world.lake.namespaces.create(f"many.Ñ{n}", {"text": "ß" * 2500})
    world.lake.rename_table("wide", "many.wide")
    path = world.dump(tmp_path)
    assert any(json.loads(root.read_text())["payload"].get("object") for root in path.glob("_catalog/checkpoints/*/root.json"))
    assert any(json.loads(entry.read_text()).get("side") for entry in path.glob("tables/*/log/*"))
    assert compare(world.lake, path) == 2


def test_a_lake_in_a_directory_as_objcat_leaves_it(tmp_path: Path) -> None:
    lake = objcat.connect(str(tmp_path / "lake"))
    table = lake.create_table("a.b", NUMBERS, key=["id"], ordering="o")
    for n in range(5):
        table.insert([number(n, n, n)])
    alone = objcat.create_table_at(str(tmp_path / "alone"), NUMBERS, key=["id"])
    alone.upsert([number(1, 1, 1)])
    assert compare(lake, tmp_path / "lake") == 5
    assert shown(reader.Table.at(tmp_path / "alone").rows()) == told(alone, 1)


@BOTH_WAYS
def test_the_golden_lake(tmp_path: Path, checkpoint: bool) -> None:
    with zipfile.ZipFile(GOLDEN / "format-1.zip") as archived:
        archived.extractall(tmp_path)
    content = _module("golden_content", GOLDEN / "content.py")
    expected = json.loads((GOLDEN / "expected.json").read_text())["content"]
    lake = reader.Lake(tmp_path, checkpoint=checkpoint)
    assert lake.namespaces() == expected["namespaces"]
    assert lake.dropped() == expected["dropped"]
    assert set(lake.tables()) == set(expected["tables"])
    tables = {name: (lake.table(name), said) for name, said in expected["tables"].items()}
    tables |= {at: (reader.Table.at(tmp_path / at, checkpoint=checkpoint), said) for at, said in expected["path-only"].items()}
    for name, (table, said) in tables.items():
        assert {app: list(reached) for app, reached in table.marks.apps.items()} == said["applications"]
        assert sorted(table.marks.saved) == said["savepoints"]
        assert table.state(table.log.head).spec["properties"] == said["properties"]
        for slot, rows in said["rows"].items():
            assert _golden_rows(table, int(slot), content) == rows, (name, slot)


def _golden_rows(table: Any, slot: int, content: Any) -> Any:
    try:
        rows = table.rows(slot)
    except reader.Expired:
        return "SnapshotExpired"
    except reader.Closed:
        return "TableClosed"
    return content.rows_content(types.SimpleNamespace(to_pylist=lambda: rows))


def test_the_hashes_of_the_page() -> None:
    page = (ROOT / "docs" / "spec" / "format.md").read_text()
    found = re.search(r"^int 1 .*?^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    values = [("int", 1), ("bigint", 1), ("string", "Oslo"), ("string", "Zürich"), ("double", -0.0), ("bigint", None)]
    keys = [*([value] for value in values), [("string", "Oslo"), ("bigint", 1)]]
    assert [int(line.split()[-1]) for line in found[0].splitlines()[:-1]] == [reader.hash_key(key) for key in keys]


def test_the_reader_stands_alone() -> None:
    tree = ast.parse((HERE / "reader.py").read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"pyarrow"}
