"""URLs as users write them: of a table of a lake by its name, or of a table without a lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from objcat.catalog.names import check_name
from objcat.catalog.names_plugin import split_catalog_options
from objcat.errors import InvalidInput, TableNotFound
from objcat.lake.lake import connect
from objcat.lake.standalone import open_table_store, table_at
from objcat.metadata.table_log import log_at, log_of_lake
from objcat.metadata.table_state import Tables
from objcat.table.table import Table
from objcat.timeline.log_view import Timeline


def find_table(url: str, options: Mapping[str, Any] | None = None) -> Table:
    """The table at a URL: a lake, a slash and a name in it, or the URL of a table without a lake.

    Raises InvalidInput for a URL that names no table, TableNotFound, TableClosed.
    """
    above, name = split_url(url)
    lake = connect(above, options)
    try:
        return lake.table(name)
    except (TableNotFound, InvalidInput) as error:
        try:
            return table_at(open_table_store(url, split_catalog_options(options)[2]))
        except TableNotFound:
            raise error from None


def find_log(url: str, options: Mapping[str, Any] | None = None) -> Timeline[Tables]:
    """The log of the table at a URL, as for `find_table`, but without reading it, because it may be damaged.

    Raises InvalidInput, TableNotFound.
    """
    above, name = split_url(url)
    lake = connect(above, options)
    try:
        names = lake._context.catalog.refresh()
        bound = names.table(check_name(name))
        if bound is None:
            raise names.not_found(name, where=lake.fileio.url)
        return log_of_lake(lake.fileio, bound.binding.prefix)
    except (TableNotFound, InvalidInput) as error:
        alone = open_table_store(url, split_catalog_options(options)[2])
        if next(iter(alone.list_keys("log/")), None) is None:
            raise error from None
        return log_at(alone)


def split_url(url: str) -> tuple[str, str]:
    """The URL of a lake, and a name in it. Raises InvalidInput."""
    above, _, name = url.rstrip("/").rpartition("/")
    if not above or above.endswith("/"):
        raise InvalidInput(f"{url!r} names no table. Write the URL of the lake, a slash, and the table's name.")
    return above, name
