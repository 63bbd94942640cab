"""What a store says, read by other code than the code under test: logs as plain JSON, the files, what is live, and who may delete what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tests.explorer.store import Contents

GroupKey: TypeAlias = tuple[str, int, int]
"""Partition, bucket, bucket count."""
Rows: TypeAlias = Mapping[int, str]
"""A table as a dict: key to value."""

HASHES = {2: 0, 0: 1, 3: 3}
"""Keys that the explorer's tables hold, with their hash modulo 4: key 2 lives in bucket 0, the others in bucket 1, until a split in two."""


LOCATED = ("simple", "bloom", "memory", "record")
"""Indexes under which a key lives in whatever file group took it."""
BAG_KEY = 0
"""The key of the one row of a derived table."""
CATALOG = "names"
"""What entries of a catalog change: stands where those of a table have a table's id."""


class Change(NamedTuple):
    """What an entry says of one table. bases: (file group, path). logs: (path, ((file group, start, end), ...)). apps: (name, version).

    ordered, located, without_key, indexed, properties: of the table from now on, where the entry creates it or changes how it is made up.
    of_index: what it says of the index of the table, which has files like a table.
    """

    table: str
    bases: tuple[tuple[GroupKey, str], ...] = ()
    as_of: int | None = None
    retires: tuple[GroupKey, ...] = ()
    logs: tuple[tuple[str, tuple[tuple[GroupKey, int, int], ...]], ...] = ()
    splits: tuple[tuple[str, int], ...] = ()
    bound: int | None = None
    saves: int | None = None
    releases: int | None = None
    restores: int | None = None
    apps: tuple[tuple[str, int], ...] = ()
    ordered: bool = False
    located: bool = False
    without_key: bool = False
    indexed: bool = False
    properties: tuple[tuple[str, str], ...] | None = None
    of_index: Change | None = None

    @property
    def files(self) -> tuple[str, ...]:
        own = (*(path for _, path in self.bases), *(path for path, _ in self.logs))
        return own if self.of_index is None else own + self.of_index.files


Meaning: TypeAlias = tuple[str, tuple[int, ...], str]
"""What a writer meant: (verb, keys, mark)."""


class Position(NamedTuple):
    """A position in an entry.

    rows: what its state counts, None where that is an object, or of a derived table. path: of that object. derived: the table that shows
    these slots of others; empty of other sources.
    """

    source: str
    version: int
    rows: int | None
    path: str | None
    derived: str = ""
    shows: tuple[tuple[str, int], ...] = ()


class Slot(NamedTuple):
    """An entry of a log.

    does: what its writer meant, in the words of the explorer's roles: (verb, keys, mark), see `_meant`. whole: the tables which its writer
    meant to change together; empty where it says nothing of that. positions: of sources. also: the other transactions of the slot, and what
    their writers meant.
    """

    txn: str
    action: str
    rollback_of: str | None
    plan: str | None
    committed_at_ms: int
    number: int
    changes: tuple[Change, ...]
    apps: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    naming: Naming | None
    is_tombstone: bool
    does: Meaning | None
    whole: tuple[str, ...]
    positions: tuple[Position, ...] = ()
    also: tuple[tuple[str, Meaning | None], ...] = ()

    @property
    def txns(self) -> tuple[str, ...]:
        return (self.txn, *(txn for txn, _ in self.also))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(path for change in self.changes for path in change.files)

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(change.table for change in self.changes)


class Block(NamedTuple):
    """The rows `start` to `end` of a log object, which count as of a slot."""

    slot: int
    path: str
    start: int
    end: int


class Group(NamedTuple):
    """What is live in a file group. as_of: the slot up to which the base file holds its rows."""

    base: str | None = None
    as_of: int = -1
    blocks: tuple[Block, ...] = ()


class TableAt(NamedTuple):
    """A table as of one slot: groups by what the entries say of files, rows by what their writers meant.

    ordered: rows are measured by their values, deletes too. ended: of such a table, keys whose greatest value is that of a delete. located:
    keys are in whatever file group took them. without_key: so are rows, and each of them counts. of_index: of a table that says itself
    where keys are, the groups of files in which it does."""

    groups: Mapping[GroupKey, Group]
    counts: Mapping[str, int]
    bound: int
    saved: frozenset[int]
    closed: bool
    rows: Rows
    apps: Mapping[str, int]
    ordered: bool
    ended: Rows
    properties: Mapping[str, str]
    located: bool = False
    without_key: bool = False
    of_index: TableAt | None = None

    @property
    def files(self) -> frozenset[str]:
        own = frozenset(path for group in self.groups.values() for path in paths_of(group))
        return own if self.of_index is None else own | self.of_index.files


