"""`PackedRow`: a row that stays in the bytes of its source until a value is asked for. Rows of one table are read together, by columns.

A batch writes the last row of each key and needs the key alone of all others. So a source that can tell a key apart from the rest hands
over such rows: they take little memory and time, on local disk too.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from objcat.ingest.model import SourceTable

READ_BYTES_MAX = 1 << 30
"""Rows are read together as long as they have fewer bytes. Arrow's text has offsets of 32 bits."""
PADDING = bytes(16)
"""Follows the bytes of rows that are read together, so that a number may be read behind the last one."""

Places = npt.NDArray[np.int64]


class PackedRow(msgspec.Struct, gc=False, eq=False):
    """A row, as a mapping from column names to raw values. It is part of no circle, so the collector of garbage does not look at it.

    Args:
        table: the schema of the row.
        data: bytes that have it.
        at: where it begins.
    """

    table: SourceTable
    data: bytes
    at: int
    _values: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        """All values."""
        raise NotImplementedError

    @classmethod
    def read_columns(cls, table: SourceTable, rows: Sequence[Self]) -> Mapping[str, Any]:
        """Columns of rows that all have the schema `table`, as raw values that the decoders of its columns take, or decoded ones.

        Raises ValueError when a row does not end where its bytes do.
        """
        raise NotImplementedError

    def get(self, name: str, default: Any = None) -> Any:
        """As that of a dict."""
        return self._all().get(name, default)

    def keys(self) -> KeysView[str]:
        """As those of a dict."""
        return self._all().keys()

    def values(self) -> ValuesView[Any]:
        """As those of a dict."""
        return self._all().values()

    def items(self) -> ItemsView[str, Any]:
        """As those of a dict."""
        return self._all().items()

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._all() == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self.table.columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.data, self.at)

    def _all(self) -> dict[str, Any]:
        if self._values is None:
            self._values = self._read()
        return self._values


# A class of both cannot be: they have metaclasses of their own.
Mapping.register(PackedRow)


def row_bytes(row: Mapping[str, Any] | None) -> int:
    """About how many bytes the values of a row have, those of numbers left out."""
    if isinstance(row, PackedRow):
        return len(row.data)
    return 0 if row is None else sum(len(value) for value in row.values() if isinstance(value, (str, bytes)))


def joined_rows(rows: Sequence[PackedRow]) -> tuple[bytes, Places, Places]:
    """The bytes of rows one after another, where each row begins, and where its bytes end."""
    data = b"".join([row.data for row in rows] + [PADDING])
    sizes = np.fromiter((len(row.data) for row in rows), np.int64, len(rows))
    ends = np.cumsum(sizes)
    return data, ends - sizes + np.fromiter((row.at for row in rows), np.int64, len(rows)), ends


def sliced(data: bytes, begins: Places, ends: Places, is_null: npt.NDArray[np.bool_]) -> pa.Array:
    """Parts of bytes as an array of binary values. Each begins where the one before ends, or later; a null is an empty part."""
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    # Every second one of these values is what lies between two parts.
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = begins, ends
    parts = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=is_null if is_null.any() else None)
    return parts.take(wanted)
