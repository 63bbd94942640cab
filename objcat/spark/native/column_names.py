"""Column names as Spark reads them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name in backticks, so that dots, spaces and words of SQL in it mean nothing."""
    return "`" + name.replace("`", "``") + "`"
