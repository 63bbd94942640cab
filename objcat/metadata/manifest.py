"""Manifests: immutable Parquet objects that checkpoint roots name, and their reader. `manifest_rows` defines a row.

The state of a table is in some shards. Run 0 is the base: each of its shards holds a range of file groups as known when it was written.
Every other run holds what changed since then; a greater run is later. Shards of one run never overlap.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.contract import Create, require_written
from fileio.env import map_io, on_fork
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable
from objcat.metadata.column_defaults import default_bounds, initial_value
from objcat.metadata.column_parts import fields_within
from objcat.metadata.manifest_checks import check_rows
from objcat.metadata.manifest_rows import CORE, DIGESTS, SLICE, Mask, bounded_columns, group_id_at
from objcat.metadata.ordering import OrderingBounds
from objcat.metadata.schema import ColumnType, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.timeline.entry import Count, FileGroupId
from objcat.timeline.error_location import says_where
from objcat.timeline.side_objects import read_intact

CACHE_BYTES_MAX = 256 * 1024**2
THREADED_ROWS_MIN = 64 * 1024
"""Rows of manifests from which Arrow filters in threads. With fewer rows, starting a thread costs more than the work."""
STATES_MAX, STATE_BYTES_MAX = 8, 4 * 1024**2
"""How many tables of rows are cached, and how large each may be. For a small table, making them is most of the work of a plan."""
FILES_BYTES_MAX = 128 * 1024**2
"""Bytes cached about data files."""
FOOTERS_BYTES_MAX = 16 * 1024**2
"""Bytes cached of names of files whose footer was verified."""
COMPRESSION = "zstd"
COMPRESSED_ROWS_MIN = 512
"""File groups of a manifest from which its columns are compressed. Starting a column takes a twentieth of a millisecond.