EMPTY = TableAt({}, {}, 0, frozenset(), False, {}, {}, False, {}, {})
Tables: TypeAlias = Mapping[str, TableAt]


class Naming(NamedTuple):
    """What an entry says of names. binds: (name, table, prefix of its log). spaces: namespaces from now on; gone: those that are not any
    more. All names are in lower case."""

    binds: tuple[tuple[str, str, str], ...] = ()
    unbinds: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class LogFacts(NamedTuple):
    """One log. slots: by number in the key. states: the tables after each slot, as far as there is no gap. broken: why there is no more."""

    prefix: str
    slots: Mapping[int, Slot]
    head: int
    states: tuple[Tables, ...]
    broken: str | None


class Facts(NamedTuple):
    """logs: by prefix. files: content of every object that is there. committed, rolled_back: where, by txn.

    roots: of checkpoints, and what each names, as keys; a void one names nothing.
    """

    logs: Mapping[str, LogFacts]
    files: Mapping[str, bytes]
    committed: Mapping[str, tuple[tuple[str, int], ...]]
    rolled_back: Mapping[str, tuple[tuple[str, int], ...]]
    roots: Mapping[str, tuple[str, ...]]

    def head(self, prefix: str) -> int:
        """The highest slot of a log, -1 for none."""
        log = self.logs.get(prefix)
        return -1 if log is None else log.head


def place_of_slot(key: str) -> tuple[str, int] | None:
    """The prefix and the number of a key of a log."""
    folder, _, name = key.rpartition("/")
    if folder != "log" and not folder.endswith("/log"):
        return None
    return folder[: -len("log")], int(name.removesuffix(".json"))


def facts_of(contents: Contents) -> Facts:
    """Read a whole store."""
    found: dict[str, dict[int, Slot]] = {}
    for key, place in contents.items():
        where = place_of_slot(key)
        if where is not None and place.now is not None:
            found.setdefault(where[0], {})[where[1]] = _whole(parse_slot(place.now.data), place.now.data, where[0], contents)
    committed: dict[str, tuple[tuple[str, int], ...]] = {}
    rolled_back: dict[str, tuple[tuple[str, int], ...]] = {}
    logs = {}
    for prefix in sorted(found):
        slots = found[prefix]
        for number in sorted(slots):
            slot = slots[number]
            for txn in slot.txns:
                committed[txn] = (*committed.get(txn, ()), (prefix, number))
            if slot.rollback_of is not None:
                rolled_back[slot.rollback_of] = (*rolled_back.get(slot.rollback_of, ()), (prefix, number))
        dense = tuple(slots[number] for number in range(len(slots)) if number in slots)
        states, broken = replay(dense) if len(dense) == len(slots) else ((), "P1: there is a gap")
        logs[prefix] = LogFacts(prefix, slots, max(slots), states, broken)
    files = {key: place.now.data for key, place in contents.items() if place.now is not None}
    roots = {key: _named_by(key.partition("checkpoints/")[0], data) for key, data in files.items() if key.endswith("/root.json")}
    return Facts(logs, files, committed, rolled_back, roots)


@lru_cache(maxsize=100_000)
def _named_by(prefix: str, data: bytes) -> tuple[str, ...]:
    """The keys of the objects that a root names: every text in it that is a path below `checkpoints/`."""
    found, left = [], [json.loads(data)]
    while left:
        value = left.pop()
        if isinstance(value, (list, dict)):
            left.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, str) and value.startswith("checkpoints/"):
            found.append(prefix + value)
    return tuple(sorted(found))


def _whole(slot: Slot, data: bytes, prefix: str, contents: Contents) -> Slot:
    """The entry that a tombstone sends its reader to, as far as the tombstone keeps what others decide by: else the tombstone itself."""
    if not slot.is_tombstone:
        return slot
    history = json.loads(data)["history"]
    place = contents.get(prefix + history["file"]["path"])
    if place is None or place.now is None:
        return slot
    whole = _rows_of(place.now.data)[history["row"]]
    decides = ("txns", "action", "rollback_of", "plan", "committed_at_ms", "number", "apps")
    return whole if all(getattr(whole, name) == getattr(slot, name) for name in decides) else slot


