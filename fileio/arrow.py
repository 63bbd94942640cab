"""Any `FileIO` as a `pyarrow.fs.FileSystem`. Arrow reads and writes it, and so do DuckDB and Polars through Arrow datasets.

    filesystem = arrow_filesystem(open_store("s3://lake"))
    dataset = pyarrow.dataset.dataset("city/trips", filesystem=filesystem, format="parquet")
    duckdb.sql("select count(*) from dataset")
    polars.scan_pyarrow_dataset(dataset)

Paths are keys. A directory exists while a key begins with its name and a slash. Creating one does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, FileType, PyFileSystem

from fileio.contract import ObjectMeta, require_written
from fileio.errors import NotFound, PermissionDenied, Unsupported
from fileio.store import FileIO, StoreDescription


def arrow_filesystem(fileio: FileIO) -> FileSystem:
    """A filesystem whose paths are the keys of a store. Safe for many threads; it is pickled as the store's description.

    An object appears whole when its stream is closed, and replaces an existing one. Errors are `FileNotFoundError` and `PermissionError`,
    as Arrow expects. `move` and appending raise Unsupported.

    Args:
        fileio: The store.

    Returns:
        The filesystem.
    """
    return PyFileSystem(FileIOHandler(fileio))


class FileIOHandler(FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The handler that Arrow calls; see `arrow_filesystem`."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileIOHandler):
            return False
        return self._fileio is other._fileio or _description(self._fileio) == _description(other._fileio) is not None

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._fileio.url)

    def __repr__(self) -> str:
        return f"FileIOHandler({self._fileio.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[StoreDescription]]:
        return _reopen, (self._fileio.describe(),)

    def get_type_name(self) -> str:
        """Always `fileio`."""
        return "fileio"

    def normalize_path(self, path: str) -> str:
        """The path without slashes at its ends."""
        return path.strip("/")

    # ---- looking

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        """One HEAD per path, in parallel; one listing more for a path that is not an object."""
        with _arrow_errors():
            return list(self._fileio.env.map(self._info, paths)) if len(paths) > 1 else [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """The objects and directories below a directory, by listing."""
        base = self.normalize_path(selector.base_dir)
        prefix = base + "/" if base else ""
        found: dict[str, FileInfo] = {}
        with _arrow_errors():
            for page in self._fileio.list(prefix, delimiter=None if selector.recursive else "/"):
                for common in page.prefixes:
                    found[common.rstrip("/")] = FileInfo(common.rstrip("/"), FileType.Directory)
                for meta in page.objects:
                    for directory in _directories(meta.key, prefix):
                        found.setdefault(directory, FileInfo(directory, FileType.Directory))
                    found[meta.key] = _file_info(meta)
            if not found and base and not selector.allow_not_found:
                if self._fileio.exists(base):
                    raise NotADirectoryError(f"{base!r} in {self._fileio.url} is an object, not a directory.")
                raise FileNotFoundError(f"No key in {self._fileio.url} begins with {prefix!r}.")
        return list(found.values())

    def _info(self, path: str) -> FileInfo:
        key = self.normalize_path(path)
        if not key:
            return FileInfo(path, FileType.Directory)
        try:
            return _file_info(self._fileio.head(key), path)
        except NotFound:
            page = next(self._fileio.list(key + "/", page_size=1))
            return FileInfo(path, FileType.Directory if page.objects else FileType.NotFound)

    # ---- streams

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """The same as `open_input_file`."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """By `FileIO.open_read`."""
        with _arrow_errors():
            return pa.PythonFile(self._fileio.open_read(self.normalize_path(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """By `FileIO.open_write`. Raises Unsupported for metadata."""
        if metadata:
            raise Unsupported(f"Arrow's metadata cannot be stored with {path!r} in {self._fileio.url}. Leave it out.")
        with _arrow_errors():
            return pa.PythonFile(self._fileio.open_write(self.normalize_path(path)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:  # noqa: ARG002  (Arrow gives it)
        """Raises Unsupported."""
        raise Unsupported(f"{path!r} in {self._fileio.url} cannot be appended to through Arrow. Write a new object.")

    # ---- changing

    def create_dir(self, path: str, recursive: bool) -> None:
        """Does nothing: directories are only beginnings of keys."""

    def delete_file(self, path: str) -> None:
        """Delete one object. Raises FileNotFoundError."""
        key = self.normalize_path(path)
        with _arrow_errors():
            self._fileio.head(key)
            self._delete([key])

    def delete_dir(self, path: str) -> None:
        """Delete all keys below the directory."""
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Delete all keys below the directory."""
        prefix = self.normalize_path(path) + "/"
        with _arrow_errors():
            if self._delete(self._fileio.list_keys(prefix)) == 0 and not missing_dir_ok:
                raise FileNotFoundError(f"No key in {self._fileio.url} begins with {prefix!r}.")

    def delete_root_dir_contents(self) -> None:
        """Delete all keys of the store."""
        with _arrow_errors():
            self._delete(self._fileio.list_keys())

    def copy_file(self, src: str, dest: str) -> None:
        """By `FileIO.copy`, within the store."""
        with _arrow_errors():
            require_written(self._fileio.copy(self.normalize_path(src), self.normalize_path(dest)), repr(dest))

    def move(self, src: str, dest: str) -> None:
        """Raises Unsupported: object stores have no rename."""
        raise Unsupported(f"{src!r} in {self._fileio.url} cannot become {dest!r}. Object stores have no rename. Copy it, then delete it.")

    def _delete(self, keys: Sequence[str] | Iterator[str]) -> int:
        results = self._fileio.delete(keys)
        for result in results:
            if result.error is not None:
                raise result.error
        return len(results)


def _reopen(description: StoreDescription) -> FileIOHandler:
    return FileIOHandler(description.open())


def _description(fileio: FileIO) -> StoreDescription | None:
    try:
        return fileio.describe()
    except Unsupported:
        return None


def _file_info(meta: ObjectMeta, path: str | None = None) -> FileInfo:
    return FileInfo(path or meta.key, FileType.File, size=meta.size, mtime_ns=meta.modified_ms * 1_000_000)


def _directories(key: str, prefix: str) -> Iterator[str]:
    """The directories between `prefix` and `key`, outermost first."""
    end = key.find("/", len(prefix))
    while end >= 0:
        yield key[:end]
        end = key.find("/", end + 1)


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Missing and forbidden objects as the system's error classes, which Arrow knows."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(str(error)) from error
    except PermissionDenied as error:
        raise PermissionError(str(error)) from error


__all__ = ["FileIOHandler", "arrow_filesystem"]
