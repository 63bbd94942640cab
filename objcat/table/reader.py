"""`TableReader`: the half of `Table` that only reads, so what it does changes nothing in the bucket.

It says which table this is and how it was created, holds the newest snapshot that the handle has seen, and reads rows (`scan`) and changes
(`incremental`, `changes`). Begin with `scan`; the plan of it is made in `objcat.planning`, and `objcat.table.scan` reads the rows.
`objcat.table.table` adds the writes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import AsOf, KeyScope, ScanMode, TableType, name_list, text
from objcat.metadata.partitioning import fields_asked
from objcat.metadata.settings_asked import index_asked, ordering_asked
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import Index, TableSpec
from objcat.planning.scan import SNAPSHOT
from objcat.table.change_feed import ChangeFeed, changes, incremental
from objcat.table.context import TableContext
from objcat.table.inspect import TableInspector
from objcat.table.notebook import SHOWN_COMMITS, table_html
from objcat.table.open_scan import open_scan
from objcat.table.scan import Scan
from objcat.timeline.log_state import AppliedVersion


@reports_full_memory
class TableReader:
    """What a handle on a table reads, at the newest slot that it has seen. Every `Table` is one. Safe for many threads."""

    def __init__(self, context: TableContext) -> None:
        """Users get handles from `Lake.table`, `Lake.create_table` and `objcat.table_at`."""
        self._context = context

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self.url!r}, slot {self._context.view.slot})"

    def _repr_html_(self) -> str:
        """What a notebook shows: settings, columns and the newest commits. Reads the newest entries of the log, and no data."""
        facts = [(name, getattr(self, name)) for name in ("url", "table_type", "key", "ordering", "index", "partitioning", "properties")]
        commits = self.inspect.history(limit=SHOWN_COMMITS)
        return table_html(repr(self), facts, self.spec, commits)

    # ---- what the table is

    @property
    def name(self) -> str:
        """The name in the lake; the URL for a table without a lake."""
        return self._context.name

    @property
    def id(self) -> str:
        """The id of the table in its log, which renames do not change."""
        return self._context.id

    @property
    def url(self) -> str:
        """Where the table's log and files are, without secrets."""
        return self._context.fileio.url

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, by their current names."""
        return self.spec.table_schema.to_arrow()

    @property
    def key(self) -> list[str] | None:
        """The key columns by name; None for a table without a key."""
        return [column.name for column in self.spec.key_columns] or None

    @property
    def ordering(self) -> str | list[str] | None:
        """The name of the column whose greater value wins, or the names of several in order; None where the later commit wins."""
        return ordering_asked(self.spec)

    @property
    def index(self) -> Index | None:
        """The index as `create_table` takes it; None without a key. A bucket count is the current one; a partition split by itself has
        more."""
        snapshot = self.snapshot
        return index_asked(snapshot.spec, snapshot.table.bucket_count(""))

    @property
    def table_type(self) -> TableType:
        """ "merge_on_read" or "copy_on_write", as for `create_table`."""
        return cast("TableType", self.spec.table_type)

    @property
    def partitioning(self) -> list[str]:
        """The partition spec as `partition_by` of `create_table` takes it, such as `["city", "day(at)"]`; empty: one partition for all."""
        spec = self.spec
        return fields_asked(spec.partitioning, spec.table_schema)

    @property
    def key_scope(self) -> KeyScope:
        """ "table" or "partition": where a key is unique."""
        return cast("KeyScope", self.spec.key_scope)

    @property
    def allowed_lateness(self) -> dt.timedelta | None:
        """How long before its commit a row's ordering time may be; None: no limit."""
        lateness_ms = self.spec.lateness_ms
        return None if lateness_ms is None else dt.timedelta(milliseconds=lateness_ms)

    @property
    def properties(self) -> dict[str, str]:
        """Properties, text to text: settings, and notes of users."""
        return dict(self.spec.properties)

    # ---- the newest snapshot

    def refresh(self) -> Snapshot:
        """Read and return the newest snapshot: one GET when nothing is new."""
        return self._context.refresh()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen."""
        return self._context.snapshot

    @property
    def spec(self) -> TableSpec:
        """The definition of the table as its log stores it: columns by id."""
        return self.snapshot.spec

    @property
    def inspect(self) -> TableInspector:
        """What the metadata says: files, partitions, statistics, history."""
        return TableInspector(self._context)

    def app_version(self, app_id: str) -> int | None:
        """The version that an application has reached in this table; None when it has written nothing.

        One GET when nothing is new. `app_id`: the `app` of its AppVersion.
        """
        self.refresh()
        reached = self._context.view.log.marks(self.id).apps.get(text(app_id, what="app_id"))
        return None if reached is None else reached.version

    def applied(self, app_id: str) -> AppliedVersion | None:
        """The version that an application has reached in this table, with the slot, time and metadata of its commit.

        One GET more than `app_version`, two where that slot is archived.

        Args:
            app_id: the `app` of its AppVersion.

        Returns:
            The version and its commit; None when the application has written nothing.

        Raises:
            ObjcatError: the errors of opening the table.
        """
        self.refresh()
        reached = self._context.view.log.marks(self.id).apps.get(text(app_id, what="app_id"))
        if reached is None:
            return None
        entry = self._context.timeline.log.read_known(reached.slot)
        return AppliedVersion(
            app=app_id,
            version=reached.version,
            slot=reached.slot,
            txn=entry.txn,
            committed_at_ms=entry.committed_at_ms,
            metadata=dict(entry.metadata),
            rewound_at=reached.rewound_at,
        )

    # ---- rows and changes

    def scan(
        self,
        *,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        as_of: AsOf | None = None,
        limit: int | None = None,
        mode: ScanMode = SNAPSHOT,
    ) -> Scan:
        """Plan a scan of the newest snapshot, or of an earlier one. Rows are read when a method of the result is called.

        Args:
            where: SQL text, e.g. `"fare > 10 and city = 'Rome'"`, or a `pyarrow.compute.Expression`.
            columns: names, in order; all when None. `_file`, `_commit_slot` and `_commit_time` come only when named.
            as_of: a slot, or a datetime or ISO text (UTC where it has no zone): the newest commit at or before it.
            limit: rows at most, no particular ones.
            mode: "snapshot": every row. "read_optimized": only base files, as fast as Parquet; a merge-on-read table then lacks rows not
                yet compacted.

        Returns:
            A `Scan`: `to_arrow()`, `to_spark(spark)`, `to_pandas()` and others.

        Raises:
            InvalidPredicate: the filter does not parse or fit.
            InvalidInput: an argument does not fit the table.
            SnapshotExpired: the slot was cleaned.
        """
        return open_scan(self._context, where=where, columns=columns, as_of=as_of, limit=limit, mode=mode)

    def incremental(
        self, *, since: AsOf, until: AsOf | None = None, where: str | pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> ChangeFeed:
        """The latest state, as of `until`, of every row that was inserted or updated after `since`.

        Reads what was written in the range, not the table. Deleted keys do not appear, nor do rows that came late and lost. A compaction
        adds nothing and hides nothing.

        Args:
            since: excluded: a slot, a txn, a datetime or ISO text (the newest commit at or before it); -1 is before the first. It may be
                cleaned.
            until: included, given like `since`; the newest when None.
            where: see `scan`.
            columns: see `scan`; may name `_commit_slot` and `_commit_time`, of the commit that wrote the row.

        Returns:
            A `ChangeFeed`.

        Raises:
            InvalidPredicate, InvalidInput: an argument does not fit.
            SnapshotExpired: `until` was cleaned.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._context.retry_on_new_checkpoint(
            lambda: incremental(self._context.feed_context(), since, until, where=where, columns=columns)
        )

    def changes(self, *, since: AsOf, until: AsOf | None = None, columns: Sequence[str] | None = None, net: bool = False) -> ChangeFeed:
        """Exactly what every commit after `since` up to `until` inserted, updated and deleted.

        Rows have `_change_type` ("insert", "update_before", "update_after" or "delete"), `_commit_slot`, `_commit_time` and the columns;
        those of a delete and of update_before as they were. A late row that lost, a compaction and a split are no changes; a RESTORE is
        what it changed. Reads the file groups that changed as of `since`, and what was written to them. Rows have the schema of `until`.

        Args:
            since, until: see `incremental`.
            columns: names, in order; all when None.
            net: at most one change per key over the whole range, at its last commit.

        Returns:
            A `ChangeFeed`.

        Raises:
            InvalidInput: an argument does not fit.
            SnapshotExpired: files since `since` were cleaned; it names the slot from which on changes can be read.
        """
        columns = None if columns is None else name_list(columns, what="columns")
        return self._context.retry_on_new_checkpoint(lambda: changes(self._context.feed_context(), since, until, columns=columns, net=net))
