"""Errors of objcat, grouped by what the caller can do about them. Errors of storage (`fileio.errors`) pass through unchanged.

ObjcatError                   the root of all
├── InvalidInput              a setting, schema, batch or statement does not fit. Nothing was written.
│   ├── InvalidSchema         a table cannot have this schema or column type.
│   ├── InvalidBatch          the batch does not fit the schema of the table.
│   │   ├── EmptyBatch        the batch has no rows.
│   │   ├── KeyExists         an insert found existing keys.
│   │   └── NullKey           a key or ordering value is null or NaN.
│   ├── InvalidPredicate      a filter does not parse, or names an unknown column.
│   ├── InvalidSql            a statement does not parse, or names something unknown.
│   ├── SparkTooOld           the installed Spark lacks what a call needs.
│   └── TablesInSeveralLogs   the tables of a transaction do not share a log.
├── PluginMissing             no installed package offers a plug-in of that name.
├── PluginFailed              a plug-in failed, or answered what it must not.
├── MissingOnWorkers          a Spark worker lacks objcat, or has another version or Python.
├── SparkJobLost              a Spark job was cancelled or lost. Nothing is visible. Write again.
├── SparkJobFailed            a Spark job failed in the DataFrame. Nothing is visible.
├── TableNotFound             there is no table of that name.
├── TableExists               there is already a table of that name.
├── NamespaceNotFound         there is no namespace of that name.
├── NamespaceExists           there is already a namespace of that name.
├── NamespaceNotEmpty         the namespace holds names, so it cannot be dropped.
├── TableClosed               the table was dropped.
│   └── TableMoved            the table moved to a shared log. Open it by its name.
├── UnsupportedFormat         the table needs a newer objcat.
├── SnapshotExpired           the slot was cleaned. Read a newer one.
├── CheckpointCollected       the checkpoint that a handle reads is gone. Open the table again.
│   └── CheckpointUnreadable  the checkpoint is damaged. Open the table again.
├── CorruptTable              metadata contradicts itself, or an object is missing or changed.
├── CommitConflict            another commit won. Nothing is visible. Write again.
│   ├── Contention            other writers took every slot. Write again later.
│   ├── AlreadyApplied        the table already has this version of the application.
│   ├── AlreadyDone           another process executed the same plan.
│   ├── PositionConflict      another reader of the source committed first.
│   └── StreamRewound         a RESTORE took back what the application wrote.
├── OutOfMemory               the process ran out of memory. The commit did not happen.
├── SourceFileChanged         a file in place is not the one that a commit took. Refresh the files of the table.
├── ForeignTableChanged       a table of another format changed while it was adopted. Adopt it again.
├── IngestStopped             an ingest cannot go on. What it committed stays.
│   ├── SourceUnfit           settings or rights of the source do not fit.
│   ├── SourceAway            the source cannot be reached.
│   ├── PositionGone          the source no longer has what follows the position.
│   └── TooManyBadRecords     more records than allowed could not be decoded.
├── NotErased                 objects still hold values of erased rows. Erase again.
├── SharedTransaction         another operation has this transaction id. Write again.
├── WriterFenced              another process rolled this transaction back. Write again.
└── CommitUnknown             the commit may have landed. Call table.resolve(txn).
"""

from __future__ import annotations


class ObjcatError(Exception):
    """The root of all errors that objcat itself raises."""


class InvalidInput(ObjcatError):
    """A setting, schema, batch or statement does not fit. Nothing was written.

    What to do: Correct the call. The message names what fits.
    """


class InvalidSchema(InvalidInput):
    """A schema or a column type is one that a table cannot have. Nothing was written.

    What to do: Change the column or its type.
    """


class InvalidBatch(InvalidInput):
    """A batch does not fit the schema of the table: columns are missing, unknown or of another type. Nothing was written.

    What to do: Correct the batch, or let the write change the schema with `schema_mode`.
    """


class EmptyBatch(InvalidBatch):
    """A batch has no rows. Nothing was written.

    What to do: Skip the write.
    """


class KeyExists(InvalidBatch):
    """An insert that must fail on existing keys found keys of the batch in the table. Nothing was written.

    What to do: Leave these rows out, skip existing keys, or upsert the rows.
    """


class NullKey(InvalidBatch):
    """A key column holds a null, or an ordering column holds a null or NaN. Nothing was written.

    What to do: Fill these values, or leave the rows out.
    """


class InvalidPredicate(InvalidInput):
    """The text of a filter does not parse, or it names a column that the table does not have.

    What to do: Correct the filter.
    """


