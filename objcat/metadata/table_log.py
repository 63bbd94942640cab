"""Opens the logs of tables. Only this module does: the log of a table of a lake must also reach the files that the table adopted."""

from __future__ import annotations

from fileio.store import FileIO
from objcat.metadata.files import OUTER
from objcat.metadata.replay import TablesReducer
from objcat.metadata.table_state import Tables
from objcat.timeline.hints import Hints
from objcat.timeline.log_view import Timeline


def table_store(lake: FileIO, prefix: str) -> FileIO:
    """The store of a log of a lake: the keys below its prefix, and below `_lake/` all keys of the lake. Sends no request.

    Args:
        lake: the opened prefix of the lake.
        prefix: of the log, relative to the lake.

    Raises:
        InvalidKey: the prefix is no key.
    """
    return lake.child(prefix, outer=OUTER)


def log_of_lake(lake: FileIO, prefix: str, hints: Hints | None = None) -> Timeline[Tables]:
    """The log at a prefix of a lake, without reading it. Arguments and errors are those of `table_store` and `log_at`."""
    return log_at(table_store(lake, prefix), hints)


def log_at(store: FileIO, hints: Hints | None = None) -> Timeline[Tables]:
    """The log in a store, without reading it.

    Args:
        store: of `table_store`, or of a table without a lake, which has no adopted files.
        hints: what the process knows of the hint of this log. None: nothing yet.
    """
    return Timeline(store, TablesReducer(), hints)
