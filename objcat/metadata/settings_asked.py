"""Settings of a table as a user would ask for them again."""

from __future__ import annotations

from objcat.metadata.table_spec import (
    BloomIndex,
    BloomIndexSpec,
    BucketIndex,
    BucketIndexSpec,
    Index,
    MemoryIndex,
    MemoryIndexSpec,
    NoIndex,
    RecordIndex,
    RecordIndexSpec,
    SimpleIndex,
    SimpleIndexSpec,
    TableSpec,
)


def ordering_asked(spec: TableSpec) -> str | list[str] | None:
    """The ordering of a table as a user would ask for it: one name, several, or None."""
    names = [column.name for column in spec.ordering_columns]
    return names if len(names) > 1 else names[0] if names else None


def index_asked(spec: TableSpec, count: int) -> Index | None:
    """The index of a table as a user would ask for it. None without a key. count: the current number of buckets."""
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
