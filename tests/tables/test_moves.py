"""Tables in which a key is unique whatever its partition: a row that comes with another one moves, whoever else writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.store import FileIO
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, NullKey
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Severity
from objcat.timeline import conflicts
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string()), pa.field("v", pa.int64()), pa.field("o", pa.int64())])
KINDS = ("merge_on_read", "copy_on_write")
Rows = list[tuple[int, str, int]]

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def backend() -> RacingBackend:
    return RacingBackend("moves")


@pytest.fixture
def lake(backend: RacingBackend) -> objcat.Lake:
    return objcat.Lake(FileIO(backend))


def create(lake: objcat.Lake, kind: TableType, *, target: int = 1024, **settings: Any) -> objcat.Table:
    settings = {"partition_by": ["part"], "index": objcat.SimpleIndex(), **settings}
    return lake.create_table("t", SCHEMA, key=["id"], table_type=kind, properties={"target_file_bytes": str(target)}, **settings)


def batch(*keys: int, part: str | None = "x", v: int = 0, o: int = 1) -> list[dict[str, Any]]:
    return [{"id": key, "part": part, "v": v, "o": o} for key in keys]


def rows(table: objcat.Table, **options: Any) -> Rows:
    found = [(row["id"], row["part"], row["v"]) for row in table.scan(**options).to_arrow().to_pylist()]
    assert len({row[0] for row in found}) == len(found), "a key is there twice"
    return sorted(found)


def test_a_row_with_another_partition_moves(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1, 2, 3))
    result = table.upsert([*batch(1, part="y", v=1), *batch(2, v=1), *batch(4, part="y", v=1)])
    assert rows(table) == [(1, "y", 1), (2, "x", 1), (3, "x", 0), (4, "y", 1)]
    assert rows(table, where="part = 'x'") == [(2, "x", 1), (3, "x", 0)]
    assert result.rows == 3
    if kind == "copy_on_write":
        assert (result.inserted, result.updated, result.deleted) == (1, 2, 0)
    table.maintenance.compact()
    assert rows(table) == [(1, "y", 1), (2, "x", 1), (3, "x", 0), (4, "y", 1)]
    assert examine(table._context.timeline, deep=True).healthy


def test_a_key_moves_there_and_back(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1))
    for number, part in enumerate("yxyyzx"):
        table.upsert(batch(1, part=part, v=number))
        if number == 2:
            table.maintenance.compact()
        assert rows(table) == [(1, part, number)]
    table.delete([{"id": 1}])
    assert rows(table) == []
    table.insert(batch(1, part="y", v=9))
    assert rows(table) == [(1, "y", 9)]


def test_a_delete_finds_its_key_in_whatever_partition(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert([*batch(1, 2), *batch(3, part="y")])
    result = table.delete([{"id": 1}, {"id": 3}, {"id": 99}])
    assert rows(table) == [(2, "x", 0)]
    assert kind != "copy_on_write" or result.deleted == 2
    table.upsert([*batch(1, 3, part="z", v=1)])
    assert rows(table) == [(1, "z", 1), (2, "x", 0), (3, "z", 1)]
    assert examine(table._context.timeline, deep=True).healthy


def test_a_late_row_neither_moves_nor_deletes_a_newer_one(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="o")
    table.insert(batch(1, 2, 3, 4, o=5))
    table.upsert([*batch(1, part="y", v=1, o=4), *batch(2, part="y", v=1, o=6), *batch(3, part="y", v=1, o=5)])
    # Of equal values the later row wins.
    assert rows(table) == [(1, "x", 0), (2, "y", 1), (3, "y", 1), (4, "x", 0)]
    table.upsert([row | {"gone": True} for row in batch(4, part="q", o=3)], delete_when="gone")
    table.upsert([row | {"gone": True} for row in batch(2, part="q", o=9)], delete_when="gone")
    assert rows(table) == [(1, "x", 0), (3, "y", 1), (4, "x", 0)]
    table.maintenance.compact()
    table.upsert(batch(2, part="z", v=2, o=8))
    assert [row[0] for row in rows(table)] == [1, 3, 4], "older than the delete"
    table.upsert(batch(2, part="z", v=3, o=9))
    assert rows(table) == [(1, "x", 0), (2, "z", 3), (3, "y", 1), (4, "x", 0)]
    assert examine(table._context.timeline, deep=True).healthy


def test_a_delete_of_a_key_that_is_nowhere_keeps_older_rows_out(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="o")
    table.insert(batch(7))
    table.delete([{"id": 1, "o": 5}])
    table.maintenance.compact()
    table.upsert(batch(1, part="y", o=4))
    assert rows(table) == [(7, "x", 0)]
    table.upsert(batch(1, part="y", o=6))
    assert rows(table) == [(1, "y", 0), (7, "x", 0)]


def test_of_one_key_in_several_partitions_of_a_batch_the_last_counts(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.upsert([*batch(1, 2, part="x"), *batch(1, part="y", v=1), *batch(2, part="z", v=1), *batch(2, part="x", v=2)])
    assert rows(table) == [(1, "y", 1), (2, "x", 2)]
    table.upsert([*batch(1, part="z", v=3), *batch(1, part="x", v=4)])
    assert rows(table) == [(1, "x", 4), (2, "x", 2)]


def test_the_greatest_ordering_value_of_a_batch_counts(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="o")
    table.insert([*batch(1, part="x", o=3), *batch(1, part="y", v=1, o=2)])
    assert rows(table) == [(1, "x", 0)]
    with pytest.raises(NullKey, match="ordering column 'o' is null in row 1"):
        table.upsert([*batch(1, part="z", o=9), {"id": 1, "part": "z", "v": 1, "o": None}])


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        # Each says who comes second, and what must be true of both in the order of their slots.
        (lambda t: t.upsert(batch(1, part="y", v=1)), lambda t: t.upsert(batch(1, part="z", v=2)), [(1, "y", 1)]),
        (lambda t: t.upsert(batch(1, part="y", v=1)), lambda t: t.upsert(batch(1, v=2)), [(1, "y", 1)]),
        (lambda t: t.upsert(batch(1, v=1)), lambda t: t.upsert(batch(1, part="z", v=2)), [(1, "x", 1)]),
        (lambda t: t.delete([{"id": 1}]), lambda t: t.upsert(batch(1, part="z", v=2)), []),
        (lambda t: t.upsert(batch(1, part="y", v=1)), lambda t: t.delete([{"id": 1}]), [(1, "y", 1)]),
        (lambda t: t.insert(batch(2, part="y", v=1)), lambda t: t.insert(batch(2, part="z", v=2)), [(1, "x", 0), (2, "y", 1)]),
        (lambda t: t.update({"v": "v + 1"}), lambda t: t.upsert(batch(1, part="z", v=2)), [(1, "z", 3)]),
        (lambda t: t.upsert(batch(1, part="y", v=1)), lambda t: t.delete_partition("part = 'x'"), [(1, "y", 1)]),
        (lambda t: t.upsert(batch(1, part="y", v=1)), lambda t: t.overwrite(batch(1, part="z", v=2)), [(1, "y", 1)]),
    ],
)
def test_a_key_stays_unique_whoever_else_moves_it(
    backend: RacingBackend, lake: objcat.Lake, kind: TableType, mine: Callable[[Any], Any], theirs: Callable[[Any], Any], expected: Rows
) -> None:
    table = create(lake, kind)
    table.insert(batch(1))
    other = lake.table("t")
    backend.races = [lambda: theirs(other)]
    mine(table)
    assert not backend.races
    assert rows(table) == expected
    table.maintenance.compact()
    assert rows(table) == expected
    assert examine(table._context.timeline, deep=True).healthy


def test_a_late_row_that_lost_a_race_against_a_delete_counts(backend: RacingBackend, lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="o")
    table.insert(batch(1, o=5))
    other = lake.table("t")
    # Without a value the delete ends whatever was before it, and nothing after it.
    backend.races = [lambda: other.delete([{"id": 1}])]
    table.upsert(batch(1, part="y", v=1, o=3))
    assert rows(table) == [(1, "y", 1)]


def test_without_the_rule_of_keys_one_would_be_there_twice(
    backend: RacingBackend, lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {sentence: rule for sentence, rule in conflicts.RULES.items() if rule is not conflicts.placed_one_key}
    monkeypatch.setattr(conflicts, "RULES", rules)
    table = create(lake, kind)
    table.insert(batch(2, part="y"))
    other = lake.table("t")
    backend.races = [lambda: other.insert(batch(1, part="z"))]
    table.insert(batch(1))
    assert len(table.scan().to_arrow()) == 3
    (finding,) = (one for one in examine(table._context.timeline, deep=True).findings if one.severity is Severity.BROKEN)
    assert "1 keys in two file groups" in finding.says


def test_changes_tell_a_move_as_an_update(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    since = table.insert(batch(1, 2)).slot
    table.upsert(batch(1, part="y", v=1))
    table.upsert([*batch(1, part="z", v=2), *batch(3)])
    for net in (False, True):
        told = [(row["_change_type"], row["id"], row["part"]) for row in table.changes(since=since, net=net).to_arrow().to_pylist()]
        steps = [("update_before", 1, "x"), ("update_after", 1, "y"), ("update_before", 1, "y"), ("update_after", 1, "z")]
        assert told == [*([steps[0], steps[3]] if net else steps), ("insert", 3, "x")]
    assert sorted((row["id"], row["part"]) for row in table.incremental(since=since).to_arrow().to_pylist()) == [(1, "z"), (3, "x")]


def test_a_transaction_moves_what_its_earlier_batches_wrote(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1, 2))
    with lake.transaction() as tx:
        tx["t"].upsert([*batch(1, part="y", v=1), *batch(3, v=1)])
        tx["t"].upsert([*batch(3, part="y", v=2), *batch(1, part="z", v=2)])
        tx["t"].upsert(batch(1, v=3))
        tx["t"].delete([{"id": 2}])
    assert rows(table) == [(1, "x", 3), (3, "y", 2)]


def test_a_move_and_a_delete_without_an_ordering_value_keep_their_order(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, ordering="o")
    table.insert(batch(1, 2))
    deleted, moved = [{"id": 1}], batch(1, part="y", o=2)

    def write(*, deletes_first: bool) -> None:
        with lake.transaction() as tx:
            if deletes_first:
                tx["t"].delete(deleted)
            tx["t"].upsert(moved)
            if not deletes_first:
                tx["t"].delete(deleted)

    for deletes_first in (True, False):
        # Each batch of a transaction is written to what those before it have left.
        write(deletes_first=deletes_first)
        assert rows(table) == ([(1, "y", 0), (2, "x", 0)] if deletes_first else [(2, "x", 0)])


def test_merges_and_updates_move_rows(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    table.insert(batch(1, 2, 3))
    result = table.update({"part": "'y'", "v": "v + 1"}, where="id < 3")
    assert result is not None and (result.inserted, result.updated, result.deleted) == (0, 2, 0)
    merged = table.merge(batch(2, 3, 4, part="z", v=5)).when_matched_update().when_not_matched_insert().execute()
    assert merged is not None and (merged.inserted, merged.updated, merged.deleted) == (1, 2, 0)
    assert rows(table) == [(1, "y", 1), (2, "z", 5), (3, "z", 5), (4, "z", 5)]
    table.delete("part = 'z' AND id < 4")
    assert rows(table) == [(1, "y", 1), (4, "z", 5)]
    # A row that says no partition stays where it is.
    table.upsert_partial([{"id": 1, "v": 7}, {"id": 5, "v": 7}])
    found = {(row["id"], row["part"]) for row in table.scan(where="v = 7").to_arrow().to_pylist()}
    assert found == {(1, "y"), (5, None)}


def test_earlier_slots_keep_the_row_where_it_was(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind)
    first = table.insert(batch(1)).slot
    table.upsert(batch(1, part="y", v=1))
    assert rows(table, as_of=first) == [(1, "x", 0)]
    table.restore(to=first)
    assert rows(table) == [(1, "x", 0)]
    table.upsert(batch(1, part="z", v=2))
    assert rows(table) == [(1, "z", 2)]


def test_keys_move_between_partitions_of_a_function_of_a_column(lake: objcat.Lake, kind: TableType) -> None:
    table = create(lake, kind, partition_by=["truncate(v, 10)"])
    table.insert([*batch(1, 2, v=3), *batch(3, v=25)])
    table.upsert([*batch(1, v=7), *batch(2, 3, v=14)])
    assert rows(table) == [(1, "x", 7), (2, "x", 14), (3, "x", 14)]
    table.alter.set_partitioning(["part"])
    table.upsert([*batch(1, part="y", v=8), *batch(2, v=21), *batch(4, part=None, v=3)])
    assert [row[2] for row in rows(table, where="id < 4")] == [8, 21, 14]
    assert examine(table._context.timeline, deep=True).healthy


INDEXES = pytest.mark.parametrize("index", [objcat.SimpleIndex(), objcat.RecordIndex(2)], ids=["simple", "record"])


@INDEXES
def test_a_key_moves_into_a_partition_that_is_replaced(lake: objcat.Lake, kind: TableType, index: Any) -> None:
    table = create(lake, kind, index=index)
    since = table.insert([*batch(1, 2, 3), *batch(4, 5, part="y"), *batch(6, 7, part="z")]).slot
    result = table.insert_overwrite([*batch(1, 4, 8, part="y", v=1)])
    # 5 lay in the partition that was replaced, and comes no more; 1 has left the one that stays.
    expected = [(1, "y", 1), (2, "x", 0), (3, "x", 0), (4, "y", 1), (6, "z", 0), (7, "z", 0), (8, "y", 1)]
    assert rows(table) == expected
    assert (result.rows, result.inserted, result.updated, result.deleted) == (3, 2, 1, None)
    assert [row[0] for row in rows(table, where="part = 'y'")] == [1, 4, 8]
    told = table.changes(since=since, net=True).to_arrow().to_pylist()
    assert sorted((row["_change_type"], row["id"]) for row in told) == [
        ("delete", 5),
        ("insert", 8),
        *(("update_after", key) for key in (1, 4)),
        *(("update_before", key) for key in (1, 4)),
    ]
    assert examine(table._context.timeline, deep=True).healthy
    table.maintenance.compact()
    assert rows(table) == expected
    # What was taken away comes back as any new key does, and what moved is found where it is.
    table.upsert([*batch(5, v=2), *batch(1, part="z", v=2)])
    assert rows(table) == sorted({row[0]: row for row in [*expected, (5, "x", 2), (1, "z", 2)]}.values())
    table.restore(to=since)
    assert len(rows(table)) == 7
    table.insert_overwrite(batch(2, 6, part="x", v=3), where="part in ('x', 'y')")
    assert rows(table) == [(2, "x", 3), (6, "x", 3), (7, "z", 0)]
    with pytest.raises(InvalidBatch, match="not in the partitions"):
        table.insert_overwrite(batch(7), where="part = 'z'")
    assert examine(table._context.timeline, deep=True).healthy


@INDEXES
def test_a_row_that_comes_late_loses_in_the_partition_that_stays(lake: objcat.Lake, kind: TableType, index: Any) -> None:
    table = create(lake, kind, ordering="o", index=index)
    table.insert([*batch(1, 2, o=5), *batch(3, part="y", o=5), *batch(4, o=5)])
    table.delete([{"id": 4, "o": 7}])
    result = table.insert_overwrite([*batch(1, part="y", v=1, o=4), *batch(2, 4, part="y", v=1, o=6), *batch(3, part="y", v=1, o=1)])
    # What was in the partition measures nothing any more; what is in others, rows and deletes, does.
    assert rows(table) == [(1, "x", 0), (2, "y", 1), (3, "y", 1)]
    assert (result.inserted, result.updated) == (None, None)
    table.maintenance.compact()
    assert rows(table) == [(1, "x", 0), (2, "y", 1), (3, "y", 1)]
    table.insert_overwrite(batch(1, 9, part="x", v=2, o=1))
    assert rows(table) == [(1, "x", 2), (2, "y", 1), (3, "y", 1), (9, "x", 2)]
    assert examine(table._context.timeline, deep=True).healthy


REPLACED = [(1, "y", 1), (9, "y", 1)]
"""After a replacement of partition y."""


@INDEXES
@pytest.mark.parametrize(
    ("theirs", "before", "after"),
    [
        # What is there when they come before the replacement, and when they come after it.
        (lambda t: t.upsert(batch(1, part="z", v=2)), REPLACED, [(1, "z", 2), (9, "y", 1)]),
        (lambda t: t.upsert(batch(2, part="z", v=2)), [(1, "y", 1), (2, "z", 2), (9, "y", 1)], [(1, "y", 1), (2, "z", 2), (9, "y", 1)]),
        (lambda t: t.upsert(batch(9, part="z", v=2)), REPLACED, [(1, "y", 1), (9, "z", 2)]),
        (lambda t: t.delete([{"id": 1}]), REPLACED, [(9, "y", 1)]),
        (
            lambda t: t.insert_overwrite(batch(1, 2, v=2)),
            [(1, "y", 1), (2, "x", 2), (9, "y", 1)],
            [(1, "x", 2), (2, "x", 2), (9, "y", 1)],
        ),
        (lambda t: t.insert_overwrite(batch(7, part="y", v=2)), REPLACED, [(7, "y", 2)]),
        (lambda t: t.delete_partition("part = 'x'"), REPLACED, REPLACED),
    ],
)
def test_a_key_stays_unique_whoever_else_writes_beside_a_replacement(
    backend: RacingBackend, lake: objcat.Lake, kind: TableType, index: Any, theirs: Callable[[Any], Any], before: Rows, after: Rows
) -> None:
    def replace(table: objcat.Table) -> None:
        table.insert_overwrite(batch(1, 9, part="y", v=1))

    for is_beaten in (True, False):
        table = create(lake, kind, index=index)
        table.insert([*batch(1), *batch(2, part="y")])
        other = lake.table("t")
        first, second = (theirs, replace) if is_beaten else (replace, theirs)
        backend.races = [partial(first, other)]
        second(table)
        assert not backend.races
        assert rows(table) == (before if is_beaten else after)
        assert examine(table._context.timeline, deep=True).healthy
        lake.drop_table("t")


def test_a_batch_that_says_other_partitions_when_it_is_computed_again_replaces_nothing(
    lake: objcat.Lake, kind: TableType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lake, kind)
    table.insert([*batch(1), *batch(2, part="y")])
    monkeypatch.setattr("objcat.engine.local.LocalEngine.partitions_named", lambda *_: frozenset(["part=y"]))
    with pytest.raises(InvalidBatch, match="rows of other partitions"):
        table.insert_overwrite(batch(3))
    assert rows(table) == [(1, "x", 0), (2, "y", 0)]


def test_what_cannot_be_done_is_said(lake: objcat.Lake, kind: TableType) -> None:
    with pytest.raises(InvalidInput, match=r"index=objcat.SimpleIndex\(\)"):
        create(lake, kind, index=None)
    table = create(lake, kind)
    table.insert(batch(1))
    with pytest.raises(InvalidBatch, match="lacks the column 'part'"):
        table.upsert([{"id": 1, "v": 1, "o": 1}])
    assert rows(table) == [(1, "x", 0)]
