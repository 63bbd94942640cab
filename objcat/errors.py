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
│   └── SeveralDomains      the tables of one transaction have several logs: create them with one domain
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
    """Root of every error that objcat itself raises."""


class InvalidInput(ObjcatError):
    """A setting, schema or batch that does not fit. Nothing was written."""


class InvalidSchema(InvalidInput):
    """A schema or column type that a table cannot have."""


class InvalidBatch(InvalidInput):
    """A batch that does not fit the table's schema."""


class EmptyBatch(InvalidBatch):
    """A batch without rows."""


class KeyExists(InvalidBatch):
    """A batch to insert, with keys that are in the table already."""


class NullKey(InvalidBatch):
    """A key column holds a null, or an ordering column a null or NaN."""


class InvalidPredicate(InvalidInput):
    """Filter text that does not parse, or names a column that the table does not have."""


class InvalidSql(InvalidInput):
    """The text of a statement does not parse, or asks for what is not there."""


class SeveralDomains(InvalidInput):
    """A transaction names tables that do not share a log."""


class MissingOnWorkers(ObjcatError):
    """A Spark worker cannot import objcat, has another version of it than the driver, or runs another Python. Nothing was written."""


class SparkJobLost(ObjcatError):
    """A job of Spark's was cancelled, or Spark lost what it ran on. Nothing of the write is visible: write again when Spark runs."""


class SparkJobFailed(ObjcatError):
    """A job of Spark's failed over what it was to compute: an expression or a function of the frame, a file that it reads. Nothing of the
    write is visible; Spark's own error is the cause."""


class TableNotFound(ObjcatError):
    """There is no table at that place."""


class TableExists(ObjcatError):
    """There is a table at that place already."""


class NamespaceNotFound(ObjcatError):
    """There is no namespace of that name."""


class NamespaceExists(ObjcatError):
    """There is a namespace of that name already."""


class NamespaceNotEmpty(ObjcatError):
    """The namespace still holds tables or namespaces."""


class TableClosed(ObjcatError):
    """The table was dropped."""


class UnsupportedFormat(ObjcatError):
    """The table's metadata needs a newer version of objcat."""


class CheckpointCollected(ObjcatError):
    """An object of the checkpoint that a view stands on was collected: opened again, the same slot stands on a newer checkpoint.

    path: of the object.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (_checkpoint_error, (type(self), str(self), self.path))


class CheckpointUnreadable(CheckpointCollected):
    """An object of the checkpoint that a view stands on is damaged: opened again, the same slot stands on an older one, or on the log."""


def _checkpoint_error(kind: type[CheckpointCollected], message: str, path: str) -> CheckpointCollected:
    return kind(message, path=path)


class CorruptTable(ObjcatError):
    """Metadata that contradicts itself, or an object that is missing, or not what was written, although metadata names it."""


class OutOfMemory(ObjcatError, MemoryError):
    """Memory ended, or what the process may have of it. The commit that was under way did not happen; what came before it stays."""


class NotErased(ObjcatError):
    """Objects still hold values of rows that were erased, so that no certificate is given. objects: their keys."""

    def __init__(self, message: str, objects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.objects = objects


class CommitConflict(ObjcatError):
    """Another commit won, for certain; this one is not visible and never will be.

    winner_slot: the slot of the commit that it conflicts with. homes: what both touched, as text.
    """

    def __init__(self, message: str, *, winner_slot: int, homes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.winner_slot = winner_slot
        self.homes = homes

    def __reduce__(self) -> tuple[object, ...]:
        return (_commit_conflict, (type(self), str(self), self.winner_slot, self.homes))


def _commit_conflict(kind: type[CommitConflict], message: str, winner_slot: int, homes: tuple[str, ...]) -> CommitConflict:
    return kind(message, winner_slot=winner_slot, homes=homes)


class Contention(CommitConflict):
    """Other writers took every slot that was tried, until the bounds of the policy were reached."""


class AlreadyApplied(CommitConflict):
    """The application's version, or a later one, is in the table since `winner_slot`: this write must not count twice, and did not."""


class AlreadyDone(CommitConflict):
    """The plan was executed by somebody else at `winner_slot`."""


class StreamRewound(CommitConflict):
    """A RESTORE at `winner_slot` took back commits of this application: writing on would leave a gap."""


class SnapshotExpired(ObjcatError):
    """The slot lies below the bound of cleaning, and no savepoint keeps it."""


class SharedTransaction(ObjcatError):
    """Another operation has the same transaction id. Nothing of this one is visible; nothing was deleted, since it may be the other's."""


class WriterFenced(ObjcatError):
    """The transaction was rolled back by another process before it committed."""


class CommitUnknown(ObjcatError):
    """The outcome of a commit is not known; `txn` names it. Nothing was deleted."""

    def __init__(self, message: str, txn: str) -> None:
        super().__init__(message)
        self.txn = txn

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.txn))


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if isinstance(value, type))
