"""Lakes with mirrored tables, and metadata by hand where a mirror would never write it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.catalog.names import NameBinding

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
MIRRORED = {"mirrors": "iceberg"}


class MirroredRows:
    """A table whose mirror follows each write at once."""

    def __init__(self, lake: objcat.Lake, name: str) -> None:
        self.table = lake.table(name)

    def append(self, *ids: int) -> None:
        """Add rows, and mirror them."""
        self.table.upsert([{"id": number, "name": f"row {number}"} for number in ids])
        self.mirror()

    def delete(self, *ids: int) -> None:
        """Delete rows, and mirror that."""
        self.table.delete([{"id": number} for number in ids])
        self.mirror()

    def mirror(self) -> None:
        """Bring the mirror up to the newest slot."""
        (report,) = self.table.maintenance.mirror()
        assert (report.lag, report.held) == (0, "")

    @property
    def snapshot_id(self) -> int:
        """Iceberg's id of the newest slot."""
        return self.table.snapshot.slot + 1


def contents(lake: objcat.Lake) -> dict[str, bytes]:
    """What is stored, by key, without hints: writers may still put them in the background."""
    return {key: lake.fileio.read(key) for key in lake.fileio.list_keys() if not key.endswith("head.json")}


def lake_with(*names: str) -> objcat.Lake:
    """A lake of one's own with empty tables and their mirrors."""
    lake = objcat.Lake(FileIO(MemoryBackend("serve")))
    for name in names:
        create(lake, name)
    return lake


def create(lake: objcat.Lake, name: str, **settings: Any) -> objcat.Table:
    """An empty table and its mirror."""
    table = create_plain(lake, name, properties=MIRRORED, **settings)
    table.maintenance.mirror()
    return table


def create_plain(lake: objcat.Lake, name: str, **settings: Any) -> objcat.Table:
    """An empty table, without a mirror unless settings say so."""
    return lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(1), **settings)


def binding_of(lake: objcat.Lake, name: str) -> NameBinding:
    """What the lake's catalog says of a table."""
    return lake._context.binding_of(name).binding


def metadata(location: str, version: int, table: str) -> dict[str, Any]:
    """Valid metadata of an empty table with a snapshot for each version up to this one."""
    snapshots = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": f"{location}/metadata/snap-{number}.avro",
            "summary": {"operation": "append", "objcat.slot": str(number - 1)},
            "schema-id": 0,
        }
        for number in range(1, version + 1)
    ]
    fields = [{"id": 1, "name": "id", "required": True, "type": "long"}, {"id": 2, "name": "name", "required": False, "type": "string"}]
    return {
        "format-version": 2,
        "table-uuid": "6f2d5a0e-6b5c-4a4e-9c1b-0a1b2c3d4e5f",
        "location": location,
        "last-sequence-number": version,
        "last-updated-ms": 1_700_000_000_000 + version,
        "last-column-id": 2,
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "type": "struct", "fields": fields, "identifier-field-ids": [1]}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"objcat.slot": str(version - 1), "objcat.table": table, "objcat.txn": "t"},
        "current-snapshot-id": version,
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in snapshots],
        "refs": {"main": {"snapshot-id": version, "type": "branch"}},
    }


def put_metadata(lake: objcat.Lake, name: str, version: int, *, hint: int | str | None = None) -> str:
    """Write one version of a table's metadata, and the hint where one is given. Returns the metadata's location."""
    store, binding = lake.fileio, binding_of(lake, name)
    folder = f"{binding.prefix}/"
    location = location_of(store, folder)
    store.put(f"{folder}metadata/v{version}.metadata.json", json.dumps(metadata(location, version, binding.table)).encode())
    if hint is not None:
        store.put(f"{folder}metadata/version-hint.text", str(hint).encode())
    return f"{location}/metadata/v{version}.metadata.json"


def location_of(store: FileIO, folder: str) -> str:
    """The location of a table in its metadata: an absolute URI."""
    return f"{store.url.rstrip('/')}/{folder.rstrip('/')}"
