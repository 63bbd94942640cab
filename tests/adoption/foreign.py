"""Tables of other tools for the tests of adoption, and what their rows are by these tools."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

ALL_TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("ratio", pa.float32()),
        ("exact", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("place", pa.struct([("town", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def all_types(ids: Iterable[int]) -> pa.Table:
    """Rows of every type. Each third one is null but for its key."""
    rows: list[dict[str, Any]] = []
    for number in ids:
        if number % 3 == 0:
            rows.append({"id": number})
            continue
        rows.append(
            {
                "id": number,
                "flag": number % 2 == 0,
                "small": number - 2**31 if number % 5 == 0 else number,
                "ratio": number / 4,
                "exact": float("nan") if number % 7 == 0 else number / 3,
                "price": decimal.Decimal(number) / 100,
                "day": dt.date(1969, 12, 28) + dt.timedelta(days=number),
                "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number, microseconds=number),
                "local": dt.datetime(1999, 12, 31, 23) + dt.timedelta(minutes=number),
                "name": f"Zürich {number} ☃",
                "raw": bytes([number % 256, 0, 255]),
                "place": {"town": None if number % 2 else "São Paulo", "zip": number},
                "tags": [None, "a"] if number % 2 else [],
                "counts": [("one", 1), ("none", None)],
            }
        )
    return pa.Table.from_pylist(rows, schema=ALL_TYPES)


def iceberg_catalog(root: Path) -> SqlCatalog:
    """A catalog in a file, with the namespace `db`."""
    catalog = SqlCatalog("tests", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    catalog.create_namespace_if_not_exists("db")
    return catalog


def plain(rows: pa.Table, key: str = "id") -> list[dict[str, Any]]:
    """The rows as values that compare, by key. NaN is text."""
    listed = rows.to_pylist()
    listed = [{name: "NaN" if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()} for row in listed]
    return sorted(listed, key=lambda row: row[key])


def replace_only_file(place: Path, rows: pa.Table, **options: Any) -> None:
    """Write the only file of a Delta table again, as its first commit says. options: of `pyarrow.parquet.write_table`."""
    (file,) = place.glob("*.parquet")
    pq.write_table(rows, file, **options)
    log = place / "_delta_log" / "00000000000000000000.json"
    said = log.read_text()
    begin = said.index('"size":') + 7
    log.write_text(said[:begin] + str(file.stat().st_size) + said[said.index(",", begin) :])
