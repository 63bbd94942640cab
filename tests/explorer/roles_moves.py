"""What happens to a table in which keys are looked up, and go from one partition to another: with all of its code as it ships."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

from objcat import Simple, create_table_at, table_at
from objcat.table.spec import MERGE_ON_READ, SimpleIndex
from tests.explorer.actors import Acknowledged, Created, Participant
from tests.explorer.roles import KEYS, TABLE_NAME, means
from tests.explorer.toyfiles import SCHEMA

HOMES = 4
"""Of a partition: the fold of whoever judges the store goes over all of them."""


@dataclass(frozen=True, slots=True)
class CreateMoving:
    """Creates a table whose rows lie in the partition of the first letter of their value."""

    kind: str = MERGE_ON_READ
    ordering: str | None = None

    def __call__(self, me: Participant) -> None:
        place = me.fileio.child(TABLE_NAME)
        kept = SimpleIndex(count=HOMES)
        with mock.patch("objcat.alone.check_commit_store"), mock.patch("objcat.table.spec.SimpleIndex", return_value=kept):
            table = create_table_at(
                place, SCHEMA, key=["k"], ordering=self.ordering, partition_by=["truncate(v, 1)"], index=Simple(), kind=self.kind
            )
        me.note(Created(table.snapshot.spec.table, table.snapshot.slot))


@dataclass(frozen=True, slots=True)
class Move:
    """Upserts a row, which says by its value where it lies from now on."""

    value: str
    bucket: int = 0

    def __call__(self, me: Participant) -> None:
        key = KEYS[self.bucket]
        table = table_at(me.fileio.child(TABLE_NAME))
        done = table.upsert([{"k": key, "v": self.value}], metadata=means("put", key, mark=self.value))
        me.note(Acknowledged(done.txn, done.slot))
