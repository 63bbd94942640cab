"""The search of an erasure reads a large file of rows in pieces: no request asks for more, and what lies across two pieces is found."""

from __future__ import annotations

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.contract import ByteRange, GetResult, NotModified, ObjectMeta, Version
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.metadata.schema import FIELD_ID_KEY
from objcat.table import erasure_pieces, erasure_search
from objcat.table.erasure_search import Search, Sought

NAME = "Quartz-Nightingale"
PIECE = 64 * 1024
BUFFER = 8 * 1024
ROWS = 40_000
KEY = "data/old/part-0.parquet"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("v", pa.int64())])


class Measuring(MemoryBackend):
    """Notes how many bytes each read of the file got."""

    def __init__(self) -> None:
        super().__init__("large")
        self.reads: list[int] = []

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        found = super().get(key, byte_range, if_none_match)
        if key == KEY and isinstance(found, GetResult):
            self.reads.append(len(found.data))
        return found


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    for module in (erasure_pieces, erasure_search):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(erasure_pieces, "BUFFER_BYTES", BUFFER)
    return Measuring()


def rows(*, name: str | None = None, at: int = 0) -> pa.Table:
    numbers = np.arange(ROWS)
    drawn = random.Random(1)
    names = [f"person {drawn.getrandbits(128):032x}" for _ in numbers]
    if name is not None:
        names[at] = name
    ids = [field.with_metadata({FIELD_ID_KEY: str(number).encode()}) for number, field in enumerate(SCHEMA, 1)]
    return pa.Table.from_arrays([pa.array(numbers), pa.array(names), pa.array(numbers * 7 + 3)], schema=pa.schema(ids))


def parquet(table: pa.Table, *, compression: str) -> bytes:
    body = io.BytesIO()
    pq.write_table(table, body, compression=compression, use_dictionary=False, row_group_size=5_000, write_statistics=False)
    return body.getvalue()


def search_for(backend: Measuring, sought: Sought, data: bytes) -> Search:
    store = FileIO(backend, env=FakeEnv(1))
    table = objcat.create_table_at(store, SCHEMA, key=["id"])
    store.put(KEY, data)
    backend.reads.clear()
    search = Search(store, table.id, table._context.spec, sought, frozenset(), is_shared=False)
    search.examine(ObjectMeta(KEY, len(data), Version(""), 0))
    return search


def assert_bounded(backend: Measuring, data: bytes) -> None:
    assert len(data) > 8 * PIECE and len(backend.reads) > 8
    assert max(backend.reads) <= 2 * PIECE


@pytest.mark.parametrize("at", [0, ROWS // 2, ROWS - 1])
def test_a_value_that_bytes_alone_do_not_show_is_found_in_columns(backend: Measuring, at: int) -> None:
    data = parquet(rows(name=NAME, at=at), compression="zstd")
    assert NAME.encode() not in data
    assert search_for(backend, Sought(texts={NAME}), data).found == {KEY}
    assert_bounded(backend, data)


@pytest.mark.parametrize(("value", "is_there"), [(7 * (ROWS - 1) + 3, True), (7 * ROWS + 3, False)])
def test_a_number_is_looked_for_in_columns(backend: Measuring, value: int, is_there: bool) -> None:
    data = parquet(rows(), compression="none")
    assert search_for(backend, Sought(typed={3: {value}}), data).found == ({KEY} if is_there else set())
    assert_bounded(backend, data)


@pytest.mark.parametrize("shift", range(-len(NAME) - 1, 2))
def test_a_value_across_two_pieces_is_found(backend: Measuring, shift: int) -> None:
    data = bytearray(parquet(rows(), compression="none"))
    place = 3 * PIECE + shift
    data[place : place + len(NAME)] = NAME.encode()
    assert search_for(backend, Sought(texts={NAME}), bytes(data)).found == {KEY}
    assert max(backend.reads) <= PIECE + 4 * len(NAME), "the bytes decide, so no column is read"


def test_a_file_without_the_value_is_read_to_its_end_and_counted(backend: Measuring) -> None:
    data = parquet(rows(), compression="none")
    search = search_for(backend, Sought(texts={NAME}), data)
    (examined,) = search.classes.values()
    assert (examined.kind, examined.objects, examined.bytes, examined.found) == ("data files", 1, len(data), 0)
    assert_bounded(backend, data)


def test_a_file_that_is_gone_holds_nothing(backend: Measuring) -> None:
    store = FileIO(backend, env=FakeEnv(1))
    table = objcat.create_table_at(store, SCHEMA, key=["id"])
    search = Search(store, table.id, table._context.spec, Sought(texts={NAME}), frozenset(), is_shared=False)
    search.examine(ObjectMeta(KEY, 10 * PIECE, Version(""), 0))
    assert search.found == set() and search.classes == {}
