"""Partial upserts of rows of which each says other columns: beside a dict that takes them one after the other."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.errors import InvalidBatch, NullKey
from tests.effort import seeds
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        pa.field("at", pa.int64(), nullable=False),
        ("v", pa.int32()),
        ("note", pa.string()),
        ("fare", pa.decimal128(9, 2)),
        ("more", pa.list_(pa.int64())),
    ]
)
OWN = ("v", "note", "fare", "more")
TABLES: list[dict[str, Any]] = [
    {"index": objcat.BucketIndex(3)},
    {"index": objcat.BucketIndex(3), "table_type": "copy_on_write"},
    {"index": objcat.BucketIndex(3), "ordering": "at"},
    {"index": objcat.SimpleIndex(), "ordering": "at"},
    {"index": objcat.RecordIndex(), "partition_by": ["city"], "key_scope": "partition"},
    {"index": objcat.BucketIndex(2), "partition_by": ["truncate(city, 1)"], "key_scope": "partition", "ordering": "at"},
    {"index": objcat.SimpleIndex(), "partition_by": ["city"]},
]


def make(store: FileIO | None = None, **settings: Any) -> objcat.Table:
    return objcat.Lake(store or FileIO(MemoryBackend("partial"), env=FakeEnv(3))).create_table("t", SCHEMA, key=["id"], **settings)


def value(draw: random.Random, name: str) -> Any:
    if draw.random() < 0.2:
        return None
    number = draw.randrange(1000)
    return {"v": number, "note": f"\u00e9{number}", "fare": number, "more": [number, None]}[name]


class Model:
    """Rows by key, and by partition where a key may be in several."""

    def __init__(self, table: objcat.Table) -> None:
        self.scoped = table.spec.key_scope == "partition"
        self.first = any(field.transform == "truncate" for field in table.spec.partitioning.fields)
        self.ordered = table.spec.ordering is not None
        self.rows: dict[Any, dict[str, Any]] = {}

    def take(self, row: dict[str, Any]) -> None:
        place = (row["city"][:1] if self.first else row["city"]) if self.scoped else None
        there = self.rows.setdefault((row["id"], place), {**dict.fromkeys(SCHEMA.names), "at": None})
        if self.ordered and "at" in row and there["at"] is not None and row["at"] < there["at"]:
            return
        there.update(row)

    def state(self) -> list[dict[str, Any]]:
        return sorted(self.rows.values(), key=lambda row: (row["id"], str(row["city"])))


def state(table: objcat.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: (row["id"], str(row["city"])))


@pytest.mark.parametrize("settings", TABLES, ids=repr)
@pytest.mark.parametrize("seed", seeds(1, with_all=12))
def test_rows_of_many_shapes_count_one_after_the_other(settings: dict[str, Any], seed: int) -> None:
    draw = random.Random(f"{seed} {settings}")
    table = make(**settings)
    model = Model(table)
    for turn in range(6):
        batch: list[dict[str, Any]] = []
        for _ in range(draw.randrange(2, 25)):
            row = {"id": draw.randrange(8), "city": draw.choice(["ab", "ac", "b"])}
            if (row["id"], row["city"]) not in {(one["id"], one["city"]) for one in batch} and not model.scoped:
                # A key that is new has to say when it is.
                row["at"] = 5 * turn + draw.randrange(10)
            if draw.random() < 0.5 or model.scoped:
                row["at"] = 5 * turn + draw.randrange(10)
            row |= {name: value(draw, name) for name in draw.sample(OWN, draw.randrange(len(OWN) + 1))}
            batch.append(row)
        slot = table.refresh().slot
        result = table.upsert_partial(batch)
        for row in batch:
            model.take(row)
        assert state(table) == model.state(), f"seed {seed}, turn {turn}: {batch}"
        assert result is None or result.slot == slot + 1
        if turn == 3:
            table.maintenance.compact()


def test_a_column_that_a_row_lacks_stays_and_an_explicit_null_is_one() -> None:
    table = make(index=objcat.BucketIndex(2))
    table.upsert([{"id": number, "city": "a", "at": 1, "v": number, "note": "n"} for number in range(4)])
    result = table.upsert_partial([{"id": 0, "v": 10}, {"id": 1, "note": "new"}, {"id": 2, "v": None}, {"id": 9, "at": 2, "note": "first"}])
    assert result is not None and (result.inserted, result.updated, result.slot) == (1, 3, 2)
    found = {row["id"]: (row["v"], row["note"], row["city"]) for row in state(table)}
    assert found == {0: (10, "n", "a"), 1: (1, "new", "a"), 2: (None, "n", "a"), 3: (3, "n", "a"), 9: (None, "first", None)}


def test_an_older_row_does_nothing_and_what_says_no_order_always_counts() -> None:
    table = make(index=objcat.BucketIndex(1), ordering="at")
    table.upsert([{"id": 1, "at": 5, "v": 0, "note": "there"}])
    # The first is older than what is there, the second says no order, the third is newer, and the fourth older than the third.
    rows = [{"id": 1, "at": 3, "v": 1}, {"id": 1, "fare": 2}, {"id": 1, "at": 6, "note": "newer"}, {"id": 1, "at": 4, "more": [1]}]
    table.upsert_partial(rows)
    (found,) = state(table)
    assert (found["at"], found["v"], found["note"], found["more"]) == (6, 0, "newer", None) and found["fare"] == 2
    assert table.upsert_partial([{"id": 1, "at": 3, "v": 1}, {"id": 1, "at": 2, "note": "older"}]) is None


def test_what_a_row_must_say_is_told() -> None:
    table = make(index=objcat.BucketIndex(2), partition_by=["city"], key_scope="partition")
    table.upsert([{"id": 1, "city": "a", "at": 1}])
    with pytest.raises(InvalidBatch, match=r"Row 1 of the batch lacks the column 'city'"):
        table.upsert_partial([{"id": 1, "city": "a", "v": 1}, {"id": 1, "v": 2}])
    with pytest.raises(InvalidBatch, match="did you mean 'note'"):
        table.upsert_partial([{"id": 1, "city": "a"}, {"id": 1, "city": "a", "notes": "x"}])
    with pytest.raises(NullKey):
        table.upsert_partial([{"id": None, "city": "a"}, {"id": 1, "city": "a", "v": 1}])
    with pytest.raises(InvalidBatch, match="'v' is string in the batch and int in the table"):
        table.upsert_partial([{"id": 1, "city": "a"}, {"id": 1, "city": "a", "v": "1"}])
    with pytest.raises(InvalidBatch, match="null"):
        table.upsert_partial([{"id": 7, "city": "a"}, {"id": 1, "city": "a", "v": 1}])
    assert table.refresh().slot == 1


def test_beside_others_no_column_is_lost() -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), index=objcat.BucketIndex(1))
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    table.upsert([{"id": 1, "at": 1}, {"id": 2, "at": 1}])
    backend.races = [lambda: other.upsert_partial([{"id": 1, "note": "theirs"}, {"id": 2, "v": 7, "note": "too"}])]
    done = table.upsert_partial([{"id": 1, "v": 1}, {"id": 2, "fare": 1, "v": 2}])
    assert done is not None and done.attempts == 2
    assert [(row["v"], row["note"]) for row in state(table)] == [(1, "theirs"), (2, "too")]


APART: list[tuple[dict[str, Any], bool]] = [
    ({"index": objcat.BucketIndex(64)}, False),
    ({"index": objcat.BucketIndex(64), "table_type": "copy_on_write"}, False),
    ({"index": objcat.SimpleIndex(), "partition_by": ["city"]}, True),
    ({"index": objcat.BloomIndex(), "partition_by": ["city"], "key_scope": "partition"}, True),
    ({"index": objcat.RecordIndex(), "partition_by": ["city"], "key_scope": "partition"}, True),
    ({"index": objcat.RecordIndex(), "partition_by": ["city"], "table_type": "copy_on_write"}, True),
]
"""Tables in which the keys 1 and 2 are in two file groups, and whether keys are looked up."""


@pytest.mark.parametrize(("settings", "is_located"), APART)
@pytest.mark.parametrize("is_ragged", [False, True])
def test_an_older_row_depends_on_the_newer_one(settings: dict[str, Any], *, is_located: bool, is_ragged: bool) -> None:
    """The history is that of the log: a row that is older than one which was deleted first is inserted."""
    backend = RacingBackend("stale")
    table = make(FileIO(backend, env=FakeEnv(5)), ordering="at", **settings)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    table.upsert([{"id": key, "city": city, "at": 5, "v": 0} for key, city in ((1, "a"), (2, "b"), (3, "c"))])
    more = {"note": "mine"} if is_ragged else {}
    rows: list[dict[str, Any]] = [{"id": 1, "city": "a", "at": 3, "v": 1}, {"id": 2, "city": "b", "at": 9, "v": 2, **more}]
    # A newer row that changes again is newer still.
    backend.races = [lambda: other.upsert([{"id": 1, "city": "a", "at": 6, "v": 7}])]
    done = table.upsert_partial(rows)
    assert done is not None and done.attempts == (1 if is_located else 2)
    assert [row["v"] for row in state(table)] == [7, 2, 0]
    # A delete without an ordering value ends the row whatever its time.
    backend.races = [lambda: other.delete([{"id": 1, "city": "a"}])]
    done = table.upsert_partial([{**row, "at": row["at"] + 1} for row in rows])
    assert done is not None and done.attempts == 2 and not backend.races
    assert [(row["id"], row["at"], row["v"]) for row in state(table)] == [(1, 4, 1), (2, 10, 2), (3, 5, 0)]
    # Of a table in which nobody is in the way, nothing is computed again.
    backend.races = [lambda: other.delete([{"id": 3, "city": "c"}])]
    done = table.upsert_partial([{**rows[0], "at": 1}, {**rows[1], "at": 11}])
    assert done is not None and done.attempts == 1
