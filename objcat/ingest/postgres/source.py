"""`PostgresSource`: PostgreSQL as a `ChangeSource`. Begin with `transactions`.

The stream has a connection of its own, and so have the catalog as the stream needs it, and everything else. The server forgets what
`confirm` says is durable, and nothing else: feedback never names a position that is not in the lake.
"""

from __future__ import annotations

import re
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fileio.env import Env
from objcat.errors import IngestStopped, PositionGone, SourceAway
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
from objcat.ingest.postgres.catalog import PostgresCatalog, PostgresTable, compare_tables
from objcat.ingest.postgres.chunks import PostgresChunks
from objcat.ingest.postgres.connection import PostgresConnector, rows_of, run
from objcat.ingest.postgres.decoder import TransactionDecoder
from objcat.ingest.postgres.exported_snapshot import ExportedSnapshot, jdbc_address, parts_of, session_statement, text_query
from objcat.ingest.postgres.replication import ReplicationStream, StreamError
from objcat.ingest.postgres.settings import PostgresSettings, postgres_settings
from objcat.ingest.postgres.slot import PostgresSlot
from objcat.ingest.postgres.visibility import VisibleTransactions, lsn_number, lsn_text
from objcat.ingest.routes import Router
from objcat.lake.lake import Lake

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
LSN, SERVER = "lsn", "server"
"""The fields of a position: where the next transaction begins at the earliest, and in which history of which server."""
WAIT_S = 0.1
READ_MESSAGES_MAX, READ_BYTES_MAX = 1_000, 4 * 1024 * 1024
"""So many messages are read at once. Meanwhile no sign of life is sent."""
KEEP_ALIVE_S = 10.0
"""Seconds between two signs of life. The server ends connections that are silent for `wal_sender_timeout`, a minute by default."""
MESSAGE_PREFIX = "objcat"
IN_USE = "55006"
"""The SQLSTATE of a slot that another connection reads."""
GONE = ("55000", "42704", "58P01")
"""Those of a slot that cannot go on, that is missing, and whose log is missing."""
_HEAD = "select pg_current_wal_insert_lsn()::text, (extract(epoch from clock_timestamp()) * 1000)::int8"
_BEAT = f"select pg_logical_emit_message(true, '{MESSAGE_PREFIX}', '')"

_SIZE = """
select coalesce(max(pg_relation_size(relid)), 0) / current_setting('block_size')::bigint, coalesce(sum(greatest(reltuples, 0)), 0)::bigint
from (select relid::oid from pg_partition_tree(%s) union select %s::oid) parts(relid) join pg_class on oid = relid
"""
"""Pages of the largest part of a table, and about how many rows all of it has."""


def open_source(config: IngestConfig, router: Router, env: Env) -> PostgresSource:
    """Open PostgreSQL. See `objcat.ingest.sources.open_source`."""
    settings = postgres_settings(config)
    return PostgresSource(config, settings, router, env)


def position_text(position: Position) -> str:
    """See `objcat.ingest.sources.position_text`. With all digits, so that texts sort as positions do."""
    number = lsn_number(position[LSN])
    return f"{number >> 32:08X}/{number & 0xFFFFFFFF:08X}"


def transaction_text(config: IngestConfig, lake: Lake, position: Position, text: str) -> str:  # noqa: ARG001 - as all sources have it
    """See `objcat.ingest.sources.transaction_text`. A transaction has the position of its end."""
    if not _LSN.fullmatch(text):
        raise ValueError("a position of PostgreSQL is two hexadecimal numbers, such as 0/16B3748")
    wanted = position_text({LSN: text})
    if wanted <= position_text(position):
        raise ValueError("what ends there is in the lake")
    return wanted


