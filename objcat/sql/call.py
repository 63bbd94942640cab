"""CALL: table and lake services, by their names and arguments in Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from fileio.options import nearest
from objcat.errors import InvalidSql
from objcat.inspection.doctor import examine, examine_lake
from objcat.inspection.findings import DoctorReport
from objcat.maintenance.compaction_strategy import CompactionStrategy
from objcat.metadata.index_text import index_of_text
from objcat.predicate.dialect import SparkText
from objcat.sql.context import Context
from objcat.sql.names import literal
from objcat.sql.runner import SqlLake
from objcat.sql.show import as_rows

if TYPE_CHECKING:
    from objcat.table.table import Table

REQUIRED = inspect.Parameter.empty

OF_TABLES: Mapping[str, Callable[[Table], Callable[..., Any]]] = {
    "compact": lambda table: table.maintenance.compact,
    "schedule_compaction": lambda table: table.maintenance.schedule_compaction,
    "scheduled_compactions": lambda table: table.maintenance.scheduled_compactions,
    "execute_scheduled": lambda table: table.maintenance.execute_scheduled,
    "forget_deletes": lambda table: table.maintenance.forget_deletes,
    "cluster": lambda table: table.maintenance.cluster,
    "split_buckets": lambda table: table.maintenance.split_buckets,
    "refresh_files": lambda table: table.refresh_files,
    "set_precomputed": lambda table: table.alter.set_precomputed,
    "precompute": lambda table: table.maintenance.precompute,
    "promote": lambda table: table.maintenance.promote,
    "reencode": lambda table: table.maintenance.reencode,
    "set_partitioning": lambda table: table.alter.set_partitioning,
    "clean": lambda table: table.maintenance.clean,
    "plan_clean": lambda table: table.maintenance.plan_clean,
    "savepoint": lambda table: table.maintenance.savepoint,
    "release": lambda table: table.maintenance.release_savepoint,
    "restore": lambda table: table.restore,
    "soft_delete": lambda table: table.soft_delete,
    "erase": lambda table: table.erase,
    "plan_erasure": lambda table: table.plan_erasure,
    "maintain": lambda table: table.maintenance.run,
    "archive": lambda table: table.maintenance.archive,
    "collect_checkpoints": lambda table: table.maintenance.expire_checkpoints,
    "resolve": lambda table: table.resolve,
    "rollback_dead": lambda table: table.maintenance.rollback_failed_writes,
    "stats": lambda table: table.inspect.stats,
    "files": lambda table: table.inspect.files,
    "snapshots": lambda table: table.inspect.snapshots,
    "applied": lambda table: table.app_version,
    "applied_version": lambda table: table.applied,
    "metrics": lambda table: table.maintenance.metrics,
    "mirror": lambda table: table.maintenance.mirror,
    "doctor": lambda table: partial(_doctor_of_table, table),
}
OF_LAKES: Mapping[str, Callable[[Any], Callable[..., Any]]] = {
    "maintain": lambda lake: lake.maintain,
    "resolve": lambda lake: lake.resolve,
    "doctor": lambda lake: partial(_doctor_of_lake, lake),
    "metrics": lambda lake: lake.metrics,
    "create_derived": lambda lake: partial(_create_derived, lake),
    "refresh_derived": lambda lake: partial(_refresh_derived, lake),
    "explain_derived": lambda lake: lake.explain_derived,
    "derived_lag": lambda lake: lake.derived_lag,
    "drop_table": lambda lake: lake.drop_table,
    "undrop_table": lambda lake: lake.undrop_table,
    "dropped_tables": lambda lake: partial(_dropped_tables, lake),
    "purge_table": lambda lake: lake.purge_table,
    "rename_table": lambda lake: lake.rename_table,
    "move_to_shared_log": lambda lake: lake.move_to_shared_log,
    "source_position": lambda lake: lake.source_position,
    "source_positions": lambda lake: lake.source_positions,
    "create_namespace": lambda lake: lake.namespaces.create,
    "drop_namespace": lambda lake: lake.namespaces.drop,
    "namespace_properties": lambda lake: lake.namespaces.properties,
    "set_namespace_properties": lambda lake: lake.namespaces.set_properties,
}
"""A service of both, such as `maintain`, is the lake's when no table is named."""
DERIVED_SETTINGS = ("partition_by", "index", "table_type", "properties", "shared_log")
"""Settings of a derived table, which are arguments of `create_derived` by name."""
SERVICES = tuple(dict.fromkeys([*OF_TABLES, *OF_LAKES]))
"""The names of all services, each once."""


def call(context: Context, text: str) -> Any:
    """Run CALL name(table => 'shop.orders', argument => value, ...), or with arguments in order. Raises InvalidSql that names the valid
    ones."""
    name, given, named = _parsed(text)
    if name in OF_TABLES and (given or "table" in named or name not in OF_LAKES):
        table = named.pop("table", None) if "table" in named else (given.pop(0) if given else None)
        if not isinstance(table, str):
            raise InvalidSql(f"CALL {name} needs to know of which table. Write {name}(table => 'namespace.name', ...).")
        opened = context.lake.table(table)
        work = OF_TABLES[name](opened)
    elif name in OF_LAKES:
        work = OF_LAKES[name](context.lake)
    else:
        raise InvalidSql(f"There is no service {name!r}: {nearest(name, SERVICES)}")
    arguments = _bound(name, work, given, named)
    if "spark" in inspect.signature(work).parameters:
        arguments["spark"] = context.runner.spark
    return context.runner.told(as_rows(work(**arguments)))


