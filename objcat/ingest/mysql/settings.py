"""`MysqlSettings`: what `[source]` has for MariaDB and MySQL, next to name and kind."""

from __future__ import annotations

import zlib
from urllib.parse import unquote, urlsplit

import msgspec

from fileio.errors import InvalidConfig
from objcat.ingest.config import IngestConfig

_SERVER_ID_LEAST = 1 << 31
"""Ids of readers that have none in their settings begin here, above those that people give to servers."""


class MysqlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of MariaDB and MySQL.

    Args:
        connection: `mysql://user:password@host:port`, such as `${SHOP_URL}`. Special characters of user and password are percent-encoded.
        server_id: of this reader, as of a replica. No other replica of the server may have it; a number from the name of the source when
            it is left out.
        tls_ca: a file with the certificates that the server's is checked by. Without it the server is not checked, and the connection is
            encrypted where the server has TLS.
        tls_certificate, tls_key: files with a certificate of this client and its key; without tls_key the first has both.
        connect_s: seconds to wait for a connection.
    """

    connection: str
    server_id: int | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    connect_s: int = 10

    def __repr__(self) -> str:
        return f"MysqlSettings(server_id={self.server_id!r})"


class MysqlAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is, and who connects."""

    host: str
    port: int
    user: str
    password: str

    def __repr__(self) -> str:
        return f"MysqlAddress({self.host}:{self.port})"


def mysql_settings(config: IngestConfig) -> MysqlSettings:
    """The settings with the server id filled in. Raises InvalidConfig."""
    found = config.settings(MysqlSettings)
    if found.server_id is not None and not 1 <= found.server_id < 1 << 32:
        raise InvalidConfig(f"[source] in {config.path}: server_id has to be from 1 to 4,294,967,295. Correct it.")
    if found.tls_key is not None and found.tls_certificate is None:
        raise InvalidConfig(f"[source] in {config.path} has tls_key without tls_certificate. Give the certificate of the key.")
    server_id = found.server_id or _SERVER_ID_LEAST + zlib.crc32(config.name.encode()) % _SERVER_ID_LEAST
    return msgspec.structs.replace(found, server_id=server_id)


def parse_address(config: IngestConfig, settings: MysqlSettings) -> MysqlAddress:
    """The parts of the connection. Raises InvalidConfig, without the connection in it."""
    wrong = InvalidConfig(
        f"The connection of [source] in {config.path} is not like mysql://user:password@host:port. Correct it, with special characters "
        "of user and password percent-encoded."
    )
    try:
        parts = urlsplit(settings.connection)
        port = parts.port or 3306
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username or parts.query or parts.fragment:
        raise wrong
    return MysqlAddress(host=parts.hostname, port=port, user=unquote(parts.username), password=unquote(parts.password or ""))
