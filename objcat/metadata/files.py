"""The files of a table as its log names them, and what one entry changes. Values only: nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from objcat.metadata.column_defaults import features_of_schema
from objcat.metadata.in_place import IN_PLACE_FEATURE, PRECOMPUTED_FEATURE, PRECOMPUTED_FIELDS_FEATURE, PROMOTED_FEATURE, FilesInPlace
from objcat.metadata.ordering import ORDERING_FEATURE
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import Buckets, Count, Entry, FileGroupId, Txn
from objcat.timeline.json_objects import decode_json

Bound: TypeAlias = tuple[bool | int | float | str | None, bool | int | float | str | None, Count]
"""Bounds of one column in one file: a lower bound, an upper bound (None: not known, or all null), and the number of nulls.

Values are what JSON can hold: numbers as they are, dates as days and times as microseconds since 1970, decimals and text as text, bytes as
hexadecimal text.
"""


ORDERED_FEATURE = {"base_order": "0.1.0"}
"""The feature of an entry whose base files have an `order`. A reader that lacks it would merge them wrongly."""
ADOPTED_FEATURE = {"adopted_files": "0.1.0"}
"""The feature of an entry with adopted files. A reader that lacks it would look for them below the prefix of the table."""
OUTER = "_lake"
"""The first part of the path of an adopted file. The rest is relative to the prefix of the lake, not to that of the table."""
ORDER_COLUMNS_MAX = 32
ZORDER_COLUMNS_MAX = 4


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The order of rows in a base file that is not sorted by key.

    Rows ascend by columns, nulls last, or lie along a z-order of them. columns: ids.
    """

    columns: tuple[int, ...]
    zorder: bool = False

    def __post_init__(self) -> None:
        least, most = (2, ZORDER_COLUMNS_MAX) if self.zorder else (1, ORDER_COLUMNS_MAX)
        if not least <= len(self.columns) <= most or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"Such an order has {least} to {most} columns, each once, not {list(self.columns)}.")


Value: TypeAlias = bool | int | float | str | None
"""A value of a column as JSON holds it: as a bound, and NaN and infinities as text."""


class PrecomputedColumns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file of ours with some columns of a file in place. Its rows are those of that file, in its order, masked ones among them.

    Args:
        path: relative to the log's prefix.
        columns: ids of those that it has whole.
        fields: ids of fields of structs that it has without the others of their columns.
        digest, footer: as in `BaseFile`.
    """

    path: str
    bytes: Count
    columns: tuple[int, ...]
    fields: tuple[int, ...] = ()
    digest: str | None = None
    footer: str | None = None

    @property
    def ids(self) -> frozenset[int]:
        """Of columns and fields."""
        return frozenset((*self.columns, *self.fields))


class SourceObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file in place is, besides its path: an object that its own program may replace.

    Args:
        version: of the object, as its store says it. Another version is another file.
        masked: Rows that are deleted, as ranges `(start, end)` of their positions in the file, from 0, ascending, apart from one another.
        precomputed: Some of its columns. None: there is no such file.
    """

    version: str
    masked: tuple[tuple[Count, Count], ...] = ()
    precomputed: PrecomputedColumns | None = None

    @property
    def masked_rows(self) -> int:
        """How many rows are masked."""
        return sum(end - start for start, end in self.masked)


class Adoption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a base file that another tool wrote lacks. Its rows are in no known order.

    Args:
        txn: The transaction of every row: the one that adopted the file.
        names: By id, the name that a column of the table has in the file, where it is not the physical name.
        values: By id, the value of columns that the file lacks, and that is the same in every row.
        source: Of a file in place. None: the file is of the lake.
    """

    txn: Txn
    names: dict[int, str] = {}
    values: dict[int, Value] = {}
    source: SourceObject | None = None


class BaseFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file with the rows of one file group, each key once.

    Args:
        path: Relative to the log's prefix.
        rows: Without those that are masked.
        bounds: By column id. The bounds of a missing column are not known.
        order: The order of the rows. None: sorted by key.
        digest: Of the bytes, see `objcat.metadata.file_digest`. None: not known.
        footer: The digest of the footer. None: not known.
        adopted: Of a file that another tool wrote. None: objcat wrote it.
        promoted: The path of the file in place whose rows it has. No refresh takes that again. None: there was none.
    """

    path: str
    bytes: Count
    rows: Count
    group_id: FileGroupId = msgspec.field(name="home")
    bounds: dict[int, Bound] = {}
    order: Order | None = None
    digest: str | None = None
    footer: str | None = None
    adopted: Adoption | None = None
    promoted: str | None = None

    @property
    def source(self) -> SourceObject | None:
        """Of a file in place. None for all others."""
        return None if self.adopted is None else self.adopted.source

    @property
    def stored_rows(self) -> int:
        """How many rows the file has, with those that are masked."""
        return self.rows + (0 if self.source is None else self.source.masked_rows)

    @property
    def precomputed_file(self) -> BaseFile | None:
        """The file with precomputed columns of a file in place, as a data file. None without one."""
        found = None if self.source is None else self.source.precomputed
        if found is None:
            return None
        return BaseFile(
            path=found.path, bytes=found.bytes, rows=self.stored_rows, group_id=self.group_id, digest=found.digest, footer=found.footer
        )

    @property
    def data_files(self) -> list[BaseFile]:
        """The file, and the one with its precomputed columns."""
        precomputed = self.precomputed_file
        return [self] if precomputed is None else [self, precomputed]

    @property
    def is_unsorted(self) -> bool:
        """Whether its rows are not sorted by key."""
        return self.order is not None or self.adopted is not None


