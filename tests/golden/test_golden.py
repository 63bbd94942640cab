"""Golden tables of format 1: this client, and every later one, reads them as they were meant, finds nothing wrong with them, and writes on.

`make.py` made the archive, by hand; no test makes it anew.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.errors import InvalidInput, SnapshotExpired, StreamRewound, TableNotFound
from objcat.inspection.doctor import examine
from objcat.timeline.entry import Action, decode_entry
from tests.golden import make
from tests.golden.content import ALONE, content_of, rows_at, rows_content, table_content

EXPECTED: Mapping[str, Any] = json.loads(make.EXPECTED.read_text())
TABLES: Mapping[str, Any] = {**EXPECTED["content"]["tables"], **EXPECTED["content"]["path-only"]}
PLACES: Mapping[str, str] = {**EXPECTED["places"], ALONE: ALONE}
ARCHIVES: Mapping[str, Path] = {"080ade7": make.ARCHIVE, "8d358bb": make.HERE / "format-1-8d358bb.zip"}
"""By the commit whose maker wrote it. The second one is of before entries had digests and modules had packages; both hold the same."""
SHARED = {name for name, place in PLACES.items() if list(PLACES.values()).count(place) > 1}


@pytest.fixture(scope="module", params=ARCHIVES)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive as a directory, for tests that only read."""
    root = tmp_path_factory.mktemp("golden")
    with zipfile.ZipFile(ARCHIVES[request.param]) as archive:
        archive.extractall(root)
    return root


