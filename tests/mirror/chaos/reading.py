"""What pyiceberg and deltalake read of a mirror on any store, whether they know its protocol or not.

pyiceberg gets a FileIO over objcat's. deltalake reads a directory that has what the store has: a mirror's paths are relative. Both see an
object as it is when they ask for it, as they would on the store.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.io import FileIO as IcebergIO
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.table import StaticTable

import objcat
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.mirror.delta.actions import checkpoint_version, commit_version
from objcat.mirror.iceberg.location import root_of
from objcat.mirror.iceberg.objects import slot_of_pointer
from tests.mirror.histories import Rows, has_beginning, is_restart

_STORES: dict[str, tuple[FileIO, BoundedCache[bytes]]] = {}
"""By the root of its URIs, a store that pyiceberg reads, and data files of it: they never change."""
CACHED_BYTES_MAX = 64 * 1024**2


class StoreIO(IcebergIO):
    """Reads a store of `_STORES`."""

    def new_input(self, location: str) -> StoreInput:
        return StoreInput(location)

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError(f"a reader of a mirror writes {location}")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise AssertionError(f"a reader of a mirror deletes {location}")


class StoreInput(InputFile):
    """One object."""

    def __len__(self) -> int:
        return len(self._read())

    def exists(self) -> bool:
        try:
            self._read()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._read())

    def _read(self) -> bytes:
        root = next(root for root in _STORES if self.location.startswith(root))
        store, cached = _STORES[root]
        key = self.location.removeprefix(root)
        found = cached.get(key)
        if found is None:
            try:
                found = store.read(key)
            except NotFound as error:
                raise FileNotFoundError(self.location) from error
            if key.startswith("data/"):
                cached.put(key, found, len(found))
        return found


class MirrorReader:
    """Reads the mirrors of a table by other people's readers.

    Args:
        table: a handle that meets no faults.
        directory: for the copy that deltalake reads.
    """

    def __init__(self, table: objcat.Table, directory: Path) -> None:
        self._fileio: FileIO = table._context.fileio
        self._root = root_of(self._fileio)
        _STORES[self._root] = (self._fileio, BoundedCache(bytes_max=CACHED_BYTES_MAX))
        self._copy = directory
        self._copied: dict[str, str] = {}
        self._restarts: dict[int, bool] = {}
        self.readers: Mapping[str, Callable[[int], Rows]] = {"iceberg": self._by_iceberg, "delta": self._by_delta}

    def slots(self) -> dict[str, list[int]]:
        """All slots that have an object that readers begin with, by format."""
        pointers = [slot_of_pointer(key.removeprefix("metadata/")) for key in self._fileio.list_keys("metadata/v")]
        commits = [commit_version(key) for key in self._fileio.list_keys("_delta_log/")]
        return {
            "iceberg": sorted(slot for slot in pointers if slot is not None),
            "delta": sorted(version for version in commits if version is not None),
        }

    def has_beginning(self, version: int) -> bool:
        """Whether readers of Delta can get to a version: not to a restart after a gap before its checkpoint is there."""
        keys = list(self._fileio.list_keys("_delta_log/"))
        commits = {found for key in keys if (found := commit_version(key)) is not None}
        checkpoints = {found for key in keys if (found := checkpoint_version(key)) is not None}
        restarts = {one for one in commits if one not in checkpoints and self._is_restart(one)}
        return has_beginning(version, commits, checkpoints, restarts)

    def _is_restart(self, version: int) -> bool:
        if version not in self._restarts:
            try:
                self._restarts[version] = is_restart(self._fileio.read(f"_delta_log/{version:020d}.json"))
            except NotFound:
                return False
        return self._restarts[version]

    def _by_iceberg(self, slot: int) -> Rows:
        uri = f"{self._root}metadata/v{slot + 1}.metadata.json"
        table = StaticTable.from_metadata(uri, properties={"py-io-impl": f"{__name__}.{StoreIO.__name__}"})
        found: Rows = table.scan().to_arrow().sort_by("id").to_pylist()
        return found

    def _by_delta(self, slot: int) -> Rows:
        self._copy_all()
        read = QueryBuilder().register("t", DeltaTable(str(self._copy), version=slot)).execute("SELECT * FROM t ORDER BY id")
        found: Rows = pa.table(read).to_pylist()
        return found

    def _copy_all(self) -> None:
        """Make the directory as the store is. Data files and vectors come first, so that what a commit names is there if it ever was."""
        pages = [page for prefix in ("_delta_log/", "deltavectors/", "data/") for page in self._fileio.list(prefix)]
        there = {meta.key: meta.version for page in pages for meta in page.objects}
        for key in self._copied.keys() - there.keys():
            (self._copy / key).unlink()
            del self._copied[key]
        for key in sorted(there, key=lambda key: (key.startswith("_delta_log/"), key)):
            if self._copied.get(key) != there[key]:
                self._copy_one(key, there[key])

    def _copy_one(self, key: str, version: str) -> None:
        path = self._copy / key
        try:
            data = self._fileio.read(key)
        except NotFound:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._copied[key] = version
