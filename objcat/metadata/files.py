"""The files of a table as its log names them, and what one entry changes. Values only: nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import Buckets, Count, Entry, FileGroupId, Txn
from objcat.timeline.json_objects import decode_json

Bound: TypeAlias = tuple[bool | int | float | str | None, bool | int | float | str | None, Count]
"""Of one column in one file: a value that none is below, one that none is above (None: not known, or all null), and the nulls.

Values are what JSON can say: numbers as they are, dates as days and times as microseconds since 1970, decimals and text as text, bytes as
hexadecimal text.
"""


ORDERED_FEATURE = {"base_order": "0.1.0"}
"""What a reader must understand of an entry whose base files have an `order`: one that does not would merge them wrongly."""
ORDER_COLUMNS_MAX = 32
ZORDER_COLUMNS_MAX = 4


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How rows lie in a base file that is not sorted by key: ascending by columns, nulls last, or along a z-order of them.

    columns: ids.
    """

    columns: tuple[int, ...]
    zorder: bool = False

    def __post_init__(self) -> None:
        least, most = (2, ZORDER_COLUMNS_MAX) if self.zorder else (1, ORDER_COLUMNS_MAX)
        if not least <= len(self.columns) <= most or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"such an order is of {least} to {most} columns, each once, not of {list(self.columns)}")


class BaseFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file with the rows of one file group, each key once.

    path: relative to the log's prefix. bounds: by column id; those of a column that is not there are not known. order: how the rows lie;
    None: sorted by key. digest, footer: digests of the bytes and of the footer, see `objcat.metadata.file_digest`; None: not known.
    """

    path: str
    bytes: Count
    rows: Count
    group_id: FileGroupId = msgspec.field(name="home")
    bounds: dict[int, Bound] = {}
    order: Order | None = None
    digest: str | None = None
    footer: str | None = None


class LogRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows `start` to `end` (excluded) of a log object, which are those of one file group."""

    group_id: FileGroupId = msgspec.field(name="home")
    start: Count
    end: Count


class LogObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file of operations on the rows of many file groups, sorted by (file group, key).

    path: relative to the log's prefix. row_group_rows: rows of every row group but the last, so that a row range names its row groups.
    bounds: over all its rows, by column id; those of a column that is not there are not known. digest, footer: as of `BaseFile`.
    """

    path: str
    bytes: Count
    rows: Count
    row_group_rows: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    slices: tuple[LogRows, ...] = msgspec.field(name="homes")
    bounds: dict[int, Bound] = {}
    digest: str | None = None
    footer: str | None = None


class LogSlice(msgspec.Struct, frozen=True):
    """The rows `start` to `end` (excluded) of a log object, which were written for one file group.

    slot: of the commit whose rows they count as: the one that wrote them; for deletes that go with a base file, the slot that it is as of.
    object: without its `slices`. group_id: that the rows were addressed to: another one than their file group's after a split. named_at:
    the slot of the entry that brought them; number: of the object in that entry, which is the order in which its rows count.
    committed_at_ms: of that entry; 0 for deletes that go with a base file: whether they came too late was decided when that was written.
    """

    slot: int
    object: LogObject
    start: int
    end: int
    group_id: FileGroupId
    named_at: int
    number: int = 0
    committed_at_ms: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class FileGroup:
    """The live file group of a group_id: a base file and the log rows that count on top of it.

    base: of this file group, or of one that was split into it and others. base_slot, base_txn: of the commit that wrote it. as_of: the slot
    up to which it holds the rows of the file group. logs are in the order in which their rows count: deletes that the compaction kept, then
    what was committed after `as_of`. Files carry no bounds here."""

    group_id: FileGroupId
    base: BaseFile | None = None
    base_slot: int = -1
    base_txn: Txn | None = None
    as_of: int = -1
    logs: tuple[LogSlice, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the rows of the base file are all there are, and all of them are of this group_id: deletes that a compaction kept matter
        only to rows that come later."""
        return self.base is not None and not self.is_shared(self.base.group_id) and all(rows.slot <= self.as_of for rows in self.logs)

    def is_shared(self, group_id: FileGroupId) -> bool:
        """Whether rows addressed to `group_id`, which is common with this one, may belong to other file groups than this: since a split."""
        return group_id.bucket_count % self.group_id.bucket_count != 0


class TableDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one entry changes in one table.

    spec: the table from now on, at its creation and when its schema changes. bases: each is the only base file of its file group from now
    on. as_of: the slot up to which `bases` hold the rows of their file groups; log rows above it stay on top (None: there were no rows).
    retires: file groups without rows from now on, before `bases` and `logs` come. logs: in the order in which their rows count; with
    `as_of` those of a file group that has a base file here are deletes that go with it, below log rows above `as_of`. splits: bucket count
    of a partition from now on; its file groups are divided by hash, and no file is touched. removes: files that no snapshot which can still
    be read names; from now on they may be missing. index: what changes in the record index, see `objcat.table.record`: `bases`, `as_of` and
    `logs`."""

    spec: TableSpec | None = None
    bases: tuple[BaseFile, ...] = ()
    as_of: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] | None = None
    retires: tuple[FileGroupId, ...] = ()
    logs: tuple[LogObject, ...] = ()
    splits: dict[str, Buckets] = {}
    removes: tuple[str, ...] = ()
    index: TableDelta | None = None

    @property
    def paths(self) -> list[str]:
        """Of every file that the entry brings."""
        return [file.path for file in self.files]

    @property
    def files(self) -> list[BaseFile | LogObject]:
        """All that the entry brings, those of the index too."""
        return [*self.bases, *self.logs, *(() if self.index is None else self.index.files)]


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_DELTAS = msgspec.json.Decoder(TableDelta)


def encode_delta(delta: TableDelta) -> msgspec.Raw:
    """The bytes of a delta inside an entry. Raises CorruptTable for one that could not be read again: a slot is for ever."""
    raw = msgspec.Raw(msgspec.json.encode(delta))
    decode_delta(raw)
    return raw


def decode_delta(raw: msgspec.Raw, *, where: str = "the changes of a log entry") -> TableDelta:
    """A delta from an entry. where: for the error. Raises CorruptTable."""
    return decode_json(raw, _DELTAS, where=where, what="a change that this objcat can read")


_ORDERS = msgspec.json.Decoder(Order)


def encode_order(order: Order | None) -> str | None:
    """An order as manifests hold it."""
    return None if order is None else msgspec.json.encode(order).decode()


def decode_order(text: str | None) -> Order | None:
    """An order from a manifest. Raises CorruptTable."""
    what = "an order that this objcat can read"
    return None if text is None else decode_json(text.encode(), _ORDERS, where="`base_order` of a base file in a manifest", what=what)


def features_of(delta: TableDelta) -> dict[str, str]:
    """What a reader of an entry with these changes must understand, each with the first version of objcat that does."""
    return dict(ORDERED_FEATURE) if any(base.order is not None for base in delta.bases) else {}


def files_named_by(entry: Entry) -> list[str]:
    """The data files that an entry names, of all tables; its changes must be there."""
    return [path for raw in entry.changes.values() for path in decode_delta(raw).paths]