Its log slices are always compressed.
"""
_LOG_DIGESTS = "logs_xxh3"
"""The column with the digests of log slices. It is separate from their list, so that older readers still take the list."""
_DIGEST_FIELDS = tuple(field for field in SLICE if field.name in DIGESTS)
_STORED_FIELDS = tuple(field for field in SLICE if field not in _DIGEST_FIELDS)
_SLICES = (
    *(f"logs.list.element.{field.name}" for field in _STORED_FIELDS),
    *(f"{_LOG_DIGESTS}.list.element.{field.name}" for field in _DIGEST_FIELDS),
)
_NULL_NOWHERE = frozenset({*CORE.names} - {"base_order", "base_adopted", "base_xxh3", "base_footer_xxh3"})
"""Columns that are present even if all their values are null."""
_NO_DICTIONARY = frozenset({"base_path", "base_xxh3", "base_footer_xxh3", "logs", _LOG_DIGESTS})
"""Columns whose values do not repeat, or repeat in a row."""


class ShardRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reference to one manifest object.

    Args:
        path: Relative to the log's prefix.
        bytes: Size of the object, whose hash is `sha256`.
        rows: File groups.
        items: File groups and log slices, which its size depends on.
        first: Its first file group in the order of manifests (partition, bucket count, bucket).
        last: Its last file group in that order.
        run: 0 for the base.
        last_id: The highest column id when it was written: files that it names have no column above. None: not known.
    """

    path: str
    bytes: Count
    sha256: str
    rows: Count
    items: Count
    first: FileGroupId
    last: FileGroupId
    run: Count = 0
    last_id: Count | None = None


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Conditions that are computed one by one. every: whether all of them must hold, or any."""

    terms: tuple[Condition, ...]
    every: bool


Condition: TypeAlias = "pc.Expression | ConditionGroup"


@dataclass(frozen=True, slots=True)
class Pruning:
    """A filter over bounds: which rows of data may pass it.

    Args:
        condition: Over columns `rows`, `lower_<id>`, `upper_<id>` and `nulls_<id>`. True where a row of data may pass.
        columns: The ids.
    """

    condition: Condition
    columns: tuple[int, ...]

    def may_match(self, rows: pa.Table, spec: TableSpec) -> Mask:
        """For every row of a manifest, whether one of its rows of data may pass. A column without bounds excludes nothing."""
        columns = {"rows": rows.column("rows"), "position": pa.array(np.arange(rows.num_rows))}
        fields = (path[-1] for path in fields_within(spec.table_schema.columns) if isinstance(path[-1].type, str))
        types = {column.id: arrow_type(column.type) for column in (*bounded_columns(spec), *fields) if column.id in self.columns}
        for column_id in self.columns:
            for kind in ("lower", "upper", "nulls"):
                name = f"{kind}_{column_id}"
                if name in rows.column_names:
                    columns[name] = rows.column(name)
                else:
                    columns[name] = pa.nulls(rows.num_rows, pa.int64() if kind == "nulls" else types.get(column_id, pa.null()))
        return _holds(pa.table(columns), self.condition)


def _holds(rows: pa.Table, condition: Condition) -> Mask:
    """For every row, whether a condition is true. rows: with their number in `position`."""
    if isinstance(condition, ConditionGroup):
        masks = np.array([_holds(rows, term) for term in condition.terms], np.bool_)
        return np.asarray(masks.all(axis=0) if condition.every else masks.any(axis=0), np.bool_)
    # Loads pandas if it is installed, as a filter of a table would.
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    passing = acero.Declaration("filter", acero.FilterNodeOptions(condition), inputs=[source])
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[passing.to_table(use_threads=rows.num_rows >= THREADED_ROWS_MIN).column("position").to_numpy()] = True
    return mask


def encode_shard(rows: pa.Table) -> bytes:
    """The object of some sorted rows. Unknown bounds and digests take no room, nor do orders if all files are sorted by key."""
    known = [name for name in rows.column_names if name in _NULL_NOWHERE or rows.column(name).null_count < rows.num_rows]
    rows = _with_digests_apart(rows.select(known))
    encoded = [name for name in rows.column_names if name not in _NO_DICTIONARY]
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression=COMPRESSION if rows.num_rows >= COMPRESSED_ROWS_MIN else dict.fromkeys(_SLICES, COMPRESSION),
        row_group_size=rows.num_rows,
        write_statistics=False,
        use_dictionary=encoded,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _with_digests_apart(rows: pa.Table) -> pa.Table:
    """Rows with log slices as shards hold them: digests, if any, in a column of their own."""
    lists = rows.column("logs").combine_chunks()

    def column(fields: Sequence[pa.Field]) -> pa.Array:
        values = pa.StructArray.from_arrays([lists.values.field(field.name) for field in fields], fields=list(fields))
        return pa.ListArray.from_arrays(lists.offsets, values)

    stored = rows.set_column(rows.column_names.index("logs"), "logs", column(_STORED_FIELDS))
    if all(lists.values.field(field.name).null_count == len(lists.values) for field in _DIGEST_FIELDS):
        return stored
    return stored.append_column(_LOG_DIGESTS, column(_DIGEST_FIELDS))


def put_shards(fileio: FileIO, tables: Sequence[pa.Table], folder: str, spec: TableSpec, *, run: int) -> list[ShardRef]:
    """Write each table of rows as a shard below `folder`, in parallel. spec: of the table now."""

    def put(rows: pa.Table) -> ShardRef:
        fileio.env.give_way()
        data = encode_shard(rows)
        path = f"{folder.rstrip('/')}/{'delta' if run else 'base'}-{fileio.env.new_id()}.parquet"
        require_written(fileio.put(path, data, Create()), path)
        return ShardRef(
            path=path,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            rows=rows.num_rows,
            items=rows.num_rows + items_of(rows),
            first=group_id_at(rows, 0),
            last=group_id_at(rows, rows.num_rows - 1),
            run=run,
            last_id=spec.table_schema.last_id,
        )

    return map_io(fileio.env, put, tables)


def items_of(rows: pa.Table) -> int:
    """How many log slices some rows hold."""
    return int(pc.sum(pc.list_value_length(rows.column("logs"))).as_py() or 0)


class Shard:
    """A manifest in memory. Columns are decoded when they are first requested. Raises CheckpointUnreadable."""

    def __init__(self, data: bytes, ref: ShardRef) -> None:
        self._data = data
        self._ref = ref
        self._columns: dict[str, pa.ChunkedArray] = {}
        with self._reading():
            self._names = frozenset(pq.read_schema(pa.BufferReader(data)).names)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises CheckpointUnreadable for whatever is wrong with the object."""
        try:
            yield
        except (pa.ArrowException, OSError, TypeError, ValueError, KeyError, OverflowError) as error:
            path = self._ref.path
            raise CheckpointUnreadable(f"{path} is not a valid manifest ({error}). Open the table again.", path=path) from error

    def check(self) -> None:
        """Check that the rows are there, as many as the root says, and are valid."""
        with self._reading():
            check_rows(self.rows(), rows_expected=self._ref.rows)

    @property
    def bytes(self) -> int:
        """Bytes of memory: the object, and what was decoded of it so far."""
        return len(self._data) + sum(int(values.nbytes) for values in list(self._columns.values()))

    def rows(self, columns: Collection[int] | None = (), spec: TableSpec | None = None) -> pa.Table:
        """The rows, with the bounds of these columns if there are any. None: of all columns.

        spec: of the table now. It gives columns that are younger than the shard the bounds of their default.
        """
        wanted = set(CORE.names)
        if columns is None:
            wanted |= self._names
        else:
            wanted |= {f"{kind}_{column_id}" for kind in ("lower", "upper", "nulls") for column_id in columns}
        names = [name for name in [*CORE.names, *sorted(wanted - {*CORE.names, _LOG_DIGESTS})] if name in self._names]
        missing = [name for name in names if name not in self._columns]
        if missing:
            stored = [*missing, *([_LOG_DIGESTS] if "logs" in missing and _LOG_DIGESTS in self._names else [])]
            with self._reading():
                read = pq.ParquetFile(pa.BufferReader(self._data)).read(columns=stored, use_threads=False).combine_chunks()
                self._columns.update({name: _as_made(name, read) for name in missing})
        rows = pa.table({name: self._columns[name] for name in names})
        return rows if spec is None or self._ref.last_id is None else _with_younger(rows, self._ref.last_id, columns, spec)