@lru_cache(maxsize=1000)
def _rows_of(data: bytes) -> tuple[Slot, ...]:
    """The entries of a history file."""
    return tuple(map(parse_slot, pq.read_table(pa.BufferReader(data)).column("entry").to_pylist()))


@lru_cache(maxsize=100_000)
def parse_slot(data: bytes) -> Slot:
    """The entry of a slot's bytes."""
    entry: dict[str, Any] = json.loads(data)
    changes, footprints, apps = entry.get("changes", {}), entry.get("footprint", {}), entry.get("apps", {})
    return Slot(
        txn=entry["txn"],
        action=entry["action"],
        rollback_of=entry.get("rollback_of"),
        plan=entry.get("plan"),
        committed_at_ms=entry["committed_at_ms"],
        number=entry["slot"],
        changes=tuple(
            _change(table, changes.get(table, {}), footprints.get(table, {}), apps.get(table, {}))
            for table in dict.fromkeys((*footprints, *changes))
        ),
        apps=tuple((table, tuple(sorted(versions.items()))) for table, versions in sorted(apps.items())),
        naming=_naming(changes[CATALOG]) if CATALOG in changes else None,
        is_tombstone=entry.get("history") is not None,
        does=_meaning(entry.get("metadata", {})),
        whole=tuple(entry.get("metadata", {}).get("tables", "").split()),
        positions=tuple(_position(source, one) for source, one in entry.get("positions", {}).items()),
        also=tuple((other["txn"], _meaning(other.get("metadata", {}))) for other in entry.get("also", ())),
    )


def _meaning(metadata: dict[str, str]) -> Meaning | None:
    said = metadata.get("does", "").split()
    return (said[0], tuple(int(key) for key in said[1].split(",")), said[2]) if said else None


def _position(source: str, one: dict[str, Any]) -> Position:
    state = one.get("state", {})
    shows = tuple((known["table"], known["slot"]) for known in state.get("sources", {}).values())
    _, _, derived = source.partition("derived:")
    return Position(source, one["version"], state.get("rows"), one.get("side", {}).get("path"), derived, shows)


def _change(table: str, delta: Any, footprint: dict[str, Any], apps: dict[str, int]) -> Change:
    if not isinstance(delta, dict):
        delta = {}
    spec = delta.get("spec")
    return Change(
        table=table,
        bases=tuple((_group_id(base["home"]), base["path"]) for base in delta.get("bases", ())),
        as_of=delta.get("as_of"),
        retires=tuple(_group_id(group_id) for group_id in delta.get("retires", ())),
        logs=tuple(
            (log["path"], tuple((_group_id(group_id), start, end) for group_id, start, end in log["homes"]))
            for log in delta.get("logs", ())
        ),
        splits=tuple(delta.get("splits", {}).items()),
        bound=footprint.get("bound"),
        saves=footprint.get("saves"),
        releases=footprint.get("releases"),
        restores=footprint.get("restores"),
        apps=tuple(sorted(apps.items())),
        ordered=spec is not None and spec.get("ordering") is not None,
        located=spec is not None and spec["index"]["type"] in LOCATED,
        without_key=spec is not None and spec["index"]["type"] == "none",
        indexed=spec is not None and spec["index"]["type"] == "record",
        of_index=_change(table, delta["index"], {}, {}) if "index" in delta else None,
        properties=None if spec is None else tuple(sorted(spec.get("properties", {}).items())),
    )


def _naming(delta: dict[str, Any]) -> Naming:
    binds = delta.get("binds", ())
    return Naming(
        binds=tuple((bound["name"].lower(), bound["table"], f"{bound['prefix']}/") for bound in binds),
        unbinds=tuple(name.lower() for name in delta.get("unbinds", ())),
        drops=tuple(delta.get("drops", {})),
        spaces=tuple(space["name"].lower() if isinstance(space, dict) else space[0].lower() for space in delta.get("creates", ())),
        gone=tuple(name.lower() for name in delta.get("removes", ())),
    )


