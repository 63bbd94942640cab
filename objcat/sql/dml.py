"""Statements that change rows: INSERT, UPDATE, DELETE, MERGE, TRUNCATE, DROP PARTITION."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import expressions as sql

from objcat.common.validation import OnExisting, SchemaModeName
from objcat.dml.default_terms import default_term
from objcat.errors import EmptyBatch, InvalidSql
from objcat.predicate.arrow import with_moments
from objcat.predicate.dialect import spark_sql
from objcat.sql.context import Context
from objcat.sql.names import column_of, column_parts, parts_of_table, shorten, table_name
from objcat.sql.qualified_names import TARGET, check_parts
from objcat.table.merge import Merge
from objcat.table.table import Table
from objcat.write.transaction import CommitResult

INSERTS = "INSERT [OR FAIL | IGNORE | REPLACE] INTO t [(columns)] VALUES (...) or [WITH ...] SELECT ... [ON CONFLICT DO NOTHING]"
DELETES = "DELETE FROM t [WHERE a filter of its columns]; MERGE INTO t USING ... deletes by the rows of another table"
UPDATES = (
    "UPDATE t SET column = expression, ... [WHERE a filter of its columns]; MERGE INTO t USING ... updates by the rows of another table"
)
MERGES = (
    "MERGE [WITH SCHEMA EVOLUTION] INTO t USING a table or (query) AS s ON t.key = s.key WHEN ..., with conditions as "
    "WHEN MATCHED AND ... THEN"
)
TRUNCATES = "TRUNCATE TABLE t for all rows of one table, ALTER TABLE t DROP PARTITION (column = value) for those of a partition"

EVOLVES = "with_schema_evolution"


def insert(context: Context, tree: sql.Insert) -> Any:
    """INSERT INTO table [(columns)] VALUES or SELECT. Columns go by position, or by name with BY NAME. No rows, no commit.

    INSERT OVERWRITE replaces the partitions that the rows are in, or those of PARTITION (...), or all rows of a table without partitions.
    INSERT INTO ... REPLACE WHERE replaces the partitions for which a filter is true. INSERT OR FAIL, OR IGNORE (or ON CONFLICT DO NOTHING)
    and OR REPLACE decide about rows whose keys exist; plain INSERT is OR REPLACE.
    """
    target = tree.this
    check_parts(tree, "this expression overwrite by_name where hint alternative conflict", INSERTS)
    on_existing = _on_existing(tree)
    check_parts(target.this if isinstance(target, sql.Schema) else target, f"{TARGET} partition", INSERTS)
    table = context.lake.table(table_name(target))
    listed = [_column(column, target.this) for column in target.expressions] if isinstance(target, sql.Schema) else None
    fixed = _fixed(target.this if isinstance(target, sql.Schema) else target)
    if fixed and not tree.args.get("overwrite"):
        raise InvalidSql("INSERT INTO ... PARTITION (...) is not supported. Give the column a value in each row.")
    if fixed and listed is None and not tree.args.get("by_name"):
        # As in Spark, the query gives the remaining columns.
        listed = [name for name in table.schema.names if name not in fixed]
    rows = incoming(
        context,
        table,
        _with_fixed(_without_default(tree.expression, table, listed or table.schema.names), fixed),
        None if listed is None else [*listed, *fixed],
        by_name=bool(tree.args.get("by_name")),
    )
    where = tree.args.get("where")
    named = [sql.EQ(this=sql.column(name, quoted=True), expression=value.copy()) for name, value in fixed.items()]
    filters = [_timed(context, term, table) for term in named or ([] if where is None else [where.copy()])]
    replaced = spark_sql(sql.and_(*filters)) if filters else None
    if not tree.args.get("overwrite") and where is None:
        try:
            return context.committed(context.write(lambda rows: table.insert(rows, on_existing=on_existing), rows))
        except EmptyBatch:
            return context.committed(None)
    return context.committed(context.write(lambda rows: table.insert_overwrite(rows, where=replaced), rows))


_ALTERNATIVES: Mapping[str, OnExisting] = {"FAIL": "fail", "IGNORE": "skip", "REPLACE": "replace"}


def _on_existing(tree: sql.Insert) -> OnExisting:
    """What an INSERT does about existing keys. Raises InvalidSql."""
    said, conflict = tree.args.get("alternative"), tree.args.get("conflict")
    replaces = tree.args.get("overwrite") or tree.args.get("where") is not None
    if (said or conflict) and (replaces or (said and conflict)):
        raise InvalidSql("INSERT OR ... and ON CONFLICT exclude each other, and go with neither OVERWRITE nor REPLACE. Write one of them.")
    if conflict is not None:
        if conflict.sql("spark").upper() != "ON CONFLICT DO NOTHING":
            raise InvalidSql(
                f"{conflict.sql('spark')} is not supported. A table has one key, so write ON CONFLICT DO NOTHING without columns: "
                f"{INSERTS}."
            )
        return "skip"
    if said is not None and str(said).upper() not in _ALTERNATIVES:
        raise InvalidSql(f"INSERT OR {said} is not supported. Use INSERT OR FAIL, OR IGNORE or OR REPLACE.")
    return "replace" if said is None else _ALTERNATIVES[str(said).upper()]


def _fixed(target: sql.Expr) -> dict[str, sql.Expr]:
    """The values of PARTITION (column = value, ...). Raises InvalidSql."""
    partition = target.args.get("partition")
    found = {}
    for item in [] if partition is None else partition.expressions:
        if not isinstance(item, sql.EQ):
            raise InvalidSql(f"PARTITION ({item.sql('spark')}) has no value. Write PARTITION (column = value), or leave it out.")
        found[item.this.name] = item.expression
    return found


def _without_default(query: sql.Expr, table: Table, names: Sequence[str]) -> sql.Expr:
    """VALUES in which each DEFAULT is the value that a write stores if it leaves the column out. `names`: of the columns, in order.

    Raises InvalidSql where DEFAULT is a part of an expression.
    """
    if not isinstance(query, sql.Values):
        return query
    query = query.copy()
    for row in query.expressions:
        for name, value in zip(names, list(row.expressions) if isinstance(row, sql.Tuple) else [row], strict=False):
            become = _value(value, name, table)
            if become is not value:
                value.replace(become)
    return query


def _value(value: sql.Expr, name: str, table: Table) -> sql.Expr:
    """A value for a column, with DEFAULT replaced. Raises InvalidSql where DEFAULT is a part of an expression."""
    if _is_default(value):
        known = [column for column in table.spec.table_schema.columns if column.name == name]
        term = default_term(known[0]) if known else None
        return sql.Null() if term is None else term
    if any(map(_is_default, value.find_all(sql.Column, sql.Var))):
        raise InvalidSql(
            f"{value.sql('spark')!r} has DEFAULT within an expression. DEFAULT stands for a whole value. A column of that name goes in "
            "backticks."
        )
    return value


def _is_default(value: sql.Expr) -> bool:
    """Whether a value is the word DEFAULT, and not a column of that name in backticks."""
    is_word = isinstance(value, sql.Var) or (isinstance(value, sql.Column) and len(value.parts) == 1 and not value.this.quoted)
    return is_word and value.name.upper() == "DEFAULT"


def _with_fixed(query: sql.Expr, fixed: Mapping[str, sql.Expr]) -> sql.Expr:
    """A query with one more column for each fixed value."""
    if not fixed:
        return query
    given = sql.alias_(query if isinstance(query, sql.Values) else sql.Subquery(this=query), "given", table=True)
    return sql.select("*", *(sql.alias_(value.copy(), name, quoted=True) for name, value in fixed.items())).from_(given)


def incoming(context: Context, table: Table, query: sql.Expr, listed: list[str] | None, *, by_name: bool) -> Any:
    """The rows of a query under the names and types of a table's columns. `listed`: which columns, in order; all when None."""
    if isinstance(query, sql.Values):
        query = sql.select("*").from_(sql.alias_(query, "given", table=True))
    if not isinstance(query, sql.Query):
        raise InvalidSql("INSERT has no rows. Write VALUES (...) or SELECT ...")
    rows = context.query(query)
    given = context.runner.names(rows)
    names = listed or (given if by_name else table.schema.names)
    for name in names:
        if name not in table.schema.names:
            raise InvalidSql(f"The table {table.name!r} has no column {name!r}. It has {', '.join(table.schema.names)}.")
    if len(given) != len(names):
        raise InvalidSql(
            f"The query gives {len(given)} columns, and {len(names)} are expected ({', '.join(names)}). List the columns that "
            f"you give: INSERT INTO {table.name} (a, b) ..."
        )
    return context.runner.fitted(rows, pa.schema([table.schema.field(name) for name in names]))


