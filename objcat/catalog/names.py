"""The names of a lake: bindings, namespaces, deltas, and the state that a catalog's log replays to."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from fileio.contract import Create, require_written
from fileio.errors import NotFound
from fileio.options import nearest
from fileio.store import FileIO
from objcat.common.validation import case_folded, text
from objcat.errors import (
    CheckpointCollected,
    CheckpointUnreadable,
    CorruptTable,
    InvalidInput,
    NamespaceNotFound,
    TableNotFound,
)
from objcat.timeline.entry import Action, Count, Entry, Footprint, SideObject, TimeMs, Txn, is_path
from objcat.timeline.json_objects import RESTORE, decode_json
from objcat.timeline.side_objects import read_intact, side_object

D = TypeVar("D")


SUBJECT = "names"
"""The subject of entries of a catalog, in the place of a table's id."""


NAME_CHARACTERS_MAX = 255
"""The most characters of a name."""


INLINE_BYTES_MAX = 64 * 1024
"""Encoded names of a checkpoint that are larger than this go into an object of their own."""


def check_name(name: str, *, what: str = "table") -> str:
    """The canonical form of a name. Raises InvalidInput for a name that some engine cannot express.

    A name has parts joined by dots. A part has letters, marks and digits of any script, `_` and `-`, and begins with a letter, a digit or
    `_`.
    """
    shown = f"{name!r} is not a {what} name"
    if not name or type(name) is not str:
        raise InvalidInput(f"{shown}. Give a text such as 'trips' or 'city.trips'.")
    canonical = unicodedata.normalize("NFC", name)
    if len(canonical) > NAME_CHARACTERS_MAX:
        raise InvalidInput(f"{name[:40]!r}... has {len(canonical)} characters. Use at most {NAME_CHARACTERS_MAX}.")
    for part in canonical.split("."):
        if not part:
            raise InvalidInput(f"{shown}: one of its parts is empty. Join parts by single dots.")
        wrong = [char for char in part if char not in "_-" and unicodedata.category(char)[0] not in "LMN"]
        if wrong or part[0] == "-" or unicodedata.category(part[0])[0] == "M":
            raise InvalidInput(f"{shown} (see {(wrong or part)[0]!r}). Use letters, digits, '_' and '-', in parts joined by '.'.")
    return canonical


def namespace_of(name: str) -> str:
    """The namespace of a name; empty for the lake itself."""
    return name.rpartition(".")[0]


def log_prefix(name: str, nonce: str) -> str:
    """The prefix of a new log: readable, and different from every other in more than case."""
    readable = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in case_folded(name))
    return f"tables/{readable[:80].strip('.') or '_'}-{nonce}"


class NameBinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A name and the table that it means.

    Args:
        name: As it was written.
        table: The table's id.
        prefix: The prefix of its log, relative to the lake.
        shared_log: The name of the log that it shares with other tables. Empty: the table is alone in its log.
        opened: A slot of that log at which the table was open. A CLOSE above it ends this binding; one below it does not.
    """

    name: str
    table: str
    prefix: str
    shared_log: str = msgspec.field(name="domain", default="")
    opened: Count = 0


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A binding in force. slot, txn, at_ms: of the catalog's entry that made it."""

    binding: NameBinding
    slot: Count
    txn: Txn
    at_ms: TimeMs


class DroppedTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table that was dropped. It can be restored until it is purged.

    Args:
        binding: As it was.
        closed: The slot of the CLOSE in its log.
        slot: Of the catalog's entry that unbound it, like `txn` and `at_ms`.
        is_purged: Whether its files were deleted for good. Then only its log is left.
    """

    binding: NameBinding
    closed: Count
    slot: Count
    txn: Txn
    at_ms: TimeMs
    is_purged: bool = False

    @property
    def name(self) -> str:
        """The table's name before the drop."""
        return self.binding.name

    @property
    def table(self) -> str:
        """The table's id."""
        return self.binding.table


class Namespace(msgspec.Struct, frozen=True):
    """A namespace. name: as it was written."""

    name: str
    properties: dict[str, str] = {}


class NamesDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one entry of a catalog changes, in this order.

    Args:
        unbinds: Names that mean nothing from now on.
        drops: By table id, the slot of its CLOSE. Its name is unbound too.
        purges: Ids of dropped tables whose files are deleted for good.
        removes: Namespaces that are gone.
        creates: New namespaces.
        properties: Properties of namespaces to set, or to remove where null.
        binds: What names mean from now on. A binding of a dropped table restores it.
        shared_logs: The prefix of each log that several tables share, by its name.
    """

    unbinds: tuple[str, ...] = ()
    drops: dict[str, Count] = {}
    purges: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    creates: tuple[Namespace, ...] = ()
    properties: dict[str, dict[str, str | None]] = {}
    binds: tuple[NameBinding, ...] = ()
    shared_logs: dict[str, str] = msgspec.field(name="domains", default_factory=dict)


class CatalogNames(msgspec.Struct, frozen=True, kw_only=True):
    """All names of a lake as of one slot of its catalog.

    Tables, namespaces and shared logs are by name without regard to case, dropped tables by id.
    """

    tables: dict[str, TableEntry] = {}
    namespaces: dict[str, Namespace] = {}
    shared_logs: dict[str, str] = msgspec.field(name="domains", default_factory=dict)
    dropped: dict[str, DroppedTable] = {}

    def table(self, name: str) -> TableEntry | None:
        """The table bound to a name; None if there is none."""
        return self.tables.get(case_folded(name))

    def table_of(self, table: str) -> TableEntry | None:
        """The binding of a table, by its id."""
        return next((bound for bound in self.tables.values() if bound.binding.table == table), None)

    def namespace(self, name: str) -> Namespace:
        """The namespace of a name. Raises NamespaceNotFound that names the nearest one."""
        found = self.namespaces.get(case_folded(text(name, what="name of a namespace")))
        if found is None:
            known = [namespace.name for namespace in self.namespaces.values()]
            hint = nearest(name, known) if known else "there are none yet"
            raise NamespaceNotFound(f"There is no namespace {name!r} ({hint}). Create it with lake.create_namespace({name!r}).")
        return found

    def not_found(self, name: str, *, where: str) -> TableNotFound:
        """The error for an unbound name."""
        if case_folded(name) in self.namespaces:
            return TableNotFound(f"{name!r} in {where} is a namespace, not a table. lake.tables({name!r}) lists what it holds.")
        known = [bound.binding.name for bound in self.tables.values()]
        create = f"create it with lake.create_table({name!r}, schema, key=[...])."
        then = f". C{create[1:]}"
        if any(case_folded(table.name) == case_folded(name) and not table.is_purged for table in self.dropped.values()):
            then = f". Restore the dropped one with lake.undrop_table({name!r}), or {create}"
        elif known:
            then = f" ({nearest(name, known)}). Open an existing table, or {create}"
        return TableNotFound(f"There is no table {name!r} in {where}{then}")

    def held_by(self, namespace: str) -> list[str]:
        """Names of all tables and namespaces below a namespace, sorted."""
        below = case_folded(namespace) + "."
        held = [bound.binding.name for key, bound in self.tables.items() if key.startswith(below)]
        return sorted([*held, *(found.name for key, found in self.namespaces.items() if key.startswith(below))])

    def missing_namespaces(self, name: str, first: CatalogNames) -> tuple[Namespace, ...]:
        """The namespaces around a name that do not exist yet, outermost first.

        first: the names when the operation began. Raises NamespaceNotFound for a namespace that existed then: its dropper would find it
        again, without its properties.
        """
        parts = name.split(".")
        wanted = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        missing = [namespace for namespace in wanted if case_folded(namespace) not in self.namespaces]
        for namespace in missing:
            if case_folded(namespace) in first.namespaces:
                raise NamespaceNotFound(
                    f"The namespace {namespace!r} was dropped while {name!r} was added to it. Nothing was written. "
                    "Begin again to create it."
                )
        return tuple(map(Namespace, missing))


NO_NAMES = CatalogNames()
"""The names of an empty catalog."""


def advance_names(names: CatalogNames, delta: NamesDelta, *, slot: int, txn: Txn, at_ms: int) -> CatalogNames:
    """The names after one more entry. Raises CorruptTable for an entry about names that do not exist."""
    _check_known(names, delta, slot=slot)
    tables, namespaces, dropped = dict(names.tables), dict(names.namespaces), dict(names.dropped)
    by_id = {bound.binding.table: bound.binding for bound in tables.values()} if delta.drops else {}
    for name in delta.unbinds:
        tables.pop(case_folded(name), None)
    for table, closed in delta.drops.items():
        binding = by_id[table] if table in by_id else dropped[table].binding
        dropped[table] = DroppedTable(binding=binding, closed=closed, slot=slot, txn=txn, at_ms=at_ms)
    for table in delta.purges:
        dropped[table] = msgspec.structs.replace(dropped[table], is_purged=True)
    for name in delta.removes:
        namespaces.pop(case_folded(name), None)
    for namespace in delta.creates:
        namespaces[case_folded(namespace.name)] = namespace
    for name, changes in delta.properties.items():
        before = namespaces[case_folded(name)]
        merged = {**before.properties, **changes}
        namespaces[case_folded(name)] = Namespace(before.name, {key: value for key, value in merged.items() if value is not None})
    for binding in delta.binds:
        tables[case_folded(binding.name)] = TableEntry(binding=binding, slot=slot, txn=txn, at_ms=at_ms)
        dropped.pop(binding.table, None)
    shared_logs = {**names.shared_logs, **{case_folded(shared_log): prefix for shared_log, prefix in delta.shared_logs.items()}}
    return CatalogNames(tables=tables, namespaces=namespaces, shared_logs=shared_logs, dropped=dropped)


def _check_known(names: CatalogNames, delta: NamesDelta, *, slot: int) -> None:
    """Check that what a change refers to exists, and that logs are within the lake. Raises CorruptTable."""
    bound = {one.binding.table for one in names.tables.values()} if delta.drops else set[str]()
    created = {case_folded(namespace.name) for namespace in delta.creates}
    unknown = [f"`drops` of table {table}" for table in delta.drops if table not in bound and table not in names.dropped]
    unknown += [f"`purges` of table {table}" for table in delta.purges if table not in names.dropped]
    unknown += [
        f"`properties` of {name}"
        for name in delta.properties
        if case_folded(name) not in names.namespaces and case_folded(name) not in created
    ]
    unknown += [f"`binds` of {binding.name} to {binding.prefix!r}" for binding in delta.binds if not is_path(binding.prefix)]
    unknown += [f"`domains` at {prefix!r}" for prefix in delta.shared_logs.values() if not is_path(prefix)]
    if unknown:
        raise CorruptTable(f"Slot {slot} of the catalog says {unknown[0]}, which is not there or not within the lake. {RESTORE}")


def footprint_of(names: CatalogNames, delta: NamesDelta) -> Footprint:
    """What a change touches and needs.

    Shared logs and tables count as names too, marked by a word that no name can begin with.
    """
    binds = [binding.name for binding in delta.binds]
    created = [namespace.name for namespace in delta.creates]
    parents = {case_folded(namespace_of(name)) for name in (*binds, *created)} - {"", *map(case_folded, created)}
    dropped = [_table_key(binding.table) for binding in delta.binds if binding.table in names.dropped]
    return Footprint(
        binds=_keys(
            [*map(case_folded, [*binds, *created]), *(f"domain:{case_folded(shared_log)}" for shared_log in delta.shared_logs), *dropped]
        ),
        unbinds=_keys([*map(case_folded, [*delta.unbinds, *delta.removes]), *map(_table_key, [*delta.drops, *delta.purges])]),
        needs=_keys([*parents, *map(case_folded, delta.properties)]),
        empties=_keys(map(case_folded, delta.removes)),
    )


def _table_key(table: str) -> str:
    return f"table:{table}"


def _keys(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(found)))


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and the entry that made it."""

    delta: NamesDelta
    slot: int
    txn: Txn
    at_ms: int


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Names as of one slot: those of an object or of `names`, and the changes since.

    With `names` None, the names are in the object. They are read when they are needed, not when a checkpoint is opened.
    """

    object: SideObject | None = None
    names: CatalogNames | None = NO_NAMES
    steps: tuple[_Step, ...] = ()

    def read(self, fileio: FileIO) -> CatalogNames:
        """The names. One GET when they are in an object. Raises CorruptTable, CheckpointCollected."""
        names = self.names
        if names is None:
            assert self.object is not None
            names = _decode(_read_object(fileio, self.object), _NAMES, where=self.object.path)
        for step in self.steps:
            names = advance_names(names, step.delta, slot=step.slot, txn=step.txn, at_ms=step.at_ms)
        return names


class _CatalogRoot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a checkpoint's root holds: the names, or where they are."""

    names: CatalogNames | None = None
    object: SideObject | None = None


