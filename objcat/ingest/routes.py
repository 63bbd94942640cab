"""Which table of a source is written to which table of the lake, and with which columns: `Router` and `RoutedTable`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fileio.errors import InvalidConfig
from objcat.catalog.names import check_name
from objcat.common.validation import case_folded
from objcat.errors import InvalidInput
from objcat.ingest.config import Deletes, IngestConfig, ProfileConfig, RouteConfig, hint
from objcat.ingest.model import SourceColumn, SourceTable
from objcat.metadata.table_spec import BloomIndex, BucketIndex, Index, MemoryIndex, RecordIndex, SimpleIndex

DELETED = "_deleted"
"""The column of soft deletes: whether the row is gone at the source."""
SOURCE_TIME, SOURCE_POSITION, SEQUENCE, OPERATION = "_source_ts", "_source_pos", "_source_seq", "_op"
"""Columns of lineage: when the source committed the row, at which position, which of its transaction, and by which operation."""
LINEAGE = (
    pa.field(SOURCE_TIME, pa.timestamp("us", tz="UTC")),
    pa.field(SOURCE_POSITION, pa.string()),
    pa.field(SEQUENCE, pa.int64()),
    pa.field(OPERATION, pa.string()),
)
HISTORY: Deletes = "history"
SOFT: Deletes = "soft"

RECORD_PROFILE = ProfileConfig(index="bucket(1)", properties={"compact_after_commits": "64"})
"""How the record of a source is written."""

_BUCKETS = re.compile(r"bucket\((\d{1,5})\)")
_INDEXES: Mapping[str, Callable[[], Index]] = {"simple": SimpleIndex, "bloom": BloomIndex, "memory": MemoryIndex, "record": RecordIndex}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTable:
    """A table of the source with the table of the lake that it is written to.

    Args:
        source: its name at the source.
        name: of the table in the lake.
        route: the route that matched.
        profile: of the route.
        key: the key columns of the table in the lake, empty where rows are appended only.
        problem: why the table cannot be written as its route says, and what to do; None when it can.
    """

    source: str
    name: str
    route: RouteConfig
    profile: ProfileConfig
    key: tuple[str, ...]
    problem: str | None = None

    @property
    def appends(self) -> bool:
        """Whether each change is a row of its own."""
        return not self.key

    @property
    def is_soft(self) -> bool:
        """Whether rows that are gone stay, with a mark."""
        return self.route.deletes == SOFT

    @property
    def has_lineage(self) -> bool:
        """Whether rows have the columns of lineage."""
        return self.route.lineage or self.route.deletes == HISTORY

    def written(self, table: SourceTable) -> list[SourceColumn]:
        """The columns of a schema of the source that are written."""
        return [column for column in table.columns if column.name not in self.route.drop]

    def field(self, column: SourceColumn) -> pa.Field:
        """A column of the source as a column of the lake."""
        masked = self.route.mask.get(column.name)
        data_type = pa.string() if masked == "hash" else column.type
        return pa.field(column.name, data_type, nullable=column.name not in self.key)

    def schema(self, table: SourceTable) -> pa.Schema:
        """The columns in the lake for a schema of the source."""
        fields = [self.field(column) for column in self.written(table)]
        if self.is_soft:
            fields.append(pa.field(DELETED, pa.bool_()))
        if self.has_lineage:
            fields += LINEAGE
        return pa.schema(fields)

    def can_default(self, schema: pa.Schema, column: str) -> bool:
        """Whether a column of a new table in the lake may have a default: each row says its key and its partition itself."""
        if column not in schema.names or column in self.key or pa.types.is_nested(schema.field(column).type):
            return False
        return not any(re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text) for text in self.profile.partition_by)

    def settings(self) -> dict[str, Any]:
        """What `Lake.create_table` gets next to name, schema, key and shared log. Raises InvalidConfig."""
        return {
            "index": None if not self.key else parse_index(self.profile.index),
            "table_type": self.profile.kind,
            "partition_by": list(self.profile.partition_by),
            "properties": dict(self.profile.properties) if self.key else {},
        }


def parse_index(text: str) -> Index:
    """An index as a profile names it. Raises InvalidConfig."""
    if found := _BUCKETS.fullmatch(text):
        return BucketIndex(int(found[1]))
    if text in _INDEXES:
        return _INDEXES[text]()
    raise InvalidConfig(f"The index {text!r} of a profile is not known. Write bucket(8), {', '.join(_INDEXES)}.")


class Router:
    """The routes of a configuration."""

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._patterns = [re.compile(route.tables) for route in config.routes]

    def route(self, table: SourceTable) -> RoutedTable | None:
        """Where a table is written; None when no route matches, or the first that does skips it.

        A name in the lake, a key or a column of the route that does not fit is the `problem` of what is returned.
        """
        if table.is_record:
            return self._record(table)
        for pattern, route in zip(self._patterns, self._config.routes, strict=True):
            if found := pattern.fullmatch(table.name):
                return None if route.skip else self._routed(table, route, found)
        return None

    def route_all(self, tables: Iterable[SourceTable], *, first: Collection[str] = ()) -> Mapping[str, RoutedTable]:
        """All tables that are followed, by their names at the source.

        Args:
            tables: of the source.
            first: the tables that were followed before. Where two would be written to one, another one has the problem.
        """
        routed: dict[str, RoutedTable] = {}
        taken: dict[str, str] = {case_folded(self.dead_table()): "the dead letters"}
        for table in sorted(tables, key=lambda table: table.name not in first):
            found = self.route(table)
            if found is None:
                continue
            other = table.name if found.problem is not None else taken.setdefault(case_folded(found.name), table.name)
            if other != table.name:
                said = f"{self._config.path} writes {table.name} to {found.name!r}, to which {other} is written too. Change a route."
                found = replace(found, problem=f"{said} {self._again(table)}")
            routed[table.name] = found
        return routed

    def follows(self, name: str) -> bool:
        """Whether a route follows a table of that name."""
        for pattern, route in zip(self._patterns, self._config.routes, strict=True):
            if pattern.fullmatch(name):
                return not route.skip
        return False

    def key_of(self, name: str) -> tuple[str, ...]:
        """The key columns that the route of a table of the source names; empty when it names none."""
        for pattern, route in zip(self._patterns, self._config.routes, strict=True):
            if pattern.fullmatch(name):
                return route.key
        return ()

    def keeps_history(self, name: str) -> bool:
        """Whether the route of a table of the source keeps every change."""
        for pattern, route in zip(self._patterns, self._config.routes, strict=True):
            if pattern.fullmatch(name):
                return route.deletes == HISTORY
        return False

    def dead_table(self) -> str:
        """The name of the table of dead letters."""
        return self._config.dead_letters.table or f"{self._config.name.replace('-', '_')}.ingest_dead"

    def record_table(self, name: str) -> str:
        """The name in the lake of a record that the source itself keeps, see `SourceTable.is_record`."""
        return f"{self._config.name.replace('-', '_')}{name}"

    def _record(self, table: SourceTable) -> RoutedTable:
        name = self.record_table(table.name)
        return RoutedTable(source=table.name, name=name, route=RouteConfig(tables="", to=name), profile=RECORD_PROFILE, key=table.key)

    def _routed(self, table: SourceTable, route: RouteConfig, found: re.Match[str]) -> RoutedTable:
        name, key = found.expand(route.to), () if route.deletes == HISTORY else table.key
        problem = _column_problem(table, route, key)
        try:
            name = check_name(name)
        except InvalidInput as error:
            problem = f"writes {table.name} to a table of the lake that cannot be: {error} Change the route, or the name at the source."
        if problem is not None:
            problem = f"The route {route.tables!r} in {self._config.path} {problem} {self._again(table)}"
        profile = self._config.profiles[route.profile]
        return RoutedTable(source=table.name, name=name, route=route, profile=profile, key=tuple(key), problem=problem)

    def _again(self, table: SourceTable) -> str:
        return f"Then run `objcat ingest resnapshot {self._config.path} {table.name}`."


def _column_problem(table: SourceTable, route: RouteConfig, key: Collection[str]) -> str | None:
    """What is wrong with the columns that a route names, as the end of a sentence; None when nothing is."""
    names = {column.name for column in table.columns}
    compared = {case_folded(name) for name in names}
    for setting, columns in (("key", route.key), ("mask", route.mask), ("drop", route.drop)):
        for column in columns:
            if column in names or not table.has_schema:
                continue
            if column in route.optional and case_folded(column) not in compared:
                continue
            # A misspelled name would let the values through that it is to hide.
            may = "" if setting == "key" else " A column that may be absent is named in `optional` too."
            return (
                f"names the column {column!r} in `{setting}`, which {table.name} does not have: {hint(column, names)} "
                f"Nothing of the table is written. Correct the route.{may}"
            )
    for column in key:
        if column in route.drop or route.mask.get(column) == "null":
            return f'drops or hides {column!r}, which is in the key of {table.name}. Mask it by "hash" instead.'
    return None
