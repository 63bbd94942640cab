"""Entries made by hand, for tests of what a table's log replays to: no data file is written."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.metadata.files import BaseFile, Bound, LogObject, LogRows, TableDelta, encode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.replay import TablesReducer
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import BucketIndex, TableSpec, make_spec
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, Txn
from objcat.timeline.log_state import LogState

TABLE = "table"
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("fare", pa.float64())])
ID = 1


def make_table(count: int = 4, schema: pa.Schema = SCHEMA) -> TableSpec:
    return make_spec(
        TABLE, schema_from_arrow(schema), key=["id"], ordering=None, index=BucketIndex(count), table_type="merge_on_read", properties={}
    )


def entry(slot: int, delta: TableDelta | None, *, action: Action = Action.DELTA_COMMIT, footprint: Footprint | None = None) -> Entry:
    return Entry(
        format=1,
        slot=slot,
        action=action,
        txn=txn_of(slot),
        base=slot - 1,
        committed_at_ms=slot,
        changes={} if delta is None else {TABLE: encode_delta(delta)},
        footprint={TABLE: footprint or footprint_of(delta or TableDelta())},
    )


def txn_of(slot: int) -> Txn:
    """The transaction of the entry of a slot, below which its files lie."""
    return Txn(f"20261121T000000000Z-{slot:016x}")


def footprint_of(delta: TableDelta) -> Footprint:
    """What an entry with these changes says that it touched, file groups of its index too."""
    bases = (*delta.bases, *(() if delta.index is None else delta.index.bases))
    group_ids = tuple(base.group_id for base in bases)
    return Footprint(
        creates=() if delta.as_of is not None else group_ids,
        replaces=group_ids if delta.as_of is not None else (),
        appends=tuple(part.group_id for log in delta.logs for part in log.slices),
        retires=delta.retires,
        splits=delta.splits,
    )


def base(slot: int, group_id: FileGroupId, *, rows: int = 10, bounds: Mapping[int, Bound] | None = None) -> BaseFile:
    path = f"data/{txn_of(slot)}/{group_id.partition}-{group_id.bucket}-{group_id.bucket_count}.parquet"
    return BaseFile(path=path, bytes=100 + slot, rows=rows, group_id=group_id, bounds=dict(bounds or {}))


def log(slot: int, group_ids: Iterable[FileGroupId], *, number: int = 0, bounds: Mapping[int, Bound] | None = None) -> LogObject:
    parts = tuple(LogRows(group_id, i * 2, i * 2 + 2) for i, group_id in enumerate(group_ids))
    path = f"data/{txn_of(slot)}/{number}.log.parquet"
    return LogObject(path=path, bytes=50, rows=2 * len(parts), row_group_rows=16, slices=parts, bounds=dict(bounds or {}))


class History:
    """A log in memory that is replayed as it grows, and remembers every state that it had."""

    def __init__(self, spec: TableSpec | None = None) -> None:
        self.spec = spec or make_table()
        backend = MemoryBackend("metadata")
        self.fileio = FileIO(backend)
        self._unmeasured = FileIO(backend)
        self.reducer = TablesReducer()
        self.state: Tables = self.reducer.begin()
        self.states: list[Tables] = []
        self.manifests = Manifests(self.fileio)
        self.add(TableDelta(spec=self.spec), action=Action.CREATE)

    @property
    def slot(self) -> int:
        return len(self.states) - 1

    def add(self, delta: TableDelta | None, **more: Any) -> None:
        new = entry(self.slot + 1, delta, **more)
        self.state = self.reducer.advance(self.state, new, self.states.__getitem__)
        self.states.append(self.state)

    def save(self) -> msgspec.Raw:
        """A checkpoint; from now on the log goes on from what its root says. Returns the payload."""
        payload, saved = self.reducer.save(self.fileio, self.state, f"checkpoints/{self.slot:020d}")
        loaded = self.reducer.load(payload)
        assert loaded == saved, "a state is not what its root says"
        assert all(not table.overlay for table in saved.values())
        named = {ref.path for ref in saved[TABLE].manifest}
        assert self.reducer.objects(payload) == named
        assert named <= set(self._unmeasured.list_keys("checkpoints/"))
        self.state = loaded
        self.states[-1] = loaded
        return payload

    def snapshot(self, state: Tables | None = None) -> Snapshot:
        return snapshot_at((state or self.state)[TABLE], self.slot)

    def groups(self, **chosen: Any) -> list[Any]:
        return self.snapshot().file_groups(self.manifests, **chosen)


def snapshot_at(table: Any, slot: int) -> Snapshot:
    return pickle.loads(pickle.dumps(Snapshot(LogState(slot), table)))


def paths_of(groups: Sequence[Any]) -> list[str]:
    return [path for group in groups for path in [*([group.base.path] if group.base else []), *(part.object.path for part in group.logs)]]
