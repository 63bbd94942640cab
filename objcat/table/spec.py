"""The settings that a table is created with: key, ordering, index, kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fileio.config import nearest
from objcat.errors import InvalidInput, InvalidSchema
from objcat.table.schema import Column, TableSchema
from objcat.timeline import Home

BUCKETS_MAX = 65_536
MERGE_ON_READ = "merge_on_read"
"""Writes add log rows, which readers merge with the base files below them."""
COPY_ON_WRITE = "copy_on_write"
"""Writes merge with what is there and rewrite the base files of the buckets that they touch; readers merge nothing."""
KINDS = (MERGE_ON_READ, COPY_ON_WRITE)


class Bucket(msgspec.Struct, frozen=True):
    """The bucket index as a user asks for it: a key lives in bucket `pmod(hash(columns), count)`, with Spark's own hash.

    count: file groups of a partition. columns: the key columns that are hashed, all of them when None.
    """

    count: int = 16
    columns: tuple[str, ...] | None = None


class BucketIndex(msgspec.Struct, frozen=True, kw_only=True, tag="bucket"):
    """The bucket index as a table keeps it. columns: ids, in hashing order."""

    count: int
    columns: tuple[int, ...]


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What slot 0 of a table says. Columns are meant by id, so that a rename changes nothing here.

    table: the table's id. key: the columns whose values identify a row. ordering: the column whose greater value wins, None for commit
    order. kind: what a write does to the files of the buckets that it touches, one of `KINDS`.
    """

    table: str
    table_schema: TableSchema
    key: tuple[int, ...]
    ordering: int | None
    index: BucketIndex
    kind: str = MERGE_ON_READ
    properties: dict[str, str] = {}

    @property
    def key_columns(self) -> list[Column]:
        return [self.table_schema.by_id(column_id) for column_id in self.key]

    @property
    def bucket_columns(self) -> list[Column]:
        """The columns that are hashed, in hashing order."""
        return [self.table_schema.by_id(column_id) for column_id in self.index.columns]

    @property
    def ordering_column(self) -> Column | None:
        return None if self.ordering is None else self.table_schema.by_id(self.ordering)

    @property
    def rewrites(self) -> bool:
        """Whether writes rewrite what they touch (copy-on-write) rather than append to it."""
        return self.kind == COPY_ON_WRITE

    def home(self, bucket: int) -> Home:
        """The home of a bucket at the table's own bucket count."""
        return Home("", bucket, self.index.count)


def make_spec(
    table: str, schema: TableSchema, *, key: Sequence[str], ordering: str | None, index: Bucket, kind: str, properties: Mapping[str, str]
) -> TableSpec:
    """A spec from what a user asked for, by name. Raises InvalidInput that names what would fit."""
    check_texts(properties, what="properties")
    check_names_listed(key, what="key")
    check_names_listed(index.columns, what="Bucket(columns)")
    if not key:
        raise InvalidInput("a table needs a key: give key=['column', ...]")
    if len(set(key)) != len(key):
        raise InvalidInput(f"the key {list(key)} names a column twice: name each once")
    if type(index.count) is not int or not 1 <= index.count <= BUCKETS_MAX:
        raise InvalidInput(f"Bucket(count={index.count!r}) is out of range: use a whole number from 1 to {BUCKETS_MAX}")
    hashed = list(key) if index.columns is None else list(index.columns)
    if not hashed or any(name not in key for name in hashed):
        raise InvalidInput(f"the bucket index hashes {hashed}, which must be key columns: use some of {list(key)}")
    if kind not in KINDS:
        raise InvalidInput(f"kind={kind!r} is not a kind of table of this version: {nearest(kind, KINDS)}")
    key_columns = [_named(schema, name) for name in key]
    for column in key_columns:
        if not isinstance(column.type, str):
            raise InvalidSchema(f"the key column {column.name!r} is nested: a key column holds one plain value")
    ordering_column = None if ordering is None else _named(schema, ordering)
    if ordering_column is not None and (not isinstance(ordering_column.type, str) or ordering_column.type in ("binary", "boolean")):
        raise InvalidSchema(
            f"the ordering column {ordering!r} has the type {ordering_column.type}: use a number, a date, a timestamp or a string"
        )
    return TableSpec(
        table=table,
        table_schema=schema,
        key=tuple(column.id for column in key_columns),
        ordering=None if ordering_column is None else ordering_column.id,
        index=BucketIndex(count=index.count, columns=tuple(_named(schema, name).id for name in hashed)),
        kind=kind,
        properties=dict(properties),
    )


def check_texts(given: Mapping[str, str], *, what: str) -> None:
    """Raises InvalidInput unless every key and value is text that UTF-8 holds: a log with anything else in it could not be read again."""
    for pair in given.items():
        for text in pair:
            if not isinstance(text, str):
                raise InvalidInput(f"{what} holds {pair!r}, of which {text!r} is not text: write str({text!r}); nothing was written")
            if not text.isascii() and text.encode("utf-8", "replace") != text.encode("utf-8", "surrogatepass"):
                raise InvalidInput(f"{what} holds {text!r}, which is not valid Unicode: mend that text; nothing was written")


def check_names_listed(given: Sequence[str] | None, *, what: str) -> None:
    """Raises InvalidInput when one name stands where a list of names is wanted: Python would take it for a list of letters."""
    if isinstance(given, str):
        raise InvalidInput(f"{what} is the text {given!r}: give a list of column names, [{given!r}]")


def _named(schema: TableSchema, name: str) -> Column:
    try:
        return schema.column(name)
    except KeyError:
        raise InvalidInput(f"the schema has no column {name!r}: {nearest(name, schema.names)}") from None