class PostgresSource:
    """See `ChangeSource`."""

    has_snapshots = True

    def __init__(self, config: IngestConfig, settings: PostgresSettings, router: Router, env: Env) -> None:
        self._config = config
        self._settings = settings
        self._router = router
        self._env = env
        self._connector = PostgresConnector(config, settings)
        self._is_closed = False
        self._lock = threading.Lock()
        self._stream: ReplicationStream | None = None
        self._confirmed = 0
        self._connections: list[Connection] = []
        self._known: dict[str, PostgresTable] = {}
        self._sql = self._connect()
        self._catalog = PostgresCatalog(self._sql, router.key_of, settings.numeric_scale)
        self._slot = PostgresSlot(self._connector, self._sql, config, settings, env)
        self._chunks = PostgresChunks(self._connector, self._sql, self._catalog, self.head)
        self._stop_alive: Callable[[], None] = env.repeat(self._keep_alive, every_s=KEEP_ALIVE_S)

    def check_settings(self) -> None:
        """See `ChangeSource`."""
        self._slot.check_server()
        with self._connector.errors("looking at its transactions"):
            self._chunks.wait_for_running()

    def describe_tables(self) -> Sequence[SourceTable]:
        """See `ChangeSource`."""
        with self._connector.errors("reading its catalog"):
            self._known = self._catalog.tables()
        return [known.table for known in self._known.values()]

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:
        """See `ChangeSource`."""
        with self._connector.errors("reading its catalog"):
            return compare_tables(version, self._known[table.name], self._catalog.is_filled)

    def begin(self, tables: Sequence[str]) -> Position:
        """See `ChangeSource`."""
        position = self._slot.make(tables)
        return {LSN: lsn_text(position), SERVER: str(self._slot.server_history().name)}

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:
        """See `ChangeSource`."""
        joined = self._slot.publish(tables)
        if joined:
            with self._connector.errors("looking at its transactions"):
                self._chunks.wait_for_running()
        return joined

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """See `ChangeSource`."""
        at = lsn_number(position[LSN])
        self._confirmed = at
        connection = self._connect()
        slot = PostgresSlot(self._connector, connection, self._config, self._settings, self._env)
        slot.check_position(at)
        history = slot.server_history()
        slot.check_history(at, position.get(SERVER), history)
        server = {SERVER: str(history.name)}
        catalog = PostgresCatalog(connection, self._router.key_of, self._settings.numeric_scale)
        decoder = TransactionDecoder(catalog, self._router.follows, bytes_max=self._config.run.transaction_bytes)
        self._start(at)
        told = at
        while not self._is_closed:
            payloads, end = self._read_messages()
            for payload in payloads:
                if decoder.take_row(payload):
                    continue
                with self._connector.errors("reading its catalog"):
                    done = decoder.take(payload)
                if done is not None:
                    told = done.end_lsn
                    yield done.transaction({LSN: lsn_text(told), **server})
            if end is None:
                continue
            if not decoder.is_inside and end > told:
                # Whatever the server has sent by now is read: up to there it has nothing more for this reader.
                told = end
                yield SourceTransaction(position={LSN: lsn_text(told), **server})
            elif not payloads:
                self._wait()

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """See `ChangeSource`."""
        return self._chunks.read(self._known[table.name], after, rows_max=rows_max, order=order)

    @contextmanager
    def export_snapshot(self, table: SourceTable, *, parts_max: int) -> Iterator[ExportedSnapshot | None]:
        """See `objcat.ingest.spark_bootstrap.ExportingSource`. The table is not rewritten meanwhile: it has a lock that readers have."""
        known = self._known[table.name]
        connection = self._connect()
        try:
            with self._connector.errors(f"reading {table.name}"):
                run(connection, "begin isolation level repeatable read read only")
                # The lock comes before the snapshot: a table that is rewritten or truncated in between would look empty.
                run(connection, f"lock table {known.sql} in access share mode")
                ((covers, snapshot),) = rows_of(connection, "select pg_current_snapshot()::text, pg_export_snapshot()")
                catalog = PostgresCatalog(connection, self._router.key_of, self._settings.numeric_scale)
                now = catalog.tables([known.oid]).get(table.name)
                ((pages, rows),) = rows_of(connection, _SIZE, (known.oid, known.oid))
                given = self._connector.psycopg2.extensions.parse_dsn(self._settings.connection)
            if now is None or now.table.key != table.key or not self._chunks.is_settled(covers):
                yield None
                return
            url, properties = jdbc_address(given)
            fixed = {"driver": "org.postgresql.Driver", "fetchsize": "10000", "sessionInitStatement": session_statement(snapshot)}
            yield ExportedSnapshot(
                table=now.table,
                url=url,
                properties={**properties, **fixed},
                query=text_query(now.table, known.sql),
                parts=parts_of(int(pages), parts_max=parts_max),
                covers=covers,
                until=self.head(),
                rows=int(rows),
            )
        finally:
            self._connections.remove(connection)
            connection.close()

    def place_keys(self, table: SourceTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], *, order: KeyOrder) -> list[int]:
        """See `ChangeSource`."""
        return self._chunks.place(self._known[table.name], keys, bounds, order)

    def fetch_rows(self, table: SourceTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> Mapping[KeyValues, Row]:
        """See `ChangeSource`."""
        known = self._known[table.name]
        there = {column.name for column in known.table.columns}
        return self._chunks.fetch(known, keys, [name for name in columns if name in there])

    def is_covered(self, covers: Any, mark: Mark) -> bool:
        """See `ChangeSource`."""
        return VisibleTransactions.parse(covers).has_seen(mark)

    def unsettled(self, marks: Sequence[Mark]) -> list[Mark]:
        """See `ChangeSource`."""
        if not marks:
            return []
        with self._connector.errors("looking at its transactions"):
            seen = VisibleTransactions.parse(rows_of(self._sql, "select pg_current_snapshot()::text")[0][0])
        return [mark for mark in marks if not seen.has_seen(mark)]

    def is_reached(self, position: Position, target: Position) -> bool:
        """See `ChangeSource`."""
        return lsn_number(position[LSN]) >= lsn_number(target[LSN])

    def head(self) -> Position:
        """See `ChangeSource`."""
        with self._connector.errors("asking for its position"):
            found = rows_of(self._sql, _HEAD)[0][0]
        # The stream comes to this position when something follows it.
        self.beat()
        return {LSN: found}

    def has_to_store(self, stored: Position, position: Position) -> bool:
        """See `ChangeSource`. The server keeps its log up to what is stored."""
        return dict(stored) != dict(position)

    def confirm(self, position: Position) -> None:
        """See `ChangeSource`."""
        self._confirmed = max(self._confirmed, lsn_number(position[LSN]))
        with self._connector.errors("confirming a position"):
            self._send_feedback()

    def beat(self) -> None:
        """See `ChangeSource`."""
        with self._connector.errors("sending a sign of life"):
            rows_of(self._sql, _BEAT)

    def report(self) -> SourceReport:
        """See `ChangeSource`."""
        state = self._slot.state()
        with self._connector.errors("asking for its position"):
            head, clock_ms = rows_of(self._sql, _HEAD)[0]
        number = lsn_number(head)
        if state is None:
            return SourceReport(head={LSN: head}, state="missing", warnings=(f"The slot {self._settings.slot!r} is missing.",))
        warnings = []
        if state.wal_status in ("unreserved", "lost"):
            warnings.append(
                f"The slot {self._settings.slot!r} is {state.wal_status}: the server removes what it keeps for this reader, or will soon. "
                "Raise max_slot_wal_keep_size, and see why the ingest is behind."
            )
        return SourceReport(
            head={LSN: head},
            behind_bytes=None if state.confirmed_lsn is None else max(0, number - state.confirmed_lsn),
            retained_bytes=None if state.restart_lsn is None else max(0, number - state.restart_lsn),
            state=f"slot {self._settings.slot}, wal_status {state.wal_status}",
            warnings=tuple(warnings),
            clock_ms=clock_ms,
        )

    def position_text(self, position: Position) -> str:
        """See `ChangeSource`."""
        return position_text(position)

    def close(self) -> None:
        """See `ChangeSource`."""
        self._is_closed = True
        self._stop_alive()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
            self._stream = None
            for opened in self._connections:
                opened.close()

    # ---- helpers

    def _read_messages(self) -> tuple[list[bytes], int | None]:
        """Messages that have come, some of them at most. When these are all: also the place up to which the server has sent everything."""
        found: list[bytes] = []
        size = 0
        with self._connector.errors("reading its stream"), self._lock:
            if self._stream is None:
                return found, 0
            now_ms = self._env.now_ms()
            while size < READ_BYTES_MAX and len(found) < READ_MESSAGES_MAX:
                message = self._stream.read(now_ms)
                if message is None:
                    return found, self._stream.sent_lsn
                found.append(message)
                size += len(message)
        return found, None

    def _connect(self) -> Connection:
        opened = self._connector.connect()
        self._connections.append(opened)
        return opened

    def _start(self, at: int) -> None:
        """Open the stream. Raises PositionGone, SourceAway, and IngestStopped when another process has the slot."""
        with self._lock:
            if self._stream is not None:
                self._stream.close()
            self._stream = None
        stream = self._connector.connect_stream()
        end_s = self._env.monotonic_s() + self._settings.slot_wait_s
        options = {"proto_version": "1", "publication_names": self._settings.publication, "messages": "true"}
        is_started = False
        try:
            with self._connector.errors("opening its stream"):
                while not is_started:
                    is_started = self._has_started(stream, at, options, end_s)
        finally:
            if not is_started:
                stream.close()
        with self._lock:
            if self._is_closed:
                stream.close()
            else:
                self._stream = stream

    def _has_started(self, stream: ReplicationStream, at: int, options: Mapping[str, str], end_s: float) -> bool:
        try:
            stream.start(self._settings.slot, at, options)
        except StreamError as error:
            if error.code == IN_USE:
                if self._env.monotonic_s() >= end_s:
                    raise IngestStopped(
                        f"Another process reads the slot {self._settings.slot!r} of {self._config.name!r}. This one stops. "
                        "Let one process run."
                    ) from error
                # The server has not noticed yet that its last reader is gone.
                self._env.sleep(WAIT_S)
                return False
            if error.code in GONE:
                raise PositionGone(
                    f"The slot {self._settings.slot!r} of {self._config.name!r} cannot go on at {lsn_text(at)}: {error} Nothing was "
                    f"left out in the lake. Run `objcat ingest resnapshot {self._config.path} --all`, which reads all tables again."
                ) from error
            raise
        return True

    def _wait(self) -> None:
        """Wait until the stream has something."""
        with self._lock:
            if self._stream is None:
                return
            descriptor = self._stream.fileno()
        try:
            select.select([descriptor], [], [], WAIT_S)
        except (OSError, ValueError) as error:
            if not self._is_closed:
                raise SourceAway("PostgreSQL closed the stream.") from error

    def _keep_alive(self) -> None:
        """Called by a thread of its own, so that the server hears something while a commit takes long."""
        try:
            self._send_feedback()
        except StreamError:
            return  # The thread that reads meets the error.

    def _send_feedback(self) -> None:
        with self._lock:
            if self._stream is not None:
                self._stream.confirm(self._confirmed, self._env.now_ms())
