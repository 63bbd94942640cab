"""One side of `benchmarks.lookup_bench` in a process of its own: `python -m benchmarks.lookup_side SIDE WORK PLACE [COUNT]`.

`make` creates the table and its commits, `more` adds upserts with rows everywhere. `lookup` finds one row and prints a line of JSON with
its seconds: from the first call of the library on, without imports. A second lookup of the same process follows, for comparison.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64()), pa.field("note", pa.string())])
ROWS = 15_000
KEY = 7_001
NEIGHBOURS = 10
"""Rows of each commit of `make`: keys next to each other, none of them the one that is looked up."""
SPREAD = range(0, ROWS, 100)


class LookupSide(Protocol):
    """What a side does. `store`: endpoint, bucket, region, access_key, secret_key, directory."""

    def make(self, rows: pa.Table) -> None:
        """Create the table with its rows."""

    def upsert(self, rows: pa.Table) -> None:
        """One commit."""

    def compact(self) -> None:
        """Merge what the upserts left, where the library does so."""

    def lookup(self) -> pa.Table:
        """Find the row in a table that this object may not have opened yet."""


class Objcat:
    """A table of a lake, opened by its name."""

    def __init__(self, store: Mapping[str, str]) -> None:
        self._objcat: Any = importlib.import_module("objcat")
        self._url = f"s3://{store['bucket']}/lake"
        self._options = {name: store[name] for name in ("endpoint", "region", "access_key", "secret_key")}
        self._table: Any = None

    def make(self, rows: pa.Table) -> None:
        """As `LookupSide.make`."""
        lake = self._objcat.connect(self._url, self._options)
        self._table = lake.create_table("trips", SCHEMA, key=["id"])
        self._table.insert(rows)

    def upsert(self, rows: pa.Table) -> None:
        """As `LookupSide.upsert`."""
        self._opened().upsert(rows)

    def compact(self) -> None:
        """As `LookupSide.compact`."""
        self._opened().maintenance.compact()

    def lookup(self) -> pa.Table:
        """As `LookupSide.lookup`."""
        return self._opened().scan(where=f"id = {KEY}").to_arrow()

    def _opened(self) -> Any:
        if self._table is None:
            self._table = self._objcat.connect(self._url, self._options).table("trips")
        return self._table


class Deltalake:
    """A table by its URL."""

    def __init__(self, store: Mapping[str, str]) -> None:
        self._deltalake: Any = importlib.import_module("deltalake")
        self._path = f"s3://{store['bucket']}/trips"
        self._options = {
            "AWS_ENDPOINT_URL": store["endpoint"],
            "AWS_REGION": store["region"],
            "AWS_ACCESS_KEY_ID": store["access_key"],
            "AWS_SECRET_ACCESS_KEY": store["secret_key"],
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }
        self._table: Any = None

    def make(self, rows: pa.Table) -> None:
        """As `LookupSide.make`."""
        self._deltalake.write_deltalake(self._path, rows, storage_options=self._options)

    def upsert(self, rows: pa.Table) -> None:
        """As `LookupSide.upsert`."""
        merge = self._opened().merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        """As `LookupSide.compact`."""
        self._opened().optimize.compact()

    def lookup(self) -> pa.Table:
        """As `LookupSide.lookup`."""
        table = self._opened()
        found = self._deltalake.QueryBuilder().register("t", table).execute(f"select * from t where id = {KEY}")
        return pa.table(found.read_all())

    def _opened(self) -> Any:
        if self._table is None:
            self._table = self._deltalake.DeltaTable(self._path, storage_options=self._options)
        return self._table


class Pyiceberg:
    """A table of a catalog in SQLite, on the local disk: asking it for the name costs nothing here."""

    def __init__(self, store: Mapping[str, str]) -> None:
        self._expressions: Any = importlib.import_module("pyiceberg.expressions")
        sql: Any = importlib.import_module("pyiceberg.catalog.sql")
        importlib.import_module("pyiceberg.io.pyarrow")
        self._store = store
        self._catalog_of: Callable[..., Any] = sql.SqlCatalog
        self._table: Any = None

    def make(self, rows: pa.Table) -> None:
        """As `LookupSide.make`."""
        catalog = self._catalog()
        catalog.create_namespace("db")
        self._table = catalog.create_table("db.trips", SCHEMA)
        self._table.append(rows)

    def upsert(self, rows: pa.Table) -> None:
        """As `LookupSide.upsert`."""
        self._opened().upsert(rows, join_cols=["id"])

    def compact(self) -> None:
        """pyiceberg has none; its upserts rewrite files."""

    def lookup(self) -> pa.Table:
        """As `LookupSide.lookup`."""
        found: pa.Table = self._opened().scan(row_filter=self._expressions.EqualTo("id", KEY)).to_arrow()
        return found

    def _opened(self) -> Any:
        if self._table is None:
            self._table = self._catalog().load_table("db.trips")
        return self._table

    def _catalog(self) -> Any:
        options = {f"s3.{ours}": self._store[name] for ours, name in (("endpoint", "endpoint"), ("region", "region"))}
        options |= {"s3.access-key-id": self._store["access_key"], "s3.secret-access-key": self._store["secret_key"]}
        place = self._store["directory"]
        bucket = self._store["bucket"]
        return self._catalog_of("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"s3://{bucket}", **options)


LOOKUP_SIDES: Mapping[str, Callable[[Mapping[str, str]], LookupSide]] = {
    "objcat-local": Objcat,
    "deltalake": Deltalake,
    "pyiceberg": Pyiceberg,
}


def rows_of(keys: range, value: int) -> pa.Table:
    """Rows with one value."""
    return pa.table({"id": keys, "v": [value] * len(keys), "note": [f"note of {key} {value}" * 4 for key in keys]}, schema=SCHEMA)


def main(name: str, work: str, place: str, count: int = 0) -> None:
    """Do one work. place: the store as JSON."""
    side = LOOKUP_SIDES[name](json.loads(place))
    if work == "lookup":
        # The clock of the proxy too, which is another process of this machine.
        began_s = time.monotonic()
        found = side.lookup()
        first_s = time.monotonic()
        side.lookup()
        again_s = time.monotonic()
        print(json.dumps({"row": found.to_pylist(), "ended_s": first_s, "seconds": first_s - began_s, "again": again_s - first_s}))
        return
    if work == "make":
        side.make(rows_of(range(ROWS), 0))
        drawn = random.Random(1)
        for number in range(count):
            begin = drawn.choice([drawn.randrange(0, KEY - NEIGHBOURS), drawn.randrange(KEY + 1, ROWS - NEIGHBOURS)])
            side.upsert(rows_of(range(begin, begin + NEIGHBOURS), number + 1))
        side.compact()
        return
    for number in range(count):
        side.upsert(rows_of(range(SPREAD.start + number, SPREAD.stop, SPREAD.step), 1_000 + number))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
