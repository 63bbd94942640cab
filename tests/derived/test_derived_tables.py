"""What a derived table promises beside its rows: errors, sources that change, writers that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.errors import InvalidBatch, InvalidInput, InvalidSql, NullKey, TableNotFound, UnsupportedFormat
from objcat.lake.lake import Lake
from objcat.table.table import Table

TRIPS = pa.schema([("id", pa.int64()), ("driver", pa.int64()), ("Town", pa.string()), ("fare", pa.int64())])
DRIVERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDE = "SELECT t.id, t.Town, t.fare, d.name FROM trips t LEFT JOIN drivers d ON t.driver = d.id"
TOWNS = "SELECT coalesce(Town, '?') AS town, count(*) AS n, sum(fare) AS fares, count(fare) AS fare_count FROM trips GROUP BY 1"


@pytest.fixture
def lake() -> Lake:
    made = objcat.Lake(FileIO(MemoryBackend()))
    made.create_table("trips", TRIPS, key=["id"])
    made.create_table("drivers", DRIVERS, key=["id"])
    made.table("drivers").upsert([{"id": number, "name": f"d{number}"} for number in range(4)])
    made.table("trips").upsert([trip(number) for number in range(20)])
    return made


def trip(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "driver": number % 5, "Town": "abc"[number % 3], "fare": 10 * number, **more}


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=str)


def is_right(lake: Lake, name: str, query: str) -> bool:
    schema = lake.table(name).schema
    return rows(lake.table(name)) == sorted(lake.sql(query).rename_columns(schema.names).cast(schema).to_pylist(), key=str)


# ---- what it is


def test_it_is_an_ordinary_table_for_readers(lake: Lake) -> None:
    made = lake.create_derived("gold.wide", WIDE, key=["id"], properties={"notes.owner": "ana"})
    assert made.key == ["id"] and made.schema.names == ["id", "Town", "fare", "name"]
    assert lake.sql("SELECT count(*) AS n FROM gold.wide WHERE name IS NULL").to_pylist() == [{"n": 4}]
    assert made.properties == {"notes.owner": "ana"}
    assert objcat.Lake(lake.fileio).table("gold.wide").scan().to_arrow().num_rows == 20


def test_a_refresh_reads_what_changed_and_what_it_joins_with(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    lake.table("trips").upsert([trip(3, driver=1), trip(30)])
    result = lake.refresh_derived("wide")
    assert (result.way, result.upserted, result.deleted) == ("rows", 2, 0)
    assert result.rows_read is not None and result.rows_read["trips"] <= 3
    assert is_right(lake, "wide", WIDE)


def test_a_change_that_the_query_does_not_name_changes_nothing(lake: Lake) -> None:
    lake.create_derived("names", "SELECT id, Town FROM trips", key=["id"])
    lake.table("trips").upsert([trip(3, fare=-1)])
    lake.table("trips").alter.add_column("more", pa.int64())
    result = lake.refresh_derived("names")
    assert (result.slot, result.way, result.upserted) == (None, None, 0)


def test_slots_without_a_change_are_committed_before_they_are_many(lake: Lake) -> None:
    lake.create_derived("names", "SELECT id, Town FROM trips", key=["id"])
    for number in range(70):
        lake.table("trips").set_properties({"notes.number": str(number)})
    result = lake.refresh_derived("names")
    assert result.slot is not None and result.sources == {"trips": lake.table("trips").snapshot.slot}
    assert lake.refresh_derived("names").slot is None


def test_a_table_and_its_source_in_one_log_come_to_rest(lake: Lake) -> None:
    lake.create_table("a", DRIVERS, key=["id"], shared_log="log")
    lake.create_derived("b", "SELECT id, name FROM a", key=["id"], shared_log="log")
    lake.table("a").upsert([{"id": 1, "name": "x"}])
    assert lake.refresh_derived("b").upserted == 1
    assert lake.refresh_derived("b").slot is None
    assert is_right(lake, "b", "SELECT id, name FROM a")


def test_columns_are_those_of_the_creation(lake: Lake) -> None:
    lake.create_derived("star", "SELECT *, fare * 2 AS Twice FROM trips", key=["id"])
    lake.table("trips").alter.add_column("more", pa.int64())
    lake.table("trips").upsert([trip(3)])
    lake.refresh_derived("star")
    assert lake.table("star").schema.names == ["id", "driver", "Town", "fare", "Twice"]


def test_chains_are_followed(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    lake.create_derived("by_name", "SELECT coalesce(name, '-') AS name, count(*) AS n FROM wide GROUP BY 1", key=["name"])
    lake.table("drivers").upsert([{"id": 4, "name": "d0"}])
    assert lake.refresh_derived("by_name").slot is None
    lake.refresh_derived("wide")
    result = lake.refresh_derived("by_name")
    assert (result.way, result.upserted, result.deleted) == ("groups", 1, 1)
    assert is_right(lake, "by_name", "SELECT coalesce(name, '-') AS name, count(*) AS n FROM wide GROUP BY 1")


def test_groups_follow_by_difference(lake: Lake) -> None:
    made = lake.create_derived("towns", TOWNS, key=["town"])
    lake.table("trips").upsert([trip(1, fare=None), trip(40, Town=None, fare=None), trip(41, Town="new")])
    lake.table("trips").delete([{"id": number} for number in range(0, 20, 3)])
    result = lake.refresh_derived("towns")
    assert result.rows_read == {"trips": 11} and result.deleted == 1
    assert is_right(lake, "towns", TOWNS)
    assert {row["town"]: row["fares"] for row in rows(made)}["?"] is None


def test_a_source_without_a_key_may_repeat_rows(lake: Lake) -> None:
    events = lake.create_table("events", pa.schema([("kind", pa.string()), ("n", pa.int64())]), key=None)
    events.insert([{"kind": "a", "n": 1}] * 3)
    query = "SELECT kind, count(*) AS times, sum(n) AS n, count(n) AS n_count FROM events WHERE kind IS NOT NULL GROUP BY kind"
    lake.create_derived("kinds", query, key=["kind"])
    events.insert([{"kind": "a", "n": 1}, {"kind": None, "n": 1}, {"kind": "b", "n": None}])
    lake.refresh_derived("kinds")
    assert is_right(lake, "kinds", query)
    events.delete("kind = 'a'")
    assert lake.refresh_derived("kinds").deleted == 1


# ---- keys


def test_a_key_that_repeats_is_named_and_nothing_is_written(lake: Lake) -> None:
    lake.create_derived("by_driver", "SELECT driver, fare FROM trips WHERE id < 5", key=["driver"])
    before = rows(lake.table("by_driver"))
    # Of a row that was there, and of two that come.
    lake.table("trips").upsert([trip(4, driver=2)])
    with pytest.raises(InvalidBatch, match=r"\{'driver': 2\}"):
        lake.refresh_derived("by_driver")
    lake.table("trips").upsert([trip(4, driver=7), trip(3, driver=7)])
    with pytest.raises(InvalidBatch, match=r"\{'driver': 7\}"):
        lake.refresh_derived("by_driver")
    assert rows(lake.table("by_driver")) == before
    lake.table("trips").upsert([trip(4, driver=8)])
    lake.refresh_derived("by_driver")
    assert is_right(lake, "by_driver", "SELECT driver, fare FROM trips WHERE id < 5")


def test_a_key_that_goes_from_one_row_to_another_stays(lake: Lake) -> None:
    lake.create_derived("by_driver", "SELECT driver, fare FROM trips WHERE id < 5", key=["driver"])
    lake.table("trips").upsert([trip(4, driver=2), trip(2, driver=4)])
    result = lake.refresh_derived("by_driver")
    assert (result.upserted, result.deleted) == (2, 0)
    assert is_right(lake, "by_driver", "SELECT driver, fare FROM trips WHERE id < 5")


def test_a_null_key_is_named(lake: Lake) -> None:
    lake.create_derived("by_town", "SELECT Town, count(*) AS n FROM trips GROUP BY Town", key=["Town"])
    lake.table("trips").upsert([trip(50, Town=None)])
    with pytest.raises(NullKey, match="coalesce"):
        lake.refresh_derived("by_town")
    lake.table("trips").delete([{"id": 50}])
    lake.refresh_derived("by_town")
    assert is_right(lake, "by_town", "SELECT Town, count(*) AS n FROM trips GROUP BY Town")


def test_a_table_whose_first_rows_are_refused_is_not_there(lake: Lake) -> None:
    with pytest.raises(InvalidBatch, match="several rows"):
        lake.create_derived("towns", "SELECT Town, fare FROM trips", key=["Town"])
    with pytest.raises(TableNotFound):
        lake.table("towns")


# ---- what is refused


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id, rand() AS r FROM trips", "rand"),
        ("SELECT id, current_timestamp() AS r FROM trips", "CURRENT_TIMESTAMP"),
        ("SELECT id, current_date AS r FROM trips", "CURRENT_DATE"),
        ("SELECT id FROM trips LIMIT 3", "LIMIT"),
        ("SELECT id, row_number() OVER (PARTITION BY Town) AS r FROM trips", "ROW_NUMBER"),
        ("SELECT Town AS id, first(fare) AS f FROM trips GROUP BY Town", "FIRST"),
        ("SELECT Town AS id, collect_list(fare) AS f FROM trips GROUP BY Town", "order of rows"),
        ("SELECT id FROM trips VERSION AS OF 1", "stand still"),
        ("SELECT 1 AS id", "no table"),
        ("SELECT id, fare, fare FROM trips", "two columns"),
        ("SELECT id, fare * 2 FROM trips", "no name"),
        ("SELECT id, nothing FROM trips", "nothing"),
        ("DELETE FROM trips", "SELECT"),
        ("SELECT id FROM read_parquet('x')", "parquet"),
    ],
)
def test_a_query_without_a_definite_result_is_refused(lake: Lake, query: str, said: str) -> None:
    with pytest.raises(InvalidSql, match=f"(?i){said}"):
        lake.create_derived("made", query, key=["id"])
    assert "made" not in lake.tables()


WRITES: list[Callable[[Table], Any]] = [
    lambda table: table.upsert([{"id": 1}]),
    lambda table: table.insert([{"id": 1}]),
    lambda table: table.insert([{"id": 1}], on_existing="skip"),
    lambda table: table.bulk_insert([{"id": 1}]),
    lambda table: table.upsert_partial([{"id": 1, "Town": "x"}]),
    lambda table: table.delete([{"id": 1}]),
    lambda table: table.delete("id = 1"),
    lambda table: table.update({"fare": "1"}),
    lambda table: table.merge([{"id": 1, "Town": "x", "fare": 1, "name": "y"}]).when_matched_update().execute(),
    lambda table: table.overwrite([{"id": 1}]),
    lambda table: table.insert_overwrite([{"id": 1}]),
    lambda table: table.delete_partition("id = 1"),
    lambda table: table.soft_delete("id = 1"),
    lambda table: table.erase("id = 1"),
    lambda table: table.alter.drop_column("fare"),
    lambda table: table.alter.add_column("more", pa.int64()),
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_only_a_refresh_writes(lake: Lake, number: int) -> None:
    made = lake.create_derived("wide", WIDE, key=["id"])
    before = rows(made)
    with pytest.raises(InvalidInput, match="refresh_derived"):
        WRITES[number](made)
    assert rows(made) == before


@pytest.mark.parametrize("step", [lambda tx: tx.upsert([{"id": 1}]), lambda tx: tx.delete_where("id = 1"), lambda tx: tx.truncate()])
def test_transactions_do_not_write_either(lake: Lake, step: Callable[[Any], None]) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    with pytest.raises(InvalidInput, match="refresh_derived"), lake.transaction() as tx:
        step(tx["wide"])
    assert is_right(lake, "wide", WIDE)


def test_services_work_as_on_other_tables(lake: Lake) -> None:
    made = lake.create_derived("wide", WIDE, key=["id"])
    for number in range(3):
        lake.table("trips").upsert([trip(number, fare=-number)])
        lake.refresh_derived("wide")
    made.maintenance.compact()
    made.maintenance.clean(keep_commits=1)
    lake.table("trips").delete([{"id": 3}])
    assert lake.refresh_derived("wide").deleted == 1
    assert is_right(lake, "wide", WIDE)


def test_older_writers_are_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    monkeypatch.setattr("objcat.timeline.entry.WRITER_FEATURES", frozenset({"watermark", "positions"}))
    older = objcat.Lake(lake.fileio).table("wide")
    assert older.scan().to_arrow().num_rows == 20
    with pytest.raises(UnsupportedFormat, match="derived_tables"):
        older.set_properties({"notes.a": "b"})


# ---- sources that change


def test_a_source_that_was_renamed_is_followed(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    lake.rename_table("drivers", "people.drivers")
    lake.table("people.drivers").upsert([{"id": 1, "name": "one"}])
    assert lake.refresh_derived("wide").upserted == 4
    assert is_right(lake, "wide", WIDE.replace("drivers", "people.drivers"))


def test_a_source_that_was_created_anew_is_noticed(lake: Lake) -> None:
    made = lake.create_derived("wide", WIDE, key=["id"])
    before = rows(made)
    lake.drop_table("drivers")
    with pytest.raises(InvalidInput, match="was dropped"):
        lake.refresh_derived("wide")
    lake.create_table("drivers", DRIVERS, key=["id"]).upsert([{"id": 1, "name": "new"}])
    with pytest.raises(InvalidInput, match="full=True"):
        lake.refresh_derived("wide")
    assert rows(lake.table("wide")) == before
    result = lake.refresh_derived("wide", full=True)
    assert (result.way, result.why) == ("whole", "it was asked for")
    assert is_right(lake, "wide", WIDE)
    lake.table("drivers").upsert([{"id": 2, "name": "two"}])
    assert lake.refresh_derived("wide").way == "rows"
    assert is_right(lake, "wide", WIDE)


def test_a_dropped_column_sets_the_refresh_aside(lake: Lake) -> None:
    made = lake.create_derived("wide", WIDE, key=["id"])
    lake.table("drivers").alter.drop_column("name")
    with pytest.raises(InvalidInput, match="stays as of its last refresh"):
        lake.refresh_derived("wide")
    assert made.scan().to_arrow().num_rows == 20
    # Another column of that name has other values.
    lake.table("drivers").alter.add_column("name", pa.string())
    with pytest.raises(InvalidInput, match="another column"):
        lake.refresh_derived("wide")
    lake.refresh_derived("wide", full=True)
    assert is_right(lake, "wide", WIDE)


def test_a_column_of_another_type_sets_the_refresh_aside(lake: Lake) -> None:
    lake.create_table("small", pa.schema([("id", pa.int64()), ("n", pa.int32())]), key=["id"]).upsert([{"id": 1, "n": 2}])
    lake.create_derived("copy", "SELECT id, n FROM small", key=["id"])
    lake.table("small").alter.widen_column("n", pa.int64())
    with pytest.raises(InvalidInput, match="of type int"):
        lake.refresh_derived("copy")
    lake.refresh_derived("copy", full=True)
    lake.table("small").upsert([{"id": 2, "n": 3}])
    assert lake.refresh_derived("copy").way == "rows"


def test_a_key_of_another_name_is_followed(lake: Lake) -> None:
    query = "SELECT Town, count(*) AS n FROM trips GROUP BY Town"
    lake.create_derived("towns", query, key=["Town"])
    lake.table("trips").upsert([trip(1, Town="new")])
    lake.table("trips").alter.rename_column("id", "number")
    assert lake.refresh_derived("towns").way == "groups"
    assert is_right(lake, "towns", query)


def test_many_changed_rows_are_found_by_a_range(lake: Lake) -> None:
    lake.create_table("many", pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())]), key=["a", "b"])
    many = lake.table("many")
    many.upsert([{"a": number, "b": f"é{number % 7}", "v": number} for number in range(3000)])
    lake.create_derived("copy", "SELECT a, b, v FROM many WHERE v % 2 = 0", key=["a", "b"])
    many.upsert([{"a": number, "b": f"é{number % 7}", "v": number + 1} for number in range(500, 1500)])
    many.delete([{"a": number, "b": f"é{number % 7}"} for number in range(1400, 1800)])
    result = lake.refresh_derived("copy")
    assert result.way == "rows" and is_right(lake, "copy", "SELECT a, b, v FROM many WHERE v % 2 = 0")


def test_cleaned_changes_are_computed_as_a_whole(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    trips = lake.table("trips")
    trips.upsert([trip(1, fare=-1)])
    trips.maintenance.compact()
    trips.upsert([trip(2, fare=-1)])
    trips.maintenance.compact()
    trips.maintenance.clean(keep_commits=1)
    result = lake.refresh_derived("wide")
    assert result.way == "whole" and result.why is not None and "cleaned" in result.why
    assert (result.upserted, result.deleted) == (2, 0)
    assert is_right(lake, "wide", WIDE)


def test_a_restore_of_the_table_is_computed_as_a_whole(lake: Lake) -> None:
    made = lake.create_derived("wide", WIDE, key=["id"])
    slot = made.snapshot.slot
    lake.table("trips").upsert([trip(1, fare=-1)])
    lake.refresh_derived("wide")
    made.restore(to=slot)
    result = lake.refresh_derived("wide")
    assert result.why is not None and "RESTORE" in result.why
    assert is_right(lake, "wide", WIDE)
    assert lake.refresh_derived("wide").slot is None


def test_a_restore_of_a_source_is_a_change(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    trips = lake.table("trips")
    slot = trips.snapshot.slot
    trips.upsert([trip(1, fare=-1)])
    lake.refresh_derived("wide")
    trips.restore(to=slot)
    assert lake.refresh_derived("wide").way == "rows"
    assert is_right(lake, "wide", WIDE)


def test_a_derived_table_does_not_move_to_another_log(lake: Lake) -> None:
    lake.create_table("other", DRIVERS, key=["id"], shared_log="log")
    lake.create_derived("wide", WIDE, key=["id"])
    with pytest.raises(InvalidInput, match="copied to another log"):
        lake.move_to_shared_log("wide", shared_log="log")
    assert is_right(lake, "wide", WIDE)


# ---- what it says


def test_explain_says_how_and_why(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    said = lake.explain_derived("wide")
    assert "changed rows" in said and "'driver', which is not its key" in said and "trips: at slot" in said
    lake.create_derived("towns", "SELECT coalesce(Town, '?') AS town, sum(fare) AS fares FROM trips GROUP BY 1", key=["town"])
    assert "Add count(*)" in lake.explain_derived("towns")
    lake.create_derived("ranks", "SELECT id, rank() OVER (ORDER BY fare) AS place FROM trips", key=["id"])
    assert "computes the whole query" in lake.explain_derived("ranks") and "RANK" in lake.explain_derived("ranks")


def test_lag_is_in_slots_and_seconds(lake: Lake) -> None:
    lake.create_derived("wide", WIDE, key=["id"])
    assert [(lag.source, lag.slots, lag.seconds) for lag in lake.derived_lag("wide")] == [("trips", 0, 0.0), ("drivers", 0, 0.0)]
    lake.table("trips").upsert([trip(1)])
    lake.table("trips").upsert([trip(2)])
    (trips, drivers) = lake.derived_lag("wide")
    assert trips.slots == 2 and trips.seconds is not None and drivers.slots == 0
    lake.drop_table("drivers")
    assert lake.derived_lag("wide")[1].newest is None
    with pytest.raises(InvalidInput, match="not derived"):
        lake.derived_lag("trips")
    with pytest.raises(InvalidInput, match="not derived"):
        lake.refresh_derived("trips")
