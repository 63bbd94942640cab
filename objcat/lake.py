"""What users hold: a lake at a URL, the tables in it, and scans of them."""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fileio.env import Env
from fileio.probe import check_commit_store
from fileio.registry import open_store
from fileio.settle import RetryPolicy
from fileio.store import FileIO
from objcat.errors import CommitConflict, InvalidInput, TableExists, TableNotFound
from objcat.local import LocalEngine, to_arrow_table
from objcat.read import ScanPlan, plan_scan
from objcat.table import Bucket, Snapshot, TableSpec
from objcat.table.schema import schema_from_arrow
from objcat.table.snapshot import TableDelta, encode_delta, snapshot_of
from objcat.table.spec import check_names_listed, check_texts, make_spec
from objcat.tasks import Operation, scan_schema
from objcat.timeline import Action, Candidate, Committer, Entry, Footprint, Log, LogState, Resolution, new_txn, parse_txn, resolve
from objcat.write import CommitResult, WriteOperation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"^[\w-]+(\.[\w-]+)*$")
AsOf = int | str | dt.datetime


def connect(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, env: Env | None = None, policy: RetryPolicy | None = None
) -> Lake:
    """The lake at a URL: `s3://bucket/prefix`, `gs://`, `az://`, `file:/path`, a bare path, or `memory:`. Sends no request.

    options: of the storage backend, see `docs/`. Raises `fileio.errors.InvalidConfig` for a URL or an option that is not valid.
    """
    return Lake(open_store(url, options, env=env, policy=policy))


class Lake:
    """Tables below one prefix of a store. Holds no state of its own; safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self.fileio = fileio

    def __repr__(self) -> str:
        return f"Lake({self.fileio.url!r})"

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        ordering: str | None = None,
        index: Bucket | None = None,
        kind: str = "merge_on_read",
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Create a table; of several processes that create one name, exactly one wins.

        schema: Arrow; types are narrowed to those that Spark shares. key: the columns that identify a row, never null. ordering: the
        column whose greater value wins when a key is written twice (event time, a version), never null; None: the later commit wins.
        index: `Bucket(16)` by default.
        Raises TableExists that names the winner, InvalidInput, and `fileio.errors.StoreUnfit` for a store that ignores conditions:
        commits on it would be lost.
        """
        fileio = self._fileio_of(name)
        spec = make_spec(
            fileio.env.new_id(),
            schema_from_arrow(schema),
            key=key,
            ordering=ordering,
            index=index or Bucket(),
            kind=kind,
            properties=properties or {},
        )
        check_commit_store(fileio)
        txn = new_txn(fileio.env)
        committer = Committer(fileio)
        intent = committer.announce(txn, Action.CREATE, -1, engine="local")
        candidate = Candidate(
            txn=txn,
            action=Action.CREATE,
            base=LogState(),
            changes={spec.table: encode_delta(TableDelta(spec=spec))},
            footprint={spec.table: Footprint()},
        )
        try:
            committed = committer.commit(candidate, skew_ms=intent.result())
        except CommitConflict as error:
            committer.retract(txn).result()
            first = Log(fileio).read_slot(0)
            who = f" by {first.txn}" if first else ""
            raise TableExists(
                f"the table {name!r} exists in {self.fileio.url} (created{who}): open it with lake.table({name!r})"
            ) from error
        committer.retract(txn).result()
        return Table(name, fileio, snapshot_of([committed.entry], where=fileio.url))

    def table(self, name: str) -> Table:
        """Open a table at its newest slot. Raises TableNotFound."""
        fileio = self._fileio_of(name)
        entries = Log(fileio).read_after(-1)
        if not entries:
            raise TableNotFound(
                f"there is no table {name!r} in {self.fileio.url}: create it with lake.create_table({name!r}, schema, key=[...])"
            )
        return Table(name, fileio, snapshot_of(entries, where=fileio.url))

    def _fileio_of(self, name: str) -> FileIO:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not a table name: use letters, digits, '_' and '-', in parts joined by '.'")
        return self.fileio.child(name)


