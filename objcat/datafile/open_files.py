"""Opens data files to read from: those of objcat, and adopted ones under the names of the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Version
from fileio.store import FileIO
from objcat.datafile.adopted_files import INT96_UNIT, AdoptedParquet
from objcat.datafile.bloom_lookup import FilterFile
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.verification import DataFile, check_rows, decoding, read_footer, reading, whole_bytes
from objcat.metadata.file_digest import is_verifiable
from objcat.metadata.files import Adoption, BaseFile
from objcat.metadata.schema import TableSchema

WHOLE_BYTES_MAX = 1024**2
"""A file up to this size is read in one request, whatever the columns. A second request costs more than the bytes."""


@contextmanager
def open_parquet(fileio: FileIO, file: DataFile, schema: TableSchema | None = None) -> Iterator[pq.ParquetFile | AdoptedParquet]:
    """As `open_with_source`, without the bytes."""
    with open_with_source(fileio, file, schema) as (parquet, _):
        yield parquet


@contextmanager
def open_with_source(
    fileio: FileIO, file: DataFile, schema: TableSchema | None = None
) -> Iterator[tuple[pq.ParquetFile | AdoptedParquet, FilterFile]]:
    """A Parquet file to read from, in one request if it is small, and its bytes.

    Verifies all bytes of a small file. Of another it verifies the footer, and each page as it is read, where digests and checksums exist.
    Raises CorruptTable, here or within the block, if the file is missing, not what was committed, or does not decode.

    schema: of the table, which an adopted file needs to be read.
    """
    adopted = file.adopted if isinstance(file, BaseFile) else None
    with reading(fileio, file):
        if file.bytes <= WHOLE_BYTES_MAX:
            source = pa.BufferReader(whole_bytes(fileio, file))
            with decoding(fileio, file.path):
                opened = pq.ParquetFile(
                    source,
                    page_checksum_verification=not is_verifiable(file.digest),
                    coerce_int96_timestamp_unit=None if adopted is None else INT96_UNIT,
                )
            with opened as parquet:
                check_rows(fileio, file, parquet.metadata)
                yield _of_table(parquet, adopted, schema), source
            return
        meta = ObjectMeta(file.path, file.bytes, Version(""), 0)
        with fileio.open_read(file.path, meta=meta) as stream:
            footer = read_footer(fileio, file, stream)
            check_rows(fileio, file, footer)
            unit = None if adopted is None else INT96_UNIT
            opened = pq.ParquetFile(
                stream, metadata=footer, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit=unit
            )
            with opened as parquet:
                yield _of_table(parquet, adopted, schema), stream


def _of_table(parquet: pq.ParquetFile, adopted: Adoption | None, schema: TableSchema | None) -> pq.ParquetFile | AdoptedParquet:
    if adopted is None:
        return parquet
    assert schema is not None, "an adopted file is read under a schema"
    return AdoptedParquet(parquet, adopted, schema.columns, txn_column=TXN_COLUMN)
