"""A second reader of lakes, written from the pages of docs/spec/ alone: it shares no code with objcat, and prefers plain to fast.

Whatever they say of an object that is read here is checked on the way (sizes, hashes, order of rows, bounds, file groups), so that a
lake on which this reader agrees with objcat is evidence for the pages as well as for the code.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Context, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Json = dict[str, Any]
FORMAT = 1
FEATURES: frozenset[str] = frozenset({"adopted_files", "base_order", "column_defaults", "ordering_columns", "shared_slots"})
ACTIONS = frozenset(
    ["CREATE", "COMMIT", "DELTA_COMMIT", "REPLACE", "COMPACTION", "CLEAN", "ROLLBACK", "SAVEPOINT", "RESTORE", "SCHEMA", "CLOSE"]
)
KEPT_BY_TOMBSTONES = [
    *("format", "slot", "action", "txn", "base", "committed_at_ms", "features", "writer_features", "apps", "plan", "rollback_of")
]
ROOT_STEP = 16
BASE_ROW_GROUP_ROWS = 131_072
INDEX_ROW_GROUP_ROWS = 8_192
INDEXES = ("bucket", "simple", "bloom", "memory", "record", "none")
BASE_HIDDEN = pa.field("_objcat_txn", pa.utf8(), nullable=False)
LOG_HIDDEN = pa.field("_objcat_op", pa.int8(), nullable=False)


class Corrupt(Exception):
    """An object contradicts the page."""


class Expired(Exception):
    """A slot can no longer be read."""


class Closed(Exception):
    """The table was dropped."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise Corrupt(what)


# ---------------------------------------------------------------------------------------------------------------- bucket of a key

MASK = 0xFFFFFFFF


