"""What a refresh writes: rows to upsert and keys to delete, computed in a `QuerySession` and checked. One function for each way.

They leave two tables in the session: `COMES`, rows of the derived table that are new or changed, and `GOES`, keys whose rows are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as sql

from objcat.derived.delta import MOVED, find_moved, group_tables, whole_text
from objcat.derived.query import DerivedQuery
from objcat.derived.session import LocalQuerySession, QuerySession
from objcat.derived.shape import Measure, OutputColumn, Shape, Side
from objcat.derived.slot_scans import SlotScans
from objcat.derived.source_rows import SIGN, SourceRows
from objcat.errors import CorruptTable, InvalidBatch, NullKey
from objcat.table.scan import Scan
from objcat.table.table import Table

COMES = "_objcat_comes"
GOES = "_objcat_goes"
_NEW = "_objcat_new"
_OLD = "_objcat_old"
_AGAIN = "_objcat_again"
_GROUPS = "_objcat_groups"


@dataclass(frozen=True, slots=True)
class DerivedRows:
    """The derived table as a refresh finds it. slot: of its newest refresh. schema: its columns. key: their names. scans: of it."""

    table: Table
    scans: SlotScans
    slot: int
    schema: pa.Schema
    key: tuple[str, ...]


def compute_whole(
    session: QuerySession, query: DerivedQuery, derived: DerivedRows, sources: Sequence[SourceRows], *, is_empty: bool
) -> None:
    """Compute the whole query, and compare it with the table. Raises as `_check_rows`."""
    for one in sources:
        need = one.source.need
        columns = one.source.columns
        session.register(one.source.place, one.scans.scan(one.after, where=need.where, columns=columns))
    session.make(_NEW, _fitted(session, whole_text(session, query), derived.schema))
    _check_rows(session, _NEW, derived)
    if is_empty:
        _declare(session, f"SELECT * FROM {_NEW}", f"SELECT {_names(derived.key)} FROM {_NEW} LIMIT 0")
        return
    session.register(_OLD, derived.scans.scan(derived.slot))
    _compare(session, derived, _NEW, _OLD)


def compute_rows(session: QuerySession, query: DerivedQuery, shape: Shape, derived: DerivedRows, sources: Sequence[SourceRows]) -> bool:
    """Follow the rows of joined tables. Returns False when nothing changed. Raises as `find_moved` and `_check_rows`."""
    terms = [one.this if isinstance(one, sql.Alias) else one for one in query.tree.selects]
    if not find_moved(session, query, shape, sources, terms):
        return False
    numbers = {name: f"c{number}" for number, name in enumerate(query.outputs)}
    columns = ", ".join(f"{numbers[name]} AS {_quoted(name)}" for name in derived.schema.names)
    for name, which in ((_NEW, "> 0"), (_OLD, "< 0")):
        text = _fitted(session, f"SELECT {columns} FROM {MOVED} WHERE {SIGN} {which}", derived.schema)
        session.make(name, text)
    twice = session.rows(f"SELECT {', '.join(numbers[name] for name in derived.key)} FROM {MOVED} WHERE {SIGN} > 1 LIMIT 1")
    if twice.num_rows:
        raise _repeated(derived, twice)
    _check_rows(session, _NEW, derived)
    if not shape.is_unique:
        _check_new_keys(session, derived)
    key = _names(derived.key)
    _declare(session, f"SELECT * FROM {_NEW}", f"SELECT {key} FROM {_OLD} EXCEPT SELECT {key} FROM {_NEW}")
    return True


def compute_groups(session: QuerySession, query: DerivedQuery, shape: Shape, derived: DerivedRows, sources: Sequence[SourceRows]) -> bool:
    """Follow the groups of an aggregate. Returns False when nothing changed. Raises as `find_moved` and `_check_rows`."""
    terms = [term for one in shape.outputs if (term := one.term) is not None]
    # What other aggregates and HAVING read counts as a change too.
    if not find_moved(session, query, shape, sources, [*terms, *shape.watched]):
        return False
    numbers = dict(
        zip((one.name for one in shape.outputs if one.term is not None), (f"c{number}" for number in range(len(terms))), strict=True)
    )
    groups = [numbers[one.name] for one in shape.groups]
    _check_groups(session, shape, numbers, derived)
    session.make(_GROUPS, f"SELECT DISTINCT {', '.join(groups)} FROM {MOVED}")
    _find_old_groups(session, shape, numbers, derived)
    if shape.by_difference:
        _by_difference(session, shape, numbers, derived)
    else:
        session.make(_AGAIN, f"SELECT * FROM {_GROUPS}")
    _again(session, query, shape, numbers, derived, sources)
    return True


def _by_difference(session: QuerySession, shape: Shape, numbers: Mapping[str, str], derived: DerivedRows) -> None:
    """Add what came and went to the old groups: the table `_objcat_sums`, and in `_AGAIN` the groups that have to be computed again."""
    keys = [f"{numbers[one.name]} AS {_quoted(one.name)}" for one in shape.groups]
    kinds = dict(zip(numbers, session.types(f"SELECT {', '.join(numbers.values())} FROM {MOVED}"), strict=True))
    changes = ((one, _change_of(one, numbers, kinds, session.exact)) for one in shape.outputs if one.measure is not Measure.GROUP)
    sums = [f"{change} AS {_quoted(one.name)}" for one, change in changes]
    extremes = [(one, "min" if one.measure is Measure.MIN else "max") for one in shape.outputs if one.measure in (Measure.MIN, Measure.MAX)]
    sums += [f"{least}({numbers[one.name]}) FILTER (WHERE {SIGN} < 0) AS {_quoted('went ' + one.name)}" for one, least in extremes]
    group_by = ", ".join(numbers[one.name] for one in shape.groups)
    session.make("_objcat_change", f"SELECT {', '.join([*keys, *sums])} FROM {MOVED} GROUP BY {group_by}")
    met = " AND ".join(f"old.{_quoted(name)} = change.{_quoted(name)}" for name in derived.key)
    columns = ", ".join(f"{_added(one, shape)} AS {_quoted(one.name)}" for one in shape.outputs)
    lost = [_is_lost(one) for one, _ in extremes]
    again = " OR ".join(lost) if lost else "false"
    joined = f"FROM _objcat_change AS change LEFT JOIN {_OLD} AS old ON {met}"
    session.make("_objcat_sums", f"SELECT {columns}, {again} AS _objcat_again {joined}")
    rows = _quoted(shape.row_count or "")
    wrong = session.rows(f"SELECT * FROM _objcat_sums WHERE {rows} < 0 LIMIT 1")
    if wrong.num_rows:
        raise CorruptTable(
            f"The group {wrong.select(list(derived.key)).to_pylist()[0]} of the derived table {derived.table.name!r} would have fewer than "
            "0 rows: the table is not what its query gave. Nothing was written. Refresh it by lake.refresh_derived(name, full=True), and "
            "report a bug."
        )
    groups = ", ".join(f"{_quoted(one.name)} AS {numbers[one.name]}" for one in shape.groups)
    session.make(_AGAIN, f"SELECT {groups} FROM _objcat_sums WHERE _objcat_again AND {rows} > 0")


def _change_of(one: OutputColumn, numbers: Mapping[str, str], kinds: Mapping[str, str], exact: str) -> str:
    """What came less what went. exact: the type of sums of whole numbers."""
    term = numbers.get(one.name, "")
    match one.measure:
        case Measure.ROWS:
            return f"sum({SIGN})"
        case Measure.COUNT:
            return f"coalesce(sum({SIGN}) FILTER (WHERE {term} IS NOT NULL), 0)"
        case Measure.SUM:
            # A product of decimals has the digits of both, and there are 38 at most.
            times = f"CAST({SIGN} AS {'DECIMAL(9, 0)' if kinds[one.name].startswith('DECIMAL') else exact})"
            return f"coalesce(sum({times} * {term}), 0)"
        case Measure.MIN:
            return f"min({term}) FILTER (WHERE {SIGN} > 0)"
        case _:
            return f"max({term}) FILTER (WHERE {SIGN} > 0)"


def _added(one: OutputColumn, shape: Shape) -> str:
    """The new value of a column, from its old value and the change."""
    old, change = f"old.{_quoted(one.name)}", f"change.{_quoted(one.name)}"
    match one.measure:
        case Measure.GROUP:
            return change
        case Measure.ROWS | Measure.COUNT:
            return f"coalesce({old}, 0) + {change}"
        case Measure.SUM:
            by = _quoted(one.counted_by or shape.row_count or "")
            return f"CASE WHEN coalesce(old.{by}, 0) + change.{by} = 0 THEN NULL ELSE coalesce({old}, 0) + {change} END"
        case Measure.MIN:
            return f"CASE WHEN {old} IS NULL OR {change} < {old} THEN coalesce({change}, {old}) ELSE {old} END"
        case _:
            return f"CASE WHEN {old} IS NULL OR {change} > {old} THEN coalesce({change}, {old}) ELSE {old} END"


def _is_lost(one: OutputColumn) -> str:
    """Whether the row that had the least or greatest value may be gone."""
    old, went = f"old.{_quoted(one.name)}", f"change.{_quoted('went ' + one.name)}"
    return f"coalesce({went} {'<=' if one.measure is Measure.MIN else '>='} {old}, false)"


def _again(
    session: QuerySession,
    query: DerivedQuery,
    shape: Shape,
    numbers: Mapping[str, str],
    derived: DerivedRows,
    sources: Sequence[SourceRows],
) -> None:
    """Compute the groups of `_AGAIN` from their rows, and declare the result of all groups."""
    parts = []
    if shape.by_difference:
        sums = f"SELECT {_names(derived.schema.names)} FROM _objcat_sums WHERE {_quoted(shape.row_count or '')} > 0 AND NOT _objcat_again"
        session.make("_objcat_summed", _fitted(session, sums, derived.schema))
        parts.append("SELECT * FROM _objcat_summed")
    if session.rows(f"SELECT 1 AS n FROM {_AGAIN} LIMIT 1").num_rows:
        _register_groups(session, query, shape, numbers, sources)
        met = [
            sql.EQ(this=sql.column(numbers[one.name], table="_objcat_g", quoted=True), expression=one.term.copy())
            for one in shape.groups
            if one.term
        ]
        groups = sql.alias_(sql.to_table(_AGAIN), "_objcat_g", table=True, quoted=True)
        exists = sql.Exists(this=sql.select("1").from_(groups).where(*met))
        session.make("_objcat_computed", _fitted(session, whole_text(session, query, exists), derived.schema))
        parts.append("SELECT * FROM _objcat_computed")
    session.make(_NEW, " UNION ALL ".join(parts) or f"SELECT * FROM {_OLD} LIMIT 0")
    _check_rows(session, _NEW, derived)
    _compare(session, derived, _NEW, _OLD)


def _register_groups(
    session: QuerySession, query: DerivedQuery, shape: Shape, numbers: Mapping[str, str], sources: Sequence[SourceRows]
) -> None:
    """Let the query read the rows of some groups: those with a value of a group column, where that is a column of a table."""
    aliases = {node.alias_or_name: node.name for node in query.tree.find_all(sql.Table)}
    places = {source.place: place for place, source in enumerate(query.sources)}
    for one in sorted(
        shape.groups, key=lambda one: isinstance(one.term, sql.Column) and shape.sides[places[aliases[one.term.table]]] is Side.LEFT
    ):
        if isinstance(one.term, sql.Column):
            place = places[aliases[one.term.table]]
            values = session.values(f"SELECT DISTINCT {numbers[one.name]} FROM {_AGAIN}")
            values = None if values is None else values.cast(query.sources[place].schema.field(one.term.name).type)
            for other, tables in group_tables(sources, shape, place, one.term.name, values).items():
                session.register(query.sources[other].place, tables[0])
            return
    for source in sources:
        session.register(source.source.place, source.scans.scan(source.after, columns=source.source.columns))


def _find_old_groups(session: QuerySession, shape: Shape, numbers: Mapping[str, str], derived: DerivedRows) -> None:
    """Make `_OLD`: the rows of the derived table that have one of the groups that changed, and no others."""
    first = derived.key[0]
    keys = f"SELECT {', '.join(f'{numbers[one.name]} AS {_quoted(one.name)}' for one in shape.groups)} FROM {_GROUPS}"
    kinds = pa.schema([derived.schema.field(one.name) for one in shape.groups])
    session.make("_objcat_keys", _fitted(session, keys, kinds))
    values = session.values(f"SELECT DISTINCT {_quoted(first)} FROM _objcat_keys")
    session.register("_objcat_found", _keyed(derived, first, values, list(derived.schema.names)))
    met = " AND ".join(f"f.{_quoted(name)} = k.{_quoted(name)}" for name in derived.key)
    session.make(_OLD, f"SELECT f.* FROM _objcat_found AS f SEMI JOIN _objcat_keys AS k ON {met}")


def _keyed(derived: DerivedRows, column: str, values: pa.ChunkedArray | None, columns: list[str]) -> Scan:
    """The rows of the derived table of which a column has one of some values; all of them where these are None."""
    where = None if values is None else pc.field(column).isin(pc.unique(values).cast(derived.schema.field(column).type))
    return derived.scans.scan(derived.slot, where=where, columns=columns)


def _check_new_keys(session: QuerySession, derived: DerivedRows) -> None:
    """A key that comes and did not go must not be there: another row has it. Raises InvalidBatch."""
    key = _names(derived.key)
    session.make("_objcat_fresh", f"SELECT {key} FROM {_NEW} EXCEPT SELECT {key} FROM {_OLD}")
    values = session.values(f"SELECT DISTINCT {_quoted(derived.key[0])} FROM _objcat_fresh")
    if values is not None and len(values) == 0:
        return
    session.register("_objcat_there", _keyed(derived, derived.key[0], values, list(derived.key)))
    met = " AND ".join(f"t.{_quoted(name)} = f.{_quoted(name)}" for name in derived.key)
    twice = session.rows(f"SELECT t.* FROM _objcat_there AS t SEMI JOIN _objcat_fresh AS f ON {met} LIMIT 1")
    if twice.num_rows:
        raise _repeated(derived, twice)


def _check_groups(session: QuerySession, shape: Shape, numbers: Mapping[str, str], derived: DerivedRows) -> None:
    """Raises NullKey where rows came whose group is null."""
    for one in shape.groups:
        column = numbers[one.name]
        if session.rows(f"SELECT 1 AS n FROM {MOVED} WHERE {column} IS NULL AND {SIGN} > 0 LIMIT 1").num_rows:
            raise _null(derived, one.name)
    nulls = " OR ".join(f"{numbers[one.name]} IS NULL" for one in shape.groups)
    session.make(MOVED, f"SELECT * FROM {MOVED} WHERE NOT ({nulls})")


def _check_rows(session: QuerySession, name: str, derived: DerivedRows) -> None:
    """Raises InvalidBatch for a key that repeats in a table of the session, NullKey for one that is null."""
    for column in derived.key:
        if session.rows(f"SELECT 1 AS n FROM {name} WHERE {_quoted(column)} IS NULL LIMIT 1").num_rows:
            raise _null(derived, column)
    key = _names(derived.key)
    twice = session.rows(f"SELECT {key} FROM {name} GROUP BY {key} HAVING count(*) > 1 LIMIT 1")
    if twice.num_rows:
        raise _repeated(derived, twice)


def _repeated(derived: DerivedRows, found: pa.Table) -> InvalidBatch:
    said = dict(zip(derived.key, found.to_pylist()[0].values(), strict=True))
    return InvalidBatch(
        f"The query of {derived.table.name!r} has several rows of the key {said}. Nothing was written. Correct the rows of its tables, or "
        "create the table with a key that tells these rows apart."
    )


def _null(derived: DerivedRows, column: str) -> NullKey:
    return NullKey(
        f"The query of {derived.table.name!r} has a row whose key column {column!r} is null. Nothing was written. Leave such rows out by "
        f"WHERE, or give them a value: coalesce({column}, ...) AS {column}."
    )


def _compare(session: QuerySession, derived: DerivedRows, new: str, old: str) -> None:
    """Declare what differs between the new rows and the old ones."""
    met = " AND ".join(f"n.{_quoted(name)} = o.{_quoted(name)}" for name in derived.key)
    rest = [name for name in derived.schema.names if name not in derived.key]
    differs = " OR ".join(f"n.{_quoted(name)} IS DISTINCT FROM o.{_quoted(name)}" for name in rest) or "false"
    session.make("_objcat_before", f"SELECT * FROM {old}")
    there = f"o.{_quoted(derived.key[0])} IS NULL"
    _declare(
        session,
        f"SELECT n.* FROM {new} AS n LEFT JOIN _objcat_before AS o ON {met} WHERE {there} OR {differs}",
        f"SELECT {', '.join(f'o.{_quoted(name)}' for name in derived.key)} FROM _objcat_before AS o ANTI JOIN {new} AS n ON {met}",
    )


def _declare(session: QuerySession, comes: str, goes: str) -> None:
    session.make(COMES, comes)
    session.make(GOES, goes)


def _fitted(session: QuerySession, text: str, schema: pa.Schema) -> str:
    """The query with its columns under the names and types of a schema, by position."""
    kinds = session.kinds(schema)
    names = [f"c{number}" for number in range(len(kinds))]
    casts = ", ".join(f"CAST({name} AS {kind}) AS {_quoted(said)}" for name, kind, said in zip(names, kinds, schema.names, strict=True))
    return f"SELECT {casts} FROM ({text}) AS given({', '.join(names)})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(_quoted(name) for name in names)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def result_schema(query: DerivedQuery, key: Sequence[str]) -> pa.Schema:
    """The columns that a table of a query has. Raises InvalidSql."""
    session = LocalQuerySession()
    try:
        for source in query.sources:
            session.register(source.place, source.schema.empty_table())
        text = whole_text(session, query)
        found = session.rows(text).schema
        kinds = session.types(text)
    finally:
        session.close()
    fields = []
    for field, kind, name in zip(found, kinds, query.outputs, strict=True):
        # A sum of whole numbers is one, as Spark has it.
        data_type = pa.int64() if kind in ("HUGEINT", "UHUGEINT", "UBIGINT") else field.type
        fields.append(pa.field(name, data_type, nullable=name not in key))
    return pa.schema(fields)
