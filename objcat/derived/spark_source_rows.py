"""`SparkSourceRows`: rows of the sources of a query as frames, which executors read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from objcat.derived.query import QuerySource
from objcat.derived.session import QuerySession
from objcat.derived.slot_scans import SlotScans
from objcat.derived.source_rows import CAME, SIGN, SourceRows
from objcat.tasks.change_columns import CHANGE_TYPE

_GIVEN = "_objcat_given"


class SparkSourceRows(SourceRows):
    """As `SourceRows`. It does not count, since that would take jobs of its own. session: which holds the frames."""

    def __init__(self, source: QuerySource, before: int, after: int, scans: SlotScans, session: QuerySession) -> None:
        super().__init__(source, before, after, scans)
        self._session = session

    def changes(self) -> Any:
        """See `SourceRows.changes`."""
        has_key = self.source.table.key is not None
        feed = self.scans.changes(since=self.before, until=self.after, columns=self.source.columns, net=has_key)
        self._session.register(_GIVEN, feed)
        came = ", ".join(f"'{one}'" for one in CAME)
        sign = f"CAST(CASE WHEN {CHANGE_TYPE} IN ({came}) THEN 1 ELSE -1 END AS BIGINT) AS {SIGN}"
        return self._session.held(f"SELECT {self._names()}, {sign} FROM {_GIVEN}", self.schema.append(pa.field(SIGN, pa.int64())))

    def values(self, rows: Any, column: str) -> pa.ChunkedArray | None:
        """See `SourceRows.values`."""
        self._session.register(_GIVEN, rows)
        found = self._session.values(f"SELECT DISTINCT {_quoted(column)} FROM {_GIVEN}")
        return None if found is None else found.cast(self.source.schema.field(column).type)

    def scanned(self, slot: int, wanted: Mapping[str, pa.Array]) -> Any:
        """See `SourceRows.scanned`."""
        if any(len(values) == 0 for values in wanted.values()):
            self._session.register(_GIVEN, self.scan(slot, {}))
            return self._session.held(f"SELECT {self._names()} FROM {_GIVEN} WHERE false", self.schema)
        self._session.register(_GIVEN, self.scan(slot, wanted))
        return self._session.held(f"SELECT {self._names()} FROM {_GIVEN}", self.schema)

    def _names(self) -> str:
        return ", ".join(map(_quoted, self.source.columns))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
