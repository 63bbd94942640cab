"""`spec_in_place`: the settings of a new table whose files stay where other programs write them, and its columns where none are given."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
from sqlglot import exp
from sqlglot.errors import SqlglotError

from fileio.errors import NotFound
from fileio.registry import describe_store
from fileio.schemes import scheme_of
from fileio.store import FileIO
from objcat.adoption.source_files import SourceFile, SourceListing, check_source
from objcat.common.validation import instance
from objcat.datafile.in_place import source_store
from objcat.errors import InvalidInput, InvalidSql
from objcat.lake.settings import new_spec
from objcat.metadata.in_place import Files, FilesInPlace, FileSource, check_files, key_pattern, split_pattern
from objcat.metadata.in_place_changes import check_in_place, choose_precomputed
from objcat.metadata.schema import nullable_schema
from objcat.metadata.table_spec import TableSpec
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.formats import open_rows
from objcat.sourcefiles.json_rows import is_object
from objcat.sourcefiles.layout import FileLayout
from objcat.sourcefiles.line_blocks import open_text
from objcat.sourcefiles.values import canonical
from objcat.sourcefiles.wider import wider
from objcat.sql.names import arrow_of
from objcat.table.batch_input import schema_given

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

INFERRED_FILES = 5
"""Columns are inferred from so many files."""
INFERRED_BYTES = 4 * 1024**2
"""And from so many bytes of text in each, without its compression."""
SETTINGS = ("properties",)


def spec_in_place(fileio: FileIO, source: Files, schema: pa.Schema | StructType | None, settings: Mapping[str, Any]) -> TableSpec:
    """The spec of a new table in place.

    Args:
        fileio: the store of the lake.
        source: where the files are.
        schema: the columns, with or without those of the path. None: inferred from the first files.
        settings: others of the table.

    Raises:
        InvalidInput, InvalidSchema: an argument does not fit, or there is no file to infer columns from.
    """
    files = instance(source, Files, what="source", such_as="objcat.Files('s3://logs/app/**/*.json', format='json')")
    for name in settings:
        if name not in SETTINGS:
            raise InvalidInput(
                f"{name}= does not fit a table in place, whose rows are those of files and whose partitions are those of their paths. "
                "Leave it out."
            )
    patterns = check_files(files)
    sources = tuple(_source(fileio, pattern) for pattern in patterns)
    given = None if schema is None else nullable_schema(schema_given(schema))
    in_path = _path_columns(files, sources, given)
    stored = FilesInPlace(
        sources=sources,
        format=files.format,
        line=files.line,
        delimiter=files.delimiter,
        header=files.header,
        nulls=tuple(files.nulls),
        bad_rows=files.bad_rows,
        on_change=files.on_change,
        on_missing=files.on_missing,
    )
    columns = _inferred(fileio, stored) if given is None else given
    missing = [pa.field(name, data_type) for name, data_type in in_path.items() if name not in columns.names]
    whole = pa.schema([*(field.with_type(in_path.get(field.name, field.type)) for field in columns), *missing])
    spec = new_spec(fileio, whole, key=None, partition_by=[_quoted(name) for name in in_path], **settings)
    check_in_place(spec.properties)
    ids = tuple(spec.table_schema.column(name).id for name in in_path)
    if len(ids) == len(spec.table_schema.columns):
        raise InvalidInput("Every column is one of the path, so files would not be read. Give a schema with columns of the files.")
    stored = msgspec.structs.replace(stored, path_columns=ids)
    return msgspec.structs.replace(spec, in_place=choose_precomputed(spec, stored, files.precompute))


def _source(fileio: FileIO, pattern: str) -> FileSource:
    folder, rest = split_pattern(pattern)
    key_pattern(rest)
    name, _ = scheme_of(folder)
    own, _ = scheme_of(fileio.url)
    if name != own:
        raise InvalidInput(
            f"{pattern!r} is in a {name}: store, and the lake in a {own}: store. Files in place are read with the options of the lake, so "
            f"they are in the same kind of store. Give a URL that begins with {own}:, or ingest these files."
        )
    found = FileSource(url=describe_store(folder).url, pattern=rest)
    check_source(fileio, found)
    return found


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"


# ---- columns


def _path_columns(files: Files, sources: Iterable[FileSource], given: pa.Schema | None) -> dict[str, pa.DataType]:
    """The types of the columns of the path: as said, else as in the schema, else text."""
    told: Any = files.path_columns
    said = {name: _type(name, text) for name, text in told.items()} if isinstance(told, Mapping) else dict.fromkeys(told)
    names = [set(key_pattern(source.pattern).groupindex) for source in sources]
    if any(found != names[0] for found in names):
        raise InvalidInput("The patterns name other columns in braces. Name the same ones in each pattern.")
    ordered = list(dict.fromkeys([*said, *sorted(names[0])]))
    found = {}
    for name in ordered:
        data_type = said.get(name) or (given.field(name).type if given is not None and name in given.names else pa.string())
        if pa.types.is_nested(data_type):
            raise InvalidInput(f"The column {name!r} of the path is nested, and a folder has one value. Give it a plain type.")
        found[name] = data_type
    return found


def _type(name: str, text: str) -> pa.DataType:
    try:
        return arrow_of(exp.DataType.build(text, dialect="spark"))
    except (SqlglotError, InvalidSql) as error:
        said = str(error) if isinstance(error, InvalidSql) else "it cannot be parsed"
        raise InvalidInput(f"The column {name!r} of the path has the type {text!r}: {said}. Correct it.") from None


def _inferred(fileio: FileIO, settings: FilesInPlace) -> pa.Schema:
    """The columns of the first files. A column has the type that holds those of all of them."""
    if settings.format == "text":
        return pa.schema([pa.field(name, pa.string()) for name in re.compile(settings.line).groupindex])
    if settings.format == "csv" and not settings.header:
        raise InvalidInput("Files of CSV without a header do not say their columns. Give a schema.")
    columns: dict[str, pa.DataType] = {}
    found = 0
    for file in islice(SourceListing(fileio, settings.sources, lake_url=fileio.url).files(), INFERRED_FILES):
        found += 1
        store = source_store(fileio, settings.sources[file.number].url)
        try:
            for field in _columns_of(store, file, settings):
                data_type = canonical(field)
                if data_type is not None:
                    columns[field.name] = wider(field.name, columns.get(field.name, data_type), data_type)
        except (BrokenFile, NotFound, pa.ArrowException) as error:
            raise InvalidInput(
                f"The columns of {store.url}/{file.meta.key} cannot be inferred: {error}. Nothing was created. Give a schema."
            ) from error
    if not found:
        where = ", ".join(f"{source.url}/{source.pattern}" for source in settings.sources)
        raise InvalidInput(f"There is no file at {where}, so its columns are not known. Correct the pattern, or give a schema.")
    if not columns:
        raise InvalidInput("The first files have no column with a value. Give a schema.")
    return pa.schema(list(columns.items()))


def _columns_of(store: FileIO, file: SourceFile, settings: FilesInPlace) -> pa.Schema:
    if settings.format not in ("csv", "json"):
        return open_rows(store, file.meta, settings.format, FileLayout()).schema
    with open_text(store, file.meta) as text:
        data = text.read(INFERRED_BYTES)
        is_whole = len(data) < INFERRED_BYTES
    whole = data if is_whole else data[: data.rfind(b"\n") + 1]
    if not whole.strip():
        return pa.schema([])
    if settings.format == "json":
        if settings.bad_rows == "permit":
            whole = b"\n".join(line for line in whole.split(b"\n") if is_object(line))
        return pa_json.read_json(io.BytesIO(whole)).schema
    return pa_csv.read_csv(
        io.BytesIO(whole),
        parse_options=pa_csv.ParseOptions(delimiter=settings.delimiter, newlines_in_values=True, invalid_row_handler=lambda _: "skip"),
        convert_options=pa_csv.ConvertOptions(null_values=list(settings.nulls), strings_can_be_null=True, quoted_strings_can_be_null=False),
    ).schema
