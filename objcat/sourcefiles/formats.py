"""Opens a file of any format as a stream of batches with bad rows set apart. `open_rows` is the beginning.

A file is read a piece at a time: a row group of Parquet, a block of the others. Nothing here holds a whole file.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from fileio.contract import ObjectMeta
from fileio.optional import library
from fileio.store import FileIO
from objcat.sourcefiles.avro_types import avro_schema
from objcat.sourcefiles.file_batch import BadRow, BrokenFile, FileBatch
from objcat.sourcefiles.json_rows import JsonRows
from objcat.sourcefiles.layout import FileLayout
from objcat.sourcefiles.orc_stripes import HELD_BYTES_ANYWAY, HELD_BYTES_MAX, StripedFile, stripes_of
from objcat.sourcefiles.text_files import CsvRows, TextRows
from objcat.sourcefiles.values import arrow_cast, canonical, cast_rows, python_column

BATCH_ROWS = 32 * 1024
BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """Of a file whose format counts the rows of its parts: what takes only some parts.

    Args:
        rows: how many rows the file has, those that do not fit among them. None: it does not say so at once.
        counted: counts them, if need be by a look at all parts.
        around: from ascending places of rows, counted from 0, to batches with all of them. Other parts of the file are left out.
    """

    rows: int | None
    counted: Callable[[], int]
    around: Callable[[np.ndarray], Iterator[FileBatch]]


class OpenedFile:
    """A file whose rows are read, one batch after the other.

    Attributes:
        schema: the columns that its batches have, with the types of the lake.
        parts: what reads only some of its rows. None: its format does not allow that.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[FileBatch], parts: OpenedParts | None = None) -> None:
        self.schema = schema
        self.parts = parts
        self._batches = batches

    def __iter__(self) -> Iterator[FileBatch]:
        return self._batches


def open_rows(fileio: FileIO, meta: ObjectMeta, kind: str, layout: FileLayout) -> OpenedFile:
    """Open a file.

    Args:
        fileio: the folder.
        meta: the file, as it was listed. Reads raise ObjectChanged when it is another one.
        kind: its format.
        layout: which columns to take, and how text is read.

    Raises:
        BrokenFile: it cannot be read. Its batches raise that too.
        MissingDependency: the library of the format is not installed.
    """
    match kind:
        case "parquet":
            return _parquet(fileio, meta, layout)
        case "orc":
            return _orc(fileio, meta, layout)
        case "avro":
            return _avro(fileio, meta, layout)
        case _ if not layout.columns:
            raise BrokenFile(f"the columns of {kind} have to be declared: add `columns`")
        case "csv":
            return _text(CsvRows(fileio, meta, layout))
        case "json":
            return _text(JsonRows(fileio, meta, layout))
        case _:
            return _text(TextRows(fileio, meta, layout))


def _text(rows: CsvRows | JsonRows | TextRows) -> OpenedFile:
    return OpenedFile(pa.schema(list(rows.types.items())), rows.batches())


# ---- Parquet


