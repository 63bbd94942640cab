"""Imports Parquet files of other tools into a table: some files per commit, each exactly once however often the import is started."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta
from fileio.options import unquote_path
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.common.progress import shown_progress
from objcat.common.validation import shown, whole_number
from objcat.datafile.batch_checks import means_the_same
from objcat.errors import CorruptTable, InvalidBatch, InvalidInput
from objcat.metadata.schema import nullable_schema
from objcat.table.table import Table
from objcat.timeline.log_state import AppVersion

COMMIT_BYTES = 1024**3
"""About how many bytes of source files make one commit."""
BATCH_ROWS = 64 * 1024
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_WHOLE, _DATE = re.compile(r"-?\d{1,18}"), re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """An import that is complete.

    Attributes:
        files, rows: of the source.
        commits: that hold them.
        commits_before: how many of these an earlier attempt made.
        rows_in_table: its current rows; with a key, fewer where keys repeat.
    """

    files: int
    rows: int
    commits: int
    commits_before: int
    rows_in_table: int


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Some Parquet files: keys of one store, in order, each as it was when it was listed."""

    fileio: FileIO
    files: tuple[ObjectMeta, ...]

    @property
    def name(self) -> str:
        """A name for these files, at this URL and unchanged. The files of another day often have the same names and sizes."""
        listed = "\n".join([self.fileio.url, *(f"{file.key} {file.size} {file.version}" for file in self.files)])
        return f"import-parquet-{hashlib.sha256(listed.encode()).hexdigest()[:16]}"

    def open(self, file: ObjectMeta, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        """Open a file. `footer`: of the file, where it was read. Raises InvalidInput for a file that is not Parquet."""
        try:
            stream = self.fileio.open_read(file.key, meta=file)
            return pq.ParquetFile(stream, metadata=footer, pre_buffer=True, page_checksum_verification=True)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"{file.key} in {self.fileio.url} is not a Parquet file ({error}). Nothing was written. Leave it out."
            ) from error


def find_source(place: str | os.PathLike[str], options: Mapping[str, Any] | None) -> ParquetSource:
    """One Parquet file, or all files below a URL. Raises InvalidInput where there are none."""
    if not isinstance(place, (str, os.PathLike)):
        raise InvalidInput(f"source is {shown(place)}. Give one file, or a path or URL with files below it.")
    url = os.fspath(place).rstrip("/")
    if url.endswith(".parquet"):
        above, _, name = url.rpartition("/")
        if "*" in name:
            raise InvalidInput(f"source is the pattern {shown(url)}. Give the path or URL that holds the files, {shown(above or '.')}.")
        fileio = open_store(above or ".", options)
        return ParquetSource(fileio, (fileio.head(name),))
    fileio = open_store(url, options)
    found = [meta for page in fileio.list() for meta in page.objects if meta.key.endswith(".parquet") and not _is_hidden(meta.key)]
    if not found:
        raise InvalidInput(
            f"There is no Parquet file below {fileio.url}. Give a file that ends in .parquet, or a path or URL with some below it."
        )
    return ParquetSource(fileio, tuple(sorted(found, key=lambda meta: meta.key)))


@dataclass(frozen=True, slots=True)
class Inspected:
    """Files that fit together.

    Attributes:
        schema: of their rows: the columns of the first file, nullable (as Spark reads files), each in the widest type of any file, and
            those that directories give.
        said: for each file, the values that its directories give, such as `day=2026-01-31/`.
        rows: for each file, the count in its footer.
    """

    source: ParquetSource
    schema: pa.Schema
    said: Mapping[str, Mapping[str, str | None]]
    rows: Mapping[str, int]


