"""Tables with rows as a mirror leaves them, written by pyiceberg at the place of the mirror."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import LongType, NestedField, StringType

import objcat
from objcat.serve.mirrored_metadata import mirror_folder
from tests.serve.mirrors import binding_of, location_of

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "name", StringType(), required=False))


class _VersionedCatalog(NoopCatalog):
    """Commits a table as the next `v<n>.metadata.json`, with the hint."""

    def __init__(self, lake: objcat.Lake, folder: str) -> None:
        super().__init__("versioned")
        self._lake, self._folder, self._version = lake, folder, 0

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        self._version += 1
        metadata = update_table_metadata(table.metadata, updates)
        location = f"{metadata.location}/metadata/v{self._version}.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(location), overwrite=True)
        self._lake.fileio.put(f"{self._folder}metadata/version-hint.text", str(self._version).encode())
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


class MirroredRows:
    """The mirror of a table, to which each `append` adds a slot. `properties`: of pyiceberg, to reach the store."""

    def __init__(self, lake: objcat.Lake, name: str, properties: dict[str, str] | None = None) -> None:
        folder = mirror_folder(binding_of(lake, name))
        metadata = new_table_metadata(SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location_of(lake.fileio, folder), {})
        io = PyArrowFileIO(properties or {})
        self._table = Table(("mirror", "rows"), metadata, "", io, _VersionedCatalog(lake, folder))

    def append(self, *ids: int) -> None:
        self._table.append(pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {number}" for number in ids]}))
