"""`BinlogDecoder`: events of a binlog become whole transactions of a source."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from objcat.errors import IngestStopped
from objcat.ingest.model import (
    ChangeKind,
    KeyValues,
    Mark,
    RowChange,
    SchemaChanged,
    SourceTable,
    SourceTransaction,
    TableTruncated,
)
from objcat.ingest.mysql.catalog import MysqlCatalog, MysqlTable
from objcat.ingest.mysql.gtids import Gtids
from objcat.ingest.mysql.packed import ZERO_DATE, BinlogRow, BinlogSchema, packs_key, wire_of
from objcat.ingest.mysql.statements import AlteredTable, TableName, read_statement
from objcat.ingest.mysql.types import MysqlType, keeps_values, type_of_binlog
from objcat.ingest.spooled_changes import SpooledChanges
from objcat.sourcefiles.values import UNFIT

GTIDS, FILE, OFFSET, SINCE = "gtids", "file", "offset", "since"
"""The fields of a position: which transactions come before it, and where that is in the files of the server, for people. `since`: where to
read from, when transactions of two phases are prepared and not committed: their rows come before the position, and count after it."""
_XID = re.compile(r"x'([0-9a-f]*)'(?:\s*,\s*x'([0-9a-f]*)')?(?:\s*,\s*(\d+))?", re.IGNORECASE)
_ROLLBACK_TO = re.compile(r"rollback\s+(?:work\s+)?to\b", re.IGNORECASE)
ROW_BYTES = 400
"""About what the objects of a row take, next to its values."""
VALUE_BYTES = 60
"""About what a value takes."""
PACKED_BYTES = 300
"""About what the objects of a packed row take, next to its bytes."""
_KINDS = {"WriteRowsEvent": ChangeKind.INSERT, "UpdateRowsEvent": ChangeKind.UPDATE, "PartialUpdateRowsEvent": ChangeKind.UPDATE}


@dataclass(frozen=True, slots=True)
class _BinlogTable:
    """A table of the stream. key: its key columns with their types. sets: columns of the type `set`."""

    table: SourceTable
    types: Mapping[str, MysqlType]
    key: tuple[tuple[str, MysqlType], ...]
    sets: frozenset[str]
    columns: Any


@dataclass(frozen=True, slots=True)
class _PreparedChanges:
    """A transaction of two phases that is prepared. before: what was read before it."""

    before: Gtids
    changes: SpooledChanges


class BinlogDecoder:
    """Takes events in order. For one thread.

    Args:
        library: mysql-replication.
        catalog: by a connection of its own.
        follows: whether a table is followed, by name. Rows of others are left out.
        gtids: what was taken before.
        since: where the stream begins: at `gtids`, or before transactions of two phases that were prepared by then.
        bytes_max: a larger transaction waits on disk.
    """

    def __init__(
        self, library: Any, catalog: MysqlCatalog, follows: Callable[[str], bool], gtids: Gtids, since: Gtids, *, bytes_max: int
    ) -> None:
        self._library = library
        self._catalog = catalog
        self._follows = functools.cache(follows)
        self._bytes_max = bytes_max
        self._gtids = gtids
        self._applied = gtids
        self._read = since
        self._prepared: dict[tuple[str, str], _PreparedChanges] = {}
        self._tables: dict[str, _BinlogTable] = {}
        self._two_phase_tables: dict[str, _BinlogTable] | None = None
        self._is_replayed = False
        self._gtid: str | None = None
        self._is_standalone = False
        self._changes = SpooledChanges(bytes_max)
        self._committed_at_ms: int | None = None

    @property
    def is_inside(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._gtid is not None

    @property
    def gtids(self) -> Gtids:
        """What has been taken."""
        return self._gtids

    def begin(self, gtid: str, *, is_standalone: bool, is_two_phase: bool = False) -> None:
        """A transaction begins.

        Args:
            gtid: of it.
            is_standalone: its only event is a statement.
            is_two_phase: it ends with its preparation. Servers that do not say so have a statement for it.

        Raises:
            IngestStopped: the one before did not end.
        """
        if self._gtid is not None:
            raise IngestStopped(f"The binlog has the transaction {gtid} before the end of {self._gtid}. Nothing of it was written.")
        self._gtid = gtid
        self._is_standalone = is_standalone
        self._is_replayed = self._applied.has(gtid)
        self._two_phase_tables = {} if is_two_phase else None
        self._changes = SpooledChanges(self._bytes_max)
        self._committed_at_ms = None

    def take_rows(self, event: Any) -> None:
        """Rows that were inserted, updated or deleted."""
        if not getattr(event, "_processed", True) or (self._is_replayed and self._two_phase_tables is None):
            return
        if self._gtid is None:
            raise IngestStopped(f"The binlog has rows without a transaction id after {self._gtids}. Nothing of them was written.")
        self._committed_at_ms = event.timestamp * 1000
        name = f"{event.schema}.{event.table}"
        if not self._follows(name):
            return
        streamed = self._streamed(name, event)
        names = type(event).__name__
        if isinstance(streamed.table, BinlogSchema) and self._take_packed(streamed.table, names, event):
            return
        try:
            rows = event.rows
        except (*UNFIT, IndexError, LookupError) as error:
            raise IngestStopped(
                f"Rows of {name} in the transaction {self._gtid} cannot be read: {error!r}. Nothing of it was written. Skip the "
                "table by a route, or leave the transaction out by `objcat ingest skip`."
            ) from error
        for row in rows:
            self._add_row(streamed, _KINDS.get(names, ChangeKind.DELETE), row)

    def take_statement(self, event: Any) -> bool:
        """A statement. Returns whether it ends the transaction."""
        text, database = _text(event.query).strip(), _text(event.schema)
        self._committed_at_ms = event.timestamp * 1000
        word = text.split(None, 1)[0].rstrip(";").upper() if text else ""
        if word == "BEGIN":
            self._is_standalone = False
            return False
        if word == "COMMIT":
            return True
        if word == "XA":
            return self._take_two_phases(text)
        if word == "ROLLBACK" and _ROLLBACK_TO.match(text):
            raise IngestStopped(
                f"The transaction {self._gtid} goes back to a savepoint in the binlog, so it changes tables that have no transactions too. "
                "Which of its rows count is not told. Nothing of it was written. Convert these tables to InnoDB, then run "
                "`objcat ingest resnapshot --all`."
            )
        if word == "ROLLBACK":
            # Tables without transactions keep what it did, and they are not followed.
            self._changes = SpooledChanges(self._bytes_max)
            return True
        if not self._is_replayed:
            self._apply_statement(text, database)
        return self._is_standalone

    def _take_two_phases(self, text: str) -> bool:
        """A statement of a transaction of two phases. Returns whether it ends one of the binlog."""
        words = text.upper().split(None, 2)
        if words[1] in ("START", "BEGIN", "END"):
            self._is_standalone = False
            if self._two_phase_tables is None:
                self._two_phase_tables = {}
            return False
        found = _XID.search(text)
        prepared = None if found is None else self._prepared.pop((found[1].lower(), (found[2] or "").lower()), None)
        if words[1] != "COMMIT" or self._is_replayed:
            return True
        if prepared is not None:
            self._changes = prepared.changes
            return True
        # Its rows came before this reader began. Which tables they are of is not known.
        for known in self._catalog.tables().values():
            if self._follows(known.table.name):
                self._replace((known.database, known.name))
        return True

    def prepare(self, event: Any, file: str, offset: int) -> SourceTransaction | None:
        """A transaction of two phases is prepared, and its changes wait for its commit. One phase: it is committed now."""
        if not event.one_phase:
            xid = (event.xid_gtrid.hex(), event.xid_bqual.hex())
            self._prepared.pop(xid, None)
            self._prepared[xid] = _PreparedChanges(self._read, self._changes)
            self._changes = SpooledChanges(self._bytes_max)
        return self.end(file, offset)

    def _apply_statement(self, text: str, database: str) -> None:
        effect = read_statement(text, database)
        for table in effect.truncated:
            known = self._followed(table)
            if known is not None:
                self._add(TableTruncated(table=known.table))
        for altered in effect.altered:
            self._alter(altered)
        for table in effect.replaced:
            self._replace(table)
        if effect.is_unknown:
            for known in self._catalog.tables().values():
                if known.database == database and self._follows(known.table.name):
                    self._replace((known.database, known.name))

    def position(self, file: str, offset: int) -> dict[str, Any]:
        """Where the reader is. file, offset: in the files of the server."""
        waiting = next(iter(self._prepared.values()), None)
        since = {} if waiting is None else {SINCE: str(waiting.before)}
        return {GTIDS: str(self._gtids), FILE: file, OFFSET: offset, **since}

    def end(self, file: str, offset: int) -> SourceTransaction | None:
        """The transaction ends. file, offset: where in the files of the server that is. None: it was taken before."""
        assert self._gtid is not None
        self._read = self._read.after(self._gtid)
        if self._is_replayed:
            self._gtid = None
            return None
        self._gtids = self._gtids.after(self._gtid)
        mark: Mark = self._gtid if self._changes.count else None
        done = SourceTransaction(
            position=self.position(file, offset),
            mark=mark,
            changes=self._changes,
            count=self._changes.count,
            size_bytes=self._changes.size_bytes,
            committed_at_ms=self._committed_at_ms,
        )
        self._gtid = None
        return done

    # ---- helpers

    def _take_packed(self, table: BinlogSchema, name: str, event: Any) -> bool:
        """Take the rows of an event by their bytes. Returns whether it could be: every value of every row was sent."""
        bits = [event.columns_present_bitmap]
        if name == "UpdateRowsEvent":
            bits.append(event.columns_present_bitmap2)
        elif name == "PartialUpdateRowsEvent":
            return False
        count = len(table.wires)
        every = (1 << count) - 1
        if event.number_of_columns != count or any(int.from_bytes(one, "little") & every != every for one in bits):
            return False
        kind = _KINDS.get(name, ChangeKind.DELETE)
        data = event.packet.read(event.event_size - event.packet.read_bytes)
        changes: list[RowChange] = []
        at, end = 0, len(data)
        try:
            while at < end:
                old_key = None
                if kind is ChangeKind.UPDATE:
                    old_key, at = table.take(data, at)
                start = at
                key, at = table.take(data, at)
                if at > end:
                    raise IndexError(at)
                moved = old_key if old_key != key else None
                row: Any = BinlogRow(table, data[start:at], 0)
                changes.append(RowChange(table, kind, key, row, (), moved))
        except (IndexError, ValueError) as error:
            raise IngestStopped(
                f"Rows of {table.name} in the transaction {self._gtid} cannot be read: {error!r}. Nothing of it was written. Skip the "
                "table by a route, or leave the transaction out by `objcat ingest skip`."
            ) from error
        size = PACKED_BYTES + len(data) // max(1, len(changes))
        for change in changes:
            self._changes.add(change, size)
        return True

    def _add(self, change: Any, size: int = ROW_BYTES) -> None:
        self._changes.add(change, size)

    def _add_row(self, streamed: _BinlogTable, kind: ChangeKind, row: Mapping[str, Any]) -> None:
        new, new_gone = row.get("after_values", row.get("values")), row.get("after_none_sources", row.get("none_sources")) or {}
        old, old_gone = row.get("before_values"), row.get("before_none_sources") or {}
        assert new is not None
        size = ROW_BYTES + sum(VALUE_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0) for value in new.values())
        if kind is ChangeKind.DELETE:
            values, _ = self._values(streamed, new, new_gone)
            self._add(RowChange(streamed.table, kind, _key(streamed, values), values), size)
            return
        values, unsent = self._values(streamed, new, new_gone)
        old_key = None
        if old is not None:
            before, _ = self._values(streamed, old, old_gone)
            # A server that sends what changed alone has the rest in the row before, if anywhere.
            for name in [one for one in unsent if one in before]:
                values[name] = before[name]
            unsent = tuple(name for name in unsent if name not in before)
            old_key = _key(streamed, before)
        key = _key(streamed, values)
        self._add(RowChange(streamed.table, kind, key, values, unsent, old_key if old_key != key else None), size)

    def _values(self, streamed: _BinlogTable, row: Mapping[str, Any], gone: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The values of a row, and the columns that were not sent."""
        sources = self._library.none_source
        unsent = tuple(name for name, why in gone.items() if why in (sources.COLS_BITMAP, sources.JSON_PARTIAL_UPDATE))
        values = dict(row)
        for name in [name for name, why in gone.items() if why in _unreal(sources)]:
            values[name] = ZERO_DATE
        for name in unsent:
            del values[name]
        for name in streamed.sets:
            # Null and the empty set have one value, and two reasons for it.
            if values.get(name) is None and gone.get(name) == sources.EMPTY_SET:
                values[name] = ""
        return values, unsent

    def _streamed(self, name: str, event: Any) -> _BinlogTable:
        # Rows of two phases come later, and so does the schema that they name.
        tables = self._tables if self._two_phase_tables is None else self._two_phase_tables
        known = tables.get(name)
        # The columns come with every event. As long as they are the same, rows name one object.
        if known is not None and (known.columns is event.columns or known.columns == event.columns):
            return known
        made = tables[name] = self._describe(name, event)
        self._add(SchemaChanged(table=made.table))
        return made

    def _describe(self, name: str, event: Any) -> _BinlogTable:
        columns = event.columns
        if not all(column.name for column in columns):
            raise IngestStopped(
                f"The binlog has rows of {name} without the names of columns. Set binlog_row_metadata=FULL at the server. Then run "
                "`objcat ingest resnapshot --all`, since such rows cannot be followed."
            )
        now = self._catalog.table(event.schema, event.table)
        known = {} if now is None else now.types
        types = {one.name: type_of_binlog(one, self._library.types, known.get(one.name)) for one in columns}
        key = () if now is None else now.table.key
        if not set(key) <= set(types):
            key = tuple(one.name for one in columns if one.is_primary)
        made = tuple(types[one].column(one, nullable=one not in key) for one in types)
        wires = [wire_of(one, self._library.types) for one in columns]
        packed = [one for one in wires if one is not None]
        if key and len(packed) == len(made) and all(packs_key(packed[list(types).index(one)]) for one in key):
            table: SourceTable = BinlogSchema(name=name, columns=made, key=key, wires=tuple(packed))
        else:
            table = SourceTable(name=name, columns=made, key=key)
        sets = frozenset(one for one, kind in types.items() if kind.name == "set")
        return _BinlogTable(table, types, tuple((one, types[one]) for one in key), sets, columns)

    def _followed(self, table: TableName) -> MysqlTable | None:
        """A table as the catalog has it now, when it is followed."""
        name = f"{table[0]}.{table[1]}"
        return self._catalog.table(*table) if self._follows(name) else None

    def _replace(self, table: TableName) -> None:
        known = self._followed(table)
        self._tables.pop(f"{table[0]}.{table[1]}", None)
        if known is not None:
            self._add(SchemaChanged(table=known.table, needs_snapshot=True))

    def _alter(self, altered: AlteredTable) -> None:
        known = self._followed(altered.name)
        before = self._tables.pop(f"{altered.name[0]}.{altered.name[1]}", None)
        if known is None:
            return
        # The catalog may be ahead of the stream: what the statement says itself, and the rows before it, come first.
        base = known.table if before is None else before.table
        columns = {column.name: column for column in base.columns}
        defaults: dict[str, Any] = {}
        is_plain = altered.is_plain and all(_keeps(before, known, column) for column in altered.modified)
        for name, joined in altered.joined.items():
            kind = joined.kind or known.types.get(name)
            if kind is None:
                continue  # It is gone again, so no row that comes later has it.
            columns[name] = kind.column(name, nullable=True)
            try:
                defaults[name] = None if joined.default is None else _default(kind, joined.default)
            except UNFIT:
                is_plain = False
        table = replace(base, columns=tuple(columns.values()))
        self._add(SchemaChanged(table=table, defaults=defaults if is_plain else {}, needs_snapshot=not is_plain))