def _group_id(found: list[Any]) -> GroupKey:
    return found[0], found[1], found[2]


# ---- the replay ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def replay(slots: tuple[Slot, ...]) -> tuple[tuple[Tables, ...], str | None]:
    """The tables after every slot, and what is wrong with the last entry that could not be replayed."""
    if not slots:
        return (), None
    before, broken = replay(slots[:-1])
    if broken is not None:
        return before, broken
    slot = slots[-1]
    tables = dict(before[-1]) if before else {}
    changed = {change.table for change in slot.changes if change.files}
    if slot.whole and changed != set(slot.whole):
        return before, f"P9: slot {slot.number} changes the tables {sorted(changed)} of a transaction over {sorted(slot.whole)}"
    for change in slot.changes:
        if (slot.action == "CREATE") != (change.table not in tables) and change.table != CATALOG:
            return (
                before,
                f"P9: slot {slot.number} is a {slot.action} of table {change.table}, {'known' if change.table in tables else 'new'}",
            )
        known = tables.get(change.table, EMPTY)
        after, broken = _advance(known, change, slot, before)
        if broken is not None:
            return before, broken
        tables[change.table] = after
    for position in slot.positions:
        if position.derived:
            later = [shown for _, shown in position.shows if shown >= len(before)]
            if later:
                return before, f"P5: slot {slot.number} shows slot {later[0]} of a source, which is not before it"
            rows = derived_rows([before[shown][table] for table, shown in position.shows])
            tables[position.derived] = tables[position.derived]._replace(rows=rows)
    return (*before, tables), None


def derived_rows(sources: Iterable[TableAt]) -> Rows:
    """The rows of a derived table."""
    values = [value for source in sources for value in source.rows.values()]
    return {BAG_KEY: bag_of(values)} if values else {}


def bag_of(values: Iterable[str]) -> str:
    """What a derived table says of all values of its source: each as often as it is there."""
    return "".join(sorted(values))


def _advance(table: TableAt, change: Change, slot: Slot, before: tuple[Tables, ...]) -> tuple[TableAt, str | None]:
    number = slot.number
    if slot.action == "RESTORE" and change.restores is not None:
        then = before[change.restores][change.table]
        if change.restores < table.bound and change.restores not in table.saved:
            return table, f"P7: slot {number} restores slot {change.restores}, which is below the bound {table.bound} and not saved"
        return then._replace(bound=table.bound, saved=table.saved, closed=False), None
    if table.closed:
        return table, f"P9: slot {number} changes a table that was dropped"
    if change.saves is not None and change.saves < table.bound and change.saves not in table.saved:
        return table, f"P7: slot {number} saves slot {change.saves}, which is below the bound {table.bound}"
    table, broken = _with_files(table, change, slot)
    if table.of_index is not None or change.indexed:
        index, wrong = _with_files(table.of_index or EMPTY, change.of_index or Change(change.table), slot)
        table, broken = table._replace(of_index=index), broken or wrong
    for app, version in change.apps:
        if table.apps.get(app, -1) >= version:
            broken = broken or f"P5: slot {number} brings version {version} of {app}, which has reached {table.apps[app]}"
    properties = table.properties if change.properties is None else dict(change.properties)
    if lost := sorted(table.properties.keys() - properties.keys()):
        broken = broken or f"P5: slot {number} takes away the property {lost[0]}, which nobody meant"
    table = table._replace(
        ordered=table.ordered or change.ordered,
        located=table.located or change.located,
        without_key=table.without_key or change.without_key,
        properties=properties,
    )
    rows, ended, wrong = _meant(table, slot.number, slot.does)
    for _, does in slot.also:
        rows, ended, twice = _meant(table._replace(rows=rows, ended=ended), slot.number, does)
        wrong = wrong or twice
    return table._replace(
        bound=max(table.bound, change.bound or 0),
        saved=frozenset(slot for slot in (*table.saved, change.saves) if slot is not None and slot != change.releases),
        closed=slot.action == "CLOSE",
        rows=rows,
        ended=ended,
        apps={**table.apps, **dict(change.apps)},
    ), broken or wrong


