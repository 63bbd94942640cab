"""Data files that are not what was committed although they have its size: swapped, or with flipped bytes. Whoever reads them says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import duckdb
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.datafile.open_files import WHOLE_BYTES_MAX
from objcat.errors import CorruptTable
from objcat.inspection.doctor import examine
from objcat.metadata.file_digest import digest_of, footer_digest_of
from objcat.timeline.entry import log_key
from tests.tables.damaging import ROWS, SCHEMA, change_entry, files_of, flip, of_one_row, places, swap, twins, without_digests, written


def through_duckdb(table: objcat.Table) -> object:
    trips = table.scan().to_dataset()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("SELECT sum(v), max(id), max(city) FROM trips")
    assert found is not None
    return found.fetchall()


READS: dict[str, Callable[[objcat.Table], object]] = {
    "arrow": lambda table: table.scan().to_arrow(),
    "batches": lambda table: list(table.scan().to_batches()),
    "dataset": lambda table: table.scan().to_dataset().to_table(),
    "polars": lambda table: table.scan().to_polars(),
    "pandas": lambda table: table.scan().to_pandas(),
    "duckdb": through_duckdb,
    "changes": lambda table: table.changes(since=-1).to_arrow(),
    "incremental": lambda table: table.incremental(since=0).to_arrow(),
    "compaction": lambda table: table.maintenance.compact(),
}


@pytest.fixture
def fileio() -> FileIO:
    return FileIO(MemoryBackend("damage"))


@pytest.mark.parametrize("size", ROWS)
def test_entries_say_the_digests_of_what_was_written(fileio: FileIO, size: str) -> None:
    table = written(fileio, size)
    found = files_of(table)
    assert len(found) >= 3
    for _, file in found:
        data = fileio.read(file.path)
        footer = data[-int.from_bytes(data[-8:-4], "little") - 8 :]
        assert (file.digest, file.footer) == (digest_of(data), footer_digest_of(footer))
        assert (len(data) > WHOLE_BYTES_MAX) == (size == "large")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("size", ROWS)
def test_log_files_of_equal_size_that_were_swapped_are_noticed(fileio: FileIO, size: str, read: str) -> None:
    table = written(fileio, size)
    one, other = twins(table)
    swap(fileio, one, other)
    with pytest.raises(Exception, match=r"that of what was committed xxh3:") as raised:
        READS[read](table)
    assert isinstance(raised.value, CorruptTable) or read == "duckdb"
    assert one.path in str(raised.value) or other.path in str(raised.value)


@pytest.mark.parametrize("size", ROWS)
def test_a_base_file_that_was_swapped_is_noticed(size: str) -> None:
    """By another one of the very same columns, rows and size."""
    of_size: dict[int, list[tuple[objcat.Table, str]]] = {}
    for seed in range(100, 164):
        made = written(FileIO(MemoryBackend("damage")), size, seed=seed)
        _, file = files_of(made)[0]
        of_size.setdefault(file.bytes, []).append((made, file.path))
        if len(of_size[file.bytes]) > 1:
            break
    (table, path), (other, twin) = next(pair for pair in of_size.values() if len(pair) > 1)
    table._context.fileio.put(path, other._context.fileio.read(twin))
    with pytest.raises(CorruptTable, match="that of what was committed") as raised:
        table.scan().to_arrow()
    assert path in str(raised.value)


@pytest.mark.parametrize("size", ROWS)
@pytest.mark.parametrize("read", ["arrow", "compaction", "dataset"])
@pytest.mark.parametrize("known", [True, False], ids=["digests", "none"])
def test_a_flipped_byte_in_any_page_is_noticed(fileio: FileIO, size: str, read: str, known: bool) -> None:
    """With digests in the entries; and by the checksums of the pages alone, as of entries that an older client wrote."""
    table = written(fileio, size)
    if not known:
        for slot, _ in files_of(table):
            change_entry(table, slot, without_digests)
    seen = set()
    for _, file in files_of(table):
        whole = fileio.read(file.path)
        for name, at in places(whole):
            if "_objcat_txn" in name and read != "compaction" and (size == "large" or not known):
                continue  # It is not read.
            flip(fileio, file.path, at)
            with pytest.raises(CorruptTable) as raised:
                READS[read](objcat.table_at(fileio))
            assert file.path in str(raised.value)
            fileio.put(file.path, whole)
            seen.add(name)
    assert {"city dictionary", "city data", "id data", "v data", "_objcat_op data"} <= seen
    assert read != "compaction" or "_objcat_txn dictionary" in seen
    READS[read](objcat.table_at(fileio))


@pytest.mark.parametrize("size", ROWS)
def test_a_flipped_byte_anywhere_is_noticed(fileio: FileIO, size: str) -> None:
    """Of a footer, of the indexes before it, and of the heads of pages too: of large files where they are read at all."""
    table = written(fileio, size)
    base = next(file for _, file in files_of(table))
    whole = fileio.read(base.path)
    footer = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    for at in range(0 if size == "small" else footer, len(whole), 101 if size == "small" else 37):
        flip(fileio, base.path, at)
        with pytest.raises(CorruptTable, match="committed") as raised:
            objcat.table_at(fileio).scan(where="id = 7").to_arrow()
        assert base.path in str(raised.value)
        fileio.put(base.path, whole)


@pytest.mark.parametrize("size", ROWS)
def test_a_file_of_other_rows_than_its_entry_says_is_refused_before_they_are_read(fileio: FileIO, size: str) -> None:
    table = written(fileio, size)
    for slot, file in files_of(table):
        before = fileio.read(log_key(slot))
        change_entry(table, slot, of_one_row)
        opened = objcat.table_at(fileio)
        read = fileio.metrics.snapshot().bytes_read
        with pytest.raises(CorruptTable, match=f"its footer counts {file.rows:,} rows, and 1 were committed") as raised:
            opened.scan().to_arrow()
        assert file.path in str(raised.value)
        others = sum(other.bytes for _, other in files_of(table)) - file.bytes
        assert size == "small" or fileio.metrics.snapshot().bytes_read - read < others + file.bytes // 2
        fileio.put(log_key(slot), before)


def checkpointed(table: objcat.Table) -> objcat.Table:
    """The table opened from a checkpoint."""
    while table.refresh().slot < 32:
        table.set_properties({"target_file_bytes": str(10**6 + table.refresh().slot)})
    table._context.timeline.publish(table._context.timeline.open())
    opened = objcat.table_at(table._context.fileio)
    assert opened.snapshot.table.manifest and not opened.snapshot.table.overlay
    return opened


@pytest.mark.parametrize("index", [objcat.BucketIndex(4), objcat.RecordIndex()], ids=["bucket", "record"])
def test_checkpoints_keep_the_digests(fileio: FileIO, index: objcat.BucketIndex | objcat.RecordIndex) -> None:
    table = written(fileio, "small", index=index)
    known = {file.path: (file.digest, file.footer) for _, file in files_of(table)}
    opened = checkpointed(table)
    groups = opened.snapshot.all_groups(opened._context.manifests)
    live = [group.base for group in groups if group.base is not None] + [part.object for group in groups for part in group.logs]
    assert live and {file.path: (file.digest, file.footer) for file in live}.items() <= known.items()
    assert all(file.digest is not None and file.footer is not None for file in live)
    path = next(part.object.path for group in opened.refresh().file_groups(opened._context.manifests) for part in group.logs)
    flip(fileio, path, len(fileio.read(path)) // 2)
    with pytest.raises(CorruptTable, match="that of what was committed"):
        objcat.table_at(fileio).scan().to_arrow()


def test_swapped_files_of_a_record_index_are_noticed_by_the_next_write(fileio: FileIO) -> None:
    table = objcat.create_table_at(fileio, SCHEMA, key=["id"], index=objcat.RecordIndex(buckets=1))
    for key in range(12):
        table.insert([{"id": key, "city": "Oslo", "v": 1}])
    of_index = sorted((file for _, file in files_of(table) if "-index-" in file.path), key=lambda file: file.bytes)
    swap(fileio, *next((one, other) for one, other in pairwise(of_index) if one.bytes == other.bytes))
    slot = table.refresh().slot
    with pytest.raises(CorruptTable, match="that of what was committed"):
        objcat.table_at(fileio).upsert([{"id": 2, "city": "Lima", "v": 2}])
    assert table.refresh().slot == slot


def test_maintenance_reads_files_at_random_and_tells_of_damage(fileio: FileIO) -> None:
    table = written(fileio, "small")
    files = [file for _, file in files_of(table)]
    done = table.maintenance.run()
    assert (done.verified_files, done.verified_bytes) == (3, sum(file.bytes for file in files)) and not done.damaged
    assert table.maintenance.run(verify_bytes_max=0).verified_files == 0
    flip(fileio, files[1].path, 100)
    seen = set()
    for _ in range(64):
        done = table.maintenance.run(verify_bytes_max=1)
        assert done.verified_files == 1
        seen.add(bool(done.damaged))
        if done.damaged:
            (step,) = [step for step in done.steps if step.service == "verify"]
            assert step.failed and not step.done and files[1].path in step.why and files[1].path in done.damaged[0]
    assert seen == {False, True}
    text = table.maintenance.metrics(verify_bytes_max=10**9)
    for line, expected in {"objcat_verified_files": 3, "objcat_damaged_files": 1, "objcat_files_without_digest": 0}.items():
        assert re.search(rf'^{line}{{table="[^"]*"}} {expected}$', text, re.MULTILINE)
    assert "objcat_verified_files" not in table.maintenance.metrics()


def test_doctor_reads_every_byte_when_it_looks_deep(fileio: FileIO) -> None:
    table = written(fileio, "large")
    change_entry(table, 3, without_digests)
    base, log, _ = (file for _, file in files_of(table))
    # Bytes that no read of rows meets: the index of pages of the one, the magic number at the beginning of the other.
    footer = base.bytes - int.from_bytes(fileio.read(base.path)[-8:-4], "little") - 8
    flip(fileio, base.path, footer - 5)
    flip(fileio, log.path, 1)
    assert examine(table._context.timeline).healthy
    steps: list[str] = []
    report = examine(table._context.timeline, deep=True, on_step=steps.append)
    assert {finding.subject for finding in report.findings} == {base.path, log.path}
    assert all(finding.invariant == "P7" and "that of what was committed" in finding.says for finding in report.findings)
    assert (report.counts["digests verified"], report.counts["files without a digest"]) == (2, 1)
    assert any("2 of 2 files" in step for step in steps)


@pytest.mark.parametrize(("limit", "gone"), [(None, 6), (3, 7)])
def test_history_names_the_slot_that_is_gone(fileio: FileIO, limit: int | None, gone: int) -> None:
    table = objcat.create_table_at(fileio, SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    for number in range(9):
        table.upsert([{"id": number}])
    fileio.delete([log_key(gone)])
    with pytest.raises(CorruptTable, match=log_key(gone)):
        table.inspect.history(limit=limit)
