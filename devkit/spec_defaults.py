"""The table of `spec/tables/` with defaults of columns, and the vectors of how defaults are stored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

import objcat
from devkit.spec_tables import NINE, Maker
from devkit.spec_values import to_json, zoneless
from objcat.metadata.column_defaults import decode_default, encode_default

DEFAULTS: Sequence[tuple[str, Any]] = [
    ("boolean", True),
    ("tinyint", -128),
    ("smallint", 300),
    ("int", -5),
    ("bigint", 2**53 + 1),
    ("float", 0.1),
    ("double", 0.1),
    ("decimal(10,2)", Decimal("-0.5")),
    ("decimal(38,10)", Decimal(12)),
    ("string", "Zürich 'a' \\n ${x}"),
    ("binary", b"\0\xff"),
    ("date", dt.date(1969, 12, 31)),
    ("timestamp", NINE),
    ("timestamp_ntz", zoneless(1969, 12, 31, 23, 59, 59, 999_999)),
]
"""A value for each plain type."""


def column_defaults(maker: Maker) -> None:
    """Columns with a default join between writes: one of each type, one without nulls. Defaults change, and one is widened."""
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("a", pa.string())])
    table = maker.table("grown", schema, key=["id"], index=objcat.BucketIndex(1))
    maker.tick()
    table.insert([{"id": n, "a": f"a{n}"} for n in range(4)])
    maker.tick()
    table.upsert([{"id": 1, "a": "log"}, {"id": 7, "a": "log"}])
    maker.tick()
    table.alter.apply([objcat.AddColumn(f"d{number}", kind, default=value) for number, (kind, value) in enumerate(DEFAULTS)])
    maker.tick()
    table.upsert([{"id": 2, "a": "left out"}])
    maker.tick()
    table.upsert([{"id": 3, "a": "null", "d3": None, "d9": None}])
    maker.tick()
    table.alter.apply([objcat.AddColumn("never_null", "int", default=7, nullable=False), objcat.SetDefault("d3", 33)])
    maker.tick()
    table.upsert([{"id": 8}])
    maker.tick()
    table.upsert([{"id": 9, "d3": 9, "never_null": 9}])
    maker.tick()
    table.delete([{"id": 0}])
    maker.tick()
    table.alter.apply([objcat.RenameColumn("d3", "wide"), objcat.WidenColumn("wide", "decimal(12,2)"), objcat.DropDefault("d4")])
    maker.tick()
    table.upsert([{"id": 10}])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.alter.apply([objcat.DropColumn("d0"), objcat.AddColumn("d0", "boolean", default=False)])


def vectors_of_defaults() -> dict[str, Any]:
    """A value of each type, and its default as a schema has it."""
    found = []
    for kind, value in DEFAULTS:
        stored = encode_default(value, kind, path="c")
        found.append({"type": kind, "value": to_json(decode_default(stored, kind).as_py()), "default": stored})
    return {"about": "How the default of a column is stored, by its type.", "defaults": found}
