"""The metadata tables of a table in `spark.sql`: `lake.city.trips.history`, `.snapshots`, `.files` and `.partitions`.

Their rows are those of `Table.inspect`. A column has the name that Iceberg gives it where Iceberg has the same fact, else ours.
`docs/how-to/spark-sql.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from objcat.common.validation import AsOf
from objcat.metadata.partitioning import NULL, encoded

ICEBERG_NAMES: Mapping[str, Mapping[str, str]] = {
    "history": {"committed_at": "made_current_at", "slot": "snapshot_id"},
    "snapshots": {"slot": "snapshot_id", "parent": "parent_id", "action": "operation"},
    "files": {"path": "file_path", "rows": "record_count", "bytes": "file_size_in_bytes", "slot": "snapshot_id"},
    "partitions": {"slot": "last_updated_snapshot_id"},
}
"""Columns that Iceberg's tables have too, by metadata table: our name, and Iceberg's."""
_ROWS: Mapping[str, Callable[[Any, AsOf | None], pa.Table]] = {
    "history": lambda table, as_of: table.inspect.history(as_of=as_of).to_arrow(),
    "snapshots": lambda table, as_of: table.inspect.snapshots(as_of=as_of),
    "files": lambda table, as_of: table.inspect.files(as_of=as_of),
    "partitions": lambda table, as_of: table.inspect.partitions(as_of=as_of),
}


def parts_of(name: str) -> tuple[str, str] | None:
    """The table and the metadata table that a dotted name may mean; None for none. A table of that whole name comes first."""
    of, _, kind = name.rpartition(".")
    return (of, kind.lower()) if of and kind.lower() in _ROWS else None


def shown_partition_names(table: Any, only: Mapping[str, str | None] = MappingProxyType({})) -> list[str]:
    """The partitions of a table as in paths, sorted. `only`: those with these values, by the names in paths; None for null."""
    found: list[str] = table.inspect.partitions()["partition"].to_pylist()
    most = table.spec.partitioning.value_bytes_max
    wanted = {f"{name}={NULL if value is None else encoded(value, most=most)}" for name, value in only.items()}
    return [partition for partition in found if wanted.issubset(partition.split("/"))]


def metadata_rows(table: Any, kind: str, as_of: AsOf | None) -> pa.Table:
    """The rows of a metadata table, as of the newest slot or an older one. Raises as the methods of `Table.inspect`."""
    # PySpark takes rows whose first chunk is empty for none.
    found = _ROWS[kind](table, as_of).combine_chunks()
    return found.rename_columns([ICEBERG_NAMES[kind].get(name, name) for name in found.column_names])
