"""ClickHouse as a library."""

from __future__ import annotations

import os
from collections.abc import Callable

import chdb
import pyarrow as pa

from tests.engines.readers.serve import Request

SETTINGS = "session_timezone = 'UTC', output_format_arrow_string_as_string = 0, max_threads = 1"


def start(_folder: str) -> Callable[[Request], pa.Table]:
    # It reads files below its folder only.
    os.chdir("/")

    def read(request: Request) -> pa.Table:
        if request.format == "delta":
            source, state = f"deltaLakeLocal('{request.prefix}/')", f", delta_lake_snapshot_version = {request.slot}"
        else:
            source, state = f"icebergLocal('{request.prefix}/')", f", iceberg_snapshot_id = {request.slot + 1}"
        settings = SETTINGS + ("" if request.way == "newest" else state)
        found = chdb.query(f"{request.query(source, '`')} settings {settings}", "ArrowStream").bytes()
        if not found:
            raise LookupError("ClickHouse answers nothing, not even columns")
        return pa.ipc.open_stream(found).read_all()

    return read
