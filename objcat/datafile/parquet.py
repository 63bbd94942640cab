"""Reads and writes data files: Parquet base files and log objects, each under a name that is used once.

Begin with `BaseWriter` and `write_log` to write, with `base_pieces` and `read_log` to read. The task functions call them.
Reads are verified against the digests of the log entry. A wrong or missing file raises CorruptTable, never other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.contract import Create
from fileio.errors import FileIOError, NotFound
from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.datafile.adopted_files import AdoptedParquet
from objcat.datafile.bloom import options_of
from objcat.datafile.bloom_lookup import FileFilters, Probe, read_filters
from objcat.datafile.casting import cast_rows
from objcat.datafile.dictionaries import leaf_paths
from objcat.datafile.digest_sink import DigestingSink
from objcat.datafile.file_encoding import QUICK, FileEncoding
from objcat.datafile.hidden_columns import TXN_COLUMN, with_hidden_ids
from objcat.datafile.in_place_rows import pieces_in_place
from objcat.datafile.merge import OP_COLUMN, OP_DELETE
from objcat.datafile.open_files import open_parquet, open_with_source
from objcat.datafile.prefetch import PrefetchedFile, chunk_spans
from objcat.datafile.statistics import bounds_of, row_groups_that_may_match
from objcat.datafile.verification import DataFile, check_count, decoding, not_as_committed
from objcat.errors import CorruptTable
from objcat.metadata.file_digest import footer_digest_of
from objcat.metadata.files import BaseFile, Bound, LogObject, LogRows, Order
from objcat.metadata.key_index_table import PARTITION_FIELD, is_of_index
from objcat.metadata.manifest import Pruning
from objcat.metadata.properties import Statistics
from objcat.metadata.schema import DEFAULT_KEY, FIELD_ID_KEY, TableSchema
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import FileGroupId, Txn

BASE_ROW_GROUP_ROWS = 128 * 1024
BASE_ROW_GROUP_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of a row group of a base file. Reads and merges hold a few row groups."""
INDEX_ROW_GROUP_ROWS = 8 * 1024
"""Row group of a record index. The lookup of a single key reads one."""
LOG_ROW_GROUP_ROWS = 16 * 1024
SALT_KEY = "objcat.salt"
"""Key of random digits in the file's own metadata, see `_FileWriter.finish`."""
GAP_BYTES_MAX = 64 * 1024
"""When only some row groups of a larger file are read, those no further apart share one request."""
PICKED_ROWS_MAX = 1024**2
"""Rows of such row groups that are held at once, about."""
NOT_SAID = Statistics()
"""Default if no columns are named: the first ones."""


def base_path(txn: Txn, group_id: FileGroupId, *, file_id: str, attempt: str) -> str:
    """The path of a base file. The name begins and ends with the bucket. Spark expects the latter of bucketed files."""
    return f"{_folder(txn, group_id.partition)}{group_id.bucket:08d}-{file_id}-{attempt}_{group_id.bucket:05d}.parquet"


def _folder(txn: Txn, partition: str) -> str:
    return f"data/{txn}/{partition}/" if partition else f"data/{txn}/"


def log_path(txn: Txn, *, task: str, attempt: str) -> str:
    """The path of a log object."""
    return f"data/{txn}/{task}-{attempt}.log.parquet"


def txn_of_path(path: str) -> Txn:
    """The transaction that wrote a data file."""
    return Txn(path.split("/", 2)[1])


def write_base(fileio: FileIO, path: str, rows: pa.Table, group: FileGroupId, txn: Txn, *, statistics: Statistics = NOT_SAID) -> BaseFile:
    """Write the rows of one file group, sorted by key with each key once. Raises NotWritten and storage errors.

    Rows keep the transaction in `_objcat_txn`, or get `txn` without that column. statistics: which columns get bounds.
    """
    marked = rows
    if TXN_COLUMN not in rows.column_names:
        marked = rows.append_column(pa.field(TXN_COLUMN, pa.string(), nullable=False), constant(txn, rows.num_rows))
    with BaseWriter(fileio, path, marked.schema, group, statistics=statistics) as writer:
        writer.write(marked)
        return writer.finish()