@pytest.fixture(params=ARCHIVES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> objcat.Lake:
    """An archive as a lake of one's own."""
    with zipfile.ZipFile(ARCHIVES[request.param]) as archive:
        archive.extractall(tmp_path)
    return objcat.connect(tmp_path)


def place_of(root: Path, name: str) -> Path:
    """Where a table lies: the ids in its place are others in each archive."""
    return root / ALONE if name == ALONE else Path(unquote(urlsplit(objcat.connect(root).table(name).url).path))


@pytest.fixture(scope="module")
def remade() -> objcat.Lake:
    """What the maker makes today, in memory."""
    return make.make()


def open_by_name(lake: objcat.Lake, name: str) -> objcat.Table:
    return objcat.table_at(lake.fileio.child(ALONE)) if name == ALONE else lake.table(name)


# ---- reading -------------------------------------------------------------------------------------------------------


def test_the_names_are_there(unpacked: Path) -> None:
    lake = objcat.connect(unpacked)
    expected = EXPECTED["content"]
    assert lake.tables() == sorted(expected["tables"])
    assert {name: lake.namespaces.properties(name) for name in lake.namespaces.list()} == expected["namespaces"]
    assert sorted(dropped.name for dropped in lake.dropped_tables()) == expected["dropped"] == ["old.gone"]
    with pytest.raises(TableNotFound, match="undrop_table"):
        lake.table("old.gone")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_opened_by_name_holds_what_was_written(unpacked: Path, name: str) -> None:
    assert table_content(open_by_name(objcat.connect(unpacked), name)) == TABLES[name]


@pytest.mark.parametrize("name", sorted(set(TABLES) - SHARED))
def test_a_table_that_is_opened_by_its_place_holds_the_same(unpacked: Path, name: str) -> None:
    table = objcat.table_at(place_of(unpacked, name))
    (newest, rows) = list(TABLES[name]["rows"].items())[-1]
    assert table.snapshot.slot == int(newest)
    assert rows_content(table.scan().to_arrow()) == rows


def test_tables_that_share_a_log_are_opened_by_name_only(unpacked: Path) -> None:
    assert sorted(SHARED) == ["bank.accounts", "bank.moves"]
    with pytest.raises(InvalidInput, match="holds 2 tables"):
        objcat.table_at(place_of(unpacked, "bank.accounts"))


@pytest.mark.parametrize("place", sorted(set(PLACES.values())))
def test_nothing_is_wrong_with_a_log(unpacked: Path, place: str) -> None:
    name = next(name for name in PLACES if PLACES[name] == place)
    report = examine(open_by_name(objcat.connect(unpacked), name)._context.timeline, deep=True)
    assert report.healthy, report.findings
    assert report.findings == []
    assert report.counts["slots"] and report.counts["rows"]


def test_times_lead_to_the_slots_that_were_the_newest_then(unpacked: Path) -> None:
    table = objcat.connect(unpacked).table("city.trips")
    for entry in table.inspect.history():
        when = make.NINE.fromtimestamp(entry.committed_at_ms / 1000, make.NINE.tzinfo)
        assert rows_content(table.scan(as_of=when).to_arrow()) == TABLES["city.trips"]["rows"][str(entry.slot)]


def test_rows_that_a_person_expects(unpacked: Path) -> None:
    """Said by hand, so that the expectations are not only what the code that made them believed."""
    lake = objcat.connect(unpacked)
    trips = {row["trip_id"]: str(row["fare"]) for row in lake.table("city.trips").scan().to_arrow().to_pylist()}
    untouched = {n: f"{n}.50" for n in (7, 8, 9, 10, 11, 12)}
    late = {2: "2.50"}  # 22.00 came later, but was older
    after_the_barrier = {4: "44.00"}
    above_its_tombstone = {99: "99.00"}
    of_a_killed_writer_that_had_committed = {23: "1.00"}
    others = {1: "21.00", 6: "66.00", 13: "13.14", 30: "30.00", 31: "31.00"}
    assert trips == untouched | late | after_the_barrier | above_its_tombstone | of_a_killed_writer_that_had_committed | others
    balances = {int(row["account"]): row["balance"] for row in lake.table("bank.accounts").scan().to_arrow().to_pylist()}
    assert balances == {1: 70, 2: 125, 3: 105}
    values = lake.table("types.values").scan().to_arrow()
    assert sorted(values.column("id").to_pylist()) == [0, 1, 2, 3, 5, 9]
    assert lake.table("wide").scan(where="id between 318 and 322", columns=["id", "value"]).to_arrow().sort_by("id").to_pylist() == [
        *({"id": n, "value": n} for n in (318, 319)),
        *({"id": n, "value": 32} for n in (320, 321, 322)),
    ]


# ---- writing -------------------------------------------------------------------------------------------------------


def test_every_table_takes_an_upsert_and_keeps_its_past(lake: objcat.Lake) -> None:
    for name, expected in TABLES.items():
        table = open_by_name(lake, name)
        slots = [int(slot) for slot in expected["rows"]]
        before = table.scan().to_arrow()
        newest = table.refresh().slot
        assert newest == slots[-1] or name in SHARED
        write = table.upsert if table.spec.has_key else table.insert
        assert write(before.slice(0, 1)).slot == newest + 1
        again = [] if table.spec.has_key else [before.slice(0, 1)]
        assert rows_content(table.scan().to_arrow()) == rows_content(pa.concat_tables([before, *again]))
        assert rows_at(open_by_name(lake, name), slots[-1]) == expected["rows"][str(slots[-1])]
        if expected["key"] and table.spec.lateness_ms is None:
            open_by_name(lake, name).delete(before.slice(0, 1).select(expected["key"]))
            assert open_by_name(lake, name).scan().to_arrow().num_rows == before.num_rows - 1
        assert examine(table._context.timeline).healthy


def test_what_the_log_remembers_decides_over_writers_of_today(lake: objcat.Lake) -> None:
    trips = lake.table("city.trips")
    again = trips.upsert([make.trip(1, "Rome", "0.00", 100)], app=objcat.AppVersion(app="stream", version=7))
    assert again.already_applied and again.slot == 3
    events = lake.table("log.events")
    with pytest.raises(StreamRewound) as rewound:
        events.upsert([{"id": 1, "at": 2000}], app=objcat.AppVersion(app="feed", version=76))
    version, rewound_at = TABLES["log.events"]["applications"]["feed"]
    assert rewound.value.winner_slot == rewound_at
    resumed = objcat.AppVersion(app="feed", version=version + 1, resumed_after=rewound_at)
    assert not events.upsert([{"id": 1, "at": 2000}], app=resumed).already_applied
    with pytest.raises(SnapshotExpired, match="and the savepoints 20"):
        events.scan(as_of=19)


def test_services_and_names_go_on(lake: objcat.Lake) -> None:
    for name in ("city.trips", "city.Plätze", "log.events", "types.values"):
        table = lake.table(name)
        before = rows_content(table.scan().to_arrow())
        assert table.maintenance.compact() is not None
        assert table.maintenance.clean(keep_slots=1).files > 0
        assert rows_content(table.scan().to_arrow()) == before
        assert examine(table._context.timeline, deep=True).healthy
    events = lake.table("log.events")
    assert rows_at(events, 20) == TABLES["log.events"]["rows"]["20"]
    events.restore(to=20)
    assert rows_content(events.scan().to_arrow()) == TABLES["log.events"]["rows"]["20"]
    assert lake.undrop_table("old.gone").scan().to_arrow().to_pylist() == [{"id": 1, "value": "old.gone"}]
    lake.rename_table("new.home.Émile", "city.Émile")
    lake.drop_table("wide")
    assert "city.Émile" in lake.tables() and "wide" not in lake.tables()
    with lake.transaction() as tx:
        tx["bank.accounts"].upsert([{"account": Decimal(4), "balance": 1}])
        tx["bank.moves"].delete([{"id": b"\0\0"}])
    assert lake.table("bank.moves").scan().to_arrow().num_rows == 3


# ---- the maker -----------------------------------------------------------------------------------------------------


def test_the_maker_still_makes_a_lake_with_the_same_content(remade: objcat.Lake) -> None:
    assert json.loads(json.dumps(content_of(remade))) == EXPECTED["content"]


KINDS = {
    "slot": r"log/\d{20}\.json",
    "base file": r"data/[^/]+/([^/=]+=[^/=]*/)*\d{8}-[^/]+_\d{5}\.parquet",
    "log object": r"data/[^/]+/local[^/]+\.log\.parquet",
    "deletes that a compaction kept": r"data/[^/]+/compact[^/]+\.log\.parquet",
    "deletes that a clustering kept": r"data/[^/]+/cluster-\d+-[0-9a-f]{16}\.log\.parquet",
    "where a clustering moved keys": r"data/[^/]+/cluster-\d+-index-[^/]+\.log\.parquet",
    "changes beside the log": r"data/[^/]+/changes\.json-\w+",
    "root": r"checkpoints/\d{20}/root\.json",
    "manifest": r"checkpoints/\d{20}/\w+/base-\w+\.parquet",
    "manifest of changes": r"checkpoints/\d{20}/\w+/delta-\w+\.parquet",
    "history": r"history/[^/]+\.parquet",
    "hint": r"head\.json",
}


def kind_of(key: str) -> str | None:
    """What an object is; None for what is none of these."""
    place = re.match(r"(tables/[^/]+|_catalog|path-only/meters)/", key)
    if place is None:
        return None
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, key[place.end() :])), None)