def _with_files(table: TableAt, change: Change, slot: Slot) -> tuple[TableAt, str | None]:
    groups, counts = dict(table.groups), dict(table.counts)
    for partition, count in change.splits:
        counts[partition] = count
        groups = {group_id: group for old, group in groups.items() for group_id in addressed(old, counts)}
    for group_id in change.retires:
        groups.pop(group_id, None)
    for group_id, path in change.bases:
        if addressed(group_id, counts) != [group_id]:
            return table, f"P9: slot {slot.number} writes a base file for {group_id}, of another bucket count than its partition has"
        group = groups.get(group_id, Group())
        as_of = -1 if change.as_of is None else change.as_of
        if as_of < group.as_of:
            return table, f"P9: slot {slot.number} writes a base file for {group_id} as of {as_of}, where there is one as of {group.as_of}"
        kept = tuple(block for block in group.blocks if block.slot > as_of)
        if kept and slot.action != "COMPACTION":
            return table, f"P9: slot {slot.number} writes a base file for {group_id}, which has rows already"
        if group.base is not None and change.as_of is None:
            return table, f"P9: slot {slot.number} writes a base file for {group_id}, which has one already"
        groups[group_id] = Group(path, slot.number if slot.action != "COMPACTION" else as_of, kept)
    for path, parts in change.logs:
        for named, start, end in parts:
            at = change.as_of if change.as_of is not None and named in dict(change.bases) else slot.number
            for group_id in addressed(named, counts):
                group = groups.get(group_id, Group())
                older = sum(block.slot <= at for block in group.blocks)
                blocks = (*group.blocks[:older], Block(at, path, start, end), *group.blocks[older:])
                groups[group_id] = group._replace(blocks=blocks)
        counts.update({group_id[0]: group_id[2] for group_id, _, _ in parts if group_id[0] not in counts})
    counts.update({group_id[0]: group_id[2] for group_id, _ in change.bases if group_id[0] not in counts})
    return table._replace(groups=groups, counts=counts), None


def addressed(group_id: GroupKey, counts: Mapping[str, int]) -> list[GroupKey]:
    """The file groups that a file group is, where its partition has that bucket count."""
    partition, bucket, count = group_id
    now = counts.get(partition, count)
    return [(partition, number, now) for number in range(now) if number % min(count, now) == bucket % min(count, now)]


def _meant(table: TableAt, number: int, does: Meaning | None) -> tuple[Rows, Rows, str | None]:
    """The rows after an entry, and what deletes have ended, by what its writer meant; and whether it placed a key that was there."""
    rows = table.rows
    if does is None:
        return rows, table.ended, None
    verb, keys, mark = does
    if verb == "replace":
        # What is of the partition that the row says, by the first letter of its value, is gone, whatever a column would measure it by.
        rows, gone = ({key: value for key, value in kept.items() if value[0] != mark[0]} for kept in (rows, table.ended))
        table = table._replace(ended=gone)
    if table.ordered:
        best = {**{key: (value, False) for key, value in rows.items()}, **{key: (value, True) for key, value in table.ended.items()}}
        for key in keys:
            _measure(best, key, mark, deleted=verb == "drop")
        return *_divided(best), None
    match verb:
        case "put" | "replace":
            return {**rows, **dict.fromkeys(keys, mark)}, {}, None
        case "place":
            twice = [key for key in keys if key in rows]
            broken = f"P9: slot {number} inserts key {twice[0]}, which is there: one key has two places" if twice else None
            return {**rows, **dict.fromkeys(keys, mark)}, {}, broken
        case "range":
            # Blocks replace all keys from the greatest of theirs on.
            return {**{key: value for key, value in rows.items() if key < max(keys)}, **dict.fromkeys(keys, mark)}, {}, None
        case "only":
            return dict.fromkeys(keys, mark), {}, None
        case "end":
            return {key: value for key, value in rows.items() if key not in keys}, {}, None
        case "add":
            return {**rows, **{key: rows.get(key, "") + mark for key in keys}}, {}, None
    raise AssertionError(f"a role says that it does {verb!r}, which the replay does not know")


def _measure(best: dict[int, tuple[str, bool]], key: int, value: str, *, deleted: bool) -> None:
    """Put a row, or a delete, of a table with an ordering column beside what is there: the greatest value wins, of equal ones the later."""
    if key not in best or value >= best[key][0]:
        best[key] = value, deleted