class InvalidSql(InvalidInput):
    """A SQL statement does not parse, or it names something that does not exist.

    What to do: Correct the statement.
    """


class SparkTooOld(InvalidInput):
    """The installed version of Spark lacks what a call needs. Nothing was done.

    What to do: Call what the message names, or install the version of PySpark that it names.
    """


class TablesInSeveralLogs(InvalidInput):
    """A transaction names tables that do not share a log. Nothing was written.

    What to do: Create the tables with one `shared_log`.
    """


class PluginMissing(ObjcatError):
    """A plug-in that a table, a lake or a call names is not installed in this process, or cannot be imported. Nothing was done.

    What to do: Install the package that offers it. The message names the group of entry points.
    """


class PluginFailed(ObjcatError):
    """A plug-in raised an error, or answered what its contract forbids. Nothing was written.

    What to do: Correct the plug-in, or do without it. Its conformance suite shows what is wrong.
    """


class MissingOnWorkers(ObjcatError):
    """A Spark worker cannot import objcat, has another version of it than the driver, or runs another Python. Nothing was written.

    What to do: Install the version of the driver on the workers, or set `PYSPARK_PYTHON`.
    """


class SparkJobLost(ObjcatError):
    """A Spark job was cancelled, or Spark lost the session, the JVM or executors that it ran on. Nothing of the write is visible.

    What to do: Write again when Spark runs.
    """


class SparkJobFailed(ObjcatError):
    """A Spark job failed in an expression, a function or an input file of the DataFrame. Nothing of the write is visible. The error of
    Spark is the cause.

    What to do: Correct the DataFrame, and write again.
    """


class TableNotFound(ObjcatError):
    """There is no table of that name or at that URL.

    What to do: Create the table, or use the nearest name that the message shows.
    """


class TableExists(ObjcatError):
    """There is already a table of that name or at that URL.

    What to do: Open the table, or choose another name.
    """


class NamespaceNotFound(ObjcatError):
    """There is no namespace of that name.

    What to do: Create the namespace, or use the nearest name that the message shows.
    """


class NamespaceExists(ObjcatError):
    """There is already a namespace of that name.

    What to do: Use the namespace, or choose another name.
    """


class NamespaceNotEmpty(ObjcatError):
    """The namespace still holds tables or namespaces, so it cannot be dropped.

    What to do: Drop or rename these first.
    """


class TableClosed(ObjcatError):
    """The table was dropped.

    What to do: `lake.undrop_table` restores the table until it is purged.
    """


class TableMoved(TableClosed):
    """The table moved to a shared log, where it has its name. Nothing was written to the log that this handle has.

    What to do: Open the table by its name, and write again.
    """


class UnsupportedFormat(ObjcatError):
    """The metadata of the table needs a newer version of objcat. Nothing was written.

    What to do: Upgrade to the version that the message names.
    """


