"""Row-level DML as a program: update, delete and merge as SQL over source and target columns.

`update_program`, `delete_program` and `merge_program` parse and check the clauses of a user, and return a `MergeProgram`.
DuckDB (`duckdb`) or Spark evaluates it, and `computed_write` commits the rows. A wrong clause is refused here, before anything is read.
Expressions are parsed once, in Spark's dialect. Each column becomes a column of a flat relation that both engines build: `_objcat_s3` is
the fourth column of the source, `_objcat_t0` the first of the table. So aliases, dots and upper case never reach an engine.
`Table.update`, `Table.merge` and SQL begin here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import sqlglot
from sqlglot import ErrorLevel
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from fileio.options import nearest
from objcat.common.validation import is_unicode, nearest_name, shown
from objcat.datafile.batch_checks import means_the_same
from objcat.dml.default_terms import default_term, value_term
from objcat.dml.ordering_terms import are_less, greatest
from objcat.errors import InvalidInput, InvalidPredicate
from objcat.metadata.schema import arrow_type, type_text
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.watermark import Watermark
from objcat.predicate.arrow import terms_of
from objcat.predicate.dialect import SparkText
from objcat.predicate.duckdb import strict_casts
from objcat.predicate.sql_reach import beyond_rows

Tree: TypeAlias = Any
"""A parsed expression. sqlglot has renamed its base class several times."""
Value: TypeAlias = Any
"""SQL text or a parsed expression. Numbers, truth values and None as they are."""

NUMBER = "_objcat_number"
"""Column of a result row: the number of its clause."""
SOURCE_HERE, TARGET_HERE = "_objcat_s", "_objcat_t"
"""Columns of the joined relation: true if the row has a source row, or a target row, else null."""


class When(enum.StrEnum):
    """The rows that a clause applies to."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class ClauseAction(enum.StrEnum):
    """What a clause does with its rows."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a merge.

    where: only rows for which it is true. The first clause that takes a row counts. values: of an update or insert, by column. None: every
    source column that the table has.
    """

    when: When
    act: ClauseAction
    where: str | Tree | None = None
    values: Mapping[str, Value] | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """An expression for the value of a column. text: as the user wrote it."""

    column: str
    text: str
    expression: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeProgram:
    """Clauses as expressions over the joined relation.

    Args:
        acts: the actions of the clauses, by number.
        number: the clause of a row, null for none.
        columns: the new values of a row, by table column.
        late: over the relation with `NUMBER`: whether the row is older than the stored one, or below the watermark. None if none can be.
        join: how source and table are joined.
        located: by column that locates rows, the source's column.
        ordering: the joined relation's names of the source's ordering columns, in order. Empty if it lacks one.
        replacing: the values of a row, by table column, if each source row becomes the row of its key, whatever is there. Then nobody
            needs to read the table. Else None.
    """

    acts: tuple[ClauseAction, ...]
    number: Tree
    columns: Mapping[str, Tree]
    late: Tree | None
    assigned: tuple[Assigned, ...]
    conditions: tuple[Assigned, ...]
    join: str = "inner"
    located: Mapping[str, str] = field(default_factory=dict)
    ordering: tuple[str, ...] = ()
    replacing: Mapping[str, Tree] | None = None

    def target_columns(self, spec: TableSpec) -> tuple[str, ...]:
        """The table columns to read.

        These are all columns if a row is updated, else those that locate and order rows, and those that expressions name.
        """
        names = spec.table_schema.names
        if ClauseAction.UPDATE in self.acts:
            return tuple(names)
        needed = {column.name for column in (*spec.key_columns, *spec.partition_columns, *spec.ordering_columns)}
        own = {target_column(place): name for place, name in enumerate(names)}
        trees = (self.number, *(one.expression for one in self.assigned))
        needed |= {own[column.name] for tree in trees for column in tree.find_all(sql.Column) if column.name in own}
        return tuple(name for name in names if name in needed)

    def check_types(self, found: pa.Schema, spec: TableSpec) -> None:
        """Refuse values that mean something else in their column. Raises InvalidInput and InvalidPredicate.

        found: the types of `assigned`, then of `conditions`.
        """
        for one, given in zip(self.assigned, found, strict=False):
            wanted = arrow_type(spec.table_schema.column(one.column).type)
            if not means_the_same(given.type, wanted) and not (pa.types.is_decimal(given.type) and pa.types.is_floating(wanted)):
                raise InvalidInput(
                    f"The column {one.column!r} is {type_text(spec.table_schema.column(one.column).type)}, and {shown(one.text)} gives "
                    f"{given.type}. Nothing was written. Cast it, e.g. cast(... as ...)."
                )
        for one, given in zip(self.conditions, list(found)[len(self.assigned) :], strict=True):
            if not pa.types.is_boolean(given.type) and not pa.types.is_null(given.type):
                raise InvalidPredicate(f"The condition {shown(one.text)} gives {given.type}, and not true or false. Write a comparison.")