def _divided(best: Mapping[int, tuple[str, bool]]) -> tuple[Rows, Rows]:
    """The rows that are there, and the deletes that won."""
    return {key: value for key, (value, gone) in best.items() if not gone}, {key: value for key, (value, gone) in best.items() if gone}


def fold_names(slots: Mapping[int, Slot]) -> tuple[dict[str, tuple[str, str]], str | None]:
    """What names mean as of the head of a catalog, (table, prefix of its log) by name; and what is wrong with an entry."""
    names: dict[str, tuple[str, str]] = {}
    spaces: set[str] = set()
    for number in sorted(slots):
        naming = slots[number].naming
        if naming is None:
            continue
        for name in naming.unbinds:
            names.pop(name, None)
        for space in naming.gone:
            held = [name for name in (*names, *spaces) if name.startswith(f"{space}.")]
            if held or space not in spaces:
                return names, f"P9: slot {number} of the catalog takes away {space}, which holds {held}"
            spaces.discard(space)
        spaces.update(naming.spaces)
        for name, table, prefix in naming.binds:
            if name in names or name in spaces:
                return names, f"P9: slot {number} of the catalog gives the name {name} to {table}, which means something already"
            if "." in name and name.rpartition(".")[0] not in spaces:
                return names, f"P9: slot {number} of the catalog gives the name {name}, whose namespace is not there"
            if any(table == other for other, _ in names.values()):
                return names, f"P9: slot {number} of the catalog gives {table} a second name, {name}"
            names[name] = table, prefix
    return names, None


# ---- what files hold ---------------------------------------------------------------------------------------------


def paths_of(group: Group) -> list[str]:
    """The files of a group."""
    return [*([group.base] if group.base else []), *dict.fromkeys(block.path for block in group.blocks)]


def read_rows(table: TableAt, files: Mapping[str, bytes], prefix: str) -> tuple[Rows, Rows]:
    """The rows of a table as its files hold them, and the deletes that won where they are measured; every file must be there."""
    best: dict[int, tuple[str, bool]] = {}
    if table.without_key:
        return _read_every(table, files, prefix), {}
    if table.located:
        return _read_each(table, files, prefix)
    for (_, bucket, count), group in table.groups.items():
        parts = [Block(-1, group.base, 0, 1 << 30)] if group.base else []
        for block in (*parts, *group.blocks):
            for key, value, deleted in _content(files[prefix + block.path])[block.start : block.end]:
                if HASHES[key] % count != bucket % count:
                    continue
                if table.ordered:
                    _measure(best, key, value, deleted=deleted)
                else:
                    best[key] = value, deleted
    rows, ended = _divided(best)
    return rows, ended if table.ordered else {}


def _read_each(table: TableAt, files: Mapping[str, bytes], prefix: str) -> tuple[Rows, Rows]:
    """As `read_rows`, of a table whose file groups say nothing of keys: each file group by itself. A key that is in two of them has both
    values."""
    rows: dict[int, str] = {}
    ended: dict[int, str] = {}
    for group in table.groups.values():
        best: dict[int, tuple[str, bool]] = {}
        for block in (*([Block(-1, group.base, 0, 1 << 30)] if group.base else []), *group.blocks):
            for key, value, deleted in _content(files[prefix + block.path])[block.start : block.end]:
                if deleted and (not table.ordered or value is None):
                    best.pop(key, None)
                elif table.ordered:
                    _measure(best, key, value, deleted=deleted)
                else:
                    best[key] = value, False
        for found, all_found in zip(_divided(best), (rows, ended), strict=True):
            all_found.update({key: f"{all_found[key]} and {value}" if key in all_found else value for key, value in found.items()})
    return rows, ended


def _read_every(table: TableAt, files: Mapping[str, bytes], prefix: str) -> Rows:
    """As `read_rows`, of a table without a key: every row counts. A number that is there twice has both values."""
    rows: dict[int, str] = {}
    for group in table.groups.values():
        for block in (*([Block(-1, group.base, 0, 1 << 30)] if group.base else []), *group.blocks):
            for key, value, _ in _content(files[prefix + block.path])[block.start : block.end]:
                rows[key] = f"{rows[key]} and {value}" if key in rows else value
    return rows


