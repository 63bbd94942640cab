"""`Shape`: how a query can be kept up to date, and why not in a better way. `shape_of` finds it out; it is pure.

A query of a shape other than WHOLE is one SELECT over tables that are joined from left to right by INNER, CROSS and LEFT joins, and that
only uses terms of which it is known that they depend on nothing but their row (`TERMS`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.derived.query import DerivedQuery, QuerySource

TERMS: frozenset[type[sql.Expr]] = frozenset(
    (
        *(sql.Select, sql.From, sql.Join, sql.Where, sql.Group, sql.Having, sql.Table, sql.TableAlias, sql.Alias, sql.Star),
        *(sql.Column, sql.Identifier, sql.Literal, sql.Null, sql.Boolean, sql.Paren, sql.DataType, sql.DataTypeParam, sql.Var, sql.Tuple),
        *(sql.And, sql.Or, sql.Not, sql.EQ, sql.NEQ, sql.GT, sql.GTE, sql.LT, sql.LTE, sql.NullSafeEQ, sql.NullSafeNEQ, sql.Is, sql.In),
        *(sql.Between, sql.Add, sql.Sub, sql.Mul, sql.Div, sql.IntDiv, sql.Mod, sql.Neg, sql.Case, sql.If, sql.Coalesce, sql.Nullif),
        *(sql.Cast, sql.TryCast, sql.Like, sql.ILike, sql.Escape, sql.Lower, sql.Upper, sql.Trim, sql.Concat, sql.DPipe, sql.Substring),
        *(sql.Length, sql.Abs, sql.Round, sql.Floor, sql.Ceil, sql.Greatest, sql.Least, sql.Extract, sql.Year, sql.Month, sql.Day),
        *(sql.DateTrunc, sql.TimestampTrunc, sql.DateDiff, sql.DateAdd, sql.DateSub, sql.Date, sql.TsOrDsToDate, sql.TsOrDsAdd),
        *(sql.Count, sql.Sum, sql.Min, sql.Max, sql.Avg, sql.Distinct, sql.Interval),
    )
)
"""What a query may consist of, to be kept up to date by its changes. Each depends on its own row only, or aggregates rows in any order."""


DIGITS_MAX = 18
"""Digits of decimals whose sums follow from changes: a product of two, times how often a row came, has 38 at most."""


class RefreshWay(enum.StrEnum):
    """How a refresh finds the new rows.

    ROWS: from the changed rows and what they join with. GROUPS: the same, then group by group. WHOLE: by the whole query.
    """

    ROWS = "rows"
    GROUPS = "groups"
    WHOLE = "whole"


class Side(enum.StrEnum):
    """How a source stands in the FROM."""

    INNER = "inner"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Edge:
    """An equality of two columns that a join needs. sources: their places in the FROM. owner: the source whose ON it is; None of WHERE."""

    sources: tuple[int, int]
    columns: tuple[str, str]
    owner: int | None

    def other(self, source: int) -> tuple[int, str, str]:
        """The source at the other end, its column, and the own column."""
        here, there = (0, 1) if self.sources[0] == source else (1, 0)
        return self.sources[there], self.columns[there], self.columns[here]


class Measure(enum.StrEnum):
    """What a column of an aggregate is."""

    GROUP = "group"
    ROWS = "count of rows"
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of an aggregate.

    Args:
        term: of a group, its expression; of an aggregate, what it aggregates, None for count(*).
        counted_by: of a sum, the output that counts its values. None where they are never null: then it is that of all rows.
    """

    name: str
    measure: Measure
    term: sql.Expr | None = None
    counted_by: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """How a query can be kept up to date.

    Args:
        sides: of each source.
        on: the condition of each source's join.
        edges: equalities by which rows are looked up.
        outputs: of GROUPS, in order.
        watched: of GROUPS, columns of other aggregates and of HAVING.
        by_difference: of GROUPS, whether counts and sums follow from the changes. Otherwise each group that changed is computed again.
        is_unique: whether the key cannot repeat, since it determines a row of each table.
        remarks: sentences for people: why not better, and what to change.
    """

    way: RefreshWay
    sides: tuple[Side, ...] = ()
    on: tuple[sql.Expr | None, ...] = ()
    edges: tuple[Edge, ...] = ()
    outputs: tuple[OutputColumn, ...] = ()
    watched: tuple[sql.Expr, ...] = ()
    by_difference: bool = False
    is_unique: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def groups(self) -> list[OutputColumn]:
        """The group columns."""
        return [one for one in self.outputs if one.measure is Measure.GROUP]

    @property
    def row_count(self) -> str | None:
        """The output that counts the rows of a group."""
        return next((one.name for one in self.outputs if one.measure is Measure.ROWS), None)


