"""Runs a SQL statement: parses the text and hands it to the module of its kind.

Begin with `run_statement`, which `Lake.sql`, the command line and `objcat.spark` call. Queries go to the `Runner`; INSERT and its like to
`dml.py`; CREATE, ALTER and DROP to `ddl.py`; SHOW and DESCRIBE to `show.py`; CALL to `call.py`.
A statement runs as a whole or is refused with InvalidSql. No part of a statement is ignored.
"""

from __future__ import annotations

import logging
import re
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
from objcat.sql.dml import EVOLVES, delete, insert, merge, truncate, update
from objcat.sql.names import table_name
from objcat.sql.runner import bind
from objcat.sql.session_context import SessionContext, SessionRunner
from objcat.sql.show import describe, show

KNOWN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE INTO, TRUNCATE TABLE, CREATE TABLE, CREATE NAMESPACE, ALTER TABLE, DROP TABLE, DROP NAMESPACE, "
    "UNDROP TABLE, DESCRIBE, DESCRIBE HISTORY, SHOW and CALL"
)

_BY_TEXT: Mapping[str, Callable[[Context, str], Any]] = {"CALL": call, "SHOW": show, "UNDROP": undrop}
"""Statements that the parser does not know, or that differ from product to product."""
_EVOLVES = re.compile(r"MERGE\s+WITH\s+SCHEMA\s+EVOLUTION\s+(?=INTO\b)", re.IGNORECASE)
"""Words that the parser does not know."""
_OF_ROWS: tuple[type[sql.Expr], ...] = (sql.Delete, sql.Merge, sql.Update)
"""Statements for which Spark has no plan of its own."""
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
    """Run one statement. Raises InvalidSql when it does not parse or is not supported, else what its operations raise."""
    statement = text(statement, what="sql").strip().rstrip(";").rstrip()
    head = statement.partition(" ")[0].upper()
    if head in _BY_TEXT:
        return _BY_TEXT[head](context, statement[len(head) :].strip())
    tree = parse_statement(statement)
    if isinstance(tree, sql.Query):
        if tree.find(sql.Into):
            raise InvalidSql("SELECT ... INTO a table is not supported. Write CREATE TABLE ... AS SELECT, or INSERT INTO ... SELECT.")
        return context.runner.result(*bind(tree, context.lake))
    if isinstance(tree, sql.Command) and head == "ALTER":
        return _alter_by_text(context, tree)
    done_by = _DONE_BY.get(type(tree))
    if done_by is not None:
        return done_by(context, tree)
    raise InvalidSql(f"{shown(statement)} is not a supported statement. Supported are {KNOWN}.")


def run_reading(statement: str, context: Context) -> pa.RecordBatchReader | pa.Table:
    """Run one statement that reads; the rows of a query come as a stream. Raises InvalidSql for any other statement, which is not run."""
    statement = text(statement, what="sql").strip().rstrip(";").rstrip()
    head = statement.partition(" ")[0].upper()
    if head == "SHOW":
        return show(context, statement[len(head) :].strip())
    tree = None if head in _BY_TEXT else parse_statement(statement)
    if isinstance(tree, sql.Query):
        return context.runner.batch(context.runner.rows(*bind(tree, context.lake)))
    if isinstance(tree, sql.Describe):
        return describe(context, tree)
    raise InvalidSql(
        f"{shown(statement)} does not only read. Nothing was done. Run SELECT, SHOW and DESCRIBE here, and other "
        "statements with lake.sql in Python."
    )


def run_row_statement(statement: str, table: Any, runner: SessionRunner, *, before: str, rows: Any = None) -> None:
    """Run an UPDATE, DELETE or MERGE that Spark has parsed and resolved. Raises InvalidSql, else what its operations raise.

    Args:
        statement: its text.
        table: the table that it writes to, as Spark resolved its name.
        runner: of the session, whose own tables and views the source of a MERGE may name.
        before: what comes before it: WITH and its queries, or nothing.
        rows: of the source of a MERGE; None: its text says them.
    """
    tree = parse_statement(statement)
    if not isinstance(tree, _OF_ROWS):
        raise InvalidSql(f"{shown(statement)} is no UPDATE, DELETE or MERGE. Nothing was done. Write one of them.")
    placeholder = next(tree.find_all(sql.Placeholder, sql.Parameter), None)
    if placeholder is not None:
        raise InvalidSql(f"The parameter {placeholder.sql('spark')} is not supported in this statement. Nothing was done. Write its value.")
    _DONE_BY[type(tree)](SessionContext(table, runner, before, rows), tree)


def _alter_by_text(context: Context, tree: sql.Command) -> Any:
    words = str(tree.expression.name if isinstance(tree.expression, sql.Expr) else tree.expression).split(maxsplit=2)
    if len(words) == 3 and words[0].upper() == "TABLE":
        table = context.lake.table(table_name(sql.to_table(words[1], dialect="spark")))
        if alter_by_text(table, words[2]):
            return context.done()
    raise InvalidSql(f"ALTER {' '.join(words)} is not supported. Supported are {ALTERS}.")


def parse_statement(statement: str) -> sql.Expr:
    """The tree of one statement. Raises InvalidSql when it does not parse, or is not one."""
    evolves = _EVOLVES.match(statement)
    found = _parsed_once(statement if evolves is None else f"MERGE {statement[evolves.end() :]}")
    if evolves is not None:
        found.set(EVOLVES, sql.true())
    return found


def _parsed_once(statement: str) -> sql.Expr:
    logger = logging.getLogger("sqlglot")
    level = logger.level
    # The parser warns of what it leaves as text; that is refused here.
    logger.setLevel(logging.ERROR)
    try:
        found = [tree for tree in sqlglot.parse(statement, dialect=SparkText) if tree is not None]
    except SqlglotError as error:
        reason = str(error).splitlines()[0].split("\x1b")[0].strip()
        raise InvalidSql(f"{shown(statement)} does not parse: {reason}. Correct the statement.") from error
    except RecursionError as error:
        raise InvalidSql("The statement is nested too deeply. Simplify it.") from error
    finally:
        logger.setLevel(level)
    if len(found) != 1:
        raise InvalidSql(f"There are {len(found)} statements. Nothing was done. Run one statement at a time.")
    return found[0]
