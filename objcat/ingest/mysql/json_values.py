"""Values in documents of MySQL that JSON has no type for, such as dates: as the server writes them when it is asked for the document.

Source: the format of `JSON` in the binlog, sql-common/json_binary.h of MySQL. The binlog reader leaves signs of times out, makes days
moments, and drops bytes that are no text, so it is given this function instead of its own.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

NULL_DOCUMENT = "null"
"""The document `null`, as JSON. All other text of a document is bytes."""
_INT64 = struct.Struct("<q")
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL, _NEW_DECIMAL = 7, 10, 11, 12, 0, 246


def opaque_reader(read_decimal: Callable[[bytes], Decimal]) -> Callable[[bytes], Any]:
    """A function that reads such a value. read_decimal: reads a decimal of the binlog."""

    def read(data: bytes) -> Any:
        kind, at = data[0], 1
        length = shift = 0
        while True:
            length |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not data[at - 1] & 0x80:
                break
        content = data[at : at + length]
        if kind in (_DECIMAL, _NEW_DECIMAL):
            return read_decimal(content)
        if kind == _TIME:
            return _time(_INT64.unpack(content)[0])
        if kind in (_DATE, _DATETIME, _TIMESTAMP):
            return _moment(_INT64.unpack(content)[0], has_time=kind != _DATE)
        return f"base64:type{kind}:{base64.b64encode(content).decode()}"

    return read


def document_reader(read: Callable[[bytes, bytes], Any]) -> Callable[[bytes, bytes], Any]:
    """A function that reads a whole document, where `read` takes the document `null` for none. Its text comes as bytes, as within one."""

    def read_document(kind: bytes, data: bytes) -> Any:
        value = read(kind, data)
        if value is None:
            return NULL_DOCUMENT
        return value.encode() if isinstance(value, str) else value

    return read_document


def _time(packed: int) -> str:
    seconds, micros = divmod(abs(packed), 1 << 24)
    return f"{'-' if packed < 0 else ''}{(seconds >> 12) % (1 << 10):02d}:{(seconds >> 6) % 64:02d}:{seconds % 64:02d}.{micros:06d}"


def _moment(packed: int, *, has_time: bool) -> str:
    whole, micros = divmod(packed, 1 << 24)
    day, time = divmod(whole, 1 << 17)
    month, day = divmod(day, 32)
    year, month = divmod(month, 13)
    text = f"{year:04d}-{month:02d}-{day:02d}"
    return f"{text} {time >> 12:02d}:{(time >> 6) % 64:02d}:{time % 64:02d}.{micros:06d}" if has_time else text
