"""What runs the tasks of a write, and what an engine declares that it can do.

An engine takes one kind of batch: Arrow data in this process, or a Spark DataFrame. Every engine runs tasks (`Engine`). What else it can do
it declares as `EngineCapabilities`, as a store declares its own: a write asks what is declared, and never what class an engine has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.key_lookup import BatchKeys, BatchKeysHandle, KeyLocations, LocateTask
from objcat.tasks.model import WriteResult, WriteTask

D_contra = TypeVar("D_contra", contravariant=True)


class KeyLookup(Protocol[D_contra]):
    """Looks up the keys of a batch, and writes the batch where its keys are stored."""

    def gathered(self, data: D_contra, spec: TableSpec, former: Collection[str]) -> AbstractContextManager[BatchKeysHandle]:
        """Read the keys of a batch once. The block holds what this takes.

        Args:
            data: The batch.
            spec: The table.
            former: Partitions of earlier partition specs that have file groups, as in `WriteTask`.

        Raises:
            InvalidBatch, NullKey: The batch cannot be written.
        """

    def partitions_named(self, data: D_contra, spec: TableSpec, former: Collection[str]) -> Collection[str]:
        """The partitions of the rows of a batch, at any cost. Raises InvalidBatch."""

    def locate(self, gathered: BatchKeysHandle, task: LocateTask) -> KeyLocations:
        """Find where the keys of a batch are stored. Raises InvalidBatch, NullKey and storage errors."""

    def write_placed(self, located: KeyLocations, targets: Mapping[str, tuple[int, ...]], task: WriteTask) -> WriteResult:
        """Write a located batch, once.

        Args:
            located: The result of the lookup.
            targets: The file groups of rows with new keys, by partition, as numbers in `task.group_ids`.
            task: What to write.
        """


class LocalKeys(Protocol):
    """Gives the keys of a batch that is in this process."""

    def keys_of(self, gathered: BatchKeysHandle) -> BatchKeys:
        """The keys of a batch, in its order."""

    def located_at(self, gathered: BatchKeysHandle, groups: npt.NDArray[np.int64]) -> KeyLocations:
        """The locations of keys that an index has found.

        Args:
            gathered: The keys of the batch.
            groups: For every key the number of its file group, or `NOWHERE`.
        """


class CollectableKeys(Protocol):
    """Collects the keys of a batch to this process, if it is not too large."""

    def keys_told(self, gathered: BatchKeysHandle) -> BatchKeys | None:
        """The keys of a batch, in any order and without partitions; None when there are too many."""


class BatchCache(Protocol[D_contra]):
    """Holds a batch that is computed elsewhere, so that two passes over it see the same rows."""

    def first(self, data: D_contra, spec: TableSpec) -> KeyLocations | None:
        """A large batch for an empty table, in which no key has to be looked up; None when it is better computed once.

        Raises InvalidBatch and storage errors.
        """

    def kept(self, data: D_contra, fileio: FileIO, *, here: bool) -> AbstractContextManager[tuple[Engine[Any], Any]]:
        """A batch that is computed once, until the end of the block, with the engine that looks up its keys and writes it.

        Args:
            data: The batch.
            fileio: The store of the table.
            here: Whether a small batch is collected to this process, and written from it.

        Raises:
            FileIOError: The store failed.
        """


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do beyond running tasks. Each field is the object that does it, None where the engine cannot."""

    key_lookup: KeyLookup[Any] | None = None
    local_keys: LocalKeys | None = None
    collectable_keys: CollectableKeys | None = None
    batch_cache: BatchCache[Any] | None = None

    @property
    def lookup(self) -> KeyLookup[Any]:
        """The key lookup of an engine that must have one."""
        assert self.key_lookup is not None, "this engine does not look up keys"
        return self.key_lookup


class Engine(Protocol[D_contra]):
    """Runs the tasks of a write over one kind of batch."""

    @property
    def name(self) -> str:
        """Its name, with a version if it has one of its own."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What else it can do."""

    def partitions(self, data: D_contra, spec: TableSpec, former: Collection[str]) -> Collection[str] | None:
        """The partitions of the rows of a batch; None when the answer is too expensive. former: as in `WriteTask`."""

    def schema(self, data: D_contra) -> pa.Schema:
        """The columns of a batch. Raises InvalidBatch for a type that Arrow does not have."""

    def write(self, data: D_contra, task: WriteTask) -> WriteResult:
        """Run a task over the whole batch, perhaps in pieces. The files are in the order in which their rows count."""
