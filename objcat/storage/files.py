"""Base files and log objects: Parquet through `fileio`, each a new object under a name that is never used twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fileio.base import Create, ObjectMeta, Version
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.storage.bounds import bounds_of
from objcat.storage.merge import OP_COLUMN
from objcat.table import BaseFile, LogObject, LogRows, TableSpec
from objcat.table.files import Bound
from objcat.timeline import Home, Txn

TXN_COLUMN = "_objcat_txn"
"""Hidden column of base files: the transaction that wrote the row."""

BASE_ROW_GROUP_ROWS = 128 * 1024
LOG_ROW_GROUP_ROWS = 16 * 1024
COMPRESSION = "zstd"


def base_path(txn: Txn, home: Home, *, file_id: str, attempt: str) -> str:
    """Where the base file of a home lies. It ends in the bucket, as Spark expects of bucketed files; the file id begins with it."""
    return f"data/{txn}/{home.bucket:08d}-{file_id}-{attempt}_{home.bucket:05d}.parquet"


def log_path(txn: Txn, *, task: str, attempt: str) -> str:
    """Where a log object lies."""
    return f"data/{txn}/{task}-{attempt}.log.parquet"


def txn_of_path(path: str) -> Txn:
    """The transaction that wrote a data file."""
    return Txn(path.split("/", 2)[1])


def write_base(fileio: FileIO, path: str, rows: pa.Table, home: Home, txn: Txn) -> BaseFile:
    """Write the rows of one home, which are sorted by key with each key once. Raises NotWritten and storage errors.

    Rows keep the transaction in their `_objcat_txn`; without that column it is `txn`.
    """
    marked = rows
    if TXN_COLUMN not in rows.column_names:
        marked = rows.append_column(pa.field(TXN_COLUMN, pa.string(), nullable=False), constant(txn, rows.num_rows))
    size, bounds = _write(fileio, path, marked, row_group_rows=BASE_ROW_GROUP_ROWS, dictionary=[TXN_COLUMN])
    return BaseFile(path=path, bytes=size, rows=rows.num_rows, home=home, bounds=bounds)


def write_log(fileio: FileIO, path: str, rows: pa.Table, buckets: npt.NDArray[np.int32], spec: TableSpec) -> LogObject:
    """Write rows with their operation in `_objcat_op`, sorted by (bucket, key). buckets: of every row, ascending."""
    first = np.flatnonzero(np.diff(buckets, prepend=-1))
    ends = np.append(first[1:], len(buckets))
    homes = tuple(LogRows(spec.home(int(buckets[a])), int(a), int(b)) for a, b in zip(first, ends, strict=True))
    return write_log_of_homes(fileio, path, rows, homes)


def write_log_of_homes(fileio: FileIO, path: str, rows: pa.Table, homes: tuple[LogRows, ...]) -> LogObject:
    """Write rows with their operation in `_objcat_op`, sorted by (home, key). homes: whose rows they are."""
    size, bounds = _write(fileio, path, rows, row_group_rows=LOG_ROW_GROUP_ROWS, dictionary=True)
    return LogObject(path=path, bytes=size, rows=rows.num_rows, row_group_rows=LOG_ROW_GROUP_ROWS, homes=homes, bounds=bounds)


def read_base(fileio: FileIO, base: BaseFile, columns: Sequence[str]) -> pa.Table:
    """Columns of a base file, by physical name."""
    with _open(fileio, base.path, base.bytes) as file:
        return file.read(columns=list(columns))


def txns_of_base(fileio: FileIO, base: BaseFile) -> frozenset[Txn]:
    """The transactions that the rows of a base file name. Reads the footer; the hidden column only where there are several."""
    with _open(fileio, base.path, base.bytes) as file:
        footer = file.metadata
        column = next(number for number in range(footer.num_columns) if footer.schema.column(number).path == TXN_COLUMN)
        known = [footer.row_group(number).column(column).statistics for number in range(footer.num_row_groups)]
        bounds = {bound for found in known if found is not None and found.has_min_max for bound in (found.min, found.max)}
        if len(bounds) <= 1 and all(found is not None and found.has_min_max for found in known):
            return frozenset(map(Txn, bounds))
        return frozenset(map(Txn, file.read(columns=[TXN_COLUMN]).column(0).unique().to_pylist()))


def read_log(fileio: FileIO, log: LogObject, ranges: Sequence[tuple[int, int]], columns: Sequence[str]) -> list[pa.Table]:
    """Columns of several row ranges of a log object, reading only the row groups that hold them, each once."""
    groups = sorted({g for start, end in ranges for g in range(start // log.row_group_rows, (end - 1) // log.row_group_rows + 1)})
    with _open(fileio, log.path, log.bytes) as file:
        rows = file.read_row_groups(groups, columns=[*columns, OP_COLUMN])
    begins = {group: i * log.row_group_rows for i, group in enumerate(groups)}
    tables = []
    for start, end in ranges:
        group = start // log.row_group_rows
        tables.append(rows.slice(begins[group] + start - group * log.row_group_rows, end - start))
    return tables


def _write(fileio: FileIO, path: str, rows: pa.Table, *, row_group_rows: int, dictionary: bool | list[str]) -> tuple[int, dict[int, Bound]]:
    """The size of what was written, and the bounds of its columns."""
    footers: list[pq.FileMetaData] = []
    with fileio.open_write(path, Create()) as out:
        with pq.ParquetWriter(
            out, rows.schema, compression=COMPRESSION, use_dictionary=dictionary, store_schema=False, metadata_collector=footers
        ) as writer:
            writer.write_table(rows, row_group_size=row_group_rows)
        return int(out.tell()), bounds_of(footers[0], rows.schema)


def _open(fileio: FileIO, path: str, size: int) -> pq.ParquetFile:
    meta = ObjectMeta(path, size, Version(""), 0)
    try:
        return pq.ParquetFile(fileio.open_read(path, meta=meta), pre_buffer=True)
    except NotFound as error:
        raise CorruptTable(
            f"{path} is missing in {fileio.url} although a commit names it: the table, or that object, was deleted by hand; "
            "restore it from a backup"
        ) from error


def constant(text: str, length: int) -> pa.Array:
    """A text column that says the same in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, dtype=np.int32)), pa.array([text])).cast(pa.string())
