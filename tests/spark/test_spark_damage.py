"""Damaged data files under Spark: its own reader holds pages against their checksums, and files in the place of others are met before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import objcat
from fileio.registry import open_store
from objcat.errors import CorruptTable
from objcat.spark import versions
from tests.tables.damaging import change_entry, files_of, flip, of_one_row, places, swap, twins, written

CHECKED = "parquet.page.verify-checksum.enabled"
READS: dict[str, Callable[[SparkSession, objcat.Table], DataFrame]] = {
    "native": lambda spark, table: table.scan().to_spark(spark),
    "incremental": lambda spark, table: table.incremental(since=0).to_spark(spark),
    "through Arrow": lambda spark, table: table.changes(since=0).to_spark(spark),
}
if versions.HAS_PYTHON_SOURCES:
    READS["format"] = lambda spark, table: spark.read.format("objcat").load(table._context.fileio.url)


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    return written(open_store(str(tmp_path)), "small")


def read(spark: SparkSession, table: objcat.Table, how: str) -> list[object]:
    return list(READS[how](spark, table).collect())


def spoiled(table: objcat.Table, path: str) -> Iterator[str]:
    """What is damaged in the file while the consumer looks: each page of its first row group in turn."""
    whole = table._context.fileio.read(path)
    for name, at in places(whole):
        flip(table._context.fileio, path, at)
        yield name
        table._context.fileio.put(path, whole)


@pytest.mark.parametrize("number", [0, 1], ids=["base", "log"])
def test_sparks_own_reader_holds_every_page_against_its_checksum(spark: SparkSession, table: objcat.Table, number: int) -> None:
    """Dictionaries too, also those of columns that a filter is about: no row group is passed over for what a damaged one says."""
    _, file = files_of(table)[number]
    slot = spark.conf.get(CHECKED, None)
    seen = []
    for name in spoiled(table, file.path):
        if "_objcat_txn" in name:
            continue  # It is not read.
        with pytest.raises(Exception, match="checksum verification failed") as raised:
            objcat.table_at(table._context.fileio).scan(where="city <> 'Rome'").to_spark(spark).collect()
        assert file.path in str(raised.value) and "FAILED_READ_FILE" in str(raised.value)
        seen.append(name)
    assert {"city dictionary", "city data", "id data", "v data"} <= {*seen}
    assert number == 0 or {"_objcat_op dictionary", "_objcat_op data"} <= {*seen}
    assert spark.conf.get(CHECKED, None) == slot, "the session is as it was"
    assert objcat.table_at(table._context.fileio).scan().to_spark(spark).count() == 1000


@pytest.mark.parametrize("how", ["incremental", "through Arrow", "format"])
def test_a_damaged_page_is_an_error_that_names_the_file(spark: SparkSession, table: objcat.Table, how: str) -> None:
    _, file = files_of(table)[2]
    for name in spoiled(table, file.path):
        if name in ("_objcat_op dictionary", "v data"):
            with pytest.raises(Exception, match=file.path.rpartition("/")[2]):
                read(spark, objcat.table_at(table._context.fileio), how)


def test_a_write_that_meets_a_damaged_page_in_a_job_raises_an_error_of_ours(spark: SparkSession, table: objcat.Table) -> None:
    _, file = files_of(table)[0]
    for name in spoiled(table, file.path):
        if name == "v data":
            with pytest.raises(CorruptTable, match="differs from its checksum") as raised:
                table.upsert(objcat.table_at(table._context.fileio).scan().to_spark(spark))
            assert file.path in str(raised.value)
    assert table.refresh().slot == 3


@pytest.mark.parametrize("how", READS)
def test_swapped_log_files_are_noticed(spark: SparkSession, table: objcat.Table, how: str) -> None:
    swap(table._context.fileio, *twins(table))
    with pytest.raises(Exception, match="that of what was committed"):
        read(spark, objcat.table_at(table._context.fileio), how)


def test_a_file_of_other_rows_than_its_entry_says_is_refused_before_a_job_begins(spark: SparkSession, table: objcat.Table) -> None:
    change_entry(table, 1, of_one_row)
    with pytest.raises(CorruptTable, match="counts 1,000 rows, and 1 were committed"):
        objcat.table_at(table._context.fileio).scan().to_spark(spark)
