"""What a statement needs of an engine, and how the tables of a query are found."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from sqlglot import expressions as sql
from sqlglot.optimizer.scope import Scope, traverse_scope

from fileio.store import FileIO
from objcat.errors import InvalidSql
from objcat.metadata.schema import HIDDEN_PREFIX
from objcat.predicate.sql_reach import beyond_rows, has_name
from objcat.sql.names import shorten, table_name
from objcat.sql.pushdown import Need, needs_of
from objcat.write.transaction import CommitResult

if TYPE_CHECKING:
    from objcat.common.validation import AsOf
    from objcat.table.table import Table


@dataclass(frozen=True, slots=True)
class QueryTable:
    """One mention of a table in a query.

    name: in the text that runs. as_of: None for the newest slot. need: what the query needs of a table in place, whose files an engine does
    not read by itself; None: not known.
    """

    name: str
    table: Table
    as_of: AsOf | None
    need: Need | None = None


class SqlLake(Protocol):
    """What statements need of a lake; `Lake` is one."""

    @property
    def fileio(self) -> FileIO:
        """The store."""

    @property
    def _context(self) -> Any:
        """What the methods of a lake share."""

    def table(self, name: str) -> Table:
        """See `Lake.table`."""

    def tables(self, namespace: str | None = None) -> list[str]:
        """See `Lake.tables`."""

    @property
    def namespaces(self) -> Any:
        """See `Lake.namespaces`."""

    @property
    def create_table(self) -> Callable[..., Table]:
        """See `Lake.create_table`."""

    @property
    def write(self) -> Callable[..., CommitResult]:
        """See `Lake.write`."""

    @property
    def drop_table(self) -> Callable[..., None]:
        """See `Lake.drop_table`."""

    @property
    def undrop_table(self) -> Callable[..., Any]:
        """See `Lake.undrop_table`."""

    @property
    def rename_table(self) -> Callable[..., None]:
        """See `Lake.rename_table`."""

    @property
    def dropped_tables(self) -> Callable[..., Sequence[Any]]:
        """See `Lake.dropped_tables`."""


class Runner(Protocol):
    """Runs the queries of statements, and returns their rows in the engine's own form."""

    def rows(self, query: sql.Query, sources: Sequence[QueryTable]) -> Any:
        """The rows of a query, for one call of `batch` or `fitted`. Raises InvalidSql, InvalidInput."""

    def result(self, query: sql.Query, sources: Sequence[QueryTable]) -> Any:
        """The rows of a query as the user gets them. Raises as `rows`."""

    def told(self, rows: pa.Table) -> Any:
        """The result of a statement that is no query, as the user gets it."""

    def batch(self, rows: Any) -> Any:
        """The rows as `Table.insert` takes them."""

    def fitted(self, rows: Any, schema: pa.Schema) -> Any:
        """The rows with the columns by position under the names and types of a schema."""

    def moment(self, said: sql.Expr) -> dt.datetime | None:
        """What a literal means in a query next to a zoned time; None: what a filter takes it for, or nothing."""

    def cause(self, error: Exception) -> Exception:
        """The error to show when a write of `rows` raised `error`; the query inside may have raised it."""

    def names(self, rows: Any) -> list[str]:
        """The column names of `rows`."""

    @property
    def spark(self) -> Any | None:
        """The Spark session, where there is one."""


def bind(tree: sql.Query, lake: SqlLake) -> tuple[sql.Query, list[QueryTable]]:
    """A query whose tables are renamed, and which tables these are. Names of its own (WITH) stay.

    Raises TableNotFound, and InvalidSql, also for a query that reads anything but tables of the lake.
    """
    if (beyond := beyond_rows(tree)) is not None:
        raise InvalidSql(f"{beyond}. Nothing was done. Read only tables of the lake.")
    tree = tree.copy()
    mentioned: dict[int, sql.Table] = {}
    scopes = {id(scope.expression): scope for scope in traverse_scope(tree)}
    for scope in scopes.values():
        for named in scope.sources.values():
            if isinstance(named, sql.Table) and has_name(named):
                mentioned[id(named)] = named
    _check_bound(tree, mentioned)
    for column in list(tree.find_all(sql.Column)):
        # From here on a table is known by the last part of its name.
        shorten(column, _tables_above(column, scopes))
    sources = []
    tables: dict[str, Table] = {}
    for number, node in enumerate(mentioned.values()):
        name = table_name(node)
        table = tables[name] if name in tables else tables.setdefault(name, lake.table(name))
        source = QueryTable(f"_objcat_{number}", table, _as_of(node))
        alias = node.alias or node.name
        for part in ("db", "catalog", "version"):
            node.set(part, None)
        node.set("this", sql.to_identifier(source.name, quoted=True))
        if not node.args.get("alias"):
            node.set("alias", sql.TableAlias(this=sql.to_identifier(alias, quoted=True)))
        sources.append(source)
    return tree, _with_needs(tree, sources)


def _with_needs(tree: sql.Query, sources: Sequence[QueryTable]) -> list[QueryTable]:
    """The tables of a query, with the needs of those in place as of the newest slot."""
    in_place = {source.name: source for source in sources if source.as_of is None and source.table.spec.is_in_place}
    schemas = {name: source.table.spec.table_schema.to_arrow() for name, source in in_place.items()}
    needs = needs_of(tree, schemas, by_field=schemas) if in_place else {}
    return [replace(source, need=needs.get(source.name)) for source in sources]


def _check_bound(tree: sql.Query, mentioned: Mapping[int, sql.Table]) -> None:
    """Refuse a table that was not looked up here: an engine would look for it elsewhere."""
    own = {cte.alias.lower() for cte in tree.find_all(sql.CTE)}
    if reserved := next((name for name in own if name.startswith(HIDDEN_PREFIX)), None):
        # It would hide the table of that name in the text that runs.
        raise InvalidSql(f"WITH {reserved} uses a reserved name. Choose a name that does not begin with {HIDDEN_PREFIX!r}.")
    for node in tree.find_all(sql.Table):
        if has_name(node) and id(node) not in mentioned and (node.args.get("db") or node.name.lower() not in own):
            raise InvalidSql(
                f"The table {node.sql('spark')!r} is in a place where tables are not looked up. Give each table of a FROM an "
                "alias of its own."
            )


def _tables_above(column: sql.Column, scopes: Mapping[int, Scope]) -> Iterator[sql.Table]:
    """The tables whose columns may be meant: those of the query around a column, and of the queries around that."""
    node: sql.Expr | None = column
    while node is not None and not isinstance(node, sql.CTE):
        if (scope := scopes.get(id(node))) is not None:
            yield from (source for source in scope.sources.values() if isinstance(source, sql.Table))
        node = node.parent


def _as_of(node: sql.Table) -> AsOf | None:
    version = node.args.get("version")
    if version is None:
        return None
    value = version.expression
    if version.args["kind"] != "AS OF" or not isinstance(value, sql.Literal):
        raise InvalidSql(f"{version.sql('spark')} is no time travel. Write VERSION AS OF a slot, or TIMESTAMP AS OF '2026-01-31 12:00:00'.")
    if version.name.upper() == "VERSION":
        if not value.is_int:
            raise InvalidSql(f"VERSION AS OF {value.sql('spark')} is no slot. Write a whole number, or use TIMESTAMP AS OF.")
        return int(value.name)
    return str(value.name)
