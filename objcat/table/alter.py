"""`TableAlterer`: changes of columns and of the partition spec, as `table.alter`. `ColumnAlterer`: what a transaction has of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from objcat.catalog.table_lifecycle import change_partitioning, change_precomputed, change_schema
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import instances
from objcat.metadata.schema_evolution import (
    KINDS_OF_CHANGE,
    AddColumn,
    ColumnChange,
    DropColumn,
    DropDefault,
    DropNotNull,
    MoveColumn,
    RenameColumn,
    SetDefault,
    WidenColumn,
)
from objcat.table.context import TableContext


class ColumnAlterer(ABC):
    """Changes the columns of one table: as one commit that touches no file (`table.alter`), or in a transaction (`tx[name].alter`)."""

    @abstractmethod
    def _apply(self, changes: Sequence[ColumnChange]) -> None:
        """Apply column changes, in order."""

    def apply(self, changes: Iterable[ColumnChange]) -> None:
        """Apply several column changes, in order, at once. No file is touched.

        Running writers go on. Older snapshots keep their schema. A path names a column or a struct field: `city`, `place.x`, and inside
        lists and maps `stops.element.x`, `tags.value.x`. A name that contains a dot goes in backticks.

        Args:
            changes: `objcat.AddColumn`, `DropColumn`, `RenameColumn`, `MoveColumn`, `WidenColumn`, `DropNotNull`, `SetDefault` and
                `DropDefault`.

        Raises:
            InvalidSchema, InvalidInput: nothing was changed; the error says what would fit.
            TableClosed, Contention, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        self._apply(instances(changes, ColumnChange, what="changes", such_as=f"a list of {KINDS_OF_CHANGE}"))

    def add_column(
        self,
        path: str,
        data_type: pa.DataType | str,
        *,
        after: str | None = None,
        first: bool = False,
        default: Any = None,
        nullable: bool = True,
    ) -> None:
        """Add a column or a struct field. In all existing rows it has its default, or is null. No file is written.

        Args:
            path: of the new column, see `apply`.
            data_type: an Arrow type, or a name such as `bigint` or `decimal(10,2)`.
            after: the neighbour before it.
            first: put it before all neighbours. Without both it comes last.
            default: its value in existing rows, and in later batches that leave it out. Not for nested types and struct fields.
            nullable: allow nulls. Without, the column needs a default.

        Raises:
            InvalidSchema: the default is no value of the type.
            ObjcatError: the errors of `apply`.
        """
        self.apply([AddColumn(path, data_type, after=after, first=first, default=default, nullable=nullable)])

    def set_default(self, path: str, default: Any) -> None:
        """Set the value of a column in later batches that leave it out. Existing rows stay as they are.

        Args:
            path: of the column, see `apply`.
            default: a value of its type.

        Raises:
            InvalidSchema: the default is no value of the type, or the column is of the key, the ordering, the buckets or a partition.
            ObjcatError: the errors of `apply`.
        """
        self.apply([SetDefault(path, default)])

    def drop_default(self, path: str) -> None:
        """Take back the default of a column for later batches. Rows that are older than the column keep the value that it was added with.

        Args:
            path: of the column, see `apply`.

        Raises:
            ObjcatError: the errors of `apply`.
        """
        self.apply([DropDefault(path)])

    def drop_column(self, path: str) -> None:
        """Drop a column or a struct field. A later column of the same name has none of its values.

        Args:
            path: of the column, see `apply`.

        Raises:
            InvalidSchema: rows are found or ordered by the column.
            ObjcatError: the errors of `apply`.
        """
        self.apply([DropColumn(path)])

    def rename_column(self, path: str, name: str) -> None:
        """Rename a column or a struct field.

        Args:
            path: of the column, see `apply`.
            name: the new name, without the structs around it.

        Raises:
            ObjcatError: the errors of `apply`.
        """
        self.apply([RenameColumn(path, name)])

    def move_column(self, path: str, *, after: str | None = None, first: bool = False) -> None:
        """Move a column among its neighbours.

        Args:
            path: of the column, see `apply`.
            after: the neighbour to put it after.
            first: put it before all.

        Raises:
            ObjcatError: the errors of `apply`.
        """
        self.apply([MoveColumn(path, after=after, first=first)])

    def widen_column(self, path: str, data_type: pa.DataType | str) -> None:
        """Give a column a type that holds every value of its current type.

        tinyint, smallint, int and bigint: to a later one of these; all but bigint to double; float to double. A decimal: to more digits at
        the same scale. An integer: to a decimal with at least 10 digits before the point, bigint with 20.

        Args:
            path: of the column, see `apply`.
            data_type: the wider type.

        Raises:
            InvalidSchema: a key or partition column, or a type that does not hold every value.
            ObjcatError: the errors of `apply`.
        """
        self.apply([WidenColumn(path, data_type)])

    def drop_not_null(self, path: str) -> None:
        """Allow nulls in a column, a struct field, or the `element` or `value` of a list or a map.

        Args:
            path: of the column, see `apply`.

        Raises:
            InvalidSchema: a key column or the ordering column.
            ObjcatError: the errors of `apply`.
        """
        self.apply([DropNotNull(path)])


@reports_full_memory
class TableAlterer(ColumnAlterer):
    """Changes the columns and the partition spec of one table (`table.alter`). Each change is one commit that touches no file. Safe for
    many threads, and next to writers."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"TableAlterer({self._context.name!r} at {self._context.fileio.url!r})"

    def _apply(self, changes: Sequence[ColumnChange]) -> None:
        self._context.refresh()
        self._context.latest.set_if_newer(change_schema(self._context.timeline, self._context.view, self._context.id, changes))
        self._context.mirror_later()

    def set_precomputed(self, columns: Sequence[str]) -> None:
        """Say which columns of a table in place are precomputed, as one commit. `table.maintenance.precompute` makes or drops them.

        New files have them from their next refresh on.

        Args:
            columns: all of them; `[]` for none.

        Raises:
            InvalidInput: the table is not in place, or a column is none of its files.
            TableClosed, Contention, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        self._context.refresh()
        self._context.latest.set_if_newer(change_precomputed(self._context.timeline, self._context.view, self._context.id, columns))

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Change the partition spec, as one commit. Existing files stay where they are.

        Existing rows stay in their partitions, and so do later rows of these partitions: a partition of a previous partition spec that has
        files takes its rows as before. Running writers write again.

        Args:
            partition_by: see `Lake.create_table`; `[]` for one partition of everything.

        Raises:
            InvalidInput, InvalidSchema: the columns do not fit.
            TableClosed, Contention, WriterFenced, CommitUnknown: see `objcat.errors`.
        """
        self._context.refresh()
        self._context.latest.set_if_newer(
            self._context.retry_on_new_checkpoint(
                lambda: change_partitioning(
                    self._context.timeline, self._context.view, self._context.id, self._context.manifests, partition_by
                )
            )
        )
        self._context.mirror_later()