def _rotl(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & MASK


def _mix(state: int, word: int) -> int:
    word = _rotl(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    return (_rotl(state ^ word, 13) * 5 + 0xE6546B64) & MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def _hash_words(seed: int, data: bytes) -> int:
    for (word,) in struct.iter_unpack("<I", data):
        seed = _mix(seed, word)
    return _finish(seed, len(data))


def _hash_bytes(seed: int, data: bytes) -> int:
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        seed = _mix(seed, word)
    for (byte,) in struct.iter_unpack("<b", data[whole:]):
        seed = _mix(seed, byte & MASK)
    return _finish(seed, len(data))


def hash_key(columns: Iterable[tuple[Any, Any]]) -> int:
    """The signed hash of one key: pairs of a type of the table's schema and a plain value (see `plain_values`), in hashing order."""
    seed = 42
    for kind, value in columns:
        if value is None:
            continue
        match kind:
            case "boolean" | "tinyint" | "smallint" | "int" | "date":
                seed = _hash_words(seed, struct.pack("<I", int(value) & MASK))
            case "bigint" | "timestamp" | "timestamp_ntz":
                seed = _hash_words(seed, struct.pack("<q", value))
            case "float":
                seed = _hash_words(seed, b"\0\0\xc0\x7f" if math.isnan(value) else struct.pack("<f", value + 0.0))
            case "double":
                seed = _hash_words(seed, b"\0\0\0\0\0\0\xf8\x7f" if math.isnan(value) else struct.pack("<d", value + 0.0))
            case "string":
                seed = _hash_bytes(seed, value.encode())
            case "binary":
                seed = _hash_bytes(seed, value)
            case _:
                precision, scale = decimal_of(kind)
                number = unscaled(value, scale)
                if precision <= 18:
                    seed = _hash_words(seed, struct.pack("<q", number))
                else:
                    width = ((number + (number < 0)).bit_length() + 8) // 8
                    seed = _hash_bytes(seed, number.to_bytes(width, "big", signed=True))
    return seed - (1 << 32) if seed >> 31 else seed


def bucket_of(columns: Iterable[tuple[Any, Any]], count: int) -> int:
    return hash_key(columns) % count


# ------------------------------------------------------------------------------------------------------------------------- types


def decimal_of(kind: str) -> tuple[int, int]:
    check(kind.startswith("decimal(") and kind.endswith(")"), f"type {kind!r}")
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    check(isinstance(exponent, int) and exponent + scale >= 0, f"{value} has more than {scale} digits after the point")
    number = int("".join(map(str, digits)) or "0") * 10 ** (int(exponent) + scale)
    return -number if sign else number


PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def ids_of(columns: Iterable[Json]) -> Iterator[int]:
    """Depth first."""
    for column in columns:
        yield column["id"]
        if not isinstance(column["type"], str):
            yield from ids_of(
                column["type"].get("fields") or [column["type"][k] for k in ("element", "key", "value") if k in column["type"]]
            )


def is_first(schema: Json) -> bool:
    """Whether no column can have joined or left: then every file has them all, in this order."""
    joined = any(column["physical"].endswith(f"_{column['id']}") for column in schema["columns"])
    return not joined and list(ids_of(schema["columns"])) == list(range(1, schema["last_id"] + 1))


def narrower(kind: str) -> list[Any]:
    """The types of files that are read as a plain type."""
    whole = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    if kind in ("smallint", "int", "bigint"):
        return whole[: ("smallint", "int", "bigint").index(kind) + 1]
    if kind == "double":
        return [*whole[:3], pa.float32()]
    if kind.startswith("decimal"):
        precision, scale = decimal_of(kind)
        digits = precision - scale
        return (whole if digits >= 20 else whole[:3] if digits >= 10 else []) + [
            pa.decimal128(p, scale) for p in range(scale or 1, precision)
        ]
    return []


def check_type(found: pa.Field, column: Json, path: str, *, nullable: bool | None = None) -> None:
    """That a file has a column as a schema of its time said: name, id, type, nested ones too."""
    named = f"{path}: column {column['physical']!r}"
    check(found.name == column["physical"], f"{named} is called {found.name!r} in the file")
    check(int((found.metadata or {}).get(b"PARQUET:field_id", b"-1")) == column["id"], f"{named} has another id in the file")
    check(found.nullable == (column["nullable"] if nullable is None else nullable), f"{named} has another nullability in the file")
    match column["type"]:
        case str(kind):
            expected = PLAIN[kind] if kind in PLAIN else pa.decimal128(*decimal_of(kind))
            check(found.type in [expected, *narrower(kind)], f"{named} has the type {found.type} in the file, not {expected}")
        case {"type": "struct", "fields": fields}:
            by_name = {child["physical"]: child for child in fields}
            for index in range(found.type.num_fields):
                if found.type.field(index).name in by_name:
                    check_type(found.type.field(index), by_name[found.type.field(index).name], path)
        case {"type": "list", "element": element}:
            check_type(found.type.value_field, element, path)
        case {"type": "map", "key": key, "value": value}:
            check_type(found.type.key_field, key, path)
            check_type(found.type.item_field, value, path)
        case other:
            raise Corrupt(f"{named} has the unknown type {other!r}")


def logical(value: Any, column_type: Any) -> Any:
    """A value of a file, which may be older than its schema, under the names that users say and in the types of today."""
    if value is None:
        return value
    if isinstance(column_type, str):
        if column_type.startswith("decimal"):
            return Decimal(value).quantize(Decimal(1).scaleb(-decimal_of(column_type)[1]), context=Context(prec=38))
        return float(value) if column_type == "double" else value
    if column_type["type"] == "struct":
        return {child["name"]: logical(value.get(child["physical"]), child["type"]) for child in column_type["fields"]}
    if column_type["type"] == "list":
        return [logical(item, column_type["element"]["type"]) for item in value]
    return [(logical(key, column_type["key"]["type"]), logical(item, column_type["value"]["type"])) for key, item in value]


def of_column(row: Json, column: Json) -> Any:
    """The value of a column in a row of a file. A file may lack the column, which then has its default."""
    kind, default = column["type"], column.get("initial_default")
    if column["physical"] in row or default is None:
        return logical(row.get(column["physical"]), kind)
    if kind == "date":
        return date.fromisoformat(default)
    if kind in ("timestamp", "timestamp_ntz"):
        return datetime.fromisoformat(default)
    if kind == "binary":
        return bytes.fromhex(default)
    return Decimal(default) if kind.startswith("decimal") else float(default) if kind in ("float", "double") else default


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Values that compare and hash as the page says: dates and times are numbers."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    return column.to_pylist()


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _identity(value: Any) -> Any:
    return "NaN" if is_nan(value) else value


def _sorting(value: Any) -> Any:
    """Ascending, NaN last."""
    if is_nan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)


# ------------------------------------------------------------------------------------------------------------- partition of a row

KEPT_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
NULL = "__HIVE_DEFAULT_PARTITION__"


def partitionings_of(spec: Json) -> list[Json]:
    return [spec["partitioning"], *spec["former"]]


def sources_of(spec: Json) -> list[int]:
    """The columns that say where a row lives."""
    return sorted({part["column"] for partitioning in partitionings_of(spec) for part in partitioning.get("fields") or ()})


def shape_of(partitioning: Json) -> list[str]:
    marked = [partitioning["mark"]] if partitioning.get("mark") else []
    return [*marked, *(part["name"] for part in partitioning.get("fields") or ())]


def partition_of(partitioning: Json, kinds: Mapping[int, Any], values: Mapping[int, Any]) -> str:
    """The partition of a row. kinds, values: types and plain values of columns, by id."""
    fields = partitioning.get("fields") or ()
    parts = [partitioning["mark"]] if partitioning.get("mark") else []
    for part in fields:
        value, kind = values[part["column"]], kinds[part["column"]]
        said = None if value is None else value_of(part.get("transform", "identity"), part.get("width", 0), kind, value)
        parts.append(f"{part['name']}={NULL if said is None else encoded(said, min(180, 480 // len(fields)))}")
    return "/".join(parts)


def value_of(transform: str, width: int, kind: str, value: Any) -> str:
    day_us, hour_us = 86_400_000_000, 3_600_000_000
    if transform == "truncate":
        return value[:width] if kind == "string" else str(value - value % width)
    if transform == "identity" and kind not in ("date", "timestamp", "timestamp_ntz"):
        if kind == "boolean":
            return "true" if value else "false"
        if kind in ("float", "double"):
            return "NaN" if math.isnan(value) else repr(value + 0.0).replace("inf", "Infinity")
        if kind == "binary":
            return bytes(value).hex()
        return f"{value:f}" if kind.startswith("decimal") else str(value)
    days, rest = (value, 0) if kind == "date" else divmod(value, day_us)
    year, month, day = _civil(days)
    sign_and_year = f"{'-' if year < 0 else ''}{abs(year):04d}"
    date = f"{sign_and_year}-{month:02d}-{day:02d}"
    if transform == "identity" and kind != "date":
        clock = f"{rest // hour_us:02d}:{rest // 60_000_000 % 60:02d}:{rest // 1_000_000 % 60:02d}.{rest % 1_000_000:06d}"
        return f"{date}T{clock}{'Z' if kind == 'timestamp' else ''}"
    texts = {"year": sign_and_year, "month": date[:-3], "hour": f"{date}-{rest // hour_us:02d}"}
    return texts.get(transform, date)


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970: eras of 400 years from a first of March on."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    return year + era * 400 + (month >= 10), month + (3 if month < 10 else -9), day


def encoded(value: str, most: int) -> str:
    raw = value.encode()
    pieces = [chr(byte) if byte in KEPT_BYTES else f"%{byte:02X}" for byte in raw]
    if pieces and pieces[0] == "_":
        pieces[0] = "%5F"
    if pieces and pieces[-1] == ".":
        pieces[-1] = "%2E"
    if sum(map(len, pieces)) <= most:
        return "".join(pieces)
    head = ""
    for piece in pieces:
        if len(head) + len(piece) > most - 33:
            break
        head += piece
    return f"{head}~{hashlib.sha256(raw).hexdigest()[:32]}"


# ------------------------------------------------------------------------------------------------------------------- the prefix


@dataclass(frozen=True)
class Prefix:
    """All keys of one log."""

    root: Path

    def get(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def named(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """An object that another one names."""
        data = self.get(key)
        if data is None:
            raise Corrupt(f"{key} is missing")
        check(size is None or len(data) == size, f"{key} has {len(data)} bytes, not {size}")
        check(sha256 is None or hashlib.sha256(data).hexdigest() == sha256, f"{key} has another SHA-256")
        return data

    def json(self, key: str) -> Json | None:
        data = self.get(key)
        return None if data is None else checked_format(json.loads(data), key)


def checked_format(content: Json, key: str) -> Json:
    check(content.get("format", FORMAT) <= FORMAT, f"{key} needs {content.get('min_client')}")
    unknown = set(content.get("features") or {}) - FEATURES
    check(not unknown, f"{key} needs {unknown}")
    return content


# ---------------------------------------------------------------------------------------------------------------- state of tables

FileGroupId = tuple[str, int, int]


def group_id_of(value: Any) -> FileGroupId:
    partition, bucket, count = value
    return str(partition), int(bucket), int(count)


def common(one: FileGroupId, other: FileGroupId) -> bool:
    return one[0] == other[0] and (one[1] - other[1]) % math.gcd(one[2], other[2]) == 0


@dataclass(frozen=True)
class Event:
    """A base file (or, without a path, a retirement) that holds what its file group had up to `as_of`."""

    group_id: FileGroupId
    slot: int
    as_of: int
    path: str | None = None
    size: int = 0
    rows: int = 0
    bounds: Json = field(default_factory=dict)
    order: Json | None = None
    adopted: Json | None = None


@dataclass(frozen=True)
class LogRows:
    """Rows `start` to `end` of a log object, which count as of `slot`. committed_at_ms: 0 where they are not measured by it."""

    group_id: FileGroupId
    slot: int
    named_at: int
    order: int
    path: str
    size: int
    rows: int
    row_group_rows: int
    start: int
    end: int
    committed_at_ms: int
    bounds: Json = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """A table as of a slot."""

    spec: Json
    counts: Mapping[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    logs: tuple[LogRows, ...] = ()
    index: State | None = None

    def count(self, partition: str) -> int:
        return int(self.counts.get(partition, self.spec["index"]["count"]))

    def after(self, entry: Json, change: Json) -> State:
        """The fold: spec, splits, retirements, base files, log rows."""
        slot, as_of = entry["slot"], change.get("as_of")
        check(not entry.get("also") or "shared_slots" in entry["features"], f"slot {slot} commits several transactions, and no feature")
        state = replace(self, spec=change.get("spec") or self.spec, counts={**self.counts, **(change.get("splits") or {})})
        several = state.spec.get("ordering_more") and change.get("spec")
        check(not several or "ordering_columns" in entry["features"], f"slot {slot} has several ordering columns, and no feature")
        events = [Event(group_id_of(group_id), slot, slot - 1) for group_id in change.get("retires") or ()]
        for base in change.get("bases") or ():
            group_id = group_id_of(base["home"])
            check(
                group_id[2] == state.count(group_id[0]),
                f"slot {slot} has a base file for {group_id}: its partition has {state.count(group_id[0])}",
            )
            order = base.get("order")
            check(order is None or "base_order" in entry["features"], f"slot {slot} has a base file with an order, and no feature")
            adopted = base.get("adopted")
            check(adopted is None or "adopted_files" in entry["features"], f"slot {slot} has an adopted file, and no feature")
            check((adopted is not None) == base["path"].startswith("_lake/"), f"slot {slot}: {base['path']} is adopted, or is not")
            check(adopted is None or adopted["txn"] == entry["txn"], f"slot {slot} adopted {base['path']} by another transaction")
            bounds = base.get("bounds") or {}
            below = -1 if as_of is None else as_of
            events.append(Event(group_id, slot, below, base["path"], base["bytes"], base["rows"], bounds, order, adopted))
        rewritten = {group_id_of(base["home"]) for base in change.get("bases") or ()}
        logs = [
            LogRows(
                group_id=group_id_of(group_id),
                slot=as_of if as_of is not None and group_id_of(group_id) in rewritten else slot,
                named_at=slot,
                order=order,
                path=log["path"],
                size=log["bytes"],
                rows=log["rows"],
                row_group_rows=log["row_group_rows"],
                start=start,
                end=end,
                committed_at_ms=0 if as_of is not None and group_id_of(group_id) in rewritten else entry["committed_at_ms"],
                bounds=log.get("bounds") or {},
            )
            for order, log in enumerate(change.get("logs") or ())
            for group_id, start, end in log["homes"]
        ]
        check(state.spec["index"]["type"] in INDEXES, f"slot {slot} names an index that the page does not: {state.spec['index']}")
        of_index, index = index_spec(state.spec), None
        if of_index is not None:
            index = (self.index or State(of_index)).after(entry, change.get("index") or {})
        return replace(state, events=(*self.events, *events), logs=(*self.logs, *logs), index=index)

    def groups(self) -> Iterator[Group]:
        """Every file group that may have rows."""
        by_group: dict[FileGroupId, tuple[list[Event], list[LogRows]]] = {}
        for event in self.events:
            by_group.setdefault(event.group_id, ([], []))[0].append(event)
        for log in self.logs:
            by_group.setdefault(log.group_id, ([], []))[1].append(log)
        counts = {(partition, count) for partition, _, count in by_group}
        group_ids = {
            (partition, child, count)
            for partition, bucket, counted in by_group
            for count in [self.count(partition)]
            for step in [math.gcd(counted, count)]
            for child in range(bucket % step, count, step)
        }
        for group_id in sorted(group_ids):
            # Counts of a partition divide each other, so the file group has one common file group, its ancestor, for each of them.
            ancestors = [(group_id[0], group_id[1] % counted, counted) for partition, counted in counts if partition == group_id[0]]
            found = [by_group[ancestor] for ancestor in ancestors if ancestor in by_group]
            events = [event for part in found for event in part[0]]
            marked = [log for part in found for log in part[1]]
            newest = max(events, key=lambda event: (event.slot, event.path is not None), default=None)
            cut = max((event.as_of for event in events), default=-1)
            forgotten = [event for event in events if event is not newest and event.path is not None and event.slot > cut]
            check(not forgotten, f"a base file of {group_id} was written without the rows of {forgotten}")
            logs = [log for log in marked if log.slot > cut or (newest is not None and log.named_at == newest.slot)]
            logs.sort(key=lambda log: (log.slot, log.named_at, log.order))
            yield Group(group_id, newest if newest is not None and newest.path is not None else None, tuple(logs))


@dataclass(frozen=True)
class Group:
    group_id: FileGroupId
    base: Event | None
    logs: tuple[LogRows, ...]


@dataclass(frozen=True)
class Marks:
    """What a log says of a table besides its rows."""

    bound: int = 0
    saved: frozenset[int] = frozenset()
    closed_at: int | None = None
    apps: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    """Application -> version, and the slot of a RESTORE that took back a version."""

    def after(self, entry: Json, table: str) -> Marks:
        mark = (entry.get("footprint") or {}).get(table)
        reached = (entry.get("apps") or {}).get(table) or {}
        apps = {**self.apps, **{app: (version, None) for app, version in reached.items()}}
        if mark is None:
            return replace(self, apps=apps)
        saved, closed_at = set(self.saved), self.closed_at
        if mark.get("saves") is not None:
            saved.add(mark["saves"])
        if mark.get("releases") is not None:
            saved.discard(mark["releases"])
        if entry["action"] == "CLOSE":
            closed_at = entry["slot"]
        if mark.get("restores") is not None:
            closed_at = None
            for app, (version, rewound_at) in self.apps.items():
                if rewound_at is not None or reached.get(app) != version:
                    apps[app] = (reached.get(app, -1), entry["slot"])
        bound = self.bound if mark.get("bound") is None else max(self.bound, mark["bound"])
        return Marks(bound, frozenset(saved), closed_at, apps)


# --------------------------------------------------------------------------------------------------------------------- the log


class Log:
    """One log, whole: `entries` are those of all slots, tombstones replaced by what history files hold."""

    def __init__(self, root: Path) -> None:
        self.prefix = Prefix(root)
        self._histories: dict[str, list[bytes]] = {}
        self._changes: dict[int, Json] = {}
        self._files: dict[tuple[str, str], Part] = {}

    def entry(self, slot: int) -> Json | None:
        key = f"log/{slot:020d}.json"
        entry = self.prefix.json(key)
        if entry is None:
            return None
        if entry.get("history"):
            whole = self._archived(entry["history"])
            for name in KEPT_BY_TOMBSTONES:
                check((whole.get(name) or None) == (entry.get(name) or None), f"{key} and its history differ in {name}")
            entry = whole
        check(entry["slot"] == slot, f"{key} says that it is slot {entry['slot']}")
        check(entry["action"] in ACTIONS, f"{key} has the unknown action {entry['action']}")
        return entry

    def _archived(self, history: Json) -> Json:
        file = history["file"]
        if file["path"] not in self._histories:
            data = self.prefix.named(file["path"], size=file["bytes"], sha256=file["sha256"])
            table = pq.read_table(io.BytesIO(data))
            self._histories[file["path"]] = table["entry"].to_pylist()
        entry: Json = json.loads(self._histories[file["path"]][history["row"]])
        return entry

    @cached_property
    def entries(self) -> list[Json]:
        entries: list[Json] = []
        while (entry := self.entry(len(entries))) is not None:
            check(not entries or entry["committed_at_ms"] > entries[-1]["committed_at_ms"], f"slot {len(entries)} goes back in time")
            check(entry["base"] < entry["slot"], f"slot {len(entries)} was planned after itself")
            entries.append(entry)
        return entries

    @property
    def head(self) -> int:
        return len(self.entries) - 1

    def changes(self, entry: Json) -> Json:
        """By table id; read from the side object when they are there."""
        side = entry.get("side")
        if side is None:
            return entry.get("changes") or {}
        if entry["slot"] not in self._changes:
            check(not entry.get("changes"), f"slot {entry['slot']} has its changes twice")
            self._changes[entry["slot"]] = json.loads(self.prefix.named(side["path"], size=side["bytes"], sha256=side["sha256"]))
        return self._changes[entry["slot"]]

    # ---- tables from slot 0

    def fold(self, table: str, slot: int, *, start: State | None = None, above: int = -1, root: bool = False) -> State:
        """The state of a table as of `slot`, from a state as of `above`, or from slot 0."""
        state = start
        for entry in self.entries[above + 1 : slot + 1]:
            mark = (entry.get("footprint") or {}).get(table) or {}
            if mark.get("restores") is not None:
                check(entry["action"] == "RESTORE", f"slot {entry['slot']} restores and is no RESTORE")
                state = self.state(table, mark["restores"], root=root)
            change = self.changes(entry).get(table)
            if change is None:
                continue
            if state is None:
                check(entry["action"] == "CREATE" and change.get("spec"), f"table {table} does not begin with a CREATE")
                check(change["spec"]["table"] == table, f"the spec of {table} is of another table")
                state = State(change["spec"])
            state = state.after(entry, change)
        if state is None:
            raise Expired(f"table {table} is not there at slot {slot}")
        return state

    def state(self, table: str, slot: int, *, root: bool = False) -> State:
        """As of a slot; with `root` from the newest checkpoint at or below it."""
        found = self.root_below(slot) if root else None
        if found is None or table not in found.tables:
            return self.fold(table, slot, root=root)
        return self.fold(table, slot, start=found.state(table), above=found.slot, root=root)

    def marks(self, table: str, slot: int | None = None, *, root: bool = False) -> Marks:
        """As of a slot, the head when None; with `root` from the newest checkpoint."""
        found = None if not root else self.newest_root() if slot is None else self.root_below(slot)
        marks, above = (Marks(), -1) if found is None else (found.marks(table), found.slot)
        for entry in self.entries[above + 1 : None if slot is None else slot + 1]:
            marks = marks.after(entry, table)
        return marks

    def positions(self, slot: int, *, root: bool = False) -> dict[str, Json]:
        """By source, its newest position as of a slot; with `root` from the newest checkpoint at or below it."""
        found = self.root_below(slot) if root else None
        known: dict[str, Json] = dict((found.content["log"].get("positions") or {}) if found is not None else {})
        for entry in self.entries[0 if found is None else found.slot + 1 : slot + 1]:
            restored = [mark["restores"] for mark in (entry.get("footprint") or {}).values() if mark.get("restores") is not None]
            for source, one in known.items():
                if restored and (one["slot"] > min(restored) or one.get("rewound_at") is not None):
                    known[source] = {**one, "rewound_at": entry["slot"]}
            for source, one in (entry.get("positions") or {}).items():
                check("positions" in (entry.get("writer_features") or {}), f"slot {entry['slot']} lacks the feature of its positions")
                before = known.get(source, {"version": -1})["version"]
                check(one["version"] == before + 1, f"slot {entry['slot']} brings version {one['version']} after {before}")
                same = {"slot": entry["slot"], "txn": entry["txn"], "committed_at_ms": entry["committed_at_ms"]}
                known[source] = {**one, **same}
        return {source: self._position(one) for source, one in known.items()}

    def _position(self, one: Json) -> Json:
        """A position with its state."""
        state, side = one.get("state"), one.get("side")
        check((state is None) != (side is None), "a position has its state twice, or not at all")
        if side is not None:
            state = json.loads(self.prefix.named(side["path"], size=side["bytes"], sha256=side["sha256"]))
        return {"version": one["version"], "slot": one["slot"], "rewound_at": one.get("rewound_at"), "state": state}

    def born(self, table: str) -> int:
        return next(entry["slot"] for entry in self.entries if table in self.changes(entry))

    def readable(self, table: str, slot: int, *, root: bool = False) -> bool:
        marks = self.marks(table, root=root)
        return self.born(table) <= slot <= self.head and (slot >= marks.bound or slot in marks.saved)

    def rows(self, table: str, slot: int | None = None, *, root: bool = False) -> list[Json]:
        """The rows of a table as of a slot, in no order; of the newest one when None. Raises Expired, Closed, Corrupt."""
        asked = self.head if slot is None else slot
        if not self.readable(table, asked, root=root):
            raise Expired(f"slot {asked} of {table}")
        if self.marks(table, asked, root=root).closed_at is not None:
            raise Closed(f"slot {asked} of {table}")
        return self.rows_of(self.state(table, asked, root=root))

    # ---- outcomes

    def outcome(self, txn: str, *, root: bool = False) -> tuple[str, int] | None:
        """("committed" or "rolled back", slot) of a txn; None as long as the log does not say."""
        found = self.newest_root() if root else None
        if found is not None and (known := found.outcome(txn)) is not None:
            return known
        for entry in self.entries[0 if found is None else found.slot + 1 :]:
            if txn in (entry["txn"], *(other["txn"] for other in entry.get("also") or ())):
                return "committed", entry["slot"]
            if entry.get("rollback_of") == txn:
                return "rolled back", entry["slot"]
        return None

    # ---- checkpoints

    def root_below(self, slot: int) -> Root | None:
        """The newest checkpoint at or below a slot."""
        at: int | None = slot // ROOT_STEP * ROOT_STEP
        while at is not None and at >= ROOT_STEP:
            content = self.prefix.json(f"checkpoints/{at:020d}/root.json")
            if content is None:
                at -= ROOT_STEP
            elif content.get("void"):
                at = content["older"]
            else:
                check(content["slot"] == at, f"the root of slot {at} says {content['slot']}")
                return Root(self.prefix, content)
        return None

    def carried(self) -> tuple[Json | None, list[Json]] | None:
        """What the hint carries: a root, and the entries above it. None when that is nothing, or not of this log."""
        data = self.prefix.get("head.json")
        text = "" if data is None else data.decode()
        hint, mark = (json.loads(text) if text else {}), '"carried":'
        if hint.get("carried") is None:
            return None
        begin = text.index(mark) + len(mark)
        _, end = json.JSONDecoder().raw_decode(text, begin)
        said = hint["carried"]["digest"]
        if hashlib.sha256(text[begin:end].replace(said, "0" * 64).encode()).hexdigest() != said:
            return None
        root, entries = hint["carried"].get("root"), hint["carried"]["entries"]
        check((root is None) == (hint["checkpoint"] == -1), "a hint carries a root without a checkpoint, or none with one")
        check(hint["slot"] == hint["carried"]["slot"], "a hint carries another slot")
        check([one["slot"] for one in entries] == list(range(hint["checkpoint"] + 1, hint["slot"] + 1)), "a hint lacks entries")
        last = {name: value for name, value in (self.entry(hint["slot"]) or {}).items() if name != "digest"}
        return (root, entries) if entries and entries[-1] == last else None

    def newest_root(self) -> Root | None:
        """The checkpoint that the hint names; without a hint, the newest one."""
        hint = self.prefix.json("head.json")
        top = self.head if hint is None else hint["checkpoint"]
        check(top <= self.head, "the hint is ahead of the log")
        return self.root_below(top)

    # ---- scan

    def rows_of(self, state: State) -> list[Json]:
        rows = [(group.group_id, row) for group in state.groups() for row in self._group_rows(state, group)]
        if state.index is not None:
            self._check_index(state.spec, state.index, rows)
        return [row for _, row in rows]

    def _check_index(self, spec: Json, index: State, rows: list[tuple[FileGroupId, Json]]) -> None:
        """What the record index owes: the file group of every key that has a row."""
        known = {tuple(map(_identity, row.values())) for group in index.groups() for row in self._group_rows(index, group)}
        names = [column["name"] for key in spec["key"] for column in spec["table_schema"]["columns"] if column["id"] == key]
        for (partition, bucket, _), row in rows:
            entry = (*(row[name] for name in names), partition, bucket)
            check(tuple(map(_identity, entry)) in known, f"the index does not say that a key lives in {partition!r}, {bucket}")

    def _group_rows(self, state: State, group: Group) -> list[Json]:
        """The merge of one file group."""
        spec = state.spec
        parts: list[tuple[FileGroupId, Part, int]] = []
        if group.base is not None:
            assert group.base.path is not None
            if group.base.adopted is not None:
                file = self._adopted(spec, group.base)
                # Its rows are in no known order.
                parts.append((group.base.group_id, file.part(0, group.base.rows, order=()), 0))
            else:
                partition, _, name = group.base.path.split("/", 2)[2].rpartition("/")
                check(partition == group.base.group_id[0], f"{group.base.path} is of {group.base.group_id}")
                check(not spec["key"] or name.endswith(f"_{group.base.group_id[1]:05d}.parquet"), f"{name} is of {group.base.group_id}")
                file = self._file(spec, group.base.path, group.base.size, group.base.rows, group.base.bounds)
                parts.append((group.base.group_id, file.part(0, group.base.rows, order=names_of(spec, group.base.order)), 0))
        for log in group.logs:
            file = self._file(spec, log.path, log.size, log.rows, log.bounds, row_group_rows=log.row_group_rows)
            parts.append((log.group_id, file.part(log.start, log.end), log.committed_at_ms))
        kinds = {column["id"]: column["type"] for column in spec["table_schema"]["columns"]}
        (partitioning,) = [found for found in partitionings_of(spec) if shape_of(found) == _shape(group.group_id[0])]
        # Where keys move, log rows may be of another partition than their file group.
        for group_id, part, _ in parts[: group.base is not None] if is_global(spec) else parts:
            for place in part.places:
                found = partition_of(partitioning, kinds, place)
                check(found == group_id[0], f"a row of {group_id} is of the partition {found}")
        if not spec["key"]:
            return [row for _, part, _ in parts for row in part.rows if row is not None]
        kept: dict[tuple[Any, ...], tuple[Any, Json | None]] = {}
        for group_id, part, committed_at_ms in parts:
            for key, hashed, value, row in zip(part.keys, part.hashes, part.ranks, part.rows, strict=True):
                if hashed is not None:
                    check(hashed % group_id[2] == group_id[1], f"a row of {group_id} has the hash {hashed}")
                    if hashed % group.group_id[2] != group.group_id[1]:
                        continue
                if spec["ordering"] is None or (row is None and value is None):
                    kept[key] = (None, row)
                    continue
                check(value is not None and not any(map(is_nan, value)), f"a row of {group_id} has the ordering value {value}")
                if is_late(spec, value[0], committed_at_ms):
                    continue
                before = kept.get(key)
                if before is None or before[0] is None or [*map(_sorting, value)] >= [*map(_sorting, before[0])]:
                    kept[key] = (value, row)
        return [row for _, row in kept.values() if row is not None]

    def _adopted(self, spec: Json, base: Event) -> Part:
        """A file that another tool wrote, under the names of the table, with the columns that it lacks."""
        assert base.path is not None and base.adopted is not None
        file = pq.ParquetFile(io.BytesIO(self.prefix.named(base.path, size=base.size)), coerce_int96_timestamp_unit="us")
        check(file.metadata.num_rows == base.rows, f"{base.path} has {file.metadata.num_rows} rows")
        stored, found = file.read(), {}
        names, values = base.adopted.get("names") or {}, base.adopted.get("values") or {}
        for column in spec["table_schema"]["columns"]:
            name, kind = names.get(str(column["id"]), column["physical"]), column["type"]
            if str(column["id"]) in values:
                found[column["physical"]] = pa.chunked_array([same(values[str(column["id"])], kind, stored.num_rows)])
            elif name in stored.column_names:
                is_plain = isinstance(kind, str) and kind in PLAIN
                found[column["physical"]] = stored[name].cast(PLAIN[kind]) if is_plain else stored[name]
        table = pa.table(found)
        check_bounds(spec, table, base.bounds, base.path)
        return Part.of(spec, table)

    def _file(self, spec: Json, path: str, size: int, rows: int, bounds: Json, *, row_group_rows: int | None = None) -> Part:
        """A data file, checked against what the page and its entry say; a log object when `row_group_rows` are given."""
        age = (path, json.dumps([spec["table_schema"], sources_of(spec)]))
        if age not in self._files:
            is_base = row_group_rows is None
            file = pq.ParquetFile(io.BytesIO(self.prefix.named(path, size=size)))
            groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            check(b"ARROW:schema" not in (file.metadata.metadata or {}), f"{path} holds an Arrow schema")
            check(all(group.column(0).compression == "ZSTD" for group in groups), f"{path} is not compressed with zstd")
            base_height = INDEX_ROW_GROUP_ROWS if spec["partitioning"].get("mark") == "_index" else BASE_ROW_GROUP_ROWS
            height = base_height if row_group_rows is None else row_group_rows
            check(all(group.num_rows == height for group in groups[:-1]), f"{path} has row groups of another size")
            check(file.metadata.num_rows == rows, f"{path} has {file.metadata.num_rows} rows")
            table = file.read()
            check_columns(spec, table.schema, BASE_HIDDEN if is_base else LOG_HIDDEN, path, base=is_base)
            check_bounds(spec, table, bounds, path)
            self._files[age] = Part.of(spec, table)
        return self._files[age]


def same(value: Any, kind: str, count: int) -> pa.Array:
    """The value of an adopted file in all of its rows."""
    plain = PLAIN[kind] if kind in PLAIN else pa.decimal128(*decimal_of(kind))
    if value is not None and kind in ("float", "double"):
        value = float(value)
    stored = pa.int32() if kind == "date" else pa.int64() if kind.startswith("timestamp") else plain
    return pa.array([None if value is None else _bound(value, kind)] * count, stored).cast(plain)


def index_spec(spec: Json) -> Json | None:
    """The record index of a table, as a table; None where it has none."""
    if spec["index"]["type"] != "record":
        return None
    by_id = {column["id"]: column for column in spec["table_schema"]["columns"]}
    named = [(by_id[key]["physical"], by_id[key]["type"]) for key in spec["key"]]
    named += [("_objcat_home_partition", "string"), ("_objcat_home_bucket", "int")]
    ids = list(range(1, len(named) + 1))
    columns = [
        {"id": i, "name": name, "physical": name, "type": kind, "nullable": False} for i, (name, kind) in zip(ids, named, strict=True)
    ]
    return {
        "table_schema": {"columns": columns, "last_id": len(columns)},
        "key": ids[:-1],
        "ordering": None,
        "index": {"type": "bucket", "count": spec["index"]["buckets"], "columns": ids[:-2]},
        "key_scope": "table",
        "partitioning": {"mark": "_index"},
        "former": [],
    }


def is_global(spec: Json) -> bool:
    """Whether keys move between partitions."""
    sources = {field["column"] for found in partitionings_of(spec) for field in found.get("fields", [])}
    return spec["index"]["type"] not in ("bucket", "none") and spec["key_scope"] == "table" and not sources <= set(spec["key"])


def is_late(spec: Json, value: int, committed_at_ms: int) -> bool:
    """Whether a log row counts for nothing. Times are microseconds, dates days since 1970."""
    if spec.get("lateness_ms") is None or not committed_at_ms:
        return False
    (kind,) = [column["type"] for column in spec["table_schema"]["columns"] if column["id"] == spec["ordering"]]
    return value * (86_400_000_000 if kind == "date" else 1) < (committed_at_ms - spec["lateness_ms"]) * 1000


def ordering_of(spec: Json) -> list[int]:
    """Ids of the ordering columns, in order."""
    more = spec.get("ordering_more") or []
    check(not more or spec["ordering"] is not None, "more ordering columns than none")
    found = [*([] if spec["ordering"] is None else [spec["ordering"]]), *more]
    check(len(set(found)) == len(found), f"{found} names an ordering column twice")
    return found


def check_partial_order(spec: Json, ordering: list[int], rows: list[tuple[Any, ...]]) -> None:
    """Where a row has some ordering values only, these are of columns that locate it."""
    located = {*spec["key"], *sources_of(spec)}
    others = [place for place, column_id in enumerate(ordering) if column_id not in located]
    for row in rows:
        if any(value is None for value in row):
            check(all(row[place] is None for place in others), f"a row has the ordering values {row}")


def names_of(spec: Json, order: Json | None) -> tuple[str, ...] | None:
    """The columns by which the rows of a base file ascend; None where that is the key, none along a curve or where a column is gone."""
    if order is None:
        return None
    check(set(order) <= {"columns", "zorder"} and len(set(order["columns"])) == len(order["columns"]) > 0, f"{order} is no order")
    names = {column["id"]: column["name"] for column in spec["table_schema"]["columns"]}
    whole = not order.get("zorder") and all(column_id in names for column_id in order["columns"])
    return tuple(names[column_id] for column_id in order["columns"]) if whole else ()


def _shape(partition: str) -> list[str]:
    return [part.partition("=")[0] for part in partition.split("/")] if partition else []


@dataclass(frozen=True)
class Part:
    """Rows of a data file, key by key. rows: None for a delete."""

    path_keys: list[tuple[Any, ...]]
    keys: list[tuple[Any, ...]]
    hashes: list[int | None]
    ranks: list[Any]
    rows: list[Json | None]
    places: list[dict[int, Any]]
    """By id the values that the partition is made of."""

    @classmethod
    def of(cls, spec: Json, table: pa.Table) -> Part:
        columns = spec["table_schema"]["columns"]
        by_id = {column["id"]: column for column in columns}

        def values(ids: Iterable[int]) -> list[list[Any]]:
            return [plain_values(table[by_id[column_id]["physical"]]) for column_id in ids]

        keys = list(zip(*values(spec["key"]), strict=True)) if spec["key"] else [()] * len(table)
        kinds = [by_id[column_id]["type"] for column_id in spec["index"].get("columns") or ()]
        hashed = list(zip(*values(spec["index"]["columns"]), strict=True)) if kinds else []
        # A file may be older than a column that new partitions are made of.
        sources = [column_id for column_id in sources_of(spec) if by_id[column_id]["physical"] in table.column_names]
        of_rows = zip(*values(sources), strict=True) if sources else [()] * len(table)
        deleted = table["_objcat_op"].to_pylist() if "_objcat_op" in table.column_names else [0] * len(table)
        ordering = ordering_of(spec)
        ordered = list(zip(*values(ordering), strict=True))
        check_partial_order(spec, ordering, ordered)
        rows = zip(table.to_pylist(), deleted, strict=True)
        return cls(
            [tuple(map(_sorting, key)) for key in keys],
            [tuple(map(_identity, key)) for key in keys],
            [hash_key(zip(kinds, key, strict=True)) for key in hashed] if kinds else [None] * len(table),
            [None if any(value is None for value in rank) else rank for rank in ordered] if ordering else [None] * len(table),
            [None if op == 1 else {c["name"]: of_column(row, c) for c in columns} for row, op in rows],
            [dict.fromkeys(sources_of(spec)) | dict(zip(sources, of_row, strict=True)) for of_row in of_rows],
        )

    def part(self, start: int, end: int, *, order: tuple[str, ...] | None = None) -> Part:
        """The rows of one group_id: each key once, sorted by key, or as the names of columns say."""
        check(0 <= start < end <= len(self.keys) or start == end == 0, f"no rows {start} to {end}")
        at = slice(start, end)
        keys = self.path_keys[at]
        if order is None:
            check(all(a < b or a == () for a, b in itertools.pairwise(keys)), "the rows of a file group are not sorted by key")
        else:
            check(len(set(keys)) == len(keys), "a key is there twice")
            values = [[(row[name] is None, _sorting(row[name])) for name in order] for row in self.rows[at] if row is not None]
            check(all(a <= b for a, b in itertools.pairwise(values)), f"the rows of a file group are not sorted by {order}")
        return Part(keys, self.keys[at], self.hashes[at], self.ranks[at], self.rows[at], self.places[at])


def check_columns(spec: Json, schema: pa.Schema, hidden: pa.Field, path: str, *, base: bool) -> None:
    columns = {column["physical"]: column for column in spec["table_schema"]["columns"]}
    if is_first(spec["table_schema"]):
        check(schema.names == [*columns, hidden.name], f"{path} has the columns {schema.names}")
    for found in schema:
        if found.name in columns:
            check_type(found, columns[found.name], path, nullable=None if base else True)
    last = schema.field(len(schema) - 1)
    check(last.equals(hidden), f"the hidden column of {path} is {last}")


def check_bounds(spec: Json, table: pa.Table, bounds: Json, path: str) -> None:
    """No value lies outside, and the number of nulls is right."""
    for column in spec["table_schema"]["columns"]:
        if str(column["id"]) not in bounds:
            continue
        check(column["physical"] in table.column_names, f"{path} has bounds of column {column['id']}, and not the column")
        lower, upper, nulls = bounds[str(column["id"])]
        values = plain_values(table[column["physical"]])
        missing = sum(value is None for value in values)
        check(missing == nulls, f"{path}: {missing} nulls in column {column['id']}, bounds say {nulls}")
        present = [_sorting(value) for value in values if value is not None and not is_nan(value)]
        low, high = (None if bound is None else _sorting(_bound(bound, column["type"])) for bound in (lower, upper))
        check(low is None or all(low <= value for value in present), f"{path}: a value of column {column['id']} below {lower!r}")
        check(high is None or all(value <= high for value in present), f"{path}: a value of column {column['id']} above {upper!r}")


def _bound(bound: Any, kind: str) -> Any:
    if kind == "binary":
        return bytes.fromhex(bound)
    return Decimal(bound) if kind.startswith("decimal") else bound


# ----------------------------------------------------------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class Root:
    """A checkpoint: the fold up to `slot`."""

    prefix: Prefix
    content: Json

    @property
    def slot(self) -> int:
        return int(self.content["slot"])

    @property
    def tables(self) -> Json:
        tables: Json = self.content["payload"].get("tables") or {}
        return tables

    @property
    def names(self) -> Names:
        payload = self.content["payload"]
        if (named := payload.get("object")) is not None:
            found = json.loads(self.prefix.named(named["path"], size=named["bytes"], sha256=named["sha256"]))
        else:
            found = payload["names"]
        return Names(
            tables={key: bound["binding"] for key, bound in (found.get("tables") or {}).items()},
            namespaces=found.get("namespaces") or {},
            domains=found.get("domains") or {},
            dropped={
                table: (drop["binding"], drop["closed"])
                for table, drop in (found.get("dropped") or {}).items()
                if not drop.get("is_purged")
            },
        )

    def state(self, table: str) -> State:
        found = self.tables[table]
        of_index = index_spec(found["spec"])
        index = None if of_index is None else self._folded(State(of_index), found.get("index_shards") or ())
        return self._folded(State(found["spec"], found.get("bucket_counts") or {}, index=index), found.get("shards") or ())

    def _folded(self, state: State, shards: Iterable[Json]) -> State:
        events: list[Event] = []
        logs: list[LogRows] = []
        for shard in shards:
            data = self.prefix.named(shard["path"], size=shard["bytes"], sha256=shard["sha256"])
            rows = pq.read_table(io.BytesIO(data)).to_pylist()
            order = [(row["partition"], row["bucket_count"], row["bucket"]) for row in rows]
            check(len(rows) == shard["rows"] and all(a < b for a, b in itertools.pairwise(order)), f"rows of {shard['path']}")
            ends = [[row["partition"], row["bucket"], row["bucket_count"]] for row in (rows[0], rows[-1])]
            check(ends == [shard["first"], shard["last"]], f"{shard['path']} is of {ends}")
            for row in rows:
                group_id = (row["partition"], row["bucket"], row["bucket_count"])
                if row["slot"] >= 0:
                    size, count = row["base_bytes"] or 0, row["base_rows"] or 0
                    lies = json.loads(row["base_order"]) if row.get("base_order") else None
                    adopted = json.loads(row["base_adopted"]) if row.get("base_adopted") else None
                    events.append(Event(group_id, row["slot"], row["as_of"], row["base_path"], size, count, order=lies, adopted=adopted))
                for log in row["logs"]:
                    same = {
                        name: log[name]
                        for name in ("slot", "named_at", "path", "rows", "row_group_rows", "start", "end", "committed_at_ms")
                    }
                    logs.append(LogRows(group_id=group_id, size=log["bytes"], order=log["number"], **same))
        return replace(state, events=tuple(events), logs=tuple(logs))

    def marks(self, table: str) -> Marks:
        found = self.content["log"]["tables"].get(table) or {}
        apps = {app: (reached["version"], reached["rewound_at"]) for app, reached in (found.get("apps") or {}).items()}
        return Marks(found.get("bound") or 0, frozenset(found.get("saved") or ()), found.get("closed_at"), apps)

    def outcome(self, txn: str) -> tuple[str, int] | None:
        for known, slot, committed, _ in self.content.get("outcomes") or ():
            if known == txn:
                return "committed" if committed else "rolled back", slot
        for segment in self.content.get("segments") or ():
            if not segment["first_txn"] <= txn <= segment["last_txn"]:
                continue
            data, width = self.prefix.named(segment["path"]), segment["width"]
            check(len(data) == segment["count"] * width, f"{segment['path']} has {len(data)} bytes")
            low, high = 0, segment["count"]
            while low < high:
                middle = (low + high) // 2
                known, slot, said, _ = data[middle * width : (middle + 1) * width].decode().split()
                if known == txn:
                    check(said in ("committed", "fenced"), f"{segment['path']} says {said} of {txn}")
                    return "committed" if said == "committed" else "rolled back", int(slot)
                low, high = (middle + 1, high) if known < txn else (low, middle)
        return None


# ---------------------------------------------------------------------------------------------------------------------- a lake


def name_key(name: str) -> str:
    """What is equal of two texts that are one name."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


@dataclass(frozen=True)
class Names:
    """What a catalog holds; tables and namespaces by the form in which names are compared."""

    tables: Mapping[str, Json] = field(default_factory=dict)
    namespaces: Mapping[str, Json] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, tuple[Json, int]] = field(default_factory=dict)

    def after(self, change: Json) -> Names:
        tables, namespaces = dict(self.tables), dict(self.namespaces)
        domains, dropped = dict(self.domains), dict(self.dropped)
        unbound = {}
        for name in change.get("unbinds") or ():
            binding = tables.pop(name_key(name))
            unbound[binding["table"]] = binding
        for table, closed in (change.get("drops") or {}).items():
            dropped[table] = (unbound[table], closed)
        for table in change.get("purges") or ():
            del dropped[table]
        for name in change.get("removes") or ():
            del namespaces[name_key(name)]
        for created in change.get("creates") or ():
            namespaces[name_key(created["name"])] = created
        for name, properties in (change.get("properties") or {}).items():
            namespace = namespaces[name_key(name)]
            merged = {**(namespace.get("properties") or {}), **properties}
            namespaces[name_key(name)] = {**namespace, "properties": {k: v for k, v in merged.items() if v is not None}}
        for binding in change.get("binds") or ():
            tables[name_key(binding["name"])] = binding
            dropped.pop(binding["table"], None)
        domains.update(change.get("domains") or {})
        return Names(tables, namespaces, domains, dropped)


class Lake:
    """The names of a lake in a local directory, and the tables that they mean."""

    def __init__(self, root: Path, *, checkpoint: bool = False) -> None:
        """checkpoint: open every log from its newest checkpoint, not from slot 0."""
        self.root = root
        self.checkpoint = checkpoint
        self._logs: dict[str, Log] = {}
        self.names = self._open()

    def _open(self) -> Names:
        catalog = Log(self.root / "_catalog")
        found = catalog.newest_root() if self.checkpoint else None
        names = Names() if found is None else found.names
        for entry in catalog.entries[0 if found is None else found.slot + 1 :]:
            change = catalog.changes(entry).get("names")
            names = names if change is None else names.after(change)
        return names

    def tables(self) -> list[str]:
        return sorted(binding["name"] for binding in self.names.tables.values())

    def namespaces(self) -> dict[str, dict[str, str]]:
        return {found["name"]: dict(found.get("properties") or {}) for found in self.names.namespaces.values()}

    def dropped(self) -> list[str]:
        return sorted(binding["name"] for binding, _ in self.names.dropped.values())

    def table(self, name: str) -> Table:
        binding = self.names.tables[name_key(name)]
        return Table(self.log(binding["prefix"]), binding["table"], checkpoint=self.checkpoint)

    def dropped_table(self, name: str) -> Table:
        binding = next(binding for binding, _ in self.names.dropped.values() if binding["name"] == name)
        return Table(self.log(binding["prefix"]), binding["table"], checkpoint=self.checkpoint)

    def log(self, prefix: str) -> Log:
        if prefix not in self._logs:
            self._logs[prefix] = Log(self.root / prefix)
        return self._logs[prefix]


@dataclass(frozen=True)
class Table:
    """One table of a log; it needs no lake."""

    log: Log
    id: str
    checkpoint: bool = False

    @classmethod
    def at(cls, root: Path, *, checkpoint: bool = False) -> Table:
        """The only table of the log in a directory."""
        log = Log(root)
        (table,) = log.changes(log.entries[0])
        return cls(log, table, checkpoint)

    @property
    def marks(self) -> Marks:
        return self.log.marks(self.id, root=self.checkpoint)

    def state(self, slot: int) -> State:
        return self.log.state(self.id, slot, root=self.checkpoint)

    def readable(self) -> list[int]:
        return [slot for slot in range(self.log.head + 1) if self.log.readable(self.id, slot, root=self.checkpoint)]

    def rows(self, slot: int | None = None) -> list[Json]:
        return self.log.rows(self.id, slot, root=self.checkpoint)

    def outcome(self, txn: str) -> tuple[str, int] | None:
        return self.log.outcome(txn, root=self.checkpoint)