@pytest.mark.parametrize("which", [*ARCHIVES, "remade"])
def test_everything_that_the_format_has_is_in_it(which: str, request: pytest.FixtureRequest) -> None:
    if which in ARCHIVES:
        with zipfile.ZipFile(ARCHIVES[which]) as archive:
            objects = {info.filename: archive.read(info) for info in archive.infolist()}
    else:
        objects = make.objects_of(request.getfixturevalue("remade").fileio)
    kinds = {kind_of(key) for key in objects}
    assert kinds == set(KINDS), [key for key in objects if kind_of(key) is None]
    entries = [decode_entry(data, key=key) for key, data in objects.items() if kind_of(key) == "slot"]
    assert {entry.action for entry in entries} == set(Action)
    assert any(entry.history is not None for entry in entries), "no slot is archived"
    assert any(entry.side is not None for entry in entries), "no changes are beside the log"
    roots = [json.loads(data) for key, data in objects.items() if kind_of(key) == "root"]
    assert {root.get("void", False) for root in roots} == {True, False}, "no checkpoint was collected"
    assert any(key.startswith("_catalog/checkpoints/") for key in objects), "the catalog has no checkpoint"


def test_two_runs_of_the_maker_make_equal_bytes(remade: objcat.Lake) -> None:
    assert make.objects_of(make.make().fileio) == make.objects_of(remade.fileio)


def test_the_archive_is_small() -> None:
    assert all(path.stat().st_size < 600_000 for path in ARCHIVES.values())
    assert make.EXPECTED.stat().st_size < 150_000


def test_the_archive_opens_in_a_store_of_another_kind() -> None:
    store = FileIO(MemoryBackend("golden elsewhere"))
    with zipfile.ZipFile(make.ARCHIVE) as archive:
        for info in archive.infolist():
            store.put(info.filename, archive.read(info))
    lake = objcat.Lake(store)
    assert rows_at(lake.table("city.trips"), 12) == TABLES["city.trips"]["rows"]["12"]
