"""A stream of the changes of a table. Its offsets are slots of the table's log."""

# ruff: noqa: N802 - the names of methods are Spark's

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import objcat
from fileio.options import nearest
from objcat.datafile.casting import named
from objcat.errors import InvalidInput, SnapshotExpired
from objcat.metadata.schema import TableSchema
from objcat.metadata.table_spec import TABLE_SCOPE
from objcat.planning.changes import ChangesPlan
from objcat.spark.versions import HAS_STREAM_LIMITS, LimitedReader, ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, arrow_schema
from objcat.tasks.change_columns import CHANGE_TYPE, COMMIT_SLOT, COMMIT_TIME, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from objcat.tasks.changes import read_changed
from objcat.timeline.entry import Action, Entry
from pyspark_objcat.options import FOLLOWING, INCREMENTAL, FormatOptions, TableAtLoad

TASKS_MAX = 4096
WINDOW_SLOTS = 256
"""Slots of a backlog that are read at once."""


class TableStream(LimitedReader):
    """Reads what commits did between slots. One is on the driver as long as the query runs; others, pickled, read in tasks."""

    def __init__(self, options: FormatOptions, schema: StructType, said: TableAtLoad | None) -> None:
        """`said`: None where Spark was given a schema. Raises InvalidInput for options that conflict, or that this PySpark does not
        support."""
        self._options = options
        self._schema = schema
        self._said = said
        self._table: objcat.Table | None = None
        self._target: int | None = None
        self._max_commits = options.number("max_commits")
        self._max_bytes = options.number("max_bytes")
        given = [name for name, value in (("max_commits", self._max_commits), ("max_bytes", self._max_bytes)) if value is not None]
        if options.mode not in FOLLOWING:
            raise InvalidInput(
                'A stream follows the changes of a table. Give .option("mode", "changes") for every change, "net_changes" for '
                f'one per key and batch, or "{INCREMENTAL}" for rows as they are at the end of each batch.'
            )
        if "until" in options.own or "as_of" in options.own:
            raise InvalidInput("A stream has no end, so it takes neither until nor as_of. Leave them out, or use spark.read.")
        if given and not HAS_STREAM_LIMITS:
            raise InvalidInput(
                f"The option {given[0]} needs PySpark 4.2; this one always reads up to the newest commit. Leave it out, or update PySpark."
            )
        for name, value in (("max_commits", self._max_commits), ("max_bytes", self._max_bytes)):
            if value == 0:
                raise InvalidInput(f"The option {name} is 0, so nothing would ever be read. Give a larger number.")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    # ---- on the driver

    def initialOffset(self) -> dict[str, Any]:
        """Where the first batch begins. Always the same, because a failed batch is planned again."""
        table = self._opened()
        since, _ = table._context.feed_context().slots(self._options.since, None)
        return self._offset(since)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Where the next batch ends. PySpark 4.1 passes neither `start` nor `limit`."""
        newest = self._opened().refresh().slot
        if self._target is not None:
            newest = min(newest, self._target)
        if start is None:
            return self._offset(newest)
        begin = self._slot(start)
        if newest <= begin:
            return start
        return self._offset(newest if isinstance(limit, ReadAllAvailable) else self._limited(begin, newest))

    def getDefaultReadLimit(self) -> Any:
        """What Spark passes as `limit`. It has no limit of commits, so one of files is used for it."""
        if self._max_commits is not None:
            return ReadMaxFiles(self._max_commits)
        return ReadAllAvailable() if self._max_bytes is None else ReadMaxBytes(self._max_bytes)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest offset, for the progress of the query."""
        return self._offset(self._opened().refresh().slot)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than the current newest slot."""
        self._target = self._opened().refresh().slot

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch.

        Columns are those at load, as `TableAtLoad` has them, whatever their names at the end of an earlier range. Raises SnapshotExpired
        when slots of the range were cleaned, and InvalidInput when the table or its columns are others.
        """
        table = self._opened()
        first, last = self._slot(start), self._slot(end)
        table.refresh()
        try:
            schema = self._checked(table, last)
            feed = self._options.feed(table, first, last, columns_of(self._options, self._schema.fieldNames()), schema)
        except SnapshotExpired as error:
            raise SnapshotExpired(
                f"The stream cannot go on from slot {first}: {error} Copy the table as of a readable slot, and follow it from "
                'that slot with .option("since", "SLOT") and a new checkpointLocation.'
            ) from error
        store = table._context.fileio.describe()
        tasks: Sequence[Any] = feed.plan.tasks(count_max=TASKS_MAX)
        dealt = [tasks] if _is_one_sequence(feed.plan) else [[task] for task in tasks]
        return [InputPartition(pickle.dumps((store, some))) for some in dealt]

    def stop(self) -> None:
        """Release connections."""
        if self._table is not None:
            self._table._context.fileio.close()
            self._table = None

    # ---- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some tasks, exactly as Spark declared them. Rows of several tasks come by slot, and deletes first."""
        store, tasks = pickle.loads(partition.value)  # noqa: S301 - our own driver wrote it
        declared = arrow_schema(self._schema)
        with store.open() as fileio:
            found = (rows for task in tasks for rows in read_changed(fileio, task))
            for rows in found if len(tasks) == 1 else [in_sequence(pa.concat_tables(found))]:
                yield from as_declared(rows, declared).to_batches()

    # ---- how

    def _opened(self) -> objcat.Table:
        if self._table is None:
            self._table = self._options.table()
        return self._table

    def _checked(self, table: objcat.Table, last: int) -> TableSchema:
        """The columns of the stream. `last`: the slot where a batch ends.

        Raises SnapshotExpired, and InvalidInput where the table, or its columns at that slot, are others than at load.
        """
        source = table._context.feed_context()
        if self._said is None:
            snapshot = source.snapshot(source.view.slot)
            _check_types(self._options.followed(snapshot.spec), arrow_schema(self._schema))
            self._said = TableAtLoad(table.id, snapshot.slot, snapshot.spec.table_schema)
        now = source.snapshot(last).spec.table_schema
        self._said.check(table, last, now, self._schema.fieldNames(), path=self._options.path)
        if self._options.chosen is None:
            self._said.check_all(last, now)
        return self._said.schema

    def _offset(self, slot: int) -> dict[str, Any]:
        return {"slot": slot, "table": self._opened().id}

    def _slot(self, offset: dict[str, Any]) -> int:
        if offset["table"] != self._opened().id:
            raise InvalidInput(
                f"The checkpoint of the stream is of the table {offset['table']}, but at {self._options.path} there is now the "
                f"table {self._opened().id}. Begin again with a new checkpointLocation."
            )
        return int(offset["slot"])

    def _limited(self, begin: int, newest: int) -> int:
        """The last slot of a batch that begins after `begin`: at least one commit, then as many as the limits allow."""
        table = self._opened()
        commits = size = 0
        end = begin
        while end < newest:
            for entry in table._context.timeline.log.read_after(end, until=min(newest, end + WINDOW_SLOTS), window=32):
                if _changes_rows(entry, table.id):
                    written = 0 if entry.summary is None else entry.summary.bytes
                    full = self._max_bytes is not None and size + written > self._max_bytes
                    if commits and (full or commits == self._max_commits):
                        return end
                    commits, size = commits + 1, size + written
                end = entry.slot
        return end


