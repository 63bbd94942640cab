"""The in-process engine: runs tasks on threads of the Env, with Arrow in and out and without a JVM.

`LocalEngine` implements what a write needs of an engine: it writes a batch, looks its keys up, and returns the files.
`to_arrow_batch` converts a user's batch (Arrow, pandas, polars, dicts, streams) to Arrow, and refuses what it would have to guess.
It never claims a slot: `objcat.write.transaction` commits what it returns. One engine serves many threads.
`Table` uses it for every batch that is not a Spark DataFrame.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.common.progress import Advance, counted, shown_progress
from objcat.common.validation import is_unicode, shown
from objcat.datafile.batch_checks import check_columns, check_delete_columns, check_named_once, located
from objcat.datafile.casting import plain
from objcat.engine import spooled_batch
from objcat.engine.parted_rows import BucketParts, PartedRows
from objcat.engine.spooled_batch import Rows, RowSpool, SpooledBatch
from objcat.errors import EmptyBatch, InvalidBatch
from objcat.metadata.schema import TableSchema, arrow_type, is_list
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import Predicate
from objcat.tasks.key_lookup import NOWHERE, BatchKeys, BatchKeysHandle, KeyLocations, LocateTask, locate, placed, provisional_place
from objcat.tasks.model import PLACE_COLUMN, Operation, WriteResult, WriteTask
from objcat.tasks.parallel import run_all
from objcat.tasks.partition_moves import PartitionMoves, find_lives, moves_of
from objcat.tasks.write_batches import write_routed, write_unrouted
from objcat.tasks.write_log_rows import written_columns
from objcat.write.engine import EngineCapabilities

NAME = "local"
SPLIT_ROWS = 4 * 1024**2
PIECES_AT_ONCE = 4
"""Pieces that are written at the same time. Each holds twice what becomes a log object."""
PART_SHARE = 6
"""The part of the process's memory, in Arrow bytes, for the parts that are written at the same time."""
BATCH_ROWS = 128 * 1024

T = TypeVar("T")


