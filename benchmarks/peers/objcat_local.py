"""objcat without Spark, through its public names only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.local import LocalSide, asked, asked_by_type, reader_of
from benchmarks.peers.objcat_table import ABOUT, ObjcatTables, bulk_load
from benchmarks.works import CHANGE_TYPES, Query


class ObjcatLocalSide(ObjcatTables, LocalSide):
    """objcat without Spark."""

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return ABOUT

    def load(self, table: BenchTable, path: Path) -> str:
        """As `Side.load`."""
        return bulk_load(table, reader_of(path))

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> Any:
        """The newest rows, or those of a version, as Arrow."""
        return self.opened(table).scan(where=where, columns=columns, as_of=as_of).to_arrow()

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.incremental`."""
        return asked(table.state["table"].incremental(since=since, columns=query.columns).to_arrow(), query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        changed = table.state["table"].changes(since=since, columns=query.columns).to_arrow()
        return asked_by_type(changed, query, {name: name for name in CHANGE_TYPES})

    def plan(self, table: BenchTable, query: Query) -> int:
        """As `Side.plan`."""
        return int(self.opened(table).scan(where=query.where, columns=query.columns).explain().read.groups)


Side = ObjcatLocalSide
