"""`TableSchemas`: the columns of each table of a folder, as its files have shown them so far. They grow, and never shrink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from objcat.errors import InvalidSchema
from objcat.ingest.folder.settings import FileRule
from objcat.ingest.model import SourceColumn, SourceTable
from objcat.metadata.schema import TableSchema, schema_from_arrow
from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.wider import wider


class TableSchemas:
    """Tables by their names. Safe for many threads.

    Args:
        key_of: the key columns of a table, from its route; empty where rows are appended.
    """

    def __init__(self, key_of: Callable[[str], tuple[str, ...]]) -> None:
        self._key_of = key_of
        self._lock = threading.Lock()
        self._tables: dict[str, SourceTable] = {}

    def load(self, versions: Mapping[str, Any]) -> None:
        """Take over what a state stored as `SourceTable.version`."""
        for name, version in versions.items():
            if isinstance(version, dict):
                stored = msgspec.convert(version, TableSchema).to_arrow()
                self.accept(self._made(name, {field.name: field.type for field in stored}))

    def tables(self) -> list[SourceTable]:
        """All tables as they are now."""
        with self._lock:
            return list(self._tables.values())

    def fit(self, name: str, schema: pa.Schema, rule: FileRule) -> tuple[SourceTable, bool]:
        """The table for the rows of a file.

        Args:
            name: of the table.
            schema: of the file, with types of the lake.
            rule: of the file. Its delete column is no column of the table.

        Returns:
            The table, and whether its columns changed. Nothing is changed yet, see `accept`.

        Raises:
            BrokenFile: a column has a type that does not go with the one it had before, or a key column is missing.
        """
        known, key = self._tables.get(name), self._key_of(name)
        before = {} if known is None else {column.name: column.type for column in known.columns}
        deletes = rule.settings.delete_column
        found = {field.name: field.type for field in schema if not deletes or field.name != deletes}
        columns = dict(before)
        for column, data_type in found.items():
            columns[column] = data_type if column not in before else wider(column, before[column], data_type)
            if column in key and column in before and columns[column] != before[column]:
                raise BrokenFile(f"its key column {column!r} is {data_type}, and {before[column]} in files before it. A key keeps its type")
        for column in key:
            if column not in found:
                raise BrokenFile(f"it has no column {column!r}, which is in the key")
        if known is not None and columns == before:
            return known, False
        return self._made(name, columns), True

    def accept(self, table: SourceTable) -> None:
        """A table has these columns from now on."""
        with self._lock:
            self._tables[table.name] = table

    def _made(self, name: str, columns: Mapping[str, pa.DataType]) -> SourceTable:
        key = self._key_of(name)
        try:
            stored = schema_from_arrow(pa.schema(list(columns.items())))
        except InvalidSchema as error:
            raise BrokenFile(f"{error}") from error
        return SourceTable(
            name=name,
            columns=tuple(SourceColumn(name=column, type=data_type, nullable=column not in key) for column, data_type in columns.items()),
            key=tuple(key),
            version=msgspec.json.decode(msgspec.json.encode(stored)),
        )
