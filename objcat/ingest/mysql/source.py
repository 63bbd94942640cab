"""`MysqlSource`: MariaDB and MySQL as a `ChangeSource`. Begin with `transactions`.

The stream is that of a replica: the server forgets nothing for its sake, and keeps the binlog as long as its own settings say. Positions
are sets of global transaction ids, so they hold on every server of a replication, also after a failover.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fileio.env import Env
from fileio.optional import library
from objcat.errors import IngestStopped, SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.model import (
    KeyOrder,
    KeyValues,
    Mark,
    Position,
    Row,
    SchemaChanged,
    SnapshotChunk,
    SourceReport,
    SourceTable,
    SourceTransaction,
)
from objcat.ingest.mysql.catalog import MysqlCatalog, MysqlTable
from objcat.ingest.mysql.chunks import MysqlChunkReader
from objcat.ingest.mysql.connection import MysqlConnector, is_mariadb, rows_of
from objcat.ingest.mysql.decoder import GTIDS, SINCE, BinlogDecoder
from objcat.ingest.mysql.gtids import Gtids, newest_marks, next_position
from objcat.ingest.mysql.json_values import document_reader, opaque_reader
from objcat.ingest.mysql.settings import MysqlSettings, mysql_settings
from objcat.ingest.routes import Router
from objcat.lake.lake import Lake

if TYPE_CHECKING:
    from pymysql.connections import Connection

_STANDALONE = 1
"""The flag of a transaction of MariaDB that is one statement."""
_PREPARES = 64
"""The flag of one that ends with its preparation: the first of two phases (XA)."""
CALM_S_MAX = 60.0
PAUSE_S = 0.05
_READER_CONNECTIONS = 2
"""The reader of mysql-replication opens two: the stream, and one for questions."""
_IGNORABLE = 0x80
"""The flag of events that a reader may pass over when it does not know them."""
_SILENT_EVENTS = {34, 36, 37, 41}
"""Kinds of events of which the library knows nothing, and that say nothing of rows: anonymous ids, group replication, signs of life."""
_TAGGED_ID = 42
"""The kind of event that begins a transaction of MySQL 8.3 or later whose id has a tag."""
_TAG = re.compile(r":\s*[A-Z_]")
"""In a set of transaction ids, in capitals: a tag stands where the number of a transaction is elsewhere."""
HEARTBEAT_S = 1.0
"""Seconds of silence after which the server sends a sign of life."""
_WANTED = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
"""Settings of the server that rows of the binlog need to be complete."""
_COMPRESSIONS = ("log_bin_compress", "binlog_transaction_compression")
"""Settings of MariaDB and of MySQL."""
_CLIENT_RIGHTS = {"REPLICATION SLAVE", "REPLICATION CLIENT", "BINLOG MONITOR", "ALL PRIVILEGES"}


@dataclass(frozen=True, slots=True)
class BinlogLibrary:
    """The parts of mysql-replication that are used."""

    events: Any
    rows: Any
    types: Any
    none_source: Any
    reader: Any

    @classmethod
    def load(cls) -> BinlogLibrary:
        """Import them. Raises MissingDependency."""
        # It warns of every end of a connection, without a word. Those that matter are errors of ours.
        logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)
        needed_by = "An ingest from MariaDB or MySQL needs"
        names = ("event", "row_event", "constants.FIELD_TYPE", "constants.NONE_SOURCE", "binlogstream")
        events, rows, types, sources, stream = (
            library(f"pymysqlreplication.{name}", needed_by=needed_by, extra="ingest-mysql") for name in names
        )
        documents, packets = (
            library(f"pymysqlreplication.{name}", needed_by=needed_by, extra="ingest-mysql") for name in ("json_binary", "packet")
        )
        documents.parse_opaque = opaque_reader(documents.decode_decimal)
        packets.parse_json = document_reader(documents.parse_json)
        return cls(events, rows, types, sources, stream.BinLogStreamReader)


def open_source(config: IngestConfig, router: Router, env: Env) -> MysqlSource:
    """Open MariaDB or MySQL. See `objcat.ingest.sources.open_source`."""
    return MysqlSource(config, mysql_settings(config), router, env)


def position_text(position: Position) -> str:
    """See `objcat.ingest.sources.position_text`."""
    return str(position[GTIDS])


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:  # noqa: ARG001 - as all sources have it
    """See `objcat.ingest.sources.transaction_text`. A transaction has the position after it."""
    return next_position(position_text(position), text)


class MysqlSource:
    """See `ChangeSource`."""

    has_snapshots = True

    def __init__(self, config: IngestConfig, settings: MysqlSettings, router: Router, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._env = env
        self._library = BinlogLibrary.load()
        self._connector = MysqlConnector(config, settings)
        self._is_closed = False
        self._stream: Any = None
        self._connections: list[Connection[Any]] = []
        self._known: dict[str, MysqlTable] = {}
        self._sql = self._connect()
        self._is_mariadb = is_mariadb(self._sql)
        self._catalog = MysqlCatalog(self._sql, router.key_of)
        self._chunks = MysqlChunkReader(self._connector, self._sql, self._catalog, gtids_field=GTIDS)
        self._place = ("", 0)

    def check_settings(self) -> None:
        """See `ChangeSource`."""
        with self._connector.errors("asking for its settings"):
            found = {str(name).lower(): str(value).upper() for name, value in rows_of(self._sql, "show global variables")}
            granted = " ".join(str(row[0]).upper() for row in rows_of(self._sql, "show grants"))
        wrong = [
            f"{name} is {found.get(name) or 'not known'}, and has to be {wanted}: set it in the server's configuration"
            for name, wanted in _WANTED.items()
            if found.get(name) != wanted
        ]
        if not self._is_mariadb and found.get("gtid_mode") != "ON":
            wrong.append(f"gtid_mode is {found.get('gtid_mode') or 'not known'}, and has to be ON, with enforce_gtid_consistency = ON")
        if not self._is_mariadb and found.get("binlog_row_value_options"):
            wrong.append("binlog_row_value_options has to be empty: with PARTIAL_JSON the binlog has parts of documents")
        wrong += [
            f"{name} is {found[name]}, and has to be OFF: what is compressed in the binlog is not followed"
            for name in _COMPRESSIONS
            if found.get(name, "OFF") != "OFF"
        ]
        if not self._is_mariadb and _TAG.search(found.get("gtid_executed", "")):
            wrong.append(
                "gtid_executed has transaction ids with tags, which the reader of the binlog does not know. Let nobody write with tags "
                "(REVOKE TRANSACTION_GTID_TAG). Those that are there go by RESET BINARY LOGS AND GTIDS alone, at a server without "
                f"replicas, and `objcat ingest resnapshot {self._config.path} --all` after it"
            )
        passed_on = found.get("log_replica_updates", found.get("log_slave_updates"))
        if passed_on != "ON" and self._is_replica():
            wrong.append(
                f"it is a replica, and log_slave_updates is {passed_on or 'not known'}: what it takes over is not in its binlog. Set "
                "log_slave_updates = ON in its configuration, or follow the server that it replicates"
            )
        if not any(right in granted for right in _CLIENT_RIGHTS):
            wrong.append(
                "the user may not read the binlog: GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO it"
                + (", and SLAVE MONITOR, BINLOG MONITOR" if self._is_mariadb else "")
            )
        if wrong:
            raise SourceUnfit(f"The server of {self._config.name!r} cannot be followed: {'; '.join(wrong)}. Then start the ingest again.")

    def describe_tables(self) -> Sequence[SourceTable]:
        """See `ChangeSource`."""
        with self._connector.errors("reading its catalog"):
            self._known = self._catalog.tables()
        return [known.table for known in self._known.values()]

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. The stream has the statements that change tables, so there is nothing to find here."""
        return None

    def begin(self, tables: Sequence[str]) -> Position:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`."""
        end_s = self._env.monotonic_s() + CALM_S_MAX
        while self._env.monotonic_s() < end_s:
            with self._connector.errors("asking for its position"):
                try:
                    found = self._chunks.seen_in_calm()
                finally:
                    self._chunks.end()
            if found is not None:
                return {GTIDS: str(found[0])}
            self._env.sleep(PAUSE_S)
        raise IngestStopped(
            f"The server of {self._config.name!r} has transactions of two phases (XA) that are prepared and not committed, which a "
            "beginning cannot know. Nothing was written. Look at XA RECOVER, end them, and start again."
        )

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:  # noqa: ARG002 - the Protocol has it
        """See `ChangeSource`. The binlog has the changes of all tables."""
        return []

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """See `ChangeSource`."""
        events, rows = self._library.events, self._library.rows
        gtids, since = self._chunks.parse(position[GTIDS]), self._chunks.parse(position.get(SINCE, position[GTIDS]))
        catalog = MysqlCatalog(self._connect(), self._router.key_of)
        decoder = BinlogDecoder(self._library, catalog, self._router.follows, gtids, since, bytes_max=self._config.run.transaction_bytes)
        row_events = (rows.WriteRowsEvent, rows.UpdateRowsEvent, rows.DeleteRowsEvent)
        begins = (events.GtidEvent, events.MariadbGtidEvent)
        ends = (events.XidEvent, events.QueryEvent)
        prepared, unknown = events.XAPrepareEvent, (events.NotImplementedEvent, rows.PartialUpdateRowsEvent)
        wanted = [*row_events, *begins, *ends, prepared, events.RotateEvent, events.HeartbeatLogEvent, *unknown]
        stream = self._open_stream(str(since), wanted)
        while (event := self._next_event(stream)) is not None:
            if isinstance(event, unknown):
                self._refuse_unknown(event, decoder.gtids)
            elif isinstance(event, row_events):
                # Values are read here: the reader takes them lazily, and forgets a table's columns when a file ends.
                try:
                    decoder.take_rows(event)
                except self._connector.pymysql.Error:
                    with self._connector.errors("reading its catalog"):
                        raise
            elif isinstance(event, begins):
                self._begin(decoder, event)
            elif isinstance(event, events.RotateEvent):
                # A server that is started again counts its tables from the beginning, in a new file.
                stream.table_map = {}
            elif isinstance(event, prepared):
                self._place = (stream.log_file, stream.log_pos)
                if (done := decoder.prepare(event, *self._place)) is not None:
                    yield done
            elif isinstance(event, ends):
                with self._connector.errors("reading its catalog"):
                    is_end = isinstance(event, events.XidEvent) or (decoder.is_inside and decoder.take_statement(event))
                if is_end:
                    self._place = (stream.log_file, stream.log_pos)
                    if (done := decoder.end(*self._place)) is not None:
                        yield done
            elif not decoder.is_inside:
                # A sign of life: the reader has all that the server had.
                yield SourceTransaction(position=decoder.position(*self._place))

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """See `ChangeSource`."""
        return self._chunks.read(self._known[table.name], after, rows_max=rows_max, order=order)

    def place_keys(self, table: SourceTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], *, order: KeyOrder) -> list[int]:
        """See `ChangeSource`."""
        return self._chunks.place(self._known[table.name], keys, bounds, order)

    def fetch_rows(self, table: SourceTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> Mapping[KeyValues, Row]:
        """See `ChangeSource`."""
        known = self._known[table.name]
        return self._chunks.fetch(known, keys, [name for name in columns if name in known.types])

    def is_covered(self, covers: Any, mark: Mark) -> bool:
        """See `ChangeSource`."""
        return self._chunks.parse(covers).has(mark)

    def unsettled(self, marks: Sequence[Mark]) -> list[Mark]:
        """See `ChangeSource`."""
        if not marks:
            return []
        if self._is_mariadb:
            # A snapshot that has seen a transaction has seen all before it in its domain. So the newest ones stand for the others, and the
            # server need not look for its position in a file of the binlog, which it reads from the beginning.
            return newest_marks(marks)
        with self._connector.errors("looking at its transactions"):
            try:
                seen, _ = self._chunks.seen()
            finally:
                self._chunks.end()
        return [mark for mark in marks if not seen.has(mark)]

    def is_reached(self, position: Position, target: Position) -> bool:
        """See `ChangeSource`."""
        reached: Any = self._chunks.parse(position[GTIDS])
        return bool(reached.contains(self._chunks.parse(target[GTIDS])))

    def head(self) -> Position:
        """See `ChangeSource`."""
        with self._connector.errors("asking for its position"):
            return {GTIDS: str(self._chunks.newest())}

    def has_to_store(self, stored: Position, position: Position) -> bool:
        """See `ChangeSource`. The server keeps its log up to what is stored."""
        return dict(stored) != dict(position)

    def confirm(self, position: Position) -> None:
        """See `ChangeSource`. The server keeps its binlog by its own settings."""

    def beat(self) -> None:
        """See `ChangeSource`. The server sends signs of life itself, and keeps nothing for this reader."""

    def report(self) -> SourceReport:
        """See `ChangeSource`."""
        file, offset = self._place
        with self._connector.errors("asking for its position"):
            head = {GTIDS: str(self._chunks.newest())}
            sizes = [(str(row[0]), int(row[1])) for row in rows_of(self._sql, "show binary logs")]
            clock_ms = int(rows_of(self._sql, "select unix_timestamp(now(3)) * 1000")[0][0])
        names = [name for name, _ in sizes]
        if file not in names:
            # Without a file, this process has read nothing of the binlog.
            newest = f"the newest file of the binlog is {names[-1]}" if names else "binlog"
            return SourceReport(head=head, state=f"binlog at {file}:{offset}" if file else newest, clock_ms=clock_ms)
        behind = sum(size for _, size in sizes[names.index(file) :]) - offset
        warnings = []
        if len(names) > 1 and file == names[0]:
            warnings.append(
                f"The reader is in {file}, the oldest file of the binlog, {max(0, behind):,} bytes behind. The server removes that file "
                "next. Raise binlog_expire_logs_seconds, and see why the ingest is behind."
            )
        return SourceReport(
            head=head,
            behind_bytes=max(0, behind),
            state=f"binlog at {file}:{offset}",
            warnings=tuple(warnings),
            clock_ms=clock_ms,
        )

    def position_text(self, position: Position) -> str:
        """See `ChangeSource`."""
        return position_text(position)

    def close(self) -> None:
        """See `ChangeSource`."""
        self._is_closed = True
        for opened in self._connections:
            # A polite end would wait for an answer, which a connection that streams does not give.
            with contextlib.suppress(OSError, AttributeError):
                opened._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
            opened._force_close()  # type: ignore[attr-defined]

    # ---- helpers

    def _is_replica(self) -> bool:
        """Whether the server takes over the changes of another one, or is set up to."""
        with self._connector.errors("asking for its settings"):
            try:
                return bool(rows_of(self._sql, "show all slaves status" if self._is_mariadb else "show replica status"))
            except (self._connector.pymysql.err.OperationalError, self._connector.pymysql.err.ProgrammingError):
                # A right is missing, or the server is too old for the statement. How many run is told to everybody.
                running = rows_of(self._sql, "show global status where variable_name in ('slaves_running', 'slave_running')")
                return any(str(value).upper() not in ("0", "OFF") for _, value in running)

    def _refuse_unknown(self, event: Any, gtids: Gtids) -> None:
        """Refuse an event that is not known, unless every reader may pass it over. Raises IngestStopped."""
        kind, flags = event.event_type, event.packet.flags
        if kind in _SILENT_EVENTS or flags & _IGNORABLE:
            return
        if kind == _TAGGED_ID:
            raise IngestStopped(
                f"The binlog of {self._config.name!r} has a transaction id with a tag after {gtids}, such as UUID:TAG:1, which the reader "
                "of the binlog does not know. Nothing of it was written. Let nobody write with tags (REVOKE TRANSACTION_GTID_TAG), and "
                f"see what `objcat ingest check {self._config.path}` says of those that are there."
            )
        raise IngestStopped(
            f"The binlog of {self._config.name!r} has an event of the kind {kind} after {gtids}, which is not followed: events that are "
            "compressed (log_bin_compress, binlog_transaction_compression), parts of documents (binlog_row_value_options), or a gap "
            "that the server tells of. "
            f"Nothing of it was written. Turn that off at the server, and run `objcat ingest resnapshot {self._config.path} --all`."
        )

    def _begin(self, decoder: BinlogDecoder, event: Any) -> None:
        if self._is_mariadb:
            flags = event.flags
            decoder.begin(event.gtid, is_standalone=bool(flags & _STANDALONE), is_two_phase=bool(flags & _PREPARES))
        else:
            decoder.begin(event.gtid, is_standalone=True)

    def _next_event(self, stream: Any) -> Any:
        """The next event; None after `close`. Raises SourceAway, PositionGone."""
        if self._is_closed:
            return None
        try:
            try:
                event = stream.fetchone()
            except self._connector.pymysql.Error:
                with self._connector.errors("reading its binlog"):
                    raise
        except (OSError, ValueError, AttributeError, SourceAway):
            # A connection that is closed by another thread fails in one of these ways.
            if self._is_closed:
                return None
            raise
        if event is None and not self._is_closed:
            raise SourceAway("The server ended the stream of its binlog.")
        return event

    def _connect(self) -> Connection[Any]:
        opened = self._connector.connect()
        self._connections.append(opened)
        return opened

    def _open_stream(self, gtids: str, events: Sequence[Any]) -> Any:
        """The reader of mysql-replication, which connects when it is read."""
        opened: list[Connection[Any]] = []

        def connect(**given: Any) -> Any:
            # The reader connects again by itself after an interruption, from where it once began: rows would come twice.
            if len(opened) >= _READER_CONNECTIONS:
                raise SourceAway("The connection to the server was lost.")
            if "db" in given:  # The name that PyMySQL had for it once.
                given["database"] = given.pop("db")
            made: Connection[Any] = self._connector.pymysql.connect(**given)
            opened.append(made)
            self._connections.append(made)
            return made

        self._stream = self._library.reader(
            connection_settings={**self._connector.arguments(), "init_command": "set session net_write_timeout = 3600"},
            server_id=self._settings.server_id,
            blocking=True,
            only_events=list(events),
            auto_position=gtids,
            is_mariadb=self._is_mariadb,
            slave_heartbeat=HEARTBEAT_S,
            # The columns of a table come before each of its rows. A number that is known in a file is of the same columns: a table that is
            # altered gets another one.
            freeze_schema=True,
            enable_logging=False,
            filter_non_implemented_events=False,
            pymysql_wrapper=connect,
        )
        return self._stream
