"""Growing tables and lakes, made in memory: the code that tables use writes the metadata, and data files are not there.

One file group of each table is real, so that a row can be looked up and the services have something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

import objcat
from benchmarks.metadata_bench import Maker
from benchmarks.mirror_tables import name_of
from benchmarks.simulated_store import SimulatedBackend
from fileio.contract import Create, require_written
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NameBinding, NamesDelta, Namespace, log_prefix
from objcat.datafile.bucket_hash import bucket_of
from objcat.lake.lake import Lake
from objcat.maintenance.clean import clean
from objcat.maintenance.maintain import KEPT_SLOTS
from objcat.metadata.files import Bound, TableDelta, encode_delta
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint import SPACING_SLOTS
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, FileGroupId, Footprint, encode_entry, log_key, new_txn

SCHEMA = pa.schema(
    [
        pa.field("place", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        pa.field("fare", pa.float64()),
    ]
)
ROWS = 100
"""Of the real file group."""
LOOKUP = "place = 7 and day = '0000' and id = 42"
BUCKETS = 1_000
"""File groups of a partition, on the axis of files."""
FILES_PER_COMMIT = 10_000
LONG_BUCKETS = 16
MAINTAINED_SLOTS = 256
"""A log on the axis of commits is cleaned and archived, and its checkpoints are expired, once in so many slots, as by maintenance."""
NAMES_PER_COMMIT = 1_000
TABLE = "trips"


def rows(first: int = 0, count: int = ROWS, *, add: float = 0.0) -> pa.Table:
    """Rows of the real file group, with ids from `first` on."""
    ids = range(first, first + count)
    columns = {"place": [7] * count, "id": list(ids), "day": ["0000"] * count, "fare": [number / 7 + add for number in ids]}
    return pa.table(columns, schema=SCHEMA)


class _Maker(Maker):
    """Fills a table with file groups that are not there."""

    def _bounds(self, group_id: FileGroupId, *, rows: int) -> dict[int, Bound]:
        day, low = group_id.partition.removeprefix("day="), self._random.randrange(10**6)
        fare = round(self._random.random() * 500, 2)
        return {1: (0, 10**6, 0), 2: (low, low + 10**6, 0), 3: (day, day, 0), 4: (2.5, fare, self._random.randrange(min(100, rows + 1)))}


def _table(fileio: FileIO, buckets: int) -> int:
    """Create the table with its real file group. Returns the bucket of that."""
    index = objcat.BucketIndex(buckets, ("place",))
    objcat.create_table_at(fileio, SCHEMA, key=["place", "id", "day"], partition_by=["day"], index=index)
    table = objcat.table_at(fileio)
    table.upsert(rows())
    table.maintenance.compact()
    return int(bucket_of([pa.array([7])], buckets)[0])


def _checkpointed(fileio: FileIO) -> None:
    """Commit until a checkpoint is due, and publish it: it holds all files."""
    table = objcat.table_at(fileio)
    while table.refresh().slot % SPACING_SLOTS:
        table.set_properties({"made": str(table.snapshot.slot)})
    table._context.timeline.publish(table._context.view)


def of_groups(partitions: int, buckets: int) -> SimulatedBackend:
    """A table of so many partitions with a base file in each bucket, as commits of 10,000 files and a checkpoint after each."""
    state = SimulatedBackend()
    fileio = state.opened()
    real = _table(fileio, buckets)
    maker = _Maker(fileio)
    every = (FileGroupId(name_of(partition), bucket, buckets) for partition in range(partitions) for bucket in range(buckets))
    some: list[FileGroupId] = []
    for group_id in every:
        if group_id.bucket == real and group_id.partition == name_of(0):
            continue
        some.append(group_id)
        if len(some) == FILES_PER_COMMIT:
            maker.commit(some, [])
            maker.publish()
            some = []
    if some:
        maker.commit(some, [])
        maker.publish()
    _checkpointed(fileio)
    return state


def of_files(files: int) -> SimulatedBackend:
    """A table of so many files, 1,000 in each partition."""
    return of_groups(-(-files // BUCKETS), min(files, BUCKETS))


def of_partitions(partitions: int) -> SimulatedBackend:
    """A table of so many partitions with one file each."""
    return of_groups(partitions, 1)


def of_commits(commits: int) -> SimulatedBackend:
    """A table of 16 file groups with a log of so many commits, each of which replaced one file; maintained as it grew.

    The entries are laid down as objects, since the commit of each would measure this process.
    """
    state = SimulatedBackend()
    fileio = state.opened()
    real = _table(fileio, LONG_BUCKETS)
    maker = _Maker(fileio)
    groups = [FileGroupId(name_of(0), bucket, LONG_BUCKETS) for bucket in range(LONG_BUCKETS) if bucket != real]
    maker.commit(groups, [])
    while (slot := maker.view.slot + 1) < commits:
        entry = _replaces(maker, groups[slot % len(groups)], slot)
        require_written(fileio.put(log_key(slot), encode_entry(entry), Create()), str(slot))
        maker.view = maker.timeline.advance(maker.view, [entry])
        if slot % SPACING_SLOTS == 0:
            maker.publish()
        if slot % MAINTAINED_SLOTS == 0:
            clean(maker.timeline, maker.table, keep_slots=SPACING_SLOTS, view=maker.view)
            if slot >= KEPT_SLOTS:
                archive(maker.timeline, keep_slots=KEPT_SLOTS)
            collect_checkpoints(maker.timeline, Committer(fileio), keep=2)
            maker.view = maker.timeline.refresh(maker.view)
    _checkpointed(fileio)
    return state


def _replaces(maker: Maker, group_id: FileGroupId, slot: int) -> Entry:
    """A commit that writes a base file in the place of another."""
    txn = new_txn(maker.fileio.env)
    return Entry(
        format=1,
        slot=slot,
        action=Action.COMPACTION,
        txn=txn,
        base=slot - 1,
        committed_at_ms=maker.view.log.committed_at_ms + 1000,
        changes={maker.table: encode_delta(TableDelta(bases=(maker._base(txn, group_id),), as_of=slot - 1))},
        footprint={maker.table: Footprint(replaces=(group_id,))},
    )


def of_tables(tables: int) -> SimulatedBackend:
    """A lake of so many tables. One of them is there; the others are names whose logs nobody opens."""
    state = SimulatedBackend()
    fileio = state.opened()
    index = objcat.BucketIndex(LONG_BUCKETS, ("place",))
    table = Lake(fileio).create_table(TABLE, SCHEMA, key=["place", "id", "day"], partition_by=["day"], index=index)
    table.upsert(rows())
    table.maintenance.compact()
    catalog = Catalog(fileio)
    for first in range(1, tables, NAMES_PER_COMMIT):
        catalog.change(partial(_named, fileio.env.new_id(), range(first, min(tables, first + NAMES_PER_COMMIT))))
    for number in range(2 * SPACING_SLOTS):
        # So that a checkpoint holds the names.
        catalog.change(partial(_namespace, number))
    return state


def _named(nonce: str, numbers: range, _: CatalogNames) -> NamesDelta:
    every = ((f"table_{number:06d}", f"{nonce[:8]}{number:08x}") for number in numbers)
    return NamesDelta(binds=tuple(NameBinding(name=name, table=key, prefix=log_prefix(name, key)) for name, key in every))


def _namespace(number: int, _: CatalogNames) -> NamesDelta:
    return NamesDelta(creates=(Namespace(f"space_{number}"),))


AXES: Mapping[str, Callable[[int], SimulatedBackend]] = {
    "files": of_files,
    "commits": of_commits,
    "partitions": of_partitions,
    "tables": of_tables,
}
