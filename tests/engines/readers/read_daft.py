"""daft, which takes metadata from pyiceberg and deltalake."""

from __future__ import annotations

from collections.abc import Callable

import daft
import pyarrow as pa

from tests.engines.readers.pyiceberg_table import table_of
from tests.engines.readers.serve import Request


def start(_folder: str) -> Callable[[Request], pa.Table]:
    def read(request: Request) -> pa.Table:
        if request.format == "delta":
            return daft.read_deltalake(request.prefix, version=request.version).to_arrow()
        return daft.read_iceberg(table_of(request), snapshot_id=request.snapshot_id).to_arrow()

    return read
