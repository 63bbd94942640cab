"""What a table is, as its handle has last seen it, and what a handle changes of that: columns, partitioning, properties."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from objcat.catalog.table_lifecycle import change_partitioning, change_properties, change_schema
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import KeyScope, TableType, instances
from objcat.metadata.partitioning import fields_asked
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
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_spec import Index, TableSpec, index_asked
from objcat.table.maintenance import Serviced


@reports_full_memory
class Altered(Serviced):
    """What one table is, by the words of `Lake.create_table`, and changes of that, as members of its handle. Safe for many threads.

    The properties are as of the newest slot that the handle has seen, and send no request; `refresh()` asks for newer ones.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen."""
        return snapshot_of(self._standing.view, self.id, where=self.fileio.url)

    @property
    def spec(self) -> TableSpec:
        """What the table is, as its log has it: columns by id."""
        return self.snapshot.spec

    @property
    def url(self) -> str:
        """Where the table's log and files are. No secret is in it."""
        return self.fileio.url

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, by the names that they have now."""
        return self.spec.table_schema.to_arrow()

    @property
    def key(self) -> list[str] | None:
        """The key columns by name; None for a table that only grows."""
        return [column.name for column in self.spec.key_columns] or None

    @property
    def ordering(self) -> str | None:
        """The name of the column whose greater value wins; None where the later commit wins."""
        column = self.spec.ordering_column
        return None if column is None else column.name

    @property
    def index(self) -> Index | None:
        """How a key finds its file group, as `create_table` takes it; None for a table without a key. Of buckets the count is that of now;
        a partition that was split by itself has more."""
        snapshot = self.snapshot
        return index_asked(snapshot.spec, snapshot.table.bucket_count(""))

    @property
    def table_type(self) -> TableType:
        """ "merge_on_read" or "copy_on_write": what `create_table` takes as `kind`."""
        return cast("TableType", self.spec.kind)

    @property
    def partitioning(self) -> list[str]:
        """Where new rows go, as `partition_by` of `create_table` says it, such as `["city", "day(at)"]`; empty: one partition for all."""
        spec = self.spec
        return fields_asked(spec.partitioning, spec.table_schema)

    @property
    def key_scope(self) -> KeyScope:
        """ "table" or "partition": within what a key is unique."""
        return cast("KeyScope", self.spec.key_scope)

    @property
    def lateness(self) -> dt.timedelta | None:
        """How far before its commit a row may lie; None: as far as it likes."""
        lateness_ms = self.spec.lateness_ms
        return None if lateness_ms is None else dt.timedelta(milliseconds=lateness_ms)

    @property
    def properties(self) -> dict[str, str]:
        """Text to text: settings, and notes of users."""
        return dict(self.spec.properties)

    # ---- changes

    def set_properties(self, properties: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()) -> None:
        """Set and take away properties of the table, as one commit; others stay, those that somebody else sets meanwhile too.

        `docs/guide.md` lists those that are settings; all others are notes. Raises InvalidInput, also for a note whose name was meant for a
        setting, TableClosed, Contention, Fenced, CommitUnknown.
        """
        self._standing.keep(change_properties(self.timeline, self._standing.view, self.id, set_=properties or {}, unset=unset))

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Deal new rows to partitions in another way, as one commit that moves no data: [] for one partition of everything.

        Rows that are there stay where they are, and so do later rows of partitions that are there: a partition of before that has files
        takes the rows that belong to it as ever. Running writers write again. partition_by: as of `Lake.create_table`. Raises
        InvalidInput and InvalidSchema, TableClosed, Contention, Fenced, CommitUnknown.
        """
        self.refresh()
        self._standing.keep(
            self._standing.retry_on_new_checkpoint(
                lambda: change_partitioning(self.timeline, self._standing.view, self.id, self.manifests, partition_by)
            )
        )

    # ---- columns

    def alter(self, changes: Iterable[ColumnChange]) -> None:
        """Change columns, one change after the other, as one commit that touches no file.

        changes: `objcat.AddColumn`, `DropColumn`, `RenameColumn`, `MoveColumn`, `WidenColumn` and `DropNotNull`. A column or a field of a
        struct is named by its path: `city`, `place.x`; inside of lists and maps `stops.element.x`, `tags.value.x`; a name with a dot in it
        in backticks. Running writers go on. Older snapshots keep their schema. Raises InvalidSchema and InvalidInput that say what would
        fit (nothing was changed), TableClosed, Contention, Fenced, CommitUnknown.
        """
        given = instances(changes, ColumnChange, what="changes", such_as=f"a list of {KINDS_OF_CHANGE}")
        self.refresh()
        self._standing.keep(change_schema(self.timeline, self._standing.view, self.id, given))

    def add_column(self, path: str, data_type: pa.DataType | str, *, after: str | None = None, first: bool = False) -> None:
        """Add a column, or a field of a struct, which is null in all rows that are there.

        data_type: an Arrow type, or a name such as `bigint` or `decimal(10,2)`. after: the neighbour that it comes after; first: before all
        of them; else it comes last. Raises as `alter`.
        """
        self.alter([AddColumn(path, data_type, after=after, first=first)])

    def drop_column(self, path: str) -> None:
        """Drop a column, or a field of a struct; one of its name that is added later has none of its values. Raises as `alter`, and for
        columns by which rows are found or ordered."""
        self.alter([DropColumn(path)])

    def rename_column(self, path: str, name: str) -> None:
        """Give a column, or a field of a struct, another name. name: the new one, without the structs around it. Raises as `alter`."""
        self.alter([RenameColumn(path, name)])

    def move_column(self, path: str, *, after: str | None = None, first: bool = False) -> None:
        """Move a column among its neighbours: after one of them, or before all. Raises as `alter`."""
        self.alter([MoveColumn(path, after=after, first=first)])

    def widen_column(self, path: str, data_type: pa.DataType | str) -> None:
        """Give a column a type that holds every value of the present one.

        tinyint, smallint, int, bigint: each to a later one; all but bigint to double; float to double; a decimal to more digits at the
        same scale; an integer to a decimal with at least 10 digits before the point, bigint with 20. Raises as `alter`, and for key
        columns and those that partitions are made of.
        """
        self.alter([WidenColumn(path, data_type)])

    def drop_not_null(self, path: str) -> None:
        """Allow nulls in a column, a field of a struct, or the `element` or `value` of a list or a map. Raises as `alter`, and for columns
        of the key and the ordering column."""
        self.alter([DropNotNull(path)])
