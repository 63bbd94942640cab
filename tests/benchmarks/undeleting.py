"""A side that leaves the first key of every delete where it is."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.base import BenchTable
from benchmarks.peers.objcat_local import ObjcatLocalSide


class UndeletingSide(ObjcatLocalSide):
    def delete(self, table: BenchTable, batch: Any) -> None:
        """The first key is one that is there, and others are not."""
        super().delete(table, batch.slice(1))


Side = UndeletingSide