def source_column(number: int) -> str:
    """The joined relation's name of a source column."""
    return f"_objcat_s{number}"


def target_column(number: int) -> str:
    """The joined relation's name of a table column."""
    return f"_objcat_t{number}"


@dataclass(frozen=True, slots=True)
class MergeColumns:
    """The columns that expressions may name. source: None in an update. aliases: of source and target."""

    spec: TableSpec
    source: tuple[str, ...] | None = None
    aliases: tuple[str, str] = ("source", "target")

    def resolved(self, given: Value, *, source: bool, target: bool) -> Assigned:
        """An expression over the joined relation. source, target: whether its rows have that side. Raises InvalidPredicate."""
        tree, text = parsed(given)
        try:
            _check_plain(tree, text)
            names = {"source": self.source or (), "target": tuple(self.spec.table_schema.names)}
            allowed = [side for side, there in (("source", source and self.source is not None), ("target", target)) if there]

            def resolve(node: Tree) -> Tree:
                """The joined relation's column for a name."""
                return self._column(node, text, names, allowed) if isinstance(node, sql.Column) else node

            return Assigned("", text, strict_casts(tree).transform(resolve))
        except RecursionError:
            raise InvalidPredicate(f"The expression {shown(text)} is nested too deeply. Write it with fewer parentheses.") from None

    def _column(self, node: sql.Column, text: str, names: Mapping[str, Sequence[str]], allowed: Sequence[str]) -> Tree:
        parts = list(node.parts)
        sides = list(allowed)
        if len(parts) > 1:
            known = {alias.lower(): side for alias, side in zip(self.aliases, ("source", "target"), strict=True)}
            side = known.get(parts[0].name.lower())
            if side is not None:
                if side not in allowed:
                    raise InvalidPredicate(
                        f"{shown(text)} names {node.sql()!r}, but there is no row of the {side} where it is evaluated. Leave it out."
                    )
                sides, parts = [side], parts[1:]
        found = [(side, name) for side in sides if (name := _find(parts[0], names[side])) is not None]
        if not found:
            every = [name for side in sides for name in names[side]]
            hint = nearest(parts[0].name, dict.fromkeys(every))
            raise InvalidPredicate(
                f"{shown(text)} names {parts[0].name!r}, which is not a column (text stands in quotes, \"'Rome'\"): {hint}"
            )
        if len(found) > 1:
            first, second = self.aliases
            raise InvalidPredicate(
                f"{shown(text)} names {parts[0].name!r}, which both sides have. Write {first}.{parts[0].name} or {second}.{parts[0].name}."
            )
        side, name = found[0]
        place = list(names[side]).index(name)
        flat = sql.column((source_column if side == "source" else target_column)(place))
        return flat if len(parts) == 1 else sql.Dot.build([flat, *(part.copy() for part in parts[1:])])


def parsed(given: Value) -> tuple[Tree, str]:
    """An expression and its text. Raises InvalidPredicate."""
    if isinstance(given, sql.Expression):
        return given, str(given.sql(dialect=SparkText, unsupported_level=ErrorLevel.IGNORE))
    if given is None or isinstance(given, (bool, int, float)):
        return sql.convert(given), str(given)
    if not isinstance(given, str):
        raise InvalidPredicate(
            f"{shown(given)} is not an expression. Pass SQL text (timestamp '2026-01-31 12:00:00'), a number, True, False or None."
        )
    if not is_unicode(given):
        raise InvalidPredicate(f"The expression {shown(given)} is not valid Unicode. Mend that text.")
    try:
        return sqlglot.parse_one(given, dialect=SparkText, into=sql.Condition), given
    except SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise InvalidPredicate(f"The expression {shown(given)} does not parse ({reason}). Write it as in SQL.") from error
    except RecursionError:
        raise InvalidPredicate(f"The expression {shown(given)} is nested too deeply. Write it with fewer parentheses.") from None


