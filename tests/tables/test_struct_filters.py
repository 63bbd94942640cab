"""Filters that name fields of structs: which rows they find, in files of any age, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidInput, InvalidPredicate


@pytest.fixture
def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("structs")))


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (pc.field("place", "x") >= 8, [8, 9]),
        ("place.x >= 8", [8, 9]),
        ("PLACE.X >= 8", [8, 9]),
        ("8 <= `place`.`x` and not id = 9", [8]),
        ("place.x in (1, 2, 77)", [1, 2]),
        ("place.x = id and place.far.name between 'n3' and 'n4'", [3, 4]),
        ("place.x <> 1", [2, 3, 4, 6, 7, 8, 9]),
        ("not (place.x > 1)", [1]),
        ("place.x is null", [0, 5]),
        ("place.far.name is not null and id < 4", [1, 2, 3]),
        ("place.far.name is null", [0, 5, 8]),
        ("place.far is null", [0, 5, 8]),
        ("place.`a.b`", [2, 4, 6, 8]),
        ("place.x = 7.5 or id = 5", [5]),
        (" or ".join(f"place.x = {x}" for x in range(7, 40)), [7, 8, 9]),
    ],
    ids=lambda said: str(said)[:60],
)
def test_a_filter_reaches_into_structs(lake: objcat.Lake, kind: TableType, where: Any, expected: list[int]) -> None:
    far = pa.struct([("name", pa.string())])
    place = pa.struct([("x", pa.int64()), ("far", far), ("a.b", pa.bool_())])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("place", place)])
    table = lake.create_table("t", schema, key=["id"], table_type=kind, index=objcat.BucketIndex(2))
    table.insert([{"id": i, "place": {"x": 100, "far": {"name": "n3"}, "a.b": True}} for i in range(0, 10, 3)])
    table.upsert(
        [
            {"id": i, "place": {"x": i, "far": None if i == 8 else {"name": f"n{i}"}, "a.b": i % 2 == 0} if i % 5 else None}
            for i in range(10)
        ]
    )
    scan = table.scan(where=where, columns=["id"])
    assert ids(scan.to_arrow()) == expected and scan.count() == len(expected)
    table.delete(where)
    assert ids(table.scan().to_arrow()) == sorted(set(range(10)) - set(expected))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("place.lat > 1", "names 'place.lat', which is not there: did you mean 'lot'"),
        ("t.place.lot > 1", "names 't.place.lot', and 't' is not a column .*\\. Write a column's name without its table"),
        ("id.lot > 1", "names 'id.lot', which is not there: 'id' is of type int64, and only structs have fields"),
        ("place.lot.more > 1", "'place.lot' is of type int64, and only structs have fields"),
        ("place.`LOT` > 1", "which is not there"),
        ("place > 1", "Cast one of them"),
        ("place.lot > 'x'", "place.lot of type int64 with 'x'. Cast one of them"),
    ],
)
def test_a_field_that_is_not_there_is_refused_with_the_nearest_name(lake: objcat.Lake, where: str, message: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("place", pa.struct([("lot", pa.int64())]))])
    with pytest.raises(InvalidPredicate, match=message):
        lake.create_table("t", schema, key=["id"]).scan(where=where)


SWAPPED = [objcat.RenameColumn("place.x", "t"), objcat.RenameColumn("place.y", "x"), objcat.RenameColumn("place.t", "y")]
MEANT: list[Any] = ["place.x = -7", pc.field("place", "x") == -7]
"""A filter by a field that is called `y` in files which are older than the swap."""


@pytest.mark.parametrize("where", MEANT, ids=["text", "expression"])
@pytest.mark.parametrize("key", [["id"], None], ids=str)
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_filters_go_by_what_fields_of_structs_are_called_now(lake: objcat.Lake, kind: TableType, key: Any, where: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("place", pa.struct([("x", pa.int32()), ("y", pa.int32())])), ("n", pa.int32())])
    table = lake.create_table("t", schema, key=key, table_type=kind, shared_log="d")
    table.insert([{"id": i, "place": {"x": i, "y": -i}, "n": i} for i in range(-9, 10)])
    table.alter.apply(SWAPPED)
    table.insert([{"id": 70, "place": {"x": -7, "y": 7}, "n": 70}, {"id": 71, "place": {"x": 7, "y": -7}, "n": 71}])

    for read in (table.scan(where=where, columns=["id"]), table.incremental(since=-1, where=where)):
        assert ids(read.to_arrow()) == [7, 70]
    with lake.transaction() as transaction:
        assert ids(transaction["t"].scan(where=where).to_arrow()) == [7, 70]
    table.update({"n": "place.y"}, where=where)
    assert table.scan(where=where).to_arrow()["n"].to_pylist() == [7, 7]
    table.delete(where)
    assert ids(table.scan().to_arrow()) == [*(i for i in range(-9, 10) if i != 7), 71]


def test_an_erasure_goes_by_what_fields_of_structs_are_called_now(lake: objcat.Lake) -> None:
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("who", pa.struct([("x", pa.int32()), ("y", pa.int32())]))]), key=["id"])
    table.insert([{"id": i, "who": {"x": i, "y": -i}} for i in range(1, 5)])
    table.alter.apply([replace(change, path=change.path.replace("place", "who")) for change in SWAPPED])
    table.maintenance.savepoint()
    with pytest.raises(InvalidInput, match="at slots 2\\. Nothing was erased\\. Release them"):
        table.erase("who.x = -3")
    table.maintenance.release_savepoint(slot=2)
    done = table.erase("who.x = -3")
    assert (done.deleted, done.found) == (1, 0)
    assert ids(table.scan().to_arrow()) == [1, 2, 4]
