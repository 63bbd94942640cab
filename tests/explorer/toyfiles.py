"""Data files of a few bytes instead of Parquet: the columns as JSON, one request to write a file and one to read it.

Whole tables run under the explorer with them, and what their files hold can be read by whoever judges the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Self
from unittest import mock

import msgspec
import pyarrow as pa

from fileio.contract import Create, GetResult, require_written
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.merge import OP_COLUMN
from objcat.errors import CorruptTable
from objcat.metadata.files import BaseFile, Bound, LogObject, LogRows, Order
from objcat.metadata.key_index_table import BUCKET_FIELD, PARTITION_FIELD
from objcat.metadata.properties import Statistics
from objcat.timeline.entry import FileGroupId, Txn

TYPES = {
    "k": pa.int64(),
    "v": pa.string(),
    "a": pa.string(),
    OP_COLUMN: pa.int8(),
    TXN_COLUMN: pa.string(),
    PARTITION_FIELD: pa.string(),
    BUCKET_FIELD: pa.int32(),
}
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
ROW_GROUP_ROWS = 16
BOUNDED = False
"""Whether files have bounds. Without them nobody knows which rows a file may have; some cells set it."""


def encode_rows(**columns: Sequence[object]) -> bytes:
    """The bytes of a file."""
    return json.dumps(columns, separators=(",", ":")).encode()


def bounds_of(columns: Mapping[str, Sequence[Any]]) -> dict[int, Bound]:
    """The bounds of a file, where files have any: of the columns `k` and `v`, by their ids in the tables of the explorer."""
    if not BOUNDED or not {"k", "v"} <= columns.keys() or not columns["k"]:
        return {}
    known = {n: [value for value in columns[name] if value is not None] for n, name in enumerate(("k", "v"), 1)}
    return {n: (min(values, default=None), max(values, default=None), len(columns["k"]) - len(values)) for n, values in known.items()}


def put_base(
    fileio: FileIO, path: str, rows: pa.Table, group_id: FileGroupId, txn: Txn, *, statistics: Statistics | None = None
) -> BaseFile:
    """As `objcat.datafile.parquet.write_base`."""
    columns = rows.to_pydict()
    columns.setdefault(TXN_COLUMN, [str(txn)] * rows.num_rows)
    size = _put(fileio, path, columns)
    return BaseFile(path=path, bytes=size, rows=rows.num_rows, group_id=group_id, bounds=bounds_of(columns))


class ToyBaseWriter:
    """As `objcat.datafile.parquet.BaseWriter`."""

    def __init__(
        self, fileio: FileIO, path: str, schema: pa.Schema, group_id: FileGroupId, *, order: Order | None = None, **_: Any
    ) -> None:
        self._fileio, self._path, self._group_id, self._order = fileio, path, group_id, order
        self._rows = [schema.empty_table()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def rows(self) -> int:
        return sum(rows.num_rows for rows in self._rows)

    def write(self, rows: pa.Table) -> None:
        self._rows.append(rows.cast(self._rows[0].schema))

    def finish(self) -> BaseFile:
        base = put_base(self._fileio, self._path, pa.concat_tables(self._rows), self._group_id, Txn(""))
        return msgspec.structs.replace(base, order=self._order)


def put_log(
    fileio: FileIO, path: str, rows: pa.Table, group_ids: tuple[LogRows, ...], *, statistics: Statistics | None = None
) -> LogObject:
    """As `objcat.datafile.parquet.write_log`."""
    columns = rows.to_pydict()
    size, bounds = _put(fileio, path, columns), bounds_of(columns)
    return LogObject(path=path, bytes=size, rows=rows.num_rows, row_group_rows=ROW_GROUP_ROWS, slices=group_ids, bounds=bounds)


def get_base(fileio: FileIO, base: BaseFile, columns: Sequence[str], *_: Any) -> pa.Table:
    """As `objcat.datafile.parquet.read_base`."""
    return _get(fileio, base.path, columns)


def get_log(fileio: FileIO, log: LogObject, ranges: Sequence[tuple[int, int]], columns: Sequence[str], *_: Any) -> list[pa.Table]:
    """As `objcat.datafile.parquet.read_log`."""
    rows = _get(fileio, log.path, [*columns, OP_COLUMN])
    return [rows.slice(start, end - start) for start, end in ranges]


def base_pieces(fileio: FileIO, base: BaseFile, columns: Sequence[str], **_: Any) -> Iterator[pa.Table]:
    """As `objcat.datafile.parquet.base_pieces`."""
    yield get_base(fileio, base, columns)


def key_pieces(fileio: FileIO, base: BaseFile, columns: Sequence[str], *_: Any) -> Iterator[pa.Table]:
    """As `objcat.datafile.parquet.key_pieces`, of a file without filters."""
    yield get_base(fileio, base, columns)


def picked_row_groups(fileio: FileIO, file: BaseFile | LogObject, columns: Sequence[str], *_: Any) -> Iterator[tuple[int, pa.Table]]:
    """As `objcat.datafile.parquet.picked_row_groups`, of a file with one row group."""
    yield 0, _get(fileio, file.path, columns)


def open_parquet(*_: Any) -> AbstractContextManager[None]:
    """As `objcat.datafile.open_files.open_parquet`, of a file without a footer: whoever asks for bounds finds none."""
    return nullcontext()


def log_pieces(fileio: FileIO, log: LogObject, start: int, end: int, columns: Sequence[str], *_: Any) -> Iterator[pa.Table]:
    """As `objcat.datafile.parquet.log_pieces`."""
    yield from get_log(fileio, log, [(start, end)], columns)


def every_piece(fileio: FileIO, path: str, *_: Any, **__: Any) -> Iterator[pa.Table]:
    """As `objcat.datafile.parquet.every_piece`."""
    try:
        result = fileio.get(path)
    except NotFound:
        return
    assert isinstance(result, GetResult)
    columns = json.loads(result.data)
    yield pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


@contextmanager
def toy_files() -> Iterator[None]:
    """Until the end of the block, whoever writes or reads a data file writes or reads one of these."""
    toys: dict[str, Any] = {
        "write_base": put_base,
        "BaseWriter": ToyBaseWriter,
        "write_log": put_log,
        "read_base": get_base,
        "read_log": get_log,
        "base_pieces": base_pieces,
        "every_piece": every_piece,
        "key_pieces": key_pieces,
        "picked_row_groups": picked_row_groups,
        "log_pieces": log_pieces,
    }
    names = (
        "table.erase",
        "table.erasure_traces",
        "datafile.parquet",
        "datafile.log_reader",
        "tasks.write_log_rows",
        "tasks.append_rows",
        "tasks.regroup_rows",
        "tasks.write_base_files",
        "tasks.rewrite_groups",
        "tasks.merged_rows",
        "tasks.changes",
        "tasks.key_lookup",
        "tasks.key_index",
        "tasks.scan",
        "maintenance.cluster",
        "maintenance.compact",
        "maintenance.cluster_rows",
        "mirror.superseded_rows",
    )
    modules = [import_module(f"objcat.{name}") for name in names]
    with ExitStack() as stack:
        for module in modules:
            for name in toys.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, toys[name]))
        yield


def _put(fileio: FileIO, path: str, columns: dict[str, list[object]]) -> int:
    data = encode_rows(**columns)
    require_written(fileio.put(path, data, Create()), path)
    return len(data)


def _get(fileio: FileIO, path: str, columns: Sequence[str]) -> pa.Table:
    try:
        found = fileio.get(path)
    except NotFound as error:
        raise CorruptTable(f"{path} is missing") from error
    assert isinstance(found, GetResult)
    content = json.loads(bytes(found.data))
    return pa.table({name: pa.array(content[name], TYPES[name]) for name in columns})
