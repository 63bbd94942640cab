"""Reads Delta tables by deltalake: their schema, live files and deletion vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.optional import library
from fileio.options import Secret, unquote_path
from fileio.store import FileIO
from objcat.adoption.foreign import FieldIds, ForeignFile, ForeignTable
from objcat.adoption.locations import key_of, location_below, plain_location
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.schema import FIELD_ID_KEY, Column, ColumnType, Ids, ListType, MapType, StructType, TableSchema, arrow_type

KNOWN_FEATURES = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"),
        *("vacuumProtocolCheck", "catalogManaged", "catalogOwned-preview"),
    }
)
"""Features for readers that an adoption takes into account, or that say nothing of rows."""
_PLAIN: Mapping[str, str] = {
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
}
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable(ForeignTable):
    """The current state of a Delta table.

    Args:
        open_again: opens its newest version.
        by_id: whether files are read by field id.
        vectors: which rows of a file are not deleted, by its key.
    """

    open_again: Callable[[], Any] = field(repr=False)
    by_id: bool
    vectors: Mapping[str, npt.NDArray[np.bool_]] = field(repr=False)

    def version_now(self) -> str:
        """See `ForeignTable`."""
        return str(self.open_again().version())

    def ids_in(self, file: ForeignFile, schema: pa.Schema) -> FieldIds:
        """See `ForeignTable`."""
        physical = {column.physical: column.id for column in self.table_schema.columns}
        known = set(physical.values())
        found = {}
        for one in schema:
            own = int((one.metadata or {}).get(FIELD_ID_KEY, -1))
            column_id = own if self.by_id and own in known else physical.get(one.name)
            # Partition values of the log count, even where a file has the column too.
            if column_id is not None and column_id not in file.values:
                found[one.name] = column_id
        return found

    def kept_rows(self, file: ForeignFile, rows: int) -> npt.NDArray[Any]:
        """See `ForeignTable`."""
        kept = np.ones(rows, np.bool_)
        said = self.vectors[file.key]
        kept[: len(said)] = said[:rows]
        return kept


def open_delta(fileio: FileIO, source: Any, storage_options: Mapping[str, str] | None) -> DeltaTable:
    """The current state of a Delta table.

    Args:
        fileio: of the lake.
        source: the URL of the table, or a table of deltalake.
        storage_options: of deltalake. None: made from the options of the lake.

    Raises:
        InvalidInput: there is no such table, or it has what cannot be adopted.
        InvalidSchema: a column has a type that objcat lacks.
        MissingDependency: deltalake is not installed.
    """
    lib = library("deltalake", needed_by="adopt_delta() needs", extra="adopt")
    given = source.table_uri if isinstance(source, lib.DeltaTable) else source
    if not isinstance(given, str) and not hasattr(given, "__fspath__"):
        raise InvalidInput(f"source is {source!r}. Give the URL of a Delta table, or a table of deltalake.")
    location = location_below(fileio, unquote_path(str(given)) if isinstance(source, lib.DeltaTable) else str(given))
    key_of(fileio, location, what="The Delta table")
    options = dict(storage_options) if storage_options is not None else storage_options_of(fileio)
    if isinstance(source, lib.DeltaTable) and storage_options is None:
        options = {**options, **(source._storage_options or {})}

    def open_again() -> Any:
        """The newest version."""
        try:
            return lib.DeltaTable(location, storage_options=options or None)
        except (lib.exceptions.DeltaError, OSError, ValueError) as error:
            raise InvalidInput(f"deltalake cannot open the Delta table at {location} ({error}). Nothing was adopted.") from error

    table = open_again()
    features = table.protocol().reader_features or []
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise InvalidInput(
            f"The Delta table at {location} has the reader feature {unknown[0]!r}, which objcat lacks. Nothing was adopted. Drop that "
            "feature from the table, or copy the rows."
        )
    metadata = table.metadata()
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    schema = schema_of(json.loads(table.schema().to_json()), mapped=mode != "none")
    partition_by = list(metadata.partition_columns)
    vectors = _vectors(fileio, table, location) if "deletionVectors" in features else {}
    return DeltaTable(
        format="Delta",
        location=location,
        version=str(table.version()),
        table_schema=schema,
        partition_by=[f"identity(`{name.replace('`', '``')}`)" for name in partition_by],
        files=list(_files(fileio, table, location, [schema.column(name) for name in partition_by], masked=vectors.keys())),
        open_again=open_again,
        by_id=mode == "id",
        vectors=vectors,
    )


def schema_of(said: Mapping[str, Any], *, mapped: bool) -> TableSchema:
    """The schema of a Delta table. Raises InvalidSchema for a type that objcat lacks.

    mapped: whether columns have ids and physical names.
    """
    ids = Ids(_last_id(said) if mapped else 0)
    columns = tuple(_column(one, one["name"], ids, mapped=mapped) for one in said["fields"])
    return TableSchema(columns=columns, last_id=max(1, ids.last))


def _last_id(said: Any) -> int:
    """The highest id of a schema with column mapping."""
    if isinstance(said, list):
        return max([0, *map(_last_id, said)])
    if not isinstance(said, dict):
        return 0
    own = said.get("metadata", {}).get(_ID, 0) if isinstance(said.get("metadata"), dict) else 0
    return max(int(own), *(_last_id(value) for key, value in said.items() if key != "metadata"), 0)


def _column(said: Mapping[str, Any], path: str, ids: Ids, *, mapped: bool) -> Column:
    metadata = said.get("metadata") or {}
    own = int(metadata[_ID]) if mapped else ids.next()
    physical = metadata[_PHYSICAL] if mapped else said["name"]
    kind = _type(said["type"], path, ids, mapped=mapped)
    return Column(id=own, name=said["name"], physical=physical, type=kind, nullable=bool(said["nullable"]))


def _type(said: Any, path: str, ids: Ids, *, mapped: bool) -> ColumnType:
    if isinstance(said, dict) and said["type"] == "struct":
        return StructType(fields=tuple(_column(one, f"{path}.{one['name']}", ids, mapped=mapped) for one in said["fields"]))
    if isinstance(said, dict) and said["type"] == "array":
        own = ids.next()
        element = _type(said["elementType"], f"{path}.element", ids, mapped=mapped)
        return ListType(element=Column(id=own, name="element", physical="element", type=element, nullable=said["containsNull"]))
    if isinstance(said, dict) and said["type"] == "map":
        own = ids.next()
        key = Column(id=own, name="key", physical="key", type=_type(said["keyType"], f"{path}.key", ids, mapped=mapped), nullable=False)
        own = ids.next()
        value = _type(said["valueType"], f"{path}.value", ids, mapped=mapped)
        return MapType(key=key, value=Column(id=own, name="value", physical="value", type=value, nullable=said["valueContainsNull"]))
    if isinstance(said, str) and said.startswith("decimal("):
        return said.replace(" ", "")
    if isinstance(said, str) and said in _PLAIN:
        return _PLAIN[said]
    raise InvalidSchema(
        f"The column {path!r} has the Delta type {said}, which objcat lacks. Nothing was adopted. Drop the column in the foreign table, or "
        "copy the rows with another type of it."
    )


def _files(fileio: FileIO, table: Any, location: str, columns: Sequence[Column], *, masked: Collection[str]) -> Iterator[ForeignFile]:
    """The live files. masked: the keys of those with a deletion vector."""
    actions = pa.table(table.get_add_actions())
    partitions = actions.column("partition").combine_chunks() if "partition" in actions.column_names else None
    # The struct has the names of columns, or those of files.
    values = {}
    for column in columns:
        assert partitions is not None
        name = column.name if partitions.type.get_field_index(column.name) >= 0 else column.physical
        values[column.id] = partitions.field(name).cast(arrow_type(column.type))
    told = zip(*(actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True)
    for at, (path, size, rows) in enumerate(told):
        key = _key(fileio, location, unquote_path(path))
        own = {column.id: values[column.id][at] for column in columns}
        yield ForeignFile(
            key=key,
            bytes=size,
            # With a deletion vector it may count the rows that are left.
            rows=None if key in masked else rows,
            units=[own[column.id] for column in columns],
            values=own,
            masked=key in masked,
        )


def _key(fileio: FileIO, location: str, path: str) -> str:
    return key_of(fileio, path if "://" in path or path.startswith(("/", "file:")) else f"{location}/{path}", what="The data file")


def _vectors(fileio: FileIO, table: Any, location: str) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows of files with a deletion vector are not deleted, by key. Raises InvalidInput where deltalake cannot read them."""
    lib = library("deltalake", needed_by="adopt_delta() needs", extra="adopt")
    try:
        vectors = table.deletion_vectors()
    except lib.exceptions.DeltaError as error:
        raise InvalidInput(
            f"deltalake cannot read the deletion vectors of the Delta table at {location} ({error}). Nothing was adopted. If that names a "
            "feature, drop it from the table in its own engine: ALTER TABLE ... DROP FEATURE typeWidening. Else copy the rows."
        ) from error
    found = {}
    for batch in pa.RecordBatchReader.from_stream(vectors):
        for path, kept in zip(batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True):
            key = key_of(fileio, plain_location(unquote_path(path)), what="The data file")
            found[key] = np.asarray(kept.values.to_numpy(zero_copy_only=False), np.bool_)
    return found


def storage_options_of(fileio: FileIO) -> dict[str, str]:
    """The options of a lake as deltalake takes them, as far as it has the same. Secrets are passed on."""
    description = fileio.describe()
    scheme = description.url.partition(":")[0]
    found = {}
    for name, target in _OPTIONS.get(scheme, {}).items():
        value = description.options.get(name)
        if value is not None:
            said = value.reveal() if isinstance(value, Secret) else value
            found[target] = str(said).lower() if isinstance(said, bool) else str(said)
    if any(value.startswith("http:") for value in found.values()):
        found["allow_http"] = "true"
    return found


_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "endpoint": "AWS_ENDPOINT_URL",
        "region": "AWS_REGION",
        "access_key": "AWS_ACCESS_KEY_ID",
        "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "anonymous": "AWS_SKIP_SIGNATURE",
    },
    "gs": {"credentials_file": "GOOGLE_APPLICATION_CREDENTIALS", "endpoint": "GOOGLE_BASE_URL", "anonymous": "GOOGLE_SKIP_SIGNATURE"},
    "az": {
        "endpoint": "AZURE_STORAGE_ENDPOINT",
        "account": "AZURE_STORAGE_ACCOUNT_NAME",
        "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
        "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    },
}
