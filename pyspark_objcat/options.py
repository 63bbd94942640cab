"""The options of the format, typed. Spark passes all of them as text, under lower-case keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

import objcat
from fileio.errors import FileIOError, InvalidConfig
from fileio.options import nearest
from objcat.common.validation import KeyScope, ScanMode, TableType, one_of
from objcat.errors import InvalidInput, ObjcatError, TableNotFound
from objcat.lake.create import drop_created_table
from objcat.lake.urls import find_table
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema import TableSchema, all_nullable, nullable_schema
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import COPY_ON_WRITE, MERGE_ON_READ, TableSpec
from objcat.planning.incremental import HIDDEN, chosen_columns
from objcat.planning.scan import MODES, SNAPSHOT
from objcat.table.change_feed import ChangeFeed, changes, incremental
from objcat.table.scan import Scan
from objcat.tasks.changes import change_schema, increment_schema
from objcat.tasks.model import Operation

logger = logging.getLogger("objcat")

OWN = (
    "path",
    "app_id",
    "as_of",
    "buckets",
    "checkpointlocation",
    "columns",
    "delete_when",
    "key",
    "key_scope",
    "max_bytes",
    "max_commits",
    "mode",
    "operation",
    "ordering",
    "partition_by",
    "queryname",
    "resumed_after",
    "schema_mode",
    "since",
    "table_type",
    "until",
    "where",
)
"""In lower case. `checkpointLocation` and `queryName` are Spark's own, which it passes on."""
READING = ("as_of", "columns", "max_bytes", "max_commits", "mode", "since", "until", "where")
"""Options of reads only."""
CHANGES, NET_CHANGES, INCREMENTAL = FOLLOWING = ("changes", "net_changes", "incremental")
"""Modes that read changes instead of rows."""


@dataclass(frozen=True, slots=True)
class CreatedTable:
    """A table that was created for a write. `table`: its id. `opened`: the slot that created it."""

    table: str
    opened: int


