"""`TableSpec`: the settings of a table: key, ordering, index, partition spec, table type, properties.

The index classes that users pass to `create_table` (`BucketIndex` and others) are here too, each with its stored form (`BucketIndexSpec`).
`make_spec` makes a spec from what a user asked for, and refuses what does not fit. `catalog.table_lifecycle` stores it in slot 0; every
reader and writer has it as `Snapshot.spec`. Columns are named by id, so renames change nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from fileio.options import nearest
from objcat.common.validation import name_list, text_mapping, whole_number
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.derived import Derived
from objcat.metadata.in_place import FilesInPlace
from objcat.metadata.ordering import Ordering, check_lateness, named, ordering_of
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
    check_index_plugin,
    check_names,
    check_properties,
    check_statistics,
    check_together,
    silenced,
)
from objcat.metadata.schema import Column, TableSchema
from objcat.metadata.watermark import Watermark
from objcat.timeline.entry import BUCKETS_MAX, Buckets, Count

MERGE_ON_READ: Final = "merge_on_read"
"""Writes add log rows. Readers merge them with the base files below."""
COPY_ON_WRITE: Final = "copy_on_write"
"""Writes merge with existing rows and rewrite the base files of the buckets that they touch. Readers merge nothing."""
UNFILTERED = ("float", "double", "boolean")
"""Types of key columns without bloom filters: equal floats may differ in bits, and booleans have only two values."""
TABLE_TYPES = (MERGE_ON_READ, COPY_ON_WRITE)
TABLE_SCOPE: Final = "table"
"""A key identifies one row of the table: every partition column is a key column, or keys are looked up in all partitions."""
PARTITION_SCOPE: Final = "partition"
"""A key identifies one row of its partition: the same key in another partition is another row."""
KEY_SCOPES = (TABLE_SCOPE, PARTITION_SCOPE)
BUCKET_BYTES = 1000**3
"""Upper limit of a bucket when its count is chosen. It holds at least half of it."""
ROW_BYTES = 100
"""Bytes of a row in a compressed file, when nothing better is known."""


class BucketIndex(msgspec.Struct, frozen=True):
    """The bucket index: a key is stored in bucket `pmod(hash(columns), count)`, with Spark's own hash.

    Args:
        count: File groups of a partition.
        columns: The key columns that are hashed. None: all of them.
    """

    count: int = 16
    columns: tuple[str, ...] | None = None

    @classmethod
    def for_size(
        cls, size_bytes: int | None = None, *, rows: int | None = None, row_bytes: int = ROW_BYTES, columns: tuple[str, ...] | None = None
    ) -> BucketIndex:
        """An index whose buckets will hold 512 MB to 1 GB each, for a given size of a partition. The count is a power of two.

        Give exactly one of `size_bytes` and `rows`.

        Args:
            size_bytes: Bytes of the files of a partition (compressed Parquet) when it is full-grown.
            rows: Rows of a partition when it is full-grown.
            row_bytes: Bytes of a row in a file. Measure it in a similar table.
            columns: The key columns that are hashed. None: all of them.

        Returns:
            The index.

        Raises:
            InvalidInput: None or both of the sizes are given, or one is no whole number.
        """
        if (size_bytes is None) == (rows is None):
            raise InvalidInput("BucketIndex.for_size() takes size_bytes or rows. Give exactly one of them.")
        if rows is not None:
            size_bytes = whole_number(rows, what="rows") * whole_number(row_bytes, what="row_bytes", least=1)
        total = whole_number(size_bytes, what="size_bytes")
        wanted = max(1, -(-total // BUCKET_BYTES))
        return cls(count=min(BUCKETS_MAX, 1 << (wanted - 1).bit_length()), columns=columns)


class SimpleIndex(msgspec.Struct, frozen=True):
    """The simple index: a key stays in the file group that it was inserted to.

    Every write reads the keys of the file groups that may hold its own keys. File groups grow to the property `target_file_bytes`, whatever
    a partition holds.
    """


class BloomIndex(msgspec.Struct, frozen=True):
    """The bloom index: as `SimpleIndex`, with bloom filters of the keys in base files.

    A write reads only the keys of row groups that may hold one of its own keys. Floats and booleans have no filter.
    """


class MemoryIndex(msgspec.Struct, frozen=True):
    """The memory index: as `SimpleIndex`, but the writer remembers the locations of keys.

    A key takes 12 bytes, up to the property `memory_index_bytes`. It works for writers in this process. Spark does not write such tables.
    """


class RecordIndex(msgspec.Struct, frozen=True):
    """The record index: as `SimpleIndex`, but the table stores the location of every key in index files.

    Each commit writes index files with its data. A write reads those that its own keys hash to, and no others, however large the table is.

    Args:
        buckets: Buckets of the index, over the whole table. A batch with more keys than that reads all of them.
    """

    buckets: int = 16


Index: TypeAlias = BucketIndex | SimpleIndex | BloomIndex | MemoryIndex | RecordIndex
"""An index as a user asks for it."""


class BucketIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="bucket"):
    """The stored form of `BucketIndex`. columns: ids, in hashing order."""

    count: Buckets
    columns: tuple[int, ...]


class SimpleIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="simple"):
    """The stored form of `SimpleIndex`. count: the most file groups of a partition, as in `NoIndex`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        """No columns are hashed."""
        return ()


class BloomIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="bloom"):
    """The stored form of `BloomIndex`. count: as in `SimpleIndexSpec`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        """No columns are hashed."""
        return ()


class MemoryIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """The stored form of `MemoryIndex`. count: as in `SimpleIndexSpec`."""

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        """No columns are hashed."""
        return ()


class RecordIndexSpec(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """The stored form of `RecordIndex`. buckets: of its own files. count: as in `SimpleIndexSpec`."""

    buckets: Buckets
    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        """No columns are hashed."""
        return ()


class NoIndex(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """The index of a table without a key.

    A row may be in any of `count` file groups of its partition, so inserts find free ones.
    """

    count: Buckets = BUCKETS_MAX

    @property
    def columns(self) -> tuple[int, ...]:
        """No columns are hashed."""
        return ()


IndexSpec: TypeAlias = BucketIndexSpec | SimpleIndexSpec | BloomIndexSpec | MemoryIndexSpec | RecordIndexSpec | NoIndex
"""The stored form of an index."""


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The stored settings of a table. Columns are given by id, so a rename changes nothing here.

    Args:
        table: The table's id.
        key: The columns whose values identify a row. Empty in an append-only table.
        ordering: The column whose greater value wins. None: commit order.
        ordering_more: The columns that decide next among equal values, in order. Only with the feature `ordering_columns`.
        table_type: What a write does to the files of the buckets that it touches, one of `TABLE_TYPES`.
        lateness_ms: Rows count for nothing when their ordering value is further before the commit time of their own slot. None: all count.
        key_scope: Where a key is unique, one of `KEY_SCOPES`.
        partitioning: The partition spec of new rows.
        former: Previous partition specs that still have rows, the oldest first.
        properties: Settings and notes as text.
        watermark: No change with a smaller ordering value comes any more.
        in_place: Where its files are and how they are read. None: they are its own. Only with the feature `files_in_place`.
        derived: The query whose result it is. Only with the writer feature `derived_tables`.
    """

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
    watermark: Watermark | msgspec.UnsetType | None = msgspec.UNSET
    ordering_more: tuple[int, ...] | msgspec.UnsetType | None = msgspec.UNSET
    in_place: FilesInPlace | msgspec.UnsetType | None = msgspec.UNSET
    derived: Derived | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def is_in_place(self) -> bool:
        """Whether the files of the table are not its own: other programs write them, and nobody writes rows."""
        return isinstance(self.in_place, FilesInPlace) and not self.in_place.promoted

    def check_own_files(self, doing: str) -> None:
        """Raises InvalidInput for a table in place. doing: what its own files are needed for."""
        if self.is_in_place:
            raise InvalidInput(
                f"The files of this table are in place, so it cannot {doing}: other programs write them. Nothing was written. Let them "
                "write files and call table.refresh_files(), delete rows by table.delete('...'), or copy the rows to a table of its own."
            )

    @property
    def key_columns(self) -> list[Column]:
        """The columns of the key."""
        return [self.table_schema.by_id(column_id) for column_id in self.key]

    @property
    def bucket_columns(self) -> list[Column]:
        """The columns that are hashed, in hashing order."""
        return [self.table_schema.by_id(column_id) for column_id in self.index.columns]

    @property
    def ordering_column(self) -> Column | None:
        """The first ordering column, if there is one."""
        return None if self.ordering is None else self.table_schema.by_id(self.ordering)

    @property
    def ordering_ids(self) -> tuple[int, ...]:
        """Ids of the ordering columns, in the order in which they decide. Empty: the later commit wins."""
        return () if self.ordering is None else (self.ordering, *(self.ordering_more or ()))

    @property
    def ordering_columns(self) -> list[Column]:
        """The ordering columns, in the order in which they decide."""
        return [self.table_schema.by_id(column_id) for column_id in self.ordering_ids]

    @property
    def ordering_physical(self) -> tuple[str, ...]:
        """Physical names of the ordering columns, as `objcat.datafile.merge` takes them."""
        return tuple(column.physical for column in self.ordering_columns)

    @property
    def partition_columns(self) -> list[Column]:
        """The columns of the current and the previous partition specs, in schema order."""
        ids = {field.column for partitioning in (self.partitioning, *self.former) for field in partitioning.fields}
        return [column for column in self.table_schema.columns if column.id in ids]

    @property
    def bounded(self) -> frozenset[int]:
        """Ids of the columns whose bounds every file has."""
        return frozenset((*self.key, *self.ordering_ids, *(column.id for column in self.partition_columns)))

    @property
    def filtered(self) -> frozenset[int]:
        """Ids of the columns for which base files have bloom filters."""
        if not isinstance(self.index, BloomIndexSpec):
            return frozenset()
        return frozenset(column.id for column in self.key_columns if column.type not in UNFILTERED) - self.statistics.never

    @property
    def statistics(self) -> Statistics:
        """The columns whose least and greatest values files hold."""
        silent = silenced(self.properties)
        never = frozenset(column.id for column in self.table_schema.columns if column.name in silent)
        return Statistics(always=self.bounded - never, never=never)

    @property
    def has_key(self) -> bool:
        """Whether rows have a key. A table without one is append-only."""
        return bool(self.key)

    @property
    def is_located(self) -> bool:
        """Whether a write looks up the file group of a key. The bucket index computes it instead."""
        return not isinstance(self.index, (BucketIndexSpec, NoIndex))

    @property
    def has_free_groups(self) -> bool:
        """Whether a row may be in any file group of its partition."""
        return not isinstance(self.index, BucketIndexSpec)

    @property
    def is_global(self) -> bool:
        """Whether keys are looked up in all partitions, since a key does not determine its partition. Rows may move between partitions."""
        return self.is_located and self.key_scope == TABLE_SCOPE and any(column.id not in self.key for column in self.partition_columns)

    @property
    def rewrites(self) -> bool:
        """Whether writes rewrite what they touch (copy-on-write) instead of appending to it."""
        return self.table_type == COPY_ON_WRITE

    @property
    def schema_mode(self) -> SchemaMode:
        """What a write may do to the schema, unless it says otherwise."""
        return SchemaMode(self.properties.get(SCHEMA_MODE, SchemaMode.STRICT))

    @property
    def target_file_bytes(self) -> int:
        """Target size of files when rows may be in any file."""
        return int(self.properties.get(TARGET_FILE_BYTES, TARGET_FILE_BYTES_DEFAULT))

    @property
    def target_log_bytes(self) -> int | None:
        """Bytes of Arrow rows for about one log file. None when the table does not set it."""
        said = self.properties.get(TARGET_LOG_BYTES)
        return None if said is None else int(said)

    @property
    def memory_index_bytes(self) -> int:
        """Bytes that a writer may use to remember locations of keys."""
        return int(self.properties.get(MEMORY_INDEX_BYTES, MEMORY_INDEX_BYTES_DEFAULT))

    def partition_of(self, rows: pa.Table, live: Collection[str] = ()) -> Partitioned:
        """The partition of every row.

        Args:
            rows: Under physical names.
            live: Partitions of previous partition specs that have a file group.
        """
        return partitions_of(self.partitioning, self.former, live, self.table_schema, rows)

    def is_former(self, partition: str) -> bool:
        """Whether a partition belongs to a previous partition spec."""
        return shape_of(partition) in {partitioning.shape for partitioning in self.former}


