"""What users of a lake do: names, namespaces, drops. A role is a frozen dataclass that is called once."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

from objcat.errors import TableNotFound
from objcat.lake.create import drop_created_table, write_first
from objcat.lake.lake import Lake
from objcat.metadata.table_spec import BucketIndex
from objcat.table.table import Table
from tests.explorer.actors import Acknowledged, Dropped, Named, Participant, TakenBack
from tests.explorer.roles import BUCKETS, SCHEMA, mark_of, means


@dataclass(frozen=True, slots=True)
class Name:
    """Creates a table in a lake."""

    name: str
    domain: str | None = None

    def __call__(self, me: Participant) -> None:
        lake = Lake(me.fileio)
        with mock.patch("objcat.lake.context.check_commit_store"):
            table = lake.create_table(self.name, SCHEMA, key=["k"], index=BucketIndex(BUCKETS), shared_log=self.domain)
        me.note(Named(self.name, table.id))


@dataclass(frozen=True, slots=True)
class NameWithRow:
    """Creates a table with one row in a lake, which has to be new."""

    name: str
    domain: str | None = None

    def __call__(self, me: Participant) -> None:
        mark = mark_of(me)

        def write(table: Table, _is_new: bool) -> str:
            table.upsert([{"k": 2, "v": mark}], metadata=means("put", 2, mark=mark))
            return table.id

        settings = {"index": BucketIndex(BUCKETS), "shared_log": self.domain}
        with mock.patch("objcat.lake.context.check_commit_store"):
            table = write_first(Lake(me.fileio)._context, self.name, lambda: SCHEMA, ["k"], settings, write, must_be_new=True)
        me.note(Named(self.name, table))


@dataclass(frozen=True, slots=True)
class ReadWhole:
    """Reads a table that somebody creates with one row. A part of it is an error."""

    name: str

    def __call__(self, me: Participant) -> None:
        try:
            table = Lake(me.fileio).table(self.name)
        except TableNotFound:
            return
        assert table.scan().count() == 1, "a table is there without its rows"


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops a table of a lake."""

    name: str

    def __call__(self, me: Participant) -> None:
        lake = Lake(me.fileio)
        table = lake.table(self.name).id
        lake.drop_table(self.name)
        me.note(Dropped(table))


@dataclass(frozen=True, slots=True)
class Undrop:
    """Brings a dropped table back."""

    name: str

    def __call__(self, me: Participant) -> None:
        table = Lake(me.fileio).undrop_table(self.name)
        me.note(Named(self.name, table.id))


@dataclass(frozen=True, slots=True)
class Rename:
    """Gives a table of a lake another name."""

    name: str
    new_name: str

    def __call__(self, me: Participant) -> None:
        Lake(me.fileio).rename_table(self.name, self.new_name)


@dataclass(frozen=True, slots=True)
class MakeSpace:
    """Creates a namespace in a lake."""

    name: str

    def __call__(self, me: Participant) -> None:
        Lake(me.fileio).namespaces.create(self.name)


@dataclass(frozen=True, slots=True)
class DropSpace:
    """Drops a namespace of a lake."""

    name: str

    def __call__(self, me: Participant) -> None:
        Lake(me.fileio).namespaces.drop(self.name)


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Takes a table of a lake back, as whoever created it for a first write that was refused. opened: the slot that created it."""

    name: str
    opened: int = 0

    def __call__(self, me: Participant) -> None:
        lake = Lake(me.fileio)
        table = lake.table(self.name)
        if drop_created_table(lake._context.catalog, table._context.timeline, table.id, opened=self.opened):
            me.note(Dropped(table.id))
            me.note(TakenBack(table.id))


@dataclass(frozen=True, slots=True)
class WriteNamed:
    """One upsert of one row to a table of a lake, as a user makes it."""

    name: str
    key: int = 2

    def __call__(self, me: Participant) -> None:
        mark = mark_of(me)
        table = Lake(me.fileio).table(self.name)
        done = table.upsert([{"k": self.key, "v": mark}], metadata=means("put", self.key, mark=mark))
        me.note(Acknowledged(done.txn, done.slot))
