"""Loads that are larger than what a task holds: streams, runs on local disk, files of the size that the table wants."""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import StoreFull
from fileio.env import MEMORY_BYTES
from objcat.common.validation import TableType
from objcat.datafile import local_disk
from objcat.datafile.bucket_hash import bucket_of
from objcat.engine import parted_rows, spooled_batch
from objcat.errors import InvalidBatch, InvalidInput, NullKey
from objcat.tasks import external_sort
from objcat.tasks.model import Operation, WriteTask
from objcat.timeline.entry import Txn

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("at", pa.int64()), pa.field("city", pa.string())]
)


@pytest.fixture(autouse=True, params=[MEMORY_BYTES, external_sort.PIECES_SHARE], ids=["merged", "not merged"])
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Little memory, so that some thousand rows are many runs, which are merged once and again, or not at all."""
    monkeypatch.setattr(external_sort, "RUN_SHARE", MEMORY_BYTES // 20_000)
    monkeypatch.setattr(external_sort, "PIECES_SHARE", request.param)
    monkeypatch.setattr(local_disk, "PIECE_ROWS", 64)
    monkeypatch.setattr(spooled_batch, "SPOOL_BYTES_MAX", 10_000)
    monkeypatch.setattr("objcat.engine.local.BATCH_ROWS", 100)


def batch(keys: list[int], tag: str, seed: int = 0) -> pa.Table:
    dice = random.Random(seed)
    rows = [{"id": key, "name": f"{tag}{number}", "at": dice.randrange(50), "city": "abc"[key % 3]} for number, key in enumerate(keys)]
    return pa.Table.from_pylist(rows, SCHEMA)


def stream(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=100)))


def replay(model: dict[int, tuple[int, str]], rows: pa.Table, *, ordered: bool) -> None:
    for row in rows.to_pylist():
        before = model.get(row["id"])
        if before is None or not ordered or row["at"] >= before[0]:
            model[row["id"]] = (row["at"], row["name"])


def found(table: objcat.Table) -> dict[int, tuple[int, str]]:
    rows = table.scan().to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["at"], row["name"]) for row in rows}


@pytest.mark.parametrize("ordering", [None, "at"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("partition_by", [[], ["city"]])
def test_batches_beyond_memory_are_as_batches_within(
    tmp_path: Path, kind: TableType, ordering: str | None, partition_by: list[str]
) -> None:
    dice = random.Random(7)
    table = objcat.connect(tmp_path).create_table(
        "t",
        SCHEMA,
        key=["id"],
        ordering=ordering,
        table_type=kind,
        partition_by=partition_by,
        key_scope="partition",
        index=objcat.BucketIndex(4),
    )
    model: dict[int, tuple[int, str]] = {}
    for step, operation in enumerate(("insert", "upsert", "insert", "upsert")):
        rows = batch([dice.randrange(2000) for _ in range(3000)], f"{step}-", seed=step)
        getattr(table, operation)(rows if step < 2 else stream(rows))
        replay(model, rows, ordered=ordering is not None)
        assert found(table) == model, (step, operation)
    for path in tmp_path.glob("tables/*/data/**/*_0000*.parquet"):
        keys = pq.read_table(path, columns=["id"])["id"]
        assert keys.to_pylist() == sorted(set(keys.to_pylist()))
    gone = [key for key in model if key % 5 == 0]
    table.delete(stream(batch(gone, "").select(["id", "city"])))
    assert found(table) == {key: row for key, row in model.items() if key % 5}
    table.maintenance.compact()
    assert found(table) == {key: row for key, row in model.items() if key % 5}


@pytest.mark.parametrize("ordering", [None, "at"])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_what_deletes_in_a_batch_keep_out_does_not_depend_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableType, ordering: str | None
) -> None:
    """Deletes between rows of the same keys; and rows that come later and are older."""
    lake = objcat.connect(tmp_path)
    seen = []
    for name, share in (("many", external_sort.RUN_SHARE), ("one", 1)):
        monkeypatch.setattr(external_sort, "RUN_SHARE", share)
        table = lake.create_table(name, SCHEMA, key=["id"], ordering=ordering, table_type=kind, index=objcat.BucketIndex(2))
        states = []
        for step in range(3):
            dice = random.Random(step)
            rows = batch([dice.randrange(150) for _ in range(3000)], f"{step}-", seed=step)
            op = pa.array([dice.choice("uuud") for _ in range(rows.num_rows)])
            table.upsert(stream(rows.append_column("op", op)), delete_when="op = 'd'")
            states.append(found(table))
        table.maintenance.compact()
        seen.append([*states, found(table)])
    assert seen[0] == seen[1] and len(seen[0][0]) > 20


def test_a_stream_that_a_conflict_makes_the_write_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"], table_type="copy_on_write", index=objcat.BucketIndex(2))
    table.insert(batch(list(range(500)), "old"))
    other = lake.table("t")
    real = external_sort.sorted_runs
    done: list[bool] = []

    def disturb(*args: Any) -> Any:
        if not done:
            done.append(True)
            other.upsert(batch([1, 2, 3], "other"))
        return real(*args)

    monkeypatch.setattr("objcat.tasks.rewrite_groups.sorted_runs", disturb)
    result = table.upsert(stream(batch(list(range(400, 1500)), "new")))
    assert result.attempts == 2
    names = {key: name for key, (_, name) in found(table).items()}
    assert names[1] == "other0" and names[450] == "new50" and len(names) == 1500


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_bad_rows_late_in_a_stream_write_nothing(tmp_path: Path, kind: TableType) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], table_type=kind)
    rows = batch(list(range(2000)), "x")
    holed = rows.set_column(0, "id", pc.if_else(pc.equal(rows["id"], 1900), None, rows["id"]))
    with pytest.raises(NullKey, match="'id' is null"):
        table.insert(stream(holed))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows.to_batches(max_chunksize=500)
        raise ConnectionError("the source went away")

    with pytest.raises(OSError, match="went away"):
        table.insert(pa.RecordBatchReader.from_batches(rows.schema, failing()))
    with pytest.raises(InvalidBatch, match="empty"):
        table.insert(stream(rows.slice(0, 0)))
    assert table.refresh().slot == 0 and not list(tmp_path.glob("tables/*/data/**/*.parquet"))


def test_bulk_inserts_of_rows_without_a_key_are_laid_out_as_told(tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    dice = random.Random(1)
    keys = [dice.randrange(10_000) for _ in range(5000)]
    for name, sort in (("none", "none"), ("partition", "partition"), ("columns", ["at", "id"])):
        table = lake.create_table(name, SCHEMA, key=None, partition_by=["city"], properties={"target_file_bytes": "4000000"})
        table.bulk_insert(batch(keys, "x"), sort=sort)
        table.bulk_insert(stream(batch(keys, "y")), sort=sort)
        rows = table.scan().to_arrow()
        assert sorted(rows["id"].to_pylist()) == sorted(keys * 2)
        files = table.inspect.files()
        assert set(files["kind"].to_pylist()) == {"base"}
        if name == "columns":
            for path in tmp_path.glob(f"tables/{name}-*/data/**/*.parquet"):
                order = [(row["at"], row["id"]) for row in pq.read_table(path).to_pylist()]
                assert order == sorted(order)


@pytest.mark.parametrize(
    ("key", "sort", "said"),
    [
        (["id"], ["at"], "are sorted by bucket and key"),
        (None, ["att"], "did you mean 'at'"),
        (None, "partitions", "did you mean 'partition'"),
    ],
)
def test_what_cannot_be_sorted_is_one_sentence(tmp_path: Path, key: Any, sort: Any, said: str) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=key)
    with pytest.raises(InvalidInput, match=said):
        table.bulk_insert(batch([1], "x"), sort=sort)
    assert table.refresh().slot == 0


def test_a_cut_stream_that_a_conflict_makes_the_write_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others create the same file groups first, so the rows of the stream become log rows of theirs."""
    lake = objcat.connect(tmp_path)
    table = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(3))
    other = lake.table("t")
    real = parted_rows.PartedRows.of_part
    done: list[int] = []

    def disturb(rows: parted_rows.PartedRows, number: int) -> Iterator[pa.RecordBatch]:
        if not done:
            other.insert(batch([3000, 3001, 3002, 3003], "other"))
        done.append(number)
        return real(rows, number)

    monkeypatch.setattr(parted_rows.PartedRows, "of_part", disturb)
    twice = [*range(1500), *range(0, 1500, 2)]
    result = table.insert(stream(batch(twice, "new")))
    assert result.attempts == 2 and set(done) == {0, 1, 2}
    names = {key: name for key, (_, name) in found(table).items()}
    assert len(names) == 1504 and names[3000] == "other0"
    assert names[1] == "new1" and names[2] == "new1501"


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_stream_is_cut_by_bucket_on_its_way_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compressed: bool) -> None:
    """All rows of a part are of its buckets and in their order, whether they are read by part or all at once."""
    if compressed:
        monkeypatch.setattr(parted_rows, "PLAIN_BYTES_MAX", 20_000)
    monkeypatch.setattr(parted_rows, "CUT_BYTES", 10_000)
    spec = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(6)).spec
    parts = parted_rows.BucketParts.of(spec, Operation.INSERT)
    assert parts is not None and parts.count == 6
    dice = random.Random(4)
    given = batch([dice.randrange(500) for _ in range(3000)], "x")
    rows = spooled_batch.RowSpool(bytes_max=10_000).take(SCHEMA, given.to_batches(max_chunksize=100), parts)
    assert isinstance(rows, spooled_batch.SpooledBatch) and rows.num_rows == 3000
    (cut,) = rows.parts
    assert isinstance(cut, parted_rows.PartedRows) and cut.numbers == list(range(6))
    every = pa.Table.from_batches(rows.to_batches(), SCHEMA)
    assert every.sort_by([("id", "ascending"), ("name", "ascending")]).equals(given.sort_by([("id", "ascending"), ("name", "ascending")]))
    for number in cut.numbers:
        expected = given.filter(pa.array(bucket_of([given["id"]], 6) == number))
        assert pa.Table.from_batches(cut.of_part(number), SCHEMA).equals(expected)
        assert every.filter(pa.array(bucket_of([every["id"]], 6) == number)).equals(expected)
    task = WriteTask(spec, Txn("t"), Operation.INSERT)
    assert cut.fits(task) and cut.fits(replace(task, bucket_counts={"": 12}))
    assert not cut.fits(replace(task, bucket_counts={"": 9}))


