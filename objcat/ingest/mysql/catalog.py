"""Tables of MariaDB and MySQL as their catalog has them: columns and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objcat.ingest.model import SourceTable
from objcat.ingest.mysql.connection import quoted, rows_of
from objcat.ingest.mysql.types import MysqlType, type_of_catalog

if TYPE_CHECKING:
    from pymysql.connections import Connection

_SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_TABLES = f"""
select table_schema, table_name, engine from information_schema.tables
where table_type = 'BASE TABLE' and table_schema not in {_SYSTEM} {{more}} order by table_schema, table_name
"""  # noqa: S608
_FIELDS = (
    "table_schema", "table_name", "column_name", "data_type", "column_type", "numeric_precision", "numeric_scale", "datetime_precision",
    "character_octet_length", "character_set_name", "collation_name", "is_nullable", "column_default",
)  # fmt: skip
_COLUMNS = f"""
select {", ".join(_FIELDS)} from information_schema.columns
where table_schema not in {_SYSTEM} {{more}} order by table_schema, table_name, ordinal_position
"""  # noqa: S608
_KEYS = f"""
select table_schema, table_name, index_name, column_name, nullable, sub_part from information_schema.statistics
where non_unique = 0 and table_schema not in {_SYSTEM} {{more}} order by table_schema, table_name, index_name <> 'PRIMARY', index_name,
seq_in_index
"""  # noqa: S608
TRANSACTIONAL = {"innodb", "rocksdb", "tokudb"}
"""Engines whose tables can be read in a snapshot."""


@dataclass(frozen=True, slots=True)
class MysqlTable:
    """A table with what its source alone needs.

    Args:
        table: as the runner sees it.
        database, name: of it.
        types: of its columns.
        required: columns that may not be null.
    """

    table: SourceTable
    database: str
    name: str
    types: Mapping[str, MysqlType]
    required: frozenset[str]

    @property
    def sql(self) -> str:
        """Its name in SQL."""
        return f"{quoted(self.database)}.{quoted(self.name)}"

    @property
    def key_types(self) -> list[MysqlType]:
        """Types of the key columns."""
        return [self.types[name] for name in self.table.key]


class MysqlCatalog:
    """Reads the catalog by one connection. For one thread.

    Args:
        connection: of its own.
        key_of: the key that a route gives a table, empty when it gives none.
    """

    def __init__(self, connection: Connection[Any], key_of: Callable[[str], tuple[str, ...]]) -> None:
        self._connection = connection
        self._key_of = key_of

    def tables(self) -> dict[str, MysqlTable]:
        """All tables by name."""
        return self._read("", ())

    def table(self, database: str, name: str) -> MysqlTable | None:
        """One table; None when there is none."""
        return next(iter(self._read("and table_schema = %s and table_name = %s", (database, name)).values()), None)

    def _read(self, more: str, arguments: Sequence[str]) -> dict[str, MysqlTable]:
        found = rows_of(self._connection, _TABLES.format(more=more), arguments)
        columns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows_of(self._connection, _COLUMNS.format(more=more), arguments):
            columns.setdefault((row[0], row[1]), []).append(dict(zip(_FIELDS, row, strict=True)))
        keys: dict[tuple[str, str], dict[str, list[tuple[Any, ...]]]] = {}
        for database, name, index, *part in rows_of(self._connection, _KEYS.format(more=more), arguments):
            keys.setdefault((database, name), {}).setdefault(index, []).append(tuple(part))
        made = {}
        for database, name, engine in found:
            # A dot in a name would make two tables one.
            if "." not in database and "." not in name and columns.get((database, name)):
                table = self._table(database, name, engine or "", columns[database, name], keys.get((database, name), {}))
                made[table.table.name] = table
        return made

    def _table(
        self,
        database: str,
        name: str,
        engine: str,
        columns: Sequence[Mapping[str, Any]],
        indexes: Mapping[str, Sequence[tuple[Any, ...]]],
    ) -> MysqlTable:
        full = f"{database}.{name}"
        types = {row["column_name"]: type_of_catalog(row) for row in columns}
        key, problem = self._key(full, types, indexes)
        if engine.lower() not in TRANSACTIONAL:
            problem = f"{full} is a table of {engine}, which has no snapshots. Run ALTER TABLE {full} ENGINE=InnoDB, or skip it by a route."
        required = frozenset(row["column_name"] for row in columns if row["is_nullable"] == "NO")
        table = SourceTable(
            name=full,
            columns=tuple(types[one].column(one, nullable=one not in key and one not in required) for one in types),
            key=key,
            problem=problem,
            version={row["column_name"]: [row["column_type"], row["is_nullable"], row["column_default"]] for row in columns},
            # Floating-point keys are equal as the server prints them, and not as the lake compares them. A route may name a column that is
            # not there, which the router refuses.
            sorts_by_bytes=all(one in types and types[one].name not in ("float", "double", "json", "geometry") for one in key),
        )
        return MysqlTable(table, database, name, types, required)

    def _key(
        self, name: str, types: Mapping[str, MysqlType], indexes: Mapping[str, Sequence[tuple[Any, ...]]]
    ) -> tuple[tuple[str, ...], str | None]:
        asked = self._key_of(name)
        if asked:
            return asked, None
        for index, parts in indexes.items():
            # A prefix that is unique makes the whole unique too. Two rows may have null in a unique index.
            if index == "PRIMARY" or not any(nullable == "YES" for _, nullable, _ in parts):
                found = tuple(column for column, _, _ in parts)
                if all(column in types for column in found):
                    return found, None
        return (), None
