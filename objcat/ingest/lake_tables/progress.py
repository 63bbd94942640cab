"""`LakeProgress`: how far the stream of a lake's tables is, which is what its position stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from objcat.ingest.model import Position


class FollowedTable(msgspec.Struct, kw_only=True):
    """A table of the source.

    Args:
        id: of the table in its log. A table that is dropped and created again has another one.
        log: the prefix of its log.
        columns: the names that its columns have or had, by their ids.
        dropped: the ids of those that it no longer has. A RESTORE may bring them back.
        groups_read: so many of its file groups have been handed over, while its rows are read; None when all are.
    """

    id: str
    log: str
    columns: dict[str, str]
    dropped: list[str] = []
    groups_read: int | None = None


class LakeProgress(msgspec.Struct, kw_only=True):
    """How far a stream is.

    Args:
        slots: by the prefix of a log, the slot up to which its tables are handed over. Tables that are being read are read at this slot.
        tables: by their names.
        last: the last thing that was handed over, for people.
    """

    slots: dict[str, int] = {}
    tables: dict[str, FollowedTable] = {}
    last: str = ""

    @classmethod
    def parse(cls, position: Position) -> LakeProgress:
        """The progress that a position stores."""
        return msgspec.convert(dict(position), cls)

    def position(self) -> Position:
        """The position that stores it."""
        found: Mapping[str, Any] = msgspec.to_builtins(self)
        return {"last": self.last, **{name: value for name, value in found.items() if name != "last"}}

    def reading(self) -> list[str]:
        """The tables whose rows are being read."""
        return [name for name, table in self.tables.items() if table.groups_read is not None]

    def followed(self, log: str) -> list[str]:
        """The tables of a log whose changes count."""
        return [name for name, table in self.tables.items() if table.log == log and table.groups_read is None]

    def logs(self) -> list[str]:
        """The logs of all tables."""
        return sorted({table.log for table in self.tables.values()})
