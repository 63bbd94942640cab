"""The record index: a table inside a table that maps every key to its file group.

It has the files of any table with the bucket index, and one row for each key of a partition. The entries that change the table change it
too, so at every slot it matches the rows of that slot. Only writers read it. All its file groups are in one partition, whose text no
partition of rows can have.
"""

from __future__ import annotations

from functools import lru_cache

from objcat.metadata.partitioning import Partitioning
from objcat.metadata.properties import STATISTICS
from objcat.metadata.schema import Column, TableSchema
from objcat.metadata.table_spec import MERGE_ON_READ, BucketIndexSpec, RecordIndexSpec, TableSpec
from objcat.timeline.entry import FileGroupId

INDEX_PARTITION = "_index"
"""The partition of an index. Other partitions have a name and `=` after it, and a name never begins with `_`."""
PARTITION_FIELD, BUCKET_FIELD = "_objcat_home_partition", "_objcat_home_bucket"
"""The columns that name the file group of a key."""


def is_of_index(group_id: FileGroupId) -> bool:
    """Whether a file group is one of an index."""
    return group_id.partition == INDEX_PARTITION


def index_spec(spec: TableSpec) -> TableSpec | None:
    """The settings of a table's record index, as a table. None if it has no record index.

    Its columns are the key columns, under physical names and with ids of their own, and the columns that name a file group. A row is
    identified by key and partition, and hashed by the key alone.
    """
    if not isinstance(spec.index, RecordIndexSpec):
        return None
    key = tuple((column.physical, str(column.type)) for column in spec.key_columns)
    never = spec.statistics.never
    silent = tuple(column.physical for column in spec.key_columns if column.id in never)
    return _index_spec(spec.table, key, spec.index.buckets, silent)


@lru_cache(maxsize=256)
def _index_spec(table: str, key: tuple[tuple[str, str], ...], buckets: int, silent: tuple[str, ...]) -> TableSpec:
    names = [*key, (PARTITION_FIELD, "string"), (BUCKET_FIELD, "int")]
    columns = tuple(Column(id=i, name=name, physical=name, type=kind, nullable=False) for i, (name, kind) in enumerate(names, 1))
    ids = tuple(range(1, len(key) + 1))
    return TableSpec(
        table=table,
        table_schema=TableSchema(columns=columns, last_id=len(columns)),
        key=(*ids, len(key) + 1),
        ordering=None,
        index=BucketIndexSpec(count=buckets, columns=ids),
        table_type=MERGE_ON_READ,
        partitioning=Partitioning(mark=INDEX_PARTITION),
        properties={f"{STATISTICS}{name}": "none" for name in silent},
    )


def group_id_of(spec: TableSpec, bucket: int) -> FileGroupId:
    """A file group id of an index that was not split. spec: as `index_spec` returns it."""
    return FileGroupId(INDEX_PARTITION, bucket, spec.index.count)


__all__ = ["BUCKET_FIELD", "INDEX_PARTITION", "PARTITION_FIELD", "group_id_of", "index_spec", "is_of_index"]
