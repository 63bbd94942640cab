"""Connections to PostgreSQL, by psycopg2 for SQL and by `replication` for the stream. Their errors become those of an ingest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fileio.optional import library
from objcat.errors import SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.postgres.replication import ReplicationStream, StreamError
from objcat.ingest.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

_SESSION = (
    "-c TimeZone=UTC -c DateStyle=ISO,YMD -c IntervalStyle=postgres -c extra_float_digits=3 -c bytea_output=hex -c xmloption=content "
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c client_encoding=UTF8"
)
"""So values have one text, in chunks and in the stream."""
CONNECTING = "connecting"
_AWAY = re.compile(r"08...|57P0.|53...|XX000|$")
"""Classes of errors after which it helps to connect again: connection, shutdown, resources."""


class PostgresConnector:
    """Opens connections. No message of it has the connection string."""

    def __init__(self, config: IngestConfig, settings: PostgresSettings) -> None:
        self.psycopg2: Any = library("psycopg2", needed_by="An ingest from PostgreSQL needs", extra="ingest-postgres")
        self._extras: Any = library("psycopg2.extras", needed_by="An ingest from PostgreSQL needs", extra="ingest-postgres")
        self._config = config
        self._settings = settings

    def connect(self, *, replication: bool = False) -> Connection:
        """Open a connection: for SQL in autocommit, or for commands of replication. Raises SourceAway and SourceUnfit."""
        with self.errors(CONNECTING):
            factory = self._extras.LogicalReplicationConnection if replication else None
            opened: Connection = self.psycopg2.connect(**self._given(), connection_factory=factory)
            if not replication:
                opened.autocommit = True
            return opened

    def connect_stream(self) -> ReplicationStream:
        """Open a connection for the stream. Raises as `connect`."""
        with self.errors(CONNECTING):
            return ReplicationStream(self.psycopg2.extensions.make_dsn(**self._given(), replication="database"))

    def _given(self) -> dict[str, str]:
        try:
            given: dict[str, str] = self.psycopg2.extensions.parse_dsn(self._settings.connection)
        except self.psycopg2.ProgrammingError as error:
            raise SourceUnfit(
                f"The connection of [source] in {self._config.path} is no connection string of PostgreSQL. Write "
                "host=... dbname=... user=..., or postgresql://user@host/database."
            ) from error
        given["options"] = f"{given.get('options', '')} {_SESSION}".strip()
        given.setdefault("connect_timeout", str(self._settings.connect_s))
        given.setdefault("keepalives_idle", "30")
        given.setdefault("fallback_application_name", f"objcat ingest {self._config.name}")
        return given

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """A block whose errors become SourceAway, where it helps to connect again, and SourceUnfit. Secrets are hidden."""
        try:
            yield
        except (self.psycopg2.Error, StreamError) as error:
            said = self._config.hide(" ".join(str(error).split())) or type(error).__name__
            if _is_away(self.psycopg2, error):
                if doing != CONNECTING:
                    raise SourceAway(f"PostgreSQL was away while {doing}: {said}") from None
                said = said if said.endswith((".", "?", "!")) else f"{said}."
                raise SourceAway(
                    f"PostgreSQL was away while {doing}: {said} Look whether the server runs, and whether user, password and TLS (sslmode, "
                    f"sslrootcert, sslcert) of `connection` in [source] of {self._config.path} are right."
                ) from None
            said = said if said.endswith((".", "?", "!")) else f"{said}."
            raise SourceUnfit(f"PostgreSQL refused {doing}: {said} Correct that, and start the ingest again.") from None


def _is_away(psycopg2: Any, error: Any) -> bool:
    code = error.code if isinstance(error, StreamError) else error.pgcode or ""
    if code:
        return _AWAY.fullmatch(code) is not None
    # Without a code it comes from the client: wrong passwords too, which a server may still accept later.
    return isinstance(error, (StreamError, psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.DatabaseError))


def rows_of(connection: Connection, query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, arguments or None)
        return list(cursor.fetchall())


def run(connection: Connection, statement: Any) -> None:
    """Run a statement without rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal of SQL, whatever `standard_conforming_strings` says."""
    return " E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
