"""The names of a lake as the REST catalog shows them: a tree of namespaces, and the tables in each."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass

from objcat.catalog.catalog import Catalog
from objcat.catalog.names import NAME_CHARACTERS_MAX, CatalogNames, TableEntry, namespace_of
from objcat.common.validation import case_folded
from objcat.serve.answers import no_such_namespace, no_such_table

logger = logging.getLogger("objcat.serve")

SEPARATOR = "\x1f"
"""Between the parts of a namespace in a URL."""


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table, and how the catalog names it.

    Attributes:
        entry: the entry of the lake's catalog.
        namespace: the parts of its namespace.
        name: without the namespace.
    """

    entry: TableEntry
    namespace: tuple[str, ...]
    name: str


class ServedNames:
    """The names as of one slot of the lake's catalog. Immutable. Names are found without regard to case, as in the lake.

    Iceberg has no table outside a namespace. So the tables of the lake that have none are shown in a namespace of their own, `root`.

    Args:
        names: of the lake.
        root: the name of that namespace. Where the lake has a namespace of this name, its tables without a namespace are not shown.
    """

    def __init__(self, names: CatalogNames, root: str) -> None:
        self.names = names
        self._tables: dict[str, list[TableEntry]] = defaultdict(list)
        for key in sorted(names.tables):
            self._tables[namespace_of(key)].append(names.tables[key])
        self._children: dict[str, list[str]] = defaultdict(list)
        for key in sorted(names.namespaces):
            self._children[namespace_of(key)].append(names.namespaces[key].name)
        outside = self._tables.pop("", [])
        self.hides_root = bool(outside) and case_folded(root) in names.namespaces
        self._root = root if outside and not self.hides_root else None
        if self._root is not None:
            self._tables[case_folded(root)] = outside
            self._children[""] = sorted([*self._children[""], root], key=case_folded)

    @property
    def table_count(self) -> int:
        """How many tables are shown."""
        return sum(map(len, self._tables.values()))

    def namespaces_below(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The namespaces directly below one, or the outermost ones. Raises Refusal."""
        name = self._namespace(parent) if parent else ""
        return [tuple(child.split(".")) for child in self._children.get(case_folded(name), ())]

    def properties_of(self, parts: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
        """The parts of a namespace as it was written, and its properties. Raises Refusal."""
        name = self._namespace(parts)
        found = self.names.namespaces.get(case_folded(name))
        return tuple(name.split(".")), {} if found is None else dict(found.properties)

    def tables_in(self, parts: tuple[str, ...]) -> list[ServedTable]:
        """The tables directly in a namespace, by name. Raises Refusal."""
        name = self._namespace(parts)
        namespace = tuple(name.split("."))
        return [self._served(entry, namespace) for entry in self._tables.get(case_folded(name), ())]

    def table(self, parts: tuple[str, ...], name: str) -> ServedTable:
        """The table of a name.

        Raises Refusal, in an unknown namespace too, and as a missing table: clients in Java ask for `trips` in a namespace `city`, and for
        `snapshots` in a namespace `city.trips`, and look for Iceberg's metadata tables only after a missing table.
        """
        namespace = self._find_namespace(parts)
        entry = None
        if namespace is not None and "." not in name:
            is_root = self._root is not None and case_folded(namespace) == case_folded(self._root)
            entry = self.names.table(name if is_root else f"{namespace}.{name}")
        if entry is None or namespace is None:
            raise no_such_table(".".join((*parts, name)))
        return self._served(entry, tuple(namespace.split(".")))

    def _served(self, entry: TableEntry, namespace: tuple[str, ...]) -> ServedTable:
        return ServedTable(entry, namespace, entry.binding.name.rpartition(".")[2])

    def _namespace(self, parts: tuple[str, ...]) -> str:
        """The name of a namespace as it was written. Raises Refusal."""
        found = self._find_namespace(parts)
        if found is None:
            raise no_such_namespace(".".join(parts))
        return found

    def _find_namespace(self, parts: tuple[str, ...]) -> str | None:
        asked = ".".join(parts)
        if len(asked) > NAME_CHARACTERS_MAX or any("." in part for part in parts):
            return None
        if self._root is not None and case_folded(asked) == case_folded(self._root):
            return self._root
        found = self.names.namespaces.get(case_folded(asked))
        return None if found is None else found.name


class NamesCache:
    """The newest names of a lake, read at most once in a while. Safe for many threads.

    Args:
        catalog: of the lake.
        root: see `ServedNames`.
        cache_s: how many seconds names may be old.
    """

    def __init__(self, catalog: Catalog, *, root: str, cache_s: float) -> None:
        self._catalog = catalog
        self._root = root
        self._cache_s = cache_s
        self._lock = threading.Lock()
        self._served: ServedNames | None = None
        self._read_s = 0.0

    @property
    def known(self) -> ServedNames | None:
        """The names that were read last. Sends no request."""
        return self._served

    def newest(self) -> ServedNames:
        """The names. One GET where the cached ones are too old. Raises the errors of reading a catalog."""
        env = self._catalog.fileio.env
        with self._lock:
            if self._served is not None and env.monotonic_s() - self._read_s < self._cache_s:
                return self._served
            began_s = env.monotonic_s()
            names = self._catalog.refresh()
            if self._served is None or self._served.names is not names:
                before = self._served
                self._served = ServedNames(names, self._root)
                if self._served.hides_root and not (before and before.hides_root):
                    logger.warning(
                        "The lake has a namespace %r, so its tables without a namespace are not served. Choose another name for them "
                        "with --root-namespace.",
                        self._root,
                    )
            self._read_s = began_s
            return self._served
