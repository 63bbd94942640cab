"""What an erasure removes from the entries of a table: values, key digests, emptied partitions, earlier states of positions, adopted paths.

The slot, its files and file groups, and all that conflicts and the replay need stay. So an entry without its bounds, metadata and digests
is replayed and judged as before. An entry that lost partitions says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from objcat.metadata.files import OUTER, Adoption, BaseFile, LogObject, TableDelta, decode_delta, encode_delta
from objcat.metadata.key_index_table import INDEX_PARTITION, is_of_index
from objcat.timeline.entry import ERASED_PARTITIONS, Digests, Entry, FileGroupId, Footprint, Keys, PositionChange, SideObject
from objcat.timeline.log_state import MOVED_TABLE, MOVED_TO

KEPT_METADATA = frozenset({"spark.query", MOVED_TO, MOVED_TABLE})
"""objcat's own metadata, which name no data."""

File = TypeVar("File", BaseFile, LogObject)
_ERASED_PATH = re.compile(rf"{OUTER}/erased-[^/]+/\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What is removed from the entries of one table.

    Args:
        id: Of the erasure.
        kept_files: Files of readable slots. Their bounds stay.
        live: Partitions of readable slots. All others go.
        positions: By source, the version whose state stays. Those of all others go, since they may hold keys.
    """

    table: str
    id: str
    kept_files: frozenset[str]
    live: frozenset[str]
    positions: Mapping[str, int] = field(default_factory=dict)

    def of(self, entry: Entry) -> Entry:
        """The redacted entry, with its changes inline. The same entry when nothing has to go. entry: with its changes."""
        footprint = entry.footprint.get(self.table)
        raw = entry.changes.get(self.table)
        positions = {source: self._position(source, change) for source, change in entry.positions.items()}
        if positions != entry.positions:
            erased = {**entry.erased, self.table: entry.erased.get(self.table, ())}
            entry = msgspec.structs.replace(entry, positions=positions, erased=erased)
        if footprint is None and raw is None:
            return entry
        before = TableDelta() if raw is None else decode_delta(raw)
        delta, told = self._delta(before), self._footprint(footprint or Footprint(), entry)
        metadata = {name: value for name, value in entry.metadata.items() if name in KEPT_METADATA}
        also = tuple(msgspec.structs.replace(other, metadata={}) for other in entry.also)
        if delta == before and told == (footprint or Footprint()) and metadata == entry.metadata and also == entry.also:
            return entry
        ids = entry.erased.get(self.table, ())
        if self._forgets(before, footprint or Footprint()):
            ids = tuple(sorted({*ids, self.id}))
        changes = {**entry.changes, self.table: encode_delta(delta)}
        return msgspec.structs.replace(
            entry,
            changes=changes if delta != TableDelta() else {name: part for name, part in changes.items() if name != self.table},
            side=None,
            footprint={**entry.footprint, self.table: told},
            metadata=metadata,
            also=also,
            features={**entry.features, **ERASED_PARTITIONS} if ids else entry.features,
            erased={**entry.erased, self.table: ids},
        )

    def _position(self, source: str, change: PositionChange) -> PositionChange:
        return change if self.positions.get(source) == change.version else PositionChange(change.version)

    def _is_live(self, partition: str) -> bool:
        """Whether a partition, or one below it, holds something."""
        return partition == "" or partition in self.live or any(name.startswith(f"{partition}/") for name in self.live)

    def _stays(self, group_id: FileGroupId) -> bool:
        return is_of_index(group_id) or self._is_live(group_id.partition)

    def _group_ids(self, group_ids: Iterable[FileGroupId]) -> tuple[FileGroupId, ...]:
        return tuple(group_id for group_id in group_ids if self._stays(group_id))

    def _names(self, partitions: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in partitions if self._is_live(name))

    def _delta(self, delta: TableDelta) -> TableDelta:
        logs = (msgspec.structs.replace(log, slices=tuple(rows for rows in log.slices if self._stays(rows.group_id))) for log in delta.logs)
        return msgspec.structs.replace(
            delta,
            bases=tuple(self._unadopted(self._bare(base), at) for at, base in enumerate(delta.bases) if self._stays(base.group_id)),
            logs=tuple(self._bare(log) for log in logs if log.slices),
            retires=self._group_ids(delta.retires),
            splits={name: count for name, count in delta.splits.items() if self._is_live(name)},
            removes=tuple(path for path in delta.removes if self._is_named(path)),
            index=None if delta.index is None else self._delta(delta.index),
        )

    def _bare(self, file: File) -> File:
        """A file without its bounds, unless somebody can still read it."""
        return file if file.path in self.kept_files or not file.bounds else msgspec.structs.replace(file, bounds={})

    def _unadopted(self, base: BaseFile, number: int) -> BaseFile:
        """An adopted file without what its path and its entry say of rows, unless somebody can still read it. number: of the file."""
        if base.adopted is None or base.path in self.kept_files or _ERASED_PATH.fullmatch(base.path):
            return base
        return msgspec.structs.replace(base, path=f"{OUTER}/erased-{self.id}/{number}", adopted=Adoption(txn=base.adopted.txn))

    def _is_named(self, path: str) -> bool:
        """Whether a CLEAN still says that it deleted a file. The path of an adopted one is in words of another tool."""
        if path.startswith(f"{OUTER}/"):
            return False
        partition = partition_of_path(path)
        return partition == INDEX_PARTITION or self._is_live(partition)

    def _footprint(self, footprint: Footprint, entry: Entry) -> Footprint:
        keys = footprint.keys
        if keys is not None:
            keys = Keys(placed=_forgotten(keys.placed, entry), updated=_forgotten(keys.updated, entry))
        return msgspec.structs.replace(
            footprint,
            creates=self._group_ids(footprint.creates),
            appends=self._group_ids(footprint.appends),
            replaces=self._group_ids(footprint.replaces),
            retires=self._group_ids(footprint.retires),
            rmw=self._group_ids(footprint.rmw),
            reads=self._group_ids(footprint.reads),
            overwrites=self._names(footprint.overwrites),
            read_partitions=self._names(footprint.read_partitions),
            splits={name: count for name, count in footprint.splits.items() if self._is_live(name)},
            keys=keys,
        )

    def _forgets(self, delta: TableDelta, footprint: Footprint) -> bool:
        """Whether an entry names a removed partition, so that it means less without it."""
        group_ids = (*footprint.creates, *footprint.appends, *footprint.replaces, *footprint.retires, *footprint.rmw, *footprint.reads)
        group_ids += (
            *delta.retires,
            *(base.group_id for base in delta.bases),
            *(rows.group_id for log in delta.logs for rows in log.slices),
        )
        names = {*footprint.overwrites, *footprint.read_partitions, *footprint.splits, *delta.splits}
        return not all(map(self._stays, set(group_ids))) or not all(map(self._is_live, names))


def partition_of_path(path: str) -> str:
    """The partition in the path of a data file; empty if there is none."""
    return "/".join(path.split("/")[2:-1])


def _forgotten(digests: Digests, entry: Entry) -> Digests:
    """A set of digests that nobody can read any more. This is a conflict for an attempt that needs them."""
    if not digests.count:
        return digests
    return Digests(digests.count, side=SideObject(f"data/{entry.txn}/keys-erased", 0, ""))


__all__ = ["KEPT_METADATA", "Redaction", "partition_of_path"]