class Table:
    """A handle on a table, at the newest slot that it has seen. Safe for many threads; not picklable (open the table there)."""

    def __init__(self, name: str, fileio: FileIO, snapshot: Snapshot) -> None:
        self.name = name
        self.fileio = fileio
        self._snapshot = snapshot
        self._committer = Committer(fileio)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Table({self.name!r} at {self.fileio.url!r}, slot {self._snapshot.slot})"

    @property
    def spec(self) -> TableSpec:
        return self._snapshot.spec

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow fields, under their logical names."""
        return self.spec.table_schema.to_arrow()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot that this handle has seen; `refresh()` asks for newer ones."""
        return self._snapshot

    def refresh(self) -> Snapshot:
        """The newest snapshot: one GET when nothing is new."""
        return self._advance(Log(self.fileio).read_after(self._snapshot.slot))

    def history(self) -> list[Entry]:
        """Every entry of the table's log, oldest first."""
        return Log(self.fileio).read_after(-1)

    def resolve(self, txn: str) -> Resolution:
        """Settle a write whose outcome nobody knows (CommitUnknown), or whose writer died: for ever.

        Returns CommittedAt when it is durable. Otherwise rolls it back: from then on its writer, should it still run, is refused with
        Fenced; its files are deleted. Safe beside the writer and beside other calls. Raises CommitUnknown when the store does not answer:
        call it again.
        """
        return resolve(self.fileio, parse_txn(txn))

    # ---- writing

    def upsert(self, data: Any, *, metadata: Mapping[str, str] | None = None) -> CommitResult:
        """Insert or replace rows by key, as one commit. Reads no file of the table.

        data: an Arrow table, a pandas or polars frame or a list of dicts is written by this process, a Spark DataFrame by Spark. Columns
        match by name; missing nullable ones are null. metadata: kept with the commit and shown in the log.
        Raises InvalidBatch and NullKey (nothing was written), CommitConflict (nothing is visible: write again), CommitUnknown (look
        before you write again).
        """
        return self._write(data, Operation.UPSERT, metadata)

    def insert(self, data: Any, *, metadata: Mapping[str, str] | None = None) -> CommitResult:
        """Insert rows whose keys the caller declares new, as one commit; buckets without rows get base files. Else as `upsert`."""
        return self._write(data, Operation.INSERT, metadata)

    def delete(self, keys: Any, *, metadata: Mapping[str, str] | None = None) -> CommitResult:
        """Delete rows by key, as one commit. Keys that do not exist are no error.

        keys: a batch with the key columns; others are ignored. In a table with an ordering column: a batch that has that column too
        deletes only what is not newer, and keeps older late rows out; without it, everything written before is deleted.
        Raises as `upsert`.
        """
        return self._write(keys, Operation.DELETE, metadata)

    # ---- reading

    def scan(self, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: AsOf | None = None) -> Scan:
        """A scan of the newest snapshot, or of an older one; nothing is read before one of its `to_...` is called.

        where: SQL text, e.g. `"fare > 10 and city = 'Rome'"`. columns: names, in order; all when None. as_of: a slot, a datetime, or ISO
        text (UTC where it has no zone): the newest commit at or before it. Raises InvalidPredicate, InvalidInput.
        """
        check_names_listed(columns, what="columns")
        snapshot = self.refresh() if as_of is None else self._snapshot_as_of(as_of)
        return Scan(self.fileio, plan_scan(snapshot, where=where, columns=columns))

    # ---- how

    def _write(self, data: Any, operation: Operation, metadata: Mapping[str, str] | None) -> CommitResult:
        check_texts(metadata or {}, what="metadata")
        rows = to_arrow_table(data)
        if rows is not None:
            engine: Any = LocalEngine(self.fileio)
            engine.check(rows, self.spec, operation)
        else:
            from objcat.spark.engine import SparkEngine

            rows = data
            engine = SparkEngine(self.fileio.describe())
            engine.check(rows, self.spec, operation)
        write: WriteOperation[Any] = WriteOperation(self.fileio, self._committer, engine, rows, operation, dict(metadata or {}))
        # Blind writes need no news: the slot's own put tells whether the snapshot is the newest. An insert must know the live buckets.
        first = self.refresh() if operation is Operation.INSERT else self._snapshot
        result, committed = write.run(first, self.refresh)
        self._advance([*committed.read, committed.entry])
        return result

    def _advance(self, entries: Sequence[Entry]) -> Snapshot:
        """Fold entries that may overlap what another thread has folded meanwhile."""
        with self._lock:
            new = [entry for entry in entries if entry.slot > self._snapshot.slot]
            if new and new[0].slot == self._snapshot.slot + 1:
                self._snapshot = self._snapshot.advance(new)
            return self._snapshot

    def _snapshot_as_of(self, as_of: AsOf) -> Snapshot:
        if isinstance(as_of, int):
            entries = Log(self.fileio).read_after(-1, until=as_of)
            if as_of < 0 or len(entries) <= as_of:
                raise InvalidInput(f"the table {self.name!r} has no slot {as_of}: slots go from 0 to {self.refresh().slot}")
            return snapshot_of(entries, where=self.fileio.url)
        when_ms = _milliseconds(as_of)
        entries = [entry for entry in Log(self.fileio).read_after(-1) if entry.committed_at_ms <= when_ms]
        if not entries:
            raise InvalidInput(f"the table {self.name!r} did not exist at {as_of}: it was created later")
        return snapshot_of(entries, where=self.fileio.url)


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