def _unreal(sources: Any) -> tuple[Any, ...]:
    return (sources.OUT_OF_DATE_RANGE, sources.OUT_OF_DATETIME_RANGE, sources.OUT_OF_DATETIME2_RANGE)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _keeps(before: _BinlogTable | None, now: MysqlTable, column: str) -> bool:
    """Whether all values of a column stayed as they are. What it was is known for sure from rows of the stream alone."""
    if before is None or column not in before.types or column not in now.types:
        return False
    # A column that may be null no longer has zeros for its nulls.
    return column not in now.required and keeps_values(before.types[column], now.types[column])


def _default(kind: MysqlType, text: str) -> Any:
    """A default as a value of Python. text: a literal of SQL. Raises one of UNFIT."""
    value: Any = text
    if text.startswith("'"):
        value = text[1:-1].replace("''", "'")
    elif text.upper() in ("TRUE", "FALSE"):
        value = int(text.upper() == "TRUE")
    elif kind.name in ("float", "double"):
        value = float(text)
    elif pa.types.is_integer(kind.arrow):
        value = int(text)
    if isinstance(value, str) and pa.types.is_integer(kind.arrow):
        value = int(value)
    if isinstance(value, str) and kind.name in ("float", "double"):
        value = float(value)
    if kind.name in ("bit", "binary", "varbinary", "blob", "time", "datetime", "timestamp", "json", "set", "geometry"):
        # How the server fits a literal into these is not repeated here.
        raise ValueError(kind.name)
    return kind.column("", nullable=True).decode([value], kind.arrow)[0].as_py()


def _key(streamed: _BinlogTable, values: Mapping[str, Any]) -> KeyValues:
    return tuple(kind.key_value(values[name]) for name, kind in streamed.key)
