"""Connections to MariaDB and MySQL by PyMySQL, whose errors become those of an ingest."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fileio.errors import InvalidConfig
from fileio.optional import library
from objcat.errors import PositionGone, SourceAway, SourceUnfit
from objcat.ingest.config import IngestConfig
from objcat.ingest.mysql.settings import MysqlSettings, parse_address

if TYPE_CHECKING:
    from pymysql.connections import Connection

_SESSION = (
    "set session time_zone = '+00:00', sql_mode = '', wait_timeout = 86400, "
    "net_write_timeout = 3600, net_read_timeout = 3600, transaction_isolation = 'REPEATABLE-READ', lock_wait_timeout = 5"
)
"""So values have one form, and a reader that waits for a commit is not disconnected. MariaDB calls the isolation by another name."""
_POSITION_GONE = {1236, 1945, 1947, 1950, 1955}
"""The server does not have what follows a position: purged, or it never had it."""
_DENIED = {1044, 1045, 1142, 1143, 1227, 1370, 1698}
"""The user or a right is wrong."""
TABLE_CHANGED = {1412, 1205, 1146}
"""A table changed under a snapshot, or is being changed, or is gone."""
_NO_TLS = 2026
"""The server has no TLS."""
CONNECTING = "connecting"
_USES_PASSWORD = re.compile(r" \(using password: \S+")
"""The end of a refusal, of which `redact` leaves no words."""
_TAKEN = "same server"
"""In the message to a reader whose server id another reader has now."""


class MysqlConnector:
    """Opens connections. No message of it has the connection or the password. Raises InvalidConfig."""

    def __init__(self, config: IngestConfig, settings: MysqlSettings) -> None:
        needed_by = "An ingest from MariaDB or MySQL needs"
        self.pymysql: Any = library("pymysql", needed_by=needed_by, extra="ingest-mysql")
        self._cursors: Any = library("pymysql.cursors", needed_by=needed_by, extra="ingest-mysql")
        self._config = config
        self._settings = settings
        self._address = parse_address(config, settings)
        if settings.tls_ca is not None:
            try:
                ssl.create_default_context(cafile=settings.tls_ca)
            except OSError as error:
                raise InvalidConfig(f"tls_ca of [source] in {config.path} cannot be used: {error}. Correct its path.") from None
        if settings.tls_certificate is not None:
            try:
                ssl.create_default_context().load_cert_chain(settings.tls_certificate, settings.tls_key)
            except OSError as error:
                raise InvalidConfig(
                    f"tls_certificate and tls_key of [source] in {config.path} cannot be used: {error}. Correct their paths, and let "
                    "the key belong to the certificate."
                ) from None

    def arguments(self) -> dict[str, Any]:
        """What PyMySQL's `connect` gets."""
        found = {
            "host": self._address.host,
            "port": self._address.port,
            "user": self._address.user,
            "password": self._address.password,
            "charset": "utf8mb4",
            "connect_timeout": self._settings.connect_s,
            "autocommit": True,
        }
        if self._settings.tls_ca is not None:
            found |= {"ssl_ca": self._settings.tls_ca, "ssl_verify_cert": True, "ssl_verify_identity": True}
        if self._settings.tls_certificate is not None:
            found |= {"ssl_cert": self._settings.tls_certificate, "ssl_key": self._settings.tls_key}
        return found

    def connect(self) -> Connection[Any]:
        """Open a connection for SQL. Raises SourceAway and SourceUnfit."""
        with self.errors(CONNECTING):
            opened: Connection[Any] = self.pymysql.connect(**self.arguments())
            statement = _SESSION.replace("transaction_isolation", "tx_isolation") if is_mariadb(opened) else _SESSION
            run(opened, statement)
            return opened

    def stream_cursor(self, connection: Connection[Any]) -> Any:
        """A cursor that holds the rows it fetched alone."""
        return connection.cursor(self._cursors.SSCursor)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """A block whose errors of PyMySQL become PositionGone, SourceUnfit, and SourceAway where it helps to connect again."""
        try:
            yield
        except self.pymysql.Error as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            said = self._config.hide(" ".join(str(part) for part in error.args[1:]) or str(error) or type(error).__name__)
            if code in _POSITION_GONE and _TAKEN not in said:
                raise PositionGone(
                    f"The binlog of {self._config.name!r} cannot go on: {said}. Nothing was left out in the lake. Run `objcat ingest "
                    f"resnapshot {self._config.path} --all`, which reads all tables again."
                ) from None
            if _TAKEN in said:
                raise SourceAway(
                    f"Another reader of the server of {self._config.name!r} has the server_id {self._settings.server_id}. If it is this "
                    f"ingest once more, end one of them. Otherwise set another server_id in [source] of {self._config.path}."
                ) from None
            said = _USES_PASSWORD.sub("", said)
            said = said if said.endswith((".", "?", "!")) else f"{said}."
            where = f"`connection` in [source] of {self._config.path}"
            if code == _NO_TLS or isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError):
                raise SourceUnfit(
                    f"The connection of {self._config.name!r} cannot be encrypted as wanted: {said} Nothing was left out. Let tls_ca in "
                    f"[source] of {self._config.path} be the file with the certificates that the server's is checked by, and `connection` "
                    "name the host that it is for. Then start the ingest again."
                ) from None
            if code in _DENIED or (isinstance(error, self.pymysql.err.ProgrammingError) and code):
                then = f"{where}, tls_certificate where the user needs one, or the rights of the user" if code in _DENIED else "that"
                raise SourceUnfit(f"The server refused {doing}: {said} Correct {then}, and start the ingest again.") from None
            then = f" Look whether the server runs, and whether {where} is right." if doing == CONNECTING else ""
            raise SourceAway(f"The server was away while {doing}: {said}{then}") from None


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is MariaDB."""
    return "mariadb" in str(rows_of(connection, "select version()")[0][0]).lower()


def rows_of(connection: Connection[Any], query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(arguments) or None)
        return list(cursor.fetchall())


def run(connection: Connection[Any], statement: str) -> None:
    """Run a statement without rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"
