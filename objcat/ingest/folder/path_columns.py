"""`with_path_columns`: columns whose values are in the path of a file, as directories `day=2026-01-31`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

import pyarrow as pa

from objcat.ingest.folder.file_batch import BrokenFile, FileBatch
from objcat.ingest.folder.formats import OpenedFile
from objcat.ingest.folder.settings import FileRule
from objcat.ingest.folder.values import cast_rows, text_cast

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory that stands for null."""


def with_path_columns(file: OpenedFile, path: str, rule: FileRule) -> OpenedFile:
    """A file with the columns of its path at the end. A column of its own with such a name is left out, as other engines do.

    Raises:
        BrokenFile: a directory is missing, or its value does not fit.
    """
    if not rule.path_columns:
        return file
    said = _directories(path)
    values = {name: _value(name, data_type, said) for name, data_type in rule.path_columns.items()}
    own = [field for field in file.schema if field.name not in values]
    schema = pa.schema([*own, *(pa.field(name, value.type) for name, value in values.items())])

    def batches() -> Iterator[FileBatch]:
        for batch in file:
            rows = batch.rows.select([field.name for field in own])
            for name, value in values.items():
                # `pa.repeat` has no nulls of every type.
                count = batch.rows.num_rows
                rows = rows.append_column(name, pa.repeat(value, count) if value.is_valid else pa.nulls(count, value.type))
            yield FileBatch(rows, batch.kept, batch.bad)

    return OpenedFile(schema, batches())


def _directories(path: str) -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def _value(name: str, data_type: pa.DataType, said: Mapping[str, str | None]) -> pa.Scalar:
    if name not in said:
        raise BrokenFile(f"its path has no directory `{name}=...`, which `path_columns` names")
    array, bad = cast_rows(pa.array([said[name]], pa.string()), text_cast(data_type), data_type)
    if bad:
        raise BrokenFile(f"its directory `{name}={said[name]}` does not fit: {bad[0]}")
    return array[0]
