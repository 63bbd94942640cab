"""Opens files in place: files of any format that other programs write, in their own folders, as base files of a table.

`source_pieces` gives the rows of such a file; `objcat.datafile.in_place_rows` begins there, or with its precomputed columns.
The version of every answer is compared with the one that was committed: another file raises SourceFileChanged, and never gives other rows.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Version
from fileio.errors import NotFound, ObjectChanged
from fileio.registry import open_beside
from fileio.store import FileIO
from objcat.datafile.adopted_files import INT96_UNIT, AdoptedParquet
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.errors import SourceFileChanged
from objcat.metadata.files import Adoption, BaseFile
from objcat.metadata.in_place import SOURCES, FilesInPlace, name_in_file
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import Column, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.sourcefiles.file_batch import BrokenFile, FileBatch
from objcat.sourcefiles.formats import OpenedFile, open_rows
from objcat.sourcefiles.layout import FileLayout, Span

_stores: WeakKeyDictionary[FileIO, dict[str, FileIO]] = WeakKeyDictionary()
_stores_lock = threading.Lock()


def settings_of(spec: TableSpec) -> FilesInPlace:
    """The settings of a table in place."""
    assert isinstance(spec.in_place, FilesInPlace), "a file in place is of such a table"
    return spec.in_place


def source_store(fileio: FileIO, url: str) -> FileIO:
    """The store of a source, opened once for the store of a table. Raises fileio.errors.InvalidConfig."""
    with _stores_lock:
        known = _stores.setdefault(fileio, {})
        if url not in known:
            known[url] = open_beside(fileio, url)
        return known[url]


def located(fileio: FileIO, spec: TableSpec, path: str) -> tuple[FileIO, str]:
    """The store and the key of a file in place."""
    _, number, key = path.split("/", 2)
    return source_store(fileio, settings_of(spec).sources[int(number)].url), key


def shown_source(spec: TableSpec, path: str) -> str:
    """A file in place, for people."""
    _, number, key = path.split("/", 2)
    return f"{settings_of(spec).sources[int(number)].url.rstrip('/')}/{key}"


def path_in_source(number: int, key: str) -> str:
    """The path of a file in place."""
    return f"{SOURCES}/{number}/{key}"


def names_in_files(columns: Sequence[Column]) -> dict[int, str]:
    """What the entry of a file in place says of the names of its columns: by id, those that are not the physical ones."""
    return {column.id: name for column in columns if (name := name_in_file(column)) != column.physical}


def held_columns(columns: Sequence[Column], adopted: Adoption) -> dict[str, Column]:
    """The columns that a file in place may hold, by their names there, in the order in which they joined the table.

    A column that joined the table after the file was taken has no name in its entry, so no field of the file is taken for it.
    """
    found = {}
    # Fields of CSV without a header have their places only. A column that moves among its neighbours keeps its place there.
    for column in sorted(columns, key=lambda one: one.id):
        if column.id in adopted.values:
            continue
        name = adopted.names.get(column.id)
        if name is None and name_in_file(column) == column.physical:
            name = column.physical
        if name is not None:
            found[name] = column
    return found


def layout_of(settings: FilesInPlace, columns: Mapping[str, pa.DataType]) -> FileLayout:
    """How files in place are read. columns: by name in the file; of CSV without a header all that it has, in order."""
    return FileLayout(
        columns=columns,
        delimiter=settings.delimiter,
        header=settings.header,
        nulls=settings.nulls,
        line=settings.line,
        misfits_are_null=settings.bad_rows == "permit",
    )


@contextmanager
def reading_source(spec: TableSpec, base: BaseFile) -> Iterator[None]:
    """Context that turns a missing, replaced or damaged file into SourceFileChanged."""
    try:
        yield
    except (NotFound, ObjectChanged, BrokenFile) as error:
        raise changed_error(spec, base, str(error)) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, pa.ArrowMemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise changed_error(spec, base, str(error)) from error


def changed_error(spec: TableSpec, base: BaseFile, found: str) -> SourceFileChanged:
    """The error for a file that is not the one that a commit took."""
    version = "" if base.source is None else base.source.version
    return SourceFileChanged(
        f"{shown_source(spec, base.path)} is not the file that a commit took: {base.bytes:,} bytes, {base.stored_rows:,} rows, version "
        f"{version}. {found} No row was made up. Take the table as its files are now by table.refresh_files(on_change='replace', "
        "on_missing='drop'), or put that file back."
    )


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """Rows of a file in place, one after the other, under physical names.

    Args:
        first: the position of the first row in its file.
        rows: masked ones among them. Columns that the file lacks are missing.
        span: of a file of lines, the bytes that the rows are in, without compression.
    """

    first: int
    rows: pa.Table
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Rows of a file in place, of which no others have to be read.

    Args:
        positions: ascending.
        spans: of a file of lines, the bytes that they are in, each with the position of its first row. None: not known.
    """

    positions: np.ndarray
    spans: tuple[tuple[Span, int], ...] | None = None


def source_pieces(
    fileio: FileIO,
    base: BaseFile,
    columns: Sequence[Column],
    spec: TableSpec,
    *,
    where: Pruning | None = None,
    only: ChosenRows | None = None,
) -> Generator[SourcePiece, None, None]:
    """The rows of a file in place as its store has it, one block at a time in memory: a row group, a stripe, or about a MiB of text.

    Args:
        where: skips row groups of Parquet without a matching row.
        only: skips what holds none of these rows, where the format allows it, and what follows the last one.

    Raises:
        SourceFileChanged: the file is another one by now, or gone.
        FileIOError: the store failed.
    """
    assert base.adopted is not None and base.source is not None, "only files in place are read here"
    if settings_of(spec).format == "parquet":
        return _parquet(fileio, base, columns, spec, where, only)
    return _batches(fileio, base, columns, spec, only)


