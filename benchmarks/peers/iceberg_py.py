"""pyiceberg with a catalog in SQLite. Its upsert is copy-on-write in every layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, In

from benchmarks.peers.base import BenchTable, Settings
from benchmarks.peers.configuration import PYICEBERG_TABLE
from benchmarks.peers.local import LocalSide
from benchmarks.works import CODEC, NotAvailable, Query


class PyicebergSide(LocalSide):
    """pyiceberg, without Spark."""

    def start(self, settings: Settings) -> dict[str, str]:
        """As `Side.start`."""
        about = super().start(settings)
        place = self.directory / "pyiceberg"
        place.mkdir()
        root = f"file://{place}" if settings.store is None else settings.root()
        self.catalog = SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=root, **self._options())
        self.catalog.create_namespace("db")
        return about

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {"pyiceberg": pyiceberg.__version__, "layout": "no buckets, rows in the order of the source", "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        types = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "date": pa.date32(), "decimal(15,2)": pa.decimal128(15, 2)}
        schema = pa.schema([(name, types[kind]) for name, kind in table.layout.columns.items()])
        table.state["handle"] = self.catalog.create_table(f"db.{table.name}", schema, properties=dict(PYICEBERG_TABLE))
        return str(table.state["handle"].location().removeprefix("file://"))

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        self.append(table, pq.read_table(path))

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        table.state["handle"].append(batch)

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        if table.layout.ordering:
            raise NotAvailable("pyiceberg's upsert knows no ordering")
        table.state["handle"].upsert(batch, join_cols=list(table.layout.key))

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        (key,) = table.layout.key
        within = In(key, batch.column(key).to_pylist())  # type: ignore[call-arg,arg-type]  # its types miss this form
        table.state["handle"].delete(within)

    def clean(self, table: BenchTable) -> None:
        """As `Side.clean`."""
        raise NotAvailable(f"pyiceberg expires snapshots of {table.name} and leaves their files where they are")

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(table.state["handle"].current_snapshot().snapshot_id)

    def reopen(self, table: BenchTable) -> None:
        """As `Side.reopen`."""
        table.state["handle"] = None

    def plan(self, table: BenchTable, query: Query) -> int:
        """As `Side.plan`."""
        table.state["handle"] = self.catalog.load_table(f"db.{table.name}")
        return len(list(table.state["handle"].scan(row_filter=query.where or AlwaysTrue()).plan_files()))

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> Any:
        """The newest rows, or those of a version, as Arrow."""
        chosen = {"row_filter": where.replace("date '", "'")} if where else {}
        return table.state["handle"].scan(selected_fields=tuple(columns or ("*",)), snapshot_id=as_of, **chosen).to_arrow()

    def _options(self) -> dict[str, str]:
        store = self.settings.store
        if store is None:
            return {}
        return {
            "s3.endpoint": store.endpoint,
            "s3.region": store.region,
            "s3.access-key-id": store.access_key,
            "s3.secret-access-key": store.secret_key,
            "s3.force-virtual-addressing": "false",
        }


Side = PyicebergSide
