"""What a source hands over: tables, changes in whole transactions, chunks of a snapshot; and the Protocol `ChangeSource`.

A source is a database or a log of messages. Its *position* is a JSON object that says where its stream goes on. A *mark* is a JSON value by
which a source knows one of its transactions, to say whether a chunk of a snapshot has seen it. Only the source reads either.

Rows are mappings from column names to *raw values*: whatever the source has (text of PostgreSQL, Python values of MySQL). Values of key
columns are JSON values, equal when the keys are. `SourceColumn.decode` turns many raw values of one column into an Arrow array at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from objcat.engine.spooled_batch import Rows

Position: TypeAlias = Mapping[str, Any]
"""Where a stream goes on: a JSON object of its source."""
Mark: TypeAlias = Any
"""By which a source knows one of its transactions: a JSON value."""
KeyValues: TypeAlias = tuple[Any, ...]
"""The raw values of the key columns, in the order of the key. Each is a JSON value."""
Row: TypeAlias = Mapping[str, Any]
"""Raw values by column."""


class ChangeKind(enum.StrEnum):
    """What happened to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class KeyOrder(enum.StrEnum):
    """By what the keys of a snapshot are ordered: by the source's own comparison, or by the bytes of their values as the lake does."""

    SOURCE = "source"
    BYTES = "bytes"


