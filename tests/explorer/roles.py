"""What actors do. A role is a frozen dataclass that is called once; to explore an operation, write one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

from fileio.base import Create, GetResult, require_written
from fileio.errors import FileIOError, NotFound
from objcat import services
from objcat.errors import CommitUnknown, ObjcatError
from objcat.lake import create_table_at
from objcat.storage.files import base_path, log_path
from objcat.table import BaseFile, Bucket, FileGroup, LogObject, LogRows, Manifests, Tables, TablesFold
from objcat.table.snapshot import snapshot_of
from objcat.table.spec import MERGE_ON_READ
from objcat.tasks import Operation, Rewritten, WriteResult, WriteTask
from objcat.timeline import Beaten, Candidate, Committed, CommittedAt, Committer, Timeline, Txn, View, resolve
from objcat.write import WriteOperation
from tests.explorer.actors import Acknowledged, Actor, Began, Broke, Created, Failed, Participant, RolledBack, Saw, Undecided, owner_of
from tests.explorer.toyfiles import encode_rows, get_base

BUCKETS = 2
TABLE_NAME = "t"
PREFIX = "t/"
KEYS = (2, 0)
"""A key of each bucket."""
PLAN_TXN = "20270115T080000000Z-ee00000000000001"


class WatchedCommitter(Committer):
    """A committer that notes what it tells its caller. beaten: the transaction that was beaten last; whether it is redone is the caller's
    to say."""

    def __init__(self, me: Participant) -> None:
        super().__init__(me.fileio)
        self._me = me
        self.beaten: str | None = None

    def try_commit(self, candidate: Candidate, *, skew_ms: int = 0) -> Committed | Beaten:
        try:
            outcome = super().try_commit(candidate, skew_ms=skew_ms)
        except CommitUnknown as error:
            self._me.note(Undecided(error.txn))
            raise
        except (ObjcatError, FileIOError):
            self._me.note(Failed(candidate.txn))
            raise
        if isinstance(outcome, Beaten):
            self.beaten = candidate.txn
        else:
            self.beaten = None
            self._me.note(Acknowledged(candidate.txn, outcome.entry.slot))
        return outcome


@dataclass(frozen=True, slots=True)
class OneFile:
    """An engine whose files are a few bytes: the buckets are the data, each of them one row."""

    participant: Participant

    @property
    def name(self) -> str:
        return "explorer"

    def write(self, data: Sequence[int], task: WriteTask) -> WriteResult:
        """A base file for each bucket of an insert that is not live, and for each bucket of a copy-on-write table; one log object for the
        others."""
        data = [bucket for bucket in data if task.only is None or bucket in task.only]
        inserts = task.operation is Operation.INSERT
        new = [bucket for bucket in data if task.spec.rewrites or (inserts and bucket not in task.live_buckets)]
        old = [bucket for bucket in data if bucket not in new]
        fileio = self.participant.fileio
        mark = mark_of(self.participant)
        result = WriteResult()
        if old:
            path = log_path(task.txn, task="explorer", attempt=fileio.env.new_id())
            homes = tuple(LogRows(task.spec.home(bucket), i, i + 1) for i, bucket in enumerate(old))
            self._put(path, k=[KEYS[bucket] for bucket in old], v=[mark] * len(old), _objcat_op=[0] * len(old))
            log = LogObject(path=path, bytes=4, rows=len(old), row_group_rows=16, homes=homes)
            result += WriteResult(logs=(log,), rows=len(old))
        for bucket in new:
            home = task.spec.home(bucket)
            before = self._read(task.groups[bucket]) if bucket in task.groups else {}
            rows = {**before, KEYS[bucket]: (before.get(KEYS[bucket], "") if task.spec.rewrites else "") + mark}
            path = base_path(task.txn, home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
            self._put(path, k=list(rows), v=list(rows.values()))
            rewritten = (Rewritten(home, 1, 0, 1, 0, changed=True),) if task.spec.rewrites else ()
            result += WriteResult(bases=(BaseFile(path=path, bytes=4, rows=1, home=home),), rows=1, rewritten=rewritten)
        return result

    def _put(self, path: str, **columns: list[Any]) -> None:
        require_written(self.participant.fileio.put(path, encode_rows(**columns), Create()), path)

    def _read(self, group: FileGroup) -> dict[int, str]:
        """The rows of the base file of a home, which is all there is of a home of a copy-on-write table."""
        if group.base is None:
            return {}
        rows = get_base(self.participant.fileio, group.base, ["k", "v"])
        return dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))


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
        table = snapshot_of(view, where="explorer").spec
        if self.operation is Operation.INSERT or table.rewrites:
            view = timeline.refresh(view)
        committer = WatchedCommitter(me)
        write = WriteOperation(
            timeline=timeline,
            table=table.table,
            manifests=Manifests(me.fileio),
            committer=committer,
            engine=OneFile(me),
            data=self.buckets,
            operation=self.operation,
            metadata=means("add" if table.rewrites else "put", *(KEYS[bucket] for bucket in self.buckets), mark=mark_of(me)),
        )
        try:
            write.run(view)
        except CommitUnknown as error:
            if self.resolves:
                settle(me, error.txn)
        except ObjcatError:
            if committer.beaten is not None:
                me.note(Failed(committer.beaten))
            raise


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
        view: View[Tables] | None = None
        for _ in range(self.reads):
            if self.consistent:
                me.note(Began(PREFIX))
            view = timeline.open() if view is None else timeline.refresh(view)
            if view.slot < 0:
                continue
            snapshot = snapshot_of(view, where="explorer")
            groups = snapshot.file_groups(Manifests(me.fileio))
            me.note(Saw(PREFIX, view.slot, groups=tuple((msgspec.structs.astuple(group.home), paths_of(group)) for group in groups)))
            for group in groups:
                for path in paths_of(group):
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

    kind: str = MERGE_ON_READ

    def __call__(self, me: Participant) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
        with mock.patch("objcat.lake.check_commit_store"):
            table = create_table_at(me.fileio.child(TABLE_NAME), schema, key=["k"], index=Bucket(BUCKETS), kind=self.kind)
        snapshot = table.snapshot
        me.note(Created(snapshot.spec.table, snapshot.slot))


# ---- services ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compact:
    """Compacts every home that has log rows."""

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        done = services.compact(timeline, table)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Execute:
    """Executes one plan of a compaction, made by somebody else as of a slot."""

    slot: int

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        view = timeline.at(self.slot)
        plan = services.plan_compaction(view, table, Manifests(me.fileio))
        assert plan is not None
        done = services.compact(timeline, table, plan=replace(plan, txn=Txn(PLAN_TXN)))
        assert done is not None
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Split:
    """Gives the table twice as many buckets as it was made with."""

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        done = services.split_buckets(timeline, table, count=2 * BUCKETS)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Clean:
    """Cleans all but the newest slots."""

    keep_slots: int = 1

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        done = services.clean(timeline, table, keep_slots=self.keep_slots)
        if done.txn is not None and done.slot is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Save:
    """Sets a savepoint, or releases one."""

    slot: int
    release: bool = False

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        done = (services.release if self.release else services.savepoint)(timeline, table, slot=self.slot)
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Restore:
    """Restores the table to a slot."""

    to: int

    def __call__(self, me: Participant) -> None:
        timeline, table = _open(me)
        done = services.restore(timeline, table, to=self.to)
        me.note(Acknowledged(done.txn, done.slot))


CREATED = (Actor("creator", 15, CreateTable()),)
"""Makes the table that most cells begin with."""


# ---- what roles share --------------------------------------------------------------------------------------------


def mark_of(me: Participant) -> str:
    """What an actor writes into its rows."""
    return f"{me.number}."


def means(verb: str, *keys: int, mark: str) -> dict[str, str]:
    """Metadata of a commit that say what it is meant to do: the fold of `facts.py` goes by them, and not by files."""
    return {"does": f"{verb} {','.join(str(key) for key in keys)} {mark}"}


def paths_of(group: FileGroup) -> tuple[str, ...]:
    """The files of a group, in the order in which their rows count."""
    paths = [group.base.path] if group.base else []
    return tuple(dict.fromkeys([*paths, *(rows.object.path for rows in group.logs)]))


def settle(me: Participant, txn: str) -> None:
    """Resolve a transaction and note what it says."""
    answer = resolve(me.fileio, Txn(txn))
    if isinstance(answer, CommittedAt):
        me.note(Acknowledged(txn, answer.slot))
    else:
        me.note(RolledBack(txn, answer.slot))


def _open(me: Participant) -> tuple[Timeline[Tables], str]:
    """The table's log and its id, as somebody knows them who has worked with it before."""
    me.fileio = me.fileio.child(TABLE_NAME)
    return Timeline(me.fileio, TablesFold()), snapshot_of(_warm(me), where="explorer").spec.table


def _warm(me: Participant) -> View[Tables]:
    assert me.warm is not None, "a role that writes to an open table begins where there is one"
    return me.warm
