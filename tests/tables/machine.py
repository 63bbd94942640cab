"""Every operation on a table, in any order, beside a dict: for each engine that writes and reads.

After each step the newest rows, an older slot, and what changed in between are compared with what the dict says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import objcat
from objcat.common.validation import TableType
from objcat.errors import InvalidInput
from objcat.metadata.partitioning import Partitioning
from objcat.metadata.table_spec import Index

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("o", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
KEYS = st.integers(0, 11)
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 4)), min_size=1, max_size=6)
FEW_ROWS = st.lists(st.tuples(KEYS, st.integers(0, 4)), min_size=1, max_size=2)

PARTITIONINGS: dict[tuple[str, ...], tuple[str, ...]] = {("truncate(id, 2)",): ("id_truncate_2",), ("part",): ("part",), (): ()}
"""With the names of their fields. Keys 2n and 2n + 1 share a partition of the first one, and of no other but that of all rows."""
BY = st.sampled_from(list(PARTITIONINGS))
NOT_EMPTY = precondition(lambda machine: bool(machine.slots[-1]))
"""Of what does nothing to a table without rows."""


@dataclass(frozen=True)
class Chosen:
    """Which partitions to replace, and what comes right before, which by chance would seldom meet it.

    by: all partitionings; the first is set. rows: written then, those that go by it among them. anew: what the table is overwritten by
    before, under the second partitioning; None: it stays as it is. beside: whether the replacement has the other key of each of the pairs
    that share a partition, and not that of the row. column: the number of the one that a filter is of. whole: whether the filter is true
    of all of a partition. key: the number of one whose partition is taken away.
    """

    by: list[tuple[str, ...]]
    rows: list[tuple[int, int]]
    anew: list[tuple[int, int]] | None
    beside: bool
    column: int
    whole: bool
    key: int


CHOSEN = st.builds(
    Chosen,
    by=st.permutations(list(PARTITIONINGS)),
    rows=FEW_ROWS,
    anew=st.none() | FEW_ROWS,
    beside=st.booleans(),
    column=KEYS,
    whole=st.booleans(),
    key=KEYS,
)

Rows = dict[int, int]
"""By key, the value, which is another one with every write."""
State = tuple[dict[int, tuple[int, int | None]], dict[int, str | None], dict[int, str]]
"""By key: the ordering and the value, None once deleted; what it says in `part`, None where a key was deleted that was nowhere; and the
partition in which it lives."""


def part_of(key: int) -> str:
    return "xy"[key % 2]


def partition_of(partitioning: Partitioning, key: int, part: str | None) -> str:
    values = {"part": part or "__HIVE_DEFAULT_PARTITION__", "id_truncate_2": key // 2 * 2}
    return "/".join(f"{name}={values[name]}" if name in values else name for name in partitioning.shape)


BUCKETS = (objcat.BucketIndex(1), objcat.BucketIndex(2), objcat.BucketIndex(4))
LOCATED = (objcat.SimpleIndex(), objcat.BloomIndex())
"""Indexes that are no hash: keys live in whatever file group took them."""


class ReplacingMachine(RuleBasedStateMachine):
    """What replaces partitions or takes them away, between upserts and other partitionings.

    lake: a new one. spark: the session that updates; None: this process. indexes: that tables are made with. moving: keys are unique in
    the whole table, and their rows go from one partition to another. whole: they are, since what partitions are made of is of the key.
    Subclasses say how batches are given and rows are read.
    """

    lake: objcat.Lake
    spark: Any = None
    indexes: tuple[Index, ...] = BUCKETS
    moving = False
    whole = False

    def batch(self, rows: list[dict[str, Any]], schema: pa.Schema) -> Any:
        return pa.Table.from_pylist(rows, schema)

    def rows(self, read: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read.to_arrow().to_pylist()
        return found

    @initialize(
        kind=st.sampled_from(["merge_on_read", "copy_on_write"]),
        ordered=st.booleans(),
        by=BY,
        index=st.integers(0, 11),
        file_bytes=st.sampled_from([1024, 2048, 10**9]),
    )
    def create(self, kind: TableType, ordered: bool, by: tuple[str, ...], index: int, file_bytes: int) -> None:
        self.ordered = ordered
        self.count = 0
        self.table = self.lake.create_table(
            "t",
            SCHEMA,
            key=["id", "part"] if self.whole else ["id"],
            ordering="o" if ordered else None,
            table_type=kind,
            partition_by=["part"] if self.moving else by,
            key_scope="table" if self.moving or self.whole else "partition",
            index=self.indexes[index % len(self.indexes)],
            # Small ones, so that the keys of an index that is no hash come to live in several file groups.
            properties={"target_file_bytes": str(file_bytes)},
        )
        self.model: dict[int, tuple[int, int | None]] = {}
        self.parts: dict[int, str | None] = {}
        self.places: dict[int, str] = {}
        self.states: list[State] = [({}, {}, {})]
        self.slots: list[Rows] = [{}]
        self.live: frozenset[str] = frozenset()
        self.restored = -1

    def done(self, result: Any) -> None:
        """A commit at the next slot, after which the table holds what the model says."""
        if result is not None:
            assert result.slot == len(self.slots)
        self.states.append((dict(self.model), dict(self.parts), dict(self.places)))
        self.slots.append({key: value for key, (_, value) in self.model.items() if value is not None})
        self.live = self.live_now()
        self.check()

    def live_now(self) -> frozenset[str]:
        """The partitions that have a file group, be it one of deletes alone."""
        return self.table.refresh().live_partitions(self.table._context.manifests)

    def refused(self, call: Callable[[], Any]) -> None:
        with pytest.raises(InvalidInput):
            call()
        assert self.table.refresh().slot == len(self.slots) - 1

    def check(self) -> None:
        newest = len(self.slots) - 1
        assert self.read(self.table.scan()) == self.slots[newest]
        if self.moving:
            assert {row["id"]: row["part"] for row in self.rows(self.table.scan())} == {key: self.parts[key] for key in self.slots[newest]}
            found = [row["id"] for part in "xy" for row in self.rows(self.table.scan(where=f"part = '{part}'"))]
            assert sorted(found) == sorted(self.slots[newest])
        older = (newest * 7) // 11
        assert self.read(self.table.scan(as_of=older)) == self.slots[older]
        since = max(0, newest - 2)
        before, after = self.slots[since], self.slots[newest]
        if self.restored <= since:
            changed = {key: value for key, value in after.items() if before.get(key) != value}
            assert self.read(self.table.incremental(since=since, columns=["id", "v"])) == changed
        told = sorted((row["_change_type"], row["id"], row["v"]) for row in self.rows(self.table.changes(since=since, net=True)))
        # Where a key is one row of its partition, a row of it in another one is another row.
        places = self.states[since][2]
        same = {key for key in before.keys() & after.keys() if self.moving or self.whole or places[key] == self.places[key]}
        expected = [("insert", key, value) for key, value in after.items() if key not in same]
        expected += [("delete", key, value) for key, value in before.items() if key not in same]
        for key in same:
            if before[key] != after[key]:
                expected += [("update_before", key, before[key]), ("update_after", key, after[key])]
        # A key that was written, and has the value of before again, is told as an update that changes nothing.
        again = {key for change, key, value in told if change == "update_before" and before[key] == after.get(key) == value}
        assert [row for row in told if row[1] not in again] == sorted(expected)

    def read(self, read: Any) -> Rows:
        rows = self.rows(read)
        found = {row["id"]: row["v"] for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        return found

    def put(self, key: int, ordering: int, value: int | None, part: str | None = None) -> None:
        if not self.ordered or key not in self.model or ordering >= self.model[key][0]:
            self.model[key] = (ordering, value)
            _, parts, places = self.states[-1]
            if value is None:
                # A delete stays where its key was.
                part = parts.get(key) if self.moving else part
            self.parts[key] = part
            self.places[key] = places[key] if value is None and key in places else self.partition(key, part)

    def partition(self, key: int, part: str | None) -> str:
        """The partition of a row: of the first former partitioning under which it has a file group, else of the present one."""
        spec = self.table.spec
        former = [partition_of(partitioning, key, part) for partitioning in spec.former]
        return next((place for place in former if place in self.live), partition_of(spec.partitioning, key, part))

    def row(self, key: int, ordering: int) -> dict[str, Any]:
        self.count += 1
        return {"id": key, "part": "xy"[self.count // 2 % 2] if self.moving else part_of(key), "o": ordering, "v": self.count}

    @rule(rows=ROWS)
    def upsert(self, rows: list[tuple[int, int]]) -> None:
        batch = [self.row(*row) for row in rows]
        for row in batch:
            self.put(row["id"], row["o"], row["v"], row["part"])
        self.done(self.table.upsert(self.batch(batch, SCHEMA)))

    @rule(by=BY)
    def set_partitioning(self, by: tuple[str, ...]) -> None:
        self.table.alter.set_partitioning(by)
        if self.table.refresh().slot == len(self.slots):
            self.done(None)
        assert tuple(field.name for field in self.table.spec.partitioning.fields) == PARTITIONINGS[by]

    def prepare(self, chosen: Chosen) -> list[dict[str, Any]]:
        """The rows of a replacement."""
        if chosen.anew is not None:
            self.set_partitioning(chosen.by[1])
            self.overwrite(chosen.anew)
        self.set_partitioning(chosen.by[0])
        self.upsert(chosen.rows)
        return [self.row(key ^ chosen.beside, ordering) for key, ordering in dict(chosen.rows).items()]

    @rule(chosen=CHOSEN)
    def insert_overwrite(self, chosen: Chosen) -> None:
        batch = self.prepare(chosen)
        present = self.table.spec.partitioning
        touched = self.touched(batch) if present.fields else None
        former = (touched or set()) - {partition_of(present, row["id"], row["part"]) for row in batch}
        is_refused = any(self.places[key] in former for key in self.slots[-1])
        self.replace(batch, touched, self.table.insert_overwrite, is_refused=is_refused)

    @rule(chosen=CHOSEN)
    def insert_overwrite_where(self, chosen: Chosen) -> None:
        batch = self.prepare(chosen)
        touched, column = self.touched(batch), self.partition_column(chosen.column)
        values = {row[column] for row in batch} | (self.values(column, touched) if chosen.whole else set())
        where, named = self.named(column, values)
        # A row of the batch in a partition with others that the filter is not true of would take them away.
        is_refused = named is None or any(self.places[key] in touched - named for key in self.slots[-1])
        ended = touched | (named or set())
        self.replace(batch, ended, lambda data: self.table.insert_overwrite(data, where=where), is_refused=is_refused)

    @rule(rows=FEW_ROWS)
    def overwrite(self, rows: list[tuple[int, int]]) -> None:
        batch = [self.row(key, ordering) for key, ordering in dict(rows).items()]
        self.replace(batch, None, self.table.overwrite)

    @rule(chosen=CHOSEN)
    def delete_partition(self, chosen: Chosen) -> None:
        self.prepare(chosen)
        keys, column = sorted(self.slots[-1]), self.partition_column(chosen.column)
        if not keys:
            return
        key = keys[chosen.key % len(keys)]
        values = self.values(column, {self.places[key]}) if chosen.whole else {key if column == "id" else self.parts[key]}
        where, named = self.named(column, values)
        if named is None:
            self.refused(lambda: self.table.delete_partition(where))
            return
        result = self.table.delete_partition(where)
        assert result is not None or not named
        assert (result is None) == (self.live_now() == self.live)
        if result is not None:
            self.forget(named)
            self.done(result)

    def partition_column(self, number: int) -> str:
        """One of those that partitions are or were made of."""
        columns = [column.name for column in self.table.spec.partition_columns] or ["id"]
        return columns[number % len(columns)]

    def values(self, column: str, places: set[str]) -> set[Any]:
        """Of the rows of some partitions."""
        return {key if column == "id" else self.parts[key] for key in self.slots[-1] if self.places[key] in places}

    def touched(self, batch: list[dict[str, Any]]) -> set[str]:
        return {self.partition(row["id"], row["part"]) for row in batch}

    def named(self, column: str, values: set[Any]) -> tuple[str, set[str] | None]:
        """A filter, and the partitions whose rows it is true of; None where it is of no partition column, or divides a partition."""
        where = f"{column} in ({', '.join(map(repr, sorted(values)))})"
        passed = {self.places[key] for key in self.slots[-1] if (key if column == "id" else self.parts[key]) in values}
        is_partitioned = column in [field.name for field in self.table.spec.partition_columns]
        return where, passed if is_partitioned and self.values(column, passed) <= values else None

    def replace(self, batch: list[dict[str, Any]], ended: set[str] | None, call: Callable[[Any], Any], *, is_refused: bool = False) -> None:
        """Replace the rows of some partitions; None: of all, after which the present partitioning alone decides."""
        data = self.batch(batch, SCHEMA)
        if is_refused:
            self.refused(lambda: call(data))
            return
        result = call(data)
        self.forget(set(self.places.values()) if ended is None else ended)
        if ended is None:
            self.live = frozenset()
        for row in batch:
            self.put(row["id"], row["o"], row["v"], row["part"])
        self.done(result)

    def forget(self, ended: set[str]) -> None:
        """Forget the rows of partitions that have ended, with the deletes. One of deletes alone may have ended too: bounds of files say
        whether a filter names it."""
        kept = {*self.live_now(), *(self.places[key] for key in self.slots[-1])} - ended
        self.keep(lambda key: self.places[key] in kept)

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        kept = [key for key in self.model if is_kept(key)]
        self.model = {key: self.model[key] for key in kept}
        self.parts = {key: self.parts[key] for key in kept}
        self.places = {key: self.places[key] for key in kept}


class TableMachine(ReplacingMachine):
    """All operations."""

    @rule(rows=ROWS)
    def insert(self, rows: list[tuple[int, int]]) -> None:
        new = {key: ordering for key, ordering in rows if key not in self.model}
        if new:
            batch = [self.row(key, ordering) for key, ordering in new.items()]
            for row in batch:
                self.put(row["id"], row["o"], row["v"], row["part"])
            self.done(self.table.insert(self.batch(batch, SCHEMA)))

    @rule(rows=ROWS, gone=st.sets(st.integers(0, 5)))
    def upsert_and_delete(self, rows: list[tuple[int, int]], gone: set[int]) -> None:
        batch = [self.row(*row) | {"op": "d" if number in gone else "u"} for number, row in enumerate(rows)]
        for row in batch:
            self.put(row["id"], row["o"], None if row["op"] == "d" else row["v"], row["part"])
        schema = SCHEMA.append(pa.field("op", pa.string()))
        self.done(self.table.upsert(self.batch(batch, schema), delete_when="op = 'd'"))

    @NOT_EMPTY
    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def delete_keys(self, keys: list[int]) -> None:
        self.keep(lambda key: key not in keys)
        rows = [{"id": key} if self.moving else {"id": key, "part": part_of(key)} for key in keys]
        schema = pa.schema([SCHEMA.field(name) for name in rows[0]])
        self.done(self.table.delete(self.batch(rows, schema)))

    @NOT_EMPTY
    @rule(since=st.integers(0, 12))
    def delete_where(self, since: int) -> None:
        gone = [key for key, (_, value) in self.model.items() if value is not None and since <= value <= self.count and value % 7 < 4]
        numbers = ", ".join(str(number) for number in range(since, self.count + 1) if number % 7 < 4) or "-1"
        for key in gone:
            self.model[key] = (self.model[key][0], None)
        result = self.table.delete(f"v in ({numbers})")
        assert (result is None) == (not gone)
        if result is not None:
            self.done(result)

    @NOT_EMPTY
    @rule(since=st.integers(0, 12))
    def update_where(self, since: int) -> None:
        changed = [key for key, (_, value) in self.model.items() if value is not None and value >= since and value % 7 < 4]
        for key in changed:
            ordering, value = self.model[key]
            assert value is not None
            self.model[key] = (ordering, value + 1000)
        result = self.table.update({"v": "v + 1000"}, where=f"v >= {since} and v % 7 < 4", spark=self.spark)
        assert (result is None) == (not changed)
        if result is not None:
            assert result.updated == len(changed)
            self.done(result)

    @precondition(lambda self: self.moving)
    @rule(since=st.integers(0, 12))
    def move_where(self, since: int) -> None:
        moved = [key for key, (_, value) in self.model.items() if value is not None and value >= since and value % 5 < 3]
        for key in moved:
            ordering, value = self.model[key]
            assert value is not None
            self.put(key, ordering, value + 1000, "y" if self.parts[key] == "x" else "x")
        if moved:
            there = {"part": "CASE WHEN part = 'x' THEN 'y' ELSE 'x' END", "v": "v + 1000"}
            result = self.table.update(there, where=f"v >= {since} and v % 5 < 3", spark=self.spark)
            assert result is not None and (result.inserted, result.updated, result.deleted) == (0, len(moved), 0)
            self.done(result)

    @rule(rows=ROWS, bound=st.integers(0, 11))
    def merge(self, rows: list[tuple[int, int]], bound: int) -> None:
        batch = [self.row(*row) for row in {key: (key, ordering) for key, ordering in rows}.values()]
        before, done = dict(self.model), 0
        for row in batch:
            key = row["id"]
            is_there = key in before and before[key][1] is not None
            if is_there and key < bound and (not self.ordered or row["o"] >= before[key][0]):
                self.put(key, row["o"], row["v"], row["part"])
                done += 1
            elif is_there and key >= bound:
                # Kept out is what is older than the row and than what ended it.
                self.model[key], done = (max(row["o"], before[key][0]), None), done + 1
            elif not is_there:
                self.put(key, row["o"], row["v"], row["part"])
                done += 1
        merge = self.table.merge(self.batch(batch, SCHEMA)).when_matched_update(where=f"source.id < {bound}").when_matched_delete()
        result = merge.when_not_matched_insert().execute()
        assert result is not None or not done or self.ordered
        if result is not None:
            self.done(result)

    @NOT_EMPTY
    @rule()
    def compact(self) -> None:
        result = self.table.maintenance.compact()
        if result is not None:
            self.done(result)

    @NOT_EMPTY
    @rule(by=st.sampled_from([["v"], ["o", "v"], ["id"], []]), zorder=st.booleans())
    def cluster(self, by: list[str], zorder: bool) -> None:
        if not by and not self.table.spec.is_located:
            return
        result = self.table.maintenance.cluster(by=by, zorder=zorder and len(by) > 1)
        if result is not None:
            self.done(result)

    @precondition(lambda self: not self.table.spec.is_located)
    @rule()
    def split(self) -> None:
        if len(self.slots) % 3 == 0:
            result = self.table.maintenance.split_buckets(partition=self.partition(0, "x"))
            if result is not None:
                self.done(result)

    @NOT_EMPTY
    @rule(back=st.integers(1, 3))
    def restore(self, back: int) -> None:
        to = len(self.slots) - 1 - back
        if to >= 1:
            model, parts, places = self.states[to]
            self.model, self.parts, self.places = dict(model), dict(parts), dict(places)
            self.restored = len(self.slots)
            self.done(self.table.restore(to=to))

    @NOT_EMPTY
    @rule()
    def open_again(self) -> None:
        self.table = self.lake.table("t")
