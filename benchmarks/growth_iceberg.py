"""pyiceberg on the simulated store, as far as it goes: a table of made-up data files, by its own metadata writers and a catalog in memory.

The requests of the catalog itself are not counted. A commit is an append of one data file, which is charged as one PUT.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, clear_manifest_cache
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyiceberg.utils.concurrent import ExecutorFactory

from benchmarks.growth_states import BUCKETS, FILES_PER_COMMIT
from benchmarks.simulated_store import OverlappedEnv, SimulatedBackend
from fileio.contract import Create, Overwrite, require_written
from fileio.errors import NotFound

R = TypeVar("R")

OPERATIONS = ("commit", "open", "plan", "plan_by_bounds")
TABLE = "db.trips"
_ROOT = "simulated://bucket/"
_SCHEMA = Schema(
    NestedField(1, "place", LongType(), required=True),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "day", StringType(), required=True),
    NestedField(4, "fare", DoubleType()),
)
_PARTITIONS = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))


class _Here:
    """The store of this process."""

    backend: SimulatedBackend


class SimulatedIO(FileIO):
    """Files in the simulated store."""

    def new_input(self, location: str) -> InputFile:
        """As pyiceberg asks for it."""
        return _Input(location)

    def new_output(self, location: str) -> OutputFile:
        """As pyiceberg asks for it."""
        return _Output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """As pyiceberg asks for it."""
        _Here.backend.delete_batch([_key(location if isinstance(location, str) else location.location)])


class _Input(InputFile):
    def __len__(self) -> int:
        return _Here.backend.head(_key(self.location)).size

    def exists(self) -> bool:
        try:
            return len(self) >= 0
        except NotFound:
            return False

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002 - the signature of pyiceberg
        found: Any = _Here.backend.get(_key(self.location), None, None)
        return io.BytesIO(found.data)


class _Output(OutputFile):
    def __len__(self) -> int:
        return len(_Input(self.location))

    def exists(self) -> bool:
        return _Input(self.location).exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location)

    def create(self, overwrite: bool = False) -> Any:
        return _Written(self.location, overwrite=overwrite)


class _Written(io.BytesIO):
    """Bytes that become an object when they are closed."""

    def __init__(self, location: str, *, overwrite: bool) -> None:
        super().__init__()
        self._location, self._mode = location, Overwrite() if overwrite else Create()

    def close(self) -> None:
        if not self.closed:
            require_written(_Here.backend.put(_key(self._location), self.getvalue(), self._mode, {}), self._location)
        super().close()


class _Overlapped(Executor):
    """pyiceberg's threads, on the clock of the store."""

    def __init__(self, env: OverlappedEnv) -> None:
        self._env = env

    def submit(self, function: Callable[..., R], /, *args: Any, **more: Any) -> Future[R]:
        return self._env.submit_io(lambda: function(*args, **more))

    def map(self, function: Callable[..., R], *items: Iterable[Any], timeout: float | None = None, chunksize: int = 1) -> Iterator[R]:  # noqa: ARG002
        futures = [self.submit(function, *each) for each in zip(*items, strict=False)]
        return (future.result() for future in futures)


class IcebergState(SimulatedBackend):
    """A table of so many files. No snapshot is expired.

    Args:
        per_partition: Files of each partition.
        per_commit: Files of each append.
    """

    def __init__(self, files: int, *, per_partition: int = BUCKETS, per_commit: int = FILES_PER_COMMIT) -> None:
        super().__init__("iceberg")
        self.here()
        self.catalog = InMemoryCatalog("simulated", warehouse=_ROOT, **{"py-io-impl": f"{__name__}.SimulatedIO"})
        self.catalog.create_namespace("db")
        table = self.catalog.create_table(TABLE, _SCHEMA, partition_spec=_PARTITIONS)
        every = (_data_file(number, number // per_partition) for number in range(files))
        while some := list(islice(every, per_commit)):
            _append(table, some)

    def here(self) -> None:
        """Be the store of this process, which has read nothing yet."""
        _Here.backend = self
        self.opened()
        clear_manifest_cache()
        ExecutorFactory._instance, ExecutorFactory._instance_pid = _Overlapped(self.clock), os.getpid()


STATES: Mapping[str, Callable[[int], IcebergState]] = {
    "files": IcebergState,
    "commits": partial(IcebergState, per_commit=1),
    "partitions": partial(IcebergState, per_partition=1),
}
"""By axis, as those of `growth_states`."""


class IcebergOperations:
    """The operations of `growth_bench.Operations` that pyiceberg has, on such a table."""

    def __init__(self, state: IcebergState) -> None:
        self._state = state

    def _table(self) -> Table:
        self._state.here()
        table = self._state.catalog.load_table(TABLE)
        clear_manifest_cache()
        return table

    def commit(self) -> Callable[[], object]:
        """An append of one data file, by a process that has appended before."""
        table = self._table()
        _append(table, [_data_file(10**9, 0)])
        last = _data_file(10**9 + 1, 0)

        def call() -> None:
            self._state.put(_key(last.file_path), b"x" * 1500, Create(), {})
            _append(table, [last])

        return call

    def open(self) -> Callable[[], object]:
        """Load the table from the catalog."""
        self._state.here()
        return lambda: self._state.catalog.load_table(TABLE)

    def plan(self) -> Callable[[], object]:
        """Plan a scan of one partition."""
        table = self._table()
        return lambda: list(table.scan(row_filter=EqualTo("day", "0000")).plan_files())  # type: ignore[call-arg,arg-type]

    def plan_by_bounds(self) -> Callable[[], object]:
        """Plan a scan of all partitions by the bounds of a column."""
        table = self._table()
        return lambda: list(table.scan(row_filter=EqualTo("id", 42)).plan_files())  # type: ignore[call-arg,arg-type]


def _key(location: str) -> str:
    return location.removeprefix(_ROOT)


def _append(table: Table, files: Iterable[DataFile]) -> None:
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as appended:
        for one in files:
            appended.append_data_file(one)


def _data_file(number: int, partition: int) -> DataFile:
    day = f"{partition:04d}"
    low = number * 7_919 % 10**6
    bounds = {1: (0, 10**6), 2: (low, low + 10**6)}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{_ROOT}data/day={day}/{number:016x}-{low:08x}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        file_size_in_bytes=1 << 24,
        record_count=50_000,
        column_sizes={},
        value_counts=dict.fromkeys((1, 2, 3, 4), 50000),
        null_value_counts=dict.fromkeys((1, 2, 3, 4), 0),
        nan_value_counts={},
        lower_bounds={**{f: b[0].to_bytes(8, "little") for f, b in bounds.items()}, 3: day.encode()},
        upper_bounds={**{f: b[1].to_bytes(8, "little") for f, b in bounds.items()}, 3: day.encode()},
        split_offsets=[4],
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
    )