class BaseWriter:
    """A context manager that writes the base file of one file group piece by piece. It discards an unfinished file. For one thread.

    Holds a row group, and the parts of the stream in flight. schema: physical columns with field ids, and `_objcat_txn`. statistics: which
    columns get bounds. filtered: ids of columns with bloom filters. order: sort order of the rows, None for key order.
    """

    def __init__(
        self,
        fileio: FileIO,
        path: str,
        schema: pa.Schema,
        group_id: FileGroupId,
        *,
        statistics: Statistics = NOT_SAID,
        filtered: Collection[int] = (),
        order: Order | None = None,
        encoding: FileEncoding = QUICK,
    ) -> None:
        self._path = path
        self._order = order
        self._group_id = group_id
        self._row_group_rows_max = INDEX_ROW_GROUP_ROWS if is_of_index(group_id) else BASE_ROW_GROUP_ROWS
        self._schema = schema
        self._rows = 0
        self._held: list[pa.Table] = []
        names = [field.name for field in schema if int((field.metadata or {}).get(FIELD_ID_KEY, -1)) in filtered]
        # A dictionary for each few rows would store nearly all keys twice.
        encoding = FileEncoding(dictionaries=[PARTITION_FIELD, TXN_COLUMN]) if is_of_index(group_id) else encoding
        self._file = _FileWriter(fileio, path, schema, statistics=statistics, filtered=names, indexed=True, encoding=encoding)

    @property
    def rows(self) -> int:
        """Number of rows added."""
        return self._rows

    def write(self, rows: pa.Table) -> None:
        """Add rows, which follow all earlier ones by key or sort order. Raises storage errors."""
        self._held.append(rows.cast(self._schema))
        self._rows += rows.num_rows
        held = sum(held.num_rows for held in self._held)
        if held >= self._row_group_rows(held):
            self._flush(whole=False)

    def finish(self) -> BaseFile:
        """Complete the file. Raises NotWritten and storage errors."""
        self._flush(whole=True)
        done = self._file.finish()
        return BaseFile(
            path=self._path,
            bytes=done.bytes,
            rows=self._rows,
            group_id=self._group_id,
            bounds=done.bounds,
            order=self._order,
            digest=done.digest,
            footer=done.footer,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.abort()

    def _flush(self, *, whole: bool) -> None:
        """Write row groups of the rows at hand. Unless `whole`, a remainder stays."""
        rows = pa.concat_tables(self._held) if self._held else self._schema.empty_table()
        size = self._row_group_rows(rows.num_rows)
        end = rows.num_rows if whole else rows.num_rows - rows.num_rows % size
        if end:
            self._file.write(rows.slice(0, end), row_group_rows=size)
        self._held = [rows.slice(end)] if end < rows.num_rows else []

    def _row_group_rows(self, held: int) -> int:
        """How many of the rows at hand make a row group."""
        size = sum(table.nbytes for table in self._held)
        return min(self._row_group_rows_max, max(1, BASE_ROW_GROUP_BYTES_MAX * held // max(1, int(size))))


def write_log(fileio: FileIO, path: str, rows: pa.Table, slices: tuple[LogRows, ...], *, statistics: Statistics = NOT_SAID) -> LogObject:
    """Write rows with their operation in `_objcat_op`, sorted by (file group, key). slices: the file groups of the rows."""
    file = _FileWriter(fileio, path, rows.schema, statistics=statistics)
    try:
        file.write(rows, row_group_rows=LOG_ROW_GROUP_ROWS)
        done = file.finish()
    finally:
        file.abort()
    return LogObject(
        path=path,
        bytes=done.bytes,
        rows=rows.num_rows,
        row_group_rows=LOG_ROW_GROUP_ROWS,
        slices=slices,
        bounds=done.bounds,
        digest=done.digest,
        footer=done.footer,
    )


def read_base(fileio: FileIO, base: BaseFile, columns: Sequence[str], schema: TableSchema | None = None) -> pa.Table:
    """Columns of a base file, by physical name. schema: cast to this, whatever types and columns the file was written with.

    None: as the file has them, which is enough for key columns (their types never change) and the hidden one."""
    with open_parquet(fileio, base, schema) as file:
        with decoding(fileio, base.path):
            rows = file.read(columns=list(columns))
        return as_of_schema(check_count(fileio, base, rows, base.rows), columns, schema)


def txns_of_base(fileio: FileIO, base: BaseFile) -> frozenset[Txn]:
    """The transactions of the rows in a base file. Reads the footer, and the hidden column only if there are several."""
    if base.adopted is not None:
        return frozenset([base.adopted.txn])
    with open_parquet(fileio, base) as file:
        footer = file.metadata
        column = next(number for number in range(footer.num_columns) if footer.schema.column(number).path == TXN_COLUMN)
        known = [footer.row_group(number).column(column).statistics for number in range(footer.num_row_groups)]
        bounds = {bound for found in known if found is not None and found.has_min_max for bound in (found.min, found.max)}
        if len(bounds) <= 1 and all(found is not None and found.has_min_max for found in known):
            return frozenset(map(Txn, bounds))
        with decoding(fileio, base.path):
            txns = file.read(columns=[TXN_COLUMN]).column(0)
        return frozenset(map(Txn, txns.unique().to_pylist()))


def read_log(
    fileio: FileIO, log: LogObject, ranges: Sequence[tuple[int, int]], columns: Sequence[str], schema: TableSchema | None = None
) -> list[pa.Table]:
    """Columns of row ranges of a log object, with its operations. Each needed row group is read once. schema: see `read_base`."""
    groups = sorted({g for start, end in ranges for g in range(start // log.row_group_rows, (end - 1) // log.row_group_rows + 1)})
    with open_parquet(fileio, log) as file:
        expected = sum(file.metadata.row_group(number).num_rows for number in groups)
        with decoding(fileio, log.path):
            read = file.read_row_groups(groups, columns=[*columns, OP_COLUMN])
        rows = as_of_schema(check_count(fileio, log, read, expected), [*columns, OP_COLUMN], schema)
    begins = {group: i * log.row_group_rows for i, group in enumerate(groups)}
    tables = []
    for start, end in ranges:
        group = start // log.row_group_rows
        tables.append(rows.slice(begins[group] + start - group * log.row_group_rows, end - start))
    return tables


def as_of_schema(rows: pa.Table, columns: Sequence[str], schema: TableSchema | None) -> pa.Table:
    """Rows of a file in these columns, cast to a schema. Hidden columns stay as they are. All are nullable at the top, as log rows are.

    Columns that the file lacks have their default in rows, and are null in deletes.
    """
    if schema is None:
        return rows
    fields = {field.name: field for field in schema.to_arrow_physical(nullable=True, only=columns)}
    found = cast_rows(rows, pa.schema([fields.get(name) or rows.schema.field(name) for name in columns]))
    made = [name for name in columns if name in fields and name not in rows.column_names and DEFAULT_KEY in fields[name].metadata]
    if not made or OP_COLUMN not in found.column_names:
        return found
    deleted = pc.equal(found.column(OP_COLUMN), OP_DELETE)
    if not pc.any(deleted).as_py():
        return found
    for name in made:
        at, field = found.column_names.index(name), fields[name]
        found = found.set_column(at, field, pc.if_else(deleted, pa.scalar(None, field.type), found.column(name)))
    return found


def base_pieces(
    fileio: FileIO,
    base: BaseFile,
    columns: Sequence[str],
    *,
    where: Pruning | None = None,
    spec: TableSpec | None = None,
    opened: pq.ParquetFile | AdoptedParquet | None = None,
) -> Iterator[pa.Table]:
    """Columns of a base file, with one row group at a time in memory.

    spec: cast to its schema, see `read_base`. where: with `spec`, skips row groups without a matching row. opened: the file, if it is open.
    """
    schema = None if spec is None else spec.table_schema
    if base.source is not None:
        assert spec is not None, "a file in place is read as its table says"
        yield from (as_of_schema(rows, columns, schema) for rows in pieces_in_place(fileio, base, columns, spec, where=where))
        return
    with open_parquet(fileio, base, schema) if opened is None else nullcontext(opened) as file:
        numbers: Sequence[int] = range(file.num_row_groups)
        if where is not None and spec is not None and file.num_row_groups > 1:
            numbers = row_groups_that_may_match(file.metadata, file.schema_arrow, where, spec)
        for number in numbers:
            yield as_of_schema(_row_group(fileio, base, file, number, columns), columns, schema)


def _row_group(fileio: FileIO, file: DataFile, parquet: pq.ParquetFile | AdoptedParquet, number: int, columns: Sequence[str]) -> pa.Table:
    """Columns of a row group. Raises CorruptTable if it does not decode, or has another row count than the footer."""
    with decoding(fileio, file.path):
        rows = parquet.read_row_group(number, columns=list(columns))
    return check_count(fileio, file, rows, parquet.metadata.row_group(number).num_rows)


def every_piece(fileio: FileIO, path: str, spec: TableSpec, *, where: Pruning | None = None) -> Iterator[pa.Table]:
    """The row groups of a data file that may hold a matching row, with all columns.

    For a caller that knows only its name. Nothing if the file is gone. Raises CorruptTable and storage errors.
    """
    try:
        with fileio.open_read(path) as stream:
            with decoding(fileio, path):
                opened = pq.ParquetFile(stream, page_checksum_verification=True)
            with opened as file:
                numbers: Sequence[int] = range(file.num_row_groups)
                if where is not None:
                    numbers = row_groups_that_may_match(file.metadata, file.schema_arrow, where, spec)
                for number in numbers:
                    with decoding(fileio, path):
                        rows = file.read_row_group(number)
                    yield rows
    except NotFound:
        return


RowGroups: TypeAlias = Callable[[pq.FileMetaData, pa.Schema], Sequence[int]]
"""Selects row groups by footer and schema: their numbers, ascending."""


def picked_row_groups(
    fileio: FileIO, file: BaseFile | LogObject, columns: Sequence[str], schema: TableSchema, wanted: RowGroups
) -> Iterator[tuple[int, pa.Table]]:
    """Columns of some row groups of a file, each with the number of its first row.

    Of a file larger than one request, it reads the footer and then only these row groups, in parallel. Holds about `PICKED_ROWS_MAX` rows.
    schema: see `read_base`. Raises CorruptTable and storage errors.
    """
    with open_with_source(fileio, file, schema) as (parquet, source):
        footer = parquet.metadata
        heights = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        begins = np.cumsum([0, *heights]).tolist()
        chosen = list(wanted(footer, parquet.schema_arrow))
        at_once = max(1, PICKED_ROWS_MAX // max(1, *heights)) if heights else 1
        for at in range(0, len(chosen), at_once):
            numbers = chosen[at : at + at_once]
            if isinstance(source, pa.BufferReader) or isinstance(parquet, AdoptedParquet):
                with decoding(fileio, file.path):
                    rows = parquet.read_row_groups(numbers, columns=list(columns))
            else:
                spans = chunk_spans(footer, numbers, columns)
                found = fileio.get_ranges(file.path, spans, gap_bytes=GAP_BYTES_MAX)
                if any(len(data) != end - start for data, (start, end) in zip(found, spans, strict=True)):
                    raise CorruptTable(not_as_committed(fileio, file, "it ends before the rows that its footer names"))
                excerpt = PrefetchedFile(file.bytes, spans, found)
                checked = pq.ParquetFile(excerpt, metadata=footer, pre_buffer=False, page_checksum_verification=True)
                with decoding(fileio, file.path), checked as part:
                    rows = part.read_row_groups(numbers, columns=list(columns), use_threads=False)
            check_count(fileio, file, rows, sum(heights[number] for number in numbers))
            rows = as_of_schema(rows, columns, schema)
            begin = 0
            for number in numbers:
                yield begins[number], rows.slice(begin, heights[number])
                begin += heights[number]


def key_pieces(
    fileio: FileIO, base: BaseFile, columns: Sequence[str], probe: Probe, kept: BoundedCache[FileFilters], spec: TableSpec
) -> Iterator[pa.Table]:
    """Columns of the row groups of a base file that may hold some keys, by its bloom filters. All of them without filters.

    kept: cached filters of files. A file that is known to have no such row group is not read.
    """
    if base.adopted is not None:
        # Its filters, if any, are of columns under other names.
        yield from base_pieces(fileio, base, columns, spec=spec)
        return
    filters = kept.get(base.path)
    if filters is not None and not filters.may_hold(probe):
        return
    with open_with_source(fileio, base) as (file, source):
        if filters is None:
            filters = read_filters(file.metadata, source, probe)
            kept.put(base.path, filters, filters.bytes)
        for number in filters.may_hold(probe):
            yield as_of_schema(_row_group(fileio, base, file, number, columns), columns, spec.table_schema)


def pieces_of_txns(fileio: FileIO, base: BaseFile, columns: Sequence[str], txns: pa.Array, spec: TableSpec) -> Iterator[pa.Table]:
    """Rows of a base file that some transactions wrote, one row group after another.

    Has these columns and `_objcat_txn`. Of a row group without such rows only the hidden column is read.
    """
    if base.adopted is not None and base.adopted.txn not in txns.to_pylist():
        return
    if base.source is not None:
        yield from base_pieces(fileio, base, [*columns, TXN_COLUMN], spec=spec)
        return
    with open_parquet(fileio, base, schema := spec.table_schema) as file:
        for number in range(file.num_row_groups):
            wanted = pc.is_in(_row_group(fileio, base, file, number, [TXN_COLUMN]).column(0), value_set=txns)
            if pc.any(wanted).as_py():
                names = [*columns, TXN_COLUMN]
                yield as_of_schema(_row_group(fileio, base, file, number, names), names, schema).filter(wanted)


def log_pieces(
    fileio: FileIO, log: LogObject, start: int, end: int, columns: Sequence[str], schema: TableSchema | None = None
) -> Iterator[pa.Table]:
    """Like `read_log` for one row range, one row group after another."""
    with open_parquet(fileio, log) as file:
        for number in range(start // log.row_group_rows, (end - 1) // log.row_group_rows + 1):
            rows = as_of_schema(_row_group(fileio, log, file, number, [*columns, OP_COLUMN]), [*columns, OP_COLUMN], schema)
            first = number * log.row_group_rows
            yield rows.slice(max(0, start - first), min(end - first, rows.num_rows) - max(0, start - first))


class _FileWriter:
    """A Parquet file written to the store piece by piece. filtered: columns with bloom filters.

    indexed: with bounds per page, so that Spark decodes only pages that may match a filter on the key."""

    def __init__(
        self,
        fileio: FileIO,
        path: str,
        schema: pa.Schema,
        *,
        statistics: Statistics,
        filtered: Sequence[str] = (),
        indexed: bool = False,
        encoding: FileEncoding = QUICK,
    ) -> None:
        self._schema = schema
        self._encoding = encoding
        self._indexed = indexed
        self._statistics = statistics
        self._filtered = filtered
        self._footers: list[pq.FileMetaData] = []
        self._salt = f"{fileio.env.new_id()}{fileio.env.new_id()}"
        self._out = DigestingSink(fileio.open_write(path, Create()))
        self._parquet: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table, *, row_group_rows: int) -> None:
        """Write some rows."""
        self._begun(rows.slice(0, row_group_rows)).write_table(rows, row_group_size=row_group_rows)

    def _begun(self, rows: pa.Table) -> pq.ParquetWriter:
        """The writer. rows: the first row group, which says the size of filters and what has a dictionary. The others are alike."""
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                self._out,
                with_hidden_ids(self._schema),
                store_decimal_as_integer=True,
                store_schema=False,
                metadata_collector=self._footers,
                write_page_index=self._indexed,
                write_statistics=_stated(self._schema, self._statistics.never),
                write_page_checksum=True,
                **self._encoding.options(rows),
                **({"bloom_filter_options": options_of(self._filtered, rows.num_rows)} if self._filtered else {}),
            )
        return self._parquet

    def finish(self) -> _Finished:
        """Complete the file. Raises NotWritten and storage errors."""
        parquet = self._begun(self._schema.empty_table())
        # A salt, because digests outlive the file. Without it a guess of values could be confirmed by them.
        parquet.add_key_value_metadata({SALT_KEY: self._salt})
        self._out.keep()
        parquet.close()
        size = self._out.tell()
        self._out.finish()
        bounds = bounds_of(self._footers[0], self._schema, always=self._statistics.always)
        return _Finished(size, bounds, self._out.digest, footer_digest_of(self._out.kept_footer()))

    def abort(self) -> None:
        """Discard the file, unless it is finished."""
        if not self._out.closed:
            if self._parquet is not None:
                with suppress(Exception):
                    self._parquet.close()
                # Else it would try again when it is garbage collected.
                self._parquet.is_open = False
            with suppress(FileIOError):
                self._out.abort()


def _stated(schema: pa.Schema, never: Collection[int]) -> bool | list[str]:
    """For Parquet's writer: the paths of columns with statistics, or True for all."""
    silent = [field.name for field in schema if int((field.metadata or {}).get(FIELD_ID_KEY, -1)) in never]
    if not silent:
        return True
    return [path for path in leaf_paths(schema) if not any(path == name or path.startswith(f"{name}.") for name in silent)]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished file. digest, footer: as in its entry."""

    bytes: int
    bounds: dict[int, Bound]
    digest: str
    footer: str


def constant(text: str, length: int) -> pa.Array:
    """A text column with one value in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, dtype=np.int32)), pa.array([text])).cast(pa.string())