def _doctor_of_table(table: Table, *, deep: bool = False) -> pa.Table:
    return _told([examine(table._context.timeline, deep=deep, tables=[table.name])])


def _doctor_of_lake(lake: SqlLake, *, deep: bool = False) -> pa.Table:
    return _told(examine_lake(lake.fileio, deep=deep, catalog=lake._context.catalog))


def _create_derived(
    lake: Any, name: str, query: str, key: Sequence[str], *, on_executors: bool = False, spark: Any = None, **settings: Any
) -> pa.Table:
    """A row with its name and slot. `index` is a text, such as bucket(8). The query reads tables of the lake, as a statement does."""
    session = _session_of(spark, on_executors=on_executors)
    if "index" in settings:
        settings["index"] = index_of_text(settings["index"])
    made = lake.create_derived(name, query, key=key, spark=session, **settings)
    return pa.table({"name": [made.name], "slot": pa.array([made.snapshot.slot], pa.int64())})


def _refresh_derived(lake: Any, name: str, *, full: bool = False, on_executors: bool = False, spark: Any = None) -> Any:
    """In this process, which is quicker after small changes, or in the session of the statement."""
    return lake.refresh_derived(name, full=full, spark=_session_of(spark, on_executors=on_executors))


def _session_of(spark: Any, *, on_executors: bool) -> Any:
    """The session whose executors compute, or None. Raises InvalidSql."""
    if on_executors and spark is None:
        raise InvalidSql("on_executors => true needs a session of Spark: lake.sql(text, spark). Nothing was done. Leave it out.")
    return spark if on_executors else None


def _dropped_tables(lake: SqlLake, namespace: str | None = None) -> pa.Table:
    schema = pa.schema(
        [("name", pa.string()), ("table", pa.string()), ("slot", pa.int64()), ("at_ms", pa.int64()), ("is_purged", pa.bool_())]
    )
    return pa.Table.from_pylist(
        [{name: getattr(one, name) for name in schema.names} for one in lake.dropped_tables(namespace)], schema=schema
    )


def _told(reports: Iterable[DoctorReport]) -> pa.Table:
    """Doctor reports as `objcat doctor --json` prints them: a row for each log."""
    rows = [
        {
            "url": report.url,
            "tables": ", ".join(report.tables),
            "healthy": report.healthy,
            "looked_at": json.dumps(report.counts),
            "findings": json.dumps([asdict(finding) for finding in report.findings]),
        }
        for report in reports
    ]
    return pa.Table.from_pylist(rows)


def _parsed(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        tree = sqlglot.parse_one(text, dialect=SparkText)
    except (SqlglotError, IndexError) as error:
        raise InvalidSql(f"CALL {text} does not parse. Write CALL name(argument => value, ...).") from error
    if isinstance(tree, sql.Dot):
        # Other catalogs write CALL system.compact(...).
        tree = tree.expression
    if not isinstance(tree, sql.Anonymous):
        raise InvalidSql(f"CALL {text} names no service. Call one of {', '.join(SERVICES)}.")
    given = [literal(item) for item in tree.expressions if not isinstance(item, sql.Kwarg)]
    named = {item.this.name.lower(): literal(item.expression) for item in tree.expressions if isinstance(item, sql.Kwarg)}
    return tree.name.lower(), given, named


def _bound(name: str, work: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a service. A strategy's fields are arguments of their own; file groups have no text; the statement gives the
    session."""
    taken = inspect.signature(work).parameters
    known = [argument for argument in taken if argument not in ("file_groups", "strategy", "spark", "settings")]
    if "settings" in taken:
        known += DERIVED_SETTINGS
    chooses = [field.name for field in fields(CompactionStrategy)] if "strategy" in taken else []
    known += chooses
    if len(given) > len(known):
        raise InvalidSql(f"CALL {name} takes {len(known)} arguments, not {len(given)}. They are {', '.join(known)}.")
    arguments = dict(zip(known, given, strict=False))
    for argument, value in named.items():
        if argument not in known:
            raise InvalidSql(f"CALL {name} has no argument {argument!r}: {nearest(argument, known)}")
        if argument in arguments:
            raise InvalidSql(f"CALL {name} has {argument!r} twice. Give it once.")
        arguments[argument] = value
    for argument, value in arguments.items():
        _check_kind(name, argument, value, taken)
    lacking = [argument for argument in known if argument not in arguments and argument in taken and taken[argument].default is REQUIRED]
    if lacking:
        raise InvalidSql(f"CALL {name} lacks {' and '.join(lacking)}. Write {name}(..., {lacking[0]} => value).")
    strategy = {argument: arguments.pop(argument) for argument in chooses if argument in arguments}
    return {**arguments, "strategy": CompactionStrategy(**strategy)} if strategy else arguments


def _check_kind(name: str, argument: str, value: Any, taken: Mapping[str, inspect.Parameter]) -> None:
    """Check what services do not check themselves: in Python a value of another kind may have a meaning."""
    if argument in taken and taken[argument].annotation == "bool" and not isinstance(value, bool):
        raise InvalidSql(f"CALL {name} has {argument}={value!r}. Write true or false.")
    if argument in ("keys", "where") and value is not None and not isinstance(value, str):
        raise InvalidSql(f"CALL {name} has {argument}={value!r}. Write a filter as text, {argument} => 'id = 1'.")
