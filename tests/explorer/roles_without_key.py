"""What happens to tables without a key, whose rows may lie in any file group of their partition: with all of their code as it ships."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

from objcat import create_table_at, table_at
from objcat.common.validation import TableType
from objcat.maintenance.cluster import cluster
from objcat.maintenance.cluster_keys import Clustering
from objcat.metadata.table_spec import MERGE_ON_READ, NoIndex
from tests.explorer.actors import Acknowledged, Created, Participant
from tests.explorer.roles import TABLE_NAME, means, open_warm
from tests.explorer.toyfiles import SCHEMA

GROUP_IDS = 8
"""Of a partition: the replay of whoever judges the store goes over all of them."""


@dataclass(frozen=True, slots=True)
class CreateWithoutKey:
    """Creates a table whose rows lie in the partition of the first letter of their value."""

    kind: TableType = MERGE_ON_READ

    def __call__(self, me: Participant) -> None:
        place = me.fileio.child(TABLE_NAME)
        index = NoIndex(count=GROUP_IDS)
        with mock.patch("objcat.lake.standalone.check_commit_store"), mock.patch("objcat.metadata.table_spec.NoIndex", return_value=index):
            table = create_table_at(place, SCHEMA, key=None, partition_by=["truncate(v, 1)"], table_type=self.kind)
        me.note(Created(table.snapshot.spec.table, table.snapshot.slot))


@dataclass(frozen=True, slots=True)
class Append:
    """Adds a row, of a number that no other has. apart: as a file group of its own; else as log rows, where there is a group."""

    number: int
    value: str
    apart: bool = False

    def __call__(self, me: Participant) -> None:
        table = table_at(me.fileio.child(TABLE_NAME))
        write = table.bulk_insert if self.apart else table.insert
        done = write([{"k": self.number, "v": self.value}], metadata=means("put", self.number, mark=self.value))
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class TakeOut:
    """Deletes the row of a number, by a filter."""

    number: int

    def __call__(self, me: Participant) -> None:
        table = table_at(me.fileio.child(TABLE_NAME))
        done = table.delete(f"k = {self.number}", metadata=means("end", self.number, mark="-"))
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Joins small file groups. where: which, as a filter."""

    where: str | None = None

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        done = cluster(timeline, table, Clustering(where=self.where))
        if done is not None:
            me.note(Acknowledged(done.txn, done.slot))
