"""Histories of a table as its mirror sees them: changes over real small data files, and the rows that must be read at every slot."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import Create, require_written
from fileio.store import FileIO
from objcat.datafile.statistics import bounds_of
from objcat.metadata.schema import ColumnType, ListType, MapType, StructType, schema_from_arrow
from objcat.metadata.table_spec import MERGE_ON_READ, TableSpec, make_spec
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.model import MirrorChange, MirroredFile, MirrorFolder, encoded_path
from objcat.timeline.entry import Action

TABLE = "5f0c1d2e3a4b"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
Row = tuple[Any, ...]


def spec_of(schema: pa.Schema = SCHEMA, **options: Any) -> TableSpec:
    settings: dict[str, Any] = {"key": None, "ordering": None, "index": None, "table_type": MERGE_ON_READ, "properties": {}}
    return make_spec(TABLE, schema_from_arrow(schema), **{**settings, **options})


def positions(*rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(sorted(rows), dtype=np.int64)


@dataclass
class StoredFile:
    """A data file: its description, all its rows by column id, and which of them do not count."""

    file: MirroredFile
    rows: list[dict[int, Any]]
    masked: set[int]

    @property
    def live(self) -> list[dict[int, Any]]:
        return [row for number, row in enumerate(self.rows) if number not in self.masked]


@dataclass
class History:
    """A table whose rows are known at every slot. Its `DeltaMirror` is asked to write each of them."""

    fileio: FileIO
    folder: str = ""
    spec: TableSpec = field(default_factory=spec_of)
    slot: int = -1
    files: dict[str, StoredFile] = field(default_factory=dict)
    tables_at: dict[int, pa.Table] = field(default_factory=dict)
    rows_at: dict[int, list[Row]] = field(default_factory=dict)
    states: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    every: dict[str, StoredFile] = field(default_factory=dict)
    numbers: int = 0

    @property
    def place(self) -> MirrorFolder:
        return MirrorFolder(self.fileio, self.folder, TABLE, "shop.orders")

    def mirror(self) -> DeltaMirror:
        return DeltaMirror(self.place)

    @property
    def url(self) -> str:
        return f"{self.fileio.url.removeprefix('file://').rstrip('/')}/{self.folder}"

    def file(self, rows: list[dict[str, Any]], *, masked: set[int] | None = None, name: str = "part=a") -> StoredFile:
        """Write a data file under the physical names of the current schema."""
        self.numbers += 1
        path = f"data/20261125T{self.numbers:09d}Z-{self.numbers:016x}/{name}/{self.numbers:08d}.parquet"
        columns = self.spec.table_schema.columns
        by_id = [{column.id: known(row.get(column.name), column.type) for column in columns} for row in rows]
        schema = self.spec.table_schema.to_arrow_physical(nullable=True)
        values = [[named(row[column.id], column.type, physical=True) for row in by_id] for column in columns]
        table = pa.table([pa.array(one, field.type) for one, field in zip(values, schema, strict=True)], schema=schema)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue().to_pybytes()
        require_written(self.fileio.put(path, data, Create()), path)
        bounds = bounds_of(pq.read_metadata(pa.BufferReader(data)), schema)
        file = MirroredFile(path=path, bytes=len(data), rows=len(rows), bounds=bounds, masked=positions(*(masked or ())))
        stored = StoredFile(file, by_id, set(masked or ()))
        self.every[path] = stored
        return stored

    def change(
        self, *, slot: int | None = None, restarts: bool = False, action: Action = Action.DELTA_COMMIT, **parts: Any
    ) -> MirrorChange:
        slot = self.slot + 1 if slot is None else slot
        settings: dict[str, Any] = {"keeps_rows": False, "oldest_slot": 0, "saved": frozenset(), **parts}
        return MirrorChange(
            slot=slot,
            txn=f"20261125T{slot:09d}Z-00000000000000aa",
            committed_at_ms=1_700_000_000_000 + slot * 1000,
            action=action,
            restarts=restarts,
            spec=self.spec,
            **settings,
        )

    def begin(self, *, slot: int = 0, **parts: Any) -> MirrorChange:
        """The whole table."""
        added = tuple(described(self.files[path], self.files[path].masked) for path in sorted(self.files, key=encoded_path))
        return self.note(self.change(slot=slot, restarts=True, action=Action.CREATE, added=added, **parts))

    def add(self, *stored: StoredFile, **parts: Any) -> MirrorChange:
        for one in stored:
            self.files[one.file.path] = one
        return self.note(self.change(added=tuple(one.file for one in stored), **parts))

    def mask(self, more: Mapping[str, set[int]], **parts: Any) -> MirrorChange:
        files = []
        for path, rows in more.items():
            files.append(described(self.files[path], rows))
            self.files[path].masked |= rows
        return self.note(self.change(masked=tuple(files), **parts))

    def remove(self, *paths: str, **parts: Any) -> MirrorChange:
        for path in paths:
            del self.files[path]
        return self.note(self.change(removed=paths, **parts))

    def restore(self, slot: int) -> MirrorChange:
        """The state of an older slot again."""
        wanted = self.states[slot]
        now = {path: stored.masked for path, stored in self.files.items()}
        removed = [path for path in now if path not in wanted or not wanted[path] >= now[path]]
        added = [path for path in wanted if path not in now or path in removed]
        masked = [path for path in wanted if path in now and path not in removed and wanted[path] != now[path]]
        change = self.change(
            action=Action.RESTORE,
            removed=tuple(removed),
            added=tuple(described(self.every[path], wanted[path]) for path in added),
            masked=tuple(described(self.every[path], wanted[path] - now[path]) for path in masked),
        )
        self.files = {path: StoredFile(self.every[path].file, self.every[path].rows, set(rows)) for path, rows in wanted.items()}
        return self.note(change)

    def nothing(self, **parts: Any) -> MirrorChange:
        return self.note(self.change(action=Action.CLEAN, **parts))

    def note(self, change: MirrorChange) -> MirrorChange:
        """Remember what a reader must see after a change."""
        self.slot = change.slot
        schema = self.spec.table_schema
        live = [row for stored in self.files.values() for row in stored.live]
        values = [[named(row.get(column.id), column.type) for row in live] for column in schema.columns]
        arrow = pa.schema([field.with_nullable(True) for field in schema.to_arrow()])
        table = pa.table([pa.array(one, field.type) for one, field in zip(values, arrow, strict=True)], schema=arrow)
        self.tables_at[change.slot] = table
        self.rows_at[change.slot] = rows_of(table)
        self.states[change.slot] = {path: set(stored.masked) for path, stored in self.files.items()}
        return change

    def draw(self, rng: random.Random) -> MirrorChange:
        """A change at random."""
        choice = rng.random()
        paths = sorted(self.files)
        if choice < 0.4 or not paths:
            stored = [self.drawn_file(rng) for _ in range(rng.randint(1, 3))]
            return self.add(*stored)
        if choice < 0.65:
            some = rng.sample(paths, rng.randint(1, min(3, len(paths))))
            more = {path: set(rng.choices(range(len(self.files[path].rows)), k=rng.randint(1, 3))) for path in some}
            if rng.random() < 0.1:
                more[some[0]] = set(range(len(self.files[some[0]].rows)))
            return self.mask(more)
        if choice < 0.75:
            return self.remove(*rng.sample(paths, rng.randint(1, len(paths))))
        if choice < 0.85:
            return self.restore(rng.choice(sorted(self.states)))
        return self.nothing()

    def drawn_file(self, rng: random.Random) -> StoredFile:
        count = rng.randint(2, 12)
        rows = [{"id": rng.randrange(1000), "v": f"v{rng.randrange(1000)}"} for _ in range(count)]
        return self.file(rows, masked=set(rng.sample(range(count), rng.choice([0, 0, 1]))), name=rng.choice(["part=a", "part=Z%C3%BC%20b"]))


def typed_row(number: int, **more: Any) -> dict[str, Any]:
    """A row with a value of each type. more: values that replace these, or come besides."""
    values = {
        "id": number,
        "flag": number % 2 == 0,
        "tiny": number % 100,
        "small": number,
        "number": number * 1000,
        "half": number / 2,
        "double": number / 3,
        "text": f"ü{number}",
        "bytes": bytes([number % 128]),
        "day": dt.date(1969, 12, 20) + dt.timedelta(days=number),
        "time": dt.datetime(2026, 1, 1, 1, 2, 3, 456789 + number, dt.UTC),
        "clock": dt.datetime(1901, 1, 1, 1, 2, 3, 456789 + number),
        "money": Decimal(number) / 4,
        "place": {"x": number, "y z": "q"},
        "list": [number, None],
        "map": [("k", number)],
    }
    return {**values, **more}


def known(value: Any, column_type: ColumnType) -> Any:
    """A value with its fields by id, from one with fields by name."""
    match column_type:
        case _ if value is None:
            return None
        case StructType(fields):
            return {field.id: known(value.get(field.name), field.type) for field in fields}
        case ListType(element):
            return [known(one, element.type) for one in value]
        case MapType(key, item):
            return [(known(one, key.type), known(other, item.type)) for one, other in value]
    return value


def named(value: Any, column_type: ColumnType, *, physical: bool = False) -> Any:
    """A value with its fields by their names, or physical names, from one with fields by id."""
    match column_type:
        case _ if value is None:
            return None
        case StructType(fields):
            return {
                field.physical if physical else field.name: named(value.get(field.id), field.type, physical=physical) for field in fields
            }
        case ListType(element):
            return [named(one, element.type, physical=physical) for one in value]
        case MapType(key, item):
            return [(named(one, key.type, physical=physical), named(other, item.type, physical=physical)) for one, other in value]
    return value


def described(stored: StoredFile, masked: set[int]) -> MirroredFile:
    file = stored.file
    return MirroredFile(path=file.path, bytes=file.bytes, rows=file.rows, bounds=file.bounds, masked=positions(*masked))


def read_by_deltalake(url: str, slot: int | None = None) -> list[Row]:
    """All rows of a version, sorted."""
    table = deltalake.DeltaTable(url, version=slot)
    return rows_of(pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()))


def rows_of(table: pa.Table) -> list[Row]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
