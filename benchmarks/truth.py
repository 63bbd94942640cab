"""What every side must hold and answer, computed by DuckDB from the source files. No side judges another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.data import Data, connection
from benchmarks.works import CHANGE_TYPE, COLUMNS, KEYS, WRITES, Layout, Op, Query, Statement, comparable, digest_query

Rows = list[list[str | None]]


@dataclass(frozen=True, slots=True)
class Commit:
    """A batch that was committed to a table as an `upsert`, an `append` or a `delete`."""

    op: Op
    batch: Path

    def __post_init__(self) -> None:
        assert self.op in WRITES[1:], self.op


class Truth:
    """Answers over a table after some commits. Cached next to the data, by the text of the question."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._duck = connection()
        self._kept = data.root / "answers"
        self._kept.mkdir(exist_ok=True)

    def digest(self, layout: Layout, commits: Sequence[Commit]) -> Rows:
        """The digest of all rows."""
        return self.answer(layout, commits, digest_query(layout.source, "duckdb"))

    def answer(self, layout: Layout, commits: Sequence[Commit], query: Query) -> Rows:
        """The answer to a query."""
        what = ", ".join(query.aggregates or query.columns)
        where = f" where {query.where}" if query.where else ""
        return self._ask(f"select {what} from ({state(self._data.source(layout.source), layout, commits)}){where}")

    def incremental(self, layout: Layout, commits: Sequence[Commit], *, back: int, query: Query) -> Rows:
        """The answer over the current rows that one of the last `back` commits wrote."""
        assert back and all(commit.op == "upsert" for commit in commits[-back:]) and layout.ordering is None
        key = ", ".join(layout.key)
        keys = " union all ".join(f"select {key} from '{commit.batch}'" for commit in commits[-back:])
        held = state(self._data.source(layout.source), layout, commits)
        return self._ask(f"select {', '.join(query.aggregates)} from ({held}) where ({key}) in ({keys})")

    def changes(self, layout: Layout, commits: Sequence[Commit], *, back: int, query: Query) -> Rows:
        """The answer over the changes of each of the last `back` commits, by type."""
        base, first = self._data.source(layout.source), len(commits) - back
        each = [_changes_of(commits[number], layout, state(base, layout, commits[:number])) for number in range(first, len(commits))]
        what = f"{CHANGE_TYPE}, {', '.join(query.aggregates)}"
        return self._ask(f"select {what} from ({' union all by name '.join(each)}) group by {CHANGE_TYPE}")

    def statement(self, statement: Statement, tables: Mapping[str, tuple[Layout, Sequence[Commit]]]) -> Rows:
        """The answer over tables after commits. `tables`: by source."""
        held = {source: f"({state(self._data.source(source), *table)})" for source, table in tables.items()}
        return self._ask(statement.sql.format(**held))

    def _ask(self, sql: str) -> Rows:
        kept = self._kept / (hashlib.sha256(f"{duckdb.__version__} {sql}".encode()).hexdigest()[:24] + ".json")
        if not kept.exists():
            kept.write_text(json.dumps(comparable(self._duck.execute(sql).fetchall())))
        rows: Rows = json.loads(kept.read_text())
        return rows


def state(base: Path, layout: Layout, commits: Sequence[Commit]) -> str:
    """SQL for the rows of a table after these commits.

    Of each key: the latest row, or the one with the greatest `ordering`, where the later one wins a tie. Without a key: all rows.
    Deletes are known in the order of commits only.
    """
    if not commits:
        return f"select * from '{base}'"
    if not layout.keyed:
        return " union all ".join(f"select * from '{path}'" for path in (base, *(commit.batch for commit in commits)))
    assert not (layout.ordering and any(commit.op == "delete" for commit in commits))
    key = ", ".join(KEYS[layout.source])
    numbered = " union all by name ".join(
        f"select *, {number} as _number, {commit.op == 'delete'} as _gone from '{commit.batch}'" for number, commit in enumerate(commits, 1)
    )
    written = f"select {key} from ({numbered})"
    touched = f"{numbered} union all by name select *, 0 as _number, false as _gone from '{base}' where ({key}) in ({written})"
    rank = f"{layout.ordering} desc, _number desc" if layout.ordering else "_number desc"
    newest = f"select * from ({touched}) qualify row_number() over (partition by {key} order by {rank}) = 1"
    columns = ", ".join(COLUMNS[layout.source])
    return f"select {columns} from ({newest}) where not _gone union all select {columns} from '{base}' where ({key}) not in ({written})"


def _changes_of(commit: Commit, layout: Layout, before: str) -> str:
    """SQL for the changes of a commit. `before`: SQL for the rows before it."""
    assert layout.ordering is None
    key, columns = ", ".join(layout.key), ", ".join(COLUMNS[layout.source])
    old = f"select {columns}, '{{}}' as {CHANGE_TYPE} from ({before}) where ({key}) in (select {key} from '{commit.batch}')"
    if commit.op == "delete":
        return old.format("delete")
    matched = f"({key}) in (select {key} from ({before}))"
    new = f"select {columns}, case when {matched} then 'update_after' else 'insert' end as {CHANGE_TYPE} from '{commit.batch}'"
    return f"{old.format('update_before')} union all by name {new}"