def update_program(
    spec: TableSpec, values: Mapping[str, Value], where: Value, aliases: tuple[str, str] = ("source", "target")
) -> MergeProgram:
    """What `Table.update` does to the rows of a scan. where: what the scan does not filter by, None for all. Raises as `merge_program`."""
    sides = MergeColumns(spec, None, aliases)
    clause = Clause(When.NOT_MATCHED_BY_SOURCE, ClauseAction.UPDATE, where if isinstance(where, (str, sql.Expression)) else None, values)
    return _program(sides, [clause], {}, joined=False)


def delete_program(spec: TableSpec, where: Value) -> MergeProgram:
    """What a delete does to the rows of a scan. where: None for all. Raises as `merge_program`."""
    return _program(MergeColumns(spec), [Clause(When.NOT_MATCHED_BY_SOURCE, ClauseAction.DELETE, where)], {}, joined=False)


def merge_program(
    spec: TableSpec, source: Sequence[str], clauses: Sequence[Clause], on: str | Tree | None, aliases: tuple[str, str]
) -> MergeProgram:
    """A merge from a source with these columns.

    on: the source columns that are the key. None: those of the same names. Raises InvalidInput and InvalidPredicate that name the clause,
    column or expression at fault.
    """
    if not clauses:
        raise InvalidInput("The merge has no clause. Nothing was written. Say what to do when rows match, or do not.")
    if len({alias.lower() for alias in aliases}) < 2:
        raise InvalidInput(f"Source and target are both called {aliases[0]!r}. Give them different aliases.")
    sides = MergeColumns(spec, tuple(source), aliases)
    return _program(sides, clauses, _located(sides, on), joined=True)


def source_keys(spec: TableSpec, source: Sequence[str], on: str | Tree | None, aliases: tuple[str, str]) -> frozenset[str]:
    """The source columns that locate rows of the table. Raises as `merge_program`."""
    return frozenset(_located(MergeColumns(spec, tuple(source), aliases), on).values())


def _program(sides: MergeColumns, clauses: Sequence[Clause], located: Mapping[str, str], *, joined: bool) -> MergeProgram:
    spec = sides.spec
    schema = spec.table_schema
    numbers, conditions, assigned = sql.Case(), [], []
    branches: dict[str, list[tuple[int, Tree]]] = {name: [] for name in schema.names}
    late: list[Tree] = []
    ordering = spec.ordering_columns
    for number, clause in enumerate(clauses):
        there = (clause.when is not When.NOT_MATCHED_BY_SOURCE, clause.when is not When.NOT_MATCHED)
        taken = _is_here(clause.when) if joined else sql.true()
        if clause.where is not None:
            condition = sides.resolved(clause.where, source=there[0], target=there[1])
            conditions.append(condition)
            taken = sql.and_(taken, sql.paren(condition.expression.copy()))
        numbers = numbers.when(taken, sql.convert(number))
        values = _values(sides, clause, located, source=there[0], target=there[1])
        assigned += [one for one in values.values() if one.column]
        for name, one in values.items():
            branches[name].append((number, _stored(one, spec)))
        if clause.act is ClauseAction.UPDATE and any(values[column.name].column for column in ordering):
            old = [sql.column(target_column(schema.names.index(column.name))) for column in ordering]
            now = are_less([_stored(values[column.name], spec) for column in ordering], old)
            late.append(sql.and_(sql.EQ(this=sql.column(NUMBER), expression=sql.convert(number)), now))
        if clause.act is ClauseAction.INSERT and ordering and ordering[0].name in values and isinstance(spec.watermark, Watermark):
            floor = value_term(spec.watermark.value, ordering[0].type)
            now = are_less([values[ordering[0].name].expression], [floor])
            late.append(sql.and_(sql.EQ(this=sql.column(NUMBER), expression=sql.convert(number)), now))
    newest: tuple[str, ...] = ()
    if sides.source is not None and all(column.name in sides.source for column in ordering):
        newest = tuple(source_column(sides.source.index(column.name)) for column in ordering)
    return MergeProgram(
        acts=tuple(clause.act for clause in clauses),
        number=numbers,
        columns={name: _chosen(branches[name], target_column(place)) for place, name in enumerate(schema.names)},
        late=sql.or_(*late) if late else None,
        assigned=tuple(assigned),
        conditions=tuple(conditions),
        join=_join_of({clause.when for clause in clauses}),
        located=located,
        ordering=newest,
        replacing=_replacing(spec, clauses, branches),
    )


