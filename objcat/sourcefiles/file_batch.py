"""What is read of a file: batches of rows, rows that do not fit, and the reason why nothing can be taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from objcat.sourcefiles.layout import Span


class BrokenFile(Exception):
    """A file of which nothing can be taken, with the reason. It goes to the dead letters, and the others go on."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit.

    Args:
        number: of the row in its file, from 1.
        payload: the row.
        error: what is wrong.
    """

    number: int
    payload: bytes
    error: str


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Rows of a file.

    Args:
        rows: those that fit.
        kept: the number of each in its file.
        bad: those that do not fit.
        span: of a file of lines, the bytes of the lines, without compression.
    """

    rows: pa.Table
    kept: Sequence[int]
    bad: list[BadRow]
    span: Span | None = None
