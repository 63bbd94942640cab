"""`LakeSink`: the tables of the lake, and one commit for rows, position and dead letters of a batch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fileio.env import Env
from fileio.errors import FileIOError
from objcat.errors import (
    CommitConflict,
    CommitUnknown,
    IngestStopped,
    InvalidSchema,
    PositionConflict,
    TableClosed,
    TableExists,
    TableNotFound,
)
from objcat.ingest.change_batch import TableWrite, WriteAction
from objcat.ingest.config import IngestConfig
from objcat.ingest.decoding import DecodedValue, decode_column
from objcat.ingest.handover import IngestState
from objcat.ingest.model import BadRecord, KeyValues, SourceTable
from objcat.ingest.routes import DELETED, RoutedTable
from objcat.lake.lake import Lake
from objcat.metadata.schema import Ids, type_from_arrow, type_text
from objcat.metadata.schema_evolution import AddColumn, ColumnChange, WidenColumn
from objcat.metadata.type_widening import is_wider
from objcat.table.transaction import Transaction, TransactionTable
from objcat.timeline.position import SourcePosition
from objcat.timeline.rollback import CommittedAt

DEAD_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.string()),
        pa.field("table", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("error", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
"""The columns of the table of dead letters."""
COMMIT_ATTEMPTS_MAX = 20
"""How often a commit is tried that others conflicted with."""


class TableUnfit(Exception):
    """A table of the lake cannot take the schema of its source. Its table is set aside, and the others go on."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table of the lake as it is now. id: in its log. columns: their names. is_shared: whether it is in the log of the source."""

    id: str
    columns: frozenset[str]
    is_shared: bool


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """A commit. slot: where it is. version: of the position."""

    slot: int
    version: int


