"""Histories of a table that are drawn by a seed through the public API, beside the rows that every slot has to show.

The rows of a slot are those of `scan(as_of=slot)`, taken right after the commit. A step that does not fit the table does nothing.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as at

import objcat
from fileio.contract import Buffer, Capabilities, PutMode, PutOutcome, Written
from fileio.local.backend import LocalBackend
from fileio.local.options import LocalOptions
from fileio.store import FileIO
from fileio.testing import FakeEnv
from tests.combinations.values import values_of

NAME, BESIDE = "t", "beside"
TEXTS = ["", "a", "b", "Zürich", "a/b c", "x=y%", "北京", "\U0001f600", "o'b", "long " * 20]
CITIES = ("Zürich", "a/b c", "x=y%", "北京", "Rome")
SPAN = 60
"""Ids are drawn below it, so that writes meet rows that are there."""
COMMITS = 42
YEAR_S = 365 * 86_400


class DiskWithoutClock(LocalBackend):
    """A disk that tells no time, so that commits have the time of the environment, which a history lets pass."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of a disk, without its clock."""
        return replace(super().capabilities, store_clock=False)

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        """As a disk, without the time in the answer."""
        outcome = super().put(key, data, mode, metadata)
        return replace(outcome, store_time_ms=None) if isinstance(outcome, Written) else outcome


@dataclass(frozen=True)
class Cell:
    """A kind of history.

    Args:
        name: In the matrix.
        title: What a page says about it.
        schema: Of the table at first.
        settings: Of `create_table`, drawn.
        steps: How often each step is drawn.
        cities: Values of the column `city`, which is a partition in some cells.
        edges: Whether values are at the edges of what types hold.
        begin: Makes the table. None: `Lake.create_table`.
        at: Steps that every history does, by the number of commits before them.
        waits: Formats whose mirrors stand still for a time, since they cannot express some slots.
        waits_to_the_end: Whether these mirrors still stand when the history ends.
        passes_time: Whether a step lets time pass. The history then begins a year ago.
        by_catalog: Whether engines find the table by the REST catalog of a server, and not by its path.
    """

    name: str
    title: str
    schema: pa.Schema
    settings: Callable[[random.Random], Mapping[str, Any]]
    steps: Mapping[Step, float]
    cities: Sequence[str | None] = CITIES
    edges: bool = False
    begin: Callable[[History, Mapping[str, Any]], objcat.Table] | None = None
    at: Mapping[int, Step] = field(default_factory=dict)
    waits: Collection[str] = ()
    waits_to_the_end: bool = False
    passes_time: bool = False
    by_catalog: bool = False


