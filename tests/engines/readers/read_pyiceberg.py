"""pyiceberg, which reads one metadata file without a catalog, or what a catalog names."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tests.engines.readers.pyiceberg_table import table_of
from tests.engines.readers.serve import Request


def start(_folder: str) -> Callable[[Request], pa.Table]:
    def read(request: Request) -> pa.Table:
        return table_of(request).scan(snapshot_id=request.snapshot_id).to_arrow()

    return read