@dataclass(frozen=True, slots=True)
class TableAtLoad:
    """What Spark knows of a table since a frame or stream was loaded. `table`: its id. `schema`: as of the slot."""

    table: str
    slot: int
    schema: TableSchema

    def check(self, table: objcat.Table, slot: int, schema: TableSchema, names: Iterable[str], *, path: str) -> None:
        """Raises InvalidInput for another table, and where columns of these names differ at a later slot, which has this schema."""
        if table.id != self.table:
            raise InvalidInput(f"At {path} there is another table now than when the frame was made. Load it again.")
        if slot <= self.slot:
            return
        was, now = ({column.name: column for column in one.columns} for one in (self.schema, schema))
        for name in names:
            if name in was and was[name] != now.get(name):
                raise InvalidInput(f"The column {name!r} changed since the frame was made. Load it again.")

    def check_all(self, slot: int, schema: TableSchema) -> None:
        """Raises InvalidInput where a later slot has additional columns."""
        known = {column.id for column in self.schema.columns}
        more = [column.name for column in schema.columns if column.id not in known]
        if slot > self.slot and more:
            raise InvalidInput(
                f"The table has a new column, {more[0]!r}, since the stream was loaded. Load it again and start it from its "
                "checkpoint, so that the values of that column come too. Or name the columns to follow by the option columns."
            )


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The options of one read or write.

    Attributes:
        path: a lake, a slash and a name, or the URL of a table without a lake.
        own: options of this format that were given.
        store: options of the storage backend.
    """

    path: str
    own: Mapping[str, str]
    store: Mapping[str, str] = field(repr=False)

    def table(self) -> objcat.Table:
        """The table, opened. Raises TableNotFound, and InvalidConfig for an option that neither the format nor the store has."""
        try:
            return find_table(self.path, dict(self.store))
        except InvalidConfig as error:
            unknown = next((name for name in self.store if f"no option {name!r}" in str(error)), None)
            if unknown is None or nearest(unknown, OWN).startswith("valid ones"):
                raise
            raise InvalidInput(f"The format objcat has no option {unknown!r}: {nearest(unknown, OWN)}") from error

    def table_for(self, schema: pa.Schema) -> tuple[objcat.Table, CreatedTable | None]:
        """The table to write to, and whether it was created for this write.

        It is created, with nullable columns, when it does not exist and the options name its key. Raises as `table`, and InvalidInput for a
        table with another key.
        """
        try:
            table = self.table()
            own_key = [column.name for column in table.spec.key_columns]
            if "key" in self.own and _names(self.own["key"]) != own_key:
                raise InvalidInput(
                    f"The table {table.name!r} has the key {own_key or None}, not {_names(self.own['key']) or None}. Nothing was "
                    "written. Name its key, or leave out the option key."
                )
            return table, None
        except TableNotFound as error:
            if "key" not in self.own:
                raise TableNotFound(
                    f'There is no table at {self.path}. Create it, or name its key with .option("key", "column, column"); an empty '
                    "text makes a table without a key."
                ) from error
        above, _, name = self.path.rstrip("/").rpartition("/")
        own = self.own
        if own.get("table_type") == COPY_ON_WRITE and _names(own["key"]):
            raise InvalidInput(refused(name, COPY_ON_WRITE_REFUSED))
        table = objcat.connect(above, dict(self.store)).create_table(
            name,
            nullable_schema(schema),
            key=_names(own["key"]) or None,
            ordering=_names(own.get("ordering", "")) or None,
            partition_by=_names(own.get("partition_by", "")),
            index=objcat.BucketIndex(_number(own["buckets"], "buckets")) if "buckets" in own else None,
            table_type=cast("TableType", own.get("table_type", MERGE_ON_READ)),
            key_scope=cast("KeyScope", own.get("key_scope", "table")),
        )
        return table, CreatedTable(table.id, table.snapshot.slot)

    def take_back(self, made: CreatedTable) -> None:
        """Drop a table that was created for a refused write, unless others have written to it meanwhile. Never raises."""
        above, _, _ = self.path.rstrip("/").rpartition("/")
        try:
            table = self.table()
            if table.id == made.table:
                drop_created_table(
                    objcat.connect(above, dict(self.store))._context.catalog, table._context.timeline, table.id, opened=made.opened
                )
        except (ObjcatError, FileIOError) as error:
            logger.warning("The table at %s was created for a write that was refused, and may still exist: %s", self.path, error)

    @property
    def operation(self) -> Operation | None:
        """The operation that a write asks for; None for the table's default. Raises InvalidInput."""
        given = self.own.get("operation")
        return None if given is None else Operation(one_of(given, Operation, what="the option operation"))

    def operation_of(self, spec: TableSpec) -> Operation:
        """What a write does. Raises InvalidInput.

        With a key, an insert is an upsert here: tasks that do not know of one another append log rows.
        """
        given = self.operation
        if spec.has_key:
            return Operation.UPSERT if given in (None, Operation.INSERT) else Operation(given)
        if given not in (None, Operation.INSERT):
            raise InvalidInput(f"The table has no key, so nothing says which rows to {given}. Leave out the option operation.")
        return Operation.INSERT

    def schema_mode_of(self, spec: TableSpec) -> SchemaMode:
        """What a write may do to the schema. Raises InvalidInput."""
        given = self.own.get("schema_mode")
        return spec.schema_mode if given is None else SchemaMode(one_of(given, SchemaMode, what="the option schema_mode"))

    def check_write(self, *, streams: bool) -> None:
        """Raises InvalidInput for an option that a write, of a stream or not, would ignore."""
        for name in READING:
            if name in self.own:
                raise InvalidInput(f"The option {name} is for reads, and a write takes the whole frame. Nothing was written. Leave it out.")
        for name in [] if streams else ("app_id", "resumed_after"):
            if name in self.own:
                raise InvalidInput(
                    f"The option {name} is for streams, and this write counts each time. Nothing was written. Leave it out, or write "
                    "with table.upsert(df, app=objcat.AppVersion(app=..., version=...)), which counts once."
                )

    def app_id(self) -> str:
        """The name by which a table knows a stream. Raises InvalidInput when there is none."""
        given = self.own.get("app_id") or self.own.get("checkpointlocation", "").rstrip("/")
        if not given:
            raise InvalidInput(
                "A stream into objcat needs a name, by which the table knows which of its batches it has. Nothing was written. "
                'Give the writer .option("checkpointLocation", "..."), or .option("app_id", "...") where the checkpoint is '
                "configured elsewhere."
            )
        return given

    def number(self, name: str) -> int | None:
        """An option that is a whole number; None when it is not given. Raises InvalidInput."""
        return _number(self.own[name], name) if name in self.own else None

    @property
    def mode(self) -> str:
        """What is read. Raises InvalidInput."""
        return one_of(self.own.get("mode", SNAPSHOT), (*MODES, *FOLLOWING), what="the option mode")

    @property
    def chosen(self) -> list[str] | None:
        """The columns to read; None for all."""
        return _names(self.own["columns"]) if "columns" in self.own else None

    @property
    def since(self) -> int | str:
        """Where to begin to follow a table; before its first commit by default."""
        return _point(self.own.get("since", "-1"))

    @property
    def until(self) -> int | str | None:
        """Where to end; the newest commit when None."""
        return _point(self.own["until"]) if "until" in self.own else None

    def feed(
        self, table: objcat.Table, since: int | str, until: int | str | None, columns: Sequence[str], schema: TableSchema
    ) -> ChangeFeed:
        """The feed that a read follows. `columns`: of this schema, without the columns that describe a change. Raises as
        `Table.changes`."""
        mode = self.mode
        if mode == INCREMENTAL:
            where = self.own.get("where")
            return table._context.latest.retry_on_new_checkpoint(
                lambda: incremental(table._context.feed_context(), since, until, where=where, columns=columns, schema=schema)
            )
        if "where" in self.own:
            raise InvalidInput(f'Changes take no filter, but the option where is set. Use .option("mode", "{INCREMENTAL}"), or df.where().')
        net = mode == NET_CHANGES
        return table._context.latest.retry_on_new_checkpoint(
            lambda: changes(table._context.feed_context(), since, until, columns=columns, net=net, schema=schema)
        )

    def end(self, table: objcat.Table) -> Snapshot:
        """The snapshot where a read that follows a table ends, the newest by default. Raises InvalidInput, SnapshotExpired."""

        def found() -> Snapshot:
            source = table._context.feed_context()
            return source.snapshot(source.slots(self.since, self.until)[1])

        return table._context.latest.retry_on_new_checkpoint(found)

    def followed(self, spec: TableSpec) -> pa.Schema:
        """The columns of a read that follows a table. They fit earlier slots too, where more may be null. Raises InvalidInput."""
        columns = chosen_columns(spec, self.chosen, hidden=HIDDEN if self.mode == INCREMENTAL else ())
        never = {column.name for column in (*spec.key_columns, *spec.ordering_columns)}
        schema = (increment_schema if self.mode == INCREMENTAL else change_schema)(spec, columns)
        return pa.schema([field if field.name in never else all_nullable(field) for field in schema])

    def scan(self, table: objcat.Table, columns: Sequence[str] | None = None) -> Scan:
        """The scan of a read. `columns`: instead of those of the options. Raises as `Table.scan`."""
        as_of = None if "as_of" not in self.own else _point(self.own["as_of"])
        columns = self.chosen if columns is None else columns
        return table.scan(where=self.own.get("where"), columns=columns, as_of=as_of, mode=cast("ScanMode", self.mode))