def inspect_source(source: ParquetSource) -> Inspected:
    """Read the footer of every file. Raises InvalidInput where a file has other columns than the first, or of another meaning."""
    with source.open(source.files[0]) as file:
        schema = _columns_of(file)
    rows = {}
    for file in source.files:
        rows[file.key], theirs = _footer(source, file, schema)
        schema = pa.schema([_wider(field, theirs.field(field.name)) for field in schema])
    said = {
        file.key: {name: value for name, value in _said_by_directories(file.key).items() if name not in schema.names}
        for file in source.files
    }
    first = list(said[source.files[0].key])
    for key, values in said.items():
        if set(values) != set(first):
            raise InvalidInput(
                f"The directories of {key} in {source.fileio.url} give the columns {list(values)}, and those of the first file "
                f"{first}. Nothing was written. Import the files separately."
            )
    for name in first:
        schema = schema.append(pa.field(name, _type_of([values[name] for values in said.values()])))
    return Inspected(source, schema, said, rows)


def import_files(table: Table, found: Inspected, *, commit_bytes: int = COMMIT_BYTES) -> ImportResult:
    """Insert the rows of all files in commits of about `commit_bytes` of source files. Their keys are declared new.

    Values of directories have the table's type. An import that ended early goes on after its last commit when it is called again with the
    same files, unchanged and at their URL: each commit counts once. Memory is limited. Raises CorruptTable when the counts do not agree at
    the end, InvalidInput, and as `Table.bulk_insert`.
    """
    whole_number(commit_bytes, what="commit_bytes", least=1)
    source, rows_of = found.source, found.rows
    chunks = list(_chunks(source.files, commit_bytes))
    schema = _fitted(found, table)
    constants = {key: _constants(key, values, schema) for key, values in found.said.items()}
    expected, before = sum(rows_of.values()), 0
    with shown_progress(table._context.fileio.env, f"objcat: import into {table.name}", expected, unit="rows") as advance:
        for number, files in enumerate(chunks, 1):
            expected_here = sum(rows_of[file.key] for file in files)
            if not expected_here:
                continue
            counted = _Counted(source, files, schema, constants, advance)
            # A number that says how the files were split into commits: another split is another import.
            app = AppVersion(app=f"{source.name}-{commit_bytes}", version=number)
            try:
                result = table.bulk_insert(counted.reader(), app=app, metadata={"import": source.name, "files": str(len(files))})
            except InvalidBatch as error:
                # The error is about its own commit.
                said = f"{_called(files)}: {error}"
                if number > 1:
                    stays = f"one of these rows was written, and {number - 1} of {len(chunks)} commits stay"
                    said = re.sub("([Nn])othing was written", rf"\1{stays}", said)
                raise type(error)(said) from error
            except pa.ArrowException as error:
                # Arrow passes on only the text of an error that a stream raises.
                raise (counted.failure or error) from None
            before += result.already_applied
            if not result.already_applied and counted.rows != expected_here:
                raise CorruptTable(
                    f"The files of commit {number} of the import into {table.name!r} at {table.url} gave {counted.rows} rows, but "
                    f"their footers say {expected_here}. They changed while they were read. Restore slot {result.slot - 1} and import "
                    "again."
                )
    rows = table.scan().count()
    if not table.spec.has_key and rows < expected:
        raise CorruptTable(
            f"The import into {table.name!r} at {table.url} read {expected} rows, and the table has {rows}. Rows were deleted "
            "meanwhile. Compare the table with the files."
        )
    return ImportResult(files=len(source.files), rows=expected, commits=len(chunks), commits_before=before, rows_in_table=rows)


