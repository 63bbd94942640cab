"""Names of a lake: what they mean, what is refused, what it costs."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NamesDelta, Namespace, NamesReducer
from objcat.errors import (
    CommitConflict,
    CorruptTable,
    InvalidInput,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    ObjcatError,
    SnapshotExpired,
    TableClosed,
    TableExists,
    TableNotFound,
)
from objcat.lake.urls import find_table
from objcat.timeline.hints import HINT_SLOTS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])


def without_hints(lake: objcat.Lake) -> set[str]:
    """The keys of all objects but hints, which are put in the background."""
    return {key for key in lake.fileio.list_keys() if not key.endswith("head.json")}


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("names")


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(memory))


def create(lake: objcat.Lake, name: str, **settings: Any) -> objcat.Table:
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(2), **settings)


def rows_of(table: objcat.Table, **scan: Any) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.scan(**scan).to_arrow().to_pylist()}


def row(key: int, value: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "value": value}]


# ---- tables ------------------------------------------------------------------------------------------------------


def test_a_name_means_one_table_from_its_creation_to_its_drop(lake: objcat.Lake) -> None:
    table = create(lake, "city.trips")
    table.upsert(row(1))
    assert (lake.tables(), lake.namespaces.list()) == (["city.trips"], ["city"])
    assert rows_of(lake.table("city.trips")) == {1: "a"}
    lake.rename_table("city.trips", "archive.trips_2025")
    assert (lake.tables(), lake.tables("city"), lake.tables("archive")) == (["archive.trips_2025"], [], ["archive.trips_2025"])
    with pytest.raises(TableNotFound, match=r"did you mean 'archive\.trips_2025'"):
        lake.table("archive.trips_2026")
    assert lake.table("archive.trips_2025").id == table.id
    table.upsert(row(2))
    lake.drop_table("archive.trips_2025")
    assert lake.tables() == []
    with pytest.raises(TableNotFound, match=r"lake\.undrop_table"):
        lake.table("archive.trips_2025")
    with pytest.raises((TableClosed, CommitConflict), match="dropped"):
        table.upsert(row(3))


def test_a_dropped_name_is_free_at_once_and_what_was_dropped_comes_back_under_another(lake: objcat.Lake) -> None:
    create(lake, "t").upsert(row(1, "first"))
    lake.drop_table("t")
    create(lake, "t").upsert(row(1, "second"))
    lake.drop_table("t")
    third = create(lake, "t")
    dropped = lake.dropped_tables()
    assert [table.name for table in dropped] == ["t", "t"]
    with pytest.raises(TableExists):
        lake.undrop_table("t")
    assert rows_of(lake.undrop_table("t", new_name="t2")) == {1: "second"}
    assert rows_of(lake.undrop_table("t", new_name="old.t1", table=dropped[1].table)) == {1: "first"}
    assert lake.dropped_tables() == []
    assert lake.tables() == ["old.t1", "t", "t2"]
    assert rows_of(third) == {}
    lake.table("t2").upsert(row(2))
    assert rows_of(lake.table("t2")) == {1: "second", 2: "a"}


def test_what_comes_back_keeps_history_properties_and_the_versions_of_applications(lake: objcat.Lake) -> None:
    table = create(lake, "t", properties={"owner": "ana"})
    table.upsert(row(1), app=objcat.AppVersion(app="stream", version=7))
    lake.drop_table("t")
    back = lake.undrop_table("t")
    assert back.id == table.id
    assert back.properties == {"owner": "ana"}
    assert back.upsert(row(9), app=objcat.AppVersion(app="stream", version=7)).already_applied
    assert back.upsert(row(2), app=objcat.AppVersion(app="stream", version=8)).slot > 3
    assert [str(entry.action) for entry in back.inspect.history()] == ["CREATE", "DELTA_COMMIT", "CLOSE", "RESTORE", "DELTA_COMMIT"]
    assert rows_of(back) == {1: "a", 2: "a"}
    # A handle from before the drop is of the same table; it must learn of the way back before it writes.
    with pytest.raises(CommitConflict, match="dropped"):
        table.upsert(row(3))
    table.upsert(row(3))
    assert rows_of(back) == {1: "a", 2: "a", 3: "a"}


def test_undrop_of_what_never_was_or_is_there_is_refused(lake: objcat.Lake) -> None:
    create(lake, "trips")
    with pytest.raises(TableExists, match="is not dropped"):
        lake.undrop_table("trips")
    with pytest.raises(TableNotFound, match="No table is dropped"):
        lake.undrop_table("tripps")
    lake.drop_table("trips")
    with pytest.raises(TableNotFound, match="Dropped tables are trips"):
        lake.undrop_table("tripps")
    with pytest.raises(TableNotFound):
        lake.drop_table("trips")


def test_a_dropped_table_whose_files_were_cleaned_does_not_come_back(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake, "t").upsert(row(1))
    lake.drop_table("t")
    monkeypatch.setattr("objcat.timeline.log_state.TableLogState.is_readable", lambda self, slot: False)
    with pytest.raises(SnapshotExpired, match="dropped at slot 2 and then cleaned"):
        lake.undrop_table("t")
    assert lake.tables() == []


@pytest.mark.parametrize("taken", ["city", "city.trips", "CITY.Trips", "city.trips.more", "other"])
def test_a_name_means_one_thing(lake: objcat.Lake, taken: str) -> None:
    create(lake, "city.trips")
    create(lake, "free")
    lake.namespaces.create("other")
    for attempt in (lambda: create(lake, taken), lambda: lake.rename_table("free", taken)):
        with pytest.raises(TableExists):
            attempt()
    assert lake.tables() == ["city.trips", "free"]
    assert lake.namespaces.list() == ["city", "other"]


def test_the_loser_of_a_name_is_told_who_has_it_and_leaves_nothing(lake: objcat.Lake, memory: MemoryBackend) -> None:
    first = create(lake, "t").inspect.history()[0].txn
    before = without_hints(lake)
    with pytest.raises(TableExists, match=first):
        create(objcat.Lake(FileIO(memory)), "t")
    assert without_hints(lake) == before


def test_renaming_changes_case_and_refuses_what_is_not_there(lake: objcat.Lake) -> None:
    create(lake, "trips")
    lake.rename_table("TRIPS", "Trips")
    assert lake.tables() == ["Trips"]
    assert lake.table("trips").name == "Trips"
    with pytest.raises(TableNotFound, match="did you mean 'Trips'"):
        lake.rename_table("trip", "other")
    with pytest.raises(InvalidInput, match="not a table name"):
        lake.rename_table("trips", "a/b")


def test_a_table_deleted_by_hand_can_be_dropped(lake: objcat.Lake) -> None:
    table = create(lake, "t")
    table._context.fileio.delete(list(table._context.fileio.list_keys()))
    lake.drop_table("t")
    assert lake.tables() == []
    create(lake, "t").upsert(row(1))


def test_properties_of_a_table_live_with_the_table(lake: objcat.Lake) -> None:
    table = create(lake, "t", properties={"owner": "ana", "tier": "1"})
    other = lake.table("t")
    table.set_properties({"owner": "bo"}, unset=["tier", "never set"])
    other.set_properties({"team": "x"})
    assert other.properties == lake.table("t").properties == {"owner": "bo", "team": "x"}
    slot = other.refresh().slot
    other.set_properties({"team": "x"})
    assert other.refresh().slot == slot, "nothing to change is no commit"
    with pytest.raises(InvalidInput, match="both set and unset"):
        table.set_properties({"a": "1"}, unset=["a"])
    with pytest.raises(InvalidInput, match="is not text"):
        table.set_properties({"a": 1})  # type: ignore[dict-item]
    lake.drop_table("t")
    with pytest.raises((TableClosed, CommitConflict)):
        table.set_properties({"a": "1"})


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.maintenance.archive(),
        lambda table: table.maintenance.expire_checkpoints(),
        lambda table: table.maintenance.execute_scheduled(),
        lambda table: table.restore(to=1),
    ],
    ids=["archive", "collect_checkpoints", "execute_scheduled", "restore"],
)
@pytest.mark.parametrize("domain", [None, "shared"])
def test_maintenance_of_a_dropped_table_says_that_it_is_gone(
    lake: objcat.Lake, call: Callable[[objcat.Table], Any], domain: str | None
) -> None:
    table = create(lake, "t", shared_log=domain)
    table.upsert(row(1))
    lake.drop_table("t")
    before = without_hints(lake)
    with pytest.raises(TableClosed, match=r"dropped at slot 2\. Call undrop_table"):
        call(table)
    assert without_hints(lake) == before


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("keep_hour", "keep_hours"),
        ("keepHours", "keep_hours"),
        ("KEEP_HOURS", "keep_hours"),
        ("keep_days", "keep_hours"),
        ("objcat.keep_hours", "keep_hours"),
        ("compact_after_rows", "compact_after_s"),
        ("target-file-bytes", "target_file_bytes"),
        ("auto_cleaning", "auto_clean"),
        ("schema_modus", "schema_mode"),
        ("split_above", "split_above_bytes"),
        ("orderin", "ordering"),
        ("tabel_type", "table_type"),
        ("table_type", "table_type"),
    ],
)
def test_a_note_that_was_meant_for_a_setting_is_refused(lake: objcat.Lake, name: str, meant: str) -> None:
    table = create(lake, "t")
    slot = table.refresh().slot
    for attempt in (lambda: table.set_properties({name: "72"}), lambda: create(lake, "u", properties={name: "72"})):
        with pytest.raises(
            InvalidInput, match=rf"'{name}'.* Nothing was written\. .*'{meant}'.* Call a note of your own 'notes\.[^']*'\.$"
        ):
            attempt()
    assert (lake.tables(), table.refresh().slot) == (["t"], slot)


def test_notes_may_have_any_other_name(lake: objcat.Lake) -> None:
    notes = dict.fromkeys(["owner", "comment", "schema owner", "notes.keep_hours", "delta.appendOnly", "größe", "保存", "", "."], "x")
    table = create(lake, "t", properties=notes)
    table.set_properties({"kept": "1"}, unset=["keep_hour", "ordering"])
    assert table.properties == {**notes, "kept": "1"}
    lake.namespaces.create("n", {"keep_hour": "a", "auto_clean": "b"})
    lake.namespaces.set_properties("n", {"auto_clean": "c", "kind": "d"})
    assert lake.namespaces.properties("n") == {"keep_hour": "a", "auto_clean": "c", "kind": "d"}


# ---- which names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["поездки", "城市.行程", "यात्रा", "Ünïcode.naïve", "a", "0", "_x", "a-b.c_d", "x" * 255, "ǅ.ß", "con.aux"])
def test_names_of_every_script_are_bound_listed_and_found(lake: objcat.Lake, name: str) -> None:
    create(lake, name).upsert(row(1))
    (listed,) = lake.tables()
    assert listed == unicodedata.normalize("NFC", name)
    for spelling in (name, unicodedata.normalize("NFD", name), name.upper().lower()):
        assert rows_of(lake.table(spelling)) == {1: "a"}
    assert all(key.isascii() for key in lake.fileio.list_keys("tables/"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "Give a text"),
        (None, "Give a text"),
        ("a..b", "is empty"),
        (".a", "is empty"),
        ("a.", "is empty"),
        ("a/b", "'/'"),
        ("a b", "' '"),
        ("a\n", r"\\n"),
        ("..", "is empty"),
        ("-a", "'-'"),
        ("a\x00", "x00"),
        ("\u0301a", "Use letters"),
        ("x" * 256, "at most 255"),
        ("a\ud800", "Use letters"),
    ],
)
def test_names_that_no_engine_could_say_are_refused_before_any_request(lake: objcat.Lake, name: Any, says: str) -> None:
    for attempt in (
        lambda: create(lake, name),
        lambda: lake.table(name),
        lambda: lake.namespaces.create(name),
        lambda: lake.drop_table(name),
    ):
        with pytest.raises(InvalidInput, match=says):
            attempt()
    with pytest.raises(InvalidInput, match="not a shared_log name"):
        create(lake, "t", shared_log=" ")
    assert lake.fileio.metrics.snapshot().requests == {}
    assert lake._context.catalog.fileio.metrics.snapshot().requests == {}


# ---- namespaces --------------------------------------------------------------------------------------------------


def test_namespaces_are_created_by_name_or_with_what_is_in_them(lake: objcat.Lake) -> None:
    lake.namespaces.create("Sales", {"owner": "ana"})
    create(lake, "sales.eu.trips")
    assert lake.namespaces.list() == ["Sales", "sales.eu"]
    assert lake.namespaces.list("SALES") == ["sales.eu"]
    assert lake.namespaces.properties("sales") == {"owner": "ana"}
    lake.namespaces.set_properties("sales", {"tier": "1"}, unset=["owner"])
    assert lake.namespaces.properties("sales") == {"tier": "1"}
    with pytest.raises(NamespaceExists):
        lake.namespaces.create("sales")
    with pytest.raises(NamespaceNotEmpty, match=r"still holds sales\.eu, sales\.eu\.trips"):
        lake.namespaces.drop("sales")
    lake.drop_table("sales.eu.trips")
    lake.namespaces.drop("sales.eu")
    lake.namespaces.drop("sales")
    assert lake.namespaces.list() == []
    # A table that comes back brings its namespaces.
    lake.undrop_table("sales.eu.trips")
    assert lake.namespaces.list() == ["sales", "sales.eu"]


@pytest.mark.parametrize("attempt", ["tables", "namespaces.list", "namespaces.drop", "namespaces.properties", "namespaces.set_properties"])
def test_a_namespace_that_is_not_there_is_answered_with_the_nearest(lake: objcat.Lake, attempt: str) -> None:
    with pytest.raises(NamespaceNotFound, match="none yet"):
        attrgetter(attempt)(lake)("salse")
    lake.namespaces.create("sales")
    with pytest.raises(NamespaceNotFound, match="did you mean 'sales'"):
        attrgetter(attempt)(lake)("salse")


def test_a_namespace_is_no_table(lake: objcat.Lake) -> None:
    create(lake, "city.trips")
    with pytest.raises(TableNotFound, match="is a namespace"):
        lake.table("city")
    with pytest.raises(TableExists):
        lake.namespaces.create("city.trips")


# ---- domains -----------------------------------------------------------------------------------------------------


def test_tables_of_one_domain_share_a_log_and_nothing_else(lake: objcat.Lake) -> None:
    orders, lines = create(lake, "orders", shared_log="sales"), create(lake, "shop.lines", shared_log="Sales")
    alone = create(lake, "alone")
    assert orders._context.fileio.url == lines._context.fileio.url != alone._context.fileio.url
    assert [entry.slot for entry in lines.inspect.history()] == [1]
    orders.upsert(row(1, "order"))
    lines.insert(row(1, "line"))
    orders.delete(row(1))
    assert (rows_of(orders), rows_of(lines)) == ({}, {1: "line"})
    assert rows_of(orders, as_of=2) == {1: "order"}
    with pytest.raises(InvalidInput, match="did not exist at 0"):
        lines.scan(as_of=0)


def test_a_drop_takes_one_table_of_a_domain_and_what_comes_back_takes_no_other_along(lake: objcat.Lake) -> None:
    orders, lines = create(lake, "orders", shared_log="sales"), create(lake, "lines", shared_log="sales")
    orders.upsert(row(1, "order"))
    lines.upsert(row(1, "line"))
    lake.drop_table("lines")
    orders.upsert(row(2, "order"))
    with pytest.raises((TableClosed, CommitConflict)):
        lines.upsert(row(2))
    back = lake.undrop_table("lines")
    assert (rows_of(back), rows_of(orders)) == ({1: "line"}, {1: "order", 2: "order"})
    lake.drop_table("lines")
    again = create(lake, "lines", shared_log="sales")
    assert again._context.fileio.url == orders._context.fileio.url
    assert again.id != back.id
    assert rows_of(again) == {}


# ---- tables without a lake -------------------------------------------------------------------------------------------


def test_a_table_by_itself_needs_no_lake(tmp_path: Path) -> None:
    place = tmp_path / "somewhere" / "trips"
    table = objcat.create_table_at(place, SCHEMA, key=["id"], properties={"a": "b"})
    table.upsert(row(1))
    assert {key.split("/")[0] for key in table._context.fileio.list_keys()} - {"intents"} == {"data", "log"}
    assert rows_of(objcat.table_at(place)) == {1: "a"}
    with pytest.raises(TableExists, match=table.inspect.history()[0].txn):
        objcat.create_table_at(place, SCHEMA, key=["id"])
    with pytest.raises(TableNotFound, match="create_table_at"):
        objcat.table_at(tmp_path)


def test_a_url_finds_a_name_in_a_lake_and_a_table_by_itself(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    named = create(lake, "city.trips")
    alone = objcat.create_table_at(tmp_path / "trips", SCHEMA, key=["id"])
    assert find_table(f"{tmp_path}/city.trips").id == named.id
    assert find_table(f"{tmp_path}/trips").id == alone.id
    assert find_table(named._context.fileio.url).id == named.id
    with pytest.raises(TableNotFound, match="There is no table 'tripps'"):
        find_table(f"{tmp_path}/tripps")


def test_a_log_that_several_tables_share_is_not_opened_without_a_name(lake: objcat.Lake) -> None:
    table = create(lake, "a", shared_log="d")
    create(lake, "b", shared_log="d")
    with pytest.raises(ObjcatError):
        objcat.table_at(table._context.fileio)


# ---- what it costs -----------------------------------------------------------------------------------------------


def requests_of(*stores: FileIO) -> int:
    return sum(sum(store.metrics.snapshot().requests.values()) for store in stores)


def test_a_handle_that_knows_the_catalog_opens_a_table_with_one_request_for_its_name(memory: MemoryBackend) -> None:
    create(objcat.Lake(FileIO(memory, env=FakeEnv(1))), "t")
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(2)))
    first = lake.table("t")
    cold = requests_of(lake._context.catalog.fileio)
    assert cold <= 4
    assert requests_of(first._context.fileio) <= 1 + HINT_SLOTS, "its first slots, at once; the hint was asked for beside the name"
    again = lake.table("t")
    assert requests_of(lake._context.catalog.fileio) == cold + 1
    assert requests_of(again._context.fileio) == 1
    before = requests_of(lake._context.catalog.fileio)
    again.upsert(row(1))
    assert rows_of(again) == {1: "a"}
    assert requests_of(lake._context.catalog.fileio) == before, "a handle on a table asks nothing of the catalog"


def test_a_change_of_names_is_two_conditional_writes_and_a_hint_and_lists_nothing(memory: MemoryBackend) -> None:
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
    create(lake, "t")
    store = lake._context.catalog.fileio
    before = store.metrics.snapshot()
    lake.rename_table("t", "s")
    asked = (store.metrics.snapshot() - before).requests
    # An intent and a slot, and the hint beside them.
    assert dict(asked) == {"get": 3, "put_create": 2, "put_update": 1, "delete": 1}


# ---- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 400])
def test_names_come_back_from_a_checkpoint_however_many_they_are(lake: objcat.Lake, count: int) -> None:
    lake.namespaces.create("n", {"a": "b"})
    create(lake, "n.dropped")
    lake.drop_table("n.dropped")
    create(lake, "kept", shared_log="d")
    for number in range(count):
        lake._context.catalog.change(lambda names, n=number: _namespace(names, f"n.of_some_length_so_that_they_add_up_{n:04}" * 4))  # type: ignore[misc]
    reducer, fileio = NamesReducer(), lake._context.catalog.fileio
    view = Catalog(lake.fileio).timeline.open()
    payload, saved = reducer.save(fileio, view.state, "checkpoints/x/")
    objects = reducer.objects(payload)
    assert len(objects) == (count > 100)
    assert all(key.startswith("checkpoints/x/") for key in objects)
    loaded = reducer.load(payload)
    assert loaded.read(fileio) == saved.read(fileio) == view.state.read(fileio) == lake._context.catalog.names
    # What a state stands on already is named again, and further entries go on top.
    assert reducer.objects(reducer.save(fileio, loaded, "checkpoints/y/")[0]) == objects
    lake.rename_table("kept", "moved")
    entry = lake._context.catalog.timeline.log.read_slot(lake._context.catalog.slot)
    assert entry is not None
    assert reducer.advance(loaded, entry, lambda slot: loaded).read(fileio) == lake._context.catalog.names


def _namespace(_: CatalogNames, name: str) -> NamesDelta:
    return NamesDelta(creates=(Namespace(name),))


@pytest.mark.parametrize("payload", [b"{}", b'{"names":{},"object":{"path":"p","bytes":1,"sha256":""}}'])
def test_a_checkpoint_without_names_is_none(payload: bytes) -> None:
    with pytest.raises(CorruptTable, match="must say either `names` or `object`"):
        NamesReducer().load(msgspec.Raw(payload))