@pytest.mark.parametrize(("buckets", "count"), [(1, None), (2, 2), (67, None), (64, 64), (100, 50), (1024, 64)])
def test_parts_divide_the_buckets(tmp_path: Path, buckets: int, count: int | None) -> None:
    table = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(buckets))
    parts = parted_rows.BucketParts.of(table.spec, Operation.INSERT)
    assert (None if parts is None else parts.count) == count
    assert parted_rows.BucketParts.of(table.spec, Operation.UPSERT) is None


def test_rows_that_cannot_be_cut_wait_in_their_order(tmp_path: Path) -> None:
    spec = objcat.connect(tmp_path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4)).spec
    rows = batch(list(range(2000)), "x")
    holed = rows.set_column(0, "id", pc.if_else(pc.equal(rows["id"], 5), None, rows["id"]))
    taken = spooled_batch.RowSpool(bytes_max=10_000).take(
        holed.schema, holed.to_batches(max_chunksize=100), parted_rows.BucketParts.of(spec, Operation.INSERT)
    )
    assert isinstance(taken, spooled_batch.SpooledBatch)
    (cut,) = taken.parts
    assert isinstance(cut, parted_rows.PartedRows) and not cut.fits(WriteTask(spec, Txn("t"), Operation.INSERT))
    assert pa.Table.from_batches(taken.to_batches()).equals(holed)


