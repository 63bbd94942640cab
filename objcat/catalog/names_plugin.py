"""Catalogs of names of other packages: what they store, what they promise, and how they are found.

An entry point of the group `objcat.catalogs` loads to a callable that takes the URL of a lake and options, and returns a `NamesPlugin`.
`objcat.testing.catalogs` is the conformance suite. `PluginCatalog` uses one in the place of the log below the lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from objcat.common.plugins import load_plugin
from objcat.errors import ObjcatError, PluginFailed

GROUP = "objcat.catalogs"
CATALOG_OPTION = "catalog"
"""The option of a lake that says the name of the plug-in. Options with this prefix and a dot are those of the plug-in."""
_PREFIX = f"{CATALOG_OPTION}."
KINDS = ("table", "namespace", "shared_log", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRecord:
    """One thing that a catalog of names stores. `kind` and `key` identify it.

    Args:
        kind: `table`, `namespace`, `shared_log`, or `dropped` for a table that can come back.
        key: the name without regard to case; of a dropped table its id.
        name: as users wrote it.
        url: of the log of a table, `<lake>/tables/...`, which holds its rows and history; empty for other kinds.
        value: JSON for objcat, to store and give back as it is.
    """

    kind: str
    key: str
    name: str
    url: str
    value: str


class NamesPlugin(Protocol):
    """A catalog of the names of one lake. Safe for many threads and processes.

    It says which table a name means, and nothing else: the rows, the schema and the history of a table are in its log, where each commit
    is a conditional PUT. A version counts the commits to the names; it begins with 0, without names.
    """

    def read(self, known: int) -> tuple[int, Sequence[NameRecord]] | None:
        """The newest version and all records of it; None when it is still `known`.

        All records are those of one version, never some of an older one. A commit that was confirmed to anybody is in it.
        """

    def commit(self, version: int, txn: str, puts: Sequence[NameRecord], removes: Sequence[tuple[str, str]]) -> bool:
        """Store the next version if the newest one is `version`, all of it or nothing.

        Args:
            version: that the change was planned from.
            txn: the id of the change, stored with the version.
            puts: records to add, or to put in the place of those of the same kind and key.
            removes: kinds and keys of records that go.

        Returns:
            True: version + 1 is durable and is this change. False: another commit was first, and this one never takes effect.

        Raises:
            Exception: nobody knows whether it took effect or still will.
        """

    def find(self, txn: str) -> int | None:
        """The version that a change became, however long ago; None when there is none."""


def split_catalog_options(options: Mapping[str, object] | None) -> tuple[str | None, dict[str, str], dict[str, object]]:
    """The name of the plug-in in the options of a lake, its own options, and those of the store."""
    given = dict(options or {})
    name = given.pop(CATALOG_OPTION, None)
    own = {key.removeprefix(_PREFIX): str(given.pop(key)) for key in list(given) if str(key).startswith(_PREFIX)}
    return None if name is None else str(name), own, given


def open_plugin(name: str, lake_url: str, options: Mapping[str, str]) -> NamesPlugin:
    """The catalog of names of an installed package, for one lake.

    Raises:
        PluginMissing: it is not installed.
        PluginFailed: it does not take the options.
    """
    make = load_plugin(GROUP, name, what="catalog of names")
    try:
        plugin: NamesPlugin = make(lake_url, dict(options))
    except ObjcatError:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The catalog of names {name!r} could not be opened: {type(error).__name__}: {error}. Check the options that begin with "
            f"{_PREFIX!r}."
        ) from error
    return plugin
