"""What writers and readers do. A role is a frozen dataclass that is called once; to explore an operation, write one more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

from fileio.contract import Create, GetResult, require_written
from fileio.errors import FileIOError, NotFound
from objcat.catalog.table_lifecycle import create
from objcat.common.validation import TableType
from objcat.datafile.parquet import base_path, log_path
from objcat.errors import CommitUnknown, ObjcatError
from objcat.lake.standalone import create_table_at, table_at
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogRows, TableDelta, encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import MERGE_ON_READ, BucketIndex, TableSpec
from objcat.metadata.table_state import Tables
from objcat.tasks.model import GroupRewrite, Operation, WriteResult, WriteTask
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, Keys, Txn, new_txn
from objcat.timeline.intents import HEARTBEAT_S
from objcat.timeline.log_state import AppVersion
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.process_log import BaseCheck
from objcat.timeline.rollback import CommittedAt, Resolution, resolve
from objcat.timeline.side_objects import StoredChanges, put_digests
from objcat.timeline.turns import TurnSeeker
from objcat.write.engine import EngineCapabilities
from objcat.write.table_writer import TableWriter, WriteBatch
from objcat.write.transaction import WriteOperation, commit_write
from tests.explorer.actors import (
    Acknowledged,
    Actor,
    ActorEnv,
    Began,
    Broke,
    Created,
    Failed,
    Participant,
    Role,
    RolledBack,
    Saw,
    Undecided,
    owner_of,
)
from tests.explorer.toyfiles import bounds_of, encode_rows, get_base

BUCKETS = 2
WIDE_ORDERING = ("a", "v")
"""Ordering columns of which the first one has the first letter of the second one, so that both together order as the second one."""
TABLE_NAME = "t"
PREFIX = "t/"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
KEYS = (2, 0)
"""A key of each bucket."""


class WatchedCommitter(Committer):
    """A committer that notes what it tells its caller. beaten: the transaction that was beaten last; whether it is redone is the caller's
    to say."""

    def __init__(self, me: Participant) -> None:
        super().__init__(me.fileio)
        self._me = me
        self.beaten: str | None = None

    def try_commit(
        self,
        candidate: CommitAttempt,
        *,
        skew_ms: int = 0,
        changes: StoredChanges | None = None,
        hurries: bool = False,
        seeker: TurnSeeker | None = None,
        check: BaseCheck | None = None,
    ) -> Committed | Conflicted:
        try:
            outcome = super().try_commit(candidate, skew_ms=skew_ms, changes=changes, hurries=hurries, seeker=seeker, check=check)
        except CommitUnknown as error:
            self._me.note(Undecided(error.txn))
            raise
        except (ObjcatError, FileIOError):
            self._me.note(Failed(candidate.txn))
            raise
        if isinstance(outcome, Conflicted):
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

    @property
    def capabilities(self) -> EngineCapabilities:
        """It looks up no keys."""
        return EngineCapabilities()

    def schema(self, data: Sequence[int]) -> pa.Schema:
        """The columns of the table."""
        return SCHEMA

    def partitions(self, data: Sequence[int], spec: TableSpec, former: Collection[str]) -> None:
        """Not known."""

    def write(self, data: Sequence[int], task: WriteTask) -> WriteResult:
        """A base file for each bucket of an insert that is not live, and for each bucket of a copy-on-write table; one log object for the
        others."""
        data = [bucket for bucket in data if task.only is None or task.group_id(bucket) in task.only]
        inserts = task.operation is Operation.INSERT
        new = [bucket for bucket in data if task.spec.rewrites or (inserts and task.group_id(bucket) not in task.live_group_ids)]
        old = [bucket for bucket in data if bucket not in new]
        fileio = self.participant.fileio
        mark = mark_of(self.participant)
        result = WriteResult()
        if old:
            path = log_path(task.txn, task="explorer", attempt=fileio.env.new_id())
            group_ids = tuple(LogRows(task.group_id(bucket), i, i + 1) for i, bucket in enumerate(old))
            keys, values = [KEYS[bucket] for bucket in old], [mark] * len(old)
            self._put(path, k=keys, v=values, _objcat_op=[0] * len(old))
            bounds = bounds_of({"k": keys, "v": values})
            log = LogObject(path=path, bytes=4, rows=len(old), row_group_rows=16, slices=group_ids, bounds=bounds)
            result += WriteResult(logs=(log,), rows=len(old))
        for bucket in new:
            group_id = task.group_id(bucket)
            before = self._read(task.groups[group_id]) if group_id in task.groups else {}
            rows = {**before, KEYS[bucket]: (before.get(KEYS[bucket], "") if task.spec.rewrites else "") + mark}
            path = base_path(task.txn, group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
            self._put(path, k=list(rows), v=list(rows.values()))
            rewritten = (GroupRewrite(group_id, 1, 0, 1, 0, changed=True),) if task.spec.rewrites else ()
            bounds = bounds_of({"k": list(rows), "v": list(rows.values())})
            base = BaseFile(path=path, bytes=4, rows=1, group_id=group_id, bounds=bounds)
            result += WriteResult(bases=(base,), rows=1, rewritten=rewritten)
        return result

    def _put(self, path: str, **columns: list[Any]) -> None:
        fileio = self.participant.fileio
        fileio.env.sleep(HEARTBEAT_S)  # The work that a file is: long enough for an intent, or for a heart to beat, where one is slow.
        require_written(fileio.put(path, encode_rows(**columns), Create()), path)
        fileio.env.sleep(HEARTBEAT_S)  # And its upload.

    def _read(self, group: FileGroup) -> dict[int, str]:
        """The rows of the base file of a file group, which is all there is of a file group of a copy-on-write table."""
        if group.base is None:
            return {}
        rows = get_base(self.participant.fileio, group.base, ["k", "v"])
        return dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))


@dataclass(frozen=True, slots=True)
class Write:
    """One write to an open table, as a handle does it.

    resolves: asks for the outcome when nobody knows it. app_version: of an application, so that it counts once. refreshes: it
    begins with the newest slot.
    """

    buckets: tuple[int, ...] = (0,)
    operation: Operation = Operation.UPSERT
    resolves: bool = False
    app_version: int | None = None
    refreshes: bool = False

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesReducer())
        view = warm_view(me)
        table = snapshot_of(view, where="explorer").spec
        app = None if self.app_version is None else AppVersion(app="stream", version=self.app_version)
        if self.operation is Operation.INSERT or table.rewrites or app is not None or self.refreshes:
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
            app=app,
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
class Transact:
    """One transaction over some of the tables of an open log, as the block of a transaction ends: each gets the same rows.

    tables: by number, in the order of their creation. One table: a write beside transactions.
    """

    tables: tuple[int, ...] = (0, 1)
    operation: Operation = Operation.UPSERT

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesReducer())
        view = timeline.refresh(warm_view(me))
        known = sorted(view.log.tables)
        tables = [known[number] for number in self.tables]
        rewrites = snapshot_of(view, tables[0], where="explorer").spec.rewrites
        manifests, change = Manifests(me.fileio), WriteBatch(OneFile(me), (0,), self.operation)
        committer = WatchedCommitter(me)
        metadata = means("add" if rewrites else "put", KEYS[0], mark=mark_of(me)) | {"tables": " ".join(tables)}
        try:
            commit_write(
                timeline, committer, [TableWriter(me.fileio, manifests, table, [change]) for table in tables], view, metadata=metadata
            )
        except ObjcatError:
            if committer.beaten is not None:
                me.note(Failed(committer.beaten))
            raise


@dataclass(frozen=True, slots=True)
class Place:
    """Upserts a row under an index that has to be asked where a key lives: here it is the log that is asked, and says so by digests."""

    bucket: int = 0

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesReducer())
        view = timeline.open()
        spec = snapshot_of(view, where="explorer").spec
        committer = WatchedCommitter(me)
        txn = new_txn(me.fileio.env)
        skew_ms = committer.announce_if_slow(txn, Action.DELTA_COMMIT, view.log, engine="explorer")
        written = OneFile(me).write((self.bucket,), WriteTask(spec, txn, Operation.UPSERT))
        key, mark = KEYS[self.bucket], mark_of(me)
        for _ in range(3):
            known = any(
                str(key) in entry.metadata.get("does", "").split(" ")[1:2] for entry in timeline.log.read_after(-1, until=view.slot)
            )
            digests = put_digests(me.fileio, txn, key.to_bytes(8, "little"))
            candidate = CommitAttempt(
                txn=txn,
                action=Action.DELTA_COMMIT,
                base=view.log,
                changes={spec.table: encode_delta(TableDelta(logs=written.logs))},
                footprint={
                    spec.table: Footprint(
                        appends=tuple(rows.group_id for rows in written.logs[0].slices),
                        keys=Keys(updated=digests) if known else Keys(placed=digests),
                    )
                },
                metadata=means("put" if known else "place", key, mark=mark),
            )
            outcome = committer.try_commit(candidate, skew_ms=skew_ms())
            if isinstance(outcome, Committed):
                return
            view = timeline.advance(view, outcome.read)
        raise AssertionError("three others wrote the same key")


@dataclass(frozen=True, slots=True)
class Slowly:
    """Does something so slowly that it is announced, and that its heart beats around every file and whenever it waits.

    after: so many pauses pass quickly; after 1, a write has its first file before it is announced.
    """

    role: Role
    after: int = 0

    def __call__(self, me: Participant) -> None:
        assert isinstance(me.fileio.env, ActorEnv)
        me.fileio.env.slow_after = self.after
        self.role(me)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """Upserts a row to a table with an ordering column, or deletes it, through a handle.

    value: what it is measured by. is_wide: the table has the first letter of the value as an ordering column too, before the value.
    """

    key: int
    value: str
    deletes: bool = False
    is_wide: bool = False

    def __call__(self, me: Participant) -> None:
        table = table_at(me.fileio.child(TABLE_NAME))
        verb, write = ("drop", table.delete) if self.deletes else ("put", table.upsert)
        row = {"k": self.key, "v": self.value, **({"a": self.value[0]} if self.is_wide else {})}
        done = write([row], metadata=means(verb, self.key, mark=self.value))
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class RollBack:
    """Finds whom it thinks dead by intents and files, and rolls each one back. owners: of the transactions that it is after."""

    owners: tuple[int, ...]

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        keys = [key for folder in ("intents/", "data/") for key in me.fileio.list_keys(folder)]
        for txn in dict.fromkeys(key.split("/")[1].partition(".")[0] for key in keys):
            if owner_of(txn) in self.owners:
                settle(me, txn)


@dataclass(frozen=True, slots=True)
class Read:
    """Opens the log, then refreshes its handle, and reads every file of every table that it got each time.

    consistent: the store keeps its promise that reads see the newest write, so what was read must be new, and every file there.
    """

    reads: int = 2
    consistent: bool = True

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        timeline = Timeline(me.fileio, TablesReducer())
        view: LogView[Tables] | None = None
        for _ in range(self.reads):
            if self.consistent:
                me.note(Began(PREFIX))
            view = timeline.open() if view is None else timeline.refresh(view)
            if view.slot < 0:
                continue
            for table in sorted(view.log.tables):
                groups = snapshot_of(view, table, where="explorer").file_groups(Manifests(me.fileio))
                held = tuple((msgspec.structs.astuple(group.group_id), paths_of(group)) for group in groups)
                me.note(Saw(PREFIX, view.slot, table, held))
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
class Scan:
    """Scans the table twice on one handle, as a user does. Between them a cleaning may have passed: then it is told so."""

    def __call__(self, me: Participant) -> None:
        me.note(Began(PREFIX))
        table = table_at(me.fileio.child(TABLE_NAME))
        for number in range(2):
            if number:
                me.note(Began(PREFIX))
            scan = table.scan()
            rows = scan.to_arrow().to_pylist()
            me.note(Saw(PREFIX, scan.plan.snapshot.slot, rows=tuple(sorted((row["k"], row["v"]) for row in rows))))


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Creates the table. The check of the store is left out: it writes keys that nobody else ever sees.

    ordering: a column, or `WIDE_ORDERING`.
    """

    kind: TableType = MERGE_ON_READ
    ordering: str | tuple[str, ...] | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def __call__(self, me: Participant) -> None:
        place = me.fileio.child(TABLE_NAME)
        is_wide = self.ordering == WIDE_ORDERING
        schema = SCHEMA.append(pa.field("a", pa.string())) if is_wide else SCHEMA
        settings: dict[str, Any] = {
            "ordering": list(WIDE_ORDERING) if is_wide else self.ordering,
            "table_type": self.kind,
            "properties": dict(self.properties),
        }
        with mock.patch("objcat.lake.standalone.check_commit_store"):
            table = create_table_at(place, schema, key=["k"], index=BucketIndex(BUCKETS), **settings)
        snapshot = table.snapshot
        me.note(Created(snapshot.spec.table, snapshot.slot))


