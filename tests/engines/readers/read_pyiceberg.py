"""pyiceberg, which reads one metadata file without a catalog."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyiceberg.table import StaticTable

from tests.engines.readers.serve import Request


def start(_folder: str) -> Callable[[Request], pa.Table]:
    def read(request: Request) -> pa.Table:
        return StaticTable.from_metadata(request.metadata).scan(snapshot_id=request.snapshot_id).to_arrow()

    return read
