"""Log entries: one completed instant per slot, as readable JSON with format version and features."""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import gcd
from typing import Annotated, Any, NewType, TypeAlias

import msgspec

from fileio.env import Env
from objcat.errors import CorruptTable, InvalidInput, UnsupportedFormat
from objcat.timeline.json_objects import RESTORE, check_digest, decode_json, encode_object

FORMAT_VERSION = 1
ERASED_PARTITIONS = {"erased_partitions": "0.1.0"}
"""The feature of an entry that no longer names the partitions which an erasure emptied, and of no later one. A reader cannot replay it upon
a state that holds rows of these partitions."""
SHARED_SLOTS = {"shared_slots": "0.1.0"}
"""The feature of an entry that commits several transactions. Who does not know it finds one of them only."""
_FILE_FEATURES = ("adopted_files", "base_order", "files_in_place", "precomputed_columns", "precomputed_fields", "promoted_files")
READER_FEATURES = frozenset({*_FILE_FEATURES, "column_defaults", "ordering_columns", *ERASED_PARTITIONS, *SHARED_SLOTS})
"""Features that this client understands when it reads."""
POSITIONS = {"positions": "0.1.0"}
"""The feature of a log that holds positions of sources. A writer that does not know it would lose them in its checkpoints."""
WRITER_FEATURES: frozenset[str] = frozenset({"derived_tables", "watermark", *POSITIONS, *SHARED_SLOTS})
"""Features that this client understands when it writes."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of rows or bytes, or a slot."""
BUCKETS_MAX = 65_536
Buckets: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=BUCKETS_MAX)]
"""A number of buckets."""
TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""
TimeMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
"""A time in ms since 1970 UTC."""

Txn = NewType("Txn", str)
"""The id of one execution of one operation: requested time and 64 random bits, e.g. `20261121T093000123Z-0123456789abcdef`."""


class Action(enum.StrEnum):
    """What an instant does."""

    CREATE = "CREATE"
    COMMIT = "COMMIT"
    DELTA_COMMIT = "DELTA_COMMIT"
    REPLACE = "REPLACE"
    COMPACTION = "COMPACTION"
    CLEAN = "CLEAN"
    ROLLBACK = "ROLLBACK"
    SAVEPOINT = "SAVEPOINT"
    RESTORE = "RESTORE"
    SCHEMA = "SCHEMA"
    CLOSE = "CLOSE"


class FileGroupId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The address of a file group: partition path, bucket, and bucket count.

    Keys are hashed to the bucket count. The partition is empty in a table without partitions.
    """

    partition: str
    bucket: Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS_MAX)]
    bucket_count: Buckets

    def is_common(self, other: FileGroupId) -> bool:
        """Whether both may hold the same key.

        That is so when the partitions are equal, and the buckets are equal modulo the greatest common divisor of the counts.
        """
        divisor = gcd(self.bucket_count, other.bucket_count)
        return self.partition == other.partition and self.bucket % divisor == other.bucket % divisor

    def __str__(self) -> str:
        return f"{self.partition or '(all)'} bucket {self.bucket}/{self.bucket_count}"


class SideObject(msgspec.Struct, frozen=True):
    """An immutable object outside of the log that belongs to one entry.

    Args:
        path: Relative to the log's prefix.
        bytes: Its size.
        sha256: The hash of its bytes, hexadecimal.
    """

    path: str
    bytes: Count
    sha256: str


class HistoryRow(msgspec.Struct, frozen=True):
    """Where the whole entry of an archived slot is: a history file, and its row number from 0."""

    file: SideObject
    row: Count


class Digests(msgspec.Struct, frozen=True, omit_defaults=True):
    """A set of 64-bit digests of keys.

    Args:
        inline: The digests, ascending, little endian, base64.
        side: The same bytes in an object, when there are many.
    """

    count: Count = 0
    inline: str = ""
    side: SideObject | None = None


class Keys(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keys that an operation touched, under an index that stores locations of keys.

    Args:
        placed: Keys that it inserted, moved or deleted.
        updated: Keys whose row it replaced in place.
    """

    placed: Digests = Digests()
    updated: Digests = Digests()


class PositionChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the reader of a source has come with an entry.

    Args:
        version: That of the position before, and 1. The first one is 0.
        state: What the reader needs to go on.
        side: The state as JSON in an object, when it is large. An erasure leaves neither.
    """

    version: Count
    state: dict[str, Any] | None = None
    side: SideObject | None = None


class SchemaChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the schema.

    Args:
        columns: Ids of columns that were added, dropped, renamed or widened.
        needs_data: Whether it depends on the rows that were there when it was planned.
    """

    columns: tuple[int, ...] = ()
    needs_data: bool = False