@dataclass(frozen=True, slots=True)
class AddTable:
    """Creates one more table in the log, like the first one."""

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        view = warm_view(me)
        (first,) = view.state
        spec = msgspec.structs.replace(snapshot_of(view, where="explorer").spec, table=me.fileio.env.new_id())
        assert spec.table > first, "tables are told apart by the order of their ids"
        create(Timeline(me.fileio, TablesReducer()), view, spec, new_txn(me.fileio.env))


CREATED = (Actor("creator", 15, CreateTable()),)
"""Makes the table that most cells begin with."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Rolls back one transaction that it has heard of."""

    txn: str

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        settle(me, self.txn)


@dataclass(frozen=True, slots=True)
class Abandon:
    """Announces a write and writes a file, and is heard of no more."""

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        view = warm_view(me)
        spec = snapshot_of(view, where="explorer").spec
        txn = new_txn(me.fileio.env)
        Committer(me.fileio).announce(txn, Action.DELTA_COMMIT, view.log, engine="explorer").result()
        OneFile(me).write((0,), WriteTask(spec, txn, Operation.UPSERT))


@dataclass(frozen=True, slots=True)
class InTurn:
    """Does one thing after another."""

    roles: tuple[Role, ...]

    def __call__(self, me: Participant) -> None:
        root = me.fileio
        for role in self.roles:
            me.fileio = root
            role(me)


