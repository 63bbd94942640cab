"""What users hold of one table: a handle that writes and reads it, and scans of it."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import InvalidInput, ObjcatError
from objcat.local import LocalEngine, to_arrow_table
from objcat.read import ScanPlan, plan_scan
from objcat.table import Manifests, Snapshot, Tables, TableSpec
from objcat.table.snapshot import snapshot_of
from objcat.table.spec import check_names_listed, check_texts
from objcat.tasks import Operation, scan_schema
from objcat.timeline import AppVersion, Committer, Entry, Resolution, Timeline, View, parse_txn, resolve
from objcat.timeline.side import with_changes
from objcat.write import CommitResult, WriteOperation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("objcat")

AsOf = int | str | dt.datetime


class Table:
    """A handle on a table, at the newest slot that it has seen. Safe for many threads; not picklable (open the table there)."""

    def __init__(self, name: str, timeline: Timeline[Tables], table: str, view: View[Tables]) -> None:
        self.name = name
        self.id = table
        self.timeline = timeline
        self.fileio = timeline.fileio
        self.manifests = Manifests(timeline.fileio)
        self._view = view
        self._committer = Committer(timeline.fileio)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Table({self.name!r} at {self.fileio.url!r}, slot {self._view.slot})"

    @property
    def spec(self) -> TableSpec:
        return self.snapshot.spec

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, under their logical names."""
        return self.spec.table_schema.to_arrow()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen; `refresh()` asks for newer ones."""
        return self._snapshot_of(self._view)

    def refresh(self) -> Snapshot:
        """The newest snapshot: one GET when nothing is new."""
        return self._keep(self.timeline.refresh(self._view))

    def history(self) -> list[Entry]:
        """Every entry of the table's log, oldest first."""
        return with_changes(self.fileio, self.timeline.log.read_after(-1))

    def resolve(self, txn: str) -> Resolution:
        """Settle a write whose outcome nobody knows (CommitUnknown), or whose writer died: for ever.

        Returns CommittedAt when it is durable. Otherwise rolls it back: from then on its writer, should it still run, is refused with
        Fenced; its files are deleted. Safe beside the writer and beside other calls. Raises CommitUnknown when the store does not answer:
        call it again.
        """
        return resolve(self.fileio, parse_txn(txn))

    # ---- writing

    def upsert(self, data: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult:
        """Insert or replace rows by key, as one commit.

        A merge-on-read table is not read: the rows are appended. Of a copy-on-write table, the buckets that hold the keys are read and
        rewritten; when another commit rewrites one of them first, that bucket is done again, and only that one. A Spark DataFrame is
        computed again for it: cache or checkpoint one that does not give the same rows every time.
        data: an Arrow table, a pandas or polars frame or a list of dicts is written by this process, a Spark DataFrame by Spark. Columns
        match by name; missing nullable ones are null. metadata: kept with the commit and shown in the log. app: makes a write that is
        tried again count once: when the table has this version of the application already, nothing is written, and the result says so in
        `already_applied`.
        Raises InvalidBatch and NullKey (nothing was written), CommitConflict (nothing is visible: write again), StreamRewound (a RESTORE
        took back versions of `app`), Fenced, CommitUnknown (look before you write again).
        """
        return self._write(data, Operation.UPSERT, metadata, app)

    def insert(self, data: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult:
        """Insert rows whose keys the caller declares new, as one commit; buckets without rows get base files. Else as `upsert`."""
        return self._write(data, Operation.INSERT, metadata, app)

    def delete(self, keys: Any, *, metadata: Mapping[str, str] | None = None, app: AppVersion | None = None) -> CommitResult:
        """Delete rows by key, as one commit. Keys that do not exist are no error.

        keys: a batch with the key columns; others are ignored. In a table with an ordering column: a batch that has that column too
        deletes only what is not newer, and keeps older late rows out; without it, everything written before is deleted.
        Else as `upsert`.
        """
        return self._write(keys, Operation.DELETE, metadata, app)

    # ---- reading

    def scan(self, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: AsOf | None = None) -> Scan:
        """A scan of the newest snapshot, or of an older one; nothing is read before one of its `to_...` is called.

        where: SQL text, e.g. `"fare > 10 and city = 'Rome'"`. columns: names, in order; all when None. as_of: a slot, a datetime, or ISO
        text (UTC where it has no zone): the newest commit at or before it. Raises InvalidPredicate, InvalidInput.
        """
        check_names_listed(columns, what="columns")
        snapshot = self.refresh() if as_of is None else self._snapshot_as_of(as_of)
        return Scan(self.fileio, plan_scan(snapshot, self.manifests, where=where, columns=columns))

    # ---- how

    def _write(self, data: Any, operation: Operation, metadata: Mapping[str, str] | None, app: AppVersion | None) -> CommitResult:
        check_texts(metadata or {}, what="metadata")
        rows = to_arrow_table(data)
        if rows is not None:
            engine: Any = LocalEngine(self.fileio)
        else:
            from objcat.spark.engine import SparkEngine

            rows, engine = data, SparkEngine(self.fileio.describe())
        engine.check(rows, self.spec, operation)
        # Blind writes need no news: the slot's own put tells whether the view is the newest. The others begin from what is there.
        if operation is Operation.INSERT or self.spec.rewrites or app is not None:
            self.refresh()
        view = self._view
        write: WriteOperation[Any] = WriteOperation(
            timeline=self.timeline,
            table=self.id,
            manifests=self.manifests,
            committer=self._committer,
            engine=engine,
            data=rows,
            operation=operation,
            metadata=dict(metadata or {}),
            app=app,
        )
        result, followed = write.run(view)
        try:
            self._advance(followed)
        except (ObjcatError, FileIOError) as error:
            # The write is durable, whatever comes after it. The handle is behind, as if another process had written.
            logger.warning("%r could not fold its own commit at slot %d, which is durable: %s", self, result.slot, error)
        return result

    def _advance(self, entries: Sequence[Entry]) -> None:
        """Fold entries that may overlap what another thread has folded meanwhile."""
        view = self._view
        new = [entry for entry in entries if entry.slot > view.slot]
        if new and new[0].slot == view.slot + 1:
            self._keep(self.timeline.advance(view, new))

    def _keep(self, view: View[Tables]) -> Snapshot:
        """Keep a view unless another thread has kept a newer one meanwhile: a handle never goes back."""
        with self._lock:
            if view.slot > self._view.slot:
                self._view = view
            return self.snapshot

    def _snapshot_of(self, view: View[Tables]) -> Snapshot:
        return snapshot_of(view, self.id, where=self.fileio.url)

    def _snapshot_as_of(self, as_of: AsOf) -> Snapshot:
        if isinstance(as_of, int):
            if as_of < 0 or as_of > self.refresh().slot:
                raise InvalidInput(f"the table {self.name!r} has no slot {as_of}: slots go from 0 to {self.snapshot.slot}")
            return self._snapshot_of(self.timeline.at(as_of))
        when_ms = _milliseconds(as_of)
        entries = [entry for entry in self.timeline.log.read_after(-1) if entry.committed_at_ms <= when_ms]
        if not entries:
            raise InvalidInput(f"the table {self.name!r} did not exist at {as_of}: it was created later")
        return self._snapshot_of(self.timeline.at(entries[-1].slot))


class Scan:
    """A planned scan, pinned to one snapshot."""

    def __init__(self, fileio: FileIO, plan: ScanPlan) -> None:
        self._fileio = fileio
        self.plan = plan

    @property
    def schema(self) -> pa.Schema:
        return scan_schema(self.plan.snapshot.spec, self.plan.columns)

    def to_arrow(self) -> pa.Table:
        """All rows, in this process."""
        groups = [*self.plan.plain, *self.plan.merged]
        tasks = self.plan.tasks(groups, count_max=self._fileio.env.parallelism)
        tables = list(LocalEngine(self._fileio).scan(tasks))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A lazy Spark DataFrame: native Parquet scans where the cluster reads the scheme, Arrow through `fileio` elsewhere."""
        from objcat.spark.read import scan_dataframe

        return scan_dataframe(spark, self._fileio.describe(), self.plan)


def _milliseconds(when: str | dt.datetime) -> int:
    """Milliseconds since 1970 UTC. Text is ISO 8601; without a zone it is UTC."""
    if not isinstance(when, (str, dt.datetime)):
        raise InvalidInput(f"as_of={when!r} is neither a slot nor a time: give an int, a datetime, or ISO 8601 text")
    try:
        moment = dt.datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError as error:
        raise InvalidInput(f"as_of={when!r} is not a time: write ISO 8601, e.g. '2026-11-20 09:00'") from error
    if not isinstance(moment, dt.datetime):
        raise InvalidInput(f"as_of={when!r} is not a moment: give a slot, a datetime, or ISO text such as '2026-11-20 09:00'")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)
