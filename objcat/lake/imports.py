"""`ImportingLake`: the part of `Lake` that copies rows of files into tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from objcat.common.memory_errors import reports_full_memory
from objcat.lake.adopt import AdoptingLake
from objcat.lake.create import write_first
from objcat.lake.import_parquet import COMMIT_BYTES, ImportResult, find_source, import_files, inspect_source
from objcat.lake.settings import NamedTableSettings
from objcat.table.table import Table


@reports_full_memory
class ImportingLake(AdoptingLake):
    """What a lake copies from files."""

    def import_parquet(
        self,
        source: str | os.PathLike[str],
        name: str,
        *,
        key: Sequence[str] | None,
        options: Mapping[str, Any] | None = None,
        commit_bytes: int = COMMIT_BYTES,
        **settings: Unpack[NamedTableSettings],
    ) -> ImportResult:
        """Insert the rows of Parquet files into a table, which is created with the columns of the first file if it does not exist.

        An import that ended early goes on where it was when it is called again. A table that was created is dropped when the first commit
        is refused, as by `write`.

        Args:
            source: a file, or a URL or path with files below it. Directories such as `day=2026-01-31` (Hive, Spark) give a column that
                files lack: whole numbers, dates or text, or the type of an existing table.
            name: of the table.
            key: of the table; the keys of the rows are declared new.
            options: of the store of `source`.
            commit_bytes: bytes of source files for one commit.
            settings: of `create_table`, for a new table.

        Returns:
            What was imported.

        Raises:
            InvalidInput: the files or an argument do not fit.
            CorruptTable: the counts do not agree at the end.
            ObjcatError: the errors of `create_table` and `Table.bulk_insert`.
        """
        found = inspect_source(find_source(source, options))

        def write(table: Table, _is_new: bool) -> ImportResult:
            return import_files(table, found, commit_bytes=commit_bytes)

        return write_first(self._context, name, lambda: found.schema, key, settings, write)