# ---- what roles share --------------------------------------------------------------------------------------------


def mark_of(me: Participant) -> str:
    """What an actor writes into its rows."""
    return f"{me.number}."


def means(verb: str, *keys: int, mark: str) -> dict[str, str]:
    """Metadata of a commit that say what it is meant to do: the replay of `facts.py` goes by them, and not by files."""
    return {"does": f"{verb} {','.join(str(key) for key in keys)} {mark}"}


def paths_of(group: FileGroup) -> tuple[str, ...]:
    """The files of a group, in the order in which their rows count."""
    paths = [group.base.path] if group.base else []
    return tuple(dict.fromkeys([*paths, *(rows.object.path for rows in group.logs)]))


def settle(me: Participant, txn: str) -> None:
    """Resolve a transaction and note what it says."""
    note_outcome(me, txn, resolve(me.fileio, Txn(txn)))


def note_outcome(me: Participant, txn: str, answer: Resolution) -> None:
    """Note what became of a transaction."""
    if isinstance(answer, CommittedAt):
        me.note(Acknowledged(txn, answer.slot))
    else:
        me.note(RolledBack(txn, answer.slot))


def open_warm(me: Participant) -> tuple[Timeline[Tables], str]:
    """The table's log and its id, as somebody knows them who has worked with it before."""
    me.fileio = me.fileio.child(TABLE_NAME)
    return Timeline(me.fileio, TablesReducer()), snapshot_of(warm_view(me), where="explorer").spec.table


def warm_view(me: Participant) -> LogView[Tables]:
    """The table as somebody knows it who has it open since the beginning."""
    assert me.warm is not None, "a role that writes to an open table begins where there is one"
    return me.warm
