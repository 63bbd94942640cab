"""Columns of a table of another lake: as a table of a source, and what became of them since they were read last."""

from __future__ import annotations

from objcat.ingest.lake_tables.progress import FollowedTable
from objcat.ingest.model import SourceColumn, SourceTable
from objcat.ingest.routes import Router
from objcat.metadata.schema import TableSchema
from objcat.table.reader import TableReader

PARTITION = "partition"


def describe(table: TableReader, router: Router) -> SourceTable:
    """A table as its source describes it."""
    key = tuple(table.key or router.key_of(table.name))
    problem = None
    if table.key and table.key_scope == PARTITION and not router.key_of(table.name):
        problem = (
            f"The key of {table.name} is unique within a partition alone. Name the columns that identify a row, with those of the "
            "partition, by `key` in its route."
        )
    if table.key and table.key_scope == PARTITION:
        key = router.key_of(table.name) or key
    return source_table(table.name, table.spec.table_schema, key, problem)


def source_table(name: str, schema: TableSchema, key: tuple[str, ...], problem: str | None = None) -> SourceTable:
    """A table of the source with the columns of a schema."""
    return SourceTable(
        name=name,
        columns=tuple(SourceColumn(name=field.name, type=field.type, nullable=field.name not in key) for field in schema.to_arrow()),
        key=key,
        problem=problem,
        version={str(column.id): [column.name, str(field.type)] for column, field in zip(schema.columns, schema.to_arrow(), strict=True)},
    )


def has_to_be_read(schema: TableSchema, followed: FollowedTable) -> bool:
    """Whether rows that did not change read otherwise under a newer schema, so that the table has to be read again.

    A column that was renamed does, one that joined with a default, one that has the name of another one before it, and one that is back
    after a RESTORE.

    Args:
        schema: the newer one.
        followed: the table, with its columns as they were.
    """
    before = followed.columns
    taken = {name: column_id for column_id, name in before.items()}
    for column in schema.columns:
        own = str(column.id)
        if own in followed.dropped or (own in before and before[own] != column.name):
            return True
        if own not in before and (column.has_default or column.name in taken):
            return True
    return False


def note_columns(schema: TableSchema, followed: FollowedTable) -> None:
    """Take note of the columns that a table has now."""
    now = {str(column.id): column.name for column in schema.columns}
    followed.columns = {**followed.columns, **now}
    followed.dropped = [own for own in followed.columns if own not in now]
