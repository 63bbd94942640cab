"""`FileReader`: a file of a folder as one transaction: its rows, its dead letters and its row in the record."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.engine.spooled_batch import RowSpool
from objcat.ingest.folder.file_record import FileState, RecordedFile
from objcat.ingest.folder.path_columns import with_path_columns
from objcat.ingest.folder.settings import FileRule
from objcat.ingest.folder.table_schemas import TableSchemas
from objcat.ingest.model import BadRecord, Change, ChangeKind, RowBatch, SchemaChanged, SourceTable
from objcat.sourcefiles.file_batch import BadRow, BrokenFile, FileBatch
from objcat.sourcefiles.formats import open_rows
from objcat.sourcefiles.layout import FileFormat
from objcat.sourcefiles.values import UNFIT, arrow_cast

_PLACE = "_objcat_place"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that is to be taken. table: of the source. is_repeated: whether rows of an earlier version are in the lake.
    keeps_all: whether every row counts, not the last one of each key alone."""

    meta: ObjectMeta
    table: str
    kind: FileFormat
    rule: FileRule
    is_repeated: bool = False
    keeps_all: bool = False


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read to its end. size_bytes: of its rows, in memory or on disk."""

    recorded: RecordedFile
    changes: list[Change]
    count: int
    size_bytes: int


class FileReader:
    """Reads files, one after the other. For one thread.

    Args:
        fileio: the folder.
        schemas: of the tables.
        bytes_max: rows of a file beyond so many bytes wait on disk.
        bad_max: a file with more bad rows than that is broken as a whole.
    """

    def __init__(self, fileio: FileIO, schemas: TableSchemas, *, bytes_max: int, bad_max: int) -> None:
        self._fileio = fileio
        self._schemas = schemas
        self._bytes_max = bytes_max
        self._bad_max = bad_max
        self._announced: set[int] = set()
        self._kept: list[SourceTable] = []

    def read(self, file: FoundFile) -> ReadFile:
        """Read a file to its end. One that is broken gives a dead letter alone.

        Raises:
            ObjectChanged, NotFound: it is not what was listed any more.
            FileIOError: the folder cannot be reached.
        """
        try:
            return self._read(file)
        except BrokenFile as error:
            return self._refused(file, FileState.BROKEN, str(error))

    def refuse(self, file: FoundFile) -> ReadFile:
        """A file that was overwritten after its rows were appended to a table without a key: they cannot be replaced."""
        why = (
            "it was overwritten after its rows had been appended, and neither a table without a key nor a history can replace them. "
            "Nothing of this version was taken. Write files under new names, or let the route have a key and no history"
        )
        return self._refused(file, FileState.REFUSED, why)

    def _refused(self, file: FoundFile, state: FileState, why: str) -> ReadFile:
        said = {"file": file.meta.key, "version": str(file.meta.version), "bytes": file.meta.size}
        bad = BadRecord(table=file.table, payload=json.dumps(said).encode(), error=f"{file.meta.key}: {why}")
        recorded = RecordedFile(meta=file.meta, table=file.table, state=state, bad=1, error=why)
        return ReadFile(recorded, [bad, recorded.change()], 1, len(bad.payload))

    def _read(self, file: FoundFile) -> ReadFile:
        rows = with_path_columns(open_rows(self._fileio, file.meta, file.kind, file.rule.layout), file.meta.key, file.rule)
        deletes = file.rule.settings.delete_column
        if deletes and deletes not in rows.schema.names:
            raise BrokenFile(f"it has no column {deletes!r}, which says what a delete is")
        table, is_new = self._schemas.fit(file.table, rows.schema, file.rule)
        spool = RowSpool(bytes_max=self._bytes_max)
        batches: list[RowBatch] = []
        bad: list[BadRow] = []
        count, size = 0, 0
        for batch in rows:
            bad += batch.bad
            for kind, part in _parts(_without_null_keys(batch, table, bad), table, file):
                made = _as_table(part, table, kind)
                size += made.nbytes
                batches.append(RowBatch(table, kind, spool.keep(made)))
            count += batch.rows.num_rows
            if len(bad) > self._bad_max:
                raise BrokenFile(
                    f"{len(bad)} of its first {count + len(bad)} rows do not fit, and {self._bad_max} are allowed. The first is row "
                    f"{bad[0].number}: {bad[0].error}"
                )
        letters = [BadRecord(table=table.name, payload=row.payload, error=f"{file.meta.key}, row {row.number}: {row.error}") for row in bad]
        recorded = RecordedFile(meta=file.meta, table=file.table, state=FileState.TAKEN, rows=count - _nulls(bad), bad=len(bad))
        return ReadFile(
            recorded,
            [*self._announce(table, is_new=is_new), *batches, *letters, recorded.change()],
            max(1, count),
            size,
        )

    def _announce(self, table: SourceTable, *, is_new: bool) -> Iterator[Change]:
        """The schema of a table before its first rows, once for each schema and start."""
        if is_new:
            self._schemas.accept(table)
        if id(table) not in self._announced:
            self._announced.add(id(table))
            self._kept.append(table)  # It is held, so no other object gets its id.
            yield SchemaChanged(table)


_NULL_KEY = "the key column {!r} is null"


def _nulls(bad: list[BadRow]) -> int:
    """How many rows were set apart for their key: they were counted as rows."""
    beginning = _NULL_KEY.split("{", maxsplit=1)[0]
    return sum(1 for row in bad if row.error.startswith(beginning))


def _without_null_keys(batch: FileBatch, table: SourceTable, bad: list[BadRow]) -> pa.Table:
    """Rows without those whose key is null, which are added to `bad`."""
    rows, numbers = batch.rows, batch.kept
    for name in table.key:
        if rows.column(name).null_count == 0:
            continue
        is_null = pc.is_null(rows.column(name))
        for place, row in zip(pc.indices_nonzero(is_null).to_pylist(), rows.filter(is_null).to_pylist(), strict=True):
            bad.append(BadRow(numbers[place], json.dumps(row, default=repr).encode(), _NULL_KEY.format(name)))
        numbers = [number for number, is_gone in zip(numbers, is_null.to_pylist(), strict=True) if not is_gone]
        rows = rows.filter(pc.invert(is_null))
    return rows


def _parts(rows: pa.Table, table: SourceTable, file: FoundFile) -> Iterator[tuple[ChangeKind, pa.Table]]:
    """Rows by kind, so that the order of the kinds does not matter: of a key that is there twice, the last row counts."""
    settings = file.rule.settings
    name = settings.delete_column
    if not name:
        yield ChangeKind.INSERT, rows
        return
    said = rows.column(name)
    # A column of true and false is text `true` and `false`.
    try:
        text = pc.utf8_lower(said if pa.types.is_string(said.type) else said.cast(pa.string()))
    except UNFIT as error:
        raise BrokenFile(f"its column {name!r} says what a delete is, and its values are no texts ({error})") from error
    is_delete = pc.is_in(text, value_set=pa.array(settings.delete_values, pa.string()))
    if not pc.any(is_delete).as_py():
        yield ChangeKind.INSERT, rows
        return
    if file.keeps_all:
        yield from _runs(rows, is_delete)
        return
    if table.key:
        keep = _last_of_each_key(rows, table)
        rows, is_delete = rows.take(keep), is_delete.take(keep)
    yield ChangeKind.INSERT, rows.filter(pc.invert(is_delete))
    yield ChangeKind.DELETE, rows.filter(is_delete)


def _runs(rows: pa.Table, is_delete: pa.ChunkedArray) -> Iterator[tuple[ChangeKind, pa.Table]]:
    """Rows in their order, cut where puts and deletes meet."""
    flags = is_delete.to_numpy()
    cuts = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    for start, end in itertools.pairwise(cuts):
        yield ChangeKind.DELETE if flags[start] else ChangeKind.INSERT, rows.slice(start, end - start)


def _last_of_each_key(rows: pa.Table, table: SourceTable) -> pa.Array:
    placed = rows.select(list(table.key)).append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    return placed.group_by(list(table.key)).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max").combine_chunks().sort()


def _as_table(rows: pa.Table, table: SourceTable, kind: ChangeKind) -> pa.Table:
    """Rows with the columns of their table, in its types. Columns that the file lacks are null."""
    columns = [column for column in table.columns if kind is not ChangeKind.DELETE or column.name in rows.column_names]
    arrays = []
    for column in columns:
        if column.name not in rows.column_names:
            arrays.append(pa.nulls(rows.num_rows, column.type))
            continue
        found = rows.column(column.name)
        cast = arrow_cast(column.type)
        arrays.append(found if found.type == column.type else pa.chunked_array([cast(chunk) for chunk in found.chunks], column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema([pa.field(column.name, column.type) for column in columns]))
