"""A table that is drawn, beside the rows that it has to hold at every slot; what is drawn for it: rows, filters, columns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.table import TableSpec
from tests.combinations.filters import Filter, draw_filter, quoted
from tests.combinations.model import Draft, State
from tests.combinations.values import (
    PLAIN,
    TIMES,
    WHOLE,
    Column,
    Listing,
    Mapped,
    Struct,
    Type,
    Values,
    arrow_schema,
    as_key,
    batch_of,
    draw,
    row_of,
    values_of,
)

NAME, OTHER = "t", "other"
HASHED = [objcat.Bucket(1), objcat.Bucket(2), objcat.Bucket(3), objcat.Bucket(4)]
LOCATED = [objcat.Simple(), objcat.Bloom(), objcat.Memory(), objcat.Record(2)]
INSIDE = ["int", "bigint", "string", "float", "decimal(5,2)", "date"]
"""Types of what nested columns hold."""


class DrawnTable:
    """Everything follows from the seed.

    story: what was done so far, a line for each operation. other: a table of the same log; None where the table has one of its own.
    states: the newest last; None where there was no table. restores: the slot of each RESTORE with the slot that it went back to.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.story: list[str] = []
        self.lake = objcat.Lake(FileIO(MemoryBackend(f"combination-{seed}"), env=FakeEnv(seed)))
        self._uids = itertools.count(1)
        self.restores: list[tuple[int, int]] = []

    # ---- the table

    def create(self) -> None:
        rng = self.rng
        keyless = rng.random() < 0.15
        count = 0 if keyless else rng.choice([1, 1, 2, 3])
        kinds = [kind for kind in PLAIN if kind != "boolean" or count > 1]
        keys = [self.column(f"k{number}", rng.choice(kinds), nullable=False) for number in range(count)]
        self.key = [column.uid for column in keys]
        index = None if keyless else rng.choice([*HASHED, *LOCATED])
        located = index is not None and index not in HASHED
        # Keys are unique in the table where partitions are made of the key, and where keys are looked up; else in each partition.
        parting = "any" if keyless else rng.choice(["key", "scope", "any"] if located else ["key", "scope"])
        parts = [
            rng.choice(keys)
            if parting == "key" or (parting == "scope" and rng.random() < 0.3)
            else self.column(f"p{number}", rng.choice(PLAIN), nullable=rng.random() < 0.7)
            for number in range(rng.choice([0, 0, 1, 1, 2]))
        ]
        rest = []
        self.ordering = None
        if not keyless and rng.random() < 0.5:
            rest.append(self.column("o", rng.choice([kind for kind in PLAIN if kind not in ("boolean", "binary")]), nullable=False))
            self.ordering = rest[0].uid
        rest += [self.column(f"v{number}", rng.choice(PLAIN)) for number in range(rng.randint(1, 3))]
        if rng.random() < 0.35:
            rest.append(self.column("n", self.nested_type()))
        columns = list({column.uid: column for column in [*keys, *parts, *rest]}.values())
        rng.shuffle(columns)
        self.parted = bool(parts) and parting == "scope"
        settings: dict[str, Any] = {
            "key": None if keyless else [column.name for column in keys],
            "partition_by": self.partition_fields(parts),
            "kind": rng.choice(["merge_on_read", "copy_on_write"]),
            "properties": {"target_file_bytes": str(rng.choice([1024, 2048, 10**9]))},
        }
        if not keyless:
            settings |= {"key_scope": "partition" if self.parted else "table", "index": index}
            settings |= {"ordering": None if self.ordering is None else "o"}
        domain = "d" if rng.random() < 0.2 else None
        self.tell("create", {**settings, "domain": domain}, arrow_schema(columns).to_string().replace("\n", "; "))
        self.table = self.lake.create_table(NAME, arrow_schema(columns), **settings, domain=domain)
        self.other = None
        if domain is not None:
            other = pa.schema([pa.field("id", pa.int64(), nullable=False)])
            self.other = self.lake.create_table(OTHER, other, key=["id"], domain=domain)
        self.stale = self.lake.table(NAME)
        self.created = self.table.snapshot.slot
        self.states: list[State | None] = [None] * self.created
        self._hold(State(tuple(columns), {}, {}))

    @property
    def spec(self) -> TableSpec:
        """The newest."""
        return self.table.refresh().spec

    @property
    def newest(self) -> int:
        return len(self.states) - 1

    @property
    def state(self) -> State:
        return self.at(-1)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.state.columns

    def at(self, slot: int) -> State:
        state = self.states[slot]
        assert state is not None
        return state

    def readable(self) -> list[int]:
        """The slots that are not cleaned, and at which there is a table."""
        view = self.table.timeline.open()
        marks = view.log.marks(self.table.id)
        return [slot for slot in range(self.created, view.slot + 1) if marks.is_readable(slot) and self.states[slot] is not None]

    @property
    def bound(self) -> int:
        """Slots below it are cleaned."""
        return self.table.timeline.open().log.marks(self.table.id).bound

    def tell(self, *what: object) -> None:
        self.story.append(" ".join(map(str, what)))

    # ---- what operations make of it

    def draft(self) -> Draft:
        slot = self.table.refresh().slot + 1
        return Draft(self.state, slot, key=self.key, ordering=self.ordering, parted=self.parted)

    def done(self, slot: int, draft: Draft) -> None:
        """A write, as it was drafted. slot: the one that it says it is."""
        assert slot == draft.slot == len(self.states), f"the write says that it is slot {slot}, and {draft.slot} was next"
        assert self.table.refresh().slot >= slot, f"the write says that it is slot {slot}, and the table has none"
        self._hold(draft.made())

    def stands(self) -> None:
        """An operation after which the rows are what they were."""
        self._hold(self.state)

    def became(self, state: State, slot: int) -> None:
        """What a RESTORE at a slot makes of the table, which is nothing until then."""
        self.states += [None] * (slot - len(self.states))
        self._hold(state)

    def reshaped(self, columns: Sequence[Column]) -> None:
        """A change of the schema."""
        self._hold(State(tuple(columns), self.state.rows, self.state.gone))

    def _hold(self, state: State) -> None:
        newest = self.table.refresh().slot
        assert newest >= self.newest
        self.states += [state] * (newest - self.newest)
        found = self.table.schema
        assert found.equals(arrow_schema(state.columns)), f"the schema is {found}, and has to be {arrow_schema(state.columns)}"

    # ---- what is drawn for it

    def column(self, name: str, kind: Type, *, nullable: bool = True) -> Column:
        return Column(next(self._uids), name, kind, nullable)

    def nested_type(self, *, deep: bool = False) -> Type:
        rng = self.rng

        def inside() -> Type:
            return rng.choice(INSIDE) if deep or rng.random() < 0.7 else self.nested_type(deep=True)

        match rng.choice(["struct", "struct", "list", "map"]):
            case "struct":
                return Struct(tuple(self.column(name, inside()) for name in "abc"[: rng.randint(1, 3)]))
            case "list":
                return Listing(self.column("element", inside()))
            case _:
                return Mapped(self.column("value", inside()))

    def any_type(self) -> Type:
        return self.rng.choice(PLAIN) if self.rng.random() < 0.8 else self.nested_type()

    def partition_fields(self, columns: Sequence[Column]) -> list[str]:
        """One for each column, but none twice."""
        fields = {(column.uid, (field := self._partition_field(column)).strip("`")): field for column in columns}
        return list(fields.values())

    def _partition_field(self, column: Column) -> str:
        rng, name = self.rng, column.name
        fields = [quoted(name) if rng.random() < 0.5 else name]
        if column.type in TIMES:
            units = ["year", "month", "day", *(["hour"] if column.type != "date" else [])]
            fields += [f"{unit}({name})" for unit in units]
        if column.type in WHOLE or column.type == "string":
            fields.append(f"truncate({name}, {rng.choice([1, 2, 10, 100] if column.type in WHOLE else [1, 2])})")
        return rng.choice(fields)

    @property
    def parting(self) -> set[int]:
        """The uids of the columns that partitions are or were made of."""
        names = {column.name for column in self.spec.partition_columns}
        return {column.uid for column in self.columns if column.name in names}

    @property
    def fixed(self) -> set[int]:
        """The uids of columns that say which row is meant, where it lives, and how new it is."""
        return {*self.key, *self.parting, *([] if self.ordering is None else [self.ordering])}

    @property
    def free(self) -> list[Column]:
        """What an update may set, be it to null."""
        return [column for column in self.columns if column.uid not in self.fixed and column.is_plain and column.nullable]

    def rows(self, most: int, columns: Sequence[Column] | None = None) -> list[Values]:
        """New ones, half of them with keys that are there."""
        rng, there, parting = self.rng, self.state.values, self.parting
        made = []
        for _ in range(rng.randint(1, most)):
            again = rng.choice(there) if self.key and there and rng.random() < 0.5 else {}
            values = {}
            for column in self.columns if columns is None else columns:
                value = draw(rng, column.type, null=0.15 if column.nullable else 0)
                while column.uid == self.ordering and value != value:  # noqa: PLR0124 - NaN, which a dict does not order
                    value = draw(rng, column.type, null=0)
                is_kept = column.uid in self.key or (column.uid in parting and rng.random() < 0.8)
                values[column.uid] = again.get(column.uid) if again and is_kept else value
            made.append(values)
        return made

    def distinct(self, rows: Sequence[Values]) -> list[Values]:
        """The first row of each key."""
        draft = self.draft()
        found: dict[Any, Values] = {}
        for row, place in zip(rows, self.places(rows), strict=True):
            found.setdefault(draft.ident(row, place), row)
        return list(found.values())

    def batch(self, rows: Sequence[Values], columns: Sequence[Column] | None = None) -> pa.Table:
        return batch_of(rows, self.columns if columns is None else columns)

    def shown(self, rows: Sequence[Values], columns: Sequence[Column] | None = None) -> list[dict[str, Any]]:
        """For the story."""
        return [row_of(row, self.columns if columns is None else columns) for row in rows]

    def places(self, rows: Sequence[Values], *, anew: bool = False) -> list[str]:
        """The partitions of rows. anew: in a table without any. Where rows go is asked of the table: what becomes of them there is not."""
        snapshot = self.table.refresh()
        spec = snapshot.spec
        names = {column.name for column in spec.partition_columns}
        columns = [column for column in self.columns if column.name in names]
        if not columns:
            return [""] * len(rows)
        live = frozenset() if anew else snapshot.live_partitions(self.table.manifests)
        batch = batch_of([{uid: as_key(value) if uid in self.key else value for uid, value in row.items()} for row in rows], columns)
        physical = [spec.table_schema.column(column.name).physical for column in columns]
        types = [spec.table_schema.to_arrow_physical(nullable=True).field(name).type for name in physical]
        arrays = [batch.column(column.name).cast(kind) for column, kind in zip(columns, types, strict=True)]
        found = spec.partition_of(pa.table(arrays, names=physical), live)
        return [found.texts[code] for code in found.codes.tolist()]

    def places_of_deletes(self, rows: Sequence[Values]) -> list[str]:
        """Where a delete goes that meets no row: by its key alone where keys are unique in the table and move."""
        return self.places([{column.uid: None for column in self.columns} for _ in rows]) if self.spec.is_global else self.places(rows)

    def naming(self, *, measured: bool) -> list[Column]:
        """The columns of a batch of keys. measured: with the ordering column."""
        uids = {*self.key, *(() if self.spec.is_global else self.parting), *([self.ordering] if measured else [])}
        return [column for column in self.columns if column.uid in uids]

    def filter(self, state: State | None = None) -> Filter:
        state = self.state if state is None else state
        return draw_filter(self.rng, state.columns, state.values)

    def sql_filter(self) -> tuple[Filter, str]:
        """One that SQL can say."""
        while True:
            found = self.filter()
            if found.sql is not None:
                return found, found.sql

    def value_of(self, column: Column) -> Any:
        return self.rng.choice([*values_of(str(column.type)), None])