def shape_of(query: DerivedQuery, key: list[str]) -> Shape:
    """The best way for a query. key: of the derived table."""
    tree = query.tree
    why = _beyond(tree)
    if why is None and isinstance(tree, sql.Select):
        tree = without_distinct(tree)
        joins = _Joins.of(tree, query)
        if isinstance(joins, str):
            why = joins
        elif _is_aggregate(tree):
            shape = _groups(tree, query, joins, key)
            if isinstance(shape, Shape):
                return shape
            why = shape
        else:
            unique = _determines(tree, query, joins, key)
            remarks = joins.remarks if unique else [*joins.remarks, "Each new key is looked up, because the key may repeat."]
            return Shape(RefreshWay.ROWS, joins.sides, joins.on, joins.edges, is_unique=unique, remarks=tuple(remarks))
    return Shape(RefreshWay.WHOLE, remarks=(f"It is computed as a whole at each refresh: {why}.",))


def without_distinct(tree: sql.Select) -> sql.Select:
    """SELECT DISTINCT as GROUP BY of all columns."""
    if tree.args.get("distinct") is None or tree.args.get("group") is not None or tree.find(sql.AggFunc):
        return tree
    tree = tree.copy()
    tree.set("distinct", None)
    tree.set("group", sql.Group(expressions=[_inner(one).copy() for one in tree.selects]))
    return tree


def _beyond(tree: sql.Query) -> str | None:
    """What keeps a query from being followed by its changes; None: nothing."""
    if not isinstance(tree, sql.Select):
        return "it is no single SELECT"
    allowed = {
        "kind",
        "hint",
        "distinct",
        "expressions",
        "limit",
        "operation_modifiers",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "exclude",
    }
    more = next((name for name, value in tree.args.items() if value and name not in allowed), None)
    if more is not None:
        return f"it has {more.strip('_').replace('_', ' ').upper()}"
    if tree.args.get("distinct") is not None and (tree.args.get("group") is not None or tree.find(sql.AggFunc)):
        return "it has DISTINCT over an aggregate"
    for node in tree.walk():
        if isinstance(node, sql.Query) and node is not tree:
            return f"it has a query inside, {_shown(node)}"
        if type(node) not in TERMS:
            return f"it has {_shown(node)}, which is not known to depend on its row only"
    group = tree.args.get("group")
    if group is not None and any(value for name, value in group.args.items() if name != "expressions"):
        return "it groups by several sets"
    return None


