"""A side that mistakes which commit it is asked about: it answers for the one after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.objcat_local import ObjcatLocalSide
from benchmarks.works import Query


class MisdatingSide(ObjcatLocalSide):
    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> Any:
        return super().rows(table, where=where, columns=columns, as_of=None if as_of is None else as_of + 1)

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        return super().incremental(table, query, since + 1)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        return super().changes(table, query, since + 1)


Side = MisdatingSide