def _replacing(spec: TableSpec, clauses: Sequence[Clause], branches: Mapping[str, Sequence[tuple[int, Tree]]]) -> Mapping[str, Tree] | None:
    """See `MergeProgram.replacing`. branches: by column, the value that each clause gives it."""
    numbers = {(clause.when, clause.act): number for number, clause in enumerate(clauses) if clause.where is None}
    update, insert = (numbers.get(pair) for pair in ((When.MATCHED, ClauseAction.UPDATE), (When.NOT_MATCHED, ClauseAction.INSERT)))
    if update is None or insert is None or len(clauses) > 2 or isinstance(spec.watermark, Watermark):
        return None
    keys = {column.name for column in spec.key_columns}
    found: dict[str, Tree] = {}
    for name, given in branches.items():
        values = dict(given)
        if insert not in values or (name not in keys and values.get(update) != values[insert]):
            return None
        found[name] = values[insert]
    return found


def _join_of(whens: Collection[When]) -> str:
    left, right = When.NOT_MATCHED in whens, When.NOT_MATCHED_BY_SOURCE in whens
    return "full" if left and right else "left" if left else "right" if right else "inner"


def _is_here(when: When) -> Tree:
    source, target = ((sql.column(name), sql.null()) for name in (SOURCE_HERE, TARGET_HERE))
    here, there = (sql.Not(this=sql.Is(this=column, expression=null)) for column, null in (source, target))
    lacks_source, lacks_target = (sql.Is(this=sql.column(name), expression=sql.null()) for name in (SOURCE_HERE, TARGET_HERE))
    match when:
        case When.MATCHED:
            return sql.and_(here, there)
        case When.NOT_MATCHED:
            return sql.and_(here, lacks_target)
        case When.NOT_MATCHED_BY_SOURCE:
            return sql.and_(lacks_source, there)


def _chosen(branches: Sequence[tuple[int, Tree]], column: str) -> Tree:
    """The value of a column by the number of the clause. Without one it is null, in the column's type."""
    case = sql.Case()
    if not branches:
        return case.when(sql.false(), sql.column(column))
    for number, expression in branches:
        case = case.when(sql.EQ(this=sql.column(NUMBER), expression=sql.convert(number)), expression.copy())
    return case


def _stored(one: Assigned, spec: TableSpec) -> Tree:
    """A value in the type of its column. Only floating columns round. A write refuses what does not fit others."""
    data_type = spec.table_schema.column(one.column).type if one.column else None
    if data_type in ("float", "double"):
        return sql.Cast(this=sql.paren(one.expression.copy()), to=sql.DataType.build(str(data_type), dialect="spark"))
    return one.expression


def _values(sides: MergeColumns, clause: Clause, located: Mapping[str, str], *, source: bool, target: bool) -> dict[str, Assigned]:
    """The column values of a clause's rows. `Assigned.column` is empty where they stay as they are."""
    spec = sides.spec
    names = spec.table_schema.names
    kept = {name: Assigned("", name, sql.column(target_column(place))) for place, name in enumerate(names)}
    match clause.act:
        case ClauseAction.DELETE:
            found = {column.name: kept[column.name] for column in (*spec.key_columns, *spec.partition_columns)}
            return found | _ended_at(sides, source=source)
        case ClauseAction.UPDATE:
            return kept | _given(sides, clause, located, source=source, target=target)
        case ClauseAction.INSERT:
            defaults = {column.name: default_term(column) for column in spec.table_schema.columns}
            left_out = {name: Assigned("", name, term) for name, term in defaults.items() if term is not None}
            return left_out | _given(sides, clause, located, source=source, target=target)


def _ended_at(sides: MergeColumns, *, source: bool) -> dict[str, Assigned]:
    """The ordering values of a delete: the deleted row's, or the source's if greater, so that older rows are rejected."""
    names = [column.name for column in sides.spec.ordering_columns]
    own = [sql.column(target_column(sides.spec.table_schema.names.index(name))) for name in names]
    if not names or not source or sides.source is None or any(name not in sides.source for name in names):
        return {name: Assigned("", name, column) for name, column in zip(names, own, strict=True)}
    theirs = [sql.column(source_column(sides.source.index(name))) for name in names]
    return {name: Assigned(name, name, value) for name, value in zip(names, greatest(own, theirs), strict=True)}


