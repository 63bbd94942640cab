"""deltalake, the Delta Lake library without Spark. Its merge is copy-on-write, whatever the layout asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.local import LocalSide, asked, reader_of
from benchmarks.works import CODEC, CODEC_LEVEL, Query

_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=CODEC_LEVEL)


class DeltalakeSide(LocalSide):
    def about(self) -> dict[str, str]:
        return {"deltalake": deltalake.__version__, "layout": "no buckets, rows in the order of the source", "codec": CODEC}

    def create(self, table: BenchTable) -> Path:
        place = self.directory / table.name
        table.state["path"] = str(place)
        return place

    def load(self, table: BenchTable, path: Path) -> None:
        kept = {"delta.enableChangeDataFeed": "true"} if table.layout.changes else None
        write_deltalake(table.state["path"], reader_of(path), writer_properties=_PROPERTIES, configuration=kept)
        table.state["handle"] = DeltaTable(table.state["path"])

    def upsert(self, table: BenchTable, batch: Any) -> None:
        on = " and ".join(f"t.{name} = s.{name}" for name in table.layout.key)
        newer = f"s.{table.layout.ordering} >= t.{table.layout.ordering}" if table.layout.ordering else None
        merge = table.state["handle"].merge(batch, on, source_alias="s", target_alias="t", writer_properties=_PROPERTIES)
        merge.when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()

    def compact(self, table: BenchTable) -> None:
        table.state["handle"].optimize.compact(writer_properties=_PROPERTIES)

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        handle: DeltaTable = table.state["handle"]
        handle.update_incremental()
        with duckdb.connect() as duck:
            duck.register("changes", handle.load_cdf(starting_version=handle.version()))
            new = duck.execute(
                f"select {', '.join(query.columns)} from changes where _change_type in ('insert', 'update_postimage')"
            ).to_arrow_table()
        return asked(new, query)

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> Any:
        handle: DeltaTable = table.state["handle"]
        handle.update_incremental()
        what = ", ".join(columns) if columns else "*"
        condition = f" where {where}" if where else ""
        return QueryBuilder().register("t", handle).execute(f"select {what} from t{condition}")


Side = DeltalakeSide
