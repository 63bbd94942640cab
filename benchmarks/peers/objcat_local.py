"""objcat without Spark, through its public names only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.local import LocalSide, asked, reader_of
from benchmarks.peers.objcat_table import ABOUT, bulk_load, create_table, last_commit
from benchmarks.works import Query


class ObjcatLocalSide(LocalSide):
    def about(self) -> dict[str, str]:
        return ABOUT

    def create(self, table: BenchTable) -> Path:
        return create_table(table, self.directory)

    def load(self, table: BenchTable, path: Path) -> str:
        return bulk_load(table.state["table"], reader_of(path))

    def upsert(self, table: BenchTable, batch: Any) -> None:
        table.state["table"].upsert(batch)

    def compact(self, table: BenchTable) -> None:
        table.state["table"].compact()

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None) -> Any:
        return table.state["table"].scan(where=where, columns=columns).to_arrow()

    def last_commit(self, table: BenchTable, query: Query) -> Rows:
        return asked(last_commit(table, query).to_arrow(), query)

    def requests(self, table: BenchTable) -> dict[str, int]:
        return dict(table.state["table"].fileio.metrics.snapshot().requests)


Side = ObjcatLocalSide