_DIRECTORIES = itertools.count()


@contextlib.contextmanager
def full_directory(under: Path) -> Iterator[str]:
    """A directory for temporary files, of which those that runs are written to have no room."""
    place = under / str(next(_DIRECTORIES))
    place.mkdir(parents=True)
    for number in range(200):
        (place / f"run-{number}").symlink_to("/dev/full")
    yield str(place)


@pytest.mark.parametrize("full", ["stream", "runs"])
@pytest.mark.parametrize("index", [objcat.BucketIndex(2), objcat.SimpleIndex()])
def test_a_local_disk_without_room_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, index: objcat.BucketIndex | objcat.SimpleIndex
) -> None:
    table = objcat.connect(tmp_path / "lake").create_table("t", SCHEMA, key=["id"], index=index)
    rows = batch(list(range(3000)), "a")
    with monkeypatch.context() as patch:
        if full == "stream":
            patch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b"))  # noqa: SIM115 - the stream closes it
        else:
            patch.setattr(tempfile, "TemporaryDirectory", lambda **_: full_directory(tmp_path / "full"))
        with pytest.raises(StoreFull, match="name another directory in TMPDIR"):
            table.bulk_insert(stream(rows))
    assert table.refresh().slot == 0 and list(table._context.fileio.list_keys("data/")) == []
    table.bulk_insert(stream(rows))
    assert table.scan().count() == 3000