class LakeSink:
    """Writes what a source hands over. For one thread.

    Args:
        lake: the lake.
        config: of the ingest.
        dead_table: the name of the table of dead letters.
        env: the clock.

    Attributes:
        version: of the position that is committed; -1 before the first.
        unsettled: the transaction of a commit that may still land; None when there is none.
    """

    def __init__(self, lake: Lake, config: IngestConfig, dead_table: str, env: Env) -> None:
        self.lake = lake
        self.version = -1
        self.unsettled: str | None = None
        self._config = config
        self._dead_table = dead_table
        self._env = env
        self._schemas: dict[str, pa.Schema] = {}
        self._keys: dict[str, list[str]] = {}
        self._resumed_after: int | None = None

    def load(self) -> IngestState | None:
        """The state of the last commit; None before the first. Raises IngestStopped for a state that this version cannot read."""
        stored = self.lake.source_position(self._config.name, shared_log=self._config.shared_log)
        if stored is None:
            self.version = -1
            return None
        self.version = stored.version
        self._resumed_after = stored.rewound_at
        try:
            return msgspec.convert(dict(stored.state), IngestState)
        except msgspec.ValidationError as error:
            raise IngestStopped(
                f"The position of {self._config.name!r} in the lake was written by another version of objcat ({error}). Nothing was done. "
                "Use that version, or name the source otherwise and begin again."
            ) from error

    @property
    def was_restored(self) -> bool:
        """Whether a RESTORE may have taken back rows since the last commit: tables have to be read again."""
        return self._resumed_after is not None

    def ensure_dead_letters(self) -> None:
        """Create the table of dead letters, and with it the shared log, if it is not there."""
        try:
            self.lake.create_table(self._dead_table, DEAD_SCHEMA, key=None, shared_log=self._config.shared_log)
        except TableExists:
            return

    def has_table(self, name: str) -> bool:
        """Whether the lake has a table of that name."""
        try:
            self.lake.table(name)
        except (TableNotFound, TableClosed):
            return False
        return True

    def key_of(self, name: str) -> tuple[str, ...] | None:
        """The key columns of a table of the lake; None when there is no such table."""
        try:
            spec = self.lake.table(name).snapshot.spec
        except TableNotFound:
            return None
        return tuple(column.name for column in spec.key_columns) if spec.has_key else ()

    def look_at(self, name: str) -> WrittenTable | None:
        """A table of the lake; None when there is none of that name, or it is being dropped."""
        try:
            found = self.lake.table(name)
        except (TableNotFound, TableClosed):
            return None
        return WrittenTable(found.id, frozenset(found.schema.names), found.url == self.lake.table(self._dead_table).url)

    def ensure_table(self, routed: RoutedTable, table: SourceTable, defaults: Mapping[str, Any] | None = None) -> None:
        """Create a table of the lake, or add and widen its columns. Columns that the source no longer has stay.

        Args:
            routed: the table.
            table: its schema at the source.
            defaults: values by column: what rows that are there read in a column that joins, and what rows have that lack it.

        Raises:
            TableUnfit: a column has a type that its column in the lake cannot take, or the table has another key.
        """
        wanted = routed.schema(table)
        have = self._schemas.get(routed.name)
        if have is not None:
            _check_key(self._keys[routed.name], routed)
        else:
            try:
                made = self.lake.create_table(
                    routed.name,
                    wanted,
                    key=list(routed.key) or None,
                    shared_log=self._config.shared_log,
                    defaults={name: value for name, value in (defaults or {}).items() if routed.can_default(wanted, name)} or None,
                    **routed.settings(),
                )
            except TableExists:
                made = self.lake.table(routed.name)
                _check_key(made.key or [], routed)
            except InvalidSchema as error:
                raise TableUnfit(f"{routed.name} cannot be created: {error}") from error
            have = made.schema
            self._keys[routed.name] = made.key or []
        changes = _changes(have, wanted, routed, defaults or {})
        if changes:
            opened = self.lake.table(routed.name)
            # Another process may have been faster.
            changes = _changes(opened.schema, wanted, routed, defaults or {})
            if changes:
                try:
                    opened.alter.apply(changes)
                except InvalidSchema as error:
                    raise TableUnfit(f"The columns of {routed.name} cannot follow those of {routed.source}: {error}") from error
            have = opened.schema
        self._schemas[routed.name] = have

    def forget(self, name: str) -> None:
        """Look at a table of the lake when it is needed next: others may have dropped or altered it."""
        self._schemas.pop(name, None)

    def missing_columns(self, routed: RoutedTable, table: SourceTable, ever: Sequence[str]) -> list[pa.Field]:
        """Columns that the source once had and that this schema lacks, as the lake has them."""
        have = self._schemas.get(routed.name)
        names = {column.name for column in table.columns} | set(table.joins_later)
        return [] if have is None else [have.field(name) for name in ever if name not in names and name in have.names]

    def find_row(self, routed: RoutedTable, table: SourceTable, key: KeyValues, columns: Sequence[str]) -> dict[str, DecodedValue]:
        """Columns of a row as the last commit has it; empty when there is no such row."""
        if routed.route.mask or not routed.key:
            # Hidden values cannot be taken for those of the source.
            columns = [name for name in columns if name not in routed.route.mask]
        columns = [name for name in columns if name not in routed.route.drop]
        if not columns or not routed.key or set(routed.key) & set(routed.route.mask):
            return {}
        where = equal_filter(table, key)
        found = self.lake.table(routed.name).scan(where=where, columns=list(columns)).to_arrow().to_pylist()
        return {name: DecodedValue(value) for name, value in found[0].items()} if found else {}

    def commit(self, writes: Sequence[TableWrite], state: IngestState, bad: Sequence[BadRecord], metadata: Mapping[str, str]) -> SinkCommit:
        """Commit rows, dead letters and position in one slot. A commit that others conflicted with is tried again.

        Raises:
            IngestStopped: another process reads the same source.
            ObjcatError: the errors of `Lake.transaction`. Nothing is visible then.
        """
        position = SourcePosition(source=self._config.name, state=_plain(state), since=self.version, resumed_after=self._resumed_after)
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            try:
                with self.lake.transaction(shared_log=self._config.shared_log, position=position, metadata=metadata) as tx:
                    for write in writes:
                        _write(tx, write)
                    if bad:
                        tx[self._dead_table].insert(self._dead_rows(bad, metadata.get("position", "")))
            except PositionConflict as error:
                if (slot := self._own_slot(state)) is not None:
                    return self._committed(slot)
                raise IngestStopped(
                    f"Another process reads the source {self._config.name!r}: it committed version {error.version} of the position. This "
                    "one stops, and nothing of this batch is visible. Let one process run; `objcat ingest status` shows where it is."
                ) from error
            except CommitUnknown as error:
                self.unsettled = error.txn
                try:
                    slot = self.settle(error.txn)
                except FileIOError as away:
                    # Until it is settled, that commit may still land: the next session has to settle it first.
                    raise error from away
                if slot is not None:
                    return self._committed(slot)
            except CommitConflict:
                if attempt + 1 == COMMIT_ATTEMPTS_MAX:
                    raise
            else:
                assert tx.result is not None
                return self._committed(tx.result.slot)
        raise IngestStopped(
            f"A commit of {self._config.name!r} had no outcome {COMMIT_ATTEMPTS_MAX} times. Nothing is visible. Start again."
        )

    def settle(self, txn: str) -> int | None:
        """Find out what became of a commit whose answer was lost. Returns its slot; None when it is not there and never will be."""
        resolved = self.lake.table(self._dead_table).resolve(txn)
        self.unsettled = None
        return resolved.slot if isinstance(resolved, CommittedAt) else None

    def _committed(self, slot: int) -> SinkCommit:
        self.version += 1
        self._resumed_after = None
        return SinkCommit(slot, self.version)

    def _own_slot(self, state: IngestState) -> int | None:
        """The slot of this very commit, where its answer was lost and an attempt after it found its own version."""
        stored = self.lake.source_position(self._config.name, shared_log=self._config.shared_log)
        if stored is not None and stored.version == self.version + 1 and dict(stored.state) == _plain(state):
            return stored.slot
        return None

    def _dead_rows(self, bad: Sequence[BadRecord], position: str) -> pa.Table:
        now = pa.scalar(self._env.now_ms() * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        rows = [
            {
                "source": self._config.name,
                "position": record.position or position,
                "table": record.table,
                "at": now.as_py(),
                "error": self._config.hide(record.error),
                "payload": record.payload,
            }
            for record in bad
        ]
        return pa.Table.from_pylist(rows, schema=DEAD_SCHEMA)


def equal_filter(table: SourceTable, key: KeyValues) -> pc.Expression:
    """The filter for one key."""
    scalars = _scalars(table, key)
    return functools.reduce(operator.and_, (pc.field(name) == value for name, value in scalars.items()))


def range_filter(table: SourceTable, after: KeyValues | None, last: KeyValues | None) -> pc.Expression:
    """The filter for the keys after one and up to another, in the order of the lake."""
    parts = []
    if after is not None:
        parts.append(_beyond(_scalars(table, after), operator.gt, or_equal=False))
    if last is not None:
        parts.append(_beyond(_scalars(table, last), operator.lt, or_equal=True))
    if not parts:
        # A key column is never null, so that is every row.
        return pc.field(table.key[0]).is_valid()
    return functools.reduce(operator.and_, parts)


def _beyond(key: Mapping[str, pa.Scalar], compare: Any, *, or_equal: bool) -> pc.Expression:
    """The lexicographic comparison of key columns with a key: the first column that differs decides."""
    found = None
    equal = None
    for name, value in key.items():
        one = compare(pc.field(name), value)
        one = one if equal is None else equal & one
        found = one if found is None else found | one
        same = pc.field(name) == value
        equal = same if equal is None else equal & same
    assert found is not None and equal is not None
    return found | equal if or_equal else found


def _scalars(table: SourceTable, key: KeyValues) -> dict[str, pa.Scalar]:
    found = {}
    for name, value in zip(table.key, key, strict=True):
        array, bad = decode_column(table.column(name), [value])
        if bad:
            raise IngestStopped(f"The key {value!r} of {table.name} cannot be decoded: {bad[0]}. Nothing was written.")
        found[name] = array[0]
    return found


def _plain(state: IngestState) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(state))
    return made


