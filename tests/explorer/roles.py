"""What actors do. A role is a frozen dataclass that is called once; to explore an operation, write one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa

from fileio.base import Create, GetResult, require_written
from fileio.errors import FileIOError, NotFound
from objcat.errors import CommitUnknown, ObjcatError
from objcat.lake import Lake
from objcat.storage.files import base_path, log_path
from objcat.table import BaseFile, Bucket, LogObject, LogRows, Manifests, Snapshot, Tables, TablesFold
from objcat.table.snapshot import snapshot_of
from objcat.tasks import Operation, WriteResult, WriteTask
from objcat.timeline import Candidate, Committed, CommittedAt, Committer, Entry, Log, LogState, Timeline, Txn, View, resolve
from objcat.write import WriteOperation
from tests.explorer.actors import Acknowledged, Began, Broke, Created, Failed, Participant, RolledBack, Saw, Undecided, owner_of

BUCKETS = 2
TABLE_NAME = "t"


class WatchedCommitter(Committer):
    """A committer that notes what it tells its caller."""

    def __init__(self, me: Participant) -> None:
        super().__init__(me.fileio)
        self._me = me

    def commit(self, candidate: Candidate, *, skew_ms: int = 0) -> Committed:
        try:
            committed = super().commit(candidate, skew_ms=skew_ms)
        except CommitUnknown as error:
            self._me.note(Undecided(error.txn))
            raise
        except (ObjcatError, FileIOError):
            self._me.note(Failed(candidate.txn))
            raise
        self._me.note(Acknowledged(candidate.txn, committed.entry.slot))
        return committed


@dataclass(frozen=True, slots=True)
class OneFile:
    """An engine whose files are a few bytes: the buckets are the data, each of them one row."""

    participant: Participant

    @property
    def name(self) -> str:
        return "explorer"

    def write(self, data: Sequence[int], task: WriteTask) -> WriteResult:
        """A base file for each bucket of an insert that is not live, one log object for the others."""
        new = [bucket for bucket in data if task.operation is Operation.INSERT and bucket not in task.live_buckets]
        old = [bucket for bucket in data if bucket not in new]
        fileio = self.participant.fileio
        result = WriteResult()
        if old:
            path = log_path(task.txn, task="explorer", attempt=fileio.env.new_id())
            homes = tuple(LogRows(task.spec.home(bucket), i, i + 1) for i, bucket in enumerate(old))
            self._put(path)
            log = LogObject(path=path, bytes=4, rows=len(old), row_group_rows=16, homes=homes)
            result += WriteResult(logs=(log,), rows=len(old))
        for bucket in new:
            home = task.spec.home(bucket)
            path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
            self._put(path)
            result += WriteResult(bases=(BaseFile(path=path, bytes=4, rows=1, home=home),), rows=1)
        return result

    def _put(self, path: str) -> None:
        require_written(self.participant.fileio.put(path, b"rows", Create()), path)


@dataclass(frozen=True, slots=True)
class Write:
    """One write to an open table, as a handle does it. resolves: asks for the outcome when nobody knows it."""

    buckets: tuple[int, ...] = (0,)
    operation: Operation = Operation.UPSERT
    resolves: bool = False

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesFold())
        view = _warm(me)

        def refresh() -> Snapshot:
            nonlocal view
            view = timeline.refresh(view)
            return snapshot_of(view, where="explorer")

        first = refresh() if self.operation is Operation.INSERT else snapshot_of(view, where="explorer")
        write = WriteOperation(me.fileio, Manifests(me.fileio), WatchedCommitter(me), OneFile(me), self.buckets, self.operation, {})
        try:
            write.run(first, refresh)
        except CommitUnknown as error:
            if self.resolves:
                settle(me, error.txn)


@dataclass(frozen=True, slots=True)
class RollBack:
    """Finds whom it thinks dead by the intents, and rolls each one back. owners: of the transactions that it is after."""

    owners: tuple[int, ...]

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        for key in list(me.fileio.list_keys("intents/")):
            txn = key.partition("/")[2].partition(".")[0]
            if owner_of(txn) in self.owners:
                settle(me, txn)


@dataclass(frozen=True, slots=True)
class Read:
    """Opens the table, then refreshes its handle, and reads every file of what it got each time.

    consistent: the store keeps its promise that reads see the newest write, so what was read must be new, and every file there.
    """

    reads: int = 2
    consistent: bool = True

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesFold())
        entries: list[Entry] = []
        view: View[Tables] = View(LogState(), {})
        for _ in range(self.reads):
            if self.consistent:
                me.note(Began())
            new = Log(me.fileio).read_after(view.slot)
            entries += new
            view = timeline.advance(view, new)
            if not entries:
                continue
            me.note(Saw(tuple(str(entry.txn) for entry in entries)))
            for group in snapshot_of(view, where="explorer").file_groups(Manifests(me.fileio)):
                paths = [group.base.path] if group.base else []
                for path in [*paths, *(rows.object.path for rows in group.logs)]:
                    self._read_file(me, path)

    def _read_file(self, me: Participant, path: str) -> None:
        try:
            assert isinstance(me.fileio.get(path), GetResult)
        except NotFound:
            if self.consistent:
                me.note(Broke(f"{path}, which the log names, is not there"))


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Creates the table. The check of the store is left out: it writes keys that nobody else ever sees."""

    def __call__(self, me: Participant) -> None:
        with mock.patch("objcat.lake.check_commit_store"):
            table = Lake(me.fileio).create_table(TABLE_NAME, pa.schema([("k", pa.int64())]), key=["k"], index=Bucket(BUCKETS))
        snapshot = table.snapshot
        me.note(Created(snapshot.spec.table, snapshot.slot))


def settle(me: Participant, txn: str) -> None:
    """Resolve a transaction and note what it says."""
    answer = resolve(me.fileio, Txn(txn))
    if isinstance(answer, CommittedAt):
        me.note(Acknowledged(txn, answer.slot))
    else:
        me.note(RolledBack(txn, answer.slot))


def _warm(me: Participant) -> View[Tables]:
    assert me.warm is not None, "a role that writes to an open table begins where there is one"
    return me.warm
