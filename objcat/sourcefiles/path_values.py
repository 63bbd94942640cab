"""Values in the path of a file: its directories `day=2026-01-31`, and the parts that a pattern names."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import pyarrow as pa

from objcat.sourcefiles.file_batch import BrokenFile
from objcat.sourcefiles.values import cast_rows, text_cast

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory that stands for null."""


def directories(path: str) -> dict[str, str | None]:
    """The values of the directories `name=value` of a path, by name."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def path_value(name: str, data_type: pa.DataType, said: Mapping[str, str | None]) -> pa.Scalar:
    """The value of a column that is in a path.

    Args:
        name: of the column.
        data_type: its type.
        said: what the path says, by name.

    Raises:
        BrokenFile: the path says nothing of it, or its value does not fit.
    """
    if name not in said:
        raise BrokenFile(f"its path has no directory `{name}=...`, which `path_columns` names")
    array, bad = cast_rows(pa.array([said[name]], pa.string()), text_cast(data_type), data_type)
    if bad:
        raise BrokenFile(f"its directory `{name}={said[name]}` does not fit: {bad[0]}")
    return array[0]
