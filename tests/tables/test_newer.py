"""Tables that a newer client has written: this one refuses what it does not understand, says which version does, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.contract import GetResult, Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import InvalidInput, UnsupportedFormat
from objcat.timeline.checkpoint import HINT_KEY
from objcat.timeline.entry import log_key, new_txn
from tests.timeline.toy import digested

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
ROW = [{"id": 1, "value": "new"}]
DEAD = "20260101T000000000Z-0123456789abcdef"
READS = {"get", "head", "list"}


class World:
    """A lake with two tables of one domain, and clients that come to it, whose requests are remembered."""

    def __init__(self) -> None:
        self.memory = MemoryBackend("newer", env=FakeEnv(0))
        self.requests: list[Request] = []
        self._seed = 0
        lake = self.client()
        for name in ("t", "u"):
            lake.create_table(name, SCHEMA, key=["id"], shared_log="d", index=objcat.BucketIndex(2))
        self.table = lake.table("t")
        self.table.insert([{"id": n, "value": "old"} for n in range(6)])
        self.table.upsert([{"id": 2, "value": "old"}])
        self.table.maintenance.compact()
        self.table.upsert([{"id": 3, "value": "old"}])
        self.log.put(f"data/{DEAD}/local-0-0.log.parquet", b"half")

    def client(self) -> objcat.Lake:
        self._seed += 1
        return objcat.Lake(FileIO(FaultyBackend(self.memory, before=self.requests.append), env=FakeEnv(self._seed)))

    @property
    def log(self) -> FileIO:
        """Where the log of the tables is, unobserved."""
        return FileIO(self.memory).child(self.table._context.fileio.url.removeprefix(self.memory.url).strip("/"))

    def objects(self) -> dict[str, bytes]:
        store = FileIO(self.memory)
        return {key: body(store, key) for key in store.list_keys()}

    def written(self) -> list[Request]:
        """Requests since the last call that change something."""
        found = [request for request in self.requests if request.kind not in READS]
        self.requests.clear()
        return found


@pytest.fixture
def world() -> World:
    return World()


def body(store: FileIO, key: str) -> bytes:
    result = store.get(key)
    assert isinstance(result, GetResult)
    return result.data


def plant(log: FileIO, **fields: Any) -> int:
    """The next slot, as a newer client may write it. Returns it."""
    slot = sum(1 for _ in log.list_keys("log/"))
    before = json.loads(body(log, log_key(slot - 1)))
    entry = {
        "format": 1,
        "slot": slot,
        "action": "DELTA_COMMIT",
        "txn": new_txn(FakeEnv(1000 + slot)),
        "base": slot - 1,
        "committed_at_ms": before["committed_at_ms"] + 1,
    }
    log.put(log_key(slot), json.dumps({**entry, **fields}).encode())
    return slot


def open_by_place(lake: objcat.Lake, world: World) -> Any:
    return objcat.table_at(lake.fileio.child(world.table._context.fileio.url.removeprefix(world.memory.url).strip("/")))


def transact(lake: objcat.Lake) -> None:
    with lake.transaction() as tx:
        tx["t"].upsert(ROW)
        tx["u"].upsert(ROW)


WRITES: Mapping[str, Callable[[objcat.Table], Any]] = {
    "upsert": lambda table: table.upsert(ROW),
    "insert": lambda table: table.insert(ROW),
    "delete": lambda table: table.delete(ROW),
    "upsert of an application": lambda table: table.upsert(ROW, app=objcat.AppVersion(app="a", version=1)),
    "properties": lambda table: table.set_properties({"a": "b"}),
    "compact": lambda table: table.maintenance.compact(),
    "clean": lambda table: table.maintenance.clean(keep_slots=1),
    "savepoint": lambda table: table.maintenance.savepoint(),
    "restore": lambda table: table.restore(to=2),
    "split": lambda table: table.maintenance.split_buckets(),
    "tidying up": lambda table: table.maintenance.rollback_failed_writes(older_than_s=0),
    "rollback of the dead": lambda table: table.resolve(DEAD),
}
READ_SLOTS: Mapping[str, Callable[[objcat.Table], Any]] = {
    "scan": lambda table: table.scan(),
    "refresh": lambda table: table.refresh(),
    "history": lambda table: table.inspect.history(),
}
OPENS: Mapping[str, Callable[[objcat.Lake, World], Any]] = {
    "by name": lambda lake, _: lake.table("t"),
    "by place": open_by_place,
    "to drop": lambda lake, _: lake.drop_table("t"),
    "in a transaction": lambda lake, _: transact(lake),
    "to put another table into its domain": lambda lake, _: lake.create_table("v", SCHEMA, key=["id"], shared_log="d"),
}

NEWER: Mapping[str, tuple[dict[str, Any], str]] = {
    "a reader's feature": ({"features": {"quantum": "9.1"}}, r"'quantum'.*objcat 9\.1 or newer"),
    "a higher format": ({"format": 2, "min_client": "3.4"}, r"table format 2.*objcat 3\.4 or newer"),
    "a higher format that says no version": ({"format": 7}, r"table format 7.*a newer objcat"),
    "an action with its feature": ({"action": "TELEPORT", "features": {"teleport": "5.0"}}, r"'teleport'.*objcat 5\.0 or newer"),
    "an unknown action": (
        {"action": "TELEPORT", "writer": "objcat 8.8, local"},
        r"TELEPORT.*written by objcat 8\.8, local\. Upgrade to that version or a newer one",
    ),
    "an unknown action of nobody": ({"action": "TELEPORT"}, r"TELEPORT.*does not know.*\. Upgrade to a newer one"),
    "an unknown action of a writer that is said otherwise": ({"action": "TELEPORT", "writer": {"name": "x"}}, r"TELEPORT.*Upgrade"),
    "a format whose entries look otherwise": ({"format": 2, "min_client": "4.0", "action": "FOLD", "txn": []}, r"objcat 4\.0 or newer"),
}


# ---- what readers must understand ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", OPENS)
@pytest.mark.parametrize("what", NEWER)
def test_a_log_that_needs_a_newer_reader_is_not_opened(world: World, what: str, how: str) -> None:
    fields, says = NEWER[what]
    plant(world.log, **fields)
    before = world.objects()
    lake = world.client()
    if how.startswith("to put"):
        lake.create_table("w", SCHEMA, key=["id"])  # the check of the store is done with
        before = world.objects()
    world.written()
    with pytest.raises(UnsupportedFormat, match=says):
        OPENS[how](lake, world)
    assert world.written() == []
    assert world.objects() == before


@pytest.mark.parametrize("operation", [*WRITES, *READ_SLOTS])
@pytest.mark.parametrize("what", ["a reader's feature", "a higher format", "an unknown action"])
def test_a_handle_from_before_refuses_as_soon_as_it_sees_that(world: World, what: str, operation: str) -> None:
    fields, says = NEWER[what]
    table = world.client().table("t")
    plant(world.log, **fields)
    before = world.objects()
    with pytest.raises(UnsupportedFormat, match=says):
        {**WRITES, **READ_SLOTS}[operation](table)
    assert world.objects() == before, "what was written for the lost slot stays"


def test_what_was_read_before_can_still_be_read(world: World) -> None:
    scan = world.client().table("t").scan()
    plant(world.log, features={"quantum": "9.1"})
    assert scan.to_arrow().num_rows == 6


# ---- what writers must understand ----------------------------------------------------------------------------------


@pytest.fixture(params=["in a slot", "in a checkpoint"])
def readable(world: World, request: pytest.FixtureRequest) -> World:
    """A log that may be read by this client, but only be written by a newer one."""
    plant(world.log, writer_features={"quantum": "9.1"})
    if request.param == "in a checkpoint":
        for _ in range(20):
            plant(world.log)
        timeline = world.client().table("t")._context.timeline
        published = timeline.publish(timeline.open())
        assert published.checkpoint == 16
        log = world.log
        log.put(log_key(6), body(log, log_key(6)).replace(b'"quantum"', b'"nobody reads this any more"'), Overwrite())
    return world


def test_a_log_that_needs_a_newer_writer_is_read(readable: World) -> None:
    table = readable.client().table("t")
    assert table.scan().to_arrow().num_rows == table.scan(as_of=2).to_arrow().num_rows == 6
    with pytest.raises(InvalidInput, match="holds 2 tables"):
        open_by_place(readable.client(), readable)
    assert table.refresh().slot == table.inspect.history()[-1].slot


def test_a_log_of_several_tables_is_not_opened_by_its_place(world: World) -> None:
    with pytest.raises(InvalidInput, match=r"holds 2 tables, .*\. Open one by its name in the lake, objcat\.connect\(url\)\.table\(name\)"):
        open_by_place(world.client(), world)


@pytest.mark.parametrize("operation", WRITES)
def test_a_log_that_needs_a_newer_writer_is_not_written(readable: World, operation: str) -> None:
    table = readable.client().table("t")
    before = readable.objects()
    readable.written()
    with pytest.raises(UnsupportedFormat, match=r"'quantum'.*Nothing was written\. Use objcat 9\.1 or newer"):
        WRITES[operation](table)
    assert readable.written() == []
    assert readable.objects() == before


@pytest.mark.parametrize("how", ["to drop", "in a transaction", "to put another table into its domain"])
def test_nor_are_its_tables_changed_through_their_names(readable: World, how: str) -> None:
    lake = readable.client()
    lake.create_table("w", SCHEMA, key=["id"])
    before = readable.objects()
    readable.written()
    with pytest.raises(UnsupportedFormat, match=r"'quantum'.*Nothing was written\. Use objcat 9\.1 or newer"):
        OPENS[how](lake, readable)
    assert readable.written() == []
    assert readable.objects() == before


@pytest.mark.parametrize("operation", WRITES)
def test_a_writer_that_learns_of_it_at_its_slot_leaves_nothing(world: World, operation: str) -> None:
    table = world.client().table("t")
    plant(world.log, writer_features={"quantum": "9.1"})
    before = world.objects()
    with pytest.raises(UnsupportedFormat, match=r"'quantum'.*objcat 9\.1 or newer"):
        WRITES[operation](table)
    assert world.objects() == before


# ---- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": 2, "min_client": "3.4"}, r"root\.json has table format 2.*objcat 3\.4 or newer"),
        ({"features": {"quantum": "9.1"}}, r"root\.json needs the table feature 'quantum'.*objcat 9\.1 or newer"),
        ({"format": 2, "min_client": "4.0", "log": "elsewhere", "payload": 1}, r"objcat 4\.0 or newer"),
    ],
    ids=["a higher format", "a reader's feature", "a format whose roots look otherwise"],
)
@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("how", OPENS)
def test_a_checkpoint_that_needs_a_newer_reader_is_refused(
    world: World, fields: dict[str, Any], says: str, how: str, carries: bool
) -> None:
    """carries: whether its hint carries it too, as that of its publisher does."""
    for _ in range(20):
        plant(world.log)
    timeline = world.client().table("t")._context.timeline
    timeline.publish(timeline.open())
    (root,) = [key for key in world.log.list_keys("checkpoints/") if key.endswith("root.json")]
    world.log.put(root, json.dumps({**json.loads(body(world.log, root)), **fields}).encode(), Overwrite())
    hint = json.loads(body(world.log, HINT_KEY))
    carried = hint.pop("carried")
    carried["root"] |= fields
    world.log.put(HINT_KEY, msgspec.json.encode({**hint, **({"carried": digested(carried)} if carries else {})}), Overwrite())
    lake = world.client()
    lake.create_table("w", SCHEMA, key=["id"])
    before = world.objects()
    world.written()
    with pytest.raises(UnsupportedFormat, match=says):
        OPENS[how](lake, world)
    assert world.written() == []
    assert world.objects() == before


# ---- the catalog ---------------------------------------------------------------------------------------------------

NAMES: Mapping[str, Callable[[objcat.Lake], Any]] = {
    "create": lambda lake: lake.create_table("new", SCHEMA, key=["id"]),
    "create in a domain": lambda lake: lake.create_table("new", SCHEMA, key=["id"], shared_log="d"),
    "rename": lambda lake: lake.rename_table("t", "new"),
    "drop": lambda lake: lake.drop_table("t"),
    "namespace": lambda lake: lake.namespaces.create("n"),
}


@pytest.mark.parametrize("operation", NAMES)
@pytest.mark.parametrize("what", NEWER)
def test_names_that_need_a_newer_reader_are_not_read(world: World, what: str, operation: str) -> None:
    fields, says = NEWER[what]
    plant(FileIO(world.memory).child("_catalog"), **fields)
    before = world.objects()
    world.written()
    with pytest.raises(UnsupportedFormat, match=says):
        NAMES[operation](world.client())
    with pytest.raises(UnsupportedFormat, match=says):
        world.client().tables()
    assert world.written() == []
    assert world.objects() == before


@pytest.mark.parametrize("operation", NAMES)
def test_names_that_need_a_newer_writer_are_read_and_not_changed(world: World, operation: str) -> None:
    plant(FileIO(world.memory).child("_catalog"), action="ROLLBACK", rollback_of=DEAD, writer_features={"quantum": "9.1"})
    lake = world.client()
    assert lake.tables() == ["t", "u"]
    assert lake.table("t").upsert(ROW).slot == 6
    before = world.objects()
    with pytest.raises(UnsupportedFormat, match=r"_catalog.*'quantum'.*Nothing was written\. Use objcat 9\.1 or newer"):
        NAMES[operation](lake)
    assert world.objects() == before
