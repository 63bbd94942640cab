"""`LakeNamespaces`: the namespaces of a lake, as `lake.namespaces`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping

from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames, NamesDelta, Namespace, check_name
from objcat.catalog.plans import check_name_free, plan_drop_namespace
from objcat.catalog.table_lifecycle import check_changes
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import case_folded, text_mapping
from objcat.errors import NamespaceExists


@reports_full_memory
class LakeNamespaces:
    """Namespaces hold tables and other namespaces. Each change is one commit to the catalog. Safe for many threads and processes."""

    def __init__(self, catalog: Catalog, where: str) -> None:
        """`where`: the URL of the lake, for errors."""
        self._catalog = catalog
        self._where = where

    def __repr__(self) -> str:
        return f"LakeNamespaces({self._where!r})"

    def create(self, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Create a namespace, and the namespaces around it.

        Args:
            name: such as `city` or `city.north`.
            properties: notes, text to text.

        Raises:
            NamespaceExists: it exists already.
            TableExists: a table has that name.
            InvalidInput: the name or a property is not valid.
        """
        name = check_name(name, what="namespace")
        given = text_mapping({} if properties is None else properties, what="properties")

        def plan(names: CatalogNames) -> NamesDelta:
            check_name_free(names, name, where=self._where, error=NamespaceExists)
            return NamesDelta(creates=(*names.missing_namespaces(name, names), Namespace(name, given)))

        self._catalog.change(plan)

    def drop(self, name: str) -> None:
        """Drop an empty namespace.

        Args:
            name: of the namespace.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NamespaceNotEmpty: it holds tables or namespaces; the error names them.
        """
        self._catalog.change(lambda names: plan_drop_namespace(names, name, where=self._where))

    def list(self, namespace: str | None = None) -> builtins.list[str]:
        """The names of the namespaces below one, at every depth, sorted; of all when None. Raises NamespaceNotFound."""
        names = self._catalog.refresh()
        below = below_namespace(names, namespace)
        return sorted(found.name for key, found in names.namespaces.items() if key.startswith(below))

    def properties(self, name: str) -> dict[str, str]:
        """The properties of a namespace. Raises NamespaceNotFound."""
        return dict(self._catalog.refresh().namespace(name).properties)

    def set_properties(self, name: str, properties: Mapping[str, str] | None = None, *, unset: Iterable[str] = ()) -> None:
        """Set and remove properties of a namespace; others stay.

        Args:
            name: of the namespace.
            properties: names and values to set.
            unset: names to remove.

        Raises:
            NamespaceNotFound, InvalidInput: see `objcat.errors`.
        """
        given = {} if properties is None else properties
        removed = check_changes(given, unset)
        changes: dict[str, str | None] = {**given, **dict.fromkeys(removed)}

        def plan(names: CatalogNames) -> NamesDelta | None:
            found = names.namespace(name)
            return NamesDelta(properties={found.name: changes}) if changes else None

        self._catalog.change(plan)


def below_namespace(names: CatalogNames, namespace: str | None) -> str:
    """The prefix that all names of a namespace have in their comparison form; empty for all names."""
    return "" if namespace is None else case_folded(names.namespace(namespace).name) + "."
