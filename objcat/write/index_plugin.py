"""Indexes of other packages: they keep digests of the keys of data files, so that a lookup need not read those files again.

An entry point of the group `objcat.indexes` loads to a callable that takes the options of the table and returns an `IndexPlugin`. A class
whose constructor takes them is one. `objcat.testing.indexes` is the conformance suite.

Data files never change, and the log says which of them are live. So what an index has learned of a file stays right, with any writers that
commit meanwhile, whether they have the package or not. What it has not learned, objcat reads, and teaches it. `PluginLookup` in
`index_lookup` asks it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from objcat.common.plugins import load_plugin
from objcat.errors import ObjcatError, PluginFailed, PluginMissing
from objcat.metadata.properties import INDEX_PLUGIN
from objcat.metadata.table_spec import TableSpec

logger = logging.getLogger("objcat")

GROUP = "objcat.indexes"
_OPTION = f"{INDEX_PLUGIN}."


@dataclass(frozen=True, slots=True, order=True)
class KeyFile:
    """Rows of one data file that were written for one file group. Their keys never change.

    Args:
        path: of the data file. No other data file of any table ever has it.
        start, end: the rows of a log file; 0 and 0 for all rows of a base file.
    """

    path: str
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """What an index answers: which keys are in which files.

    Args:
        keys: numbers of keys in the question, of one whole-number type.
        files: for each of them, the number of a file that holds it. A key in several files is there several times.
        unknown: files of the question whose keys the index does not hold, or not all. What it says of these does not count.
    """

    keys: npt.NDArray[np.integer[Any]]
    files: npt.NDArray[np.integer[Any]]
    unknown: Sequence[KeyFile]


class IndexPlugin(Protocol):
    """An index of another package. Many threads and processes may use it at once; each process makes its own object for each lookup."""

    def find(self, digests: npt.NDArray[np.uint64], files: Sequence[KeyFile]) -> FoundKeys:
        """Find keys in some files.

        A file that is not in `unknown` must have been answered whole, from one moment. If it lacks one of its keys, that key is written a
        second time, and the table holds two rows of it.

        Args:
            digests: of the keys, 64 bits each, in any order. One may be there twice.
            files: live files that may hold them, each once. An index may hold others too, which must not count.
        """

    def add(self, file: KeyFile, digests: npt.NDArray[np.uint64]) -> None:
        """Remember all keys of a file. It may be told again, also by several processes at once, always with the same keys.

        Args:
            file: the file.
            digests: ascending, each once.
        """

    def remove(self, paths: Iterable[str]) -> None:
        """Forget all rows of data files, which are deleted. The index may never have held some of them."""


@dataclass(frozen=True, slots=True)
class NamedIndex:
    """The index that a table names, whose errors and answers are checked.

    Args:
        name: of its entry point.
        plugin: the index.
    """

    name: str
    plugin: IndexPlugin

    def find(self, digests: npt.NDArray[np.uint64], files: Sequence[KeyFile]) -> FoundKeys:
        """See `IndexPlugin.find`. Raises PluginFailed."""
        with _reported(self.name, "when it looked for keys"):
            found = self.plugin.find(digests, files)
            keys, numbers, unknown = np.asarray(found.keys), np.asarray(found.files), list(found.unknown)
        is_right = _are_numbers(keys, len(digests)) and _are_numbers(numbers, len(files)) and len(keys) == len(numbers)
        if not is_right or not set(unknown) <= set(files):
            raise PluginFailed(
                f"The index {self.name!r} answered numbers of keys or files that are not in the question. Correct it, or unset the "
                f"property {INDEX_PLUGIN!r}."
            )
        return FoundKeys(keys.astype(np.int64), numbers.astype(np.int64), unknown)

    def add(self, file: KeyFile, digests: npt.NDArray[np.uint64]) -> None:
        """See `IndexPlugin.add`. Raises PluginFailed."""
        with _reported(self.name, "when it learned the keys of a file"):
            self.plugin.add(file, digests)

    def remove(self, paths: Sequence[str]) -> None:
        """See `IndexPlugin.remove`. Raises PluginFailed."""
        with _reported(self.name, "when it forgot files"):
            self.plugin.remove(paths)


def _are_numbers(answered: npt.NDArray[Any], count: int) -> bool:
    """Whether these are numbers below a count."""
    if answered.ndim != 1 or not len(answered):
        return answered.ndim == 1
    return answered.dtype.kind in "iu" and bool(answered.min() >= 0) and bool(answered.max() < count)


def open_index(properties: Mapping[str, str]) -> NamedIndex | None:
    """The index that a table names. None without the property.

    properties: of the table, which has the options. Raises PluginMissing, PluginFailed.
    """
    name = properties.get(INDEX_PLUGIN)
    if name is None:
        return None
    make = load_plugin(GROUP, name, what="index")
    options = {key.removeprefix(_OPTION): value for key, value in properties.items() if key.startswith(_OPTION)}
    with _reported(name, "when it was opened"):
        return NamedIndex(name, make(options))


def forget_files(spec: TableSpec, paths: Sequence[str]) -> None:
    """Tell the index of a table, if it names one, that data files are deleted. Best effort: what it keeps is never asked for again."""
    try:
        index = open_index(spec.properties)
        if index is not None and paths:
            index.remove([path_of(spec, path) for path in paths])
    except (PluginMissing, PluginFailed) as error:
        logger.warning("The index of table %s still holds digests of keys of %d deleted files: %s", spec.table, len(paths), error)


def path_of(spec: TableSpec, path: str) -> str:
    """The path of a `KeyFile`: with the table, since two tables may have adopted one file."""
    return f"{spec.table}/{path}"


@contextmanager
def _reported(name: str, when: str) -> Iterator[None]:
    """Errors of a plug-in's own code as PluginFailed."""
    try:
        yield
    except ObjcatError:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The index {name!r} failed {when}, with {type(error).__name__}: {error}. Correct it or its options, or unset the property "
            f"{INDEX_PLUGIN!r}."
        ) from error
