"""What docs/spec/ says of partitions is enough: the second reader sees what objcat sees, and has every row where it lies."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.common.validation import TableType
from tests.protocol.test_second_reader import WEIGHTS, Subject, World, compare, reader

PARTITIONINGS: dict[str, list[list[str]]] = {
    "numbers": [["truncate(id, 5)"], [], ["id"]],
    "places": [["truncate(street, 2)", "month(day)"], [], ["day(day)"], ["street"], ["year(day)", "street"]],
    "money": [["amount"], []],
}
"""Of key columns, so that a row has one place whatever its other columns are."""


class Moving(Subject):
    """A table whose partitioning changes."""

    def __init__(self, world: World, name: str, shape: str, **settings: Any) -> None:
        super().__init__(world, name, shape, **settings)
        self.choices = PARTITIONINGS[shape]
        self.table.alter.set_partitioning(self.choices[0])

    def do_repartition(self) -> None:
        self.table.alter.set_partitioning(self.world.random.choice(self.choices))

    def do_split(self) -> None:
        live = sorted(self.table.refresh().live_partitions(self.table._context.manifests))
        if live and self.splits < 6:
            self.splits += 1
            self.table.maintenance.split_buckets(partition=self.world.random.choice(live))


@pytest.mark.parametrize(
    ("seed", "shape", "ordered", "kind"),
    [
        (31, "numbers", True, "merge_on_read"),
        (32, "places", False, "copy_on_write"),
        (33, "places", True, "merge_on_read"),
        (34, "money", False, "merge_on_read"),
    ],
)
def test_every_slot_of_a_table_whose_partitioning_changes(tmp_path: Path, seed: int, shape: str, ordered: bool, kind: TableType) -> None:
    world = World(seed)
    subject = Moving(world, "city.things", shape, ordered=ordered, kind=kind)
    for _ in range(56):
        subject.step({**WEIGHTS, "delete_ordered": 8 if ordered else 0, "repartition": 4})
    assert compare(world.lake, world.dump(tmp_path)) > 20


DAYS = [-719_162, -141_428, -1, 0, 11_016, 19_782, 2_932_896, 59]
MICROS = [0, -1, 1, 3_599_999_999, -3_600_000_001, 2**55, -(2**55), 86_399_999_999]
EVERY = pa.table(
    {
        "id": pa.array(range(8)),
        "s": pa.array(["", None, "_x", "a.", "/%=~", "東京", "x" * 200, "é" * 61]),
        "n": pa.array([-128, 127, 0, None, -1, 9, 10, -10], pa.int8()),
        "b": pa.array([True, False, None, True, True, True, True, True]),
        "f": pa.array([0.1, -0.0, math.nan, math.inf, -math.inf, 1e16, 1e-5, None], pa.float64()),
        "g": pa.array([0.1, -0.0, math.nan, 1e16, 1e-5, 123456.5, 1, None], pa.float32()),
        "d": pa.array([Decimal("-0.05"), Decimal("10.00"), None, *[Decimal(5)] * 5], pa.decimal128(20, 2)),
        "y": pa.array(DAYS, pa.int32()).cast(pa.date32()),
        "t": pa.array(MICROS).cast(pa.timestamp("us", tz="UTC")),
        "u": pa.array([*MICROS[:7], None]).cast(pa.timestamp("us")),
        "w": pa.array([b"", b"\0\xff", b"z" * 150, None, b"1", b"2", b"3", b"4"]),
    }
)
FIELDS = [
    *([name] for name in "snbfgdytuw"),
    *([f"{transform}({column})"] for transform in ("year", "month", "day") for column in "ytu"),
    ["hour(t)"],
    ["hour(u)"],
    ["truncate(s, 2)"],
    ["truncate(n, 10)"],
    ["truncate(id, 3)"],
    ["s", "hour(t)", "w"],
    list("snfgdytu"),
]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_every_value_has_the_partition_that_the_page_says(tmp_path: Path, kind: TableType) -> None:
    world = World(35)
    for number, by in enumerate(FIELDS):
        key = ["id"] if number % 2 else None
        table = world.lake.create_table(f"t{number}", EVERY.schema, key=key, partition_by=by, key_scope="partition", table_type=kind)
        table.insert(EVERY)
        table.insert(EVERY.slice(2, 3))
    assert compare(world.lake, world.dump(tmp_path)) == 2 * len(FIELDS)


def test_far_years_have_the_partition_that_the_page_says(tmp_path: Path) -> None:
    """Python's own dates end with the year 9999, so rows are not compared here: the second reader refuses a row that lies elsewhere."""
    world = World(36)
    days = pa.array([-719_529, 2_932_897, -(2**31), 2**31 - 1], pa.int32())
    table = world.lake.create_table("t", pa.schema([("y", pa.date32()), ("v", pa.int64())]), key=None, partition_by=["y", "month(y)"])
    table.insert(pa.table({"y": days.cast(pa.date32()), "v": [1, 2, 3, 4]}))
    found = {group_id.partition for group_id in table.refresh().live_group_ids(table._context.manifests)}
    assert found == {
        "y=-0001-12-31/y_month=-0001-12",
        "y=10000-01-01/y_month=10000-01",
        "y=-5877641-06-23/y_month=-5877641-06",
        "y=5881580-07-11/y_month=5881580-07",
    }


def test_the_reader_refuses_a_row_that_lies_elsewhere(tmp_path: Path) -> None:
    """The comparison can fail: a partitioning that the log says otherwise is found."""
    world = World(37)
    table = world.lake.create_table(
        "t", EVERY.schema, key=["id"], partition_by=["day(y)"], key_scope="partition", index=objcat.BucketIndex(1)
    )
    table.insert([{"id": 1, "y": dt.date(2026, 1, 1)}])
    path = world.dump(tmp_path)
    (slot,) = path.glob("tables/*/log/*0.json")
    slot.write_text(slot.read_text().replace('"day"', '"month"'))
    with pytest.raises(reader.Corrupt, match=r"is of the partition y_day=2026-01$"):
        reader.Lake(path).table("t").rows()
