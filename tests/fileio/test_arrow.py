"""The Arrow filesystem over any store: Arrow, DuckDB and Polars read and write through it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileSystem, FileType

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio import FileIO, Unsupported, default_env, describe_store, open_store
from fileio.arrow import arrow_filesystem

StartServer = Callable[[ServerName], ServerHandle]
SERVERS: list[ServerName] = ["versitygw", "fake-gcs-server", "azurite"]
TABLE = pa.table({"id": pa.array(range(5_000), pa.int64()), "name": [f"name {n % 7}" for n in range(5_000)]})


@pytest.fixture(params=["memory", "local", *SERVERS])
def store(request: pytest.FixtureRequest, servers: StartServer, tmp_path: Path) -> Iterator[FileIO]:
    if request.param == "memory":
        description = describe_store(f"memory://arrow-{default_env().new_id()}")
    elif request.param == "local":
        description = describe_store(tmp_path / "lake", {"fsync": "false"})
    else:
        bucket = servers(request.param).fresh_bucket()
        description = describe_store(bucket.url, bucket.options)
    with description.open() as opened:
        yield opened


@pytest.fixture
def filesystem(store: FileIO) -> FileSystem:
    return arrow_filesystem(store)


def write_table(filesystem: FileSystem) -> None:
    for number in range(3):
        pq.write_table(
            TABLE.slice(number * 2_000, 2_000), f"city/trips/day={number}/part.parquet", filesystem=filesystem, row_group_size=500
        )


def test_tables_go_through_arrow_duckdb_and_polars(filesystem: FileSystem, store: FileIO) -> None:
    write_table(filesystem)
    assert list(store.list_keys()) == [f"city/trips/day={n}/part.parquet" for n in range(3)]
    assert pq.read_table("city/trips/day=1/part.parquet", filesystem=filesystem, partitioning=None).equals(TABLE.slice(2_000, 2_000))

    trips = ds.dataset("city/trips", filesystem=filesystem, format="parquet", partitioning="hive")
    assert trips.count_rows() == 5_000
    found = trips.to_table(columns=["id", "name"], filter=(ds.field("day") == 1) & (ds.field("id") < 2_010))
    assert found.column("id").to_pylist() == list(range(2_000, 2_010))
    relation = duckdb.sql("select day, count(*), sum(id) from trips group by day order by day")
    assert relation is not None
    assert relation.fetchall() == [
        (0, 2_000, sum(range(2_000))),
        (1, 2_000, sum(range(2_000, 4_000))),
        (2, 1_000, sum(range(4_000, 5_000))),
    ]
    lazy = pl.scan_pyarrow_dataset(trips).filter(pl.col("name") == "name 3").select(pl.len())
    assert lazy.collect().item() == len([n for n in range(5_000) if n % 7 == 3])


def test_a_dataset_is_written_and_replaced(filesystem: FileSystem, store: FileIO) -> None:
    for rows in (5_000, 10):
        ds.write_dataset(TABLE.slice(0, rows), "out", filesystem=filesystem, format="parquet", existing_data_behavior="delete_matching")
        assert ds.dataset("out", filesystem=filesystem).to_table().sort_by("id").equals(TABLE.slice(0, rows))
    assert list(store.list_keys()) == ["out/part-0.parquet"]


def test_file_info(filesystem: FileSystem, store: FileIO) -> None:
    for key in ("a/b/one", "a/b/two", "a/c", "top"):
        store.put(key, key.encode())
    found = filesystem.get_file_info(["a/c", "a/b", "a", "", "a/b/", "a/x", "to"])
    assert [info.type for info in found] == [FileType.File, *[FileType.Directory] * 4, FileType.NotFound, FileType.NotFound]
    assert found[0].size == 3
    assert found[0].mtime_ns == store.head("a/c").modified_ms * 1_000_000

    def listed(base: str, *, recursive: bool) -> dict[str, FileType]:
        return {info.path: info.type for info in filesystem.get_file_info(FileSelector(base, recursive=recursive))}

    file, directory = FileType.File, FileType.Directory
    assert listed("", recursive=False) == {"a": directory, "top": file}
    assert listed("a", recursive=False) == {"a/b": directory, "a/c": file}
    assert listed("a/", recursive=True) == {"a/b": directory, "a/b/one": file, "a/b/two": file, "a/c": file}
    assert listed("", recursive=True) == {"a": directory, "a/b": directory, "a/b/one": file, "a/b/two": file, "a/c": file, "top": file}
    with pytest.raises(FileNotFoundError, match="begins with 'x/'"):
        filesystem.get_file_info(FileSelector("x"))
    assert filesystem.get_file_info(FileSelector("x", allow_not_found=True)) == []
    with pytest.raises(NotADirectoryError):
        filesystem.get_file_info(FileSelector("top"))


def test_streams(filesystem: FileSystem, store: FileIO) -> None:
    with filesystem.open_output_stream("s/one") as out:
        out.write(b"0123")
        out.write(b"456789")
    with filesystem.open_input_file("s/one") as file:
        assert file.size() == 10
        file.seek(8)
        assert (file.read(), file.tell()) == (b"89", 10)
    with filesystem.open_input_stream("/s/one") as stream:
        assert stream.read() == b"0123456789"
    with pytest.raises(FileNotFoundError, match="s/none"):
        filesystem.open_input_file("s/none")
    with pytest.raises(Unsupported, match="appended"):
        filesystem.open_append_stream("s/one")
    abandoned = filesystem.open_output_stream("s/abandoned")
    abandoned.write(b"half an object")
    with pytest.warns(ResourceWarning):
        del abandoned
    assert not store.exists("s/abandoned")


def test_changes(filesystem: FileSystem, store: FileIO) -> None:
    for key in ("a/b/one", "a/b/two", "a/c", "ab"):
        store.put(key, key.encode())
    filesystem.create_dir("new/directory")
    filesystem.copy_file("a/c", "copy")
    assert store.read("copy") == b"a/c"
    with pytest.raises(FileNotFoundError):
        filesystem.copy_file("none", "copy")
    filesystem.delete_file("a/c")
    with pytest.raises(FileNotFoundError):
        filesystem.delete_file("a/c")
    with pytest.raises(Unsupported, match="no rename"):
        filesystem.move("ab", "ba")
    filesystem.delete_dir("a")
    assert list(store.list_keys()) == ["ab", "copy"]
    with pytest.raises(FileNotFoundError):
        filesystem.delete_dir("a")
    filesystem.delete_dir_contents("a", missing_dir_ok=True)
    filesystem.delete_dir_contents("", accept_root_dir=True)
    assert list(store.list_keys()) == []


def test_it_pickles_as_its_description_and_equals_itself(filesystem: FileSystem, store: FileIO) -> None:
    store.put("k", b"body")
    again = pickle.loads(pickle.dumps(filesystem))
    assert again == filesystem
    assert again.open_input_stream("k").read() == b"body"
    assert filesystem != arrow_filesystem(open_store("memory://another"))


@pytest.mark.parametrize("before", [b"", b"what was there"])
def test_a_block_that_raises_leaves_no_truncated_object(filesystem: FileSystem, store: FileIO, before: bytes) -> None:
    """The streams of Arrow, and writers that open one, close it on their way out."""
    if before:
        for path in ("out", "out.gz", "out.parquet"):
            store.put(path, before)
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="out"):
        write_half(filesystem, "out")
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match=r"out.gz"):
        write_half(filesystem, "out.gz")
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match=r"out.parquet"):
        write_half_a_table(filesystem)
    assert {path: store.read(path) for path in store.list_keys()} == (
        dict.fromkeys(("out", "out.gz", "out.parquet"), before) if before else {}
    )


def write_half(filesystem: FileSystem, path: str) -> None:
    with filesystem.open_output_stream(path) as out:
        out.write(b"half of it")
        raise ZeroDivisionError


def write_half_a_table(filesystem: FileSystem) -> None:
    with pq.ParquetWriter("out.parquet", TABLE.schema, filesystem=filesystem) as writer:
        writer.write_table(TABLE)
        raise ZeroDivisionError