def make_spec(  # noqa: PLR0913 - one for each setting that a table has
    table: str,
    schema: TableSchema,
    *,
    key: Sequence[str] | None,
    ordering: Ordering | None,
    index: Index | None,
    table_type: str,
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
    key_scope: str = TABLE_SCOPE,
    lateness_ms: int | None = None,
) -> TableSpec:
    """A spec from what a user asked for, by name. Raises InvalidInput and InvalidSchema that name what would fit."""
    properties = text_mapping(properties, what="properties")
    check_names(properties)
    check_properties(properties)
    check_together(properties)
    check_index_plugin(properties, reads_files=key is not None and isinstance(index, (SimpleIndex, BloomIndex)))
    check_statistics(properties, schema.names)
    if table_type not in TABLE_TYPES:
        raise InvalidInput(f"table_type={table_type!r} is not a table type of this version ({nearest(table_type, TABLE_TYPES)}).")
    if key_scope not in KEY_SCOPES:
        raise InvalidInput(f"key_scope={key_scope!r} is not known to this version ({nearest(str(key_scope), KEY_SCOPES)}).")
    partitioning = parse_partitioning(partition_by, schema)
    if lateness_ms is not None:
        check_lateness(ordering_of(schema, ordering))
        if table_type != MERGE_ON_READ:
            raise InvalidInput(
                f"allowed_lateness is for tables of table_type={MERGE_ON_READ!r}. A {table_type} write merges rows before it knows the "
                "commit time that measures them. Leave allowed_lateness out, or choose the other table type."
            )
    if key is None:
        _check_without_key(ordering, index)
        return TableSpec(
            table=table,
            table_schema=schema,
            index=NoIndex(),
            table_type=table_type,
            partitioning=partitioning,
            properties=dict(properties),
        )
    key = name_list(key, what="key")
    if not key:
        raise InvalidInput("A table needs a key. Give key=['column', ...], or key=None for a table that is append-only.")
    if len(set(key)) != len(key):
        raise InvalidInput(f"The key {list(key)} names a column twice. Name each once.")
    stored = (
        _bucketed(schema, index or BucketIndex(), key) if index is None or isinstance(index, BucketIndex) else _located(index, lateness_ms)
    )
    key_columns = [named(schema, name) for name in key]
    for column in key_columns:
        if not isinstance(column.type, str):
            raise InvalidSchema(f"The key column {column.name!r} is nested. Use columns of plain values as the key.")
    ordering_columns = ordering_of(schema, ordering)
    more = tuple(column.id for column in ordering_columns[1:])
    spec = TableSpec(
        table=table,
        table_schema=schema,
        key=tuple(column.id for column in key_columns),
        ordering=ordering_columns[0].id if ordering_columns else None,
        ordering_more=more or msgspec.UNSET,
        index=stored,
        table_type=table_type,
        lateness_ms=lateness_ms,
        key_scope=key_scope,
        partitioning=partitioning,
        properties=dict(properties),
    )
    check_key_scope(spec)
    return spec


