"""`with_path_columns`: columns whose values are in the path of a file, as directories `day=2026-01-31`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from objcat.ingest.folder.settings import FileRule
from objcat.sourcefiles.file_batch import FileBatch
from objcat.sourcefiles.formats import OpenedFile
from objcat.sourcefiles.path_values import directories, path_value


def with_path_columns(file: OpenedFile, path: str, rule: FileRule) -> OpenedFile:
    """A file with the columns of its path at the end. A column of its own with such a name is left out, as other engines do.

    Raises:
        BrokenFile: a directory is missing, or its value does not fit.
    """
    if not rule.path_columns:
        return file
    said = directories(path)
    values = {name: path_value(name, data_type, said) for name, data_type in rule.path_columns.items()}
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
