"""Parquet files that other tools wrote become rows of a table: some files a commit, each exactly once however often the import is begun."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.base import ObjectMeta
from fileio.registry import open_store
from fileio.store import FileIO
from objcat.arguments import shown, whole_number
from objcat.errors import CorruptTable, InvalidInput
from objcat.handle import Table
from objcat.progress import shown_progress
from objcat.timeline import AppVersion

COMMIT_BYTES = 1024**3
"""Bytes of source files that make one commit, about."""
BATCH_ROWS = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """An import that is complete. files, rows: of the source. commits: that hold them; commits_before: how many of these an earlier attempt
    had made. rows_in_table: now; of a table with a key, fewer where keys repeat."""

    files: int
    rows: int
    commits: int
    commits_before: int
    rows_in_table: int


@dataclass(frozen=True, slots=True)
class Source:
    """Some Parquet files: keys of one store, in order, each as it was when it was listed."""

    fileio: FileIO
    files: tuple[ObjectMeta, ...]

    @property
    def name(self) -> str:
        """One for the same files, at one place and unchanged: another day's files often have the same names and sizes."""
        listed = "\n".join([self.fileio.url, *(f"{file.key} {file.size} {file.version}" for file in self.files)])
        return f"import-parquet-{hashlib.sha256(listed.encode()).hexdigest()[:16]}"

    def open(self, file: ObjectMeta) -> pq.ParquetFile:
        """Raises InvalidInput for what is no Parquet file."""
        try:
            return pq.ParquetFile(self.fileio.open_read(file.key, meta=file), pre_buffer=True)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"{file.key} in {self.fileio.url} is not a Parquet file ({error}): leave it out; nothing was written"
            ) from error


def find_source(place: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Source:
    """One Parquet file, or all below a URL. Raises InvalidInput where there are none."""
    url = os.fspath(place).rstrip("/")
    if url.endswith(".parquet"):
        above, _, name = url.rpartition("/")
        fileio = open_store(above or ".", options)
        return Source(fileio, (fileio.head(name),))
    fileio = open_store(url, options)
    found = [meta for page in fileio.list() for meta in page.objects if meta.key.endswith(".parquet") and not _is_hidden(meta.key)]
    if not found:
        raise InvalidInput(f"there is no Parquet file below {fileio.url}: give a file that ends in .parquet, or a place with some below it")
    return Source(fileio, tuple(sorted(found, key=lambda meta: meta.key)))


def schema_of(source: Source) -> pa.Schema:
    """Of the first file; later ones must fit it."""
    with source.open(source.files[0]) as file:
        return file.schema_arrow.remove_metadata()


def import_files(table: Table, source: Source, *, commit_bytes: int = COMMIT_BYTES) -> ImportResult:
    """Insert the rows of all files, whose keys are declared new, in commits of about `commit_bytes` of source files.

    An import that ended early goes on after its last commit when it is called again with the same files, unchanged and at their place: each
    commit counts once. Memory is bounded. Raises CorruptTable when the counts do not agree in the end, InvalidInput, and as
    `Table.bulk_insert`.
    """
    whole_number(commit_bytes, what="commit_bytes", least=1)
    chunks = list(_chunks(source.files, commit_bytes))
    schema = schema_of(source)
    rows_of = {file.key: _rows(source, file, schema) for file in source.files}
    expected, before = sum(rows_of.values()), 0
    with shown_progress(table.fileio.env, f"objcat: import into {table.name}", expected) as advance:
        for number, files in enumerate(chunks, 1):
            expected_here = sum(rows_of[file.key] for file in files)
            if not expected_here:
                continue
            counted = _Counted(source, files, advance)
            # A number that says how the files were dealt to commits: another dealing is another import.
            app = AppVersion(app=f"{source.name}-{commit_bytes}", version=number)
            result = table.bulk_insert(counted.reader(), app=app, metadata={"import": source.name, "files": str(len(files))})
            before += result.already_applied
            if not result.already_applied and counted.rows != expected_here:
                raise CorruptTable(
                    f"the files of commit {number} of the import into {table.name!r} gave {counted.rows} rows, and say that they have "
                    f"{expected_here}: they changed while they were read; restore slot {result.slot - 1} and import again"
                )
    rows = table.scan().count()
    if table.spec.is_keyless and rows < expected:
        raise CorruptTable(f"the import into {table.name!r} read {expected} rows, and the table has {rows}: rows were deleted meanwhile")
    return ImportResult(files=len(source.files), rows=expected, commits=len(chunks), commits_before=before, rows_in_table=rows)


class _Counted:
    """The rows of some files as a stream that counts them. It may be begun again. advance: is told of them."""

    def __init__(self, source: Source, files: Sequence[ObjectMeta], advance: Callable[[int], None]) -> None:
        self._source = source
        self._files = files
        self._advance = advance
        self.rows = 0

    def reader(self) -> pa.RecordBatchReader:
        schema = schema_of(self._source)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for meta in self._files:
            with self._source.open(meta) as file:
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    self.rows += batch.num_rows
                    self._advance(batch.num_rows)
                    yield batch.select(schema.names).cast(schema)


def _chunks(files: Sequence[ObjectMeta], size_max: int) -> Iterator[list[ObjectMeta]]:
    held: list[ObjectMeta] = []
    for file in files:
        if held and sum(meta.size for meta in held) + file.size > size_max:
            yield held
            held = []
        held.append(file)
    if held:
        yield held


def _rows(source: Source, file: ObjectMeta, schema: pa.Schema) -> int:
    """How many rows the file says that it has. Raises InvalidInput for other columns than those of the first file."""
    with source.open(file) as opened:
        if set(opened.schema_arrow.names) != set(schema.names):
            raise InvalidInput(
                f"{file.key} in {source.fileio.url} has the columns {shown(opened.schema_arrow.names)}, and the first file has "
                f"{shown(schema.names)}: import files of other columns by themselves; nothing was written"
            )
        return int(opened.metadata.num_rows)


def _is_hidden(key: str) -> bool:
    """As Spark takes it: what begins with a dot or an underscore is no data."""
    return any(part.startswith((".", "_")) for part in key.split("/"))