def columns_of(options: FormatOptions, names: Sequence[str]) -> list[str]:
    """The columns to ask a feed for, out of those that Spark wants. A feed of changes adds some itself."""
    added = () if options.mode == INCREMENTAL else (CHANGE_TYPE, COMMIT_SLOT, COMMIT_TIME)
    return [name for name in names if name not in added]


def as_declared(rows: pa.Table, declared: pa.Schema) -> pa.Table:
    """The rows of a feed as Spark declared them. Raises InvalidInput for values that the current types cannot hold."""
    try:
        return named(rows, declared)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"A RESTORE took a column back to a type that does not hold earlier values ({str(error).splitlines()[0]}). Read "
            "these changes with table.changes(), or follow the table from the slot of the RESTORE on."
        ) from error


def _is_one_sequence(plan: Any) -> bool:
    """Whether the rows of all tasks are read as one sequence.

    Needed where a key is one row of its partition, and partitions are of several partition specs: the key may end in one task and begin in
    another. For a reader that uses the current partition spec that is one row.
    """
    return isinstance(plan, ChangesPlan) and not plan.latest and plan.is_mixed and plan.spec.key_scope != TABLE_SCOPE


def in_sequence(changes: pa.Table) -> pa.Table:
    """Changes by slot, and within a slot deletes and old states first."""
    rank = pc.index_in(changes.column(CHANGE_TYPE), value_set=pa.array([DELETE, UPDATE_BEFORE, UPDATE_AFTER, INSERT]))
    order = pa.table({"slot": changes.column(COMMIT_SLOT), "rank": rank})
    return changes.take(pc.sort_indices(order, [("slot", "ascending"), ("rank", "ascending")]))


def _changes_rows(entry: Entry, table: str) -> bool:
    return table in entry.footprint and entry.action in (Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE, Action.RESTORE)


def _check_types(found: pa.Schema, declared: pa.Schema) -> None:
    """Raises InvalidInput when columns have other types than the user told Spark."""
    for field in declared:
        if field.name not in found.names:
            raise InvalidInput(
                f"The table has no column {field.name!r}, which the schema given to Spark has: {nearest(field.name, found.names)}"
            )
        now = found.field(field.name).type
        if now != field.type:
            raise InvalidInput(f"The column {field.name!r} is {now}, and {field.type} in the schema given to Spark. Leave the schema out.")
