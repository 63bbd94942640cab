"""deltalake, the Python package of delta-rs, through its own query engine."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.engines.readers.serve import Request


def start(_folder: str) -> Callable[[Request], pa.Table]:
    def read(request: Request) -> pa.Table:
        table = DeltaTable(request.prefix, version=request.version)
        return pa.table(QueryBuilder().register("t", table).execute(request.query("t", '"')).read_all())

    return read