class Footprint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an operation touched in one table, as far as conflicts need to know.

    Args:
        creates: File groups in which it wrote the first base file.
        appends: File groups to which it wrote log rows, or which it created by log rows.
        replaces: File groups whose base file and log rows, up to its base slot, it rewrote.
        retires: File groups that it ended.
        rmw: File groups from whose rows it computed what it appended.
        reads: File groups on whose rows its outcome depends (serializable only).
        overwrites: Partitions that it replaced as a whole.
        read_partitions: Partitions on whose rows its outcome depends.
        splits: Partitions that it split, with their new bucket count.
        bound: The retention floor: slots below it can no longer be read, except saved ones.
        root_bound: Checkpoints below it may be gone. It is the log's, repeated in the footprint of each of its tables.
        saves: The slot of a savepoint that it made.
        releases: The slot of a savepoint that it released.
        restores: The slot whose state the table has again.
        binds: Names that it gave, in a catalog.
        unbinds: Names that it took away, in a catalog.
        needs: Namespaces that must exist.
        empties: Namespaces that must be empty.
    """

    creates: tuple[FileGroupId, ...] = ()
    appends: tuple[FileGroupId, ...] = ()
    replaces: tuple[FileGroupId, ...] = ()
    retires: tuple[FileGroupId, ...] = ()
    rmw: tuple[FileGroupId, ...] = ()
    reads: tuple[FileGroupId, ...] = ()
    overwrites: tuple[str, ...] = ()
    read_partitions: tuple[str, ...] = ()
    splits: dict[str, Buckets] = {}
    keys: Keys | None = None
    schema: SchemaChange | None = None
    bound: Count | None = None
    root_bound: Count | None = None
    saves: Count | None = None
    releases: Count | None = None
    restores: Count | None = None
    binds: tuple[str, ...] = ()
    unbinds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    empties: tuple[str, ...] = ()

    @property
    def changes_state(self) -> bool:
        """Whether an entry with this footprint has changes of the table, or of names."""
        return any(getattr(self, name) for name in _CHANGING)


_CHANGING = ("creates", "appends", "replaces", "retires", "splits", "schema", "binds", "unbinds")


class Summary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a commit did, for people.

    Args:
        rows: Rows written, after repeated keys were merged.
        inserted: Rows, as `updated` and `deleted`. None where a blind write cannot know.
        files: Data files.
        bytes: Bytes of data.
        attempts: 1, unless another commit forced the work to be repeated.
        slots_lost: Slots that others took first.
        requests: Requests to the store by the committing process up to this commit, by kind. Its own slot is included.
    """

    rows: int = 0
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    files: int = 0
    bytes: int = 0
    attempts: int = 1
    slots_lost: int = 0
    requests: dict[str, int] = {}


class SharedCommit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another transaction that an entry commits. Its fields mean what those of an entry do."""

    txn: Txn
    base: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    writer: str = ""
    summary: Summary | None = None
    metadata: dict[str, str] = {}


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One completed instant.

    Args:
        base: The slot up to which the log was known when it was planned (-1: none).
        writer: Client and engine.
        features: What a reader must understand, each with the first version of objcat that does.
        writer_features: What a writer must understand from this slot on.
        changes: By table id, for the reducer of the log. Large changes are in `side`, and `changes` is empty.
        apps: By table id, the version that each application has reached.
        positions: By source, how far its reader has come.
        plan: The txn of the plan that it executes.
        rollback_of: The txn that a ROLLBACK fences.
        metadata: The user's own.
        history: Set in a tombstone. Its changes, footprint, writer, summary and metadata are there.
        erased: By table id, set when an erasure removed values from the entry. Holds the ids of erasures that removed whole partitions.
        also: The other transactions that it commits, in the order in which their log rows count, after those of its own.
    """

    format: Annotated[int, msgspec.Meta(ge=1)]
    slot: Count
    action: Action
    txn: Txn
    base: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    committed_at_ms: TimeMs
    writer: str = ""
    features: dict[str, str] = {}
    writer_features: dict[str, str] = {}
    changes: dict[str, msgspec.Raw] = {}
    side: SideObject | None = None
    footprint: dict[str, Footprint] = {}
    apps: dict[str, dict[str, int]] = {}
    positions: dict[str, PositionChange] = {}
    plan: Txn | None = None
    rollback_of: Txn | None = None
    summary: Summary | None = None
    metadata: dict[str, str] = {}
    history: HistoryRow | None = None
    erased: dict[str, tuple[str, ...]] = {}
    also: tuple[SharedCommit, ...] = ()

    @property
    def txns(self) -> tuple[Txn, ...]:
        """All transactions that it commits."""
        return (self.txn, *(other.txn for other in self.also)) if self.also else (self.txn,)


