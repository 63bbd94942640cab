"""What both sides of objcat share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

import objcat
from benchmarks.peers.base import BenchTable, Settings
from benchmarks.works import BUCKETS
from objcat.datafile.file_encoding import COMPRESSION

ABOUT = {"objcat": "this tree", "layout": f"BucketIndex({BUCKETS}), sorted by key", "codec": COMPRESSION}
_TYPES = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "date": pa.date32(), "decimal(15,2)": pa.decimal128(15, 2)}


_INDEXES = {"bloom": objcat.BloomIndex(), "record": objcat.RecordIndex(), "simple": objcat.SimpleIndex(), "memory": objcat.MemoryIndex()}


class ObjcatTables:
    """Tables of one lake. A mixin of the sides, which write and read in different ways."""

    settings: Settings

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        layout = table.layout
        required = {*layout.key, layout.ordering}
        schema = pa.schema([pa.field(name, _TYPES[kind], nullable=name not in required) for name, kind in layout.columns.items()])
        made = self._lake().create_table(
            table.name,
            schema,
            key=list(layout.key) or None,
            ordering=layout.ordering,
            table_type=layout.kind,
            index=_INDEXES.get(layout.index, objcat.BucketIndex(BUCKETS, layout.bucket_columns)) if layout.keyed else None,
        )
        table.state["table"] = made
        return unquote(urlsplit(made._context.fileio.url).path) if self.settings.store is None else made._context.fileio.url

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        table.state["table"].upsert(batch)

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        table.state["table"].insert(batch)

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        table.state["table"].delete(batch)

    def compact(self, table: BenchTable) -> None:
        """As `Side.compact`."""
        table.state["table"].maintenance.compact()

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:
        """As `Side.cluster`."""
        if table.state["table"].maintenance.cluster(by, zorder=zorder) is None:
            raise RuntimeError("cluster() found nothing to gain")

    def clean(self, table: BenchTable) -> None:
        """As `Side.clean`."""
        table.state["table"].maintenance.clean(keep_slots=1)

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(table.state["table"].refresh().slot)

    def reopen(self, table: BenchTable) -> None:
        """As `Side.reopen`."""
        table.state["table"] = None

    def opened(self, table: BenchTable) -> Any:
        """The handle. It is opened again after `reopen`."""
        if table.state["table"] is None:
            table.state["table"] = self._lake().table(table.name)
        return table.state["table"]

    def requests(self, table: BenchTable) -> dict[str, int] | None:
        """As `Side.requests`."""
        return dict(self.opened(table)._context.fileio.metrics.snapshot().requests)

    def _lake(self) -> Any:
        store = self.settings.store
        if store is None:
            return objcat.connect(self.settings.directory / "lake")
        options = {"endpoint": store.endpoint, "region": store.region, "access_key": store.access_key, "secret_key": store.secret_key}
        return objcat.connect(f"{self.settings.root()}/lake", options=options)


def bulk_load(table: BenchTable, data: Any) -> str:
    """What was called."""
    table.state["table"].bulk_insert(data)
    return "bulk_insert"