def unknown_keys(table: TableAt, files: Mapping[str, bytes], prefix: str) -> list[int]:
    """The keys of which the index of a table does not say in which file group they live; every file must be there."""
    if table.of_index is None:
        return []
    known: set[tuple[int, str, int]] = set()
    for group in table.of_index.groups.values():
        for block in (*([Block(-1, group.base, 0, 1 << 30)] if group.base else []), *group.blocks):
            found = json.loads(files[prefix + block.path])
            ops = found.get("_objcat_op") or [0] * len(found["k"])
            entries = zip(found["k"], found["_objcat_home_partition"], found["_objcat_home_bucket"], strict=True)
            for entry, gone in list(zip(entries, ops, strict=True))[block.start : block.end]:
                (known.discard if gone else known.add)(entry)
    unknown = []
    for group_id, group in table.groups.items():
        own = table._replace(groups={group_id: group}, of_index=None)
        unknown += [key for held in _read_each(own, files, prefix) for key in held if (key, group_id[0], group_id[1]) not in known]
    return sorted(unknown)


@lru_cache(maxsize=100_000)
def _content(data: bytes) -> list[tuple[int, str, bool]]:
    found = json.loads(data)
    deleted = found.get("_objcat_op") or [0] * len(found["k"])
    return [(key, value, bool(gone)) for key, value, gone in zip(found["k"], found["v"], deleted, strict=True)]


def still_held(log: LogFacts, files: Mapping[str, bytes], key: int, *, until: int) -> str | None:
    """A file of a committed transaction that is there, and that holds a row of a key which was committed up to a slot.

    Whether a slot names it is not asked: what an erasure has left behind no entry may name any more.
    """
    committed = {txn: number for number, slot in log.slots.items() for txn in slot.txns}
    begin = f"{log.prefix}data/"
    for path, data in files.items():
        writer = path.removeprefix(begin).split("/")[0]
        if not path.startswith(begin) or writer not in committed:
            continue
        if any(committed.get(txn, until + 1) <= until for txn in _origins(data, key, writer)):
            return path
    return None


@lru_cache(maxsize=100_000)
def _origins(data: bytes, key: int, writer: str) -> list[str]:
    """The transactions that wrote the rows of a key in a file. writer: of the file."""
    found = json.loads(data)
    txns = found.get("_objcat_txn") or [writer] * len(found["k"])
    deleted = found.get("_objcat_op") or [0] * len(found["k"])
    return [txn for known, txn, gone in zip(found["k"], txns, deleted, strict=True) if known == key and not gone]


def positions_of(log: LogFacts) -> Mapping[str, Position]:
    """The newest position of each source."""
    return {one.source: one for _, slot in sorted(log.slots.items()) for one in slot.positions}


def wrong_positions(log: LogFacts, files: Mapping[str, bytes]) -> str | None:
    """What is wrong with the positions of a log: each version of a source is there once, and its state counts the rows up to it.

    A source that nobody restores over comes with a row or a bare position for each version.
    """
    reached: dict[str, tuple[int, int]] = {}
    shown: dict[tuple[str, str], int] = {}
    for number, slot in sorted(log.slots.items()):
        for one in slot.positions:
            for source, at in one.shows:
                if at < shown.get((one.source, source), -1):
                    return f"P5: slot {number} shows slot {at} of a source, after slot {shown[one.source, source]} was shown"
                shown[one.source, source] = at
            version, before = reached.get(one.source, (-1, -1))
            if one.version != version + 1:
                return f"P5: slot {number} brings version {one.version} of {one.source}, and slot {before} has version {version}"
            if one.rows not in (None, one.version + 1):
                return f"P5: slot {number} brings version {one.version} of {one.source}, whose state counts {one.rows} rows"
            reached[one.source] = one.version, number
    for one in positions_of(log).values():
        if one.path is None:
            continue
        if log.prefix + one.path not in files:
            return f"P7: {one.path}, which holds the newest state of {one.source}, does not exist"
        if json.loads(files[log.prefix + one.path])["rows"] != one.version + 1:
            return f"P5: the newest state of {one.source} counts other rows than it has versions"
    return None


def kept_slots(log: LogFacts, table: str) -> Iterator[int]:
    """The slots as of which a table can still be read: from the bound on, and saved ones."""
    now = log.states[-1][table]
    for number, state in enumerate(log.states):
        if table in state and (number >= now.bound or number in now.saved):
            yield number