# As in `objcat.timeline.entry`: types must be known before threads meet them.
_DELTAS = msgspec.json.Decoder(NamesDelta)


_NAMES = msgspec.json.Decoder(CatalogNames)


_ROOTS = msgspec.json.Decoder(_CatalogRoot)


class NamesReducer:
    """The `LogReducer` of a catalog's log."""

    def begin(self) -> CatalogState:
        """No names."""
        return CatalogState()

    def advance(self, state: CatalogState, entry: Entry, at: Callable[[int], CatalogState]) -> CatalogState:  # noqa: ARG002
        """The names after one more entry. Raises CorruptTable for an entry that is not a catalog's."""
        raw = entry.changes.get(SUBJECT)
        if raw is None:
            if entry.action is Action.ROLLBACK:
                return state
            raise CorruptTable(
                f"Slot {entry.slot} of the catalog is a {entry.action} that changes no names. Check whether this is a table's log."
            )
        delta = _decode(bytes(raw), _DELTAS, where=f"slot {entry.slot} of the catalog")
        step = _Step(delta=delta, slot=entry.slot, txn=entry.txn, at_ms=entry.committed_at_ms)
        if state.names is None:
            return replace(state, steps=(*state.steps, step))
        return CatalogState(names=advance_names(state.names, delta, slot=step.slot, txn=step.txn, at_ms=step.at_ms))

    def save(self, fileio: FileIO, state: CatalogState, folder: str) -> tuple[msgspec.Raw, CatalogState]:
        """Write the names, as `LogReducer.save`."""
        if state.object is not None and not state.steps:
            return _encode(_CatalogRoot(object=state.object)), state
        names = state.read(fileio)
        data = msgspec.json.encode(names)
        if len(data) <= INLINE_BYTES_MAX:
            return _encode(_CatalogRoot(names=names)), CatalogState(names=names)
        path = f"{folder.rstrip('/')}/names-{fileio.env.new_id()}.json"
        require_written(fileio.put(path, data, Create()), path)
        written = side_object(path, data)
        return _encode(_CatalogRoot(object=written)), CatalogState(object=written, names=None)

    def load(self, payload: msgspec.Raw) -> CatalogState:
        """The state of a root. Sends no request. Raises CorruptTable."""
        root = _decode(bytes(payload), _ROOTS, where="a checkpoint of the catalog")
        if (root.names is None) == (root.object is None):
            raise CorruptTable(f"A checkpoint of the catalog must say either `names` or `object`. It says none, or both. {RESTORE}")
        return CatalogState(object=root.object, names=root.names)

    def objects(self, payload: msgspec.Raw) -> frozenset[str]:
        """The path of the object with the names, if there is one."""
        root = _decode(bytes(payload), _ROOTS, where="a checkpoint of the catalog")
        return frozenset() if root.object is None else frozenset({root.object.path})


def _read_object(fileio: FileIO, found: SideObject) -> bytes:
    try:
        return read_intact(fileio, found.path, found.sha256, named_by="checkpoint")
    except NotFound as error:
        raise CheckpointCollected(f"{found.path} was deleted with its checkpoint. Open the catalog again.", path=found.path) from error
    except CorruptTable as error:
        raise CheckpointUnreadable(f"{error} Or open the catalog again, which then uses an older checkpoint.", path=found.path) from error


def _encode(root: _CatalogRoot) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(root))


def _decode(data: bytes, decoder: msgspec.json.Decoder[D], *, where: str) -> D:
    return decode_json(data, decoder, where=where, what="what this objcat knows of names")
