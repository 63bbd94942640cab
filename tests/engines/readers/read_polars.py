"""polars, by its own readers; it turns to pyiceberg by itself where its reader of Iceberg lacks something."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa

from tests.engines.readers.pyiceberg_table import table_of
from tests.engines.readers.serve import Request


def start(_folder: str) -> Callable[[Request], pa.Table]:
    def read(request: Request) -> pa.Table:
        if request.format == "delta":
            return pl.scan_delta(request.prefix, version=request.version).collect().to_arrow()
        place = table_of(request) if request.catalog else request.metadata
        return pl.scan_iceberg(place, snapshot_id=request.snapshot_id).collect().to_arrow()

    return read
