"""What a catalog of Spark asks of a lake, and the answers. `ObjcatCatalog.java` asks in the thread of the query or command.

A question is JSON, and so is an answer, but for the rows of a table that is read. Each write is one call of a method of the table or the
lake. Spark asks for it only while its command runs.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from fileio.errors import FileIOError
from objcat.common.bounded_cache import BoundedCache
from objcat.errors import (
    EmptyBatch,
    InvalidInput,
    InvalidSql,
    NamespaceExists,
    NamespaceNotFound,
    ObjcatError,
    TableExists,
    TableNotFound,
)
from objcat.metadata.files_text import SOURCE
from objcat.spark.catalog_filters import filter_text, partitions_filter
from objcat.spark.catalog_tables import (
    check_comments,
    column_changes,
    declared,
    property_changes,
    shown_partitions,
    shown_properties,
    shown_schema,
)
from objcat.spark.metadata_tables import metadata_rows, parts_of, shown_partition_names
from objcat.spark.native.narrowing import narrowed_rows
from objcat.spark.sql import SparkRunner
from objcat.spark.table_streams import write_batch

PLAN_BYTES, GROUP_BYTES, PLANNED_BYTES_MAX = 100_000, 1_000, 256 * 1024**2
"""Bytes that a plan takes in the JVM, about, and those for each of its file groups. All plans that a catalog keeps."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """The rows of a table at a slot, as a Dataset. settings: of the session that it was made under. table: the handle that made it."""

    slot: int
    settings: str
    table: Any
    rows: Any


class CatalogLake(Protocol):
    """What a catalog needs of a lake; `Lake` is one."""

    @property
    def namespaces(self) -> Any:
        """See `Lake.namespaces`."""

    def table(self, name: str) -> Any:
        """See `Lake.table`."""

    def tables(self, namespace: str | None = None) -> list[str]:
        """See `Lake.tables`."""

    @property
    def create_table(self) -> Callable[..., Any]:
        """See `Lake.create_table`."""

    @property
    def write(self) -> Callable[..., Any]:
        """See `Lake.write`."""

    def drop_table(self, name: str) -> None:
        """See `Lake.drop_table`."""

    def rename_table(self, name: str, new_name: str) -> None:
        """See `Lake.rename_table`."""

    def _run_in_spark(self, text: str, spark: SparkSession, *, before: str, table: str, rows: DataFrame | None) -> None:
        """See `Lake._run_in_spark`."""

    def _call_in_spark(self, text: str, spark: SparkSession) -> DataFrame:
        """See `Lake._call_in_spark`."""

    def _services(self) -> list[str]:
        """See `Lake._services`."""


class Answers:
    """Answers the questions of one catalog. Safe for many threads."""

    def __init__(self, spark: SparkSession, lake: CatalogLake) -> None:
        self._spark = spark
        self._lake = lake
        self._planned: BoundedCache[_Planned] = BoundedCache(bytes_max=PLANNED_BYTES_MAX)

    def apply(self, question: str, rows: Any) -> Any:
        """Answer the question `what` about the dotted name `of`. Never raises: errors are part of the answer.

        rows: a Dataset that a write takes, or None.
        """
        asked = json.loads(question)
        try:
            if rows is not None:
                asked["rows"] = DataFrame(rows, self._spark)
            found = getattr(self, f"_{asked['what'].replace(' ', '_')}")(asked)
        except (TableNotFound, NamespaceNotFound, TableExists, NamespaceExists) as error:
            found = _named(error, asked["what"])
        except InvalidInput as error:
            found = {"refused": str(error)}
        except PySparkException as error:
            found = {"failed": str(error).partition("JVM stacktrace:")[0].strip()}
        except (ObjcatError, FileIOError) as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        except Exception as error:  # noqa: BLE001 - Spark would show Python's stack as a text
            found = {"failed": f"{type(error).__name__}: {error}"}
        except KeyboardInterrupt:
            # Java waits for an answer, without which the session would be of no use any more.
            found = {"failed": "KeyboardInterrupt: the statement was interrupted. Read the table to see whether it is written."}
        return json.dumps(found) if isinstance(found, dict) else found

    # ---- reads

    def _found(self, name: str) -> tuple[Any, str | None]:
        """The table of a name and None, or a table and which of its metadata tables the name means. Raises TableNotFound."""
        try:
            return self._lake.table(name), None
        except TableNotFound:
            if (parts := parts_of(name)) is not None:
                with suppress(TableNotFound):
                    return self._lake.table(parts[0]), parts[1]
            raise

    def _table(self, name: str) -> Any:
        """A table to write to, or to change. Raises TableNotFound, and InvalidSql for a metadata table."""
        table, kind = self._found(name)
        if kind is not None:
            raise InvalidSql(f"{name} is a metadata table, which is only read. Nothing was done. Write to the table itself.")
        return table

    def _named(self, name: str) -> str:
        """The name of a table to change, which may be missing. Raises InvalidSql for a metadata table."""
        if parts_of(name) is not None:
            with suppress(TableNotFound):
                self._table(name)
        return name

    def _load(self, asked: dict[str, Any]) -> Any:
        as_of: int | dt.datetime | None = None
        if asked["version"] is not None:
            if not re.fullmatch(r"\d{1,15}", asked["version"]):
                raise InvalidInput(f"VERSION AS OF {asked['version']!r} is no slot. Write a whole number, or use TIMESTAMP AS OF.")
            as_of = int(asked["version"])
        elif asked["micros"] is not None:
            as_of = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=asked["micros"])
        table, kind = self._found(asked["of"])
        if kind is None and as_of is None:
            return self._newest_rows(table, asked["settings"])
        if kind is None:
            return table.scan(as_of=as_of).to_spark(self._spark)._jdf
        return SparkRunner(self._spark).told(metadata_rows(table, kind, as_of))._jdf

    def _newest_rows(self, table: Any, settings: str) -> Any:
        """The rows of a table that was just opened, as a Dataset: the one made before, if nothing was committed since.

        settings: of the session, on which a plan depends.
        """
        key = f"{table.id} {table.url}"
        known = self._planned.get(key)
        if known is not None and (known.slot, known.settings) == (table.snapshot.slot, settings):
            return known.rows
        # The earlier handle has manifests and footers in its caches.
        scan = (table if known is None else known.table).scan()
        rows = scan.to_spark(self._spark)._jdf
        size = PLAN_BYTES + GROUP_BYTES * len(scan.plan.groups)
        self._planned.put(key, _Planned(scan.plan.snapshot.slot, settings, table if known is None else known.table, rows), size)
        return rows

    def _narrow(self, asked: dict[str, Any]) -> Any:
        """The rows of a marked scan for a query that is being planned. `columns`: paths. `where`: conditions."""
        found = narrowed_rows(asked["of"], asked["columns"], asked["where"])
        return {"missing": True} if found is None else found._jdf

    def _about(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What Spark shows of a table. `writes`: whether it is to be written to."""
        table, kind = (self._table(asked["of"]), None) if asked["writes"] else self._found(asked["of"])
        if kind is not None:
            return {"partitions": [], "partition names": [], "properties": {"provider": "objcat"}}
        return {
            "id": table.id,
            "schema": shown_schema(table).json(),
            "partitions": shown_partitions(table),
            "partition names": [field.name for field in table.spec.partitioning.fields],
            "properties": shown_properties(table),
        }

    def _exists(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._found(asked["of"])
        return {}

    def _show_partitions(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The partitions as in paths. `only`: values by name, as text; None for null."""
        return {"names": shown_partition_names(self._table(asked["of"]), asked["only"])}

    def _drop_partitions(self, asked: dict[str, Any]) -> dict[str, Any]:
        """`values`: of each partition, in the order of their fields."""
        table = self._table(asked["of"])
        table.delete_partition(partitions_filter(table, asked["values"]))
        return {}

    def _tables(self, asked: dict[str, Any]) -> dict[str, Any]:
        above = asked["of"]
        found = self._lake.tables(above or None)
        return {"names": _children(found, above)}

    def _namespaces(self, asked: dict[str, Any]) -> dict[str, Any]:
        above = asked["of"] or ""
        return {"names": _children(self._lake.namespaces.list(above or None), above)}

    def _namespace(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"properties": self._lake.namespaces.properties(asked["of"]) if asked["of"] else {}}

    # ---- rows

    def _write(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Rows that Spark has fitted to the columns of the table. `grown`: and to those that they bring, by WITH SCHEMA EVOLUTION."""
        table, rows = self._table(asked["of"]), asked["rows"]
        _check_options(asked["options"])
        mode = "add" if asked["grown"] else None
        match asked["mode"]:
            case "append":
                with suppress(EmptyBatch):  # Without rows there is nothing to do, as in every other table of Spark.
                    table.insert(rows, schema_mode=mode)
            case "overwrite":
                _overwrite(table, rows, mode)
            case "overwrite where":
                where = filter_text(asked["where"])
                try:
                    table.insert_overwrite(rows, where=where, schema_mode=mode)
                except EmptyBatch:
                    table.delete_partition(where)
            case "overwrite partitions":
                with suppress(EmptyBatch):  # No rows are in no partition.
                    table.insert_overwrite(rows, schema_mode=mode)
        return {}

    def _stream(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A batch of a stream, in the session of the stream."""
        rows = asked["rows"]._jdf
        session = SparkSession(self._spark.sparkContext, rows.sparkSession())
        write_batch(self._table(asked["of"]), DataFrame(rows, session), asked)
        return {}

    def _truncate(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._table(asked["of"]).delete("true", spark=self._spark)
        return {}

    def _statement(self, asked: dict[str, Any]) -> dict[str, Any]:
        """UPDATE, DELETE or MERGE, by its text. `rows`: the source of `df.mergeInto(...)`, whose text was made of its plan."""
        name = self._named(asked["of"])
        self._lake._run_in_spark(asked["text"], self._spark, before=asked["before"], table=name, rows=asked.get("rows"))
        return {}

    # ---- services

    def _services(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - all questions are asked alike
        return {"names": self._lake._services()}

    def _call(self, asked: dict[str, Any]) -> Any:
        said = ", ".join(value if name is None else f"{name} => {value}" for name, value in asked["arguments"])
        return self._lake._call_in_spark(f"{asked['name']}({said})", self._spark)._jdf

    # ---- tables

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        """CREATE TABLE, and with rows CREATE TABLE ... AS SELECT. `how` "replace" and "create or replace" keep a table that is there."""
        name, table = asked["of"], declared(asked["table"], self._spark)
        if asked.get("rows") is None:
            check_comments(asked["table"])
        elif SOURCE in table.settings:
            raise InvalidSql(
                f"CREATE TABLE {name} names a source and a query, and a table has the rows of one of them. Nothing was done. Leave out the "
                "query, or the properties of the source."
            )
        if asked.get("how", "create") != "create":
            try:
                return self._replace(asked)
            except TableNotFound:
                if asked["how"] == "replace":
                    raise
        if asked.get("rows") is not None:
            try:
                self._lake.write(asked["rows"], name, if_exists="error", **table.settings)
            except EmptyBatch:
                pass  # The table is wanted all the same.
            else:
                return {}
        self._lake.create_table(name, table.schema, **table.settings)
        return {}

    def _replace(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All rows of a table are replaced, as one commit. Its history, key and settings stay. Raises InvalidInput for another table."""
        table = self._table(asked["of"])
        declared(asked["table"], self._spark).check_same(table, types=asked.get("rows") is None)
        if asked.get("rows") is None:
            table.delete("true", spark=self._spark)
        else:
            _overwrite(table, asked["rows"])
        return {}

    def _alter(self, asked: dict[str, Any]) -> dict[str, Any]:
        table = self._table(asked["of"])
        columns, properties = column_changes(asked["changes"], table, self._spark), property_changes(asked["changes"])
        if columns and properties is not None:
            raise InvalidSql("A statement changes columns or properties, not both. Nothing was done. Write two statements.")
        if columns:
            table.alter.apply(columns)
        if properties is not None:
            table.set_properties(properties.set, unset=properties.unset)
        return {}

    def _drop(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.drop_table(self._named(asked["of"]))
        return {}

    def _purge(self, asked: dict[str, Any]) -> dict[str, Any]:
        raise InvalidSql(
            f"DROP TABLE {asked['of']} PURGE is not supported, because readers under way may use its files. Nothing was done. DROP the "
            "table, and purge it later with lake.purge_table(name, older_than_s=...)."
        )

    def _rename(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.rename_table(self._named(asked["of"]), asked["to"])
        return {}

    # ---- namespaces

    def _create_namespace(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.namespaces.create(asked["of"], _notes(asked["properties"]))
        return {}

    def _alter_namespace(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.namespaces.set_properties(asked["of"], _notes(asked["set"]), unset=asked["unset"])
        return {}

    def _drop_namespace(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.namespaces.drop(asked["of"])
        return {}

    class Java:
        """What Java takes it for."""

        implements = ("java.util.function.BiFunction",)


_MISSING = frozenset(
    {
        "load",
        "about",
        "exists",
        "show partitions",
        "drop partitions",
        "tables",
        "namespaces",
        "namespace",
        "alter",
        "drop",
        "rename",
        "alter namespace",
        "drop namespace",
    }
)
_EXISTS = frozenset({"create", "rename", "create namespace"})
"""Questions to which it is an answer that a name is missing, or taken. Spark has sentences of its own for both."""


def _named(error: ObjcatError, what: str) -> dict[str, Any]:
    """The answer where a name is missing or taken."""
    if what in _MISSING and isinstance(error, (TableNotFound, NamespaceNotFound)):
        return {"missing": True}
    if what in _EXISTS and isinstance(error, (TableExists, NamespaceExists)):
        return {"exists": True}
    return {"failed": f"{type(error).__name__}: {error}"}


def _overwrite(table: Any, rows: DataFrame, mode: str | None = None) -> None:
    try:
        table.overwrite(rows, schema_mode=mode)
    except EmptyBatch:
        table.delete("true", spark=rows.sparkSession)


def _check_options(options: Mapping[str, str]) -> None:
    """Raises InvalidInput for an option of a write: none is passed over."""
    if options:
        raise InvalidInput(
            f"A write to a table of a catalog takes no options, but {', '.join(sorted(options))} is given. Nothing was written. Leave it "
            "out, or use the methods of the table."
        )


def _notes(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a namespace. Raises InvalidInput for a location."""
    if "location" in properties:
        raise InvalidInput("A namespace of a lake has no LOCATION of its own. Nothing was done. Leave it out.")
    return {name: value for name, value in properties.items() if name != "owner"}


def _children(names: list[str], above: str) -> list[str]:
    """The last parts of the names directly in a namespace, out of names somewhere below it."""
    depth = above.count(".") + 1 if above else 0
    return [name.rpartition(".")[2] for name in names if name.count(".") == depth]