def _parquet(fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> OpenedFile:
    def opened(footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        try:
            stream = fileio.open_read(meta.key, meta=meta)
            return pq.ParquetFile(stream, metadata=footer, pre_buffer=True, page_checksum_verification=True)
        except _PARQUET_DAMAGE as error:
            raise _broken(error, "it is no Parquet file") from error

    with opened() as file:
        footer, theirs = file.metadata, _schema_of(file)
    schema = _chosen(theirs, layout)

    def batches() -> Iterator[FileBatch]:
        at = 1
        for number in range(footer.num_row_groups):
            # A reader requests all its row groups at once, and caches them until it is closed.
            with opened(footer) as file:
                try:
                    for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[number], columns=schema.names):
                        yield _converted(batch, schema, at, layout)
                        at += batch.num_rows
                except _PARQUET_DAMAGE as error:
                    raise _broken(error, f"it cannot be read from row {at} on") from error

    return OpenedFile(schema, batches())


_PARQUET_DAMAGE = (pa.ArrowException, OSError, UnicodeError)
"""What Arrow raises for bytes that are no Parquet."""


def _schema_of(file: pq.ParquetFile) -> pa.Schema:
    try:
        return file.schema_arrow
    except _PARQUET_DAMAGE as error:
        raise _broken(error, "it is no Parquet file") from error


def _broken(error: Exception, what: str) -> Exception:
    """An error of Arrow as that of a file whose bytes are damaged. One of their transport stays, and so does one of memory.

    Arrow raises OSError without a number for damaged footers and pages.
    """
    if (isinstance(error, OSError) and error.errno is not None) or isinstance(error, pa.ArrowMemoryError):
        return error
    return BrokenFile(f"{what} ({_short(error)})")


def _chosen(theirs: pa.Schema, layout: FileLayout) -> pa.Schema:
    """The columns of a file that has its schema with it, as the lake has them."""
    if len(set(theirs.names)) != len(theirs.names):
        raise BrokenFile("two of its columns have the same name")
    names = [name for name in layout.columns if name in theirs.names] if layout.columns else theirs.names
    if layout.columns and layout.also in theirs.names and layout.also not in names:
        names = [*names, layout.also]
    fields = []
    for name in names:
        data_type = layout.columns.get(name) or canonical(theirs.field(name))
        if data_type is not None:
            fields.append(pa.field(name, data_type))
    if not fields:
        raise BrokenFile("it has none of the columns that are wanted")
    return pa.schema(fields)


def _converted(batch: pa.RecordBatch, schema: pa.Schema, first: int, layout: FileLayout) -> FileBatch:
    """A batch of typed rows with the types of the lake, without the rows that do not fit, or with nulls in them."""
    arrays, errors = [], dict[int, str]()
    for field in schema:
        array, bad = cast_rows(batch.column(field.name), arrow_cast(field.type), field.type)
        arrays.append(array)
        errors |= {place: f"{field.name}: {why}" for place, why in bad.items()}
    made = pa.Table.from_arrays(arrays, schema=schema)
    numbers = range(first, first + batch.num_rows)
    if not errors or layout.misfits_are_null:
        return FileBatch(made, numbers, [])
    bad_rows = [BadRow(first + place, _shown(batch.slice(place, 1)), why) for place, why in sorted(errors.items())]
    keep = [place not in errors for place in range(batch.num_rows)]
    return FileBatch(made.filter(pa.array(keep)), [number for number, kept in zip(numbers, keep, strict=True) if kept], bad_rows)


def _shown(row: pa.RecordBatch) -> bytes:
    return json.dumps(row.to_pylist()[0], default=repr).encode()


# ---- ORC


def _orc(fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> OpenedFile:
    stream = StripedFile(fileio, meta)

    def broken(error: Exception, what: str) -> Exception:
        return stream.failure or _broken(error, what)

    try:
        file = orc.ORCFile(pa.PythonFile(stream, mode="r"))
        theirs, stripes = file.schema, stripes_of(file)
    except _PARQUET_DAMAGE as error:
        raise broken(error, "it is no ORC file") from error
    schema = _chosen(theirs, layout)
    takes_all = len(schema) == len(theirs)
    begins = list(accumulate((stripe.rows for stripe in stripes), initial=0))
    if len(stripes) != file.nstripes or begins[-1] != file.nrows:
        raise BrokenFile(f"its footer counts {file.nrows:,} rows, and its stripes have {begins[-1]:,}")

    def batches(numbers: Iterable[int]) -> Iterator[FileBatch]:
        for number in numbers:
            stripe, at = stripes[number], begins[number] + 1
            if stripe.end - stripe.begin <= (HELD_BYTES_MAX if takes_all else HELD_BYTES_ANYWAY):
                stream.hold(stripe)
            try:
                rows = file.read_stripe(number, columns=schema.names)
            except _PARQUET_DAMAGE as error:
                raise broken(error, f"it cannot be read from row {at} on") from error
            if rows.num_rows != stripe.rows:
                raise BrokenFile(f"its stripe {number} gives {rows.num_rows:,} rows, not {stripe.rows:,}")
            for begin in range(0, rows.num_rows, BATCH_ROWS):
                yield _converted(rows.slice(begin, BATCH_ROWS), schema, at + begin, layout)

    def around(positions: np.ndarray) -> Iterator[FileBatch]:
        return batches(np.unique(np.searchsorted(begins, positions, "right") - 1).tolist())

    return OpenedFile(schema, batches(range(len(stripes))), OpenedParts(file.nrows, lambda: file.nrows, around))


# ---- Avro


def _avro(fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> OpenedFile:
    fastavro: Any = library("fastavro", needed_by="Avro files need", extra="ingest-folder")
    damage = (*_AVRO_DAMAGE, fastavro.schema.SchemaParseException)
    stream = io.BufferedReader(fileio.open_read(meta.key, meta=meta), BUFFER_BYTES)
    try:
        reader = fastavro.reader(stream)
        theirs = avro_schema(reader.writer_schema)
    except BrokenFile:
        raise
    except damage as error:
        raise BrokenFile(f"it is no Avro file ({_short(error)})") from error
    schema = _chosen(theirs, layout)

    def batches() -> Iterator[FileBatch]:
        at = 1
        records = iter(reader)
        while True:
            try:
                piece: list[Mapping[str, Any]] = list(islice(records, BATCH_ROWS))
            except damage as error:
                raise BrokenFile(f"it cannot be read from about row {at} on ({_short(error)})") from error
            if not piece:
                return
            yield _records(piece, theirs, schema, at, layout)
            at += len(piece)

    def counted() -> int:
        began = stream.tell()
        stream.seek(0)
        try:
            return sum(block.num_records for block in fastavro.block_reader(stream))
        except damage as error:
            raise BrokenFile(f"its blocks cannot be read ({_short(error)})") from error
        finally:
            stream.seek(began)

    def around(positions: np.ndarray) -> Iterator[FileBatch]:
        at = 0
        stream.seek(0)
        try:
            # The bytes of a block are read before it is decoded, which takes a hundred times as long.
            for block in fastavro.block_reader(stream):
                end = at + block.num_records
                is_wanted = np.searchsorted(positions, at) < np.searchsorted(positions, end)
                records = iter(block) if is_wanted else iter(())
                while piece := list(islice(records, BATCH_ROWS)):
                    yield _records(piece, theirs, schema, at + 1, layout)
                    at += len(piece)
                at = end
                if at > positions[-1]:
                    return
        except damage as error:
            raise BrokenFile(f"it cannot be read from about row {at + 1} on ({_short(error)})") from error

    return OpenedFile(schema, batches(), OpenedParts(None, counted, around))


_AVRO_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    StopIteration,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
    zlib.error,
)
"""What fastavro raises for bytes that are no Avro."""


def _records(piece: Sequence[Mapping[str, Any]], theirs: pa.Schema, schema: pa.Schema, first: int, layout: FileLayout) -> FileBatch:
    arrays, errors = [], dict[int, str]()
    for field in schema:
        raw = [record.get(field.name) for record in piece]
        array, bad = python_column(raw, theirs.field(field.name).type)
        errors |= {place: f"{field.name}: {why}" for place, why in bad.items()}
        cast, worse = cast_rows(array, arrow_cast(field.type), field.type)
        errors |= {place: f"{field.name}: {why}" for place, why in worse.items()}
        arrays.append(cast)
    made = pa.Table.from_arrays(arrays, schema=schema)
    numbers = range(first, first + len(piece))
    if not errors or layout.misfits_are_null:
        return FileBatch(made, numbers, [])
    bad_rows = [BadRow(first + place, json.dumps(dict(piece[place]), default=repr).encode(), why) for place, why in sorted(errors.items())]
    keep = [place not in errors for place in range(len(piece))]
    return FileBatch(made.filter(pa.array(keep)), [number for number, kept in zip(numbers, keep, strict=True) if kept], bad_rows)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