def _parquet(
    fileio: FileIO, base: BaseFile, columns: Sequence[Column], spec: TableSpec, where: Pruning | None, only: ChosenRows | None
) -> Generator[SourcePiece, None, None]:
    assert base.adopted is not None
    held = held_columns(columns, base.adopted)
    adopted = Adoption(txn=base.adopted.txn, names={column.id: name for name, column in held.items()}, values=base.adopted.values)
    wanted = [column for column in columns if column.id in adopted.names]
    with reading_source(spec, base), open_source(fileio, spec, base) as file:
        if file.metadata.num_rows != base.stored_rows:
            raise changed_error(spec, base, f"Its footer counts {file.metadata.num_rows:,} rows.")
        named = AdoptedParquet(file, adopted, wanted, txn_column=TXN_COLUMN)
        heights = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        begins = np.cumsum([0, *heights]).tolist()
        numbers: Sequence[int] = range(file.num_row_groups)
        if only is not None:
            numbers = np.unique(np.searchsorted(begins, only.positions, "right") - 1).tolist()
        elif where is not None and file.num_row_groups > 1:
            everything = AdoptedParquet(
                file, base.adopted, list(held_columns(spec.table_schema.columns, base.adopted).values()), txn_column=""
            )
            numbers = row_groups_that_may_match(file.metadata, everything.schema_arrow, where, spec)
        for number in numbers:
            rows = named.read_row_group(number, columns=[column.physical for column in wanted])
            if rows.num_rows != heights[number]:
                raise changed_error(spec, base, f"Its row group {number} gives {rows.num_rows:,} rows, not {heights[number]:,}.")
            yield SourcePiece(begins[number], rows)


@contextmanager
def open_source(fileio: FileIO, spec: TableSpec, base: BaseFile) -> Iterator[pq.ParquetFile]:
    """A Parquet file in place, opened in the version that was committed."""
    store, key = located(fileio, spec, base.path)
    stream = store.open_read(key, meta=_meta(base, key))
    with pq.ParquetFile(stream, pre_buffer=True, coerce_int96_timestamp_unit=INT96_UNIT) as file:
        yield file


def _batches(
    fileio: FileIO, base: BaseFile, columns: Sequence[Column], spec: TableSpec, only: ChosenRows | None
) -> Generator[SourcePiece, None, None]:
    assert base.adopted is not None
    settings = settings_of(spec)
    held = held_columns(columns, base.adopted)
    every = held_columns(spec.table_schema.columns, base.adopted)
    if not held or (settings.format == "csv" and not settings.header):
        # A file without columns would have no rows, and one of CSV without a header needs the places of all.
        held = every if settings.format == "csv" else dict([next(iter(every.items()))])
    store, key = located(fileio, spec, base.path)
    firsts = None if only is None or only.spans is None else dict(only.spans)

    def opened(columns: Mapping[str, Column]) -> OpenedFile:
        types = {name: arrow_type(column.type, physical=True) for name, column in columns.items()}
        layout = layout_of(settings, types)
        if firsts is not None:
            layout = replace(layout, spans=tuple(firsts))
        file = open_rows(store, _meta(base, key), settings.format, layout)
        if settings.bad_rows == "permit" and file.parts is not None and file.parts.counted() != base.stored_rows:
            # An earlier version of objcat left out rows of typed files with values that do not fit, and took the file without them.
            file = open_rows(store, _meta(base, key), settings.format, replace(layout, misfits_are_null=False))
            file.parts = None
        return file

    at = 0
    with reading_source(spec, base):
        try:
            file = opened(held)
        except BrokenFile:
            # It has none of these columns, perhaps, and another one tells how many rows there are.
            file = opened(every)
        is_chosen = only is not None and file.parts is not None and file.parts.rows in (None, base.stored_rows)
        parts = file.parts if is_chosen else None
        is_part = firsts is not None or parts is not None
        ends_early = only is not None and not is_part and (settings.bad_rows == "fail" or settings.format not in ("orc", "avro"))
        for batch in file if only is None or parts is None else parts.around(only.positions):
            rows = kept_rows(batch, settings)
            if firsts is not None:
                assert batch.span is not None, "a file of lines is read by spans"
                at = firsts[batch.span]
            if parts is not None:
                if batch.bad:
                    raise BrokenFile(f"Its row {batch.bad[0].number} does not fit: {batch.bad[0].error}.")
                at = batch.kept[0] - 1
            yield SourcePiece(at, rows.rename_columns([every[name].physical for name in rows.column_names]), batch.span)
            at += rows.num_rows
            if only is not None and ends_early and at > only.positions[-1]:
                return
    if not is_part and at != base.stored_rows:
        raise changed_error(spec, base, f"It gives {at:,} rows.")


def kept_rows(batch: FileBatch, settings: FilesInPlace) -> pa.Table:
    """The rows of a batch. Raises BrokenFile where a row does not fit, and the settings do not permit that."""
    if batch.bad and settings.bad_rows == "fail":
        first = batch.bad[0]
        raise BrokenFile(f"Its row {first.number} does not fit: {first.error}.")
    return batch.rows


def _meta(base: BaseFile, key: str) -> ObjectMeta:
    assert base.source is not None
    return ObjectMeta(key, base.bytes, Version(base.source.version), 0)
