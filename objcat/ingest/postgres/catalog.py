"""Tables of PostgreSQL as its catalog has them: columns, keys, and by what a change that no row tells is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fileio.optional import library
from objcat.ingest.decoding import decode_column
from objcat.ingest.model import SchemaChanged, SourceTable
from objcat.ingest.postgres.connection import quoted, rows_of
from objcat.ingest.postgres.pgoutput import RelationMessage
from objcat.ingest.postgres.types import (
    DATE,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    PgType,
    column_of,
    parse_array,
)

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

DEFAULT_CHARACTERS_MAX = 4_000
"""A longer default takes a snapshot: the schema of a table is no place for it."""
DEFAULT, NOTHING, FULL, INDEX = "d", "n", "f", "i"
"""Replica identities: the primary key, nothing, the whole row, an index."""
PARTITIONED = "p"

_TABLES = """
select c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text,
  case when c.relkind = 'p'
    then (select coalesce(json_agg(json_build_array(l.oid::int8, l.relfilenode::int8,
            case when (select bool_and(i.xmin::text = y.xmin::text)
                       from pg_partition_ancestors(l.oid) a(relid) join pg_inherits i on i.inhrelid = a.relid
                         join pg_type y on y.typrelid = a.relid)
              then (select i.xmin::text from pg_inherits i where i.inhrelid = l.oid) end) order by l.oid), '[]')::text
          from pg_partition_tree(c.oid) t join pg_class l on l.oid = t.relid where t.isleaf)
    else c.relfilenode::text end
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
  and n.nspname !~ '^pg_' and strpos(n.nspname, '.') = 0 and n.nspname <> 'information_schema' {more}
order by n.nspname, c.relname
"""
_IS_FILLED = "select exists (select 1 from only {name} where xmin = %s::text::xid)"
_NAME = "select %s::oid::regclass::text"
_COLUMNS = """
select a.attrelid::int8, a.attnum::int, a.attname, a.atttypid::int8, a.atttypmod, a.attnotnull, a.xmin::text, a.attcollation::int8,
  case when a.atthasmissing then a.attmissingval::text end, format_type(a.atttypid, null)
from pg_attribute a
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attrelid, a.attnum
"""
_KEYS = """
select i.indrelid::int8, i.indisprimary, i.indisreplident, array_agg(a.attname::text order by k.place)
from pg_index i
  cross join lateral unnest(i.indkey::int2[]) with ordinality k(attnum, place)
  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = any(%s::oid[]) and (i.indisprimary or i.indisreplident) and k.place <= i.indnkeyatts
