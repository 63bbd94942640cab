"""The stream of a replication slot, by libpq. What the server may forget is what was confirmed here, and never more."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fileio.optional import library
from objcat.ingest.postgres.visibility import lsn_text

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

_DATA = struct.Struct("!qqq")
_SIGN_OF_LIFE = struct.Struct("!qq?")
_FEEDBACK = struct.Struct("!cqqqq?")
_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where times of PostgreSQL begin."""


class StreamError(Exception):
    """What the server or libpq said. code: the SQLSTATE, empty when it is of libpq."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class ReplicationStream:
    """A connection for replication. One thread at a time may use it.

    Args:
        conninfo: of a connection with `replication=database`.

    Raises:
        StreamError: there is no connection. All methods raise it.
    """

    def __init__(self, conninfo: str) -> None:
        self._pq: Any = library("psycopg.pq", needed_by="An ingest from PostgreSQL needs", extra="ingest-postgres")
        self._connection: PGconn = self._pq.PGconn.connect(conninfo.encode())
        self._confirmed = 0
        self.sent_lsn = 0
        """Everything up to here was sent, if the messages that have come are read."""
        if self._connection.status != self._pq.ConnStatus.OK:
            text = self._said()
            self.close()
            raise StreamError(text)

    def start(self, slot: str, at: int, options: Mapping[str, str]) -> None:
        """Begin at a position, with options of the output plugin. After an error it may be called again."""
        given = ", ".join(f"{_quoted(name)} {_literal(value)}" for name, value in options.items())
        result = self._connection.exec_(f"START_REPLICATION SLOT {_quoted(slot)} LOGICAL {lsn_text(at)} ({given})".encode())
        if result.status != self._pq.ExecStatus.COPY_BOTH:
            code = result.error_field(self._pq.DiagnosticField.SQLSTATE)
            raise StreamError(result.error_message.decode(errors="replace"), "" if code is None else code.decode())
        self._confirmed = at

    def read(self, now_ms: int) -> bytes | None:
        """The next message of the output plugin; None when none has come. now_ms: for the answer if the server wants a sign of life."""
        try:
            while (data := self._next()) is not None:
                if data[:1] == b"w":
                    _, self.sent_lsn, _ = _DATA.unpack_from(data, 1)
                    return data[1 + _DATA.size :]
                if data[:1] == b"k":
                    self.sent_lsn, _, wants_answer = _SIGN_OF_LIFE.unpack_from(data, 1)
                    if wants_answer:
                        self.confirm(self._confirmed, now_ms)
        except self._pq.PQerror as error:
            raise StreamError(str(error)) from None
        return None

    def confirm(self, at: int, now_ms: int) -> None:
        """Tell the server that everything up to a position is stored, and that this side is alive."""
        self._confirmed = max(self._confirmed, at)
        at = self._confirmed
        try:
            self._connection.put_copy_data(_FEEDBACK.pack(b"r", at, at, at, now_ms * 1000 - _EPOCH_US, False))
            self._connection.flush()
        except self._pq.PQerror as error:
            raise StreamError(str(error)) from None

    def fileno(self) -> int:
        """Of the socket."""
        return int(self._connection.socket)

    def close(self) -> None:
        """End the connection."""
        self._connection.finish()

    def _next(self) -> bytes | None:
        size, data = self._connection.get_copy_data(1)
        if size == 0:
            self._connection.consume_input()
            size, data = self._connection.get_copy_data(1)
        if size == 0:
            return None
        if size < 0:
            result = self._connection.get_result()
            text = "" if result is None else result.error_message.decode(errors="replace")
            raise StreamError(text or "the server ended the stream")
        return bytes(data)

    def _said(self) -> str:
        return self._connection.error_message.decode(errors="replace")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