def delete(context: Context, tree: sql.Delete) -> Any:
    """DELETE FROM table [WHERE filter]."""
    check_parts(tree, "this where hint", DELETES)
    check_parts(tree.this, TARGET, DELETES)
    table = context.lake.table(table_name(tree.this))
    where = tree.args.get("where")
    text = "true" if where is None else spark_sql(_timed(context, _unqualified(where.this, tree.this), table))
    return context.committed(table.delete(text, spark=context.runner.spark))


def _unqualified(condition: sql.Expr, target: sql.Table) -> sql.Expr:
    """A condition over one table, without the table's name before the columns. Raises InvalidSql for a subquery."""
    if condition.find(sql.Query):
        raise InvalidSql("A filter with a subquery is not supported. Use MERGE INTO ... USING (SELECT ...) instead.")
    whole = sql.Paren(this=condition.copy())
    for column in list(whole.find_all(sql.Column)):
        path, parts = column_parts(column)
        if qualifier := parts_of_table(parts, target):
            path.replace(column_of(parts[qualifier:]))
    found: sql.Expr = whole.this
    return found


def _timed(context: Context, condition: sql.Expr, table: Table) -> sql.Expr:
    """A condition in which times compared with a zoned column mean what they mean in a query of the same session."""
    return with_moments(condition, table.schema, context.runner.moment)


