"""`SourceRows`: rows of the sources of a query as of two slots, and what changed between. It counts what it reads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.derived.query import QuerySource
from objcat.derived.slot_scans import SlotScans
from objcat.planning.changes import ChangesPlan
from objcat.table.scan import Scan
from objcat.tasks.change_columns import CHANGE_FIELDS
from objcat.tasks.rows_in_logs import LoggedRows, rows_in_logs

SIGN = "_objcat_sign"
"""Column with how often a row came (1) or went (-1)."""
LOOKUP_MAX = 50_000
"""The most values by which rows are looked up. With more, all rows are read."""
LISTED_MAX = 256
"""Values of which files are left out one by one. With more, their range leaves files out."""
_CHANGE_TYPE = CHANGE_FIELDS[0].name
CAME = ("insert", "update_after")


class SourceRows:
    """Rows of one mention of a table.

    before, after: the slots between which it changed. rows_read: so many rows it gave out. scans: of the table, for all its mentions.
    """

    def __init__(self, source: QuerySource, before: int, after: int, scans: SlotScans) -> None:
        self.source = source
        self.scans = scans
        self.before = before
        self.after = after
        self.rows_read = 0

    def changes(self) -> Any:
        """The rows that went (-1) and came (1), with the columns of the query. A row that changed elsewhere only is not among them.

        Raises SnapshotExpired when they were cleaned.
        """
        columns = self.source.columns
        if self.before == self.after:
            return _signed(self.schema.empty_table(), [])
        has_key = self.source.table.key is not None
        if has_key and (logged := self._logged()) is not None:
            return self._looked_up(*logged)
        rows = self.scans.changes(since=self.before, until=self.after, columns=columns, net=has_key).to_arrow()
        self.rows_read += rows.num_rows
        came = pc.is_in(rows.column(_CHANGE_TYPE), value_set=pa.array(CAME))
        return _signed(rows.select(columns), pc.subtract(pc.multiply(came.cast(pa.int64()), 2), 1))

    def _logged(self) -> tuple[pa.Table, pa.Table | None] | None:
        """The keys that changed, and perhaps some more; and their newest rows, where these are known already.

        None where the keys are not known without reading more than a lookup does.
        """
        feed = self.scans.changes(since=self.before, until=self.after, columns=self.source.columns, net=True)
        assert isinstance(feed.plan, ChangesPlan), "changes have a plan of changes"
        context = self.source.table._context
        if self.scans.snapshot(self.before).spec.key_columns != feed.plan.spec.key_columns:
            # A lookup by the present names would not find the former rows.
            return None
        fileio, schema = context.fileio, self.schema
        parts = fileio.env.map(lambda task: rows_in_logs(fileio, task, schema), feed.plan.tasks(count_max=fileio.env.parallelism))
        found: list[LoggedRows] = []
        for part in parts:
            if part is None:
                return None
            found.append(part)
        keys = pa.concat_tables([one.keys for one in found]) if found else pa.table({name: [] for name in self.source.table.key or []})
        is_plain = not any(pa.types.is_floating(kind) for kind in keys.schema.types)
        if keys.num_rows > LOOKUP_MAX or not is_plain:
            return None
        newest = [one.newest for one in found if one.newest is not None]
        return keys, pa.concat_tables([schema.empty_table(), *newest]) if len(newest) == len(found) else None

    def _looked_up(self, keys: pa.Table, newest: pa.Table | None) -> pa.Table:
        """The rows of some keys before, which go, and after, which come. Those that did not change do both."""
        if not keys.num_rows:
            return _signed(self.schema.empty_table(), [])
        wanted = {name: pc.unique(keys.column(name)) for name in keys.schema.names}
        if newest is None or len(wanted) > 1:
            # A lookup by several columns may find more rows, which have to be among both.
            newest = self.scanned(self.after, wanted)
        else:
            self.rows_read += newest.num_rows
        parts = [(self.scanned(self.before, wanted), -1), (newest, 1)]
        return pa.concat_tables(
            _signed(rows, pa.chunked_array([pa.repeat(pa.scalar(sign, pa.int64()), rows.num_rows)])) for rows, sign in parts
        )

    def values(self, rows: Any, column: str) -> pa.ChunkedArray | None:
        """A column of rows that this object gave out. None: they are too many."""
        return rows.column(column)

    def found(self, slot: int, column: str, values: Sequence[pa.ChunkedArray | None]) -> Any:
        """The rows of which a column has one of some values, and perhaps more rows. None among the values: too many."""
        given = [one for one in values if one is not None]
        wanted = _distinct(given, self.source.schema.field(column).type)
        if len(given) < len(values) or len(wanted) > LOOKUP_MAX:
            return self.all(slot)
        return self.scanned(slot, {column: wanted})

    def all(self, slot: int) -> Any:
        """All rows."""
        return self.scanned(slot, {})

    def scanned(self, slot: int, wanted: Mapping[str, pa.Array]) -> Any:
        """The rows of a slot whose columns have one of some values each. None of the columns has to be among those of the query."""
        if any(len(values) == 0 for values in wanted.values()):
            return self.schema.empty_table()
        rows = self.scan(slot, wanted).to_arrow()
        self.rows_read += rows.num_rows
        return rows.select(self.source.columns).cast(self.schema)

    def scan(self, slot: int, wanted: Mapping[str, pa.Array]) -> Scan:
        """A scan of the rows of `scanned`, perhaps with more columns."""
        terms = (_term(name, values) for name, values in wanted.items())
        where = functools.reduce(operator.and_, terms) if wanted else None
        return self.scans.scan(slot, where=where, columns=list(dict.fromkeys([*self.source.columns, *wanted])))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query. Each may be null."""
        return pa.schema([self.source.schema.field(name).with_nullable(True) for name in self.source.columns])


def _term(name: str, values: pa.Array) -> pc.Expression:
    listed = pc.field(name).isin(values)
    if len(values) <= LISTED_MAX:
        return listed
    ends = pc.min_max(values)
    return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"]) & listed


def _signed(rows: pa.Table, signs: Sequence[int] | pa.ChunkedArray) -> pa.Table:
    return rows.append_column(pa.field(SIGN, pa.int64()), pa.chunked_array([signs], pa.int64()) if isinstance(signs, list) else signs)


def _distinct(values: Iterable[pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """The distinct values in another type, without nulls and without values that it cannot hold."""
    found = []
    for column in values:
        some = pc.unique(column).drop_null()
        if some.type != kind:
            # Both are whole numbers. One that does not fit equals none of the column.
            fits = pc.is_in(some.cast(pa.int64()), value_set=some.cast(kind, safe=False).cast(pa.int64()))
            some = some.filter(fits).cast(kind, safe=False)
        found.append(some)
    return pc.unique(pa.chunked_array(found, kind)) if found else pa.array([], kind)
