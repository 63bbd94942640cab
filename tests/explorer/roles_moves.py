"""What happens to tables in which keys are looked up, and may go from one partition to another: with all of their code as it ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

from objcat import BloomIndex, MemoryIndex, RecordIndex, SimpleIndex, create_table_at, table_at
from objcat.common.validation import TableType
from objcat.metadata.table_spec import MERGE_ON_READ, BloomIndexSpec, Index, MemoryIndexSpec, RecordIndexSpec, SimpleIndexSpec
from tests.explorer.actors import Acknowledged, Created, Participant
from tests.explorer.roles import KEYS, TABLE_NAME, means
from tests.explorer.toyfiles import SCHEMA

GROUP_IDS = 4
"""Of a partition: the replay of whoever judges the store goes over all of them."""
INDEXES: Mapping[str, tuple[Index, object]] = {
    "simple": (SimpleIndex(), SimpleIndexSpec(count=GROUP_IDS)),
    "bloom": (BloomIndex(), BloomIndexSpec(count=GROUP_IDS)),
    "memory": (MemoryIndex(), MemoryIndexSpec(count=GROUP_IDS)),
    "record": (RecordIndex(1), RecordIndexSpec(count=GROUP_IDS, buckets=1)),
}


@dataclass(frozen=True, slots=True)
class CreateMoving:
    """Creates a table whose rows lie in the partition of the first letter of their value. index: the name of its index. moves: else it has
    no partitions."""

    kind: TableType = MERGE_ON_READ
    ordering: str | None = None
    index: str = "simple"
    moves: bool = True

    def __call__(self, me: Participant) -> None:
        place = me.fileio.child(TABLE_NAME)
        asked, kept = INDEXES[self.index]
        name = f"objcat.metadata.table_spec.{type(kept).__name__}"
        with mock.patch("objcat.lake.standalone.check_commit_store"), mock.patch(name, return_value=kept):
            table = create_table_at(
                place,
                SCHEMA,
                key=["k"],
                ordering=self.ordering,
                partition_by=["truncate(v, 1)"] if self.moves else [],
                index=asked,
                table_type=self.kind,
            )
        me.note(Created(table.snapshot.spec.table, table.snapshot.slot))


@dataclass(frozen=True, slots=True)
class Move:
    """Upserts a row, which says by its value where it lies from now on, if there are partitions."""

    value: str
    bucket: int = 0

    def __call__(self, me: Participant) -> None:
        key = KEYS[self.bucket]
        table = table_at(me.fileio.child(TABLE_NAME))
        done = table.upsert([{"k": key, "v": self.value}], metadata=means("put", key, mark=self.value))
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Replace:
    """Puts a row in the place of all rows of the partition that it says. Its key leaves another partition for that, if it is there."""

    value: str
    bucket: int = 0

    def __call__(self, me: Participant) -> None:
        key = KEYS[self.bucket]
        table = table_at(me.fileio.child(TABLE_NAME))
        done = table.insert_overwrite([{"k": key, "v": self.value}], metadata=means("replace", key, mark=self.value))
        me.note(Acknowledged(done.txn, done.slot))
