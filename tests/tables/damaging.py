"""Tables whose stored objects are changed behind them: data files of equal size that are swapped, single bytes, what an entry says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from fileio.store import FileIO
from objcat.metadata.files import BaseFile, LogObject, LogRows, decode_delta, encode_delta
from objcat.timeline.checkpoint import HINT_KEY
from objcat.timeline.entry import decode_entry, encode_entry, log_key
from objcat.timeline.process_log import process_log

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("v", pa.int64())])
ROWS = {"small": 1_000, "large": 200_000}
"""Of files that are read in one request, and in pieces."""


def batch(count: int, seed: int) -> pa.Table:
    """Rows whose files have nearly one size, whatever the seed."""
    cities = pa.array(["Oslo", "Lima", "Pune", "Bonn"]).take(pa.array(np.arange(count) % 4))
    return pa.table(
        {"id": np.arange(count), "city": cities, "v": np.random.default_rng(seed).integers(-(2**63), 2**63, count)}, schema=SCHEMA
    )


def written(fileio: FileIO, size: str, *, seed: int = 1, **settings: Any) -> objcat.Table:
    """A table with a base file, and log objects of two commits above it; nothing was read of it."""
    table = objcat.create_table_at(fileio, SCHEMA, key=["id"], **{"index": objcat.BucketIndex(1), **settings})
    table.insert(batch(ROWS[size], seed))
    for other in (2, 3):
        table.upsert(batch(ROWS[size], other))
    return objcat.table_at(fileio)


def files_of(table: objcat.Table) -> list[tuple[int, BaseFile | LogObject]]:
    """Every data file that the log names, after its slot."""
    found: list[tuple[int, BaseFile | LogObject]] = []
    for slot in range(table.refresh().slot + 1):
        entry = decode_entry(table._context.fileio.read(log_key(slot)), key=log_key(slot))
        found += [(slot, file) for raw in entry.changes.values() for file in decode_delta(raw).files]
    return found


def twins(table: objcat.Table) -> tuple[LogObject, LogObject]:
    """Two log objects of one size, of a table that gets more of them until it has such."""
    for seed in range(4, 64):
        of_size: dict[int, LogObject] = {}
        for _, file in files_of(table):
            if isinstance(file, LogObject):
                if file.bytes in of_size:
                    return of_size[file.bytes], file
                of_size[file.bytes] = file
        table.upsert(batch(file.rows, seed))
    raise AssertionError("no two files have one size")


def swap(fileio: FileIO, one: BaseFile | LogObject, other: BaseFile | LogObject) -> None:
    """Put the bytes of each of two files of one size in the place of the other's."""
    assert one.bytes == other.bytes and one.path != other.path
    first, second = fileio.read(one.path), fileio.read(other.path)
    assert first != second
    fileio.put(one.path, second)
    fileio.put(other.path, first)


def flip(fileio: FileIO, path: str, at: int) -> None:
    """Change one byte of an object."""
    data = bytearray(fileio.read(path))
    data[at] ^= 0x10
    fileio.put(path, data)


def change_entry(table: objcat.Table, slot: int, change: Callable[[Any], Any]) -> None:
    """Let the entry of a slot say other things of its files, those of a record index too.

    The hint, which may carry it, goes, and what this process knows of the log.
    """

    def changed(delta: Any) -> Any:
        index = None if delta.index is None else changed(delta.index)
        files = {"bases": tuple(map(change, delta.bases)), "logs": tuple(map(change, delta.logs))}
        return msgspec.structs.replace(delta, index=index, **files)

    key = log_key(slot)
    entry = decode_entry(table._context.fileio.read(key), key=key)
    made = {name: encode_delta(changed(decode_delta(raw))) for name, raw in entry.changes.items()}
    table._context.fileio.put(key, encode_entry(msgspec.structs.replace(entry, changes=made)))
    table._context.fileio.delete([HINT_KEY])
    process_log(table._context.fileio).forget()


def without_digests(file: Any) -> Any:
    """As an entry of an older client says it."""
    return msgspec.structs.replace(file, digest=None, footer=None)


def of_one_row(file: Any) -> Any:
    """As an entry says it that counts one row, and no digests."""
    slices = {"slices": (LogRows(file.slices[0].group_id, 0, 1),)} if isinstance(file, LogObject) else {}
    return msgspec.structs.replace(file, rows=1, digest=None, footer=None, **slices)


def places(data: bytes) -> Iterator[tuple[str, int]]:
    """A place in each dictionary page and each data page of a file's first row group: the column and what it is, and the middle of it."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        group = file.metadata.row_group(0)
        for number in range(group.num_columns):
            chunk = group.column(number)
            end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
            if chunk.dictionary_page_offset:
                yield f"{chunk.path_in_schema} dictionary", chunk.data_page_offset - 2
            yield f"{chunk.path_in_schema} data", end - 3
