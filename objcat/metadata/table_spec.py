"""The settings that a table is created with: key, ordering, index, partitioning, kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from fileio.options import nearest
from objcat.common.validation import name_list, text_mapping, whole_number
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.partition_values import Partitioned, partitions_of
from objcat.metadata.partitioning import UNPARTITIONED, Partitioning, parse_partitioning, shape_of
from objcat.metadata.properties import (
    MEMORY_INDEX_BYTES,
    MEMORY_INDEX_BYTES_DEFAULT,
    SCHEMA_MODE,
    TARGET_FILE_BYTES,
    TARGET_FILE_BYTES_DEFAULT,
    TARGET_LOG_BYTES,
    SchemaMode,
    Statistics,
    check_names,
    check_properties,
    check_statistics,
    check_together,
    silenced,
)
from objcat.metadata.schema import Column, TableSchema
from objcat.timeline.entry import BUCKETS_MAX, Buckets, Count

MERGE_ON_READ: Final = "merge_on_read"
"""Writes add log rows, which readers merge with the base files below them."""
COPY_ON_WRITE: Final = "copy_on_write"
"""Writes merge with what is there and rewrite the base files of the buckets that they touch; readers merge nothing."""
TIMES = ("timestamp", "timestamp_ntz", "date")
"""Types of ordering columns that a lateness can be measured by."""
UNFILTERED = ("float", "double", "boolean")
"""Types of key columns without bloom filters: equal floats may differ in their bits, and of booleans there are two."""
TABLE_TYPES = (MERGE_ON_READ, COPY_ON_WRITE)
TABLE_SCOPE: Final = "table"
"""A key identifies one row of the table: every partition column is a key column, or keys are looked up in all partitions."""
PARTITION_SCOPE: Final = "partition"
"""A key identifies one row of its partition: the same key with another value of a partition column is another row."""
KEY_SCOPES = (TABLE_SCOPE, PARTITION_SCOPE)
BUCKET_BYTES = 1000**3
"""What a bucket shall hold at most when its count is chosen; it holds at least half of it."""
ROW_BYTES = 100
"""Of a row in a compressed file, where nothing better is known."""


class BucketIndex(msgspec.Struct, frozen=True):
    """The bucket index as a user asks for it: a key lives in bucket `pmod(hash(columns), count)`, with Spark's own hash.

    count: file groups of a partition. columns: the key columns that are hashed, all of them when None.
    """

    count: int = 16
    columns: tuple[str, ...] | None = None

    @classmethod
    def for_size(
        cls, size_bytes: int | None = None, *, rows: int | None = None, row_bytes: int = ROW_BYTES, columns: tuple[str, ...] | None = None
    ) -> BucketIndex:
        """An index whose buckets come to hold between 512 MB and 1 GB, when a partition holds that much; the count is a power of two.

        size_bytes: of the files of a partition (Parquet, compressed), as far as it will grow. rows: how many it will hold, when its bytes
        are not known. row_bytes: of a row in a file; measure it in a table like it. Raises InvalidInput.
        """
        if (size_bytes is None) == (rows is None):
            raise InvalidInput("BucketIndex.for_size() takes size_bytes or rows: give exactly one of them")
        if rows is not None:
            size_bytes = whole_number(rows, what="rows") * whole_number(row_bytes, what="row_bytes", least=1)
        total = whole_number(size_bytes, what="size_bytes")
        wanted = max(1, -(-total // BUCKET_BYTES))
        return cls(count=min(BUCKETS_MAX, 1 << (wanted - 1).bit_length()), columns=columns)


class SimpleIndex(msgspec.Struct, frozen=True):
    """The simple index as a user asks for it: a key lives in whatever file group it was inserted to, and every write reads the keys of the
    file groups that may hold its own. File groups grow to the property `target_file_bytes`, whatever a partition holds."""


class BloomIndex(msgspec.Struct, frozen=True):
    """The bloom index as a user asks for it: as `SimpleIndex`, but base files hold bloom filters of their keys, and a write reads the keys
    of those row groups only in which one of its own may lie. Floats and booleans have no filter."""


class MemoryIndex(msgspec.Struct, frozen=True):
    """The memory index as a user asks for it: as `SimpleIndex`, but whoever writes remembers where keys live, in 12 bytes for each, as far
    as the property `memory_index_bytes` allows. For writers in this process; Spark does not write such tables."""


class RecordIndex(msgspec.Struct, frozen=True):
    """The record index as a user asks for it: as `SimpleIndex`, but the table says of every key where it lives, in index files that each
    commit writes with its data. A write reads those that its own keys hash to, and no others, however large the table is.

    buckets: of the index, over the whole table; a batch of more keys than that reads all of them.
    """

    buckets: int = 16


Index: TypeAlias = BucketIndex | SimpleIndex | BloomIndex | MemoryIndex | RecordIndex
"""An index as a user asks for it."""


class BucketIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="bucket"):
    """The bucket index as a table keeps it. columns: ids, in hashing order."""

    count: Buckets
    columns: tuple[int, ...]


class SimpleIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="simple"):
    """The simple index as a table keeps it. count: of file groups that a partition can have, as of `NoIndex`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        return ()


class BloomIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="bloom"):
    """The bloom index as a table keeps it. count: as of `SimpleIndexSpec`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        return ()


class MemoryIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """The memory index as a table keeps it. count: as of `SimpleIndexSpec`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        return ()


class RecordIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """The record index as a table keeps it. buckets: of its own files. count: as of `SimpleIndexSpec`."""

    buckets: Buckets
    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        return ()


class NoIndex(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """Of a table without a key: a row may live in any of `count` file groups of its partition, so that each insert finds free ones."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        return ()


IndexSpec: TypeAlias = BucketIndexSpec | SimpleIndexSpec | BloomIndexSpec | MemoryIndexSpec | RecordIndexSpec | NoIndex
"""An index as a table keeps it."""


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What slot 0 of a table says. Columns are meant by id, so that a rename changes nothing here.

    table: the table's id. key: the columns whose values identify a row; none in a table that only grows. ordering: the column whose greater
    value wins, None for commit order. table_type: what a write does to the files of the buckets that it touches, one of `TABLE_TYPES`.
    lateness_ms: rows whose ordering value lies further before the commit time of their own slot count for nothing; None: all count.
    key_scope: within what a key is unique, one of `KEY_SCOPES`. partitioning: where new rows go. former: earlier partitionings under which
    rows still live, the oldest first."""

    table: str
    table_schema: TableSchema
    key: tuple[int, ...] = ()
    ordering: int | None = None
    index: IndexSpec
    table_type: str = msgspec.field(name="kind", default=MERGE_ON_READ)
    lateness_ms: Count | None = None
    key_scope: str = TABLE_SCOPE
    partitioning: Partitioning = UNPARTITIONED
    former: tuple[Partitioning, ...] = ()
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
    def partition_columns(self) -> list[Column]:
        """The columns that partitions are made of, in the order of the schema; those of former partitionings too."""
        ids = {field.column for partitioning in (self.partitioning, *self.former) for field in partitioning.fields}
        return [column for column in self.table_schema.columns if column.id in ids]

    @property
    def bounded(self) -> frozenset[int]:
        """Ids of the columns of which files always know the bounds."""
        ordering = () if self.ordering is None else (self.ordering,)
        return frozenset((*self.key, *ordering, *(column.id for column in self.partition_columns)))

    @property
    def filtered(self) -> frozenset[int]:
        """Ids of the columns of which base files have bloom filters."""
        if not isinstance(self.index, BloomIndexSpec):
            return frozenset()
        return frozenset(column.id for column in self.key_columns if column.type not in UNFILTERED) - self.statistics.never

    @property
    def statistics(self) -> Statistics:
        """Of which columns files say the least and greatest values."""
        silent = silenced(self.properties)
        never = frozenset(column.id for column in self.table_schema.columns if column.name in silent)
        return Statistics(always=self.bounded - never, never=never)

    @property
    def is_keyless(self) -> bool:
        """Whether rows have no key: then the table keeps all of them, and only grows."""
        return not self.key

    @property
    def is_located(self) -> bool:
        """Whether a key lives in whatever file group took it: then a write looks it up, where the bucket index computes its file group."""
        return not isinstance(self.index, (BucketIndexSpec, NoIndex))

    @property
    def has_free_groups(self) -> bool:
        """Whether a row may lie in any file group of its partition."""
        return not isinstance(self.index, BucketIndexSpec)

    @property
    def is_global(self) -> bool:
        """Whether keys are looked up in all partitions, since the key does not say in which one it lives: rows may move between them."""
        return self.is_located and self.key_scope == TABLE_SCOPE and any(column.id not in self.key for column in self.partition_columns)

    @property
    def rewrites(self) -> bool:
        """Whether writes rewrite what they touch (copy-on-write) rather than append to it."""
        return self.table_type == COPY_ON_WRITE

    @property
    def schema_mode(self) -> SchemaMode:
        """What writes that do not say it themselves may do to the schema."""
        return SchemaMode(self.properties.get(SCHEMA_MODE, SchemaMode.STRICT))

    @property
    def target_file_bytes(self) -> int:
        """How large files shall become where rows may lie in any."""
        return int(self.properties.get(TARGET_FILE_BYTES, TARGET_FILE_BYTES_DEFAULT))

    @property
    def target_log_bytes(self) -> int | None:
        """How many bytes of rows, as Arrow holds them, become one log file, about; None where the table does not say it."""
        said = self.properties.get(TARGET_LOG_BYTES)
        return None if said is None else int(said)

    @property
    def memory_index_bytes(self) -> int:
        """What a writer may remember of where keys live."""
        return int(self.properties.get(MEMORY_INDEX_BYTES, MEMORY_INDEX_BYTES_DEFAULT))

    def partition_of(self, rows: pa.Table, live: Collection[str] = ()) -> Partitioned:
        """The partition of every row. rows: under physical names. live: partitions of former partitionings that have a file group."""
        return partitions_of(self.partitioning, self.former, live, self.table_schema, rows)

    def is_former(self, partition: str) -> bool:
        """Whether a partition is of a former partitioning."""
        return shape_of(partition) in {partitioning.shape for partitioning in self.former}


def make_spec(  # noqa: PLR0913 - one for each setting that a table has
    table: str,
    schema: TableSchema,
    *,
    key: Sequence[str] | None,
    ordering: str | None,
    index: Index | None,
    table_type: str,
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
    key_scope: str = TABLE_SCOPE,
    lateness_ms: int | None = None,
) -> TableSpec:
    """A spec from what a user asked for, by name. Raises InvalidInput that names what would fit."""
    properties = text_mapping(properties, what="properties")
    check_names(properties)
    check_properties(properties)
    check_together(properties)
    check_statistics(properties, schema.names)
    if table_type not in TABLE_TYPES:
        raise InvalidInput(f"table_type={table_type!r} is not a table type of this version: {nearest(table_type, TABLE_TYPES)}")
    if key_scope not in KEY_SCOPES:
        raise InvalidInput(f"key_scope={key_scope!r} is not known to this version: {nearest(str(key_scope), KEY_SCOPES)}")
    partitioning = parse_partitioning(partition_by, schema)
    if lateness_ms is not None:
        _check_lateness(schema, ordering, table_type)
    if key is None:
        _check_keyless(ordering, index)
        return TableSpec(
            table=table,
            table_schema=schema,
            key=(),
            ordering=None,
            index=NoIndex(),
            table_type=table_type,
            partitioning=partitioning,
            properties=dict(properties),
        )
    key = name_list(key, what="key")
    if not key:
        raise InvalidInput("a table needs a key: give key=['column', ...], or key=None where it shall only grow and keep every row")
    if len(set(key)) != len(key):
        raise InvalidInput(f"the key {list(key)} names a column twice: name each once")
    kept = (
        _bucketed(schema, index or BucketIndex(), key) if index is None or isinstance(index, BucketIndex) else _located(index, lateness_ms)
    )
    key_columns = [_named(schema, name) for name in key]
    for column in key_columns:
        if not isinstance(column.type, str):
            raise InvalidSchema(f"the key column {column.name!r} is nested: a key column holds one plain value")
    ordering_column = None if ordering is None else _named(schema, ordering)
    if ordering_column is not None and (not isinstance(ordering_column.type, str) or ordering_column.type in ("binary", "boolean")):
        raise InvalidSchema(
            f"the ordering column {ordering!r} has the type {ordering_column.type}: use a number, a date, a timestamp or a string"
        )
    spec = TableSpec(
        table=table,
        table_schema=schema,
        key=tuple(column.id for column in key_columns),
        ordering=None if ordering_column is None else ordering_column.id,
        index=kept,
        table_type=table_type,
        lateness_ms=lateness_ms,
        key_scope=key_scope,
        partitioning=partitioning,
        properties=dict(properties),
    )
    check_key_scope(spec)
    return spec


def index_asked(spec: TableSpec, count: int) -> Index | None:
    """The index of a table as a user asks for it; None without a key. count: of buckets, as of now."""
    match spec.index:
        case BucketIndexSpec(columns=columns):
            names = tuple(column.name for column in spec.bucket_columns)
            return BucketIndex(count, None if columns == spec.key else names)
        case SimpleIndexSpec():
            return SimpleIndex()
        case BloomIndexSpec():
            return BloomIndex()
        case MemoryIndexSpec():
            return MemoryIndex()
        case RecordIndexSpec(buckets=buckets):
            return RecordIndex(buckets)
        case NoIndex():
            return None


def _bucketed(schema: TableSchema, index: BucketIndex, key: Sequence[str]) -> BucketIndexSpec:
    hashed = key if index.columns is None else name_list(index.columns, what="BucketIndex(columns)")
    if type(index.count) is not int or not 1 <= index.count <= BUCKETS_MAX:
        raise InvalidInput(f"BucketIndex(count={index.count!r}) is out of range: use a whole number from 1 to {BUCKETS_MAX}")
    if not hashed or any(name not in key for name in hashed):
        raise InvalidInput(f"the bucket index hashes {hashed}, which must be key columns: use some of {list(key)}")
    return BucketIndexSpec(count=index.count, columns=tuple(_named(schema, name).id for name in hashed))


def _located(
    index: SimpleIndex | BloomIndex | MemoryIndex | RecordIndex, lateness_ms: int | None
) -> SimpleIndexSpec | BloomIndexSpec | MemoryIndexSpec | RecordIndexSpec:
    if lateness_ms is not None:
        raise InvalidInput(
            "allowed_lateness is for tables with the bucket index: under the others new rows go to base files, whose rows are never late; "
            "leave allowed_lateness out, or choose index=objcat.BucketIndex(...)"
        )
    if isinstance(index, RecordIndex):
        if type(index.buckets) is not int or not 1 <= index.buckets <= BUCKETS_MAX:
            raise InvalidInput(f"RecordIndex(buckets={index.buckets!r}) is out of range: use a whole number from 1 to {BUCKETS_MAX}")
        return RecordIndexSpec(buckets=index.buckets)
    if isinstance(index, MemoryIndex):
        return MemoryIndexSpec()
    return BloomIndexSpec() if isinstance(index, BloomIndex) else SimpleIndexSpec()


def check_key_scope(spec: TableSpec) -> None:
    """Raises InvalidInput when equal keys could lie in two partitions of a table whose keys are unique."""
    if spec.is_keyless or spec.is_located or spec.key_scope == PARTITION_SCOPE:
        return
    for field in spec.partitioning.fields:
        if field.column not in spec.key:
            name = spec.table_schema.by_id(field.column).name
            raise InvalidInput(
                f"the partition column {name!r} is not in the key {[column.name for column in spec.key_columns]}, so one key could lie in "
                "several partitions: add it to the key; or say key_scope='partition', where a key is unique in its partition only; or "
                "choose an index that looks keys up wherever they are, index=objcat.SimpleIndex()"
            )


def _check_lateness(schema: TableSchema, ordering: str | None, table_type: str) -> None:
    if ordering is None:
        raise InvalidInput(
            "allowed_lateness measures the ordering column, and the table has none: give ordering='column', or leave allowed_lateness out"
        )
    found = _named(schema, ordering).type
    if found not in TIMES:
        raise InvalidInput(
            f"allowed_lateness measures times, but the ordering column {ordering!r} is {found}: order by a timestamp or a date"
        )
    if table_type != MERGE_ON_READ:
        raise InvalidInput(
            f"allowed_lateness is for tables of table_type={MERGE_ON_READ!r}: a {table_type} write merges rows before it knows the commit "
            "time by which they are measured; leave allowed_lateness out, or choose the other table type"
        )


def _check_keyless(ordering: str | None, index: Index | None) -> None:
    if ordering is not None:
        raise InvalidInput(f"ordering={ordering!r} says which row of a key wins, but the table has no key: leave it out, or give a key")
    if index is not None:
        raise InvalidInput("an index says where a key lives, but the table has no key: leave index out, or give a key")


def _named(schema: TableSchema, name: str) -> Column:
    try:
        return schema.column(name)
    except KeyError:
        raise InvalidInput(f"the schema has no column {name!r}: {nearest(name, schema.names)}") from None