@dataclass
class History:
    """A table with what was done to it.

    Args:
        cell: Its kind.
        seed: All of it follows from that.
        folder: Where its lake is.
        properties: Of the table, such as `mirrors`.
        mirror: Brings the mirrors up to the newest slot; called after some commits, and at the end.
    """

    cell: Cell
    seed: int
    folder: Path
    properties: Mapping[str, str] = field(default_factory=dict)
    mirror: Callable[[objcat.Table], object] = lambda _table: None
    truths: dict[int, pa.Table] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.cell.name} {self.seed}")
        # Nothing runs in parallel. Without steps that let time pass, the clock is that of the disk, which commits follow.
        self.env = FakeEnv(self.seed, now_ms=time.time_ns() // 1_000_000 - (YEAR_S * 1000 if self.cell.passes_time else 0))
        backend = (DiskWithoutClock if self.cell.passes_time else LocalBackend)(str(self.folder), LocalOptions(fsync=False))
        self.lake = objcat.Lake(FileIO(backend, env=self.env))
        settings = dict(self.cell.settings(self.rng))
        settings["properties"] = {**settings.get("properties", {}), **self.properties}
        self.beside: objcat.Table | None = None
        """Another table of the log. Its slots lie between those of this one."""
        begin = self.cell.begin
        self.table = self.lake.create_table(NAME, self.cell.schema, **settings) if begin is None else begin(self, settings)
        self.first = self.table.snapshot.slot
        self.gone: list[str] = []
        self._hold()
        self.mirror(self.table)

    @property
    def outside(self) -> Path:
        """A folder beside the lake, for files that do not belong to it."""
        return self.folder.with_name(f"{self.folder.name}-outside")

    @property
    def newest(self) -> int:
        """The newest slot."""
        return self.table.refresh().slot

    def run(self, commits: int = COMMITS) -> None:
        """Do steps until there are so many slots. Errors have the story as a note."""
        steps, weights, due = list(self.cell.steps), list(self.cell.steps.values()), dict(self.cell.at)
        try:
            while self.newest < self.first + commits:
                (step,) = self.rng.choices(steps, weights)
                if due and self.newest >= self.first + min(due):
                    step = due.pop(min(due))
                before = self.newest
                step(self)
                self._hold()
                if self.newest > before and self.rng.random() < 0.4:
                    self.mirror(self.table)
            self.mirror(self.table)
        except BaseException as error:
            error.add_note(self.told())
            raise

    def told(self, to: int | None = None) -> str:
        """The steps of the history, for people."""
        lines = self.story if to is None else [line for line in self.story if int(line.split(":")[0]) <= to]
        return "\n".join([f"history {self.cell.name}, seed {self.seed}:", *lines])

    def tell(self, *what: object) -> None:
        """Say what is done now, at the slot after the newest."""
        self.story.append(f"{self.newest + 1}: {' '.join(map(str, what))}")

    def readable(self) -> list[int]:
        """The slots that a clean left."""
        readable = []
        for slot in sorted(self.truths):
            try:
                self.table.scan(as_of=slot)
            except objcat.errors.SnapshotExpired:
                continue
            readable.append(slot)
        return readable

    def _hold(self) -> None:
        """Keep the rows of the slots that are new, also of those of another table in the log."""
        for slot in range(max(self.truths, default=self.first - 1) + 1, self.newest + 1):
            self.truths[slot] = self.table.scan(as_of=slot).to_arrow()

    # ---- what is drawn

    @property
    def key(self) -> list[str]:
        return self.table.key or []

    @property
    def partition_names(self) -> set[str]:
        return {column.name for column in self.table.spec.partition_columns}

    @property
    def fixed(self) -> set[str]:
        """Columns that may not be dropped."""
        return {*self.key, *self.partition_names, "city", "day", *(column.name for column in self.table.spec.ordering_columns)}

    def rows(self, most: int, *, known: bool = False) -> pa.Table:
        """Some rows of the newest schema. known: with keys of rows that are there, where there are any."""
        there = self.truths[max(self.truths)].select(self.key).to_pylist() if known and self.key else []
        made = []
        for _ in range(self.rng.randint(1, most)):
            row = {field.name: self.value(field) for field in self.table.schema}
            made.append(row | self.rng.choice(there) if there else row)
        return pa.Table.from_pylist(made, pa.schema([field.with_nullable(True) for field in self.table.schema]))

    def new_rows(self, schema: pa.Schema, ids: Sequence[int]) -> pa.Table:
        """Rows with these ids, for a table that need not be there yet."""
        made = []
        for number in ids:
            drawn = {column.name: self.any_value(column.type, nullable=column.nullable) for column in schema}
            made.append(drawn | {"id": number, "city": self.rng.choice(self.cell.cities)})
        return pa.Table.from_pylist(made, schema)

    def value(self, column: pa.Field) -> Any:
        if column.name == "id":
            return self.rng.randrange(SPAN)
        if column.name == "city":
            return self.rng.choice(self.cell.cities)
        if column.name == self.table.ordering:
            return self.event_time()
        return self.any_value(column.type, nullable=column.nullable)

    def event_time(self) -> dt.datetime:
        """Around now, often before what is there; for a table with lateness also before its horizon, but never at the horizon."""
        hours = self.rng.choice([-24 * 9, -24 * 8, -24 * 5]) if self.rng.random() < 0.3 else self.rng.randrange(-48, 3)
        now = dt.datetime.fromtimestamp(self.env.now_ms() // 3_600_000 * 3600, dt.UTC)
        return now + dt.timedelta(hours=hours, minutes=self.rng.choice([7, 11]))

    def any_value(self, kind: pa.DataType, *, nullable: bool = True) -> Any:
        rng = self.rng
        if nullable and rng.random() < 0.15:
            return None
        if at.is_struct(kind):
            return {field.name: self.any_value(field.type) for field in kind}
        if at.is_map(kind):
            return [(key, self.any_value(kind.item_type)) for key in rng.sample(["", "k", "ä"], rng.randrange(3))]
        if at.is_list(kind):
            return [self.any_value(kind.value_type) for _ in range(rng.randrange(3))]
        return rng.choice(values_of(_name_of(kind))) if self.cell.edges else self._calm(kind)

    def _calm(self, kind: pa.DataType) -> Any:
        """A value that every engine can hold."""
        number = self.rng.randrange(100)
        if at.is_integer(kind):
            return number
        if at.is_floating(kind):
            return number / 4
        if at.is_decimal(kind):
            return Decimal(number) / 4
        if at.is_boolean(kind):
            return number % 2 == 0
        if at.is_date(kind):
            return dt.date(2026, 1, 1) + dt.timedelta(days=number)
        if at.is_timestamp(kind):
            moment = dt.datetime(2026, 1, 1) + dt.timedelta(hours=number * 7, microseconds=number)
            return moment.replace(tzinfo=dt.UTC) if kind.tz else moment
        return bytes([number]) * 3 if at.is_binary(kind) else self.rng.choice(TEXTS)

    def ids(self) -> str:
        """A filter on a stretch of ids."""
        low = self.rng.randrange(SPAN)
        return f"id >= {low} and id < {low + self.rng.choice([1, 3, 10])}"


Step = Callable[[History], None]
"""Does one thing to a table, or nothing where that does not fit."""


def _name_of(kind: pa.DataType) -> str:
    """As objcat calls a plain type."""
    if at.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if at.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    names = {"bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "date32[day]": "date"}
    return names.get(str(kind), str(kind))
