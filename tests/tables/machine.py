"""Every operation on a table, in any order, beside a dict: for each engine that writes and reads.

After each step the newest rows, an older slot, and what changed in between are compared with what the dict says.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import objcat
from objcat.table.spec import Index

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

Rows = dict[int, int]
"""By key, the value, which is another one with every write."""


def part_of(key: int) -> str:
    return "xy"[key % 2]


BUCKETS = (objcat.Bucket(1), objcat.Bucket(2), objcat.Bucket(4))
LOCATED = (objcat.Simple(), objcat.Bloom())
"""Indexes that are no hash: keys live in whatever file group took them."""


class TableMachine(RuleBasedStateMachine):
    """lake: a new one. spark: the session that updates; None: this process. indexes: that tables are made with. moving: keys are unique in
    the whole table, and their rows go from one partition to another. Subclasses say how batches are given and rows are read."""

    lake: objcat.Lake
    spark: Any = None
    indexes: tuple[Index, ...] = BUCKETS
    moving = False

    def batch(self, rows: list[dict[str, Any]], schema: pa.Schema) -> Any:
        return pa.Table.from_pylist(rows, schema)

    def rows(self, read: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read.to_arrow().to_pylist()
        return found

    @initialize(
        kind=st.sampled_from(["merge_on_read", "copy_on_write"]),
        ordered=st.booleans(),
        parted=st.booleans(),
        index=st.integers(0, 11),
        file_bytes=st.sampled_from([1024, 2048, 10**9]),
    )
    def create(self, kind: str, ordered: bool, parted: bool, index: int, file_bytes: int) -> None:
        self.ordered, self.parted = ordered, parted or self.moving
        self.count = 0
        self.table = self.lake.create_table(
            "t",
            SCHEMA,
            key=["id"],
            ordering="o" if ordered else None,
            kind=kind,
            partition_by=["part"] if self.parted else [],
            key_scope="table" if self.moving else "partition",
            index=self.indexes[index % len(self.indexes)],
            # Small ones, so that the keys of an index that is no hash come to live in several file groups.
            properties={"target_file_bytes": str(file_bytes)},
        )
        self.model: dict[int, tuple[int, int | None]] = {}  # key -> (ordering, value; None once deleted)
        self.models: list[dict[int, tuple[int, int | None]]] = [{}]
        self.slots: list[Rows] = [{}]
        self.parts: dict[int, str | None] = {}  # key -> its partition; None where a key was deleted that was nowhere
        self.parts_then: list[dict[int, str | None]] = [{}]
        self.restored = -1

    def done(self, result: Any) -> None:
        """A commit at the next slot, after which the table holds what the model says."""
        if result is not None:
            assert result.slot == len(self.slots)
        self.models.append(dict(self.model))
        self.parts_then.append(dict(self.parts))
        self.slots.append({key: value for key, (_, value) in self.model.items() if value is not None})
        self.check()

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
        expected = [("insert", key, value) for key, value in after.items() if key not in before]
        expected += [("delete", key, value) for key, value in before.items() if key not in after]
        for key in before.keys() & after.keys():
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
            # A delete stays where its key was.
            self.parts[key] = part if value is not None else self.parts.get(key)

    def part(self, key: int) -> str | None:
        return self.parts.get(key) if self.moving else part_of(key)

    def row(self, key: int, ordering: int) -> dict[str, Any]:
        self.count += 1
        return {"id": key, "part": "xy"[self.count // 2 % 2] if self.moving else part_of(key), "o": ordering, "v": self.count}

    @rule(rows=ROWS)
    def upsert(self, rows: list[tuple[int, int]]) -> None:
        batch = [self.row(*row) for row in rows]
        for row in batch:
            self.put(row["id"], row["o"], row["v"], row["part"])
        self.done(self.table.upsert(self.batch(batch, SCHEMA)))

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

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def delete_keys(self, keys: list[int]) -> None:
        for key in keys:
            self.model.pop(key, None)
            self.parts.pop(key, None)
        rows = [{"id": key} if self.moving else {"id": key, "part": part_of(key)} for key in keys]
        schema = pa.schema([SCHEMA.field(name) for name in rows[0]])
        self.done(self.table.delete(self.batch(rows, schema)))

    @rule(least=st.integers(0, 60))
    def delete_where(self, least: int) -> None:
        gone = [key for key, (_, value) in self.model.items() if value is not None and value < least and value % 7 < 4]
        numbers = ", ".join(str(number) for number in range(least) if number % 7 < 4) or "-1"
        for key in gone:
            self.model[key] = (self.model[key][0], None)
        result = self.table.delete(f"v in ({numbers})")
        assert (result is None) == (not gone)
        if result is not None:
            self.done(result)

    @rule(least=st.integers(0, 60))
    def update_where(self, least: int) -> None:
        changed = [key for key, (_, value) in self.model.items() if value is not None and value < least and value % 7 < 4]
        for key in changed:
            ordering, value = self.model[key]
            assert value is not None
            self.model[key] = (ordering, value + 1000)
        result = self.table.update({"v": "v + 1000"}, where=f"v < {least} and v % 7 < 4", spark=self.spark)
        assert (result is None) == (not changed)
        if result is not None:
            assert result.updated == len(changed)
            self.done(result)

    @rule(least=st.integers(0, 60))
    def move_where(self, least: int) -> None:
        moved = [key for key, (_, value) in self.model.items() if self.moving and value is not None and value < least and value % 5 < 3]
        for key in moved:
            ordering, value = self.model[key]
            assert value is not None
            self.model[key], self.parts[key] = (ordering, value + 1000), "y" if self.parts[key] == "x" else "x"
        if moved:
            there = {"part": "CASE WHEN part = 'x' THEN 'y' ELSE 'x' END", "v": "v + 1000"}
            result = self.table.update(there, where=f"v < {least} and v % 5 < 3", spark=self.spark)
            assert result is not None and (result.inserted, result.updated, result.deleted) == (0, len(moved), 0)
            self.done(result)

    @rule(rows=ROWS)
    def insert_overwrite(self, rows: list[tuple[int, int]]) -> None:
        batch = [self.row(key, ordering) for key, ordering in dict(rows).items()]
        self.forget({row["part"] for row in batch} if self.parted else {"x", "y"})
        for row in batch:
            self.put(row["id"], row["o"], row["v"], row["part"])
        self.done(self.table.insert_overwrite(self.batch(batch, SCHEMA)))

    @rule(rows=ROWS)
    def overwrite(self, rows: list[tuple[int, int]]) -> None:
        batch = [self.row(key, ordering) for key, ordering in dict(rows).items()]
        self.forget({"x", "y", None})
        for row in batch:
            self.put(row["id"], row["o"], row["v"], row["part"])
        self.done(self.table.overwrite(self.batch(batch, SCHEMA)))

    def forget(self, parts: set[str | None]) -> None:
        self.model = {key: held for key, held in self.model.items() if self.part(key) not in parts}
        self.parts = {key: part for key, part in self.parts.items() if key in self.model}

    @rule(part=st.sampled_from("xy"))
    def delete_partition(self, part: str) -> None:
        if self.parted and len(self.slots) % 3 == 0:
            result = self.table.delete_partition(f"part = '{part}'")
            # Where keys move, a partition in which there are but deletes has nothing to take away.
            if not self.moving or result is not None:
                self.forget({part})
            if self.moving:
                assert (result is not None) == (part in [self.parts_then[-1].get(key) for key in self.slots[-1]])
            if result is not None:
                self.done(result)

    @rule(rows=ROWS, bound=st.integers(0, 11))
    def merge(self, rows: list[tuple[int, int]], bound: int) -> None:
        batch = [self.row(*row) for row in {key: (key, ordering) for key, ordering in rows}.values()]
        before, done = dict(self.model), 0
        for row in batch:
            key = row["id"]
            is_there = key in before and before[key][1] is not None
            if is_there and key < bound and (not self.ordered or row["o"] >= before[key][0]):
                self.model[key], self.parts[key], done = (row["o"], row["v"]), row["part"], done + 1
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

    @rule()
    def compact(self) -> None:
        result = self.table.compact()
        if result is not None:
            self.done(result)

    @rule(by=st.sampled_from([["v"], ["o", "v"], ["id"], []]), zorder=st.booleans())
    def cluster(self, by: list[str], zorder: bool) -> None:
        if not by and not self.table.spec.is_located:
            return
        result = self.table.cluster(by=by, zorder=zorder and len(by) > 1)
        if result is not None:
            self.done(result)

    @rule()
    def split(self) -> None:
        if len(self.slots) % 3 == 0 and not self.table.spec.is_located:
            result = self.table.split_buckets(partition="part=x") if self.parted else self.table.split_buckets()
            if result is not None:
                self.done(result)

    @rule(back=st.integers(1, 3))
    def restore(self, back: int) -> None:
        to = len(self.slots) - 1 - back
        if to >= 1:
            self.model = dict(self.models[to])
            self.parts = dict(self.parts_then[to])
            self.restored = len(self.slots)
            self.done(self.table.restore(to=to))

    @rule()
    def open_again(self) -> None:
        self.table = self.lake.table("t")