def update(context: Context, tree: sql.Update) -> Any:
    """UPDATE table SET column = expression, ... [WHERE filter]."""
    check_parts(tree, "this expressions where hint", UPDATES)
    check_parts(tree.this, TARGET, UPDATES)
    table = context.lake.table(table_name(tree.this))
    values = {name: spark_sql(_unqualified(value, tree.this)) for name, value in _set(tree.expressions, tree.this, table).items()}
    where = tree.args.get("where")
    condition = None if where is None else spark_sql(_timed(context, _unqualified(where.this, tree.this), table))
    return context.committed(table.update(values, where=condition, spark=context.runner.spark, counts=context.counts))


def merge(context: Context, tree: sql.Merge) -> Any:
    """MERGE [WITH SCHEMA EVOLUTION] INTO table USING table or (query) ON the key is equal, WHEN ...

    The parser does not know the words of schema evolution: `EVOLVES` stands for them.
    """
    check_parts(tree, f"this using on whens hint {EVOLVES}", MERGES)
    schema_mode: SchemaModeName = "add" if tree.args.get(EVOLVES) else "strict"
    check_parts(tree.this, TARGET, MERGES)
    table = context.lake.table(table_name(tree.this))
    using = tree.args["using"]
    for column in [column for part in (tree.args["on"], tree.args["whens"]) for column in part.find_all(sql.Column)]:
        shorten(column, [side for side in (tree.this, using) if isinstance(side, sql.Table)])
    query = sql.select("*").from_(using.copy())

    def work(rows: Any) -> CommitResult | None:
        merging = table.merge(
            rows,
            on=spark_sql(tree.args["on"]),
            source_alias=using.alias_or_name or "source",
            target_alias=tree.this.alias_or_name,
            schema_mode=schema_mode,
        )
        for when in tree.args["whens"].expressions:
            merging = _clause(merging, when, tree.this, table)
        return merging.execute(counts=context.counts)

    return context.committed(context.write(work, context.runner.batch(context.query(query))))