def _write(tx: Transaction, write: TableWrite) -> None:
    """One step of a batch inside its transaction."""
    table, routed, rows = tx[write.routed.name], write.routed, write.rows
    match write.action:
        case WriteAction.TRUNCATE if routed.is_soft:
            _mark_deleted(table, routed, None, None)
        case WriteAction.TRUNCATE:
            table.truncate()
        case WriteAction.REPLACE_RANGE if routed.is_soft:
            _mark_deleted(table, routed, write.where, rows)
            table.upsert(rows)
        case WriteAction.REPLACE_RANGE:
            table.replace_range(rows, where=write.where)
        case WriteAction.DELETE:
            table.delete(rows)
        case WriteAction.UPSERT:
            table.upsert(rows)
        case WriteAction.UPSERT_PARTIAL:
            table.upsert_partial(rows)
        case WriteAction.APPEND:
            table.insert(rows)


def _mark_deleted(table: TransactionTable, routed: RoutedTable, where: pc.Expression | None, but: pa.Table | None) -> None:
    """Mark the rows of a range that are not in a batch as deleted."""
    key = list(routed.key)
    alive = pc.field(DELETED).is_null() | (pc.field(DELETED) == pa.scalar(False))
    found = table.scan(where=alive if where is None else where & alive, columns=key).to_arrow()
    if but is not None:
        found = found.join(but.select(key).cast(found.schema), keys=key, join_type="left anti")
    if found.num_rows:
        table.upsert_partial(found.append_column(DELETED, pa.array([True] * found.num_rows)))


def _check_key(key: Sequence[str], routed: RoutedTable) -> None:
    if sorted(key) != sorted(routed.key):
        raise TableUnfit(
            f"The table {routed.name!r} of the lake has the key {list(key)}, and {routed.source} has {list(routed.key)}. "
            "Route the table to another name."
        )


def _changes(have: pa.Schema, wanted: pa.Schema, routed: RoutedTable, defaults: Mapping[str, Any]) -> list[ColumnChange]:
    """What makes the columns of the lake hold a schema of the source."""
    changes: list[ColumnChange] = []
    for field in wanted:
        if field.name not in have.names:
            default = defaults.get(field.name)
            # A column that joins is nullable: rows of the past have no value.
            changes.append(AddColumn(field.name, field.type) if default is None else AddColumn(field.name, field.type, default=default))
            continue
        old = have.field(field.name).type
        if old == field.type:
            continue
        new_type, old_type = (type_from_arrow(one, Ids(0), path=field.name) for one in (field.type, old))
        if new_type == old_type or is_wider(old_type, new_type):
            continue
        if not is_wider(new_type, old_type):
            raise TableUnfit(
                f"The column {field.name!r} of {routed.source} is {type_text(new_type)} now, and {type_text(old_type)} in {routed.name!r}, "
                f"which does not become that. Rename or drop that column of the lake, and run `objcat ingest resnapshot`."
            )
        changes.append(WidenColumn(field.name, field.type))
    return changes