class LogRows(msgspec.Struct, frozen=True, array_like=True):
    """The rows `start` to `end` (exclusive) of a log file, which belong to one file group."""

    group_id: FileGroupId = msgspec.field(name="home")
    start: Count
    end: Count


class LogObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A log file: operations on the rows of many file groups, as Parquet, sorted by (file group, key).

    Args:
        path: Relative to the log's prefix.
        row_group_rows: Rows of every row group but the last, so that a row range determines its row groups.
        bounds: Over all its rows, by column id. The bounds of a missing column are not known.
        digest: As in `BaseFile`, like `footer`.
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
    """The rows `start` to `end` (exclusive) of a log file, which were written for one file group.

    Args:
        slot: The slot that its rows count as. It is the slot of the commit; for deletes that go with a base file, the slot which that is as
            of.
        object: The log file, without its `slices`.
        group_id: The file group that the rows were written for. After a split it may differ from the one that holds them.
        named_at: The slot of the entry that added them.
        number: The number of the log file in that entry. Rows count in this order.
        committed_at_ms: The time of that entry. It is 0 for deletes that go with a base file: whether they came too late was decided when
            that was written.
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
        """The number of rows."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A live file group: a base file, and the log rows that count on top of it.

    Files have no bounds here.

    Args:
        group_id: Its id.
        base: The base file, of this file group or of one that was split into it and others.
        base_slot: The slot of the commit that wrote the base file.
        base_txn: The transaction of that commit.
        as_of: The slot up to which the base file holds the rows of the file group.
        logs: In the order in which rows count: deletes that the compaction retained, then what was committed after `as_of`.
    """

    group_id: FileGroupId
    base: BaseFile | None = None
    base_slot: int = -1
    base_txn: Txn | None = None
    as_of: int = -1
    logs: tuple[LogSlice, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the rows of the base file are all rows, and all belong to this file group.

        Deletes that a compaction retained matter only to later rows.
        """
        return self.base is not None and not self.is_shared(self.base.group_id) and all(rows.slot <= self.as_of for rows in self.logs)

    @property
    def is_adopted(self) -> bool:
        """Whether another tool wrote the base file."""
        return self.base is not None and self.base.adopted is not None

    def is_shared(self, group_id: FileGroupId) -> bool:
        """Whether rows written for `group_id` may belong to other file groups too, since a split.

        `group_id` has keys in common with this one.
        """
        return group_id.bucket_count % self.group_id.bucket_count != 0


class TableDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one entry changes in one table.

    Args:
        spec: The table's settings from now on, at its creation and when its schema changes.
        bases: New base files. Each is the only base file of its file group from now on.
        as_of: The slot up to which `bases` hold the rows of their file groups. Log rows above it stay on top. None: there were no rows.
        retires: File groups without rows from now on, before `bases` and `logs` apply.
        logs: In the order in which their rows count. With `as_of`, log rows of a file group with a base file here are deletes that go with
            it, below log rows above `as_of`.
        splits: Bucket counts of partitions from now on. File groups are divided by hash, and no file is touched.
        removes: Files that no readable snapshot names. From now on they may be missing.
        index: What changes in the record index (`objcat.metadata.key_index_table`): `bases`, `as_of` and `logs`.
    """

    spec: TableSpec | None = None
    bases: tuple[BaseFile, ...] = ()
    as_of: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] | None = None
    retires: tuple[FileGroupId, ...] = ()
    logs: tuple[LogObject, ...] = ()
    splits: dict[str, Buckets] = {}
    removes: tuple[str, ...] = ()
    index: TableDelta | None = None

    @property
    def changes_state(self) -> bool:
        """Whether it changes the table at all."""
        return self != TableDelta()

    @property
    def paths(self) -> list[str]:
        """The paths of every file that the entry adds, without files in place: nobody here may delete these."""
        return [file.path for file in self.files if isinstance(file, LogObject) or file.source is None]

    @property
    def named_paths(self) -> list[str]:
        """The paths of every file of the table that the entry names: those that it adds, and files with precomputed columns, old or new."""
        return [*self.paths, *(file.path for base in self.bases if (file := base.precomputed_file) is not None)]

    @property
    def files(self) -> list[BaseFile | LogObject]:
        """Every file that the entry adds, including those of the index."""
        return [*self.bases, *self.logs, *(() if self.index is None else self.index.files)]


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_DELTAS = msgspec.json.Decoder(TableDelta)


def encode_delta(delta: TableDelta) -> msgspec.Raw:
    """The bytes of a delta inside an entry. Raises CorruptTable for one that could not be read again."""
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


_ADOPTIONS = msgspec.json.Decoder(Adoption)


class _PromotedFile(msgspec.Struct, frozen=True):
    promoted: str


_PROMOTED_FILES = msgspec.json.Decoder(_PromotedFile)
_BEGIN_OF_PROMOTED = '{"promoted":'
_IN_MANIFEST = "`base_adopted` of a base file in a manifest"


def encode_adoption(base: BaseFile) -> str | None:
    """What an adopted file lacks, or which file a promoted one was, as manifests hold it."""
    if base.promoted is not None:
        return msgspec.json.encode(_PromotedFile(base.promoted)).decode()
    return None if base.adopted is None else msgspec.json.encode(base.adopted).decode()


def decode_adoption(text: str | None) -> Adoption | None:
    """What an adopted file lacks, from a manifest. Raises CorruptTable."""
    what = "what an adopted file lacks, as this objcat can read it"
    if text is None or text.startswith(_BEGIN_OF_PROMOTED):
        return None
    return decode_json(text.encode(), _ADOPTIONS, where=_IN_MANIFEST, what=what)


def decode_promotion(text: str | None) -> str | None:
    """Which file a promoted one was, from a manifest. Raises CorruptTable."""
    if text is None or not text.startswith(_BEGIN_OF_PROMOTED):
        return None
    return decode_json(text.encode(), _PROMOTED_FILES, where=_IN_MANIFEST, what="which file in place this was").promoted


def features_of(delta: TableDelta) -> dict[str, str]:
    """The features that a reader of these changes needs, each with its first version of objcat."""
    ordered = ORDERED_FEATURE if any(base.order is not None for base in delta.bases) else {}
    adopted = ADOPTED_FEATURE if any(base.adopted is not None for base in delta.bases) else {}
    in_place = IN_PLACE_FEATURE if any(base.source is not None for base in delta.bases) else {}
    if any(base.precomputed_file is not None for base in delta.bases):
        in_place = {**in_place, **PRECOMPUTED_FEATURE}
    if any(base.source is not None and base.source.precomputed is not None and base.source.precomputed.fields for base in delta.bases):
        in_place = {**in_place, **PRECOMPUTED_FIELDS_FEATURE}
    if any(base.promoted is not None for base in delta.bases):
        in_place = {**in_place, **PROMOTED_FEATURE}
    if delta.spec is None:
        return {**ordered, **adopted, **in_place}
    several = ORDERING_FEATURE if delta.spec.ordering_more else {}
    if isinstance(delta.spec.in_place, FilesInPlace):
        settings = delta.spec.in_place
        in_place = {**in_place, **IN_PLACE_FEATURE, **(PRECOMPUTED_FEATURE if settings.precompute or settings.precompute_fields else {})}
        in_place = {**in_place, **(PRECOMPUTED_FIELDS_FEATURE if settings.precompute_fields else {})}
        in_place = {**in_place, **(PROMOTED_FEATURE if settings.promoted else {})}
    return {**ordered, **adopted, **features_of_schema(delta.spec.table_schema), **several, **in_place}


def files_named_by(entry: Entry) -> list[str]:
    """The data files that an entry names, for all tables. The entry must have its changes."""
    return [path for raw in entry.changes.values() for path in decode_delta(raw).named_paths]
