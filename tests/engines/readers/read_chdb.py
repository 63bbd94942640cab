"""ClickHouse as a library."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import chdb
import pyarrow as pa
from chdb.session import Session

from tests.engines.readers.serve import Request

SETTINGS = "session_timezone = 'UTC', output_format_arrow_string_as_string = 0, max_threads = 1"


def start(_folder: str) -> Callable[[Request], pa.Table]:
    # It reads files below its folder only.
    os.chdir("/")

    def read(request: Request) -> pa.Table:
        if request.catalog:
            return _in_catalog(request)
        if request.format == "delta":
            source, state = f"deltaLakeLocal('{request.prefix}/')", f", delta_lake_snapshot_version = {request.slot}"
        else:
            pinned = f", settings iceberg_metadata_file_path = 'metadata/{Path(request.metadata).name}'" if request.way == "pinned" else ""
            source, state = f"icebergLocal('{request.prefix}/'{pinned})", "" if pinned else f", iceberg_snapshot_id = {request.slot + 1}"
        settings = SETTINGS + ("" if request.way == "newest" else state)
        return _table(chdb.query(f"{request.query(source, '`')} settings {settings}", "ArrowStream").bytes())

    return read


def _in_catalog(request: Request) -> pa.Table:
    """By a database that stands for the catalog, in a session that lives for one request.

    It wants the name of a warehouse, whatever it is. For tables on a disk it takes the format and the compression instead of credentials.
    """
    state = "" if request.snapshot_id is None else f", iceberg_snapshot_id = {request.snapshot_id}"
    with Session() as session:
        session.query("set allow_database_iceberg = 1")
        engine = f"DataLakeCatalog('{request.catalog}/v1', 'Parquet', 'none')"
        session.query(f"create database c engine = {engine} settings catalog_type = 'rest', warehouse = 'lake'")
        query = f"{request.query('c.`default.t`', '`')} settings {SETTINGS}{state}"
        return _table(session.query(query, "ArrowStream").bytes())


def _table(found: bytes) -> pa.Table:
    if not found:
        raise LookupError("ClickHouse answers nothing, not even columns")
    return pa.ipc.open_stream(found).read_all()
