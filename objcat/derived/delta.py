"""`Delta`: which rows of a query came and went between two slots of each of its sources.

The sources change one after the other: for each, the rows that its own changes bring and take, where the sources before it are already as
they will be, and those after it still as they were. The sum of these steps is the exact difference, also for rows that repeat. A source of
a LEFT join changes rows of nulls too, so its step takes all rows before it that a changed row meets, with the old and the new rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.derived.query import DerivedQuery
from objcat.derived.reach import Reach
from objcat.derived.session import QuerySession
from objcat.derived.shape import Shape, Side, without_distinct
from objcat.derived.source_rows import SIGN, SourceRows

MOVED = "_objcat_moved"
"""The table of what came and went: the terms as c0, c1, ... and the sign; each row once."""
CHANGED = "_objcat_changed"
_SUM = f"CAST(sum({SIGN}) AS BIGINT) AS {SIGN}"


def projected(
    query: DerivedQuery, terms: Sequence[sql.Expr], *, more: Sequence[sql.Expr] = (), where: sql.Expr | None = None
) -> sql.Select:
    """The SELECT of a query before it is aggregated, with other columns: c0, c1, ... and `more`; `where`: one more condition."""
    found = query.tree.copy()
    assert isinstance(found, sql.Select)
    for name in ("group", "having", "distinct", "order"):
        found.set(name, None)
    columns = [sql.alias_(term.copy(), f"c{number}", quoted=True) for number, term in enumerate(terms)]
    found.set("expressions", [*columns, *more])
    return found if where is None else found.where(where, copy=False)


def find_moved(session: QuerySession, query: DerivedQuery, shape: Shape, rows: Sequence[SourceRows], terms: Sequence[sql.Expr]) -> bool:
    """Make the table `MOVED` of what came and went. Returns whether there is any.

    Raises SnapshotExpired when changes of a source were cleaned.
    """
    changed = {place: net for place, one in enumerate(rows) if (net := _net(session, one)) is not None}
    made = False
    for place, delta in changed.items():
        slots = [one.after if other < place else one.before for other, one in enumerate(rows)]
        reach = Reach(shape, rows, slots, {place: delta})
        is_left = shape.sides[place] is Side.LEFT
        others = reach.tables(fixed={} if is_left else {place: delta}, twice=place if is_left else None)
        for other, tables in others.items():
            if other != place:
                session.register(query.sources[other].place, tables[0])
        for text in (
            _left_steps(session, query, shape, place, delta, both=others[place], terms=terms)
            if is_left
            else [_step(session, query, place, delta, terms)]
        ):
            (session.add if made else session.make)(f"{MOVED}_all", text() if callable(text) else text)
            made = True
    if not made:
        return False
    names = ", ".join(f"c{number}" for number in range(len(terms)))
    # What comes in one step and goes in a later one never was.
    session.make(MOVED, f"SELECT {names}, {_SUM} FROM {MOVED}_all GROUP BY {names} HAVING sum({SIGN}) <> 0")
    return bool(session.rows(f"SELECT 1 AS n FROM {MOVED} LIMIT 1").num_rows)


def _net(session: QuerySession, one: SourceRows) -> Any | None:
    """Changes without rows that are the same before and after in the columns of the query. None: there are none."""
    if one.before == one.after:
        return None
    delta = one.changes()
    if session.is_empty(delta):
        return None
    session.register(CHANGED, delta)
    names = ", ".join(_quoted(name) for name in one.source.columns)
    found = session.held(
        f"SELECT {names}, {_SUM} FROM {CHANGED} GROUP BY {names} HAVING sum({SIGN}) <> 0", one.schema.append(pa.field(SIGN, pa.int64()))
    )
    return None if session.is_empty(found) else found


def _step(session: QuerySession, query: DerivedQuery, place: int, delta: Any, terms: Sequence[sql.Expr]) -> str:
    session.register(query.sources[place].place, delta)
    sign = sql.alias_(sql.column(SIGN, table=_alias(query, place), quoted=True), SIGN, quoted=True)
    return session.text(projected(query, terms, more=[sign]))


def _left_steps(
    session: QuerySession,
    query: DerivedQuery,
    shape: Shape,
    place: int,
    delta: Any,
    *,
    both: Sequence[Any],
    terms: Sequence[sql.Expr],
) -> list[Callable[[], str]]:
    """The old rows of what a changed row of a LEFT join meets, which go, and the new ones, which come."""
    session.register(CHANGED, delta)
    alias = _alias(query, place)
    on = shape.on[place]
    met = sql.select("1").from_(sql.alias_(sql.to_table(CHANGED), alias, table=True, quoted=True))
    where = sql.Exists(this=met if on is None else met.where(on.copy()))

    def step(rows: Any, sign: int) -> str:
        session.register(query.sources[place].place, rows)
        more = [
            sql.alias_(
                sql.cast(sql.Literal.number(abs(sign)) if sign > 0 else sql.Neg(this=sql.Literal.number(1)), "BIGINT"), SIGN, quoted=True
            )
        ]
        return session.text(projected(query, terms, more=more, where=where.copy()))

    return [lambda: step(both[0], -1), lambda: step(both[1], 1)]


def _alias(query: DerivedQuery, place: int) -> str:
    wanted = query.sources[place].place
    return next(node.alias_or_name for node in query.tree.find_all(sql.Table) if node.name == wanted)


def group_tables(
    rows: Sequence[SourceRows], shape: Shape, place: int, column: str, values: pa.ChunkedArray | None
) -> Mapping[int, list[Any]]:
    """The newest rows of every source that groups are made of, where a column of a source has one of some values. None: of too many."""
    slots = [one.after for one in rows]
    seed = rows[place].found(rows[place].after, column, [values])
    return Reach(shape, rows, slots, {place: seed}).tables(fixed={})


def whole_text(session: QuerySession, query: DerivedQuery, where: sql.Expr | None = None) -> str:
    """The text of the whole query. where: one more condition on its rows, before they are aggregated."""
    tree = query.tree.copy()
    if where is not None:
        assert isinstance(tree, sql.Select)
        tree = without_distinct(tree).where(where, copy=False)
    return session.text(tree)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