class CheckpointCollected(ObjcatError):
    """A checkpoint or log entries that an open handle reads are gone: a newer checkpoint or an erasure replaced them.

    What to do: Open the table again.

    Attributes:
        path: the key of the object.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (_checkpoint_error, (type(self), str(self), self.path))


class CheckpointUnreadable(CheckpointCollected):
    """An object of the checkpoint that an open handle reads is damaged.

    What to do: Open the table again: it then uses an older checkpoint, or the log alone.
    """


def _checkpoint_error(kind: type[CheckpointCollected], message: str, path: str) -> CheckpointCollected:
    return kind(message, path=path)


class CorruptTable(ObjcatError):
    """Metadata contradicts itself, or an object that metadata names is missing or is not the one that was committed. The message names the
    object.

    What to do: Restore that object from a backup. If nobody changed the bucket, report a bug.
    """


class OutOfMemory(ObjcatError, MemoryError):
    """The process ran out of memory, or reached its memory limit. The commit in progress did not happen. Earlier commits remain.

    What to do: Write fewer rows at once, or give the process more memory.
    """


class SourceFileChanged(ObjcatError):
    """A file in place is not the one that a commit took: its program replaced, removed or damaged it. No row of it was made up.

    What to do: Call `refresh_files` with `on_change` and `on_missing`, or put the file back.
    """


class ForeignTableChanged(ObjcatError):
    """An Iceberg or Delta table changed while it was adopted. Nothing was adopted.

    What to do: Stop the writers of that table. Adopt it again.
    """


class IngestStopped(ObjcatError):
    """An ingest cannot go on. What it committed stays, and nothing was left out.

    What to do: Follow the message, and start the ingest again. It goes on from its last commit.
    """


class SourceUnfit(IngestStopped):
    """Settings, rights or tables of a source do not fit. Nothing was read.

    What to do: Run the statements that the message shows at the source.
    """


class SourceAway(IngestStopped):
    """A source cannot be reached, or closed the connection. A running ingest tries again for a while before it stops.

    What to do: Start the source, or correct the connection. Then start the ingest again.
    """


class PositionGone(IngestStopped):
    """A source no longer has the changes after the last position: a lost slot, a purged log, or an expired offset. Nothing was left out.

    What to do: Run the command of the message, which reads the tables again from the source.
    """


class TooManyBadRecords(IngestStopped):
    """More records than the configuration allows could not be decoded. This batch was not committed.

    What to do: Correct the source or the configuration, or allow more in `[dead_letters]`.
    """


class NotErased(ObjcatError):
    """A search after `erase` found values of erased rows in objects. No certificate was issued. `objects` has their keys.

    What to do: Erase again: the call continues from here.

    Attributes:
        objects: the keys of the objects.
    """

    def __init__(self, message: str, objects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.objects = objects


class CommitConflict(ObjcatError):
    """Another commit won, for certain. Nothing of this commit is visible, and its files are removed. A write that can be repeated is: this
    error then comes after 100 rewrites or 300 seconds, which all conflicted.

    What to do: Read the table again, and repeat the write.

    Attributes:
        winner_slot: the slot of the commit that conflicts with this one.
        file_groups: the file groups that both commits touch, as text.
    """

    def __init__(self, message: str, *, winner_slot: int, file_groups: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.winner_slot = winner_slot
        self.file_groups = file_groups

    def __reduce__(self) -> tuple[object, ...]:
        return (_commit_conflict, (type(self), str(self), self.winner_slot, self.file_groups))


def _commit_conflict(kind: type[CommitConflict], message: str, winner_slot: int, file_groups: tuple[str, ...]) -> CommitConflict:
    return kind(message, winner_slot=winner_slot, file_groups=file_groups)


class Contention(CommitConflict):
    """Other writers took every slot that this commit tried, up to its limit of 10,000 slots or 300 seconds. Nothing was written.

    What to do: Write again later, or with fewer writers.
    """


class AlreadyApplied(CommitConflict):
    """The table already holds this version of the application, or a later one, since `winner_slot`. The write was not applied a second
    time.

    What to do: Continue with the next version.
    """


class AlreadyDone(CommitConflict):
    """Another process executed the same plan at `winner_slot`.

    What to do: Nothing: the work is done.
    """


class StreamRewound(CommitConflict):
    """A `RESTORE` at `winner_slot` took back commits of this application or source. More writes would leave a gap. Nothing was written.

    What to do: Restart the stream from the version that the message names. For a source, read what is missing again, and commit with
    `resumed_after`.
    """


class PositionConflict(CommitConflict):
    """The commit builds on another version of the position of a source than the log has. Nothing was written.

    What to do: Let one process read the source. Read the position with `lake.source_position`, and go on from there.

    Attributes:
        version: the version that the log has, -1 for none.
    """

    def __init__(self, message: str, *, winner_slot: int, version: int) -> None:
        super().__init__(message, winner_slot=winner_slot)
        self.version = version

    def __reduce__(self) -> tuple[object, ...]:
        return (_position_conflict, (str(self), self.winner_slot, self.version))


def _position_conflict(message: str, winner_slot: int, version: int) -> PositionConflict:
    return PositionConflict(message, winner_slot=winner_slot, version=version)


class SnapshotExpired(ObjcatError):
    """The slot was cleaned, and no savepoint retains it. Its files may be deleted.

    What to do: Read a newer slot. Next time, create a savepoint or raise the retention.
    """


class SharedTransaction(ObjcatError):
    """Another operation has the same transaction id. Nothing of this write is visible. Nothing was deleted, because the files may belong
    to the other operation.

    What to do: Write again. Find out why random numbers repeat on this machine.
    """


class WriterFenced(ObjcatError):
    """Another process considered this writer dead and rolled its transaction back. Nothing of the write is visible.

    What to do: Write again.
    """


class CommitUnknown(ObjcatError):
    """The store did not confirm whether the commit landed. `txn` names the transaction. Nothing was deleted.

    What to do: Call `table.resolve(txn)`, or `lake.resolve(txn)` for a change of names. Do not write again before that.

    Attributes:
        txn: the id of the transaction.
    """

    def __init__(self, message: str, txn: str) -> None:
        super().__init__(message)
        self.txn = txn

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.txn))


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type))
