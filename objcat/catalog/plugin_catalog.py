"""`PluginCatalog`: the names of a lake in a catalog of another package, in the place of a log below the lake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fileio.store import FileIO
from objcat.catalog.catalog import REPLANS_MAX, Catalog
from objcat.catalog.names import NO_NAMES, CatalogNames, DroppedTable, NamesDelta, Namespace, TableEntry, advance_names
from objcat.catalog.names_plugin import KINDS, NameRecord, NamesPlugin, open_plugin
from objcat.errors import CommitUnknown, Contention, CorruptTable, ObjcatError, PluginFailed
from objcat.timeline.entry import Txn, new_txn
from objcat.timeline.hints import FoundHint
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt

T = TypeVar("T")

SETTLE_ATTEMPTS_MAX = 20
"""How often a change with an unknown outcome is fenced while others commit."""


def named_catalog(lake: FileIO, name: str | None, options: Mapping[str, str]) -> Catalog:
    """The catalog of the names of a lake: that of a plug-in, or the log below the lake when `name` is None. Raises as `open_plugin`."""
    return Catalog(lake) if name is None else PluginCatalog(lake, name, open_plugin(name, lake.url, options))


class PluginCatalog(Catalog):
    """The names of a lake, kept by a `NamesPlugin`. A change is one commit of it, or nothing. Safe for many threads.

    The slot of a name is the version of the catalog that bound it.
    """

    def __init__(self, lake: FileIO, name: str, plugin: NamesPlugin) -> None:
        super().__init__(lake)
        self._lake_url = lake.url.rstrip("/")
        self._plugin_name = name
        self._plugin = plugin
        self._state: tuple[int, CatalogNames] = (0, NO_NAMES)

    @property
    def names(self) -> CatalogNames:
        """The newest names that this handle has seen."""
        return self._state[1]

    @property
    def slot(self) -> int:
        """The slot of `names`; -1 while nothing was ever named."""
        return self._state[0] - 1

    def refresh(self, hint: FoundHint | None = None) -> CatalogNames:  # noqa: ARG002 - a plug-in has no hint
        """The newest names. Raises PluginFailed."""
        return self._read()[1]

    def foresee(self) -> tuple[CatalogNames, FoundHint | None]:
        """The names that this handle has seen. Asks nothing."""
        return self.names, None

    def check_writable(self) -> None:
        """Nothing to check: a plug-in has no format of ours."""

    def change(
        self,
        plan: Callable[[CatalogNames], NamesDelta | None],
        *,
        txn: Txn | None = None,
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - a plug-in has no place for it
    ) -> CatalogNames:
        """Commit the change of names that `plan` makes from the newest names, as `Catalog.change`.

        Raises:
            ObjcatError: what `plan` raises.
            PluginFailed, Contention: certainly without effect.
            CommitUnknown: the outcome is unknown.
        """
        own = txn or new_txn(self.fileio.env)
        version, names = self._read()
        for _ in range(REPLANS_MAX):
            delta = plan(names)
            if delta is None:
                return names
            changed = advance_names(names, delta, slot=version, txn=own, at_ms=self.fileio.env.now_ms())
            if self._commit(version, own, names, changed):
                return self._keep_state(version + 1, changed)
            version, names = self._read()
        raise Contention(
            f"{own} conflicted {REPLANS_MAX} times with other changes of the names of {self.where}. Nothing was written. Try again later.",
            winner_slot=self.slot,
        )

    def resolve(self, txn: Txn) -> Resolution:
        """Settle a change whose outcome is unknown. Raises PluginFailed while the catalog does not answer."""
        return self._asked(lambda: self._settled(txn))

    def _commit(self, version: int, txn: Txn, before: CatalogNames, after: CatalogNames) -> bool:
        old, new = self._records(before), self._records(after)
        puts = [record for place, record in new.items() if old.get(place) != record]
        removes = [place for place in old if place not in new]
        try:
            return self._plugin.commit(version, txn, puts, removes)
        except Exception as error:
            try:
                settled = self._settled(txn)
            except Exception:  # noqa: BLE001 - the first failure says why, and this one only that it lasts
                raise CommitUnknown(
                    f"It is not known whether {txn} changed the names of {self.where} ({type(error).__name__}: {error}). Nothing was "
                    "deleted. Call lake.resolve(txn) before you try again. It settles the outcome.",
                    txn,
                ) from error
            if isinstance(settled, CommittedAt):
                return True
            raise PluginFailed(
                f"The catalog of names {self._plugin_name!r} failed with {type(error).__name__}: {error}. The names of {self.where} are "
                "unchanged. Try again when it works."
            ) from error

    def _settled(self, txn: Txn) -> Resolution:
        """The outcome of a change, for ever. A commit without changes takes the only version that it could still become."""
        for _ in range(SETTLE_ATTEMPTS_MAX):
            found = self._plugin.find(txn)
            if found is not None:
                return CommittedAt(found - 1)
            newest = self._plugin.read(-1)
            assert newest is not None, "no version is -1"
            if self._plugin.commit(newest[0], new_txn(self.fileio.env), (), ()):
                found = self._plugin.find(txn)
                return CommittedAt(found - 1) if found is not None else RolledBackAt(newest[0], 0)
        raise Contention(f"{txn} could not be settled while others change the names. Try again later.", winner_slot=self.slot)

    def _read(self) -> tuple[int, CatalogNames]:
        known = self._state
        found = self._asked(lambda: self._plugin.read(known[0]))
        if found is None:
            return known
        version, records = found
        return version, self._keep_state(version, _names_of(records, where=f"the catalog of names {self._plugin_name!r}"))

    def _keep_state(self, version: int, names: CatalogNames) -> CatalogNames:
        with self._lock:
            if self._state[0] < version:
                self._state = (version, names)
        return names

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except ObjcatError:
            raise
        except Exception as error:
            raise PluginFailed(
                f"The catalog of names {self._plugin_name!r} failed with {type(error).__name__}: {error}. Nothing was changed. Try again "
                "when it works."
            ) from error

    def _records(self, names: CatalogNames) -> dict[tuple[str, str], NameRecord]:
        """The records of names, by kind and key."""
        found = [
            *(self._record("table", key, bound.binding.name, bound, bound.binding.prefix) for key, bound in names.tables.items()),
            *(self._record("namespace", key, namespace.name, namespace) for key, namespace in names.namespaces.items()),
            *(self._record("shared_log", key, key, prefix) for key, prefix in names.shared_logs.items()),
            *(self._record("dropped", key, dropped.name, dropped, dropped.binding.prefix) for key, dropped in names.dropped.items()),
        ]
        return {(record.kind, record.key): record for record in found}

    def _record(self, kind: str, key: str, name: str, value: Any, prefix: str = "") -> NameRecord:
        url = f"{self._lake_url}/{prefix}" if prefix else ""
        return NameRecord(kind=kind, key=key, name=name, url=url, value=msgspec.json.encode(value).decode())


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_TABLES = msgspec.json.Decoder(TableEntry)
_NAMESPACES = msgspec.json.Decoder(Namespace)
_SHARED_LOGS = msgspec.json.Decoder(str)
_DROPPED = msgspec.json.Decoder(DroppedTable)


def _names_of(records: Sequence[NameRecord], *, where: str) -> CatalogNames:
    """The names in records. Raises CorruptTable."""

    def decoded(kind: str, decoder: msgspec.json.Decoder[T]) -> dict[str, T]:
        found = {}
        for record in of_kind[kind]:
            try:
                found[record.key] = decoder.decode(record.value)
            except msgspec.MsgspecError as error:
                raise CorruptTable(
                    f"The {kind} {record.name!r} in {where} is not what objcat stored ({error}). Restore it from a backup."
                ) from error
        return found

    of_kind: dict[str, list[NameRecord]] = {kind: [] for kind in KINDS}
    for record in records:
        if record.kind not in of_kind:
            raise CorruptTable(f"{where} holds a {record.kind!r}, which this objcat does not know. Update objcat.")
        of_kind[record.kind].append(record)
    return CatalogNames(
        tables=decoded("table", _TABLES),
        namespaces=decoded("namespace", _NAMESPACES),
        shared_logs=decoded("shared_log", _SHARED_LOGS),
        dropped=decoded("dropped", _DROPPED),
    )
