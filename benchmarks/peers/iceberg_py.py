"""pyiceberg with a catalog in SQLite. Its upsert is copy-on-write, whatever the layout asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg  # type: ignore[import-not-found]
from pyiceberg.catalog.sql import SqlCatalog  # type: ignore[import-not-found]

from benchmarks.peers.base import BenchTable, Settings
from benchmarks.peers.local import LocalSide
from benchmarks.works import CODEC, CODEC_LEVEL, NotAvailable


class PyicebergSide(LocalSide):
    def start(self, settings: Settings) -> dict[str, str]:
        about = super().start(settings)
        place = self.directory / "pyiceberg"
        place.mkdir()
        self.catalog = SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
        self.catalog.create_namespace("db")
        return about

    def about(self) -> dict[str, str]:
        return {"pyiceberg": pyiceberg.__version__, "layout": "no buckets, rows in the order of the source", "codec": CODEC}

    def create(self, table: BenchTable) -> Path:
        types = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "date": pa.date32(), "decimal(15,2)": pa.decimal128(15, 2)}
        schema = pa.schema([(name, types[kind]) for name, kind in table.layout.columns.items()])
        properties = {"write.parquet.compression-codec": CODEC, "write.parquet.compression-level": str(CODEC_LEVEL)}
        table.state["handle"] = self.catalog.create_table(f"db.{table.name}", schema, properties=properties)
        return Path(table.state["handle"].location().removeprefix("file://"))

    def load(self, table: BenchTable, path: Path) -> None:
        table.state["handle"].append(pq.read_table(path))

    def upsert(self, table: BenchTable, batch: Any) -> None:
        if table.layout.ordering:
            raise NotAvailable("pyiceberg's upsert knows no ordering")
        table.state["handle"].upsert(batch, join_cols=list(table.layout.key))

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> Any:
        chosen = {"row_filter": where.replace("date '", "'")} if where else {}
        return table.state["handle"].scan(selected_fields=tuple(columns or ("*",)), **chosen).to_arrow()


Side = PyicebergSide