group by i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident
"""
_TYPES = "select oid::int8, typbasetype::int8, typtypmod, case when typcategory = 'A' then typelem::int8 else 0 end from pg_type"
_BYTE_COLLATIONS = "select oid::int8 from pg_collation where collname in ('C', 'POSIX', 'ucs_basic')"
_DATABASE_COLLATION = "select datcollate in ('C', 'POSIX') from pg_database where datname = current_database()"
_BYTE_SORTED = {INT2, INT4, INT8, TEXT, VARCHAR, UUID, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC}
"""Types whose order the lake has too, text by its bytes."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A key column. is_bytes: whether the server compares it by bytes. cast: the type's name in SQL."""

    name: str
    type_oid: int
    is_bytes: bool
    cast: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that has rows itself.

    Args:
        oid: of it.
        file: where its rows are: another one once it was rewritten, or truncated alone.
        born_in: the transaction that made it, as a partition; None: it was attached, perhaps with rows.
    """

    oid: int
    file: int
    born_in: str | None


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table with what its source alone needs.

    Args:
        table: as the runner sees it.
        schema, name: of it.
        oid: of it.
        keys: its key columns.
        missing: for columns that joined with a default: the text of what older rows read, as an array of one.
        partitions: those with rows of their own, by number; None for a table that has none.
    """

    table: SourceTable
    schema: str
    name: str
    oid: int
    keys: tuple[KeyColumn, ...]
    missing: Mapping[str, str]
    partitions: tuple[Partition, ...] | None = None

    @property
    def sql(self) -> str:
        """Its name in SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


class PostgresCatalog:
    """Reads the catalog by one connection. For one thread.

    Args:
        connection: of its own.
        key_of: the key that a route gives a table, empty when it gives none.
        numeric_scale: see `PostgresSettings`.
    """

    def __init__(self, connection: Connection, key_of: Callable[[str], tuple[str, ...]], numeric_scale: int | None) -> None:
        self._connection = connection
        self._key_of = key_of
        self._numeric_scale = numeric_scale
        self._types: dict[int, PgType] = {}
        self._byte_collations: set[int] = set()
        self._refused = library("psycopg2", needed_by="An ingest from PostgreSQL needs", extra="ingest-postgres").Error

    def tables(self, oids: Sequence[int] | None = None) -> dict[str, PostgresTable]:
        """All tables by name, or some."""
        self._read_types()
        more = "" if oids is None else "and c.oid = any(%s::oid[])"
        found = rows_of(self._connection, _TABLES.format(more=more), () if oids is None else (list(oids),))
        known = [oid for oid, *_ in found]
        columns = _grouped(rows_of(self._connection, _COLUMNS, (known,)))
        keys = _grouped(rows_of(self._connection, _KEYS, (known,)))
        made = (self._table(row, columns.get(row[0], []), keys.get(row[0], [])) for row in found)
        return {one.table.name: one for one in made}

    def relation(self, message: RelationMessage) -> SourceTable:
        """A table as the stream describes it: with the columns of that time, and the order of the key that it has today."""
        if any(column.type_oid not in self._types for column in message.columns):
            self._types = {}
        self._read_types()
        flagged = [column.name for column in message.columns if column.is_key]
        names = {column.name for column in message.columns}
        now = next(iter(self.tables([message.oid]).values()), None)
        key = () if now is None else now.table.key
        if not set(key) <= names or (message.identity != FULL and set(key) != set(flagged)):
            key = tuple(flagged) if message.identity != FULL else ()
        return SourceTable(
            name=f"{message.schema}.{message.name}",
            columns=tuple(
                column_of(
                    column.name,
                    column.type_oid,
                    column.modifier,
                    nullable=column.name not in key,
                    known=self._types,
                    numeric_scale=self._numeric_scale,
                )
                for column in message.columns
            ),
            key=key,
            # The stream is behind the catalog: these columns are not dropped, they have not joined yet.
            joins_later=() if now is None else tuple(column.name for column in now.table.columns if column.name not in names),
        )

    def is_filled(self, partition: Partition) -> bool:
        """Whether a partition has rows of the transaction that made it: they may have been there before it became one."""
        try:
            name = rows_of(self._connection, _NAME, (partition.oid,))[0][0]
            found = rows_of(self._connection, _IS_FILLED.format(name=name), (partition.born_in,))
        except self._refused:
            return True  # Nobody may look, or it is gone again.
        return bool(found[0][0])

    def _read_types(self) -> None:
        if not self._types:
            self._types = {oid: PgType(base, modifier, element) for oid, base, modifier, element in rows_of(self._connection, _TYPES)}
            self._byte_collations = {oid for (oid,) in rows_of(self._connection, _BYTE_COLLATIONS)}
            if rows_of(self._connection, _DATABASE_COLLATION)[0][0]:
                self._byte_collations.add(100)  # "default", the collation of the database

    def _table(self, row: tuple[Any, ...], columns: list[tuple[Any, ...]], keys: list[tuple[Any, ...]]) -> PostgresTable:
        oid, schema, name, kind, identity, file = row
        partitions = tuple(Partition(*one) for one in json.loads(file)) if kind == PARTITIONED else None
        full = f"{schema}.{name}"
        key, problem = self._key(full, identity, keys, {column[1] for column in columns})
        by_name = {column[1]: column for column in columns}
        # A route may name a column that is not there, which the router refuses.
        key_rows = [by_name[one] for one in key if one in by_name]
        key_columns = tuple(KeyColumn(row[1], row[2], row[6] in self._byte_collations, row[8]) for row in key_rows)
        table = SourceTable(
            name=full,
            columns=tuple(
                column_of(
                    column[1],
                    column[2],
                    column[3],
                    nullable=not column[4] and column[1] not in key,
                    known=self._types,
                    numeric_scale=self._numeric_scale,
                )
                for column in columns
            ),
            key=key,
            problem=problem,
            version={
                "oid": oid,
                "file": file if partitions is None else _counted(partitions),
                "key": list(key),
                "columns": {column[1]: [column[0], column[5]] for column in columns},
            },
            sorts_by_bytes=all(self._sorts_by_bytes(one, by_name[one.name][3]) for one in key_columns),
        )
        missing = {column[1]: column[7] for column in columns if column[7] is not None}
        return PostgresTable(table, schema, name, oid, key_columns, missing, partitions)

    def _sorts_by_bytes(self, key: KeyColumn, modifier: int) -> bool:
        # A numeric without a precision is text in the lake, which sorts otherwise.
        return key.type_oid in _BYTE_SORTED and (key.type_oid != NUMERIC or modifier >= 4 or self._numeric_scale is not None)

    def _key(self, name: str, identity: str, keys: Iterable[tuple[Any, ...]], columns: set[str]) -> tuple[tuple[str, ...], str | None]:
        """The key of a table, and why its changes cannot be followed."""
        asked = self._key_of(name)
        primary = next((tuple(found) for is_primary, _, found in keys if is_primary), ())
        index = next((tuple(found) for _, is_identity, found in keys if is_identity), ())
        statement = f"ALTER TABLE {name} REPLICA IDENTITY"
        found = {DEFAULT: primary, INDEX: index, FULL: asked or primary, NOTHING: ()}[identity]
        if asked and set(asked) != set(found):
            return found, f"The route gives {name} the key {list(asked)}, which its replica identity does not send. Run {statement} FULL."
        if not found and identity != FULL:
            return (), (
                f"{name} has no primary key and no replica identity, so the server would refuse its updates and deletes when published. "
                f"Run {statement} FULL, or give it a primary key, or skip it by a route."
            )
        if not set(found) <= columns:
            return found, f"The key of {name} has a generated column, which is not sent. Run {statement} USING INDEX with another index."
        return found, None


def compare_tables(version: Any, now: PostgresTable, is_filled: Callable[[Partition], bool]) -> SchemaChanged | None:
    """What happened between a `SourceTable.version` and now that no row says. See `ChangeSource.compare_schemas`.

    `is_filled`: see `PostgresCatalog.is_filled`.
    """
    table = now.table
    if not isinstance(version, Mapping):
        return None
    old, new = version["columns"], table.version["columns"]
    if version["oid"] != table.version["oid"] or version["key"] != table.version["key"]:
        return SchemaChanged(table=table, needs_snapshot=True)
    numbers = {number for number, _ in old.values()}
    joined = [name for name, (number, _) in new.items() if name not in old or old[name][0] != number]
    # A column that was renamed, and one that was dropped and joined again, have values that no change sent.
    is_renamed = any(new[name][0] in numbers or name in old for name in joined)
    is_rewritten = version["file"] != table.version["file"] and (
        any(old.get(name) != state for name, state in new.items()) or _has_others(version["file"], now.partitions, is_filled)
    )
    if not joined and not is_rewritten and set(old) == set(new):
        return None
    defaults = _defaults(now, [name for name in joined if name in now.missing])
    needs_snapshot = is_renamed or is_rewritten or defaults is None
    return SchemaChanged(table=table, defaults={} if needs_snapshot else defaults or {}, needs_snapshot=needs_snapshot)


def _counted(partitions: Sequence[Partition]) -> str:
    """How many partitions there are, and a digest of them and of where their rows are."""
    listed = ",".join(f"{one.oid}:{one.file}" for one in partitions)
    return f"{len(partitions)}:{hashlib.blake2b(listed.encode(), digest_size=12).hexdigest()}"


def _has_others(before: str, partitions: Sequence[Partition] | None, is_filled: Callable[[Partition], bool]) -> bool:
    """Whether rows came or went with a partition. One that was made since, with the greatest numbers, came without rows."""
    if partitions is None:
        return False
    count = int(before.partition(":")[0])
    joined = partitions[count:]
    return before != _counted(partitions[:count]) or any(one.born_in is None or is_filled(one) for one in joined)


def _defaults(now: PostgresTable, names: Iterable[str]) -> dict[str, Any] | None:
    """What rows that were there read in columns that joined; None when one of the values is no default that the lake can have."""
    found = {}
    for name in names:
        column = now.table.column(name)
        try:
            (text,) = parse_array(now.missing[name])
        except ValueError:
            return None
        array, bad = decode_column(column, [text])
        if bad or pa.types.is_nested(column.type) or len(now.missing[name]) > DEFAULT_CHARACTERS_MAX:
            return None
        if array[0].is_valid:
            found[name] = array[0].as_py()
        elif text is not None:
            return None
    return found


def _grouped(rows: Iterable[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Rows by their first value, without it."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for first, *rest in rows:
        found.setdefault(first, []).append(tuple(rest))
    return found
