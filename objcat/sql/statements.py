"""From the text of a statement to what does it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from objcat.common.validation import shown, text
from objcat.errors import InvalidSql
from objcat.predicate.dialect import SparkText
from objcat.sql.call import call
from objcat.sql.context import Context
from objcat.sql.ddl import ALTERS, alter, alter_by_text, create, drop, undrop
from objcat.sql.dml import delete, insert, merge, truncate, update
from objcat.sql.names import table_name
from objcat.sql.runner import bind
from objcat.sql.show import describe, show

KNOWN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE INTO, TRUNCATE TABLE, CREATE TABLE, CREATE NAMESPACE, ALTER TABLE, DROP TABLE, DROP NAMESPACE, "
    "UNDROP TABLE, DESCRIBE, DESCRIBE HISTORY, SHOW and CALL"
)

_BY_TEXT: Mapping[str, Callable[[Context, str], Any]] = {"CALL": call, "SHOW": show, "UNDROP": undrop}
"""What is no SQL to the parser, or differs from product to product."""
_DONE_BY: Mapping[type[sql.Expr], Callable[[Context, Any], Any]] = {
    sql.Alter: alter,
    sql.Create: create,
    sql.Delete: delete,
    sql.Describe: describe,
    sql.Drop: drop,
    sql.Insert: insert,
    sql.Merge: merge,
    sql.TruncateTable: truncate,
    sql.Update: update,
}


def run_statement(statement: str, context: Context) -> Any:
    """Do one statement. Raises InvalidSql for what does not parse or is not there, else as the operations that it is made of."""
    statement = text(statement, what="sql").strip().rstrip(";").rstrip()
    head = statement.partition(" ")[0].upper()
    if head in _BY_TEXT:
        return _BY_TEXT[head](context, statement[len(head) :].strip())
    tree = _parsed(statement)
    if isinstance(tree, sql.Query):
        if tree.find(sql.Into):
            raise InvalidSql("SELECT ... INTO a table is not there: write CREATE TABLE ... AS SELECT, or INSERT INTO ... SELECT")
        return context.runner.result(*bind(tree, context.lake))
    if isinstance(tree, sql.Command) and head == "ALTER":
        return _alter_by_text(context, tree)
    done_by = _DONE_BY.get(type(tree))
    if done_by is not None:
        return done_by(context, tree)
    raise InvalidSql(f"{shown(statement)} is no statement of ours: {KNOWN} are there")


def run_reading(statement: str, context: Context) -> pa.RecordBatchReader | pa.Table:
    """Do one statement that reads; the rows of a query come as a stream. Raises InvalidSql for any other one: nothing was done."""
    statement = text(statement, what="sql").strip().rstrip(";").rstrip()
    head = statement.partition(" ")[0].upper()
    if head == "SHOW":
        return show(context, statement[len(head) :].strip())
    tree = None if head in _BY_TEXT else _parsed(statement)
    if isinstance(tree, sql.Query):
        return context.runner.batch(context.runner.rows(*bind(tree, context.lake)))
    if isinstance(tree, sql.Describe):
        return describe(context, tree)
    raise InvalidSql(f"{shown(statement)} is more than a question: SELECT, SHOW and DESCRIBE run here, the rest by lake.sql of Python")


def _alter_by_text(context: Context, tree: sql.Command) -> Any:
    words = str(tree.expression.name if isinstance(tree.expression, sql.Expr) else tree.expression).split(maxsplit=2)
    if len(words) == 3 and words[0].upper() == "TABLE":
        table = context.lake.table(table_name(sql.to_table(words[1], dialect="spark")))
        if alter_by_text(table, words[2]):
            return context.done()
    raise InvalidSql(f"ALTER {' '.join(words)} is not there: {ALTERS}")


def _parsed(statement: str) -> sql.Expr:
    logger = logging.getLogger("sqlglot")
    level = logger.level
    # It warns of what it hands on as text, which is ours to refuse.
    logger.setLevel(logging.ERROR)
    try:
        found = [tree for tree in sqlglot.parse(statement, dialect=SparkText) if tree is not None]
    except SqlglotError as error:
        reason = str(error).splitlines()[0].split("\x1b")[0].strip()
        raise InvalidSql(f"{shown(statement)} does not parse: {reason}") from error
    except RecursionError as error:
        raise InvalidSql("the statement is nested too deeply: simplify it") from error
    finally:
        logger.setLevel(level)
    if len(found) != 1:
        raise InvalidSql(f"one statement at a time, not {len(found)}: run them one after another")
    return found[0]
