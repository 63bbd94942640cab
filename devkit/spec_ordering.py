"""The table of `spec/tables/` with several ordering columns, and the vectors of which row of a key wins by them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

import objcat
from devkit.spec_tables import NINE, Maker
from devkit.spec_values import to_json
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, winners
from objcat.metadata.schema import arrow_type

ROWS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("value", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)


def row(number: int, value: str, hours: float, file: str, position: int) -> dict[str, Any]:
    """A row with three ordering values."""
    return {"id": number, "value": value, **order(hours, file, position)}


def order(hours: float, file: str, position: int) -> dict[str, Any]:
    """Ordering values, some hours after nine."""
    return {"at": NINE + dt.timedelta(hours=hours), "file": file, "position": position}


def ordering_columns(maker: Maker) -> None:
    """Rows that differ in the second or third column only, tombstones, barriers, a compaction, changes of columns, and moves."""
    by = ["at", "file", "position"]
    table = maker.table("events", ROWS, key=["id"], ordering=by, index=objcat.BucketIndex(2))
    maker.tick()
    table.insert([row(number, "first", 0, "b", 5) for number in range(10)])
    maker.tick()
    table.upsert([row(0, "older by time", -1, "z", 9), row(1, "older by file", 0, "a", 9), row(2, "older by position", 0, "b", 4)])
    maker.tick()
    table.upsert([row(0, "newer by time", 1, "a", 0), row(1, "newer by file", 0, "é", 0), row(2, "newer by position", 0, "b", 6)])
    maker.tick()
    table.upsert([row(3, "equal", 0, "b", 5)])
    maker.tick()
    table.delete(
        [{"id": 4, **order(0, "b", 4)}, {"id": 5, **order(0, "b", 5)}, {"id": 6, **order(0, "c", 0)}, {"id": 77, **order(0, "b", 1)}]
    )
    maker.tick()
    table.delete([{"id": 7}, {"id": 8}])
    maker.tick()
    table.upsert([row(5, "late", 0, "b", 4), row(6, "late", 0, "b", 9), row(7, "after a barrier", -9, "a", 0), row(77, "late", 0, "b", 0)])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([row(5, "equal to a tombstone", 0, "b", 5), row(6, "late again", 0, "b", 9), row(9, "older", 0, "a", 99)])
    maker.tick()
    table.alter.apply([objcat.RenameColumn("file", "segment"), objcat.WidenColumn("position", "decimal(20,0)")])
    maker.tick()
    table.upsert([{"id": 9, "value": "wider", "at": NINE, "segment": "b", "position": Decimal(6)}])


Said = tuple[str, Sequence[Any] | None]
"""The operation of a row, and its ordering values: none for a barrier."""
CASES: Sequence[tuple[Sequence[str], Sequence[Said]]] = [
    (["bigint"], [("upsert", [2]), ("upsert", [1])]),
    (["bigint"], [("upsert", [1]), ("upsert", [1])]),
    (["bigint", "bigint"], [("upsert", [1, 2]), ("upsert", [1, 1])]),
    (["bigint", "bigint"], [("upsert", [1, 9]), ("upsert", [2, 0])]),
    (["bigint", "bigint"], [("upsert", [2, 0]), ("upsert", [1, 9])]),
    (["bigint", "bigint"], [("upsert", [1, 2]), ("upsert", [1, 2])]),
    (["bigint", "string", "int"], [("upsert", [1, "b", 3]), ("upsert", [1, "b", 2]), ("upsert", [1, "a", 9])]),
    (["string", "string"], [("upsert", ["z", "a"]), ("upsert", ["é", "a"]), ("upsert", ["z", "z"])]),
    (
        ["date", "decimal(10,2)"],
        [("upsert", [dt.date(1969, 12, 31), Decimal("0.10")]), ("upsert", [dt.date(1969, 12, 31), Decimal("-0.1")])],
    ),
    (["double", "bigint"], [("upsert", [0.0, 1]), ("upsert", [-0.0, 2]), ("upsert", [0.0, 1])]),
    (["double", "bigint"], [("upsert", [math.inf, 1]), ("upsert", [math.inf, 0])]),
    (["bigint", "bigint"], [("upsert", [1, 2]), ("delete", [1, 1])]),
    (["bigint", "bigint"], [("upsert", [1, 2]), ("delete", [1, 2])]),
    (["bigint", "bigint"], [("delete", [1, 2]), ("upsert", [1, 1])]),
    (["bigint", "bigint"], [("delete", [1, 2]), ("upsert", [1, 2])]),
    (["bigint", "bigint"], [("upsert", [9, 9]), ("delete", None), ("upsert", [1, 1]), ("upsert", [1, 0])]),
    (["bigint", "bigint"], [("upsert", [9, 9]), ("upsert", [1, 1]), ("delete", None)]),
    (["bigint", "bigint"], [("upsert", [9, 9]), ("delete", [7, None]), ("upsert", [1, 0])]),
]
"""By the types of the ordering columns, the rows of a key in the order in which they count. A row of the last case is placed by the first
column, so its delete has that value and is a barrier."""


def vectors_of_ordering() -> Mapping[str, Any]:
    """Which row of a key wins."""
    made = []
    for types, rows in CASES:
        fields = [pa.field(f"o{number}", arrow_type(kind)) for number, kind in enumerate(types)]
        values = [[None if one is None else one[number] for _, one in rows] for number in range(len(types))]
        arrays = [pa.array(column, field.type) for column, field in zip(values, fields, strict=True)]
        ops = pa.array([OP_DELETE if op == "delete" else OP_UPSERT for op, _ in rows], pa.int8())
        table = pa.table([pa.array([1] * len(rows)), ops, *arrays], names=["k", OP_COLUMN, *(field.name for field in fields)])
        (winner,) = winners(table, key=["k"], ordering=[field.name for field in fields]).tolist()
        told = [{"op": op, "values": [to_json(array[at].as_py()) for array in arrays]} for at, (op, _) in enumerate(rows)]
        made.append({"types": list(types), "rows": told, "winner": winner})
    about = "Which row of a key wins, by its number, of rows in the order in which they count. Where that is a delete, the key is gone."
    return {"about": about, "keys": made}