@dataclass(slots=True)
class _Joins:
    """The FROM of a query. nullable: the sources that a LEFT join may fill with nulls."""

    sides: tuple[Side, ...]
    on: tuple[sql.Expr | None, ...]
    edges: tuple[Edge, ...]
    aliases: Mapping[str, int]
    remarks: list[str] = field(default_factory=list)

    @property
    def nullable(self) -> set[int]:
        return {place for place, side in enumerate(self.sides) if side is Side.LEFT}

    @classmethod
    def of(cls, tree: sql.Select, query: DerivedQuery) -> _Joins | str:
        """Read the joins. Returns why they cannot be followed, as text."""
        places = {source.place: place for place, source in enumerate(query.sources)}
        mentioned: list[tuple[sql.Expr, Side, sql.Expr | None]] = [(tree.args["from_"].this, Side.INNER, None)]
        for join in tree.args.get("joins") or []:
            if join.method or join.args.get("using") or join.kind not in ("", "INNER", "CROSS", "OUTER") or join.side not in ("", "LEFT"):
                return f"{join.side} {join.kind} {join.method} JOIN is followed as a whole only".replace("  ", " ").strip()
            mentioned.append((join.this, Side.LEFT if join.side == "LEFT" else Side.INNER, join.args.get("on")))
        if any(not isinstance(node, sql.Table) or node.name not in places for node, _, _ in mentioned):
            return "its FROM has more than tables"
        if [places[node.name] for node, _, _ in mentioned] != list(range(len(places))):
            return "its tables are not joined from left to right"
        aliases = {node.alias_or_name: place for place, (node, _, _) in enumerate(mentioned)}
        found = cls(tuple(side for _, side, _ in mentioned), tuple(on for _, _, on in mentioned), (), aliases)
        for place, (_, _, on) in enumerate(mentioned):
            if on is not None and any(aliases.get(column.table, place + 1) > place for column in on.find_all(sql.Column)):
                return "a join names a table that comes after it"
        found.edges = tuple(found._edges(tree, query.sources))
        for place, source in enumerate(query.sources):
            if len(query.sources) > 1 and not any(place in edge.sources for edge in found.edges):
                found.remarks.append(f"{source.name} is joined by no equality of columns, so all of it is read when others change.")
        for edge in found.edges:
            for place, column in zip(edge.sources, edge.columns, strict=True):
                source = query.sources[place]
                if column not in (source.table.key or []):
                    found.remarks.append(
                        f"Rows of {source.name} are found by {column!r}, which is not its key: that column is read whole when another "
                        "changes."
                    )
        return found

    def _edges(self, tree: sql.Select, sources: tuple[QuerySource, ...]) -> Iterator[Edge]:
        where = tree.args.get("where")
        conditions = [*((place, on) for place, on in enumerate(self.on) if on is not None), *([(None, where.this)] if where else [])]
        for owner, condition in conditions:
            for term in conjuncts(condition):
                if type(term) is not sql.EQ or not isinstance(term.this, sql.Column) or not isinstance(term.expression, sql.Column):
                    continue
                ends = [(self.aliases[side.table], side.name) for side in (term.this, term.expression)]
                if ends[0][0] == ends[1][0] or (owner is not None and owner not in (ends[0][0], ends[1][0])):
                    continue
                types = [sources[place].schema.field(column).type for place, column in ends if column in sources[place].schema.names]
                if len(types) == 2 and _compares_alike(*types):
                    yield Edge((ends[0][0], ends[1][0]), (ends[0][1], ends[1][1]), owner)


def conjuncts(condition: sql.Expr) -> Iterator[sql.Expr]:
    """The terms of a condition that all have to be true."""
    condition = condition.unnest()
    if isinstance(condition, sql.And):
        for side in (condition.this, condition.expression):
            yield from conjuncts(side)
    else:
        yield condition


