"""A side that forgets the last row of every upsert: what `./dev bench smoke` must not believe."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.base import BenchTable
from benchmarks.peers.objcat_local import ObjcatLocalSide


class ForgetfulSide(ObjcatLocalSide):
    def upsert(self, table: BenchTable, batch: Any) -> None:
        super().upsert(table, batch.slice(0, batch.num_rows - 1))


Side = ForgetfulSide
