"""The vocabulary of the benchmarks of tables: layouts, queries, steps, chains. They are data only, and cross pipes as JSON.

A *chain* is a script: some tables, and steps that every side performs on them, in turn. A *work* is a measured step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

BUCKETS = 16
CODEC = "zstd"
CODEC_LEVEL = 3
"""Spark's default for zstd. Every side with a level gets it, except objcat, which has its own."""

KEYS: Mapping[str, tuple[str, ...]] = {"orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}
BUCKET_COLUMNS: Mapping[str, str] = {"orders": "o_orderkey", "lineitem": "l_orderkey"}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "orders": {
        "o_orderkey": "bigint",
        "o_custkey": "bigint",
        "o_orderstatus": "string",
        "o_totalprice": "decimal(15,2)",
        "o_orderdate": "date",
        "o_orderpriority": "string",
        "o_clerk": "string",
        "o_shippriority": "int",
        "o_comment": "string",
    },
    "lineitem": {
        "l_orderkey": "bigint",
        "l_partkey": "bigint",
        "l_suppkey": "bigint",
        "l_linenumber": "int",
        "l_quantity": "decimal(15,2)",
        "l_extendedprice": "decimal(15,2)",
        "l_discount": "decimal(15,2)",
        "l_tax": "decimal(15,2)",
        "l_returnflag": "string",
        "l_linestatus": "string",
        "l_shipdate": "date",
        "l_commitdate": "date",
        "l_receiptdate": "date",
        "l_shipinstruct": "string",
        "l_shipmode": "string",
        "l_comment": "string",
    },
}
"""Columns of TPC-H, with their SQL types."""

EVENT_TIMES: Mapping[str, str] = {"orders": "o_orderdate", "lineitem": "l_shipdate"}
"""The ordering column where a chain is in event-time order. Batches move it a day back, forth, or not at all."""

Kind = Literal["merge_on_read", "copy_on_write"]
Index = Literal["bucket", "bloom", "record", "simple", "memory"]
Op = Literal[
    "load", "upsert", "append", "delete", "compact", "cluster", "clean", "query", "statement", "incremental", "changes", "open", "digest"
]
WRITES: tuple[Op, ...] = ("load", "upsert", "append", "delete")
"""Operations that change rows. Each call is a commit."""
READS: tuple[Op, ...] = ("query", "statement", "incremental", "changes", "open")
"""Operations that change nothing, and can be repeated on one table."""
CHANGE_TYPE = "_change_type"
CHANGE_TYPES = ("insert", "update_before", "update_after", "delete")
"""The values of that column of a change feed."""


class NotAvailable(Exception):
    """A side has no such operation. The message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How to lay a table out.

    Args:
        source: The TPC-H table.
        ordering: The column whose greater value wins; None: the later commit wins.
        changes: Whether the side must store what it needs to tell the changes of a commit.
        index: How writes find keys, where a side has a choice.
        keyed: Whether rows have a key. Without one they are only appended.
    """

    name: str
    source: str
    kind: Kind = "merge_on_read"
    ordering: str | None = None
    changes: bool = False
    index: Index = "bucket"
    keyed: bool = True

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return KEYS[self.source] if self.keyed else ()

    @property
    def columns(self) -> Mapping[str, str]:
        """All columns."""
        return COLUMNS[self.source]

    @property
    def bucket_columns(self) -> tuple[str, ...]:
        """The hashed columns: the column of the join."""
        return (BUCKET_COLUMNS[self.source],)


@dataclass(frozen=True, slots=True)
class Query:
    """`select aggregates from table where ...`, or the rows themselves without aggregates. In SQL that Spark and DuckDB share."""

    columns: tuple[str, ...]
    aggregates: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """A query over whole tables, with `{orders}` and `{lineitem}` for their names. `columns`: by source, the columns it reads."""

    sql: str
    columns: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a work must show, one of:

    - at least `faster` times as fast as `against`
    - in at most `share` of the time of `against`
    - at most `seconds`
    - the slowest of successive commits in at most `slowest` medians
    - at most `exchanges` in the plan that ran

    `of`: the side that must show it. None: objcat's own.
    """

    against: str | None = None
    faster: float | None = None
    share: float | None = None
    seconds: float | None = None
    slowest: float | None = None
    exchanges: int | None = None
    of: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a chain.

    Args:
        work: Its title. Empty: it prepares, and is not measured.
        tables: Layouts by name. The first one is written.
        batch: One of those in `benchmarks.data`.
        back: How many commits before the newest a read begins, or which it reads as of.
        by: How to cluster. Likewise `zorder`.
        sides: Only these; all when empty.
        counts: Of small commits, by side.
        blocks: The number of turns for them.
        repeats: Calls in each round of a chain that does not start over.
        warm: The most calls before them that do not count.
    """

    op: Op
    tables: tuple[str, ...]
    work: str = ""
    batch: str = ""
    query: Query | None = None
    statement: Statement | None = None
    back: int = 0
    by: tuple[str, ...] = ()
    zorder: bool = False
    sides: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    blocks: int = 1
    repeats: int = 1
    warm: int = 0
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps over some tables. With `anew`, every round creates the tables again. Otherwise a round repeats each query only."""

    name: str
    engine: Literal["spark", "local"]
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]
    anew: bool = True
    sides: tuple[str, ...] = ()

    def layout(self, name: str) -> Layout:
        """The layout of a table of the chain."""
        return next(layout for layout in self.layouts if layout.name == name)


def encoded(value: Layout | Query | Statement) -> dict[str, Any]:
    """Plain values, for JSON."""
    return dataclasses.asdict(value)


def decoded_layout(raw: Mapping[str, Any]) -> Layout:
    """The inverse of `encoded`."""
    return Layout(**raw)


def decoded_query(raw: Mapping[str, Any]) -> Query:
    """The inverse of `encoded`."""
    return Query(tuple(raw["columns"]), tuple(raw["aggregates"]), raw["where"])


def decoded_statement(raw: Mapping[str, Any]) -> Statement:
    """The inverse of `encoded`."""
    return Statement(raw["sql"], {source: tuple(columns) for source, columns in raw["columns"].items()})


def digest_query(source: str, dialect: Literal["spark", "duckdb"]) -> Query:
    """Aggregates that are equal when two tables hold the same rows in any order: count, sums, and a sum of hashes of rows."""
    columns = COLUMNS[source]
    days = {"spark": "unix_date({})", "duckdb": "({} - date '1970-01-01')"}[dialect]
    sums = []
    for name, kind in columns.items():
        value = days.format(name) if kind == "date" else f"length({name})" if kind == "string" else name
        sums.append(f"sum(cast({value} as decimal(38,2)))")
    row = "concat_ws('|', " + ", ".join(f"coalesce(cast({name} as string), '?')" for name in columns) + ")"
    number = {"spark": "conv(substring(md5({}), 1, 15), 16, 10)", "duckdb": "('0x' || substring(md5({}), 1, 15))::bigint"}[dialect]
    return Query(tuple(columns), ("count(1)", *sums, f"sum(cast({number.format(row)} as decimal(38,0)))"))


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """The difference of counts by kind, without kinds that do not differ."""
    return {kind: count - before.get(kind, 0) for kind, count in after.items() if count > before.get(kind, 0)}


def comparable(rows: Sequence[Sequence[Any]]) -> list[list[str | None]]:
    """Rows as both sides of a pipe, and every engine, write them: as sorted text."""
    texts = [[None if value is None else str(value) for value in row] for row in rows]
    return sorted(texts, key=lambda row: [text or "" for text in row])
