"""`wider`: the type of a column that several files have."""

from __future__ import annotations

import pyarrow as pa

from objcat.metadata.schema import Ids, type_from_arrow, type_text
from objcat.metadata.type_widening import is_wider
from objcat.sourcefiles.file_batch import BrokenFile


def wider(column: str, before: pa.DataType, now: pa.DataType) -> pa.DataType:
    """The type of two that holds all values of both.

    Args:
        column: its name, for the error.
        before: the type in files before.
        now: that in this file.

    Raises:
        BrokenFile: neither holds all values of the other.
    """
    if before == now:
        return before
    old, new = (type_from_arrow(one, Ids(), path=column) for one in (before, now))
    if is_wider(old, new):
        return before
    if is_wider(new, old):
        return now
    raise BrokenFile(f"its column {column!r} is {type_text(new)}, and {type_text(old)} in files before it")