def decode_plain(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """The decoder of sources whose raw values are Python values of the type."""
    return pa.array(values, data_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of a table of the source.

    Args:
        name: its name there.
        type: the Arrow type that its values become.
        nullable: whether it may be null. A key column may not.
        decode: from raw values and the type to an Arrow array of that type. It raises ValueError, TypeError or an error of Arrow for a
            value that does not fit; it is then called for each value alone, to find the rows that are bad. A function of a module.
        nulls_within: how many nulls raw values have inside, such as elements of an array. A function of a module. None: they have none.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    decode: Callable[[Sequence[Any], pa.DataType], pa.Array] = decode_plain
    nulls_within: Callable[[Sequence[Any]], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table as its source describes it at one time. Another schema is another `SourceTable`; rows name the one that they fit.

    Args:
        name: with its schema or database, such as `public.orders`. Routes match it.
        columns: in the order of the source, without those that the source does not send.
        key: the columns that identify a row. Empty: the table has no key, and only inserts can be followed.
        problem: why its changes cannot be followed, and what to do; None when they can.
        version: by which the source knows this schema, JSON. The runner stores it and passes it back.
        sorts_by_bytes: whether `read_chunk` can read it in the order that the lake compares its keys by.
        is_record: whether it is the source's own record of what it has read. It needs no route, and is written also when a transaction is
            left out on request.
        has_schema: whether the columns are known. Otherwise they come with the first row, and those here are of the key at most.
        joins_later: columns that the source has by now, and that this schema lacks: they join later in the stream. Rows of this schema
            read their default. A column that was dropped is null instead.
        left_out: of a record: what its row has, by column, when nothing of its transaction was written.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...] = ()
    problem: str | None = None
    version: Any = None
    sorts_by_bytes: bool = False
    is_record: bool = False
    has_schema: bool = True
    joins_later: tuple[str, ...] = ()
    left_out: Mapping[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> SourceColumn:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """Where a change came from: when the source committed it, and its position as text."""

    committed_at_ms: int | None
    position: str


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """A change of one row. It is part of no circle, so the collector of garbage need not look at each of them.

    Args:
        table: the table, with the schema that `row` fits.
        kind: insert, update or delete. An insert of an existing key replaces it.
        key: of the row after the change; of a delete, of the row that is gone. Empty in a table without a key.
        row: the values after the change. Of a delete: what the source sent of the old row, None when that is the key alone.
        unsent: columns of `row` that did not change and were not sent. They are not in `row`.
        old_key: the key before an update that changed it, otherwise None.
        stamp: of the change, where the source knows it more exactly than that of its transaction.
    """

    table: SourceTable
    kind: ChangeKind
    key: KeyValues
    row: Row | None
    unsent: tuple[str, ...] = ()
    old_key: KeyValues | None = None
    stamp: ChangeStamp | None = None


class TableTruncated(msgspec.Struct, frozen=True):
    """All rows of a table are gone."""

    table: SourceTable


class SchemaChanged(msgspec.Struct, frozen=True):
    """From here on, rows of a table have this schema.

    Args:
        table: with its new schema.
        defaults: values by column: what rows that were there read in columns that joined. None says that a column joined without a
            default. Columns that are not in it are null.
        needs_snapshot: rows changed without a change of each: the table has to be read again.
    """

    table: SourceTable
    defaults: Mapping[str, Any] = {}
    needs_snapshot: bool = False


class BadRecord(msgspec.Struct, frozen=True):
    """A record that could not be decoded. It goes to the dead letters.

    Args:
        table: of the source, None when that is not known.
        payload: the bytes of the record.
        error: what is wrong, in a sentence.
        position: of the record; None: that of its commit.
        is_asked: whether somebody asked for it to be left out, so that it is none of those of which so many are allowed.
    """

    table: str | None
    payload: bytes
    error: str
    position: str | None = None
    is_asked: bool = False


class RowBatch(msgspec.Struct, frozen=True):
    """Many rows of one table and one kind at once, decoded. Large ones are on disk.

    Args:
        table: the table, with the schema of the rows.
        kind: an insert and an update put rows under their keys, and the last one of a key counts. A delete needs the key columns alone.
        rows: by the names and types of the table. Columns that are missing become null.
    """

    table: SourceTable
    kind: ChangeKind
    rows: Rows


class TableRead(msgspec.Struct, frozen=True):
    """How far a source without chunks is with the rows that a table had before its stream. Until it is done, no slot is consistent.

    Args:
        table: the table.
        is_done: whether all of these rows have been handed over.
    """

    table: SourceTable
    is_done: bool


Change: TypeAlias = RowChange | RowBatch | TableTruncated | TableRead | SchemaChanged | BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTransaction:
    """A committed transaction of the source, whole. One without changes says how far the stream has come.

    Args:
        position: where the stream goes on after it.
        mark: by which `ChangeSource.is_covered` knows it; None without changes.
        changes: in order. They may be read once only, and may be on disk.
        count: of the changes.
        size_bytes: about how much memory the changes take, or would, were they not on disk.
        committed_at_ms: when the source committed it, by the source's clock; None when that is not known.
        is_consistent: whether the tables are after it what the source had at one moment. False: slots are not called consistent until a
            transaction says True. None: as before.
    """

    position: Position
    mark: Mark = None
    changes: Iterable[Change] = ()
    count: int = 0
    size_bytes: int = 0
    committed_at_ms: int | None = None
    is_consistent: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk:
    """Rows of a key range, as one snapshot of the source has them.

    Args:
        table: with the schema of the rows.
        rows: the columns of the table, decoded.
        after: the chunk begins after this key; None: at the first one.
        last: it ends with this key; None: at the last one, and the table is done.
        order: by what the keys of the range are compared.
        covers: JSON; `ChangeSource.is_covered` tells by it which transactions the rows have seen.
        until: a position: no transaction that the rows have seen comes after it in the stream.
        bad: rows that could not be decoded. They are not in `rows`.
        nulled: values that no type of the lake holds, and that are null in `rows`.
    """

    table: SourceTable
    rows: pa.Table
    after: KeyValues | None
    last: KeyValues | None
    order: KeyOrder
    covers: Any
    until: Position
    bad: tuple[BadRecord, ...] = ()
    nulled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What a source says of itself now.

    Args:
        head: its newest position; None when that is not known yet.
        behind_bytes: bytes of its log between what was confirmed and its head, None when it does not count bytes.
        behind_events: the same in events.
        retained_bytes: bytes that the source keeps for this reader.
        state: one line for people, such as the state of the slot.
        clock_ms: what its clock says now, in ms since 1970; None when it does not say.
        warnings: sentences about what will need attention.
    """

    head: Position | None
    behind_bytes: int | None = None
    behind_events: int | None = None
    retained_bytes: int | None = None
    state: str = ""
    warnings: tuple[str, ...] = ()
    clock_ms: int | None = None


class ChangeSource(Protocol):
    """A source of changes. `transactions` runs in a thread of its own; all else is called by one other thread.

    Errors: `SourceUnfit` for settings that do not fit, `PositionGone` when the source no longer has what follows a position, and
    `SourceAway` when it cannot be reached; the runner tries the last one again.
    """

    has_snapshots: bool
    """Whether `read_chunk` can read tables.

    A source without snapshots has nothing but its stream. It sends `SchemaChanged` before the first rows of each schema, also after each
    start. It is a `ReplayedSource` as well. What it does not need is in `objcat.ingest.stream_source`.
    """

    def check_settings(self) -> None:
        """Check what the source needs: rights, settings of the server. Changes nothing.

        Raises:
            SourceUnfit: names all that is wrong, each with the statement that corrects it.
        """

    def describe_tables(self) -> Sequence[SourceTable]:
        """All tables that could be followed, with the schema that they have now. Those with a `problem` too."""

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:
        """What happened to a table between the `SourceTable.version` that was read last and its schema now; None: nothing.

        It finds what no row says: defaults of columns that joined, and rows that were rewritten.
        """

    def begin(self, tables: Sequence[str]) -> Position:
        """Make the source remember its changes of these tables from now on. What it remembered for this reader before is given up.

        Called when nothing is stored, again after a crash before that, and when all tables are to be read again.

        Returns:
            The position from which `transactions` reads. A snapshot that is read later has seen all that came before.
        """

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:
        """Set the tables whose changes are wanted, all of them. Called at every start, and when a table joins.

        Returns:
            Those whose changes were not recorded before, so that they have to be read. A chunk that is read later has seen all that the
            stream lacks.
        """

    def transactions(self, position: Position) -> Iterator[SourceTransaction]:
        """The stream after a position, without end, in the order of the source's commits.

        While nothing happens, it yields transactions without changes from time to time. It ends after `close`.

        Raises:
            PositionGone: names what is gone, and the command to run. Nothing is ever left out in silence.
        """

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk | None:
        """Read the next rows of a table after a key, in one snapshot of the source, without a lock that writers meet.

        Returns:
            The chunk, None when it cannot be read yet; ask again later. A table without a key comes as one chunk.
        """

    def place_keys(self, table: SourceTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], *, order: KeyOrder) -> list[int]:
        """For each key, how many of the ascending `bounds` are less than it."""

    def fetch_rows(self, table: SourceTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> Mapping[KeyValues, Row]:
        """Read columns of rows as they are now. Keys that have no row now are left out."""

    def is_covered(self, covers: Any, mark: Mark) -> bool:
        """Whether a chunk has seen the transaction of a mark."""

    def unsettled(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those of the marks whose transactions a snapshot that is taken now might not see."""

    def is_reached(self, position: Position, target: Position) -> bool:
        """Whether a stream that stands at `position` has passed everything up to `target`."""

    def head(self) -> Position:
        """The newest position: everything that has been committed by now comes before it."""

    def confirm(self, position: Position) -> None:
        """Everything up to a position is durable in the lake: the source may forget it."""

    def has_to_store(self, stored: Position, position: Position) -> bool:
        """Whether a start at `stored` would miss or repeat what one at `position` would not, when no row was written in between."""

    def beat(self) -> None:
        """Make the stream move while nothing is written at the source. Called every few seconds."""

    def report(self) -> SourceReport:
        """How far the reader is behind, and what the source keeps for it."""

    def position_text(self, position: Position) -> str:
        """A position for people and metadata of commits, such as `0/16B3748`."""

    def close(self) -> None:
        """End the stream and all connections. May be called by any thread, and again."""


class ReplayedSource(ChangeSource, Protocol):
    """A source without snapshots: what a table had before comes by the stream too."""

    reads_first: bool
    """Whether rows that a table had come before its changes. Then it is not consistent until `TableRead` says that they have."""

    knows_tables: bool
    """Whether `describe_tables` has every table. Otherwise it has those of which something could be read."""

    def read_again(self, position: Position, tables: Sequence[str]) -> Position:
        """A position after which the stream truncates these tables, brings all their rows, and then goes on as after `position`.

        Raises:
            IngestStopped: tables of this source cannot be read alone.
        """

    def read_left_out(self, position: Position, tables: Sequence[str]) -> Position:
        """A position after which the stream brings what was left out of these tables, and then goes on as after `position`.

        Asked only of sources that keep a record of it, see `objcat.ingest.sources.keeps_left_out`.
        """