class _Version(msgspec.Struct):
    """The fields that every format of an entry has, now and later.

    Args:
        min_client: The version of objcat that a format above 1 needs.
        writer: For people, whatever a later format makes of it.
        digest: Of the bytes of the object, in format 1.
    """

    format: int
    min_client: str | None = ""
    action: str | None = ""
    writer: Any = ""
    features: dict[str, str] | None = None
    digest: str | None = ""


# Made here, in one thread: msgspec crashes when two threads meet a new type at the same time.
_VERSIONS = msgspec.json.Decoder(_Version)
_ENTRIES = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """The bytes of a slot. Raises TypeError for an entry that could not be read again, since a slot is never deleted."""
    data = encode_object(entry)
    try:
        check_entry(_ENTRIES.decode(data), key=log_key(entry.slot))
    except (msgspec.ValidationError, CorruptTable) as error:
        raise TypeError(
            f"Slot {entry.slot} would hold what no reader takes ({error}). Nothing was written. Report this as a bug in objcat."
        ) from error
    return data


def decode_entry(data: bytes, *, key: str) -> Entry:
    """The entry of a slot object. Raises UnsupportedFormat for a newer format, CorruptTable for what is not an entry."""
    version = decode_json(data, _VERSIONS, where=key, what="a log entry of objcat")
    check_format(version.format, version.features or {}, min_client=version.min_client or "", where=key)
    check_digest(data, version.digest, key=key)
    if version.action and version.action not in set(Action):
        known = isinstance(version.writer, str) and version.writer
        newer = f"It was written by {version.writer}. Upgrade to that version or a newer one" if known else "Upgrade to a newer one"
        raise UnsupportedFormat(f"{key} is a {version.action}. This objcat does not know that action. {newer} to read this table.")
    entry = decode_json(data, _ENTRIES, where=key, what="a log entry of objcat")
    check_entry(entry, key=key)
    return entry


def check_entry(entry: Entry, *, key: str) -> None:
    """Check that an entry agrees with itself. key: its object, for the error. Raises CorruptTable that names the field."""

    def wrong(field: str, found: object, expected: str) -> CorruptTable:
        return CorruptTable(f"{key} says {field} = {found!r}. It must be {expected}. {RESTORE}")

    if entry.base >= entry.slot:
        raise wrong("base", entry.base, f"below its slot, {entry.slot}")
    for field, txn in (("txn", entry.txn), ("plan", entry.plan), ("rollback_of", entry.rollback_of)):
        if txn is not None and not is_txn(txn):
            raise wrong(field, txn, "the id of a transaction")
    if (entry.action is Action.ROLLBACK) != (entry.rollback_of is not None):
        raise wrong("rollback_of", entry.rollback_of, "set in a ROLLBACK, and nowhere else")
    for field, side in (("side", entry.side), ("history.file", None if entry.history is None else entry.history.file)):
        if side is not None and (not is_path(side.path) or not _SHA256.fullmatch(side.sha256)):
            raise wrong(field, side, "an object below the log's prefix and its SHA-256")
    _check_positions(entry, wrong)
    _check_also(entry, wrong)
    for table, footprint in entry.footprint.items():
        _check_footprint(footprint, f"footprint.{table}", entry, wrong)
        if footprint.changes_state and entry.side is None and entry.history is None and table not in entry.changes:
            raise wrong(f"changes.{table}", None, f"present, since its footprint names {_change_of(footprint)}")


def _check_positions(entry: Entry, wrong: Callable[[str, object, str], CorruptTable]) -> None:
    if entry.positions and not POSITIONS.keys() <= entry.writer_features.keys():
        raise wrong("writer_features", entry.writer_features, "with `positions`, since the entry has some")
    for source, change in entry.positions.items():
        side = change.side
        if side is not None and (change.state is not None or not is_path(side.path) or not _SHA256.fullmatch(side.sha256)):
            raise wrong(f"positions.{source}.side", side, "an object below the log's prefix and its SHA-256, without a state beside it")
        if side is None and change.state is None and not entry.erased:
            raise wrong(f"positions.{source}", change, "a state, or an object that holds it")


def _check_also(entry: Entry, wrong: Callable[[str, object, str], CorruptTable]) -> None:
    if not entry.also:
        return
    if not SHARED_SLOTS.keys() <= entry.features.keys() & entry.writer_features.keys():
        raise wrong(
            "features", sorted(entry.features), "with `shared_slots`, like `writer_features`, since it commits several transactions"
        )
    if entry.action is not Action.DELTA_COMMIT or entry.plan is not None:
        raise wrong("action", entry.action, "DELTA_COMMIT, without a plan, since it commits several transactions")
    if not all(map(is_txn, entry.txns)) or len({*entry.txns}) < len(entry.txns) or any(one.base >= entry.slot for one in entry.also):
        raise wrong("also", entry.txns[:10], "ids of transactions, each once, with bases below its slot")


