"""Finds the files of a table in place, and looks at each: what its rows are and what they are bounded by. Nothing is committed here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.adoption.files import check_calendar, misread, same_bounds
from objcat.adoption.precompute import ColumnsWriter, has_spans, precompute, wanted_columns
from objcat.datafile.adopted_files import INT96_UNIT, json_value, old_times, with_ids
from objcat.datafile.in_place import (
    held_columns,
    kept_rows,
    layout_of,
    names_in_files,
    path_in_source,
    settings_of,
    source_store,
)
from objcat.datafile.statistics import RunningBounds, bounds_of
from objcat.errors import InvalidInput
from objcat.metadata.column_parts import bounded_fields
from objcat.metadata.files import Adoption, BaseFile, Bound, PrecomputedColumns, SourceObject
from objcat.metadata.in_place import FilesInPlace, FileSource, key_pattern, literal_beginning, name_in_file
from objcat.metadata.schema import Column, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.formats import open_rows
from objcat.sourcefiles.path_values import directories, path_value
from objcat.timeline.entry import FileGroupId, Txn, is_path

OWN_FOLDERS = ("tables/", "_catalog/")
"""Below a lake, the folders of its own logs. A pattern never means what is there."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source.

    Args:
        number: of the source.
        meta: of the object, as it was listed.
        said: what its path says of columns, as text.
    """

    number: int
    meta: ObjectMeta
    said: Mapping[str, str | None]

    @property
    def path(self) -> str:
        """Its path in entries."""
        return path_in_source(self.number, self.meta.key)


@dataclass(frozen=True, slots=True)
class LookedAtFile:
    """A file whose rows were counted.

    Args:
        file: as it was listed.
        rows: how many it has.
        bad_rows: how many lines of it are no rows, and were left out.
        names, values: as in `Adoption`.
        bounds: by column id.
        precomputed: its precomputed columns, which were written.
    """

    file: SourceFile
    rows: int
    bad_rows: int
    names: Mapping[int, str]
    values: Mapping[int, object]
    bounds: Mapping[int, Bound]
    precomputed: PrecomputedColumns | None = None

    def base_file(self, group_id: FileGroupId, txn: Txn) -> BaseFile:
        """The file as an entry names it."""
        meta = self.file.meta
        source = SourceObject(version=str(meta.version), precomputed=self.precomputed)
        return BaseFile(
            path=self.file.path,
            bytes=meta.size,
            rows=self.rows,
            group_id=group_id,
            bounds=dict(self.bounds),
            adopted=Adoption(txn=txn, names=dict(self.names), values=dict(self.values), source=source),  # type: ignore[arg-type]
        )


class SourceListing:
    """Lists the sources of a table. A file that two patterns mean is of the first one.

    Args:
        fileio: the store of the table, or of its lake.
        sources: where files are.
        lake_url: of the lake, whose own files belong to no source. None: not known.
    """

    def __init__(self, fileio: FileIO, sources: Sequence[FileSource], *, lake_url: str | None) -> None:
        self._stores = [source_store(fileio, source.url) for source in sources]
        self._sources = sources
        self._patterns = [key_pattern(source.pattern) for source in sources]
        self._own = [_own_keys(lake_url, source.url) for source in sources]

    def files(self, *, after: Mapping[int, str] | None = None) -> Iterator[SourceFile]:
        """The files of all sources, in the order of the sources. after: by source, list only keys above this one."""
        for number, store in enumerate(self._stores):
            begin = literal_beginning(self._sources[number].pattern)
            for page in store.list(begin, start_after=None if after is None else after.get(number)):
                for meta in page.objects:
                    found = self.file_of(number, meta)
                    if found is not None:
                        yield found

    def file_of(self, number: int, meta: ObjectMeta) -> SourceFile | None:
        """A listed object as a file of a source. None: the pattern does not mean it. Raises InvalidInput for a key that cannot be named."""
        matched = self._patterns[number].fullmatch(meta.key)
        parts = meta.key.split("/")
        # Some programs write an empty object in the place of a folder.
        if (
            matched is None
            or meta.key.endswith("/")
            or any(part.startswith((".", "_")) for part in parts)
            or meta.key.startswith(self._own[number])
        ):
            return None
        if any(self._means(earlier, number, meta.key) for earlier in range(number)):
            return None
        if not is_path(meta.key):
            raise InvalidInput(
                f"The key {meta.key!r} in {self._stores[number].url} has a part that is empty, '.' or '..', which no commit can name. "
                "Nothing was taken. Rename that object, or narrow the pattern."
            )
        return SourceFile(number, meta, {**directories(meta.key), **matched.groupdict()})

    def given(self, urls: Iterable[str]) -> tuple[list[SourceFile], list[str], int]:
        """Some files by their URLs: those that are there, the paths of those that are gone, and how many URLs no pattern means.

        urls: as `s3://bucket/key`, with the key as it is, or paths of files.
        """
        found: dict[str, SourceFile] = {}
        gone, ignored = dict[str, None](), 0
        for one in urls:
            url = one if "://" in one else f"file://{os.path.abspath(one)}"
            places = [(number, key) for number in range(len(self._sources)) if (key := self._key_of(number, url)) is not None]
            for number, key in places:
                try:
                    file = self.file_of(number, self._stores[number].head(key))
                except NotFound:
                    file = None
                    if self._patterns[number].fullmatch(key):
                        gone[path_in_source(number, key)] = None
                        break
                if file is not None:
                    found[file.path] = file
                    break
            else:
                ignored += 1
        return list(found.values()), list(gone), ignored

    def _key_of(self, number: int, url: str) -> str | None:
        folder = unquote(self._stores[number].url.rstrip("/")) + "/"
        return url[len(folder) :] if url.startswith(folder) and len(url) > len(folder) else None

    def _means(self, number: int, other: int, key: str) -> bool:
        """Whether a source means a key of another one."""
        mine, theirs = (self._sources[one].url.rstrip("/") + "/" for one in (number, other))
        if theirs.startswith(mine):
            return self._patterns[number].fullmatch(unquote(theirs[len(mine) :]) + key) is not None
        inside = unquote(mine[len(theirs) :]) if mine.startswith(theirs) else None
        return inside is not None and key.startswith(inside) and self._patterns[number].fullmatch(key[len(inside) :]) is not None


def _own_keys(lake_url: str | None, url: str) -> tuple[str, ...]:
    """What keys of a source begin with that are of a lake."""
    folder = url.rstrip("/") + "/"
    own = [] if lake_url is None else [f"{lake_url.rstrip('/')}/{name}" for name in OWN_FOLDERS]
    return tuple(unquote(one[len(folder) :]) for one in own if one.startswith(folder))


def check_source(fileio: FileIO, source: FileSource) -> None:
    """Raises InvalidInput for a source among the files of a lake. fileio: the store of the lake."""
    folder = source.url.rstrip("/") + "/"
    if any(folder.startswith(f"{fileio.url.rstrip('/')}/{name}") for name in OWN_FOLDERS):
        raise InvalidInput(f"{source.url} is among the files of the lake {fileio.url}, whose tables write and delete there. Name another.")


def partitions_in_place(spec: TableSpec, files: Sequence[LookedAtFile]) -> list[str]:
    """The partition of each file: that of its path."""
    if not spec.partitioning.fields or not files:
        return ["" for _ in files]
    columns = {}
    for one in spec.partitioning.fields:
        column = spec.table_schema.by_id(one.column)
        columns[column.physical] = pa.array([_path_scalar(column, file.file).as_py() for file in files], arrow_type(column.type))
    found = spec.partition_of(pa.table(columns))
    return [found.texts[code] for code in found.codes.tolist()]


def _path_scalar(column: Column, file: SourceFile) -> pa.Scalar:
    return path_value(name_in_file(column), arrow_type(column.type), file.said)


def look_at(fileio: FileIO, spec: TableSpec, file: SourceFile, txn: Txn) -> LookedAtFile:
    """Look at a file in the version that was listed: of Parquet at the footer, of others at every row, one block at a time.

    Columns that the table wants precomputed are written meanwhile.

    Args:
        fileio: the store of the table.
        txn: the transaction that takes the file.

    Raises:
        BrokenFile: it cannot be read as the table says.
        NotFound, ObjectChanged: it is another one by now.
    """
    settings = settings_of(spec)
    columns = spec.table_schema.columns
    in_path = [column for column in columns if column.id in settings.path_columns]
    values = {column.id: json_value(_path_scalar(column, file)) for column in in_path}
    names = {column_id: name for column_id, name in names_in_files(columns).items() if column_id not in values}
    adopted = Adoption(txn=txn, names=names, values=values)
    held = held_columns(columns, adopted)
    store = source_store(fileio, settings.sources[file.number].url)
    wanted = wanted_columns(spec, adopted)
    if settings.format == "parquet":
        rows, bad, bounds = _parquet(store, spec, file, held)
        made = None
    else:
        with ColumnsWriter(fileio, spec, wanted, txn, spans=has_spans(spec)) if wanted else nullcontext() as writer:
            rows, bad, bounds = _rows(store, spec, file, held, writer)
            made = None if writer is None else writer.finish()
    bounds = {column_id: bound for column_id, bound in bounds.items() if column_id not in spec.statistics.never}
    looked = LookedAtFile(file, rows, bad, names, values, {**bounds, **same_bounds(values, rows)}, made)
    if settings.format == "parquet" and wanted:
        base = precompute(fileio, spec, looked.base_file(FileGroupId("", 0, 1), txn), txn)
        looked = replace(looked, bounds=base.bounds, precomputed=None if base.source is None else base.source.precomputed)
    return looked


def _parquet(store: FileIO, spec: TableSpec, file: SourceFile, held: Mapping[str, Column]) -> tuple[int, int, dict[int, Bound]]:
    try:
        stream = store.open_read(file.meta.key, meta=file.meta)
        with pq.ParquetFile(stream, coerce_int96_timestamp_unit=INT96_UNIT) as opened:
            footer, schema = opened.metadata, opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BrokenFile(f"it is no Parquet file ({error})") from error
    if len(set(schema.names)) < len(schema.names):
        raise BrokenFile("two of its columns have the same name")
    old = {path.split(".", 1)[0] for path in old_times(footer.schema)}
    for name, column in held.items():
        if name not in schema.names:
            continue
        # Timestamps of 12 bytes have no unit. They are instants, of nanoseconds to Arrow.
        stored = pa.timestamp("ns") if name in old else schema.field(name).type
        wrong = misread(stored, column.type, path=column.name, old=name in old)
        if wrong is not None:
            raise BrokenFile(f"it has {wrong[0]!r} as {wrong[1]}, which does not read as {wrong[2]}")
    try:
        check_calendar(footer, schema, spec, held, key=file.meta.key)
    except InvalidInput as error:
        raise BrokenFile(str(error)) from error
    return footer.num_rows, 0, bounds_of(footer, with_ids(footer.schema, schema, held), always=spec.bounded)


def _rows(
    store: FileIO, spec: TableSpec, file: SourceFile, held: Mapping[str, Column], writer: ColumnsWriter | None
) -> tuple[int, int, dict[int, Bound]]:
    settings: FilesInPlace = settings_of(spec)
    types = {name: arrow_type(column.type, physical=True) for name, column in held.items()}
    running = RunningBounds(list(held.values()), always=spec.bounded, fields=bounded_fields(spec))
    rows = bad = 0
    for batch in open_rows(store, file.meta, settings.format, layout_of(settings, types)):
        kept = kept_rows(batch, settings)
        own = kept.rename_columns([held[name].physical for name in kept.column_names])
        running.add(own)
        if writer is not None:
            writer.add(own, batch.span)
        rows, bad = rows + kept.num_rows, bad + len(batch.bad)
    return rows, bad, running.found()
