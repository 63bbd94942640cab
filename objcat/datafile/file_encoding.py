"""How the values of a Parquet file are encoded: quick to write, or small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from objcat.datafile.dictionaries import columns_with_dictionary

COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class FileEncoding:
    """How a file is encoded. Every reader reads each of them.

    Args:
        level: of zstd; None for its own.
        dictionary_bytes: a column with more bytes of distinct values in a row group gets no dictionary.
        dictionaries: columns that may have one. None: those for which the first row group shows that it pays.
    """

    level: int | None = None
    dictionary_bytes: int = 64 * 1024
    dictionaries: Sequence[str] | None = None

    def options(self, rows: pa.Table) -> dict[str, Any]:
        """The options of Parquet's writer. rows: the first row group."""
        return {
            "compression": COMPRESSION,
            "compression_level": self.level,
            "use_dictionary": columns_with_dictionary(rows) if self.dictionaries is None else list(self.dictionaries),
            "dictionary_pagesize_limit": self.dictionary_bytes,
        }


QUICK = FileEncoding()
"""To stop a dictionary early costs less than it saves."""