def _compares_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether a lookup of Arrow finds what an equality of SQL does."""
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return True
    plain = pa.types.is_string(left) or pa.types.is_date(left) or pa.types.is_timestamp(left) or pa.types.is_boolean(left)
    return bool(left == right and (plain or pa.types.is_decimal(left) or pa.types.is_binary(left)))


def _is_aggregate(tree: sql.Select) -> bool:
    return tree.args.get("group") is not None or tree.args.get("having") is not None or tree.find(sql.AggFunc) is not None


def _inner(one: sql.Expr) -> sql.Expr:
    return one.this if isinstance(one, sql.Alias) else one


def _determines(tree: sql.Select, query: DerivedQuery, joins: _Joins, key: list[str]) -> bool:
    """Whether the key of the result determines a row of every source, so that it cannot repeat."""
    known: set[tuple[int, str]] = set()
    for one, name in zip(tree.selects, query.outputs, strict=True):
        inner = _inner(one)
        if name in key and isinstance(inner, sql.Column) and inner.table in joins.aliases:
            known.add((joins.aliases[inner.table], inner.name))
    determined: set[int] = set()
    while True:
        fresh = {
            place
            for place, source in enumerate(query.sources)
            if place not in determined
            and _is_key(source, {column for at, column in known if at == place})
            and _is_met(place, joins, determined)
        }
        if not fresh:
            return len(determined) == len(query.sources)
        determined |= fresh
        known |= {(place, column) for place in fresh for column in query.sources[place].schema.names}
        for edge in joins.edges:
            for place in edge.sources:
                other, theirs, mine = edge.other(place)
                # An equality of a LEFT join says something about its own table, not about those before it.
                if (place, mine) in known and not (edge.owner in joins.nullable and other != edge.owner):
                    known.add((other, theirs))


def _is_key(source: QuerySource, known: set[str]) -> bool:
    key = source.table.key
    return key is not None and source.table.key_scope == "table" and known.issuperset(key)


def _is_met(place: int, joins: _Joins, determined: set[int]) -> bool:
    """Whether a source may count as determined: the key of a table that a LEFT join fills with nulls may be null in many rows."""
    return place not in joins.nullable or all(other in determined for other in range(place))


def _groups(tree: sql.Select, query: DerivedQuery, joins: _Joins, key: list[str]) -> Shape | str:
    group = tree.args.get("group")
    terms = [] if group is None else [_at_place(one, tree) for one in group.expressions]
    if not terms:
        return "it aggregates all rows into one"
    outputs = [_output(one, name, terms) for one, name in zip(tree.selects, query.outputs, strict=True)]
    groups = [one for one in outputs if one.measure is Measure.GROUP]
    if {one.name for one in groups} != set(key) or {_text(one.term) for one in groups} != {_text(term) for term in terms}:
        return f"its key {key} is not what it groups by, {[term.sql('spark') for term in terms]}"
    remarks = list(joins.remarks)
    why = _why_again(tree, query, joins, outputs)
    if why is not None:
        remarks.append(f"Each group that changed is computed again from its rows: {why}.")
    if why is not None or any(out.measure in (Measure.MIN, Measure.MAX) for out in outputs):
        computed = [one.name for one in groups if not isinstance(one.term, sql.Column)]
        if len(computed) == len(groups):
            remarks.append(f"{computed} are computed, so the rows of a group cannot be looked up. To compute a group again reads all rows.")
    counted = tuple(_counted(one, outputs, query, joins) for one in outputs)
    others = [one for one, output in zip(tree.selects, outputs, strict=True) if output.measure is Measure.OTHER]
    having = tree.args.get("having")
    columns = [column for one in [*others, *([having] if having else [])] for column in one.find_all(sql.Column)]
    return Shape(
        RefreshWay.GROUPS,
        joins.sides,
        joins.on,
        joins.edges,
        counted,
        watched=tuple({_text(column): column for column in columns}.values()),
        by_difference=why is None,
        is_unique=True,
        remarks=tuple(remarks),
    )


def _at_place(term: sql.Expr, tree: sql.Select) -> sql.Expr:
    """GROUP BY 1 means the first column."""
    if isinstance(term, sql.Literal) and term.is_int:
        return _inner(tree.selects[int(term.name) - 1])
    return term


def _output(one: sql.Expr, name: str, groups: list[sql.Expr]) -> OutputColumn:
    inner = _inner(one).unnest()
    if any(_text(inner) == _text(group) for group in groups):
        return OutputColumn(name, Measure.GROUP, inner)
    measures: Mapping[type[sql.Expr], Measure] = {
        sql.Count: Measure.COUNT,
        sql.Sum: Measure.SUM,
        sql.Min: Measure.MIN,
        sql.Max: Measure.MAX,
    }
    measure = measures.get(type(inner))
    if measure is None or isinstance(inner.this, sql.Distinct) or inner.expressions:
        return OutputColumn(name, Measure.OTHER)
    if measure is Measure.COUNT and (isinstance(inner.this, sql.Star) or (isinstance(inner.this, sql.Literal) and inner.this.name)):
        return OutputColumn(name, Measure.ROWS)
    return OutputColumn(name, measure, inner.this)


def _why_again(tree: sql.Select, query: DerivedQuery, joins: _Joins, outputs: list[OutputColumn]) -> str | None:
    """Why groups cannot follow from the changes alone; None: they can."""
    if tree.args.get("having") is not None:
        return "HAVING hides groups whose counts would be needed"
    if not any(one.measure is Measure.ROWS for one in outputs):
        return "nothing says when its last row is gone. Add count(*) to the query"
    for one in outputs:
        if one.measure is Measure.OTHER:
            return f"{one.name!r} is no count, sum, min or max"
        if one.measure is Measure.SUM:
            assert one.term is not None
            if not _is_exact(one.term, query, joins):
                return f"the sum {one.name!r} is not of whole numbers or decimals, so it depends on the order of rows"
            if _may_be_null(one.term, query, joins) and _counted(one, outputs, query, joins).counted_by is None:
                return f"the sum {one.name!r} is null when all its values are. Add count({one.term.sql('spark')}) to the query"
    return None


def _counted(one: OutputColumn, outputs: list[OutputColumn], query: DerivedQuery, joins: _Joins) -> OutputColumn:
    if one.measure is not Measure.SUM or one.term is None or not _may_be_null(one.term, query, joins):
        return one
    by = next((other.name for other in outputs if other.measure is Measure.COUNT and _text(other.term) == _text(one.term)), None)
    return OutputColumn(one.name, one.measure, one.term, by)


def _is_exact(term: sql.Expr, query: DerivedQuery, joins: _Joins) -> bool:
    """Whether a sum of the values is the same in any order: whole numbers and decimals, added and multiplied."""
    term = term.unnest()
    if isinstance(term, sql.Literal):
        return not term.is_string and term.is_int
    if isinstance(term, sql.Column):
        field = _field(term, query, joins)
        return field is not None and (
            pa.types.is_integer(field.type) or (pa.types.is_decimal(field.type) and field.type.precision <= DIGITS_MAX)
        )
    if isinstance(term, (sql.Add, sql.Sub, sql.Mul)):
        return _is_exact(term.this, query, joins) and _is_exact(term.expression, query, joins)
    if isinstance(term, sql.Neg):
        return _is_exact(term.this, query, joins)
    if isinstance(term, sql.Coalesce):
        return all(_is_exact(part, query, joins) for part in (term.this, *term.expressions))
    return False


def _may_be_null(term: sql.Expr, query: DerivedQuery, joins: _Joins) -> bool:
    term = term.unnest()
    if isinstance(term, sql.Literal):
        return False
    if isinstance(term, sql.Column):
        field = _field(term, query, joins)
        return field is None or field.nullable or joins.aliases[term.table] in joins.nullable
    if isinstance(term, (sql.Add, sql.Sub, sql.Mul)):
        return _may_be_null(term.this, query, joins) or _may_be_null(term.expression, query, joins)
    if isinstance(term, sql.Coalesce):
        return all(_may_be_null(part, query, joins) for part in (term.this, *term.expressions))
    return True


def _field(column: sql.Column, query: DerivedQuery, joins: _Joins) -> pa.Field | None:
    place = joins.aliases.get(column.table)
    if place is None or column.name not in query.sources[place].schema.names:
        return None
    return query.sources[place].schema.field(column.name)


def _text(term: sql.Expr | None) -> str:
    return "" if term is None else term.unnest().sql("spark")


def _shown(node: sql.Expr) -> str:
    text = node.sql("spark").strip()
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
