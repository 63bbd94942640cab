"""Column names as Spark reads them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name in backticks, so that dots, spaces and SQL words in it have no meaning."""
    return "`" + name.replace("`", "``") + "`"
