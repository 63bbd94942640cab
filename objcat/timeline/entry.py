"""What a log slot holds: one completed instant, as readable JSON with a format version and feature flags."""

from __future__ import annotations

import enum
import re
from datetime import UTC, datetime
from typing import NewType

import msgspec

from fileio.env import Env
from objcat.errors import CorruptTable, InvalidInput, UnsupportedFormat

FORMAT_VERSION = 1
KNOWN_FEATURES: frozenset[str] = frozenset()

Txn = NewType("Txn", str)
"""One execution of one operation: requested time and 64 random bits, e.g. `20261121T093000123Z-0123456789abcdef`."""


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


class Home(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where keys live under the bucket index: a partition path (empty when unpartitioned), a bucket, and the count it was hashed to."""

    partition: str
    bucket: int
    bucket_count: int

    def is_common(self, other: Home) -> bool:
        """Whether some key may live in both."""
        count = min(self.bucket_count, other.bucket_count)
        return self.partition == other.partition and self.bucket % count == other.bucket % count

    def __str__(self) -> str:
        return f"{self.partition or '(all)'} bucket {self.bucket}/{self.bucket_count}"


class Footprint(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operation touched in one table, as far as conflicts need to know.

    creates: homes in which it wrote the first base file. appends: homes to which it wrote log rows (their creation included).
    """

    creates: tuple[Home, ...] = ()
    appends: tuple[Home, ...] = ()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One completed instant.

    base: the slot of the snapshot that it was planned from (-1: none). changes: by table id, meaningful to the table package only.
    rollback_of: the txn that a ROLLBACK fences. metadata: the user's own.
    """

    format: int
    slot: int
    action: Action
    txn: Txn
    base: int
    committed_at_ms: int
    features: tuple[str, ...] = ()
    changes: dict[str, msgspec.Raw] = {}
    footprint: dict[str, Footprint] = {}
    rollback_of: Txn | None = None
    metadata: dict[str, str] = {}


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An operation under way: advice for whoever finds it after its writer died."""

    format: int
    txn: Txn
    action: Action
    base: int
    host: str
    engine: str


class _Version(msgspec.Struct):
    format: int
    action: str = ""
    features: tuple[str, ...] = ()


def encode_entry(entry: Entry) -> bytes:
    """The bytes of a slot. Raises TypeError for an entry that could not be read again: a slot is for ever."""
    data = msgspec.json.format(msgspec.json.encode(entry), indent=1)
    try:
        msgspec.json.decode(data, type=Entry)
    except msgspec.ValidationError as error:
        raise TypeError(f"slot {entry.slot} would hold what no reader takes ({error}): that is a bug in objcat") from error
    return data


def decode_entry(data: bytes, *, key: str) -> Entry:
    """The entry of a slot object. Raises UnsupportedFormat for a newer format, CorruptTable for what is not an entry."""
    try:
        version = msgspec.json.decode(data, type=_Version)
        if version.format > FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{key} has table format {version.format}, this objcat reads up to {FORMAT_VERSION}: upgrade objcat to read this table"
            )
        unknown = sorted(set(version.features) - KNOWN_FEATURES)
        if unknown:
            raise UnsupportedFormat(f"{key} needs the table feature {unknown[0]!r}, which this objcat lacks: upgrade it to read this table")
        if version.action and version.action not in set(Action):
            raise UnsupportedFormat(f"{key} is a {version.action}, which this objcat does not know: upgrade it to read this table")
        return msgspec.json.decode(data, type=Entry)
    except msgspec.DecodeError as error:
        raise CorruptTable(f"{key} is not a log entry of objcat ({error}): restore that object from a backup of the bucket") from error


_TXN = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{16}")


def parse_txn(text: str) -> Txn:
    """The transaction id that a text is. Raises InvalidInput."""
    if not _TXN.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not a transaction id: they look like 20261121T093000123Z-0123456789abcdef, see `objcat log --json`"
        )
    return Txn(text)


def new_txn(env: Env) -> Txn:
    """A fresh transaction id from the clock (for the reader's eye) and 64 random bits (for uniqueness)."""
    when = datetime.fromtimestamp(env.now_ms() / 1000, UTC)
    return Txn(f"{when:%Y%m%dT%H%M%S}{when.microsecond // 1000:03d}Z-{env.new_id()}")


def log_key(slot: int) -> str:
    """The object of a slot."""
    return f"log/{slot:020d}.json"


def intent_key(txn: Txn) -> str:
    """The object that says that `txn` is under way."""
    return f"intents/{txn}.inflight.json"


def data_prefix(txn: Txn) -> str:
    """Everything that `txn` writes lies below this."""
    return f"data/{txn}/"