def _with_younger(rows: pa.Table, last_id: int, columns: Collection[int] | None, spec: TableSpec) -> pa.Table:
    """Rows of a shard with the bounds of columns that none of its files has, where these have a default."""
    for column in spec.table_schema.columns:
        if column.id > last_id and (columns is None or column.id in columns) and f"nulls_{column.id}" not in rows.column_names:
            value = initial_value(column)
            if value is not None and default_bounds(column) is not None:
                for kind in ("lower", "upper"):
                    rows = rows.append_column(f"{kind}_{column.id}", pa.repeat(value, rows.num_rows))
                rows = rows.append_column(f"nulls_{column.id}", pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
    return rows


def _as_made(name: str, rows: pa.Table) -> pa.ChunkedArray:
    """A column of a shard in the type that rows have. Other writers may use other integers; misfits raise ArrowInvalid.

    Log slices get their digests from the separate column. Digests of other slices are ignored. Lists have an element of another name in
    Parquet, and a cast would copy them all.
    """
    values = rows.column(name)
    if name not in CORE.names or values.type.equals(CORE.field(name).type):
        return values
    wanted = CORE.field(name).type
    if name != "logs":
        return values.cast(wanted)
    lists = values.combine_chunks()
    slices = lists.values
    fields = [_cast(slices.field(field.name), field.type) for field in _STORED_FIELDS]
    known = rows.column(_LOG_DIGESTS).combine_chunks() if _LOG_DIGESTS in rows.column_names else None
    if known is not None and known.type.value_type == pa.struct(_DIGEST_FIELDS) and known.offsets.equals(lists.offsets):
        fields += [known.values.field(field.name) for field in _DIGEST_FIELDS]
    else:
        fields += [pa.nulls(len(slices), field.type) for field in _DIGEST_FIELDS]
    made = pa.StructArray.from_arrays(fields, fields=list(SLICE))
    return pa.chunked_array([pa.ListArray.from_arrays(lists.offsets, made, type=wanted)])


def _cast(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    return values if values.type.equals(data_type) else values.cast(data_type)


@says_where
def get_shard(fileio: FileIO, ref: ShardRef) -> Shard:
    """Read a manifest: one GET. Raises CheckpointCollected, or CheckpointUnreadable when it is invalid or not what the root names."""
    try:
        data = read_intact(fileio, ref.path, ref.sha256, named_by="checkpoint")
    except NotFound as error:
        raise CheckpointCollected(
            f"{ref.path} in {fileio.url} was replaced by a newer checkpoint. Open the table again.", path=ref.path
        ) from error
    except CorruptTable as error:
        raise CheckpointUnreadable(f"{error} Or open the table again, which then uses an older checkpoint.", path=ref.path) from error
    shard = Shard(data, ref)
    shard.check()
    return shard


@dataclass(frozen=True, slots=True)
class CheckedFooter:
    """What is kept of the verified footer of a data file.

    Args:
        ordering: The bounds of its ordering values, None where they are not known.
        types: Of the ordering columns when the bounds were read. Those of a wider type may be other numbers.
    """

    ordering: OrderingBounds | None = None
    types: tuple[ColumnType, ...] = ()


class Manifests:
    """Reads and caches the manifests of snapshots, which never change. Safe for many threads.

    Args:
        bytes_max: Size of the cache. The least recently used go first.
    """

    def __init__(self, fileio: FileIO, *, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._fileio = fileio
        self._bytes_max = bytes_max
        self.of_files: BoundedCache[Any] = BoundedCache(bytes_max=FILES_BYTES_MAX)
        self.footers: BoundedCache[CheckedFooter] = BoundedCache(bytes_max=FOOTERS_BYTES_MAX)
        self._kept: OrderedDict[str, Shard] = OrderedDict()
        self._of_states: OrderedDict[tuple[int, frozenset[int] | None], tuple[object, pa.Table]] = OrderedDict()
        self._lock = threading.Lock()
        on_fork(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked process."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The URL of their store."""
        return self._fileio.url

    def lacks(self, refs: Sequence[ShardRef]) -> bool:
        """Whether some of the shards are not cached."""
        with self._lock:
            return any(ref.path not in self._kept for ref in refs)

    def load(self, refs: Sequence[ShardRef]) -> list[Shard]:
        """The shards, in order. One GET, in parallel, for each that is not cached.

        Raises CheckpointCollected (open the table again), CorruptTable, storage errors.
        """
        with self._lock:
            found = {ref.path: self._kept[ref.path] for ref in refs if ref.path in self._kept}
            for path in found:
                self._kept.move_to_end(path)
        missing = [ref for ref in refs if ref.path not in found]
        read = map_io(self._fileio.env, lambda ref: get_shard(self._fileio, ref), missing)
        for ref, shard in zip(missing, read, strict=True):
            found[ref.path] = shard
        with self._lock:
            self._kept.update((ref.path, found[ref.path]) for ref in missing)
            sizes = {path: shard.bytes for path, shard in self._kept.items()}
            total = sum(sizes.values())
            while total > self._bytes_max:
                path, _ = self._kept.popitem(last=False)
                total -= sizes[path]
        return [found[ref.path] for ref in refs]

    def rows_of_state(self, state: object, columns: Collection[int] | None, make: Callable[[], pa.Table]) -> pa.Table:
        """The result of `make`: all rows of a table's state, with the bounds of some columns.

        The rows of small tables are cached for the next queries, since a state never changes. state: any object, known by its identity.
        """
        key = (id(state), None if columns is None else frozenset(columns))
        with self._lock:
            kept, rows = self._of_states.get(key, (None, None))
        if rows is not None and kept is state:
            return rows
        rows = make()
        if rows.nbytes <= min(STATE_BYTES_MAX, self._bytes_max // STATES_MAX):
            with self._lock:
                self._of_states[key] = (state, rows)
                while len(self._of_states) > STATES_MAX:
                    self._of_states.popitem(last=False)
        return rows
