"""Rows of pgoutput that are read by columns: `PgRow`, and the key of a message without the rest of its row."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from objcat.ingest.model import SourceTable
from objcat.ingest.packed_row import READ_BYTES_MAX, PackedRow, joined_rows, sliced
from objcat.ingest.postgres.pgoutput import MalformedMessage, parse_tuple

_UINT32 = struct.Struct(">I")
_COUNT = struct.Struct(">h")
_NULL, _UNCHANGED, _TEXT = b"nut"


class PgRow(PackedRow, gc=False, eq=False):
    """A row of which every value was sent, in the message that has it. `at`: where its tuple begins."""

    def _read(self) -> dict[str, Any]:
        found, _ = parse_tuple(self.data, self.at)
        return {column.name: value for column, value in zip(self.table.columns, found.values, strict=True)}

    @classmethod
    def read_columns(cls, table: SourceTable, rows: Sequence[Self]) -> Mapping[str, pa.Array]:
        """See `PackedRow`."""
        if len(rows) > 1 and sum(len(row.data) for row in rows) > READ_BYTES_MAX:
            halves = [cls.read_columns(table, part) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
            return {name: pa.concat_arrays([half[name] for half in halves]) for name in halves[0]}
        data, at, ends = joined_rows(rows)
        buffer = np.frombuffer(data, np.uint8)
        at = at + _COUNT.size
        made = {}
        for column in table.columns:
            kinds = buffer[at]
            is_null = kinds == _NULL
            if not (is_null | (kinds == _TEXT)).all():
                raise MalformedMessage(f"A value of {table.name} has a kind that is neither text nor null.")
            sizes = (
                (buffer[at + 1].astype(np.int64) << 24)
                | (buffer[at + 2].astype(np.int64) << 16)
                | (buffer[at + 3].astype(np.int64) << 8)
                | buffer[at + 4]
            )
            begins = np.where(is_null, at + 1, at + 1 + _UINT32.size)
            at = np.where(is_null, begins, begins + sizes)
            if (at > ends).any():
                raise MalformedMessage(f"A row of {table.name} goes beyond its message.")
            made[column.name] = sliced(data, begins, at, is_null).cast(pa.string())
        if (at != ends).any():
            raise MalformedMessage(f"A message of {table.name} goes beyond its row.")
        return made


def key_of(data: bytes, at: int, places: tuple[int, ...], count: int, *, is_whole: bool) -> tuple[str, ...] | None:
    """The key of a tuple, in the order of the table's columns.

    Args:
        data: the message.
        at: where the tuple begins.
        places: of the key columns, ascending.
        count: of the columns.
        is_whole: whether a column after the key may not have been sent.

    Returns:
        None when the tuple has to be parsed: it has another number of columns, a key with a null, or a value that was not sent.

    Raises:
        MalformedMessage: a value goes beyond the end.
    """
    try:
        if _COUNT.unpack_from(data, at)[0] != count:
            return None
        at += 2
        found: list[str] = []
        for place in range(count if is_whole else places[-1] + 1):
            kind = data[at]
            if kind == _TEXT:
                end = at + 5 + _UINT32.unpack_from(data, at + 1)[0]
                if place in places:
                    found.append(data[at + 5 : end].decode())
                at = end
            elif kind == _NULL and place not in places:
                at += 1
            else:
                return None
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedMessage(f"A row that begins with {data[:20]!r} cannot be read ({error}).") from error
    if at > len(data):
        raise MalformedMessage(f"A row that begins with {data[:20]!r} goes beyond the end.")
    return tuple(found)
