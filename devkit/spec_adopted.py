"""The table of `spec/tables/` whose files another tool wrote."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from devkit.spec_tables import NINE, Maker
from fileio.contract import Create
from objcat.adoption.foreign import ForeignFile, ForeignTable
from objcat.lake.adopt import adopt_table
from objcat.metadata.schema import schema_from_arrow

OLDER, NEWER = "old/a.parquet", "old/b.parquet"


class HandMade(ForeignTable):
    """A table of another format, whose metadata nobody reads."""

    def version_now(self) -> str:
        """See `ForeignTable`."""
        return self.version

    def ids_in(self, file: ForeignFile, schema: pa.Schema) -> dict[str, int]:
        """See `ForeignTable`. What the names of columns in the two files mean."""
        known = {"id": 1, "name": 3, "label": 3, "count": 4, "price": 5, "at": 7}
        # In the older file, "note" is a column that is gone.
        known |= {"note": 6} if file.key == NEWER else {}
        return {name: known[name] for name in schema.names if name in known}

    def kept_rows(self, file: ForeignFile, rows: int) -> npt.NDArray[Any]:
        """See `ForeignTable`. No row is deleted."""
        raise NotImplementedError(file.key)

    def rows_of(self, file: ForeignFile) -> Iterator[pa.Table]:
        """See `ForeignTable`. No file is written again."""
        raise NotImplementedError(file.key)


def adopted(maker: Maker) -> None:
    """Files of another tool: other names and types, a partition value that is in no file, a default, the name of a column that is gone."""
    table_schema = schema_from_arrow(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("city", pa.string()),
                ("label", pa.string()),
                ("count", pa.int64()),
                ("price", pa.decimal128(9, 2)),
                ("note", pa.string()),
                ("at", pa.timestamp("us", tz="UTC")),
            ]
        )
    )
    # The first file is older: "name" became "label", "count" was narrower, "price" joined with a default, and this "note" is a dropped one.
    at = [NINE, None, NINE + dt.timedelta(hours=1)]
    older = {
        "id": pa.array([3, 1, 2], pa.int64()),
        "name": ["c", "a", None],
        "count": pa.array([30, 10, None], pa.int32()),
        "note": ["x"] * 3,
    }
    newer = {"note": ["y"] * 2, "at": at[:2], "price": [Decimal("2.50"), None], "label": ["d", "e"], "id": [5, 4], "count": [2**40, -1]}
    times = pa.timestamp("us", tz="UTC")
    written = {
        OLDER: (pa.table({**older, "at": pa.array(at, times)}), "Oslo", True),
        NEWER: (
            pa.table({**newer, "at": pa.array(at[:2], times), "price": pa.array(newer["price"], pa.decimal128(9, 2))}),
            None,
            False,
        ),
    }
    files = []
    for key, (rows, city, is_old) in written.items():
        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer, use_deprecated_int96_timestamps=is_old, compression="snappy")
        data = buffer.getvalue().to_pybytes()
        maker.lake.fileio.put(key, data, Create())
        value = pa.scalar(city, pa.string())
        files.append(ForeignFile(key=key, bytes=len(data), rows=rows.num_rows, units=[value], values={2: value}))
    foreign = HandMade(
        format="a format",
        location=f"{maker.lake.fileio.url}/old",
        version="1",
        table_schema=table_schema,
        partition_by=["city"],
        files=files,
        defaults={5: pa.scalar(Decimal("1.50"), pa.decimal128(9, 2))},
    )
    maker.tick()
    adopt_table(maker.lake._context, foreign, "items", key=["id"])
    table = maker.lake.table("items")
    row = {"label": "new", "count": 7, "price": Decimal("9.99"), "note": "ours", "at": NINE}
    maker.tick()
    table.upsert([{"id": 1, "city": "Oslo", **row}, {"id": 5, "city": "Rome", **row}, {"id": 6, "city": None, **row}])
    maker.tick()
    table.delete([{"id": 3}])
    maker.tick()
    table.maintenance.compact()
    maker.tick()
    table.upsert([{"id": 4, "city": None, **row}])
