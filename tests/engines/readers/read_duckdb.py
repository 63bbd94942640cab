"""DuckDB, with its extensions from wheels: nothing is downloaded when it runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

from tests.engines.readers.serve import Request

EXTENSIONS = ("parquet", "json", "icu", "avro", "httpfs", "iceberg", "delta")


def start(_folder: str) -> Callable[[Request], pa.Table]:
    connections = [_connect()]
    attached: list[str] = []

    def read(request: Request) -> pa.Table:
        try:
            for setting in request.settings:
                connections[0].execute(f"SET {setting}")
            if request.catalog and request.catalog not in attached:
                attached.append(request.catalog)
                options = f"TYPE iceberg, ENDPOINT '{request.catalog}', AUTHORIZATION_TYPE 'none'"
                connections[0].execute(f"ATTACH '' AS c{len(attached) - 1} ({options})")
            source = _in_catalog(request, attached.index(request.catalog)) if request.catalog else _source(request)
            return _table(connections[0].execute(request.query(source, '"')))
        except duckdb.Error as error:
            # After an internal error every statement fails.
            connections[0] = _connect()
            attached.clear()
            raise error

    return read


def _connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", "threads": "1"})
    for name in EXTENSIONS:
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None and spec.submodule_search_locations is not None
        (file,) = Path(next(iter(spec.submodule_search_locations))).glob(f"extensions/*/{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _source(request: Request) -> str:
    if request.format == "delta":
        version = "" if request.version is None else f", version => {request.version}"
        return f"delta_scan('{request.prefix}'{version})"
    if request.way == "newest":
        return f"iceberg_scan('{request.prefix}')"
    snapshot = "" if request.snapshot_id is None else f", snapshot_from_id => {request.snapshot_id}::UBIGINT"
    return f"iceberg_scan('{request.metadata}'{snapshot})"


def _in_catalog(request: Request, number: int) -> str:
    state = "" if request.snapshot_id is None else f" AT (VERSION => {request.snapshot_id})"
    return f'c{number}."default".t{state}'


def _table(result: duckdb.DuckDBPyConnection) -> pa.Table:
    # This version answers by `arrow`, and the one of the project has another name for that.
    rows = result.arrow()  # type: ignore[attr-defined]
    return rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows
