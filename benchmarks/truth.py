"""What every side must hold and answer, computed by DuckDB from the files that they were given: no side is the judge of another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import duckdb

from benchmarks.data import Data, connection
from benchmarks.works import KEYS, Query, comparable, digest_query

Rows = list[list[str | None]]


class Truth:
    """Answers over a table after batches were applied to it, in their order. Kept beside the data, by the text of the question."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._duck = connection()
        self._kept = data.root / "answers"
        self._kept.mkdir(exist_ok=True)

    def digest(self, source: str, batches: Sequence[Path], ordering: str | None) -> Rows:
        return self.answer(source, batches, ordering, digest_query(source, "duckdb"))

    def of_batch(self, batch: Path, query: Query) -> Rows:
        """The answer over a batch alone: what a commit of it changed to."""
        return self._ask(f"select {', '.join(query.aggregates)} from '{batch}'")

    def answer(self, source: str, batches: Sequence[Path], ordering: str | None, query: Query) -> Rows:
        what = ", ".join(query.aggregates or query.columns)
        where = f" where {query.where}" if query.where else ""
        return self._ask(f"select {what} from ({state(self._data.source(source), source, batches, ordering)}){where}")

    def join(self, sql: str) -> Rows:
        """sql: over `orders` and `lineitem` as they were loaded."""
        return self._ask(sql.format(orders=f"'{self._data.source('orders')}'", lineitem=f"'{self._data.source('lineitem')}'"))

    def _ask(self, sql: str) -> Rows:
        kept = self._kept / (hashlib.sha256(f"{duckdb.__version__} {sql}".encode()).hexdigest()[:24] + ".json")
        if not kept.exists():
            kept.write_text(json.dumps(comparable(self._duck.execute(sql).fetchall())))
        rows: Rows = json.loads(kept.read_text())
        return rows


def state(base: Path, source: str, batches: Sequence[Path], ordering: str | None) -> str:
    """SQL for the rows of a table after these batches: of each key the latest, or that of the greatest `ordering`, ties to the later."""
    if not batches:
        return f"select * from '{base}'"
    key = ", ".join(KEYS[source])
    numbered = " union all ".join(f"select *, {number} as _number from '{batch}'" for number, batch in enumerate(batches, 1))
    written = f"select {key} from ({numbered})"
    touched = f"{numbered} union all select *, 0 as _number from '{base}' where ({key}) in ({written})"
    rank = f"{ordering} desc, _number desc" if ordering else "_number desc"
    return (
        f"select * exclude (_number) from ({touched}) qualify row_number() over (partition by {key} order by {rank}) = 1 "
        f"union all select * from '{base}' where ({key}) not in ({written})"
    )
