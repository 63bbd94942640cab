"""A table that is drawn, beside the rows that it has to hold at every slot; what is drawn for it: rows, filters, columns."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.datafile.bucket_hash import spark_hash
from objcat.metadata.table_spec import TableSpec
from objcat.table.change_feed import ChangeFeed
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME, OTHER = "t", "other"
BEGAN = dt.datetime(2026, 11, 20, 12, 30, tzinfo=dt.UTC)
"""The wall clock at the beginning. Time passes when an operation says so."""
HASHED = [objcat.BucketIndex(1), objcat.BucketIndex(2), objcat.BucketIndex(3), objcat.BucketIndex(4)]
LOCATED = [objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex(), objcat.RecordIndex(2)]
INSIDE = ["int", "bigint", "string", "float", "decimal(5,2)", "date"]
"""Types of what nested columns hold."""


class DrawnTable:
    """Everything follows from the seed.

    steps: how many operations there are. several: whether it has a key and several ordering columns.
    story: what was done so far, a line for each operation. other: a table of the same log; None where the table has one of its own.
    states: the newest last; None where there was no table. restores: the slot of each RESTORE with the slot that it went back to.
    lateness: after which rows count for nothing; None without. parts, partition_by: what it was partitioned by at first, as uids of
    columns and as its settings say it. repartitioned: whether that was changed. names: of the columns at first, by uid.
    """

    steps = 14
    several = False

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.story: list[str] = []
        self.lake = self.opened(seed)
        self._uids = itertools.count(1)
        self._beside = itertools.count()
        self._seen: dict[str, Values] = {}
        self.restores: list[tuple[int, int]] = []
        self.repartitioned = False

    def opened(self, seed: int) -> objcat.Lake:
        """An empty one."""
        self.env = FakeEnv(seed, now_ms=int(BEGAN.timestamp() * 1000))
        return objcat.Lake(FileIO(MemoryBackend(f"combination-{seed}"), env=self.env))

    # ---- the table

    def create(self) -> None:
        rng = self.rng
        without_key = rng.random() < 0.15 and not self.several
        timed = not without_key and rng.random() < 0.15
        count = 0 if without_key else rng.choice([1, 1, 2, 3])
        kinds = [kind for kind in PLAIN if kind != "boolean" or count > 1]
        keys = [self.column(f"k{number}", rng.choice(kinds), nullable=False) for number in range(count)]
        self.key = [column.uid for column in keys]
        index = None if without_key else rng.choice(HASHED if timed else [*HASHED, *LOCATED])
        located = index is not None and index not in HASHED
        # Keys are unique in the table where partitions are made of the key, and where keys are looked up; else in each partition.
        parting = "any" if without_key else rng.choice(["key", "scope", "any"] if located else ["key", "scope"])
        parts = [
            rng.choice(keys)
            if parting == "key" or (parting == "scope" and rng.random() < 0.3)
            else self.column(f"p{number}", rng.choice(PLAIN), nullable=rng.random() < 0.7)
            for number in range(rng.choice([0, 0, 1, 1, 2]))
        ]
        rest = []
        self.order: list[int] = []
        if timed or (not without_key and (self.several or rng.random() < 0.5)):
            ordered = TIMES if timed else [kind for kind in PLAIN if kind not in ("boolean", "binary")]
            rest.append(self.column("o", rng.choice(ordered), nullable=False))
            self.order = [rest[0].uid]
        if self.several:
            rest += self._more_ordering([*keys, *parts], timed=timed)
        rest += [self.column(f"v{number}", rng.choice(PLAIN)) for number in range(rng.randint(1, 3))]
        if rng.random() < 0.35:
            rest.append(self.column("n", self.nested_type()))
        columns = list({column.uid: column for column in [*keys, *parts, *rest]}.values())
        rng.shuffle(columns)
        self.parted = bool(parts) and parting == "scope"
        self.parts = {column.uid for column in parts}
        self.names = {column.uid: column.name for column in columns}
        self.partition_by = self.partition_fields(parts)
        settings: dict[str, Any] = {
            "key": None if without_key else [column.name for column in keys],
            "partition_by": self.partition_by,
            "table_type": "merge_on_read" if timed else rng.choice(["merge_on_read", "copy_on_write"]),
            "properties": {"target_file_bytes": str(rng.choice([1024, 2048, 10**9]))},
        }
        if not without_key:
            settings |= {"key_scope": "partition" if self.parted else "table", "index": index}
            ordering = [self.names[uid] for uid in self.order]
            settings |= {"ordering": ordering if len(ordering) > 1 else ordering[0] if ordering else None}
        self.lateness = dt.timedelta(days=rng.choice([1, 7])) if timed else None
        if timed:
            settings |= {"allowed_lateness": self.lateness}
        domain = "d" if rng.random() < 0.2 else None
        self.tell("create", {**settings, "domain": domain}, arrow_schema(columns).to_string().replace("\n", "; "))
        self.table = self.lake.create_table(NAME, arrow_schema(columns), **settings, shared_log=domain)
        self.other = None
        if domain is not None:
            other = pa.schema([pa.field("id", pa.int64(), nullable=False)])
            self.other = self.lake.create_table(OTHER, other, key=["id"], shared_log=domain)
        self.stale = self.lake.table(NAME)
        self.created = self.table.snapshot.slot
        self.states: list[State | None] = [None] * self.created
        self._hold(State(tuple(columns), {}, {}))

    def _more_ordering(self, placing: Sequence[Column], *, timed: bool) -> list[Column]:
        """More ordering columns. One of those that say where a row lives may be among them. timed: the first one stays the first."""
        rng = self.rng
        kinds = [kind for kind in PLAIN if kind not in ("boolean", "binary")]
        new = [self.column(f"o{number}", rng.choice(kinds), nullable=False) for number in range(rng.choice([1, 1, 2]))]
        self.order += [column.uid for column in new]
        fitting = [column for column in placing if not column.nullable and column.type in kinds]
        if fitting and rng.random() < 0.3:
            self.order.insert(rng.randint(1 if timed else 0, len(self.order)), rng.choice(fitting).uid)
        return new

    @property
    def ordering(self) -> int | None:
        """The uid of the first ordering column."""
        return self.order[0] if self.order else None

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
        view = self.table._context.timeline.open()
        marks = view.log.marks(self.table.id)
        return [slot for slot in range(self.created, view.slot + 1) if marks.is_readable(slot) and self.states[slot] is not None]

    @property
    def bound(self) -> int:
        """Slots below it are cleaned."""
        return self.table._context.timeline.open().log.marks(self.table.id).bound

    def tell(self, *what: object) -> None:
        self.story.append(" ".join(map(str, what)))

    # ---- what operations make of it

    def draft(self) -> Draft:
        slot = self.table.refresh().slot + 1
        return Draft(self.state, slot, key=self.key, ordering=self.order, parted=self.parted, is_beyond=self.is_beyond)

    def is_beyond(self, values: Values) -> bool:
        """Whether a row that is written now comes so long after its event time that it counts for nothing."""
        return self.lateness is not None and self.ordering is not None and _moment(values[self.ordering]) < self._horizon

    @property
    def _horizon(self) -> dt.datetime:
        assert self.lateness is not None
        return dt.datetime.fromtimestamp(self.lake.fileio.env.now_ms() / 1000, dt.UTC).replace(tzinfo=None) - self.lateness

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
        return {*self.key, *self.parting, *self.order}

    @property
    def free(self) -> list[Column]:
        """What an update may set, be it to null."""
        return [column for column in self.columns if column.uid not in self.fixed and column.is_plain and column.nullable]

    def rows(self, most: int, columns: Sequence[Column] | None = None) -> list[Values]:
        """New ones, half of them with keys that are there."""
        rng, there, parting = self.rng, self.state.values, self.parting
        types = {column.uid: column.type for column in self.columns}
        made = []
        for _ in range(rng.randint(1, most)):
            again = rng.choice(there) if self.key and there and rng.random() < 0.5 else {}
            values = {}
            for column in self.columns if columns is None else columns:
                is_timed = column.uid == self.ordering and self.lateness is not None and rng.random() < 0.6
                value = self._event_time(column) if is_timed else draw(rng, column.type, null=0.15 if column.nullable else 0)
                while column.uid in self.order and value != value:  # noqa: PLR0124 - NaN, which a dict does not order
                    value = draw(rng, column.type, null=0)
                is_kept = column.uid in self.key or (column.uid in parting and rng.random() < 0.8)
                is_kept |= self.several and column.uid in self.order and rng.random() < 0.5
                # An older handle may have a narrower type.
                is_kept &= types.get(column.uid) == column.type
                values[column.uid] = again.get(column.uid) if again and is_kept else value
            made.append(values)
        return made

    def _event_time(self, column: Column) -> Any:
        """Around the horizon and around now, but never at the horizon, also when hours have passed: commits take milliseconds."""
        hours = self.rng.choice([-30, -2, -1, 1, 2, 25, 50, 24 * 7, 24 * 7 + 2])
        moment = (self._horizon + dt.timedelta(hours=hours, minutes=7)).replace(microsecond=self.rng.choice([0, 999999]))
        return moment.date() if column.type == "date" else moment.replace(tzinfo=dt.UTC) if column.type == "timestamp" else moment

    def distinct(self, rows: Sequence[Values]) -> list[Values]:
        """The first row of each key."""
        draft = self.draft()
        found: dict[Any, Values] = {}
        for row, place in zip(rows, self.places(rows), strict=True):
            found.setdefault(draft.ident(row, place), row)
        return list(found.values())

    def batch(self, rows: Sequence[Values], columns: Sequence[Column] | None = None, *, marks: Sequence[bool] | None = None) -> Any:
        """What a write is given. marks: a column more, `gone_`."""
        made = batch_of(rows, self.columns if columns is None else columns)
        return made if marks is None else made.append_column("gone_", pa.array(marks))

    def spark(self) -> SparkSession | None:
        """The session that does an operation; None: this process does."""
        return None

    def sql(self, text: str) -> dict[str, Any]:
        """Does a statement that writes; what it says that it did."""
        told: dict[str, Any] = self.lake.sql(text).to_pylist()[0]
        return told

    def read(self, what: objcat.Scan | ChangeFeed) -> pa.Table:
        return what.to_arrow()

    def wait(self, hours: int) -> None:
        self.tell("wait", hours, "hours")
        self.env.advance(hours * 3600)

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
        live = frozenset() if anew else snapshot.live_partitions(self.table._context.manifests)
        batch = batch_of([{uid: as_key(value) if uid in self.key else value for uid, value in row.items()} for row in rows], columns)
        physical = [spec.table_schema.column(column.name).physical for column in columns]
        types = [spec.table_schema.to_arrow_physical(nullable=True).field(name).type for name in physical]
        arrays = [batch.column(column.name).cast(kind) for column, kind in zip(columns, types, strict=True)]
        found = spec.partition_of(pa.table(arrays, names=physical), live)
        places = [found.texts[code] for code in found.codes.tolist()]
        self._seen |= dict(zip(places, rows, strict=True))
        return places

    def places_where(self, found: Callable[[Values], bool]) -> set[str]:
        """The partitions for whose rows something is true that is about the columns that they are made of."""
        return {place for place, values in self._seen.items() if found(values)}

    def are_first(self, rows: Sequence[Values], places: Sequence[str]) -> list[bool]:
        """Whether rows go where there is no file group yet, so that an insert puts them into base files. That is asked of the table too."""
        snapshot = self.table.refresh()
        spec = snapshot.spec
        names = {column.name for column in spec.bucket_columns}
        columns = {column.name: column for column in self.columns if column.name in names}
        batch = batch_of([{uid: as_key(value) for uid, value in row.items() if uid in self.key} for row in rows], [*columns.values()])
        schema = spec.table_schema.to_arrow_physical(nullable=True)
        arrays = [batch.column(column.name).cast(schema.field(column.physical).type) for column in spec.bucket_columns]
        group_ids = [group.group_id for group in snapshot.file_groups(self.table._context.manifests)]
        return [
            not any(group_id.partition == place and number % group_id.bucket_count == group_id.bucket for group_id in group_ids)
            for number, place in zip(spark_hash(arrays).tolist(), places, strict=True)
        ]

    def name_beside(self) -> str:
        """Of a table that nobody has, in the same lake."""
        return f"beside_{next(self._beside)}"

    def beside(self, rows: Sequence[Values], columns: Sequence[Column]) -> str:
        """The name of a table without a key that holds these rows, for statements that read them."""
        name = self.name_beside()
        self.lake.create_table(name, arrow_schema(columns, nullable=True), key=None).insert(batch_of(rows, columns))
        return name

    def places_of_deletes(self, rows: Sequence[Values]) -> list[str]:
        """Where a delete goes that meets no row: by its key alone where keys are unique in the table and move."""
        return self.places([{column.uid: None for column in self.columns} for _ in rows]) if self.spec.is_global else self.places(rows)

    def naming(self, *, measured: bool) -> list[Column]:
        """The columns of a batch of keys. measured: with the ordering columns."""
        uids = {*self.key, *(() if self.spec.is_global else self.parting), *(self.order if measured else [])}
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


class SeveralOrderings(DrawnTable):
    """One with a key and several ordering columns."""

    several = True


def _moment(value: Any) -> dt.datetime:
    """Of an event time, as a moment in UTC."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return dt.datetime.combine(value, dt.time())
