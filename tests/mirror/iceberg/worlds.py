"""A table that exists only in a test: Parquet files with a known set of live rows, and the changes from slot to slot.

It takes the place of `objcat.mirror.changes`, so that the writer of mirrors is tested alone. Rows are Arrow tables with the physical names
of the schema.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fileio
from fileio.store import FileIO
from objcat.datafile.statistics import bounds_of
from objcat.metadata.schema import Column, StructType, TableSchema, schema_from_arrow
from objcat.metadata.table_spec import BucketIndexSpec, TableSpec
from objcat.mirror.iceberg.mirror import IcebergMirror
from objcat.mirror.model import MirrorChange, MirroredFile, MirrorFolder
from objcat.timeline.entry import Action

PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string()), pa.field("amount", pa.float64())])
TABLE = "0123456789abcdef"


@dataclass
class WorldFile:
    """A data file, with the rows that do not count."""

    path: str
    bytes: int
    rows: pa.Table
    bounds: dict[int, Any]
    masked: set[int] = field(default_factory=set)

    def mirrored(self, masked: set[int] | None = None) -> MirroredFile:
        positions = np.array(sorted(self.masked if masked is None else masked), dtype=np.int64)
        return MirroredFile(path=self.path, bytes=self.bytes, rows=self.rows.num_rows, bounds=self.bounds, masked=positions)

    @property
    def live(self) -> pa.Table:
        return self.rows.filter(pa.array([at not in self.masked for at in range(self.rows.num_rows)], pa.bool_()))


class World:
    """A table and its history. Each step changes files and returns what the mirror must change."""

    def __init__(
        self,
        url: str,
        schema: pa.Schema | TableSchema = PLAIN,
        *,
        key: Sequence[str] = ("id",),
        folder: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.fileio: FileIO = fileio.open_store(url, options)
        table_schema = schema_from_arrow(schema) if isinstance(schema, pa.Schema) else schema
        ids = tuple(table_schema.column(name).id for name in key)
        self.spec = TableSpec(table=TABLE, table_schema=table_schema, key=ids, index=BucketIndexSpec(count=4, columns=ids))
        self.where = MirrorFolder(self.fileio, folder, TABLE, "shop.orders")
        self.files: dict[str, WorldFile] = {}
        self.every: dict[str, WorldFile] = {}
        self.slot = -1
        self.truth: dict[int, pa.Table] = {}
        self.history: dict[int, tuple[dict[str, set[int]], TableSpec]] = {}
        self.oldest_slot = 0
        self.saved: frozenset[int] = frozenset()

    def mirror(self, **settings: Any) -> IcebergMirror:
        return IcebergMirror(self.where, **settings)

    @property
    def txn(self) -> str:
        return f"{self.slot + 1:032x}"

    def file(self, rows: pa.Table, *, masked: Sequence[int] = (), name: str = "base-0.parquet") -> WorldFile:
        """Write a data file of the next slot."""
        schema = self.spec.table_schema.to_arrow_physical(nullable=True)
        schema = pa.schema([field for field in schema if field.name in rows.schema.names])
        rows = rows.select(schema.names).cast(schema)
        out = io.BytesIO()
        pq.write_table(rows, out)
        path = f"data/{self.txn}/{name}"
        self.fileio.put(path, out.getvalue())
        footer = pq.ParquetFile(io.BytesIO(out.getvalue())).metadata
        found = WorldFile(path, len(out.getvalue()), rows, bounds_of(footer, schema), set(masked))
        self.every[path] = found
        return found

    def rows(self, *ids: int, text: str = "x") -> pa.Table:
        """Rows of the plain schema."""
        values = {"id": list(ids), "text": [f"{text}-{one}" for one in ids], "amount": [one * 0.5 for one in ids]}
        return pa.table(values, schema=PLAIN)

    def step(
        self,
        action: Action = Action.DELTA_COMMIT,
        *,
        add: Sequence[WorldFile] = (),
        mask: Mapping[str, Sequence[int]] | None = None,
        remove: Sequence[str] = (),
        restarts: bool = False,
        keeps_rows: bool = False,
    ) -> MirrorChange:
        """The next slot. mask: rows that are masked in addition, by path. remove: paths."""
        removed = list(remove)
        masked = []
        for path, rows in (mask or {}).items():
            self.files[path].masked |= set(rows)
            masked.append(self.files[path].mirrored(set(rows)))
        for path in removed:
            del self.files[path]
        self.files |= {file.path: file for file in add}
        return self._change(action, removed=removed, added=list(add), masked=masked, restarts=restarts, keeps_rows=keeps_rows)

    def restart(self) -> MirrorChange:
        """The next slot, as the whole table."""
        return self.step(restarts=True)

    def upsert(self, *ids: int, text: str, deletes: Sequence[int] = ()) -> MirrorChange:
        """New versions of rows in a log file, and deletes of others."""
        everything = [*ids, *deletes]
        rows = self.rows(*ids, text=text)
        if deletes:
            gone = pa.table({"id": list(deletes), "text": [None] * len(deletes), "amount": [None] * len(deletes)}, schema=PLAIN)
            rows = pa.concat_tables([rows, gone])
        log = self.file(rows, masked=range(len(ids), len(everything)), name="log-0.parquet")
        mask = {}
        for path, file in self.files.items():
            keys = file.rows.column("id").to_pylist()
            hit = [at for at, key in enumerate(keys) if key in everything and at not in file.masked]
            if hit:
                mask[path] = hit
        return self.step(add=[log], mask=mask)

    def compact(self) -> MirrorChange:
        """All rows in one new file."""
        rows = pa.concat_tables([file.live for file in self.files.values()])
        return self.step(Action.COMPACTION, add=[self.file(rows)], remove=list(self.files), keeps_rows=True)

    def restore(self, slot: int) -> MirrorChange:
        """The files of an earlier slot again."""
        then, spec = self.history[slot]
        now = {path: set(file.masked) for path, file in self.files.items()}
        removed = [path for path in now if path not in then or now[path] - then[path]]
        added, masked = [], []
        self.files = {}
        for path, rows in then.items():
            file = self.every[path]
            file.masked = set(rows)
            self.files[path] = file
            if path not in now or path in removed:
                added.append(file)
            elif rows - now[path]:
                masked.append(file.mirrored(rows - now[path]))
        self.spec = spec
        return self._change(Action.RESTORE, removed=removed, added=added, masked=masked)

    @staticmethod
    def with_removed(change: MirrorChange, path: str) -> MirrorChange:
        """The change, which removes one more file."""
        return replace(change, removed=[*change.removed, path])

    def _change(self, action: Action, *, removed, added, masked, restarts=False, keeps_rows=False) -> MirrorChange:
        txn = self.txn
        self.slot += 1
        live = [file.live for file in self.files.values()]
        self.truth[self.slot] = self._visible(live)
        self.history[self.slot] = ({path: set(file.masked) for path, file in self.files.items()}, self.spec)
        if restarts:
            removed, masked, added = [], [], list(self.files.values())
        return MirrorChange(
            slot=self.slot,
            txn=txn,
            committed_at_ms=1_700_000_000_000 + 1000 * self.slot,
            action=action,
            keeps_rows=keeps_rows,
            restarts=restarts,
            spec=self.spec,
            removed=removed,
            added=[file.mirrored() for file in added],
            masked=masked,
            oldest_slot=self.oldest_slot,
            saved=self.saved,
        )

    def _visible(self, live: list[pa.Table]) -> pa.Table:
        """Live rows under the names that users see."""
        schema = self.spec.table_schema
        names = {column.physical: column.name for column in schema.columns}
        parts = []
        for table in live:
            columns = {}
            for column in schema.columns:
                kind = schema.to_arrow().field(column.name).type
                if column.physical in table.schema.names:
                    columns[names[column.physical]] = _visible_values(table.column(column.physical).combine_chunks(), column).cast(kind)
                else:
                    columns[names[column.physical]] = pa.nulls(table.num_rows, kind)
            parts.append(pa.table(columns))
        return pa.concat_tables(parts) if parts else schema.to_arrow().empty_table()


def _visible_values(values: pa.Array, column: Column) -> pa.Array:
    """Values under the names that users see: fields of structs may have been renamed."""
    if not isinstance(column.type, StructType):
        return values
    fields = [_visible_values(values.field(one.physical), one) for one in column.type.fields]
    return pa.StructArray.from_arrays(fields, names=[one.name for one in column.type.fields], mask=values.is_null())


def rows_of(table: pa.Table) -> list[str]:
    """Rows as text, in an order of their own."""
    return sorted(repr(sorted(row.items())) for row in table.to_pylist())