class LocalEngine:
    """Runs task functions in this process."""

    name = NAME

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio

    @property
    def capabilities(self) -> EngineCapabilities:
        """It looks keys up, and has them in this process."""
        return EngineCapabilities(key_lookup=self, local_keys=self)

    def check(self, data: Rows, spec: TableSpec, operation: Operation, delete_when: Predicate | None = None) -> None:
        """Refuse an impossible batch before anything is written. delete_when: see `WriteTask`. Raises InvalidBatch."""
        if data.num_rows == 0:
            raise EmptyBatch(f"The batch to {operation} is empty. Nothing was written. Give it rows, or skip the call.")
        if operation is not Operation.DELETE:
            check_named_once(data.schema)
        (check_delete_columns if operation is Operation.DELETE else check_columns)(
            written_columns(data.column_names, spec, delete_when), spec
        )

    def partitions(self, data: Rows, spec: TableSpec, former: Collection[str]) -> Collection[str] | None:
        """The partitions of the batch's rows. None if the table has only one."""
        if not spec.partition_columns:
            return None
        parts = [data] if isinstance(data, pa.Table) else map(pa.Table.from_batches, ([batch] for batch in data.to_batches()))
        return frozenset(text for part in parts for text in spec.partition_of(located(part, spec), former).texts)

    def partitions_named(self, data: Rows, spec: TableSpec, former: Collection[str]) -> Collection[str]:
        """The partitions of the batch's rows."""
        found = self.partitions(data, spec, former)
        return frozenset([""]) if found is None else found

    def schema(self, data: Rows) -> pa.Schema:
        """The columns of the batch. Raises InvalidBatch if two have the same name."""
        check_named_once(data.schema)
        return data.schema

    def write(self, data: Rows, task: WriteTask) -> WriteResult:
        """Write a whole batch. Raises InvalidBatch, NullKey, storage errors, and StoreFull if the local disk is full."""
        # Routed rows are collected, and then written file group by file group.
        passes = 2 if task.routed else 1
        with shown_progress(self._fileio.env, f"objcat: {task.operation}", passes * data.num_rows, unit="rows") as advance:
            parted = _parted(data, task)
            if parted is not None:
                return self._write_parts(parted, task, advance)
            if task.routed or not task.spec.has_key or isinstance(data, SpooledBatch):
                write_all = write_routed if task.routed else write_unrouted
                return write_all(self._fileio, task, "local-0", counted(_batches(data), advance, _rows_in))
            pieces = [data.slice(at, SPLIT_ROWS) for at in range(0, data.num_rows, SPLIT_ROWS)]

            def write(piece: tuple[int, pa.Table]) -> WriteResult:
                """Write one piece."""
                number, rows = piece
                written = write_unrouted(self._fileio, task, f"local-{number}", rows.to_batches())
                advance(rows.num_rows)
                return written

            return sum(run_all(self._fileio.env, write, enumerate(pieces), at_once=PIECES_AT_ONCE), WriteResult())

    def _write_parts(self, rows: PartedRows, task: WriteTask, advance: Advance) -> WriteResult:
        """Write a batch part by part. A part that does not fit into memory is sorted on local disk."""
        env = self._fileio.env

        def write(part: tuple[int, Context]) -> WriteResult:
            """Write one part. Progress is told by the context of the caller."""
            number, context = part
            batches = counted(rows.of_part(number), advance, _rows_in)
            return context.run(write_routed, self._fileio, task, f"local-{number}", batches)

        at_once = max(1, min(PIECES_AT_ONCE, env.memory_bytes // PART_SHARE // max(1, rows.part_bytes)))
        return sum(run_all(env, write, [(number, copy_context()) for number in rows.numbers], at_once=at_once), WriteResult())

    @contextmanager
    def gathered(self, data: Rows, spec: TableSpec, former: Collection[str]) -> Iterator[BatchKeysHandle]:
        """The keys of a batch, all held in memory."""
        keys = BatchKeys.of(spec, _tables(data), former)
        yield BatchKeysHandle(_Gathered(data, keys), keys.span(spec))

    def locate(self, gathered: BatchKeysHandle, task: LocateTask) -> KeyLocations:
        """Look up the file groups of a batch's keys. Raises storage errors."""
        batch: _Gathered = gathered.data
        if task.spec.is_global:
            return self._locate_moves(batch.data, task)
        keys = batch.keys
        return self.located_at(gathered, locate(self._fileio, task, keys, gathered.files))

    def keys_of(self, gathered: BatchKeysHandle) -> BatchKeys:
        """The keys of a batch, in its order."""
        batch: _Gathered = gathered.data
        return batch.keys

    def located_at(self, gathered: BatchKeysHandle, groups: npt.NDArray[np.int64]) -> KeyLocations:
        """A batch whose keys were looked up elsewhere. groups: for every key, the number of its file group, or `NOWHERE`."""
        batch: _Gathered = gathered.data
        keys = batch.keys
        new = groups < 0
        rows = np.bincount(keys.partition[new], minlength=len(keys.texts)).tolist()
        found = frozenset(np.unique(groups[~new]).tolist())
        places = np.where(new, provisional_place(keys.hashes), groups)
        counts = {text: count for text, count in zip(keys.texts, rows, strict=True) if count}
        return KeyLocations(_Found(batch.data, places, keys.partition, keys.texts), counts, found)

    def _locate_moves(self, data: Rows, task: LocateTask) -> KeyLocations:
        moving = PartitionMoves.of(task.spec, map(plain, _tables(data)), task.former, task.operation, task.delete_when)
        keys = moving.keys
        partitions = [group.group_id.partition for group in task.groups]
        moves = moves_of(find_lives(self._fileio, task, moving), keys, moving.deleted, partitions)
        counts = np.zeros(len(moves.places), np.bool_)
        counts[moving.winners] = True
        new, leaving = (moves.places < 0) & counts, (moves.left >= 0) & counts
        rows = np.bincount(keys.partition[new], minlength=len(keys.texts)).tolist()
        found = frozenset(np.unique(np.concatenate((moves.places[counts & ~new], moves.left[leaving]))).tolist())
        # A row that does not count needs no file group.
        places = np.where(counts, moves.places, 0)
        return KeyLocations(
            _Found(data, places, keys.partition, keys.texts, counts, np.where(leaving, moves.left, NOWHERE)),
            {text: count for text, count in zip(keys.texts, rows, strict=True) if count},
            found,
            left=int(leaving.sum()),
            moved=int((moves.was_row & counts).sum()),
        )

    def write_placed(self, located: KeyLocations, targets: Mapping[str, tuple[int, ...]], task: WriteTask) -> WriteResult:
        """See `write`."""
        found: _Found = located.data
        places = placed(found.places, found.partition, found.texts, targets)

        def batches() -> Iterator[pa.RecordBatch]:
            """The rows that count, with their places."""
            start = 0
            for batch in map(plain, _batches(found.data)):
                end = start + batch.num_rows
                own = batch.append_column(PLACE_COLUMN, pa.array(places[start:end]))
                if found.counts is None:
                    yield own
                else:
                    yield own.filter(pa.array(found.counts[start:end]))
                    left = found.left[start:end]
                    ends = batch.append_column(PLACE_COLUMN, pa.array((-1 - left).astype(np.int32)))
                    yield ends.filter(pa.array(left >= 0))
                start = end

        with shown_progress(self._fileio.env, f"objcat: {task.operation}", 2 * found.data.num_rows, unit="rows") as advance:
            return write_routed(self._fileio, task, "local-0", counted(batches(), advance, _rows_in))


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A batch with its keys."""

    data: Rows
    keys: BatchKeys


@dataclass(frozen=True, slots=True)
class _Found:
    """A batch with the places of its rows, see `objcat.tasks.key_lookup.placed`.

    If keys move: counts, the rows that no other row of the batch supersedes; left: the file groups that their keys leave.
    """

    data: Rows
    places: npt.NDArray[np.int64]
    partition: npt.NDArray[np.int64]
    texts: tuple[str, ...]
    counts: npt.NDArray[np.bool_] | None = None
    left: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def _parted(data: Rows, task: WriteTask) -> PartedRows | None:
    """The rows of a batch by part, if a task can write them so."""
    if not task.routed or not isinstance(data, SpooledBatch) or len(data.parts) != 1:
        return None
    (rows,) = data.parts
    return rows if isinstance(rows, PartedRows) and rows.fits(task) else None


def _rows_in(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows)


def _tables(data: Rows) -> Iterator[pa.Table]:
    return iter([data]) if isinstance(data, pa.Table) else (pa.Table.from_batches([batch]) for batch in data.to_batches())


def _batches(data: Rows) -> Iterable[pa.RecordBatch]:
    """The batch in pieces that a task can count."""
    return data.to_batches(max_chunksize=BATCH_ROWS) if isinstance(data, pa.Table) else data.to_batches()


def to_arrow_batch(
    data: Any, like: TableSchema | None = None, spool: RowSpool | None = None, *, parts: BucketParts | None = None
) -> Rows | None:
    """Convert a batch of this process to Arrow. None if it is of no known kind, such as a Spark DataFrame.

    Takes Arrow tables and batches, pandas and polars frames, lists of dicts, and streams, which it reads to the end: Arrow readers,
    datasets and scanners, DuckDB relations, and iterables of Arrow tables and batches.

    Args:
        like: the columns of the table. In untyped rows its map columns decide what is a map: a dict, or pairs as of `to_pylist`.
        spool: holds the rows. None: they are held as a batch of its own.
        parts: see `RowSpool.take`.
    """
    streamed = _stream_of(data)
    if streamed is not None:
        return (spool or RowSpool(bytes_max=spooled_batch.SPOOL_BYTES_MAX)).take(*streamed, parts)
    rows = _in_memory(data, like)
    return rows if rows is None or spool is None else spool.keep(rows)


def _in_memory(data: Any, like: TableSchema | None) -> Rows | None:
    if isinstance(data, (pa.Table, SpooledBatch)):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return _from_rows(data, _maps_of(like))
    module = type(data).__module__.split(".")[0]
    if module == "pandas" and hasattr(data, "columns"):
        _refuse_index(data)
        return _from_frame(lambda: _from_pandas(data, _maps_of(like)))
    if module == "pyspark":
        return None
    if module == "polars" and hasattr(type(data), "__arrow_c_stream__"):
        _refuse_objects(data)
        return _from_frame(lambda: pa.table(data))
    raise InvalidBatch(
        f"A {type(data).__name__} is not a batch of rows{_hint(data)}. Pass an Arrow table or reader, a pandas, polars or Spark DataFrame, "
        "or a list of dicts."
    )


def _stream_of(data: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]] | None:
    """The columns and batches of a stream. None for other batches."""
    if isinstance(data, (pa.Table, pa.RecordBatch, SpooledBatch)):
        return None
    datasets: Any = sys.modules.get("pyarrow.dataset")
    # Another thread may be importing it: then nobody has a dataset yet.
    if hasattr(datasets, "Scanner") and isinstance(data, (datasets.Dataset, datasets.Scanner)):
        reader = data.to_reader() if isinstance(data, datasets.Scanner) else data.scanner().to_reader()
        return reader.schema, reader
    if type(data).__module__.split(".")[0] not in ("pandas", "polars", "pyspark") and hasattr(type(data), "__arrow_c_stream__"):
        reader = _from_frame(lambda: pa.RecordBatchReader.from_stream(data))
        return reader.schema, reader
    is_listed = isinstance(data, (list, tuple)) and data and all(isinstance(one, (pa.Table, pa.RecordBatch)) for one in data)
    if not is_listed and not isinstance(data, Iterator):
        return None
    coming = iter(data)
    first = next(coming, None)
    if first is None:
        return pa.schema([]), ()
    if not isinstance(first, (pa.Table, pa.RecordBatch)):
        raise InvalidBatch(
            f"The iterable gives a {type(first).__name__} first, which is neither an Arrow table nor a record batch. Nothing was written. "
            "Give Arrow batches, or a list of dicts."
        )
    return first.schema, _batches_of(first, coming)


def _batches_of(first: pa.Table | pa.RecordBatch, rest: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """The batches of an iterable. Raises InvalidBatch for one with other columns than the first."""
    for number, one in enumerate(itertools.chain([first], rest)):
        if not isinstance(one, (pa.Table, pa.RecordBatch)) or not one.schema.equals(first.schema):
            raise InvalidBatch(
                f"Batch {number} of the iterable does not have the columns of the first one. Nothing was written. Give batches of one "
                "schema, and write batches of other columns in other calls."
            )
        yield from [one] if isinstance(one, pa.RecordBatch) else one.to_batches()


def is_untyped(data: Any) -> bool:
    """Whether the rows have no types of their own, and may be converted again: lists of dicts and pandas frames."""
    return isinstance(data, list) or type(data).__module__.split(".")[0] == "pandas"


def _hint(data: Any) -> str:
    if isinstance(data, (str, os.PathLike)):
        return ", and lake.import_parquet reads files"
    return ", but its collect() is" if type(data).__name__ == "LazyFrame" else ""


def _refuse_index(frame: Any) -> None:
    """Refuse an index with a name. Its values, such as those of a group_by, would be lost silently."""
    for name in frame.index.names:
        if name is not None and name not in frame.columns:
            raise InvalidBatch(
                f"The frame has the index {name!r}, which is not a column. Nothing was written. Make it one with reset_index(), or drop "
                "it with reset_index(drop=True)."
            )


def _refuse_objects(frame: Any) -> None:
    """Refuse Python objects. polars converts them to their memory addresses, as bytes."""
    for name, data_type in dict(getattr(frame, "schema", {})).items():
        if str(data_type) == "Object":
            raise InvalidBatch(f"The column {name!r} of the frame holds Python objects. Nothing was written. Cast it to a type of polars.")


def _from_rows(rows: list[dict[Any, Any]], maps: Mapping[str, pa.DataType]) -> pa.Table:
    """Convert dicts. Arrow would take only the columns of the first row, and drop others silently."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if not isinstance(name, str):
            raise InvalidBatch(f"A row of the batch has the column {name!r}, which is not text. Nothing was written. Name columns by text.")
        if not is_unicode(name):
            raise InvalidBatch(
                f"A row of the batch has the column {shown(name)}, which is not valid Unicode. Nothing was written. Mend the name."
            )
    columns = {}
    for name in names:
        try:
            columns[name] = _array([row.get(name) for row in rows], maps.get(name))
        except UnicodeEncodeError as error:
            raise InvalidBatch(
                f"The column {name!r} of the batch holds {shown(error.object)}, which is not valid Unicode. Nothing was written. Mend "
                "that text."
            ) from error
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise InvalidBatch(
                f"The column {name!r} of the batch holds values of several types ({str(error).splitlines()[0]}). Nothing was written. "
                "Give values of one type, with None where there is none, or an Arrow table."
            ) from error
    return pa.table(columns) if columns else pa.table({})


def _from_pandas(frame: Any, maps: Mapping[str, pa.DataType]) -> pa.Table:
    mapped = [name for name in maps if name in frame.columns and frame.columns.is_unique and frame[name].dtype == object]
    found = pa.Table.from_pandas(frame.drop(columns=mapped), preserve_index=False).replace_schema_metadata(None)
    for name in mapped:
        # There, missing values are None or NaN.
        values = frame[name].astype(object).where(frame[name].notna(), None)
        found = found.append_column(name, _array(list(values), maps[name]))
    return found


def _maps_of(like: TableSchema | None) -> dict[str, pa.DataType]:
    """The types of the map columns."""
    nested = {} if like is None else {column.name: arrow_type(column.type) for column in like.columns if not isinstance(column.type, str)}
    return {name: data_type for name, data_type in nested.items() if _holds_map(data_type)}


def _holds_map(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_map(data_type)
        or (is_list(data_type) and _holds_map(data_type.value_type))
        or (pa.types.is_struct(data_type) and any(_holds_map(field.type) for field in data_type))
    )


def _array(values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Python values as Arrow takes them. Arrow infers structs and lists for maps, so map columns are converted here.

    Keys and values may have any type. A value that is no map, list or dict is left as it is, and refused later.
    """
    if wanted is None or not _holds_map(wanted):
        return pa.array(values)
    there = [value for value in values if value is not None]
    missing = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(wanted):
        if not all(isinstance(value, Mapping) for value in there):
            return pa.array(values)
        types = {field.name: field.type for field in wanted}
        names = list(dict.fromkeys(name for value in there for name in value)) or list(types)
        fields = [_array([None if value is None else value.get(name) for value in values], types.get(name)) for name in names]
        return pa.StructArray.from_arrays(fields, names=names, mask=missing)
    found = [_pairs(value) if pa.types.is_map(wanted) else value for value in there]
    parts = [part for part in found if isinstance(part, (list, tuple, np.ndarray))]
    if len(parts) < len(there):
        return pa.array(values)
    sizes = iter([len(part) for part in parts])
    ends = np.cumsum([0, *(0 if value is None else next(sizes) for value in values)])
    offsets, inside = pa.array(ends, pa.int32()), [one for part in parts for one in part]
    if pa.types.is_list(wanted):
        return pa.ListArray.from_arrays(offsets, _array(inside, wanted.value_type), mask=missing)
    if any(key is None for key, _ in inside):
        raise ValueError("a key of a map is None")
    keys = _array([key for key, _ in inside], wanted.key_type) if inside else pa.array([], wanted.key_type)
    return pa.MapArray.from_arrays(offsets, keys, _array([value for _, value in inside], wanted.item_type), mask=missing)


def _pairs(value: Any) -> list[Any] | None:
    """The items of a map, or None if it is none."""
    found = list(value.items()) if isinstance(value, Mapping) else value
    is_one = isinstance(found, (list, tuple, np.ndarray)) and all(
        isinstance(pair, (tuple, list, np.ndarray)) and len(pair) == 2 for pair in found
    )
    return list(found) if is_one else None


def _from_frame(converted: Callable[[], T]) -> T:
    try:
        return converted()
    except UnicodeEncodeError as error:
        raise InvalidBatch(
            f"The frame holds {shown(error.object)}, which is not valid Unicode. Nothing was written. Mend that text."
        ) from error
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidBatch(
            f"The frame is not a batch of rows ({' '.join(' '.join(map(str, error.args)).split())}). Nothing was written. Give its "
            "columns one type and a name each."
        ) from error
