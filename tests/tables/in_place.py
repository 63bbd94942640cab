"""Sources of tables in place for tests: files in every format, and the rows that they have."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import orc

import objcat
from fileio import open_store
from fileio.store import FileIO

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("share", pa.float64())])
LINE = r"(?P<id>-?\d+) (?P<share>\S+) ?(?P<name>.*)"


def rows(begin: int, end: int) -> list[Row]:
    """Some rows. One in five names is null where a format can say so."""
    return [{"id": number, "name": f"n{number % 7}", "share": number / 4} for number in range(begin, end)]


def as_json(given: Iterable[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def as_parquet(given: Sequence[Row], *, row_group_size: int = 10) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(given), SCHEMA), made, row_group_size=row_group_size)
    return made.getvalue()


def as_csv(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    pa_csv.write_csv(pa.Table.from_pylist(list(given), SCHEMA), made)
    return made.getvalue()


def as_orc(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    orc.write_table(pa.Table.from_pylist(list(given), SCHEMA), made)
    return made.getvalue()


def as_avro(given: Sequence[Row]) -> bytes:
    made = io.BytesIO()
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, {"name": "share", "type": "double"}]
    fastavro.writer(made, {"type": "record", "name": "r", "fields": fields}, list(given))
    return made.getvalue()


def as_text(given: Iterable[Row]) -> bytes:
    return "".join(f"{row['id']} {row['share']} {row['name']}\n" for row in given).encode()


FORMATS: Mapping[str, Callable[[Sequence[Row]], bytes]] = {
    "parquet": as_parquet,
    "orc": as_orc,
    "avro": as_avro,
    "csv": as_csv,
    "json": as_json,
    "text": as_text,
}
COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
    ".lz4": lambda data: bytes(pa.compress(data, codec="lz4", asbytes=True)),
}


def of_lake(url: str | None = None, options: Mapping[str, Any] | None = None) -> tuple[FileIO, objcat.Lake]:
    """A store with sources, and a lake below it."""
    place = url or f"memory://{secrets.token_hex(6)}"
    return open_store(place, options), objcat.connect(f"{place}/lake", options)


def read(table: objcat.Table, **asked: Any) -> list[Row]:
    """The rows of a scan, in order, which has to count as many."""
    scan = table.scan(**asked)
    found = scan.to_arrow().to_pylist()
    assert scan.count() == len(found)
    return sorted(found, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def in_order(given: Iterable[Row]) -> list[Row]:
    """Rows as `read` gives them."""
    return sorted(given, key=lambda row: json.dumps(row, default=str, sort_keys=True))
