"""What Spark calls: a reader whose tasks are those of a scan, and a writer that stages rows and hands them to the table as one commit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from fileio.base import Create, ObjectMeta, Version
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import InvalidInput
from objcat.tasks import scan_groups
from objcat.timeline import new_txn
from objcat.timeline.commit import remove_files
from objcat.timeline.entry import data_prefix
from pyspark_objcat.options import FormatOptions, parse_options

TASKS_MAX = 64 * 1024


class DefaultSource(DataSource):
    """The format `objcat`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """How Spark calls it."""
        return "objcat"

    def schema(self) -> StructType:
        """Of what a read gives."""
        return from_arrow_schema(self._parsed.scan().schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """One for the newest snapshot, or the one that the options name."""
        return _Reader(self._parsed, schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """One that commits in the end. Raises InvalidInput for the mode `overwrite`."""
        if overwrite:
            raise InvalidInput(
                'the format objcat has no mode "overwrite": write with .mode("append"), which upserts into a table with a key, or drop the '
                "table first; nothing was written"
            )
        return _Writer(self._parsed, schema)


class _Reader(DataSourceReader):
    """Pickled to the workers before it plans."""

    def __init__(self, options: FormatOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)
        self._store = options.table().fileio.describe()

    def partitions(self) -> Sequence[InputPartition]:
        plan = self._options.scan(self._columns).plan
        tasks = plan.tasks(plan.groups, count_max=max(1, min(len(plan.groups), TASKS_MAX)))
        return [InputPartition(pickle.dumps(task)) for task in tasks] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        with self._store.open() as fileio:
            for rows in scan_groups(fileio, pickle.loads(partition.value)):  # noqa: S301 - our own driver wrote it
                yield from rows.to_batches()


@dataclass
class _Staged(WriterCommitMessage):
    """An object with the rows of one task. path: None when there were none."""

    path: str | None
    size: int


class _Writer(DataSourceArrowWriter):
    """Tasks stage their rows as Parquet objects, below a transaction that never commits; the commit writes them to the table.

    What is staged is deleted afterwards; what a driver that died left behind goes as all that dead writers leave, by `rollback_dead`.
    """

    def __init__(self, options: FormatOptions, schema: StructType) -> None:
        self._options = options
        self._operation = options.operation
        self._schema = to_arrow_schema(schema)
        table = options.table_for(self._schema)
        self._store = table.fileio.describe()
        self._stage = new_txn(table.fileio.env)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._store.open() as fileio:
            return _stage(fileio, f"{data_prefix(self._stage)}{fileio.env.new_id()}.staged.parquet", iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        staged = [message for message in messages if isinstance(message, _Staged) and message.path is not None]
        table = self._options.table()
        try:
            if staged:
                operation = self._operation or ("insert" if table.spec.is_keyless else "upsert")
                settings = {"schema_mode": self._options.own["schema_mode"]} if "schema_mode" in self._options.own else {}
                getattr(table, operation)(_rows(table.fileio, staged, self._schema), **settings)
        finally:
            self._remove(table.fileio)

    def abort(self, messages: Sequence[Any]) -> None:  # noqa: ARG002 - a failed task has none
        with self._store.open() as fileio:
            self._remove(fileio)

    def _remove(self, fileio: FileIO) -> None:
        with suppress(FileIOError):
            remove_files(fileio, list(fileio.list_keys(data_prefix(self._stage))), why=self._stage)


def _stage(fileio: FileIO, path: str, batches: Iterable[pa.RecordBatch]) -> _Staged:
    some = (batch for batch in batches if batch.num_rows)
    first = next(some, None)
    if first is None:
        return _Staged(None, 0)
    with fileio.open_write(path, Create()) as out:
        with pq.ParquetWriter(out, first.schema, compression="zstd") as writer:
            writer.write_batch(first)
            for batch in some:
                writer.write_batch(batch)
        return _Staged(path, int(out.tell()))


def _rows(fileio: FileIO, staged: Sequence[_Staged], schema: pa.Schema) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        for one in staged:
            assert one.path is not None
            meta = ObjectMeta(one.path, one.size, Version(""), 0)
            for batch in pq.ParquetFile(fileio.open_read(one.path, meta=meta), pre_buffer=True).iter_batches():
                yield batch.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