class _Counted:
    """The rows of some files as a stream that counts them, and may be started again. `advance`: called with the counts."""

    def __init__(
        self,
        source: ParquetSource,
        files: Sequence[ObjectMeta],
        schema: pa.Schema,
        constants: Mapping[str, Mapping[str, pa.Scalar]],
        advance: Callable[[int], None],
    ) -> None:
        self._source = source
        self._files = files
        self._schema = schema
        self._constants = constants
        self._advance = advance
        self.rows = 0
        self.failure: InvalidInput | None = None

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for meta in self._files:
            constants = self._constants[meta.key]
            for batch in self._read(meta):
                self.rows += batch.num_rows
                self._advance(batch.num_rows)
                columns = [
                    pa.repeat(constants[field.name], batch.num_rows)
                    if field.name in constants
                    else self._cast(meta, batch.column(field.name), field)
                    for field in self._schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _read(self, meta: ObjectMeta) -> Iterator[pa.RecordBatch]:
        with self._source.open(meta) as file:
            footer = file.metadata
        for number in range(footer.num_row_groups):
            # A reader requests all its row groups at once, and caches them until it is closed.
            with self._source.open(meta, footer) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS, row_groups=[number])

    def _cast(self, meta: ObjectMeta, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            self.failure = InvalidInput(
                f"{meta.key} in {self._source.fileio.url} has {field.name!r} as {column.type}, which does not convert to "
                f"{field.type} without loss ({error}). Import files of that type separately."
            )
            raise self.failure from error


def _called(files: Sequence[ObjectMeta]) -> str:
    return files[0].key if len(files) == 1 else f"{files[0].key} to {files[-1].key}"


def _chunks(files: Sequence[ObjectMeta], size_max: int) -> Iterator[list[ObjectMeta]]:
    held: list[ObjectMeta] = []
    for file in files:
        if held and sum(meta.size for meta in held) + file.size > size_max:
            yield held
            held = []
        held.append(file)
    if held:
        yield held


def _footer(source: ParquetSource, file: ObjectMeta, schema: pa.Schema) -> tuple[int, pa.Schema]:
    """The row count and the columns of a file. Raises InvalidInput for other columns than those of the first file."""
    with source.open(file) as opened:
        theirs = _columns_of(opened)
        if set(theirs.names) != set(schema.names):
            raise InvalidInput(
                f"{file.key} in {source.fileio.url} has the columns {shown(theirs.names)}, and the first file has "
                f"{shown(schema.names)}. Nothing was written. Import files of other columns separately."
            )
        for field in schema:
            given = theirs.field(field.name).type
            if given != field.type and not (means_the_same(given, field.type) or means_the_same(field.type, given)):
                raise InvalidInput(
                    f"{file.key} in {source.fileio.url} has {field.name!r} as {given}, and the first file as {field.type}. Nothing "
                    "was written. Import files of other types separately."
                )
        return int(opened.metadata.num_rows), theirs


def _columns_of(file: pq.ParquetFile) -> pa.Schema:
    """The columns as nullable, whatever the file declares: another file may have nulls."""
    return nullable_schema(file.schema_arrow)


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    """A field that holds the values of both; the first where no type is known."""
    if one.type == other.type or pa.types.is_nested(one.type):
        return one
    try:
        found: pa.Field = pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive").field(0)
    except pa.ArrowException:
        return one
    return found


def _said_by_directories(key: str) -> dict[str, str | None]:
    """Columns and values in the path of a file, as Hive and Spark write them: `day=2026-01-31/city=S%C3%A3o/part-0.parquet`."""
    pairs = [part.partition("=") for part in key.split("/")[:-1]]
    return {
        unquote_path(name): None if value == NULL_DIRECTORY else unquote_path(value) for name, equals, value in pairs if name and equals
    }


def _type_of(values: Sequence[str | None]) -> pa.DataType:
    """The type as Spark infers it, but without number widths: whole numbers, dates, or text."""
    for pattern, data_type in ((_WHOLE, pa.int64()), (_DATE, pa.date32())):
        if any(value is not None for value in values) and all(value is None or pattern.fullmatch(value) for value in values):
            return data_type
    return pa.string()


def _fitted(found: Inspected, table: Table) -> pa.Schema:
    """The columns as they are read. Values of directories are text, which is read in the table's type."""
    own = table.spec.table_schema.to_arrow()
    said = {name for values in found.said.values() for name in values}
    return pa.schema([pa.field(f.name, own.field(f.name).type if f.name in said and f.name in own.names else f.type) for f in found.schema])


def _constants(key: str, values: Mapping[str, str | None], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The values that directories give to the rows of a file. Raises InvalidInput for text that is no value of its column."""
    found = {}
    for name, value in values.items():
        data_type = schema.field(name).type
        try:
            found[name] = pa.scalar(value, pa.string()).cast(data_type)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"The directory of {key} says {name}={shown(value)}, which is no {data_type}. Nothing was written. Give the table "
                "a text column, or move the file."
            ) from error
    return found


def _is_hidden(key: str) -> bool:
    """Whether Spark ignores the file: its name begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in key.split("/"))