COPY_ON_WRITE_REFUSED = "which is copy_on_write: one task needs all rows of a bucket, and a format cannot collect them"
LOCATED_REFUSED = "whose keys must be looked up before they are written, because its index is no hash: tasks of a format cannot do that"


def refused(name: str, why: str) -> str:
    """The message for a write through the format to a table that needs tasks which know of one another."""
    return (
        f"The format objcat does not write to {name!r}, {why}. Nothing was written. Use table.upsert(df), "
        "table.insert(df) or table.delete(df), and in a stream objcat.spark.foreach_batch(table, app_id=...)."
    )


def parse_options(given: Mapping[str, str]) -> FormatOptions:
    """The options, typed. Raises InvalidInput without a path."""
    if "path" not in given:
        raise InvalidInput(
            'The format objcat needs the URL of a table: .load("s3://bucket/lake/name"), .save(...). Tables of Spark\'s own '
            "catalog (saveAsTable, CREATE TABLE ... USING objcat) do not pass it on; objcat.spark.views shows a lake to "
            "spark.sql."
        )
    own = {name: value for name, value in given.items() if name in OWN}
    return FormatOptions(given["path"], own, {name: value for name, value in given.items() if name not in OWN})


def _names(text: str) -> list[str]:
    """Names between commas; commas in parentheses do not count."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [name for name in found if name]


def _number(text: str, what: str) -> int:
    if not text.strip().isdigit():
        raise InvalidInput(f"The option {what}={text!r} is not a whole number. Give a whole number.")
    return int(text)


def _point(text: str) -> int | str:
    """A slot, or another text that says where in the log."""
    return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else text