def _check_footprint(footprint: Footprint, field: str, entry: Entry, wrong: Callable[[str, object, str], CorruptTable]) -> None:
    for kind in _FILE_GROUP_FIELDS:
        for group_id in getattr(footprint, kind):
            if group_id.bucket >= group_id.bucket_count:
                raise wrong(f"{field}.{kind}", group_id, "file groups whose bucket is below their bucket count")
    for kind in ("bound", "root_bound", "saves", "releases", "restores"):
        slot = getattr(footprint, kind)
        if slot is not None and slot > entry.slot:
            raise wrong(f"{field}.{kind}", slot, f"at most its own slot, {entry.slot}")
    if footprint.restores == entry.slot:
        raise wrong(f"{field}.restores", footprint.restores, "a slot below its own")
    for kind in ("placed", "updated") if footprint.keys is not None else ():
        digests: Digests = getattr(footprint.keys, kind)
        if digests.side is not None and digests.count and entry.erased and not digests.side.sha256:
            continue  # An erasure has removed them.
        if digests.side is not None:
            if digests.side.bytes != 8 * digests.count or not is_path(digests.side.path):
                raise wrong(f"{field}.keys.{kind}.side", digests.side, f"an object of {8 * digests.count} bytes, 8 for each digest")
        elif inline_digests(digests) is None:
            raise wrong(f"{field}.keys.{kind}.inline", digests.inline[:40], f"base64 of {digests.count} digests of 8 bytes")


def inline_digests(digests: Digests) -> bytes | None:
    """The digests that an entry holds itself; None when their number is not the stated one."""
    try:
        data = base64.b64decode(digests.inline, validate=True)
    except ValueError:
        return None
    return data if len(data) == 8 * digests.count else None


def is_path(path: str) -> bool:
    """Whether a relative path stays below its prefix."""
    return bool(path) and not _LEAVES.search(path)


_LEAVES = re.compile(r"^/|//|(^|/)\.\.?(/|$)|[\\\x00-\x1f]|^[A-Za-z][A-Za-z0-9+.-]*:")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_GROUP_FIELDS = ("creates", "appends", "replaces", "retires", "rmw", "reads")


def _change_of(footprint: Footprint) -> str:
    return next((name for name in _CHANGING if getattr(footprint, name)), "a change")


def check_format(found: int, features: Mapping[str, str], *, min_client: str, where: str) -> None:
    """Check that this objcat reads the object `where`. Raises UnsupportedFormat that names the version which does."""
    if found > FORMAT_VERSION:
        needed = f"objcat {min_client} or newer" if min_client else "a newer objcat"
        raise UnsupportedFormat(
            f"{where} has table format {found}. This objcat reads up to format {FORMAT_VERSION}. Use {needed} to read it."
        )
    for name in sorted(set(features) - READER_FEATURES):
        raise UnsupportedFormat(
            f"{where} needs the table feature {name!r}. This objcat lacks it. Use objcat {features[name]} or newer to read it."
        )


def check_writable(writer_features: Mapping[str, str], *, where: str) -> None:
    """Check that this client understands all that a writer must. Raises UnsupportedFormat."""
    for name in sorted(set(writer_features) - WRITER_FEATURES):
        raise UnsupportedFormat(
            f"Writes to {where} need the table feature {name!r}. This objcat lacks it; it may read the table. Nothing was written. "
            f"Use objcat {writer_features[name]} or newer to write."
        )


_TXN = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{16}")


def is_txn(text: str) -> bool:
    """Whether a text is a transaction id."""
    return type(text) is str and _TXN.fullmatch(text) is not None


def parse_txn(text: str) -> Txn:
    """The text as a transaction id. Raises InvalidInput."""
    if not is_txn(text):
        raise InvalidInput(
            f"{text!r} is not a transaction id. Give one such as 20261121T093000123Z-0123456789abcdef. `objcat log --json` shows them."
        )
    return Txn(text)


def new_txn(env: Env) -> Txn:
    """A fresh transaction id: the clock for the reader's eye, and 64 random bits for uniqueness."""
    return Txn(f"{txn_time(env.now_ms())}-{env.new_id()}")


def txn_time(at_ms: int) -> str:
    """The beginning of transaction ids drawn at a time, ms since 1970 UTC. Sorts by time."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{when:%Y%m%dT%H%M%S}{when.microsecond // 1000:03d}Z"


def log_key(slot: int) -> str:
    """The key of a slot."""
    return f"log/{slot:020d}.json"


def intent_key(txn: Txn) -> str:
    """The key of the object which says that `txn` is under way."""
    return f"intents/{txn}.inflight.json"


def requested_key(txn: Txn) -> str:
    """The key of a plan of `txn` that waits for an executor."""
    return f"intents/{txn}.requested.json"


def data_prefix(txn: Txn) -> str:
    """The prefix of everything that `txn` writes."""
    return f"data/{txn}/"
