"""`FileLayout`: what a file of a format does not say of itself: which columns it has, and how its text is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow as pa

FileFormat: TypeAlias = Literal["parquet", "orc", "avro", "csv", "json", "text"]
Compression: TypeAlias = Literal["none", "gzip", "bz2", "zstd", "lz4"]
COMPRESSIONS: Mapping[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""The compression of a file of text by the end of its name."""
Span: TypeAlias = tuple[int, int]
"""Bytes of a file, without compression: the first one, and the one after the last."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How a file is read.

    Args:
        columns: types by name in the file. CSV, JSON and text need them. Of the other formats, they are all that is taken.
        also: a column that is taken besides, as text, where the file has it.
        delimiter: of CSV, one character.
        header: whether the first line of CSV has the names. Otherwise the columns come in the order of `columns`.
        nulls: texts without quotes that mean null in CSV.
        line: of text: a regular expression for a whole line, whose named groups are the columns.
        misfits_are_null: a value that does not fit its column is null. Otherwise its row does not fit.
        spans: of a file of lines, spans of whole lines that are read, ascending. None: all.
    """

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    also: str = ""
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    line: str = ""
    misfits_are_null: bool = False
    spans: tuple[Span, ...] | None = None


def compression_of(name: str) -> Compression:
    """The compression of a file of text by its name."""
    return next((kind for suffix, kind in COMPRESSIONS.items() if name.lower().endswith(suffix)), "none")
