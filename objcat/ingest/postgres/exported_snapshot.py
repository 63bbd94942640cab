"""`ExportedSnapshot`: one snapshot of PostgreSQL for many sessions, so that executors of Spark read a table as of one moment."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from objcat.ingest.model import Position, SourceTable
from objcat.ingest.postgres.connection import quoted

PAGES_MIN = 1024
"""A part of a table has so many pages at least."""
_SESSION = (
    "set TimeZone = 'UTC'; set DateStyle = 'ISO, YMD'; set IntervalStyle = 'postgres'; set extra_float_digits = 3; "
    "set bytea_output = 'hex'; set xmloption = 'content'; set statement_timeout = 0"
)
"""So values have the text that they have in chunks and in the stream."""
_PLACE = "_objcat_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSnapshot:
    """A snapshot as others join it by JDBC.

    Args:
        table: as the snapshot has it.
        url: of JDBC, without user and password.
        properties: of its connections, with both.
        query: gives all columns as text.
        parts: conditions that divide the rows.
        covers: what the snapshot has seen, see `SnapshotChunk`.
        until: a position that comes after everything that the snapshot has seen.
        rows: about how many the table has.
    """

    table: SourceTable
    url: str
    properties: Mapping[str, str]
    query: str
    parts: tuple[str, ...]
    covers: Any
    until: Position
    rows: int

    def __repr__(self) -> str:
        return f"ExportedSnapshot({self.table.name!r}, {len(self.parts)} parts)"


def text_query(table: SourceTable, sql: str) -> str:
    """A query for all columns as the text that COPY has, with the place of each row. `sql`: the name of the table."""
    columns = ", ".join(
        f"case when {name} is not null then format('%s', {name}) end as {name}" for name in (quoted(one.name) for one in table.columns)
    )
    return f"(select {columns}, ctid as {_PLACE} from {sql}) _objcat"  # noqa: S608 - names are quoted


def parts_of(pages: int, *, parts_max: int) -> tuple[str, ...]:
    """Conditions on the place of a row. The first and the last range are open, so that every row is in one."""
    count = max(1, min(parts_max, pages // PAGES_MIN))
    bounds = [pages * number // count for number in range(1, count)]
    if not bounds:
        return ("true",)
    inner = [f"{_PLACE} >= '({start},0)'::tid and {_PLACE} < '({end},0)'::tid" for start, end in itertools.pairwise(bounds)]
    return (f"{_PLACE} < '({bounds[0]},0)'::tid", *inner, f"{_PLACE} >= '({bounds[-1]},0)'::tid")


def jdbc_address(given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The parts of a connection string of libpq as an URL of JDBC, with what must not be seen apart."""
    host, port = given.get("host") or "localhost", given.get("port") or "5432"
    url = f"jdbc:postgresql://{host}:{port}/{quote(given.get('dbname') or given.get('user', ''), safe='')}"
    names = ("user", "password", "sslmode", "sslrootcert")
    return url, {name: str(given[name]) for name in names if given.get(name)}


def session_statement(snapshot: str) -> str:
    """What a session runs to join a snapshot. Its transaction has not begun before."""
    return f"set transaction isolation level repeatable read, read only; set transaction snapshot '{snapshot}'; {_SESSION}"
