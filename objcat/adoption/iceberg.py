"""Reads Iceberg tables of the versions 1, 2 and 3 by pyiceberg, over the store of the lake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.optional import library
from fileio.store import FileIO
from objcat.adoption.foreign import FieldIds, ForeignFile, TableWithFieldIds
from objcat.adoption.iceberg_store import read_only_io
from objcat.adoption.iceberg_types import SharedField, defaults_of, schema_of, shared_fields
from objcat.adoption.locations import key_of, location_below
from objcat.errors import InvalidInput
from objcat.metadata.schema import FIELD_ID_KEY, TableSchema, arrow_type

NEEDED_BY = "adopt_iceberg() needs"
_NUMBER = re.compile(r"^v?(\d+)(-.*)?\.(gz\.)?metadata\.json(\.gz)?$")


def _pyiceberg(module: str) -> Any:
    library("pyiceberg", needed_by=NEEDED_BY, extra="adopt")
    return library(f"pyiceberg.{module}", needed_by=NEEDED_BY, extra="adopt")


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable(TableWithFieldIds):
    """The current state of an Iceberg table.

    Args:
        fileio: of the lake.
        metadata_key: of the metadata file.
        metadata: pyiceberg's.
        io: pyiceberg's file access over `fileio`.
        source: pyiceberg's own table, where the user gave one.
    """

    fileio: FileIO
    metadata_key: str
    metadata: Any = field(repr=False)
    io: Any = field(repr=False)
    source: Any = None

    def version_now(self) -> str:
        """See `ForeignTable`."""
        if self.source is not None:
            return str(self.source.refresh().metadata_location)
        folder, _, name = self.metadata_key.rpartition("/")
        newest = _newest(self.fileio, folder)
        own, other = _NUMBER.match(name), None if newest is None else _NUMBER.match(newest)
        is_newer = newest is not None and own is not None and other is not None and int(other[1]) > int(own[1])
        return f"{folder}/{newest}" if is_newer else self.version

    def ids_in(self, file: ForeignFile, schema: pa.Schema) -> FieldIds:
        """See `ForeignTable`."""
        ids = {one.name: int((one.metadata or {}).get(FIELD_ID_KEY, -1)) for one in schema}
        if any(column_id >= 0 for column_id in ids.values()):
            return {name: column_id for name, column_id in ids.items() if column_id >= 0}
        mapping = self.metadata.name_mapping()
        if mapping is None:
            raise InvalidInput(
                f"The data file {file.key} of the Iceberg table at {self.location} has no field ids, and the table has no "
                "schema.name-mapping.default. Nothing was adopted. Set that property of the table."
            )
        return {name: one.field_id for one in mapping.root if one.field_id is not None for name in one.names if name in ids}

    def kept_rows(self, file: ForeignFile, rows: int) -> npt.NDArray[Any]:
        """See `ForeignTable`."""
        kept = np.ones(rows, np.bool_)
        for deletes in file.handle.delete_files:
            for positions in _positions(self.io, deletes, file.handle.file.file_path):
                kept[np.asarray(positions.to_numpy(), np.int64)] = False
        return kept

    def rows_of(self, file: ForeignFile) -> Iterator[pa.Table]:
        """See `TableWithFieldIds`."""
        task = _pyiceberg("table").FileScanTask(file.handle.file)
        scan = _pyiceberg("io.pyarrow").ArrowScan(self.metadata, self.io, self.metadata.schema(), _pyiceberg("expressions").AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            yield pa.Table.from_batches([batch])


def open_iceberg(fileio: FileIO, source: Any) -> IcebergTable:
    """The current state of an Iceberg table.

    Args:
        fileio: of the lake.
        source: the URL of the table or of a metadata file, or a table of pyiceberg.

    Raises:
        InvalidInput: there is no such table, or it has what cannot be adopted.
        InvalidSchema: a column has a type that objcat lacks.
        MissingDependency: pyiceberg is not installed.
    """
    serializers, tables = _pyiceberg("serializers"), _pyiceberg("table")
    is_live = hasattr(source, "refresh") and not isinstance(source, tables.StaticTable)
    if is_live:
        source.refresh()
    location = getattr(source, "metadata_location", source)
    if not isinstance(location, str) and not hasattr(location, "__fspath__"):
        raise InvalidInput(f"source is {source!r}. Give the URL of an Iceberg table, of its metadata file, or a table of pyiceberg.")
    key = _metadata_key(fileio, str(location))
    io = read_only_io(fileio)
    metadata = serializers.FromInputFile.table_metadata(io.new_input_of(key))
    schema = schema_of(metadata.schema())
    catalog = _pyiceberg("catalog.noop").NoopCatalog("objcat")
    scanned = tables.Table(("objcat",), metadata, key, io, catalog)
    tasks = list(_tasks(scanned, location))
    by_id = metadata.specs()
    ids = list(dict.fromkeys(task.file.spec_id for task in tasks))
    # The current spec first, so that its fields are in its order.
    current = [metadata.default_spec_id] if not ids else sorted(ids, key=lambda one: one != metadata.default_spec_id)
    shared, left_out = shared_fields([by_id[one] for one in current], schema)
    return IcebergTable(
        format=f"Iceberg v{metadata.format_version}",
        location=str(metadata.location),
        version=str(location) if is_live else key,
        table_schema=schema,
        partition_by=[one.asked for one in shared],
        files=[_file(fileio, task, by_id[task.file.spec_id], shared, schema) for task in tasks if task.file.record_count],
        left_out=left_out,
        defaults=defaults_of(metadata.schema(), schema),
        fileio=fileio,
        metadata_key=key,
        metadata=metadata,
        io=io,
        source=source if is_live else None,
    )


def _metadata_key(fileio: FileIO, source: str) -> str:
    """The key of the metadata file: of the one that is named, else the newest below the location of the table."""
    key = key_of(fileio, location_below(fileio, source), what="The Iceberg table")
    if ".metadata.json" in key:
        return key
    folder = f"{key}/metadata"
    found = _newest(fileio, folder)
    if found is None:
        raise InvalidInput(
            f"There is no Iceberg metadata below {folder} in {fileio.url}. Nothing was adopted. Give the URL of the table or of its newest "
            "metadata file, which its catalog knows."
        )
    return f"{folder}/{found}"


def _newest(fileio: FileIO, folder: str) -> str | None:
    """The name of the newest metadata file, by its number. Raises InvalidInput where two files have it."""
    found: dict[int, list[str]] = {}
    for page in fileio.list(f"{folder}/", delimiter="/"):
        for meta in page.objects:
            name = meta.key.rpartition("/")[2]
            number = _NUMBER.match(name)
            if number is not None:
                found.setdefault(int(number[1]), []).append(name)
    if not found:
        return None
    newest = found[max(found)]
    if len(newest) > 1:
        raise InvalidInput(
            f"Several metadata files below {folder} in {fileio.url} have the number {max(found)}: {', '.join(sorted(newest)[:3])}. Nothing "
            "was adopted. Give the one that the catalog of the table names."
        )
    return newest[0]


def _tasks(scanned: Any, location: object) -> Iterator[Any]:
    """The live data files with their deletes. Raises InvalidInput for files that cannot be adopted."""
    snapshot = scanned.metadata.current_snapshot()
    if snapshot is None:
        return
    content = _pyiceberg("manifest")
    for manifest in snapshot.manifests(scanned.io):
        if manifest.content != content.ManifestContent.DELETES:
            continue
        for entry in manifest.fetch_manifest_entry(scanned.io):
            if entry.data_file.content == content.DataFileContent.EQUALITY_DELETES:
                raise InvalidInput(
                    f"The Iceberg table at {location} has equality deletes, such as {entry.data_file.file_path}. They are not "
                    "applied, and nothing was adopted. Rewrite its data files in its own engine first: CALL "
                    "system.rewrite_data_files(table => '...', "
                    "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))."
                )
    for task in scanned.scan().plan_files():
        if task.file.file_format != content.FileFormat.PARQUET:
            raise InvalidInput(
                f"The data file {task.file.file_path} is {task.file.file_format.value}, and objcat reads Parquet only. Nothing was "
                "adopted. Rewrite the data files of the table as Parquet first."
            )
        yield task


def _file(fileio: FileIO, task: Any, spec: Any, shared: Sequence[SharedField], schema: TableSchema) -> ForeignFile:
    known = {column.id: column for column in schema.columns}
    values: dict[int, pa.Scalar] = {}
    said: dict[tuple[int, str], Any] = {}
    for at, one in enumerate(spec.fields):
        value = task.file.partition[at]
        said[one.source_id, str(one.transform)] = value
        column = known.get(one.source_id)
        if str(one.transform) == "identity" and column is not None:
            values[one.source_id] = pa.scalar(value, arrow_type(column.type))
    units = [None if (value := said[one.source, one.transform]) is None else one.unit(value) for one in shared]
    return ForeignFile(
        key=key_of(fileio, task.file.file_path, what="The data file"),
        bytes=task.file.file_size_in_bytes,
        rows=task.file.record_count,
        units=units,
        values=values,
        masked=bool(task.delete_files),
        handle=task,
    )


def _positions(io: Any, deletes: Any, path: str) -> Iterator[pa.ChunkedArray]:
    """The positions of deleted rows of one data file in a delete file, which may be of several."""
    formats = _pyiceberg("manifest").FileFormat
    with io.new_input(deletes.file_path).open() as stream:
        if deletes.file_format == formats.PUFFIN:
            puffin, vectors = _pyiceberg("table.puffin"), _pyiceberg("table.deletion_vector")
            for vector in vectors.deletion_vectors_from_puffin_file(puffin.PuffinFile(stream.read())):
                if vector.referenced_data_file == path:
                    yield vector.to_vector()
        elif deletes.file_format == formats.PARQUET:
            found = pq.read_table(stream, columns=["file_path", "pos"])
            yield found.filter(pc.equal(found.column("file_path").cast(pa.string()), path)).column("pos")
        else:
            raise InvalidInput(
                f"The delete file {deletes.file_path} is {deletes.file_format.value}. Nothing was adopted. Rewrite the data files of the "
                "table in its own engine first."
            )