def _given(sides: MergeColumns, clause: Clause, located: Mapping[str, str], *, source: bool, target: bool) -> dict[str, Assigned]:
    spec, names = sides.spec, sides.spec.table_schema.names
    keys = [column.name for column in spec.key_columns]
    inserts = clause.act is ClauseAction.INSERT
    if clause.values is None:
        if not source:
            raise InvalidInput("Rows that the source lacks have no source columns. Say what to set.")
        common = {name: sql.column(source_column(place)) for place, name in enumerate(sides.source or ()) if name in names}
        common |= {name: sql.column(source_column((sides.source or ()).index(given))) for name, given in located.items()}
        return {name: Assigned(name, name, column) for name, column in common.items() if inserts or name not in keys}
    if not clause.values:
        raise InvalidInput(f"The {clause.act} sets no column. Name at least one.")
    given: dict[str, Assigned] = {}
    for said, value in clause.values.items():
        name = _named(said, names)
        if name in given:
            raise InvalidInput(f"The {clause.act} sets {name!r} twice. Set each column once.")
        one = sides.resolved(value, source=source, target=target)
        given[name] = Assigned(name, one.text, one.expression)
    if inserts:
        for name in keys:
            own = sql.column(source_column((sides.source or ()).index(located[name])))
            if name not in given or given[name].expression != own:
                raise InvalidInput(
                    f"The insert has to set the key column {name!r} to {sides.aliases[0]}.{located[name]}, which matches rows. Set it so."
                )
        return given
    for name in keys:
        same = sql.column(source_column((sides.source or ()).index(located[name]))) if source and name in located else None
        if name in given and given.pop(name).expression != same:
            raise InvalidInput(f"{name!r} is a key column, which identifies the row. Delete the row and insert another one.")
    return given


def _located(sides: MergeColumns, on: str | Tree | None) -> dict[str, str]:
    """The source column for each table column that locates rows."""
    spec, source = sides.spec, sides.source or ()
    group_ids = [] if spec.is_global else spec.partition_columns
    names = list(dict.fromkeys(column.name for column in (*spec.key_columns, *group_ids)))
    found = {name: name for name in names}
    if on is not None:
        found |= _pairs(sides, on, names)
    for name in names:
        if found[name] not in source:
            raise InvalidInput(
                f"The source lacks the column {found[name]!r}, which locates rows of the table ({nearest(found[name], source)}). "
                "Rename it, or say which it is, on='source.a = target.b'."
            )
    return found


def _pairs(sides: MergeColumns, on: str | Tree, names: Sequence[str]) -> dict[str, str]:
    tree, text = parsed(on)
    source = sides.source or ()
    pairs: dict[str, str] = {}
    flat = sides.resolved(tree, source=True, target=True).expression
    own = {target_column(place): name for place, name in enumerate(sides.spec.table_schema.names)}
    theirs = {source_column(place): name for place, name in enumerate(source)}
    for said, term in zip(terms_of(tree), terms_of(flat), strict=True):
        columns = [side.name if isinstance(side, sql.Column) else "" for side in (term.this, term.expression)] if _equates(term) else []
        mine = [own[name] for name in columns if name in own]
        others = [theirs[name] for name in columns if name in theirs]
        if len(mine) != 1 or len(others) != 1 or mine[0] not in names or pairs.setdefault(mine[0], others[0]) != others[0]:
            raise InvalidPredicate(
                f"on={shown(text)} holds {said.sql('spark')!r}, but rows are matched by the key of the table. Name source columns "
                f"that equal {names}, joined by AND, and give further conditions to the clauses."
            )
    for column in sides.spec.key_columns:
        if column.name not in pairs:
            raise InvalidPredicate(
                f"on={shown(text)} does not say which column of the source equals the key column {column.name!r}. Add it."
            )
    return pairs


def _equates(term: Any) -> bool:
    return isinstance(term, (sql.EQ, sql.NullSafeEQ))


def _named(said: Any, names: Sequence[str]) -> str:
    if not isinstance(said, str):
        raise InvalidInput(f"{shown(said)} is not the name of a column. Name columns by text.")
    same = [said] if said in names else [name for name in names if name.lower() == said.lower()]
    if len(same) != 1:
        raise InvalidInput(f"The table has no column {said!r}: {nearest_name(said, names)}")
    return same[0]


def _find(part: Tree, names: Sequence[str]) -> str | None:
    said: str = part.name
    if said in names:
        return said
    same = [name for name in names if name.lower() == said.lower()]
    return same[0] if len(same) == 1 and not part.args.get("quoted") else None


def _check_plain(tree: Tree, text: str) -> None:
    """Refuse expressions over more than one row, or beyond rows."""
    if (found := beyond_rows(tree)) is not None:
        raise InvalidPredicate(f"{shown(text)} is refused: {found}. Compute it in the source first.")
    for node in tree.find_all(sql.Query, sql.AggFunc, sql.Window, sql.Star, sql.Placeholder, sql.Parameter):
        raise InvalidPredicate(
            f"{shown(text)} holds {shown(node.sql())}, which is not made of the columns of one row. Compute it in the source first."
        )
