"""What a table gets when it is created and keeps, though SQL says it among the properties."""

from __future__ import annotations

from collections.abc import Iterable

from objcat.errors import InvalidSql
from objcat.metadata.files_text import SOURCE_STAYS, is_of_source

CREATED_WITH = ("key", "ordering", "allowed_lateness", "key_scope", "table_type", "index", "shared_log")
"""What CREATE TABLE takes among the properties in some engine, and ALTER TABLE does not change."""


def check_alterable(names: Iterable[str]) -> None:
    """Raises InvalidSql for a property that only CREATE TABLE takes. ALTER TABLE would store it as a note."""
    for name in names:
        if is_of_source(name):
            raise InvalidSql(SOURCE_STAYS)
        if (plain := name.lower().removeprefix("objcat.")) in CREATED_WITH:
            raise InvalidSql(
                f"A table gets its {plain} when it is created, and ALTER TABLE does not change it. Nothing was done. Create another table, "
                "and insert the rows."
            )