def _bucketed(schema: TableSchema, index: BucketIndex, key: Sequence[str]) -> BucketIndexSpec:
    hashed = key if index.columns is None else name_list(index.columns, what="BucketIndex(columns)")
    if type(index.count) is not int or not 1 <= index.count <= BUCKETS_MAX:
        raise InvalidInput(f"BucketIndex(count={index.count!r}) is out of range. Use a whole number from 1 to {BUCKETS_MAX}.")
    if not hashed or any(name not in key for name in hashed):
        raise InvalidInput(f"The bucket index hashes {hashed}, but it can only hash key columns. Use some of {list(key)}.")
    return BucketIndexSpec(count=index.count, columns=tuple(named(schema, name).id for name in hashed))


def _located(
    index: SimpleIndex | BloomIndex | MemoryIndex | RecordIndex, lateness_ms: int | None
) -> SimpleIndexSpec | BloomIndexSpec | MemoryIndexSpec | RecordIndexSpec:
    if lateness_ms is not None:
        raise InvalidInput(
            "allowed_lateness is for tables with the bucket index. Under the other indexes new rows go to base files, where rows are never "
            "late. Leave allowed_lateness out, or choose index=objcat.BucketIndex(...)."
        )
    if isinstance(index, RecordIndex):
        if type(index.buckets) is not int or not 1 <= index.buckets <= BUCKETS_MAX:
            raise InvalidInput(f"RecordIndex(buckets={index.buckets!r}) is out of range. Use a whole number from 1 to {BUCKETS_MAX}.")
        return RecordIndexSpec(buckets=index.buckets)
    if isinstance(index, MemoryIndex):
        return MemoryIndexSpec()
    return BloomIndexSpec() if isinstance(index, BloomIndex) else SimpleIndexSpec()


def check_key_scope(spec: TableSpec) -> None:
    """Check that equal keys cannot be in two partitions of a table whose keys are unique. Raises InvalidInput."""
    if not spec.has_key or spec.is_located or spec.key_scope == PARTITION_SCOPE:
        return
    for field in spec.partitioning.fields:
        if field.column not in spec.key:
            name = spec.table_schema.by_id(field.column).name
            raise InvalidInput(
                f"The partition column {name!r} is not in the key {[column.name for column in spec.key_columns]}, so one key could be in "
                "several partitions. Add it to the key. Or give key_scope='partition': then a key is unique in its partition only. Or "
                "choose an index that looks up keys in all partitions, index=objcat.SimpleIndex()."
            )


def _check_without_key(ordering: Ordering | None, index: Index | None) -> None:
    if ordering is not None:
        raise InvalidInput(
            f"ordering={ordering!r} decides which row of a key wins, but the table has no key. Leave ordering out, or give a key."
        )
    if index is not None:
        raise InvalidInput("An index finds the location of a key, but the table has no key. Leave index out, or give a key.")
