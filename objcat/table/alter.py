"""`TableAlterer`: changes of columns and of the partition spec, as `table.alter` has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from objcat.catalog.table_lifecycle import change_partitioning, change_schema
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import instances
from objcat.metadata.schema_evolution import (
    KINDS_OF_CHANGE,
    AddColumn,
    ColumnChange,
    DropColumn,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    WidenColumn,
)
from objcat.table.context import TableContext


@reports_full_memory
class TableAlterer:
    """Changes of the columns and the partition spec of one table: what `table.alter` is. Each is one commit that touches no file.

    Safe for many threads, and beside writers.
    """

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"TableAlterer({self._context.name!r} at {self._context.fileio.url!r})"

    def apply(self, changes: Iterable[ColumnChange]) -> None:
        """Change columns, one change after the other, as one commit that touches no file.

        changes: `objcat.AddColumn`, `DropColumn`, `RenameColumn`, `MoveColumn`, `WidenColumn` and `DropNotNull`. A column or a field of a
        struct is named by its path: `city`, `place.x`; inside of lists and maps `stops.element.x`, `tags.value.x`; a name with a dot in it
        in backticks. Running writers go on. Older snapshots keep their schema. Raises InvalidSchema and InvalidInput that say what would
        fit (nothing was changed), TableClosed, Contention, WriterFenced, CommitUnknown.
        """
        given = instances(changes, ColumnChange, what="changes", such_as=f"a list of {KINDS_OF_CHANGE}")
        self._context.refresh()
        self._context.latest.set_if_newer(change_schema(self._context.timeline, self._context.view, self._context.id, given))

    def add_column(self, path: str, data_type: pa.DataType | str, *, after: str | None = None, first: bool = False) -> None:
        """Add a column, or a field of a struct, which is null in all rows that are there.

        data_type: an Arrow type, or a name such as `bigint` or `decimal(10,2)`. after: the neighbour that it comes after; first: before all
        of them; else it comes last. Raises as `apply`.
        """
        self.apply([AddColumn(path, data_type, after=after, first=first)])

    def drop_column(self, path: str) -> None:
        """Drop a column, or a field of a struct; one of its name that is added later has none of its values. Raises as `apply`, and for
        columns by which rows are found or ordered."""
        self.apply([DropColumn(path)])

    def rename_column(self, path: str, name: str) -> None:
        """Give a column, or a field of a struct, another name. name: the new one, without the structs around it. Raises as `apply`."""
        self.apply([RenameColumn(path, name)])

    def move_column(self, path: str, *, after: str | None = None, first: bool = False) -> None:
        """Move a column among its neighbours: after one of them, or before all. Raises as `apply`."""
        self.apply([MoveColumn(path, after=after, first=first)])

    def widen_column(self, path: str, data_type: pa.DataType | str) -> None:
        """Give a column a type that holds every value of the present one.

        tinyint, smallint, int, bigint: each to a later one; all but bigint to double; float to double; a decimal to more digits at the
        same scale; an integer to a decimal with at least 10 digits before the point, bigint with 20. Raises as `apply`, and for key
        columns and those that partitions are made of.
        """
        self.apply([WidenColumn(path, data_type)])

    def drop_not_null(self, path: str) -> None:
        """Allow nulls in a column, a field of a struct, or the `element` or `value` of a list or a map. Raises as `apply`, and for columns
        of the key and the ordering column."""
        self.apply([DropNotNull(path)])

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Deal new rows to partitions in another way, as one commit that moves no data: [] for one partition of everything.

        Rows that are there stay where they are, and so do later rows of partitions that are there: a partition of before that has files
        takes the rows that belong to it as ever. Running writers write again. partition_by: as of `Lake.create_table`. Raises
        InvalidInput and InvalidSchema, TableClosed, Contention, WriterFenced, CommitUnknown.
        """
        self._context.refresh()
        self._context.latest.set_if_newer(
            self._context.retry_on_new_checkpoint(
                lambda: change_partitioning(
                    self._context.timeline, self._context.view, self._context.id, self._context.manifests, partition_by
                )
            )
        )
