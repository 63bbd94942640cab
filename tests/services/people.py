"""Tables of people, what one of them leaves in a bucket, and a search for it that knows nothing of objcat."""

from __future__ import annotations

import base64
import datetime as dt
import io
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from fileio import FileIO
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule
from objcat.datafile.bucket_hash import key_digests

SCHEMA = pa.schema(
    [
        pa.field("ssn", pa.string(), nullable=False),
        ("name", pa.string()),
        ("mail", pa.string()),
        ("born", pa.date32()),
        ("salary", pa.float64()),
        ("seen", pa.int64()),
        ("home", pa.struct([("street", pa.string()), ("door", pa.int64())])),
        ("tags", pa.list_(pa.string())),
    ]
)
HER = {
    "ssn": "123-45-6789",
    "name": "Ada Q. Lovelace",
    "mail": "ada@example.org",
    "born": dt.date(1815, 12, 10),
    "salary": 98765.25,
    "seen": 5,
    "home": {"street": "St James's Square", "door": 87_654_321},
    "tags": ["enchantress"],
}
"""The row that is erased; an older version of it differs in these."""
OLDER = {**HER, "name": "Augusta Ada Byron", "mail": "byron@example.net", "salary": 12321.125, "seen": 3}
NEEDLES = (
    *("123-45-6789", "Lovelace", "ada@example.org", "ada%40example", "Byron", "byron@example", "byron%40", "James's", "enchantress"),
    *("1815-12-10", "-56270", "98765.25", "12321.125", "87654321"),
)


def other(number: int, **values: Any) -> dict[str, Any]:
    """The row of somebody else."""
    return {
        "ssn": f"000-{number:05d}",
        "name": f"person {number}",
        "mail": f"mail-{number % 3}@example.com",
        "born": dt.date(1990, 1, 1 + number % 3),
        "salary": 1.5,
        "seen": 1,
        "home": {"street": "Main Street", "door": 1},
        "tags": ["common"],
        **values,
    }


def lake_on(backend: Any, seed: int) -> objcat.Lake:
    return objcat.Lake(FileIO(backend, env=FakeEnv(seed)))


def die_with(backend: MemoryBackend, rows: list[dict[str, Any]], *, name: str = "people") -> None:
    """A writer leaves files, and asks for no slot."""
    dies = Rule(kinds=frozenset({"put"}), key=lambda key: "/log/" in key, fault=Fault.CRASH_BEFORE)
    try:
        lake_on(FaultyBackend(backend, [dies]), 99).table(name).upsert(rows)
    except Crash:
        return
    raise AssertionError("it lives")


def leaks(backend: MemoryBackend, *, needles: tuple[str, ...] = NEEDLES) -> list[str]:
    """Where the bucket holds something of her: object and what was found. Bytes, names, decoded Parquet, and digests of her key."""
    fileio = FileIO(backend, env=FakeEnv(7))
    found = []
    for key in fileio.list_keys(""):
        data = fileio.read(key)
        texts = [key, data.decode("utf-8", "replace"), *_decoded(key, data)]
        for needle in (*needles, *(msgspec.json.encode(needle).decode().strip('"') for needle in needles)):
            found += [f"{key}: {needle}" for text in texts if needle in text]
        digest = key_digests([pa.array([HER["ssn"]])]).tobytes()
        if digest in data or any(digest in held for held in _base64(data)):
            found.append(f"{key}: the digest of the key")
    return sorted(set(found))


def _decoded(key: str, data: bytes) -> Iterator[str]:
    if not key.endswith(".parquet"):
        return
    with pq.ParquetFile(io.BytesIO(data)) as file:
        rows = file.read()
        for name, values in zip(rows.column_names, rows.columns, strict=True):
            yield f"{name}: {values.to_pylist()}"
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            yield str([group.column(at).to_dict() for at in range(group.num_columns)])


def _base64(data: bytes) -> Iterator[bytes]:
    for part in data.split(b'"inline": "')[1:]:
        yield base64.b64decode(part.partition(b'"')[0])


__all__ = ["HER", "NEEDLES", "OLDER", "SCHEMA", "die_with", "lake_on", "leaks", "other", "quote"]
