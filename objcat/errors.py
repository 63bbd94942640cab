"""Errors of objcat, classed by what the caller can do about them. Storage errors (`fileio.errors`) pass through unchanged.

ObjcatError                 root
├── InvalidInput            a setting, a schema or a batch does not fit: the message names what fits; nothing was written
│   ├── InvalidSchema       a schema or a column type that a table cannot have
│   ├── InvalidBatch        the batch does not fit the table's schema: missing, unknown or mistyped columns
│   │   ├── EmptyBatch      it has no rows
│   │   ├── KeyExists       keys of it are in the table, and the insert was to fail then: upsert these rows, or skip them
│   │   └── NullKey         a key or ordering value is null or NaN
│   ├── InvalidPredicate    the text of a filter does not parse, or names an unknown column
│   ├── InvalidSql          a statement does not parse, or asks for what is not there
│   └── TablesInSeveralLogs  the tables of one transaction have several logs: create them with one shared_log
├── MissingOnWorkers        a Spark worker lacks objcat, or has another version or Python: install the driver's there; nothing was written
├── SparkJobLost            a job was cancelled, or Spark lost what it ran on: nothing is visible; write again when Spark runs
├── SparkJobFailed          a job failed over what it was to compute: the message says Spark's reason; nothing is visible; mend the frame
├── TableNotFound           no table at that name: create it, or look at the nearest name
├── TableExists             another table (or writer) has that name
├── NamespaceNotFound       no namespace of that name: create it, or look at the nearest name
├── NamespaceExists         a namespace has that name
├── NamespaceNotEmpty       a namespace that still holds names cannot be dropped
├── TableClosed             the table was dropped
├── UnsupportedFormat       the table needs a newer client: the message names the version
├── SnapshotExpired         the slot was cleaned away: read a newer one, or keep it by a savepoint next time
├── CheckpointCollected     part of the checkpoint that a handle stands on was collected: open the table again
│   └── CheckpointUnreadable part of it is damaged: open the table again, which passes over it
├── CorruptTable            metadata contradicts itself or is missing, or a file is not what was committed: the message names the object
├── CommitConflict          another commit won, for certain: nothing of this one is visible, its files are removed; write again
│   ├── Contention          other writers took every slot that was tried, within bounds: write again, with fewer writers
│   ├── AlreadyApplied      this version of the application is in the table: go on with the next one
│   ├── AlreadyDone         somebody else executed the same plan: there is nothing left to do
│   └── StreamRewound       a RESTORE took back what the application had written: start it again from the version that the message names
├── OutOfMemory             memory ended, or what a process may have of it: nothing of the call is visible; give fewer rows, or more memory
├── NotErased               a search found values of erased rows in objects that it names: erase again, which goes on
├── SharedTransaction       another operation has the id of this one: nothing of this one is visible, and nothing was deleted; write again
├── WriterFenced            this transaction was rolled back by somebody who thought it dead: write again
└── CommitUnknown           nobody can tell yet whether the commit landed: nothing was deleted; table.resolve(txn) settles it
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


class TablesInSeveralLogs(InvalidInput):
    """A transaction names tables that do not share a log. Nothing was written.

    What to do: Create the tables with one `shared_log`.
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
    """Another commit won, for certain; this one is not visible and never will be.

    winner_slot: the slot of the commit that it conflicts with. file_groups: what both touched, as text.
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
    """Other writers took every slot that this commit tried, until it reached its retry limit. Nothing was written.

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
    """A `RESTORE` at `winner_slot` took back commits of this application. More writes would leave a gap. Nothing was written.

    What to do: Restart the stream from the version that the message names.
    """


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