def _clause(merging: Merge, when: sql.When, target: sql.Table, table: Table) -> Merge:
    condition = when.args.get("condition")
    where = None if condition is None else spark_sql(condition)
    then = when.args["then"]
    is_delete = isinstance(then, sql.Var) and then.name.upper() == "DELETE"
    if when.args["matched"]:
        if is_delete:
            return merging.when_matched_delete(where=where)
        if isinstance(then, sql.Update):
            return merging.when_matched_update(_assigned(then, target, table), where=where)
    elif when.args.get("source"):
        if is_delete:
            return merging.when_not_matched_by_source_delete(where=where)
        values = _assigned(then, target, table) if isinstance(then, sql.Update) else None
        if values is not None:
            return merging.when_not_matched_by_source_update(values, where=where)
    elif isinstance(then, sql.Insert):
        return merging.when_not_matched_insert(_inserted(then, target, table), where=where)
    raise InvalidSql(
        f"{when.sql('spark')!r} is not supported. Update or delete a row that matches. Insert a row of the source alone. "
        "Update (but not with *) or delete a row of the table alone (NOT MATCHED BY SOURCE)."
    )


def _assigned(then: sql.Update, target: sql.Table, table: Table) -> dict[str, str] | None:
    """The assignments of SET; None for every column (SET *)."""
    check_parts(then, "expressions", MERGES)
    if len(then.expressions) == 1 and isinstance(then.expressions[0], sql.Star):
        check_parts(then.expressions[0], "", "UPDATE SET *, or name the columns")
        return None
    return {name: spark_sql(value) for name, value in _set(then.expressions, target, table).items()}


def _set(items: Sequence[sql.Expr], target: sql.Table, table: Table) -> dict[str, sql.Expr]:
    """The assignments of SET, by column of the target. Raises InvalidSql."""
    found: dict[str, sql.Expr] = {}
    for item in items:
        if not isinstance(item, sql.EQ):
            raise InvalidSql(f"SET {item.sql('spark')} gives no value. Write column = expression for each column.")
        name = _column(item.this, target)
        if name in found:
            raise InvalidSql(f"SET names {name!r} twice. Set each column once.")
        found[name] = _value(item.expression, name, table)
    return found


def _column(node: sql.Expr, target: sql.Table) -> str:
    """The name of a top-level column of the target that is assigned. Raises InvalidSql."""
    parts = list(node.parts) if isinstance(node, sql.Column) else [node]
    if not isinstance(node, (sql.Column, sql.Identifier)) or len(parts) - parts_of_table(parts, target) > 1:
        raise InvalidSql(
            f"{node.sql('spark')!r} is no column of the table {target.name!r} that can be assigned. Name columns one by one, "
            "and set a struct as a whole: named_struct(...)."
        )
    return node.name


def _inserted(then: sql.Insert, target: sql.Table, table: Table) -> dict[str, str] | None:
    """The values of INSERT (columns) VALUES (expressions); None for every column (INSERT *)."""
    check_parts(then, "this expression", MERGES)
    if isinstance(then.this, sql.Star):
        check_parts(then.this, "", "INSERT *, or INSERT (columns) VALUES (expressions)")
        return None
    if not isinstance(then.this, sql.Tuple) or not isinstance(then.expression, sql.Tuple):
        raise InvalidSql(f"{then.sql('spark')!r} names no columns. Write INSERT (a, b) VALUES (...), or INSERT *.")  # noqa: S608 - a sentence
    names, values = then.this.expressions, then.expression.expressions
    if len(names) != len(values):
        raise InvalidSql(f"{then.sql('spark')!r} has {len(names)} columns and {len(values)} values. Give a value for each column.")
    named = [_column(name, target) for name in names]
    return {name: spark_sql(_value(value, name, table)) for name, value in zip(named, values, strict=True)}


def truncate(context: Context, tree: sql.TruncateTable) -> Any:
    """TRUNCATE TABLE table."""
    check_parts(tree, "expressions", TRUNCATES)
    target, *others = tree.expressions
    if others:
        raise InvalidSql(f"TRUNCATE TABLE takes one table. Write {TRUNCATES}.")
    check_parts(target, TARGET, TRUNCATES)
    table = context.lake.table(table_name(target))
    return context.committed(table.delete("true", spark=context.runner.spark))


def drop_partition(context: Context, table: Table, action: sql.DropPartition) -> Any:
    """ALTER TABLE table DROP [IF EXISTS] PARTITION (column = value, ...)."""
    filters = [
        " AND ".join(spark_sql(_timed(context, item.copy(), table)) for item in partition.expressions) for partition in action.expressions
    ]
    return context.committed(table.delete_partition(" OR ".join(f"({text})" for text in filters)))
